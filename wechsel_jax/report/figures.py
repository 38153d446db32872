"""The drawings, with matplotlib, for the page, papers and slides alike."""

import contextlib
import io
import logging
import re
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from wechsel_jax.errors import from_extra
from wechsel_jax.report.display import number, plural, printable, shortened
from wechsel_jax.report.palette import INK, LINE, MUTED, ORIGIN, PAGE, hue, is_dashed, marker, variables
from wechsel_jax.report.plots import HeatMap, Histograms, Intervals, Lines, Spreads, Stacks
from wechsel_jax.report.section import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

WRITER = "Written by wechsel-jax"
# In points, 72 an inch. The page scales a drawing to its width.
WIDE, NARROW, SMALL = 720, 344, 400
# More names than this beside the curves need a sample of the line each.
_MOST_PLAIN = 8
# More points than this are drawn as their means, in a band from the lowest to the highest.
_MOST_POINTS = 180
# The same input gives the same bytes: fixed ids, no dates. Text stays text.
_STYLE = {
    "svg.hashsalt": "wechsel-jax", "svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans"], "font.size": 10,
    "text.color": INK["light"], "axes.edgecolor": MUTED["light"], "axes.labelcolor": MUTED["light"],
    "xtick.color": MUTED["light"], "ytick.color": MUTED["light"], "axes.spines.top": False, "axes.spines.right": False,
    "axes.facecolor": "none", "savefig.facecolor": "white", "text.parse_math": False,
    "hatch.color": PAGE["light"], "hatch.linewidth": 1.5, "path.simplify": False,
}  # fmt: skip
# Of scripts that DejaVu lacks, in the order in which they are asked for a character.
_FALLBACK_FONTS = (
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Zen Hei", "Noto Sans Devanagari", "Lohit Devanagari", "Nirmala UI"),
    *("Noto Sans Thai", "Loma", "Noto Sans Bengali", "Noto Sans Tamil", "Noto Sans Ethiopic", "Arial Unicode MS"),
)


def drawn(figure: Figure, width: int) -> "Canvas":
    """Draws a figure.

    Args:
      figure: what to draw.
      width: of the drawing in points: WIDE, NARROW for a telephone, or SMALL.

    Raises:
      UserError: matplotlib is not installed.
    """
    with from_extra("report", "for the drawings"):
        import matplotlib  # noqa: F401
    # Without pyplot, which would choose a backend for the whole process.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    match figure.plot:
        case Lines(series):
            draw, height = _lines, 190 if width == SMALL else max(330, 70 + 17 * len(series))
        case Stacks(bars):
            draw, height = _stacks, 62 + 30 * len(bars)
        case Spreads(rows):
            draw, height = _spreads, 60 + 24 * len(rows)
        case Intervals(rows, panels):
            draw, height = _intervals, 60 + 22 * len(rows)
            width = max(width, 170 + 130 * len(panels))
        case HeatMap(rows, columns):
            draw, height = _heat_map, 60 + 26 * len(rows)
            width = 190 + 100 * len(columns)
        case Histograms(panels):
            columns = 4 if width == WIDE else 2
            draw, height = _histograms, 24 + 118 * -(-len(panels) // columns)
    with _style():
        canvas = Canvas(figsize=(width / 72, height / 72), dpi=72, layout="constrained")
        FigureCanvasAgg(canvas)
        canvas.patch.set_gid("paper")
        match figure.plot:
            case Intervals(_, panels):
                axes = canvas.subplots(1, len(panels), sharey=True, squeeze=False)[0]
            case Histograms(panels):
                axes = canvas.subplots(-(-len(panels) // columns), columns, squeeze=False).ravel()
            case _:
                axes = canvas.add_subplot()
        draw(axes, figure.plot, width)
        # Laid out once, so that the page and the files show the same drawing.
        canvas.draw_without_rendering()
        canvas.set_layout_engine("none")
        return canvas


def encoded(canvas: "Canvas", kind: str) -> bytes:
    """Returns a drawing as a file: "svg", or "png" of 1,600 pixels for a wide one."""
    metadata = {"svg": {"Date": None, "Creator": WRITER}, "png": {"Software": WRITER}}[kind]
    buffer = io.BytesIO()
    with _style(), _installed_fonts(canvas) if kind == "png" else contextlib.nullcontext():
        canvas.savefig(buffer, format=kind, dpi=160, metadata=metadata)
    return buffer.getvalue()


@contextlib.contextmanager
def _installed_fonts(canvas: "Canvas"):
    """Lets the fonts of this machine draw what the usual one lacks, as a browser does: names in Hindi, Thai, Chinese, ..."""
    from matplotlib.font_manager import fontManager
    from matplotlib.text import Text

    # It warns of a font that has no bold, also where no character is taken from it.
    logger = logging.getLogger("matplotlib.font_manager")
    level = logger.level
    logger.setLevel(logging.ERROR)
    found = {font.name for font in fontManager.ttflist}
    families = [*_STYLE["font.sans-serif"], *(name for name in _FALLBACK_FONTS if name in found)]
    texts = canvas.findobj(Text)
    before = [text.get_fontfamily() for text in texts]
    for text in texts:
        text.set_fontfamily(families)
    try:
        yield
    finally:
        logger.setLevel(level)
        for text, family in zip(texts, before, strict=True):
            text.set_fontfamily(family)


@contextlib.contextmanager
def _style():
    import matplotlib

    with warnings.catch_warnings(), matplotlib.rc_context(_STYLE):
        # Of a character that the fonts lack: the page may have others, and a PNG shows a box.
        warnings.filterwarnings("ignore", "Glyph ", UserWarning)
        yield


def inline(canvas: "Canvas", figure: Figure, kind: str) -> str:
    """Returns a drawing as an <svg> element for the page, whose colours it takes; style.css gives it the font.

    Args:
      canvas: the drawing, see `drawn`.
      figure: what it shows: its name makes the ids differ, its words are for readers who do not see it.
      kind: class of the element, and part of its ids.
    """
    root = ElementTree.fromstring(encoded(canvas, "svg"))
    prefix = f"{figure.name}-{kind}"
    names = {colour: f"var(--{name})" for name, colour in variables("light").items()}
    tips: dict[str, list[str]] = {}
    for i, one in enumerate(figure.plot.series if isinstance(figure.plot, Lines) else ()):
        when = ["before training" if step == 0 else f"after {plural(step, 'step')}" for step, _ in one.points]
        told = [f"{figure.plot.value} {figure.plot.told(value)}".strip() for _, value in one.points]
        tips[f"curve-{i}"] = [f"{printable(one.label)}, {at}: {what}" for at, what in zip(when, told, strict=True)]
    for element in root.iter():
        element.tag = element.tag.split("}")[-1]
        for child in [child for child in element if child.tag.endswith(("metadata", "style")) or child.get("id") == "paper"]:
            element.remove(child)
        for tip, use in zip(tips.get(element.get("id"), ()), element.iterfind(".//{*}use"), strict=False):
            ElementTree.SubElement(use, "title").text = tip
        for name, value in [*element.attrib.items()]:
            del element.attrib[name]
            name = name.split("}")[-1]
            if name == "id":
                value = f"{prefix}-{value}"
            elif name == "href":
                value = f"#{prefix}-{value[1:]}"
            elif name == "version" or (element is root and name in ("width", "height")):
                continue
            value = value.replace("url(#", f"url(#{prefix}-")
            value = re.sub(r"#[0-9a-f]{6}\b", lambda colour: names.get(colour[0], colour[0]), value)
            # A hundredth of a point is finer than anybody sees.
            element.set(name, re.sub(r"(\.\d\d)\d+", r"\1", value))
    root.attrib |= {"class": kind, "role": "img", "aria-labelledby": f"{prefix}-title {prefix}-desc"}
    for name, words in (("desc", figure.description), ("title", figure.title)):
        element = ElementTree.Element(name, {"id": f"{prefix}-{name}"})
        element.text = printable(words)
        root.insert(0, element)
    return ElementTree.tostring(root, encoding="unicode")


def thinned(points: Sequence[tuple[int, float]], most: int = _MOST_POINTS) -> list[tuple[float, float, float, float]]:
    """Returns (step, mean, lowest, highest) of at most so many stretches of as many points each."""
    size = max(1, -(-len(points) // most))
    found = []
    for i in range(0, len(points), size):
        steps, values = zip(*points[i : i + size], strict=True)
        found.append((sum(steps) / len(steps), sum(values) / len(values), min(values), max(values)))
    return found


def spread_apart(positions: Sequence[float], gap: float, low: float, high: float) -> np.ndarray:
    """Moves labels just so far that they do not overlap, and stay between `low` and `high`; their order is kept."""
    from scipy.optimize import isotonic_regression

    order = np.argsort(positions, kind="stable")
    needed = gap * np.arange(len(order))
    # Without the room that the labels before it need, a label may be anywhere behind its predecessor.
    free = isotonic_regression(np.asarray(positions)[order] - needed).x
    moved = np.empty(len(order))
    moved[order] = np.clip(free, low, max(low, high - needed[-1])) + needed
    return moved


def _tick(value: float, _: int | None = None) -> str:
    digits, exponent = f"{value:.1e}".split("e")
    return f"{value:,.10g}" if value == 0 or abs(value) >= 1e-2 else f"{digits.removesuffix('.0')}e{int(exponent)}"


def _scales(axes: "Axes", plot: Lines, width: int) -> int:
    """Sets up the axes of values and of steps; returns the last step."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    values = [value for one in plot.series for _, value in (*one.points, *one.dots)]
    last = max(1, *(step for one in plot.series for step, _ in (*one.points, *one.dots)))
    low, high = min(values), max(values)
    edge = max(low, min(high, plot.highest))
    if plot.log and low > 0:
        axes.set_yscale("log")
        room = max(edge / low, 1.5) ** 0.07
        low, high = low / room, edge if edge < high else edge * room
        axes.set_ylim(low, high)
        # The roundest ticks of which there are some; so short a stretch that it has none is nearly linear.
        locators = [LogLocator(subs=subs) for subs in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 5, 7))]
        counts = [sum(low <= tick <= high for tick in locator.tick_values(low, high)) for locator in locators]
        fitting = [locator for locator, count in zip(locators, counts, strict=True) if 3 <= count <= 7]
        axes.yaxis.set_major_locator([*fitting, MaxNLocator(5)][0])
        axes.yaxis.set_minor_locator(NullLocator())
    elif plot.from_zero:
        axes.set_ylim(min(low, 0), high * 1.06 if high > 0 else 1)
        axes.yaxis.set_major_locator(MaxNLocator(4))
    else:
        room = 0.06 * (edge - low or 1)
        axes.set_ylim(low - room, edge if edge < high else edge + room)
        axes.yaxis.set_major_locator(MaxNLocator(7, steps=(1, 2, 5, 10)))
    axes.yaxis.set_major_formatter(FuncFormatter(_tick))
    axes.set_xlim(0, last)
    axes.xaxis.set_major_locator(MaxNLocator(8 if width == WIDE else 4, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(_tick))
    axes.grid(axis="y", color=LINE["light"], linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    if plot.value:
        axes.set_xlabel("training steps")
        scale = f"{plot.value}, log scale" if plot.log else plot.value
        axes.set_title(scale, loc="left", fontsize=10, color=MUTED["light"], pad=18)
    return last


def _under_edge(axes: "Axes", points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """The points, those above the axes at their upper edge."""
    edge = axes.get_ylim()[1]
    return [(step, min(value, edge)) for step, value in points]


def _lines(axes: "Axes", plot: Lines, width: int) -> None:
    small, wide = width == SMALL, width == WIDE
    last = _scales(axes, plot, width)
    many = max(len(one.points) for one in plot.series) * max(1, len(plot.series) / 4) > 40
    for i, one in reversed([*enumerate(plot.series)]):
        look = _look(one.slot, 4 if many else 6.5)
        if small:
            look |= {"linewidth": 1.4, "marker": "o" if len(one.points) == 1 else None, "markersize": 4}
        points = thinned(_under_edge(axes, one.points), _MOST_POINTS if small else len(one.points))
        steps, means, least, most = zip(*points, strict=True)
        if len(points) < len(one.points):
            axes.fill_between(steps, least, most, color=hue(one.slot), alpha=0.18, linewidth=0, gid=f"band-{i}")
        axes.plot(steps, means, gid=f"curve-{i}", clip_on=False, zorder=3, **look)
        if one.dots:
            places = zip(*_under_edge(axes, one.dots), strict=True)
            axes.plot(*places, "o", color=hue(one.slot), markersize=4.5, gid=f"dots-{i}",
                      markeredgecolor=PAGE["light"], clip_on=False, zorder=4)  # fmt: skip
    free = -1.0
    for i, (step, words, slot) in enumerate(plot.switches):
        if not 0 < step <= last:
            continue
        colour = MUTED["light"] if small else hue(slot)
        axes.axvline(step, color=colour, linewidth=1.2, linestyle=(0, (2, 3)), gid=f"switch-{i}")
        # Its words begin at its top, or so much before it that they end with the axes, and are left out where others stand.
        words = shortened(words, 90 if wide else 42)
        length = 5 * len(words) / (0.8 * width)
        start = max(0.0, min(step / last, 1 - length))
        if not small and start > free:
            axes.annotate(words, (start, 1), xycoords="axes fraction", xytext=(4, 3), textcoords="offset points",
                          color=hue(slot), fontsize=9).set_in_layout(False)  # fmt: skip
            free = start + length
    if plot.lead:
        first, end, value, words = plot.lead
        axes.plot((first, end), (value, value), color=INK["light"], linewidth=1.2, linestyle=(0, (1, 3)), gid="lead")
        axes.plot((first,), (value,), "<", color=INK["light"], markersize=6, gid="lead-tip")
        # Its words stand where no curve is near; between many curves there is no such place.
        half = 3.4 * len(words) * last / (0.7 * width)
        if wide and end - first > 2.4 * half:
            nearest, shown = {}, np.log if axes.get_yscale() == "log" else np.float64
            for middle in np.linspace(first + 1.2 * half, end - 1.2 * half, 21):
                span = np.linspace(middle - half, middle + half, 9)
                heights = [np.interp(span, *zip(*one.points, strict=True)) for one in plot.series]
                nearest[middle] = np.abs(shown(np.array(heights)) - shown(value)).min()
            low, high = map(shown, axes.get_ylim())
            if max(nearest.values()) > 0.025 * (high - low):
                axes.text(max(nearest, key=nearest.get), value, words, ha="center", va="center", fontweight="bold", zorder=5,
                          bbox={"facecolor": PAGE["light"], "edgecolor": "none", "pad": 2})  # fmt: skip
    if not small or len(plot.series) > 1:
        _names(axes, plot, width)


def _look(slot: int, size: float) -> dict[str, object]:
    """How a slot looks in matplotlib's words; no two slots look the same without their colour."""
    return {"color": hue(slot), "linestyle": "--" if is_dashed(slot) else "-", "linewidth": 2, "marker": marker(slot),
            "markersize": size, "markeredgecolor": PAGE["light"]}  # fmt: skip


def _names(axes: "Axes", plot: Lines, width: int) -> None:
    """Names at the ends of the curves, as far apart as they are high, in fractions of the axes."""
    named = [one for one in plot.series if one.points]
    curves = [_under_edge(axes, one.points) for one in named]
    ends = [thinned(points)[-1][:2] if width == SMALL else points[-1] for points in curves]
    ends = (axes.transData + axes.transAxes.inverted()).transform(ends)
    # A line of words is about 13 points high.
    line = 13 / (axes.figure.get_figheight() * 72 - (35 if width == SMALL else 85))
    both = width == NARROW and len(named) * 2.2 * line < 1
    gap = min(line * (2.2 if both else 1.15), 0.96 / max(len(named) - 1, 1))
    crowded = width == WIDE and len(named) > _MOST_PLAIN
    places = spread_apart(ends[:, 1], gap, 0.02, 0.98)
    for i, (one, (x, y), place) in enumerate(zip(named, ends, places, strict=True)):
        to = {"transform": axes.transAxes, "clip_on": False}
        if abs(place - y) > line / 2 or x < 0.999:
            axes.plot((x, 1.03 if crowded else 1.012), (y, place), color=MUTED["light"], linewidth=0.8, zorder=1, **to)
        if crowded:
            axes.plot((1.034, 1.054, 1.074), [place] * 3, markevery=[1], gid=f"sample-{i}", **_look(one.slot, 5), **to)
        name = shortened(one.label, 22 if width == WIDE else 13)
        value = plot.told(one.points[-1][1])
        words = f"{name}  {value}" if width == WIDE else f"{name}\n{value}" if both else name
        axes.annotate(words, (1.076 if crowded else 1, place), xycoords="axes fraction", xytext=(9, 0),
                      textcoords="offset points", color=hue(one.slot), va="center", fontweight="bold", gid=f"name-{i}",
                      annotation_clip=False)  # fmt: skip


def _stacks(axes: "Axes", plot: Stacks, width: int) -> None:
    left = [0.0] * len(plot.bars)
    for how, colour in ORIGIN["light"].items():
        # What is there at all is at least visible.
        sizes = [max(0.4 * (counts[how] > 0), 100 * counts[how] / max(1, sum(counts.values()))) for _, counts in plot.bars]
        axes.barh(range(len(plot.bars)), sizes, left=left, color=colour, label=how, height=0.62, linewidth=0,
                  hatch="///" if how == "random" else None)  # fmt: skip
        left = [start + size for start, size in zip(left, sizes, strict=True)]
    axes.set_yticks(range(len(plot.bars)), [shortened(label, 22 if width == WIDE else 13) for label, _ in plot.bars])
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("percent of the tokens")
    axes.legend(ncols=3, frameon=False, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0)


def _intervals(axes: Sequence["Axes"], plot: Intervals, width: int) -> None:
    for one, (heading, values) in zip(axes, plot.panels, strict=True):
        for i, found in enumerate(values):
            if found is not None:
                value, low, high = found
                one.errorbar(
                    value, i, xerr=[[max(0.0, value - low)], [max(0.0, high - value)]], fmt="o", color=hue(0), capsize=2
                )
        # A value is compared with the first row's.
        if values[0] is not None:
            one.axvline(values[0][0], color=LINE["light"], linewidth=1, zorder=0)
        one.set_title(_lined(heading), fontsize=10, loc="left")
        one.tick_params(axis="y", length=0)
    axes[0].set_yticks(range(len(plot.rows)), [shortened(label, 24) for label in plot.rows])
    axes[0].set_ylim(len(plot.rows) - 0.5, -0.5)


def _lined(heading: str) -> str:
    """A heading of several lines as characters that all show, and that any XML can hold."""
    return "\n".join(map(printable, heading.split("\n")))


def _heat_map(axes: "Axes", plot: HeatMap, width: int) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    shades = [[np.nan if cell is None else cell[1] for cell in row] for row in plot.cells]
    # From the page to the first hue: the order shows without colours, too.
    colours = LinearSegmentedColormap.from_list("scores", [PAGE["light"], hue(0)])
    axes.imshow(shades, cmap=colours, vmin=0, vmax=1, aspect="auto")
    for place, row in enumerate(plot.cells):
        for column, cell in enumerate(row):
            if cell is not None:
                axes.text(
                    column, place, cell[0], ha="center", va="center", color=PAGE["light"] if cell[1] > 0.5 else INK["light"]
                )
    for column in range(plot.together, len(plot.columns), plot.together) if plot.together else ():
        axes.axvline(column - 0.5, color="white", linewidth=8)
    axes.set_yticks(range(len(plot.rows)), [shortened(label, 24) for label in plot.rows])
    axes.set_xticks(range(len(plot.columns)), [*map(_lined, plot.columns)])
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _histograms(axes: Sequence["Axes"], plot: Histograms, width: int) -> None:
    from matplotlib.ticker import FuncFormatter

    for one in axes[len(plot.panels) :]:
        one.set_visible(False)
    for i, (one, (heading, (low, high), counts, band)) in enumerate(zip(axes, plot.panels, strict=False)):
        edges = np.linspace(low, high, len(counts) + 1)
        # A band much narrower than the axis would not show.
        one.axvspan(-max(band, (high - low) / 150), max(band, (high - low) / 150), color=LINE["light"], linewidth=0, zorder=0)
        one.stairs(counts, edges, fill=True, color=hue(0), alpha=0.75, gid=f"bins-{i}")
        one.set_xlim(low, high)
        one.set_xticks([low, high])
        one.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value, 2)))
        for label, side in zip(one.get_xticklabels(), ("left", "right"), strict=True):
            label.set_horizontalalignment(side)
        one.set_yticks([])
        one.spines["left"].set_visible(False)
        one.set_title(shortened(heading, 26 if width == WIDE else 22), fontsize=9, loc="left")


def _spreads(axes: "Axes", plot: Spreads, width: int) -> None:
    for i, (_, slot, mean, deviation) in enumerate(plot.rows):
        colour = MUTED["light"] if slot is None else hue(slot)
        axes.errorbar(mean, i, xerr=deviation, fmt="o", color=colour, linewidth=2, capsize=3)
    axes.set_yticks(range(len(plot.rows)), [shortened(label, 30 if width == WIDE else 16) for label, *_ in plot.rows])
    axes.set_ylim(len(plot.rows) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel("length of an embedding: mean and standard deviation")
