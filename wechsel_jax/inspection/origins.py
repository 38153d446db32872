"""Where the tokens of a transferred model came from: single ones, all by their kind, and the source model."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wechsel_jax.errors import UserError
from wechsel_jax.records import TransferRecord
from wechsel_jax.records.names import PLAN_FILE, RECORD_FILE

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from wechsel_jax.initializers import TransferPlan
    from wechsel_jax.tokens import Vocabulary


def origins(
    directory: str | os.PathLike,
    tokens: Sequence[str],
    *,
    plan: str | os.PathLike | None = None,
    source: str | os.PathLike | None = None,
) -> list[dict[str, Any]]:
    """Says where tokens of a transferred model came from.

    Args:
      directory: what `wechsel-jax transfer` wrote: the plan, the tokenizer, and the record, which names the source model.
      tokens: as the tokenizer spells them, as `tokens.readable` writes them, or words that are one token.
      plan: a plan to use in place of the directory's.
      source: the source model, where it is no longer where the record says; its tokenizer is read.

    Returns:
      For each token {"token_id", "target", "how", "sources": [[source token, weight], ...]}; a mixed row without sources is
      a regression's alone.

    Raises:
      UserError: a file is missing or damaged, plan and tokenizer do not fit, or a token is none of the directory's.
    """
    from wechsel_jax.initializers import TransferPlan
    from wechsel_jax.tokens import Vocabulary, load_tokenizer

    directory = Path(directory)
    if not (directory / RECORD_FILE).exists() or not (plan or (directory / PLAN_FILE).exists()):
        raise UserError(
            f"{directory}: has no {RECORD_FILE if plan else PLAN_FILE}, which --tokens reads; expected the directory that "
            "`wechsel-jax transfer` wrote"
        )
    loaded = TransferPlan.load(plan or directory / PLAN_FILE)
    tokenizer = load_tokenizer(directory)
    target, vocabulary = Vocabulary.from_tokenizer(tokenizer), _source_vocabulary(directory, source)
    require_fit(loaded, target, directory, vocabulary)
    ids = _find(tokens, target, tokenizer, directory)
    return [{"token_id": token_id, **origin(loaded, vocabulary, target, token_id)} for token_id in ids]


def origin(plan: "TransferPlan", source: "Vocabulary", target: "Vocabulary", token_id: int) -> dict:
    """Says where one target token came from: {"target", "how", "sources": [[source token, weight], ...]}."""
    from wechsel_jax.tokens import readable

    if plan.random[token_id]:
        how, sources = "random", []
    elif plan.copy[token_id] >= 0:
        how, sources = "copied", [[readable(source, int(plan.copy[token_id])), 1.0]]
    else:
        ids, weights = plan.sources(token_id)
        # Digits that count: a mean over all shared tokens has small weights.
        pairs = zip(ids.tolist(), weights.tolist(), strict=True)
        how, sources = "mixed", [[readable(source, i), float(f"{weight:.4g}")] for i, weight in pairs]
    return {"target": readable(target, token_id), "how": how, "sources": sources}


def drawn_origins(
    plan: "TransferPlan", source: "Vocabulary", target: "Vocabulary", seed: int, count: int
) -> list[dict[str, Any]]:
    """Says where target tokens (no special ones) came from, see `origin`: `count` of them, drawn by `seed`, in order of ids."""
    ordinary = np.flatnonzero(target.is_token & ~target.special)
    chosen = np.sort(np.random.default_rng(seed).permutation(ordinary)[:count])
    return [origin(plan, source, target, int(token_id)) for token_id in chosen]


def rows_by_origin(plan: "TransferPlan") -> dict[str, np.ndarray]:
    """Returns "copied", "mixed" and "random" -> bool (V_t,), the rows that are so."""
    return {"copied": plan.copy >= 0, "mixed": plan.is_mixed, "random": plan.random}


def require_fit(
    plan: "TransferPlan", vocabulary: "Vocabulary", place: str | os.PathLike, source: "Vocabulary | None" = None
) -> None:
    """Raises `UserError` where a plan is of other tokens than those that lie beside it in `place`, or than the source's."""
    if len(plan) != len(vocabulary):
        raise UserError(
            f"{place}: the plan is for {len(plan)} tokens, the tokenizer has {len(vocabulary)}; expected one directory's; "
            "write it again with `wechsel-jax transfer`"
        )
    largest = int(max(plan.copy.max(initial=-1), plan.neighbors[plan.weights != 0].max(initial=-1)))
    if source is not None and largest >= len(source):
        raise UserError(
            f"{place}: the plan names source token {largest:,}, and the source model has {len(source):,} tokens; expected the "
            "model that the transfer began with; name it with --source"
        )


def source_here(record: TransferRecord | None) -> str | None:
    """Where the source model of a record lies on this machine; None where it does not. Nothing is downloaded."""
    named = record.source.get("model") if record else None
    return named if named is not None and (Path(named) / "config.json").is_file() else None


def _source_vocabulary(directory: Path, source: str | os.PathLike | None) -> "Vocabulary":
    from wechsel_jax.tokens import Vocabulary, load_tokenizer

    if source is not None:
        return Vocabulary.from_tokenizer(load_tokenizer(source))
    named = TransferRecord.read(directory).source.get("model")
    if named is None:
        raise UserError(f"{directory / RECORD_FILE}: names no source model; name it with --source")
    try:
        return Vocabulary.from_tokenizer(load_tokenizer(named))
    except UserError as error:
        if Path(named).exists():
            raise
        where = f"{directory / RECORD_FILE} names this source model, seen from where the transfer ran"
        raise UserError(f"{error}; {where}; where it lies elsewhere, name its place with --source") from error


def _find(tokens: Sequence[str], target: "Vocabulary", tokenizer: "PreTrainedTokenizerFast", directory: Path) -> list[int]:
    from wechsel_jax.tokens import readable

    by_string = {string: i for i, string in enumerate(target.strings)}
    by_text = {readable(target, i): i for i in reversed(range(len(target)))}
    found = []
    for token in tokens:
        token_id = by_string.get(token, by_text.get(token))
        if token_id is None:
            # A word as it stands in a text; the first of the encodings that is one token.
            encoded = [tokenizer.encode(text, add_special_tokens=False) for text in (" " + token, token)]
            token_id = next((ids[0] for ids in encoded if len(ids) == 1), None)
        if token_id is None:
            raise UserError(f"{token}: no single token of {directory}; expected a word that is one, or a token's own spelling")
        found.append(token_id)
    return found
