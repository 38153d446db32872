"""A training run from its settings to an exported model; the same call again goes on where it stopped."""

import contextlib
import functools
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from wechsel_jax.data.examples import FORMS
from wechsel_jax.errors import UserError
from wechsel_jax.files import RECORD, damage, new_directory, refuse_directory, remove_leftovers
from wechsel_jax.objectives.cdlm import TranslationMaskedObjective
from wechsel_jax.records.names import CHECKPOINTS, CONFIG_FILE, EXPORT, METRICS_FILE
from wechsel_jax.training import devices, distributed, sharding
from wechsel_jax.training.checkpoints import Checkpoints
from wechsel_jax.training.compilation import compile_step, compiled_programs, enough_memory, memory_line
from wechsel_jax.training.config import as_dict, validate
from wechsel_jax.training.distributed import broadcast_from_first
from wechsel_jax.training.exports import record_model, write_model
from wechsel_jax.training.fork import fork
from wechsel_jax.training.interrupts import Interrupted, Interrupts
from wechsel_jax.training.labelled import open_labelled, record_labelled
from wechsel_jax.training.metrics import MetricsFile, best_evaluation, early_stop, final_metrics, losses, read_metrics
from wechsel_jax.training.placement import Placement, Prefetcher
from wechsel_jax.training.progress import Clock, Progress
from wechsel_jax.training.recorder import Recorder, stop_report
from wechsel_jax.training.run_data import Data, open_data, soft_targets, trained_on
from wechsel_jax.training.run_spec import build_run, named_model
from wechsel_jax.training.schedules import phase_at
from wechsel_jax.training.step import TrainState
from wechsel_jax.training.trackers import Trackers, require_packages
from wechsel_jax.training.workdir import check_config, check_data, only_run, record_config, record_start, require_workdir


def train(config: ConfigDict, workdir: str | Path) -> dict[str, Any]:
    """Trains a model, evaluates it, and exports it to `workdir/export`.

    A run is a function of its settings: killed at any moment and started again with the same settings, it gives the same
    metrics and the same weights, bit for bit on the same devices. With `patience` it ends early where the validation loss gets
    no better, and exports the best weights (`keep_best`); without, those after the last step.

    Args:
      config: the fields of `default_config`.
      workdir: gets `config.json`, `data/`, `metrics.jsonl`, `checkpoints/` and `export/`.

    Returns:
      The evaluation of the exported weights: {"kind", "step", "loss" (nats a token), "perplexity", "tokens"}, and of labelled
      examples {"kind", "step", "loss", "metric", "score" and the other scores}.

    Raises:
      UserError: a setting is wrong, a file is missing or damaged, the workdir belongs to other settings or to a process that
        is at work there, the loss is no longer finite, or what was trained cannot be written.
      SystemExit: SIGTERM or SIGINT arrived; a checkpoint has been saved (status 143 or 130).
    """
    validate(config, steps_known=not config.get("epochs"))
    if config.seeds > 1:
        raise UserError(
            f"seeds: is {config.seeds}; expected 0 or 1, as several are for train.finetune; set seed for another one"
        )
    distributed.start(config.distributed)
    first = distributed.is_first()
    if first:
        require_workdir(workdir, "a training run", outputs=True)
    workdir, labelled = Path(workdir), None
    if config.objective in FORMS:
        # How many labels there are, and steps in an epoch, only the data says.
        config, labelled = open_labelled(config, workdir, Progress(config.steps, quiet=not first).say)
        validate(config)
    check_config(config, workdir)
    if not config.fork and not (workdir / CONFIG_FILE).exists() and losses(read_metrics(workdir / METRICS_FILE)):
        raise UserError(
            f"{workdir / CONFIG_FILE}: is missing, and {METRICS_FILE} is there: what was trained is not known; expected both; "
            "restore it, or use another workdir"
        )
    progress = Progress(config.steps, quiet=not first)
    finished = final_metrics(workdir / METRICS_FILE, config.steps)
    # Killed before that line, a run has exported, perhaps, and not said what; it does so again.
    said = finished is not None and any(line["kind"] == "end" for line in read_metrics(workdir / METRICS_FILE))
    if said and broadcast_from_first(int(first and _exported(workdir / EXPORT, progress.say))):
        if labelled:
            # What stands beside it, of other seeds or models, shall be of the same examples.
            check_data(labelled, named_model(config).tokenizer, workdir, fresh=False, say=progress.say)
        stop, ending = early_stop(read_metrics(workdir / METRICS_FILE)), f"all {config.steps:,} steps are done"
        if stop is not None:
            early = f"stopped early at step {stop['step']:,} of {config.steps:,}"
            ending = f"{early}; the best was step {stop['best_step']:,}"
        progress.say(f"{workdir}: {ending}; nothing to train")
        return finished
    with contextlib.ExitStack() as stack:
        stack.enter_context(distributed.abort_together())
        if first:
            # Before days of training: what it ends with must have a place.
            refuse_directory(workdir / EXPORT, "training", overwrite=True)
            stack.enter_context(only_run(workdir, progress.say))
        interrupts = stack.enter_context(Interrupts().installed())
        stack.enter_context(compiled_programs(config.compilation_cache))
        if jax.default_backend() == "cpu":
            devices.keep_freed_memory()
        run = _Run(config, workdir, interrupts, progress, labelled)
        stack.callback(run.close)
        # The models pin activations to the mesh that is set; without it the partitioner guesses.
        stack.enter_context(jax.set_mesh(run.placement.mesh))
        # Inside too, because `close` waits for the other processes.
        stack.enter_context(distributed.abort_together())
        stack.enter_context(enough_memory(run.placement.advice()))
        return run.run()


class _Run:
    """The parts of a run that its steps share."""

    def __init__(
        self, config: ConfigDict, workdir: Path, interrupts: Interrupts, progress: Progress, labelled: Data | None = None
    ):
        self.config, self.workdir = config, workdir
        self.interrupts, self.progress = interrupts, progress
        first, say = distributed.is_first(), progress.say
        self.losses: dict[int, float] = {}
        self.checkpoints = Checkpoints(
            workdir / CHECKPOINTS, config.keep, keep_every=config.keep_every, losses=self.losses, say=say
        )
        # What needs no data comes before the data, which may take hours.
        require_packages(config.trackers)
        begun = bool(broadcast_from_first(int(first and bool(self.checkpoints.steps()))))
        if begun and not (workdir / CONFIG_FILE).exists():
            raise UserError(
                f"{workdir / CONFIG_FILE}: no such file, but there are checkpoints; expected the settings that they were "
                "trained with; put it back from a copy, or use another workdir"
            )
        self.spec = build_run(config, weights=not begun and not config.fork)
        self.placement = Placement(config, self.spec, say)
        if config.fork and not begun:
            # It records the settings, so what is wrong with them is found before.
            if first:
                fork(config, workdir, say)
            distributed.barrier("fork")
            begun = True
        self.restored = self.checkpoints.find()
        unused = not begun and not (workdir / CONFIG_FILE).exists()
        self.data = labelled or open_data(config, self.spec.model, workdir, fresh=unused, say=say)
        given = {"say": say, "coordinates": self.placement.coordinates}
        check_data(self.data, self.spec.model.tokenizer, workdir, fresh=self.restored is None, **given)
        if labelled and first:
            record_labelled(config, labelled)
        if first and (names := trained_on(self.data)):
            say(f"note: data.validation: {', '.join(names)}: is training text, too, so what it is scored at says little")
        facts = self.checkpoints.facts(self.restored) if begun and first else None
        metrics = MetricsFile(workdir / METRICS_FILE, self.restored, facts, write=first, say=say)
        if facts:
            # The file may have been removed since.
            self.checkpoints.note(self.restored, metrics.facts())
        if config.keep_best:
            self.losses.update(losses(metrics.lines))
        size = functools.partial(self.data.train.positions, batch_size=config.batch_size, seed=config.seed)
        clock = Clock(lambda start, end: sum(map(size, range(start, end))), metrics.lines)
        self.record = Recorder(config, metrics, progress, clock, self._utilisation, self._nonfinite)
        self.profiler = devices.Profiler(config.profile_steps, workdir)
        batch = functools.partial(self.placement.batch, soft_targets(config, self.data, self.restored or 0, say))
        self.batches = Prefetcher(batch, config.prefetch, config.steps)

    def run(self) -> dict[str, Any]:
        """Trains from the newest checkpoint, or from the start, to the end."""
        # What is read often is learnt by heart: who goes on for longer may have prepared text for a shorter run only.
        if (read := self.config.steps * self.config.batch_size / len(self.data.train)) > 1:
            self.progress.say(f"reads its training data {read:,.1f} times")
        if self.restored is None:
            step, state = 0, self.placement.initial()
        else:
            self.progress.say(f"going on from step {self.restored:,}")
            step, state = self.restored, self.placement.restore(self.checkpoints, self.restored)
        self.interrupts.graceful = True
        self._pause(step, state)
        phases = self.placement.phases
        for index in range(phase_at(phases, step), len(phases)):
            if step < phases[index].end and not self.record.stopped:
                step, state = self._train_phase(index, step, state)
        return self._finish(step, state)

    def close(self) -> None:
        """Ends what runs in the background."""
        self.batches.close()
        self.checkpoints.close()
        self.profiler.close()
        self.record.close()

    def _train_phase(self, index: int, step: int, state: TrainState) -> tuple[int, TrainState]:
        placement, phase = self.placement, self.placement.phases[index]
        batch, compiled = self._compile(index, step, state)
        programs, key = {_shapes(batch): compiled}, placement.train_key
        self.record.clock.start(step)
        while step < phase.end and not self.record.stopped:
            rates = placement.learning_rates(index, step)
            if (shapes := _shapes(batch)) not in programs:
                # Labelled rows are padded to one of a few lengths, and soft targets end. The last update ends first: the clock
                # counts its time.
                self.record.read()
                with self.record.clock.paused():
                    advice = placement.advice()
                    programs[shapes], _ = compile_step(placement.train_step(index), state, batch, rates, key, advice=advice)
            self.profiler.before(step)
            learning_rate = phase.learning_rate(step - phase.start)
            state, metrics = programs[shapes](state, batch, rates, key)
            step += 1
            self.profiler.after(step, metrics)
            if step < phase.end:
                with self.record.waiting("data_wait"):
                    batch = self.batches.get(step)
            self.record.update(step, phase.name, learning_rate, metrics)
            if step == phase.end or step % self.config.eval_every == 0 or self._saves(step) or self.interrupts.requested(step):
                self.record.read()
                if step == phase.end and index + 1 < len(placement.phases):
                    state = placement.first(index + 1, state.params, state.opt_state)
                self._pause(step, state)
        return step, state

    def _compile(self, index: int, step: int, state: TrainState) -> tuple[dict[str, jax.Array], Any]:
        """Returns the first batch of a phase and its compiled step; a signal ends the program at once, if nothing is lost."""
        where = f"nothing new since step {step:,}" if step else "nothing trained yet"
        saved = self.checkpoints.wait() == step or step == 0
        idle = self.interrupts.nothing_to_save(f"{where}; the same command goes on from there")
        with idle if saved else contextlib.nullcontext():
            batch = self.batches.get(step)
            train_step, rates = self.placement.train_step(index), self.placement.learning_rates(index, step)
            key, advice = self.placement.train_key, self.placement.advice()
            compiled, memory = compile_step(train_step, state, batch, rates, key, advice=advice)
        self.progress.say(memory_line(memory))
        self._begin()
        return batch, compiled

    def _begin(self) -> None:
        """Records what the run is: only now, so that a mistake found before leaves the workdir to the corrected settings."""
        if self.record.trackers is None:
            config, workdir, first = self.config, self.workdir, distributed.is_first()
            if first:
                record_config(config, workdir)
                record_model(self.spec.model, config, workdir, fresh=self.restored is None)
                where = list(self.placement.mesh.devices.flat)
                record_start(workdir, self.restored or 0, self.record.clock.before, where, self._flops_per_token())
            self.record.trackers = Trackers(
                config.trackers, workdir, as_dict(config), self.record.metrics.lines, write=first, say=self.progress.say
            )

    def _saves(self, step: int) -> bool:
        return any(step % every == 0 for every in (self.config.checkpoint_every, self.config.keep_every) if every)

    def _pause(self, step: int, state: TrainState) -> None:
        """Evaluates and saves where it is time to; ends the run where a signal asks for it."""
        config, record, last = self.config, self.record, step == self.config.steps
        with record.clock.paused():
            if (step % config.eval_every == 0 or last) and not record.metrics.evaluated(step):
                self._evaluate(step, state)
            leave = self.interrupts.requested(step)
            last = last or record.stopped
            best = best_evaluation(record.metrics.lines) if config.keep_best else None
            wanted = self._saves(step) or any(step == phase.end for phase in self.placement.phases)
            if step and (wanted or last or leave or (best is not None and best["step"] == step)):
                self._save(step, state)
            if leave and not (last and record.metrics.evaluated(step)):
                self._leave(step)

    def _evaluate(self, step: int, state: TrainState) -> None:
        began = time.perf_counter()
        # An evaluation that a signal interrupts is made again when the run goes on.
        with contextlib.suppress(Interrupted):
            scores = self.placement.evaluate(state.params, self.data.validation, self.interrupts.watch)
            self.record.evaluation(step, scores, time.perf_counter() - began)
            if step and self.config.keep_best:
                self.losses.update(losses(self.record.metrics.lines))

    def _save(self, step: int, state: TrainState) -> None:
        with self.record.waiting("checkpoint_wait"):
            # A checkpoint says that the lines up to its step are there.
            if broadcast_from_first(self.record.metrics.sync()):
                self.checkpoints.save(step, state, self.record.metrics.facts())
                self.record.checkpoint_write = self.checkpoints.write_seconds

    def _leave(self, step: int) -> None:
        saved = self.checkpoints.wait()
        where = f"saved step {step:,}" if step else "nothing trained yet"
        if step and saved != step:
            kept = "there is no checkpoint" if saved is None else f"step {saved:,} is saved"
            where = f"step {step:,} could not be written; {kept}"
        self.interrupts.leave(f"{where}; the same command goes on from there")

    def _finish(self, step: int, state: TrainState) -> dict[str, Any]:
        """Makes sure that everything is on disk, and exports the last weights, or the best where the run looked for them."""
        self._begin()
        if self.checkpoints.wait() != step:
            self._save(step, state)
        if self.checkpoints.wait() != step:
            raise UserError(
                f"{self.checkpoints.directory}: the checkpoint of the last step, {step}, could not be written; expected space "
                "on the disk; free some, and the same command goes on from the newest checkpoint"
            )
        with self.interrupts.nothing_to_save("everything is saved; the same command exports the model"):
            best = self.checkpoints.best() if self.config.patience and self.config.keep_best else None
            exported = best if best not in (None, step) and self.checkpoints.whole(best) else step
            if exported != step:
                # Two states need not fit on the devices.
                jax.tree.map(lambda x: x.delete(), state)
                state = self.placement.restore(self.checkpoints, exported)
            params = sharding.to_host(state.params)
            if distributed.is_first():
                place = self.workdir / EXPORT
                try:
                    with new_directory(place, "training", overwrite=True, checksums=True) as directory:
                        write_model(self.spec.model, params, self.config.export_dtype, directory)
                except OSError as error:
                    raise UserError(
                        f"{place}: cannot be written ({error.strerror or error}); expected space for the model; free some and "
                        "run the same command again: nothing is trained anew"
                    ) from error
                self.progress.say(f"exported the weights of step {exported:,} to {place}")
        result = self.record.end(step, exported)
        if distributed.is_first() and not self.record.metrics.sync():
            raise UserError(f"{self.record.metrics.path}: cannot be written; free some space and run the same command again")
        if distributed.is_first():
            self.checkpoints.note(step, self.record.metrics.facts())
        distributed.barrier("export")
        return result

    def _nonfinite(self, line: dict[str, Any], skipped: list[int]) -> UserError:
        saved = self.checkpoints.wait()
        return stop_report(self.config, self.workdir, self.data.train, line, saved, skipped)

    def _flops_per_token(self) -> float:
        model, objective = self.spec.model, self.spec.objective
        # With each token of one sentence they read one of the other.
        both = 2 if isinstance(objective, TranslationMaskedObjective) else 1
        return both * model.family.flops_per_token(model.config, both * self.config.block_length, objective.head_fraction)

    def _utilisation(self, tokens_per_second: float) -> float | None:
        return devices.utilisation(self._flops_per_token(), tokens_per_second, list(self.placement.mesh.devices.flat))


def _shapes(batch: Mapping[str, jax.Array]) -> frozenset[tuple]:
    """What a compiled step takes: the names and shapes of a batch."""
    return frozenset((name, value.shape) for name, value in batch.items())


def _exported(place: Path, say: Callable[[str], None]) -> bool:
    """Whether the model of a finished run is there, whole; says so where it is not."""
    remove_leftovers(place)
    what = damage(place) if place.exists() else None
    if place.exists() and not (place / RECORD).exists():
        say(f"{place}: holds no record of what was written, so damage would not be seen; remove it to have it written again")
    elif what is not None:
        say(f"{place}: damaged, {what}; it is written again")
    return place.exists() and (what is None or not (place / RECORD).exists())
