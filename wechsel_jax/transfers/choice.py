"""Which method a transfer takes where the user names none: anker, but not where the source model reads the target language.

anker predicts each row anew. That is far better than what a model that cannot read the language has, and worse than the mean of
the pieces' rows (fvt) for one that reads it: Gemma 3 270M has 2.55 bits per byte of German after anker and 1.68 after fvt;
SmolLM2 135M, which hardly reads it, trains faster from anker (benchmarks/real_models.json, benchmarks/trained_model.json).
"""

import bz2
import importlib.util
import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.tokens import Vocabulary
from wechsel_jax.tokens.encoding import encode, plain_backend
from wechsel_jax.tokens.text import read_texts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

DEFAULT, READER = "anker", "fvt"
# A model reads a language of which it needs at most this share of the bits that bzip2 needs for 256 KiB, since a byte of one
# script says less than a byte of another. Measured: SmolLM2 .44 for English and .96 to 3.09 for nine other languages; Gemma 3
# 270M .39 for English, .52 for Thai, .54 for Chinese, .69 for Hindi, .70 for German and .92 for Swahili.
_SHARE_OF_BZIP2 = 0.8
# Where the model cannot be run: tokens per byte that bzip2 leaves, of the target text against the source text. Gemma 3's
# tokenizer 1.3 for German and Hindi, 1.7 for Swahili; SmolLM2's 1.8 to 7.8.
_MORE_TOKENS = 1.5
# Text of a language that is looked at, and the least that says anything.
_BYTES, _LEAST_BYTES = 1 << 18, 1 << 12
_LENGTH, _ROWS = 128, 16
# Above, one look takes minutes on a CPU.
_MOST_PARAMETERS = 1 << 30


def choose_method(
    checkpoint: Checkpoint,
    tokenizer: "PreTrainedTokenizerFast",
    vocabulary: Vocabulary,
    source_text: Sequence[str],
    target_text: Sequence[str],
    *,
    text_field: str = "text",
    max_document_bytes: int,
    log: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Chooses by how well the source model predicts text of the target language.

    A model that cannot be run here (another architecture, a masked one, more than 2**30 parameters) is judged by how many
    tokens its tokenizer makes of the target text, against text of its own language.

    Args:
      checkpoint: the source model.
      tokenizer: its tokenizer.
      vocabulary: its tokens.
      source_text: text of the source language, as in `anker.sides.text_sides`.
      target_text: text of the target language.
      text_field: which field holds the text of JSON lines and tables.
      max_document_bytes: text with a longer line or row is refused.
      log: called with progress lines.

    Returns:
      {"method", "because": a sentence, "measure": "bits per byte", "tokens per byte" or None where there is too little text,
      "value": of the target text, "ratio": to what it is compared with, "threshold": of the ratio}.

    Raises:
      UserError: a text is missing, empty or damaged.
    """

    def read(files: Sequence[str]) -> tuple[np.ndarray, bytes]:
        documents = [*itertools.chain.from_iterable(read_texts(files, _BYTES, text_field, max_document_bytes))]
        pieces = encode(plain_backend(tokenizer), documents, special_tokens=False)
        return np.fromiter(itertools.chain.from_iterable(pieces), np.int32), "".join(documents).encode()

    ids, text = read(target_text)
    if len(text) < _LEAST_BYTES:
        because = f"{len(text)} bytes of target text are too few to see whether the source model reads it"
        return {"method": DEFAULT, "because": because, "measure": None}
    measure, threshold = "bits per byte", _SHARE_OF_BZIP2
    value = _bits_per_byte(checkpoint, vocabulary.id_with_role("bos"), token_sizes(vocabulary, ids, text), ids)
    if value is not None:
        ratio = value / _packed(text)
        compared = f"{ratio:.2f} times bzip2's"
    else:
        source_ids, own = read(source_text)
        measure, value, threshold = "tokens per byte", len(ids) / len(text), _MORE_TOKENS
        ratio = value / _packed(text) * len(own) / len(source_ids) * _packed(own)
        compared = f"per byte that bzip2 leaves of it {ratio:.2f} times those of source text"
    reads = ratio <= threshold
    where = f"{value:.2f} {measure} of target text, {compared}; up to {threshold:g} times counts as reading"
    because = f"the source model {'reads' if reads else 'hardly reads'} the target language ({where})"
    log(f"  {where}")
    numbers = {"value": round(value, 4), "ratio": round(ratio, 4), "threshold": threshold}
    return {"method": READER if reads else DEFAULT, "because": because, "measure": measure, **numbers}


def token_sizes(vocabulary: Vocabulary, ids: np.ndarray, text: bytes) -> np.ndarray:
    """float64 (V,): bytes of the text that each token stands for; those of no other are the unknown token's, in equal parts."""
    sizes = np.array([len(token) for token in vocabulary.bytes], float)
    unknown = vocabulary.id_with_role("unk")
    if count := np.count_nonzero(ids == unknown):
        sizes[unknown] = max(0.0, len(text) - sizes[ids[ids != unknown]].sum()) / count
    return sizes


def _packed(text: bytes) -> float:
    """bzip2's bits per byte of a text's first 256 KiB."""
    beginning = text[:_BYTES]
    return 8 * len(bz2.compress(beginning)) / len(beginning)


def _bits_per_byte(checkpoint: Checkpoint, begin: int | None, sizes: np.ndarray, ids: np.ndarray) -> float | None:
    """Of rows at equal distances, predicted from 127 tokens before at most; None where the model cannot be run.

    Args:
      checkpoint: of the model.
      begin: id of the token for the beginning of a text, if there is one.
      sizes: (V,), bytes of each token.
      ids: (n,), of the text.
    """
    if importlib.util.find_spec("flax") is None:
        # Without the extra `train` a vocabulary can be exchanged, but no model be run.
        return None
    import jax

    from wechsel_jax.errors import UserError
    from wechsel_jax.models.registry import FAMILIES
    from wechsel_jax.transfers.calibration import Score, hidden_states
    from wechsel_jax.transfers.unigram import cross_entropy

    family = FAMILIES.get(checkpoint.architecture)
    if family is None or not family.causal:
        return None
    if sum(math.prod(stored.shape) for stored in checkpoint.tensors.values()) > _MOST_PARAMETERS:
        return None
    try:
        config = family.config(checkpoint.config, dropout=0.0)
        parameters = family.from_hugging_face(checkpoint.arrays(), config)
    except UserError:
        # A variant of the architecture that is not implemented: the tokenizer decides.
        return None
    length = min(_LENGTH, config.max_length, len(ids))
    starts = np.linspace(0, len(ids) // length - 1, min(_ROWS, len(ids) // length)).round().astype(np.int64) * length
    rows = ids[starts[:, None] + np.arange(length)]
    # Without a token for the beginning, the first token of a row is not predicted.
    seen, wanted = (rows[:, :-1], rows[:, 1:]) if begin is None else (np.insert(rows, 0, begin, axis=1)[:, :-1], rows)
    positions = np.tile(np.arange(seen.shape[1]), (len(seen), 1))
    states = hidden_states(family, config, parameters, seen.astype(np.int32), positions)
    head = jax.device_put(family.head(parameters))
    loss = cross_entropy(Score(family, config), head, states, wanted.reshape(-1), size=config.vocabulary_size)
    return loss * wanted.size / math.log(2) / sizes[wanted].sum()
