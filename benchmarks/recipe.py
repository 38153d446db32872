"""Gathers runs of configs/recipe.py into recipe.json: what each start reaches by each recipe; draws docs/recipe.png.

    python -m train.compare --config=configs/recipe.py:seed=0 --workdir=runs/recipe-0
    python -m benchmarks.recipe de=runs/recipe-0 de=runs/recipe-1 sw=runs/recipe-sw

A run that has not ended is left out. What the file holds of other runs and seeds stays. Each export is scored by PyTorch, too,
which takes the extra test.

    python -m benchmarks.recipe --shuffled runs/recipe-0/anker_muon_shared
    python -m benchmarks.recipe --rows runs/recipe-0/anker_muon_shared

train that run once more, beside it, with each token given the coordinates of another, or with the rows themselves for
coordinates: whether it matters what they say.
"""

import dataclasses
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.anker import COLOURS
from benchmarks.origin import with_seed
from benchmarks.results import named_places, read_results, write_results
from configs.recipe import SOFT
from wechsel_jax.data import TokenBlocks
from wechsel_jax.data.ngrams import NgramModel
from wechsel_jax.errors import UserError
from wechsel_jax.files.json import read_json
from wechsel_jax.initializers import TransferPlan
from wechsel_jax.program import program
from wechsel_jax.records import ComparisonRecord, RunRecord, read_run
from wechsel_jax.records.names import EXPORT, METRICS_FILE, PLAN_FILE
from wechsel_jax.records.run import SIDES
from wechsel_jax.training import default_config, train
from wechsel_jax.training.coordinates import OWN
from wechsel_jax.training.groups import RECIPES

OUTPUT = Path(__file__).with_name("recipe.json")
PICTURE = Path(__file__).parents[1] / "docs" / "recipe.png"
CONTROLS = ("shuffled", "rows")
# What docs/recipe.md answers first, and in which languages: start, recipe, steps.
ANSWERED = {"fr": "French", "hi": "Hindi", "th": "Thai"}
ANSWER = (
    ("wechsel", "adamw", 800),
    ("wechsel", "two_rates", 800),
    ("anker", "two_rates", 800),
    ("wechsel", f"muon_soap{SOFT}", 400),
    ("focus", f"muon_soap{SOFT}", 400),
    ("anker", "muon_soap", 400),
    ("anker", f"muon_soap{SOFT}", 400),
    ("anker", f"muon_soap{SOFT}", 532),
    ("wechsel", f"muon_soap{SOFT}", 800),
    ("focus", f"muon_soap{SOFT}", 800),
    ("anker", "muon_soap", 800),
    ("anker", f"muon_soap{SOFT}", 800),
)


def known_recipe(run: str) -> str:
    """The recipe that a run's name, START_RECIPE, ends with.

    Raises:
      UserError: it ends with none.
    """
    known = (*RECIPES, *(f"{recipe}{end}" for recipe in RECIPES for end in (SOFT, *(f"_{control}" for control in CONTROLS))))
    found = [recipe for recipe in known if run.endswith(f"_{recipe}")]
    if not found:
        raise UserError(
            f"{run}: expected the name of a run of configs/recipe.py, START_RECIPE with one of {', '.join(RECIPES)}"
        )
    return max(found, key=len)


def runs_of(workdir: Path) -> list[Path]:
    """The runs of a comparison that have begun, and their controls; a helper beside them is none."""
    names = [
        f"{name}{end}" for name in ComparisonRecord.read(workdir).methods for end in ("", *(f"_{one}" for one in CONTROLS))
    ]
    return [workdir / name for name in sorted(names) if (workdir / name / METRICS_FILE).is_file()]


def gather(workdirs: Sequence[tuple[str, Path]], before: dict[str, Any]) -> dict[str, Any]:
    """Returns {"runs": LANGUAGE/STEPS/START_RECIPE/RATE -> its settings, and by seed its curve and loss in training}.

    A curve has a point a quarter: step, perplexity, bits per byte. The loss is the mean of what was logged in the last eighth
    of the steps, in nats a token. "torch" is the perplexity of the export by PyTorch.

    Raises:
      UserError: seeds of a run are of other text, or have another tokenizer or other settings.
    """
    runs: dict[str, dict[str, Any]] = {**before.get("runs", {})}
    for language, place in ((language, run) for language, workdir in workdirs for run in runs_of(workdir)):
        run = read_run(place)
        if run.last_step != run.planned_steps:
            continue
        optimizer, name = run.config["optimizer"], place.name
        # A file of coordinates is told by its name: where it lies says nothing.
        groups = [
            {key: Path(value).name if key == "coordinates" else value for key, value in group.items()}
            for group in optimizer["groups"]
        ]
        recipe = known_recipe(name)
        found = runs.setdefault(
            f"{language}/{run.planned_steps}/{name}/{optimizer['peak_learning_rate']:g}",
            {
                "language": language,
                "start": name.removesuffix(f"_{recipe}"),
                "recipe": recipe,
                "peak_learning_rate": optimizer["peak_learning_rate"],
                "groups": groups,
                "steps": run.planned_steps,
                "seeds": {},
            },
        )
        found["origins"] = with_seed(found.get("origins", {}), run)
        found["seeds"][str(run.config["seed"])] = [
            [one.step, round(one.perplexity, 2), round(one.bits_per_byte, 4)] for one in run.evaluations
        ]
        if run.config.get("soft_targets", {}).get("share"):
            found["soft_targets"] = run.config["soft_targets"] | {"perplexity": round(teacher_perplexity(run), 2)}
        # What a part of the text has been evaluated on is not all of it; and an export may be gone.
        if run.config.get("eval_batches") is None and (place / EXPORT).is_dir():
            found.setdefault("torch", {})[str(run.config["seed"])] = round(torch_perplexity(place / EXPORT, run), 2)
        # Beside that of held-out text it says what text that is read again is learnt by heart.
        late = [line["loss"] for line in run.training if line["step"] > run.planned_steps * 7 / 8]
        found.setdefault("training_loss", {})[str(run.config["seed"])] = round(statistics.fmean(late), 3)
    return {"command": "python -m train.compare --config=configs/recipe.py:seed=SEED --workdir=DIR", "runs": runs}


def teacher_perplexity(run: RunRecord) -> float:
    """What the n-gram model that gives a run its soft targets has on the run's held-out text."""
    train, validation = (TokenBlocks.open(run.config["data"][side][0], run.config["block_length"]) for side in SIDES)
    return NgramModel.of(train.stream, train.vocabulary_size, run.config["soft_targets"]["order"]).perplexity(validation.stream)


def torch_perplexity(export: Path, run: RunRecord) -> float:
    """That of a run's held-out text by transformers and PyTorch, in rows as the trainer's: every token but the first once."""
    import torch
    from transformers import AutoModelForCausalLM

    model, length = AutoModelForCausalLM.from_pretrained(export, dtype=torch.float32).eval(), run.config["block_length"]
    blocks = TokenBlocks.open(run.config["data"][SIDES[1]][0], length)
    ids = torch.from_numpy(np.asarray(blocks.stream, dtype=np.int64))
    rows = ids.unfold(0, length, length - 1)
    nats = 0.0
    with torch.inference_mode():
        for batch in (*rows.split(16), ids[None, len(rows) * (length - 1) :]):
            logits = model(batch).logits[:, :-1]
            nats += torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), reduction="sum").item()
    return math.exp(nats / (len(ids) - 1))


def means(run: dict[str, Any]) -> dict[int, float]:
    """Step -> perplexity, the mean of a run's seeds."""
    curves = [{step: perplexity for step, perplexity, _ in curve} for curve in run["seeds"].values()]
    return {step: statistics.fmean(curve[step] for curve in curves) for step in curves[0]}


def end(run: dict[str, Any]) -> float:
    """Bits per byte at the end, the mean of a run's seeds."""
    return statistics.fmean(curve[-1][2] for curve in run["seeds"].values())


def soft_table(result: dict[str, Any]) -> str:
    """A line a run with soft targets: its n-gram model, and perplexity at each quarter beside that of the run without."""
    lines = [
        "| to | steps | start | recipe | rate of the body | n-gram model | ¼ | ½ | ¾ | end | bits per byte | without |",
        "|---|---:|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    runs = result["runs"]
    for name, run in sorted(runs.items(), key=lambda item: (item[1]["language"], item[1]["steps"], item[0])):
        if not run["recipe"].endswith(SOFT):
            continue
        without = runs.get(name.replace(SOFT, ""))
        cells = [f"{run['peak_learning_rate']:g}", f"{run['soft_targets']['perplexity']:,.0f}"]
        both = [one for one in (run, without) if one]
        for quarter in range(1, 5):
            # Not every run was evaluated at every quarter.
            found = [means(one).get(run["steps"] * quarter // 4) for one in both]
            cells.append(" (".join(f"{one:,.0f}" if one else "-" for one in found) + ")" * (len(found) - 1))
        cells += [f"{end(one):.3f}" for one in both]
        cells += [""] * (2 - len(both))
        named = f"| {run['language']} | {run['steps']} | `{run['start']}` | {run['recipe'].removesuffix(SOFT)} | "
        lines.append(named + " | ".join(cells) + " |")
    return "\n".join(lines)


def _answers(result: dict[str, Any], language: str) -> dict[tuple[str, str, int], dict[str, Any]]:
    """Those runs of ANSWER that there are; of several rates the best."""
    found: dict[tuple[str, str, int], dict[str, Any]] = {}
    for run in result["runs"].values():
        key = (run["start"], run["recipe"], run["steps"])
        if run["language"] == language and key in ANSWER:
            found[key] = min(run, found.get(key, run), key=lambda one: means(one)[one["steps"]])
    return {key: found[key] for key in ANSWER if key in found}


def answer_table(result: dict[str, Any]) -> str:
    """A line a start, recipe and length: perplexity at the end, and bits per byte, in the languages of ANSWERED."""
    lines = [f"| start | recipe | steps | {' | '.join(ANSWERED.values())} |", "|---|---|---:|" + "---:|" * len(ANSWERED)]
    runs = {language: _answers(result, language) for language in ANSWERED}
    for start, recipe, steps in ANSWER:
        cells = []
        for found in runs.values():
            run = found.get((start, recipe, steps))
            cells.append(f"{means(run)[steps]:,.0f} ({end(run):.3f})" if run else "")
        if any(cells):
            lines.append(f"| `{start}` | {recipe} | {steps} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw(result: dict[str, Any], path: Path) -> None:
    """A panel a language of ANSWERED: bits per byte by step, a line a run, and what WECHSEL's with AdamW ends with."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(len(ANSWERED), 1, figsize=(7.2, 3.6 * len(ANSWERED)))
    for axes, (language, title) in zip(grid, ANSWERED.items(), strict=True):
        found = _answers(result, language)
        for (start, recipe, steps), run in sorted(found.items(), key=lambda item: -means(item[1])[item[1]["steps"]]):
            # Before training all lie far above.
            curves = [[point for point in curve if point[0]] for curve in run["seeds"].values()]
            curve = [(points[0][0], statistics.fmean(point[2] for point in points)) for points in zip(*curves, strict=True)]
            style = {"adamw": ":", "two_rates": ":", "muon_soap": "--"}.get(recipe, "-")
            marker = {800: "o", 532: "^", 400: "s"}[steps]
            look = {"color": COLOURS[start], "linewidth": 1.4, "marker": marker, "markersize": 4, "markerfacecolor": "white"}
            label = f"{start}, {recipe}, {steps} steps  {curve[-1][1]:.3f}"
            axes.plot(*zip(*curve, strict=True), style, label=label, **look)
        axes.axhline(end(found["wechsel", "two_rates", 800]), color="0.7", linewidth=0.8, zorder=0)
        axes.set(title=f"English to {title}", xlabel="training steps", ylabel="bits per byte of held-out text", xlim=(0, None))
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def table(result: dict[str, Any]) -> str:
    """A line a run, the best of a language and length last: perplexity at each quarter, means of the seeds, and its end."""
    lines = [
        "| to | steps | start | recipe | rate of the body | of tables | seeds | 0 | ¼ | ½ | ¾ | end | bits per byte |",
        "|---|---:|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]

    for run in sorted(result["runs"].values(), key=lambda run: (run["language"], run["steps"], -means(run)[run["steps"]])):
        rate = run["peak_learning_rate"]
        tables = next((group.get("rate", 1.0) for group in run["groups"] if group["match"] == "embeddings"), 1.0)
        ends = [curve[-1][2] for curve in run["seeds"].values()]
        spread = f" ± {statistics.stdev(ends):.3f}" if len(ends) > 1 else ""
        # Not every run was evaluated at every quarter.
        quarters = [means(run).get(run["steps"] * quarter // 4) for quarter in range(5)]
        cells = [f"{rate:.3g}", f"{tables * rate:.3g}", f"{len(ends)}", *(f"{one:,.0f}" if one else "" for one in quarters)]
        cells.append(f"{statistics.fmean(ends):.3f}{spread}")
        lines.append(f"| {run['language']} | {run['steps']} | `{run['start']}` | {run['recipe']} | " + " | ".join(cells) + " |")
    differences = [
        abs(by_torch / run["seeds"][seed][-1][1] - 1)
        for run in result["runs"].values()
        for seed, by_torch in run.get("torch", {}).items()
    ]
    if differences:
        lines.append(
            f"\nOf {len(differences)} of these runs PyTorch has scored the exports, too: their perplexities differ from the "
            f"trainer's by less than {math.floor(max(differences) * 1e4 + 1) / 1e4:.2%}.".replace("%", " %")
        )
    return "\n".join(lines)


def control(run: Path, kind: str) -> None:
    """Trains a run of configs/recipe.py whose rows move together once more, with the coordinates of one of `CONTROLS`."""
    place = run.with_name(f"{run.name}_{kind}")
    config = default_config()
    with config.unlocked(), config.ignore_type():
        config.update(read_json(run / "config.json", "the settings of a run", "name a run of configs/recipe.py"))
    coordinates = OWN
    if kind == "shuffled":
        plan = TransferPlan.load(Path(config.model.checkpoint) / PLAN_FILE)
        if plan.coordinates is None:
            raise UserError(f"{run}: the rows that it began with have no coordinates; expected a run from anker's rows")
        with_some, others = np.flatnonzero(plan.coordinates.any(axis=1)), plan.coordinates.copy()
        others[with_some] = others[np.random.default_rng(0).permutation(with_some)]
        coordinates = str(run.with_name(f"{place.name}.npz"))
        dataclasses.replace(plan, coordinates=others).save(coordinates)
    config.optimizer.groups = tuple(
        {**group, "coordinates": coordinates} if "coordinates" in group else group for group in config.optimizer.groups
    )
    train(config, place)


def main(arguments: Sequence[str]) -> None:
    match arguments:
        case [option, *runs] if option.startswith("--"):
            kind = option.removeprefix("--")
            if kind not in CONTROLS or len(runs) != 1:
                raise UserError(f"{option}: expected {' or '.join(f'--{one}' for one in CONTROLS)}, and one run")
            control(Path(runs[0]), kind)
        case _:
            gathered = gather(named_places(arguments), read_results(OUTPUT))
            write_results(OUTPUT, gathered)
            draw(gathered, PICTURE)
            print(table(gathered), soft_table(gathered), sep="\n\n")


if __name__ == "__main__":
    with program("benchmarks.recipe"):
        main(sys.argv[1:])
