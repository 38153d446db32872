"""FVT: a new token starts as the mean of the pieces that the old tokenizer would have cut it into."""

from collections.abc import Sequence
from itertools import chain

import numpy as np

from wechsel_jax.errors import UserError
from wechsel_jax.initializers.method import Method
from wechsel_jax.initializers.plan import Side, TransferPlan
from wechsel_jax.tokens.overlap import Overlap


def fvt(source: Side, target: Side, *, overlap: Overlap, pieces: Sequence[np.ndarray]) -> TransferPlan:
    """Shared tokens copied, others the mean of their pieces' rows (Gee et al., 2022: Fast Vocabulary Transfer, section 3).

    A piece that occurs twice counts twice. Special source tokens among the pieces stand for no text, the unknown token above
    all, and are left out. The reference strips the mark of a word's start before it cuts a token; here `pieces` keep the space.

    Args:
      source: V_s tokens.
      target: V_t tokens.
      overlap: the shared tokens, special tokens included.
      pieces: V_t arrays of source ids, what the source tokenizer makes of each target token's text; empty where there is none.

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
    plain = ~np.asarray(source.vocabulary.special)[ids] & ~overlap.shared[row]
    # Merged while still a list of pairs: one token of 64 spaces would make a matrix of 64 columns.
    pairs, times = np.unique(row[plain] * size + ids[plain], return_counts=True)
    row, ids = pairs // size, pairs % size
    distinct = np.bincount(row, minlength=rows)
    place = np.arange(len(row)) - np.repeat(np.cumsum(distinct) - distinct, distinct)
    neighbors = np.zeros((rows, distinct.max(initial=0)), np.int32)
    weights = np.zeros(neighbors.shape, np.float32)
    total = np.bincount(row, times, rows)
    neighbors[row, place], weights[row, place] = ids, times / total[row]
    return TransferPlan.mixed(neighbors, weights).merged().with_noise(distinct == 0).with_copies(overlap.source)


FVT = Method(
    name="fvt",
    label="FVT",
    color=11,
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
