"""Dictionaries of every form, and what is said about lines that are none."""

import gzip
import lzma

import numpy as np
import pytest

from wechsel_jax.errors import UserError
from wechsel_jax.vectors import dictionaries, read_dictionary
from wechsel_jax.vectors.alignment import find_pairs
from wechsel_jax.vectors.word_vectors import PlainVectors


def write(path, text, encoding="utf-8"):
    path.write_bytes(text if isinstance(text, bytes) else text.encode(encoding))
    return path


def test_tabs_spaces_and_line_ends(tmp_path):
    path = write(tmp_path / "d.tsv", "\ufefffree of charge\tumsonst\r\nhouse Haus\n\ndog\u3000犬\n water \t вода \ndog\t犬\n")
    assert read_dictionary(path) == [
        ("free of charge", "umsonst"),
        ("house", "Haus"),
        ("dog", "犬"),
        ("water", "вода"),
        ("dog", "犬"),
    ]


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_compressed(tmp_path, pack):
    assert read_dictionary(write(tmp_path / "d", pack(b"a\tb\n"))) == [("a", "b")]


def test_alternatives_and_headwords_without_translation(tmp_path):
    path = write(tmp_path / "d.tsv", "abudu\tworship, revere; adore\nacha\t\nmkoma\t,\nnchi\t国、邦\n")
    assert read_dictionary(path) == [
        ("abudu", "worship"),
        ("abudu", "revere"),
        ("abudu", "adore"),
        ("mkoma", ","),
        ("nchi", "国"),
        ("nchi", "邦"),
    ]
    assert read_dictionary(path, alternatives=False)[0] == ("abudu", "worship, revere; adore")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a\tb\nc\td\te\n", "line 2: 'c"),
        ("a\tb\nalone\n", "line 2: 'alone'; expected 'source word TAB target word'"),
        ("a\tb\nthree words here\n", "line 2: 'three words here'"),
        ("\tb\n", "line 1"),
        ("a\t\n", "no usable pair"),
        ("\n\n", "no usable pair"),
        ("", "empty"),
        ("a\tb\nü\tb\n".encode("latin-1"), "line 2: not UTF-8"),
        ("a\tb\n".encode("utf-16"), "line 1: the text is UTF-16"),
        (b"a\tb\0\n", "line 1: a binary file"),
        (gzip.compress(b"a\tb\n" * 99, mtime=0)[:-9], "this one is damaged or cut short"),
        (gzip.compress(b"a\tb\n" + b"x" * (1 << 24) + b"y", mtime=0), "line 2: longer than 16,777,216 bytes"),
        (",indonesian,sundanese\n0,abu,abu\n", "line 1: ',indonesian,sundanese'"),
    ],
)
def test_mistakes_are_named(tmp_path, content, message):
    with pytest.raises(UserError, match=rf"d\.tsv: .*{message}"):
        read_dictionary(write(tmp_path / "d.tsv", content))


def test_missing_file(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        read_dictionary(tmp_path / "d.tsv")


def dictd(folder, entries, pack=bytes):
    digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

    def base64(number):
        return (base64(number // 64) if number >= 64 else "") + digits[number % 64]

    text, index = b"", ""
    for word, entry in entries:
        index += f"{word}\t{base64(len(text))}\t{base64(len(entry.encode()))}\n"
        text += entry.encode()
    (folder / "swh.index").write_text(index, encoding="utf-8")
    name = "swh.dict.dz" if pack is gzip.compress else "swh.dict"
    return write(folder / name, pack(text))


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_dictd_with_its_index(tmp_path, pack):
    entries = [
        ("00-database-info", "00-database-info\nThis is no word " * 9),
        ("abiria", "abiria /abiria/ <n>\npassenger\n"),
        ("abudu", "abudu <v>\n1. worship, revere <fig.>\n2. love\n"),
        ("acha", "acha\n"),
    ]
    pairs = read_dictionary(dictd(tmp_path, entries, pack))
    assert pairs == [("abiria", "passenger"), ("abudu", "worship"), ("abudu", "revere"), ("abudu", "love")]


LONG = "a first translation that fills its line, a second that goes on where the"
# As FreeDict's stylesheets of different years lay entries out.
ENTRIES = {
    "numbered senses": (
        "angalia <v>\n\n 1. look at, observe\n 2. be careful <fig.>; watch out\n 3. [mil.] guard /ga:d/\n",
        ["look at", "observe", "be careful", "watch out", "guard"],
    ),
    "indented, with senses within senses": (
        "toa <v>\n  1.   1. remove, take out\n    2. give\n  2. publish\n",
        ["remove", "take out", "give", "publish"],
    ),
    "references and notes": (
        "anza /anza/ <v>\nbegin, initiate\n See also: {anzisha}\n Synonyms: {tangulia}, {shika}\n         Note: old\n",
        ["begin", "initiate"],
    ),
    "a definition in a column of its own": (
        "asubuhi <n> [sg=pl]\n  morning\n period from 6 to 10, in Swahili time\n",
        ["morning"],
    ),
    "an example and its translation": ('kula <v>\n  eat\n    "nala, ninakula" - I eat\n', ["eat"]),
    "remarks within remarks": ("habari <n>\nnews(in greetings (e.g. Habari?, yako?)), message {n}\n", ["news", "message"]),
    "a remark of its own line": ("bwana <n>\n(polite)\nsir\n(to men, mostly)\n", ["sir"]),
    "lines of translations": ("kisu <n>\nknife\nblade, dagger\n", ["knife", "blade", "dagger"]),
    "a line that goes on": (
        f"neno <n>\n{LONG}\n first ends, third\n",
        [*LONG.split(", ")[:-1], "a second that goes on where the first ends", "third"],
    ),
    "a note that goes on": (f"neno <n>\nword\n {LONG}\n first ends, third\n", ["word"]),
    "slashes within words": ("yule <pron>\nthe one/the other, he/she\n", ["the one/the other", "he/she"]),
    "nothing but the headword": ("acha\n", []),
}


@pytest.mark.parametrize("kind", ENTRIES)
def test_a_dictd_entry_is_read_whole(tmp_path, kind):
    entry, expected = ENTRIES[kind]
    word = entry.split()[0]
    pairs = read_dictionary(dictd(tmp_path, [(word, entry), ("mwisho", "mwisho <n>\nend\n")]))
    assert pairs == [(word, target) for target in expected] + [("mwisho", "end")]


def test_dictd_headwords_keep_their_capitals(tmp_path):
    path = dictd(tmp_path, [("aprili", "Aprili <n>\nApril\n"), ("mei", "Mei\nMay\n")])
    index = (tmp_path / "swh.index").read_text().splitlines()
    # With the original spelling in a fourth column, as dictfmt --index-keep-orig writes it.
    (tmp_path / "swh.index").write_text(f"{index[0]}\tAprili\n{index[1]}\n")
    assert read_dictionary(path) == [("Aprili", "April"), ("Mei", "May")]


def test_dictd_mistakes(tmp_path):
    path = dictd(tmp_path, [("a", "a\nb\n")])
    (tmp_path / "swh.index").write_text("a\tA\tz\n")
    with pytest.raises(UserError, match=r"swh\.index: line 1: points beyond the 4 bytes"):
        read_dictionary(path)
    (tmp_path / "swh.index").write_text("a\tA\n")
    with pytest.raises(UserError, match=r"swh\.index: line 1"):
        read_dictionary(path)
    (tmp_path / "swh.index").unlink()
    with pytest.raises(UserError, match=r"swh\.index: no such file"):
        read_dictionary(path)


def test_real_dictionaries(data_directory):
    wiktionary = data_directory / "dict" / "wechsel_wiktionary"
    assert len(read_dictionary(wiktionary / "german.tsv", alternatives=False)) == 60_708
    assert len(read_dictionary(data_directory / "dict" / "muse" / "en-de.tsv.gz", alternatives=False)) == 101_931
    swahili = read_dictionary(data_directory / "dict" / "freedict_swh-eng.tsv")
    assert ("abudu", "revere") in swahili
    for path in sorted(wiktionary.iterdir()):
        assert len(read_dictionary(path)) > 700


def test_a_dictionary_has_its_bounds(tmp_path, monkeypatch):
    monkeypatch.setattr(dictionaries, "_MOST_BYTES", 1000)
    (tmp_path / "few.tsv").write_text("a\tb\n" * 5)
    assert len(read_dictionary(tmp_path / "few.tsv")) == 5
    for name, text in (("many.tsv", "a\tb\n" * 9), ("long.tsv", f"a\t{'b' * 900}\n")):
        (tmp_path / name).write_text(text)
        with pytest.raises(UserError, match=rf"{name}: more than \d pairs; expected a dictionary of words"):
            read_dictionary(tmp_path / name)


@pytest.mark.parametrize(("weighting", "capital"), [("unique", "Don't"), ("wechsel", "Don'T")])
def test_a_capital_changes_the_first_letter_only_but_for_parity(weighting, capital):
    words = ("don't", "Don't", "Don'T")
    vectors = PlainVectors(words, np.eye(3, dtype=np.float32))
    pairs, _ = find_pairs(vectors, vectors, [("don't", "don't")], weighting)
    assert {words[i] for i in pairs.source} == {"don't", capital}
