"""Treebanks in CoNLL-U, and what is said of one that is not what it should be."""

import gzip

import pytest

from wechsel_jax.data.examples import Task, find_labels, read_examples
from wechsel_jax.errors import UserError

TREES = Task("parsing")
# French "du" is two words; the second sentence lacks one that is not written.
GOOD = """# sent_id = 1
1\tPrix\tprix\tNOUN\t_\t_\t0\troot\t_\t_
2-3\tdu\t_\t_\t_\t_\t_\t_\t_\t_
2\tde\tde\tADP\t_\t_\t4\tcase\t_\t_
3\tle\tle\tDET\t_\t_\t4\tdet:def\t_\t_
4\tlait entier\tlait\tNOUN\t_\t_\t1\tnmod\t_\tSpaceAfter=No

# text = Léa et Luc
1\tLéa\t_\t_\t_\t_\t0\troot\t_\t_
1.1\tva\t_\t_\t_\t_\t_\t_\t0:root\t_
2\tLuc\t_\t_\t_\t_\t1\torphan\t_\t_
"""


@pytest.mark.parametrize("name", ["a.conllu", "a.conllu.gz", "a.txt"])
def test_words_are_counted_as_universal_dependencies_does(tmp_path, name):
    (tmp_path / name).write_bytes(gzip.compress(GOOD.encode()) if name.endswith(".gz") else GOOD.encode())
    first, second = read_examples([tmp_path / name], TREES)
    assert first.texts == ("Prix", "de", "le", "lait entier") and first.place == f"{tmp_path / name}: line 2"
    assert first.target == ((0, "root"), (4, "case"), (4, "det"), (1, "nmod"))
    assert second.texts == ("Léa", "Luc") and second.target == ((0, "root"), (1, "orphan"))
    assert find_labels([first, second], "parsing") == ("case", "det", "nmod", "orphan", "root")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("\t4\tcase", "\t3\tcase", "line 4: its heads lead into a cycle"),
        ("\t4\tcase\t", "\t2\tcase\t", r"line 4: its heads lead into a cycle"),
        ("\t1\torphan", "\t0\tconj", r"line 11: is the second word with head 0; expected one"),
        ("Léa\t_\t_\t_\t_\t0", "Léa\t_\t_\t_\t_\t2", r"line 9: its heads lead into a cycle"),
        ("\t1\torphan", "\t3\torphan", r"line 11: its head is '3'; expected a word of the sentence, 1 to 2, or the root"),
        ("\t1\torphan", f"\t{5000 * '1'}\torphan", r"line 11: its head is '1+'; expected"),
        ("\t1\torphan", "\t_\torphan", r"line 11: its head is '_'; expected"),
        ("\t1\torphan", "\t-1\torphan", r"line 11: its head is '-1'; expected"),
        ("\t1\torphan\t_", "\t1\torphan", r"line 11: has 9 columns; expected the 10 of CoNLL-U"),
        ("orphan", "_", r"line 11: has no relation; expected one"),
        ("\tLuc", "\t", r"line 11: has no word; expected one"),
        ("2\tLuc", "3\tLuc", r"line 11: its number is '3'; expected 2"),
        ("1\tLéa", "5\tLéa", r"line 9: its number is '5'; expected 1"),
        ("\n\n# text = Léa et Luc\n", "\n", r"line 7: its number is '1'; expected 5: .* an empty line ends a sentence"),
        (GOOD, "# nothing\n\n", r"a\.conllu: holds no example"),
        (GOOD, "Der Hund\n", r"line 1: has 1 columns; expected the 10 of CoNLL-U"),
    ],
)
def test_what_is_no_tree_is_said_with_its_line(tmp_path, old, new, said):
    assert old in GOOD
    # Where "de" hangs on "le", that on "de".
    text = GOOD.replace(old, new).replace("\t4\tdet" if "\t3\tcase" in new else "\0", "\t2\tdet")
    (tmp_path / "a.conllu").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=said) as raised:
        read_examples([tmp_path / "a.conllu"], TREES)
    assert "\n" not in str(raised.value) and "a.conllu" in str(raised.value)


def test_a_table_is_no_treebank(tmp_path):
    (tmp_path / "a.jsonl").write_text("{}\n")
    with pytest.raises(UserError, match=r"a\.jsonl: is no text file; expected a treebank in CoNLL-U"):
        read_examples([tmp_path / "a.jsonl"], TREES)


def test_real_treebanks(data_directory):
    """As many sentences and words as their lines say, of five treebanks."""
    for file in sorted((data_directory / "labelled" / "ud").glob("[FT]*-test.conllu.gz")):
        lines = gzip.decompress(file.read_bytes()).decode().splitlines()
        examples = read_examples([file], TREES)
        assert len(examples) == sum(line.startswith("# sent_id") for line in lines)
        assert sum(len(one.texts) for one in examples) == sum(line.split("\t")[0].isdecimal() for line in lines)
        assert len(find_labels(examples, "parsing")) <= 37
