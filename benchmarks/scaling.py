"""Measures how the search grows with the vocabularies: time and peak memory from 8k x 32k up to 64k x 256k, m = 300.

    PYTHONPATH=. python benchmarks/scaling.py --output=benchmarks/scaling.json --plot=docs/scaling.png

Each size and kind of search runs in a process of its own, with --devices devices. "top-k" is WECHSEL's search for 10 neighbors,
"sparsemax" that of FOCUS and SALT. CPU seconds are user + system of that process's search, compiling left out; memory is the
process's peak, what Python and JAX take included.
"""

import initialization as common  # first: it cleans the environment before numpy is loaded

# isort: split
import json
import os
import subprocess
import sys

import numpy as np
from absl import app, flags

from benchmarks.results import write_results

SIZES = ((8_000, 32_000), (16_000, 64_000), (32_000, 128_000), (64_000, 256_000))
_PLOT = flags.DEFINE_string("plot", None, "PNG file for the picture.")
_ALONE = flags.DEFINE_enum("alone", None, ["top-k", "sparsemax"], "Run this search alone and print its figures.")
_DEVICES = flags.DEFINE_integer("devices", 1, "CPU devices to split the targets over.", lower_bound=1)
_LARGEST = flags.DEFINE_integer("largest", 64_000, "Leave out sizes with more targets.")
FLAGS = flags.FLAGS


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected argument {argv[1]}")
    if _ALONE.value:
        print(json.dumps(search_alone(_ALONE.value)))
        return
    results = []
    for kind in ("top-k", "sparsemax"):
        for targets, sources in SIZES:
            if targets <= _LARGEST.value:
                results.append({"search": kind, "targets": targets, "sources": sources, **run(kind, targets, sources)})
                print(results[-1], flush=True)
    result = {"machine": common.machine(), "dimension": FLAGS.dimension, "devices": _DEVICES.value, "results": results}
    if FLAGS.output:
        write_results(FLAGS.output, result)
    if _PLOT.value:
        draw(result, _PLOT.value)


def run(kind: str, targets: int, sources: int) -> dict:
    """Figures of one search in a fresh process."""
    settings = {"targets": targets, "sources": sources, "dimension": FLAGS.dimension, "devices": _DEVICES.value}
    command = [sys.executable, __file__, f"--alone={kind}", *(f"--{name}={value}" for name, value in settings.items())]
    environment = os.environ | {"XLA_FLAGS": f"--xla_force_host_platform_device_count={_DEVICES.value}"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return json.loads(done.stdout.strip().splitlines()[-1])


def search_alone(kind: str) -> dict:
    """Searches random vectors once to compile, on few targets, and then in earnest."""
    from wechsel_jax.search import nearest_neighbors
    from wechsel_jax.search.sparsemax import sparsemax_neighbors

    generator = np.random.default_rng(0)
    sources = generator.standard_normal((FLAGS.sources, FLAGS.dimension), np.float32)
    targets = generator.standard_normal((FLAGS.targets, FLAGS.dimension), np.float32)
    search = {
        "top-k": lambda rows: nearest_neighbors(rows, sources, 10),
        "sparsemax": lambda rows: sparsemax_neighbors(rows, sources),
    }
    search[kind](targets[: 1024 * _DEVICES.value])
    taken = common.clock(lambda: search[kind](targets))
    return {**taken, "peak_memory_bytes": common.peak_memory()}


def draw(result: dict, path: str) -> None:
    """Seconds and peak memory against V_t x V_s, on logarithmic axes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (time, memory) = pyplot.subplots(1, 2, figsize=(9, 3.6))
    for kind, colour, marker in (("top-k", "#0072b2", "o"), ("sparsemax", "#d55e00", "s")):
        rows = [row for row in result["results"] if row["search"] == kind]
        pairs = [row["targets"] * row["sources"] / 1e9 for row in rows]
        time.plot(pairs, [row["cpu"] for row in rows], marker=marker, color=colour, label=kind)
        memory.plot(pairs, [row["peak_memory_bytes"] / 1e9 for row in rows], marker=marker, color=colour, label=kind)
    ends = np.array([pairs[0], pairs[-1]])
    first = next(row["cpu"] for row in result["results"] if row["search"] == "top-k")
    time.plot(ends, first * ends / ends[0], color="0.6", linestyle=":", label="linear")
    time.set(xscale="log", yscale="log", xlabel="target x source tokens (10⁹ pairs)", ylabel="CPU seconds")
    memory.set(xscale="log", xlabel="target x source tokens (10⁹ pairs)", ylabel="peak memory (GB)", ylim=(0, None))
    full = [row["targets"] * row["sources"] * 4 / 1e9 for row in result["results"]]
    memory.set_title(f"the whole matrix would take {min(full):.0f} to {max(full):.0f} GB", fontsize=9)
    time.legend(frameon=False)
    for axes in (time, memory):
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    app.run(main)
