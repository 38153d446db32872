"""Labelled examples as rows of tokens: the batch of any training step, and the batches of an evaluation."""

import copy
import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tokenizers

from wechsel_jax.data.batches import Batch
from wechsel_jax.data.examples import Example
from wechsel_jax.data.padded import PaddedRows
from wechsel_jax.errors import UserError
from wechsel_jax.tokens.encoding import GROUP_TEXTS, around, plain_backend, some_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclasses.dataclass(frozen=True, eq=False)
class LabelledRows(PaddedRows):
    """Encoded examples. T tokens of n rows lie one after the other; a long example may have several rows.

    Attributes:
      directory: of the run's record of the data, for messages.
      form: "classification", "tagging", "answers", "parsing" or "roles".
      examples: what the rows were made of.
      labels: names of the labels, of trees those of the relations; of answers there are none.
      length: no row is longer.
      pad_id: token behind the end of a row.
      tokens: int32 (T,).
      types: int32 (T,), segments; None where the model knows none.
      starts: int64 (n + 1,), where rows begin in `tokens`.
      targets: int32 (n,), the label of each row; (T,) for tagging and roles, -1 where a token is not the first of a word, and
        for a role that is none of the labels; (n, 2) for answers: the first and the last token, or twice 0 where the row holds
        no answer; (T, 2) for parsing: head and relation, -1 for a relation that is none of the labels and elsewhere. A head is
        the place, from 1 on, among the words that have tokens in the row, 0 for the root, or -1 where the head has none.
      sources: int32 (n,), which example each row is of.
      marks: int32 (T,), the text, 0 or 1, that the token is of, -1 for special tokens (classification); (T,), the word whose
        first token it is, -1 elsewhere (tagging, parsing, roles); (T, 2), its first character in the text and one more than the
        last, -1 outside of it (answers).
      cut: how many examples lost tokens because they were longer than a row.
      group_by_length: see `PaddedRows`.
    """

    directory: Path
    form: str
    examples: Sequence[Example] = dataclasses.field(repr=False)
    labels: tuple[str, ...]
    length: int
    pad_id: int
    tokens: np.ndarray = dataclasses.field(repr=False)
    types: np.ndarray | None = dataclasses.field(repr=False)
    starts: np.ndarray = dataclasses.field(repr=False)
    targets: np.ndarray = dataclasses.field(repr=False)
    sources: np.ndarray = dataclasses.field(repr=False)
    marks: np.ndarray = dataclasses.field(repr=False)
    cut: int = 0
    group_by_length: bool = False

    def __len__(self) -> int:
        return self.sources.size

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of tokens and targets."""
        digest = hashlib.sha256()
        for part in (self.tokens, self.starts, self.targets, self.types if self.types is not None else np.zeros(0)):
            digest.update(np.ascontiguousarray(part))
        return digest.hexdigest()

    def sizes(self, rows: np.ndarray) -> np.ndarray:
        """How many tokens rows have: numbers (m,) -> int64 (m,)."""
        return self.starts[rows + 1] - self.starts[rows]

    def padded(self, rows: np.ndarray, length: int) -> Batch:
        """Rows by their numbers, (m,), each padded to `length`.

        Returns:
          {"tokens": int32 (m, L), "mask": bool (m, L), "labels": int32 and "weights": float32 of the same shape, (m,), (m, L)
          for tagging and roles or (m, 2) for answers, and where the model knows segments "types": int32 (m, L)}. For parsing,
          "labels" (relations, -1: none of the model's) and "weights" (m, L) are of words and not of tokens, and there are
          "words": int32 (m, L), the first token of each word, -1 behind the last, and "heads": int32 (m, L), the place of a
          word, from 1 on, or 0.
        """
        mask = np.arange(length) < self.sizes(rows)[:, None]
        places = np.minimum(self.starts[rows][:, None] + np.arange(length), self.tokens.size - 1)
        batch = {"tokens": np.where(mask, self.tokens[places], np.int32(self.pad_id)), "mask": mask}
        if self.types is not None:
            batch["types"] = np.where(mask, self.types[places], np.int32(0))
        if self.form == "parsing":
            first = mask & (self.marks[places] >= 0)
            # The first tokens of words, in their order, before all others.
            order = np.argsort(~first, axis=1, kind="stable")
            word = np.take_along_axis(first, order, axis=1)
            head, label = np.moveaxis(self.targets[np.take_along_axis(places, order, axis=1)], -1, 0)
            batch |= {"words": np.where(word, order, -1).astype(np.int32), "heads": np.where(word & (head > 0), head, 0)}
            return batch | {"labels": np.where(word, label, -1), "weights": (word & (head >= 0)).astype(np.float32)}
        targets = np.where(mask, self.targets[places], -1) if self.form in ("tagging", "roles") else self.targets[rows]
        weight = 0.5 if self.form == "answers" else 1.0
        return batch | {"labels": np.maximum(targets, 0), "weights": np.where(targets < 0, 0.0, weight).astype(np.float32)}


def encode_examples(
    examples: Sequence[Example],
    tokenizer: "PreTrainedTokenizerFast",
    *,
    form: str,
    labels: tuple[str, ...],
    length: int,
    pad_id: int,
    segments: bool = False,
    stride: int = 0,
    directory: Path = Path(),
) -> LabelledRows:
    """Encodes examples for a model.

    Too long a text or pair is cut at its end, the longer one first. Too long a sentence is cut between words into several rows,
    so that every word is labelled once; where it is to be parsed, words at its end are left out, and those farthest from the
    predicate where roles are asked for. Texts that are asked about are read in windows.

    Args:
      examples: of `read_examples`.
      tokenizer: of the model; puts its special tokens around texts, and between those of a pair.
      form: "classification", "tagging", "answers", "parsing" or "roles".
      labels: their names, in the order of their numbers. Relations of trees and roles that are none of them are no mistake:
        texts differ in rare ones.
      length: of the longest row.
      pad_id: token behind the end of a row.
      segments: whether the model tells the texts of a pair apart by token types.
      stride: answers: tokens that neighbouring windows share.
      directory: of the run's record of the data.

    Raises:
      UserError: a label is not among `labels`, a row or a question leaves no room for the text, or no word has a token.
    """
    backend = plain_backend(tokenizer)
    special = backend.num_special_tokens_to_add(form == "roles" or (form == "classification" and len(examples[0].texts) > 1))
    if length <= special:
        raise UserError(f"block_length: is {length}; expected more than the {special} special tokens around a text; raise it")
    encode = {
        "classification": _classified,
        "tagging": _tagged,
        "parsing": _parsed,
        "answers": partial(_windows, stride=stride),
        "roles": partial(_roles, segments=segments),
    }[form]
    numbers = {label: number for number, label in enumerate(labels)}
    parts: list[list[np.ndarray]] = []
    sources, sizes, cut = [], [], 0
    for start in range(0, len(examples), GROUP_TEXTS):
        rows: list[_Row] = []
        group = encode(backend, examples[start : start + GROUP_TEXTS], numbers, length)
        for place, (shortened, made) in enumerate(group, start):
            rows += made
            sources += [place] * len(made)
            cut += shortened
        sizes += [len(row.tokens) for row in rows]
        tokens, types, targets, marks = zip(*rows, strict=True)
        # As arrays at once: Python's own numbers take ten times the memory.
        joined = np.concatenate(targets) if form in ("tagging", "parsing", "roles") else targets
        flat = (np.concatenate(tokens), np.concatenate(types), joined, np.concatenate(marks))
        parts.append([np.asarray(part, np.int32) for part in flat])
    tokens, types, targets, marks = (np.concatenate(part) for part in zip(*parts, strict=True))
    if not tokens.size or (form in ("tagging", "parsing", "roles") and marks.max() < 0):
        raise UserError(f"{examples[0].place}: no word from here on has a token; expected text that the tokenizer knows")
    return LabelledRows(
        directory=directory,
        form=form,
        examples=examples,
        labels=labels,
        length=length,
        pad_id=pad_id,
        tokens=tokens,
        types=types if segments else None,
        starts=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        targets=targets,
        sources=np.asarray(sources, np.int32),
        marks=marks,
        cut=cut,
    )


class _Row(NamedTuple):
    """Of one row, what `LabelledRows` has of all."""

    tokens: Sequence[int]
    types: Sequence[int]
    target: Any
    marks: Any


def _number(numbers: Mapping[str, int], label: str, example: Example) -> int:
    if label not in numbers:
        known = ", ".join(map(repr, numbers))
        raise UserError(
            f"{example.place}: label {label!r} is none of the model's; expected one of {known}; see task.labels, or "
            "task.label and task.columns, which say where labels stand"
        )
    return numbers[label]


def _classified(
    backend: tokenizers.Tokenizer, examples: Sequence[Example], numbers: Mapping[str, int], length: int
) -> Iterator[tuple[bool, list[_Row]]]:
    backend.enable_truncation(length)
    texts = [one.texts if len(one.texts) > 1 else one.texts[0] for one in examples]
    for example, found in zip(examples, backend.encode_batch(texts), strict=True):
        marks = [-1 if text is None else text for text in found.sequence_ids]
        yield bool(found.overflowing), [_Row(found.ids, found.type_ids, _number(numbers, example.target, example), marks)]


def _tagged(
    backend: tokenizers.Tokenizer, examples: Sequence[Example], numbers: Mapping[str, int], length: int
) -> Iterator[tuple[bool, list[_Row]]]:
    before, after = around(backend)
    room = length - len(before) - len(after)
    for example, (ids, marks) in zip(examples, _words(backend, examples, spaces=True), strict=True):
        target = np.asarray([_number(numbers, label, example) for label in example.target])
        rows, start = [], 0
        while start < len(ids) or not rows:
            end = min(start + room, len(ids))
            if end < len(ids):
                # The next row begins with a word, unless a single one fills this row.
                later = np.flatnonzero(marks[start + 1 : end + 1] >= 0)
                end = start + 1 + int(later[-1]) if later.size else end
            some = np.concatenate([np.full(len(before), -1), marks[start:end], np.full(len(after), -1)]).astype(np.int64)
            tokens = [*before, *ids[start:end], *after]
            rows.append(_Row(tokens, [0] * len(tokens), np.where(some < 0, -1, target[some]), some))
            start = end
        yield False, rows


def _parsed(
    backend: tokenizers.Tokenizer, examples: Sequence[Example], numbers: Mapping[str, int], length: int
) -> Iterator[tuple[bool, list[_Row]]]:
    before, after = around(backend)
    room = length - len(before) - len(after)
    for example, (ids, marks) in zip(examples, _words(backend, examples), strict=True):
        some = np.concatenate([np.full(len(before), -1), marks[:room], np.full(len(after), -1)]).astype(np.int64)
        words = some[some >= 0]
        # Number of a word in the sentence -> its place among those of the row; number 0 is the root.
        place = np.full(len(example.texts) + 1, -1)
        place[0], place[words + 1] = 0, np.arange(1, words.size + 1)
        pairs = [(place[head], numbers.get(relation, -1)) for head, relation in (example.target[word] for word in words)]
        targets = np.full((some.size, 2), -1)
        targets[some >= 0] = np.asarray(pairs, np.int64).reshape(-1, 2)
        tokens = [*before, *ids[:room], *after]
        yield len(ids) > room, [_Row(tokens, [0] * len(tokens), targets, some)]


def _roles(
    backend: tokenizers.Tokenizer,
    examples: Sequence[Example],
    numbers: Mapping[str, int],
    length: int,
    segments: bool,
) -> Iterator[tuple[bool, list[_Row]]]:
    """`[CLS] sentence [SEP] predicate [SEP]` (Shi and Lin, 2019).

    Within the sentence the predicate is of the second type, too; where there are no types, it stands between two more [SEP].
    """
    text = some_text(backend)
    framed = backend.encode(text, text)
    of_text = [place for place, text in enumerate(framed.sequence_ids) if text is not None]
    begin, end = of_text[framed.sequence_ids.count(0) - 1], of_text[framed.sequence_ids.count(0)]
    before, middle, after = framed.ids[: of_text[0]], framed.ids[begin + 1 : end], framed.ids[of_text[-1] + 1 :]
    between = [] if segments else [*middle, *after][:1]
    asked = backend.encode_batch([one.texts[one.target[0]] for one in examples], add_special_tokens=False)
    for example, predicate, (ids, marks) in zip(examples, asked, _words(backend, examples), strict=True):
        room = length - len(before) - 2 * len(between) - len(middle) - len(predicate.ids) - len(after)
        if room < 1:
            raise UserError(
                f"{example.place}: its predicate has {len(predicate.ids)} tokens, which leave no room for the sentence in rows "
                f"of {length}; expected more; raise block_length"
            )
        place, labels = example.target
        # Further tokens of a word have the number of the first one.
        words = np.maximum.accumulate(marks) if len(ids) else marks
        here = np.flatnonzero(words == place)
        start = max(0, min(int(here[0]) - room // 2 if here.size else 0, len(ids) - room))
        kept = slice(start, start + room)
        here = np.flatnonzero(words[kept] == place)
        # Tokens of the sentence, the word whose first token each is, and its type.
        sentence = np.stack([np.asarray(ids[kept], np.int64), marks[kept], words[kept] == place])
        if between and here.size:
            sentence = np.insert(sentence, [here[0], here[-1] + 1], np.array([[between[0]], [-1], [0]]), axis=1)
        apart = [(before, 0), (middle, 0), ([*predicate.ids, *after], 1)]
        first, *rest = (
            np.stack([np.asarray(part, np.int64), *np.full((2, len(part)), [[-1], [kind]])]) for part, kind in apart
        )
        tokens, some, types = np.concatenate([first, sentence, *rest], axis=1)
        target = np.asarray([numbers.get(label, -1) for label in labels])
        yield len(ids) > room, [_Row(tokens, types, np.where(some < 0, -1, target[some]), some)]


def _words(
    backend: tokenizers.Tokenizer, examples: Sequence[Example], *, spaces: bool = False
) -> Iterator[tuple[list[int], np.ndarray]]:
    """Yields of each sentence its tokens and (T,) the word whose first token each is, -1 elsewhere.

    A token may begin with the space before its word. One that is nothing else (a lone `▁`) stands for no word, but with
    `spaces` for the one behind it: transformers' `word_ids()`, by which labels of words are read, has it so.
    """
    # As a text, in which words have the spaces that the model has read them with.
    texts = [" ".join(one.texts) for one in examples]
    for example, found in zip(examples, backend.encode_batch(texts, add_special_tokens=False), strict=True):
        sizes = np.asarray([len(word) for word in example.texts])
        ends = np.cumsum(sizes + 1) - 1
        begins = ends - sizes
        offsets = np.asarray(found.offsets, np.int64).reshape(-1, 2)
        word = np.searchsorted(ends, offsets[:, 0] + np.isin(offsets[:, 0], ends), side="right")
        reached = begins[np.minimum(word, sizes.size - 1)] < offsets[:, 1] + spaces
        (inside,) = np.nonzero((word < sizes.size) & reached)
        marks = np.full(word.size, -1)
        labelled, first = np.unique(word[inside], return_index=True)
        marks[inside[first]] = labelled
        yield found.ids, marks


def _windows(
    backend: tokenizers.Tokenizer, examples: Sequence[Example], numbers: Mapping[str, int], length: int, stride: int
) -> Iterator[tuple[bool, list[_Row]]]:
    backend.no_truncation()
    questions = backend.encode_batch([one.texts[0] for one in examples], add_special_tokens=False)
    least = backend.num_special_tokens_to_add(True) + stride + 1
    for example, question in zip(examples, questions, strict=True):
        if len(question.ids) + least > length:
            raise UserError(
                f"{example.place}: its question has {len(question.ids)} tokens; expected at most {length - least}: rows "
                f"of {length} also hold some of the text and the {stride} tokens that windows share; raise block_length"
            )
    backend.enable_truncation(length, stride=stride, strategy="only_second")
    for example, found in zip(examples, backend.encode_batch([one.texts for one in examples]), strict=True):
        # Where the text does not tell, every window is one without the answer.
        answer, start = example.target[0] if example.target else ("", -1)
        start += len(answer) - len(answer.lstrip())
        answer = answer.strip()
        rows = []
        for window in (windows := (found, *found.overflowing)):
            of_text = np.asarray([number == 1 for number in window.sequence_ids])
            offsets = np.where(of_text[:, None], np.asarray(window.offsets), -1)
            begins, ends = offsets.T.copy()
            reached = np.flatnonzero(of_text & (ends > start))
            # What no token covers, such as accents that a tokenizer leaves out, belongs to the end of the token before it.
            text = np.flatnonzero(of_text)
            last = len(example.texts[1]) if window is windows[-1] else 0
            ends[text] = np.maximum(ends[text], np.append(begins[text[1:]], last)[: len(text)])
            within = np.flatnonzero(of_text & (begins < start + len(answer)))
            # The window holds the answer's first character, and its last.
            whole = (
                answer
                and reached.size
                and within.size
                and begins[reached[0]] <= start
                and ends[within[-1]] >= start + len(answer)
            )
            span = (int(reached[0]), int(within[-1])) if whole else (0, 0)
            rows.append(_Row(window.ids, window.type_ids, span, offsets))
        yield False, rows


def padding_id(stated: int | None, tokenizer: "PreTrainedTokenizerFast") -> int:
    """The token behind the end of a row: what the model's config.json states, or the tokenizer's, or its end of text."""
    ids = (stated, tokenizer.pad_token_id, tokenizer.eos_token_id)
    return next((number for number in ids if number is not None and 0 <= number < len(tokenizer)), 0)


def with_special_tokens(tokenizer: "PreTrainedTokenizerFast", causal: bool) -> "PreTrainedTokenizerFast":
    """Returns a tokenizer that marks where texts begin and end, as far as a head for labels needs it.

    A masked model's label is read off a token before the text, and where the second text of a pair begins must be seen. Many
    tokenizers, such as GPT-2's, add nothing. What is added here is exported with the model.

    Args:
      tokenizer: of the model; stays as it is.
      causal: whether the model is.
    """
    old = tokenizer.backend_tokenizer
    alone, pair = (old.num_special_tokens_to_add(is_pair) for is_pair in (False, True))
    begin = tokenizer.cls_token or tokenizer.bos_token
    end = tokenizer.sep_token or tokenizer.eos_token or begin
    if end is None or (pair > alone and (causal or alone)):
        return tokenizer
    before, after = ([old.id_to_token(number) for number in ids] for ids in around(old))
    if not causal:
        before, after = before or [begin or end], after or [end]
    second = after or [end]
    new = copy.deepcopy(tokenizer)
    template = tokenizers.processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *second, "$B:1", *(f"{token}:1" for token in after)],
        special_tokens=[(token, old.token_to_id(token)) for token in {*before, *after, *second}],
    )
    # One that only moves offsets stays.
    kept = [old.post_processor] if isinstance(old.post_processor, tokenizers.processors.ByteLevel) else []
    new.backend_tokenizer.post_processor = tokenizers.processors.Sequence([*kept, template])
    return new
