"""Measures FOCUS side by side in one process: bare matrix product, sparsemax search, this method, PyPI deepfocus 1.0.1.

    PYTHONPATH=. python benchmarks/focus.py --output=benchmarks/focus.json

--targets new tokens and --sources anchors, the same random vectors for all. CPU seconds are user + system of this process; the
product, the search and the method take turns, and each figure is the median over --repeats. deepfocus's own function for new
tokens (`focus_additional_token_initialization`) starts from vectors too, so that neither side pays for fastText. Its time grows
linearly with the new tokens: it is measured on --reference_rows of them and on a quarter of that, and the line through both is
followed to --targets; so what it does once for the anchors counts once. Flags and clocks are those of initialization.py.
"""

import initialization as common  # first: it cleans the environment before numpy is loaded

# isort: split
import json
import statistics
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
from absl import app, flags

from benchmarks.results import write_results
from wechsel_jax.initializers import Side
from wechsel_jax.initializers.focus import focus
from wechsel_jax.search.sparsemax import sparsemax_neighbors
from wechsel_jax.tokens import Vocabulary
from wechsel_jax.tokens.overlap import RULES, Overlap

_REFERENCE_ROWS = flags.DEFINE_integer("reference_rows", 3000, "New tokens that deepfocus is measured on.", lower_bound=8)
FLAGS = flags.FLAGS
FLAGS.set_default("targets", 20_000)
FLAGS.set_default("sources", 20_000)


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected argument {argv[1]}")
    settings = {name: FLAGS[name].value for name in ("targets", "sources", "dimension", "hidden_size", "repeats")}
    result = {"machine": common.machine(), "clock": "cpu", "settings": settings, **measure()}
    for package, version in reference_versions().items():
        result["machine"]["versions"][package] = version
    print(f"{FLAGS.targets:,} new tokens, {FLAGS.sources:,} anchors, {FLAGS.dimension} dimensions")
    print("| what | CPU s | wall s |\n|---|---|---|")
    for name, value in result["seconds"].items():
        print(f"| {name} | {value['cpu']:.2f} | {value['wall']:.2f} |")
    for name, value in result["ratios"].items():
        print(f"{name}: {value:.2f}")
    print(f"largest difference to deepfocus on {_REFERENCE_ROWS.value} rows: {result['largest_difference']:.1e}")
    print(json.dumps(result["machine"]))
    if FLAGS.output:
        write_results(FLAGS.output, result)


def measure() -> dict:
    """Times every contestant; seconds are {"cpu", "wall"}."""
    problem = make_problem()
    new, anchors = problem.target.vectors[FLAGS.sources :], problem.target.vectors[: FLAGS.sources]
    keys, queries = (Side(problem.source.vocabulary, vectors) for vectors in (anchors, new))
    contestants: dict[str, Callable[[], object]] = {
        "matrix product, numpy": common.numpy_product(keys, queries),
        "wechsel-jax sparsemax": lambda: sparsemax_neighbors(new, anchors),
        "wechsel-jax focus": lambda: run_method(problem),
    }
    samples = {name: [] for name in contestants}
    made = run_method(problem)
    for _ in range(FLAGS.repeats):
        for name, run in contestants.items():
            samples[name].append(common.clock(run))
    seconds = {
        name: {kind: statistics.median(sample[kind] for sample in taken) for kind in ("cpu", "wall")}
        for name, taken in samples.items()
    }
    rows = min(_REFERENCE_ROWS.value, FLAGS.targets)
    run_reference(problem, 2)
    few, many = (common.clock(lambda count=count: run_reference(problem, count)) for count in (rows // 4, rows))
    per_row = {kind: (many[kind] - few[kind]) / (rows - rows // 4) for kind in many}
    seconds["PyPI deepfocus"] = {kind: many[kind] + per_row[kind] * (FLAGS.targets - rows) for kind in many}
    theirs = run_reference(problem, rows)
    first = FLAGS.sources
    return {
        "seconds": seconds,
        "samples": samples,
        "reference": {"rows": [rows // 4, rows], "measured": [few, many], "seconds_per_row": per_row, "extrapolated": True},
        "ratios": {
            "sparsemax / product": seconds["wechsel-jax sparsemax"]["cpu"] / seconds["matrix product, numpy"]["cpu"],
            "method / product": seconds["wechsel-jax focus"]["cpu"] / seconds["matrix product, numpy"]["cpu"],
            "PyPI deepfocus / method": seconds["PyPI deepfocus"]["cpu"] / seconds["wechsel-jax focus"]["cpu"],
        },
        "largest_difference": float(np.abs(theirs[first : first + rows] - made[first : first + rows]).max()),
    }


def make_problem() -> SimpleNamespace:
    """Target tokens: first the anchors, token i the same as source token i, then the new ones."""
    generator = np.random.default_rng(0)
    size = FLAGS.sources + FLAGS.targets
    vectors = generator.standard_normal((size, FLAGS.dimension), np.float32)
    sides = []
    for prefix, count in (("s", FLAGS.sources), ("t", size)):
        strings = tuple(f"{prefix}{i}" for i in range(count))
        encoded = tuple(string.encode() for string in strings)
        sides.append(Side(Vocabulary(strings, encoded, np.zeros(count, bool), (frozenset(),) * count, "byte_bpe")))
    copied = np.arange(size, dtype=np.int32)
    copied[FLAGS.sources :] = -1
    rule = np.where(copied >= 0, RULES.index("exact"), 0).astype(np.int8)
    matrix = generator.standard_normal((FLAGS.sources, FLAGS.hidden_size), np.float32)
    return SimpleNamespace(
        source=sides[0], target=Side(sides[1].vocabulary, vectors), overlap=Overlap(copied, rule), matrix=matrix
    )


def run_method(problem: SimpleNamespace) -> np.ndarray:
    return focus(problem.source, problem.target, overlap=problem.overlap).apply(problem.matrix)


def run_reference(problem: SimpleNamespace, rows: int) -> np.ndarray:
    """deepfocus on the first `rows` new tokens, from its records of tokens that have vectors already."""
    import torch
    from deepfocus import focus as reference

    table = torch.from_numpy(problem.matrix)
    first = FLAGS.sources

    def record(i: int) -> SimpleNamespace:
        row = table[i] if i < first else None
        return SimpleNamespace(
            auxiliary_embedding=problem.target.vectors[i], source_embedding=row, target=SimpleNamespace(id=i)
        )

    anchors, new = ({i: record(i) for i in ids} for ids in (range(first), range(first, first + rows)))
    out = torch.zeros((len(problem.target.vocabulary), problem.matrix.shape[1]))
    return reference.focus_additional_token_initialization(anchors, new, out, device="cpu").numpy()


def reference_versions() -> dict[str, str]:
    from importlib.metadata import version

    return {package: version(package) for package in ("deepfocus", "entmax", "torch")}


if __name__ == "__main__":
    app.run(main)
