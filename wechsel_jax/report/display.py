"""Numbers and tokens as a person reads them."""

import math
import unicodedata

from wechsel_jax.tokens import BYTE_VALUES

NO_VALUE = "–"
# They shape Persian and Indic words and belong to them.
JOINERS = "\u200c\u200d"
_MARKS = "Ġ▁"
_BLANKS = {"Ġ": " ", "Ċ": "\n", "ĉ": "\t", "č": "\r"}
_VISIBLE = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍", "\u00a0": "⍽", "\u3000": "□"}


def number(value: float | None, digits: int = 3) -> str:
    """Formats a number with at least `digits` significant digits, no exponent, thousands set apart by commas."""
    if value is None:
        return NO_VALUE
    if not math.isfinite(value):
        return "∞"
    if value == 0 or abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}" if abs(value) < 1e15 else f"{value:.2e}"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    text = f"{value:.{min(decimals, 8)}f}"
    return text if abs(value) < 1 else f"{float(text):,.{max(0, digits - 1 - math.floor(math.log10(abs(float(text)))))}f}"


def percent(share: float) -> str:
    """Formats a share as a whole percentage; what is neither 0 nor 1 never reads as 0 % or 100 %."""
    if 0 < share < 0.01:
        return "under 1 %"
    if 0.99 < share < 1:
        return "over 99 %"
    return f"{100 * share:.0f} %"


def duration(seconds: float) -> str:
    """Formats seconds: 0.42 s, 38 s, 4 min 10 s, 2 h 05 min."""
    if seconds < 60:
        return f"{number(seconds, 2)} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def plural(count: float, noun: str) -> str:
    """ "1 step", "200 steps"."""
    return f"{count:,.0f} {noun}{'' if round(count) == 1 else 's'}"


def shortened(label: str, most: int) -> str:
    """Returns a label for a drawing, of at most so many characters that all show.

    What tells long ones apart is as often at their end as at their start.
    """
    label = printable(label)
    return label if len(label) <= most else f"{label[: most // 2]}…{label[len(label) - (most - 1) // 2 :]}"


def split_token(token: str) -> tuple[bool, str]:
    """Takes a token apart into whether it starts with a space and the rest, byte-level spelling undone where it can be.

    "Ġhaus", "▁haus" and " haus" begin a word. "ĠfÃ¼r" becomes "für"; "Ġfür", which somebody decoded before, too. Bytes that are
    no whole characters stay as they are spelled.
    """
    if token and all(character in _BLANKS for character in token):
        token = "".join(_BLANKS[character] for character in token)
    begins = token[:1] == " " or (token[:1] in _MARKS and token != "")
    rest = token[1:] if begins else token
    return begins, rest if "▁" in token else _undo_byte_level(rest)


def shown(token: str) -> str:
    """Returns a token as characters that all show, "␣haus"."""
    begins, rest = split_token(token)
    return ("␣" if begins else "") + visible(rest)


def visible(text: str) -> str:
    """Replaces what would not show, or would turn the text around it, by something that shows."""
    return "".join(map(_visible, text))


def printable(text: str) -> str:
    """Does the same for a sentence, whose spaces stay."""
    return "".join(character if character == " " else _visible(character) for character in text)


def _visible(character: str) -> str:
    if character in _VISIBLE:
        return _VISIBLE[character]
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    category = unicodedata.category(character)
    if category in ("Cc", "Cs", "Co", "Cn", "Zl", "Zp") or (category == "Cf" and character not in JOINERS):
        return f"⟨{code:04X}⟩"
    return character


def _undo_byte_level(text: str) -> str:
    if text.isascii() or any(character not in BYTE_VALUES for character in text):
        return text
    try:
        decoded = bytes(BYTE_VALUES[character] for character in text).decode()
    except UnicodeDecodeError:
        return text
    # Plain ASCII or control characters come out where the text was no byte-level spelling, e.g. Maltese "orġ".
    misread = decoded.isascii() or any(unicodedata.category(character) == "Cc" for character in decoded)
    return text if misread else decoded
