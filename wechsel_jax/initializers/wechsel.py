"""WECHSEL: a target embedding is a softmax-weighted mean of the most similar source tokens' embeddings."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import numpy as np

from wechsel_jax import search
from wechsel_jax.errors import UserError
from wechsel_jax.initializers.method import Method, Neighbors, Setting, Temperature, WordStart
from wechsel_jax.initializers.plan import Side, TransferPlan
from wechsel_jax.initializers.regression import Predicted, regressed
from wechsel_jax.search.columns import Bonus
from wechsel_jax.tokens.overlap import Overlap

WEIGHTS = ("softmax", "sparsemax")


def wechsel(
    source: Side,
    target: Side,
    *,
    overlap: Overlap | None = None,
    neighbors: Neighbors = 10,
    temperature: Temperature = 0.1,
    weights: Annotated[str, Setting("How source tokens are weighed", choices=WEIGHTS)] = "softmax",
    word_start: WordStart = 0.0,
    regression: Predicted = False,
    parity: bool = False,
    progress: Callable[[int, int], None] | None = None,
    notes: Callable[[str], None] | None = None,
) -> TransferPlan:
    """Softmax over the k most similar source tokens (Minixhofer et al., 2022, section 3.2).

    The paper's second version ("WECHSEL") takes n-gram vectors, its first ("WECHSEL-TFR" there) takes frequency-weighted means
    of the words that a token occurs in; from the vectors on, both are this function.

    With `parity`, the choices are those of PyPI wechsel 0.0.4: source tokens without a vector can be neighbors (with
    similarity 0), and special tokens are copied by spelling instead of by role. Equal similarities are ordered by id here; the
    package leaves their order to numpy's partition.

    With `weights="sparsemax"` a target row mixes as many source rows as the sparsemax of similarity / temperature over all of
    them leaves above zero, as in Tran (2020), which WECHSEL follows; `neighbors` is not read then.

    Args:
      source: V_s tokens with vectors (V_s, m) in the shared space; rows of zeros have no vector.
      target: V_t tokens with vectors (V_t, m).
      overlap: shared tokens, which are copied; None: the special tokens. Not read with `parity`.
      neighbors: k, how many source rows make one target row.
      temperature: of the softmax or sparsemax over cosine similarities.
      weights: "softmax" over the k nearest, or "sparsemax" over all.
      word_start: is added to the similarity of source tokens that begin a word if the target token does, and do not if not.
      regression: rows that are not copied are those of `regressed`, which is anker's with other vectors.
      parity: choose as PyPI wechsel 0.0.4 does.
      progress: see `search.nearest_neighbors`.
      notes: see `regressed`.

    Returns:
      A convex plan: weights are non-negative and sum to 1 for every token that has a vector; the others are random.

    Raises:
      UserError: a temperature that is not above zero, fewer than k source tokens with a vector, or vectors that do not fit.
      ValueError: unknown `weights`.
    """
    if not temperature > 0 or neighbors < 1:
        raise UserError(f"temperature {temperature}, neighbors {neighbors}: expected both above zero")
    if weights not in WEIGHTS:
        raise ValueError(f"weights must be one of {', '.join(WEIGHTS)}, got {weights!r}")
    candidates = None if parity else source.has_vector
    bonus = Bonus(word_start, target.vocabulary.word_start, source.vocabulary.word_start)
    if weights == "sparsemax":
        mixture = search.sparsemax_neighbors(
            target.vectors, source.vectors, candidates=candidates, scale=1 / temperature, bonus=bonus, progress=progress
        )
    else:
        similarity_TxK, nearest_TxK = search.nearest_neighbors(
            target.vectors, source.vectors, neighbors, candidates=candidates, bonus=bonus, progress=progress
        )
        mixture = nearest_TxK, softmax(similarity_TxK, temperature)
    plan = TransferPlan.mixed(*mixture).with_noise(where=~target.has_vector)
    if regression:
        plan = regressed(plan, source, target, notes=notes)
    if parity or overlap is None:
        return plan.with_special_tokens(source, target, parity)
    return plan.with_copies(overlap.source)


def softmax(similarity_TxK: np.ndarray, temperature: float) -> np.ndarray:
    """Softmax of each row of (V_t, K) at a temperature, with the maximum taken off first; float32."""
    logits_TxK = similarity_TxK.astype(np.float64) / temperature
    weights_TxK = np.exp(logits_TxK - logits_TxK.max(axis=1, keepdims=True))
    return (weights_TxK / weights_TxK.sum(axis=1, keepdims=True)).astype(np.float32)


def nearest_similarity(plan: TransferPlan, source: Side, target: Side) -> np.ndarray:
    """Cosine similarity of target tokens to their first neighbors, float32 (tokens,), in id order.

    Only tokens that were compared: those that have neighbors, and a vector as their first neighbor has. A row may also come
    from a token of the same bytes, or from other vectors.
    """
    compared = plan.weights.any(axis=1) & target.has_vector
    compared[compared] = source.has_vector[plan.neighbors[compared, 0]]
    nearest = source.vectors[plan.neighbors[compared, 0]].astype(np.float64)
    tokens = target.vectors[compared].astype(np.float64)
    scale = np.linalg.norm(nearest, axis=1) * np.linalg.norm(tokens, axis=1)
    return ((nearest * tokens).sum(axis=1) / scale).astype(np.float32)


def _rules(settings: Mapping[str, Any]) -> list[str]:
    rules = []
    if settings["weights"] == "sparsemax":
        rules.append("Weights are the sparsemax of similarity / temperature over all source tokens (Tran, 2020).")
    if settings["parity"]:
        rules.append("Special tokens are copied from the source token that is spelled the same (parity).")
    return rules


def _unread(settings: Mapping[str, Any]) -> set[str]:
    # The reference copies special tokens by spelling, and no others.
    unread = {"overlap"} if settings["parity"] else set()
    return unread | ({"neighbors"} if settings["weights"] == "sparsemax" else set())


PAPER = "Minixhofer, Paischer and Rekabsaz, 2022: WECHSEL"
CITATION = """@inproceedings{minixhofer-etal-2022-wechsel,
  title = {{WECHSEL}: Effective initialization of subword embeddings for cross-lingual transfer of monolingual language models},
  author = {Minixhofer, Benjamin and Paischer, Fabian and Rekabsaz, Navid},
  booktitle = {Proceedings of the 2022 Conference of the North American Chapter of the Association for Computational \
Linguistics: Human Language Technologies},
  year = {2022},
  pages = {3992--4006},
}"""

WECHSEL = Method(
    name="wechsel",
    label="WECHSEL",
    color=0,
    plan=wechsel,
    paper=f"{PAPER}, section 3.2",
    citation=CITATION,
    summary="each token from its 10 most similar source tokens; token vectors from character n-grams",
    rules=_rules,
    unread=_unread,
    vectors="ngram",
)
WECHSEL_TFR = dataclasses.replace(
    WECHSEL,
    name="wechsel_tfr",
    label="WECHSEL-TFR",
    color=8,
    paper=f"{PAPER}, version 1, section 3, and version 2, appendix D",
    summary="each token from its 10 most similar source tokens; token vectors from the words that hold the token",
    vectors="tfr",
)
