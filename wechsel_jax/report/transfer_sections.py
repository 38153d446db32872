"""What is told of the transfers: verdict, origins of the tokens, what is shared, alignment, examples, lengths."""

from collections.abc import Mapping, Sequence
from typing import Any

from wechsel_jax.files.json import is_number
from wechsel_jax.inspection import summary
from wechsel_jax.records import ORIGINS, Example, Finding, Mixture, RunRecord
from wechsel_jax.report.display import NO_VALUE, number, percent, plural
from wechsel_jax.report.plots import Spreads, Stacks
from wechsel_jax.report.runs import Report
from wechsel_jax.report.section import Bar, Figure, Items, Note, Section, Strong, Table, Text, Token, Weight, joined, plain

_SHOWN, _SHARED = 5, 4
# Of a row of the coverage, where they were counted.
COUNTS = ("with_vector", "copied", "mixed", "noise")
_REST = {"without_vector": "Not shared and without a vector", "noise": "Not shared and random"}
# Whether tokens are compared by contexts -> how the two languages come to share a space.
_SPACES = {
    False: "One rotation, learned from pairs of words, lays the source language's word vectors over the target language's.",
    True: "Tokens of both languages are described by how often the same anchors, pairs of tokens that mean the same, stand "
    "before and after them in text.",
    "adversarial": "One rotation, learned without a dictionary, lays the source language's word vectors over the target's.",
    "tokalign": "Both tokenizers cut the same text; a token of either is described by how similar it is to the shared ones.",
}
# What is said of a token without source tokens, by how its row was made.
_NO_SOURCES = {"random": "random: nothing is known of it", "mixed": "the regression alone"}
ANCHOR_RULES = {
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


def verdicts(report: Report) -> list[Section]:
    """What looks off in the transfers, worst first, in plain words."""
    runs = [run for run in report.transferred if run.transfer.findings]
    if not runs:
        return []
    alike: dict[tuple[Finding, ...], list[RunRecord]] = {}
    for run in runs:
        alike.setdefault(tuple(finding for finding in run.transfer.findings if finding.severity != "ok"), []).append(run)
    # What is worst comes first; runs that are all right, last.
    order = sorted(alike, key=lambda off: (not off, off[0].severity != "wrong" if off else True))
    told = {off: summary(off) if off else "nothing looks off." for off in order}
    parts = [Section((*report.names(alike[off]), f": {told[off]}"), finding_items(off)) for off in order]
    passed = {run.label: [one for one in run.transfer.findings if one.severity == "ok"] for run in runs}
    fine = tuple(Section(report.name(run), finding_items(passed[run.label])) for run in runs)
    about = (
        "Every transfer is measured against what is known to go wrong. “Wrong” costs training steps, or all of them; “look” "
        "may be as it should be, but a person has to see it."
    )
    rest = Section("All that was checked and found in order", fine, folded=True)
    return [Section("Before training: does anything look off?", (about, *parts, rest))]


def origins(report: Report) -> list[Section]:
    """How many rows were copied, mixed and random."""
    runs = [run for run in report.transferred if run.transfer.counts and sum(run.transfer.counts.values())]
    if not runs:
        return []
    counts = {run.label: {how: run.transfer.counts[how] for how in ORIGINS} for run in runs}
    totals = {label: sum(found.values()) for label, found in counts.items()}
    rows = tuple(
        (report.name(run), *(f"{counts[run.label][how]:,}" for how in ORIGINS), f"{totals[run.label]:,}") for run in runs
    )
    told = "; ".join(
        f"{label}: {', '.join(f'{percent(size / totals[label])} {how}' for how, size in found.items() if size)}"
        for label, found in counts.items()
    )
    mixtures: dict[Mixture, list[RunRecord]] = {}
    for run in runs:
        if run.transfer.mixture:
            mixtures.setdefault(run.transfer.mixture, []).append(run)
    notes = []
    for mixture, alike in mixtures.items():
        takes = "takes" if mixture.source_tokens == 1 else "take"
        leans = f"a mixed token leans on {number(mixture.effective_neighbors, 2)} source tokens on average"
        used = f"{plural(mixture.source_tokens, 'different source token')} {takes} part"
        notes.append(Note((*report.names(alike), f": {leans} (the exponential of its weights' entropy); {used}.")))
    about = (
        "Every token of the new vocabulary needs a row in the embedding table before training can begin: copied from one "
        "source token, a weighted mean of source tokens, or random."
    )
    figure = Figure("token-origins", "Where the new tokens came from", told, Stacks(tuple(counts.items())))
    table = Table(("Run", *ORIGINS, "tokens"), rows, "token origins")
    return [Section("Where the new tokens came from", (about, figure, table, *notes))]


def coverage(report: Report) -> list[Section]:
    """Which rule matched how many of the new tokens with tokens of the source vocabulary, with examples."""
    alike: dict[tuple, list[RunRecord]] = {}
    for run in report.transferred:
        if run.transfer.coverage.get("rows"):
            alike.setdefault(shared_tokens(run.transfer.coverage), []).append(run)
    if not alike:
        return []
    several = len(alike) > 1 or len(alike) < len(report.transferred)
    about = "Tokens that both vocabularies have, by the tightest rule that finds them; the rest must be made of others."
    parts = [Section(report.names(runs), blocks) for blocks, runs in alike.items()] if several else [*next(iter(alike))]
    return [Section("What the two vocabularies share", (about, *parts))]


def alignment(report: Report) -> list[Section]:
    """How well the two languages' vectors lie on each other."""
    alike: dict[Table, list[RunRecord]] = {}
    for run in report.transferred:
        if run.transfer.alignment or run.transfer.similarity:
            alike.setdefault(alignment_table(run.transfer.alignment or {}, run.transfer.similarity or {}), []).append(run)
    if not alike:
        return []
    found = [run.transfer.alignment for run in report.transferred if run.transfer.alignment]
    kinds = dict.fromkeys(one["method"] if one.get("method") in _SPACES else _anchored(one) for one in found)
    several = len(alike) > 1
    parts = [Section(report.names(runs), (table,)) if several else table for table, runs in alike.items()]
    return [Section("How well the languages line up", (*(_SPACES[kind] for kind in kinds), *parts))]


def examples(report: Report) -> list[Section]:
    """Sampled target tokens with their source tokens and weights."""
    runs = [run for run in report.transferred if any(example.sources for example in run.transfer.examples)]
    if not runs:
        return []
    # Mixtures tell more than copies.
    runs.sort(key=lambda run: all(example.how != "mixed" for example in run.transfer.examples))
    others = [run for run in report.transferred if run.transfer.examples and run not in runs]
    tables = [
        Table(
            ("New token", "Source tokens and weights"),
            tuple(
                (Token(example.target), source_tokens(example, run.transfer.settings.get("noise", "")))
                for example in run.transfer.examples
            ),
            "examples",
            text=(0, 1),
        )
        for run in runs
    ]
    parts = [Note(report.name(runs[0])), tables[0]]
    parts += [
        Section(("The same for ", report.name(run)), (table,), folded=True)
        for run, table in zip(runs[1:], tables[1:], strict=True)
    ]
    if others:
        draws = "draws" if len(others) == 1 else "draw"
        parts.append(Note((*report.names(others), f" {draws} such tokens at random, so there is nothing to show.")))
    about = (
        "Drawn at random from the new vocabulary, with the source tokens that weigh most; the bar is the weight, full at 1. "
        "␣ marks a token that begins a word."
    )
    heading = f"{plural(len(runs[0].transfer.examples), 'new token')} and what they are made of"
    return [Section(heading, (about, *parts))]


def lengths(report: Report) -> list[Section]:
    """Mean and spread of the lengths of embedding rows, before and after."""
    runs = [run for run in report.transferred if run.transfer.norms]
    if not runs:
        return []
    # Rows of the same lengths are those of one table.
    shared = len({tuple(run.transfer.norms["source"][key] for key in ("mean", "std")) for run in runs}) == 1
    spread = any(_ratio(run, "input", "std") for run in runs)
    rows: list[tuple[Text, int | None, Mapping[str, float], list[str]]] = []
    blank = [NO_VALUE] * (2 if spread else 1)
    for run in runs:
        before, after = (run.transfer.norms[side] for side in ("source", "target"))
        if not shared:
            rows.append(((report.name(run), ", source model"), None, before, blank))
        elif run is runs[0]:
            rows.append(("source model", None, before, blank))
        ratios = [_times(after["mean"] / before["mean"] if before["mean"] else None)]
        ratios += [_times(_ratio(run, "input", "std"))] if spread else []
        rows.append((report.name(run), report.slots[run.label], after, ratios))
    values = [(plain(name), slot, found["mean"], found["std"]) for name, slot, found, _ in rows]
    told = "; ".join(f"{label} {number(mean)} ± {number(deviation)}" for label, _, mean, deviation in values)
    head = ("Embeddings of", "mean", "deviation", *("length to source’s", "spread to source’s")[: len(blank)])
    cells = ((name, number(found["mean"]), number(found["std"]), *ratios) for name, _, found, ratios in rows)
    table = Table(head, tuple(cells), "embedding lengths")
    heads = [
        (report.name(run), f": length {_times(_ratio(run, 'head', 'norm_mean'))}, spread {_times(_ratio(run, 'head', 'std'))}")
        for run in runs
        if _ratio(run, "head", "std")
    ]
    notes = [Note(("Output heads, to the source’s. ", *joined(heads, "; "), "."))] if heads else []
    about = (
        "New rows should not be much longer or shorter than those the model knows, and their entries should be spread as "
        "widely: a model tuned to one spread reads another badly. Point: mean length of a row; line: one standard deviation to "
        "each side."
    )
    figure = Figure("embedding-lengths", "Lengths of the embeddings", told, Spreads(tuple(values)))
    return [Section("Lengths of the embeddings", (about, figure, table, *notes))]


def finding_items(findings: Sequence[Finding]) -> tuple[Items, ...]:
    """A list of findings, each with its severity; nothing where there is none."""
    items = tuple((Strong(finding.severity, finding.severity), f" {finding.text}") for finding in findings)
    return (Items(items),) if items else ()


def shared_tokens(found: Mapping[str, Any]) -> tuple[Table | Note, ...]:
    """What each rule of the overlap matched, and what became of the rest, see `TransferRecord.coverage`."""
    rows = [row for row in found["rows"] if row["tokens"]]
    counts = [name for name in COUNTS if any(is_number(row.get(name)) for row in rows)]
    table = Table(
        ("Rule", "tokens", "share", *(name.replace("_", " ") for name in counts), "examples"),
        tuple(
            (
                row["rule"],
                f"{row['tokens']:,}",
                percent(row["share"]) if is_number(row.get("share")) else NO_VALUE,
                *(f"{row[name]:,}" if is_number(row.get(name)) else NO_VALUE for name in counts),
                _shared(row.get("examples")),
            )
            for row in rows
        ),
        "shared tokens",
        text=(0, 3 + len(counts)),
    )
    notes = []
    for key, what in _REST.items():
        group = found.get(key)
        if group:
            size = group.get("tokens")
            such = (", such as ", *_shared(group.get("examples"))) if size else ()
            notes.append(Note((f"{what}: {plural(size, 'token') if is_number(size) else NO_VALUE}", *such, ".")))
    return (table, *notes)


def spellings(example: Any) -> list[str]:
    """How a token that was recorded as an example is spelled: in the target vocabulary, and in the source's if otherwise."""
    target, source = (*example, None)[:2] if isinstance(example, list | tuple) and example else (example, None)
    return [str(target)] if source is None or source == target else [str(target), str(source)]


def _shared(examples: Any) -> Text:
    shown = [joined([*map(Token, spellings(example))], " = ") for example in (examples or ())[:_SHARED]]
    return joined(shown) if shown else (NO_VALUE,)


def alignment_table(found: Mapping[str, Any], similarity: Mapping[str, float]) -> Table:
    """What was measured of one space: a row for each number, a bar where it is a share, and what it means."""
    anchored, rows = _anchored(found), []
    if is_number(found.get("precision_at_1")):
        words = f" of {found['held_out_words']:,}" if is_number(found.get("held_out_words")) else ""
        share = found["precision_at_1"]
        means = f"P@1: share{words} held-out dictionary words {_TESTED[anchored]}"
        rows.append(("Translations found", (percent(share), Bar(share)), means))
    if is_number(similarity.get("mean_top1")):
        median = f" (median {similarity['median_top1']:.2f})" if is_number(similarity.get("median_top1")) else ""
        means = f"Mean cosine similarity of a new token to the source token nearest to it{median}; 1: the same direction."
        rows.append(("Nearest source token", (f"{similarity['mean_top1']:.2f}", Bar(similarity["mean_top1"])), means))
    if is_number(found.get("residual")):
        means = (
            "Residual: the distance that remains between the two words of a pair, relative to the length of the target word's "
            "vector. 0 would be a perfect fit; unrelated vectors of equal length leave about 1.4."
        )
        rows.append(("Residual of the rotation", (f"{found['residual']:.2f}", Bar(found["residual"] / 2**0.5, "loss")), means))
    if is_number(found.get("pairs")):
        if found.get("method") == "adversarial":
            means = "Translations that the aligned vectors themselves proposed; no dictionary was used to find them."
        else:
            given = f", out of {found['pairs_given']:,} dictionary entries" if is_number(found.get("pairs_given")) else ""
            rule = f" Counted by the rule “{found['weighting']}”." if found.get("weighting") else ""
            means = f"Pairs of spellings that both languages have a vector for{given}.{rule}"
        rows.append(("Pairs of words", f"{found['pairs']:,}", means))
    if anchored:
        counts = {rule: count for rule, count in found["anchors"].items() if is_number(count)}
        rules = ", ".join(f"{counts[rule]:,} {what}" for rule, what in ANCHOR_RULES.items() if counts.get(rule))
        rounds = [f"{one['anchors']:,}" for one in found.get("rounds") or () if is_number(one["anchors"])]
        told = f" Round by round there were {', '.join(rounds)}." if len(rounds) > 1 else ""
        rows.append(("Anchors", f"{sum(counts.values()):,}", f"Pairs of tokens: {rules}.{told}"))
        sizes = [(side, (found.get(f"{side}_text") or {}).get("tokens")) for side in ("source", "target")]
        for side, size in sizes:
            if size is not None:
                rows.append((f"Text, {side} side", f"{size:,}", "Tokens that were read to compare tokens by their contexts."))
    return Table(("Measured", "value", "what it means"), tuple(rows), "alignment", text=(0, 2))


def _anchored(found: Mapping[str, Any]) -> bool:
    return isinstance(found.get("anchors"), Mapping)


def source_tokens(example: Example, noise: str = "") -> Text:
    """What one new token is made of, the heaviest source tokens first; `noise` is how random rows were made."""
    if not example.sources:
        if example.how == "random" and noise == "mean":
            return "the mean of the source's rows: nothing is known of it"
        return _NO_SOURCES.get(example.how, NO_VALUE)
    parts = []
    for token, weight in example.sources[:_SHOWN]:
        if example.how == "copied":
            parts.append(Weight(token, weight, "copied", "copied"))
        else:
            parts.append(Weight(token, weight, f"{weight:.2f}".replace("-", "−"), "negative" if weight < 0 else "mixed"))
    left = example.sources[_SHOWN:]
    return joined([*parts, *([f"+ {len(left)}: {sum(weight for _, weight in left):.2f}"] if left else [])], " ")


def _ratio(run: RunRecord, role: str, name: str) -> float | None:
    return next(((table["ratios"] or {}).get(name) for table in run.transfer.tables if table["role"] == role), None)


def _times(ratio: float | None) -> str:
    return NO_VALUE if ratio is None else f"{number(ratio, 2)} ×"
