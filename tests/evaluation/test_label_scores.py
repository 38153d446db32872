"""Scores of labels, entities and answers against scikit-learn, seqeval, torchmetrics and the rules of the official scripts."""

import random
import re
import string
import unicodedata
import warnings
from collections import Counter

import numpy as np
import pytest
from torchmetrics.functional.text import squad as torchmetrics_squad

from wechsel_jax.data.examples import Task, read_examples
from wechsel_jax.errors import UserError
from wechsel_jax.evaluation.answers import answer_scores, best_answers, best_span, normalized
from wechsel_jax.evaluation.label_scores import classification_scores, has_entities, tagging_scores
from wechsel_jax.evaluation.labels import score_labelled

ENTITIES = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


def test_classification_is_that_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    generator = random.Random(0)
    gold = [generator.choice("abcd") for _ in range(200)]
    predicted = [label if generator.random() < 0.6 else generator.choice("abce") for label in gold]
    found = classification_scores(gold, predicted)
    assert found["accuracy"] == pytest.approx(metrics.accuracy_score(gold, predicted))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert found["macro_f1"] == pytest.approx(metrics.f1_score(gold, predicted, average="macro"))
    assert found["items"] == [(right == label, 1) for right, label in zip(gold, predicted, strict=True)]


def entities(tags):
    """Spans (kind, first, end) as conlleval finds them: one also begins with I- behind something else."""
    spans, start = [], None
    for place, tag in enumerate([*tags, "O"]):
        kind = tag[2:]
        if start is not None and (tag == "O" or tag[0] == "B" or kind != tags[start][2:]):
            spans.append((tags[start][2:], start, place))
            start = None
        if tag != "O" and start is None:
            start = place
    return spans


def test_entities_are_counted_as_the_conll_script_does():
    """Predictions with every kind of mistake, among them entities that begin with I-."""
    generator = random.Random(1)
    gold = [[generator.choice(ENTITIES) for _ in range(generator.randint(1, 12))] for _ in range(60)]
    predicted = [[tag if generator.random() < 0.7 else generator.choice(ENTITIES) for tag in tags] for tags in gold]
    right, found = ([{*entities(tags)} for tags in some] for some in (gold, predicted))
    true = sum(len(one & other) for one, other in zip(right, found, strict=True))
    precision, recall = true / sum(map(len, found)), true / sum(map(len, right))
    scores = tagging_scores(gold, predicted, True)
    assert 0.2 < scores["f1"] < 0.9
    assert scores["precision"] == pytest.approx(precision) and scores["recall"] == pytest.approx(recall)
    assert scores["f1"] == pytest.approx(2 * precision * recall / (precision + recall))
    same = [tag == other for tags, others in zip(gold, predicted, strict=True) for tag, other in zip(tags, others, strict=True)]
    assert scores["accuracy"] == pytest.approx(np.mean(same))
    numerators, denominators = zip(*scores["items"], strict=True)
    assert len(numerators) == len(gold) and sum(numerators) / sum(denominators) == pytest.approx(scores["f1"])


def test_bilou_is_counted_as_seqeval_does_where_it_is_told_the_scheme():
    seqeval_metrics, scheme = pytest.importorskip("seqeval.metrics"), pytest.importorskip("seqeval.scheme").BILOU
    generator = random.Random(2)

    def sentence():
        tags = []
        while len(tags) < 9:
            kind, size = generator.choice(["PER", "LOC", None]), generator.randint(1, 3)
            named = [f"U-{kind}"] if size == 1 else [f"B-{kind}", *[f"I-{kind}"] * (size - 2), f"L-{kind}"]
            tags += named if kind else ["O"]
        return tags

    gold, predicted = ([sentence() for _ in range(100)] for _ in range(2))
    predicted = [(one if generator.random() < 0.4 else other)[: len(one)] for one, other in zip(gold, predicted, strict=True)]
    predicted = [[*other, *["O"] * (len(one) - len(other))] for one, other in zip(gold, predicted, strict=True)]
    assert has_entities(["O", "U-PER"]) and not has_entities(["NSD", "S--", "B--"])
    scores = tagging_scores(gold, predicted, True)
    assert 0.2 < scores["f1"] < 0.9
    # A sentence that was cut ends without its last word, which the strict count does not take for an entity.
    whole = [pair for pair in zip(gold, predicted, strict=True) if not pair[1][-1].startswith(("B-", "I-"))]
    scores = tagging_scores(*zip(*whole, strict=True), True)
    given = {"mode": "strict", "scheme": scheme}
    gold, predicted = ([list(tags) for tags in some] for some in zip(*whole, strict=True))
    for name, score in (("f1", "f1_score"), ("precision", "precision_score"), ("recall", "recall_score")):
        assert scores[name] == pytest.approx(getattr(seqeval_metrics, score)(gold, predicted, **given)), name
    assert tagging_scores([["U-PER", "U-PER"]], [["B-PER", "L-PER"]], True)["f1"] == 0.0
    # A last word ends an entity also where nothing began, so that these are two.
    assert tagging_scores([["L-PER", "L-PER"]], [["U-PER", "O"]], True)["precision"] == 1.0


def test_word_classes_have_an_accuracy_alone():
    scores = tagging_scores([["NOUN", "VERB"], ["X"]], [["NOUN", "X"], ["X"]], False)
    assert scores == {"accuracy": 2 / 3, "items": [(1, 2), (1, 1)]}


def squad(answer):
    """As evaluate-v1.1.py describes it: lower case, no ASCII punctuation, no English articles, single spaces."""
    kept = "".join(letter for letter in answer.lower() if letter not in string.punctuation)
    return [word for word in re.sub(r"\b(a|an|the)\b", " ", kept).split() if word]


def mlqa(answer, language):
    """As mlqa_evaluation_v1.py describes it, a letter at a time."""
    kept = [c for c in answer.lower() if not unicodedata.category(c).startswith("P") and c not in string.punctuation]
    text = "".join(kept)
    articles = {
        "en": "a an the",
        "de": "ein eine einen einem eines einer der die das den dem des",
        "vi": "của là cái chiếc những",
    }.get(language, "")
    if language == "ar":
        text = text.replace("ال", " ")
    if language == "zh":
        text = "".join(f" {c} " if "\u4e00" <= c <= "\u9fa5" else c for c in text)
    words = []
    for word in text.split():
        # An article inside of a word, between marks that are no letters, counts too.
        parts = re.split(r"(\W)", word)
        words += "".join(" " if part in articles.split() else part for part in parts).split() if articles else [word]
    return words


def f1(found, right):
    common = sum((Counter(found) & Counter(right)).values())
    if not common:
        return 0.0
    precision, recall = common / len(found), common / len(right)
    return 2 * precision * recall / (precision + recall)


@pytest.mark.parametrize("language", ["", "en", "de", "vi", "hi", "ar", "zh"])
def test_answers_are_compared_as_the_official_scripts_do(data_directory, language):
    """Real answers of XQuAD; predictions are the answers with words lost, added and exchanged."""
    file = data_directory / "labelled" / "xquad" / f"xquad.{language or 'de'}.json.gz"
    examples, generator = read_examples([file], Task("answers"))[:300], random.Random(2)
    predicted, gold = [], []
    for example in examples:
        text, (answer, start) = example.texts[1], example.target[0]
        shift, longer = generator.choice([0, 0, -4, 3]), generator.choice([0, 0, 5, -1])
        predicted.append(text[max(0, start + shift) : start + len(answer) + longer])
        gold.append([answer, "The other, an answer!"])
    rules = squad if not language else lambda answer: mlqa(answer, language)
    scores = answer_scores(gold, predicted, language)
    exact = [any(rules(found) == rules(right) for right in rights) for found, rights in zip(predicted, gold, strict=True)]
    f1s = [max(f1(rules(found), rules(right)) for right in rights) for found, rights in zip(predicted, gold, strict=True)]
    assert 0.2 < np.mean(exact) < np.mean(f1s) < 0.99
    assert scores["correct"] == exact and scores["exact_match"] == pytest.approx(np.mean(exact))
    assert scores["f1s"] == pytest.approx(f1s) and scores["f1"] == pytest.approx(np.mean(f1s))
    if not language:
        asked = [{"id": str(i), "answers": {"answer_start": [0, 0], "text": rights}} for i, rights in enumerate(gold)]
        found = torchmetrics_squad([{"id": str(i), "prediction_text": one} for i, one in enumerate(predicted)], asked)
        assert found["f1"].item() / 100 == pytest.approx(scores["f1"]) and found["exact_match"] / 100 == pytest.approx(
            np.mean(exact)
        )


def squad_2(gold, predicted):
    """As evaluate-v2.0.py has it: (exact matches, F1s), and those of questions with and without an answer."""
    exact, f1s = [], []
    for answers, found in zip(gold, predicted, strict=True):
        answers = [answer for answer in answers if squad(answer)] or [""]
        exact.append(max(int(squad(answer) == squad(found)) for answer in answers))
        each = []
        for answer in answers:
            right, said = squad(answer), squad(found)
            same = sum((Counter(right) & Counter(said)).values())
            if not right or not said:
                each.append(int(right == said))
            elif same == 0:
                each.append(0)
            else:
                precision, recall = same / len(said), same / len(right)
                each.append(2 * precision * recall / (precision + recall))
        f1s.append(max(each))
    return exact, f1s


def test_questions_without_an_answer_count_as_in_squad_2():
    generator = random.Random(4)
    pieces = ["", "the", "a dog", "dog", "The dog.", "two dogs", "cat and dog", "?"]
    for _ in range(50):
        gold = [[generator.choice(pieces[1:]) for _ in range(generator.randint(0, 3))] for _ in range(12)] + [[], ["dog"]]
        predicted = [generator.choice(pieces) for _ in gold]
        exact, f1s = squad_2(gold, predicted)
        scores = answer_scores(gold, predicted)
        assert scores["correct"] == exact and scores["f1s"] == pytest.approx(f1s)
        assert scores["exact_match"] == pytest.approx(np.mean(exact)) and scores["f1"] == pytest.approx(np.mean(f1s))
        known = [bool(answers) for answers in gold]
        for name, values in (("exact_match", exact), ("f1", f1s)):
            of_known = [value for value, has in zip(values, known, strict=True) if has]
            assert scores[f"has_answer_{name}"] == pytest.approx(np.mean(of_known))
            others = [value for value, has in zip(values, known, strict=True) if not has]
            assert scores["no_answer"] == pytest.approx(np.mean(others))
    # Where all have one, the rules are those of the first SQuAD, by which two articles have no word in common.
    assert answer_scores([["the"]], ["a"])["f1"] == 0 and answer_scores([["the"], []], ["a", "b"])["f1s"] == [1, 0]
    assert {*answer_scores([[]], ["x"])} - {"f1s", "correct"} == {"exact_match", "f1", "no_answer"}
    assert "no_answer" not in answer_scores([["x"]], [""])


def test_what_of_an_answer_is_compared():
    assert normalized("The  «Cat», a hat.") == "«cat» hat" and normalized("The  «Cat», a hat.", "en") == "cat hat"
    assert normalized("Der Hund", "de") == "hund" and normalized("在1799年", "zh") == "在 1799 年"
    with pytest.raises(UserError, match=r"task\.language: is 'tlh'"):
        answer_scores([["x"]], ["x"], "tlh")


def test_the_best_span_is_that_of_all_spans():
    rng = np.random.default_rng(0)
    for _ in range(20):
        start, end = rng.normal(size=(2, 12))
        inside = rng.random(12) < 0.7
        inside[3] = True
        spans = [(start[i] + end[j], i, j) for i in range(12) for j in range(i, min(i + 4, 12)) if inside[i] and inside[j]]
        found = best_span(start, end, inside, 4)
        assert found == pytest.approx(max(spans))
    assert best_span(start, end, np.zeros(12, bool), 4)[0] == -np.inf


def test_the_best_window_of_a_text_answers():
    characters = np.asarray([[-1, -1], [0, 3], [3, 7]])
    scores = np.asarray([[9.0, 1.0, 0.0], [9.0, 0.0, 1.0]])
    windows = [(0, scores, characters), (0, scores + 1, characters + np.asarray([[0], [7], [7]])), (1, scores, characters)]
    assert best_answers(windows, {0: "ein altes Haus", 1: "der Hut"}, 30) == {0: "es Haus", 1: "der Hut"}


def test_an_answer_ends_with_the_accents_that_are_in_no_token():
    """As of BERT's uncased tokenizers, which take them off: "की" is "क"."""
    text, scores = "राम की टोपी", np.asarray([[0.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    assert best_answers([(0, scores, np.asarray([[-1, -1], [4, 5], [7, 10]]))], {0: text}, 30) == {0: "की"}
    # The last token of the text; and where the accent is a token, which is not of the answer.
    assert best_answers([(0, scores, np.asarray([[0, 3], [7, 10], [-1, -1]]))], {0: text}, 30) == {0: "टोपी"}
    assert best_answers([(0, scores, np.asarray([[-1, -1], [4, 5], [5, 6]]))], {0: text}, 30) == {0: "क"}


def test_nothing_is_said_where_every_window_likes_its_first_token_more():
    characters = np.asarray([[-1, -1], [0, 3], [3, 7]])
    texts = {0: "der Hut", 1: "der Hut", 2: "der Hut"}

    def window(nothing, span):
        return np.asarray([[nothing, span, 0.0], [0.0, span, 0.0]])

    # Of two windows the lower score of the first token counts, and the higher one of a span.
    windows = [(0, window(5.0, 2.0), characters), (1, window(5.0, 2.0), characters), (1, window(3.0, 1.0), characters)]
    windows += [(2, window(5.0, 1.0), characters), (2, window(9.0, 2.4), characters)]
    assert best_answers(windows, texts, 30, none=True) == {0: "", 1: "der", 2: ""}
    assert best_answers(windows, texts, 30) == dict.fromkeys(range(3), "der")
    # As far as the other.
    assert best_answers([(0, window(4.0, 2.0), characters)], texts, 30, none=True) == {0: "der"}


def test_an_export_is_scored_as_its_run_was_trained_however_it_is_named(tmp_path, monkeypatch):
    for run in ("run", "linked"):
        (tmp_path / run).mkdir()
        (tmp_path / run / "metrics.jsonl").touch()
        # That it is read at all, the message says.
        (tmp_path / run / "config.json").write_text("{")
    (tmp_path / "run" / "export").mkdir()
    (tmp_path / "linked" / "export").symlink_to(tmp_path / "run")
    monkeypatch.chdir(tmp_path / "run" / "export")
    for place in (".", "../export", "..", tmp_path / "run" / "export", tmp_path / "linked" / "export"):
        with pytest.raises(UserError, match=r"config\.json: .*the settings of a fine-tuning"):
            score_labelled(place, ["a.tsv"])
