import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wechsel_jax.report.display import duration, number, percent, shortened, shown, split_token, visible


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.00412, "0.00412"),
        (0.5, "0.500"),
        (9.999, "10.0"),
        (12.345, "12.3"),
        (99.96, "100"),
        (8587.4, "8,587"),
        (math.inf, "∞"),
        (None, "–"),
    ],
)
def test_number(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.088, "0.088 s"), (38, "38 s"), (250, "4 min 10 s"), (7499, "2 h 04 min"), (3599.8, "1 h 00 min")]
)
def test_duration(seconds, text):
    assert duration(seconds) == text


def test_percent_never_rounds_to_nothing_or_all():
    assert [percent(share) for share in (0, 0.0003, 0.314, 0.9999, 1)] == ["0 %", "under 1 %", "31 %", "over 99 %", "100 %"]


@pytest.mark.parametrize(
    ("token", "begins", "text"),
    [
        ("Ġhaus", True, "haus"),
        ("ĠfÃ¼r", True, "für"),
        ("Ġfür", True, "für"),
        ("ĠStraÃŁe", True, "Straße"),
        ("Ġæ°´", True, "水"),
        ("▁für", True, "für"),
        ("▁ÃŁ", True, "ÃŁ"),
        ("Ã", False, "Ã"),
        ("ĊĊ", False, "\n\n"),
        ("ĠĠ", True, " "),
        ("Ġorġ", True, "orġ"),
        ("##s", False, "##s"),
        (" a", True, "a"),
        ("", False, ""),
    ],
)
def test_tokens_are_decoded_where_they_can_be(token, begins, text):
    assert split_token(token) == (begins, text)


@given(st.text(st.characters(codec="utf-8"), min_size=1))
def test_byte_level_spelling_of_any_text_comes_back(text):
    from tokenizers.pre_tokenizers import ByteLevel

    spelled = "".join(piece for piece, _ in ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text))
    _, rest = split_token(spelled)
    shown = text.removeprefix(" ")
    # Control characters are kept as they are spelled: they would not show.
    controls = any(ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0 for character in shown)
    if not controls and not shown.isascii():
        assert rest == shown


def test_a_token_is_shown_with_its_space():
    assert [shown(token) for token in ("ĠfÃ¼r", "▁haus", "##s", "Ċ")] == ["␣für", "␣haus", "##s", "⏎"]


def test_a_long_label_keeps_both_ends():
    assert shortened("short", 13) == "short"
    assert shortened("group-3-with-a-long-name", 13) == "group-…g-name" and len(shortened("x" * 99, 22)) == 22


def test_characters_that_turn_or_hide_text_are_named():
    assert visible("a\u202eb\u200bc\x00d\u00ade\ud800") == "a⟨202E⟩b⟨200B⟩c␀d⟨00AD⟩e⟨D800⟩"
    assert visible("می\u200cروم") == "می\u200cروم"
