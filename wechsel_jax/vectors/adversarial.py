"""Two languages' word vectors in one space without any dictionary: a map that a discriminator cannot see through.

Lample et al. (2018), section 2.1, as TreLM (Li et al., 2021, appendix A.1) uses it to carry word vectors into the embedding
table of a language model. The table is then the target side: `PlainVectors` of its tokens and rows.
"""

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from wechsel_jax.errors import UserError
from wechsel_jax.records import work
from wechsel_jax.search.threads import one_thread
from wechsel_jax.vectors.alignment import (
    FREQUENT_WORDS,
    Alignment,
    choose_words,
    find_pairs,
    frequent_ids,
    measure,
    prepare_side,
    rotated,
)
from wechsel_jax.vectors.refinement import Refinement, known_rows, propose, refine_rotation
from wechsel_jax.vectors.self_learning import similarity_map
from wechsel_jax.vectors.word_vectors import WordVectors

ORDERS = ("frequency", "vocabulary")
STARTS = ("identity", "similarities")
# Iterations between two looks at the clock: an interrupt waits for one such piece.
_PIECE = 1000
# The least and the most; above, memory or time would not suffice.
_RANGES = {
    "epochs": (0, 10_000),
    "iterations": (1, 10**8),
    "most_frequent": (0, 1 << 31),
    "hidden": (1, 1 << 14),
    "restarts": (1, 1000),
}
# They are counted in int32.
_MOST_STEPS = 2**31 - 1
# The rest of the training is MUSE's: words of either language in a batch, and steps of the discriminator before one of the map.
_BATCH_SIZE, _DISCRIMINATOR_STEPS = 32, 5
# The learning rate of the map at first, its factor after each epoch, a further one after an epoch whose criterion is below the
# best, from the second such epoch on, and the rate below which training ends.
_LEARNING_RATE, _DECAY, _SHRINK, _MIN_LEARNING_RATE = 0.1, 0.98, 0.5, 1e-6
# The share of the discriminator's inputs that is set to zero while it learns; its labels, `smoothing` and 1 - `smoothing`; the
# slope of its leaky rectifier below zero; b of W <- (1 + b) W - b W W^T W, taken after each step of the map. They are an
# argument of the jitted steps, so that a test can write one out in which nothing is dropped.
_NUMBERS = {
    "input_dropout": 0.1,
    "smoothing": 0.1,
    "leak": 0.2,
    "discriminator_learning_rate": 0.1,
    "orthogonality": 0.001,
}


@dataclass(frozen=True)
class AdversarialSettings:
    """How the map and the discriminator are trained; MUSE's values. TreLM has `epochs=50, most_frequent=0, order="vocabulary"`.

    Attributes:
      start: the map that training begins with. "identity" is MUSE's, and with it each further restart begins with a random
        rotation or reflection, since training finds the right map from some beginnings only; "similarities" is
        `self_learning.similarity_map`, itself one of the maps that the criterion chooses from.
      epochs: the criterion is measured, and the learning rate changed, after each; 0 takes the start as it is, which must then
        be "similarities".
      iterations: of an epoch; MUSE sees a million words of batches of 32.
      most_frequent: only so many of the most frequent words of either language are drawn, each as often; 0 draws from all.
      order: which words are the most frequent: "frequency" goes by their counts, where the vectors have them; "vocabulary"
        takes them as they come, like TreLM.
      hidden: width of the discriminator's two hidden layers.
      restarts: trainings of which the criterion chooses one.
      refinement: what follows the training, see `Refinement`; its words are also those of the criterion.
    """

    start: str = "identity"
    epochs: int = 5
    iterations: int = 31_250
    most_frequent: int = 75_000
    order: str = "frequency"
    hidden: int = 2048
    restarts: int = 1
    refinement: Refinement = field(default_factory=Refinement)

    def __post_init__(self):
        if self.start not in STARTS:
            raise UserError(f"start {self.start!r}; expected one of {', '.join(STARTS)}")
        if self.start == "identity" and not self.epochs:
            raise UserError(f"epochs is {self.epochs}; expected 1 or more, or 0 with the start 'similarities'")
        for name, (least, most) in _RANGES.items():
            if not least <= getattr(self, name) <= most:
                raise UserError(f"{name} is {getattr(self, name)}; expected {least:,} to {most:,}")
        if self.epochs * self.iterations > _MOST_STEPS:
            steps = f"{self.epochs:,} epochs of {self.iterations:,} iterations"
            raise UserError(f"{steps}: expected at most {_MOST_STEPS:,} steps in all; lower one of the two")
        if self.order not in ORDERS:
            raise UserError(f"order {self.order!r}; expected one of {', '.join(ORDERS)}")


@one_thread()
def adversarial_align(
    source: WordVectors,
    target: WordVectors,
    settings: AdversarialSettings | None = None,
    *,
    normalize: bool = False,
    center: bool = False,
    seed: int = 0,
    pairs: Iterable[tuple[str, str]] | None = None,
    csls: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Alignment:
    """Fits an orthogonal map from source to target vectors without a dictionary (Lample et al., 2018, sections 2.1 to 2.4).

    A discriminator learns to tell mapped source vectors from target vectors, and the map learns to deceive it; of all epochs
    and restarts the one is kept whose CSLS translations have the highest mean cosine; refinement follows. The map that is
    measured and returned is the nearest orthogonal one.

    It works between vectors that were made alike from much and similar text, and fails, which the criterion shows, between
    small or dissimilar corpora and distant languages (Søgaard et al., 2018). Restarts help where it works sometimes; the start
    "similarities", of Artetxe et al. (2018), works far more often and in a hundredth of the time. The map cannot change
    lengths: where the two sides' differ, as those of word vectors and a model's table do, use `normalize`.

    Args:
      source: vectors of the source side, (W_s, m_s).
      target: vectors of the target side, (W_t, m_t), fixed; word vectors or the table of a model.
      settings: of the training; MUSE's where None.
      normalize: scale every vector to length 1 first.
      center: take the mean of the (at most 50,000) most frequent words off, after `normalize`.
      seed: of every draw; the same seed gives the same map on the same kind of device.
      pairs: (source word, target word) pairs to measure P@1 with, on at most 1,500 source words; nothing is fitted on them.
      csls: measure P@1 by CSLS as well.
      progress: called with a line after every epoch and every round of refinement; None: there is no bar on stderr either.

    Returns:
      The maps. Their report holds "method", "pairs" (translations that the map proposes), "residual" (over them, as in
        `align`), "normalize", "center", "settings", "seed", "restart" (the one kept), "criterion" (after refinement),
        "adversarial" (for every epoch: "restart", "epoch", "criterion", "learning_rate", "discriminator_loss"; epoch 0, without
        a loss, is the start "similarities"), "refine",
        "refined_round", "refinement", and with `pairs` what `align` reports of P@1.

    Raises:
      UserError: one side has no vectors, or the training diverged in every restart.
    """
    settings = settings or AdversarialSettings()
    size = min(source.dim, target.dim)
    sides = [prepare_side(vectors, size, normalize, center) for vectors in (source, target)]
    drawn, ranked = [], []
    for name, vectors, side in zip(("source", "target"), (source, target), sides, strict=True):
        by_count = settings.order == "frequency"
        for most, rows in ((settings.most_frequent, drawn), (settings.refinement.max_rank, ranked)):
            rows.append(known_rows(side(vectors.rows(frequent_ids(vectors, most, by_count)))))
            if not len(rows[-1]):
                raise UserError(f"the {name} side has vectors of zeros only; expected word vectors or a model's table")
    best, history = _train(drawn, ranked, settings, seed, progress)
    refined = refine_rotation(*ranked, best.rotation, settings.refinement, progress=_told(progress))
    source_side = rotated(sides[0], refined.rotation)
    report = {
        "method": "adversarial",
        **_agreement(*ranked, refined.rotation, settings.refinement),
        "normalize": normalize,
        "center": center,
        "settings": asdict(settings),
        "seed": seed,
        "restart": best.restart,
        "criterion": refined.criterion,
        "adversarial": history,
        "refine": settings.refinement.rounds,
        "refined_round": refined.round,
        "refinement": refined.history,
    }
    if pairs is not None:
        found, _ = find_pairs(source, target, list(pairs), "unique")
        tested = choose_words(found, min(len(target.words), FREQUENT_WORDS), 1.0, seed)
        if tested is not None:
            report |= measure(source, target, source_side, sides[1], tested, csls)
    return Alignment(source_side, sides[1], report)


@dataclass(frozen=True)
class _Best:
    rotation: np.ndarray | None
    criterion: float
    restart: int


def _train(
    drawn: list, ranked: list, settings: AdversarialSettings, seed: int, tell: Callable | None
) -> tuple[_Best, list[dict]]:
    """Returns the best orthogonal map of all epochs and restarts, and the history."""
    device = [jnp.asarray(rows) for rows in drawn]
    best, history = _Best(None, -math.inf, 0), []
    for restart in range(settings.restarts):
        found, entries = _train_once(device, ranked, settings, seed, restart, tell)
        best = found if found.criterion > best.criterion else best
        history += entries
    if best.rotation is None:
        raise UserError("the adversarial training diverged; use --normalize, or start with similarities")
    return best, history


def _train_once(
    drawn: list, ranked: list, settings: AdversarialSettings, seed: int, restart: int, tell: Callable | None
) -> tuple[_Best, list[dict]]:
    shown, tell = tell is not None, tell or (lambda line: None)
    key, generator = jax.random.fold_in(jax.random.key(seed), restart), np.random.default_rng([seed, restart])
    learned = settings.start == "similarities"
    state = _first_state(generator, drawn[0].shape[1], settings.hidden, restart > 0 and not learned)
    if learned:
        state["map"] = jnp.asarray(similarity_map(*ranked, generator, progress=tell), jnp.float32)
    best, history = _Best(None, -math.inf, restart), []
    rate, highest, dropped = _LEARNING_RATE, -math.inf, False
    for epoch in range(0 if learned else 1, settings.epochs + 1):
        if rate < _MIN_LEARNING_RATE:
            break
        loss = None
        if epoch:
            title = f"restart {restart}, epoch {epoch} of {settings.epochs}"
            with tqdm(total=settings.iterations, unit=" steps", desc=title, disable=not shown, leave=False) as bar:
                state, loss = _train_epoch(state, drawn, settings, key, epoch, rate, bar)
        rotation = _nearest_orthogonal(np.asarray(state["map"], np.float64))
        if rotation is None:
            tell(f"restart {restart}, epoch {epoch}: the map holds NaN or infinity; this restart ends")
            break
        work.product(*ranked[0].shape, len(rotation))
        criterion = propose((ranked[0] @ rotation).astype(np.float32), ranked[1], settings.refinement)[2]
        history.append(
            {"restart": restart, "epoch": epoch, "criterion": criterion, "learning_rate": rate, "discriminator_loss": loss}
        )
        told = f"discriminator loss {loss:.4f}" if epoch else "before any training"
        tell(f"restart {restart}, epoch {epoch}: criterion {criterion:.4f}, {told}")
        if criterion > best.criterion:
            best = _Best(rotation, criterion, restart)
        if epoch:
            rate = max(_MIN_LEARNING_RATE, rate * _DECAY)
            if criterion < highest:
                rate, dropped = rate * _SHRINK if dropped else rate, True
        highest = max(highest, criterion)
    return best, history


def _train_epoch(
    state: dict, drawn: list, settings: AdversarialSettings, key: jax.Array, epoch: int, rate: float, bar: tqdm
) -> tuple[dict, float]:
    """Returns the state after an epoch, from 1, and the discriminator's mean loss."""
    run = _trainer(_BATCH_SIZE, _DISCRIMINATOR_STEPS)
    total, end = 0.0, epoch * settings.iterations
    size = drawn[0].shape[1]
    weights = sum(weight.size for weight, _ in state["discriminator"])
    # While the discriminator learns, nothing goes back into its inputs; while the map does, nothing into its weights.
    passes = _DISCRIMINATOR_STEPS * (3 * weights - size * settings.hidden) + 2 * weights
    work.product(settings.iterations, 2 * _BATCH_SIZE, passes)
    work.product(settings.iterations, (_DISCRIMINATOR_STEPS + 2) * _BATCH_SIZE + 2 * size, size, size)
    for first in range(end - settings.iterations, end, _PIECE):
        last = min(first + _PIECE, end)
        state, loss = run(state, *drawn, key, first, last, rate, _NUMBERS)
        total += float(loss)
        bar.update(last - first)
    return state, total / settings.iterations


def _nearest_orthogonal(matrix: np.ndarray) -> np.ndarray | None:
    if not np.isfinite(matrix).all():
        return None
    work.svd(*matrix.shape)
    u, _, vt = np.linalg.svd(matrix)
    return u @ vt


def _agreement(source: np.ndarray, target: np.ndarray, rotation: np.ndarray, settings: Refinement) -> dict:
    mapped = (source @ rotation).astype(np.float32)
    left, right, _ = propose(mapped, target, settings)
    a, b = mapped[left].astype(np.float64), target[right].astype(np.float64)
    return {"pairs": len(left), "residual": float(np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-30))}


def _told(progress: Callable[[str], None] | None) -> Callable[[dict], None] | None:
    if progress is None:
        return None
    return lambda entry: progress(f"refinement, round {entry['round']}: criterion {entry['criterion']:.4f}")


def _first_state(generator: np.random.Generator, size: int, hidden: int, random_map: bool) -> dict:
    """The identity or a random map, and a discriminator drawn like torch's linear layers: uniform within 1 / sqrt(inputs)."""
    layers = []
    for inputs, outputs in ((size, hidden), (hidden, hidden), (hidden, 1)):
        bound = 1 / math.sqrt(inputs)
        layers.append(
            tuple(jnp.asarray(generator.uniform(-bound, bound, n), jnp.float32) for n in ((inputs, outputs), outputs))
        )
    matrix = np.eye(size)
    if random_map:
        q, r = np.linalg.qr(generator.normal(size=(size, size)))
        # The signs make the draw uniform over all orthogonal matrices (Mezzadri, 2007).
        matrix = q * np.sign(np.diag(r))
    return {"map": jnp.asarray(matrix, jnp.float32), "discriminator": layers}


@functools.lru_cache(maxsize=8)
def _trainer(batch_size: int, discriminator_steps: int) -> Callable:
    """Returns the jitted iterations `first` to `last` - 1, which give the state and the sum of the discriminator's losses."""

    def run(state, source, target, key, first, last, rate, numbers):
        def logits(layers, x_BxM):
            for number, (weight, bias) in enumerate(layers):
                x_BxM = x_BxM @ weight + bias
                if number + 1 < len(layers):
                    x_BxM = jnp.where(x_BxM > 0, x_BxM, numbers["leak"] * x_BxM)
            return x_BxM[:, 0]

        def loss_of(layers, x_BxM, label_B):
            z_B = logits(layers, x_BxM)
            return jnp.mean(jax.nn.softplus(z_B) - label_B * z_B)

        half = jnp.full(batch_size, 1.0)
        label_B = jnp.concatenate([half * (1 - numbers["smoothing"]), half * numbers["smoothing"]])
        exact = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)

        def iteration(number, carry):
            matrix, layers, total = carry
            # All that an iteration draws, at once: random numbers take longest to compile.
            draw_key, drop_key = jax.random.split(jax.random.fold_in(key, number))
            counts_2x1 = jnp.array([[len(source)], [len(target)]])
            ids_Sx2xB = jax.random.randint(draw_key, (discriminator_steps + 1, 2, batch_size), 0, counts_2x1)
            shape = (discriminator_steps, 2 * batch_size, source.shape[1])
            keep_SxBxM = jax.random.uniform(drop_key, shape) >= numbers["input_dropout"]

            def discriminator_step(carry, drawn):
                layers, total = carry
                (source_ids, target_ids), keep_BxM = drawn
                batch = jnp.concatenate([exact(source[source_ids], matrix), target[target_ids]])
                batch = jnp.where(keep_BxM, batch / (1 - numbers["input_dropout"]), 0)
                loss, gradient = jax.value_and_grad(loss_of)(layers, batch, label_B)
                layers = jax.tree.map(lambda p, g: p - numbers["discriminator_learning_rate"] * g, layers, gradient)
                return (layers, total + loss / discriminator_steps), None

            (layers, total), _ = jax.lax.scan(discriminator_step, (layers, total), (ids_Sx2xB[:-1], keep_SxBxM))
            x, y = source[ids_Sx2xB[-1, 0]], target[ids_Sx2xB[-1, 1]]

            def map_loss(matrix):
                # The labels change sides; nothing is dropped, as in MUSE.
                return loss_of(layers, jnp.concatenate([exact(x, matrix), y]), 1 - label_B)

            matrix = matrix - rate * jax.grad(map_loss)(matrix)
            b = numbers["orthogonality"]
            matrix = (1 + b) * matrix - b * exact(exact(matrix, matrix.T), matrix)
            return matrix, layers, total

        carry = state["map"], state["discriminator"], jnp.zeros(())
        matrix, layers, total = jax.lax.fori_loop(first, last, iteration, carry)
        return {"map": matrix, "discriminator": layers}, total

    return jax.jit(run)
