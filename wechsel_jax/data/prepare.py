"""Text files to one flat stream of tokens on disk."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tokenizers
from tqdm import tqdm

from wechsel_jax.data.documents import KINDS, TEXT_FILE, read_documents
from wechsel_jax.data.manifest import FORMAT, MANIFEST, TOKENS, read_manifest
from wechsel_jax.errors import UserError
from wechsel_jax.files import new_directory, require_file
from wechsel_jax.tokens import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Documents that the tokenizer gets at once: enough to keep all cores busy, few enough to stay within some 100 MB.
_GROUP_CHARACTERS, _GROUP_DOCUMENTS = 2_000_000, 8192


def prepare(
    texts: Sequence[str | os.PathLike] | str | os.PathLike,
    tokenizer: str | os.PathLike,
    output: str | os.PathLike,
    *,
    documents: str = "lines",
) -> dict[str, Any]:
    """Writes the tokens of all documents of all files, one after the other, to `output/tokens.bin`.

    Each document is what the tokenizer makes of it with its own special tokens (RoBERTa: <s> text </s>). Where the tokenizer
    itself puts nothing behind a text (GPT-2), its end-of-text token follows. Tokens are little-endian uint16 where the
    vocabulary has at most 65536 ids, else uint32. `output/manifest.json` records what they were made of; where it
    matches, nothing is done.

    Args:
      texts: UTF-8 text files, plain or compressed (gzip, xz, bzip2).
      tokenizer: a directory, a tokenizer.json or a hub id.
      output: the directory to write. It appears whole or not at all.
      documents: what a document is: "lines", "paragraphs" (with blank lines between them) or "files".

    Returns:
      The manifest, see `read_manifest`.

    Raises:
      UserError: a file is missing, empty or not UTF-8 (file and line are named), there is no document in all of them, the
        tokenizer has no token to end a document with, or `output` holds something else.
    """
    paths = [texts] if isinstance(texts, (str, os.PathLike)) else list(texts)
    if not paths:
        raise UserError("texts: no file is named; expected at least one text file")
    if documents not in KINDS:
        raise UserError(f"documents: {documents!r} is not known; expected {', '.join(KINDS)}")
    paths, output = [require_file(path, TEXT_FILE) for path in paths], Path(output)
    loaded = load_tokenizer(tokenizer)
    encoder = _Encoder(loaded, tokenizer)
    recipe = {
        "format": FORMAT,
        "documents_are": documents,
        "dtype": encoder.dtype.name,
        "vocabulary_size": encoder.vocabulary_size,
        "end_token": encoder.end,
        "tokenizer": {"name": Path(tokenizer).name, "sha256": _tokenizer_hash(loaded)},
        "inputs": [{"name": path.name, "bytes": path.stat().st_size, "sha256": _file_hash(path)} for path in paths],
    }
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        return _reuse(output, recipe)
    with new_directory(output) as directory:
        with tqdm(total=sum(entry["bytes"] for entry in recipe["inputs"]), unit="B", unit_scale=True, disable=None) as bar:
            bar.set_description(f"tokens for {output.name}")
            texts = (document for path in paths for document in read_documents(path, documents, bar.update))
            counts = _write(directory / TOKENS, encoder.encode(texts), bar)
        if counts["documents"] == 0:
            raise UserError(f"{paths[0]}: holds nothing but white space; expected text")
        manifest = {**recipe, **counts, "versions": {"tokenizers": tokenizers.__version__}}
        with open(directory / MANIFEST, "w", encoding="utf-8") as handle:
            json.dump(manifest, handle, indent=1)
            handle.flush()
            os.fsync(handle.fileno())
    return manifest


class _Encoder:
    """The tokenizer's fast backend, and the end of a document where the tokenizer adds none itself."""

    def __init__(self, tokenizer: "PreTrainedTokenizerFast", place: str | os.PathLike):
        self._backend = tokenizer.backend_tokenizer
        self.vocabulary_size = max(self._backend.get_vocab(with_added_tokens=True).values()) + 1
        self.dtype = np.dtype("<u2") if self.vocabulary_size <= 1 << 16 else np.dtype("<u4")
        self.end: int | None = None
        probe = self._backend.encode("a")
        if not probe.special_tokens_mask or not probe.special_tokens_mask[-1]:
            named = (tokenizer.eos_token_id, tokenizer.sep_token_id)
            self.end = next((token for token in named if token is not None), None)
            if self.end is None:
                advice = "expected an eos_token; name one in tokenizer_config.json"
                raise UserError(f"{place}: has no token that ends a text; {advice}")

    def encode(self, documents: Iterable[str]) -> Iterator[tuple[int, np.ndarray]]:
        """Yields (number of documents, their tokens (n,)) for one group of documents after the other."""
        end = [] if self.end is None else [self.end]
        for group in _groups(documents):
            ids = [encoding.ids + end for encoding in self._backend.encode_batch_fast(group)]
            yield len(group), np.concatenate([np.asarray(document, self.dtype) for document in ids])


def _groups(documents: Iterable[str]) -> Iterator[list[str]]:
    group, characters = [], 0
    for document in documents:
        group.append(document)
        characters += len(document)
        if characters >= _GROUP_CHARACTERS or len(group) == _GROUP_DOCUMENTS:
            yield group
            group, characters = [], 0
    if group:
        yield group


def _write(path: Path, groups: Iterable[tuple[int, np.ndarray]], bar: tqdm) -> dict[str, Any]:
    """Writes groups of tokens to a file; returns what the manifest says about them."""
    digest, tokens, documents, size = hashlib.sha256(), 0, 0, 0
    with open(path, "wb") as handle:
        for count, ids in groups:
            raw = ids.tobytes()
            handle.write(raw)
            digest.update(raw)
            tokens, documents, size = tokens + ids.size, documents + count, size + len(raw)
            bar.set_postfix_str(f"{tokens:,} tokens")
        handle.flush()
        os.fsync(handle.fileno())
    return {"tokens": tokens, "documents": documents, "bytes": size, "sha256": digest.hexdigest()}


def _reuse(output: Path, recipe: dict[str, Any]) -> dict[str, Any]:
    """Returns the manifest of an earlier call with the same inputs, or says what differs."""
    advice = "choose another output or delete it"
    if not (output / MANIFEST).is_file():
        raise UserError(f"{output}: exists already and holds no prepared text; {advice}")
    found = read_manifest(output)
    if found["tokenizer"].get("sha256") != recipe["tokenizer"]["sha256"]:
        raise UserError(f"{output}: was prepared with another tokenizer; {advice}")
    old, new = ([(entry.get("name"), entry.get("sha256")) for entry in one["inputs"]] for one in (found, recipe))
    if old != new:
        changed = next((name for name, digest in new if (name, digest) not in old), None)
        what = "the same files in another order or number" if changed is None else f"other text than {changed} holds now"
        raise UserError(f"{output}: was prepared from {what}; {advice}")
    for field in ("documents_are", "dtype", "vocabulary_size", "end_token"):
        if found.get(field) != recipe[field]:
            raise UserError(f"{output}: was prepared with {field} = {found.get(field)!r}, not {recipe[field]!r}; {advice}")
    return found


def _file_hash(path: Path) -> str:
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _tokenizer_hash(tokenizer: "PreTrainedTokenizerFast") -> str:
    """Of tokenizer.json where there is one; its bytes do not change with the version of the library that reads it."""
    if tokenizer.name_or_path:
        place = Path(tokenizer.name_or_path)
        for path in (place, place / "tokenizer.json"):
            if path.is_file():
                return _file_hash(path)
    return hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()
