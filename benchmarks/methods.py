"""Measures every method side by side in one process, beside the bare matrix product of its search.

    PYTHONPATH=. python benchmarks/methods.py --output=benchmarks/methods.json

--targets new tokens against --sources tokens of --dimension numbers: source tokens for the methods that compare languages, as
many shared tokens (in addition to the new ones) for those that compare inside the target language. A method's time is that of
its plan, of the noise and of making the (V_t, --hidden_size) table. The least squares of SALT and the pursuit of OMP are linear
in the new tokens and listed apart, for --solved of them. CPU seconds are user + system of this process; medians over --repeats,
in turns.
"""

import initialization as common  # first: it cleans the environment before numpy is loaded

# isort: split
import statistics
from collections.abc import Callable

import numpy as np
from absl import app, flags

from benchmarks.results import write_results
from wechsel_jax.initializers import METHODS, Side, draw_noise
from wechsel_jax.initializers.least_squares import least_squares
from wechsel_jax.search.pursuit import pursue
from wechsel_jax.search.sparsemax import sparsemax_neighbors
from wechsel_jax.tokens import Vocabulary
from wechsel_jax.tokens.overlap import RULES, Overlap

_SOLVED = flags.DEFINE_integer("solved", 1000, "New tokens whose least squares and pursuit are measured.", lower_bound=8)
_PURSUED = flags.DEFINE_integer("pursued", 100, "New tokens of the pursuit.", lower_bound=8)
FLAGS = flags.FLAGS
SEARCHING = ("wechsel", "ofa", "focus", "clp_nearest")
PLAIN = ("clp", "fvt", "mean", "multivariate", "trans_inner", "trans_inner_shuffle")


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected argument {argv[1]}")
    settings = {name: FLAGS[name].value for name in ("targets", "sources", "dimension", "hidden_size", "repeats")}
    result = {"machine": common.machine(), "clock": "cpu", "settings": settings, **measure()}
    print("| what | CPU s | against the product |\n|---|---|---|")
    for row in result["table"]:
        print(f"| {row['name']} | {row['cpu_seconds']:.2f} | {row['ratio']:.2f} |")
    if FLAGS.output:
        write_results(FLAGS.output, result)


def measure() -> dict:
    """Times every contestant; seconds are {"cpu", "wall"}."""
    generator = np.random.default_rng(0)
    matrix = generator.standard_normal((FLAGS.sources, FLAGS.hidden_size), np.float32)
    source, new = (_side(prefix, size, generator) for prefix, size in (("s", FLAGS.sources), ("t", FLAGS.targets)))
    contestants: dict[str, Callable[[], object]] = {"matrix product, numpy": common.numpy_product(source, new)}
    for name in SEARCHING + PLAIN:
        contestants[name] = _method(name, source, new, matrix)
    contestants["salt, its neighbors"] = lambda: sparsemax_neighbors(new.vectors, source.vectors)
    samples = {name: [] for name in contestants}
    for repeat in range(FLAGS.repeats + 1):
        for name, run in contestants.items():
            taken = common.clock(run)
            if repeat:  # the first round compiles
                samples[name].append(taken)
            print(f"{name}: {taken}", flush=True)
    seconds = {
        name: {kind: statistics.median(sample[kind] for sample in taken) for kind in ("cpu", "wall")}
        for name, taken in samples.items()
    }
    product = seconds["matrix product, numpy"]["cpu"]
    table = [
        {"name": name, "cpu_seconds": value["cpu"], "wall_seconds": value["wall"], "ratio": value["cpu"] / product}
        for name, value in seconds.items()
    ]
    return {"seconds": seconds, "table": table, "solves": _solves(source, generator)}


def _side(prefix: str, size: int, generator: np.random.Generator) -> Side:
    strings = tuple(f"{prefix}{i}" for i in range(size))
    encoded = tuple(string.encode() for string in strings)
    tokens = Vocabulary(strings, encoded, np.zeros(size, bool), (frozenset(),) * size, "byte_bpe")
    vectors = generator.standard_normal((size, FLAGS.dimension), np.float32)
    return Side(tokens, vectors, vectors)


def _method(name: str, source: Side, new: Side, matrix: np.ndarray) -> Callable[[], None]:
    """The whole of a method; the target of those that compare shared tokens is those and then the new ones."""
    method, target, shared = METHODS[name], new, 0
    if name in ("focus", "clp", "clp_nearest"):
        target, shared = _joined(source, new), len(source.vocabulary)
    ids = np.where(np.arange(len(target.vocabulary)) < shared, np.arange(len(target.vocabulary)), -1).astype(np.int32)
    given = {
        "overlap": Overlap(ids, np.where(ids >= 0, RULES.index("exact"), 0).astype(np.int8)),
        "pieces": tuple(np.random.default_rng(0).integers(len(matrix), size=(len(target.vocabulary), 3))),
    }
    options = {option: value for option, value in given.items() if option in method.options}

    def run() -> None:
        plan = method.plan(source, target, **options)
        noise = draw_noise(matrix, len(plan), kind=method.noise, seed=0, name="input", where=plan.random)
        plan.apply(matrix, noise if plan.random.any() else None)

    return run


def _joined(source: Side, new: Side) -> Side:
    one, other = source.vocabulary, new.vocabulary
    tokens = Vocabulary(
        one.strings + other.strings,
        one.bytes + other.bytes,
        np.concatenate([one.word_start, other.word_start]),
        one.roles + other.roles,
        one.kind,
    )
    vectors = np.concatenate([source.vectors, new.vectors])
    return Side(tokens, vectors, vectors)


def _solves(source: Side, generator: np.random.Generator) -> dict:
    """CPU seconds a thousand new tokens: least squares of 10 to 60 rows of 768, and pursuit of 64 atoms."""
    table = generator.standard_normal((FLAGS.sources, 768), np.float32)
    wanted = generator.standard_normal((_SOLVED.value, 768), np.float32)
    ids = generator.integers(FLAGS.sources, size=(_SOLVED.value, 60))
    used = np.arange(60) < generator.integers(10, 61, size=(_SOLVED.value, 1))
    solve = common.clock(lambda: least_squares(table, ids, used, wanted))
    pursue(table, wanted[:8], 64)
    pursuit = common.clock(lambda: pursue(table, wanted[: _PURSUED.value], 64))
    return {
        "least squares, CPU s per 1000 tokens": solve["cpu"] * 1000 / _SOLVED.value,
        "pursuit, CPU s per 1000 tokens": pursuit["cpu"] * 1000 / _PURSUED.value,
        "atoms": FLAGS.sources,
        "measured": {"solved": _SOLVED.value, "pursued": _PURSUED.value},
    }


if __name__ == "__main__":
    app.run(main)
