"""Gathers comparisons of configs/wechsel_{freezing,size,low_resource}.py, salt_tables.py into studies.json: held-out curves.

    python -m train.compare --config=configs/wechsel_freezing.py --workdir=runs/freezing
    python -m benchmarks.studies freezing/de=runs/freezing size/262144=runs/size-262144 low_resource/ug=runs/low-ug

What stands before the "=" is the table, and a word for its first column. A run that has not ended is left out. What the file
holds of other comparisons stays.
"""

import json
import sys
from pathlib import Path
from typing import Any

from wechsel_jax.records import ComparisonRecord, read_run

OUTPUT = Path(__file__).with_name("studies.json")


def gather(workdir: Path) -> dict[str, Any]:
    """Returns the runs of a comparison that have ended: of each its seed, planned steps, curve and origins of rows.

    A point of a curve is (step, perplexity, bits per byte).
    """
    record, runs = ComparisonRecord.read(workdir), {}
    for name in record.methods:
        run = read_run(workdir / name)
        if not run.unfinished:
            curve = [[one.step, round(one.perplexity, 2), round(one.bits_per_byte, 4)] for one in run.evaluations]
            runs[name] = {"seed": run.config["seed"], "planned_steps": run.planned_steps, "curve": curve}
            runs[name]["rows"] = dict(run.transfer.counts)
    return {"machine": record.machine, "runs": runs}


def table(result: dict[str, Any], study: str) -> str:
    """A line a run, the best of a comparison last: perplexity before, along the planned steps and at its best evaluation."""
    quarters = (0, 1, 2, 3, 4)
    lines = [
        "| | run | seed | 0 | ¼ | ½ | ¾ | end | best | at step | bits per byte |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    found = {name.split("/", 1)[1]: one for name, one in result.items() if name.split("/", 1)[0] == study}
    for word, comparison in sorted(found.items(), key=lambda item: (int(item[0]) if item[0].isdecimal() else 0, item[0])):
        ends = {name: min(run["curve"], key=lambda point: point[1]) for name, run in comparison["runs"].items()}
        for name in sorted(ends, key=lambda name: -ends[name][1]):
            run, (step, best, bits) = comparison["runs"][name], ends[name]
            at = {step: perplexity for step, perplexity, _ in run["curve"]}
            marks = [at.get(round(quarter * run["planned_steps"] / 4)) for quarter in quarters]
            cells = [f"{run['seed']}", *("–" if mark is None else f"{mark:,.0f}" for mark in marks)]
            cells += [f"{best:,.1f}", f"{step:,}", f"{bits:.3f}"]
            lines.append(f"| {word} | `{name}` | " + " | ".join(cells) + " |")
    machines = "; ".join(sorted({comparison["machine"] for comparison in found.values()}))
    lines.append(f"\nHeld-out perplexity at fractions of the planned steps; – where a run had ended. {machines}.")
    return "\n".join(lines)


def steps_table(result: dict[str, Any], study: str) -> str:
    """A line a run of a study, a column an evaluation: perplexity and bits per byte."""
    found = {name: one for name, one in result.items() if name.split("/", 1)[0] == study}
    runs = [(name, run) for one in found.values() for name, run in one["runs"].items()]
    steps = [step for step, _, _ in runs[0][1]["curve"]]
    lines = ["| run | " + " | ".join(f"{step:,}" for step in steps) + " |", "|---|" + "---:|" * len(steps)]
    for name, run in runs:
        lines.append(f"| `{name}` | " + " | ".join(f"{value:,.0f} ({bits:.3f})" for _, value, bits in run["curve"]) + " |")
    machines = "; ".join(sorted({one["machine"] for one in found.values()}))
    return "\n".join([*lines, f"\nHeld-out perplexity (bits per byte) by step. {machines}."])


if __name__ == "__main__":
    gathered = json.loads(OUTPUT.read_text(encoding="utf-8")) if OUTPUT.exists() else {}
    for argument in sys.argv[1:]:
        name, place = argument.split("=", 1)
        gathered[name] = gather(Path(place))
    OUTPUT.write_text(json.dumps(gathered, indent=1) + "\n", encoding="utf-8")
    for study in sorted({name.split("/", 1)[0] for name in gathered}):
        print(f"{study}\n{(steps_table if study in ('bound', 'salt') else table)(gathered, study)}\n")
