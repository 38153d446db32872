"""OFA: shared tokens copied, others mixed as in WECHSEL, both in a low-dimensional factorisation of the source table."""

from collections.abc import Callable

import numpy as np

from wechsel_jax import search
from wechsel_jax.errors import UserError
from wechsel_jax.initializers.method import Method, Neighbors, Temperature, WordStart
from wechsel_jax.initializers.noise import OFA_SEED, draw_noise
from wechsel_jax.initializers.plan import Side, TransferPlan
from wechsel_jax.initializers.regression import Predicted, regressed
from wechsel_jax.initializers.transforms import Factors, low_rank
from wechsel_jax.initializers.wechsel import softmax
from wechsel_jax.search.columns import Bonus
from wechsel_jax.tokens.overlap import Overlap


def ofa(
    source: Side,
    target: Side,
    *,
    overlap: Overlap,
    neighbors: Neighbors = 10,
    temperature: Temperature = 0.1,
    word_start: WordStart = 0.0,
    regression: Predicted = False,
    parity: bool = False,
    progress: Callable[[int, int], None] | None = None,
    notes: Callable[[str], None] | None = None,
) -> TransferPlan:
    """Shared tokens copied, others a softmax over the k most similar source tokens (Liu et al., 2024: OFA, section 3).

    The paper applies the plan to the coordinates of a factorised source table: see `factorised_apply`. Its word vectors are
    multilingual (ColexNet+); any vectors of both sides in one space will do.

    With `parity`, source tokens without a vector can be neighbors, as in cisnlp/ofa, whose shared tokens are those of
    `find_overlap(..., parity="ofa")`.

    Args:
      source: V_s tokens with vectors (V_s, m) in the shared space; rows of zeros have no vector.
      target: V_t tokens with vectors (V_t, m).
      overlap: the shared tokens, special tokens included; the paper's are those of the same text, its space included, but for
        case ("case").
      neighbors: k, how many source rows make one target row.
      temperature: of the softmax over cosine similarities.
      word_start: is added to the similarity of source tokens that begin a word if the target token does, and do not if not.
      regression: rows that are not copied are those of `regressed`.
      parity: choose as cisnlp/ofa does.
      progress: see `search.nearest_neighbors`.
      notes: see `regressed`.

    Returns:
      A convex plan: tokens that are neither shared nor have a vector are random.

    Raises:
      UserError: a temperature that is not above zero, fewer than k source tokens with a vector, or vectors that do not fit.
    """
    shared = overlap.source
    if not temperature > 0 or neighbors < 1:
        raise UserError(f"temperature {temperature}, neighbors {neighbors}: expected both above zero")
    # Rows of zeros are not searched: shared tokens need no neighbors.
    wanted_TxM = np.where(shared[:, None] >= 0, np.float32(0), target.vectors)
    candidates = None if parity else source.has_vector
    bonus = Bonus(word_start, target.vocabulary.word_start, source.vocabulary.word_start)
    similarity_TxK, nearest_TxK = search.nearest_neighbors(
        wanted_TxM, source.vectors, neighbors, candidates=candidates, bonus=bonus, progress=progress
    )
    plan = TransferPlan.mixed(nearest_TxK, softmax(similarity_TxK, temperature))
    plan = plan.with_noise(where=~target.has_vector)
    if regression:
        plan = regressed(plan, source, target, notes=notes)
    return plan.with_copies(shared)


def factorised_apply(
    plan: TransferPlan,
    matrix: np.ndarray,
    dimensions: int | str | None,
    *,
    kind: str = "source",
    seed: int = 0,
    name: str = "input",
    initializer_range: float = 0.02,
    parity: bool = False,
) -> Factors:
    """Applies a plan to the coordinates of a factorised table; noise is drawn there too.

    Every table is factorised by itself: an untied output head has another projection than the input table. A head's bias has no
    second axis to factorise; it takes the plan as it is.

    Args:
      plan: V_t rows.
      matrix: (V_s, d), the source table of any float type.
      dimensions: D', see `low_rank`; None, 0, "full" or d: no factorisation.
      kind: of the noise, see `draw_noise`, which the next four are for.
      seed: any integer.
      name: the table's.
      initializer_range: for the noise of that kind.
      parity: for "source", the draw of cisnlp/ofa.

    Returns:
      coordinates (V_t, D') and the projection (D', d) of the source table; `Factors.dense` is the table of a usual model.
    """
    source = low_rank(matrix, dimensions)
    noise = None
    if plan.random.any():
        options = {"initializer_range": initializer_range, "parity": parity, "parity_seed": OFA_SEED, "where": plan.random}
        noise = draw_noise(source.coordinates, len(plan), kind=kind, seed=seed, name=name, **options)
    return Factors(plan.apply(source.coordinates, noise), source.projection)


OFA = Method(
    name="ofa",
    label="OFA",
    color=4,
    plan=ofa,
    paper="Liu, Lin, Wang and Schütze, 2024: OFA, section 3",
    citation="""@inproceedings{liu-etal-2024-ofa,
  title = {{OFA}: A Framework of Initializing Unseen Subword Embeddings for Efficient Large-scale Multilingual Continued \
Pretraining},
  author = {Liu, Yihong and Lin, Peiqin and Wang, Mingyang and Sch{\\"u}tze, Hinrich},
  booktitle = {Findings of the Association for Computational Linguistics: NAACL 2024},
  year = {2024},
  pages = {1067--1097},
}""",
    summary="shared tokens copied, others mixed as in WECHSEL, in factorised coordinates if asked for",
    vectors="ngram",
    overlap="case",
    reference_overlap="ofa",
    reference_seed=OFA_SEED,
)
