"""The verdict: facts about a transfer judged against thresholds, each finding one sentence with its number and advice."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from wechsel_jax.initializers import METHODS
from wechsel_jax.records import Finding
from wechsel_jax.tokens import ROLES

SEVERITIES = ("wrong", "look", "ok")

# A fifth of the rows without any knowledge is about what a wrong tokenizer normalisation or word vectors of whole words only
# leave behind; matching vectors leave bytes and special tokens, a few per cent. From a half on, most text meets noise.
RANDOM_SHARE, RANDOM_SHARE_WRONG = 0.2, 0.5
# Kim et al. (2024), finding 1: embeddings of another spread than the model's drown the position signal or drown in it.
SCALE_RATIO = 2.0
# A rotation of 300 dimensions has 44,850 free angles; under about a thousand pairs most of them are fitted to noise.
PAIRS = 1000
# Where so few entries are found, the dictionary is of another language, script or spelling than the vectors.
FOUND_SHARE = 0.05
# Aligned vectors of related corpora reach .2 to .6; random ones one in the number of words searched.
PRECISION_AT_1 = 0.05
# One token in two hundred: a rare character now and then is no reason to look at the tokenizer.
UNKNOWN_SHARE = 0.005
# 300-dimensional vectors of unrelated words have a best match of about .2 to .3 among 50,000.
TOP_1 = 0.3
# Vectors of one space, and vectors that are all alike, as of too little text: what is mixed by them is a mean of anything.
ALIKE = 0.95
# With fewer held-out words, chance decides how many find their translation.
FEW_WORDS = 30
# Tokens with the same row cannot be told apart by the model. "haus" and " haus" share a word vector, which gives up to 30 %.
DUPLICATE_SHARE = 0.3
# The absolute weights of a convex mixture add up to 1; at 10 an error of the source rows may grow tenfold.
ABSOLUTE_SUM = 10.0
# anker: text of the right language leaves up to a half of a large vocabulary unseen; of another, four fifths of a small one.
UNSEEN_SHARE = 0.75
# Text of the right language with so many tokens for each of the vocabulary left 2 to 14 % unseen; Indonesian for Swahili 45 %.
MUCH_TEXT, UNSEEN_OF_MUCH = 32, 0.3
# Fewer pairs than this are found by chance in a dictionary of other languages, or that is turned round.
FEW_ENTRIES = 20
# Predicted tokens; with fewer, the text decides more than the model.
FEW_TOKENS = 1000
_ILL_CONDITIONED = re.compile(r"ill[- ]condition|singular", re.IGNORECASE)


def verdict(facts: Mapping[str, Any]) -> tuple[Finding, ...]:
    """Judges the facts of `score`; what a fact is missing for is not judged.

    Args:
      facts: as `score` returns them, all but "findings".

    Returns:
      The findings, worst first.
    """
    return worst_first([finding for check in _CHECKS for finding in check(facts)])


def worst_first(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Returns findings by their severity, and in their order where that is the same."""
    return tuple(sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)))


def summary(findings: Sequence[Finding]) -> str:
    """Returns the verdict in one sentence."""
    wrong, look = (sum(finding.severity == severity for finding in findings) for severity in SEVERITIES[:2])
    if not findings:
        return "Nothing could be judged."
    if not wrong and not look:
        return "Nothing looks off."
    parts = [f"{wrong} {'thing is' if wrong == 1 else 'things are'} wrong"] if wrong else []
    parts += [f"{look} {'thing needs' if look == 1 else 'things need'} a look"] if look else []
    return " and ".join(parts) + "."


def _random_rows(facts: Mapping[str, Any]) -> list[Finding]:
    counts = facts.get("counts")
    if not counts or not sum(counts.values()):
        return []
    share = counts["random"] / sum(counts.values())
    told = _sentence(f"{_percent(share)} of the rows are {'the mean row' if facts.get('noise') == 'mean' else 'random'}")
    if share <= RANDOM_SHARE:
        # A regression gives a row to a token without a vector, too, from its frequency and word start alone.
        unknown = _without_vector(facts)
        if unknown > RANDOM_SHARE:
            told = f"{_percent(unknown)} of the tokens have no vector; frequency and word start alone tell their rows apart"
            severity = "wrong" if unknown > RANDOM_SHARE_WRONG else "look"
            advice = "use vectors with character n-grams (.bin), or more text for them"
            return [Finding(severity, "tokens without a vector", unknown, f"{_sentence(told)}: {advice}.")]
        return [Finding("ok", "random rows", share, f"{told}.")]
    if not counts["mixed"] and not facts.get("alignment") and not facts.get("similarity"):
        text = f"{told}: the method knows nothing of them; expected of a baseline, otherwise choose one that mixes source rows."
        return [Finding("look", "random rows", share, text)]
    severity = "wrong" if share > RANDOM_SHARE_WRONG else "look"
    advice = "use vectors with character n-grams (.bin), more text for them, or a looser overlap rule"
    if _by_contexts(facts):
        advice = "give more text of the target language, word vectors for the rest, or leave the regression in"
    method = METHODS.get(facts.get("method"))
    if method is not None and method.vectors is None and not _by_contexts(facts):
        # Of methods that read no word vectors.
        if "target_text" in method.needs:
            advice = "give more text"
        elif "parallel" in method.needs:
            advice = "give more parallel text"
        else:
            advice = "take a helper that knows more of them, or another method" if method.helper else "take another method"
    return [Finding(severity, "random rows", share, f"{told}, more than {_percent(RANDOM_SHARE)}: {advice}.")]


def _special_tokens(facts: Mapping[str, Any]) -> list[Finding]:
    special, counts = facts.get("special_tokens"), facts.get("counts") or {}
    if not special or not special["named"]:
        return []
    lost = [token for token in special["random"] if token in special["named"]]
    if not lost:
        return [Finding("ok", "special tokens", 0, f"No special token with a role ({', '.join(ROLES)}) is random.")]
    if counts.get("random") == facts.get("vocabulary_size"):
        return []  # all rows are, which is said already
    names = ", ".join(lost)
    text = f"{len(lost)} of the special tokens with a role {'is' if len(lost) == 1 else 'are'} random ({names})"
    advice = "map each to a source token with --map=SOURCE:TARGET"
    if facts.get("method") in ("wechsel", "wechsel_tfr") and facts.get("parity"):
        advice = "the package copies those spelled as the source's alone; leave out --parity"
    return [Finding("wrong", "special tokens", len(lost), f"{text}: {advice}.")]


def _scales(facts: Mapping[str, Any]) -> list[Finding]:
    found = []
    for table in facts.get("tables") or ():
        # Where the inner layers are new too, they expect what a new model has.
        if table["role"] == "bias" or not table.get("ratios") or facts.get("redrawn"):
            continue
        which = {"input": "new embeddings", "head": "new head's rows"}.get(table["role"], f"rows of {table['name']}")
        for name, about in (("norm_mean", "mean length"), ("std", "spread")):
            ratio = table["ratios"].get(name)
            if ratio is not None:
                found.append(_scale(f"{about} ({table['role']})", f"The {about} of the {which}", ratio))
    return found


def _scale(about: str, what: str, ratio: float) -> Finding:
    if 1 / SCALE_RATIO <= ratio <= SCALE_RATIO:
        return Finding("ok", about, ratio, f"{what} is {_times(ratio)} the source's.")
    advice = f"the model expects what it was trained on, within a factor of {SCALE_RATIO:g}; rescale, or use another method"
    return Finding("wrong", about, ratio, f"{what} is {_times(ratio)} the source's: {advice}.")


def _pairs(facts: Mapping[str, Any]) -> list[Finding]:
    alignment = facts.get("alignment") or {}
    pairs, found, given = (alignment.get(name) for name in ("pairs", "pairs_found", "pairs_given"))
    # Translations that an adversarial alignment proposed itself say nothing of whether they are right.
    if pairs is None or alignment.get("method") == "adversarial":
        return []
    share = found / given if found is not None and given else None
    if pairs < PAIRS:
        text = f"The rotation rests on {pairs:,} pairs of words, fewer than {PAIRS:,}: use a larger dictionary or refinement."
        return [Finding("look", "dictionary pairs", pairs, text)]
    if share is not None and share < FOUND_SHARE:
        text = f"Word vectors know only {_percent(share)} of the dictionary's {given:,} entries: check its languages and order."
        return [Finding("look", "dictionary pairs", share, text)]
    return [Finding("ok", "dictionary pairs", pairs, f"The rotation rests on {pairs:,} pairs of words.")]


def _precision(facts: Mapping[str, Any]) -> list[Finding]:
    alignment = facts.get("alignment") or {}
    value = alignment.get("precision_at_1")
    if value is None:
        return []
    words = alignment.get("held_out_words")
    told = f"Held-out words find their translation first in {100 * value:.1f} % of cases"
    told += f" ({words:,} words)" if words else ""
    if words and words < FEW_WORDS and value < PRECISION_AT_1:
        return [Finding("ok", "alignment", value, f"{told}, too few to tell.")]
    if value >= PRECISION_AT_1:
        return [Finding("ok", "alignment", value, f"{told}.")]
    if _by_contexts(facts):
        # Rows that follow from like places are good where no translation comes first.
        return [Finding("ok", "alignment", value, f"{told}, which says little of anker's rows.")]
    advice = "the two spaces hardly meet; check the dictionary's languages, or train the vectors on more text"
    return [Finding("wrong", "alignment", value, f"{told}, under {_percent(PRECISION_AT_1)}: {advice}.")]


def _anchors(facts: Mapping[str, Any]) -> list[Finding]:
    from wechsel_jax.initializers.anker.anchors import FEW_ANCHORS

    alignment = facts.get("alignment") or {}
    if not _by_contexts(facts) or not alignment.get("rounds"):
        return []
    started = alignment["rounds"][0]["anchors"]
    told = f"{started:,} pairs of tokens were there to start from"
    if started >= FEW_ANCHORS:
        return [Finding("ok", "anchors", started, f"{told}.")]
    text = f"{told}, fewer than {FEW_ANCHORS}: give more text or a dictionary, and compare with wechsel."
    return [Finding("look", "anchors", started, text)]


def _dictionary(facts: Mapping[str, Any]) -> list[Finding]:
    if not _by_contexts(facts) or facts.get("dictionary") in (None, "none", "identical"):
        return []
    used = (facts["alignment"]["anchors"] or {}).get("dictionary")
    if used is None or used >= FEW_ENTRIES:
        return []
    text = (
        f"Only {used:,} {'anchor comes' if used == 1 else 'anchors come'} from the dictionary: check that each line is a "
        "source word, a tab and a target word, and that the texts are of these languages."
    )
    return [Finding("look", "dictionary", used, text)]


def _unseen(facts: Mapping[str, Any]) -> list[Finding]:
    found = []
    # A multilingual source has many tokens that text of one of its languages does not show.
    for side, severity in (("target", "wrong"), ("source", "look")):
        counted = (facts.get("alignment") or {}).get(f"{side}_text") or {}
        missing = counted.get("without_vector")
        total = (facts.get(side) or {}).get("vocabulary_size")
        if missing is None or not total:
            continue
        if side == "target" and (facts.get("counts") or {}).get("copied", 0) > total / 2:
            continue  # what is copied needs no text
        # It cuts both texts by both tokenizers.
        both = facts["alignment"].get("method") == "tokalign"
        where = "two texts" if both else f"{side} text"
        told = f"{missing:,} of {total:,} {side} tokens do not occur often enough in the {where}"
        much = side == "target" and (counted.get("tokens") or 0) >= MUCH_TEXT * total
        if missing <= (UNSEEN_OF_MUCH if much else UNSEEN_SHARE) * total:
            found.append(Finding("ok", f"{side} text", missing / total, f"{told}."))
            continue
        advice = "check that it is of the right language and that the texts are not swapped, or give more of it"
        if both:
            advice = "check that they are of the right languages, or give more of them"
        severity = severity if missing > UNSEEN_SHARE * total else "look"
        more = " (of a multilingual source it may be so)" if side == "source" else ""
        found.append(Finding(severity, f"{side} text", missing / total, f"{told}: {advice}{more}."))
    return found


def _similarity(facts: Mapping[str, Any]) -> list[Finding]:
    value = (facts.get("similarity") or {}).get("mean_top1")
    if value is None:
        return []
    told = f"The nearest source token has a cosine similarity of {value:.2f} on average"
    # Not of vectors, but of what two tokens have in common with the shared ones.
    if (facts.get("alignment") or {}).get("method") == "tokalign":
        return [Finding("ok", "similarity", value, f"{told}.")]
    if value > ALIKE and not _by_contexts(facts):
        advice = "unless both sides have the same vectors, they tell words hardly apart; train them on more text"
        text = f"{told}, over {ALIKE:g}: {advice}."
        return [Finding("look", "similarity", value, text)]
    if value >= TOP_1:
        return [Finding("ok", "similarity", value, f"{told}.")]
    text = f"{told}, under {TOP_1:g}, hardly more than by chance: check the alignment and the vectors' languages."
    if _by_contexts(facts):
        text = f"{told}, under {TOP_1:g}: check that the texts are of the two languages; give more text or a dictionary."
    return [Finding("look", "similarity", value, text)]


def _duplicates(facts: Mapping[str, Any]) -> list[Finding]:
    table = next((table for table in facts.get("tables") or () if table["role"] == "input"), None)
    share = table["target"].get("duplicate_share") if table else (facts.get("duplicates") or {}).get("share")
    if share is None:
        return []
    told = _sentence(f"{_percent(share)} of the new rows equal another new row")
    if share <= DUPLICATE_SHARE:
        return [Finding("ok", "duplicates", share, f"{told}.")]
    advice = "use a stricter overlap rule or more neighbors"
    if _without_vector(facts) > RANDOM_SHARE:
        advice = "they are tokens without a vector; use vectors of more of them"
    if facts.get("noise") == "mean" and _share(facts, "random") > DUPLICATE_SHARE:
        advice = "they are the mean row, of which the method knows nothing; choose one that mixes source rows, or other noise"
    if _by_contexts(facts):
        advice = "they are tokens that the target text does not show; give more of it, or word vectors for them"
    text = f"{told}, more than {_percent(DUPLICATE_SHARE)}, and the model cannot tell such tokens apart: {advice}."
    return [Finding("look", "duplicates", share, text)]


def _finite(facts: Mapping[str, Any]) -> list[Finding]:
    bad = [(table["name"], table["target"]["not_finite_rows"]) for table in facts.get("tables") or ()]
    return [
        Finding(
            "wrong", "NaN", rows, f"{name} has {rows:,} rows with NaN or infinity: the model cannot be used; transfer again."
        )
        for name, rows in bad
        if rows
    ]


def _weights(facts: Mapping[str, Any]) -> list[Finding]:
    largest = (facts.get("mixture") or {}).get("largest_absolute_sum")
    found = []
    if largest is not None and largest > ABSOLUTE_SUM:
        method = METHODS.get(facts.get("method"))
        read = () if method is None else method.options
        # What keeps weights small, of what the method reads.
        tried = {"ridge": "raise --ridge", "atoms": "lower --atoms", "neighbors": "lower --neighbors"}
        advice = " or ".join(words for name, words in tried.items() if name in read) or "take another method"
        text = (
            f"The absolute weights of one row add up to {largest:.3g}, more than {ABSOLUTE_SUM:g}: its sources nearly cancel; "
        )
        found.append(Finding("look", "weights", largest, f"{text}{advice}."))
    for note in facts.get("notes") or ():
        if _ILL_CONDITIONED.search(note):
            found.append(Finding("look", "conditioning", None, note))
    return found


def _unknown(facts: Mapping[str, Any]) -> list[Finding]:
    share = (facts.get("perplexity") or {}).get("unknown") or 0.0
    if share <= UNKNOWN_SHARE:
        return []
    text = f"{_percent(share)} of the text's tokens are unknown: what stands there is hidden, and easy to predict for it"
    return [Finding("look", "unknown tokens", share, f"{text}; train a tokenizer that has all characters of the language.")]


def _perplexity(facts: Mapping[str, Any]) -> list[Finding]:
    found = facts.get("perplexity") or {}
    if "uniform" not in found:
        return []
    value, uniform = found["perplexity"], found["uniform"]
    kind = "Masked perplexity" if found.get("masked") else "Perplexity"
    if value is None or not math.isfinite(value):
        text = f"{kind} is not finite: the weights overflow; look at the lengths of the new rows."
        return [Finding("wrong", "perplexity", None, text)]
    told = f"{kind} is {value:,.0f}" if value >= 100 else f"{kind} is {value:.1f}"
    if (tokens := found.get("tokens", FEW_TOKENS)) < FEW_TOKENS:
        text = f"{told}, over {tokens:,} predicted tokens, too few to tell: give text for {FEW_TOKENS:,} or more."
        return [Finding("look", "perplexity", value, text)]
    if value <= uniform:
        return [Finding("ok", "perplexity", value, f"{told}; a uniform guess would be {uniform:,}.")]
    text = f"{told}, above the {uniform:,} of a uniform guess: that is less than nothing; use another method, or text "
    return [Finding("look", "perplexity", value, f"{text}of the target language.")]


_CHECKS: tuple[Callable[[Mapping[str, Any]], list[Finding]], ...] = (
    _finite, _unseen, _random_rows, _special_tokens, _scales, _duplicates, _pairs, _precision, _anchors, _dictionary,
    _similarity, _weights, _unknown, _perplexity,
)  # fmt: skip


def _by_contexts(facts: Mapping[str, Any]) -> bool:
    """Whether tokens are compared by anchored contexts, as anker does, and not by word vectors."""
    return "anchors" in (facts.get("alignment") or {})


def _share(facts: Mapping[str, Any], how: str) -> float:
    """Share of the rows that were made so."""
    counts = facts.get("counts") or {}
    return counts.get(how, 0) / max(sum(counts.values()), 1)


def _without_vector(facts: Mapping[str, Any]) -> float:
    """Share of the tokens whose row a regression on word vectors predicts without one of theirs; 0 without a regression."""
    covered = facts.get("coverage") or {}
    method = METHODS.get(facts.get("method"))
    by_helper = method is not None and method.features == "helper row"
    if not facts.get("regression") or by_helper or _by_contexts(facts) or not covered.get("without_vector"):
        return 0.0
    return covered["without_vector"]["tokens"] / max(covered["tokens"], 1)


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _percent(share: float) -> str:
    if 0 < share < 0.001:
        return "under 0.1 %"
    if 0.99 < share < 1:
        return "over 99 %"
    return f"{100 * share:.1f} %" if share < 0.1 and round(100 * share, 1) != round(100 * share) else f"{100 * share:.0f} %"


def _times(ratio: float) -> str:
    return f"{ratio:.2f} times" if ratio < 10 else f"{ratio:,.0f} times"
