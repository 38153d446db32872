"""Scores of answers: exact match and F1 as the official scripts of SQuAD and MLQA count them, and the best span of a text."""

import re
import string
import sys
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from wechsel_jax.errors import UserError

# What MLQA's script takes for articles; the Arabic one is a prefix.
_ARTICLES = {
    "en": r"\b(a|an|the)\b",
    "es": r"\b(un|una|unos|unas|el|la|los|las)\b",
    "vi": r"\b(của|là|cái|chiếc|những)\b",
    "de": r"\b(ein|eine|einen|einem|eines|einer|der|die|das|den|dem|des)\b",
    "ar": r"\sال^|ال",
    "hi": None,
    "zh": None,
}
LANGUAGES = tuple(_ARTICLES)
_HAN = re.compile(r"([\u4e00-\u9fa5])")


def normalized(answer: str, language: str = "") -> str:
    """What of an answer is compared: words in lower case, without punctuation and articles.

    Args:
      answer: a text.
      language: "" as SQuAD's script has it for every language, which XQuAD uses: ASCII punctuation and English articles. One of
        `LANGUAGES`: as MLQA's has it: all punctuation, the language's articles, and in Chinese each character is a word.
    """
    punctuation = _punctuation() if language else frozenset(string.punctuation)
    text = "".join(character for character in answer.lower() if character not in punctuation)
    if articles := _ARTICLES[language or "en"]:
        text = re.sub(articles, " ", text)
    return " ".join((_HAN.sub(r" \1 ", text) if language == "zh" else text).split())


def answer_scores(gold: Sequence[Sequence[str]], predicted: Sequence[str], language: str = "") -> dict[str, Any]:
    """Exact match and F1 of words, each the best over the right answers, means over the questions.

    Where some question has no right answer, all are compared as evaluate-v2.0.py of SQuAD 2 does (Rajpurkar et al., 2018): to
    say nothing is then right for it, and wrong for the others.

    Args:
      gold: the right answers of each question.
      predicted: the model's; "" is none.
      language: see `normalized`.

    Returns:
      {"exact_match", "f1": shares from 0 to 1, "f1s": of each question, "correct": whether each matches exactly}; where some
      question has no answer also "no_answer", the share of these for which nothing was said, and of the others, if there are
      any, "has_answer_exact_match" and "has_answer_f1".

    Raises:
      UserError: no rules are known for the language.
    """
    check_language(language)
    f1s, exact = [], []
    known = np.array([len(rights) > 0 for rights in gold])
    for rights, answer in zip(gold, predicted, strict=True):
        found = normalized(answer, language)
        compared = [normalized(right, language) for right in rights]
        if not known.all():
            compared = [right for right in compared if right]
        exact.append(found in (compared or [""]))
        f1s.append(max((_f1(found.split(), right.split()) for right in compared), default=float(exact[-1])))
    scores = {"exact_match": float(np.mean(exact)), "f1": float(np.mean(f1s)), "f1s": f1s, "correct": exact}
    if not known.all():
        scores["no_answer"] = float(np.mean(np.array(exact)[~known]))
        if known.any():
            scores["has_answer_exact_match"] = float(np.mean(np.array(exact)[known]))
            scores["has_answer_f1"] = float(np.mean(np.array(f1s)[known]))
    return scores


def check_language(language: str, setting: str = "task.language") -> None:
    """Raises `UserError` where no rules are known for a language, which a setting names; "" has SQuAD's."""
    if language and language not in LANGUAGES:
        raise UserError(f"{setting}: is {language!r}; expected nothing (SQuAD's rules) or one of {', '.join(LANGUAGES)}")


def best_span(start: np.ndarray, end: np.ndarray, inside: np.ndarray, longest: int) -> tuple[float, int, int]:
    """The span with the largest sum of scores.

    Args:
      start: (L,) scores of each token as the first one.
      end: (L,) as the last one.
      inside: bool (L,), tokens of the text.
      longest: tokens that a span has at most.

    Returns:
      (its score, first token, last token); (-inf, 0, 0) where there is no text.
    """
    (places,) = np.nonzero(inside)
    if not places.size:
        return -np.inf, 0, 0
    sums = start[places][:, None].astype(np.float64) + end[places]
    span = places - places[:, None]
    sums[(span < 0) | (span >= longest)] = -np.inf
    first, last = np.unravel_index(int(np.argmax(sums)), sums.shape)
    return float(sums[first, last]), int(places[first]), int(places[last])


def best_answers(
    windows: Sequence[tuple[int, np.ndarray, np.ndarray]], texts: Mapping[int, str], longest: int, *, none: bool = False
) -> dict[int, str]:
    """The answer of each question: the best span over the windows of its text.

    Args:
      windows: (number of the question, scores (2, L), first and last character in the text of each token (L, 2), -1 outside).
      texts: number of the question -> its text.
      longest: tokens that an answer has at most.
      none: whether it may be "": where each window scores its first token, twice, higher than the best span of any window, as
        the scripts of transformers have it for SQuAD 2.
    """
    best: dict[int, tuple[float, str]] = {}
    nothing: dict[int, float] = {}
    for question, scores, characters in windows:
        nothing[question] = min(nothing.get(question, np.inf), float(scores[0, 0]) + float(scores[1, 0]))
        score, first, last = best_span(*scores, characters[:, 0] >= 0, longest)
        if question not in best or score > best[question][0]:
            text, (begins, ends) = texts[question], (characters[first, 0], characters[last, 1])
            # Accents that the tokenizer takes off are in no token and belong to the character before them.
            following = min(characters[characters[:, 0] >= ends, 0], default=len(text))
            while ends < following and unicodedata.category(text[ends]).startswith("M"):
                ends += 1
            best[question] = score, text[begins:ends].strip() if score > -np.inf else ""
    return {question: "" if none and nothing[question] > score else answer for question, (score, answer) in best.items()}


def _f1(found: list[str], right: list[str]) -> float:
    same = sum((Counter(found) & Counter(right)).values())
    return 2 * same / (len(found) + len(right)) if same else 0.0


@cache
def _punctuation() -> frozenset[str]:
    marks = (chr(code) for code in range(sys.maxunicode) if unicodedata.category(chr(code)).startswith("P"))
    return frozenset(marks) | frozenset(string.punctuation)
