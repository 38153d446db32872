"""Pieces of a model card that are the same whatever it is about: cells, tables, names without folders."""

import re
from collections.abc import Sequence
from pathlib import Path

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def cell(value: object) -> str:
    """A value in a table of Markdown, as code, whatever it holds."""
    text = str(value).replace("|", "\\|").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    fence = "``" if "`" in text else "`"
    return f"{fence} {text} {fence}" if "`" in text else f"{fence}{text}{fence}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> list[str]:
    """Lines of a table; the columns that `numbers` lists are aligned to the right. An empty line follows."""
    rule = "|".join("---:" if i in numbers else "---" for i in range(len(head)))
    return [f"| {' | '.join(head)} |", f"|{rule}|", *(f"| {' | '.join(row)} |" for row in rows), ""]


def public(place: str) -> str:
    """A place by name only, but for a hub id: a card is public, and the folders of whoever made the model are not."""
    return place if HUB_ID.fullmatch(place) and not Path(place).exists() else Path(place).name


def name_of(place: str) -> str:
    """What to call the model or tokenizer at a place."""
    path = Path(place)
    return path.parent.name if path.name == "tokenizer.json" and path.parent.name else path.name or place


def hub_id(place: str) -> str | None:
    """The place itself where it is a model of the hub; None for a directory."""
    return place if HUB_ID.fullmatch(place) and not Path(place).exists() else None
