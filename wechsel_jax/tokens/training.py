"""A tokenizer for a new language from plain text: byte-level BPE, SentencePiece-style unigram or WordPiece."""

import collections
import itertools
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from wechsel_jax.errors import UserError
from wechsel_jax.files import new_directory, refuse_directory
from wechsel_jax.text.files import LONGEST_DOCUMENT
from wechsel_jax.tokens.files import fast_tokenizer_class, load_tokenizer, write_tokenizer
from wechsel_jax.tokens.splitting import PATTERNS, byte_level_splitter

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    from wechsel_jax.text.sources import Source

_GPT2 = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}
_ROBERTA = {
    "bos_token": "<s>",
    "pad_token": "<pad>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "cls_token": "<s>",
    "sep_token": "</s>",
    "mask_token": "<mask>",
}
_BERT = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
_STYLES = {"gpt2": _GPT2, "roberta": _ROBERTA}
_BYTES = 256
# Far above any vocabulary in use; the tokenizers library sets memory aside for as many as it is told.
_MOST_TOKENS = 1 << 24
# Characters that the tokenizers library gets at once: its records of a text are some hundred times as large.
_LONGEST_PIECE = 1 << 14
# Characters of a word that WordPiece still cuts; a longer one is unknown. BERT has 100, but Thai writes sentences without a
# space (6 % of a text's bytes were unknown). The time for a word grows with the cube.
_LONGEST_WORD = 300
_LAST_WORD = re.compile(r".*\S(?=\s)", re.DOTALL)


def require_kind(vocabulary_size: int, algorithm: str, style: str, pattern: str = PATTERNS[0]) -> None:
    """Raises `UserError` where `train_tokenizer` makes no such tokenizer, whatever the text."""
    for what, given, known in (("algorithm", algorithm, _TRAINERS), ("style", style, _STYLES), ("pattern", pattern, PATTERNS)):
        if given not in known:
            raise UserError(f"{given}: unknown {what} for a tokenizer; expected one of {', '.join(known)}")
    if vocabulary_size > _MOST_TOKENS:
        raise UserError(f"vocabulary size {vocabulary_size}: too large; expected at most {_MOST_TOKENS}")


def train_tokenizer(
    files: Sequence[str | os.PathLike] | str | os.PathLike,
    vocabulary_size: int,
    output: str | os.PathLike,
    algorithm: str = "byte_bpe",
    style: str = "gpt2",
    *,
    pattern: str = "marks",
    alphabet: int = 0,
    min_frequency: int = 0,
    strip_accents: bool = False,
    overwrite: bool = False,
    text_field: str = "text",
    max_document_bytes: int = LONGEST_DOCUMENT,
) -> "PreTrainedTokenizerFast":
    """Trains a tokenizer and writes a directory that `transformers.AutoTokenizer` loads.

    "byte_bpe" and "unigram" (with byte fallback; but for "▁", which is its space) keep every text exactly; "wordpiece" is
    BERT's, cased. The same text gives the same directory, except for "unigram": the tokenizers library visits words in an order
    that changes from run to run, which moves the log-probabilities in their third decimal and with them the order of the ids.

    Args:
      files: text, see `wechsel_jax.text.sources.find_sources`: text files, JSON lines, Parquet, data sets, patterns. Each line
        of a text is one example; of a very long one, each 16,384 characters or somewhat less, up to the end of a word.
      vocabulary_size: V, the exact number of tokens, special ones included.
      output: the directory to write.
      algorithm: "byte_bpe", "unigram" or "wordpiece".
      style: "gpt2" (<|endoftext|> is bos, eos and unk, with id 0) or "roberta" (<s>, <pad>, </s>, <unk> are 0 to 3, <mask> is
        V - 1, and an encoding is <s> ... </s>). WordPiece has BERT's special tokens whatever the style ([PAD], [UNK], [CLS],
        [SEP], [MASK] are 0 to 4).
      pattern: where "byte_bpe" ends a word: "marks" is GPT-2's pattern, but combining marks belong to the letters that they
        follow (Hindi takes half the tokens, other text is cut as by GPT-2); "gpt2" is GPT-2's own, for parity with a tokenizer
        that has it.
      alphabet: wordpiece: keep only so many characters, the most frequent ones; 0 keeps all. TreLM has 30,000 with Chinese and
        1,000 with Indonesian, of 80,000 and 50,000 tokens for both languages together.
      min_frequency: wordpiece: join only what stands together so often; 2 in TreLM.
      strip_accents: wordpiece: read letters without their marks, as TreLM does.
      overwrite: whether an existing `output` may be replaced.
      text_field: which holds the text of JSON lines and tables.
      max_document_bytes: a longer line, or row of a table, is refused.

    Returns:
      The tokenizer, as loaded from `output`.

    Raises:
      UserError: a file is missing, damaged or not UTF-8, the text gives no vocabulary of this size, or `output` exists, would
        take an input's place or cannot be written.
    """
    require_kind(vocabulary_size, algorithm, style, pattern)
    files = [files] if isinstance(files, str | os.PathLike) else list(files)
    refuse_directory(output, "tokenizer", overwrite, files)
    from wechsel_jax.text.sources import find_sources  # which brings the tokenizers library

    sources = find_sources(files, text_field, max_document_bytes)
    if not sources:
        raise UserError("no text files; expected at least one to train a tokenizer on")
    roles = _BERT if algorithm == "wordpiece" else _STYLES[style]
    own = {"byte_bpe": (pattern,), "wordpiece": (alphabet, min_frequency, strip_accents)}.get(algorithm, ())
    backend = _TRAINERS[algorithm](sources, vocabulary_size, roles, *own)
    _require_size(backend, vocabulary_size, sources)
    with new_directory(output, "tokenizer", overwrite) as directory:
        try:
            save_tokenizer(backend, roles, directory)
        except Exception as error:  # the Rust side raises plain Exception
            reason = getattr(error, "strerror", None) or error
            raise UserError(f"{output}: cannot be written ({reason}); free some space, or choose another output") from error
    return load_tokenizer(output)


def _byte_bpe(sources: "list[Source]", vocabulary_size: int, roles: dict[str, str], pattern: str) -> "Tokenizer":
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    first, last = _special_tokens(roles)
    _require_room(vocabulary_size, _BYTES + len(first) + len(last))
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = byte_level_splitter(pattern)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size - len(last),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=first,
        # Without a terminal the library prints empty lines.
        show_progress=sys.stderr.isatty(),
    )
    _train(backend, sources, trainer)
    return _with_special_tokens(backend, roles)


def _unigram(sources: "list[Source]", vocabulary_size: int, roles: dict[str, str]) -> "Tokenizer":
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    first, last = _special_tokens(roles)
    # The characters of "<0x41>" are always tokens, so that this literal text is never read as the byte it names.
    alphabet = sorted("<0x123456789ABCDEF>")
    _require_room(vocabulary_size, _BYTES + len(alphabet) + len(first) + len(last))
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    trainer = trainers.UnigramTrainer(
        vocab_size=vocabulary_size - _BYTES - len(last),
        initial_alphabet=alphabet,
        special_tokens=first,
        unk_token=roles["unk_token"],
        show_progress=sys.stderr.isatty(),
    )
    _train(backend, sources, trainer)
    # <0x00> to <0xFF>, so unlikely that any other spelling of the same characters wins.
    state = json.loads(backend.to_str())
    pieces = state["model"]["vocab"]
    score = 10 * min(score for _, score in pieces) - 10
    pieces[len(first) : len(first)] = [[f"<0x{byte:02X}>", score] for byte in range(_BYTES)]
    state["model"]["byte_fallback"] = True
    return _with_special_tokens(Tokenizer.from_str(json.dumps(state)), roles)


def _wordpiece(
    sources: "list[Source]",
    vocabulary_size: int,
    roles: dict[str, str],
    alphabet: int,
    min_frequency: int,
    strip_accents: bool,
) -> "Tokenizer":
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    special_tokens = list(dict.fromkeys(roles.values()))
    _require_room(vocabulary_size, len(special_tokens) + 1)
    backend = Tokenizer(models.WordPiece(unk_token=roles["unk_token"]))
    backend.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=strip_accents)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    # The trainer numbers "##x" in an order that changes from run to run and breaks ties by number. A first pass that learns
    # nothing but the characters lets the second one start from a fixed order.
    characters = Tokenizer.from_str(backend.to_str())
    first = {"vocab_size": 1, "special_tokens": special_tokens, "show_progress": sys.stderr.isatty()}
    counts = collections.Counter()
    _train(characters, sources, trainers.WordPieceTrainer(**first), counts)
    continuing = sorted(token for token in characters.get_vocab() if len(token) == 3 and token.startswith("##"))
    if alphabet:
        # So does the choice among characters that are equally frequent, which is therefore made here.
        letters = collections.Counter()
        for character, count in counts.items():
            for letter in backend.normalizer.normalize_str(character).replace(" ", ""):
                letters[letter] += count
        kept = sorted(letters, key=lambda letter: (-letters[letter], letter))[:alphabet]
        known = {*kept}
        continuing = [token for token in continuing if token[2:] in known]
        first |= {"initial_alphabet": kept, "limit_alphabet": len(kept)}
    second = {"vocab_size": vocabulary_size, "special_tokens": special_tokens + continuing, "min_frequency": min_frequency}
    trainer = trainers.WordPieceTrainer(**first | second)
    _train(backend, sources, trainer)
    state = json.loads(backend.to_str())
    # The trainer does not keep it.
    state["model"]["max_input_chars_per_word"] = _LONGEST_WORD
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] in special_tokens]
    return _with_special_tokens(Tokenizer.from_str(json.dumps(state)), roles)


_TRAINERS = {"byte_bpe": _byte_bpe, "unigram": _unigram, "wordpiece": _wordpiece}


def _special_tokens(roles: dict[str, str]) -> tuple[list[str], list[str]]:
    """Splits the special tokens into those with the first ids and <mask>, which RoBERTa has last."""
    names = list(dict.fromkeys(roles.values()))
    return [name for name in names if name != "<mask>"], [name for name in names if name == "<mask>"]


def _with_special_tokens(backend: "Tokenizer", roles: dict[str, str]) -> "Tokenizer":
    """Adds <mask> where it is missing and, for masked language models, the tokens around an encoded text."""
    from tokenizers import AddedToken, processors

    names = dict.fromkeys(roles.values())
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False, lstrip=name == "<mask>") for name in names])
    if "cls_token" in roles:
        begin, end = roles["cls_token"], roles["sep_token"]
        middle = f"{end} {end}" if begin == "<s>" else end
        segment = "" if begin == "<s>" else ":1"
        backend.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A {end}",
            pair=f"{begin} $A {middle} $B{segment} {end}{segment}",
            special_tokens=[(name, backend.token_to_id(name)) for name in (begin, end)],
        )
    return backend


def _train(backend: "Tokenizer", sources: "list[Source]", trainer: object, counts: collections.Counter | None = None) -> None:
    from wechsel_jax.text.parts import source_lines

    def pieces() -> Iterator[str]:
        for source in sources:
            for line in source_lines(source):
                if counts is not None:
                    counts.update(line)
                yield from _pieces(line)

    lines = pieces()
    first = next((line for line in lines if line.strip()), None)
    if first is None:
        raise UserError(f"{_names(sources)}: nothing but blank lines; expected text to train a tokenizer on")
    try:
        backend.train_from_iterator(itertools.chain([first], lines), trainer)
    except UserError:
        raise
    except BaseException as error:  # a panic of the Rust side is no Exception
        if isinstance(error, KeyboardInterrupt | MemoryError | OSError):
            raise
        # SentencePiece's words for more characters than the vocabulary has room for.
        advice = "take a larger vocabulary_size" if "not large enough" in str(error) else "add text"
        raise UserError(f"{_names(sources)}: no tokenizer can be trained on this text ({error}); {advice}") from error


def _pieces(line: str) -> Iterator[str]:
    """Cuts a long line before white space, where each of our tokenizers ends a word: words are counted, not lines."""
    start = 0
    while start + _LONGEST_PIECE < len(line):
        found = _LAST_WORD.match(line, start, start + _LONGEST_PIECE)
        end = found.end() if found else start + _LONGEST_PIECE
        yield line[start:end]
        start = end
    yield line[start:]


def _require_room(vocabulary_size: int, least: int) -> None:
    if vocabulary_size < least:
        raise UserError(f"vocabulary size {vocabulary_size}: too small; expected at least {least} for this algorithm and style")


def _require_size(backend: "Tokenizer", vocabulary_size: int, sources: "list[Source]") -> None:
    reached = backend.get_vocab_size(with_added_tokens=True)
    if reached < vocabulary_size:
        problem = f"too little text, it gives {reached} tokens; expected {vocabulary_size}"
        raise UserError(f"{_names(sources)}: {problem}; add text or ask for at most {reached}")
    if reached > vocabulary_size:
        problem = f"its characters and the special tokens alone make {reached} tokens; expected {vocabulary_size}"
        raise UserError(f"{_names(sources)}: {problem}; ask for at least {reached}")


def _names(sources: "list[Source]") -> str:
    return sources[0].name if len(sources) == 1 else f"{sources[0].name} and {len(sources) - 1} more"


def save_tokenizer(backend: "Tokenizer", roles: dict[str, str], directory: Path) -> None:
    """Writes a tokenizer whose special tokens are those of `roles` (name of the role -> token) into a new directory."""
    flags = {token.content: token for token in backend.get_added_tokens_decoder().values()}
    tokenizer = fast_tokenizer_class()(tokenizer_object=backend, **{role: flags[name] for role, name in roles.items()})
    write_tokenizer(tokenizer, directory)
