"""Gathers comparison.json of several seeds into demo.json and draws docs/demo.png; several workdirs may share a seed.

Command:         python -m benchmarks.demo_seeds runs/demo-0 runs/demo-1 runs/demo-2

The runs themselves:  for seed in 0 1 2; do
                        python -m train.compare --config=configs/demo.py --workdir=runs/demo-$seed --config.seed=$seed
                      done
"""

import sys
from pathlib import Path

import numpy as np

from benchmarks.anker import draw
from benchmarks.results import write_results
from wechsel_jax.comparison import BASELINE
from wechsel_jax.errors import UserError
from wechsel_jax.program import program
from wechsel_jax.records import ComparisonRecord
from wechsel_jax.report import steps_needed
from wechsel_jax.report.curves import BITS, PERPLEXITY

OUTPUT = Path(__file__).with_name("demo.json")
PICTURE = Path(__file__).parents[1] / "docs" / "demo.png"


def gather(workdirs: list[Path]) -> dict:
    """Returns bits per byte and perplexity of every seed, and their mean and sample standard deviation at every evaluation.

    Methods are in order of their last mean. Every method needs a run of every seed; of two runs of one seed the last counts.

    Raises:
      UserError: a method has no run of a seed, or one that was evaluated at other steps than others or lacks bits per byte; or
        none is of FullRand.
    """
    if not workdirs:
        raise UserError("expected workdirs of configs/demo.py, such as runs/demo-0")
    results = [ComparisonRecord.read(workdir) for workdir in workdirs]
    curves: dict[str, dict[int, list]] = {}
    seconds: dict[int, dict[str, float]] = {}
    for result in results:
        seconds.setdefault(result.seed, {}).update(result.seconds)
        for name, method in result.methods.items():
            if perplexity := dict(map(tuple, method.get("evaluations", ()))):
                bits = dict(map(tuple, method.get("bits_per_byte", ())))
                if bits.keys() != perplexity.keys():
                    asked = f"expected them of {[*perplexity]}"
                    raise UserError(f"{name}: has bits per byte of steps {[*bits]} with seed {result.seed}; {asked}")
                curves.setdefault(name, {})[result.seed] = [(step, bits[step], value) for step, value in perplexity.items()]
    seeds = sorted(seconds)
    expected: list[float] = []
    for name in (BASELINE, *curves):
        for seed in seeds:
            curve = curves.get(name, {}).get(seed)
            if curve is None:
                raise UserError(f"{name}: has no run of seed {seed}; expected one of each of the seeds {seeds}")
            steps = [step for step, *_ in curve]
            expected = expected or steps
            if steps != expected:
                raise UserError(f"{name}: was evaluated at steps {steps} with seed {seed}; expected {expected}, as others were")
    order = sorted(curves, key=lambda name: np.mean([curves[name][seed][-1][1] for seed in seeds]))
    methods = {}
    for name in order:
        steps, *values = np.moveaxis(np.asarray([curves[name][seed] for seed in seeds]), -1, 0)
        methods[name] = {"steps": [int(step) for step in steps[0]]}
        for measure, found, digits in ((BITS, values[0], 4), (PERPLEXITY, values[1], 2)):
            methods[name][measure.field] = {
                "seeds": found.round(digits).tolist(),
                "mean": found.mean(0).round(digits).tolist(),
                "standard_deviation": found.std(0, ddof=1).round(digits).tolist() if len(seeds) > 1 else None,
            }
    needed = [
        {
            name: steps_needed(*([point[:2] for point in curves[one][seed]] for one in (BASELINE, name)), BITS.linear)
            for name in order
            if name != BASELINE
        }
        for seed in seeds
    ]
    return {
        "command": "python -m train.compare --config=configs/demo.py --workdir=runs/demo-SEED --config.seed=SEED",
        "seeds": seeds,
        "machine": results[0].machine,
        "methods": methods,
        "steps_needed": needed,
        "seconds": [seconds[seed] for seed in seeds],
    }


def panel(result: dict) -> tuple[str, dict, list[str]]:
    """What `benchmarks.anker.draw` shows of a result: the curves of every seed, and all methods."""
    seeds = {
        seed: {
            name: {"evaluations": list(zip(method["steps"], method[BITS.field]["seeds"][place], strict=True))}
            for name, method in result["methods"].items()
        }
        for place, seed in enumerate(result["seeds"])
    }
    return "English to German", seeds, list(result["methods"])


if __name__ == "__main__":
    with program("benchmarks.demo_seeds"):
        gathered = gather([Path(name) for name in sys.argv[1:]])
        draw([panel(gathered)], PICTURE, BITS)
        write_results(OUTPUT, gathered)
        print(f"{OUTPUT}, {PICTURE}")
