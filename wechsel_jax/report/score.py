"""What `inspection.score` found, as lines for the terminal; tokens stand as `inspect --tokens` takes them."""

from collections.abc import Mapping
from typing import Any

from wechsel_jax.inspection.verdict import FEW_WORDS, summary
from wechsel_jax.records import Finding
from wechsel_jax.report.section import Table
from wechsel_jax.report.terminal import aligned
from wechsel_jax.report.transfer_sections import COUNTS, spellings

_ROWS = (
    ("mean length", "norm_mean"),
    ("deviation of lengths", "norm_std"),
    ("mean of entries", "mean"),
    ("spread (std)", "std"),
)
_QUANTILES = ("5", "50", "95")
_ROLES = {"input": "embeddings", "head": "head", "bias": "bias of the head"}
_REST = {"without_vector": "not shared, without a vector", "noise": "not shared, random"}
_EXAMPLES, _SOURCES = 3, 5


def lines(facts: Mapping[str, Any]) -> list[str]:
    """Returns what `score` or `score_vectors` found, all but the verdict."""
    parts = (_plan, _coverage, _transfer, _alignment, _mixture, _tables, _drift, _perplexity, _samples)
    return [line for part in parts for line in part(facts)]


def verdict_lines(facts: Mapping[str, Any]) -> list[str]:
    """Returns the verdict: a sentence, then a line for each finding, worst first."""
    findings = [Finding(**finding) for finding in facts.get("findings") or ()]
    if not findings:
        return []
    return [f"verdict: {summary(findings)}", *(f"  {finding.severity:5}  {finding.text}" for finding in findings)]


def _plan(facts: Mapping[str, Any]) -> list[str]:
    counts = facts.get("counts")
    if not counts:
        return []
    total = sum(counts.values())
    told = ", ".join(f"{count:,} {how} ({100 * count / max(total, 1):.1f} %)" for how, count in counts.items())
    return [f"plan: {total:,} tokens, {told}"]


def _coverage(facts: Mapping[str, Any]) -> list[str]:
    found = facts.get("coverage") or {}
    rows = [row for row in found.get("rows") or () if row.get("tokens")]
    if not rows:
        return []
    numbers = [name for name in COUNTS if any(row.get(name) is not None for row in rows)]
    head, cells = ("rule", "tokens", "share", *(name.replace("_", " ") for name in numbers), "examples"), []
    for row in rows:
        shown = ", ".join(" = ".join(spellings(example)) for example in (row.get("examples") or ())[:_EXAMPLES])
        share = "" if row.get("share") is None else f"{100 * row['share']:.1f} %"
        counts = ["" if row.get(name) is None else f"{row[name]:,}" for name in numbers]
        cells.append((row["rule"], f"{row['tokens']:,}", share, *counts, shown))
    told = [f"  {what}: {_some(found[key])}" for key, what in _REST.items() if (found.get(key) or {}).get("tokens")]
    table = Table(head, tuple(cells), text=(0, len(head) - 1))
    return ["coverage:", *(f"  {line}" for line in aligned(table)), *told]


def _some(group: Mapping[str, Any]) -> str:
    return f"{group['tokens']:,} tokens, such as {', '.join(map(str, group.get('examples') or ()))}".removesuffix(", such as ")


def _transfer(facts: Mapping[str, Any]) -> list[str]:
    if not facts.get("method"):
        return []
    source, target = ((facts.get(side) or {}).get(name, "?") for side, name in (("source", "model"), ("target", "tokenizer")))
    return [f"transfer: {facts['method']} from {source} to {target}"]


def _alignment(facts: Mapping[str, Any]) -> list[str]:
    found, similarity = facts.get("alignment") or {}, facts.get("similarity") or {}
    parts = []
    if found.get("precision_at_1") is not None:
        words = found.get("held_out_words")
        told = f" of {words:,} held-out words{' (too few to tell)' if words < FEW_WORDS else ''}" if words else ""
        parts.append(f"P@1 {found['precision_at_1']:.3f}{told}")
    if found.get("pairs") is not None:
        entries = [found.get(name) for name in ("pairs_found", "pairs_given")]
        told = f" ({entries[0]:,} of {entries[1]:,} entries)" if None not in entries else ""
        parts.append(f"{found['pairs']:,} pairs{told}")
    if found.get("anchors"):
        rules = ", ".join(f"{count:,} {rule}" for rule, count in found["anchors"].items())
        parts.append(f"{sum(found['anchors'].values()):,} anchors ({rules})")
    if found.get("residual") is not None:
        parts.append(f"residual {found['residual']:.3f}")
    told = [f"alignment: {', '.join(parts)}"] if parts else []
    if similarity.get("mean_top1") is not None:
        median = f", median {similarity['median_top1']:.3f}" if similarity.get("median_top1") is not None else ""
        told.append(f"nearest source neighbor: mean similarity {similarity['mean_top1']:.3f}{median}")
    return told


def _mixture(facts: Mapping[str, Any]) -> list[str]:
    found, twins = facts.get("mixture"), facts.get("duplicates")
    told = []
    if found:
        told.append(
            f"mixed rows: lean on {found['effective_neighbors']:.1f} source tokens on average (at most {found['support_max']} "
            f"have a weight, {found['source_tokens']:,} different ones are used), {100 * found['negative_share']:.1f} % of the "
            f"weights are negative, absolute weights add up to {found['largest_absolute_sum']:.3g} at most"
        )
    if fitted := facts.get("regression"):
        told.append(
            f"weights of all: of rank {fitted['rank']}, over {fitted['source_tokens']:,} source tokens, add to "
            f"{fitted['target_tokens']:,} mixed rows"
        )
    if twins:
        told.append(f"twins: {twins['rows']:,} rows ({100 * twins['share']:.1f} %) are made exactly as another row is")
    return told


def _tables(facts: Mapping[str, Any]) -> list[str]:
    told = []
    for table in facts.get("tables") or ():
        target, source, ratios = table["target"], table["source"] or {}, table["ratios"] or {}
        if "std" not in target:
            continue
        head = (f"{_ROLES.get(table['role'], table['role'])}, {table['name']}", "here", "source", "ratio")
        cells = [tuple(_number(found.get(key)) for found in (target, source, ratios)) for _, key in _ROWS]
        quantiles = [found.get("norm_quantiles") or {} for found in (target, source)]
        cells += [(*(_number(found.get(q)) for found in quantiles), "") for q in _QUANTILES]
        names = (*(name for name, _ in _ROWS), *(f"length, {q} %" for q in _QUANTILES))
        columns = 4 if source else 2
        rows = tuple((name, *row)[:columns] for name, row in zip(names, cells, strict=True))
        told += [f"  {line}" for line in aligned(Table(head[:columns], rows))]
        if "dimension_std_median" in ratios:
            ends = [ratios[f"dimension_std_{which}"] for which in ("median", "min", "max")]
            told.append("  spread of single dimensions, here to source: median {:.3f}, {:.3f} to {:.3f}".format(*ends))
        if target.get("duplicates"):
            told.append(f"  {target['duplicates']:,} rows ({100 * target['duplicate_share']:.1f} %) equal another row")
    return told


def _perplexity(facts: Mapping[str, Any]) -> list[str]:
    found = facts.get("perplexity")
    if not found:
        return []
    if "reason" in found:
        return [f"perplexity: not available: {found['reason']}"]
    value = "not finite" if found["perplexity"] is None else f"{found['perplexity']:,.1f}"
    kind = "masked perplexity" if found["masked"] else "perplexity"
    told = [f"{kind}: {value} over {found['tokens']:,} predicted tokens; a uniform guess would be {found['uniform']:,}"]
    if found.get("bits_per_byte") is not None:
        size = found["bytes"] / found["tokens"]
        told.insert(0, f"bits per byte: {found['bits_per_byte']:.3f} of text, {size:.2f} bytes per predicted token")
    return told


def _drift(facts: Mapping[str, Any]) -> list[str]:
    found = facts.get("drift")
    if not found:
        return []
    head = ("rows", "tokens", "cosine to before", "change over length", "length")
    rows = tuple(
        (one["how"], f"{one['tokens']:,}", *(f"{one[name]:.3f}" for name in ("cosine", "change", "length")))
        for one in found["groups"]
    )
    told = [f"embeddings since {found['before']}, means over rows:", *(f"  {line}" for line in aligned(Table(head, rows)))]
    if found["nearest"]:
        near = found["nearest"]
        share, count = 100 * near["kept"], near["neighbors"]
        told.append(
            f"  {share:.0f} % of the {count} nearest source tokens of {near['tokens']:,} tokens are the same as before:"
        )
        names = ((one["target"], ", ".join(one["before"]), ", ".join(one["after"])) for one in found["samples"])
        told += [f"    {target}: {old} -> {new}" for target, old, new in names]
    return told


def _samples(facts: Mapping[str, Any]) -> list[str]:
    samples = facts.get("samples")
    return ["samples:", *(f"  {origin_line(sample, _SOURCES)}" for sample in samples)] if samples else []


def origin_line(token: Mapping[str, Any], most: int | None = None) -> str:
    """Returns where a token came from, as `origins` and `score` tell it, with `most` source tokens at most."""
    # The digits that the record has: rounded again, small weights would be 0.
    told = [f"{name} {weight:.4g}" for name, weight in token["sources"][:most]]
    told += [f"{left} more"] if (left := len(token["sources"]) - len(told)) > 0 else []
    if not told and token["how"] == "mixed":
        told = ["of no source tokens, by the regression alone"]
    number = f" ({token['token_id']})" if "token_id" in token else ""
    return f"{token['target']}{number}: {token['how']}{': ' + ', '.join(told) if told else ''}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
