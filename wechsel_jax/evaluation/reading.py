"""Reading: a causal model writes the answer to a question about a text, both in one language or in two."""

import itertools
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from wechsel_jax.data.examples import Example, Task, read_examples
from wechsel_jax.errors import UserError
from wechsel_jax.evaluation.answers import answer_scores, check_language
from wechsel_jax.evaluation.generation import asked_number, generate, require_causal
from wechsel_jax.evaluation.loaded import LoadedModel
from wechsel_jax.evaluation.scoring import encode_texts

# "Context", "question" and "answer", as lm-eval's tasks of XQuAD have them; fr, id and sw, which it has not, are ours.
WORDS = {
    "ar": ("سيا", "سؤال", "إجابة"),
    "de": ("Kontext", "Frage", "Antwort"),
    "el": ("Συμφραζόμενα", "Ερώτηση", "Απάντηση"),
    "en": ("Context", "Question", "Answer"),
    "es": ("Contexto", "Pregunta", "Respuesta"),
    "fr": ("Contexte", "Question", "Réponse"),
    "hi": ("प्रसंग", "सवाल", "उत्तर"),
    "id": ("Konteks", "Pertanyaan", "Jawaban"),
    "ro": ("Context", "Întrebare", "Răspuns"),
    "ru": ("Контекст", "Вопрос", "Ответ"),
    "sw": ("Muktadha", "Swali", "Jibu"),
    "th": ("บริบท", "คำถาม", "คำตอบ"),
    "tr": ("Bağlam", "Soru", "Cevap"),
    "vi": ("Bối cảnh", "Câu hỏi", "Trả lời"),
    "zh": ("语境", "问题", "回答"),
}
_BETWEEN = "\n\n"


def score_reading(
    model: LoadedModel,
    path: str | os.PathLike,
    *,
    questions: str | os.PathLike | None = None,
    words: str = "en",
    rules: str = "",
    shots: int = 0,
    max_tokens: int = 32,
    limit: int | None = None,
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Scores what a causal model writes after texts and questions, greedily and up to the end of the line.

    Args:
      model: the model.
      path: texts, questions and answers, as SQuAD, XQuAD, MLQA and TyDi QA have them.
      questions: the same questions, by their ids, in another language, which are asked instead (MLQA's cross-lingual form).
      words: the language of "context", "question" and "answer" in the prompt, of `WORDS`; lm-eval's XQuAD has those of the
        question, its MLQA "en".
      rules: how answers are compared, see `answers.normalized`: "" as SQuAD and XQuAD do, or a language of MLQA.
      shots: examples before each question: the first questions of the first other texts of the file.
      max_tokens: of an answer at most.
      limit: how many questions are asked at most.

    Returns:
      Two dictionaries. Metrics: "items", "shots", "exact_match" and "f1", shares from 0 to 1, those of questions with and
      without an answer where there are both (see `answer_scores`), and "cut", how many prompts were too long and lost their
      beginning. Items, arrays of n rows: "written", "exact_match" and "f1".

    Raises:
      UserError: a file is damaged or asks other questions, the model is masked or reads too few tokens, a language is unknown.
    """
    check_language(rules, "rules")
    examples = reading_examples(path, questions)
    contexts = reading_prompts(examples, words, shots, limit)
    written, cut = continued(model, contexts, stop=["\n"], max_tokens=max_tokens)
    gold = [[text for text, _ in example.target] for example in examples[:limit]]
    found = answer_scores(gold, written, rules)
    metrics = {name: value for name, value in found.items() if isinstance(value, float)}
    items = {
        "written": np.array(written),
        "exact_match": np.array(found["correct"], float),
        "f1": np.array(found["f1s"], float),
    }
    return {"items": len(written), "shots": shots, **metrics, "cut": cut}, items


def reading_examples(path: str | os.PathLike, questions: str | os.PathLike | None = None) -> list[Example]:
    """Texts, questions and answers of a file, with the questions of another one where it is named; see `score_reading`.

    Raises:
      UserError: a file is damaged, or the other one asks other questions.
    """
    examples = read_examples([path], Task("answers"))
    if questions is None:
        return examples
    others = read_examples([questions], Task("answers"))
    if unnamed := next((example.place for example in (*examples, *others) if not example.id), None):
        raise UserError(f"{unnamed}: has no id; expected one, by which a question is found in another language")
    asked = {example.id: example.texts[0] for example in others}
    if len(asked) < len(others):
        raise UserError(f"{questions}: {len(others) - len(asked):,} questions have the id of another; expected an id for each")
    missing = next((example.id for example in examples if example.id not in asked), None)
    if missing:
        raise UserError(
            f"{questions}: has no question {missing}, which {path} has; expected the same questions in another language"
        )
    return [example._replace(texts=(asked[example.id], example.texts[1])) for example in examples]


def reading_prompts(examples: Sequence[Example], words: str, shots: int = 0, limit: int | None = None) -> list[str]:
    """The prompts of examples, see `score_reading`.

    Raises:
      UserError: no words of the language are known, or there are too few texts to take `shots` examples from.
    """
    if words not in WORDS:
        raise UserError(f"words {words!r}: expected the language of the prompt, one of {', '.join(WORDS)}")
    context, question, answer = WORDS[words]

    def prompt(example: Example) -> str:
        return f"{context}: {example.texts[1]}{_BETWEEN}{question}: {example.texts[0]}{_BETWEEN}{answer}:"

    firsts = {example.texts[1]: example for example in reversed(examples)}
    pool = [firsts[text] for text in dict.fromkeys(example.texts[1] for example in examples)]
    prompts = []
    for example in examples[:limit]:
        # Another question about the same text could give the answer away.
        others = itertools.islice((shot for shot in pool if shot.texts[1] != example.texts[1]), shots)
        # One without an answer ends where the model shall, too: with nothing on the line.
        shown = ["".join([prompt(shot), *(f" {answer}" for answer, _ in shot.target[:1]), _BETWEEN]) for shot in others]
        if len(shown) < shots:
            raise UserError(f"shots {shots}: there are {len(shown)} other texts; expected as many; ask for fewer")
        prompts.append("".join(shown) + prompt(example))
    return prompts


def continued(
    model: LoadedModel, contexts: Sequence[str], *, stop: Sequence[str], max_tokens: int, max_length: int = 0, **drawn: Any
) -> tuple[list[str], int]:
    """What a causal model writes after contexts, encoded, cut and decoded as `HFLM` of lm-eval does.

    Args:
      model: the model.
      contexts: n texts.
      stop: what ends a text, and is not part of it.
      max_tokens: new tokens at most.
      max_length: tokens that the model reads at most, the new ones included; 0: as many as it can.
      drawn: temperature, top_k, top_p and seed of `generate`, and its repetition_penalty, by default that of
        generation_config.json.

    Returns:
      (n texts, how many contexts were too long and lost their beginning).

    Raises:
      UserError: the model is masked, or `max_tokens` leaves no room for a context.
    """
    # Before the texts are encoded, for which such a model may lack a token.
    require_causal(model)
    longest = max_length or model.config.max_length
    room = longest - max_tokens
    if room < 1:
        raise UserError(
            f"new tokens {max_tokens}: expected fewer than the {longest} that {model.directory} reads; ask for fewer"
        )
    encoded = encode_texts(model, contexts)
    prompts = [encoded[context][-room:] for context in contexts]
    # Tokens that are read alone may lose a space at their beginning, which `Generated.text` has: such a stop does not end it.
    ends = [end for end in stop if not end.startswith(" ")]
    drawn = {"repetition_penalty": asked_number(model, "repetition_penalty", 1.0)} | drawn
    found = generate(model, prompts, max_tokens=max_tokens, stop=ends, **drawn)
    texts = []
    for one in found:
        # The model's configuration may name another end of text than its tokenizer has.
        tokens = itertools.takewhile(lambda token: token != model.tokenizer.eos_token_id, one.tokens)
        text = model.tokenizer.decode([*tokens], skip_special_tokens=True)
        for end in stop:
            text = text.split(end)[0]
        texts.append(text)
    return texts, sum(len(encoded[context]) > room for context in contexts)
