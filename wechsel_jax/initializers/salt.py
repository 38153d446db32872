"""SALT: each new token's row in a model of the target language, mapped to the source model by its neighbors' linear map."""

from collections.abc import Callable

import numpy as np

from wechsel_jax import search
from wechsel_jax.errors import UserError
from wechsel_jax.initializers.anchors import anchored_plan, find_anchors, helper_rows
from wechsel_jax.initializers.least_squares import CUTOFF, Fit, least_squares
from wechsel_jax.initializers.method import Method, Ridge
from wechsel_jax.initializers.plan import Side, TransferPlan, on_source_rows
from wechsel_jax.initializers.regression import Predicted, regressed_by_shared
from wechsel_jax.tokens.overlap import Overlap


def salt(
    source: Side,
    target: Side,
    *,
    overlap: Overlap,
    ridge: Ridge = 0.0,
    regression: Predicted = False,
    progress: Callable[[int, int], None] | None = None,
    notes: Callable[[str], None] | None = None,
) -> TransferPlan:
    """Semantic-aware linear transfer (SALT, Lee et al., 2025, section 3).

    Shared tokens are copied. For any other token, sparsemax over the cosine similarities of its word vector to those of the
    shared tokens selects neighbors C; X = pinv(E_t[C]) E_s[C] maps the helper's rows E_t of the neighbors to the source model's
    rows E_s; the token's own helper row times X is its new row. There is no intercept, and the sparsemax weights only select.
    X is never formed: the result is a signed combination of E_s[C], see `least_squares`, which fits an untied output head too.

    A token without a word vector or without a helper row is noise with the source's mean and standard deviation (step 1 of the
    paper). Special tokens are copied and take no part in any regression.

    Args:
      source: V_s tokens; neither vectors nor embeddings are read.
      target: V_t tokens with word vectors of the target language (V_t, m) and a helper model's rows (V_t, h); the helper may
        be of any architecture, and of any scale.
      overlap: the shared tokens; the paper matches by "nospace" (appendix A).
      ridge: of the regression, in mean squared lengths of a neighborhood's helper rows; the paper has none.
      regression: rows that are not copied are those of `regressed_by_shared`, from the helper's rows.
      progress: called with (tokens done, tokens to do) while neighbors are searched.
      notes: called with sentences about how far the regressions can be trusted.

    Returns:
      A plan with signed weights on source rows, strongest first; the weights do not sum to 1.

    Raises:
      UserError: no vectors, no helper, no shared token that has both, or a negative ridge.
    """
    if not ridge >= 0:
        raise UserError(f"ridge {ridge}: must not be negative; expected 0 (the paper's) or a small number such as 0.001")
    if target.vectors is None:
        raise UserError("salt: no word vectors; expected vectors of the target language; give them with --target_vectors")
    table, known = helper_rows(target, "salt")
    anchors = find_anchors(source, target, overlap, known & target.has_vector, "salt")
    wanted = np.flatnonzero(~overlap.shared & known & target.has_vector)
    vectors = np.asarray(target.vectors)
    places, chosen = search.sparsemax_neighbors(vectors[wanted], vectors[anchors], progress=progress)
    ids = anchors[places]
    fit = least_squares(table, ids, np.asarray(chosen) > 0, table[wanted], ridge=ridge)
    if notes is not None:
        for sentence in _describe(fit, overlap, target.has_vector, known):
            notes(sentence)
    neighbors, weights = on_source_rows(overlap.source[ids], fit.weights)
    plan = anchored_plan(overlap, wanted, neighbors, weights)
    return regressed_by_shared(plan, source, target, table, overlap, anchors, notes) if regression else plan


def _describe(fit: Fit, overlap: Overlap, has_vector: np.ndarray, known: np.ndarray) -> list[str]:
    """What a person should know of the regressions, as plain sentences."""
    new = ~overlap.shared
    count = len(fit.condition)
    sentences = [
        f"{number:,} of {int(new.sum()):,} tokens that are not shared have no {what}: they are noise"
        for number, what in (
            (int((new & ~has_vector).sum()), "word vector"),
            (int((new & has_vector & ~known).sum()), "row in the helper model"),
        )
        if number
    ]
    if not count:
        return sentences
    support, norm = (fit.weights != 0).sum(axis=1), fit.norm
    sentences.append(
        f"{count:,} regressions over {np.median(support):.0f} neighbors (median; {support.min()} to {support.max()}); "
        f"condition {np.median(fit.condition):.3g} (median; at most {fit.condition.max():.3g}); length of the weights "
        f"{np.median(norm):.3g} (median; at most {norm.max():.3g}); {np.median(fit.residual):.0%} of a token's helper row lies "
        "outside its neighbors' span (median)"
    )
    ill = int((fit.condition > 1 / CUTOFF).sum())
    if ill:
        sentences.append(
            f"{ill:,} of {count:,} neighborhoods were ill-conditioned (condition above {1 / CUTOFF:.0e}): nearly equal rows "
            "were taken as one"
        )
    return sentences


PAPER = "Lee et al., 2025: Semantic Aware Linear Transfer (SALT)"
CITATION = """@misc{lee-etal-2025-salt,
  title = {Semantic Aware Linear Transfer by Recycling Pre-trained Language Models for Cross-lingual Transfer},
  author = {Lee, Seungyoon and Hong, Seongtae and Moon, Hyeonseok and Lim, Heuiseok},
  year = {2025},
}"""

SALT = Method(
    name="salt",
    label="SALT",
    color=5,
    plan=salt,
    paper=f"{PAPER}, section 3",
    citation=CITATION,
    summary="shared tokens copied, others by least squares from a target-language model's embeddings",
    rules=lambda settings: [
        "Weights are the least squares, in the helper, over those shared tokens that the sparsemax of the word vectors' cosine "
        "similarity chooses, special tokens left out."
    ],
    vectors="ngram",
    space="target",
    helper=True,
    features="helper row",
    overlap="nospace",
)
