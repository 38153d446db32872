"""Semantic roles in columns: what is read, the rows that a model sees, and what is said of bad files."""

import gzip

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from wechsel_jax.data.examples import Example, Task, find_labels, read_examples
from wechsel_jax.data.rows import encode_examples
from wechsel_jax.errors import UserError

ROLES = Task("roles")
GOOD = """The   -    (A0*   *
cat   -    *)     *
said  say  (V*)   *
it    -    (A1*   (A1*)
sat   sit  *)     (V*)
#     -    *      *

Not   -
now   -

It    -    (R-A1*)
broke break  (V*
up    -    *)
"""
# As CoNLL 2012 has it: the lemma of every word, its sense where it is a predicate, and a column behind the roles.
ONTONOTES = """#begin document (nw/x/00); part 000
nw/x/00 0 0 Cats NNS (S* - - - - * (ARG0*) -
nw/x/00 0 1 saw VBD * see 01 1 - * (V*) -
nw/x/00 0 2 mice NNS *) mouse - 2 - * (ARG1*) (3)
#end document
"""
NAMES = ("document", "part", "number", "word", "pos", "parse", "lemma", "predicate", "sense", "speaker", "entity")
ONTONOTES_COLUMNS = (*NAMES, "roles", "coreference")


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_each_predicate_is_an_example(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(gzip.compress(GOOD.encode()) if name.endswith(".gz") else GOOD.encode())
    said, sat, broke = read_examples([path], ROLES)
    assert said.texts == sat.texts == ("The", "cat", "said", "it", "sat", "#")
    assert said.place == f"{path}: line 3" and sat.place == f"{path}: line 5"
    assert said.target == (2, ("B-A0", "I-A0", "B-V", "B-A1", "I-A1", "O"))
    assert sat.target == (4, ("O", "O", "O", "B-A1", "B-V", "O"))
    assert broke.target == (1, ("B-R-A1", "B-V", "I-V"))
    assert find_labels([said, sat, broke], "roles") == ("B-A0", "B-A1", "B-R-A1", "B-V", "I-A0", "I-A1", "I-V", "O")


def test_other_columns_are_named(tmp_path):
    (tmp_path / "a.gold_conll").write_text(ONTONOTES)
    (one,) = read_examples([tmp_path / "a.gold_conll"], Task("roles", columns=ONTONOTES_COLUMNS))
    assert one.texts == ("Cats", "saw", "mice") and one.target == (1, ("B-ARG0", "B-V", "B-ARG1"))
    with pytest.raises(UserError, match=r"task.columns: is word, roles; expected word, predicate, roles among them, each once"):
        read_examples([tmp_path / "a.gold_conll"], Task("roles", columns=("word", "roles")))


def test_roles_of_single_words_are_read_too(tmp_path):
    """As CoNLL 2009 has them: fourteen columns, the last with the sense of a predicate, and the roles of heads."""
    rows = (("We", "_", "A0"), ("saw", "see.01", "_"), ("old", "_", "_"), ("mice", "_", "A1"))
    lines = ["\t".join([str(i), word, *"_" * 11, sense, role]) for i, (word, sense, role) in enumerate(rows, 1)]
    (tmp_path / "a.txt").write_text("\n".join(lines) + "\n")
    names = ("id", "word", *(f"column {i}" for i in range(11)), "predicate", "roles")
    (one,) = read_examples([tmp_path / "a.txt"], Task("roles", columns=names))
    assert one.target == (1, ("A0", "O", "O", "A1"))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("*)     *\nsaid", "*      *\nsaid", "line 3: column 3: a role begins in A0 of line 1; expected one to end before"),
        ("sit  *)", "sit  *", "line 4: column 3: A1 begins and never ends"),
        ("(R-A1*)", "*)", r"line 11: column 3: a role ends, and none has begun"),
        ("(A1*)\n", "(A1*))\n", r"line 4: its role is '\(A1\*\)\)'; expected \(ROLE\*"),
        ("(A1*)\n", "A1\n", "line 4: its role is 'A1'"),
        ("sat   sit", "sat   -", "line 1: the sentence has 1 predicates and 2 columns of roles; expected a column for each"),
        ("cat   -  ", "cat   x  ", "line 1: the sentence has 3 predicates and 2 columns of roles"),
        ("now   -\n", "now   -  *\n", "line 9: has 3 columns; expected 2, as the line before"),
        ("Not   -\nnow   -\n", "Not\nnow\n", "line 8: has 1 columns; expected at least 2: word, predicate, roles"),
        ("cat   -    *)     *\nsaid  say", "cat   cat    *)     *\nsaid  -", "line 2: is predicate 1 of the sentence, and V"),
    ],
)
def test_mistakes_are_named_by_file_and_line(tmp_path, old, new, said):
    assert GOOD.count(old) == 1
    (tmp_path / "a.txt").write_text(GOOD.replace(old, new))
    with pytest.raises(UserError, match=rf"a\.txt: {said}"):
        read_examples([tmp_path / "a.txt"], ROLES)


def test_a_file_without_a_predicate_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("Not   -\nnow   -\n")
    with pytest.raises(UserError, match=r"a\.txt: holds no example"):
        read_examples([tmp_path / "a.txt"], ROLES)


@pytest.fixture(scope="module")
def bert():
    """Tokens of one or two letters, between those of BERT."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefgh", *(f"##{letter}" for letter in "abcdefgh")]
    backend = Tokenizer(models.WordPiece({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return PreTrainedTokenizerFast(tokenizer_object=backend, cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]")


def encoded(bert, words, predicate, labels, length=32, known=("A", "B", "O")):
    example = Example("a.txt: line 1", tuple(words), (predicate, tuple(labels)))
    rows = encode_examples([example], bert, form="roles", labels=known, length=length, pad_id=0, segments=True)
    return rows, rows.padded(np.array([0]), length)


def test_the_predicate_stands_behind_the_sentence_and_is_marked_in_it(bert):
    rows, batch = encoded(bert, ["a", "bc", "d", "bc"], 3, ["A", "B", "O", "B"])
    expected = bert("a bc d bc", "bc", return_token_type_ids=True)
    assert batch["tokens"][0, batch["mask"][0]].tolist() == expected.input_ids
    # [CLS] a b ##c d b ##c [SEP] b ##c [SEP]: the second "bc" is asked about.
    assert batch["types"][0, :11].tolist() == [0, 0, 0, 0, 0, 1, 1, 0, 1, 1, 1]
    assert np.array(expected.token_type_ids)[[7, 8, 9, 10]].tolist() == [0, 1, 1, 1]
    assert batch["weights"][0].nonzero()[0].tolist() == [1, 2, 4, 5]
    assert batch["labels"][0, [1, 2, 4, 5]].tolist() == [0, 1, 2, 1] and rows.cut == 0


def test_without_types_the_predicate_stands_between_separators(bert):
    example = Example("a.txt: line 1", ("a", "bc", "d", "bc"), (3, ("A", "B", "O", "B")))
    rows = encode_examples([example], bert, form="roles", labels=("A", "B", "O"), length=32, pad_id=0)
    batch = rows.padded(np.array([0]), 32)
    expected = bert(["a", "bc", "d", "[SEP]", "bc", "[SEP]"], ["bc"], is_split_into_words=True)
    assert batch["tokens"][0, batch["mask"][0]].tolist() == expected.input_ids and "types" not in batch
    assert rows.marks[:14].tolist() == [-1, 0, 1, -1, 2, -1, 3, -1, -1, -1, -1, -1, -1]
    assert batch["labels"][0, [1, 2, 4, 6]].tolist() == [0, 1, 2, 1] and batch["weights"].sum() == 4


def test_a_role_that_is_none_of_the_labels_is_not_learned(bert):
    _, batch = encoded(bert, ["a", "b"], 0, ["B", "NEW"])
    assert batch["weights"][0].nonzero()[0].tolist() == [1]


def test_of_a_long_sentence_the_words_around_the_predicate_are_kept(bert):
    words, labels = list("abcdefgh" * 3), ["A", "B", "O"] * 8
    for predicate, first in ((0, 0), (12, 9), (23, 18)):
        rows, batch = encoded(bert, words, predicate, labels, length=10)
        # Ten less [CLS], two [SEP] and the predicate.
        assert rows.cut == 1 and bert.convert_ids_to_tokens(batch["tokens"][0, 1:7]) == words[first : first + 6]
        assert rows.marks[1:7].tolist() == list(range(first, first + 6))
        assert batch["types"][0].tolist() == [0, *(int(place == predicate) for place in range(first, first + 6)), 0, 1, 1]
        assert [rows.labels[label] for label in batch["labels"][0, 1:7]] == labels[first : first + 6]
    with pytest.raises(UserError, match=r"a\.txt: line 1: its predicate has 3 tokens, which leave no room"):
        encoded(bert, ["abc"], 0, ["A"], length=6)
