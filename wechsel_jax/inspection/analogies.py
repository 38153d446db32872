"""Word analogies, "a is to b as c is to d", answered by 3CosAdd (Mikolov et al., 2013; table 4 of Kim et al., 2024).

The answer is the word nearest by cosine to b/|b| + c/|c| - a/|a|, the words of the question left out. It is what gensim's
`evaluate_word_analogies` answers, question by question, by the exact search of `search.nearest_neighbors`.
"""

import dataclasses
import math
import os
from collections.abc import Sequence

import numpy as np

from wechsel_jax.errors import UserError
from wechsel_jax.initializers.noise import keyed_generator
from wechsel_jax.initializers.transforms import (
    SHUFFLES,
    STANDARDIZATIONS,
    scalar_moments,
    shuffle,
    sinusoidal_positions,
    standardize,
)
from wechsel_jax.records.embeddings import Analogies
from wechsel_jax.text.files import read_lines

# Table 4 in its order; then what a Transformer really reads, which the paper leaves out, and the controls. "positions": a
# random row of P is added to each word; "stretched_positions": of P sigma_p / sigma_x.
VARIANTS = (
    (), ("scaled",), ("positions",), ("pretrained_xavier",), ("pretrained_xavier", "scaled"),
    ("pretrained_xavier", "positions"), ("stretched_positions",),
    ("scaled", "positions"), ("pretrained_xavier", "scaled", "positions"),
    ("rows_columns",), ("elements",), ("xavier_pretrained",), ("xavier",),
)  # fmt: skip
_EXPECTED = "a file of analogies: ': name' above each section, then four words a line, such as word2vec's questions-words.txt"


@dataclasses.dataclass(frozen=True)
class Question:
    """One line of the file: its section and its four words, the last of which is asked for."""

    section: str
    words: tuple[str, str, str, str]


@dataclasses.dataclass(frozen=True)
class Answer:
    """A question of which all words are known, and the word that was answered; None where every word is the question's."""

    question: Question
    word: str | None
    correct: bool


def read_questions(path: str | os.PathLike) -> list[Question]:
    """Reads a file of analogies, compressed or not.

    Raises:
      UserError: it is missing, has no section before its first question, or a line without exactly four words.
    """
    questions, section = [], None
    for number, line in read_lines(path, _EXPECTED):
        words = line.split()
        if line.startswith(":"):
            section = line[1:].strip()
        elif words and (section is None or len(words) != 4):
            what = "has no section above it" if section is None else f"holds {len(words)} words, not four"
            raise UserError(f"{path}: line {number}: {what}; expected {_EXPECTED}")
        elif words:
            questions.append(Question(section, tuple(words)))
    if not questions:
        raise UserError(f"{path}: holds no question; expected {_EXPECTED}")
    return questions


def answer(words: Sequence[str], table: np.ndarray, questions: Sequence[Question]) -> list[Answer]:
    """Answers the questions of which all words are known.

    As in gensim case does not matter: a question's word is the first of `words` that is spelled like it but for case, none of
    its other spellings is an answer either, and an answer is right in any spelling.

    Args:
      words: N, most frequent first.
      table: (N, D), their vectors, any float type; it is searched as float32.
      questions: see `read_questions`.

    Returns:
      The answers, in the order of the questions.
    """
    from wechsel_jax.search import nearest_neighbors

    names: dict[str, int] = {}
    # Of each word the number of its spelling without case, and the first word of each such spelling.
    kinds = np.array([names.setdefault(word.upper(), len(names)) for word in words], np.int64)
    _, first = np.unique(kinds, return_index=True)
    asked = [[names.get(word.upper(), -1) for word in question.words] for question in questions]
    known = [place for place, ids in enumerate(asked) if min(ids) >= 0]
    if not known:
        return []
    ids = np.array([asked[place] for place in known])
    wide = table[first[ids[:, :3]]].astype(np.float64)
    lengths = np.linalg.norm(wide, axis=2, keepdims=True)
    a, b, c = np.moveaxis(np.divide(wide, lengths, out=np.zeros_like(wide), where=lengths > 0), 1, 0)
    # So many words can be spellings of a question's that the nearest after them is still among the neighbors.
    spellings = np.bincount(kinds)
    neighbors = min(int(spellings[ids[:, :3]].sum(axis=1).max()) + 1, len(words))
    _, nearest = nearest_neighbors(b + c - a, table, neighbors)
    allowed = (kinds[nearest][:, :, None] != ids[:, None, :3]).all(axis=2)
    place = allowed.argmax(axis=1)
    found = np.where(allowed.any(axis=1), nearest[np.arange(len(ids)), place], -1)
    return [
        Answer(questions[i], words[one] if one >= 0 else None, bool(one >= 0 and kinds[one] == right))
        for i, one, right in zip(known, found, ids[:, 3], strict=True)
    ]


def with_steps(table: np.ndarray, steps: Sequence[str], *, length: int = 1024, seed: int = 0) -> np.ndarray:
    """Returns a table (N, D) after steps of `VARIANTS`, in their order.

    Args:
      table: of any float type.
      steps: names in `distribution.STEPS`, "positions" and "stretched_positions".
      length: rows of P; the paper does not give it.
      seed: of draws, of shuffles and of which row of P each word gets.
    """
    for step in steps:
        if step in STANDARDIZATIONS:
            table = standardize(table, step, seed=seed, name="table")
        elif step in SHUFFLES:
            table = shuffle(table, step, seed=seed)
        elif step == "scaled":
            table = table * table.dtype.type(math.sqrt(table.shape[1]))
        elif step in ("positions", "stretched_positions"):
            size, dimension = table.shape
            places = keyed_generator(seed, "analogy positions").integers(length, size=size)
            stretch = 1.0
            if step == "stretched_positions":
                stretch = scalar_moments(table)[1] / math.sqrt(2 / (size + dimension))
            table = (table + stretch * sinusoidal_positions(length, dimension)[places]).astype(table.dtype)
        else:
            raise ValueError(f"unknown step {step!r}")
    return table


def counted(answers: Sequence[Answer], asked: int, steps: tuple[str, ...] = ()) -> Analogies:
    """Adds answers up by section.

    Args:
      answers: of `answer`.
      asked: questions in the file.
      steps: what was done to the table.
    """
    sections: dict[str, tuple[int, int]] = {}
    for one in answers:
        right, total = sections.get(one.question.section, (0, 0))
        sections[one.question.section] = right + one.correct, total + 1
    return Analogies(steps, sum(one.correct for one in answers), len(answers), asked, sections)
