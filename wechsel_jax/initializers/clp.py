"""CLP-Transfer: a new token is a mean of the shared tokens, weighted by their similarity in a model of the target language."""

import dataclasses
from collections.abc import Callable

import numpy as np

from wechsel_jax import search
from wechsel_jax.errors import UserError
from wechsel_jax.initializers.anchors import anchored_plan, find_anchors, helper_rows
from wechsel_jax.initializers.method import Method, Neighbors, WordStart
from wechsel_jax.initializers.plan import Side, TransferPlan, on_source_rows
from wechsel_jax.initializers.regression import Predicted, regressed_by_shared
from wechsel_jax.records import work
from wechsel_jax.search.columns import Bonus
from wechsel_jax.search.threads import one_thread
from wechsel_jax.tokens.overlap import Overlap

# Of a sum of cosines, for each of them: what is smaller is float64's rounding of a zero.
_ROUNDING = 1e-14
# A mean cosine below which the weights, which are divided by the sum, are tens of times as large as those of similar tokens.
_CANCELLED = 0.01


@one_thread()
def clp(
    source: Side,
    target: Side,
    *,
    overlap: Overlap,
    regression: Predicted = False,
    notes: Callable[[str], None] | None = None,
) -> TransferPlan:
    """Similarity-weighted mean of all shared tokens (CLP-Transfer, Ostendorff and Rehm, 2023, section 3).

    Shared tokens are copied. Any other token's weights are its cosine similarities, in the helper model, to all shared tokens
    (special ones and those of negative similarity included), divided by their sum.

    With u a token's helper row scaled to length 1, the weight of the shared token a is u_t . u_a / (u_t . sum of all u_a). So
    the weights of all tokens are a product of rank h, the helper's width, and are held as one: `TransferPlan.coordinates` are
    u_t / (u_t . sum of u_a), and the columns of `TransferPlan.basis` the u_a.

    Where the similarities of a token cancel in their sum, its row is long and means little. The paper divides all the same,
    and so does this function; only a sum that is zero, up to rounding, makes noise.

    Args:
      source: V_s tokens; neither vectors nor embeddings are read.
      target: V_t tokens with a helper model's rows (V_t, h); a token without one is noise.
      overlap: the shared tokens; the paper matches by spelling ("exact").
      regression: rows that are not copied are those of `regressed_by_shared`, from the helper's rows.
      notes: called with a sentence where similarities cancel; see `regressed`, too.

    Returns:
      A plan whose weights sum to 1 in every mixed row, some of them negative.

    Raises:
      UserError: no helper, or no shared token that it knows.
    """
    table, known = helper_rows(target, "clp")
    anchors = find_anchors(source, target, overlap, known, "clp", special=True)
    unit_TxH = table / np.where(known, np.linalg.norm(table.astype(np.float64), axis=1), 1)[:, None]
    work.product(*table.shape)
    total_T = unit_TxH @ unit_TxH[anchors].sum(axis=0)
    usable = np.abs(total_T) > _ROUNDING * len(anchors)
    cancelled = int((usable & ~overlap.shared & (np.abs(total_T) < _CANCELLED * len(anchors))).sum())
    if cancelled and notes is not None:
        notes(
            f"The similarities of {cancelled} tokens to all shared tokens cancel, and dividing by their sum makes long rows, "
            "as in the paper: clp_nearest takes similar tokens only; a better helper helps too."
        )
    basis_SxH = np.zeros((len(source.vocabulary), table.shape[1]))
    # A loose overlap finds one source token for several anchors.
    np.add.at(basis_SxH, overlap.source[anchors], unit_TxH[anchors])
    plan = TransferPlan.low_rank(unit_TxH / np.where(usable, total_T, 1)[:, None], basis_SxH.T)
    plan = plan.with_noise(~usable).with_copies(overlap.source)
    return regressed_by_shared(plan, source, target, table, overlap, anchors, notes) if regression else plan


def clp_nearest(
    source: Side,
    target: Side,
    *,
    overlap: Overlap,
    neighbors: Neighbors = 10,
    word_start: WordStart = 0.0,
    regression: Predicted = False,
    progress: Callable[[int, int], None] | None = None,
    notes: Callable[[str], None] | None = None,
) -> TransferPlan:
    """Similarity-weighted mean of the most similar shared tokens: CLP-Transfer with fewer neighbors.

    The mean over all shared tokens of `clp` lies close to the mean of the vocabulary. This one takes the `neighbors` shared
    tokens of highest cosine similarity in the helper model, special tokens left out, each weighted by its similarity; those
    below zero count as zero. Shared tokens are copied.

    Args:
      source: V_s tokens; neither vectors nor embeddings are read.
      target: V_t tokens with a helper model's rows (V_t, h); a token without one is noise.
      overlap: the shared tokens.
      neighbors: how many shared tokens make one new token.
      word_start: is added to the similarity of shared tokens whose source token begins a word if the new token does, and does
        not if not.
      regression: rows that are not copied are those of `regressed_by_shared`, from the helper's rows.
      progress: called with (tokens done, tokens to do).
      notes: see `regressed`.

    Returns:
      A convex plan: weights are non-negative and sum to 1 in every mixed row.

    Raises:
      UserError: no helper, no shared token that it knows, or `neighbors` below 1.
    """
    if neighbors < 1:
        raise UserError(f"neighbors {neighbors}: expected at least 1; the usual number is 10")
    table, known = helper_rows(target, "clp_nearest")
    wanted = np.flatnonzero(~overlap.shared & known)
    anchors = find_anchors(source, target, overlap, known, "clp_nearest")
    rows, k = overlap.source[anchors], min(neighbors, len(anchors))
    bonus = Bonus(word_start, target.vocabulary.word_start[wanted], source.vocabulary.word_start[rows])
    similarity_TxK, places_TxK = search.nearest_neighbors(table[wanted], table[anchors], k, bonus=bonus, progress=progress)
    shares_TxK = np.maximum(similarity_TxK.astype(np.float64), 0)
    total_T = shares_TxK.sum(axis=1, keepdims=True)
    shares_TxK = np.divide(shares_TxK, total_T, out=np.zeros_like(shares_TxK), where=total_T > 0)
    plan = anchored_plan(overlap, wanted, *on_source_rows(rows[places_TxK], shares_TxK))
    return regressed_by_shared(plan, source, target, table, overlap, anchors, notes) if regression else plan


CLP = Method(
    name="clp",
    label="CLP-Transfer",
    color=7,
    plan=clp,
    paper="Ostendorff and Rehm, 2023: CLP-Transfer, section 3",
    citation="""@misc{ostendorff-rehm-2023-clp,
  title = {Efficient Language Model Training through Cross-Lingual and Progressive Transfer Learning},
  author = {Ostendorff, Malte and Rehm, Georg},
  year = {2023},
  eprint = {2301.09626},
  archiveprefix = {arXiv},
}""",
    summary="shared tokens copied, others a mean of all of them by similarity in a target-language model",
    rules=lambda settings: ["Weights are the cosine similarities, in the helper, to all shared tokens, divided by their sum."],
    helper=True,
    features="helper row",
    overlap="exact",
)
CLP_NEAREST = dataclasses.replace(
    CLP,
    name="clp_nearest",
    label="CLP-nearest",
    color=14,
    plan=clp_nearest,
    summary="CLP-Transfer's mean, over the most similar shared tokens only",
    rules=lambda settings: [
        f"Weights are the cosine similarities, in the helper, to the {settings['neighbors']} most similar shared tokens, "
        "negative ones as zero, divided by their sum; special tokens are left out."
    ],
)
