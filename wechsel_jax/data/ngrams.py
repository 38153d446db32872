"""An n-gram language model of a text, and what it expects after each token of a batch: soft targets for training."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from wechsel_jax.data.batches import ALL_ROWS, Batch, Dataset, Rows

# Counting trigrams takes some 80 bytes a token. Of more text, stretches from all over it are counted.
_MOST_TOKENS, _STRETCH = 1 << 24, 1 << 16


class _Level(NamedTuple):
    """What follows contexts of one length k; contexts have numbers, in the order of (number of the context before, token).

    Attributes:
      keys: int64 (n,), sorted: number of the context of k - 1 tokens times V, plus the last token; None for k = 1.
      starts: int64 (n + 1,), where the continuations of each context begin.
      tokens: (m,), continuations, of each context the most frequent first.
      shares: float32 (m,), discounted probabilities.
      left: float32 (n,), what the discounts leave to shorter contexts.
    """

    keys: np.ndarray | None
    starts: np.ndarray
    tokens: np.ndarray
    shares: np.ndarray
    left: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class NgramModel:
    """Interpolated Kneser-Ney smoothing (Kneser and Ney, 1995; Chen and Goodman, 1999, section 2.7), one discount an order.

    Attributes:
      unigrams: float64 (V,), shares of the tokens by how many others they follow; a token that follows none has a little.
      levels: continuations of contexts of 1, 2, ... tokens.
    """

    unigrams: np.ndarray = dataclasses.field(repr=False)
    levels: tuple[_Level, ...] = dataclasses.field(repr=False)

    @classmethod
    def of(cls, stream: np.ndarray, vocabulary_size: int, order: int) -> "NgramModel":
        """Counts a text.

        Args:
          stream: integers (n,), n > 1, tokens of documents one behind the other.
          vocabulary_size: V.
          order: tokens of the longest n-grams, at least 2.
        """
        if stream.size > _MOST_TOKENS:
            begins = np.linspace(0, stream.size - _STRETCH, _MOST_TOKENS // _STRETCH).astype(np.int64)
            stream = np.concatenate([stream[begin : begin + _STRETCH] for begin in begins])
        tokens = np.asarray(stream, np.int64)
        # Of the n-grams so far: which of them each place begins, their keys, and how many there are; and of their contexts.
        numbers, keys, size, contexts, context_count = tokens, None, vocabulary_size, None, 0
        unigrams, levels = np.ones(0), []
        for length in range(2, min(order, tokens.size) + 1):
            key = numbers[:-1] * vocabulary_size + tokens[length - 1 :]
            found, place, number, count = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
            # All but the longest count as often as there are tokens before them.
            before = np.bincount(numbers[place + 1], minlength=size)
            if length == 2:
                unigrams = np.maximum(before, 0.1) / np.maximum(before, 0.1).sum()
            else:
                levels.append(_level(contexts, context_count, keys, before, vocabulary_size))
            contexts, context_count, numbers, keys, size = keys, size, number, found, len(found)
        levels.append(_level(contexts, context_count, keys, count, vocabulary_size))
        return cls(unigrams, tuple(levels))

    def perplexity(self, stream: np.ndarray) -> float:
        """Perplexity of a text, each token from the ones before it; the first one is not counted.

        Args:
          stream: integers (n,), n > 1.
        """
        tokens = np.asarray(stream, np.int64)[None]
        follower = tokens[0, 1:]
        probability = self.unigrams[follower]
        for level, context in zip(self.levels, self._contexts(tokens), strict=True):
            context = context[0, :-1]
            known = context >= 0
            # Continuations lie in the order of their counts.
            key = np.repeat(np.arange(len(level.left)), np.diff(level.starts)) * len(self.unigrams) + level.tokens
            order = np.argsort(key)
            wanted = context * len(self.unigrams) + follower
            at = order[np.minimum(np.searchsorted(key, wanted, sorter=order), len(order) - 1)]
            share = np.where(key[at] == wanted, level.shares[at], 0.0)
            probability = np.where(known, share + level.left[context] * probability, probability)
        return float(np.exp(-np.log(probability).mean()))

    def expected(self, tokens: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns what may follow each token of a batch.

        Args:
          tokens: integers (B, L).
          count: c, how many continuations of each length of context, the most frequent ones.

        Returns:
          (int32 (B, L, c * (order - 1)) tokens, which may occur several times, and float32 their probabilities, 0 behind the
          last continuation, which sum to less than 1: rarer continuations, and those of no context at all, are left out).
        """
        contexts = self._contexts(np.asarray(tokens, np.int64))
        ids = np.empty((*tokens.shape, len(contexts), count), np.int32)
        shares = np.empty(ids.shape, np.float32)
        left, places = np.ones(tokens.shape, np.float32), np.arange(count)
        # The longest contexts first, of which shorter ones get what is left.
        for at, (level, context) in enumerate(reversed([*zip(self.levels, contexts, strict=True)])):
            known = context >= 0
            begin = np.where(known, level.starts[context], 0)
            size = np.where(known, level.starts[context + 1] - begin, 0)
            where = np.minimum(begin[..., None] + places, len(level.tokens) - 1)
            ids[..., at, :] = level.tokens[where]
            np.multiply(level.shares[where], left[..., None], out=shares[..., at, :])
            shares[..., at, :] *= places < size[..., None]
            left = np.where(known, left * level.left[context], left)
        return ids.reshape(*tokens.shape, -1), shares.reshape(*tokens.shape, -1)

    def _contexts(self, tokens: np.ndarray) -> list[np.ndarray]:
        """The numbers of the contexts of 1, 2, ... tokens that end at each place of (B, L); -1 where one did not occur."""
        found = [np.where(np.diff(self.levels[0].starts)[tokens] > 0, tokens, -1)]
        for level in self.levels[1:]:
            before = np.pad(found[-1][:, :-1], ((0, 0), (1, 0)), constant_values=-1)
            key = before * len(self.unigrams) + tokens
            number = np.minimum(np.searchsorted(level.keys, key), len(level.keys) - 1)
            known = (before >= 0) & (level.keys[number] == key) & (level.starts[number + 1] > level.starts[number])
            found.append(np.where(known, number, -1))
        return found


def _level(contexts: np.ndarray | None, number: int, keys: np.ndarray, counts: np.ndarray, vocabulary_size: int) -> _Level:
    """The level of `number` contexts with their keys, from the keys and counts of the n-grams that are one token longer."""
    once, twice = (counts == 1).sum(), (counts == 2).sum()
    # Ney et al. (1994); a text in which nothing occurs once, or all does, says nothing.
    discount = once / (once + 2 * twice) if once and twice else 0.75
    context, token = np.divmod(keys, vocabulary_size)
    starts = np.searchsorted(context, np.arange(number + 1))
    totals = np.bincount(context, counts, number)
    shares = np.maximum(counts - discount, 0) / np.maximum(totals[context], 1)
    left = 1 - np.bincount(context, shares, number)
    order = np.lexsort((token, -counts, context))
    width = np.uint16 if vocabulary_size <= 1 << 16 else np.int32
    return _Level(contexts, starts, token[order].astype(width), shares[order].astype(np.float32), left.astype(np.float32))


@dataclasses.dataclass(frozen=True)
class SoftTargets:
    """Batches of token blocks, with what an n-gram model expects.

    Attributes:
      data: token blocks.
      model: of their text.
      continuations: see `NgramModel.expected`.
      share: step -> how much of the target at each position the model's expectation makes up, from 0 to 1.
    """

    data: Dataset
    model: NgramModel
    continuations: int
    share: Callable[[int], float]

    def batch(self, step: int, batch_size: int, seed: int, rows: Rows = ALL_ROWS) -> Batch:
        """The batch of a step, and where it has a share of them "soft_tokens" int32 (rows, L, c) and "soft_weights" float32.

        Those of a place are of what follows it.
        """
        batch, share = self.data.batch(step, batch_size, seed, rows), self.share(step)
        if not share:
            return batch
        tokens, shares = self.model.expected(batch["tokens"], self.continuations)
        return batch | {"soft_tokens": tokens, "soft_weights": shares * np.float32(share)}
