"""A new token starts as the mean of the pieces that the old tokenizer would have cut it into: FVT and the asymmetric start."""

import dataclasses
from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np

from wechsel_jax.errors import UserError
from wechsel_jax.initializers.method import Method
from wechsel_jax.initializers.plan import Side, TransferPlan
from wechsel_jax.initializers.regression import Predicted, regressed_by_counts
from wechsel_jax.tokens.overlap import Overlap


def fvt(
    source: Side,
    target: Side,
    *,
    overlap: Overlap,
    pieces: Sequence[np.ndarray],
    regression: Predicted = False,
    notes: Callable[[str], None] | None = None,
) -> TransferPlan:
    """Shared tokens copied, others the mean of their pieces' rows (Gee et al., 2022: Fast Vocabulary Transfer, section 3).

    A piece that occurs twice counts twice. Special source tokens among the pieces stand for no text, the unknown token above
    all, and are left out. The reference strips the mark of a word's start before it cuts a token; here `pieces` keep the space.

    Args:
      source: V_s tokens.
      target: V_t tokens.
      overlap: the shared tokens, special tokens included.
      pieces: V_t arrays of source ids, what the source tokenizer makes of each target token's text; empty where there is none.
      regression: rows that are not copied are those of `regressed_by_counts`.
      notes: see `regressed`.

    Returns:
      A plan with one neighbor for every distinct piece; tokens that are not shared and have no piece are random.

    Raises:
      UserError: another number of pieces than target tokens, or a piece that is no source token.
    """
    rows, size = len(target.vocabulary), len(source.vocabulary)
    if len(pieces) != rows:
        raise UserError(f"pieces of {len(pieces)} tokens were given; expected one array for each of the {rows} target tokens")
    count = np.fromiter(map(len, pieces), np.int64, rows)
    ids = np.fromiter(chain.from_iterable(pieces), np.int64, count.sum())
    row = np.repeat(np.arange(rows), count)
    if len(ids) and (ids.min() < 0 or ids.max() >= size):
        raise UserError(f"a piece has the id {ids.max() if ids.max() >= size else ids.min()}; expected ids below {size}")
    plain = ~source.vocabulary.special[ids] & ~overlap.shared[row]
    # Merged while still a list of pairs: one token of 64 spaces would make a matrix of 64 columns.
    pairs, times = np.unique(row[plain] * size + ids[plain], return_counts=True)
    row, ids = pairs // size, pairs % size
    weights = times / np.bincount(row, times, rows)[row]
    plan = TransferPlan.of_pairs(rows, row, ids, weights).merged().with_copies(overlap.source)
    return regressed_by_counts(plan, source, target, notes) if regression else plan


def asymmetric(source: Side, target: Side, *, overlap: Overlap, pieces: Sequence[np.ndarray]) -> TransferPlan:
    """Input rows as FVT's, rows of an output head by the length of the pieces, all of the source rows' norm (arXiv 2608.03494).

    Written from a summary of the paper, not from the paper: shared tokens are copied; any other one is the plain mean of its
    pieces' rows in the input table, and their mean weighted by the pieces' lengths in the output head; both are scaled to the
    norm of the source's rows. Ours is what a length is, the bytes of the piece's text with its space, and the norm, the mean of
    those of all source tokens but the special ones in the same table. A tied table is an input table. A head's bias is the mean
    weighted by length, and is not scaled.

    Args:
      source: V_s tokens with `embeddings` (V_s, d) and, where the head is another table, `head` (V_s, d).
      target: V_t tokens.
      overlap: the shared tokens, special tokens included.
      pieces: see `fvt`.

    Returns:
      A plan with weights of its own for the head; tokens that are not shared and have no piece are random.

    Raises:
      UserError: as `fvt`.
    """
    plan = fvt(source, target, overlap=overlap, pieces=pieces)
    weighted = plan.weights * source.vocabulary.byte_lengths[plan.neighbors].clip(1)
    weighted /= np.maximum(weighted.sum(axis=1, keepdims=True), 1)
    by_length = dataclasses.replace(plan, weights=weighted.astype(np.float32))
    ordinary = ~source.vocabulary.special

    def scaled(plan: TransferPlan, table: np.ndarray | None) -> np.ndarray:
        """The weights at which the rows have the mean norm of the source's."""
        if table is None:
            return plan.weights
        nothing = np.broadcast_to(np.zeros((), table.dtype), (len(plan), table.shape[1]))
        norms = np.linalg.norm(plan.apply(table, nothing).astype(np.float32), axis=1)
        wanted = np.linalg.norm(table[ordinary].astype(np.float32), axis=1).mean()
        return plan.weights * np.where(norms > 0, wanted / np.where(norms > 0, norms, 1), 1).astype(np.float32)[:, None]

    return dataclasses.replace(plan, weights=scaled(plan, source.embeddings), head_weights=scaled(by_length, source.head))


FVT = Method(
    name="fvt",
    label="FVT",
    color=11,
    features="",
    plan=fvt,
    paper="Gee, Zugarini, Rigutini and Torroni, 2022: Fast Vocabulary Transfer, section 3",
    citation="""@inproceedings{gee-etal-2022-fvt,
  title = {Fast Vocabulary Transfer for Language Model Compression},
  author = {Gee, Leonidas and Zugarini, Andrea and Rigutini, Leonardo and Torroni, Paolo},
  booktitle = {Proceedings of the 2022 Conference on Empirical Methods in Natural Language Processing: Industry Track},
  year = {2022},
  pages = {409--416},
}""",
    summary="the mean of the pieces that the source tokenizer cuts the token into",
    overlap="exact",
)
ASYMMETRIC = Method(
    name="asymmetric",
    label="Asymmetric",
    color=17,
    plan=asymmetric,
    paper="arXiv 2608.03494, 2026: asymmetric subword start",
    citation="""@misc{arxiv-2608.03494,
  eprint = {2608.03494},
  archiveprefix = {arXiv},
  year = {2026},
}""",
    summary="the mean of the token's pieces, in an untied head weighted by their lengths, at the norm of the source's rows",
    rules=lambda settings: [
        "Rows of an untied head, and a head's bias, are means weighted by the pieces' lengths in bytes, all others plain "
        "means; those of tables are scaled to the mean norm of the source's rows."
    ],
    source_rows=True,
    head_rows=True,
    overlap="exact",
)
