"""Gathers runs of configs/recipe.py into recipe.json: what each start reaches with each optimizer and set of rates.

    python -m train.compare --config=configs/recipe.py:seed=0 --workdir=runs/recipe-0
    python -m benchmarks.recipe runs/recipe-0 runs/recipe-1

A run that has not ended is left out.
"""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from wechsel_jax.records import read_run

OUTPUT = Path(__file__).with_name("recipe.json")


def gather(workdirs: list[Path]) -> dict[str, Any]:
    """Returns {"runs": name -> its start, settings, and by seed its curve}; all ended after the same number of steps."""
    runs: dict[str, dict[str, Any]] = {}
    for place in (run for workdir in workdirs for run in sorted(workdir.iterdir()) if (run / "metrics.jsonl").is_file()):
        run = read_run(place)
        if run.last_step != run.planned_steps:
            continue
        optimizer = run.config["optimizer"]
        name = place.name
        found = runs.setdefault(
            name,
            {
                "start": run.method,
                "recipe": name.removeprefix(f"{run.method}_"),
                "peak_learning_rate": optimizer["peak_learning_rate"],
                "groups": optimizer["groups"],
                "steps": run.planned_steps,
                "seeds": {},
            },
        )
        found["seeds"][str(run.config["seed"])] = [
            [one.step, round(one.perplexity, 2), round(one.bits_per_byte, 4)] for one in run.evaluations
        ]
    return {"command": "python -m train.compare --config=configs/recipe.py:seed=SEED --workdir=DIR", "runs": runs}


def table(result: dict[str, Any]) -> str:
    """A line a run, the best last: mean perplexity of its seeds at each evaluation."""
    runs = result["runs"]
    steps = [step for step, *_ in next(iter(next(iter(runs.values()))["seeds"].values()))]
    lines = [
        "| start | recipe | rate of the body | of tables | seeds | " + " | ".join(f"step {step}" for step in steps) + " |",
        "|---|---|---:|---:|---:|" + "---:|" * len(steps),
    ]

    def means(run: dict[str, Any]) -> list[float]:
        curves = [[perplexity for _, perplexity, _ in curve] for curve in run["seeds"].values()]
        return [statistics.fmean(values) for values in zip(*curves, strict=True)]

    for run in sorted(runs.values(), key=lambda run: -means(run)[-1]):
        rate = run["peak_learning_rate"]
        tables = next((group.get("rate", 1.0) for group in run["groups"] if group["match"] == "embeddings"), 1.0)
        values = " | ".join(f"{value:,.0f}" for value in means(run))
        lines.append(f"| `{run['start']}` | {run['recipe']} | {rate:g} | {tables * rate:g} | {len(run['seeds'])} | {values} |")
    return "\n".join(lines)


if __name__ == "__main__":
    gathered = gather([Path(argument) for argument in sys.argv[1:]])
    OUTPUT.write_text(json.dumps(gathered, indent=1) + "\n", encoding="utf-8")
    print(table(gathered))
