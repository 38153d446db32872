"""Gathers comparisons of configs/wechsel_{freezing,size,low_resource,downstream}.py, salt_tables.py into studies.json: curves.

    python -m train.compare --config=configs/wechsel_freezing.py --workdir=runs/freezing
    python -m benchmarks.studies freezing/de=runs/freezing size/262144=runs/size-262144 low_resource/ug=runs/low-ug

What stands before the last "=" is the table, and a word for its first column. A run that has not ended is left out. What the
file holds of other comparisons stays. "origin" is what all runs of a comparison have in common (settings, seed, versions,
sha256 of text and tokenizer), that of a run what it has of its own (`benchmarks/origin.py`); comparisons that were gathered
earlier have none. Other text or another tokenizer than before under one name is refused.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.anker import draw
from benchmarks.origin import origins, require_same
from benchmarks.results import named_places, read_results, write_results
from wechsel_jax.errors import UserError
from wechsel_jax.program import program
from wechsel_jax.records import ComparisonRecord, read_run

OUTPUT = Path(__file__).with_name("studies.json")
PICTURE = Path(__file__).parents[1] / "docs" / "studies.png"
# Those that a figure of the papers shows.
PANELS = {
    "freezing/de": "Freezing, German (WECHSEL, Figures 4 and 6)",
    "low_resource/ug": "Few megabytes, Uyghur (WECHSEL, Figure 3)",
    "salt_german/de": "SALT's methods, German (SALT, Figure 2)",
    "salt/zh": "SALT's methods, SmolLM2 to Chinese (SALT, Figure 2)",
}


def gather(workdir: Path, before: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the runs of a comparison that have ended: of each its seed, planned steps, curve, counts of rows and origin.

    A point of a curve is (step, perplexity, bits per byte); a masked model has none of the last.

    Args:
      workdir: of the comparison.
      before: what was gathered under its name, and is replaced; empty where there was nothing.

    Raises:
      UserError: runs are of other text, or another tokenizer, than others of the comparison, or than those before.
    """
    record, runs = ComparisonRecord.read(workdir), {}
    read = {name: run for name in record.methods if not (run := read_run(workdir / name)).unfinished}
    shared, own = origins(read)
    require_same(before.get("origin", {}), shared, str(workdir), f"what {OUTPUT.name} has under its name")
    for name, run in read.items():
        curve = [
            [one.step, round(one.perplexity, 2), None if one.bits_per_byte is None else round(one.bits_per_byte, 4)]
            for one in run.evaluations
        ]
        runs[name] = {"seed": run.config["seed"], "planned_steps": run.planned_steps, "curve": curve}
        runs[name] |= {"rows": dict(run.transfer.counts), "origin": own[name]}
    return {"machine": record.machine, "origin": shared, "runs": runs}


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
            cells += [f"{best:,.1f}", f"{step:,}", "–" if bits is None else f"{bits:.3f}"]
            lines.append(f"| {word} | `{name}` | " + " | ".join(cells) + " |")
    machines = "; ".join(sorted({comparison["machine"] for comparison in found.values()}))
    lines.append(f"\nHeld-out perplexity at fractions of the planned steps; – where a run had ended. {machines}.")
    return "\n".join(lines)


def steps_table(result: dict[str, Any], study: str) -> str:
    """A line a run of a study, a column an evaluation: perplexity and bits per byte; a table for each list of steps."""
    found = {name.split("/", 1)[1]: one for name, one in result.items() if name.split("/", 1)[0] == study}
    # Behind a comma stands what a comparison has of its own: "zh, residual=2".
    several = len({key.partition(",")[0] for key in found}) > 1
    tables: dict[tuple[int, ...], list[str]] = {}
    for key, one in found.items():
        word, comma, own = key.partition(",")
        for name, run in one["runs"].items():
            cells = [f"{value:,.0f}" + ("" if bits is None else f" ({bits:.3f})") for _, value, bits in run["curve"]]
            told = f"{f'{word}: ' if several else ''}`{name}`{comma}{own}"
            steps = tuple(step for step, _, _ in run["curve"])
            tables.setdefault(steps, []).append(f"| {told} | " + " | ".join(cells) + " |")
    whole = []
    for steps, lines in tables.items():
        heads = ["| run | " + " | ".join(f"{step:,}" for step in steps) + " |", "|---|" + "---:|" * len(steps)]
        whole.append("\n".join([*heads, *lines]))
    machines = "; ".join(sorted({one["machine"] for one in found.values()}))
    return "\n\n".join([*whole, f"Held-out perplexity (bits per byte) by step. {machines}."])


def panels(result: dict[str, Any]) -> list[tuple[str, dict, list[str]]]:
    """What `benchmarks.anker.draw` shows: title, curves of each run, their names, of each comparison of PANELS."""
    found = [(title, result[name]["runs"]) for name, title in PANELS.items() if name in result]
    return [
        (title, {"": {name: {"evaluations": [point[:2] for point in run["curve"]]} for name, run in runs.items()}}, [*runs])
        for title, runs in found
    ]


if __name__ == "__main__":
    with program("benchmarks.studies"):
        gathered = read_results(OUTPUT)
        for name, place in named_places(sys.argv[1:], last=True):
            if not all(name.partition("/")):
                raise UserError(f"{name}: expected TABLE/WORD, such as freezing/de={place}")
            gathered[name] = gather(place, gathered.get(name, {}))
        write_results(OUTPUT, gathered)
        if drawn := panels(gathered):
            draw(drawn, PICTURE)
        for study in sorted({name.split("/", 1)[0] for name in gathered}):
            print(f"{study}\n{(steps_table if study in ('bound', 'salt', 'salt_german') else table)(gathered, study)}\n")
