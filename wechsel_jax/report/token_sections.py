"""The page's sections about the vocabulary: where tokens came from, alignment, examples and the lengths of embeddings."""

import math
from collections.abc import Mapping
from html import escape
from typing import Any

from wechsel_jax.files.json import is_number
from wechsel_jax.report.display import NO_VALUE, number, percent, plural, token_html
from wechsel_jax.report.records import RunRecord
from wechsel_jax.report.sections import Report
from wechsel_jax.report.transfers import ORIGINS, Example, Mixture, same_source

ORIGIN_MEANING = {
    "copied": "copied from one source token",
    "mixed": "a weighted mean of source tokens",
    "random": "random",
}
_SHOWN, _SHOWN_NARROW = 5, 3
# Whether tokens are compared by contexts -> how the two languages come to share a space.
_SPACES = {
    False: "One rotation, learned from a dictionary, lays the source language's word vectors over the target language's.",
    True: "Tokens of both languages are described by how often the same anchors, pairs of tokens that mean the same, stand "
    "before and after them in text.",
}
# What is said of a token without source tokens, by how its row was made.
_NO_SOURCES = {"random": "random: nothing is known of it", "mixed": "the regression alone"}
_ANCHOR_RULES = {
    "dictionary": "from the dictionary",
    "equal": "of equal bytes",
    "learned": "that are each other's nearest",
}
# What P@1 was measured on.
_TESTED = {
    False: "whose nearest word in the other language is a translation that the dictionary gives. The rotation that is tested "
    "had not seen them.",
    True: "whose nearest token in the other language is a translation that the dictionary gives. The vectors that are tested "
    "were made without them. Mixtures of tokens that stand in like places can be good where this share is low.",
}


def origins(report: Report) -> str:
    """Stacked bars and a table: how many rows were copied, mixed and random."""
    runs = [run for run in report.transferred if run.transfer.counts and sum(run.transfer.counts.values())]
    if not runs:
        return ""
    key = "".join(f'<li><i class="{how}"></i>{meaning}</li>' for how, meaning in ORIGIN_MEANING.items())
    bars = "".join(_bar(report, run, i) for i, run in enumerate(runs))
    heads = "".join(f'<th scope="col">{how}</th>' for how in ORIGINS)
    rows = "".join(
        f'<tr><th scope="row">{report.name(run)}</th>'
        + "".join(f"<td>{run.transfer.counts[how]:,}</td>" for how in ORIGINS)
        + f"<td>{sum(run.transfer.counts.values()):,}</td></tr>"
        for run in runs
    )
    mixtures: dict[Mixture, list[RunRecord]] = {}
    for run in runs:
        if run.transfer.mixture:
            mixtures.setdefault(run.transfer.mixture, []).append(run)
    captions = "".join(f'<p class="caption">{report.names(alike)}: {_mixture(what)}</p>' for what, alike in mixtures.items())
    return (
        "<section><h2>Where the new tokens came from</h2><p>Every token of the new vocabulary needs a row in the embedding "
        f'table before training can begin.</p><figure><ul class="key">{key}</ul>{bars}</figure>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="Table of token origins"><table><thead><tr>'
        f'<th scope="col">Run</th>{heads}<th scope="col">tokens</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{captions}</section>"
    )


def alignment(report: Report) -> str:
    """How well the two languages' vectors lie on each other."""
    found: dict[str, list[RunRecord]] = {}
    for run in report.transferred:
        if run.transfer.alignment or run.transfer.similarity:
            found.setdefault(_facts(run), []).append(run)
    if not found:
        return ""
    several = len(found) > 1
    parts = "".join((f"<h3>{report.names(runs)}</h3>" if several else "") + facts for facts, runs in found.items())
    kinds = dict.fromkeys(_anchored(run.transfer.alignment) for run in report.transferred if run.transfer.alignment)
    ledes = "".join(f"<p>{_SPACES[anchored]}</p>" for anchored in kinds or (False,))
    return f"<section><h2>How well the languages line up</h2>{ledes}{parts}</section>"


def examples(report: Report) -> str:
    """Sampled target tokens with their source tokens and weights."""
    runs = [run for run in report.transferred if any(example.sources for example in run.transfer.examples)]
    if not runs:
        return ""
    # Mixtures tell more than copies.
    runs.sort(key=lambda run: all(example.how != "mixed" for example in run.transfer.examples))
    others = [run for run in report.transferred if run.transfer.examples and run not in runs]
    parts = [_examples_table(report, runs[0])]
    parts += [
        f"<details><summary>The same for {report.name(run)}</summary>{_examples_table(report, run)}</details>"
        for run in runs[1:]
    ]
    if others:
        draws = "draws" if len(others) == 1 else "draw"
        text = f"{report.names(others)} {draws} such tokens at random, so there is nothing to show."
        parts.append(f'<p class="caption">{text}</p>')
    return (
        f"<section><h2>{plural(len(runs[0].transfer.examples), 'new token')} and what they are made of</h2>"
        f"<p>Drawn at random from the new vocabulary, with the source tokens that weigh most; the bar is the weight, full at "
        f'1. <span class="space">␣</span> marks a token that begins a word.</p>{"".join(parts)}</section>'
    )


def norms(report: Report) -> str:
    """Mean and spread of the lengths of embedding rows, before and after."""
    runs = [run for run in report.transferred if run.transfer.norms]
    if not runs:
        return ""
    top = max(side["mean"] + side["std"] for run in runs for side in run.transfer.norms.values()) * 1.06 or 1.0
    shared = same_source([run.transfer for run in runs])
    spread = any(_ratio(run, "input", "std") for run in runs)
    blank = [NO_VALUE] * (2 if spread else 1)
    rows = [_norms_row("source model", "", runs[0].transfer.norms["source"], top, "source", blank)] if shared else []
    for run in runs:
        before, after = (run.transfer.norms[side] for side in ("source", "target"))
        if not shared:
            rows.append(_norms_row(f"{report.name(run)}, source model", "", before, top, "source", blank))
        ratios = [_times(after["mean"] / before["mean"] if before["mean"] else None)]
        ratios += [_times(_ratio(run, "input", "std"))] if spread else []
        rows.append(_norms_row(report.name(run), f"s{report.slot(run)}", after, top, "target", ratios))
    heads = "".join(f'<th scope="col">{what}</th>' for what in ("length to source’s", "spread to source’s")[: len(blank)])
    return (
        "<section><h2>Lengths of the embeddings</h2><p>New rows should not be much longer or shorter than those the model "
        "knows, and their entries should be spread as widely: a model tuned to one spread reads another badly. Point: mean "
        "length of a row; line: one standard deviation to each side.</p>"
        '<div class="scroll" tabindex="0" role="region" aria-label="Table of embedding lengths"><table><thead><tr>'
        '<th scope="col">Embeddings of</th><th scope="col" class="text">length</th><th scope="col">mean</th>'
        f'<th scope="col">deviation</th>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>{_heads(report, runs)}'
        "</section>"
    )


def _heads(report: Report, runs: list[RunRecord]) -> str:
    """The same two ratios of heads that have a table of their own."""
    told = [
        f"{report.name(run)}: length {_times(_ratio(run, 'head', 'norm_mean'))}, spread {_times(_ratio(run, 'head', 'std'))}"
        for run in runs
        if _ratio(run, "head", "std")
    ]
    return f'<p class="caption">Output heads, to the source’s. {"; ".join(told)}.</p>' if told else ""


def _ratio(run: RunRecord, role: str, name: str) -> float | None:
    return next(((table["ratios"] or {}).get(name) for table in run.transfer.tables if table["role"] == role), None)


def _times(ratio: float | None) -> str:
    return NO_VALUE if ratio is None else f"{number(ratio, 2)} ×"


def _bar(report: Report, run: RunRecord, index: int) -> str:
    counts = run.transfer.counts
    total = sum(counts.values())
    told = ", ".join(f"{counts[how]:,} {how} ({percent(counts[how] / total)})" for how in ORIGINS)
    rects, start = [], 0.0
    for how in ORIGINS:
        share = 100 * counts[how] / total
        # What is there at all is at least visible.
        size = f'width="{share:.3f}%"' if share >= 0.3 or not share else 'width="3"'
        title = f"<title>{counts[how]:,} {how}</title>"
        if share:
            rects.append(f'<rect class="{how}" x="{start:.3f}%" {size} height="100%">{title}</rect>')
        if share and how == "random":
            rects.append(f'<rect fill="url(#hatch{index})" x="{start:.3f}%" {size} height="100%">{title}</rect>')
        start += share
    hatch = (
        f'<defs><pattern id="hatch{index}" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<path class="hatch" d="M0,0V7"/></pattern></defs>'
    )
    shares = " · ".join(f"{percent(counts[how] / total)} {how}" for how in ORIGINS if counts[how])
    return (
        f'<div class="origin"><p><b>{report.name(run)}</b><span class="quiet">{shares}</span></p>'
        f'<svg class="stack" role="img" aria-label="{escape(run.label)}: {told}">{hatch}{"".join(rects)}</svg></div>'
    )


def _mixture(mixture: Mixture) -> str:
    takes = "takes" if mixture.source_tokens == 1 else "take"
    used = f"{plural(mixture.source_tokens, 'different source token')} {takes} part"
    leans = number(mixture.effective_neighbors, 2)
    return f"a mixed token leans on {leans} source tokens on average (the exponential of its weights' entropy); {used}."


def _facts(run: RunRecord) -> str:
    found, similarity = run.transfer.alignment or {}, run.transfer.similarity or {}
    anchored, facts = _anchored(found), []
    if is_number(found.get("precision_at_1")):
        words = f" of {found['held_out_words']:,}" if is_number(found.get("held_out_words")) else ""
        facts.append(_fact(
            "Translations found", percent(found["precision_at_1"]), found["precision_at_1"],
            f"P@1: share{words} held-out dictionary words {_TESTED[anchored]}",
        ))  # fmt: skip
    if is_number(similarity.get("mean_top1")):
        median = f" (median {similarity['median_top1']:.2f})" if is_number(similarity.get("median_top1")) else ""
        facts.append(_fact(
            "Nearest source token", f"{similarity['mean_top1']:.2f}", similarity["mean_top1"],
            f"Mean cosine similarity of a new token to the source token nearest to it{median}; 1 is the same direction, "
            "0 unrelated.",
        ))  # fmt: skip
    if is_number(found.get("residual")):
        facts.append(_fact(
            "What the rotation leaves over", f"{found['residual']:.2f}", found["residual"] / math.sqrt(2),
            "Residual: the distance that remains between the two words of a pair, relative to the length of the target word's "
            "vector. 0 would be a perfect fit; unrelated vectors of equal length leave about 1.4.", "meter loss",
        ))  # fmt: skip
    if is_number(found.get("pairs")):
        facts.append(_fact("Pairs of words", f"{found['pairs']:,}", None, _where_pairs_come_from(found)))
    if anchored:
        facts.append(_anchors(found))
    return f'<div class="pair">{"".join(facts)}</div>'


def _anchored(found: Mapping[str, Any]) -> bool:
    return isinstance(found.get("anchors"), Mapping)


def _anchors(found: Mapping[str, Any]) -> str:
    counts = {rule: count for rule, count in found["anchors"].items() if is_number(count)}
    rules = ", ".join(f"{counts[rule]:,} {what}" for rule, what in _ANCHOR_RULES.items() if counts.get(rule))
    rounds = [f"{one['anchors']:,}" for one in found.get("rounds") or () if is_number(one["anchors"])]
    told = f" Round by round there were {', '.join(rounds)}." if len(rounds) > 1 else ""
    return _fact("Anchors", f"{sum(counts.values()):,}", None, f"Pairs of tokens: {rules}.{told}")


def _where_pairs_come_from(found: Mapping[str, Any]) -> str:
    if found.get("method") == "adversarial":
        return "Translations that the aligned vectors themselves proposed; no dictionary was used to find them."
    given = f", out of {found['pairs_given']:,} dictionary entries" if is_number(found.get("pairs_given")) else ""
    return (
        f"Pairs of spellings that both languages have a vector for{given}. Counted by the rule "
        f"“{escape(str(found.get('weighting')))}”."
    )


def _fact(name: str, value: str, share: float | None, text: str, kind: str = "meter") -> str:
    width = "" if share is None else f"{100 * min(1.0, max(0.0, share)):.1f}"
    meter = f'<div class="{kind}" aria-hidden="true"><i style="width:{width}%"></i></div>' if width else ""
    return f'<dl class="facts"><dt><span>{name}</span><span>{value}</span></dt><dd>{meter}{text}</dd></dl>'


def _examples_table(report: Report, run: RunRecord) -> str:
    rows = "".join(
        f'<tr><th scope="row">{token_html(example.target)}</th><td>{_sources(example)}</td></tr>'
        for example in run.transfer.examples
    )
    return (
        f'<table class="examples"><caption>{report.name(run)}</caption><thead><tr><th scope="col" class="text">New token</th>'
        f'<th scope="col" class="text">Source tokens and weights</th></tr></thead><tbody>{rows}</tbody></table>'
    )


def _sources(example: Example) -> str:
    if not example.sources:
        return f'<span class="quiet">{_NO_SOURCES.get(example.how, NO_VALUE)}</span>'
    items = "".join(_source(token, weight, example.how) for token, weight in example.sources[:_SHOWN])
    rests = [
        f'<span class="{kind}">{_rest(example, shown)}</span>' for kind, shown in (("long", _SHOWN), ("short", _SHOWN_NARROW))
    ]
    return f'<ul class="sources">{items}<li class="rest">{"".join(rests)}</li></ul>'


def _source(token: str, weight: float, how: str) -> str:
    kind = "copied" if how == "copied" else "negative" if weight < 0 else "weight"
    value = "copied" if how == "copied" else f"{weight:.2f}".replace("-", "−")
    return (
        f'<li><span class="w">{token_html(token)}<span>{value}</span></span>'
        f'<span class="bar"><i class="{kind}" style="width:{100 * min(1.0, abs(weight)):.1f}%"></i></span></li>'
    )


def _rest(example: Example, shown: int) -> str:
    left = example.sources[shown:]
    return f"+ {len(left)}: {sum(weight for _, weight in left):.2f}" if left else ""


def _norms_row(name: str, kind: str, values: Mapping[str, float], top: float, side: str, ratios: list[str]) -> str:
    cells = "".join(f"<td>{ratio}</td>" for ratio in ratios)
    return (
        f'<tr class="{kind}"><th scope="row">{name}</th><td class="wide">{_whisker(values, top, side)}</td>'
        f"<td>{number(values['mean'])}</td><td>{number(values['std'])}</td>{cells}</tr>"
    )


def _whisker(values: Mapping[str, float], top: float, side: str) -> str:
    low, middle, high = (100 * max(0.0, values["mean"] + sign * values["std"]) / top for sign in (-1, 0, 1))
    return (
        f'<svg class="whisker" aria-hidden="true"><g class="{side}">'
        '<line class="base" x1="0" x2="100%" y1="50%" y2="50%"/>'
        f'<line class="span" x1="{low:.2f}%" x2="{high:.2f}%" y1="50%" y2="50%"/>'
        f'<circle cx="{middle:.2f}%" cy="50%" r="5"/></g></svg>'
    )
