"""What a token is: exact bytes, word start, special roles."""

import functools
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from wechsel_jax.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# In the order in which one decides what a token with several roles is most like.
ROLES = ("eos", "bos", "unk", "pad", "mask", "cls", "sep")
SAME_ROLE = {"bos": "cls", "cls": "bos", "eos": "sep", "sep": "eos"}
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_WORD_START = {"byte_bpe": "Ġ", "sentencepiece": "▁"}
# How GPT-2 and all after it spell bytes, character to byte: printable Latin-1 is itself, the rest U+0100 and up, in order.
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
BYTE_VALUES = {chr(byte): byte for byte in _PRINTABLE}
BYTE_VALUES |= {chr(0x100 + i): byte for i, byte in enumerate(sorted({*range(256)} - {*_PRINTABLE}))}
# For `str.translate`. What spells no byte is sent out of Latin-1, where encoding notices it.
_BYTE_TABLE = dict.fromkeys(range(256), 0xFFFF) | {ord(character): byte for character, byte in BYTE_VALUES.items()}
_BYTE_CHARACTERS = {byte: character for character, byte in BYTE_VALUES.items()}


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The V tokens of a tokenizer; the position is the id.

    Ids without a token ("holes") have the string "" and no bytes. A token that starts a word carries its space: the bytes of
    "Ġhaus", "▁haus" and WordPiece's "haus" are all b" haus", those of "##haus" b"haus".

    Attributes:
      strings: V strings as the tokenizer spells them.
      bytes: V byte strings, exact also where a token holds a part of a character; special tokens: the UTF-8 of their string.
      word_start: bool (V,), whether the bytes start with a space.
      roles: V sets, subsets of `ROLES`; special tokens without a role: {"special"}; ordinary tokens: empty.
      kind: "byte_bpe", "sentencepiece" or "wordpiece".
      prefix_space: whether the tokenizer puts a space before a text that starts without one.

    >>> from wechsel_jax import demo, load_tokenizer
    >>> vocabulary = Vocabulary.from_tokenizer(load_tokenizer(demo.path("english-gpt2")))
    >>> len(vocabulary), vocabulary.kind, vocabulary.bytes[300], vocabulary.id_with_role("eos")
    (8192, 'byte_bpe', b'hat', 0)
    """

    strings: tuple[str, ...]
    bytes: tuple[bytes, ...]
    word_start: np.ndarray
    roles: tuple[frozenset[str], ...]
    kind: str
    prefix_space: bool = False

    def __post_init__(self):
        lengths = {len(self.strings), len(self.bytes), len(self.word_start), len(self.roles)}
        if len(lengths) != 1:
            raise ValueError(f"strings, bytes, word_start and roles differ in length: {sorted(lengths)}")

    def __len__(self) -> int:
        return len(self.strings)

    @functools.cached_property
    def special(self) -> np.ndarray:
        """bool (V,), True for tokens that stand for no text."""
        return np.fromiter(map(bool, self.roles), bool, len(self))

    @functools.cached_property
    def is_token(self) -> np.ndarray:
        """bool (V,), False for ids without a token."""
        return np.fromiter(map(bool, self.strings), bool, len(self))

    def without_text(self, rows: int) -> list[int]:
        """The ids below `rows` that no text has: special tokens, holes, and rows of a padded table behind all tokens."""
        return [*np.flatnonzero(self.special | ~self.is_token).tolist(), *range(len(self), rows)]

    @functools.cached_property
    def byte_lengths(self) -> np.ndarray:
        """int32 (V,), how many bytes of text a token stands for; 0 for special tokens and holes."""
        pairs = zip(self.bytes, self.special, strict=True)
        return np.fromiter((0 if special else len(raw) for raw, special in pairs), np.int32, len(self))

    @functools.cached_property
    def unknown(self) -> np.ndarray:
        """bool (V,): tokens that stand for text of which no other token is, unless they also end documents, as GPT-2's does."""
        return np.array(["unk" in roles and "eos" not in roles for roles in self.roles], bool)

    def id_with_role(self, role: str) -> int | None:
        """Returns the lowest id with `role`; without one, bos and cls stand in for each other, and so do eos and sep."""
        for wanted in (role, SAME_ROLE.get(role)):
            for token_id in np.flatnonzero(self.special):
                if wanted in self.roles[token_id]:
                    return int(token_id)
        return None

    def words(self) -> tuple[str | None, ...]:
        """Returns V keys for word vectors: the text of the bytes, stripped.

        Special tokens, tokens that are no whole characters (partial UTF-8, or U+FFFD) and blank ones have no key: None.
        """
        return tuple(None if special else _text(raw) for raw, special in zip(self.bytes, self.special, strict=True))

    def starting_words(self) -> tuple[str | None, ...]:
        """Returns `words()` of the tokens that start a word, and None for the others, which are the insides of words."""
        return tuple(word if start else None for word, start in zip(self.words(), self.word_start, strict=True))

    def join(self, ids: Iterable[int]) -> bytes:
        """Returns the bytes of the text whose encoding is `ids`; special tokens are left out.

        For a tokenizer that keeps its text these are the text's bytes. Where `prefix_space` holds, one leading space is
        removed: most such tokenizers do not tell " a" from "a". A tokenizer that normalises (Unicode, case, runs of spaces)
        gives the bytes of the normalised text; SentencePiece reads the character "▁" as a space, and WordPiece puts one space
        between any two words or punctuation marks. What became an unknown or another special token is lost.
        """
        special = self.special
        joined = b"".join([self.bytes[token_id] for token_id in ids if not special[token_id]])
        return joined.removeprefix(b" ") if self.prefix_space else joined

    @classmethod
    def from_tokenizer(cls, tokenizer: "PreTrainedTokenizerFast") -> "Vocabulary":
        """Reads the bytes, word starts and roles of every token from what the tokenizer does, not from its class name.

        Args:
          tokenizer: byte-level BPE, SentencePiece (BPE or unigram, with or without byte fallback) or WordPiece.

        Raises:
          UserError: the tokenizer is of another kind, or not a fast one.
        """
        backend = getattr(tokenizer, "backend_tokenizer", None)
        name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
        if backend is None:
            raise UserError(f"{name}: no fast tokenizer; expected one with a tokenizer.json; save it with transformers first")
        state = json.loads(backend.to_str())
        scheme = _scheme(state, name)
        spelled = backend.get_vocab(with_added_tokens=False)
        tokens = backend.get_vocab(with_added_tokens=True)
        size = max(tokens.values(), default=-1) + 1
        strings = [""] * size
        for string, token_id in tokens.items():
            strings[token_id] = string
        roles = _roles(tokenizer, state, size)
        # An added token that the model does not know is found in the text as it is written, before any of the model's spelling.
        literal = {string for string in tokens if string not in spelled}
        if scheme.kind == "byte_bpe":
            # An extended tokenizer's model has them, too, so that the library numbers them as the source does.
            literal |= {token["content"] for token in state["added_tokens"] if not token["special"]}
        raw = tuple(
            string.encode() if role else scheme.added(string) if string in literal else scheme.decode(string)
            for string, role in zip(strings, roles, strict=True)
        )
        starts = (text.startswith(b" ") and not role for text, role in zip(raw, roles, strict=True))
        word_start = np.fromiter(starts, bool, size)
        return cls(tuple(strings), raw, word_start, roles, scheme.kind, scheme.prefix_space)


def parity_words(tokenizer: "PreTrainedTokenizerFast") -> tuple[str, ...]:
    """Returns V keys for word vectors as PyPI wechsel 0.0.4 makes them: `decode(id).strip()`."""
    size = max(tokenizer.get_vocab().values(), default=-1) + 1
    return tuple(text.strip() for text in tokenizer.batch_decode([[token_id] for token_id in range(size)]))


def readable(vocabulary: Vocabulary, token_id: int) -> str:
    """A token as a person reads it: "Ġfür" rather than byte-level BPE's "ĠfÃ¼r"; the mark of a word's start is kept."""
    string, raw = vocabulary.strings[token_id], vocabulary.bytes[token_id]
    mark = _WORD_START.get(vocabulary.kind)
    if vocabulary.special[token_id] or mark is None:
        return string
    # Half a character at an end, as the tokens of byte-level BPE may have, is shown as "\xe0".
    text = raw.decode("utf-8", "backslashreplace")
    text = mark + text[1:] if text.startswith(" ") else text
    if text.isprintable():
        return text
    # A joiner within a word (Hindi, Persian) as "\u200d"; of white space and controls alone the tokenizer's own spelling.
    shown = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
    return shown if any(map(str.isalpha, text)) else string


@dataclass(frozen=True)
class _Scheme:
    """How one kind of tokenizer spells bytes: `decode` for the model's own tokens, `added` for literal ones."""

    kind: str
    decode: Callable[[str], bytes]
    added: Callable[[str], bytes]
    prefix_space: bool


def _scheme(state: dict, name: str) -> _Scheme:
    """Decides from the steps of tokenizer.json how its tokens spell their bytes."""
    model = state["model"]
    normalizers, pre_tokenizers, decoders = (_steps(state.get(key)) for key in ("normalizer", "pre_tokenizer", "decoder"))
    steps = normalizers + pre_tokenizers + decoders
    prefix = model.get("continuing_subword_prefix") or ""
    affixed = bool(prefix or model.get("end_of_word_suffix"))
    marker = _space_marker(normalizers + pre_tokenizers, decoders)
    spaced = any(map(_adds_space, normalizers + pre_tokenizers))
    if any(step["type"] == "ByteLevel" for step in steps) and not affixed:
        return _Scheme("byte_bpe", _byte_level, str.encode, spaced)
    if marker and not affixed:
        fallback = bool(model.get("byte_fallback")) or any(step["type"] == "ByteFallback" for step in decoders)
        return _Scheme("sentencepiece", functools.partial(_sentencepiece, marker, fallback), str.encode, spaced)
    if model["type"] == "WordPiece" and prefix:
        decode = functools.partial(_wordpiece, prefix)
        return _Scheme("wordpiece", decode, lambda string: b" " + string.strip().encode(), True)
    described = ", ".join(step["type"] for step in steps) or "no steps"
    raise UserError(
        f"{name}: cannot tell which bytes its tokens stand for (model {model['type']}, {described}"
        f"{', word-end or word-inside marks' if affixed else ''}); expected byte-level BPE, SentencePiece or WordPiece"
    )


def _steps(component: dict | None) -> list[dict]:
    if component is None:
        return []
    parts = [component[key] for key in ("normalizers", "pretokenizers", "decoders") if key in component]
    return [step for part in parts for inner in part for step in _steps(inner)] if parts else [component]


def _space_marker(encoders: list[dict], decoders: list[dict]) -> str:
    """Returns what stands for a space in the tokens ("▁" as a rule), or "" where nothing does."""
    for step in encoders + decoders:
        if step["type"] == "Metaspace":
            return step["replacement"]
    for step in encoders:
        if step["type"] == "Replace" and step["pattern"] == {"String": " "} and step["content"].strip():
            return step["content"]
    for step in decoders:
        if step["type"] == "Replace" and step["content"] == " " and step["pattern"].get("String", " ").strip():
            return step["pattern"]["String"]
    return ""


def _adds_space(step: dict) -> bool:
    if step["type"] == "Metaspace":
        # Until tokenizers 0.15 the field was add_prefix_space, true where it is absent.
        return step.get("prepend_scheme", "always" if step.get("add_prefix_space", True) else "never") != "never"
    return step["type"] == "Prepend" or (step["type"] == "ByteLevel" and bool(step.get("add_prefix_space")))


def byte_level_string(raw: bytes) -> str:
    """How byte-level BPE spells bytes: "Ġ" for a space, a printable character for any byte.

    >>> byte_level_string(" für".encode())
    'ĠfÃ¼r'
    """
    return "".join([_BYTE_CHARACTERS[byte] for byte in raw])


def _byte_level(string: str) -> bytes:
    try:
        return string.translate(_BYTE_TABLE).encode("latin-1")
    except UnicodeEncodeError:
        return string.encode()


def _sentencepiece(marker: str, byte_fallback: bool, string: str) -> bytes:
    byte = BYTE_TOKEN.fullmatch(string) if byte_fallback else None
    return bytes([int(byte[1], 16)]) if byte else string.replace(marker, " ").encode()


def _wordpiece(prefix: str, string: str) -> bytes:
    if string.startswith(prefix):
        return string[len(prefix) :].encode()
    return b" " + string.encode() if string else b""


def _roles(tokenizer: "PreTrainedTokenizerFast", state: dict, size: int) -> tuple[frozenset[str], ...]:
    found: dict[int, set[str]] = defaultdict(set)
    for role in ROLES:
        token_id = getattr(tokenizer, f"{role}_token_id", None)
        if token_id is not None:
            found[token_id].add(role)
    unknown = _model_unknown(state["model"])
    if unknown is not None and not any("unk" in roles for roles in found.values()):
        found[unknown].add("unk")
    for token in state["added_tokens"]:
        if token["special"] and token["id"] not in found:
            found[token["id"]].add("special")
    return tuple(frozenset(found.get(token_id, ())) for token_id in range(size))


def _model_unknown(model: dict) -> int | None:
    if "unk_id" in model:
        return model["unk_id"]
    unknown, vocabulary = model.get("unk_token"), model["vocab"]
    return vocabulary.get(unknown) if unknown is not None and isinstance(vocabulary, dict) else None


def _text(raw: bytes) -> str | None:
    try:
        text = raw.decode().strip()
    except UnicodeDecodeError:
        return None
    # A vocabulary that has U+FFFD learned it from damaged text.
    return text if text and "\ufffd" not in text else None
