"""The part of a model card that tells how the vocabulary was replaced, from transfer.json."""

from collections.abc import Mapping

from wechsel_jax.hub.markdown import code, inline, public, table

_EXAMPLE_SOURCES = 5
# Settings that name files, or a model that may be a directory; some hold several.
_PLACES = ("source_vectors", "target_vectors", "dictionary", "helper", "source_text", "target_text")

# Why two tokens were taken to mean the same -> how that is said.
_ANCHORS = {"dictionary": "from the dictionary", "equal": "of equal bytes", "learned": "that each chose the other"}


def introduction(record: Mapping) -> str:
    """One sentence: what was replaced, by what, how."""
    source, target = record["source"], record["target"]
    return (
        f"A {inline(source['architecture'])} model whose vocabulary of {source['vocabulary_size']:,} tokens was replaced by "
        f"one of {target['vocabulary_size']:,}, with the method {code(record['method'])} ({inline(record['paper'])})."
    )


def transfer_lines(record: Mapping) -> list[str]:
    """The sections about where the tokens came from and how."""
    counts = record["counts"]
    return [
        "## Where the tokens came from",
        "",
        *table(("", "tokens"), [(how, f"{counts[how]:,}") for how in ("copied", "mixed", "random")], (1,)),
        *_coverage_lines(record.get("coverage")),
        *_alignment_lines(record),
        *table(("target token", "how", "source tokens (weight)"), [_example(example) for example in record["examples"]]),
        "## How the vocabulary was replaced",
        "",
        *(f"- {inline(_without_folders(sentence, record))}" for sentence in [*record["behaviour"], *record["notes"]]),
        "",
        *table(("setting", "value"), [(inline(name), code(value)) for name, value in _settings(record).items()]),
        "Made with " + ", ".join(inline(f"{name} {version}") for name, version in record["versions"].items()) + ".",
        "",
    ]


def _alignment_lines(record: Mapping) -> list[str]:
    lines = []
    alignment, similarity = record.get("alignment"), record.get("similarity")
    precision = (alignment or {}).get("precision_at_1")
    held_out = "" if precision is None else f", precision at 1 on held-out words {precision:.3f}"
    if alignment and "anchors" in alignment:
        counts = alignment["anchors"].items()
        pairs = ", ".join(f"{count:,} {_ANCHORS.get(rule) or inline(rule)}" for rule, count in counts if count)
        count = len(alignment["rounds"]) - 1
        learned = f", learned in {count} round{'s' * (count > 1)}" if alignment["anchors"].get("learned") else ""
        texts = " and ".join(f"{alignment[f'{side}_text']['tokens']:,} {side}" for side in ("source", "target"))
        lines.append(
            f"Tokens compared by their contexts in text ({texts} tokens), counted by pairs of tokens: {pairs}{learned}"
            f"{held_out}."
        )
    elif alignment:
        pairs = f"{alignment['pairs']:,} word pairs"
        how = f"without a dictionary, {pairs} found" if alignment.get("method") == "adversarial" else f"on {pairs}"
        lines.append(f"Word vectors aligned {how}{held_out}, residual {alignment['residual']:.3f}.")
    if similarity:
        lines.append(f"Similarity of a token to its nearest source token: mean {similarity['mean_top1']:.3f}.")
    return [*lines, ""] if lines else []


def _coverage_lines(coverage: Mapping | None) -> list[str]:
    """What became of the tokens that each rule of the overlap matched; none for a record from before there was one."""
    if not coverage:
        return []
    head = ("shared by rule", "tokens", "copied", "mixed", "random", "e.g.")
    return table(head, [_rule(row) for row in coverage["rows"] if row["tokens"]], (1, 2, 3, 4))


def _rule(row: Mapping) -> tuple[str, ...]:
    target, source = next(iter(row["examples"]), (None, None))
    shown = "" if target is None else code(target) + ("" if source is None else f" from {code(source)}")
    return (inline(row["rule"]), *(f"{row[name]:,}" for name in ("tokens", "copied", "mixed", "noise")), shown)


def _example(example: Mapping) -> tuple[str, ...]:
    shown = ", ".join(f"{code(token)} ({weight:.2f})" for token, weight in example["sources"][:_EXAMPLE_SOURCES])
    shown = shown or ("the regression alone" if example["how"] == "mixed" else "")
    return code(example["target"]), inline(example["how"]), shown


def _settings(record: Mapping) -> dict:
    settings = {"parity": record.get("parity"), **record["settings"]}
    places = {name: ", ".join(map(public, _listed(settings[name]))) for name in _PLACES if settings.get(name)}
    return settings | places


def _listed(value: object) -> list[str]:
    return [str(place) for place in (value if isinstance(value, list | tuple) else [value]) if place]


def _without_folders(sentence: str, record: Mapping) -> str:
    """A sentence with files by name only."""
    for name in _PLACES:
        for place in _listed(record["settings"].get(name)):
            sentence = sentence.replace(place, public(place))
    return sentence
