"""The methods by name: what each needs and how its plan is made. A new method is one function and one entry here."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from wechsel_jax.initializers.anker import anker
from wechsel_jax.initializers.clp import clp
from wechsel_jax.initializers.focus import focus
from wechsel_jax.initializers.full_rand import full_rand
from wechsel_jax.initializers.multivariate import mean, multivariate
from wechsel_jax.initializers.noise import OFA_SEED, WECHSEL_SEED
from wechsel_jax.initializers.ofa import ofa
from wechsel_jax.initializers.omp import omp
from wechsel_jax.initializers.pieces import fvt
from wechsel_jax.initializers.plan import TransferPlan
from wechsel_jax.initializers.salt import salt
from wechsel_jax.initializers.trans_inner import trans_inner, trans_inner_shuffle
from wechsel_jax.initializers.wechsel import wechsel


@dataclass(frozen=True, kw_only=True)
class Method:
    """One way to initialise the embeddings of a new vocabulary.

    Attributes:
      name: what the user types.
      plan: called with (source: Side, target: Side, **options).
      paper: where the method is defined.
      summary: one line for a person.
      vectors: how token vectors are made of word vectors ("ngram", "tfr", "native") unless the user says otherwise; None where
        the method needs none.
      space: whose word vectors it needs: of "both" languages in one space, or of the "target" language alone.
      helper: whether it needs the embeddings of a model of the target language.
      text: whether it needs text of both languages, and takes a dictionary and word vectors where there are some.
      overlap: which shared tokens it copies, one of `tokens.overlap.OVERLAPS`, unless the user says otherwise.
      noise: the distribution of random rows, see `draw_noise`, unless the user says otherwise.
      word_start: the bonus to similarities, unless the user says otherwise.
      redraw_inner: every other tensor is drawn again too, see `full_rand.redraw`.
      reference_overlap: whose overlap is repeated with `parity`, one of `tokens.overlap.PARITIES`; None: ours.
      reference_seed: of the noise with `parity`.
    """

    name: str
    plan: Callable[..., TransferPlan]
    paper: str
    summary: str
    vectors: Literal["ngram", "tfr", "native"] | None = None
    space: Literal["both", "target"] = "both"
    helper: bool = False
    text: bool = False
    overlap: str = "special"
    noise: str = "source"
    word_start: float = 0.0
    redraw_inner: bool = False
    reference_overlap: str | None = None
    reference_seed: int = WECHSEL_SEED

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the keyword arguments that `plan` takes."""
        parameters = inspect.signature(self.plan).parameters.values()
        return tuple(p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY)

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the settings that hold files which the method cannot do without."""
        if self.text:
            return ("source_text", "target_text")
        if self.vectors is None:
            return ()
        return ("source_vectors", "target_vectors", "dictionary") if self.space == "both" else ("target_vectors",)


_WECHSEL = "Minixhofer, Paischer and Rekabsaz, 2022: WECHSEL"
_SALT = "Lee et al., 2025: Semantic Aware Linear Transfer (SALT)"

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(
            name="wechsel", plan=wechsel, vectors="ngram", paper=f"{_WECHSEL}, section 3.2",
            summary="each token from its 10 most similar source tokens; token vectors from character n-grams",
        ),
        Method(
            name="wechsel_tfr", plan=wechsel, vectors="tfr",
            paper=f"{_WECHSEL}, version 1, section 3, and version 2, appendix D",
            summary="each token from its 10 most similar source tokens; token vectors from the words that hold the token",
        ),
        Method(
            name="anker", plan=anker, text=True, word_start=0.1, paper="this project",
            summary="rows regressed on frequency and on the translated tokens around a token in text, and neighbors' residuals",
        ),
        Method(
            name="ofa", plan=ofa, vectors="ngram", overlap="fuzzy", reference_overlap="ofa",
            reference_seed=OFA_SEED,
            paper="Liu, Lin, Wang and Schütze, 2024: OFA, section 3",
            summary="shared tokens copied, others mixed as in WECHSEL, in factorised coordinates if asked for",
        ),
        Method(
            name="focus", plan=focus, vectors="native", space="target", overlap="exact", noise="source_sample",
            reference_overlap="deepfocus",
            paper="Dobler and de Melo, 2023: FOCUS, section 3",
            summary="shared tokens copied, others a sparsemax mixture of them by similarity in the target language",
        ),
        Method(
            name="salt", plan=salt, vectors="ngram", space="target", helper=True, overlap="nospace",
            paper=f"{_SALT}, section 3",
            summary="shared tokens copied, others by least squares from a target-language model's embeddings",
        ),
        Method(
            name="omp", plan=omp, helper=True, overlap="exact",
            paper="Goddard and Fernandes Neto, 2025: Training-Free Tokenizer Transplantation via Orthogonal Matching Pursuit",
            summary="shared tokens copied, others rebuilt from at most 64 of them, as in a target-language model",
        ),
        Method(
            name="clp", plan=clp, helper=True, overlap="exact",
            paper="Ostendorff and Rehm, 2023: CLP-Transfer, section 3",
            summary="shared tokens copied, others weighted by similarity in a target-language model",
        ),
        Method(
            name="fvt", plan=fvt, overlap="exact",
            paper="Gee, Zugarini, Rigutini and Torroni, 2022: Fast Vocabulary Transfer, section 3",
            summary="the mean of the pieces that the source tokenizer cuts the token into",
        ),
        Method(
            name="mean", plan=mean, overlap="exact", noise="mean",
            paper="Hewitt, 2021: Initializing New Word Embeddings for Pretrained Language Models",
            summary="shared tokens copied, all others the mean of the source table",
        ),
        Method(
            name="multivariate", plan=multivariate, overlap="exact", noise="multivariate",
            paper=f"{_SALT}, section 4 (Multivariate)",
            summary="shared tokens copied, others drawn from a Gaussian with the source table's covariance",
        ),
        Method(
            name="trans_inner", plan=trans_inner, noise="initializer_range",
            paper="de Vries and Nissim, 2021: As Good as New",
            summary="random embeddings, inner layers kept",
        ),
        Method(
            name="trans_inner_shuffle", plan=trans_inner_shuffle, noise="initializer_range",
            paper="Zoph, Yuret, May and Knight, 2016: Transfer Learning for Low-Resource Neural Machine Translation",
            summary="source embeddings in random order, inner layers kept",
        ),
        Method(
            name="full_rand", plan=full_rand, noise="initializer_range", redraw_inner=True,
            paper=f"{_WECHSEL}, section 4 (FullRand)",
            summary="every parameter random: training from scratch",
        ),
    )
}  # fmt: skip
