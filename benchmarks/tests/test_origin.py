"""What `benchmarks/origin.py` says of runs, and the results that are gathered with it."""

import contextlib
import json
import math

import pytest

from benchmarks import arena, costs, forgetting, initializers, recipe, studies
from benchmarks.origin import origin, origins, with_seed
from benchmarks.tables import costs_table, drift_table, initializers_table
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
        start = {"step": 0, "seconds": 0.0, "devices": 1, "device_kind": "cpu", "versions": VERSIONS, "flops_per_token": 3e6}
        (run / "machine.json").write_text(json.dumps({"starts": [start]}))
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        lines = [line | ({"bits_per_byte": 2.0} if line["kind"] == "eval" else {}) for line in lines]
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (root / "config.json").write_text(json.dumps({"variants": {}, "transfer": {}}))
    texts = {kind: [{"name": f"{kind}.txt", "bytes": 1_000_000}] for kind in ("source", "train", "validation")}
    (root / "texts.json").write_text(json.dumps(texts | {"words": []}))
    record = {"methods": {name: {"evaluations": [[0, 5000.0], [200, 300.0]]} for name in names}, "seed": seed}
    record["seconds"] = {"source vectors": 20.0, "native vectors": 10.0, "wechsel training": 5.0}
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


def test_results_tell_their_origin_and_have_their_tables(tmp_path, monkeypatch):
    place = comparison(tmp_path / "a")
    monkeypatch.setattr(costs, "made", lambda workdir, name: {"flops": 4e12, "text_bytes": 3_000_000})
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
        **{"transfer_seconds": 1.2, "text_bytes": 0, "drift": None, "origin": found["runs"]["wechsel"]["origin"]},
        **{"made": ["source vectors"], "tokens_per_second": language["methods"]["full_rand"]["tokens_per_second"]},
    }
    assert language["made"] == {"source vectors": 20.0} and language["methods"]["full_rand"]["made"] == []
    language["methods"]["wechsel"]["tokens_per_second"] = language["methods"]["full_rand"]["tokens_per_second"] = 4096.0
    table = costs_table({"languages": {"de": language | {"step": 2048}}})
    language["methods"]["wechsel"]["drift"] = {"cosine": 0.973, "change": 0.245, "kept": 0.651}
    assert drift_table({"languages": {"de": language}}).splitlines()[2:] == [
        "| `wechsel` | 0.97 | 0.24 | 65% |",
        "| `full_rand` | – | – | – |",
    ]
    assert "| `wechsel` | source vectors | 3 | 4.0 | 20 | – | 1.2 | 42 |" in table and "a step of 0.50 seconds" in table


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
    with pytest.raises(UserError, match="has another held-out text than seed 1, with which it is gathered"):
        recipe.gather([("de", comparison(tmp_path / "2", names=names, seed=2, held_out="x"))], second)


def set_up(run, **settings):
    """Changes settings of a run."""
    file = run / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))


def test_seeds_with_other_settings_do_not_join_a_result(tmp_path):
    names = ("wechsel_muon",)
    before = recipe.gather([("de", comparison(tmp_path / "0", names=names))], {})
    assert {*recipe.gather([("de", comparison(tmp_path / "1", names=names, seed=1))], before)["runs"]} == {*before["runs"]}
    other = comparison(tmp_path / "2", names=names, seed=2)
    set_up(other / "wechsel_muon", batch_size=64)
    with pytest.raises(UserError, match="has other settings, of its training or of its start, than seed 0"):
        recipe.gather([("de", other)], before)
    set_up(other / "wechsel_muon", batch_size=16, soft_targets={"share": 0.9, "order": 3})
    with pytest.raises(UserError, match="has other settings, of its training or of its start, than seed 0"):
        recipe.gather([("de", other)], before)
    # A setting of later versions, of which no use is made.
    set_up(other / "wechsel_muon", soft_targets={"share": 0.0, "order": 3})
    recipe.gather([("de", other)], before)
    file = other / "wechsel_muon" / "transfer" / "transfer.json"
    record = json.loads(file.read_text())
    file.write_text(json.dumps(record | {"settings": record["settings"] | {"neighbors": 1}}))
    with pytest.raises(UserError, match="has other settings, of its training or of its start, than seed 0"):
        recipe.gather([("de", other)], before)
    place = tmp_path / "arena"
    first, second = (comparison(place / str(seed), names=("wechsel",), seed=seed) for seed in (0, 1))
    set_up(second / "wechsel", block_length=64)
    with pytest.raises(UserError, match="has other settings"):
        arena.gather([("de", first), ("de", second)], {})


def test_only_where_rates_are_tuned_may_those_of_seeds_differ(tmp_path):
    place = comparison(tmp_path / "0", names=("wechsel",)) / "wechsel"
    known, tuned = with_seed({}, read_run(place)), with_seed({}, read_run(place), tuned=True)
    other = comparison(tmp_path / "1", names=("wechsel",), seed=1) / "wechsel"
    optimizer = {"peak_learning_rate": 9.0, "groups": [{"match": "embeddings", "rate": 2.5}]}
    set_up(other, optimizer=optimizer)
    assert {*with_seed(tuned, read_run(other), tuned=True)} == {"0", "1"}
    with pytest.raises(UserError, match="has other settings"):
        with_seed(known, read_run(other))
    set_up(other, optimizer={**optimizer, "groups": [{"match": "embeddings", "rate": 2.5, "kind": "soap"}]})
    with pytest.raises(UserError, match="has other settings"):
        with_seed(tuned, read_run(other), tuned=True)


def test_a_setting_that_is_younger_than_a_result_makes_no_difference_where_it_is_off(tmp_path):
    known = with_seed({}, read_run(comparison(tmp_path / "0", names=("wechsel",)) / "wechsel"))
    other = comparison(tmp_path / "1", names=("wechsel",), seed=1) / "wechsel"
    (record,) = other.rglob("transfer.json")
    transfer = json.loads(record.read_text())
    for value, message in ((0, None), (50, "has other settings")):
        record.write_text(json.dumps(transfer | {"settings": transfer["settings"] | {"match_attention": value}}))
        with pytest.raises(UserError, match=message) if message else contextlib.nullcontext():
            assert {*with_seed(known, read_run(other))} == {"0", "1"}


def test_a_helper_beside_the_runs_is_no_run(tmp_path, monkeypatch):
    place = comparison(tmp_path / "a", names=("wechsel_muon",))
    make_run(place, "wechsel", name="helper")
    make_run(place, "wechsel", name="wechsel_muon_shuffled")
    control = json.loads((place / "wechsel_muon" / "config.json").read_text())
    set_up(place / "wechsel_muon_shuffled", **control)
    assert [run.name for run in recipe.runs_of(place)] == ["wechsel_muon", "wechsel_muon_shuffled"]
    (place / "wechsel_muon_shuffled" / "metrics.jsonl").unlink()
    assert [*recipe.gather([("de", place)], {})["runs"]] == ["de/200/wechsel_muon/0.001"]
    for run in ("helper", "wechsel_muon"):
        (place / run / "export").mkdir()
    for name in ("score", "body_score"):
        monkeypatch.setattr(forgetting, name, lambda place: 2.0)
    assert [*forgetting.gather([("de", place)], {})["runs"]] == ["de/200/wechsel_muon/0.001"]
    with pytest.raises(UserError, match=r"full_rand: expected the name of a run of configs/recipe\.py"):
        recipe.gather([("de", comparison(tmp_path / "b"))], {})


def test_runs_with_other_steps_have_tables_of_their_own_and_languages_are_told_apart():
    def found(*steps):
        return {"machine": "a machine", "runs": {"salt": {"curve": [[step, 9.0, None] for step in steps]}}}

    first, second, told = studies.steps_table({"salt/zh": found(0, 60), "salt/de": found(0, 200)}, "salt").split("\n\n")
    assert first.splitlines() == ["| run | 0 | 60 |", "|---|---:|---:|", "| zh: `salt` | 9 | 9 |"]
    assert second.splitlines() == ["| run | 0 | 200 |", "|---|---:|---:|", "| de: `salt` | 9 | 9 |"]
    assert told.endswith("a machine.")
    one, told = studies.steps_table({"salt/zh": found(0), "salt/zh, noise=2": found(0)}, "salt").split("\n\n")
    assert one.splitlines()[2:] == ["| `salt` | 9 |", "| `salt`, noise=2 | 9 |"]


def test_where_nothing_was_trained_there_is_no_picture(tmp_path, capsys):
    result = {"languages": {"de": {"methods": {"wechsel": {"evaluations": [[0, 9.0], [1, 8.0]]}}}}}
    initializers.draw(result, tmp_path / "picture.png")
    assert not [*tmp_path.iterdir()] and "stays as it is" in capsys.readouterr().out


def test_a_perplexity_that_was_not_finite_is_not_taken_for_another_steps(tmp_path, monkeypatch):
    methods = {"clp": {"evaluations": [[30, 7e12], [60, 6210.0]]}, "focus": {"evaluations": [[0, 9.0], [30, 8.0], [60, 7.0]]}}
    result = {"languages": {"zh": {"methods": methods, "machine": "a machine"}}}
    assert "| `clp` | ∞ | 6,210 |" in initializers_table(result)
    from matplotlib.axes import Axes

    drawn = []
    monkeypatch.setattr(Axes, "scatter", lambda self, x, y, **look: drawn.append((look["label"], x)))
    monkeypatch.setattr(Axes, "legend", lambda self, **look: None)
    initializers.draw(result, tmp_path / "picture.png")
    assert drawn == [("step 0", [math.inf, 9.0]), ("step 30", [7e12, 8.0]), ("step 60", [6210.0, 7.0])]
