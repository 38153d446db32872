"""One section, three renderers: each tells all of it and lets nothing that it is given become markup."""

import doctest
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from wechsel_jax.report import section as told
from wechsel_jax.report.html import html
from wechsel_jax.report.markdown import markdown
from wechsel_jax.report.terminal import terminal

EVIL = '<script>alert("1")</script>&<b> # - *x* `y` |z| [a](b) \x1b[31m \u202e'


def everything(word: str) -> told.Section:
    """A section with a block of every kind, `word` in every place."""
    cells = (told.Name(word, 3), told.Token(word), told.Code(word), told.Strong(word, "wrong"), told.Best(word, 2))
    cells += (told.Weight(word, 0.5, "0.50"), told.Bar(0.5))
    figure = told.Figure("drawing", word, word, None)
    blocks = (
        (word, " ", told.Name(word, 1)),
        told.Items((word, (told.Strong(word), f" {word}"))),
        told.Note(word),
        told.Note(word, "warning"),
        told.Table(tuple(word for _ in cells), (cells, tuple((word, " and ", cell) for cell in cells)), word),
        told.KeyFigures(((word, word),)),
        told.Listing(word, "python"),
        figure,
        told.Panels(((word, word, figure),)),
        told.Section(word, (word,), folded=True),
        told.Section((told.Name(word, 0), word), (word,)),
    )
    return told.Section(word, blocks)


def drawing(figure: told.Figure, small: bool) -> str:
    return f"<svg class='{'small' if small else 'wide'}'></svg>"


def test_each_renderer_tells_all_of_a_section():
    for text in (terminal([everything("word")]), markdown([everything("word")]), html([everything("word")], drawing)):
        assert len(re.findall("word", text)) >= 40
    page = html([everything("word")], drawing)
    assert page.count("<svg class='wide'>") == 1 and page.count("<svg class='small'>") == 1
    assert '<p class="warning" role="note">word</p>' in page and "<details><summary>word</summary>" in page


def test_wide_characters_and_marks_take_their_columns():
    table = told.Table(("name", "n"), (("日本語", "1"), ("हन्दी", "22"), ("e\u0301", "3")), text=(0,))
    assert terminal([table]).splitlines()[2:] == ["日本語   1", "हन्दी    22", "e\u0301        3"]
    # Thai vowels and tones stand above their letters; joiners take no room.
    table = told.Table(("a", "n"), (("ที่นี่", "1"), ("ab", "2"), ("a\u200cb", "3")), text=(0,))
    assert terminal([table]).splitlines()[2:] == ["ที่นี่  1", "ab  2", "a\u200cb  3"]


def test_a_table_in_each_renderer():
    table = told.Table(
        ("token", "row", "share"),
        (((told.Token("Ġhaus"), "copied", told.Best("12 %", 4))), (told.Token("ab"), "random", "3 %")),
        "rows",
        (0, 1),
    )
    assert terminal([table]).splitlines() == [
        "token  row     share", "---------------------", "␣haus  copied   12 %*", "ab     random    3 %",
    ]  # fmt: skip
    assert (
        markdown([table]) == "| token | row | share |\n|---|---|---:|\n| `Ġhaus` | copied | **12 %** |\n| `ab` | random | 3 % |"
    )
    page = html([table], drawing)
    assert (
        '<td class="best s4">12&nbsp;%<span class="hidden"> (lowest)</span></td>' in page
        and '<td class="text">copied</td>' in page
    )


def test_a_token_keeps_its_direction_to_itself():
    assert html([(told.Token('Ġ<b a="1">&'),)], drawing) == (
        '<p><bdi class="token"><span class="space">␣</span>&lt;b␣a=&quot;1&quot;&gt;&amp;</bdi></p>'
    )
    assert (
        html([(told.Token("▁سلام"), " 0.5")], drawing) == '<p><bdi class="token"><span class="space">␣</span>سلام</bdi> 0.5</p>'
    )
    assert html([(told.Token("##s"),)], drawing) == '<p><bdi class="token"><span class="space">##</span>s</bdi></p>'


def test_a_name_turns_no_text_around_it_and_keeps_its_joiners():
    shown = html([(told.Name("\u202eevil", 1), told.Code("\u202ea"), told.Name("مدل\u200cها", 0))], drawing)
    assert shown == ('<p><bdi class="run s1">⟨202E⟩evil</bdi><code>⟨202E⟩a</code><bdi class="run s0">مدل\u200cها</bdi></p>')
    assert markdown([(told.Name("مدل\u200cها \u202e", 0),)]) == r"مدل‌ها \\u202e"


def test_nothing_becomes_markup():
    section = everything(EVIL)
    page = html([section], drawing)
    assert "<script" not in page and "<b>" not in re.sub(r"<(li|b|/b|/li)[^>]*>", "", page)
    assert "\x1b" not in terminal([section]) and "\u202e" not in terminal([section])
    rendered = MarkdownIt("commonmark").enable("table").render(markdown([section]))
    assert "<script" not in rendered and "<a " not in rendered and "<em>" not in rendered
    assert rendered.count("<h2>") == 1 and rendered.count("<h3>") == 2 and rendered.count("<td") == 14


@given(st.text(st.characters(codec="utf-8"), max_size=30))
def test_a_cell_of_any_text_is_one_cell(text):
    table = told.Table(("a", "b"), ((text, told.Token(text)), (told.Code(text), (text, " ", told.Name(text, 0)))), "x", (0, 1))
    assert len(terminal([table]).split("\n")) == 4
    rendered = MarkdownIt("commonmark").enable("table").render(markdown([table]))
    assert rendered.count("<td>") == 4 and rendered.count("<tr>") == 3
    assert html([table], drawing).count("<td") == 2


def test_sentences_are_joined():
    parts = ["a", told.Name("b", 1), ("c", told.Code("d"))]
    assert told.plain(told.joined(parts, last=" and ")) == "a, b and cd"
    assert told.plain(told.joined(parts[:1])) == "a" and told.joined([]) == ()


@pytest.mark.parametrize("level", [1, 3])
def test_headings_of_parts_are_one_level_lower(level):
    section = told.Section("one", (told.Section("two", ("text",)),))
    assert markdown([section], level) == f"{'#' * level} one\n\n{'#' * (level + 1)} two\n\ntext"


def test_the_examples_of_the_docstrings_run():
    assert doctest.testmod(told).attempted >= 3 and doctest.testmod(told).failed == 0
