"""Orthogonal matching pursuit: each new token's helper row from a few shared tokens' helper rows, chosen greedily."""

from collections.abc import Callable
from typing import Annotated

import numpy as np

from wechsel_jax import search
from wechsel_jax.errors import UserError
from wechsel_jax.initializers.anchors import anchored_plan, find_anchors, helper_rows
from wechsel_jax.initializers.least_squares import least_squares
from wechsel_jax.initializers.method import Method, Setting
from wechsel_jax.initializers.plan import Side, TransferPlan, on_source_rows
from wechsel_jax.initializers.regression import Predicted, regressed_by_shared
from wechsel_jax.tokens.overlap import Overlap


def omp(
    source: Side,
    target: Side,
    *,
    overlap: Overlap,
    atoms: Annotated[int, Setting("Most source tokens that make one target token", 1, 1 << 20)] = 64,
    regression: Predicted = False,
    parity: bool = False,
    progress: Callable[[int, int], None] | None = None,
    notes: Callable[[str], None] | None = None,
) -> TransferPlan:
    """Sparse coding of each new token over the shared tokens in a helper model (Goddard and Fernandes Neto, 2025).

    Shared tokens are copied. Any other token's helper row is approximated by `atoms` shared tokens' helper rows, each chosen
    for the largest |cosine| with what the ones before left over; the least-squares coefficients are the weights of the shared
    tokens' source rows. Special tokens are no atoms: they stand for no text. With `parity`, the choice is by the inner product
    with rows as long as they are, which favors tokens with long rows, and shared special tokens are atoms too, as in
    mergekit-tokensurgeon.

    A row that its atoms already reproduce up to float32's rounding gets no more of them. A token without a helper row is noise.

    Args:
      source: V_s tokens; neither vectors nor embeddings are read.
      target: V_t tokens with a helper model's rows (V_t, h).
      overlap: the shared tokens.
      atoms: how many shared tokens make one new token; at most as many as there are, and at most h.
      regression: rows that are not copied are those of `regressed_by_shared`, from the helper's rows.
      parity: choose as mergekit-tokensurgeon does.
      progress: called with (tokens done, tokens to do).
      notes: see `regressed`.

    Returns:
      A plan with signed weights on source rows, strongest first; the weights do not sum to 1.

    Raises:
      UserError: no helper, no shared token that it knows, or fewer than one atom.
    """
    if atoms < 1:
        raise UserError(f"atoms {atoms}: expected at least 1; the usual number is 64")
    table, known = helper_rows(target, "omp")
    anchors = find_anchors(source, target, overlap, known, "omp", special=parity)
    wanted = np.flatnonzero(~overlap.shared & known)
    rows = table[anchors]
    places = search.pursue(rows if parity else search.unit_rows(rows), table[wanted], atoms, progress=progress)
    used = places >= 0
    places = np.where(used, places, 0)
    fit = least_squares(rows, places, used, table[wanted])
    neighbors, weights = on_source_rows(overlap.source[anchors[places]], fit.weights)
    plan = anchored_plan(overlap, wanted, neighbors, weights)
    return regressed_by_shared(plan, source, target, table, overlap, anchors, notes) if regression else plan


OMP = Method(
    name="omp",
    label="OMP",
    color=13,
    plan=omp,
    paper="Goddard and Fernandes Neto, 2025: Training-Free Tokenizer Transplantation via Orthogonal Matching Pursuit",
    citation="""@misc{goddard-fernandes-neto-2025-omp,
  title = {Training-Free Tokenizer Transplantation via Orthogonal Matching Pursuit},
  author = {Goddard, Charles and Fernandes Neto, Fernando},
  year = {2025},
}""",
    summary="shared tokens copied, others rebuilt from at most 64 of them, as in a target-language model",
    rules=lambda settings: [
        "Shared tokens, special ones too, are chosen by the inner product with what is left of the helper's row, "
        f"at most {settings['atoms']} (parity)."
        if settings["parity"]
        else "Shared tokens are chosen by the cosine with what is left of the helper's row, "
        f"at most {settings['atoms']}; special tokens are left out."
    ],
    helper=True,
    features="helper row",
    overlap="exact",
)
