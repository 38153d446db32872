"""Labelled examples from files of every kind, and what is said of a file that is not what it should be."""

import gzip
import json

import pytest

from wechsel_jax.data.examples import Task, find_labels, read_examples
from wechsel_jax.errors import UserError

PAIRS = Task("classification", ("one", "other"), columns=("one", "other", "label"))
TAGS = Task("tagging")
SQUAD = {
    "data": [
        {
            "paragraphs": [
                {
                    "context": "Im Jahr 1799 fand sie ihn.",
                    "qas": [{"id": "q1", "question": "Wann?", "answers": [{"text": "1799", "answer_start": 8}]}],
                }
            ]
        }
    ]
}


def write(tmp_path, name, text):
    place = tmp_path / name
    if name.endswith(".gz"):
        place.write_bytes(gzip.compress(text.encode()))
    else:
        place.write_text(text, encoding="utf-8")
    return place


@pytest.mark.parametrize(
    ("name", "text", "task"),
    [
        ("a.tsv", 'one\tother\tlabel\n"a\tb\tyes\nc\td\tno\n', Task("classification", ("one", "other"))),
        ("a.tsv.gz", '"a\tb\tyes\nc\td\tno \n', PAIRS),
        ("a.csv", 'label,one,other\nyes,"""a",b\n\nno,c,d\n', Task("classification", ("one", "other"))),
        (
            "a.json",
            '{"one": "\\"a", "other": "b", "label": "yes", "more": 3}\n{"one": "c", "other": "d", "label": "no"}\n',
            Task("classification", ("one", "other")),
        ),
    ],
)
def test_pairs_are_the_same_whatever_the_file(tmp_path, name, text, task):
    examples = read_examples([write(tmp_path, name, text)], task)
    assert [(one.texts, one.target) for one in examples] == [(('"a', "b"), "yes"), (("c", "d"), "no")]
    assert find_labels(examples, "classification") == ("no", "yes")
    assert f"{name}: line" in examples[0].place


def test_a_field_may_be_longer_than_the_csv_module_allows(tmp_path):
    long = "a, b " * 30_000
    file = write(tmp_path, "a.csv", f'one,other,label\n"{long}",c,yes\n')
    (example,) = read_examples([file], Task("classification", ("one", "other")))
    assert example.texts == (long, "c")


def test_parquet_and_saved_data_sets_give_the_names_of_labels(tmp_path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["bad", "good"])})
    data = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]}, features=features)
    data.save_to_disk(tmp_path / "saved")
    data.to_parquet(tmp_path / "a.parquet")
    task = Task("classification")
    assert [one.target for one in read_examples([f"datasets:{tmp_path / 'saved'}"], task)] == ["good", "bad"]
    assert [one.target for one in read_examples([tmp_path / "a.parquet"], task)] == ["good", "bad"]
    unlabelled = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [1, -1]}, features=features)
    unlabelled.save_to_disk(tmp_path / "unlabelled")
    assert [one.target for one in read_examples([f"datasets:{tmp_path / 'unlabelled'}"], task)] == ["good"]
    beyond = datasets.Dataset.from_dict({"text": ["a"], "label": [0]}, features=features).data.table.set_column(
        1, "label", [[2]]
    )
    pytest.importorskip("pyarrow.parquet").write_table(beyond, tmp_path / "beyond.parquet")
    with pytest.raises(UserError, match=r"beyond\.parquet: row 1: label is 2; expected a number from 0 to 1, one of the names"):
        read_examples([tmp_path / "beyond.parquet"], task)
    words = datasets.Features(
        {
            "tokens": datasets.Sequence(datasets.Value("string")),
            "tags": datasets.Sequence(datasets.ClassLabel(names=["O", "B-X"])),
        }
    )
    tagged = datasets.Dataset.from_dict({"tokens": [["a", "b"]], "tags": [[1, 0]]}, features=words)
    tagged.save_to_disk(tmp_path / "tagged")
    tagged.to_parquet(tmp_path / "tagged.parquet")
    for file in (f"datasets:{tmp_path / 'tagged'}", tmp_path / "tagged.parquet"):
        (one,) = read_examples([file], Task("tagging", ("tokens",), "tags"))
        assert (one.texts, one.target) == (("a", "b"), ("B-X", "O"))


def test_texts_that_annotators_did_not_agree_on_are_left_out(tmp_path):
    file = write(tmp_path, "a.tsv", "a\tb\tyes\nc\td\t-\ne\tf\tno\n")
    assert [one.target for one in read_examples([file], PAIRS)] == ["yes", "no"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.txt", "-DOCSTART- O\n\nTrả X\nlời B-P\n\n\nja O\n"),
        ("a.tsv", "Trả\tX\nlời\tB-P\n\nja\tO\n\n"),
        (
            "a.conllu",
            "# text = x\n1-2\tTrả lời\t_\t_\t_\t_\t_\t_\t_\t_\n1\tTrả\t_\tX\t_\t_\t0\troot\t_\t_\n"
            "2\tlời\t_\tB-P\t_\t_\t1\tobj\t_\t_\n2.1\tno\t_\tO\t_\t_\t_\t_\t_\t_\n\n1\tja\t_\tO\t_\t_\t0\troot\t_\t_\n",
        ),
    ],
)
def test_words_and_their_labels(tmp_path, name, text):
    examples = read_examples([write(tmp_path, name, text)], TAGS)
    assert [(one.texts, one.target) for one in examples] == [(("Trả", "lời"), ("X", "B-P")), (("ja",), ("O",))]


def test_words_may_hold_spaces_where_columns_have_tabs(tmp_path):
    (one,) = read_examples([write(tmp_path, "a.tsv", "Trả lời\tVERB\n.\tPUNCT\n")], TAGS)
    assert one.texts == ("Trả lời", ".") and one.target == ("VERB", "PUNCT")


def test_a_treebank_has_labels_of_several_kinds(tmp_path):
    file = write(tmp_path, "a.conllu", "1\tDie\tdie\tDET\tART\t_\t2\tdet\t_\t_\n2\tKatzen\tKatze\tNOUN\tNN\t_\t0\troot\t_\t_\n")
    for task, words, labels in (
        (TAGS, ("Die", "Katzen"), ("DET", "NOUN")),
        (Task("tagging", label="xpos"), ("Die", "Katzen"), ("ART", "NN")),
        (Task("tagging", ("lemma",), "deprel"), ("die", "Katze"), ("det", "root")),
        (Task("tagging", ("w",), "l", tuple("abwlefghij")), ("die", "Katze"), ("DET", "NOUN")),
    ):
        (one,) = read_examples([file], task)
        assert one.texts == words and one.target == labels


def test_comments_between_sentences_are_no_words(tmp_path):
    columns = ("text", "b", "c", "label")
    file = write(tmp_path, "a.txt", "# id 12 domain=dev\nDie _ _ O\n# _ _ O\n\n# text = x y\nja _ _ O\n")
    assert [one.texts for one in read_examples([file], Task("tagging", columns=columns))] == [("Die", "#"), ("ja",)]


def test_columns_of_words_have_names(tmp_path):
    """CoNLL 2003 has two columns between words and labels; GermEval numbers its words."""
    file = write(tmp_path, "a.txt", "EU NNP B-NP B-ORG\nrejects VBZ B-VP O\n")
    (one,) = read_examples([file], Task("tagging", columns=("text", "pos", "chunk", "label")))
    assert one.texts == ("EU", "rejects") and one.target == ("B-ORG", "O")
    (one,) = read_examples(
        [write(tmp_path, "a.tsv", "1\tAm 1.\tO\tO\n")], Task("tagging", columns=("n", "text", "label", "in"))
    )
    assert one.texts == ("Am 1.",) and one.target == ("O",)
    # A word with blanks among others: treebanks' numbers.
    (one,) = read_examples([write(tmp_path, "b.txt", "En ADP\n2 001 NUM\n")], TAGS)
    assert one.texts == ("En", "2 001")


def test_questions_without_ids_are_numbered_over_the_whole_file(tmp_path):
    paragraph = json.loads(json.dumps(SQUAD["data"][0]["paragraphs"][0]))
    del paragraph["qas"][0]["id"]
    content = {"data": [{"paragraphs": [paragraph, paragraph]}]}
    found = read_examples([write(tmp_path, "a.json", json.dumps(content))], Task("answers"))
    assert [one.place.rsplit(" ", 1)[1] for one in found] == ["0", "1"]


def test_questions_in_one_line_as_long_as_squad_has_it(tmp_path):
    # train-v1.1.json is one line of 30 MB.
    asked = {"id": "q1", "question": "?", "answers": [{"text": "b", "answer_start": 2}]}
    content = {"data": [{"paragraphs": [{"context": "a b " * (5 << 20), "qas": [asked]}]}]}
    (one,) = read_examples([write(tmp_path, "a.json", json.dumps(content))], Task("answers"))
    assert one.target == (("b", 2),)


@pytest.mark.parametrize(
    ("task", "name", "start"),
    [
        (Task("classification"), "a.tsv", "text\tlabel\n"),
        (Task("classification"), "a.jsonl", "\n"),
        (Task("tagging"), "a.conllu", "\n"),
        (Task("translation", ("source", "target")), "a.txt::a.txt", "a\n"),
    ],
)
def test_no_setting_is_named_where_none_lets_a_longer_line_pass(tmp_path, task, name, start):
    write(tmp_path, name.split("::")[0], start + "x" * ((1 << 24) + 1) + "\n")
    given = "::".join(str(tmp_path / part) for part in name.split("::"))
    with pytest.raises(UserError, match=r"line 2: longer than 16,777,216 bytes; expected shorter lines; break or shorten it$"):
        read_examples([given], task)


def test_questions_of_squad(tmp_path):
    (one,) = read_examples([write(tmp_path, "a.json", json.dumps(SQUAD, indent=2))], Task("answers"))
    assert one.texts == ("Wann?", "Im Jahr 1799 fand sie ihn.") and one.target == (("1799", 8),) and "q1" in one.place


def test_questions_whose_answer_the_text_does_not_tell(tmp_path):
    """As SQuAD 2 has them, and as its data set does."""
    datasets = pytest.importorskip("datasets")
    asked = {"id": "q2", "question": "Wo?", "answers": [], "is_impossible": True, "plausible_answers": [{"text": "Im"}]}
    content = json.loads(json.dumps(SQUAD))
    content["data"][0]["paragraphs"][0]["qas"].append(asked)
    first, second = read_examples([write(tmp_path, "a.json", json.dumps(content))], Task("answers"))
    assert first.target == (("1799", 8),) and second.target == () and second.texts[0] == "Wo?"
    row = {"id": "q2", "question": "Wo?", "context": "Im Jahr", "answers": {"text": [], "answer_start": []}}
    datasets.Dataset.from_list([row]).to_parquet(tmp_path / "a.parquet")
    (one,) = read_examples([tmp_path / "a.parquet"], Task("answers"))
    assert one.target == ()


@pytest.mark.parametrize(
    ("task", "name", "text", "said"),
    [
        (PAIRS, "a.tsv", "a\tb\tyes\nc\td\n", r"a\.tsv: line 2: has 2 columns; expected 3: one, other, label"),
        (PAIRS, "a.tsv", "a\tb\tyes\n \t\tno\n", r"a\.tsv: line 2: one and other are blank; expected text"),
        (PAIRS, "a.tsv", "a\tb\tyes\nc\td\t\n", r"a\.tsv: line 2: label is ''; expected a text or a whole number"),
        (Task("classification"), "a.tsv", "one\tlabel\na\tb\n", r"a\.tsv: line 2: has no column 'text', only 'one', 'label'"),
        (Task("classification"), "a.jsonl", '{"text": "a", "label": 1}\n{"text"\n', r"a\.jsonl: line 2: not JSON"),
        (Task("classification"), "a.jsonl", '{"text": "a", "label": null}\n', r"line 1: label is None"),
        (Task("classification"), "a.jsonl", '{"text": 3, "label": "x"}\n', r"line 1: text is 3; expected text"),
        (Task("classification"), "a.jsonl", "[]\n", r"line 1: holds no JSON object"),
        (Task("classification"), "a.jsonl", '{"text": "\\ud800", "label": 1}\n', r"line 1: holds half a character, \\ud800"),
        (Task("answers"), "a.json", json.dumps(SQUAD).replace("Wann", "\\ud800"), r"a\.json: .*holds half a character"),
        (Task("classification"), "a.tsv", "text\tlabel\tlabel\na\tx\ty\n", r"a\.tsv: line 1: two columns are named 'label'"),
        (Task("classification"), "a.csv", 'text,label\n"a,b\n', r"a\.csv: cannot be read"),
        (Task("classification"), "a.tsv", "text\tlabel\n", r"a\.tsv: holds no example"),
        (TAGS, "a.txt", "Berlin B-LOC\nist\n", r"a\.txt: line 2: has no label"),
        (TAGS, "a.txt", "Berlin\tB-LOC\n\tO\n", r"a\.txt: line 2: has no word"),
        (TAGS, "a.conllu", "1\tja\t_\tO\n", r"a\.conllu: line 1: has 4 columns; expected the 10"),
        (TAGS, "a.txt", "\n\n", r"a\.txt: holds no example"),
        (
            TAGS,
            "a.txt",
            "EU NNP B-NP B-ORG\nrejects VBZ B-VP O\n",
            r"a\.txt: 2 of 2 lines have 3 columns or more; .* task\.columns",
        ),
        (TAGS, "a.txt", "EU NNP O\nrejects VBZ O\nGerman JJ\n", r"a\.txt: 2 of 3 lines have 3 columns or more"),
        (TAGS, "a.tsv", "EU\tO\nrejects\tVBZ\tO\n", r"a\.tsv: line 2: has 3 columns; expected a word and its label; name them"),
        (TAGS, "a.tsv", "text\tlabel\nEU\tO\n", r"a\.tsv: line 1: names the columns; .*; remove the line"),
        (
            PAIRS,
            "a.tsv",
            "\nlabel\tone\tother\nyes\ta\tb\n",
            r"a\.tsv: line 2: names the columns; .* task\.columns names them; remove the line",
        ),
        (PAIRS, "a.csv", 'a,b,yes\n\n"of\ntwo","li\nnes",\n', r"a\.csv: line 3: label is ''"),
        (Task("tagging", label="tag"), "a.conllu", "\n", r"a\.conllu: CoNLL-U has no column 'tag'"),
        (
            Task("tagging", columns=("text", "label", "x")),
            "a.txt",
            "EU O\n",
            r"line 1: has 2 columns; expected the 3 of task\.",
        ),
        (Task("tagging", columns=("word", "label")), "a.txt", "EU O\n", r"task\.columns: has no 'text'"),
        (
            TAGS,
            "a.jsonl",
            '{"text": ["a", "b"], "label": ["O", null]}\n',
            r"line 1: label has None; expected a text or a whole",
        ),
        (Task("classification"), "a.CSV", "text,label\na,\n", r"a\.CSV: line 2: label is ''"),
        (
            Task("classification"),
            "a.jsonl",
            '{"text": "a", "label": 1.5}\n',
            r"label is 1\.5; expected a text or a whole number",
        ),
        (TAGS, "a.jsonl", '{"text": ["a", "b"], "label": ["O", " "]}\n', "line 1: label has ' '; expected a text or a whole"),
        (TAGS, "a.jsonl", '{"text": ["a", 1], "label": ["O", "O"]}\n', "line 1: text has 1; expected a word"),
        (TAGS, "a.jsonl", '{"text": ["a"], "label": ["O", "O"]}\n', r"line 1: text and label are no two lists of one length"),
        (Task("answers"), "a.json", json.dumps(SQUAD).replace('"Wann?"', "null"), r"a\.json: .*None where text should be"),
        (Task("answers"), "a.json", json.dumps(SQUAD).replace(": 8", ": 8.5"), r"a\.json: .*8\.5 where a whole number should"),
        (Task("answers"), "a.json", "[1, 2]", r"a\.json: cannot be read .* expected a file as SQuAD has it"),
        (
            Task("answers"),
            "a.json",
            json.dumps(SQUAD).replace('"answer_start": 8', '"answer_start": 9'),
            r"question q1: the answer '1799' does not stand at character 9",
        ),
        (
            # Of a test set whose answers are held back.
            Task("answers"),
            "a.json",
            json.dumps(SQUAD).replace('"text": "1799", "answer_start": 8', '"text": "", "answer_start": 0'),
            r"question q1: an answer has no text; expected what stands in the context; take a file whose answers are not held",
        ),
        (
            # Python counts it from the end of the text.
            Task("answers"),
            "a.json",
            json.dumps(SQUAD).replace('"answer_start": 8', '"answer_start": -18'),
            r"question q1: the answer '1799' does not stand at character -18",
        ),
        (
            Task("answers"),
            "a.json",
            json.dumps(SQUAD).replace("Wann?", "x").replace('[{"text": "1799", "answer_start": 8}]', "[]"),
            r'has no answer; expected one in the text, or "is_impossible": true \(SQuAD 2\); remove the question',
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path, task, name, text, said):
    with pytest.raises(UserError, match=said) as raised:
        read_examples([write(tmp_path, name, text)], task)
    assert "\n" not in str(raised.value)


def test_real_files(data_directory):
    """Every labelled file of the kinds that the tasks of configs/finetune.py name, counted against their lines."""
    folder = data_directory / "labelled"
    pairs = read_examples([folder / "xnli" / "dev-de.tsv.gz"], Task("classification", ("a", "b"), columns=("a", "b", "label")))
    assert len(pairs) == 2490 and find_labels(pairs, "classification") == ("contradiction", "entailment", "neutral")
    chinese = Task("classification", ("sentence1", "sentence2"))
    assert len(read_examples([folder / "ocnli" / "dev.json.gz"], chinese)) == 2950
    assert len(read_examples([folder / "wikiann" / "dev-de.tsv.gz"], TAGS)) == 10_000
    questions = read_examples([folder / "xquad" / "xquad.zh.json.gz"], Task("answers"))
    assert len(questions) == 1190
    with pytest.raises(UserError, match="line 1: has no label"):
        read_examples([folder / "wikiann" / "test-de.tsv.gz"], TAGS)
