"""Colours of the runs and of the origins of tokens, for light and dark pages.

Hues after Okabe and Ito, which people with any common colour blindness tell apart, darkened or lightened until text in them has
a contrast of at least 4.5 to the page. No plot relies on colour alone: curves have markers and names at their ends, and from
the ninth run on, where hues come again, they are dashed.
"""

from collections.abc import Sequence

from wechsel_jax.report.records import RunRecord

PAGE = {"light": "#fcfbf8", "dark": "#15181d"}
INK = {"light": "#1b1d21", "dark": "#eceae4"}
MUTED = {"light": "#5f646d", "dark": "#a4a9b3"}
LINE = {"light": "#dcd9d1", "dark": "#343a44"}
SERIES = {
    "light": ("#0063ab", "#b04a00", "#59606b", "#00735a", "#943a82", "#7d5f00", "#b3213f", "#4a46b0"),
    "dark": ("#69b7f7", "#f5955a", "#b3bac6", "#3fc99c", "#e796cc", "#e3bf4d", "#ff8f9c", "#aaa6ff"),
}
ORIGIN = {
    "light": {"copied": "#0b3d63", "mixed": "#4f9bd1", "random": "#c3c0b8"},
    "dark": {"copied": "#d5eaff", "mixed": "#4c90c4", "random": "#4a505b"},
}
MARKERS = ("circle", "square", "triangle", "diamond", "down", "cross", "left", "right")
# A slot is a hue, a marker and a line: the first eight solid, the next eight dashed.
HUES = len(SERIES["light"])
SLOTS = 2 * HUES
# So that a method looks the same in every report; the run from scratch is grey, what the others are seen against.
_SLOTS = {
    "wechsel": 0, "trans_inner": 1, "full_rand": 2, "trans_inner_shuffle": 9, "focus": 3, "ofa": 4, "salt": 5, "omp": 6,
    "clp": 7, "wechsel_tfr": 8, "fvt": 11, "mean": 10, "multivariate": 12,
}  # fmt: skip
# WECHSEL in either form, where there is only one.
_WECHSEL = {"wechsel", "wechsel_tfr"}


def slots(runs: Sequence[RunRecord]) -> list[int]:
    """Returns for each run which slot it gets; all differ while there are no more than sixteen runs."""
    methods = [run.method for run in runs]
    home = {**_SLOTS, "wechsel_tfr": 0} if len(_WECHSEL & set(methods)) == 1 else _SLOTS
    # Slots of methods that another run of this report has are the last choice of a run without one of its own.
    owned = {home[method] for method in methods if method in home}
    taken: list[int] = []
    for method in methods:
        wanted = home.get(method)
        free = [slot for slot in range(SLOTS) if slot not in taken]
        choice = [wanted] if wanted in free else [slot for slot in free if slot not in owned] or free
        taken.append(choice[0] if choice else len(taken) % SLOTS)
    return taken


def hue(slot: int, mode: str = "light") -> str:
    """Returns the colour of a slot."""
    return SERIES[mode][slot % HUES]


def marker(slot: int) -> str:
    """Returns the name of a slot's marker: no two slots share both hue and marker."""
    return MARKERS[(slot + 3 * (slot // HUES)) % len(MARKERS)]


def is_dashed(slot: int) -> bool:
    """Whether a slot's line is dashed."""
    return slot >= HUES


def css_variables() -> str:
    """Returns the colours as custom properties: light, and dark where the reader prefers that."""
    dark = _properties("dark")
    uses = "".join(f".s{slot}{{--c:var(--s{slot % HUES})}}" for slot in range(SLOTS))
    return f":root{{{_properties('light')}}}\n@media (prefers-color-scheme:dark){{@media screen{{:root{{{dark}}}}}}}\n{uses}\n"


def _properties(mode: str) -> str:
    named = {"page": PAGE, "ink": INK, "muted": MUTED, "line": LINE}
    values = {name: colours[mode] for name, colours in named.items()}
    values |= {f"s{i}": colour for i, colour in enumerate(SERIES[mode])} | ORIGIN[mode]
    return "".join(f"--{name}:{colour};" for name, colour in values.items())
