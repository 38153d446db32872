"""The source tokenizer's pieces of every target token's text, with what the token says about a word's start."""

import json
from typing import TYPE_CHECKING

import numpy as np

from wechsel_jax.tokens import Vocabulary, byte_level_string

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast


def source_pieces(
    source_tokenizer: "PreTrainedTokenizerFast", source_vocabulary: Vocabulary, target_vocabulary: Vocabulary
) -> tuple[np.ndarray, ...]:
    """Encodes the text of every target token with the source tokenizer.

    A token that starts a word is encoded as the start of a word, any other one as the inside of a word, also by tokenizers
    that put a space before every text. Where the source cannot write a text inside a word (WordPiece has no "##!"), the text
    is encoded as a word. Names of special tokens are plain text; what only unknown tokens could write is left out.

    Args:
      source_tokenizer: of any kind that `Vocabulary` knows.
      source_vocabulary: its V_s tokens.
      target_vocabulary: V_t tokens.

    Returns:
      V_t arrays of source ids, int32; empty for special tokens, holes, texts that the source does not know at all, and parts of
      characters where the source is no byte-level BPE. Joined, the pieces' bytes are the token's, except where the
      source tokenizer normalises or lacks characters.
    """
    inside, start = _backends(source_tokenizer, source_vocabulary.kind)
    found = [np.zeros(0, np.int32)] * len(target_vocabulary)
    texts = {i: text for i, text in enumerate(_texts(target_vocabulary)) if text}
    words = {i: text for i, text in texts.items() if target_vocabulary.word_start[i]}
    _encode(inside, {i: text for i, text in texts.items() if i not in words}, source_vocabulary, found)
    if source_vocabulary.kind == "wordpiece":
        words |= {i: " " + text for i, text in texts.items() if i not in words and not found[i].size}
        words = {i: text[1:] for i, text in words.items()}
    _encode(start, words, source_vocabulary, found)
    if source_vocabulary.kind == "byte_bpe":
        # A token with half a character at an end is no text, but its bytes are cut like any others.
        for i in np.flatnonzero(~target_vocabulary.special):
            if i not in texts and (raw := target_vocabulary.bytes[i]):
                found[i] = np.array([piece.id for piece in inside.model.tokenize(byte_level_string(raw))], np.int32)
    return tuple(found)


def _texts(vocabulary: Vocabulary) -> list[str]:
    """V texts with their leading space; "" for what has none."""
    texts = []
    for raw, special in zip(vocabulary.bytes, vocabulary.special.tolist(), strict=True):
        try:
            texts.append("" if special else raw.decode())
        except UnicodeDecodeError:
            texts.append("")
    return texts


def _encode(backend: "Tokenizer", texts: dict[int, str], source: Vocabulary, found: list[np.ndarray]) -> None:
    """Puts the pieces of `texts` into `found`."""
    special = source.special
    encoded = backend.encode_batch_fast(list(texts.values()), add_special_tokens=False)
    for token_id, encoding in zip(texts, encoded, strict=True):
        ids = np.array(encoding.ids, np.int32)
        found[token_id] = ids[~special[ids]]


def _backends(tokenizer: "PreTrainedTokenizerFast", kind: str) -> tuple["Tokenizer", "Tokenizer"]:
    """Copies of the tokenizer that encode the inside of a word, and a word with its space (WordPiece: without it)."""
    from tokenizers import Tokenizer

    state = json.loads(tokenizer.backend_tokenizer.to_str())
    # Text that names a special token would become that token. What the model's vocabulary lacks must stay, under a name that no
    # text has: without it the library would number the added tokens behind it anew.
    vocabulary = state["model"]["vocab"]
    known = {*vocabulary} if isinstance(vocabulary, dict) else {piece for piece, _ in vocabulary}
    state["added_tokens"] = [
        token | {"content": f"\ufdd0{token['id']}"} if token["special"] else token
        for token in state["added_tokens"]
        if not token["special"] or token["content"] not in known
    ]
    state["truncation"] = state["padding"] = None
    if kind == "wordpiece":
        start = Tokenizer.from_str(json.dumps(state))
        state["model"]["vocab"] = _continuations(state["model"])
        state["added_tokens"] = []
        return Tokenizer.from_str(json.dumps(state)), start
    for key in ("normalizer", "pre_tokenizer"):
        state[key] = _without_prefix(state[key])
    backend = Tokenizer.from_str(json.dumps(state))
    return backend, backend


def _continuations(model: dict) -> dict[str, int]:
    """A WordPiece vocabulary that writes every word as the inside of one."""
    prefix, unknown = model["continuing_subword_prefix"], model["unk_token"]
    inside = {token: i for token, i in model["vocab"].items() if token.startswith(prefix) and token != prefix}
    return inside | {token.removeprefix(prefix): i for token, i in inside.items()} | {unknown: model["vocab"][unknown]}


def _without_prefix(component: dict | None) -> dict | None:
    """The same steps, but none that adds a space before a text or drops one."""
    if component is None:
        return None
    for key in ("normalizers", "pretokenizers"):
        if key in component:
            kept = [_without_prefix(step) for step in component[key]]
            return component | {key: [step for step in kept if step is not None]}
    if component["type"] in ("Prepend", "WhitespaceSplit", "Whitespace"):
        return None
    if component["type"] == "Strip":
        return component | {"strip_left": False, "strip_right": False}
    changed = {"prepend_scheme": "never"} if component["type"] == "Metaspace" else {}
    return component | changed | ({"add_prefix_space": False} if "add_prefix_space" in component else {})
