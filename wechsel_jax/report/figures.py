"""The plots as PNG and SVG files, for papers and slides, drawn with matplotlib."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from wechsel_jax.errors import UserError
from wechsel_jax.report.axes import linear, logarithmic, spread_apart, tick_label
from wechsel_jax.report.display import number
from wechsel_jax.report.drawing import phase_switches, shortened
from wechsel_jax.report.palette import INK, LINE, MARKERS, MUTED, ORIGIN, hue, is_dashed, marker
from wechsel_jax.report.records import RunRecord
from wechsel_jax.report.transfers import ORIGINS, same_source

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WRITER = "Written by wechsel-jax"
_MARKS = dict(zip(MARKERS, "os^DvX<>", strict=True))
_ORIGIN = ORIGIN["light"]
# More curves than this need a sample of the line beside each name.
_MOST_PLAIN = 8
# The same input gives the same bytes: fixed ids, no dates. Text stays text.
_STYLE = {
    "svg.hashsalt": "wechsel-jax", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 10,
    "text.color": INK["light"], "axes.edgecolor": MUTED["light"], "axes.labelcolor": MUTED["light"],
    "xtick.color": MUTED["light"], "ytick.color": MUTED["light"], "axes.spines.top": False, "axes.spines.right": False,
    "text.parse_math": False,
}  # fmt: skip


def render(runs: Sequence[RunRecord], slots: Sequence[int]) -> dict[str, bytes]:
    """Draws every plot that the runs have data for.

    Args:
      runs: what to draw.
      slots: colour and marker of each, see `palette.slots`.

    Returns:
      File name ("learning-curves.png") -> contents.

    Raises:
      UserError: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise UserError(
            'matplotlib: not installed; expected it for the plots; run `pip install "wechsel-jax[report]"` or leave them out'
        ) from error
    pairs = list(zip(runs, slots, strict=True))
    drawn = [pair for pair in pairs if pair[0].curve]
    counted = [pair for pair in pairs if pair[0].transfer and pair[0].transfer.counts]
    measured = [pair for pair in pairs if pair[0].transfer and pair[0].transfer.norms]
    files: dict[str, bytes] = {}
    with matplotlib.rc_context(_STYLE):
        for name, data, draw in (
            ("learning-curves", drawn, _curves),
            ("token-origins", counted, _origins),
            ("embedding-lengths", measured, _norms),
        ):
            if data:
                figure = draw(data)
                files[f"{name}.svg"] = _encoded(figure, "svg", {"Date": None, "Creator": WRITER})
                files[f"{name}.png"] = _encoded(figure, "png", {"Software": WRITER})
    return files


def _figure(width: float, height: float) -> tuple["Figure", "Axes"]:
    # Without pyplot, which would choose a backend for the whole process.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def _encoded(figure: "Figure", kind: str, metadata: dict[str, str | None]) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=200, metadata=metadata)
    return buffer.getvalue()


def _curves(pairs: Sequence[tuple[RunRecord, int]]) -> "Figure":
    figure, axes = _figure(8, max(4.4, 1.0 + 0.24 * len(pairs)))
    low, high, ticks = logarithmic([value for run, _ in pairs for _, value in run.curve])
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.set_yticks(ticks, [tick_label(tick) for tick in ticks])
    axes.set_yticks([], minor=True)
    axes.grid(axis="y", color=LINE["light"], linewidth=0.8)
    axes.set_axisbelow(True)
    for run, slot in pairs:
        steps, values = zip(*run.curve, strict=True)
        axes.plot(steps, values, color=hue(slot), marker=_MARKS[marker(slot)], markersize=5,
                  linewidth=2, linestyle="--" if is_dashed(slot) else "-", markeredgecolor="white", clip_on=False)  # fmt: skip
    last = max(run.curve[-1][0] for run, _ in pairs)
    axes.set_xlim(0, max(last, 1))
    colour_of = {run.label: hue(slot) for run, slot in pairs}
    for step, switching in phase_switches([run for run, _ in pairs]).items():
        if step > last:
            continue
        colour = colour_of[switching[0][0].label]
        axes.axvline(step, color=colour, linewidth=1, linestyle=(0, (2, 3)))
        text = f"{', '.join(run.label for run, _ in switching)}: {switching[0][1]} from step {step:,}"
        axes.annotate(text, (step, 1), xycoords=("data", "axes fraction"), xytext=(4, 4), textcoords="offset points",
                      color=colour, fontsize=9)  # fmt: skip
    _label_ends(axes, pairs)
    axes.set_xlabel("training steps")
    axes.set_ylabel("perplexity on held-out text")
    return figure


def _label_ends(axes: "Axes", pairs: Sequence[tuple[RunRecord, int]]) -> None:
    """Names at the ends of the curves, as far apart as their lines are high, in fractions of the axes."""
    transform = axes.transData + axes.transAxes.inverted()
    heights = [transform.transform(run.curve[-1])[1] for run, _ in pairs]
    gap = min(0.062, 0.96 / max(len(pairs) - 1, 1))
    for (run, slot), place in zip(pairs, spread_apart(heights, gap, 0.02, 0.98), strict=True):
        if len(pairs) > _MOST_PLAIN:
            axes.plot((1.012, 1.033, 1.054), [place] * 3, transform=axes.transAxes, clip_on=False, color=hue(slot),
                      linewidth=2, linestyle="--" if is_dashed(slot) else "-", marker=_MARKS[marker(slot)], markersize=5,
                      markevery=[1], markeredgecolor="white")  # fmt: skip
        axes.annotate(
            f"{shortened(run.label)}  {number(run.curve[-1][1])}", (1, place), xycoords="axes fraction",
            xytext=(30 if len(pairs) > _MOST_PLAIN else 9, 0),
            textcoords="offset points", color=hue(slot), va="center", fontweight="bold", annotation_clip=False,
        )  # fmt: skip


def _origins(pairs: Sequence[tuple[RunRecord, int]]) -> "Figure":
    figure, axes = _figure(8, 1.1 + 0.55 * len(pairs))
    names = [shortened(run.label) for run, _ in pairs]
    left = [0.0] * len(pairs)
    for how in ORIGINS:
        sizes = [run.transfer.counts[how] for run, _ in pairs]
        pattern = {"edgecolor": "white", "hatch": "///"} if how == "random" else {}
        axes.barh(range(len(pairs)), sizes, left=left, color=_ORIGIN[how], label=how, height=0.6, linewidth=0, **pattern)
        left = [start + size for start, size in zip(left, sizes, strict=True)]
    for i, (run, _) in enumerate(pairs):
        told = " · ".join(f"{run.transfer.counts[how]:,}" for how in ORIGINS)
        axes.annotate(told, (left[i], i), xytext=(6, 0), textcoords="offset points", va="center", fontsize=9)
    axes.set_yticks(range(len(pairs)), names)
    axes.invert_yaxis()
    axes.set_xlabel("tokens: copied · mixed · random")
    axes.set_xlim(0, 1.28 * max(*left, 1))
    ticks = linear(max(*left, 1))
    axes.set_xticks(ticks, [tick_label(tick) for tick in ticks])
    axes.legend(ncols=3, frameon=False, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0)
    return figure


def _norms(pairs: Sequence[tuple[RunRecord, int]]) -> "Figure":
    shared = same_source([run.transfer for run, _ in pairs])
    grey = MUTED["light"]
    rows = [("source model", grey, pairs[0][0].transfer.norms["source"])] if shared else []
    for run, slot in pairs:
        if not shared:
            rows.append((f"{shortened(run.label)}, source", grey, run.transfer.norms["source"]))
        rows.append((shortened(run.label), hue(slot), run.transfer.norms["target"]))
    figure, axes = _figure(8, 0.9 + 0.4 * len(rows))
    for i, (_, colour, values) in enumerate(rows):
        axes.errorbar(values["mean"], i, xerr=values["std"], fmt="o", color=colour, linewidth=2, capsize=3)
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel("length of an embedding: mean and standard deviation")
    return figure
