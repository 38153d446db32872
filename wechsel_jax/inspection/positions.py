"""What is left of the positions once embeddings have met them: "absorption" (Kim et al., 2024, section 6), in exact numbers.

A word is drawn from the vocabulary, a position from the first L, each evenly and without regard to the other; h is what the
first layer reads. Three questions are asked of h. How much of its variance does the position explain (`share`)? How well does
the best linear reader find the position's number (`linear`; both follow from the mean and covariance of the rows, no sample is
drawn)? And how well do a ridge regression and a linear discriminant, for words that they have not seen (`probe`)?
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from wechsel_jax.errors import UserError, from_extra
from wechsel_jax.initializers.transforms import scalar_moments, sinusoidal_positions
from wechsel_jax.inspection.distribution import TableRows
from wechsel_jax.search.threads import one_thread

if TYPE_CHECKING:
    from wechsel_jax.checkpoint import Checkpoint

# "sinusoidal": exponents j / D, as the paper writes them; "paired": as Vaswani et al. (2017); "halves": sines, then cosines, as
# fairseq has them; "learned": the model's own table; "rotary": rows are turned, nothing is added; "relative": attention alone
# knows of positions.
FORMULAS = ("sinusoidal", "paired", "halves")
KINDS = (*FORMULAS, "learned", "rotary", "relative")
_LEARNED = re.compile(r"(\w+\.)*(wpe|position_embeddings|embed_positions|position_embedding)\.weight")
# `less` of `sinusoidal`: 1 is fairseq's, with which the last sine has exponent 1.
_COMPUTED = {"xglm": 1, "m2m_100": 1, "marian": 0, "pegasus": 0}
_RELATIVE = ("t5", "mt5", "umt5", "deberta-v2", "deberta", "bloom", "mpt")
_RIDGES = np.logspace(-6, 6, 13)
# Of a probe: words, and positions that each is put at.
_WORDS, _PLACES = 3000, 3


@dataclasses.dataclass(frozen=True)
class Positions:
    """How a model tells positions apart.

    Attributes:
      kind: one of `KINDS`.
      table: (L, D), what is added; None where nothing is.
      theta: base of rotary positions.
      scale: what the model multiplies its embeddings by before that.
    """

    kind: str
    table: np.ndarray | None = None
    theta: float = 10_000.0
    scale: float = 1.0


@dataclasses.dataclass(frozen=True)
class Reading:
    """What a probe finds of the position of words that it has not seen.

    Attributes:
      r2: of a ridge regression, coefficient of determination of the position's number.
      accuracy: of a linear discriminant with a class for each position.
    """

    r2: float
    accuracy: float


def sinusoidal(kind: str, length: int, dimension: int, less: int = 1) -> Positions:
    """Positions of one of `FORMULAS`; L = `length`. For halves, sine j has exponent j / (D / 2 - `less`)."""
    if kind != "halves":
        return Positions(kind, sinusoidal_positions(length, dimension, paired=kind == "paired"))
    half = dimension // 2
    angle = np.arange(length)[:, None] * np.exp(np.arange(half) * -(math.log(10_000) / max(half - less, 1)))
    table = np.concatenate([np.sin(angle), np.cos(angle), np.zeros((length, dimension % 2))], axis=1)
    return Positions(kind, table)


def of_checkpoint(checkpoint: "Checkpoint", length: int) -> Positions | None:
    """Finds how a model tells positions apart from its config and the names of its tensors; None where they do not say.

    Args:
      checkpoint: of any architecture.
      length: at most so many positions are taken from a table.
    """
    config = {**checkpoint.config, **(checkpoint.config.get("text_config") or {})}
    kind, dimension = checkpoint.architecture, checkpoint.hidden_size
    # Gemma multiplies always, the BART family where it says so.
    scale = math.sqrt(dimension) if kind.startswith("gemma") or config.get("scale_embedding") else 1.0
    if kind in _RELATIVE:
        return Positions("relative", scale=scale)
    if kind == "transformer":
        known = {"literal": "sinusoidal", "paired": "paired"}.get(config.get("positions", "literal"))
        return known and dataclasses.replace(sinusoidal(known, length, dimension), scale=math.sqrt(dimension))
    # The first rows of many position tables are padding's, and are never added to a word.
    padding = 1 if (pad := config.get("pad_token_id")) is None else pad
    padded = checkpoint.record.positions or checkpoint.record.computed_positions
    first = padding + 1 if padded else 2 if kind in ("opt", "bart", "mbart") else 0
    stored = [name for name, one in checkpoint.tensors.items() if _LEARNED.fullmatch(name) and one.shape[1:] == (dimension,)]
    computed = kind in _COMPUTED
    if stored:
        table = checkpoint.read(min(stored, key=lambda name: ("encoder" not in name, name)))[first : first + length]
        return Positions("halves" if computed else "learned", table.astype(np.float64), scale=scale)
    if computed:
        return Positions("halves", sinusoidal("halves", first + length, dimension, _COMPUTED[kind]).table[first:], scale=scale)
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    # Some models have one record for each kind of layer.
    rope = next((part for part in rope.values() if isinstance(part, Mapping)), rope)
    theta = rope.get("rope_theta", config.get("rope_theta", config.get("rotary_emb_base")))
    if theta is None and kind not in ("llama", "mistral", "gptj", "gpt_neox", "gemma", "gemma2", "phi", "falcon"):
        return None
    return Positions("rotary", theta=float(theta or 10_000.0), scale=scale)


@one_thread()
def absorption(
    mean: np.ndarray, covariance: np.ndarray, positions: Positions, length: int, scale: float = 1.0
) -> tuple[float, float]:
    """What the position explains of the input, and what the best linear reader finds of it.

    Rotary positions turn the rows as if they were the queries of one head (pairs j and j + D / 2, as in Llama); they are not
    added, so the scale changes nothing. With relative ones the input holds no position: both are 0.

    Args:
      mean: (D,) of the rows.
      covariance: (D, D) of the rows, divided by N; see `distribution.moments_of`.
      positions: what the rows meet.
      length: L, how many positions; no more than an added table has.
      scale: of the rows before that.

    Returns:
      share: trace of cov(E[h | position]) to trace of cov(h).
      linear: largest share of the variance of the position's number that a linear function of h explains.
    """
    if positions.kind == "relative":
        return 0.0, 0.0
    mean, covariance = scale * mean, scale**2 * covariance
    if positions.table is None:
        centres, spread = np.empty((length, len(mean))), np.zeros_like(covariance)
        for place in range(length):
            centres[place] = _turned(mean[None], np.array([place]), positions.theta)[0]
            half = _turned(covariance, np.full(len(mean), place), positions.theta)
            spread += _turned(half.T, np.full(len(mean), place), positions.theta) / length
    else:
        table = positions.table[:length]
        length, centres, spread = len(table), table + mean, covariance
    away = centres - centres.mean(axis=0)
    explained = away.T @ away / length
    number = np.arange(length) - (length - 1) / 2
    together = away.T @ number / length
    total = spread + explained
    # Outlier dimensions make rows of some models' tables ill-conditioned; the linear reader does not care for their units.
    unit = np.sqrt(np.maximum(np.diag(total), np.finfo(float).tiny))
    weights = np.linalg.lstsq(total / np.outer(unit, unit), together / unit, rcond=1e-12)[0]
    linear = float(weights @ (together / unit) / max((number**2).mean(), np.finfo(float).tiny))
    trace = float(np.trace(total))
    return (float(np.trace(explained)) / trace if trace else 0.0), min(max(linear, 0.0), 1.0)


def position_sd(positions: Positions, length: int) -> float | None:
    """Sample deviation of all entries of the first L rows of what is added; None where nothing is."""
    return None if positions.table is None else scalar_moments(positions.table[:length])[1]


@one_thread()
def probe(rows: TableRows, positions: Positions, length: int, scale: float = 1.0, *, seed: int = 0) -> Reading:
    """Trains linear probes to tell the position of words, and scores them on words that they were not trained on.

    Up to 3,000 words are drawn, each put at three positions; two thirds of the words are trained on.

    Args:
      rows: the table.
      positions: what the rows meet; not "relative".
      length: L, positions that are told apart.
      scale: of the rows before that.
      seed: of the words and positions.

    Raises:
      UserError: scikit-learn is not installed, or the table has too few rows.
    """
    with from_extra("eval", "for --probe"):
        from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
        from sklearn.linear_model import RidgeCV
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler
    generator = np.random.default_rng(seed)
    chosen = np.sort(generator.choice(rows.shape[0], min(_WORDS, rows.shape[0]), replace=False))
    if len(chosen) < 30:
        raise UserError(f"{rows.name}: {len(chosen)} rows are too few for a probe; expected 30 or more; leave --probe out")
    if positions.table is not None:
        length = min(length, len(positions.table))
    order = generator.permutation(len(chosen))
    ids = np.repeat(np.arange(len(chosen)), _PLACES)
    places = generator.integers(length, size=len(ids))
    met = rows.read(chosen).astype(np.float64)[ids] * scale
    if positions.table is None:
        met = _turned(met, places, positions.theta)
    else:
        met += positions.table[places]
    seen = np.isin(ids, order[: 2 * len(chosen) // 3])
    if len(np.unique(places[seen])) == seen.sum():
        raise UserError(
            f"{rows.name}: {len(chosen)} rows are too few to tell {length:,} positions apart; expected a smaller length, or "
            "leave --probe out"
        )
    # The penalty is chosen among the words that are trained on; with a fixed one the result would depend on the scale. Of
    # linear classifiers the discriminant knows best how words spread around each position; logistic regression finds less.
    number, named = (make_pipeline(StandardScaler(), kind) for kind in (RidgeCV(_RIDGES), LinearDiscriminantAnalysis()))
    number.fit(met[seen], places[seen])
    named.fit(met[seen], places[seen])
    return Reading(float(number.score(met[~seen], places[~seen])), float(named.score(met[~seen], places[~seen])))


def _turned(rows: np.ndarray, places: np.ndarray, theta: float) -> np.ndarray:
    """Rows (n, D) after rotary positions (n,): pairs (j, j + D / 2) turn by place * theta^(-2 j / D); an odd last one stays."""
    half = rows.shape[1] // 2
    angle = places[:, None] * theta ** (-np.arange(half) / max(half, 1))
    cos, sin = np.cos(angle), np.sin(angle)
    first, second = rows[:, :half], rows[:, half : 2 * half]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, rows[:, 2 * half :]], axis=1)
