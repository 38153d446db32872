"""Where byte-level BPE ends a word: by GPT-2's pattern, or by the same one with combining marks kept on their letters."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer

# GPT-2's words are runs of letters (\p{L}), of digits (\p{N}), or of everything else but white space. Combining marks (\p{M})
# count as everything else there, and they write most vowels of Hindi, Thai, Burmese or vocalised Arabic: GPT-2 cuts these words
# at every vowel. Here a mark follows its letter, and so do the two characters that join or part letters within a word (U+200C
# in Persian, U+200D in Malayalam). Text without any of them is cut exactly as GPT-2 cuts it. These escapes mean the same to
# Oniguruma (the tokenizers library) and to the engines of its ports (JavaScript, Rust).
_LETTERS, _WORD = r"\p{L}+", r"\p{L}[\p{L}\p{M}\u200c\u200d]*"
MARKS_PATTERN = rf"'(?:[stmd]|re|ve|ll)(?!\p{{M}})| ?{_WORD}| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+"
PATTERNS = ("marks", "gpt2")


def byte_level_splitter(pattern: str) -> "PreTokenizer":
    """Returns what cuts text into words and spells their bytes, for byte-level BPE without a prefix space.

    >>> [word for word, _ in byte_level_splitter("marks").pre_tokenize_str("a\u0301b c")]
    ['aÌģb', 'Ġc']
    >>> [word for word, _ in byte_level_splitter("gpt2").pre_tokenize_str("a\u0301b c")]
    ['a', 'Ìģ', 'b', 'Ġc']

    Args:
      pattern: "marks" (combining marks belong to the letters that they follow) or "gpt2" (GPT-2's own).
    """
    from tokenizers import Regex, pre_tokenizers

    if pattern == "gpt2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    # "isolated" keeps what lies between two matches; the pattern leaves nothing there.
    words = pre_tokenizers.Split(Regex(MARKS_PATTERN), "isolated")
    return pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def cuts_at_marks(splitter: "PreTokenizer | None") -> bool:
    """Whether a word is cut between a letter and its mark, here the first syllable of "Hindi" in Devanagari."""
    return splitter is not None and len(splitter.pre_tokenize_str("\u0939\u093f")) > 1


def keep_marks(splitter: dict) -> dict:
    r"""Returns the "pre_tokenizer" of a tokenizer.json with marks kept on their letters; all other text is cut as before.

    Known are GPT-2's (as `ByteLevel`) and every pattern that calls a word `\p{L}+`, as those of Llama 3 and Qwen do. What is
    not known stays as it is, and so does a `ByteLevel` that puts a space before a text: it would put one before every word.
    """
    if splitter["type"] == "Sequence":
        return splitter | {"pretokenizers": [keep_marks(step) for step in splitter["pretokenizers"]]}
    if splitter["type"] == "Split" and "Regex" in splitter["pattern"]:
        return splitter | {"pattern": {"Regex": splitter["pattern"]["Regex"].replace(_LETTERS, _WORD)}}
    # Files of before 2023 have no use_regex; it was always true.
    if splitter["type"] == "ByteLevel" and splitter.get("use_regex", True) and not splitter.get("add_prefix_space", True):
        words = {"type": "Split", "pattern": {"Regex": MARKS_PATTERN}, "behavior": "Isolated", "invert": False}
        return {"type": "Sequence", "pretokenizers": [words, splitter | {"use_regex": False}]}
    return splitter
