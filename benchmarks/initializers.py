"""Gathers comparison.json of several languages into one result, and draws the learning curves.

Command:         python -m benchmarks.initializers de=runs/initializers-de sw=runs/initializers-sw fr=... zh=...

The runs themselves:  python -m benchmarks.language_data --data=corpora --output=data
                      for lang in de sw; do
                        python -m train.compare --config=configs/compare_initializers.py:lang=$lang,data=data \\
                          --workdir=runs/initializers-$lang
                      done
                      for lang in fr zh; do
                        python -m train.compare --config=configs/compare_initializers.py:lang=$lang,data=data,steps=1 \\
                          --workdir=runs/initializers-$lang
                      done
"""

import json
import sys
from pathlib import Path

OUTPUT = Path(__file__).with_name("initializers.json")
PLOT = Path(__file__).parents[1] / "docs" / "initializers.png"


def gather(workdirs: dict[str, Path]) -> dict:
    """Returns for every language the perplexity of each method at each evaluation, and what its transfer recorded."""
    languages = {}
    for language, workdir in workdirs.items():
        result = json.loads((workdir / "comparison.json").read_text(encoding="utf-8"))
        methods = {}
        for name, values in result["methods"].items():
            record = json.loads((workdir / name / "transfer" / "transfer.json").read_text(encoding="utf-8"))
            alignment = record["alignment"] or {}
            methods[name] = {
                "evaluations": [[step, round(perplexity, 1)] for step, perplexity in values["evaluations"]],
                "counts": record["counts"],
                "precision_at_1": alignment.get("precision_at_1"),
                "length_ratio": round(record["norms"]["target"]["mean"] / record["norms"]["source"]["mean"], 3),
                "transfer_seconds": round(sum(record["timings"].values()), 1),
            }
        languages[language] = {"seed": result["seed"], "machine": result["machine"], "methods": methods}
    return {"command": "see benchmarks/initializers.py", "languages": languages}


def draw(result: dict, path: Path) -> None:
    """One panel a language with a learning curve; the methods in the order of their last value, named at the end."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    trained = {name: value for name, value in result["languages"].items() if _last_step(value) > 1}
    colours = pyplot.get_cmap("tab20").colors
    order = sorted(next(iter(trained.values()))["methods"])
    figure, panels = pyplot.subplots(1, len(trained), figsize=(6.2 * len(trained), 5), squeeze=False)
    for axes, (language, value) in zip(panels[0], trained.items(), strict=True):
        ends = []
        for name, method in value["methods"].items():
            steps, perplexity = zip(*method["evaluations"], strict=True)
            colour = colours[order.index(name) % len(colours)]
            axes.plot(steps, perplexity, color=colour, marker=".", linewidth=1.4)
            ends.append([perplexity[-1], name, colour])
        axes.set(yscale="log", title=f"English to {language}", xlabel="training step", ylabel="held-out perplexity")
        _name_ends(axes, ends, steps[-1])
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def _last_step(value: dict) -> int:
    return next(iter(value["methods"].values()))["evaluations"][-1][0]


def _name_ends(axes, ends: list, step: int) -> None:
    """Names at the right, spread so that none covers another; a thin line leads to each curve's end."""
    ends.sort()
    low, high = axes.get_ylim()
    places = len(ends)
    for rank, (perplexity, name, colour) in enumerate(ends):
        height = low * (high / low) ** (0.02 + 0.96 * rank / max(places - 1, 1))
        axes.annotate(
            f"{name} {perplexity:,.0f}",
            (step, perplexity),
            xytext=(step * 1.12, height),
            color=colour,
            fontsize=8,
            va="center",
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.5},
            annotation_clip=False,
        )


if __name__ == "__main__":
    gathered = gather({name: Path(place) for name, place in (argument.split("=", 1) for argument in sys.argv[1:])})
    OUTPUT.write_text(json.dumps(gathered, indent=1) + "\n", encoding="utf-8")
    draw(gathered, PLOT)
    print(OUTPUT, PLOT)
