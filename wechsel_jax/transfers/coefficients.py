"""Moves all rows of a new table at once by a few steps of training along coordinates of the tokens, under the frozen model.

A method that predicts rows by a regression, such as `anker`, has fitted its coefficients to the source's rows. Here they are
fitted to what the model is for: its own loss on text of the new language. They are r x d numbers for a table of V x d, so
little text will do, and tokens that this text does not show move with those that are like them.
"""

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.errors import UserError
from wechsel_jax.initializers import TransferPlan
from wechsel_jax.initializers.regression import white
from wechsel_jax.text.files import LONGEST_DOCUMENT
from wechsel_jax.tokens import Vocabulary
from wechsel_jax.tokens.text import read_token_ids
from wechsel_jax.transfers.calibration import require_family
from wechsel_jax.transfers.samples import full_rows, held_apart

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_LENGTH, _BATCH = 128, 16
# Of the root mean square of the input rows, per step at the highest; warm-up over a tenth, then half a cosine to 0.
_RATE, _WARMUP = 0.05, 0.1
_MOST_HELD_OUT = 4 * _BATCH
# Where the parameters of a role lie; a head has either rows of its own or the input's.
_PLACES = {"input": ("token_embedding", "embedding"), "head": ("head", "embedding"), "bias": ("head", "bias")}


def tune_coefficients(
    directory: Path,
    plan: TransferPlan,
    tokenizer: "PreTrainedTokenizerFast",
    vocabulary: Vocabulary,
    text: tuple[str, ...],
    *,
    steps: int,
    text_bytes: int = 0,
    text_field: str = "text",
    max_document_bytes: int = LONGEST_DOCUMENT,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Fits what a transfer just wrote to text, and changes its tables in place where that helps.

    With X the white coordinates of the tokens (V, r), each table E (V, d) with a vocabulary axis becomes E + X K. The matrices
    K begin as zeros and are trained by Adam on the model's own objective (the next token; or 15 % of the tokens, masked), in
    steps of 16 rows of 128 tokens, at rates that follow the size of the input rows; everything else stays as it is. A tenth of
    the text is held out, and the tables are changed if its loss is lower then. The coordinates are those of the plan; where
    its method gave none, the rows themselves, so that K is a linear map of all rows. Rows that the plan copies stay.

    Args:
      directory: the written model; nobody else reads it yet.
      plan: of its V_t tokens.
      tokenizer: of the model.
      vocabulary: its V_t tokens.
      text: text of the target language.
      steps: how many; text that ends before them is read again, in another order.
      text_bytes: how many bytes of text are read, evenly chosen; 0: all.
      text_field: which field holds the text of JSON lines and tables.
      max_document_bytes: text with a longer line or row is refused.
      seed: of the order of the text and of the masks.
      progress: called with (done, steps) after each.

    Returns:
      {"coordinates": r, "steps", "tokens" read by them, "held_out" tokens, "flops" of the steps' matrix products, "loss":
      before and after on held-out text, in nats a predicted token, "kept"}.

    Memory is that of the parameters in float32, of four more copies of the tables, of X, and of a step's activations.

    Raises:
      UserError: no such architecture is implemented here, or there is too little text.
    """
    # With the models, in the extra `train`.
    import optax

    from wechsel_jax.objectives import make_objective

    checkpoint = Checkpoint.open(directory)
    family, config = require_family(checkpoint, "tune_coefficients")
    parameters = family.from_hugging_face(checkpoint.arrays(), config)
    stored: dict[str, list[str]] = {}
    for tensor in checkpoint.vocabulary_tensors():
        # A bias may be stored twice.
        stored.setdefault(tensor.role, []).append(tensor.name)
    places = {role: _PLACES[role] for role in stored}
    tables = {role: np.asarray(parameters[module][name], np.float32) for role, (module, name) in places.items()}
    known = plan.coordinates is not None and plan.coordinates.any()
    x = np.where(plan.copy[:, None] < 0, plan.coordinates if known else tables["input"][: len(plan)], 0)
    if not x.any():
        raise UserError("tune_coefficients: every token is copied, so no row may move; leave tune_coefficients out")
    x = jnp.asarray(white(x, len(tables["input"])))
    ids = read_token_ids(tokenizer, text, text_bytes, text_field, max_document_bytes)
    rows = full_rows(ids, tokenizer, vocabulary, family.causal, min(_LENGTH, config.max_length))
    if len(rows) < 2:
        raise UserError(
            f"{', '.join(text)}: {len(rows)} rows of {rows.shape[1]} tokens; expected at least 2 to tune coefficients on; give "
            "more target_text, or leave tune_coefficients out"
        )
    generator = np.random.default_rng(seed)
    judged, fitted = (rows[part] for part in held_apart(generator.permutation(len(rows)), _MOST_HELD_OUT))
    objective = make_objective(
        "clm" if family.causal else "mlm",
        family,
        config,
        mask_token_id=vocabulary.id_with_role("mask"),
        special_ids=vocabulary.without_text(len(vocabulary)),
        vocabulary_size=len(vocabulary),
    )
    base, model = jax.device_put(tables), jax.device_put(parameters)
    key = jax.random.key(seed)
    rate = _RATE * float(np.sqrt(np.square(tables["input"][: len(plan)], dtype=np.float64).mean()))
    optimizer = optax.adam(optax.warmup_cosine_decay_schedule(0.0, rate, round(_WARMUP * steps), steps))
    coefficients = {role: jnp.zeros((x.shape[1], *table.shape[1:])) for role, table in tables.items()}
    types = {role: checkpoint.tensors[stored[role][0]].dtype for role in tables}

    def loss(now: Mapping[str, jax.Array]) -> float:
        """Of the held-out text, with tables as they can be stored."""
        as_stored = {role: table.astype(types[role]).astype(jnp.float32) for role, table in moved(base, x, now).items()}
        sums = [_sums(objective, as_stored, model, batch, key)[:2] for batch in _batches(judged)]
        return float(sum(total for total, _ in sums) / sum(weight for _, weight in sums))

    first, state = loss(coefficients), optimizer.init(coefficients)
    batches = itertools.chain.from_iterable(_batches(fitted[generator.permutation(len(fitted))]) for _ in itertools.count())
    for number, batch in enumerate(itertools.islice(batches, steps), 1):
        step_key = jax.random.fold_in(key, number)
        coefficients, state = _step(optimizer, objective, coefficients, state, base, x, model, batch, step_key)
        # Steps that are only queued are not done.
        jax.block_until_ready(coefficients)
        progress(number, steps)
    last = loss(coefficients)
    kept = last < first
    if kept:
        for role, table in moved(base, x, coefficients).items():
            for name in stored[role]:
                checkpoint.tensors[name].overwrite(np.asarray(table.astype(types[role])))
    read, fraction = steps * _BATCH * rows.shape[1], objective.head_fraction
    flops = read * family.flops_per_token(config, rows.shape[1], fraction, frozen=True)
    # The third product of the head's rows, and those that make the tables of the coefficients and the reverse.
    flops += read * fraction * 2 * tables.get("head", tables["input"]).size
    flops += steps * sum(4 * x.shape[1] * table.size for table in tables.values())
    counts = {"coordinates": x.shape[1], "steps": steps, "tokens": read, "held_out": judged.size, "flops": float(flops)}
    return {**counts, "loss": [first, last], "kept": kept}


def moved(base: Mapping[str, jax.Array], x: jax.Array, coefficients: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """The tables (V, ...) by role, with X (V, r) times their coefficients (r, ...) added."""
    return {role: table + jnp.tensordot(x, coefficients[role], axes=1, precision="highest") for role, table in base.items()}


@partial(jax.jit, static_argnums=0)
def _sums(objective: Any, tables: Mapping[str, jax.Array], model: Any, batch: Mapping[str, jax.Array], key: jax.Array) -> Any:
    with_tables = dict(model)
    for role, table in tables.items():
        module, name = _PLACES[role]
        with_tables[module] = {**with_tables[module], name: table}
    return objective(with_tables, batch, key, train=False)


@partial(jax.jit, static_argnums=(0, 1))
def _step(optimizer, objective, coefficients, state, base, x, model, batch, key):
    def mean(coefficients):
        total, weight, _ = _sums(objective, moved(base, x, coefficients), model, batch, key)
        return total / weight

    updates, state = optimizer.update(jax.grad(mean)(coefficients), state)
    return jax.tree.map(jnp.add, coefficients, updates), state


def _batches(rows: np.ndarray) -> list[dict[str, np.ndarray]]:
    """Batches of one size; the last one is filled up with its own rows, which then count nothing."""
    batches = []
    for begin in range(0, len(rows), _BATCH):
        part = rows[begin : begin + _BATCH]
        weights = np.zeros((_BATCH, rows.shape[1]), np.float32)
        weights[: len(part)] = 1
        batches.append({"tokens": np.resize(part, weights.shape), "weights": weights})
    return batches
