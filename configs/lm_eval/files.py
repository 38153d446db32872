"""Files of tasks for lm-eval: what `wechsel_jax.evaluation` reads itself, with the same prompts, as data sets."""

from typing import Any

from datasets import Dataset

from wechsel_jax.errors import UserError
from wechsel_jax.evaluation.answers import answer_scores
from wechsel_jax.evaluation.items import FORMS, read_items
from wechsel_jax.evaluation.reading import reading_examples, reading_prompts


def choices(choice_file: str = "", form: str = "", **_: Any) -> dict[str, Dataset]:
    """Reads a file of forced choices; lm-eval also passes the arguments of the model, which don't matter here.

    Args:
      choice_file: the file.
      form: see `read_items`.

    Raises:
      UserError: as `read_items`, or the form is scored by something else than the likeliest choice.
    """
    name, items = read_items(_named(choice_file, "choice_file"), form=form)
    if FORMS[name].mass:
        raise UserError(
            f"{choice_file}: {name} scores the probability of all right choices, which lm-eval's multiple choice does not; "
            "expected another form, such as truthfulqa_mc1; `wechsel-jax evaluate` has this one"
        )
    rows = [{"context": item.context, "choices": list(item.choices), "answer": item.answers[0]} for item in items]
    return {"test": Dataset.from_list(rows)}


def reading(
    reading_file: str = "", words: str = "en", rules: str = "", questions: str = "", shots: int = 0, **_: Any
) -> dict[str, Dataset]:
    """Reads a file of texts and questions, as SQuAD has them.

    Args:
      reading_file: the file.
      words: the language of the prompt's words, see `score_reading`.
      rules: how answers are compared, see `score_reading`.
      questions: a file of the same questions in another language, see `score_reading`.
      shots: examples before each question, of other texts, see `score_reading`; lm-eval's own know nothing of texts.
    """
    examples = reading_examples(_named(reading_file, "reading_file"), questions or None)
    prompts = reading_prompts(examples, words, shots)
    rows = [
        {"prompt": prompt, "answers": [text for text, _ in example.target], "rules": rules}
        for prompt, example in zip(prompts, examples, strict=True)
    ]
    return {"test": Dataset.from_list(rows)}


def _named(file: str, name: str) -> str:
    if not file:
        raise UserError(f'--metadata: has no {name}; expected the file of the task: --metadata \'{{"{name}": "FILE"}}\'')
    return file


def answered(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """Exact match and F1 of one answer."""
    found = answer_scores([doc["answers"]], results[:1], doc["rules"])
    return {name: found[name] for name in ("exact_match", "f1")}
