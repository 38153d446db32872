"""What a directory of tokens says about itself: manifest.json beside tokens.bin."""

import errno
import hashlib
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from wechsel_jax.errors import UserError
from wechsel_jax.files import require_directory, temporary_directory
from wechsel_jax.files.json import TEXT, WHOLE, mismatch, read_json
from wechsel_jax.records.names import MANIFEST, TOKENS
from wechsel_jax.records.run import SIDES

FORMAT = 1
SENTENCES = "sentences.bin"
DTYPES = {"uint16": 2, "uint32": 4}
_NOTICE_SECONDS = 60
# Whoever waits for the reading of more than this is told so.
_NOTICE_BYTES = 1 << 30
# Whole tokens of any type.
_CHUNK = 1 << 24
_WHAT = "a directory that `wechsel_jax.data.prepare` wrote"
_AGAIN = "delete the directory and prepare the text again"
_FIELDS = {
    **{"tokens": WHOLE, "documents": WHOLE, "vocabulary_size": WHOLE, "sha256": TEXT, "dtype": TEXT},
    **{"inputs": [{"name?": TEXT, "sha256?": TEXT}], "tokenizer": {"sha256?": TEXT, "vocabulary?": TEXT}},
}
_DECIDING = ("documents_are", "dtype", "vocabulary_size", "end_token")
# Of these, and with these values, a manifest may say nothing.
_DEFAULTS = {
    **{"text_field": "text", "max_bytes": 0, "deduplicate": False, "validation_fraction": 0.0, "side": None},
    "sentences": False,
}


class MadeOtherwise(UserError):
    """What lies at an output was made from other text, with another tokenizer or with other settings."""


def read_manifest(directory: str | os.PathLike) -> dict[str, Any]:
    """Reads manifest.json and compares it with the size of tokens.bin.

    Returns:
      {"format", "tokens", "documents", "documents_are", "text_field", "bytes", "text_bytes" (UTF-8 of the documents), "dtype",
      "vocabulary_size", "end_token", "sha256" (of tokens.bin), "tokenizer": {"name", "sha256", "vocabulary" (sha256 of its
      tokens)}, "inputs": [{"name", "bytes", "sha256"}], "max_bytes", "deduplicate", "validation_fraction", "side" (where there
      are two), "sentences" (whether their places are recorded), "sentence_file" (then: {"sentences", "before" and "after": how
      many tokens stand around a document, "sha256"}), "dropped": {reason: {"documents", "text_bytes"}} (of all sides
      together), "versions"}. What other versions of this package wrote may lack those that are not needed to read it.

    Raises:
      UserError: there is no such directory, a file is missing, damaged or cut short, or another version wrote it.
    """
    directory = require_directory(directory, _WHAT)
    path = directory / MANIFEST
    manifest = read_json(path, _WHAT, _AGAIN)
    if manifest.get("format") != FORMAT:
        raise UserError(f"{path}: format {manifest.get('format')!r}; expected {FORMAT}; {_AGAIN}")
    if problem := mismatch(manifest, _FIELDS):
        raise UserError(f"{path}: {problem}; {_AGAIN}")
    if manifest["dtype"] not in DTYPES:
        raise UserError(f"{path}: dtype is {manifest['dtype']!r}; expected one of {', '.join(DTYPES)}; {_AGAIN}")
    _check_size(directory / TOKENS, manifest["tokens"] * DTYPES[manifest["dtype"]])
    return manifest


def wait_for(directory: str | os.PathLike) -> None:
    """Returns once another process has prepared `directory`, hours later if need be; says every minute what it waits for."""
    path, seconds = Path(directory) / MANIFEST, 0
    while not path.is_file():
        if seconds % _NOTICE_SECONDS == _NOTICE_SECONDS // 2:
            print(
                f"{path.parent}: the first process prepares it; waiting (every process must see this directory)",
                file=sys.stderr,
            )
        time.sleep(1)
        seconds += 1


def verify_tokens(directory: str | os.PathLike, manifest: Mapping[str, Any]) -> None:
    """Reads tokens.bin once.

    Raises:
      UserError: its sha256 is not the manifest's, or it holds an id that the vocabulary does not have.
    """
    path, dtype = Path(directory) / TOKENS, np.dtype(manifest["dtype"]).newbyteorder("<")
    digest, largest = hashlib.sha256(), 0
    with open(path, "rb") as handle:
        if (size := os.fstat(handle.fileno()).st_size) > _NOTICE_BYTES:
            print(f"{path}: comparing {size / 1e9:.1f} GB with their sha256", file=sys.stderr, flush=True)
        while chunk := handle.read(_CHUNK):
            digest.update(chunk)
            largest = max(largest, int(np.frombuffer(chunk, dtype, len(chunk) // dtype.itemsize).max(initial=0)))
    found = digest.hexdigest()
    if found != manifest["sha256"]:
        wanted = f"expected the one in {MANIFEST}, {manifest['sha256'][:16]}..."
        raise UserError(f"{path}: damaged: its sha256 is {found[:16]}...; {wanted}; {_AGAIN}")
    if largest >= manifest["vocabulary_size"]:
        raise UserError(
            f"{path}: holds token {largest}; expected ids below the {manifest['vocabulary_size']} of the vocabulary; {_AGAIN}"
        )


def reuse(output: Path, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the manifest of an earlier call with the same inputs.

    Raises:
      MadeOtherwise: `output` was made of something else; the message says what differs.
      UserError: it is something else, or damaged.
    """
    advice = "choose another output or delete it"
    if not (output / MANIFEST).is_file():
        # Prepared with one part where two were asked for, or with two and one.
        for place, how in ((output.parent, "without"), (output / "train", "with")):
            if (output.name in SIDES or how == "with") and (place / MANIFEST).is_file():
                where = output.parent if how == "without" else output
                raise MadeOtherwise(f"{where}: was prepared {how} validation_fraction; {advice}")
        # What it is nobody knows; it may be the text itself.
        raise UserError(f"{output}: exists already and holds no prepared text; choose another output")
    found = read_manifest(output)
    if found["tokenizer"].get("sha256") != recipe["tokenizer"]["sha256"]:
        raise MadeOtherwise(f"{output}: was prepared with another tokenizer; {advice}")
    old, new = ([(entry.get("name"), entry.get("sha256")) for entry in one["inputs"]] for one in (found, recipe))
    if old != new:
        changed = next((name for name, digest in new if (name, digest) not in old), None)
        what = "the same files in another order or number" if changed is None else f"other text than {changed} holds now"
        raise MadeOtherwise(f"{output}: was prepared from {what}; {advice}")
    for field in (*_DECIDING, *_DEFAULTS):
        was, now = (one.get(field, _DEFAULTS.get(field)) for one in (found, recipe))
        if was != now:
            raise MadeOtherwise(f"{output}: was prepared with {field} = {was!r}, not {now!r}; {advice}")
    return found


def remove_prepared(directory: str | os.PathLike) -> None:
    """Removes a directory that `prepare` or `prepare_split` wrote, at once.

    Raises:
      OSError: somebody else put something there; nothing is removed.
    """
    directory = Path(directory)
    if not {path.name for path in directory.rglob("*")} <= {TOKENS, SENTENCES, MANIFEST, *SIDES}:
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(directory))
    # A kill shall leave no half of it, which nobody would know as prepared text.
    with temporary_directory(directory) as away:
        os.replace(directory, away)


def _check_size(path: Path, expected: int) -> None:
    if not path.is_file():
        raise UserError(f"{path}: no such file; expected {expected:,} bytes of tokens; {_AGAIN}")
    size = path.stat().st_size
    if size != expected:
        how = "cut short" if size < expected else "too long"
        raise UserError(f"{path}: {how}, {size:,} bytes; expected {expected:,} as {MANIFEST} says; {_AGAIN}")
