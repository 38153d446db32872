"""Measures precision at 1 of every alignment on word vectors and a dictionary given by flags: what a map is worth.

    PYTHONPATH=. python benchmarks/alignment.py --source=en.npz --target=fr.npz --dictionary=en-fr.tsv \\
        --name="English-French" --output=benchmarks/alignment.json

Every variant answers the same questions: words of the dictionary that the fit on it does not see in any spelling, looked up
among the 50,000 most frequent target words by cosine and by CSLS. An output that exists gets another entry, or a new one under
the same name.
"""

import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
from absl import app, flags

from benchmarks.machine import processor
from wechsel_jax.files import new_file
from wechsel_jax.vectors import align, load_vectors, read_dictionary
from wechsel_jax.vectors.adversarial import AdversarialSettings, adversarial_align
from wechsel_jax.vectors.alignment import FREQUENT_WORDS, choose_words, find_pairs, measure
from wechsel_jax.vectors.refinement import Refinement

_SOURCE = flags.DEFINE_string("source", None, "Word vectors of the source language.", required=True)
_TARGET = flags.DEFINE_string("target", None, "Word vectors of the target language.", required=True)
_DICTIONARY = flags.DEFINE_string("dictionary", None, "File of word pairs.", required=True)
_NAME = flags.DEFINE_string("name", None, "What the entry is called.", required=True)
_NOTE = flags.DEFINE_string("note", "", "Where vectors and dictionary come from.")
_MAX_WORDS = flags.DEFINE_integer("max_words", 50_000, "Most frequent words of each side that take part.", lower_bound=1)
_HELD_OUT = flags.DEFINE_float("held_out", 0.1, "Share of the dictionary's source words that ask.")
_ROUNDS = flags.DEFINE_integer("refine", 5, "Rounds of refinement.", lower_bound=1)
_MAX_RANK = flags.DEFINE_integer("max_rank", 15_000, "Most frequent words that take part in refinement.", lower_bound=1)
_NORMALIZE = flags.DEFINE_bool("normalize", True, "Vectors of length 1, centred: every variant.")
_ADVERSARIAL = flags.DEFINE_bool("adversarial", True, "Measure adversarial alignment too, by far the slowest.")
_SIMILARITIES = flags.DEFINE_bool("similarities", True, "Measure the map that begins with alike similarities too.")
_EPOCHS = flags.DEFINE_integer("epochs", 5, "Of adversarial training.", lower_bound=1)
_ITERATIONS = flags.DEFINE_integer("iterations", 31_250, "Of an epoch.", lower_bound=1)
_HIDDEN = flags.DEFINE_integer("hidden", 2048, "Width of the discriminator.", lower_bound=1)
_MOST_FREQUENT = flags.DEFINE_integer("most_frequent", 75_000, "Words that adversarial training draws from; 0: all.")
_RESTARTS = flags.DEFINE_integer("restarts", 1, "Adversarial trainings.", lower_bound=1)
_SEED = flags.DEFINE_integer("seed", 0, "Of the held-out words and the training.")
_OUTPUT = flags.DEFINE_string("output", None, "JSON file.")
_SETTINGS = (
    _MAX_WORDS, _HELD_OUT, _ROUNDS, _MAX_RANK, _NORMALIZE, _ADVERSARIAL, _SIMILARITIES, _EPOCHS, _ITERATIONS, _HIDDEN,
    _MOST_FREQUENT, _RESTARTS, _SEED,
)  # fmt: skip


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected argument {argv[1]}")
    source, target = (load_vectors(place, _MAX_WORDS.value) for place in (_SOURCE.value, _TARGET.value))
    pairs = read_dictionary(_DICTIONARY.value)
    refinement = Refinement(rounds=_ROUNDS.value, max_rank=_MAX_RANK.value)
    prepared = {"normalize": _NORMALIZE.value, "center": _NORMALIZE.value, "seed": _SEED.value, "csls": True}
    found, _ = find_pairs(source, target, pairs, "unique")
    tested = choose_words(found, min(len(target.words), FREQUENT_WORDS), _HELD_OUT.value, _SEED.value)
    rows = []
    for title, rounds in (("dictionary", 0), ("dictionary, refined", refinement)):
        rows.append(timed(title, lambda r=rounds: align(source, target, pairs, held_out=_HELD_OUT.value, refine=r, **prepared)))
    # Words spelled alike are no dictionary, so a few of them may be among those that ask.
    alike = (("identical words", 0), ("identical words, refined", refinement))
    for title, rounds in alike if set(source.words) & set(target.words) else ():
        rows.append(timed(title, lambda r=rounds: align(source, target, "identical", held_out=0, refine=r, **prepared)))
    settings = AdversarialSettings(
        epochs=_EPOCHS.value, iterations=_ITERATIONS.value, hidden=_HIDDEN.value, restarts=_RESTARTS.value,
        most_frequent=_MOST_FREQUENT.value, refinement=refinement,
    )  # fmt: skip
    learned = AdversarialSettings(start="similarities", epochs=0, refinement=refinement)
    options = {**prepared, "csls": False, "progress": print}
    for wanted, title, chosen in (
        (_SIMILARITIES.value, "similarities, refined", learned),
        (_ADVERSARIAL.value, "adversarial, refined", settings),
    ):
        if wanted:
            rows.append(timed(title, lambda c=chosen: adversarial_align(source, target, c, **options)))
    for row in rows:
        alignment = row.pop("alignment")
        if alignment.report.get("precision_at_1") is None:
            row |= measure(source, target, alignment.source, alignment.target, tested, csls=True)
        else:
            row |= {name: alignment.report[name] for name in ("held_out_words", "precision_at_1", "precision_at_1_csls")}
        row |= {name: alignment.report[name] for name in ("pairs", "refinement", "adversarial") if name in alignment.report}
        print(f"{row['name']}: P@1 {row['precision_at_1']:.3f}, by CSLS {row['precision_at_1_csls']:.3f}", flush=True)
    entry = {
        "note": _NOTE.value,
        "words": [len(source.words), len(target.words)],
        "dimensions": [source.dim, target.dim],
        "settings": {flag.name: flag.value for flag in _SETTINGS},
        "machine": machine(),
        "results": rows,
    }
    if _OUTPUT.value:
        place = Path(_OUTPUT.value)
        known = json.loads(place.read_text()) if place.exists() else {}
        with new_file(place, "w") as handle:
            handle.write(json.dumps(known | {_NAME.value: entry}, indent=2) + "\n")


def timed(title: str, run: Callable) -> dict:
    """Runs it; the seconds hold the measuring of P@1 where `align` does it."""
    wall, cpu = time.perf_counter(), time.process_time()
    alignment = run()
    seconds = {"cpu": round(time.process_time() - cpu, 1), "wall": round(time.perf_counter() - wall, 1)}
    return {"name": title, "seconds": seconds, "alignment": alignment}


def machine() -> dict:
    return {
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "devices": [str(device.device_kind) for device in jax.devices()],
        "python": platform.python_version(),
        "jax": jax.__version__,
        "numpy": np.__version__,
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


if __name__ == "__main__":
    app.run(main)
