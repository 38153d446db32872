"""FOCUS: a new token is a sparse mean of the shared tokens that target-language vectors hold to be like it."""

from collections.abc import Callable

import numpy as np

from wechsel_jax import search
from wechsel_jax.errors import UserError
from wechsel_jax.initializers.anchors import anchored_plan
from wechsel_jax.initializers.method import Method, WordStart
from wechsel_jax.initializers.noise import FOCUS_SEED
from wechsel_jax.initializers.plan import Side, TransferPlan, on_source_rows
from wechsel_jax.initializers.regression import Predicted, regressed_by_shared
from wechsel_jax.search.columns import Bonus
from wechsel_jax.tokens.overlap import Overlap


def focus(
    source: Side,
    target: Side,
    *,
    overlap: Overlap,
    word_start: WordStart = 0.0,
    regression: Predicted = False,
    parity: bool = False,
    progress: Callable[[int, int], None] | None = None,
    notes: Callable[[str], None] | None = None,
) -> TransferPlan:
    """Sparsemax over the cosine to all shared tokens (FOCUS, Dobler and de Melo, 2023, section 3.2).

    Shared tokens are copied. Those of them that have a vector are the anchors: every other token that has one is the mean of
    the anchors' source rows, weighted by sparsemax over the plain cosine similarities, without a temperature or a limit to
    their number. Tokens without a vector are noise with the source's mean and standard deviation.

    Special tokens are no anchors: they stand for no text, and what vector they may have (fastText has one for "</s>", which
    it sees at the end of every line) says nothing about meaning. With `parity`, shared special tokens that have a vector are
    anchors, as in PyPI deepfocus 1.0.1, whose noise `draw_noise(..., kind="source_sample", parity=True)` repeats.

    Where a loose overlap gives several anchors one source row, their weights add up.

    Args:
      source: V_s tokens; neither vectors nor embeddings are read, and `counts` by the regression alone.
      target: V_t tokens with vectors of the target language (V_t, m): of the tokens themselves (`native_vectors`, as the paper
        does it) or of words.
      overlap: the shared tokens; `find_overlap(..., parity="deepfocus")` finds those of PyPI deepfocus.
      word_start: is added to the similarity of anchors whose source token begins a word if the target token does, and does not
        if not.
      regression: rows that are not copied are those of `regressed_by_shared`.
      parity: choose anchors as PyPI deepfocus 1.0.1 does.
      progress: called with (tokens done, tokens to do) while neighbors are searched.
      notes: see `regressed`.

    Returns:
      A convex plan: weights are non-negative and sum to 1 for every mixed token, the strongest neighbor first.

    Raises:
      UserError: no vectors, or no shared token that has one.
    """
    if target.vectors is None:
        raise UserError("focus: no vectors; expected vectors of the target tokens; give them with --target_vectors")
    ordinary = ~(target.vocabulary.special | source.vocabulary.special[overlap.source])
    anchors = np.flatnonzero(overlap.shared & target.has_vector & (parity | ordinary))
    if len(anchors) == 0:
        raise UserError(
            f"focus: none of the {int(overlap.shared.sum())} shared tokens has a vector; expected vectors of the target "
            "language's tokens; train them with `wechsel-jax vectors train --tokenizer`, or choose a looser overlap"
        )
    wanted = np.flatnonzero(~overlap.shared & target.has_vector)
    vectors = np.asarray(target.vectors)
    rows = overlap.source[anchors]
    bonus = Bonus(word_start, target.vocabulary.word_start[wanted], source.vocabulary.word_start[rows])
    places, weights = search.sparsemax_neighbors(vectors[wanted], vectors[anchors], bonus=bonus, progress=progress)
    neighbors = np.where(weights > 0, rows[places], 0)
    if len(np.unique(rows)) < len(rows):
        neighbors, weights = on_source_rows(neighbors, weights.astype(np.float64))
    plan = anchored_plan(overlap, wanted, neighbors, weights)
    if regression:
        plan = regressed_by_shared(plan, source, target, vectors, overlap, anchors, notes)
    return plan


FOCUS = Method(
    name="focus",
    label="FOCUS",
    color=3,
    plan=focus,
    paper="Dobler and de Melo, 2023: FOCUS, section 3",
    citation="""@inproceedings{dobler-de-melo-2023-focus,
  title = {{FOCUS}: Effective Embedding Initialization for Monolingual Specialization of Multilingual Models},
  author = {Dobler, Konstantin and de Melo, Gerard},
  booktitle = {Proceedings of the 2023 Conference on Empirical Methods in Natural Language Processing},
  year = {2023},
  pages = {13440--13454},
}""",
    summary="shared tokens copied, others a sparsemax mixture of them by similarity in the target language",
    rules=lambda settings: [
        "Weights are the sparsemax of the cosine similarity to all shared tokens that have a vector, special tokens "
        + ("too (parity)." if settings["parity"] else "left out.")
    ],
    vectors="native",
    space="target",
    overlap="exact",
    noise="source_sample",
    reference_overlap="deepfocus",
    reference_seed=FOCUS_SEED,
)
