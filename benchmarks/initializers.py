"""Gathers comparison.json of several languages into one result, and draws the learning curves.

Command:         python -m benchmarks.initializers de=runs/initializers-de sw=runs/initializers-sw fr=... zh=...

The runs themselves:  python -m benchmarks.language_data --data=corpora --output=data
                      for lang in de sw fr zh; do
                        python -m train.compare --config=configs/compare_initializers.py:lang=$lang,data=data \\
                          --workdir=runs/initializers-$lang
                      done

What the file holds of other languages stays.
"""

import math
import sys
from pathlib import Path

from ml_collections import ConfigDict

from benchmarks import costs
from benchmarks.origin import origins
from benchmarks.results import named_places, read_results, write_results
from wechsel_jax.comparison.settings import needs
from wechsel_jax.errors import UserError
from wechsel_jax.files.json import read_json
from wechsel_jax.inspection.drift import drift
from wechsel_jax.program import program
from wechsel_jax.records import ComparisonRecord, read_run
from wechsel_jax.records.compute import compute, median
from wechsel_jax.records.names import EXPORT

NAMES = {"de": "German", "fr": "French", "sw": "Swahili", "zh": "Chinese"}
OUTPUT = Path(__file__).with_name("initializers.json")
_WIDEST = 1e6
# What a transfer reads, and which of the texts of a comparison it is.
_SIDES = {"source_text": "source", "target_text": "train"}
PLOT = Path(__file__).parents[1] / "docs" / "initializers.png"


def gather(workdirs: dict[str, Path]) -> dict:
    """Returns for every language the perplexity of each method at each evaluation, what its transfer recorded, and its origin.

    "made" is what was made for the methods before, in seconds, "costs" the FLOPs and the text of that (`benchmarks.costs`); of
    each method there is which of that it reads, and how much text its transfer read.

    Raises:
      UserError: runs of a language are of other text, or another tokenizer, than others; or there is no language.
    """
    if not workdirs:
        raise UserError("expected workdirs of configs/compare_initializers.py, such as de=runs/initializers-de")
    if unknown := [language for language in workdirs if language not in NAMES]:
        raise UserError(f"{unknown[0]}: no such language; expected one of {', '.join(NAMES)}")
    languages = {}
    for language, workdir in workdirs.items():
        result, methods = ComparisonRecord.read(workdir), {}
        runs = {name: read_run(workdir / name) for name in result.methods}
        shared, own = origins(runs)
        if "vectors" in result.seconds:
            raise UserError(
                f"{workdir}: its seconds.json says of all word vectors together how long they took; expected each kind"
            )
        settings = ConfigDict(read_json(workdir / "config.json", "the settings of a comparison", "name its workdir"))
        texts = read_json(workdir / "texts.json", "the texts of a comparison", "name its workdir")
        sizes = {side: sum(file["bytes"] for file in texts[kind]) for side, kind in _SIDES.items()}
        for name, run in runs.items():
            read = needs(settings, name)
            norms = run.transfer.norms
            methods[name] = {
                "evaluations": [[step, round(perplexity, 1)] for step, perplexity in result.methods[name]["evaluations"]],
                "counts": run.transfer.counts,
                "precision_at_1": (run.transfer.alignment or {}).get("precision_at_1"),
                "length_ratio": round(norms["target"]["mean"] / norms["source"]["mean"], 3),
                "transfer_seconds": round(sum(run.transfer.timings.values()), 1),
                "made": sorted(made for made in result.seconds if made.replace(" ", "_") in read),
                "text_bytes": sum(
                    min(size, run.transfer.settings["text_bytes"] or size) for side, size in sizes.items() if side in read
                ),
                "tokens_per_second": median(run, "tokens_per_second"),
                "drift": moved(workdir / name),
                "origin": own[name],
            }
        used = [name for name in result.seconds if any(name in one["made"] for one in methods.values())]
        languages[language] = {
            "seed": result.seed,
            "machine": result.machine,
            "origin": shared,
            # Of one model and as long rows, whatever the start.
            "step": run.config["batch_size"] * run.config["block_length"],
            "step_flops": compute(run).flops / run.last_step,
            "made": {name: result.seconds[name] for name in used},
            "costs": {name: costs.made(workdir, name) for name in used},
            "methods": methods,
        }
    return {"command": "see benchmarks/initializers.py", "languages": languages}


def moved(run: Path) -> dict[str, float] | None:
    """How far training has moved the rows, see `inspection.drift`; None where a run has not ended.

    Returns:
      Means over all rows, "cosine" of each to itself before and "change", the length of what was added over that before, and
      "kept", the share of its ten nearest source tokens that are the same as before.
    """
    if not (run / EXPORT).exists():
        return None
    found = drift(run / EXPORT, run / "transfer")
    rows = found["groups"][0]
    return {
        name: round(value, 3)
        for name, value in (*((name, rows[name]) for name in ("cosine", "change")), ("kept", found["nearest"]["kept"]))
    }


def draw(result: dict, path: Path) -> None:
    """One panel a language that was trained: a row a method, best last value on top, a mark for every evaluation."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    trained = {name: value["methods"] for name, value in result["languages"].items() if _last_step(value) > 1}
    if not trained:
        print(f"{path} stays as it is: no language was trained for more than a step")
        return
    columns, lines = min(2, len(trained)), -(-len(trained) // 2)
    figure, panels = pyplot.subplots(lines, columns, figsize=(7 * columns, 5.2 * lines), squeeze=False)
    for axes in panels.flat[len(trained) :]:
        axes.remove()
    for axes, (language, methods) in zip(panels.flat, trained.items(), strict=False):
        order = sorted(methods, key=lambda name, methods=methods: -methods[name]["evaluations"][-1][1])
        steps = sorted({step for method in methods.values() for step, _ in method["evaluations"]})
        # Perplexities that are not finite are not recorded; they have no mark.
        curves = [[dict(methods[name]["evaluations"]).get(step, math.inf) for step in steps] for name in order]
        axes.hlines(
            range(len(order)),
            [min(curve) for curve in curves],
            [min(max(curve), 1e99) for curve in curves],
            color="0.85",
            zorder=1,
        )
        for i, step in enumerate(steps):
            shade = str(0.75 - 0.75 * i / (len(steps) - 1))
            face = "white" if i == 0 else shade
            axes.scatter(
                [curve[i] for curve in curves],
                range(len(order)),
                c=face,
                edgecolors=shade,
                s=34,
                zorder=2,
                label=f"step {step}",
            )
        names = [f"{name}  {curve[-1]:,.0f}" for name, curve in zip(order, curves, strict=True)]
        # What a start of 1e92 would press into one point; its line leads to the edge.
        axes.set_xlim(min(map(min, curves)) / 2, min(_WIDEST, 2 * max(map(max, curves))))
        axes.set(xscale="log", title=f"English to {NAMES[language]}", xlabel="held-out perplexity")
        axes.set_yticks(range(len(order)), names, fontsize=9)
        axes.tick_params(axis="y", length=0)
        axes.spines[["top", "right", "left"]].set_visible(False)
    panels[0][0].legend(frameon=False, loc="upper right")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def _last_step(value: dict) -> int:
    return next(iter(value["methods"].values()))["evaluations"][-1][0]


if __name__ == "__main__":
    with program("benchmarks.initializers"):
        gathered = gather(dict(named_places(sys.argv[1:])))
        gathered["languages"] = read_results(OUTPUT).get("languages", {}) | gathered["languages"]
        draw(gathered, PLOT)
        write_results(OUTPUT, gathered)
        print(OUTPUT)
