"""Perplexity of a model as it is, on the beginning of a text: what a transfer is worth before any training."""

import json
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.errors import UserError

TOKENS = 20_000
_LENGTH, _ROWS = 256, 4
# Text of any language has fewer characters per token than this, but for runs of one character.
_CHARACTERS_PER_TOKEN = 8


def perplexity_at_zero(
    checkpoint: Checkpoint, text: str | os.PathLike, *, tokens_limit: int = TOKENS, seed: int = 0
) -> dict[str, Any]:
    """Measures the perplexity of a model on the beginning of a text.

    Args:
      checkpoint: a model directory with its tokenizer.
      text: UTF-8 text, a document a line.
      tokens_limit: how many tokens of the text are read at most.
      seed: of the masks; the same seed asks a masked model for the same tokens.

    Returns:
      {"perplexity", "loss" (nats a token), "bits_per_byte", "tokens" and "bytes" (predicted), "unknown": share of the text's
      tokens that are unknown ones, "masked", "uniform": what a uniform guess would be, "seconds"}, or {"reason"} where the
      architecture is none that is implemented here. A score that is infinite or no number is None, for JSON has neither.

    Raises:
      UserError: the text or the tokenizer is missing or unusable, or `tokens_limit` is under 2.
    """
    import jax

    from wechsel_jax.data import TokenBlocks, evaluation_batches, prepare
    from wechsel_jax.evaluation.perplexity import perplexity
    from wechsel_jax.models.registry import FAMILIES
    from wechsel_jax.objectives import make_objective
    from wechsel_jax.tokens import Vocabulary, load_tokenizer

    if tokens_limit < 2:
        raise UserError(f"tokens_limit {tokens_limit}: expected at least 2 tokens to predict one from another")
    if checkpoint.architecture not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        return {"reason": f"no {checkpoint.architecture} model is implemented here (only {known}), so it cannot be run"}
    family = FAMILIES[checkpoint.architecture]
    try:
        config = family.config(checkpoint.config, dropout=0.0)
        parameters = family.from_hugging_face(checkpoint.arrays(), config)
    except UserError as error:
        return {"reason": str(error)}
    start = time.monotonic()
    place = checkpoint.directory
    vocabulary = Vocabulary.from_tokenizer(load_tokenizer(place))
    special, mask = vocabulary.without_text(config.vocabulary_size), vocabulary.id_with_role("mask")
    name = "clm" if family.causal else "mlm"
    objective = make_objective(name, family, config, mask_token_id=mask, special_ids=special)
    with tempfile.TemporaryDirectory() as scratch:
        excerpt, tokens = Path(scratch) / "text.jsonl", Path(scratch) / "tokens"
        _copy_beginning(text, excerpt, tokens_limit * _CHARACTERS_PER_TOKEN)
        size = prepare(excerpt, place, tokens)["tokens"]
        if size < 2:
            raise UserError(f"{text}: holds {size} token; expected at least 2 to predict one from another; give more text")
        blocks = TokenBlocks.open(tokens, min(_LENGTH, config.max_length, size))
        sizes = blocks.byte_lengths(vocabulary)
        unknown = float(vocabulary.unknown[blocks.stream].mean())
        batches = _beginning(evaluation_batches(blocks, _ROWS, family.causal, byte_lengths=sizes), tokens_limit)
        found = perplexity(objective, parameters, batches, jax.random.key(seed))
    scores = ("perplexity", "loss", "bits_per_byte")
    finite = {name: found[name] if np.isfinite(found[name]) else None for name in scores if name in found}
    seconds = round(time.monotonic() - start, 3)
    return {
        **finite,
        "tokens": found["tokens"],
        "bytes": found.get("bytes", 0),
        "unknown": round(unknown, 6),
        "uniform": len(vocabulary),
        "masked": not family.causal,
        "seconds": seconds,
    }


def _copy_beginning(text: str | os.PathLike, output: Path, characters: int) -> None:
    from wechsel_jax.text.parts import read_documents

    left = characters
    with open(output, "w", encoding="utf-8", newline="") as handle:
        for document in read_documents(text, "lines"):
            # As a line of its own each: a document of JSON lines or Parquet may have several.
            handle.write(json.dumps({"text": document[:left]}) + "\n")
            left -= len(document)
            if left <= 0:
                return
    if left == characters:
        raise UserError(f"{text}: holds nothing but white space; expected text")


def _beginning(batches: Iterable[Mapping[str, np.ndarray]], limit: int) -> Iterator[dict[str, np.ndarray]]:
    """The batches up to the first `limit` tokens with weight; further ones get none."""
    left = limit
    for batch in batches:
        weights = batch["weights"]
        counted = weights > 0
        kept = np.cumsum(counted).reshape(weights.shape) <= left
        yield {**batch, "weights": weights * kept}
        left -= int(counted.sum())
        if left <= 0:
            return
