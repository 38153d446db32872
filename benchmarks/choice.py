"""Measures how fast forced choices are scored: the demonstration's model, questions of 50 tokens with two answers.

    PYTHONPATH=. python benchmarks/choice.py --output=benchmarks/choice.json

Each question is 40 tokens of the demonstration's English text with the 10 tokens that follow, and with 10 tokens from another
place. The native scorer gets all of them, lm-eval with torch (`HFLM`, batches of 64) the first --reference of them, in the same
process. On a machine that others use too, compare CPU seconds.
"""

import json
import lzma
import os
import platform
import time
from collections.abc import Callable

import numpy as np
from absl import app, flags

from benchmarks.results import write_results
from wechsel_jax import demo
from wechsel_jax.evaluation.loaded import LoadedModel
from wechsel_jax.evaluation.scoring import encode_pairs, loglikelihoods

_QUESTIONS = flags.DEFINE_integer("questions", 10_000, "Questions, of two answers each.", lower_bound=2)
_REFERENCE = flags.DEFINE_integer("reference", 500, "Questions that lm-eval answers; 0: none.", lower_bound=0)
_OUTPUT = flags.DEFINE_string("output", None, "JSON file for the result.")

CONTEXT, ANSWER = 40, 10


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected argument {argv[1]}")
    model = LoadedModel.open(demo.path("english-gpt2"))
    pairs = questions(model, _QUESTIONS.value)
    encoded = encode_pairs(model, pairs[:2000])
    result = {
        "machine": {
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "load_before": round(os.getloadavg()[0], 1),
        },
        "questions": _QUESTIONS.value,
        "answers": 2,
        "tokens": {
            "question_and_answer": float(np.mean([len(context) + len(answer) for context, answer in encoded])),
            "answer": float(np.mean([len(answer) for _, answer in encoded])),
        },
    }
    (found, _), result["native"] = timed(lambda: loglikelihoods(model, pairs), len(pairs))
    result["native"]["accuracy"] = float(np.mean(found[::2] > found[1::2]))
    if _REFERENCE.value:
        expected, result["lm_eval_torch"] = reference(model, pairs[: 2 * _REFERENCE.value])
        same = (found[::2] > found[1::2])[: len(expected) // 2] == (expected[::2] > expected[1::2])
        largest = np.max(np.abs(found[: len(expected)] / expected - 1))
        result["agreement"] = {
            "questions": len(same),
            "same_choice": int(same.sum()),
            "largest_relative_difference": float(largest),
        }
    print(json.dumps(result, indent=2))
    if _OUTPUT.value:
        write_results(_OUTPUT.value, result)


def questions(model: LoadedModel, count: int) -> list[tuple[str, str]]:
    """(context, right answer), (context, wrong answer), one after the other."""
    with lzma.open(demo.path("english.train.txt.xz"), "rt", encoding="utf-8") as handle:
        ids = model.tokenizer.backend_tokenizer.encode(handle.read(), add_special_tokens=False).ids
    starts = np.linspace(0, len(ids) - CONTEXT - ANSWER, count).astype(int).tolist()
    parts = [ids[start : start + CONTEXT + ANSWER] for start in starts]
    contexts = [model.tokenizer.decode(part[:CONTEXT]) for part in parts]
    answers = [model.tokenizer.decode(part[CONTEXT:]) for part in parts]
    wrong = np.roll(np.array(answers, object), len(answers) // 2)
    return [pair for row in zip(contexts, answers, wrong, strict=True) for pair in ((row[0], row[1]), (row[0], row[2]))]


def timed(run: Callable[[], object], pairs: int) -> tuple[object, dict[str, float]]:
    """What `run` returns, and how long it took: compiling is in it."""
    wall, used = time.perf_counter(), time.process_time()
    found = run()
    wall, used = time.perf_counter() - wall, time.process_time() - used
    figures = {
        "seconds": round(wall, 2),
        "cpu_seconds": round(used, 2),
        "cpu_milliseconds_per_answer": round(1000 * used / pairs, 3),
    }
    return found, figures


def reference(model: LoadedModel, pairs: list[tuple[str, str]]) -> tuple[np.ndarray, dict[str, float]]:
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    theirs = HFLM(str(model.directory), tokenizer=model.tokenizer, device="cpu", dtype="float32", batch_size=64)
    asked = [Instance("loglikelihood", {}, pair, number) for number, pair in enumerate(pairs)]
    found, figures = timed(lambda: theirs.loglikelihood(asked, disable_tqdm=True), len(pairs))
    return np.array([value for value, _ in found]), figures


if __name__ == "__main__":
    app.run(main)
