"""The methods by name: what each needs and how its plan is made. A new method is one function and one line here."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from wechsel_jax.initializers.full_rand import full_rand
from wechsel_jax.initializers.plan import TransferPlan
from wechsel_jax.initializers.trans_inner import trans_inner, trans_inner_shuffle
from wechsel_jax.initializers.wechsel import wechsel


@dataclass(frozen=True)
class Method:
    """One way to initialise the embeddings of a new vocabulary.

    Attributes:
      name: what the user types.
      plan: called with (source: Side, target: Side, **options).
      vectors: how token vectors are made of word vectors, "ngram" or "tfr"; None where the method needs none.
      noise: the distribution of random rows, see `draw_noise`.
      redraw_inner: every other tensor is drawn again too, see `full_rand.redraw`.
      paper: where the method is defined.
      summary: one line for a person.
    """

    name: str
    plan: Callable[..., TransferPlan]
    vectors: Literal["ngram", "tfr"] | None
    noise: Literal["source", "initializer_range"]
    redraw_inner: bool
    paper: str
    summary: str

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the keyword arguments that `plan` takes."""
        parameters = inspect.signature(self.plan).parameters.values()
        return tuple(p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY)


_WECHSEL = "Minixhofer, Paischer and Rekabsaz, 2022: WECHSEL"

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(
            "wechsel", wechsel, "ngram", "source", False, f"{_WECHSEL}, section 3.2",
            "each token from its 10 most similar source tokens; token vectors from character n-grams",
        ),
        Method(
            "wechsel_tfr", wechsel, "tfr", "source", False, f"{_WECHSEL}, version 1, section 3, and version 2, appendix D",
            "each token from its 10 most similar source tokens; token vectors from the words that hold the token",
        ),
        Method(
            "trans_inner", trans_inner, None, "initializer_range", False, "de Vries and Nissim, 2021: As Good as New",
            "random embeddings, inner layers kept",
        ),
        Method(
            "trans_inner_shuffle", trans_inner_shuffle, None, "initializer_range", False,
            "Zoph, Yuret, May and Knight, 2016: Transfer Learning for Low-Resource Neural Machine Translation",
            "source embeddings in random order, inner layers kept",
        ),
        Method(
            "full_rand", full_rand, None, "initializer_range", True, f"{_WECHSEL}, section 4 (FullRand)",
            "every parameter random: training from scratch",
        ),
    )
}  # fmt: skip
