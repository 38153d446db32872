"""TreLM's start: vectors of the new vocabulary's tokens, mapped onto the source model's own table without any dictionary."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import numpy as np

from wechsel_jax.errors import UserError
from wechsel_jax.initializers.method import Method, Setting
from wechsel_jax.initializers.plan import Side, TransferPlan
from wechsel_jax.initializers.regression import Predicted, regressed_by_counts
from wechsel_jax.records import work
from wechsel_jax.search.threads import one_thread
from wechsel_jax.tokens.overlap import Overlap, find_overlap

# Of tokens without a vector, in the reference implementation.
_NOTHING = 1e-8
_SHARED = "shared"
# As in `vectors`, whose modules bring JAX and are imported where they compute.
_STARTS = ("identity", "similarities", _SHARED)
_DIRECTIONS, _ORDERS = ("mutual", "source", "target"), ("frequency", "vocabulary")
# Tokens of both vocabularies by which a map without a dictionary is judged.
_JUDGED, _FEWEST = 1000, 20
# Singular values of the table below this share of the largest are rounding.
_RANK = 1e-6


@one_thread()
def trelm(
    source: Side,
    target: Side,
    *,
    overlap: Overlap,
    start: Annotated[
        str,
        Setting("The map before any adversarial training; shared: fitted on the tokens of both vocabularies", choices=_STARTS),
    ] = "similarities",
    epochs: Annotated[int, Setting("Of adversarial training; the paper's code has 50, after --start=identity", 0, 10_000)] = 0,
    iterations: Annotated[int, Setting("Steps of the map in an epoch of adversarial training", 1, 10**8)] = 31_250,
    most_frequent: Annotated[int, Setting("Tokens that adversarial training draws, of each side; 0: all", 0, 1 << 31)] = 0,
    refinements: Annotated[int, Setting("Rounds of refinement, on translations that the vectors propose", 0, 1000)] = 5,
    direction: Annotated[str, Setting("Which proposals refinement takes", choices=_DIRECTIONS)] = "mutual",
    order: Annotated[str, Setting("Which of the new tokens are the most frequent", choices=_ORDERS)] = "frequency",
    regression: Predicted = False,
    seed: int = 0,
    parity: bool = False,
    log: Callable[[str], None] | None = None,
    notes: Callable[[str], None] | None = None,
) -> TransferPlan:
    """A token's vector, turned into the source model's table (Li et al., 2021, section 3.2 and appendix A.1).

    The vectors are fastText's, trained on the tokens of both languages' text, with the table's dimensions. The map is an
    orthogonal W that `adversarial_align` finds between them and the table's rows. With v a vector, m and n the means of the
    vectors and of the rows, and f the ratio of the spreads around them, a new row is n + f (v - m) W: the model finds the mean
    and the length of its own rows. With `parity` it is v W, as in TreLM's code, with the map fitted on the vectors as they are.

    A row of the space that the rows span is a weighted sum of them, so the plan's weights are (row E^+), E^+ the pseudo-inverse
    of the table: with them the rows of an untied head and the bias follow too.

    Args:
      source: V_s tokens with the model's rows as `embeddings` (V_s, d).
      target: V_t tokens with vectors (V_t, d), and their `counts` for `order` (None: the order of their ids).
      overlap: shared tokens, which are copied: special ones, unless the user says otherwise.
      start: where the map begins, see `AdversarialSettings`; the next six likewise. "shared": the map is fitted once, on the
        tokens that both vocabularies have (by their bytes), and the next six are not read; not in the paper, and it cannot fail
        to find the language.
      epochs: of the training.
      iterations: of an epoch.
      most_frequent: how many tokens are drawn.
      refinements: rounds of the refinement.
      direction: of its proposals.
      order: "frequency" or "vocabulary"; the source's tokens stand in the order of their ids.
      regression: rows that are not copied are those of `regressed_by_counts`.
      seed: of every draw.
      parity: nothing is copied, the vectors keep their length and mean, and tokens without one get 1e-8 everywhere.
      log: called with progress lines.
      notes: called with what the user should know: whether a map without a dictionary has found anything.

    Returns:
      A plan of weights of all source rows; tokens without a vector are random.

    Raises:
      UserError: the vectors have other dimensions than the table, there is none, or adversarial training diverged.
    """
    from wechsel_jax.vectors.adversarial import AdversarialSettings, adversarial_align
    from wechsel_jax.vectors.refinement import Refinement, procrustes
    from wechsel_jax.vectors.word_vectors import PlainVectors

    table_SxD = np.asarray(source.embeddings, np.float32)
    if target.vectors.shape[1] != table_SxD.shape[1]:
        raise UserError(
            f"trelm: the vectors have {target.vectors.shape[1]} dimensions, and the model's table {table_SxD.shape[1]}; "
            f"expected as many; train them with `wechsel-jax vectors train --tokenizer=DIR --dim={table_SxD.shape[1]}`"
        )
    known = np.flatnonzero(target.has_vector)
    # Only an order is read of them, so that a token that was never counted is the last.
    ranked = known[np.argsort(-target.counts[known], kind="stable")] if target.counts is not None else known
    chosen = ranked if order == "frequency" else known
    names = target.vocabulary.strings
    words = PlainVectors([names[i] for i in chosen], target.vectors[chosen])
    rows = PlainVectors(source.vocabulary.strings, table_SxD[: len(source.vocabulary)])
    own = find_overlap(source.vocabulary, target.vocabulary, "exact").source
    both = np.flatnonzero((own >= 0) & target.has_vector)
    of_rows = _directions(table_SxD, np.arange(len(table_SxD)))
    if start == _SHARED:
        if not len(both):
            raise UserError("trelm: no token with a vector is in both vocabularies; expected some with --start=shared")
        turn_DxD = procrustes(_directions(target.vectors, known)[both], of_rows[own[both]])
    else:
        settings = AdversarialSettings(
            start=start,
            epochs=epochs,
            iterations=iterations,
            most_frequent=most_frequent,
            # Both sides come in their order.
            order="vocabulary",
            refinement=Refinement(rounds=refinements, direction=direction),
        )
        alike = {"normalize": not parity, "center": not parity}
        aligned = adversarial_align(words, rows, settings, seed=seed, progress=log, **alike)
        turn_DxD = aligned.source_map.astype(np.float64)
        judged = np.random.default_rng(seed).permutation(both)[:_JUDGED]
        if notes and len(judged) >= _FEWEST:
            near = (_directions(target.vectors, known)[judged] @ turn_DxD) @ of_rows.T
            median = np.median((near > np.take_along_axis(near, own[judged][:, None], axis=1)).sum(axis=1)) + 1
            # By chance it is the middle.
            if median > 0.2 * len(of_rows):
                notes(
                    f"The map has found nothing: by it, of {len(judged):,} tokens that both vocabularies have, a token's own "
                    f"row is number {median:,.0f} of {len(of_rows):,} by similarity. Train the vectors on more text, or give "
                    "--start=shared."
                )
    vectors = target.vectors.astype(np.float64)
    if parity:
        made_TxD = np.where(target.has_vector[:, None], vectors @ turn_DxD, _NOTHING)
    else:
        wide = table_SxD.astype(np.float64)
        means = vectors[known].mean(axis=0), wide.mean(axis=0)
        spreads = [
            np.sqrt(np.square(part - mean).sum(axis=1).mean()) for part, mean in zip((vectors[known], wide), means, strict=True)
        ]
        made_TxD = means[1] + spreads[1] / max(spreads[0], 1e-30) * (vectors - means[0]) @ turn_DxD
    work.svd(*table_SxD.shape)
    work.product(len(made_TxD) + len(table_SxD), *turn_DxD.shape)
    plan = TransferPlan.low_rank(made_TxD, np.linalg.pinv(table_SxD.astype(np.float64), rcond=_RANK))
    plan = plan if parity else plan.with_noise(~target.has_vector).with_copies(overlap.source)
    return regressed_by_counts(plan, source, target, notes) if regression else plan


def _directions(vectors: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Vectors (n, d) of length 1, about the mean of those that are known."""
    unit = vectors / np.maximum(np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True), 1e-30)
    return unit - unit[known].mean(axis=0)


def _unread(settings: Mapping[str, Any]) -> set[str]:
    unread = {"overlap"} if settings["parity"] else set()
    if settings["start"] == _SHARED:
        return unread | {"epochs", "iterations", "most_frequent", "refinements", "direction", "order"}
    return unread if settings["epochs"] else unread | {"iterations", "most_frequent"}


TRELM = Method(
    name="trelm",
    label="TreLM",
    color=15,
    features="",
    plan=trelm,
    paper="Li et al., 2021: Cross-lingual Transfer Learning for Pretrained Contextualized Language Models, appendix A.1",
    citation="""@misc{li-etal-2021-trelm,
  title = {Cross-lingual Transferring of Pre-trained Contextualized Language Models},
  author = {Li, Zuchao and Parnow, Kevin and Zhao, Hai and Zhang, Zhuosheng and Wang, Rui and Utiyama, Masao and \
Sumita, Eiichiro},
  year = {2021},
  eprint = {2107.12627},
  archiveprefix = {arXiv},
}""",
    summary="each token's own vector, turned into the source table's space without a dictionary",
    rules=lambda settings: [
        "Rows are the tokens' vectors, turned by an orthogonal map onto the source model's table"
        + (", as they are (parity)." if settings["parity"] else ", with the mean and the spread of its rows.")
    ],
    vectors="native",
    space="target",
    source_rows=True,
    unread=_unread,
)
