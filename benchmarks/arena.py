"""Gathers runs of configs/arena.py into arena.json: the tokens that FullRand needs to reach each start; draws docs/arena.png.

    python -m train.compare --config=configs/arena.py:seed=0 --workdir=runs/arena-de-0
    python -m benchmarks.arena de=runs/arena-de-0 de=runs/arena-de-1 sw=runs/arena-sw-0

Runs of more methods, or of a longer FullRand, may lie in workdirs of their own. A run that has not ended is left out. What the
file holds of other runs and seeds stays.
"""

import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from benchmarks import costs
from benchmarks.anker import NAMES
from benchmarks.origin import with_seed
from benchmarks.results import named_places, read_results, write_results
from configs.recipe import SOFT
from wechsel_jax.comparison import BASELINE
from wechsel_jax.comparison.settings import needs
from wechsel_jax.errors import UserError
from wechsel_jax.files.json import read_json
from wechsel_jax.program import program
from wechsel_jax.records import ComparisonRecord, read_run

OUTPUT = Path(__file__).with_name("arena.json")
PICTURE = Path(__file__).parents[1] / "docs" / "arena.png"


def gather(workdirs: Sequence[tuple[str, Path]], before: dict[str, Any]) -> dict[str, Any]:
    """Returns language -> the runs, each with what it was tuned for and its curve, by seed, in tokens and bits per byte.

    Raises:
      UserError: runs of a language were scored on other text, or those of one name lasted for other steps, or their seeds have
        other settings; their rates may differ.
    """
    languages: dict[str, dict[str, Any]] = {**before.get("languages", {})}
    for language, workdir in workdirs:
        record = ComparisonRecord.read(workdir)
        found = languages.setdefault(language, {"machine": record.machine, "held_out": None, "runs": {}})
        for place in (workdir / name for name in record.methods):
            run = read_run(place)
            if run.last_step != run.planned_steps:
                continue
            held_out = run.data.get("validation", {}).get("sha256")
            if found["held_out"] not in (None, held_out):
                raise UserError(f"{place}: has other held-out text, or another tokenizer, than runs of {language} before it")
            found["held_out"] = held_out
            # Of one model, whatever the start; earlier runs did not record it.
            if run.starts and (flops := run.starts[-1].get("flops_per_token")):
                found["flops_per_token"] = flops
            groups = run.config["optimizer"]["groups"]
            tokens = run.config["batch_size"] * run.config["block_length"]
            kinds = {one.get("kind", "adamw") for one in groups}
            used = {
                "muon": "muon" in kinds,
                "soap": "soap" in kinds,
                "shared": "soap" not in kinds and any(one.get("coordinates") for one in groups),
            }
            recipe = "_".join(name for name in used if used[name]) or "adamw"
            if run.config.get("soft_targets", {}).get("share"):
                recipe += SOFT
            name = place.name if recipe == "adamw" else f"{place.name} {recipe}"
            # Longer runs of FullRand are named after their length, others after their start.
            start = run.method if run.method == BASELINE else place.name
            described = {"start": start, "recipe": recipe, "steps": run.planned_steps, "seeds": {}}
            runs = found["runs"].setdefault(name, described)
            if runs["steps"] != run.planned_steps:
                raise UserError(
                    f"{place}: has {run.planned_steps} steps, and {name} before it {runs['steps']}; expected as many"
                )
            runs["origins"] = with_seed(runs.get("origins", {}), run, tuned=True)
            runs["seeds"][str(run.config["seed"])] = {
                "rate": run.config["optimizer"]["peak_learning_rate"],
                "tables": next((group["rate"] for group in groups if group["match"] == "embeddings"), 1.0),
                "tried": [list(tried) for tried in (record.tuning or {}).get(place.name, ())],
                "curve": [[one.step * tokens, round(one.bits_per_byte, 4)] for one in run.evaluations],
            }
            if run.transfer.cost:
                settings = ConfigDict(read_json(workdir / "config.json", "the settings of a comparison", "name its workdir"))
                read = needs(settings, place.name)
                made = [costs.made(workdir, one)["flops"] for one in record.seconds if one.replace(" ", "_") in read]
                runs["seeds"][str(run.config["seed"])]["start_flops"] = run.transfer.cost["flops"] + sum(made)
    return {"command": "python -m train.compare --config=configs/arena.py:seed=SEED --workdir=DIR", "languages": languages}


def tokens_needed(ends: Sequence[tuple[float, float]], bits: float) -> float:
    """The tokens that reach a value, read off runs of several lengths: bits per byte is linear in the logarithm between them.

    Args:
      ends: (tokens, bits per byte) at the end of each run, by tokens; a longer one that is worse is left out.
      bits: the value.

    Returns:
      The tokens; those of the shortest run where it is as good already; inf where the longest is not.
    """
    before: tuple[float, float] | None = None
    for tokens, value in ends:
        if value <= bits:
            if before is None:
                return tokens
            share = (before[1] - bits) / (before[1] - value)
            return math.exp(math.log(before[0]) + share * (math.log(tokens) - math.log(before[0])))
        if before is None or value < before[1]:
            before = tokens, value
    return math.inf


def table(result: dict[str, Any]) -> str:
    """A line a run, by language, the best last: chosen rates, its end, and the tokens that FullRand needs for that."""
    all_runs = [run for found in result["languages"].values() for run in found["runs"].values()]
    # Older runs did not record what their starts cost.
    costs_told = any("start_flops" in own for run in all_runs for own in run["seeds"].values())
    start = " of the start |" if costs_told else ""
    lines = [
        f"| to | start | recipe | rate of body | of tables | tokens | TFLOP |{start} bits per byte before | after | "
        "FullRand needs | times |",
        f"|---|---|---|---:|---:|---:|---:|{'---:|' * costs_told}---:|---:|---:|---:|",
    ]
    seeds_of, edge = {}, False
    for language, found in result["languages"].items():
        runs = found["runs"]
        baseline = [run["seeds"] for run in runs.values() if run["start"] == BASELINE and run["recipe"] == "adamw"]
        seeds_of[language] = sorted({seed for run in runs.values() for seed in run["seeds"]})
        for run in sorted(runs.values(), key=lambda run: -_mean(run, -1)):
            tokens = next(iter(run["seeds"].values()))["curve"][-1][0]
            needed = []
            for seed, own in run["seeds"].items() if run["start"] != BASELINE else ():
                ends = sorted(tuple(seeds[seed]["curve"][-1]) for seeds in baseline if seed in seeds)
                if ends:
                    needed.append((tokens_needed(ends, own["curve"][-1][1]), ends))
            cells = [_rates(run, "rate"), _rates(run, "tables")]
            edge = edge or any(cell.endswith("*") for cell in cells)
            flops = found.get("flops_per_token")
            starts = [own.get("start_flops", math.nan) for own in run["seeds"].values()]
            share = statistics.fmean(starts) / (tokens * flops) if flops else math.nan
            cells += [
                _count(tokens),
                "–" if flops is None else f"{tokens * flops / 1e12:.1f}",
                *(["–" if math.isnan(share) else "under 0.01%" if share < 1e-4 else f"{share:.2%}"] if costs_told else []),
                f"{_mean(run, 0):.3f}",
                f"{_mean(run, -1):.3f}{_spread(run)}",
                *_needed(needed, tokens),
            ]
            lines.append(f"| {language} | `{run['start']}` | {run['recipe']} | " + " | ".join(cells) + " |")
    told = "; ".join(f"{language} {', '.join(seeds)}" for language, seeds in seeds_of.items())
    lines.append(
        f"\nSeeds: {told}; ± is the standard deviation over them, lines without have one. "
        + (
            '"Of the start": what it multiplies and adds, word vectors and a helper that were trained for it included, as a '
            "share of the training's TFLOP; older runs did not record it. "
            if costs_told
            else ""
        )
        + "Of several chosen rates all are named"
        + (", and * marks those that include the lowest or highest that was tried" if edge else "")
        + f". {'; '.join(sorted({found['machine'] for found in result['languages'].values()}))}."
    )
    return "\n".join(lines)


def _mean(run: dict[str, Any], place: int) -> float:
    return statistics.fmean(own["curve"][place][1] for own in run["seeds"].values())


def _spread(run: dict[str, Any]) -> str:
    ends = [own["curve"][-1][1] for own in run["seeds"].values()]
    return f" ± {statistics.stdev(ends):.3f}" if len(ends) > 1 else ""


def _rates(run: dict[str, Any], which: str) -> str:
    """The rates that the seeds chose, of the body or of the tables, which are tried as multiples of it."""
    place = ("rate", "tables").index(which)
    chosen = {own["rate"] * (own["tables"] if place else 1.0) for own in run["seeds"].values()}
    tried = [{one[place] for one in own["tried"]} for own in run["seeds"].values()]
    # Of two values both are an edge, which says nothing.
    at_edge = any(
        len(values) > 2 and own[which] in (min(values), max(values))
        for values, own in zip(tried, run["seeds"].values(), strict=True)
    )
    return ", ".join(f"{rate:.3g}" for rate in sorted(chosen)) + ("*" if at_edge else "")


def _needed(needed: Sequence[tuple[float, list[tuple[float, float]]]], tokens: float) -> tuple[str, str]:
    if not needed:
        return "–", "–"
    # The geometric mean of seeds that all reach it; otherwise only what was trained is known.
    if all(math.isfinite(found) for found, _ in needed):
        mean = math.exp(statistics.fmean(math.log(found) for found, _ in needed))
        least = "at most " if any(found == ends[0][0] for found, ends in needed) else ""
        return f"{least}{_count(mean)}", f"{least}{mean / tokens:.1f}"
    longest = min(ends[-1][0] for _, ends in needed)
    return f"more than {_count(longest)}", f"more than {longest / tokens:.1f}"


def _count(tokens: float) -> str:
    return f"{tokens / 1e6:,.2f} M"


def draw(result: dict[str, Any], path: Path) -> None:
    """One panel a language: bits per byte against tokens, a line a start, and FullRand's ends, which say what tokens buy."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    languages = result["languages"]
    # The names, a line each, are as high as the curves.
    height = max(5.2, 0.235 * max(len(found["runs"]) for found in languages.values()))
    # The first language, which has the most, takes the height; the others stand beside it, one below another.
    figure = pyplot.figure(figsize=(8.8 * min(2, len(languages)), max(height, 3.2 * (len(languages) - 1))))
    grid = figure.add_gridspec(max(1, len(languages) - 1), min(2, len(languages)))
    panels = [figure.add_subplot(grid[:, 0]), *(figure.add_subplot(grid[row, 1]) for row in range(len(languages) - 1))]
    # Grey is FullRand's.
    palette = [*(pyplot.get_cmap("tab10")(number) for number in range(10) if number != 7), "black", "navy", "maroon"]
    # A start has its colour in all its variants (`focus-calibrated`), which have marks of their own.
    named = {run["start"].partition("-")[::2] for found in languages.values() for run in found["runs"].values()}
    starts = sorted({start for start, _ in named} - {BASELINE})
    marks = dict(zip(sorted({variant for _, variant in named}), "oxv^*PD", strict=False))
    for axes, (language, found) in zip(panels, languages.items(), strict=True):
        baseline = []
        for run in sorted(found["runs"].values(), key=lambda run: -_mean(run, -1)):
            seeds = [own["curve"] for own in run["seeds"].values()]
            curve = [(points[0][0], statistics.fmean(bits for _, bits in points)) for points in zip(*seeds, strict=True)]
            longer = run["start"] == BASELINE and run["recipe"] == "adamw"
            if longer:
                baseline.append(curve[-1])
            name = run["start"] if run["recipe"] == "adamw" else f"{run['start']}, {run['recipe']}"
            label = {} if longer and len(baseline) > 1 else {"label": f"{name}  {curve[-1][1]:.3f}"}
            start, _, variant = run["start"].partition("-")
            look = {"color": "0.6" if start == BASELINE else palette[starts.index(start) % len(palette)]}
            look |= {"marker": marks.get(variant, "s"), "markersize": 5 if variant else 2.5}
            look["linestyle"] = {"adamw": "-", "muon_soap": "--", f"muon_soap{SOFT}": "-."}.get(run["recipe"], ":")
            # The first point, before training, has no place on a logarithmic axis.
            axes.plot(*zip(*curve[1:], strict=True), linewidth=1.4, **look, **label)
        if baseline:
            axes.plot(*zip(*sorted(baseline), strict=True), "k--", marker="s", markersize=4, label="ends of full_rand")
        title = f"English to {NAMES.get(language, language)}"
        axes.set(xscale="log", title=title, xlabel="tokens", ylabel="bits per byte of held-out text")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    with program("benchmarks.arena"):
        gathered = gather(named_places(sys.argv[1:]), read_results(OUTPUT))
        draw(gathered, PICTURE)
        write_results(OUTPUT, gathered)
        print(table(gathered))
