"""What `benchmarks/origin.py` says of runs, and the results that are gathered with it."""

import json

import pytest

from benchmarks import initializers, recipe, studies
from benchmarks.origin import origin, origins
from tests.records.runs import make_run
from wechsel_jax.errors import UserError
from wechsel_jax.records import read_run

VERSIONS = {"jax": "0.10.2"}


def comparison(root, *, held_out="h", seed=0, folder="data", names=("wechsel", "full_rand")):
    """A workdir of `train.compare`, of which the first run has another rate."""
    for side, sha256 in (("train", "t"), ("validation", held_out)):
        place = root / folder / side
        place.mkdir(parents=True)
        (place / "tokens.bin").touch()
        (place / "manifest.json").write_text(json.dumps({"sha256": sha256, "tokenizer": {"sha256": "k"}}))
    for number, name in enumerate(names):
        run = make_run(root, name.split("_muon")[0], name=name, seed=seed)
        config = json.loads((run / "config.json").read_text())
        config["data"] = {side: [str(root / folder / side)] for side in ("train", "validation")}
        config["optimizer"] = {"peak_learning_rate": 1e-3 * (number + 1), "groups": []}
        (run / "config.json").write_text(json.dumps(config))
        start = {"step": 0, "seconds": 0.0, "devices": 1, "device_kind": "cpu", "versions": VERSIONS}
        (run / "machine.json").write_text(json.dumps({"starts": [start]}))
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        lines = [line | ({"bits_per_byte": 2.0} if line["kind"] == "eval" else {}) for line in lines]
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    record = {"methods": {name: {"evaluations": [[0, 5000.0], [200, 300.0]]} for name in names}, "seed": seed}
    (root / "comparison.json").write_text(json.dumps(record | {"machine": "a machine"}))
    return root


def test_what_runs_share_is_told_once_and_what_differs_of_each(tmp_path):
    place = comparison(tmp_path / "a")
    shared, own = origins({name: read_run(place / name) for name in ("wechsel", "full_rand")})
    assert shared == {
        **{"seed": 0, "devices": "1 x cpu", "versions": VERSIONS, "train": "t", "validation": "h", "tokenizer": "k"}
    }
    assert own["wechsel"]["settings"] == {"optimizer.peak_learning_rate": 1e-3}
    assert own["full_rand"]["settings"] == {"optimizer.peak_learning_rate": 2e-3}
    assert {*own["wechsel"]} == {"config", "transfer", "settings"} and own["wechsel"]["config"] != own["full_rand"]["config"]
    assert own["wechsel"]["transfer"] != own["full_rand"]["transfer"]
    # Of parameters' names "/" is no place.
    config = json.loads((place / "wechsel" / "config.json").read_text())
    hashes = set()
    for kind in ("layers", "head"):
        config["optimizer"]["groups"] = [{"match": f"{kind}/.*kernel$", "kind": "muon"}]
        (place / "wechsel" / "config.json").write_text(json.dumps(config))
        hashes.add(origin(read_run(place / "wechsel"))["config"])
    assert len(hashes) == 2
    config["optimizer"]["groups"] = []
    (place / "wechsel" / "config.json").write_text(json.dumps(config))
    # Where a run lay is no setting, a seed is one; what was not recorded is left out.
    moved = comparison(tmp_path / "b" / "c")
    assert origin(read_run(moved / "wechsel")) == origin(read_run(place / "wechsel"))
    other = comparison(tmp_path / "d", seed=1)
    assert origin(read_run(other / "wechsel"))["config"] != origin(read_run(place / "wechsel"))["config"]
    bare = origin(read_run(make_run(tmp_path / "bare", "wechsel")))
    assert {*bare} == {"config", "transfer", "seed"}


def test_runs_of_other_text_are_not_gathered_together(tmp_path):
    place, other = comparison(tmp_path / "a"), comparison(tmp_path / "b", held_out="x")
    runs = {"a": read_run(place / "wechsel"), "b": read_run(other / "wechsel")}
    with pytest.raises(UserError, match="b/wechsel: has another held-out text than a, with which it is gathered"):
        origins(runs)
    # The same in a comparison, of which a run was made anew.
    (other / "wechsel").rename(place / "other")
    record = json.loads((place / "comparison.json").read_text())
    record["methods"]["other"] = record["methods"]["wechsel"]
    (place / "comparison.json").write_text(json.dumps(record))
    for gather in (lambda workdir: studies.gather(workdir, {}), lambda workdir: initializers.gather({"de": workdir})):
        with pytest.raises(UserError, match="other: has another held-out text than wechsel"):
            gather(place)


def test_a_study_is_not_replaced_by_one_of_other_text(tmp_path):
    before = studies.gather(comparison(tmp_path / "a"), {})
    assert studies.gather(tmp_path / "a", before) == before
    with pytest.raises(UserError, match=r"b: has another held-out text than what studies\.json has under its name"):
        studies.gather(comparison(tmp_path / "b", held_out="x"), before)
    # One that was gathered before origins were.
    assert studies.gather(tmp_path / "b", {name: before[name] for name in ("machine", "runs")})["origin"]["validation"] == "x"


def test_results_tell_their_origin_and_have_their_tables(tmp_path):
    place = comparison(tmp_path / "a")
    found = studies.gather(place, {})
    assert found["origin"]["validation"] == "h" and found["runs"]["wechsel"]["origin"]["settings"]
    assert "| de | `wechsel` | 0 | 5,806 |" in studies.table({"freezing/de": found}, "freezing")
    found["runs"]["wechsel"]["curve"] = [[step, value, None] for step, value, _ in found["runs"]["wechsel"]["curve"]]
    assert "| 296.0 | 200 | – |" in studies.table({"downstream/sw": found}, "downstream")
    language = initializers.gather({"de": place})["languages"]["de"]
    assert language["origin"]["tokenizer"] == "k" and language["seed"] == 0
    assert language["methods"]["wechsel"] == {
        "evaluations": [[0, 5000.0], [200, 300.0]],
        **{"counts": {"copied": 3, "mixed": 91, "random": 6}, "precision_at_1": 0.3147, "length_ratio": 0.657},
        **{"transfer_seconds": 1.2, "origin": found["runs"]["wechsel"]["origin"]},
    }


def test_seeds_of_other_text_do_not_join_a_result(tmp_path):
    names = ("wechsel_muon",)
    first = comparison(tmp_path / "0", names=names)
    before = recipe.gather([("de", first)], {})
    # What was gathered before origins were has none, and takes more seeds.
    (run,) = json.loads(json.dumps(before))["runs"].values()
    del run["origins"]
    old = {"runs": {name: run for name in before["runs"]}}
    second = recipe.gather([("de", comparison(tmp_path / "1", names=names, seed=1))], old)
    (run,) = second["runs"].values()
    assert {*run["seeds"]} == {"0", "1"} and {*run["origins"]} == {"1"} and run["origins"]["1"]["train"] == "t"
    with pytest.raises(UserError, match="has another held-out text than 1, with which it is gathered"):
        recipe.gather([("de", comparison(tmp_path / "2", names=names, seed=2, held_out="x"))], second)
