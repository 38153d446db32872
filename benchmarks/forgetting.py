"""Measures what trained models still know of English: bits per byte of the demonstration's held-out text, in forgetting.json.

    python -m benchmarks.forgetting fr=runs/recipe-fr vi=runs/recipe-vi

scores every run of configs/recipe.py that lies there in two ways: as it is, which reads English with the tokens and rows of the
new language; and its body under the rows of the English model, with English tokens, which shows what has become of the body
alone. What the file holds of other runs stays.
"""

import lzma
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.recipe import known_recipe, runs_of
from benchmarks.results import named_places, read_results, write_results
from wechsel_jax import demo
from wechsel_jax.checkpoint import Checkpoint, write_checkpoint
from wechsel_jax.evaluation.loaded import LoadedModel
from wechsel_jax.evaluation.text import score_text
from wechsel_jax.program import program
from wechsel_jax.records import read_run
from wechsel_jax.records.machine import versions
from wechsel_jax.records.names import EXPORT

OUTPUT = Path(__file__).with_name("forgetting.json")
# A part of the text: a sixth of a bit between two models is many times its standard error.
CHARACTERS = 60_000


def score(place: str | Path) -> float:
    """Bits per byte of the English text."""
    with lzma.open(demo.path("english.validation.txt.xz"), "rt", encoding="utf-8") as handle:
        documents = handle.read(CHARACTERS).splitlines()
    return round(score_text(LoadedModel.open(place), documents).metrics()["bits_per_byte"], 4)


def body_score(place: Path) -> float:
    """Bits per byte of the English text by a run's body with the tokens and the rows of the English model."""
    english, trained = Checkpoint.open(demo.path("english-gpt2")), Checkpoint.open(place)
    tables = {tensor.name for tensor in english.vocabulary_tensors()}
    tensors = {name: (english if name in tables else trained).tensors[name] for name in english.names()}
    with tempfile.TemporaryDirectory() as directory:
        write_checkpoint(directory, english.config, tensors, tokenizer=english.directory)
        return score(directory)


def gather(workdirs: list[tuple[str, Path]], before: dict[str, Any]) -> dict[str, Any]:
    """Returns {"source": its score, "runs": LANGUAGE/STEPS/START_RECIPE/RATE -> by seed [as it is, its body alone]}."""
    runs = before.get("runs", {})
    for language, workdir in workdirs:
        for place in runs_of(workdir):
            if not (place / EXPORT).is_dir():
                continue
            # The table tells it; scoring is slow.
            known_recipe(place.name)
            run = read_run(place)
            print(f"{place} ...", flush=True)
            rate = run.config["optimizer"]["peak_learning_rate"]
            runs.setdefault(f"{language}/{run.planned_steps}/{place.name}/{rate:g}", {})[str(run.config["seed"])] = [
                score(place / EXPORT),
                body_score(place / EXPORT),
            ]
    return {"versions": versions(), "characters": CHARACTERS, "source": score(demo.path("english-gpt2")), "runs": runs}


def table(result: dict[str, Any]) -> str:
    """A line a run: bits per byte as it is and of its body alone, the mean over seeds."""
    lines = ["| to | steps | start | recipe | rate of the body | seeds | English, as it is | its body, with English rows |"]
    lines += ["|---|---:|---|---|---:|---:|---:|---:|"]
    for name, seeds in sorted(result["runs"].items()):
        language, steps, run, rate = name.split("/")
        recipe = known_recipe(run)
        means = [f"{sum(values) / len(values):.3f}" for values in zip(*seeds.values(), strict=True)]
        start = run.removesuffix(f"_{recipe}")
        lines.append(f"| {language} | {steps} | `{start}` | {recipe} | {rate} | {len(seeds)} | " + " | ".join(means) + " |")
    source = result["source"]
    return "\n".join([*lines, f"\nBits per byte of {result['characters']:,} characters; the English model has {source:.3f}."])


if __name__ == "__main__":
    with program("benchmarks.forgetting"):
        found = gather(named_places(sys.argv[1:]), read_results(OUTPUT))
        write_results(OUTPUT, found)
        print(table(found))
