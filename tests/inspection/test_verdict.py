import math

import pytest

from wechsel_jax.inspection import summary, verdict
from wechsel_jax.inspection.verdict import SEVERITIES


def good() -> dict:
    """Facts of a transfer with which nothing is the matter."""
    ratios = {"norm_mean": 0.8, "std": 0.7}
    return {
        "vocabulary_size": 1000,
        "counts": {"copied": 10, "mixed": 900, "random": 90},
        "special_tokens": {"total": 2, "named": ["<s>", "<pad>"], "random": []},
        "alignment": {"pairs": 5000, "pairs_found": 3000, "pairs_given": 20_000, "precision_at_1": 0.4, "held_out_words": 500},
        "similarity": {"mean_top1": 0.6},
        "mixture": {"largest_absolute_sum": 1.0},
        "tables": [
            {"name": "wte", "role": "input", "ratios": ratios, "target": {"not_finite_rows": 0, "duplicate_share": 0.1}}
        ],
        "perplexity": {"perplexity": 800.0, "uniform": 1000, "masked": False},
        "notes": ["The source table has 47 rows of padding; they were dropped."],
    }


def changed(**changes) -> list:
    """The findings that are not "ok" where some facts differ; "table__std=3" goes into `tables`."""
    facts = good()
    for name, value in changes.items():
        *path, last = name.split("__")
        place = facts
        for step in path:
            place = {"ratios": facts["tables"][0]["ratios"], "target": facts["tables"][0]["target"]}.get(step, place.get(step))
        place[last] = value
    return [finding for finding in verdict(facts) if finding.severity != "ok"]


def test_nothing_looks_off_with_a_good_transfer():
    findings = verdict(good())
    assert len(findings) == 9 and {finding.severity for finding in findings} == {"ok"}
    assert summary(findings) == "Nothing looks off."


@pytest.mark.parametrize(
    ("method", "advice"),
    [
        ("omp", "take a helper that knows more of them, or another method"),
        ("trans_tokenization", "give more parallel text"),
        ("tokalign", "give more text"),
        ("focus", "use vectors with character n-grams"),
    ],
)
def test_random_rows_are_answered_by_what_their_method_reads(method, advice):
    (found,) = changed(method=method, counts={"copied": 0, "mixed": 499, "random": 501})
    assert found.about == "random rows" and f": {advice}" in found.text


def test_what_tokalign_compares_is_not_taken_for_vectors_or_for_one_language():
    counted = {"source_text": {"without_vector": 0}, "target_text": {"tokens": 99, "without_vector": 800}}
    sides = {side: {"vocabulary_size": 1000} for side in ("source", "target")}
    facts = good() | sides | {"method": "tokalign", "similarity": {"mean_top1": 0.97}}
    facts["alignment"] = {"method": "tokalign", **counted}
    found = {finding.about: finding for finding in verdict(facts)}
    assert found["similarity"].severity == "ok"
    assert "enough in the two texts: check that they are of the right languages, or give more" in found["target text"].text


def test_few_translations_are_no_fault_of_anker():
    facts = good()
    facts["alignment"].update(precision_at_1=0.0, anchors={"equal": 300}, rounds=[{"anchors": 300}])
    found = {finding.about: finding for finding in verdict(facts)}
    assert found["alignment"].severity == found["anchors"].severity == "ok"
    assert "says little of anker's rows" in found["alignment"].text


def anker() -> dict:
    """Facts of a transfer by anker with which nothing is the matter."""
    text = {"tokens": 9999, "without_counts": 100, "without_vector": 200}
    alignment = {"anchors": {"dictionary": 300, "equal": 300}, "rounds": [{"anchors": 600}]}
    alignment |= {"precision_at_1": 0.1, "source_text": text, "target_text": text}
    sides = {side: {"vocabulary_size": 1000} for side in ("source", "target")}
    return good() | sides | {"alignment": alignment, "dictionary": "en-sw.tsv"}


@pytest.mark.parametrize(
    ("change", "severity", "about", "told"),
    [
        ({"target_text": {"without_vector": 751}}, "wrong", "target text", "751 of 1,000 target tokens do not occur often"),
        # A record may say so of what was not counted.
        ({"target_text": {"tokens": None, "without_vector": 751}}, "wrong", "target text", "751 of 1,000 target tokens do not"),
        (
            {"target_text": {"tokens": 40_000, "without_vector": 301}},
            "look",
            "target text",
            "301 of 1,000 target tokens do not",
        ),
        ({"source_text": {"without_vector": 751}}, "look", "source text", "the texts are not swapped"),
        ({"anchors": {"dictionary": 19}}, "look", "dictionary", "Only 19 anchors come from the dictionary"),
    ],
)
def test_texts_and_a_dictionary_of_another_language_are_found_in_anker(change, severity, about, told):
    facts = anker()
    assert {finding.severity for finding in verdict(facts)} == {"ok"}
    facts["alignment"] |= change
    (finding,) = (finding for finding in verdict(facts) if finding.severity != "ok")
    assert (finding.severity, finding.about) == (severity, about) and told in finding.text and finding.text.endswith(".")


def test_vectors_that_are_all_alike_and_few_words_are_seen():
    facts = good() | {"similarity": {"mean_top1": 0.998}}
    facts["alignment"] |= {"precision_at_1": 0.0, "held_out_words": 29}
    found = {finding.about: finding for finding in verdict(facts)}
    assert found["similarity"].severity == "look" and "train them on more text" in found["similarity"].text
    assert found["alignment"].severity == "ok" and found["alignment"].text.endswith("(29 words), too few to tell.")
    facts["alignment"]["held_out_words"] = 30
    assert {finding.about: finding.severity for finding in verdict(facts)}["alignment"] == "wrong"


def test_anker_gets_the_advice_that_fits_it():
    facts = anker() | {"similarity": {"mean_top1": 0.1}, "dictionary": None}
    facts["tables"][0]["target"]["duplicate_share"] = 0.5
    facts["counts"] = {"copied": 0, "mixed": 600, "random": 400}
    facts["alignment"]["anchors"] = {"dictionary": 0, "equal": 300}
    text = " ".join(finding.text for finding in verdict(facts) if finding.severity != "ok")
    assert all(told in text for told in ("the target text does not show", "texts are of the two languages", "word vectors"))
    assert not any(told in text for told in ("overlap rule", "the vectors' languages", "n-grams", "dictionary:"))
    # Rows that are copied, as with --keep_source, need no text.
    facts = anker() | {"counts": {"copied": 900, "mixed": 100, "random": 0}}
    facts["alignment"]["target_text"] = {"without_vector": 900}
    assert {finding.severity for finding in verdict(facts)} == {"ok"}


def test_rows_of_a_regression_without_vectors_are_not_taken_for_known():
    """It leaves no row random, but tells tokens without a vector apart by their frequency and word start alone."""
    covered = {"tokens": 1000, "without_vector": {"tokens": 600, "examples": []}}
    facts = {"counts": {"copied": 1, "mixed": 999, "random": 0}, "coverage": covered, "regression": {"rank": 104}}
    (found,) = verdict(facts)
    assert (found.severity, found.about, found.value) == ("wrong", "tokens without a vector", 0.6)
    assert found.text.startswith("60 % of the tokens have no vector") and "n-grams" in found.text
    twins = verdict(facts | {"duplicates": {"share": 0.9}})
    assert "they are tokens without a vector" in next(finding.text for finding in twins if finding.about == "duplicates")
    covered["without_vector"]["tokens"] = 250
    assert [finding.severity for finding in verdict(facts)] == ["look"]
    # anker's are told by what text it read, and without a regression such rows are random.
    assert verdict(facts | {"alignment": {"anchors": {}}})[-1].about != "tokens without a vector"
    (plain,) = verdict(facts | {"regression": None})
    assert (plain.severity, plain.about) == ("ok", "random rows")


def test_mean_rows_are_equal_because_the_method_knows_nothing_of_them():
    facts = {"counts": {"copied": 90, "mixed": 0, "random": 910}, "duplicates": {"share": 0.91}, "noise": "mean"}
    texts = {finding.about: finding.text for finding in verdict(facts)}
    assert texts["random rows"].startswith("91 % of the rows are the mean row: the method knows nothing of them")
    assert "they are the mean row, of which the method knows nothing" in texts["duplicates"]
    assert "neighbors" not in texts["duplicates"]


def test_what_is_not_known_is_not_judged():
    assert verdict({}) == () and summary(()) == "Nothing could be judged."
    assert verdict({"counts": None, "tables": None, "alignment": None, "perplexity": {"reason": "no such model"}}) == ()


@pytest.mark.parametrize(
    ("change", "severity", "about", "told"),
    [
        ({"counts": {"copied": 0, "mixed": 799, "random": 201}}, "look", "random rows", "20 % of the rows are random"),
        ({"counts": {"copied": 0, "mixed": 499, "random": 501}}, "wrong", "random rows", "character n-grams"),
        ({"ratios__norm_mean": 2.01}, "wrong", "mean length (input)", "2.01 times the source's"),
        ({"ratios__norm_mean": 0.49}, "wrong", "mean length (input)", "0.49 times the source's"),
        ({"ratios__std": 2.01}, "wrong", "spread (input)", "spread of the new embeddings is 2.01 times"),
        ({"ratios__std": 0.49}, "wrong", "spread (input)", "0.49 times"),
        ({"alignment__pairs": 999}, "look", "dictionary pairs", "999 pairs of words, fewer than 1,000"),
        ({"alignment__pairs_found": 999}, "look", "dictionary pairs", "know only 5 % of the dictionary's 20,000 entries"),
        ({"alignment__precision_at_1": 0.049}, "wrong", "alignment", "in 4.9 % of cases (500 words), under 5 %"),
        (
            {"alignment__anchors": {"equal": 199, "learned": 9}, "alignment__rounds": [{"anchors": 199}, {"anchors": 208}]},
            "look",
            "anchors",
            "199 pairs of tokens were there to start from, fewer than 200: give more text or a dictionary",
        ),
        ({"similarity__mean_top1": 0.29}, "look", "similarity", "0.29 on average, under 0.3"),
        ({"special_tokens__random": ["<pad>"]}, "wrong", "special tokens", "is random (<pad>): map each"),
        (
            {"special_tokens__random": ["<pad>"], "method": "wechsel", "parity": True},
            "wrong",
            "special tokens",
            "is random (<pad>): the package copies those spelled as the source's alone; leave out --parity.",
        ),
        ({"target__duplicate_share": 0.31}, "look", "duplicates", "31 % of the new rows equal another"),
        ({"target__not_finite_rows": 3}, "wrong", "NaN", "wte has 3 rows with NaN"),
        ({"mixture__largest_absolute_sum": 10.5}, "look", "weights", "add up to 10.5"),
        ({"mixture__largest_absolute_sum": 99.0, "method": "salt"}, "look", "weights", "nearly cancel; raise --ridge."),
        ({"mixture__largest_absolute_sum": 99.0, "method": "omp"}, "look", "weights", "nearly cancel; lower --atoms."),
        ({"mixture__largest_absolute_sum": 99.0, "method": "clp"}, "look", "weights", "; take another method."),
        ({"notes": ["5 ill-conditioned neighborhoods were regularised."]}, "look", "conditioning", "5 ill-conditioned"),
        ({"perplexity__unknown": 0.0245}, "look", "unknown tokens", "2.5 % of the text's tokens are unknown: what stands"),
        ({"perplexity__perplexity": 1001.0}, "look", "perplexity", "1,001, above the 1,000 of a uniform guess"),
        ({"perplexity__tokens": 6}, "look", "perplexity", "is 800, over 6 predicted tokens, too few to tell"),
        ({"perplexity__perplexity": None}, "wrong", "perplexity", "not finite"),
        ({"perplexity__perplexity": math.inf}, "wrong", "perplexity", "not finite"),
    ],
)
def test_each_thing_that_can_be_off_is_found_alone(change, severity, about, told):
    (finding,) = changed(**change)
    assert (finding.severity, finding.about) == (severity, about) and told in finding.text
    assert finding.text.endswith(".") and "\n" not in finding.text


@pytest.mark.parametrize(
    "change",
    [
        {"counts": {"copied": 0, "mixed": 800, "random": 200}},
        {"ratios__norm_mean": 2.0},
        {"ratios__std": 0.5},
        {"alignment__pairs": 1000},
        {"alignment__pairs_found": 1000},
        {"alignment__precision_at_1": 0.05},
        {"similarity__mean_top1": 0.3},
        {"special_tokens__random": ["<extra_7>"]},
        {"target__duplicate_share": 0.3},
        {"mixture__largest_absolute_sum": 10.0},
        {"perplexity__perplexity": 1000.0},
    ],
)
def test_the_thresholds_themselves_are_fine(change):
    assert changed(**change) == []


def test_a_baseline_that_knows_nothing_needs_only_a_look():
    counts = {"copied": 0, "mixed": 0, "random": 1000}
    facts = {
        "vocabulary_size": 1000,
        "counts": counts,
        "special_tokens": good()["special_tokens"] | {"random": ["<s>", "<pad>"]},
    }
    (finding,) = verdict(facts)
    assert finding.severity == "look" and "expected of a baseline" in finding.text


def test_the_worst_comes_first():
    facts = good() | {"similarity": {"mean_top1": 0.1}}
    facts["alignment"]["precision_at_1"] = 0.0
    order = [SEVERITIES.index(finding.severity) for finding in verdict(facts)]
    assert order == sorted(order) and order[:3] == [0, 1, 2]
    assert summary(verdict(facts)) == "1 thing is wrong and 1 thing needs a look."
