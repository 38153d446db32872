"""How well a model predicts running text: bits per byte, perplexity, bits per word."""

import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from wechsel_jax.data.encoder import Encoder
from wechsel_jax.errors import UserError
from wechsel_jax.evaluation.loaded import LoadedModel
from wechsel_jax.evaluation.scoring import Row, score_rows

# Tokens that are read at once where nobody says: those of GPT-2. Some models have room for so many that a CPU takes minutes.
WINDOW = 1024
# Rows of a masked model that are made at once.
_ROWS = 8192


@dataclass(frozen=True)
class TextScores:
    """What a model needed for n documents.

    Attributes:
      nats: float64 (n,), of the tokens that stand for text, unknown tokens included.
      tokens: int64 (n,), how many these were.
      unknown: how many of them were unknown tokens, which hide what stood there; characters that a tokenizer without such a
        token leaves out are counted with them.
      special_nats: of the special tokens between the documents, of a causal model.
      special_tokens: how many these were.
      bytes: int64 (n,), UTF-8 bytes, but those of special tokens that a document spells out (`<s>`), whose nats count nowhere.
      words: int64 (n,), stretches between white space of what `bytes` counts.
      masked: whether each token was masked alone and predicted from both sides.
    """

    nats: np.ndarray
    tokens: np.ndarray
    unknown: int
    special_nats: float
    special_tokens: int
    bytes: np.ndarray
    words: np.ndarray
    masked: bool

    def metrics(self) -> dict[str, float]:
        """Returns the scores of all documents together.

        "bits_per_byte" and "bits_per_word" are of text alone: special tokens count in neither. "perplexity" is of all
        predicted tokens, special ones included, as the trainer has it; for a masked model it is "pseudo_perplexity" (Salazar
        et al., 2020), of the tokens of the text.
        """
        nats, tokens = float(self.nats.sum()), int(self.tokens.sum())
        predicted = tokens + self.special_tokens
        mean = (nats + self.special_nats) / predicted
        return {
            "bits_per_byte": nats / math.log(2) / int(self.bytes.sum()),
            "pseudo_perplexity" if self.masked else "perplexity": math.exp(min(mean, 700.0)),
            "bits_per_word": nats / math.log(2) / int(self.words.sum()),
            "bytes_per_token": int(self.bytes.sum()) / tokens,
            "tokens": predicted,
            "unknown_tokens": self.unknown,
        }


def score_text(model: LoadedModel, documents: Sequence[str], *, window: int = 0, stride: int = 0) -> TextScores:
    """Scores every token of documents once.

    A causal model reads them as one stream, each ended as in training, in windows of which each predicts the last `stride`
    tokens: with the default, half a window, every token has at least half a window of text before it, but at the beginning of
    the stream. The stream begins with the token that ends documents, so that the first token is predicted, too. A masked model
    reads each document for itself, cut where it is longer than the window, with each token masked alone: a pass for each token.

    Args:
      model: causal or masked.
      documents: n texts, none of them blank.
      window: tokens that are read at once; 0: 1,024, or as many as the model has positions.
      stride: tokens of a window that are predicted, of a causal model; 0: half of the window. As many as the window: the cheap
        way, in which the first tokens of a window have next to no context.

    Raises:
      UserError: there is no text, or the model cannot read windows as long.
    """
    longest = model.config.max_length
    window = window or min(WINDOW, longest)
    if not 2 <= window <= longest:
        raise UserError(f"window: is {window}; expected 2 to the {longest} tokens that {model.directory} can read")
    stride = stride or max(1, window // 2)
    if not 1 <= stride <= window:
        raise UserError(f"stride: is {stride}; expected 1 to {window}, the tokens of a window")
    if not documents:
        raise UserError("the text holds nothing but white space; expected text to score")
    encoder = Encoder.of(model.tokenizer, str(model.directory))
    pieces = [encoder.tokens([document]).astype(np.int32) for document in documents]
    owner = np.repeat(np.arange(len(documents)), [len(piece) for piece in pieces])
    stream = np.concatenate(pieces)
    # A token that also ends documents, as GPT-2's, never stands for text.
    unknown = np.array([roles == {"unk"} for roles in model.vocabulary.roles])
    unknowns, special = unknown[stream], model.vocabulary.special & ~unknown
    of_text = ~special[stream]
    left_out, raw = 0, model.vocabulary.bytes
    before, after = encoder.around
    inside = (piece[len(before) : len(piece) - len(after)] for piece in pieces)
    spelled = [[raw[token].decode(errors="replace") for token in piece[special[piece]]] for piece in inside]
    plain = [
        functools.reduce(lambda text, token: text.replace(token, "", 1), tokens, document)
        for document, tokens in zip(documents, spelled, strict=True)
    ]
    if model.vocabulary.kind != "byte_bpe" and model.vocabulary.id_with_role("unk") is None:
        characters = Counter(one for document in documents for one in document if not one.isspace())
        alone = model.backend.encode_batch([*characters], add_special_tokens=False)
        lost = (not b"".join(raw[token] for token in one.ids).strip() for one in alone)
        left_out = sum(itertools.compress(characters.values(), lost))
    if model.family.causal:
        rows = _causal_rows(stream, None if of_text[-1] else stream[-1], window, stride)
    else:
        rows = _masked_rows(model, stream, owner, of_text, window, (len(before), len(after)))
    nats, predicted = np.zeros(len(stream)), np.zeros(len(stream), bool)
    # A masked model has a row for each token: not all of them at once.
    while group := list(itertools.islice(rows, _ROWS)):
        for (_, places), (found, _) in zip(group, score_rows(model, [row for row, _ in group]), strict=True):
            nats[places], predicted[places] = found, True
    counted, apart = predicted & of_text, predicted & ~of_text
    if not counted.any():
        raise UserError(f"the text has no token that {model.directory} could predict; expected more text")
    return TextScores(
        nats=np.bincount(owner[counted], nats[counted], len(documents)),
        tokens=np.bincount(owner[counted], minlength=len(documents)),
        unknown=int((predicted & unknowns).sum()) + left_out,
        special_nats=float(nats[apart].sum()),
        special_tokens=int(apart.sum()),
        bytes=np.array([len(text.encode()) for text in plain]),
        words=np.array([len(text.split()) for text in plain]),
        masked=not model.family.causal,
    )


def _causal_rows(stream: np.ndarray, start: int | None, window: int, stride: int) -> Iterator[tuple[Row, np.ndarray]]:
    """Windows, and which tokens of the stream each predicts; `start` is the token that ends documents."""
    # Without one the first token of the stream has nothing before it, and is not predicted.
    led = stream if start is None else np.concatenate([[start], stream]).astype(np.int32)
    shift = len(led) - len(stream)
    # The first window predicts all of its tokens: none of them will ever have more before it.
    done, first, end = 1, 0, min(window, len(led))
    while done < end:
        places = np.arange(done, end)
        yield (led[first : end - 1], places - first - 1, led[places]), places - shift
        # With windows side by side the last token of one is what the next begins with.
        first = end - max(1, window - stride)
        done, end = end, min(first + window, len(led))


def _masked_rows(
    model: LoadedModel, stream: np.ndarray, owner: np.ndarray, of_text: np.ndarray, window: int, around: tuple[int, int]
) -> Iterator[tuple[Row, np.ndarray]]:
    """A row for each token of the text, and which token of the stream it predicts."""
    mask = model.vocabulary.id_with_role("mask")
    if mask is None:
        raise UserError(f"{model.directory}: its tokenizer has no mask token; expected one, to predict tokens of the text")
    for places in np.split(np.arange(len(stream)), np.flatnonzero(np.diff(owner)) + 1):
        text = places[of_text[places]]
        if not len(text):
            continue
        # What the tokenizer puts around a document stands around each part of it; special tokens that are spelled are not read.
        before, after = places[: around[0]], places[len(places) - around[1] :]
        size = window - len(before) - len(after)
        if size < 1:
            raise UserError(
                f"window: is {window}; expected room for a token between those that the tokenizer puts around a text"
            )
        for start in range(0, len(text), size):
            part = np.concatenate([before, text[start : start + size], after])
            for position in range(len(before), len(part) - len(after)):
                ids = stream[part]
                target, ids[position] = ids[position], mask
                yield (ids, [position], [target]), part[position : position + 1]
