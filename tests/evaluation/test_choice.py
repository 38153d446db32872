"""Files of tasks in lm-eval's own words, and scores of them."""

import gzip
import importlib
import itertools
import json
from pathlib import Path

import datasets
import lm_eval.tasks
import numpy as np
import pytest
import yaml
from lm_eval.utils import apply_template

from configs.lm_eval import files
from tests.evaluation.tiny_models import save
from wechsel_jax.errors import UserError
from wechsel_jax.evaluation import choice
from wechsel_jax.evaluation.choice import prompts, score_choices
from wechsel_jax.evaluation.items import CONNECTORS, Item, read_items
from wechsel_jax.evaluation.loaded import LoadedModel
from wechsel_jax.text.sources import Source

TASKS = Path(lm_eval.tasks.__file__).parent
OKAPI = {
    "id": "ARC-Challenge/test/1",
    "instruction": " Wo ist [edit] der  Fuchs? ",
    "option_a": "Im Wald.",
    "option_b": "Auf dem  Hund.",
    "option_c": "Hier.",
    "option_d": "Dort.",
    "answer": "B",
}
HELLASWAG = {
    "activity_label": "Hunde",
    "ctx_a": "Ein Hund [title] schläft.",
    "ctx_b": "der Fuchs",
    "endings": ["springt.", "  liest [step] ein Buch.", "schläft auch."],
    "label": "2",
}
TRUTHFULQA = {
    "question": "Was frisst  der Fuchs?",
    "mc1_targets_choices": ["Mäuse.", "Steine."],
    "mc1_targets_labels": [1, 0],
    "mc2_targets_choices": ["Mäuse.", "Hühner.", "Steine."],
    "mc2_targets_labels": [1, 1, 0],
}
BELEBELE = {
    "flores_passage": "Der Fuchs springt.",
    "question": " Wer springt? ",
    **{f"mc_answer{number}": f"Antwort {number}" for number in range(1, 5)},
    "correct_answer_num": "3",
}
# lm-eval's tasks of BLiMP's fields -> what stands before a sentence.
BLIMPS = {"blimp": " ", "blimp_nl": "", "turblimp": "", "zhoblimp": ""}
XCOPA = {"premise": "Mbwa amelala. ", "choice1": "Amechoka.", "choice2": "Ana njaa.", "question": "cause", "label": 0}


def write(directory, name, *records):
    path = directory / name
    text = json.dumps(list(records)) if path.suffix == ".json" else "".join(json.dumps(record) + "\n" for record in records)
    path.write_text(text, encoding="utf-8")
    return path


def utilities(folder):
    spec = importlib.util.spec_from_file_location(folder.replace("/", "_"), TASKS / folder / "utils.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def processed(folder, record):
    (doc,) = utilities(folder).process_docs(datasets.Dataset.from_list([record]))
    return doc


@pytest.mark.parametrize("question", ["cause", "effect"])
@pytest.mark.parametrize("language", CONNECTORS)
def test_xcopa_in_the_words_of_lm_eval(tmp_path, language, question):
    record = XCOPA | {"question": question}
    name, (item,) = read_items(write(tmp_path, f"test.{language}.jsonl", record))
    theirs = utilities("xcopa")
    assert (name, item.answers) == ("xcopa", (0,))
    assert item.context == getattr(theirs, f"doc_to_text_{language}")(record)
    assert list(item.choices) == theirs.doc_to_choice(record)


def test_okapi_in_the_words_of_lm_eval(tmp_path):
    doc = processed("okapi/arc_multilingual", OKAPI | {"option_e": None})
    assert read_items(write(tmp_path, "a.json", OKAPI)) == ("arc", [Item(doc["query"], tuple(doc["choices"]), (doc["gold"],))])
    doc = processed("okapi/hellaswag_multilingual", HELLASWAG)
    expected = Item(doc["query"], tuple(doc["choices"]), (doc["gold"],))
    assert read_items(write(tmp_path, "b.json", HELLASWAG)) == ("hellaswag", [expected])
    doc = processed("okapi/truthfulqa_multilingual", TRUTHFULQA)
    path = write(tmp_path, "c.json", TRUTHFULQA)
    assert read_items(path) == ("truthfulqa_mc1", [Item(doc["query"], tuple(doc["mc1_choices"]), (0,))])
    assert read_items(path, form="truthfulqa_mc2")[1] == [Item(doc["query"], tuple(doc["mc2_choices"]), (0, 1))]


@pytest.mark.parametrize(
    ("form", "file", "record"),
    [
        ("mmlu", "okapi/mmlu_multilingual/_default_yaml", OKAPI | {"id": "biology/dev/1"}),
        ("belebele", "belebele/_default_template_yaml", BELEBELE),
    ],
)
def test_letters_in_the_words_of_lm_eval(tmp_path, form, file, record):
    template = yaml.safe_load((TASKS / file).read_text())
    context, choices = apply_template(template["doc_to_text"], record), template["doc_to_choice"]
    name, (item,) = read_items(write(tmp_path, "a.jsonl", record))
    assert (name, item.context, list(item.choices)) == (form, context, choices)
    answer = record["answer"] if form == "mmlu" else "ABCD"[int(apply_template(template["doc_to_target"], record))]
    assert item.choices[item.answers[0]] == answer
    assert item.phenomenon == ("biology" if form == "mmlu" else "")


def test_minimal_pairs_and_the_plain_form(tmp_path):
    pairs = tmp_path / "pairs.tsv.gz"
    pairs.write_bytes(gzip.compress(b'sen\twrong_sen\tphenomenon\n"a" b\tb a\tOrder\n'))
    assert read_items(pairs) == ("minimal_pairs", [Item("", ('"a" b', "b a"), (0,), "Order")])
    blimp = write(tmp_path, "blimp.jsonl", {"sentence_good": "a b", "sentence_bad": "b a", "UID": "order"})
    assert read_items(blimp) == ("blimp", [Item("", ("a b", "b a"), (0,), "order")])
    record = {"context": "Ja oder nein?", "choices": ["ja", "nein", "vielleicht"], "answer": 2, "phenomenon": "P"}
    expected = ("plain", [Item("Ja oder nein?", ("ja", "nein", "vielleicht"), (2,), "P")])
    assert read_items(write(tmp_path, "plain.jsonl", record)) == expected
    table = tmp_path / "plain.tsv"
    table.write_text("phenomenon\tanswer\tchoices\tcontext\r\nP\t2\t" + json.dumps(record["choices"]) + "\tJa oder nein?\r\n")
    assert read_items(table) == expected


def test_of_the_tasks_with_the_fields_of_blimp_one_puts_a_space_before_sentences():
    """So the fields do not tell whether one belongs there; docs/evaluation.md names the exception."""
    templates = {name: yaml.safe_load((TASKS / name / "_template_yaml").read_text()) for name in BLIMPS}
    assert {name: one.get("target_delimiter", " ") for name, one in templates.items()} == BLIMPS
    for one in templates.values():
        choices = apply_template(one["doc_to_choice"], {"sentence_good": "a", "sentence_bad": "b"})
        assert choices == "['a', 'b']"


def test_rows_of_parquet_data_sets_and_several_files(tmp_path, monkeypatch):
    """Belebele, HellaSwag and others are published in no other form."""
    rows = datasets.Dataset.from_list([HELLASWAG, HELLASWAG | {"label": "0"}])
    rows.to_parquet(tmp_path / "a.parquet")
    rows.save_to_disk(tmp_path / "saved")
    (tmp_path / "parts").mkdir()
    for number in "12":
        write(tmp_path / "parts", f"{number}.jsonl", HELLASWAG | {"label": str(int(number) - 1)})
    expected = ("hellaswag", read_items(write(tmp_path, "a.json", HELLASWAG, HELLASWAG | {"label": "0"}))[1])
    monkeypatch.setattr(Source, "open_hub", lambda source: rows.to_iterable_dataset())
    for place in (f"{tmp_path}/a.parquet", f"datasets:{tmp_path}/saved", "hf://Rowan/hellaswag:validation"):
        assert read_items(place) == expected
        assert [item.place for item in read_items(place)[1]] == [f"{place}: row 1", f"{place}: row 2"]
    several = read_items(f"{tmp_path}/parts/*.jsonl")[1]
    assert [(item.answers, item.place) for item in several] == [
        ((0,), f"{tmp_path}/parts/1.jsonl: line 1"),
        ((1,), f"{tmp_path}/parts/2.jsonl: line 1"),
    ]
    # The language of XCOPA may be the data set's configuration.
    monkeypatch.setattr(Source, "open_hub", lambda source: datasets.Dataset.from_list([XCOPA]).to_iterable_dataset())
    assert read_items("hf://cambridgeltl/xcopa:test#sw")[1][0].context.endswith(" kwa sababu")
    datasets.Dataset.from_list([XCOPA, XCOPA | {"label": None}]).to_parquet(tmp_path / "b.parquet")
    with pytest.raises(UserError, match=f"^{tmp_path}/b.parquet: row 2: the answer is None; .*; mend the row"):
        read_items(f"{tmp_path}/b.parquet", form="xcopa:sw")


def test_every_real_file_is_read(data_directory):
    counts = {}
    for folder in ("multiblimp", "clams", "sling", "jblimp", "lindsea", "xcopa", "okapi"):
        for path in (data_directory / "labelled" / folder).iterdir():
            name, items = read_items(path)
            counts[name] = counts.get(name, 0) + len(items)
    # By the file sizes of data/SOURCES.md; XCOPA has 500 and 100 questions in five languages.
    assert counts["minimal_pairs"] == 770 + 1340 + 1400 + 4557 + 331 + 380
    assert counts["xcopa"] == 5 * 600
    assert set(counts) == {"minimal_pairs", "xcopa", "arc", "mmlu", "truthfulqa_mc1"}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.jsonl", "", "the file is empty; expected a file of a forced-choice task"),
        ("a.jsonl", "\n\n", "holds no item; expected a file of"),
        ("a.json", "[]", "holds no item; expected a file of"),
        ("a.tsv", "sen\twrong_sen\n", "holds no item; expected a file of"),
        ("a.tsv", "sen\twrong_sen\na\tb\na b\n", "line 3: has 1 columns; expected 2, as the first line has; mend the line"),
        ("a.tsv", "sen\twrong_sen\na\t\n", r"line 2: 2 choices, of \[0, 1\] characters; expected two or more, none empty"),
        ("a.tsv", "sen\twrong_sen\na\tb\nc\tc\n", "line 3: two of its choices are equal, 'c'; expected different ones"),
        ("a.jsonl", '{"choices": ["a", "b", "a"], "answer": 1}\n', "line 1: two of its choices are equal, 'a'"),
        ("a.tsv", "sen\tsen\twrong_sen\na\tb\tc\n", "two columns are named 'sen'; expected different names"),
        ("a.tsv", "good\tbad\na\tb\n", "its first record has the fields bad, good; expected those of minimal_pairs, blimp"),
        ("a.jsonl", '{"context": "x", "choices": ["a", "b"], "answer": 2}\n', "line 1: its answer is none of its 2 choices"),
        (
            "a.jsonl",
            '{"context": "x", "choices": ["a", "b"], "answer": -1}\n',
            "line 1: the answer is -1; expected a whole number",
        ),
        ("a.jsonl", '{"context": "x", "choices": ["a"], "answer": 0}\n', "line 1: 1 choices, of .* expected two or more"),
        ("a.jsonl", '{"context": "x", "choices": "ab", "answer": 0}\n', "line 1: field choices is 'ab'; expected a JSON list"),
        ("a.jsonl", '{"context": "x", "choices": ["a", 2], "answer": 0}\n', "line 1: field choices.1 is 2; expected text"),
        (
            "a.jsonl",
            '{"sentence_good": "x", "sentence_bad": "y"}\n{"sentence_good": "x"}\n',
            "line 2: field sentence_bad is missing",
        ),
        ("a.jsonl", '{"sentence_good": "x", "sentence_bad": "y"}\n{"sent\n', "line 2: not JSON"),
        ("a.json", '[{"sentence_good": "x",\n "sentence_bad": }]', "not JSON: Expecting value: line 2 column 18"),
        ("a.json", '["\\ud800"]', r"holds half a character, .*; expected a file of a forced-choice task"),
        ("a.json", "[1]", "item 1: is no object"),
        ("a.json", json.dumps([OKAPI, OKAPI | {"answer": "F"}]), "item 2: field answer is 'F'; expected a letter from A to E"),
        ("a.json", json.dumps([OKAPI, OKAPI | {"answer": "E"}]), "item 2: its answer is none of its 4 choices"),
        # Without it the letters behind it would mean others.
        ("a.json", json.dumps([OKAPI | {"option_b": ""}]), "item 1: 4 choices, of .* expected two or more, none empty"),
        (
            "a.json",
            json.dumps([TRUTHFULQA | {"mc1_targets_labels": [1]}]),
            "item 1: .* has 1 labels, 1 of them right, for 2 choices",
        ),
        (
            "a.json",
            json.dumps([TRUTHFULQA | {"mc1_targets_labels": [0, 0]}]),
            "item 1: .* has 2 labels, 0 of them right, for 2 choices",
        ),
        (
            "a.sw.jsonl",
            json.dumps(XCOPA) + "\n" + json.dumps({k: v for k, v in XCOPA.items() if k != "label"}),
            "line 2: field label is missing",
        ),
        ("it.vi.jsonl", json.dumps(XCOPA), "its name may tell it or vi; expected one language; say it: xcopa:LANGUAGE"),
        ("a.jsonl", json.dumps(XCOPA), "its name tells no language; expected one of et, ht, .*; say it: xcopa:LANGUAGE"),
        ("a.sw.jsonl", json.dumps(XCOPA | {"question": "why"}), "line 1: field question is 'why'; expected cause or effect"),
    ],
)
def test_a_broken_file_is_named_with_its_place(tmp_path, name, text, said):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=f"^{path}: .*{said}") as raised:
        read_items(path)
    assert "\n" not in str(raised.value)


def test_an_unknown_form_is_refused(tmp_path):
    path = write(tmp_path, "a.jsonl", XCOPA)
    with pytest.raises(UserError, match="form 'copa': unknown; expected one of minimal_pairs, blimp, xcopa"):
        read_items(path, form="copa")
    with pytest.raises(UserError, match="language 'de'; expected one of et, ht"):
        read_items(path, form="xcopa:de")
    assert read_items(path, form="xcopa:sw")[1][0].context.endswith(" kwa sababu")


def test_examples_stand_before_every_question_but_their_own():
    items = [Item(f"Q{number}:", ("a", "b"), (number % 2,)) for number in range(4)]
    assert prompts(items) == ["Q0:", "Q1:", "Q2:", "Q3:"]
    first = prompts(items, 2)
    assert first[0] == "Q1: b\n\nQ2: a\n\nQ0:" and first[3] == "Q0: a\n\nQ1: b\n\nQ3:"
    assert prompts(items[:1], 1, pool=[Item("E:", ("x", "y"), (1,))]) == ["E: y\n\nQ0:"]
    with pytest.raises(UserError, match="shots 4: there are 3 examples; expected as many"):
        prompts(items, 4)
    with pytest.raises(UserError, match="whole sentences are compared, which take no examples"):
        prompts([Item("", ("a b", "b a"), (0,))], 1)


def test_items_with_and_without_a_context_are_not_mixed_behind_examples(tmp_path):
    lines = [{"context": "q", "choices": ["a", "b"], "answer": 0}, {"choices": ["c", "d"], "answer": 0}]
    path = write(tmp_path, "a.jsonl", *lines, lines[0] | {"context": "r"})
    _, items = read_items(path)
    assert prompts(items) == ["q", "", "r"]
    for some, pool in ((items, None), (items[:1], items), (items[1:], items[:1])):
        with pytest.raises(UserError, match=f"^{path}: line 2: has no context, and others have; expected one for every item"):
            prompts(some, 1, pool)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    return LoadedModel.open(save(tmp_path_factory.mktemp("gpt2"), "gpt2", 256))


def test_probabilities_of_right_answers_as_lm_eval_weighs_them(gpt2, tmp_path):
    theirs = utilities("okapi/truthfulqa_multilingual")
    record = TRUTHFULQA | {"question": "Q?"}
    path = write(
        tmp_path, "a.json", record, record | {"mc2_targets_choices": ["Hunde.", "Füchse."], "mc2_targets_labels": [0, 1]}
    )
    # The whole prompt has more tokens than the tiny model reads, and is cut.
    metrics, items = score_choices(gpt2, path, form="truthfulqa_mc2")
    # lm-eval's task of files would report another score under its name.
    with pytest.raises(UserError, match="truthfulqa_mc2 scores the probability of all right choices, which lm-eval's"):
        files.choices(str(path), form="truthfulqa_mc2")
    docs = [{"mc2_targets": {"labels": labels}} for labels in ([1, 1, 0], [0, 1])]
    rows = [row[~np.isnan(row)] for row in items["log_likelihood"]]
    expected = [
        theirs.process_results_mc2(doc, [(value, False) for value in row])["acc"] for doc, row in zip(docs, rows, strict=True)
    ]
    np.testing.assert_allclose(items["acc"], expected, rtol=1e-6)
    assert [len(row) for row in rows] == [3, 2]
    assert metrics["acc"] == pytest.approx(np.mean(expected)) and "acc_norm" not in metrics


def test_phenomena_are_scored_apart(gpt2, tmp_path):
    sentences = ["the dog jumps", "the dogs jump", "jumps dog the", "a fox", "fox a", "der Hund schläft"]
    pairs = list(itertools.permutations(sentences, 2))
    path = tmp_path / "a.tsv"
    rows = [f"{good}\t{bad}\t{'AB'[number % 3 == 0]}\n" for number, (good, bad) in enumerate(pairs)]
    path.write_text("sen\twrong_sen\tphenomenon\n" + "".join(rows), encoding="utf-8")
    metrics, items = score_choices(gpt2, path)
    # Each pair stands there in both orders.
    assert metrics["items"] == 30 and metrics["acc"] == metrics["acc_norm"] == 0.5
    assert {name: group["items"] for name, group in metrics["phenomena"].items()} == {"A": 20, "B": 10}
    for name, group in metrics["phenomena"].items():
        chosen = items["choice"][items["phenomenon"] == name]
        assert group["acc"] == np.mean(chosen == 0)
        assert group["acc_stderr"] == pytest.approx(np.sqrt(group["acc"] * (1 - group["acc"]) / (len(chosen) - 1)))
    # Those that name none are in no group.
    path.write_text("sen\twrong_sen\tphenomenon\n" + rows[0] + rows[1].replace("B\n", "\n").replace("A\n", "\n"))
    assert [group["items"] for group in score_choices(gpt2, path)[0]["phenomena"].values()] == [1]
    characters, sizes = (
        np.array([[len(text.encode(code)) for text in pair] for pair in pairs]) for code in ("latin-1", "utf-8")
    )
    assert (items["acc_norm"] == ((items["log_likelihood"] / characters).argmax(1) == 0)).all()
    assert (items["acc_bytes"] == ((items["log_likelihood"] / sizes).argmax(1) == 0)).all()
    single = score_choices(gpt2, path, limit=1)[0]
    assert single["items"] == 1 and single["acc_stderr"] is None


def test_items_with_several_best_choices_are_counted(gpt2, tmp_path, monkeypatch):
    path = tmp_path / "a.tsv"
    path.write_text("sen\twrong_sen\na b\tb a\nab\tcde\nc\td\n", encoding="utf-8")
    monkeypatch.setattr(
        choice, "encoded_loglikelihoods", lambda *_, **__: (np.array([-1.0, -1.0, -2.0, -3.0, -4.0, -3.0]), None)
    )
    metrics = score_choices(gpt2, path)[0]
    # As lm-eval counts them, the first of the best is chosen.
    assert metrics["acc"] == 2 / 3 and (metrics["acc_ties"], metrics["acc_norm_ties"], metrics["acc_bytes_ties"]) == (1, 2, 2)


def test_examples_come_from_behind_the_limit_too(gpt2, tmp_path):
    lines = [{"context": f"q{i} ", "choices": ["a", "b"], "answer": i % 2} for i in range(6)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    every, items = score_choices(gpt2, tmp_path / "a.jsonl", shots=2)
    few, first = score_choices(gpt2, tmp_path / "a.jsonl", shots=2, limit=2)
    assert (every["items"], few["items"]) == (6, 2)
    np.testing.assert_allclose(first["log_likelihood"], items["log_likelihood"][:2], atol=1e-4)


def test_contexts_that_lost_their_beginning_are_counted(gpt2, tmp_path):
    contexts = ["q ", "q " * gpt2.config.max_length, "r "]
    lines = [{"context": context, "choices": ["ab", "abc"], "answer": 0} for context in contexts]
    path = write(tmp_path, "a.json", *lines)
    assert score_choices(gpt2, path)[0]["cut"] == 1 and "cut" not in score_choices(gpt2, path, limit=1)[0]
    # Behind so many examples the first of them are not read.
    assert score_choices(gpt2, path, shots=2, limit=1)[0]["cut"] == 1


def test_a_masked_model_chooses_between_sentences(tmp_path):
    model = LoadedModel.open(save(tmp_path / "bert", "bert"))
    path = tmp_path / "a.tsv"
    path.write_text("sen\twrong_sen\nthe dog jumps\tdog jumps the\n", encoding="utf-8")
    whole, words = (score_choices(model, path, within_word=flag)[1]["log_likelihood"] for flag in (False, True))
    assert whole.shape == (1, 2) and (whole < 0).all() and (words < 0).all()
    path.write_text(f"sen\twrong_sen\nthe dog\tdog the\n\n{'the dog ' * 100}\tdog\n", encoding="utf-8")
    with pytest.raises(UserError, match=rf"{path}: line 4: the text 'the dog the .*has \d+ tokens"):
        score_choices(model, path)


def test_a_choice_longer_than_the_model_is_named_with_its_place(gpt2, tmp_path):
    path = write(tmp_path, "a.json", *({"context": "a", "choices": ["b", text], "answer": 0} for text in ("c", "c d " * 300)))
    with pytest.raises(UserError, match=rf"{path}: item 2: the text 'c d c .*has \d+ tokens; expected at most the"):
        score_choices(gpt2, path)
