"""Sections as HTML; the page's colours and layout are in style.css."""

import re
from collections.abc import Callable, Sequence
from html import escape

from wechsel_jax.report import section
from wechsel_jax.report.display import printable, split_token, visible

# Draws a figure as <svg>: for its own width, or small beside others.
Draw = Callable[[section.Figure, bool], str]


def html(blocks: Sequence[section.Section | section.Block], draw: Draw, level: int = 2) -> str:
    """Renders sections, or blocks without a heading.

    Args:
      blocks: what to render.
      draw: returns the drawings of a figure as HTML.
      level: of the headings; a section of level 2 is a <section>, a folded one <details>.
    """
    return "".join(_block(block, draw, level) for block in blocks)


def words(text: section.Text) -> str:
    """Renders a sentence or cell; a number and its sign stay on one line."""
    return re.sub(r"(\d) ([%×])", r"\1&nbsp;\2", "".join(map(_inline, section.parts(text))))


def _block(block: section.Block, draw: Draw, level: int) -> str:
    match block:
        case section.Section() if block.folded:
            return f"<details><summary>{words(block.heading)}</summary>{html(block.blocks, draw, level + 1)}</details>"
        case section.Section():
            body = f"<h{level}>{words(block.heading)}</h{level}>{html(block.blocks, draw, level + 1)}"
            return f"<section>{body}</section>" if level == 2 else body
        case section.Table():
            return _table(block)
        case section.Items():
            return f"<ul>{''.join(f'<li>{words(item)}</li>' for item in block.items)}</ul>"
        case section.Note():
            role = ' role="note"' if block.kind == "warning" else ""
            return f'<p class="{block.kind}"{role}>{words(block.text)}</p>'
        case section.KeyFigures():
            items = (f"<li><b>{words(value)}</b><span>{words(what)}</span></li>" for value, what in block.items)
            return f'<ul class="tiles">{"".join(items)}</ul>'
        case section.Listing():
            return f"<pre>{escape(block.text)}</pre>"
        case section.Figure():
            return f"<figure>{draw(block, False)}</figure>"
        case section.Panels():
            panels = (
                f'<div class="panel"><h3>{escape(heading)}</h3><p>{words(about)}</p>{draw(figure, True)}</div>'
                for heading, about, figure in block.panels
            )
            return f'<div class="panels">{"".join(panels)}</div>'
        case _:
            return f"<p>{words(block)}</p>"


def _table(table: section.Table) -> str:
    kinds = ["", *("text" if i in table.text else "left" if i in table.left else "" for i in range(1, len(table.head)))]
    classes = [f' class="{kind}"' if kind else "" for kind in kinds]
    head = "".join(f'<th scope="col"{kind}>{words(cell)}</th>' for cell, kind in zip(table.head, classes, strict=True))
    rows = []
    for name, *cells in table.rows:
        row = f'<th scope="row">{words(name)}</th>'
        for cell, kind in zip(cells, kinds[1:], strict=True):
            best = next((part for part in section.parts(cell) if isinstance(part, section.Best)), None)
            kind = f"{kind} best s{best.slot}".strip() if best else kind
            row += f'<td class="{kind}">{words(cell)}</td>' if kind else f"<td>{words(cell)}</td>"
        rows.append(f"<tr>{row}</tr>")
    # On a narrow screen a row's name stands over its cells where those are words, and few.
    widths = " ".join(f"minmax(0,{3 if i in table.text else 1}fr)" for i in range(1, len(table.head)))
    stacked = f' class="stacked" style="--columns:{widths}"' if len(table.text) > 1 and len(table.head) <= 5 else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="Table of {escape(table.name)}"><table{stacked}><thead>'
        f"<tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _inline(part: section.Inline) -> str:
    match part:
        case str():
            return escape(part)
        case section.Name():
            # Of any direction, and what turns text around does not leave it.
            return f'<bdi class="run s{part.slot}">{escape(printable(part.text))}</bdi>'
        case section.Token():
            return _token(part.text)
        case section.Code():
            return f"<code>{escape(printable(part.text))}</code>"
        case section.Strong():
            return f'<b class="{part.kind}">{escape(part.text)}</b>' if part.kind else f"<b>{escape(part.text)}</b>"
        case section.Best():
            return f'{escape(part.text)}<span class="hidden"> (lowest)</span>'
        case section.Weight():
            bar = _inline(section.Bar(abs(part.weight), part.kind))
            return f'<span class="source"><span>{_token(part.token)} {escape(part.value)}</span>{bar}</span>'
        case section.Bar():
            share = min(1.0, max(0.0, part.share))
            return f'<span class="bar" aria-hidden="true"><i class="{part.kind}" style="width:{100 * share:.1f}%"></i></span>'


def _token(token: str) -> str:
    begins, rest = split_token(token)
    mark = '<span class="space">␣</span>' if begins else ""
    if rest.startswith("##") and len(rest) > 2:
        mark, rest = '<span class="space">##</span>', rest[2:]
    # Its direction is its own: Arabic beside Latin would turn the numbers around it.
    return f'<bdi class="token">{mark}{escape(visible(rest))}</bdi>'
