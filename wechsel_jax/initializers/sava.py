"""SAVA: each new token's row in a model of the target language, through one affine map that is fitted on the shared tokens."""

from collections.abc import Callable

import numpy as np

from wechsel_jax.errors import UserError
from wechsel_jax.initializers.anchors import find_anchors, helper_rows
from wechsel_jax.initializers.least_squares import CUTOFF
from wechsel_jax.initializers.method import Method, Ridge
from wechsel_jax.initializers.plan import Side, TransferPlan
from wechsel_jax.initializers.regression import Predicted, regressed_by_shared
from wechsel_jax.records import work
from wechsel_jax.search.threads import one_thread
from wechsel_jax.tokens.overlap import Overlap


@one_thread()
def sava(
    source: Side,
    target: Side,
    *,
    overlap: Overlap,
    ridge: Ridge = 0.0,
    regression: Predicted = False,
    notes: Callable[[str], None] | None = None,
) -> TransferPlan:
    """One linear map from the helper's space to the source's (SAVA, Moroni et al., 2025).

    Shared tokens are copied. With H and S the rows of the n shared tokens in the helper and in the source model, centred on
    their means h and s, any other token's helper row x becomes s + (x - h) H^+ S: the least-squares fit with an intercept.
    H = U D V' is decomposed once, so that the weights of the shared tokens are (x - h) V D^-1 U' + 1/n. They are held as that
    product of rank r + 1 <= h + 1 (`TransferPlan.coordinates` and `basis`), sum to 1, and need no source row.

    The authors' code scales both tables by dimension, fits the same map by 1,000 steps of gradient descent on 5,000 random
    shared tokens, and maps an untied output head by the helper's own head. Our reading is the map that those steps approach, on
    all shared tokens that are not special; scaling by dimension does not change it. The head gets the fit of the helper's input
    rows to the source's head, as in `salt`.

    Args:
      source: V_s tokens; neither vectors nor embeddings are read.
      target: V_t tokens with a helper model's rows (V_t, h); a token without one is noise.
      overlap: the shared tokens; the paper matches by spelling ("exact").
      ridge: of the least squares, in mean squared lengths of the shared tokens' centred rows; the paper has none.
      regression: rows that are not copied are those of `regressed_by_shared`, from the helper's rows.
      notes: called with a sentence where the shared tokens are too few to say what the map is; see `regressed`, too.

    Returns:
      A plan whose weights sum to 1 in every mixed row, some of them negative.

    Raises:
      UserError: no helper, no shared token that it knows, or a negative ridge.
    """
    if not ridge >= 0:
        raise UserError(f"ridge {ridge}: expected 0 (the paper's) or a small number such as 0.001")
    table, known = helper_rows(target, "sava")
    anchors = find_anchors(source, target, overlap, known, "sava")
    rows = table[anchors].astype(np.float64)
    mean = rows.mean(axis=0)
    work.svd(*rows.shape)
    left, values, right = np.linalg.svd(rows - mean, full_matrices=False)
    kept = values > CUTOFF * values[0]
    left, values, right = left[:, kept], values[kept], right[kept]
    if notes is not None and len(anchors) <= table.shape[1]:
        notes(
            f"{len(anchors)} shared tokens are too few for a map from {table.shape[1]} dimensions: it fits their rows exactly "
            "and says little of others; choose a looser overlap, another helper, or a ridge."
        )
    shift = ridge * np.square(values).sum() / len(anchors)
    wanted = np.flatnonzero(~overlap.shared & known)
    coordinates = np.zeros((len(table), len(values) + 1), np.float32)
    work.product(len(wanted), table.shape[1], len(values))
    coordinates[wanted, :-1] = (table[wanted] - mean) @ right.T * (values / (np.square(values) + shift))
    coordinates[wanted, -1] = 1
    basis = np.zeros((len(values) + 1, len(source.vocabulary)))
    # A loose overlap finds one source token for several anchors.
    np.add.at(basis.T, overlap.source[anchors], np.column_stack([left, np.full(len(anchors), 1 / len(anchors))]))
    plan = TransferPlan.low_rank(coordinates, basis).with_noise(~known).with_copies(overlap.source)
    return regressed_by_shared(plan, source, target, table, overlap, anchors, notes) if regression else plan


SAVA = Method(
    name="sava",
    label="SAVA",
    color=18,
    plan=sava,
    paper="Moroni et al., 2025: Optimizing LLMs for Italian (SAVA)",
    citation="""@inproceedings{moroni-etal-2025-sava,
  title = {Optimizing {LLM}s for {I}talian: Reducing Token Fertility and Enhancing Efficiency Through Vocabulary Adaptation},
  author = {Moroni, Luca and Puccetti, Giovanni and Huguet Cabot, Pere-Llu{\\'i}s and Bejgu, Andrei Stefan and Miaschi, \
Alessio and Barba, Edoardo and Dell'Orletta, Felice and Esuli, Andrea and Navigli, Roberto},
  booktitle = {Findings of the Association for Computational Linguistics: NAACL 2025},
  year = {2025},
  pages = {6646--6660},
}""",
    summary="shared tokens copied, others from a target-language model by one linear map fitted on the shared ones",
    rules=lambda settings: [
        "One affine map from the helper's rows to the source's was fitted by least squares on the shared tokens, special ones "
        "left out" + (f", with a ridge of {settings['ridge']:g}." if settings["ridge"] else ".")
    ],
    helper=True,
    features="helper row",
    overlap="exact",
)
