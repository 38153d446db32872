"""Rows of text in which a model predicts tokens: some to fit on, and others to judge by."""

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from wechsel_jax.errors import UserError
from wechsel_jax.tokens import Vocabulary
from wechsel_jax.tokens.encoding import around, plain_backend
from wechsel_jax.tokens.text import BOUNDARY

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_LENGTH = 128
# Rows to fit on and held-out rows, by whether the model is causal; a masked model predicts few tokens a row.
_ROWS, _HELD_OUT = {True: 64, False: 192}, {True: 32, False: 96}
_MASK_RATE = 0.15


@dataclasses.dataclass(frozen=True)
class Sample:
    """Rows of text with what is predicted in them.

    Attributes:
      tokens: int32 (R, L), what the model sees.
      positions: int (R, M), where it predicts.
      targets: int (R * M,), the tokens that come there.
    """

    tokens: np.ndarray
    positions: np.ndarray
    targets: np.ndarray


def split_text(
    ids: np.ndarray,
    tokenizer: "PreTrainedTokenizerFast",
    vocabulary: Vocabulary,
    causal: bool,
    most: int,
    seed: int,
    place: str,
) -> tuple[Sample, Sample, np.ndarray]:
    """Takes rows of a text at equal distances; every third one is held out.

    Args:
      ids: int32 (n,), see `tokens.text.read_token_ids`.
      tokenizer: puts its special tokens around each row (those in front only, for a causal model).
      vocabulary: its V tokens.
      causal: the next token is predicted; otherwise 15 % of the tokens, which are masked.
      most: the longest row that the model takes.
      seed: of the masks.
      place: what to call the text.

    Returns:
      Rows to fit on, held-out rows, and float64 (V,), how often each token occurs outside the held-out rows.

    Raises:
      UserError: there are not three rows.
    """
    ids, before, after = _as_stream(ids, tokenizer, vocabulary, causal)
    content = min(_LENGTH, most) - len(before) - len(after)
    wanted = _ROWS[causal] + _HELD_OUT[causal]
    step = content + causal
    number = min(wanted, len(ids) // step)
    if number < 3:
        raise UserError(
            f"{place}: {len(ids)} tokens; expected at least {3 * step} to calibrate on; give more target_text, or "
            "leave calibrate out"
        )
    starts = np.linspace(0, len(ids) // step - 1, number).round().astype(np.int64) * step
    places = starts[:, None] + np.arange(step)
    rows = ids[places]
    out = np.arange(number) % 3 == 2
    counts = np.bincount(ids, minlength=len(vocabulary)) - np.bincount(rows[out].reshape(-1), minlength=len(vocabulary))
    parts = []
    for part, chosen in enumerate((rows[~out], rows[out])):
        if causal:
            parts.append(_next_tokens(chosen, before))
        else:
            parts.append(_masked(chosen, before, after, vocabulary.id_with_role("mask"), np.random.default_rng([seed, part])))
    return parts[0], parts[1], counts.astype(np.float64)


def full_rows(
    ids: np.ndarray, tokenizer: "PreTrainedTokenizerFast", vocabulary: Vocabulary, causal: bool, length: int
) -> np.ndarray:
    """Cuts all of a text into rows; what is left behind the last full one is dropped.

    Args:
      ids: int32 (n,), see `tokens.text.read_token_ids`.
      tokenizer: puts its special tokens around each row, as in `split_text`.
      vocabulary: its V tokens.
      causal: whether the model predicts the next token.
      length: L, special tokens among them.

    Returns:
      int32 (rows, L).
    """
    ids, before, after = _as_stream(ids, tokenizer, vocabulary, causal)
    content = length - len(before) - len(after)
    rows = ids[: len(ids) // content * content].reshape(-1, content)
    parts = (np.tile(np.array(part, np.int32), (len(rows), 1)) for part in (before, after))
    return np.concatenate([next(parts), rows, next(parts)], axis=1)


def held_apart(order: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Splits what stands in random order: a tenth, but at most `most`, that a result is judged by, and the rest to fit on."""
    held = min(-(-len(order) // 10), most)
    return order[:held], order[held:]


def _as_stream(
    ids: np.ndarray, tokenizer: "PreTrainedTokenizerFast", vocabulary: Vocabulary, causal: bool
) -> tuple[np.ndarray, list[int], list[int]]:
    """Documents one behind the other, with the tokenizer's separator between them, and what stands around each row of them.

    Returns:
      int32 (n,), and the special tokens in front of a row and, for a masked model, behind it.
    """
    end = vocabulary.id_with_role("eos")
    ids = ids[ids != BOUNDARY] if end is None else np.where(ids == BOUNDARY, end, ids)
    before, after = around(plain_backend(tokenizer))
    return ids, before, after if not causal else []


def _next_tokens(rows: np.ndarray, before: list[int]) -> Sample:
    seen = np.concatenate([np.tile(np.array(before, rows.dtype), (len(rows), 1)), rows[:, :-1]], axis=1)
    positions = np.arange(len(before), seen.shape[1])
    return Sample(seen.astype(np.int32), np.tile(positions, (len(rows), 1)), rows[:, 1:].reshape(-1))


def _masked(rows: np.ndarray, before: list[int], after: list[int], mask: int, generator: np.random.Generator) -> Sample:
    count = max(round(_MASK_RATE * rows.shape[1]), 1)
    chosen = np.sort(generator.permuted(np.tile(np.arange(rows.shape[1]), (len(rows), 1)), axis=1)[:, :count], axis=1)
    targets = np.take_along_axis(rows, chosen, axis=1)
    seen = rows.copy()
    np.put_along_axis(seen, chosen, mask, axis=1)
    around = [np.tile(np.array(part, rows.dtype), (len(rows), 1)) for part in (before, after)]
    return Sample(
        np.concatenate([around[0], seen, around[1]], axis=1).astype(np.int32), chosen + len(before), targets.reshape(-1)
    )
