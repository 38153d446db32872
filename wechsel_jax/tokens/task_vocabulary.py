"""A tokenizer with the vocabulary of one task: the words, or a pretrained model's tokens, that its text holds often enough."""

import json
import os
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from wechsel_jax.errors import UserError
from wechsel_jax.files import new_directory, refuse_directory
from wechsel_jax.text.files import LONGEST_DOCUMENT
from wechsel_jax.tokens.encoding import encode, plain_backend
from wechsel_jax.tokens.files import load_tokenizer
from wechsel_jax.tokens.training import save_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    from wechsel_jax.text.sources import Source

_ROLES = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
# Letters and digits with what is between them ("T-shirt", "man's", "aujourd'hui"), else one mark.
_WORD = r"[\w\p{M}]+(?:[-'’][\w\p{M}]+)*|[^\w\s]"


def task_tokenizer(
    files: Sequence[str | os.PathLike],
    output: str | os.PathLike,
    *,
    source: str | os.PathLike | None = None,
    min_count: int = 2,
    lowercase: bool = False,
    overwrite: bool = False,
    text_field: str = "text",
    max_document_bytes: int = LONGEST_DOCUMENT,
) -> "PreTrainedTokenizerFast":
    """Makes the vocabulary of a task from its training text (Kim et al., section 4).

    Words are WordPieces that nothing continues, so a word that is not in the vocabulary is [UNK] as a whole; [CLS] and [SEP]
    stand around a text, and [PAD], [UNK], [CLS], [SEP] are 0 to 3. They are cut at white space and marks, where the paper has
    spaCy's tokenizers. With `source`, its rarer tokens go; the others keep their order and what the tokenizer does around them.
    What was written with a rarer token is written with smaller ones that are left, and as unknown where there are none (the
    paper takes the token for unknown always).

    Args:
      files: text, see `wechsel_jax.text.sources.find_sources`.
      output: the directory to write.
      source: a tokenizer (WordPiece or unigram) whose tokens are counted; None: words.
      min_count: what is rarer is left out; the paper takes 2, and 5 for IWSLT.
      lowercase: of words: without their case.
      overwrite: whether an existing `output` may be replaced.
      text_field: which holds the text of JSON lines and tables.
      max_document_bytes: a longer line, or row of a table, is refused.

    Returns:
      The tokenizer, as loaded from `output`.

    Raises:
      UserError: a file is missing or damaged, nothing is that frequent, the source is a BPE, or `output` exists or cannot be
        written.
    """
    read = [*files, *([source] if source is not None else [])]
    refuse_directory(output, "tokenizer", overwrite, read)
    from wechsel_jax.text.sources import find_sources  # which brings the tokenizers library

    sources = find_sources(files, text_field, max_document_bytes)
    if source is None:
        backend, roles = _words(sources, min_count, lowercase), _ROLES
    else:
        if lowercase:
            raise UserError("lowercase: a tokenizer decides that itself; expected it for words only; leave it out")
        backend, roles = _restricted(load_tokenizer(source), sources, min_count)
    with new_directory(output, "tokenizer", overwrite) as directory:
        save_tokenizer(backend, roles, directory)
    return load_tokenizer(output)


def _words(sources: "Sequence[Source]", min_count: int, lowercase: bool) -> "Tokenizer":
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    from wechsel_jax.text.parts import source_lines

    normalizer = normalizers.Lowercase() if lowercase else normalizers.Sequence([])
    splitter = pre_tokenizers.Split(Regex(_WORD), "removed", invert=True)
    counts: Counter[str] = Counter()
    for source in sources:
        for line in source_lines(source):
            counts.update(word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(line)))
    special = [*_ROLES.values()]
    frequent = sorted((word for word, count in counts.items() if count >= min_count), key=lambda word: (-counts[word], word))
    words = [word for word in frequent if word not in special]
    _require(words, sources, min_count)
    vocabulary = {word: number for number, word in enumerate([*special, *words])}
    longest = max(map(len, words))
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token=_ROLES["unk_token"], max_input_chars_per_word=longest))
    backend.normalizer, backend.pre_tokenizer, backend.decoder = normalizer, splitter, decoders.WordPiece()
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
    begin, end = _ROLES["cls_token"], _ROLES["sep_token"]
    backend.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A {end}",
        pair=f"{begin} $A {end} $B:1 {end}:1",
        special_tokens=[(name, vocabulary[name]) for name in (begin, end)],
    )
    return backend


def _restricted(
    tokenizer: "PreTrainedTokenizerFast", sources: "Sequence[Source]", min_count: int
) -> "tuple[Tokenizer, dict[str, str]]":
    from tokenizers import Tokenizer

    from wechsel_jax.text.parts import source_lines

    backend = tokenizer.backend_tokenizer
    state = json.loads(backend.to_str())
    model = state["model"]
    if model["type"] not in ("WordPiece", "Unigram"):
        raise UserError(
            f"{tokenizer.name_or_path}: a {model['type']} cannot do without some of its tokens, which others are made of; "
            "expected a WordPiece or unigram tokenizer"
        )
    counts: Counter[int] = Counter()
    for ids in encode(plain_backend(tokenizer), (line for source in sources for line in source_lines(source)), False):
        counts.update(ids)
    roles = {
        role: name for role in tokenizer.SPECIAL_TOKENS_ATTRIBUTES if isinstance(name := getattr(tokenizer, role, None), str)
    }
    always = {*roles.values(), model.get("unk_token"), *_named(state.get("post_processor"))}
    if model["type"] == "Unigram" and model.get("unk_id") is not None:
        always.add(model["vocab"][model["unk_id"]][0])
    if model.get("byte_fallback"):
        always |= {f"<0x{byte:02X}>" for byte in range(256)}
    old = backend.get_vocab(with_added_tokens=True)
    found = [name for name, number in old.items() if counts[number] >= min_count and name not in always]
    _require(found, sources, min_count)
    kept = sorted({*found, *(name for name in always if name in old)}, key=old.__getitem__)
    numbers = {name: number for number, name in enumerate(kept)}
    if model["type"] == "Unigram":
        scores = dict(model["vocab"])
        # An id is a place in the list; added tokens that the model does not know stand there too, below all others.
        lowest = min(scores.values())
        unknown = model.get("unk_id")
        model["unk_id"] = None if unknown is None else numbers[model["vocab"][unknown][0]]
        model["vocab"] = [[name, scores.get(name, lowest - 100)] for name in kept]
    else:
        model["vocab"] = numbers
    state["added_tokens"] = [
        token | {"id": numbers[token["content"]]} for token in state["added_tokens"] if token["content"] in numbers
    ]
    state["post_processor"] = _renumbered(state.get("post_processor"), numbers)
    return Tokenizer.from_str(json.dumps(state)), roles


def _named(part: Any) -> set[str]:
    """The tokens that the post-processor of a tokenizer.json puts around a text, see `_renumbered`."""
    if isinstance(part, list) and len(part) == 2 and isinstance(part[0], str) and type(part[1]) is int:
        return {part[0]}
    if isinstance(part, dict) and {"ids", "tokens"} <= {*part}:
        return {*part["tokens"]}
    inside = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return {name for item in inside for name in _named(item)}


def _renumbered(part: Any, numbers: dict[str, int]) -> Any:
    """The post-processor of a tokenizer.json with new ids; it has tokens as [token, id] or {"tokens": [...], "ids": [...]}."""
    if isinstance(part, list):
        pair = len(part) == 2 and isinstance(part[0], str) and type(part[1]) is int
        return [part[0], numbers[part[0]]] if pair else [_renumbered(item, numbers) for item in part]
    if isinstance(part, dict):
        if {"ids", "tokens"} <= {*part}:
            return part | {"ids": [numbers[token] for token in part["tokens"]]}
        return {name: _renumbered(item, numbers) for name, item in part.items()}
    return part


def _require(found: Sequence[str], sources: "Sequence[Source]", min_count: int) -> None:
    if not found:
        names = ", ".join(source.name for source in sources)
        raise UserError(f"{names}: nothing occurs {min_count} times; expected text, or a smaller min_count")
