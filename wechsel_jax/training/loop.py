"""A training run from its settings to an exported model; the same call again goes on where it stopped."""

import math
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from wechsel_jax.data import training_batch
from wechsel_jax.errors import UserError
from wechsel_jax.models.weights import unflatten
from wechsel_jax.training import devices, distributed, sharding
from wechsel_jax.training.checkpoints import Checkpoints
from wechsel_jax.training.config import check_config, record_config, validate
from wechsel_jax.training.config import phases as make_phases
from wechsel_jax.training.evaluator import Evaluator
from wechsel_jax.training.ingredients import Ingredients, check_data, export, gather
from wechsel_jax.training.interrupts import Interrupted, Interrupts
from wechsel_jax.training.metrics import MetricsFile, final_metrics
from wechsel_jax.training.optimizer import make_optimizer, split, trainable_paths
from wechsel_jax.training.progress import Clock, Progress
from wechsel_jax.training.schedules import phase_at
from wechsel_jax.training.step import TrainState, make_train_step, start_phase, state_shardings


def train(config: ConfigDict, workdir: str | Path) -> dict[str, Any]:
    """Trains a model, evaluates it, and exports it to `workdir/export`.

    A run is a function of its settings: killed at any moment and started again with the same settings, it gives the same
    metrics and the same weights, bit for bit on the same devices.

    Args:
      config: the fields of `default_config`.
      workdir: gets `config.json`, `data/`, `metrics.jsonl`, `checkpoints/` and `export/`.

    Returns:
      The last evaluation: {"kind", "step", "loss" (nats a token), "perplexity", "tokens"}.

    Raises:
      UserError: a setting is wrong, a file is missing or damaged, the workdir belongs to other settings, or the loss is no
        longer finite.
      SystemExit: SIGTERM or SIGINT arrived; a checkpoint has been saved (status 143 or 130).
    """
    validate(config)
    workdir = Path(workdir)
    distributed.start(config.distributed)
    check_config(config, workdir)
    progress = Progress(config.steps, quiet=not distributed.is_first())
    finished = final_metrics(workdir / "metrics.jsonl", config.steps)
    if finished is not None and (workdir / "export").exists():
        progress.say(f"{workdir}: all {config.steps:,} steps are done; nothing to train")
        return finished
    with Interrupts().installed() as interrupts, devices.compiled_programs(config.compilation_cache):
        run = _Run(config, workdir, gather(config, workdir), interrupts, progress)
        try:
            if distributed.is_first():
                record_config(config, workdir)
            # The models pin activations to the mesh that is set; without it the partitioner guesses.
            with jax.set_mesh(run.mesh):
                return run.run()
        finally:
            run.close()


class _Pending(NamedTuple):
    """An update whose metrics have not been read from the device yet."""

    step: int
    phase: str
    learning_rate: float
    metrics: dict[str, jax.Array]


class _Run:
    """The parts of a run that its steps share."""

    def __init__(self, config: ConfigDict, workdir: Path, ingredients: Ingredients, interrupts: Interrupts, progress: Progress):
        self.config, self.workdir, self.ingredients = config, workdir, ingredients
        self.interrupts, self.progress = interrupts, progress
        self.mesh = sharding.make_mesh(config.mesh)
        self.phases = make_phases(config)
        self.optimizer = make_optimizer(config.optimizer)
        rows, parts = config.batch_size // config.accumulation, sharding.batch_devices(self.mesh)
        if rows % parts:
            raise UserError(
                f"batch_size: {config.batch_size} in {config.accumulation} parts gives {rows} rows, which {parts} devices "
                "cannot share; expected a multiple; change batch_size or accumulation, or set mesh.data to fewer devices"
            )
        shapes = ingredients.family.shapes(ingredients.model)
        self.shapes = unflatten({path: jax.ShapeDtypeStruct(shape, np.float32) for path, shape in shapes.items()})
        self.parameter_shardings, notes = sharding.parameter_shardings(self.mesh, ingredients.family.sharding_rules, shapes)
        for note in notes:
            progress.say(note)
        self.trainable = [trainable_paths(ingredients.family, list(shapes), phase.trainable) for phase in self.phases]
        self.evaluator = Evaluator(ingredients, config, self.mesh, rows)
        self.checkpoints = Checkpoints(workdir / "checkpoints", config.keep)
        restored = self.checkpoints.latest()
        check_data(ingredients, workdir, fresh=restored is None)
        self.metrics = MetricsFile(workdir / "metrics.jsonl", restored, write=distributed.is_first())
        self.clock = Clock(config.batch_size * config.block_length, self.metrics.lines)
        self.pending: _Pending | None = None

    def run(self) -> dict[str, Any]:
        """Trains from the newest checkpoint, or from the start, to the end."""
        step, state = self._start()
        self.interrupts.graceful = True
        state = self._pause(step, state)
        for index in range(phase_at(self.phases, step), len(self.phases)):
            phase = self.phases[index]
            if step < phase.end:
                step, state = self._train_phase(index, step, state)
        self.checkpoints.wait()
        params = self._to_host(state.params)
        if distributed.is_first():
            export(self.ingredients, params, self.config.export_dtype, self.workdir / "export")
            self.progress.say(f"exported to {self.workdir / 'export'}")
        distributed.barrier("export")
        return next(line for line in reversed(self.metrics.lines) if line["kind"] == "eval")

    def close(self) -> None:
        self.checkpoints.close()
        self.metrics.close()

    def _start(self) -> tuple[int, TrainState]:
        step = self.checkpoints.latest()
        if step is not None:
            index = phase_at(self.phases, step)
            opt_state = jax.eval_shape(self.optimizer.init, split(self.shapes, self.trainable[index])[0])
            shapes = TrainState(self.shapes, opt_state, jax.ShapeDtypeStruct((), np.int32))
            self.progress.say(f"going on from step {step:,}")
            return step, self.checkpoints.restore(step, shapes, self._shardings(index))
        if self.ingredients.load_parameters is None:
            params = self.ingredients.draw(self.config.seed, self.parameter_shardings)
        else:
            params = sharding.put(self.ingredients.load_parameters(), self.parameter_shardings)
        return 0, self._first_state(0, params)

    def _shardings(self, index: int) -> TrainState:
        return state_shardings(self.mesh, self.parameter_shardings, self.optimizer, self.trainable[index], self.shapes)

    def _first_state(self, index: int, params: dict[str, Any]) -> TrainState:
        return start_phase(params, self.phases[index].start, self.optimizer, self.trainable[index], self._shardings(index))

    def _batch(self, step: int) -> dict[str, jax.Array]:
        """Returns the batch of update number `step`, (A, B / A, L), on its way to the devices."""
        config = self.config
        batch = training_batch(self.ingredients.train, step, config.batch_size, config.seed)
        parts = {name: value.reshape(config.accumulation, -1, *value.shape[1:]) for name, value in batch.items()}
        return sharding.put(parts, sharding.batch_sharding(self.mesh, accumulated=True))

    def _train_phase(self, index: int, step: int, state: TrainState) -> tuple[int, TrainState]:
        phase, config = self.phases[index], self.config
        batch = self._batch(step)
        train_step = make_train_step(
            self.ingredients.objective, self.optimizer, self.trainable[index], self._shardings(index), config.seed
        )
        compiled = train_step.lower(state, batch, np.float32(0)).compile()
        self.clock.start(step)
        while step < phase.end:
            learning_rate = phase.learning_rate(step - phase.start)
            state, metrics = compiled(state, batch, np.float32(learning_rate))
            step += 1
            if step < phase.end:
                batch = self._batch(step)
            self._read_pending()
            self.pending = _Pending(step, phase.name, learning_rate, metrics)
            if step == phase.end or self._due(step) or self.interrupts.requested(step):
                self._read_pending()
                if step == phase.end and index + 1 < len(self.phases):
                    state = self._first_state(index + 1, state.params)
                state = self._pause(step, state)
        return step, state

    def _due(self, step: int) -> bool:
        config = self.config
        return step % config.eval_every == 0 or step % config.checkpoint_every == 0

    def _pause(self, step: int, state: TrainState) -> TrainState:
        """Evaluates and saves where it is time to; ends the run where a signal asks for it."""
        config, last = self.config, step == self.config.steps
        with self.clock.paused():
            if (step % config.eval_every == 0 or last) and not self.metrics.evaluated(step):
                self._evaluate(step, state)
            stop = self.interrupts.requested(step)
            if step and (step % config.checkpoint_every == 0 or last or stop):
                self.metrics.sync()
                self.checkpoints.save(step, state)
            if stop and not (last and self.metrics.evaluated(step)):
                self._leave(step)
        return state

    def _evaluate(self, step: int, state: TrainState) -> None:
        try:
            line = {"kind": "eval", "step": step, **self.evaluator(state.params, self.interrupts)}
        except Interrupted:
            # The evaluation is made again when the run goes on.
            return
        self.metrics.write(line)
        self.progress.evaluation(line)

    def _leave(self, step: int) -> None:
        self.checkpoints.wait()
        where = f"saved step {step:,}" if step else "nothing trained yet"
        self.interrupts.leave(f"{where}; the same command goes on from there")

    def _read_pending(self) -> None:
        """Reads the metrics of the last update, which waits for it, and writes them where it is time to."""
        pending, self.pending = self.pending, None
        if pending is None:
            return
        loss, gradient_norm = float(pending.metrics["loss"]), float(pending.metrics["gradient_norm"])
        if not (math.isfinite(loss) and math.isfinite(gradient_norm)):
            self.checkpoints.wait()
            saved = self.checkpoints.latest()
            kept = "no checkpoint had been saved" if saved is None else f"the checkpoint of step {saved} is kept"
            raise UserError(
                f"{self.workdir}: loss {loss} and gradient norm {gradient_norm} at step {pending.step}; "
                f"expected finite numbers; {kept}; lower optimizer.peak_learning_rate and train in another workdir"
            )
        if pending.step % self.config.log_every and pending.step not in (1, self.config.steps):
            return
        rate = self.clock.tokens_per_second(pending.step)
        line = {
            "kind": "train",
            "step": pending.step,
            "phase": pending.phase,
            "loss": loss,
            "learning_rate": pending.learning_rate,
            "gradient_norm": gradient_norm,
            "tokens_per_second": round(rate, 1),
            "seconds": round(self.clock.seconds(), 3),
        }
        mfu = devices.utilisation(self._flops_per_token(), rate, list(self.mesh.devices.flat))
        if mfu is not None:
            line["mfu"] = round(mfu, 4)
        self.metrics.write(line)
        self.progress.train(line, seconds_left=(self.config.steps - pending.step) * self.clock.tokens_per_step / rate)

    def _flops_per_token(self) -> float:
        ingredients = self.ingredients
        return ingredients.family.flops_per_token(
            ingredients.model, self.config.block_length, ingredients.objective.head_fraction
        )

    def _to_host(self, params: dict[str, Any]) -> dict[str, Any]:
        if jax.process_count() == 1:
            return jax.device_get(params)
        from jax.experimental import multihost_utils

        return multihost_utils.process_allgather(params, tiled=True)
