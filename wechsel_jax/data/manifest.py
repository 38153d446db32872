"""What a directory of tokens says about itself: manifest.json beside tokens.bin."""

import json
import os
from pathlib import Path
from typing import Any

from wechsel_jax.errors import UserError
from wechsel_jax.files import require_directory

FORMAT = 1
MANIFEST, TOKENS = "manifest.json", "tokens.bin"
DTYPES = {"uint16": 2, "uint32": 4}
_WHAT = "a directory that `wechsel_jax.data.prepare` wrote"
_AGAIN = "delete the directory and prepare the text again"
_FIELDS = {
    "tokens": int,
    "documents": int,
    "vocabulary_size": int,
    "sha256": str,
    "dtype": str,
    "inputs": list,
    "tokenizer": dict,
}


def read_manifest(directory: str | os.PathLike) -> dict[str, Any]:
    """Reads manifest.json and compares it with the size of tokens.bin.

    Returns:
      {"format", "tokens", "documents", "documents_are", "bytes", "dtype", "vocabulary_size", "end_token", "sha256" (of
      tokens.bin), "tokenizer": {"name", "sha256"}, "inputs": [{"name", "bytes", "sha256"}], "versions"}.

    Raises:
      UserError: there is no such directory, a file is missing, damaged or cut short, or another version wrote it.
    """
    directory = require_directory(directory, _WHAT)
    path = directory / MANIFEST
    if not path.is_file():
        raise UserError(f"{path}: no such file; expected {_WHAT}")
    try:
        manifest = json.loads(path.read_bytes())
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error}); damaged or cut off; {_AGAIN}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        found = manifest.get("format") if isinstance(manifest, dict) else type(manifest).__name__
        raise UserError(f"{path}: format {found!r}; expected {FORMAT}; {_AGAIN}")
    for field, kind in _FIELDS.items():
        if not isinstance(manifest.get(field), kind):
            raise UserError(f"{path}: {field} is {manifest.get(field)!r}; expected {kind.__name__}; {_AGAIN}")
    if manifest["dtype"] not in DTYPES:
        raise UserError(f"{path}: dtype is {manifest['dtype']!r}; expected one of {', '.join(DTYPES)}; {_AGAIN}")
    _check_size(directory / TOKENS, manifest["tokens"] * DTYPES[manifest["dtype"]])
    return manifest


def _check_size(path: Path, expected: int) -> None:
    if not path.is_file():
        raise UserError(f"{path}: no such file; expected {expected:,} bytes of tokens; {_AGAIN}")
    size = path.stat().st_size
    if size != expected:
        how = "cut short" if size < expected else "too long"
        raise UserError(f"{path}: {how}, {size:,} bytes; expected {expected:,} as {MANIFEST} says; {_AGAIN}")
