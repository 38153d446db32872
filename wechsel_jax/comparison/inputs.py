"""What the methods of a comparison read and its settings do not name: word vectors and a helper model, made here."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from wechsel_jax.comparison.settings import OWN, SAMPLE, TEXT, helper_config, input_places, needs_of_all
from wechsel_jax.data.sample import write_sample
from wechsel_jax.errors import UserError
from wechsel_jax.files import temporary_directory
from wechsel_jax.files.json import NUMBER, mismatch, read_json, record_json
from wechsel_jax.training import train
from wechsel_jax.training.workdir import follow
from wechsel_jax.vectors import train_vectors

# As FOCUS trains its token vectors (deepfocus 1.0.1), but for dimensions and epochs.
NATIVE_VECTORS = {"model": "cbow", "smallest_ngram": 3, "largest_ngram": 6, "min_count": 10}

_SECONDS_FILE = "seconds.json"


def make_inputs(config: ConfigDict, workdir: Path) -> None:
    """Makes what the methods need and the config does not name, at its `input_places`."""
    needed, places = needs_of_all(config), input_places(config, workdir)
    for side, text in (("source", config.text.source), ("target", config.text.words or config.text.train)):
        if f"{side}_vectors" in needed and config.vectors.train_here:
            _train_vectors(config, Path(places[f"{side}_vectors"]), text, **read_as(config))
    sample = Path(places[SAMPLE])
    sampled = any(config.variants.get(name, {}).get("target_vectors") == SAMPLE for name in config.methods)
    if sampled and not sample.exists():
        with temporary_directory(sample) as work:
            write_training_text(config, work / "sample.jsonl")
            _train_vectors(config, sample, [work / "sample.jsonl"], **sample_as(config))
    if "native_vectors" in needed and not config.vectors.native:
        options = {"tokenizer": workdir / "tokenizer", **NATIVE_VECTORS, **read_as(config)}
        _train_vectors(config, Path(places["native_vectors"]), config.text.train, **options)
    if "helper" in needed and not config.helper.checkpoint:
        with timed(workdir, "helper"):
            settings = helper_config(config, workdir)
            follow(settings, workdir / "helper", *OWN)
            train(settings, workdir / "helper")


def _train_vectors(config: ConfigDict, output: Path, text: Any, **options: Any) -> None:
    """Trains vectors where they are not there yet; `output` lies in a folder of the workdir."""
    if not output.exists():
        with timed(output.parents[1], f"{output.stem} vectors"):
            train_vectors(text, output, dim=config.vectors.dimensions, epochs=config.vectors.epochs, **options)


def write_training_text(config: ConfigDict, output: Path) -> None:
    """Writes the documents that the methods are trained on: without what is held out, and as many as `max_bytes` allow."""
    size, share = config.training.data.max_bytes, config.training.data.validation_fraction
    write_sample(config.text.train, output, max_bytes=size, validation_fraction=share, **prepared_as(config))


def read_as(config: ConfigDict) -> dict[str, Any]:
    """How every text of a comparison is read, as arguments of whoever reads it."""
    return {name: config.training.data[name] for name in TEXT}


def prepared_as(config: ConfigDict) -> dict[str, Any]:
    """How the text that is trained and scored on becomes documents."""
    return {name: config.training.data[name] for name in (*TEXT, "documents", "deduplicate")}


def sample_as(config: ConfigDict) -> dict[str, Any]:
    """How what `write_training_text` wrote is read: JSON takes up to six bytes for one."""
    return {"max_document_bytes": min(6 * config.training.data.max_document_bytes + 64, (1 << 31) - 1)}


def seconds_spent(workdir: Path) -> dict[str, float]:
    """What each step of a comparison has taken so far; steps that were killed left nothing."""
    file = workdir / _SECONDS_FILE
    if not file.exists():
        return {}
    found = read_json(file, "the seconds of each step", "remove it")
    if problem := mismatch(found, {"*": NUMBER}):
        raise UserError(f"{file}: {problem}, the seconds of each step; remove it")
    return found


@contextlib.contextmanager
def timed(workdir: Path, name: str) -> Iterator[None]:
    """Adds the seconds that a block takes to those of its name, however it ends."""
    start = time.monotonic()
    try:
        yield
    except BaseException:
        # What ended the block is told, and not that the seconds could not be written down.
        with contextlib.suppress(UserError, OSError):
            _add_seconds(workdir, name, time.monotonic() - start)
        raise
    _add_seconds(workdir, name, time.monotonic() - start)


def _add_seconds(workdir: Path, name: str, seconds: float) -> None:
    spent = seconds_spent(workdir)
    spent[name] = round(spent.get(name, 0.0) + seconds, 2)
    record_json(workdir / _SECONDS_FILE, spent)
