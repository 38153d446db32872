"""Parallel text of every form, and what is said of text that is none."""

import gzip
import zipfile

import pytest

from wechsel_jax.errors import UserError
from wechsel_jax.text.parallel import language_codes, read_pairs

FIRST, SECOND = ["the house is small", "", "a book and the sea"], ["das Haus ist klein", "", "ein Buch und das Meer"]


@pytest.fixture
def write(tmp_path):
    def written(name: str, lines: list[str]):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
        return str(tmp_path / name)

    return written


def test_every_form_gives_the_same_pairs(write, tmp_path):
    columns = write("en-de.tsv", [f"{one}\t{two}" for one, two in zip(FIRST, SECOND, strict=True)])
    bars = write("bars", [f"{one} ||| {two}" for one, two in zip(FIRST, SECOND, strict=True)])
    one, two = write("t.en", FIRST), write("t.de", SECOND)
    (tmp_path / "t.de.gz").write_bytes(gzip.compress((tmp_path / "t.de").read_bytes()))
    with zipfile.ZipFile(tmp_path / "opus.zip", "w") as archive:
        archive.write(one, "Books.de-en.en")
        archive.write(two, "Books.de-en.de")
        archive.writestr("README", "Books")
    for name in (columns, bars, f"{one}::{two}", f"{one}::{two}.gz", str(tmp_path / "opus.zip")):
        pairs = read_pairs([name], ("en", "de"))
        assert (pairs.first, pairs.second) == ([FIRST[0], FIRST[2]], [SECOND[0], SECOND[2]])
        assert (pairs.lines, pairs.read, pairs.blank, pairs.one_sided) == ([0, 2], 3, 1, 0)
    both = read_pairs([columns, bars], ("en", "de"))
    assert both.lines == [0, 2, 3, 5]


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (["a", "b"], ["x", "y", "z"], r"t\.en: has 2 lines, and \S*t\.de has 3; .*line 3 is the first without one"),
        (["a", "b", "c"], ["x"], r"t\.de: has 1 lines, and \S*t\.en has 3; .*line 2 is the first without one"),
        (["a", "b"], ["x", " "], r"t\.de: line 2: nothing in de, and a sentence in en; .*--drop_empty"),
        (["", ""], ["", ""], r"holds no pair of sentences; expected parallel text"),
    ],
)
def test_sides_that_do_not_fit_are_named(write, first, second, message):
    name = f"{write('t.en', first)}::{write('t.de', second)}"
    with pytest.raises(UserError, match=message) as error:
        read_pairs([name], ("en", "de"), drop_empty=False)
    assert "\n" not in str(error.value)
    # Who has no such flag is not told of it.
    with pytest.raises(UserError) as error:
        read_pairs([name], ("en", "de"))
    assert "--drop_empty" not in str(error.value)


def test_pairs_without_one_side_may_be_left_out(write):
    pairs = read_pairs([write("a.tsv", ["a\tx", "b\t", "\ty", "c\tz"])], ("en", "de"), drop_empty=True)
    assert (pairs.first, pairs.lines, pairs.one_sided) == (["a", "c"], [0, 3], 2)


def test_every_pair_knows_its_file_and_line(write):
    first, second = write("first.tsv", ["a\tb", "", "c\td"]), write("second.tsv", ["", "e\tf"])
    pairs = read_pairs([first, second], ("en", "de"))
    assert [pairs.place(i) for i in range(3)] == [f"{first}: line 1", f"{first}: line 3", f"{second}: line 2"]


def test_a_line_without_two_columns_is_named(write):
    with pytest.raises(UserError, match=r"a\.tsv: line 2: has 3 columns; expected a sentence, a tab and its translation"):
        read_pairs([write("a.tsv", ["a\tx", "b\ty\tz"])], ("en", "de"))
    with pytest.raises(UserError, match=r"a\.tsv: line 1: has 1 columns"):
        read_pairs([write("a.tsv", ["one sentence alone"])], ("en", "de"))


def test_archives_that_do_not_fit_are_named(write, tmp_path):
    with zipfile.ZipFile(tmp_path / "opus.zip", "w") as archive:
        archive.writestr("Books.de-en.en", "a\n" * 50)
        archive.writestr("Books.de-en.de", "x\n" * 50)
    with pytest.raises(UserError, match=r"opus\.zip: has 0 files whose names end in \.fr, of Books\.de-en\.en"):
        read_pairs([str(tmp_path / "opus.zip")], ("en", "fr"))
    damaged = bytearray((tmp_path / "opus.zip").read_bytes())
    damaged[45:50] = b"\xff" * 5
    (tmp_path / "bad.zip").write_bytes(damaged)
    with pytest.raises(UserError, match=r"bad\.zip.*expected"):
        read_pairs([str(tmp_path / "bad.zip")], ("en", "de"))


@pytest.mark.parametrize("code", ["de", "zh", "ar", "hi", "th", "ja", "vi", "sw", "id"])
def test_swapped_languages_are_seen_in_real_text(data_directory, code):
    place = str(data_directory / "parallel" / f"en-{code}.tatoeba2021.tsv.xz")
    assert language_codes((), [place]) == ("en", code)
    assert len(read_pairs([place], ("en", code)).first) > 300
    with pytest.raises(UserError, match=rf"the languages look swapped: .*; expected {code} first"):
        read_pairs([place], (code, "en"))


def test_a_language_with_two_scripts_is_not_swapped(write):
    pairs = write("a.tsv", ["Ovo je moja kuća.\tЭто мой дом.", "Dobar dan svima.\tДобрый день всем."])
    assert read_pairs([pairs], ("sr", "ru")).first == ["Ovo je moja kuća.", "Dobar dan svima."]
    with pytest.raises(UserError, match="the languages look swapped"):
        read_pairs([pairs], ("ru", "en"))


def test_japanese_and_chinese_are_told_apart(write):
    pairs = write("a.tsv", ["これはわたしの家です。\t这是我的房子。", "みなさん、こんにちは。\t大家好。"])
    assert read_pairs([pairs], ("ja", "zh")).second == ["这是我的房子。", "大家好。"]
    with pytest.raises(UserError, match="the languages look swapped"):
        read_pairs([pairs], ("zh", "ja"))


def test_without_codes_each_name_says_its_own(tmp_path, write):
    with zipfile.ZipFile(tmp_path / "en-de.txt.zip", "w") as archive:
        archive.writestr("a.en", "the dog\n")
        archive.writestr("a.de", "der Hund\n")
    pairs = read_pairs([str(tmp_path / "en-de.txt.zip"), write("en-ar.tsv", ["the cat\tالقطة"]), write("b", ["x\ty"])])
    assert pairs.first == ["the dog", "the cat", "x"] and pairs.second == ["der Hund", "القطة", "y"]


def test_bars_at_the_end_of_a_line_stand_beside_nothing(write):
    found = read_pairs([write("a", ["a ||| b", "||| b", "a |||"])], ("en", "de"), drop_empty=True)
    assert (found.first, found.second, found.one_sided) == (["a"], ["b"], 2)


def test_a_side_without_letters_is_in_any_language(write):
    assert read_pairs([write("a.tsv", ["房子\t123"])], ("zh", "en")).second == ["123"]


def test_languages_are_two_codes():
    assert language_codes(("en", "zh"), ["x"]) == ("en", "zh")
    assert language_codes((), ["opus/Books.de-en.txt.zip"]) == ("de", "en")
    # OPUS names both files after the pair in the order of the alphabet: the ends say which is which.
    ends = ("en", "de"), ("de", "en")
    for first, second in ends:
        for end in ("", ".gz"):
            files = "::".join(f"opus/Tatoeba.de-en.{code}{end}" for code in (first, second))
            assert language_codes((), [files]) == (first, second)
    assert language_codes((), ["de-en.a.txt::de-en.b.txt"]) == ("de", "en")
    for given, names in ((("en",), ["x"]), (("en", "en"), ["x"]), ((), ["train.en::train.de"])):
        with pytest.raises(UserError, match=r"--languages"):
            language_codes(given, names)


@pytest.mark.parametrize("kind", ["columns", "beside", "archive"])
def test_the_setting_that_lets_a_longer_line_pass_is_named_where_it_was_given(tmp_path, kind):
    (tmp_path / "a.txt").write_text("a\n" if kind == "beside" else "a\tb\n")
    (tmp_path / "b.txt").write_text("a\n")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for language in ("en", "de"):
            archive.writestr(f"x.{language}", "a\n")
    name = {"columns": "a.txt", "beside": f"a.txt::{tmp_path}/b.txt", "archive": "a.zip"}[kind]
    assert len(read_pairs([f"{tmp_path}/{name}"], ("en", "de")).first) == 1
    with pytest.raises(UserError, match=r"line 1: longer than 0 bytes; .* or raise max_document_bytes"):
        read_pairs([f"{tmp_path}/{name}"], ("en", "de"), longest=0)
