"""What `benchmarks/demo_seeds.py` makes of several workdirs."""

import json
import math
from pathlib import Path

import pytest

from benchmarks.demo_seeds import gather, panel
from wechsel_jax.errors import UserError


def write(workdir: Path, seed: int, curves: dict[str, list]) -> Path:
    workdir.mkdir()
    # Two bytes a token.
    methods = {
        name: {"evaluations": curve, "bits_per_byte": [[step, math.log2(perplexity) / 2] for step, perplexity in curve]}
        for name, curve in curves.items()
    }
    result = {"methods": methods, "seed": seed, "machine": "a machine", "seconds": {name: 1.5 for name in curves}}
    (workdir / "comparison.json").write_text(json.dumps(result))
    return workdir


def test_a_seed_may_be_spread_over_workdirs(tmp_path):
    slow = {"full_rand": [[0, 100.0], [10, 40.0]], "wechsel": [[0, 40.0], [10, 30.0]]}
    folders = [write(tmp_path / f"old-{seed}", seed, slow) for seed in (0, 1)]
    folders += [write(tmp_path / f"new-{seed}", seed, {"anker": [[0, 50.0], [10, 20.0 + 2 * seed]]}) for seed in (1, 0)]
    result = gather(folders)
    assert result["seeds"] == [0, 1] and list(result["methods"]) == ["anker", "wechsel", "full_rand"]
    anker = result["methods"]["anker"]
    perplexity = anker["perplexity"]
    assert perplexity["seeds"] == [[50.0, 20.0], [50.0, 22.0]] and perplexity["mean"] == [50.0, 21.0]
    assert perplexity["standard_deviation"] == [0.0, 1.41] and anker["steps"] == [0, 10]
    bits = anker["bits_per_byte"]
    assert bits["seeds"] == [[2.8219, 2.161], [2.8219, 2.2297]] and bits["mean"] == [2.8219, 2.1953]
    assert bits["standard_deviation"] == [0.0, 0.0486]
    # FullRand has WECHSEL's first perplexity at its last step, and never the others.
    assert result["steps_needed"][0]["wechsel"] == [10.0, None] and set(result["steps_needed"][1]) == {"anker", "wechsel"}
    assert result["seconds"][0] == {"full_rand": 1.5, "wechsel": 1.5, "anker": 1.5}
    title, seeds, names = panel(result)
    assert title == "English to German" and names == list(result["methods"])
    assert seeds[1]["anker"]["evaluations"] == [(0, 2.8219), (10, 2.2297)]


def test_seeds_that_are_not_alike_are_refused(tmp_path):
    curves = {"full_rand": [[0, 100.0], [200, 40.0]], "anker": [[0, 40.0], [200, 30.0]]}
    first = write(tmp_path / "first", 0, curves)
    longer = write(tmp_path / "longer", 1, {name: [[0, 40.0], [800, 9.0]] for name in curves})
    with pytest.raises(UserError, match=r"full_rand: was evaluated at steps \[0, 800\] with seed 1; expected \[0, 200\]"):
        gather([first, longer])
    fewer = write(tmp_path / "fewer", 1, {"full_rand": curves["full_rand"]})
    with pytest.raises(UserError, match="anker: has no run of seed 1"):
        gather([first, fewer])
    with pytest.raises(UserError, match="full_rand: has no run of seed 0"):
        gather([write(tmp_path / "alone", 0, {"anker": curves["anker"]})])
    with pytest.raises(UserError, match="expected workdirs"):
        gather([])
    result = json.loads((first / "comparison.json").read_text())
    del result["methods"]["anker"]["bits_per_byte"][1]
    (first / "comparison.json").write_text(json.dumps(result))
    with pytest.raises(UserError, match=r"anker: has bits per byte of steps \[0\] with seed 0; expected them of \[0, 200\]"):
        gather([first])
