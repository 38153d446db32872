"""Measures the initialisation side by side in one process: bare matrix product, this search, this method, PyPI wechsel.

    PYTHONPATH=. python benchmarks/initialization.py --output=benchmarks/initialization.json

CPU seconds are user + system of this process. The product, the search and the method take turns; each figure is the median over
--repeats. PyPI wechsel runs once, as `WECHSEL.apply` (float64), with token vectors looked up in a dictionary, so that neither
side pays for fastText. Peak memory is that of a process of its own. On an accelerator (or with --accelerator) wall time counts.
OPENBLAS_CORETYPE, which halves numpy's speed on some machines, is removed from the environment first.
"""

import os

REMOVED_CORETYPE = os.environ.pop("OPENBLAS_CORETYPE", None)

import contextlib  # noqa: E402
import io  # noqa: E402
import json  # noqa: E402
import platform  # noqa: E402
import statistics  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from absl import app, flags  # noqa: E402

from benchmarks.machine import installed, processor  # noqa: E402
from benchmarks.results import write_results  # noqa: E402
from wechsel_jax.initializers import Side, draw_noise  # noqa: E402
from wechsel_jax.initializers.wechsel import wechsel  # noqa: E402
from wechsel_jax.search import nearest_neighbors  # noqa: E402
from wechsel_jax.tokens import Vocabulary  # noqa: E402

_TARGETS = flags.DEFINE_integer("targets", 50_000, "V_t, target tokens.", lower_bound=1)
_SOURCES = flags.DEFINE_integer("sources", 50_000, "V_s, source tokens.", lower_bound=1)
_DIMENSION = flags.DEFINE_integer("dimension", 300, "m, dimension of the token vectors.", lower_bound=1)
_HIDDEN = flags.DEFINE_integer("hidden_size", 768, "d, width of the embedding matrix.", lower_bound=1)
_NEIGHBORS = flags.DEFINE_integer("neighbors", 10, "k.", lower_bound=1)
_REPEATS = flags.DEFINE_integer("repeats", 3, "Rounds of product, search and method.", lower_bound=1)
_TARGET_BLOCK = flags.DEFINE_integer("target_block", 512, "Target rows a device searches at a time.", lower_bound=1)
_SOURCE_BLOCK = flags.DEFINE_integer("source_block", 8192, "Source rows of one matrix product.", lower_bound=1)
_SKIP_WECHSEL = flags.DEFINE_bool("skip_wechsel", False, "Leave PyPI wechsel out.")
_ACCELERATOR = flags.DEFINE_bool("accelerator", None, "Count wall time, and add 256k x 64k; set by itself where there is one.")
_OUTPUT = flags.DEFINE_string("output", None, "JSON file for the result.")
_MEMORY_OF = flags.DEFINE_enum("memory_of", None, ["search", "method"], "Run this alone and print its peak memory.")


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected argument {argv[1]}")
    if _MEMORY_OF.value:
        source, target, matrix = make_problem(_TARGETS.value, _SOURCES.value)
        run_search(source, target) if _MEMORY_OF.value == "search" else run_method(source, target, matrix)
        print(peak_memory())
        return
    accelerator = jax.default_backend() != "cpu" if _ACCELERATOR.value is None else _ACCELERATOR.value
    sizes = [(_TARGETS.value, _SOURCES.value)] + ([(256_000, 64_000)] if accelerator else [])
    result = {"machine": machine(), "clock": "wall" if accelerator else "cpu", "settings": described_settings(), "results": []}
    for targets, sources in sizes:
        measured = measure(targets, sources, accelerator)
        # Of the first size alone, on which the table is.
        of_first = () if result["results"] else ("search", "method")
        measured["peak_memory_bytes"] = {what: memory_of(what, targets, sources) for what in of_first}
        result["results"].append(measured)
        print_table(result["results"][-1], result["clock"])
    first = result["results"][0]
    result["table"] = table(first, result["clock"])
    result["peak_memory_gb"] = max(value or 0 for value in first["peak_memory_bytes"].values()) / 1e9
    print(json.dumps(result["machine"]))
    if _OUTPUT.value:
        write_results(_OUTPUT.value, result)


def measure(targets: int, sources: int, accelerator: bool) -> dict:
    """Times every contestant on one problem; seconds are {"cpu", "wall"} medians."""
    source, target, matrix = make_problem(targets, sources)
    contestants: dict[str, Callable[[], object]] = {
        "matrix product, XLA": xla_product(source, target),
        "wechsel-jax search": lambda: run_search(source, target),
        "wechsel-jax method": lambda: run_method(source, target, matrix),
    }
    if not accelerator:
        contestants = {"matrix product, numpy": numpy_product(source, target), **contestants}
    few = Side(Vocabulary(*(field[: 2 * _TARGET_BLOCK.value] for field in _fields(target.vocabulary)), "byte_bpe"), None)
    few = Side(few.vocabulary, target.vectors[: len(few.vocabulary)])
    run_method(source, few, matrix)
    contestants["matrix product, XLA"]()
    samples = {name: [] for name in contestants}
    for _ in range(_REPEATS.value):
        for name, run in contestants.items():
            samples[name].append(clock(run))
            print(f"{name}: {samples[name][-1]}", file=sys.stderr, flush=True)
    seconds = {
        name: {kind: statistics.median(sample[kind] for sample in taken) for kind in ("cpu", "wall")}
        for name, taken in samples.items()
    }
    if not (_SKIP_WECHSEL.value or accelerator):
        seconds["PyPI wechsel apply"] = clock(reference_apply(source, target, matrix))
    measured = {"targets": targets, "sources": sources, "seconds": seconds, "samples": samples}
    measured["ratios"] = ratios(seconds, "wall" if accelerator else "cpu")
    return measured


def ratios(seconds: dict, kind: str) -> dict:
    """The judged figures: the search over the fastest bare product, PyPI wechsel over the method."""
    product = min(value[kind] for name, value in seconds.items() if name.startswith("matrix product"))
    found = {"search / fastest product": seconds["wechsel-jax search"][kind] / product}
    if "PyPI wechsel apply" in seconds:
        found["PyPI wechsel / method"] = seconds["PyPI wechsel apply"][kind] / seconds["wechsel-jax method"][kind]
    return found


def table(measured: dict, kind: str) -> list[dict]:
    """One line a contestant, with its time as a multiple of the fastest bare product's."""
    product = min(value[kind] for name, value in measured["seconds"].items() if name.startswith("matrix product"))
    return [
        {"name": name, "cpu_seconds": value["cpu"], "wall_seconds": value["wall"], "ratio": value[kind] / product}
        for name, value in measured["seconds"].items()
    ]


def make_problem(targets: int, sources: int) -> tuple[Side, Side, np.ndarray]:
    """Random vectors, one in fifty of them zero on the target side, and an embedding matrix."""
    generator = np.random.default_rng(0)
    sides = []
    for prefix, size in (("s", sources), ("t", targets)):
        strings = tuple(f"{prefix}{i}" for i in range(size))
        encoded = tuple(string.encode() for string in strings)
        tokens = Vocabulary(strings, encoded, np.zeros(size, bool), (frozenset(),) * size, "byte_bpe")
        sides.append(Side(tokens, generator.standard_normal((size, _DIMENSION.value), np.float32)))
    sides[1].vectors[::50] = 0
    return *sides, generator.standard_normal((sources, _HIDDEN.value), np.float32)


def _fields(tokens: Vocabulary) -> tuple:
    return tokens.strings, tokens.bytes, tokens.word_start, tokens.roles


def run_search(source: Side, target: Side) -> None:
    blocks = {"target_block": _TARGET_BLOCK.value, "source_block": _SOURCE_BLOCK.value}
    nearest_neighbors(target.vectors, source.vectors, _NEIGHBORS.value, **blocks)


def run_method(source: Side, target: Side, matrix: np.ndarray) -> None:
    plan = wechsel(source, target, neighbors=_NEIGHBORS.value)
    plan.apply(matrix, draw_noise(matrix, len(plan), kind="source", seed=0, name="wte", where=plan.random))


def numpy_product(source: Side, target: Side) -> Callable[[], None]:
    """V_t x V_s products in rows of `target_block`, written to one reused block."""
    keys, rows = source.vectors.T, _TARGET_BLOCK.value
    out = np.empty((rows, keys.shape[1]), np.float32)

    def run():
        for begin in range(0, len(target.vectors), rows):
            block = target.vectors[begin : begin + rows]
            np.matmul(block, keys, out=out[: len(block)])

    return run


def xla_product(source: Side, target: Side) -> Callable[[], None]:
    """The same by XLA, in the tiles of the search."""
    rows, width = _TARGET_BLOCK.value, _SOURCE_BLOCK.value
    keys = [jnp.asarray(source.vectors[i : i + width].T) for i in range(0, len(source.vectors), width)]
    product = jax.jit(lambda t, s: jnp.matmul(t, s, precision=jax.lax.Precision.HIGHEST))

    def run():
        for begin in range(0, len(target.vectors), rows):
            block = jnp.asarray(target.vectors[begin : begin + rows])
            jax.block_until_ready([product(block, chunk) for chunk in keys][-1])

    return run


def reference_apply(source: Side, target: Side, matrix: np.ndarray) -> Callable[[], None]:
    """PyPI wechsel's `WECHSEL.apply`, with stand-ins for its two models and tokenizers."""
    import wechsel as reference

    package = reference.WECHSEL.__new__(reference.WECHSEL)
    package.source_embeddings, package.target_embeddings = _Vectors(source), _Vectors(target)
    package.source_transform = package.target_transform = lambda vectors: vectors
    tokenizers = _Tokenizer(source.vocabulary), _Tokenizer(target.vocabulary)

    def run():
        with contextlib.redirect_stderr(io.StringIO()):
            package.apply(*tokenizers, matrix, neighbors=_NEIGHBORS.value)

    return run


class _Vectors:
    """Looks token vectors up by string, in place of a fastText model."""

    def __init__(self, side: Side):
        self._rows = dict(zip(side.vocabulary.strings, side.vectors, strict=True))
        self._dimension = side.vectors.shape[1]

    def get_words_and_freqs(self):
        return [], []

    def get_dimension(self):
        return self._dimension

    def has_subword_info(self):
        return True

    def get_word_vector(self, word):
        return self._rows[word]


class _Tokenizer:
    special_tokens_map: dict[str, str] = {}  # noqa: RUF012

    def __init__(self, tokens: Vocabulary):
        self._strings = tokens.strings
        self.vocab = {string: i for i, string in enumerate(tokens.strings)}

    def __len__(self):
        return len(self._strings)

    def decode(self, i):
        return self._strings[i]

    def convert_ids_to_tokens(self, ids):
        return self._strings[ids] if np.ndim(ids) == 0 else [self._strings[i] for i in ids]


def clock(run: Callable[[], object]) -> dict[str, float]:
    cpu, wall = time.process_time(), time.perf_counter()
    run()
    return {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}


def memory_of(what: str, targets: int, sources: int) -> int | None:
    """Peak resident bytes of a fresh process that does nothing but `what`."""
    settings = {**described_settings(), "targets": targets, "sources": sources}
    command = [sys.executable, __file__, f"--memory_of={what}", *(f"--{name}={value}" for name, value in settings.items())]
    # This process keeps most of an accelerator's memory for itself by default.
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    last = done.stdout.strip().splitlines()[-1]
    return None if last == "None" else int(last)


def peak_memory() -> int | None:
    """Of this process since it began its program (getrusage would count the parent's too); None where Linux is not."""
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if line.startswith("VmHWM"))


def described_settings() -> dict[str, int]:
    chosen = (_TARGETS, _SOURCES, _DIMENSION, _HIDDEN, _NEIGHBORS, _REPEATS, _TARGET_BLOCK, _SOURCE_BLOCK)
    return {flag.name: flag.value for flag in chosen}


def machine() -> dict:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    devices = [str(device.device_kind) for device in jax.devices()]
    return {
        "description": f"{processor()}, {cores} cores, {', '.join(devices)}, jax {jax.__version__}, numpy {np.__version__}",
        "processor": processor(),
        "cores": cores,
        "devices": devices,
        "python": platform.python_version(),
        "versions": installed("jax", "jaxlib", "numpy", "wechsel", "scikit-learn"),
        "removed_OPENBLAS_CORETYPE": REMOVED_CORETYPE,
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


def print_table(measured: dict, kind: str) -> None:
    size = f"{measured['targets']:,} x {measured['sources']:,} x {_DIMENSION.value}, k = {_NEIGHBORS.value}"
    print(f"\n{size}; {kind} time is compared")
    print("| what | CPU s | wall s |\n|---|---|---|")
    for name, value in measured["seconds"].items():
        print(f"| {name} | {value['cpu']:.2f} | {value['wall']:.2f} |")
    for name, value in measured["ratios"].items():
        print(f"{name}: {value:.2f}")
    for name, value in measured["peak_memory_bytes"].items():
        print(f"peak memory, {name}: {value / 1e9:.2f} GB" if value else f"peak memory, {name}: not measured here")


if __name__ == "__main__":
    app.run(main)
