"""Sections as Markdown, and text in it: what others wrote stays text, in sentences, in code and in tables.

Tokens, names, settings and notes come from whoever made a model, its tokenizer or its record. Into a card they go through
`inline` or `code` alone: else they could be headings, HTML or links.
"""

import re
from collections.abc import Sequence

from wechsel_jax.report import section
from wechsel_jax.report.display import JOINERS

_LONGEST = 1000
# An underscore within a word is no markup.
_MARKUP = re.compile(r"[\\`*\[\]|~#$]|(?<![^\W_])_|_(?![^\W_])")
_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
# Some renderers make links and mentions of these however they are escaped, but not in code.
_LINK = re.compile(r"://|www\.|@|mailto:", re.IGNORECASE)
# A line that begins like this may begin a list, a rule or the underline of a heading.
_BLOCK = re.compile(r"[-+=:]|\d+[.)](?= |$)")


def markdown(sections: Sequence[section.Section | section.Block], level: int = 2) -> str:
    """Renders sections, or blocks without a heading, as Markdown: a drawing by its description.

    Args:
      sections: what to render.
      level: of their headings; parts of a section are one level lower.
    """
    return "\n\n".join(filter(None, (_block(block, level) for block in sections)))


def one_line(value: object) -> str:
    """A value as at most 1,000 printable characters in one line, others as escapes; not for Markdown yet."""
    return _printable(" ".join(str(value).split()))


def inline(value: object) -> str:
    """A value as plain text in a paragraph, heading, list or table, whatever it holds."""
    words = one_line(value).split(" ")
    text = " ".join(code(word) if _LINK.search(word) else _MARKUP.sub(r"\\\g<0>", word).translate(_HTML) for word in words)
    return _BLOCK.sub(lambda begin: f"{begin[0][:-1]}\\{begin[0][-1]}", text, count=1) if _BLOCK.match(text) else text


def code(value: object) -> str:
    """A value as code in a paragraph or table, whatever it holds; nothing for an empty one."""
    text = _printable(str(value))
    # Where a table splits at a bar behind an even number of backslashes, renderers disagree.
    text = re.sub(r"(\\*)\|", lambda bar: bar[1] + "\\" * (2 - (len(bar[1]) + 1) % 2) + "|", text)
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    pad = " " if "`" in text or text != text.strip() else ""
    return f"{fence}{pad}{text}{pad}{fence}" if text else ""


def comment(value: str) -> str:
    """A value as a comment, whatever it holds: two dashes in a row might end it.

    >>> comment("from a--->b.json")
    '<!-- from a- - ->b.json -->'
    """
    return f"<!-- {re.sub('-(?=-)', '- ', value)} -->"


def _block(block: section.Block, level: int) -> str:
    match block:
        case section.Section():
            return "\n\n".join([f"{'#' * level} {_line(block.heading)}", *filter(None, [markdown(block.blocks, level + 1)])])
        case section.Table():
            rule = "|".join("---" if i in block.at_left else "---:" for i in range(len(block.head)))
            head, *rows = (f"| {' | '.join(map(_line, row))} |" for row in (block.head, *block.rows))
            return "\n".join([head, f"|{rule}|", *rows])
        case section.Items():
            return "\n".join(f"- {_line(item)}" for item in block.items)
        case section.KeyFigures():
            return "\n".join(f"- **{inline(value)}** {_line(what)}" for value, what in block.items)
        case section.Note():
            return _line(block.text)
        case section.Listing():
            fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", block.text)), default=0))
            return f"{fence}{block.language}\n{block.text}\n{fence}"
        case section.Figure():
            return inline(block.description)
        case section.Panels():
            return "\n".join(f"- {inline(heading)}: {inline(figure.description)}" for heading, _, figure in block.panels)
        case _:
            return _line(block)


def _line(text: section.Text) -> str:
    return "".join(_inline(part, first=i == 0) for i, part in enumerate(section.parts(text)))


def _inline(part: section.Inline, first: bool) -> str:
    match part:
        case section.Token() | section.Code():
            return code(part.text)
        case section.Weight():
            return f"{code(part.token)} ({inline(part.value)})"
        case section.Strong() | section.Best():
            return f"**{inline(part.text)}**" if part.text.strip() else ""
        case section.Bar():
            return ""
        case section.Name():
            return inline(part.text)
        case _:
            text = inline(part)
            # What stands between two parts keeps its spaces.
            before, after = part[:1].isspace() and not first, part[-1:].isspace()
            return f"{' ' * before}{text}{' ' * (after and bool(text))}"


def _printable(text: str) -> str:
    text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
    shown = (one if one.isprintable() or one in JOINERS else one.encode("unicode_escape").decode() for one in text)
    return "".join(shown)
