"""Gathers comparison.json of several seeds into one result.

Command:         python -m benchmarks.demo_seeds runs/demo-0 runs/demo-1 runs/demo-2

The runs themselves:  for seed in 0 1 2; do
                        python -m train.compare --config=configs/demo.py --workdir=runs/demo-$seed --config.seed=$seed
                      done
"""

import json
import sys
from pathlib import Path

import numpy as np

OUTPUT = Path(__file__).with_name("demo.json")


def gather(workdirs: list[Path]) -> dict:
    """Returns the perplexities of every seed, and their mean and sample standard deviation at every evaluation."""
    results = [json.loads((workdir / "comparison.json").read_text(encoding="utf-8")) for workdir in workdirs]
    methods = {}
    for name in results[0]["methods"]:
        curves = np.asarray([result["methods"][name]["evaluations"] for result in results])
        perplexity = curves[:, :, 1]
        methods[name] = {
            "steps": [int(step) for step in curves[0, :, 0]],
            "perplexity": perplexity.round(2).tolist(),
            "mean": perplexity.mean(0).round(2).tolist(),
            "standard_deviation": perplexity.std(0, ddof=1).round(2).tolist() if len(results) > 1 else None,
        }
    return {
        "command": "python -m train.compare --config=configs/demo.py --workdir=runs/demo-SEED --config.seed=SEED",
        "seeds": [result["seed"] for result in results],
        "machine": results[0]["machine"],
        "methods": methods,
        "steps_needed": [result["steps_needed"] for result in results],
        "seconds": [result["seconds"] for result in results],
    }


if __name__ == "__main__":
    OUTPUT.write_text(json.dumps(gather([Path(name) for name in sys.argv[1:]]), indent=1) + "\n", encoding="utf-8")
    print(OUTPUT)
