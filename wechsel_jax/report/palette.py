"""Colours of the runs and of the origins of tokens, for light and dark pages.

Hues after Okabe and Ito, which people with any common colour blindness tell apart, darkened or lightened until text in them has
a contrast of at least 4.5 to the page. No plot relies on colour alone: curves have markers and names at their ends.
"""

from collections.abc import Sequence

from wechsel_jax.report.records import RunRecord

PAGE = {"light": "#fcfbf8", "dark": "#15181d"}
INK = {"light": "#1b1d21", "dark": "#eceae4"}
MUTED = {"light": "#5f646d", "dark": "#a4a9b3"}
LINE = {"light": "#dcd9d1", "dark": "#343a44"}
SERIES = {
    "light": ("#0063ab", "#b04a00", "#59606b", "#00735a", "#943a82", "#7d5f00"),
    "dark": ("#69b7f7", "#f5955a", "#b3bac6", "#3fc99c", "#e796cc", "#e3bf4d"),
}
ORIGIN = {
    "light": {"copied": "#0b3d63", "mixed": "#4f9bd1", "random": "#c3c0b8"},
    "dark": {"copied": "#d5eaff", "mixed": "#4c90c4", "random": "#4a505b"},
}
MARKERS = ("circle", "square", "triangle", "diamond", "down", "cross")
# So that a method looks the same in every report; the run from scratch is grey, what the others are seen against.
_SLOTS = {"wechsel": 0, "wechsel_tfr": 0, "trans_inner": 1, "full_rand": 2, "trans_inner_shuffle": 3}


def slots(runs: Sequence[RunRecord]) -> list[int]:
    """Returns for each run which colour and marker it gets; all differ while there are no more than six."""
    taken: list[int] = []
    for run in runs:
        wanted = _SLOTS.get(run.method)
        free = [slot for slot in range(len(MARKERS)) if slot not in taken]
        # Slots of methods that another run of this report has are the last choice of a run without one of its own.
        owned = {_SLOTS[other.method] for other in runs if other.method in _SLOTS}
        choice = [wanted] if wanted in free else [slot for slot in free if slot not in owned] or free
        taken.append(choice[0] if choice else len(taken) % len(MARKERS))
    return taken


def css_variables() -> str:
    """Returns the colours as custom properties: light, and dark where the reader prefers that."""
    dark = _properties("dark")
    return f":root{{{_properties('light')}}}\n@media (prefers-color-scheme:dark){{@media screen{{:root{{{dark}}}}}}}\n"


def _properties(mode: str) -> str:
    named = {"page": PAGE, "ink": INK, "muted": MUTED, "line": LINE}
    values = {name: colours[mode] for name, colours in named.items()}
    values |= {f"s{i}": colour for i, colour in enumerate(SERIES[mode])} | ORIGIN[mode]
    return "".join(f"--{name}:{colour};" for name, colour in values.items())
