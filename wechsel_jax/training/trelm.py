"""TreLM's three phases (Li et al., 2021, section 3.2) as one command: four training runs and what stands between them."""

import contextlib
import copy
import dataclasses
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from ml_collections import ConfigDict

from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.errors import UserError
from wechsel_jax.files import new_directory
from wechsel_jax.files.json import NUMBER, mismatch, read_json, record_json
from wechsel_jax.models import ModelConfig, family
from wechsel_jax.models.family import Params
from wechsel_jax.models.registry import FAMILIES
from wechsel_jax.models.trilayer import PREFIX, begin, combine, fold
from wechsel_jax.models.weights import flatten, unflatten
from wechsel_jax.records.names import CONFIG_FILE, EXPORT, RECORD_FILE, TEXTS_FILE
from wechsel_jax.records.run import SIDES
from wechsel_jax.tokens import Vocabulary, load_tokenizer
from wechsel_jax.tokens.extension import place_beside
from wechsel_jax.training import distributed
from wechsel_jax.training.config import as_dict, default_config, groups, phases, validate
from wechsel_jax.training.distributed import broadcast_from_first
from wechsel_jax.training.exports import write_model
from wechsel_jax.training.groups import assign
from wechsel_jax.training.loop import train
from wechsel_jax.training.optimizer import trainable_paths
from wechsel_jax.training.placement import Placement, rows_of_batch
from wechsel_jax.training.run_data import Data, check_pairs, find_data, identified, open_data
from wechsel_jax.training.run_spec import RunSpec, build_run, described_model, strip
from wechsel_jax.training.sharding import make_mesh
from wechsel_jax.training.step import INIT_STREAM, stream_key
from wechsel_jax.training.trackers import require_packages
from wechsel_jax.training.workdir import (
    check_config,
    follow,
    only_run,
    read_texts,
    record_config,
    record_texts,
    require_workdir,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PHASES = ("commonality", "forward", "backward", "language")
RESULTS, FOLDING = "trelm.json", "folding.json"


def default_trelm_config() -> ConfigDict:
    """Returns every field of the three phases with its default; each phase holds those of a training run.

    What must be set: `source`, and of each phase what a run needs, but for `model.checkpoint`, which follows from the phases
    before.
    """
    config = ConfigDict()
    # Directory of the model to begin with, whose vocabulary is that of both languages: an ordinary encoder, or a TreLM model.
    config.source = ""
    # Directory of the same encoder with the first language's vocabulary, where that of `source` is the second's alone: the two
    # languages share no token, and there is no table of languages (the paper's CdLM*, table 8); "": one vocabulary.
    config.first = ""
    # Of the table of languages.
    config.seed = 0
    # Whether the model gets a TRILayer; without one, there is no cross-lingual objective (the paper's table 7).
    config.tri_layer = True
    # Whether the model becomes an ordinary encoder before the last phase, which then trains what is exported, or after it.
    config.fold_first = True
    # Do as the public code does: which layer becomes the TRILayer, and `parity` of every phase with cdlm.
    config.parity = False
    for name in PHASES:
        config[name] = default_config()
    return config


def train_trelm(config: ConfigDict, workdir: str | Path) -> dict[str, Any]:
    """Brings an encoder to a second language: commonality, transfer in both directions, combination, the language alone.

    Killed at any moment and started again with the same settings, it gives the same model, bit for bit: each phase is a run of
    `train`, and what is made between them appears whole or not at all. The settings of a phase may change until it begins.

    Args:
      config: the fields of `default_trelm_config`.
      workdir: gets `start/` (the encoder with languages and TRILayer), the runs `commonality/`, `forward/`, `backward/` and
        `language/`, `combined/` (one model of the two half models), `folded/` (an ordinary encoder; `folding.json` holds the
        loss on the held-out text of the last phase before and after), `texts.json` (what the phases are trained on) and
        `trelm.json`.

    Returns:
      What trelm.json holds: {"model": the directory of the final model, "phases": name -> what `train` returned, "folding":
      {"tri_layer": loss in nats a token, "folded"}}.

    Raises:
      UserError: a setting is wrong, the model is no encoder, a phase was trained on other text than there is now, or what
        `train` raises.
      SystemExit: as `train`.
    """
    workdir = Path(workdir)
    runs = phase_settings(config, workdir)
    for name, run in runs.items():
        with _naming(name):
            validate(run)
            find_data(run)
    distributed.start(config.commonality.distributed)
    for name, run in runs.items():
        with _naming(name):
            rows_of_batch(run, make_mesh(run.mesh))
            require_packages(run.trackers)
    first = distributed.is_first()
    if first:
        require_workdir(workdir, "a TreLM training")
    own = ConfigDict({name: config[name] for name in config if name not in PHASES})
    with only_run(workdir) if first else contextlib.nullcontext():
        begun = any((workdir / name / CONFIG_FILE).exists() for name in PHASES)
        if first and not begun:
            # Other settings or another model may take their place until something has been trained.
            _forget(workdir)
        distributed.barrier(CONFIG_FILE)
        check_config(own, workdir)
        model_type = _model_type(config)
        try:
            if first:
                # Before anything is made of them.
                record_config(own, workdir)
                _check_texts(runs, workdir)
            if model_type.startswith(PREFIX):
                runs["commonality"].model.checkpoint = str(config.source)
            else:
                _once(workdir / "start", lambda place: _start(config, place))
            _check_models(runs, config.fold_first)
            with _naming("language"):
                # A mistake in its text, too, would show only after the phases before it.
                begins = Path(config.source if config.first else runs["commonality"].model.checkpoint)
                _language_data(runs["language"], begins, workdir)
        except UserError:
            if first and not begun:
                _forget(workdir)
            raise
        results = {name: _train(name, runs, workdir) for name in PHASES[:3]}
        _once(workdir / "combined", lambda place: _combine(config, workdir, place))
        if not config.fold_first:
            results["language"] = _train("language", runs, workdir)
        unfolded = workdir / ("combined" if config.fold_first else f"language/{EXPORT}")
        _once(workdir / "folded", lambda place: _fold(unfolded, place))
        models, measured = {"tri_layer": unfolded, "folded": workdir / "folded"}, _measured(runs["language"])
        known = _read_folding(workdir / FOLDING) if (workdir / FOLDING).exists() else {}
        if not broadcast_from_first(int({name: known.get(name) for name in measured} == measured)):
            losses = {name: _held_out_loss(runs["language"], place, workdir) for name, place in models.items()}
            if first:
                record_json(workdir / FOLDING, measured | losses)
        distributed.barrier(FOLDING)
        folding = _read_folding(workdir / FOLDING)
        if config.fold_first:
            results["language"] = _train("language", runs, workdir)
        found = {
            "model": f"language/{EXPORT}" if config.fold_first else "folded",
            "phases": results,
            "folding": {name: folding[name] for name in models},
        }
        if first:
            record_json(workdir / RESULTS, found)
            before, after = (found["folding"][name] for name in ("tri_layer", "folded"))
            print(f"held-out loss as an ordinary encoder {after:.4f}, with TRILayer {before:.4f}")
            print(f"the model is {workdir / found['model']}", flush=True)
        return found


def phase_settings(config: ConfigDict, workdir: Path) -> dict[str, ConfigDict]:
    """Returns the settings of each phase, with the model that it begins with.

    Raises:
      UserError: there is no source, or a phase that others follow exports rounded weights.
    """
    if not 0 <= config.seed < 1 << 31:
        raise UserError(f"seed: is {config.seed}; expected a number from 0 to {(1 << 31) - 1}")
    if not config.source:
        raise UserError("source: is empty; expected the directory of an encoder with the vocabulary of both languages")
    begins = {
        "commonality": workdir / "start",
        "forward": workdir / "commonality" / EXPORT,
        "backward": workdir / "commonality" / EXPORT,
        "language": workdir / ("folded" if config.fold_first else "combined"),
    }
    shared = as_dict(config.commonality.distributed)
    runs = {}
    for name, place in begins.items():
        run = runs[name] = copy.deepcopy(config[name])
        if run.model.checkpoint:
            raise UserError(f'{name}.model.checkpoint: is {run.model.checkpoint!r}; expected "": it follows from source')
        run.model.checkpoint, run.parity = str(place), run.parity or (config.parity and run.objective == "cdlm")
        if as_dict(run.distributed) not in (shared, as_dict(default_config().distributed)):
            raise UserError(f"{name}.distributed: differs from commonality.distributed, which is of all phases; expected that")
        run.distributed.update(shared)
        if run.seeds > 1 or run.fork:
            field = "fork" if run.fork else "seeds"
            raise UserError(f"{name}.{field}: is {run[field]!r}; expected none: a phase is one run from the model before it")
        if run.objective == "cdlm" and not config.tri_layer:
            raise UserError(
                f"{name}.objective: is cdlm, which needs the TRILayer; expected tlm or mlm, or tri_layer to be True"
            )
        if run.objective == "mlm_nsp" and not config.fold_first:
            raise UserError(f"{name}.objective: is mlm_nsp, which is for an ordinary encoder; expected mlm, or fold_first=True")
        if run.export_dtype != "float32" and (name != "language" or not config.fold_first):
            raise UserError(f"{name}.export_dtype: is {run.export_dtype}; expected float32, as what follows begins with it")
    return runs


def _forget(workdir: Path) -> None:
    """Removes what is made before the first training."""
    shutil.rmtree(workdir / "start", ignore_errors=True)
    for name in (CONFIG_FILE, TEXTS_FILE):
        (workdir / name).unlink(missing_ok=True)


@contextlib.contextmanager
def _naming(phase: str) -> Iterator[None]:
    """Says which phase a mistake is in."""
    try:
        yield
    except UserError as error:
        # What it advises is said of a training by itself.
        raise UserError(f"{phase}: {error}".replace("--config.", f"--config.{phase}.")) from error


def _check_models(runs: Mapping[str, ConfigDict], folded: bool) -> None:
    """Raises `UserError` where the settings of a phase do not fit the model, which would show only after days of training."""
    languages: dict[str, tuple[str, str]] = {}
    for name, run in runs.items():
        trial = copy.deepcopy(run)
        trial.model.checkpoint = runs["commonality"].model.checkpoint
        with _naming(name):
            other = {"forward": "backward", "backward": "forward"}.get(name)
            if other and run.data.rows.startswith(other):
                raise UserError(f"data.rows: is {run.data.rows!r}; expected {name!r}: its layers are those that read pairs so")
            model = build_run(trial, weights=False).model
            check_pairs(trial, model, languages)
            of_phase, described = model.family, model.device_config
            if name == "language" and folded:
                # An ordinary encoder, whose layers are one more with the TRILayer.
                of_phase = family(described.model_type.removeprefix(PREFIX))
                layers = described.layers + described.tri_layer
                described = dataclasses.replace(
                    described, model_type=of_phase.name, layers=layers, tri_layer=False, language_count=0
                )
            shapes = of_phase.shapes(described)
            grouping = None
            if trial.optimizer.groups:
                given = {"tokens": len(model.vocabulary), "checkpoint": trial.model.checkpoint}
                grouping = assign(groups(trial), of_phase, described, shapes, **given)
            for phase in phases(trial):
                middle = model.config.layers // 2
                half = {"forward": f"{middle}:", "backward": f":{middle}"}.get(name)
                if half and phase.layers not in ("", half):
                    raise UserError(
                        f"phases: trains the layers {phase.layers} of {model.config.layers}, of which {half} are taken from "
                        f"it; expected {half} or all; set depth={model.config.layers} in configs/trelm.py"
                    )
                trainable_paths(of_phase, shapes, phase.trainable, phase.layers, grouping)


def _check_texts(runs: Mapping[str, ConfigDict], workdir: Path) -> None:
    """Raises `UserError` where a phase was trained on other text or pairs than its files hold now; records what they hold."""
    known = read_texts(workdir, {})
    now = {name: {side: identified([str(text) for text in run.data[side]]) for side in SIDES} for name, run in runs.items()}
    for name, texts in now.items():
        for side, found in texts.items():
            if (workdir / name / CONFIG_FILE).exists() and known.get(name, texts).get(side) != found:
                named = ", ".join(entry["name"] for entry in found)
                raise UserError(
                    f"{name}.data.{side}: {named}: has changed since this phase was trained; restore it or use another workdir"
                )
    record_texts(now, workdir)


def _once(place: Path, make: Callable[[Path], None]) -> None:
    """Makes a directory, whole, where it is not there yet."""
    if distributed.is_first() and not place.exists():
        with new_directory(place, "training") as directory:
            make(directory)
    distributed.barrier(place.name)


def _train(name: str, runs: Mapping[str, ConfigDict], workdir: Path) -> dict[str, Any]:
    if distributed.is_first():
        print(f"== {name}", flush=True)
        follow(runs[name], workdir / name, "model.checkpoint")
    distributed.barrier(f"{name} follows")
    with _naming(name):
        return train(runs[name], workdir / name)


def _model_type(config: ConfigDict) -> str:
    """The type of the source; `UserError` where it or the model of the first language alone is none to begin with."""
    source, first = config.source, config.first
    described = Checkpoint.open(source).config
    found = str(described.get("model_type"))
    if PREFIX + found.removeprefix(PREFIX) not in FAMILIES:
        known = [name for name in FAMILIES if PREFIX + name in FAMILIES]
        raise UserError(f"source: {source}: a model of type {found}; expected an encoder: {', '.join(known)}")
    if found.startswith(PREFIX) and family(found).config(described).tri_layer != config.tri_layer:
        raise UserError(
            f"tri_layer: is {config.tri_layer}, and {source} has {'no' if config.tri_layer else 'a'} TRILayer; expected "
            f"{not config.tri_layer}, or the encoder that it was made of"
        )
    if first:
        if found.startswith(PREFIX):
            raise UserError(f"first: goes with an ordinary encoder as source; expected none, as {source} is a {found}")
        other, encoder = Checkpoint.open(first).config, family(found)
        shapes = encoder.shapes(encoder.config(described).override(vocabulary_size=1))
        if other.get("model_type") != found or shapes != encoder.shapes(encoder.config(other).override(vocabulary_size=1)):
            raise UserError(f"first: {first}: is another model than {source}; expected the one that it was made of")
    return found


def _start(config: ConfigDict, place: Path) -> None:
    source, params, _ = _read(config.source)
    described, tokenizer, languages = source.config, None, 2
    if config.first:
        params, described, tokenizer = _beside(source, params, config.first)
        languages = 0
    key = stream_key(config.seed, INIT_STREAM)
    options = {"languages": languages, "tri_layer": config.tri_layer, "parity": config.parity}
    params, described = begin(params, described, key, **options)
    _write(source, params, described, place, tokenizer)


def _beside(source: Checkpoint, params: Params, place: str) -> tuple[Params, dict[str, Any], "PreTrainedTokenizerFast"]:
    """The source with the rows of the model at `place` behind its own, in everything that has a vocabulary axis."""
    (first, rows, _), encoder = _read(place), family(source.config["model_type"])
    tokenizer, size = place_beside(load_tokenizer(source.directory), load_tokenizer(first.directory))
    added = len(tokenizer) - size

    def joined(path: str, own: np.ndarray, other: np.ndarray) -> np.ndarray:
        return np.concatenate([own[:size], other[:added]]) if re.search(encoder.token_parameters, path) else own

    own, other = flatten(params), flatten(rows)
    together = unflatten({path: joined(path, value, other[path]) for path, value in own.items()})
    return together, source.config | {"vocab_size": len(tokenizer)}, tokenizer


def _combine(config: ConfigDict, workdir: Path, place: Path) -> None:
    (source, forward, of_model), (_, backward, _) = (_read(workdir / name / EXPORT) for name in ("forward", "backward"))
    params, described, tokenizer = combine(forward, backward), source.config, None
    if config.first:
        # What follows reads and writes the second language alone.
        tokenizer = load_tokenizer(config.source)
        described = described | {"vocab_size": len(Vocabulary.from_tokenizer(tokenizer))}
        params = strip(params, family(described["model_type"]), of_model.override(vocabulary_size=described["vocab_size"]))
    _write(source, params, described, place, tokenizer)


def _fold(unfolded: Path, place: Path) -> None:
    source, params, config = _read(unfolded)
    _write(source, *fold(params, config, source.config), place)


def _read(place: str | Path) -> tuple[Checkpoint, Params, ModelConfig]:
    checkpoint = Checkpoint.open(place)
    of_model = family(checkpoint.config["model_type"])
    config = of_model.config(checkpoint.config)
    return checkpoint, of_model.from_hugging_face(checkpoint.arrays(), config), config


def _write(
    source: Checkpoint,
    params: Params,
    described: Mapping[str, Any],
    place: Path,
    tokenizer: "PreTrainedTokenizerFast | None" = None,
) -> None:
    """Writes a model with a tokenizer, by default of the one that it was made of, and what was recorded of its transfer."""
    tokenizer = tokenizer or load_tokenizer(source.directory)
    model = described_model(described, source.generation_config, tokenizer, default_config())
    write_model(model, params, "float32", place)
    record = source.directory / RECORD_FILE
    if record.is_file():
        shutil.copyfile(record, place / record.name)


def _held_out_loss(run: ConfigDict, model: Path, workdir: Path) -> float:
    """The loss of a model on the tokens that the last phase holds out."""
    run, spec, data = _language_data(run, model, workdir)
    placement = Placement(run, spec, print)
    with jax.set_mesh(placement.mesh):
        scores = placement.evaluate(placement.initial().params, data.validation)
    return scores["mlm_loss"] if run.objective == "mlm_nsp" else scores["loss"]


def _language_data(run: ConfigDict, model: Path, workdir: Path) -> tuple[ConfigDict, RunSpec, Data]:
    """The settings of the last phase as if it began with a model, what it runs, and its text, where it will look for it."""
    run, place = copy.deepcopy(run), workdir / "language"
    run.model.checkpoint = str(model)
    # Held as by the phase, the directory counts as one of a run.
    with only_run(place) if distributed.is_first() else contextlib.nullcontext():
        # Heads that are new in the last phase are not measured here, so nothing is said of them.
        spec = dataclasses.replace(build_run(run), notes=())
        return run, spec, open_data(run, spec.model, place, fresh=not (place / CONFIG_FILE).exists())


def _measured(run: ConfigDict) -> dict[str, Any]:
    """What the loss before and after the folding is measured on, as JSON has it."""
    text = [str(text) for text in run.data.validation]
    settings = {name: run[name] for name in ("objective", "block_length", "mask_rate", "seed", "eval_batches")}
    return {"validation": [entry["sha256"] for entry in identified(text)], **settings}


def _read_folding(file: Path) -> dict[str, Any]:
    """What folding.json holds; earlier versions did not say what was measured."""
    advice = "remove it, and it is measured again"
    found = read_json(file, "the losses before and after the folding", advice)
    if problem := mismatch(found, {"tri_layer": NUMBER, "folded": NUMBER}):
        raise UserError(f"{file}: {problem}; {advice}")
    return found
