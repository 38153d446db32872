"""What a reader sees in a drawing, read from the SVG that the page holds."""

import dataclasses
import itertools
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.text import Text

from tests.records.runs import CURVES, STEPS
from wechsel_jax.report import figures
from wechsel_jax.report.figures import NARROW, SMALL, WIDE, drawn, encoded, inline, spread_apart, thinned
from wechsel_jax.report.palette import SLOTS, variables
from wechsel_jax.report.plots import HeatMap, Histograms, Intervals, Lines, Series, Spreads, Stacks
from wechsel_jax.report.section import Figure

MEASURED = Lines(
    tuple(Series(name, i, tuple(zip(STEPS, values, strict=True))) for i, (name, values) in enumerate(CURVES.items())),
    value="perplexity",
)


def svg(plot, width=WIDE) -> ElementTree.Element:
    figure = Figure("plot", "A title", "A description", plot)
    return ElementTree.fromstring(inline(drawn(figure, width), figure, "wide"))


def part(root: ElementTree.Element, name: str) -> ElementTree.Element:
    return next(element for element in root.iter() if element.get("id") == f"plot-wide-{name}")


def markers(root: ElementTree.Element, series: int, kind: str = "curve") -> np.ndarray:
    """Where the markers of a series are, (points, 2)."""
    return np.array([(float(use.get("x")), float(use.get("y"))) for use in part(root, f"{kind}-{series}").iter("use")])


def path(element: ElementTree.Element) -> np.ndarray:
    """The corners of the first line of an element, (corners, 2)."""
    return np.array(re.findall(r"[ML] (\S+) (\S+)", next(element.iter("path")).get("d")), float)


def texts(root: ElementTree.Element) -> dict[str, tuple[float, float]]:
    """The words of a drawing and where they stand."""
    found = {}
    for text in root.iter("text"):
        place = text.get("x"), text.get("y")
        if None in place:
            place = re.search(r"translate\((\S+) (\S+)\)", text.get("transform")).groups()
        found["".join(text.itertext())] = tuple(map(float, place))
    return found


def test_points_lie_where_their_values_are():
    """A curve's heights are linear in the logarithm of its values, its places in the steps."""
    root = svg(MEASURED)
    for i, values in enumerate(CURVES.values()):
        places = markers(root, i)
        for measured, place in ((STEPS, places[:, 0]), (-np.log(values), places[:, 1])):
            slope, start = np.polyfit(measured, place, 1)
            assert slope > 0 and np.allclose(place, start + slope * np.array(measured), atol=0.02)
        assert np.allclose(path(part(root, f"curve-{i}")), places, atol=0.02)


def test_points_of_a_small_drawing_lie_where_their_values_are():
    values = np.array([1.0, 0.25, 4.0, 2.0])
    points = list(zip(range(0, 40, 10), values, strict=True))
    for log, expected in ((False, values), (True, np.log(values))):
        found = path(part(svg(Lines((Series("a", 0, points),), log), SMALL), "curve-0"))[:, 1]
        slope, start = np.polyfit(expected, found, 1)
        assert slope < 0 and np.allclose(found, start + slope * expected, atol=0.02)


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_bits_are_drawn_linearly_from_near_the_lowest(width):
    bits = {name: np.log2(values) / 4 for name, values in CURVES.items()}
    series = tuple(Series(name, i, tuple(zip(STEPS, values, strict=True))) for i, (name, values) in enumerate(bits.items()))
    far = Series("clp", 3, ((0, 70.0), (100, 2.5), (200, 2.4)))
    lead = (62.0, 200, float(bits["full_rand"][-1]), "3.2 × fewer steps")
    plot = Lines((*series, far), False, "bits per byte", lead=lead, highest=7.0, from_zero=False, decimals=3)
    root = svg(plot, width)
    heights = [markers(root, i)[:, 1] for i in range(4)]
    slope, start = np.polyfit(np.concatenate(list(bits.values())), np.concatenate(heights[:3]), 1)
    assert slope < 0
    for values, found in zip(bits.values(), heights, strict=False):
        assert np.allclose(found, start + slope * values, atol=0.05)
    # Such a start stands at the edge, where 7 would be.
    assert heights[3][0] == pytest.approx(start + slope * 7.0, abs=0.1) and min(map(min, heights)) > 0
    words = texts(root)
    assert ("wechsel  2.052" if width == WIDE else "2.052") in " ".join(words) and "0" in words and "bits per byte" in words
    axis = [float(word) for word, (x, _) in words.items() if x < markers(root, 0)[:, 0].min() and re.fullmatch(r"[\d.]+", word)]
    assert min(axis) == 2 and 3 <= len(axis) <= 7
    # Without it there is room for the words of a head start.
    assert ("3.2 × fewer steps" in texts(svg(dataclasses.replace(plot, series=series), width))) == (width == WIDE)
    titles = [title.text for title in part(root, "curve-3").iter("title")]
    assert titles[0] == "clp, before training: bits per byte 70.000"


def test_a_point_tells_its_value():
    titles = [title.text for title in part(svg(MEASURED), "curve-1").iter("title")]
    assert len(titles) == 9 and titles[0] == "trans_inner, before training: perplexity 8,203"
    assert titles[-1] == "trans_inner, after 200 steps: perplexity 349"


def test_ticks_of_the_measured_run_are_round():
    words = texts(svg(MEASURED))
    assert {"500", "1,000", "2,000", "5,000", "10,000"} <= {*words} and {"0", "50", "100", "200"} <= {*words}
    assert {"wechsel  296", "trans_inner  349", "full_rand  576"} <= {*words}


@pytest.mark.parametrize("width", [WIDE, NARROW, SMALL])
def test_a_start_far_above_all_else_stands_at_the_edge(width):
    """CLP-Transfer with a poor helper starts at 1e87: the other curves keep the heights that they have without it."""
    far = Series("clp", 3, ((0, 1e87), (100, 2000.0), (200, 900.0)))
    level = Series("clp", 3, ((0, 2000.0), (100, 2000.0), (200, 900.0)))
    drawings = [svg(Lines((*MEASURED.series, one), value="perplexity", highest=5e5), width) for one in (far, level)]
    heights = []
    for root in drawings:
        places = [path(part(root, f"curve-{i}"))[:, 1] for i in range(len(MEASURED.series) + 1)]
        assert min(map(min, places)) > 0, "beyond the drawing"
        heights.append(np.ptp(np.concatenate(places[:-1])))
    assert heights[0] > 0.4 * heights[1]
    if width == WIDE:
        titles = [title.text for title in part(drawings[0], "curve-3").iter("title")]
        assert titles[0] == "clp, before training: perplexity 1.00e+87" and len(titles) == 3


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(1.5, 1e6), min_size=1, max_size=5))
def test_a_logarithmic_axis_holds_its_values_and_has_ticks(values):
    root = svg(Lines((Series("a", 0, list(enumerate(values))),), value="perplexity"))
    width, height = map(float, root.get("viewBox").split()[2:])
    places = markers(root, 0)
    assert len(places) == len(values) and np.all(places >= 0) and np.all(places <= (width, height))
    left = places[:, 0].min()
    ticks = [word for word, (x, _) in texts(root).items() if x < left and re.fullmatch(r"[\d,.]+", word)]
    assert 2 <= len(ticks) <= 8


def test_colours_are_those_of_the_page_and_nothing_is_loaded():
    hatched = Stacks((("a", {"copied": 1, "mixed": 2, "random": 3}),))
    for plot in (MEASURED, hatched, Spreads((("source model", None, 1.8, 0.3), ("a", 3, 1.2, 0.2)))):
        text = ElementTree.tostring(svg(plot), encoding="unicode")
        assert not re.search(r"#[0-9a-fA-F]{6}\b|http", text)
        used = set(re.findall(r"var\(--(\w+)\)", text))
        assert used <= set(variables("dark")) and "muted" in used
        ids = re.findall(r'\bid="([^"]+)"', text)
        references = re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text)
        assert len(ids) == len(set(ids)) and {a or b for a, b in references} <= set(ids)
    assert len(set(variables("light").values())) == len(variables("light")), "a colour of two roles has no name of its own"


def test_sixteen_curves_differ_without_their_colour():
    points = [(0, 100.0), (10, 10.0)]
    root = svg(Lines(tuple(Series(f"run {i}", i, points) for i in range(SLOTS)), value="perplexity"))
    looks = []
    for i in range(SLOTS):
        line = part(root, f"curve-{i}")
        shape = next(iter(line.iter("use"))).get("href")
        outline = next(element.get("d") for element in root.iter("path") if f"#{element.get('id')}" == shape)
        style = next(iter(line.iter("path"))).get("style")
        looks.append((re.search(r"var\(--s\d\)", style)[0], outline))
        assert ("stroke-dasharray" in style) == (i >= 8)
    assert len(set(looks)) == SLOTS and len({outline for _, outline in looks}) == 8


@pytest.mark.parametrize(("width", "runs"), [(WIDE, 3), (WIDE, 14), (NARROW, 3), (NARROW, 8), (SMALL, 8)])
def test_names_at_the_ends_of_curves_do_not_overlap(width, runs):
    series = tuple(Series(f"run {i} of many with a name", i, [(0, 50.0), (10, 1.0 + i / 1000)]) for i in range(runs))
    root = svg(Lines(series, value="" if width == SMALL else "perplexity"), width)
    names = sorted(y for word, (_, y) in texts(root).items() if word.startswith("run "))
    assert len(names) == runs and min(b - a for a, b in itertools.pairwise(names)) >= 10
    right = max(x for word, (x, _) in texts(root).items() if word.startswith("run "))
    assert right < float(root.get("viewBox").split()[2])


@given(st.lists(st.floats(0, 400), min_size=1, max_size=8))
def test_labels_do_not_overlap(positions):
    placed = spread_apart(positions, 40, 0, 400)
    ordered = sorted(placed)
    assert all(after - before >= 40 - 1e-6 for before, after in itertools.pairwise(ordered))
    assert ordered[0] >= -1e-6 and ordered[-1] <= 400 + 1e-6
    assert [placed[i] for i in np.argsort(positions, kind="stable")] == ordered


def test_many_points_are_drawn_as_means_in_a_band():
    generator = np.random.default_rng(0)
    points = list(zip(range(100_000), generator.normal(10, 1, 100_000), strict=True))
    parts = np.array(thinned(points))
    assert len(parts) <= 180
    assert np.all(parts[:, 2] <= parts[:, 1]) and np.all(parts[:, 1] <= parts[:, 3])
    assert parts[:, 2].min() == min(value for _, value in points) and parts[:, 3].max() == max(value for _, value in points)
    root = svg(Lines((Series("a", 3, points),)), SMALL)
    line, band = path(part(root, "curve-0")), path(part(root, "band-0"))
    band += [float(next(part(root, "band-0").iter("use")).get(axis)) for axis in "xy"]
    assert len(line) == len(parts) and band[:, 1].min() < line[:, 1].min() and band[:, 1].max() > line[:, 1].max()
    assert len(ElementTree.tostring(root)) < 40_000


@pytest.mark.parametrize("values", [[0.0, 0.0], [5.0, 5.0], [-1.0, 2.0], [1e-9, 2e-9], [3e9, 4e9], [0.0], [300.0, 310.0]])
@pytest.mark.parametrize("log", [False, True])
def test_flat_and_zero_and_negative_values_are_drawn(values, log):
    root = svg(Lines((Series("a", 0, list(enumerate(values))),), log), SMALL)
    text = ElementTree.tostring(root, encoding="unicode")
    assert "nan" not in text and "inf" not in text
    line = part(root, "curve-0")
    places = path(line) if len(values) > 1 else markers(root, 0)
    assert len(places) == len(values) and places.min() >= 0 and places[:, 1].max() <= 190


def test_a_phase_and_a_head_start_are_marked():
    words = ("a: all parameters from step 20", "3.2 × fewer steps")
    plot = Lines(MEASURED.series, value="perplexity", switches=((20, words[0], 1),), lead=(62.0, 200.0, 576.0, words[1]))
    root = svg(plot)
    x = path(part(root, "switch-0"))[:, 0]
    curve = markers(root, 0)
    assert x == pytest.approx(np.interp(20, STEPS, curve[:, 0]), abs=0.02) and {*words} <= {*texts(root)}
    lead = path(part(root, "lead"))
    assert lead[:, 0] == pytest.approx(np.interp([62, 200], STEPS, curve[:, 0]), abs=0.02)
    assert lead[:, 1] == pytest.approx(markers(root, 2)[-1, 1], abs=0.02)


def test_bars_are_shares_and_the_rare_is_visible():
    root = svg(Stacks((("a", {"copied": 3, "mixed": 91, "random": 6}), ("b", {"copied": 1, "mixed": 9999, "random": 0}))))
    widths = []
    for group in root.iter("path"):
        if "var(--copied)" in group.get("style") or "var(--mixed)" in group.get("style"):
            x = [float(x) for x in re.findall(r"[ML] (\S+)", group.get("d"))]
            widths.append(max(x) - min(x))
    copied, rare, mixed = widths[0], widths[1], widths[2]
    assert copied / mixed == pytest.approx(3 / 91, rel=0.01) and 1.5 < rare < copied / 5
    assert "url(#plot-wide-h" in ElementTree.tostring(root, encoding="unicode"), "random is not hatched"


def test_histograms_are_as_high_as_their_counts():
    counts = [1, 4, 9, 2]
    root = svg(Histograms((("one", (-2.0, 6.0), counts, 1.0), ("two", (0.0, 1.0), [5, 5], 0.5))))
    corners = path(part(root, "bins-0"))
    floor = corners[:, 1].max()
    heights = {float(x): floor - corners[corners[:, 0] == x, 1].min() for x in corners[:, 0]}
    # The outline has both sides' heights at an edge: the higher one is seen.
    edges = np.maximum([*counts, 0], [0, *counts])
    np.testing.assert_allclose([heights[x] / max(heights.values()) for x in sorted(heights)], edges / 9, atol=0.01)
    assert {"one", "two", "-2.0", "6.0"} <= {*texts(root)}


def test_characters_that_no_xml_can_hold_are_named():
    label = "a\x00\x1b\ud800<b>$x_1$\u202e"
    plots = (
        Lines((Series(label, 0, [(0, 2.0), (1, 1.0)]),), value="perplexity", switches=((1, label, 0),)),
        Stacks(((label, {"copied": 1, "mixed": 0, "random": 0}),)),
        Spreads(((label, 0, 1.0, 0.1),)),
        Intervals(("a",), ((f"{label}\nscore", ((1.0, 0.9, 1.1),)),)),
        HeatMap(("a",), (f"{label}\nscore",), ((("1", 0.5),),)),
    )
    for plot in plots:
        figure = Figure("plot", label, label, plot)
        text = inline(drawn(figure, WIDE), figure, "wide")
        assert text.encode() and "a␀␛⟨D800⟩&lt;b&gt;$x_1$⟨202E⟩" in text


def test_a_png_takes_the_fonts_of_the_machine_and_leaves_the_svg_as_it_is(monkeypatch):
    """Those of other scripts, where there are some: here one that draws Latin otherwise, so that it shows without them."""
    canvas = drawn(Figure("rows", "", "", Intervals(("name",), (("task", ((1.0, 0.9, 1.1),)),))), WIDE)
    plain, vector = encoded(canvas, "png"), encoded(canvas, "svg")
    with monkeypatch.context() as patch:
        patch.setattr(figures, "_FALLBACK_FONTS", ("DejaVu Serif", "no such font"))
        patch.setitem(figures._STYLE, "font.sans-serif", [])
        assert encoded(canvas, "png") != plain
    assert encoded(canvas, "png") == plain and encoded(canvas, "svg") == vector


def test_a_font_of_the_machine_without_bold_is_no_warning(monkeypatch, caplog):
    monkeypatch.setattr(figures, "_FALLBACK_FONTS", ("cmr10",))
    canvas = drawn(Figure("rows", "", "", Intervals(("name",), (("task", ((1.0, 0.9, 1.1),)),))), WIDE)
    for text in canvas.findobj(Text):
        text.set_fontweight("bold")
    encoded(canvas, "png")
    assert not caplog.records
