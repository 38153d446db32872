"""Makes text into tokens on disk, in parallel; the same command goes on where it was stopped, however that happened.

  wechsel-jax prepare --input='corpus/*.jsonl.zst' --tokenizer=german/ --output=prepared/ --validation_fraction=0.01
  wechsel-jax prepare --input=datasets:saved/:train,more.parquet --tokenizer=german/ --output=prepared/ --deduplicate
  wechsel-jax prepare --input='hf://USER/NAME:train#CONFIG' --tokenizer=swahili/ --output=prepared/ --max_bytes=256MiB

Training reads the result: --config.data.train='("prepared/train",)' (with --validation_fraction, else "prepared").
"""

import re

from absl import flags

from wechsel_jax.commands import choice, sources
from wechsel_jax.errors import UserError

REQUIRED = ("input", "tokenizer", "output")
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


def define(values: flags.FlagValues) -> None:
    """Defines the flags of `data.prepare` and `data.prepare_split`."""
    to = {"flag_values": values}
    sources(values, "input")
    flags.DEFINE_string("tokenizer", None, "A directory, a tokenizer.json or a hub id.", **to)
    flags.DEFINE_string("output", None, "Directory to write.", **to)
    choice(values, "documents", "lines", ("lines", "paragraphs", "files"), "What a document of a text file is")
    flags.DEFINE_string("text_field", "text", "Of JSON lines and tables, the field that holds the text.", **to)
    held_out = "Share of the documents that becomes OUTPUT/validation; the others become OUTPUT/train."
    flags.DEFINE_float("validation_fraction", 0.0, held_out, lower_bound=0.0, upper_bound=1.0, **to)
    flags.DEFINE_string("max_bytes", "0", "Take a random sample of documents of at most this size, e.g. 256MiB; 0: all.", **to)
    flags.DEFINE_boolean("deduplicate", False, "Of documents with exactly the same text, keep the first.", **to)
    flags.DEFINE_integer("processes", None, "How many tokenise; by default as many as there are cores.", lower_bound=0, **to)
    flags.DEFINE_boolean("verify", False, "Read the result once more and compare it with its sha256.", **to)


def run(values: flags.FlagValues, arguments: list[str]) -> None:
    """Prepares, and says how much there is and what was left out."""
    del arguments
    size = _bytes(values.max_bytes)
    from pathlib import Path

    from wechsel_jax.data import prepare, prepare_split
    from wechsel_jax.data.manifest import verify_tokens

    settings = {name: values[name].value for name in ("documents", "text_field", "deduplicate", "processes")}
    texts, tokenizer, output = values.input, values.tokenizer, Path(values.output)
    if values.validation_fraction:
        settings["validation_fraction"] = values.validation_fraction
        manifests = prepare_split(texts, tokenizer, output, max_bytes=size, **settings)
    else:
        manifests = {"": prepare(texts, tokenizer, output, max_bytes=size, **settings)}
    for side, manifest in manifests.items():
        if values.verify:
            verify_tokens(output / side, manifest)
        print(f"{output / side}: {manifest['documents']:,} documents, {manifest['tokens']:,} tokens of {manifest['dtype']}")
    for reason, counts in manifest.get("dropped", {}).items():
        if counts["documents"]:
            size = f", {counts['text_bytes']:,} bytes of text" if "text_bytes" in counts else ""
            print(f"left out ({reason}): {counts['documents']:,} documents{size}")


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?i?B?)", text.strip(), re.IGNORECASE)
    unit = match and match[2].upper()
    if match and unit + "B" in _UNITS and unit not in _UNITS:
        unit += "B"
    if not match or unit not in _UNITS:
        raise UserError(f"--max_bytes: is {text!r}; expected a size such as 1000000, 16MiB or 4GiB")
    return int(float(match[1]) * _UNITS[unit])
