"""Sentence pairs with the links between their tokens, on disk: the rows of TreLM's transfer training (Li et al., 2021).

A pair makes rows of two kinds. One asks for the sentence of one side, read from the other side's states in the order of the
links (cross-lingual language modelling, CdLM); the other for the masked tokens of a sentence, from itself (MLM). Both have
the same arrays, so both stand in the same batch (section 3.1, "a unified view").
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tokenizers

from wechsel_jax.data.batches import Batch, training_indices
from wechsel_jax.data.encoder import token_dtype
from wechsel_jax.data.padded import PaddedRows
from wechsel_jax.errors import UserError, parsing
from wechsel_jax.files import file_hash, require_directory
from wechsel_jax.files.json import NUMBER, TEXT, WHOLE, mismatch, read_json
from wechsel_jax.tokens.extension import unreached_from

FORMAT = 1
FACTS = "pairs.json"
# What stands there for the aligner of text that nobody has aligned.
NO_ALIGNER = "none"
# Which rows a pair makes, each (source side, target side): the sentence of one side from the other's, or masked from itself.
ROWS = {
    # TreLM's first half model, and the one of the other direction: masked is always the new language, side 1 (algorithm 1).
    "forward": ((0, 1), (1, 1)),
    "backward": ((1, 0), (1, 1)),
    # Joint masked language modelling, and that of the new language alone.
    "masked": ((0, 0), (1, 1)),
    "masked_second": ((1, 1),),
    # Without masked rows.
    "forward_only": ((0, 1),),
    "backward_only": ((1, 0),),
    # As forward and backward, but all rows of a step are of one kind, and the kinds take turns (table 8, CdLM*).
    "forward_in_turns": ((0, 1), (1, 1)),
    "backward_in_turns": ((1, 0), (1, 1)),
}
_IN_TURNS = "_in_turns"
_ARRAYS = ("tokens.0", "tokens.1", "starts.0", "starts.1", "links.0", "links.1")
_WHAT = "a directory that `wechsel-jax align` wrote"
_AGAIN = "delete the directory and align the text again"
_FIELDS = {
    **{"languages": (TEXT, TEXT), "pairs": WHOLE, "vocabulary_size": WHOLE, "pad_id": WHOLE, "before": [WHOLE]},
    **{"after": [WHOLE], "sha256": {"*": TEXT}, "linked": (NUMBER, NUMBER), "tokens": (WHOLE, WHOLE)},
    **{"tokenizer?": {"name?": TEXT, "vocabulary?": TEXT}, "aligner?": {"name?": TEXT}},
}


class Sentences(NamedTuple):
    """One side of n pairs.

    Attributes:
      tokens: (T,) ids of all sentences, one after the other, without the special tokens around them.
      starts: int64 (n + 1,), where sentences begin in `tokens`.
    """

    tokens: np.ndarray
    starts: np.ndarray

    @property
    def sizes(self) -> np.ndarray:
        """int64 (n,): tokens of each sentence."""
        return np.diff(self.starts)


@dataclasses.dataclass(frozen=True, eq=False)
class ParallelRows(PaddedRows):
    """n pairs, each of which makes k rows.

    Attributes:
      directory: where they lie.
      facts: what pairs.json says, see `read_facts`.
      length: L, no row is longer.
      kinds: the (source side, target side) of the k rows of each pair.
      sides: the first and the second sentences; memory-mapped where they lie on a disk.
      links: for each token of side 0, (T_0,), and of side 1, (T_1,), the place in the other sentence of the token that it is
        linked with, -1 where there is none.
      in_turns: whether all rows of a training step are of one kind.
    """

    directory: Path
    facts: Mapping[str, Any] = dataclasses.field(repr=False)
    length: int
    kinds: tuple[tuple[int, int], ...]
    sides: tuple[Sentences, Sentences] = dataclasses.field(repr=False)
    links: tuple[np.ndarray, np.ndarray] = dataclasses.field(repr=False)
    in_turns: bool = False

    @classmethod
    def open(cls, directory: str | os.PathLike, length: int, rows: str = "forward", verify: bool = False) -> "ParallelRows":
        """Opens what `wechsel-jax align` wrote.

        Args:
          directory: of the pairs.
          length: L; longer sentences are cut before the special tokens behind them.
          rows: which rows a pair makes, a name in `ROWS`.
          verify: whether to read everything once and compare it with its sha256.

        Raises:
          UserError: it is no such directory, is damaged, or L leaves no room for a token.
        """
        directory, facts = Path(directory), read_facts(directory)
        if rows not in ROWS:
            raise UserError(f"rows: {rows!r}: no such kind; expected one of {', '.join(ROWS)}")
        least = len(facts["before"]) + len(facts["after"]) + 2
        if length < least:
            raise UserError(
                f"block_length: {length}; expected at least {least}, for a token, those around it and the placeholder"
            )
        if verify:
            for name, expected in facts["sha256"].items():
                if file_hash(directory / f"{name}.npy") != expected:
                    raise UserError(f"{directory / name}.npy: damaged: its sha256 is not that of {FACTS}; {_AGAIN}")
        arrays = {}
        for name in _ARRAYS:
            path = directory / f"{name}.npy"
            with parsing(path, f"an array of {_WHAT}; {_AGAIN}", OSError):
                arrays[name] = np.load(path, mmap_mode="r", allow_pickle=False)
            side = int(name[-1])
            expected = facts["pairs"] + 1 if name.startswith("starts") else facts["tokens"][side]
            if arrays[name].shape != (expected,):
                raise UserError(f"{path}: has shape {arrays[name].shape}; expected ({expected},) as {FACTS} says; {_AGAIN}")
        first, second = (Sentences(arrays[f"tokens.{side}"], arrays[f"starts.{side}"]) for side in (0, 1))
        links, in_turns = (arrays["links.0"], arrays["links.1"]), rows.endswith(_IN_TURNS)
        return cls(directory, facts, length, ROWS[rows], (first, second), links, in_turns)

    def __len__(self) -> int:
        return self.facts["pairs"] * len(self.kinds)

    @property
    def vocabulary_size(self) -> int:
        """V of the tokenizer; every token is smaller."""
        return self.facts["vocabulary_size"]

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of the pairs, their links and the kinds of rows."""
        described = [self.facts["sha256"], self.kinds, *([_IN_TURNS] if self.in_turns else [])]
        return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()

    def check(self, tokenizer: tokenizers.Tokenizer, links: bool = False) -> None:
        """Checks that the pairs fit a model and its objective.

        Args:
          tokenizer: of the model; it may have more tokens, but not others. Old pairs do not say whose they hold.
          links: whether the links are read.

        Raises:
          UserError: the tokens are another tokenizer's, or there are no links.
        """
        aligned = self.facts.get("tokenizer", {})
        if aligned.get("vocabulary", found := vocabulary_hash(tokenizer, self.vocabulary_size)) != found:
            raise UserError(
                f"{self.directory}: was aligned with the tokens of another tokenizer ({aligned.get('name')}); expected the "
                "model's; align the text again with --tokenizer=MODEL"
            )
        behind = unreached_from(tokenizer)
        if behind is not None and self.vocabulary_size <= behind:
            raise UserError(
                f"{self.directory}: was aligned with one tokenizer for both languages; expected one of each, as the model has "
                "separate vocabularies; align the text again with --first_tokenizer"
            )
        if links and self.facts.get("aligner", {}).get("name") == NO_ALIGNER:
            raise UserError(f"{self.directory}: was made with --aligner=none; expected links; align the text with another one")

    def padded(self, rows: np.ndarray, length: int) -> Batch:
        """Rows by their numbers, (m,), each padded to `length`.

        Returns:
          Arrays of shape (m, `length`) or (m,): "tokens" int32 and "mask" bool, the source sentence with its special tokens,
          and where they are; "languages" int32 (m,), its side; "targets", "target_mask" and "target_languages" likewise of the
          sentence to predict; "order" int32, for each target position the source position to take: that of the linked token, of
          the special token in the same place, or of the placeholder, the padding token right behind the source sentence, for
          what is not linked and behind the target's end; "masked" bool (m,), whether the row is a sentence to mask, whose two
          sides are the same and whose order is 0, 1, 2, ...
        """
        before, after, shape = self.facts["before"], self.facts["after"], (len(rows), length)
        batch: Batch = {
            "tokens": np.full(shape, self.facts["pad_id"], np.int32),
            "mask": np.zeros(shape, bool),
            "languages": np.zeros(len(rows), np.int32),
            "targets": np.full(shape, self.facts["pad_id"], np.int32),
            "target_mask": np.zeros(shape, bool),
            "target_languages": np.zeros(len(rows), np.int32),
            "order": np.tile(np.arange(length, dtype=np.int32), (len(rows), 1)),
            "masked": np.zeros(len(rows), bool),
        }
        for place, number in enumerate(rows.tolist()):
            pair, kind = divmod(number, len(self.kinds))
            source, target = self.kinds[kind]
            batch["masked"][place] = source == target
            sizes = {}
            for side, prefix in ((source, ""), (target, "target_")):
                start, kept = self._kept(pair, side, placeholder=source != target and not prefix)
                sentence = np.concatenate([before, self.sides[side].tokens[start : start + kept], after])
                batch["targets" if prefix else "tokens"][place, : sentence.size] = sentence
                batch[f"{prefix}mask"][place, : sentence.size] = True
                batch[f"{prefix}languages"][place] = side
                sizes[prefix] = start, kept, sentence.size
            if source != target:
                (_, kept, placeholder), (start, wanted, end) = sizes[""], sizes["target_"]
                links = np.asarray(self.links[target][start : start + wanted], np.int64)
                order = batch["order"][place]
                # The special tokens before a sentence keep their places.
                order[len(before) :] = placeholder
                order[len(before) : len(before) + wanted] = np.where(
                    (links >= 0) & (links < kept), links + len(before), placeholder
                )
                order[end - len(after) : end] = np.arange(placeholder - len(after), placeholder)
        return batch

    def drawn(self, step: int, batch_size: int, seed: int) -> np.ndarray:
        """int64 (B,): the rows of one step's batch; in turns, each kind of the same pairs before the next pairs."""
        if not self.in_turns:
            return super().drawn(step, batch_size, seed)
        turn, kind = divmod(step, len(self.kinds))
        return training_indices(self.facts["pairs"], turn, batch_size, seed) * len(self.kinds) + kind

    def _kept(self, pair: int, side: int, placeholder: bool) -> tuple[int, int]:
        """Where a sentence begins, and how many of its tokens a row holds."""
        start, end = self.sides[side].starts[pair : pair + 2].tolist()
        return start, min(end - start, self.length - len(self.facts["before"]) - len(self.facts["after"]) - placeholder)

    def sizes(self, rows: np.ndarray) -> np.ndarray:
        """int64 (m,): positions that each row needs, the placeholder included."""
        pairs, kinds = np.divmod(rows, len(self.kinds))
        sides = np.asarray(self.kinds)[kinds]
        tokens = np.stack([side.starts[pairs + 1] - side.starts[pairs] for side in self.sides])
        around = len(self.facts["before"]) + len(self.facts["after"])
        needed = around + tokens[sides.T, np.arange(rows.size)] + np.stack([sides[:, 0] != sides[:, 1], np.zeros(rows.size)])
        return np.minimum(needed.max(axis=0), self.length).astype(np.int64)


def vocabulary_hash(tokenizer: tokenizers.Tokenizer, size: int) -> str:
    """sha256 of the tokens with ids below `size`, which a model's tokenizer shares with the one that it was made of."""
    tokens = sorted((number, token) for token, number in tokenizer.get_vocab(with_added_tokens=True).items() if number < size)
    return hashlib.sha256(json.dumps(tokens).encode()).hexdigest()


def read_facts(directory: str | os.PathLike) -> dict[str, Any]:
    """Reads pairs.json.

    Returns:
      {"format", "languages": names of both sides, "pairs": n, "tokens": (T_0, T_1), "vocabulary_size", "before" and "after":
      the special tokens around a sentence, "pad_id", "linked": the shares of the tokens of both sides that have a link,
      "sha256": of each array, "tokenizer": {"name", "sha256", "vocabulary": `vocabulary_hash`}, "inputs": [{"name", "bytes",
      "sha256"}], "aligner": its name and settings, "dropped": pairs that were left out and why, "versions"}.

    Raises:
      UserError: there is no such file, or it is damaged or of another version.
    """
    path = require_directory(directory, _WHAT) / FACTS
    facts = read_json(path, f"the record of {_WHAT}", _AGAIN)
    wrong = mismatch(facts, _FIELDS, "pairs")
    if facts.get("format") != FORMAT:
        wrong = f"format is {facts.get('format')!r}; expected {FORMAT}"
    if wrong is None and {*facts["sha256"]} != {*_ARRAYS}:
        wrong = f"sha256 names {', '.join(sorted(facts['sha256']))}; expected {', '.join(_ARRAYS)}"
    if wrong:
        raise UserError(f"{path}: {wrong}; {_AGAIN}")
    return facts


def write_pairs(
    directory: Path, sides: Sequence[Sentences], links: Sequence[np.ndarray], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Writes pairs into a directory that is there and empty; whoever calls makes it appear whole.

    Args:
      directory: to write to.
      sides: the first and the second sentences.
      links: as `ParallelRows.links`.
      facts: the fields of `read_facts` that do not follow from the arrays.

    Returns:
      All fields.
    """
    size = facts["vocabulary_size"]
    arrays = {f"tokens.{i}": side.tokens.astype(token_dtype(size)) for i, side in enumerate(sides)}
    arrays |= {f"starts.{i}": side.starts.astype("<i8") for i, side in enumerate(sides)}
    arrays |= {f"links.{i}": np.asarray(one).astype("<i4") for i, one in enumerate(links)}
    hashes = {}
    for name, array in arrays.items():
        path = directory / f"{name}.npy"
        np.save(path, array, allow_pickle=False)
        hashes[name] = file_hash(path)
    counted = {"pairs": len(sides[0].starts) - 1, "tokens": [int(side.tokens.size) for side in sides]}
    linked = [float((np.asarray(one) >= 0).mean()) if one.size else 0.0 for one in links]
    written = {"format": FORMAT, **facts, **counted, "linked": linked, "sha256": hashes}
    (directory / FACTS).write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return written
