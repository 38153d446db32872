"""What a method is: how it is called and cited, what it needs, its own settings, and the rules it follows in words."""

import inspect
import os
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

from wechsel_jax.errors import UserError
from wechsel_jax.initializers.noise import WECHSEL_SEED
from wechsel_jax.initializers.plan import TransferPlan


@dataclass(frozen=True)
class Setting:
    """What a setting means and may be; it annotates the argument or field that it describes.

    Attributes:
      help: what it is, for a person; without a full stop.
      least: of a number.
      most: of a number: above it a transfer would not end, need more memory than there is, or overflow.
      choices: of a name.
      parity: what it has to be with `parity`, where no reference implementation has it; None: any.
    """

    help: str
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    parity: float | None = None

    def check(self, name: str, value: Any, kind: type) -> None:
        """Raises `UserError` where a value of the setting `name` is not of its `kind` or out of range."""
        if self.choices and value not in self.choices:
            raise UserError(f"{name} {value!r}: unknown; expected one of {', '.join(self.choices)}")
        if self.least is None:
            items = value if kind is tuple and isinstance(value, tuple | list) else [value]
            if not all(isinstance(item, bool if kind is bool else str | os.PathLike) for item in items):
                described = {bool: "True or False", tuple: "names"}.get(kind, "a name")
                raise UserError(f"{name} {value!r}: expected {described}")
            return
        if isinstance(value, bool) or not isinstance(value, int if kind is int else int | float):
            described = "a whole number" if kind is int else "a number"
            raise UserError(f"{name} {value!r}: expected {described} from {self.least:.15g} to {self.most:.15g}")
        if not value >= self.least:
            raise UserError(f"{name} {value}: expected at least {self.least:.15g}")
        if value > self.most:
            raise UserError(f"{name} {value}: expected at most {self.most:.15g}")


# Settings that several methods have in common.
Neighbors = Annotated[int, Setting("Source tokens that make one target token", 1, 1 << 20)]
Temperature = Annotated[float, Setting("Of the softmax over similarities", 1e-6, 1e6)]
WordStart = Annotated[
    float, Setting("Bonus to the similarity of tokens that both begin a word, or both do not", 0.0, 100.0, parity=0.0)
]
Ridge = Annotated[float, Setting("Added to the diagonal of the least squares", 0.0, 1e6)]


class Own(typing.NamedTuple):
    """A method's own setting: its type (int, float, bool or str), its value unless given, and what it means."""

    kind: type
    default: Any
    setting: Setting


@dataclass(frozen=True, kw_only=True)
class Method:
    """One way to initialise the embeddings of a new vocabulary, with everything that is said of it.

    A method is one module that ends with its record, and a place in `METHODS`. Its own settings are the keyword arguments of
    `plan` and `text` whose type carries a `Setting`; flags, notes, records and reports follow from them.

    Attributes:
      name: what the user types.
      label: how reports and model cards call it.
      plan: called with (source: Side, target: Side, **options).
      paper: where the method is defined.
      citation: BibTeX of that paper; "" where there is none.
      summary: one line for a person.
      color: its slot in reports, which no other method has, see `report.palette`; None: whichever is free.
      rules: the sentences about how its weights come about, given all settings by name.
      unread: names of the settings that it does not read although it has them, given all settings by name.
      vectors: how token vectors are made of word vectors ("ngram", "tfr", "native") unless the user says otherwise; None where
        the method needs none.
      space: whose word vectors it needs: of "both" languages in one space, or of the "target" language alone.
      helper: whether it needs the embeddings of a model of the target language.
      features: what of a token `--regression` reads besides its frequency and word start: its "vector" or its "helper row"; ""
        where tokens have nothing in a space of both languages, whose regression needs text.
      source_rows: whether the plan reads the rows of the source model's own table.
      head_rows: whether it reads those of its output head too, where that is another table.
      text: makes the two sides of text of both languages, and of a dictionary and word vectors where it takes them and there
        are some, see `anker.sides.text_sides`; None where the method needs no text.
      overlap: which shared tokens it copies, one of `tokens.overlap.OVERLAPS`, unless the user says otherwise.
      noise: the distribution of random rows, see `draw_noise`, unless the user says otherwise.
      redraw_inner: every other tensor is drawn again too, see `full_rand.redraw`.
      reference_overlap: whose overlap is repeated with `parity`, one of `tokens.overlap.PARITIES`; None: ours.
      reference_seed: of the noise with `parity`.
    """

    name: str
    label: str
    plan: Callable[..., TransferPlan]
    paper: str
    citation: str
    summary: str
    color: int | None = None
    rules: Callable[[Mapping[str, Any]], Sequence[str]] = lambda settings: ()
    unread: Callable[[Mapping[str, Any]], set[str]] = lambda settings: set()
    vectors: Literal["ngram", "tfr", "native"] | None = None
    space: Literal["both", "target"] = "both"
    helper: bool = False
    features: Literal["vector", "helper row", ""] = "vector"
    source_rows: bool = False
    head_rows: bool = False
    text: Callable | None = None
    overlap: str = "special"
    noise: str = "source"
    redraw_inner: bool = False
    reference_overlap: str | None = None
    reference_seed: int = WECHSEL_SEED

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the keyword arguments that `plan` takes."""
        return _keywords(self.plan)

    @cached_property
    def settings(self) -> dict[str, Own]:
        """The method's own settings by name."""
        found = {}
        for function in filter(None, (self.plan, self.text)):
            hints = typing.get_type_hints(function, include_extras=True)
            for name in _keywords(function):
                hint = hints.get(name)
                setting = next((extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, Setting)), None)
                if setting is not None:
                    default = inspect.signature(function).parameters[name].default
                    found[name] = Own(typing.get_args(hint)[0], default, setting)
        return found

    @property
    def takes_words(self) -> bool:
        """Whether `text` takes a dictionary and word vectors besides."""
        return self.text is not None and "dictionary" in inspect.signature(self.text).parameters

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the settings that hold files which the method cannot do without."""
        if self.text:
            return ("source_text", "target_text")
        if "translations" in self.options:
            return ("parallel",)
        if self.vectors is None:
            return ()
        return ("source_vectors", "target_vectors", "dictionary") if self.space == "both" else ("target_vectors",)


def _keywords(function: Callable) -> tuple[str, ...]:
    parameters = inspect.signature(function).parameters.values()
    return tuple(parameter.name for parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY)
