"""Text in Markdown: what others wrote stays text, in sentences, in code, in tables and in front matter.

Tokens, names, settings and notes come from whoever made a model, its tokenizer or its record. Into a card they go through
`inline`, `code` or `front_matter` alone, and into its Python only where they are names (`is_name`): else they could be
headings, HTML, links, or lines of the example that readers copy.
"""

import keyword
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HUB_ID = re.compile(r"(?!.*(?:--|\.\.))[a-z0-9][\w.-]{0,95}/[a-z0-9][\w.-]{0,95}(?<!\.git)(?<![.-])", re.ASCII | re.IGNORECASE)
_LONGEST = 1000
# An underscore within a word is no markup.
_MARKUP = re.compile(r"[\\`*\[\]|~#$]|(?<![^\W_])_|_(?![^\W_])")
_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
# Some renderers make links and mentions of these however they are escaped, but not in code.
_LINK = re.compile(r"://|www\.|@|mailto:", re.IGNORECASE)
# A line that begins like this may begin a list, a rule or the underline of a heading.
_BLOCK = re.compile(r"[-+=:]|\d+[.)](?= |$)")


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


def table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> list[str]:
    """Lines of a table of Markdown cells; the columns that `numbers` lists are aligned to the right. An empty line follows."""
    rule = "|".join("---:" if i in numbers else "---" for i in range(len(head)))
    return [f"| {' | '.join(head)} |", f"|{rule}|", *(f"| {' | '.join(row)} |" for row in rows), ""]


def front_matter(values: Mapping[str, Any]) -> str:
    """Lines of YAML, each value a JSON-ready one; fields that are empty are left out."""
    import yaml

    filled = {name: value for name, value in values.items() if value}
    return yaml.safe_dump(filled, sort_keys=False, allow_unicode=True, width=10**6) if filled else ""


def is_name(value: object) -> bool:
    """Whether a value can stand in Python as the name of a class and as nothing else."""
    return isinstance(value, str) and value.isascii() and value.isidentifier() and not keyword.iskeyword(value)


def public(place: str) -> str:
    """A place by name only, but for a hub id: a card is public, and the folders of whoever made the model are not."""
    return hub_id(place) or Path(place).name.strip() or place


def name_of(place: str) -> str:
    """What to call the model or tokenizer at a place."""
    path = Path(place)
    return path.parent.name if path.name == "tokenizer.json" and path.parent.name else path.name or place


def hub_id(place: str) -> str | None:
    """The place itself where it is a model of the hub; None for a directory."""
    return place if HUB_ID.fullmatch(place) and not Path(place).exists() else None


def _printable(text: str) -> str:
    text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
