"""The held-out perplexity of a run, computed the same way at every step."""

from typing import Any

from jax.sharding import Mesh
from ml_collections import ConfigDict

from wechsel_jax.data import evaluation_batches
from wechsel_jax.errors import UserError
from wechsel_jax.evaluation import perplexity
from wechsel_jax.training import sharding
from wechsel_jax.training.ingredients import Ingredients
from wechsel_jax.training.interrupts import Interrupts
from wechsel_jax.training.step import EVALUATION_STREAM, stream_key


class Evaluator:
    """Evaluates parameters on the validation blocks.

    Args:
      ingredients: of the run.
      config: its settings; `eval_batches` limits how much is read.
      mesh: of the run.
      rows: B of a batch, a multiple of the devices that share it.
    """

    def __init__(self, ingredients: Ingredients, config: ConfigDict, mesh: Mesh, rows: int):
        self._ingredients, self._limit, self._rows = ingredients, config.eval_batches, rows
        self._held = sharding.rows_of_process(mesh, rows)
        self._place = lambda batch: sharding.put_local(batch, sharding.batch_sharding(mesh), self._held, rows)
        # One key for all evaluations: a masked model is asked for the same tokens each time.
        self._key = stream_key(config.seed, EVALUATION_STREAM)

    def __call__(self, params: dict[str, Any], interrupts: Interrupts) -> dict[str, Any]:
        """Returns {"loss": nats a token, "perplexity", "tokens"}; raises `Interrupted` where a signal arrives."""
        ingredients = self._ingredients
        batches = evaluation_batches(
            ingredients.validation, self._rows, ingredients.family.causal, limit=self._limit, rows=self._held
        )
        try:
            return perplexity(ingredients.objective, params, map(self._place, interrupts.watch(batches)), self._key)
        except ValueError as error:
            raise UserError(f"data.validation: {error}") from error
