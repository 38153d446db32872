"""What `benchmarks/arena.py` makes of runs."""

import json
import math

import numpy as np
import pytest

from benchmarks.arena import gather, table, tokens_needed
from wechsel_jax.errors import UserError
from wechsel_jax.training.groups import RECIPES

TRIED = [[1e-3, 1.0, 6.0], [2e-3, 1.0, 5.5], [4e-3, 1.0, 5.0]]


def write(workdir, runs, seed, text="a", groups=()):
    """A workdir of `configs/arena.py`: name -> (method, steps, rate, bits per byte after the first and the last step)."""
    for name, (method, steps, rate, before, after) in runs.items():
        run = workdir / name
        (run / "transfer").mkdir(parents=True)
        (run / "transfer" / "transfer.json").write_text(json.dumps({"method": method}))
        lines = [(0, before), (steps, after)]
        evaluations = [
            {"kind": "eval", "step": step, "loss": 5.0, "perplexity": math.exp(5.0), "bits_per_byte": bits}
            for step, bits in lines
        ]
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in evaluations))
        optimizer = {"peak_learning_rate": rate, "groups": [*groups]}
        config = {"seed": seed, "steps": steps, "batch_size": 16, "block_length": 128, "optimizer": optimizer}
        folder = workdir / "data" / "validation"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tokens.bin").touch()
        (folder / "manifest.json").write_text(json.dumps({"sha256": text}))
        config["data"] = {"train": [str(folder)], "validation": [str(folder)]}
        (run / "config.json").write_text(json.dumps(config))
    methods = {name: {"evaluations": []} for name in runs}
    record = {"methods": methods, "seed": seed, "machine": "a machine", "tuning": dict.fromkeys(runs, TRIED)}
    (workdir / "comparison.json").write_text(json.dumps(record))
    return workdir


def test_tokens_are_read_off_the_ends_of_runs_as_numpy_interpolates_them():
    ends = [(100.0, 3.0), (200.0, 2.5), (800.0, 2.0)]
    for bits in (2.9, 2.5, 2.1):
        expected = np.exp(np.interp(-bits, [-3.0, -2.5, -2.0], np.log([100.0, 200.0, 800.0])))
        assert tokens_needed(ends, bits) == pytest.approx(expected)
    assert tokens_needed(ends, 3.5) == 100 and tokens_needed(ends, 1.9) == math.inf
    # A longer run that was worse says nothing.
    assert tokens_needed([(100.0, 3.0), (200.0, 3.4), (400.0, 2.0)], 2.5) == pytest.approx(200.0)


def test_a_line_says_what_full_rand_needs_and_which_rate_is_at_the_edge(tmp_path):
    runs = {
        "anker": ("anker", 100, 2e-3, 3.0, 2.0),
        "fvt": ("fvt", 100, 4e-3, 3.5, 2.5),
        "full_rand": ("full_rand", 100, 2e-3, 4.0, 3.0),
        "full_rand_x4": ("full_rand", 400, 2e-3, 4.0, 2.25),
    }
    workdirs = [("de", write(tmp_path / str(seed), runs, seed)) for seed in (0, 1)]
    lines = table(gather(workdirs, {})).splitlines()
    cells = {(line.split("|")[2].strip(), line.split("|")[6].strip()): line for line in lines[2:6]}
    assert list(cells)[-1] == ("`anker`", "0.20 M") and "more than 0.82 M | more than 4.0 |" in cells[("`anker`", "0.20 M")]
    # Two thirds of the way from 3 to 2.25 on a logarithmic scale from 1 to 4.
    assert f"| {4 ** (2 / 3):.1f} |" in cells[("`fvt`", "0.20 M")] and "| 0.004* |" in cells[("`fvt`", "0.20 M")]
    assert "2.000 ± 0.000" in cells[("`anker`", "0.20 M")] and "de 0, 1" in lines[-1]


def test_a_start_is_told_with_what_was_done_to_its_rows(tmp_path):
    runs = {name: (name.split("-")[0], 100, 2e-3, 3.0, 2.0) for name in ("wechsel_tfr-regression", "anker-tuned50")}
    runs["full_rand_x4"] = ("full_rand", 400, 2e-3, 4.0, 2.25)
    found = gather([("de", write(tmp_path, runs, 0))], {})["languages"]["de"]["runs"]
    assert [run["start"] for run in found.values()] == ["wechsel_tfr-regression", "anker-tuned50", "full_rand"]


def test_the_recipe_and_flops_are_told_and_other_lengths_refused(tmp_path):
    runs = {"anker": ("anker", 100, 2e-3, 3.0, 2.0)}
    workdir = write(tmp_path / "a", runs, 0, groups=RECIPES["muon_soap"])
    (workdir / "anker" / "machine.json").write_text(json.dumps({"starts": [{"seconds": 0.0, "flops_per_token": 3e7}]}))
    found = gather([("de", workdir)], {})
    (line,) = (line for line in table(found).splitlines() if "`anker`" in line)
    # 204,800 tokens; tables learn twice as fast as the body.
    assert line.startswith("| de | `anker` | muon_soap | 0.002 | 0.004 | 0.20 M | 6.1 | 3.000 |")
    # Of a start that recorded its cost: with the word vectors that were trained for it.
    (workdir / "config.json").write_text(json.dumps({"variants": {}, "vectors": {}, "source": "s"}))
    for flops, share in ((6.144e9, "0.10%"), (6.144e6, "under 0.01%")):
        cost = {"flops": flops, "text_bytes": 9}
        (workdir / "anker" / "transfer" / "transfer.json").write_text(json.dumps({"method": "anker", "cost": cost}))
        assert f"| 6.1 | {share} | 3.000 |" in table(gather([("de", workdir)], {}))
    longer = write(tmp_path / "b", {"anker": ("anker", 200, 2e-3, 3.0, 2.0)}, 1, groups=RECIPES["muon_soap"])
    with pytest.raises(UserError, match="b/anker: has 200 steps, and anker muon_soap before it 100; expected as many"):
        gather([("de", longer)], found)


def test_what_was_gathered_before_stays(tmp_path):
    first = gather([("de", write(tmp_path / "a", {"anker": ("anker", 100, 2e-3, 3.0, 2.0)}, 0))], {})
    both = gather([("de", write(tmp_path / "b", {"fvt": ("fvt", 100, 2e-3, 3.5, 2.5)}, 0))], json.loads(json.dumps(first)))
    assert both["languages"]["de"]["runs"].keys() == {"anker", "fvt"}
    with pytest.raises(UserError, match="other held-out text"):
        gather([("de", write(tmp_path / "c", {"fvt": ("fvt", 100, 2e-3, 3.5, 2.5)}, 0, "other"))], first)


def test_other_held_out_text_is_refused(tmp_path):
    runs = {"anker": ("anker", 100, 2e-3, 3.0, 2.0)}
    workdirs = [("de", write(tmp_path / text, runs, seed, text)) for seed, text in enumerate("ab")]
    with pytest.raises(UserError, match="other held-out text"):
        gather(workdirs, {})
