"""Rows that also move together: a table's update as the sum of each row's own and one that all rows share, by coordinates."""

import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding

from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.errors import UserError
from wechsel_jax.files.hub import HUB_ID, download
from wechsel_jax.initializers import TransferPlan
from wechsel_jax.initializers.regression import white
from wechsel_jax.records.names import PLAN_FILE
from wechsel_jax.training.soap import present

# In `optimizer.groups`: of the plan that lies in the checkpoint that a run begins from, if any; the rows of that checkpoint's
# input table; the former where there are some, else the latter.
TRANSFER, OWN, BEST = "transfer", "rows", "best"
# Keys of the optimizer's state: of a path's shared moments, and of the coordinates, whose rows are a path's.
_SHARED, ROWS = "shared/", "rows/"


class Coordinates:
    """Coordinates of the rows of a table, white (see `regression.white`) where they are first asked for.

    That takes V r² products, which a run that goes on is spared: it has them in its checkpoint.

    Args:
      given: floats (V, r), not all zeros.
      rows: of the table, at least V; those behind get zeros.

    Attributes:
      shape: (rows, r); `[...]` gives parts, float32.
    """

    def __init__(self, given: np.ndarray, rows: int):
        self.shape = (rows, given.shape[1])
        self._given = given

    @cached_property
    def _white(self) -> np.ndarray:
        return white(self._given, self.shape[0])

    def __getitem__(self, index: Any) -> np.ndarray:
        return self._white[index]


class CoordinatesState(NamedTuple):
    """State of `scale_by_coordinates`.

    Attributes:
      own: of each row's own updates.
      shared: of the updates of the coordinates' coefficients.
      coordinates: {key: float32 (V, r)}, one array, see `with_coordinates`; a run that goes on takes them from here.
    """

    own: Any
    shared: Any
    coordinates: dict[str, jax.Array]


def scale_by_coordinates(direction: optax.GradientTransformation, rank: int, factor: float) -> optax.GradientTransformation:
    """Returns directions for tables whose rows E_i + x_i K are trained by both summands, of which only the sum is kept.

    With gradient G (V, d) of a table and coordinates X (V, r), the coefficients K (r, d) have the gradient X' G. The direction
    of the table is direction(G) + factor * X direction(X' G). So what is learnt about frequent tokens moves rare ones with
    similar coordinates. X begins as zeros; `with_coordinates` puts them into the first state.

    Args:
      direction: of Adam or SOAP, of tables (V, d) and of coefficients (r, d).
      rank: r.
      factor: how large the shared updates are beside the rows' own.
    """

    def coefficients(tables: Mapping[str, jax.Array], x: jax.Array) -> dict[str, jax.Array]:
        # The whole precision: a TPU multiplies float32 as bfloat16 otherwise.
        return {f"{_SHARED}{path}": jnp.tensordot(x, table, axes=(0, 0), precision="highest") for path, table in tables.items()}

    def init(params: Mapping[str, jax.Array]) -> CoordinatesState:
        tables = present(params)
        shared = {f"{_SHARED}{path}": jnp.zeros((rank, *table.shape[1:])) for path, table in tables.items()}
        x = {f"{ROWS}{path}": jnp.zeros((tables[path].shape[0], rank)) for path in sorted(tables)[:1]}
        return CoordinatesState(direction.init(tables), direction.init(shared), x)

    def update(grads: Mapping[str, jax.Array], state: CoordinatesState, params: Any = None) -> tuple[dict, CoordinatesState]:
        del params
        tables = present(grads)
        if not tables:
            return dict(grads), state
        (x,) = state.coordinates.values()
        own, own_state = direction.update(tables, state.own)
        shared, shared_state = direction.update(coefficients(tables, x), state.shared)
        total = {
            path: own[path] + factor * jnp.tensordot(x, shared[f"{_SHARED}{path}"], axes=1, precision="highest")
            for path in tables
        }
        return {**grads, **total}, CoordinatesState(own_state, shared_state, state.coordinates)

    return optax.GradientTransformation(init, update)


def with_coordinates(opt_state: Any, coordinates: Mapping[str, Coordinates], shardings: Any) -> Any:
    """Returns a first state that has the coordinates.

    They are not made by the compiled function that makes the rest: as a constant of it, those of a vocabulary of 256,000 tokens
    would be compiled for longer than a step takes.

    Args:
      opt_state: of an optimizer with `scale_by_coordinates` in it.
      coordinates: path -> (V, r), of `Grouping`; of rows that share nothing, zeros.
      shardings: a tree like `opt_state`, of `NamedSharding`.
    """

    def placed(path: tuple, value: jax.Array, where: NamedSharding) -> jax.Array:
        key = next((entry.key for entry in reversed(path) if isinstance(entry, jax.tree_util.DictKey)), "")
        if not key.startswith(ROWS):
            return value
        x = coordinates[key.removeprefix(ROWS)]
        return jax.make_array_from_callback(x.shape, where, lambda index: x[index])

    return jax.tree_util.tree_map_with_path(placed, opt_state, shardings)


def read_coordinates(place: str | os.PathLike, tokens: int, rows: int, required: bool = True) -> Coordinates | None:
    """Reads the coordinates of a transfer's tokens.

    Args:
      place: a transfer_plan.npz, a folder with one, or the id of a model on the hub, of which only that file is fetched.
      tokens: of the tokenizer.
      rows: of the model's table, at least `tokens`; those behind get zeros.
      required: whether it is a mistake where there is no plan, or one of a method that gives tokens none.

    Returns:
      (rows, r), or None where there are none.

    Raises:
      UserError: it is no plan, of another vocabulary, or of a method that gives tokens no coordinates.
    """
    path = Path(place)
    if HUB_ID.fullmatch(os.fspath(place)) and not path.exists():
        path = download(os.fspath(place), [PLAN_FILE], f"a {PLAN_FILE}, or a folder with one")
    path = path / PLAN_FILE if path.is_dir() else path
    if not required and not path.exists():
        return None
    plan = TransferPlan.load(path)
    if len(plan) != tokens:
        raise UserError(f"{path}: is of {len(plan):,} tokens and the tokenizer has {tokens:,}; expected its transfer's plan")
    none = plan.coordinates is None or not plan.coordinates.any()
    if none and not required:
        return None
    if none:
        raise UserError(
            f"{path}: its method has given the tokens no coordinates; expected a transfer by anker, or by another method with "
            f"--regression; or {OWN!r}, or leave coordinates out of optimizer.groups"
        )
    return Coordinates(plan.coordinates, rows)


def own_coordinates(checkpoint: str | os.PathLike, tokens: int, rows: int) -> Coordinates:
    """Reads the input table (V, d) that a run begins with: a row's coordinates are the row itself.

    Then E + X K is E (I + M K) with a fixed matrix M: a linear map of all rows is trained beside the rows.

    Args:
      checkpoint: directory or hub id.
      tokens: of the tokenizer; rows of the table behind them are padding.
      rows: of the model's table, at least `tokens`.

    Returns:
      (rows, d).

    Raises:
      UserError: no checkpoint, or one whose table is all zeros or not finite.
    """
    source = Checkpoint.open(checkpoint)
    table = source.read(source.table)[:tokens].astype(np.float32)
    if not table.any() or not np.isfinite(table).all():
        raise UserError(f"{checkpoint}: {source.table} is all zeros or not finite; expected rows that differ")
    return Coordinates(table, rows)
