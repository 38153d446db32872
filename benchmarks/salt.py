"""Measures SALT's regressions side by side in one process: numpy as the paper writes them, numpy's shortcuts, this library.

    PYTHONPATH=. python benchmarks/salt.py --output=benchmarks/salt.json

Every new token has a regression of its own over 10 to 60 shared tokens, from the helper's 768 dimensions to the model's 2048.
The paper's map is pinv(the neighbors' helper rows) @ (their rows in the model); the token's helper row times it is the new row.

CPU seconds are user + system of this process; the contestants take turns, and each figure is the median over --repeats. The
numpy forms run on the first --numpy_tokens tokens and are scaled up: their cost is linear in tokens. The search for the
neighbors is the same for all and not counted. Every BLAS has one thread: more would spin while they wait, which costs the numpy
forms more CPU time than this library. "rows read" gathers every neighbor's row of both tables and computes nothing: what no
form can do without, on this machine's memory.
"""

import os
import statistics
import sys
from collections.abc import Callable

# Both read the environment that numpy reads, hence before numpy.
os.environ["OMP_NUM_THREADS"] = "1"
from initialization import clock, machine  # isort: skip
import numpy as np
from absl import app, flags

from benchmarks.results import write_results
from wechsel_jax.initializers import TransferPlan
from wechsel_jax.initializers.least_squares import least_squares

_TOKENS = flags.DEFINE_integer("tokens", 20_000, "New tokens.", lower_bound=1)
_NUMPY_TOKENS = flags.DEFINE_integer("numpy_tokens", 200, "Tokens that the numpy forms are measured on.", lower_bound=1)
_ANCHORS = flags.DEFINE_integer("anchors", 25_000, "Shared tokens.", lower_bound=60)
_HELPER_SIZE = flags.DEFINE_integer("helper_size", 768, "h, width of the helper's embeddings.", lower_bound=1)
_MODEL_SIZE = flags.DEFINE_integer("model_size", 2048, "d, width of the source model's embeddings.", lower_bound=1)
_FEWEST, _MOST = 10, 60
flags.declare_key_flag("repeats")
flags.declare_key_flag("output")


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected argument {argv[1]}")
    measured = measure()
    chosen = (_TOKENS, _NUMPY_TOKENS, _ANCHORS, _HELPER_SIZE, _MODEL_SIZE)
    settings = {flag.name: flag.value for flag in chosen} | {"repeats": flags.FLAGS.repeats, "support": [_FEWEST, _MOST]}
    result = {"machine": machine(), "clock": "cpu", "settings": settings, **measured}
    print("| what | CPU s / 1000 tokens | wall s / 1000 tokens |\n|---|---|---|")
    for line in result["table"]:
        print(f"| {line['name']} | {line['cpu_seconds']:.4f} | {line['wall_seconds']:.4f} |")
    for name, value in (*result["ratios"].items(), *result["largest_error"].items()):
        print(f"{name}: {value:.3g}")
    if flags.FLAGS.output:
        write_results(flags.FLAGS.output, result)


def measure() -> dict:
    """Times every contestant; seconds are of 1000 tokens, ratios say how many times less CPU time this library takes."""
    helper, model, ids, used, wanted = make_problem()
    few = min(_NUMPY_TOKENS.value, _TOKENS.value)
    problem = (helper, ids, used, wanted)
    forms = {
        "numpy pinv, the paper's map": paper_row,
        "numpy pinv, weights only": pinv_row,
        "numpy Gram matrix and solve": gram_row,
    }
    contestants: dict[str, tuple[int, Callable[[], object]]] = {
        name: (few, lambda form=form: by_token(form, problem, model, few)) for name, form in forms.items()
    }
    contestants["wechsel-jax, weights"] = (_TOKENS.value, lambda: least_squares(*problem))
    contestants["wechsel-jax, weights and rows"] = (_TOKENS.value, lambda: rows_of(problem, model))
    contestants["rows read, nothing computed"] = (_TOKENS.value, lambda: read_rows(problem, model))
    rows_of((helper, ids[:few], used[:few], wanted[:few]), model)
    samples = {name: [] for name in contestants}
    for _ in range(flags.FLAGS.repeats):
        for name, (tokens, run) in contestants.items():
            samples[name].append({kind: 1000 * value / tokens for kind, value in clock(run).items()})
            print(f"{name}: {samples[name][-1]}", file=sys.stderr, flush=True)
    cpu, wall = (
        {name: statistics.median(sample[kind] for sample in taken) for name, taken in samples.items()}
        for kind in ("cpu", "wall")
    )
    table = [{"name": name, "cpu_seconds": cpu[name], "wall_seconds": wall[name]} for name in contestants]
    ratios = {f"{name} / {ours}": cpu[name] / cpu[ours] for name in forms for ours in contestants if "wechsel-jax" in ours}
    errors = largest_error(problem, model, few)
    return {"table": table, "ratios": ratios, "largest_error": errors, "samples": samples}


def make_problem() -> tuple[np.ndarray, ...]:
    """Random tables float32 with a common direction, as embeddings have, and 10 to 60 random anchors a token."""
    generator = np.random.default_rng(0)
    helper = generator.standard_normal((_ANCHORS.value, _HELPER_SIZE.value), np.float32)
    helper += 0.5 * generator.standard_normal(_HELPER_SIZE.value, np.float32)
    model = generator.standard_normal((_ANCHORS.value, _MODEL_SIZE.value), np.float32)
    ids = np.stack([generator.choice(_ANCHORS.value, _MOST, replace=False) for _ in range(_TOKENS.value)])
    counts = generator.integers(_FEWEST, _MOST + 1, (_TOKENS.value, 1))
    used = np.arange(_MOST) < counts
    return (
        helper,
        model,
        np.where(used, ids, 0),
        used,
        generator.standard_normal((_TOKENS.value, _HELPER_SIZE.value), np.float32),
    )


def by_token(form: Callable, problem: tuple[np.ndarray, ...], model: np.ndarray, tokens: int) -> np.ndarray:
    """One new row after the other, float64 (tokens, d)."""
    helper, ids, used, wanted = problem
    out = np.empty((tokens, model.shape[1]))
    for t in range(tokens):
        support = ids[t, used[t]]
        out[t] = form(helper[support].astype(np.float64), model[support].astype(np.float64), wanted[t].astype(np.float64))
    return out


def paper_row(support: np.ndarray, model: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    return wanted @ (np.linalg.pinv(support) @ model)


def pinv_row(support: np.ndarray, model: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    return (wanted @ np.linalg.pinv(support)) @ model


def gram_row(support: np.ndarray, model: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    return np.linalg.solve(support @ support.T, support @ wanted) @ model


def rows_of(problem: tuple[np.ndarray, ...], model: np.ndarray) -> np.ndarray:
    return TransferPlan.mixed(problem[1], least_squares(*problem).weights).apply(model)


def read_rows(problem: tuple[np.ndarray, ...], model: np.ndarray) -> None:
    helper, ids, used, _ = problem
    buffers = [np.empty((_MOST, table.shape[1]), np.float32) for table in (helper, model)]
    for support, count in zip(ids, used.sum(axis=1), strict=True):
        for table, buffer in zip((helper, model), buffers, strict=True):
            np.take(table, support[:count], axis=0, out=buffer[:count], mode="clip")


def largest_error(problem: tuple[np.ndarray, ...], model: np.ndarray, tokens: int) -> dict[str, float]:
    """How far the weights and the float32 rows are from the paper's map in float64, relative to a row's length."""
    expected = by_token(paper_row, problem, model, tokens)
    few = (problem[0], *(part[:tokens] for part in problem[1:]))
    weights = least_squares(*few).weights
    exact = np.stack([c @ model[i] for c, i in zip(weights, few[1], strict=True)])
    length = np.linalg.norm(expected, axis=1)
    found = {"weights": exact, "rows": rows_of(few, model)}
    return {f"error of the {what}": float((np.linalg.norm(x - expected, axis=1) / length).max()) for what, x in found.items()}


if __name__ == "__main__":
    app.run(main)
