"""What the methods of a comparison read and its settings do not name: word vectors and a helper model, made here."""

import time
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from wechsel_jax.comparison.settings import SAMPLE, TEXT, helper_config, needs_of_all
from wechsel_jax.data.sample import write_sample
from wechsel_jax.files import temporary_directory
from wechsel_jax.training import train
from wechsel_jax.vectors import train_vectors

# As FOCUS trains its token vectors (deepfocus 1.0.1), but for dimensions and epochs.
NATIVE_VECTORS = {"model": "cbow", "smallest_ngram": 3, "largest_ngram": 6, "min_count": 10}


def make_inputs(config: ConfigDict, workdir: Path, seconds: dict[str, float]) -> dict[str, str]:
    """Makes what the methods need and the config does not name; returns setting -> file or directory."""
    needed, inputs = needs_of_all(config), {"dictionary": config.dictionary}
    inputs |= {"source_text": config.text.source, "target_text": config.text.train, "parallel": config.parallel}
    with timed(seconds, "vectors"):
        for side, text in (("source", config.text.source), ("target", config.text.words or config.text.train)):
            if f"{side}_vectors" not in needed:
                continue
            inputs[f"{side}_vectors"] = config.vectors[side]
            if config.vectors.train_here:
                output = workdir / "vectors" / f"{side}.bin"
                if not output.exists():
                    options = {"dim": config.vectors.dimensions, "epochs": config.vectors.epochs}
                    train_vectors(text, output, **options, **read_as(config))
                inputs[f"{side}_vectors"] = str(output)
        if any(config.variants.get(name, {}).get("target_vectors") == SAMPLE for name in config.methods):
            inputs[SAMPLE] = str(_sampled_vectors(config, workdir))
        if "native_vectors" in needed:
            inputs["native_vectors"] = config.vectors.native or str(_native_vectors(config, workdir))
    if "helper" in needed:
        inputs["helper"] = config.helper.checkpoint
        if not config.helper.checkpoint:
            with timed(seconds, "helper"):
                train(helper_config(config, workdir), workdir / "helper")
            inputs["helper"] = str(workdir / "helper" / "export")
    return inputs


def _native_vectors(config: ConfigDict, workdir: Path) -> Path:
    output = workdir / "vectors" / "native.bin"
    if not output.exists():
        options = {"dim": config.vectors.dimensions, "epochs": config.vectors.epochs, **NATIVE_VECTORS}
        train_vectors(config.text.train, output, tokenizer=workdir / "tokenizer", **options, **read_as(config))
    return output


def _sampled_vectors(config: ConfigDict, workdir: Path) -> Path:
    output = workdir / "vectors" / "sample.bin"
    if not output.exists():
        output.parent.mkdir(exist_ok=True)
        with temporary_directory(output) as work:
            write_training_text(config, work / "sample.jsonl")
            options = {"dim": config.vectors.dimensions, "epochs": config.vectors.epochs}
            train_vectors([work / "sample.jsonl"], output, **options, **sample_as(config))
    return output


def write_training_text(config: ConfigDict, output: Path) -> None:
    """Writes the documents that the methods are trained on: without what is held out, and as many as `max_bytes` allow."""
    size, share = config.training.data.max_bytes, held_out_share(config)
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


def held_out_share(config: ConfigDict) -> float:
    """The share of the training text that takes the place of a text for validation; 0 where there is one."""
    return 0.0 if config.text.validation else config.training.data.validation_fraction


class timed:
    """Adds the seconds that a block takes to `seconds[name]`."""

    def __init__(self, seconds: dict[str, float], name: str):
        self.seconds, self.name = seconds, name

    def __enter__(self) -> None:
        self.start = time.monotonic()

    def __exit__(self, *_) -> None:
        self.seconds[self.name] = self.seconds.get(self.name, 0.0) + round(time.monotonic() - self.start, 2)
