"""Colours of the runs and of the origins of tokens, for light and dark pages.

Hues after Okabe and Ito, which people with any common colour blindness tell apart, darkened or lightened until text in them has
a contrast of at least 4.5 to the page. No plot relies on colour alone: curves have markers and names at their ends, and from
the ninth slot on, where hues come again, they are dashed.
"""

from collections.abc import Sequence

from wechsel_jax.initializers import METHODS

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
# As matplotlib names them: circle, square, triangles, diamond, cross. No two slots share both hue and marker.
MARKERS = "os^DvX<>"
# A slot is a hue, a marker and a line: the first eight solid, the others dashed.
HUES = len(SERIES["light"])
SLOTS = 3 * HUES


def slots(methods: Sequence[str]) -> list[int]:
    """Returns for the method of each run which slot it gets; all differ while there are no more runs than slots.

    A method has its own slot (`Method.color`), so that it looks the same in every report. Where there is only one form of
    WECHSEL, it has the slot of WECHSEL.
    """
    home = {name: method.color for name, method in METHODS.items() if method.color is not None}
    if "wechsel" not in methods:
        home["wechsel_tfr"] = home["wechsel"]
    # Slots of methods that another run of this report has are the last choice of a run without one of its own.
    owned = {home[method] for method in methods if method in home}
    taken: list[int] = []
    for method in methods:
        free = [slot for slot in range(SLOTS) if slot not in taken]
        own = [slot for slot in free if slot == home.get(method)]
        choice = own or [slot for slot in free if slot not in owned] or free
        taken.append(choice[0] if choice else len(taken) % SLOTS)
    return taken


def hue(slot: int) -> str:
    """Returns the colour of a slot on a light page."""
    return SERIES["light"][slot % HUES]


def marker(slot: int) -> str:
    """Returns matplotlib's name of a slot's marker."""
    return MARKERS[(slot + 3 * (slot // HUES)) % len(MARKERS)]


def is_dashed(slot: int) -> bool:
    """Whether a slot's line is dashed."""
    return slot >= HUES


def variables(mode: str) -> dict[str, str]:
    """Returns the name of each of the page's colours, as CSS has it, with the colour of a mode; no two are equal."""
    named = {"page": PAGE, "ink": INK, "muted": MUTED, "line": LINE}
    return {
        **{name: colours[mode] for name, colours in named.items()},
        **{f"s{i}": colour for i, colour in enumerate(SERIES[mode])},
        **ORIGIN[mode],
    }


def css() -> str:
    """Returns the colours as custom properties, dark ones where the reader prefers that; `.s3` has the colour of slot 3."""
    light, dark = ("".join(f"--{name}:{value};" for name, value in variables(mode).items()) for mode in ("light", "dark"))
    uses = "".join(f".s{slot}{{--c:var(--s{slot % HUES})}}" for slot in range(SLOTS))
    return f":root{{{light}}}\n@media (prefers-color-scheme:dark){{@media screen{{:root{{{dark}}}}}}}\n{uses}\n"
