"""Groups of parameters: who is in which, what each does to an update, and runs that have some."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict
from orbax.checkpoint import StandardCheckpointer

from tests.quick import known
from tests.training.conftest import MODEL
from tests.training.runs import assert_same_run
from tests.training.test_coordinates import write_plan
from wechsel_jax.errors import UserError
from wechsel_jax.initializers import TransferPlan
from wechsel_jax.models import family
from wechsel_jax.models.weights import flatten, unflatten
from wechsel_jax.objectives import make_objective
from wechsel_jax.tokens import load_tokenizer
from wechsel_jax.training import default_config, sharding, train, validate
from wechsel_jax.training.coordinates import read_coordinates
from wechsel_jax.training.groups import assign, read_groups
from wechsel_jax.training.metrics import final_metrics, read_metrics
from wechsel_jax.training.optimizer import make_optimizer, trainable_paths
from wechsel_jax.training.schedules import make_phases
from wechsel_jax.training.step import make_train_step, start_phase, state_shardings, train_key
from wechsel_jax.training.workdir import check_config, record_config

GPT2 = family("gpt2")
CONFIG = GPT2.config({"vocab_size": 30, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 8})
SHAPES = GPT2.shapes(CONFIG)
RECIPE = (
    {"match": "tokens", "kind": "soap", "rate": 3.0, "weight_decay": 0.0},
    {"match": "position", "kind": "frozen"},
    {"match": "layers/mlp/.*kernel$", "kind": "muon", "rate": 2.0, "warmup_steps": 2},
)


def grouped(*descriptions: dict):
    return assign(read_groups(descriptions), GPT2, CONFIG, SHAPES)


def test_the_first_match_counts_and_the_rest_is_a_group():
    grouping = grouped({"match": "mlp/down"}, {"match": "mlp"}, {"match": "tokens"})
    assert {path: i for path, i in grouping.of.items() if i < 3} == {
        **{f"layers/mlp/down/{leaf}": 0 for leaf in ("kernel", "bias")},
        **{f"layers/mlp/up/{leaf}": 1 for leaf in ("kernel", "bias")},
        **{f"layers/mlp_norm/{leaf}": 1 for leaf in ("scale", "bias")},
        "token_embedding/embedding": 2,
    }
    assert set(grouping.of) == set(SHAPES) and grouping.group("final_norm/scale").match == ""


def test_none_is_what_is_left_out():
    nothing = {"rate": None, "weight_decay": None, "warmup": None, "warmup_steps": None, "coordinates": None}
    assert read_groups([{"match": "mlp", **nothing}]) == read_groups([{"match": "mlp"}])


@pytest.mark.parametrize(
    ("descriptions", "named"),
    [
        (["mlp"], r"groups\[0\]: is 'mlp'"),
        ([{"rate": 2.0}], r"groups\[0\].match: is None"),
        ([{"match": "("}], r"groups\[0\].match: .* no regular expression"),
        ([{"match": "mlp", "lr": 2.0}], r"groups\[0\].lr: no such field"),
        ([{"match": "mlp"}, {"match": "m", "kind": "sgd"}], r"groups\[1\].kind: is 'sgd'"),
        ([{"match": "mlp", "rate": -1.0}], r"groups\[0\].rate"),
        ([{"match": "mlp", "rate": float("nan")}], r"groups\[0\].rate"),
        ([{"match": "mlp", "weight_decay": "0"}], r"groups\[0\].weight_decay"),
        ([{"match": "mlp", "warmup": 1.5}], r"groups\[0\].warmup: is 1.5"),
        ([{"match": "mlp", "warmup_steps": 0.5}], r"groups\[0\].warmup_steps"),
        ([{"match": "mlp", "warmup_steps": 5, "warmup": 0.1}], r"groups\[0\]: expected either"),
        ([{"match": "mlp", "warmup_steps": 12}], "'mlp' has warmup_steps 12, more than the 10 steps of phase 'all'"),
        ([{"match": "mlp", "kind": "frozen", "rate": 1.0}], r"groups\[0\]: what is frozen has no rate"),
    ],
)
def test_impossible_groups_are_refused_before_anything_is_opened(make_config, descriptions, named):
    config = make_config(steps=20, phases=({"name": "all", "steps": 10}, {"name": "then", "steps": 10}))
    config.optimizer.groups = tuple(descriptions)
    with pytest.raises(UserError, match=named):
        validate(config)


@pytest.mark.parametrize(
    ("descriptions", "named"),
    [
        ([{"match": "mpl"}], r"groups\[0\].match: 'mpl' finds no parameter; expected some of final_norm/bias"),
        ([{"match": "mlp"}, {"match": "mlp/up"}], r"groups\[1\].match: 'mlp/up' finds only parameters of the groups before"),
        ([{"match": "mlp", "kind": "muon"}], r"groups\[0\]: muon is for matrices, and layers/mlp/(up|down)/bias of shape"),
        ([{"match": "embedding|mlp", "kind": "soap"}], r"groups\[0\]: soap is for tables, and layers/mlp/(up|down)/bias is"),
        ([{"match": "qkv/bias", "kind": "muon"}], r"qkv/bias of shape \(2, 3, 16\) holds none"),
    ],
)
def test_groups_that_do_not_fit_the_model_are_refused(descriptions, named):
    with pytest.raises(UserError, match=named):
        grouped(*descriptions)


def test_a_phase_of_frozen_parameters_is_refused():
    grouping = grouped({"match": "tokens", "kind": "frozen"})
    assert "token_embedding/embedding" not in trainable_paths(GPT2, SHAPES, "all", grouping=grouping)
    with pytest.raises(UserError, match=r"'tokens' matches only what optimizer\.groups freeze"):
        trainable_paths(GPT2, SHAPES, "tokens", grouping=grouping)


def test_rates_and_warm_up_of_a_group_are_its_own():
    (phase,) = make_phases([{"name": "a", "steps": 100, "warmup_steps": 20, "floor": 0.1}], 100, 1e-3)
    grouping = grouped({"match": "tokens", "rate": 4.0, "warmup": 0.5}, {"match": "kernel", "warmup_steps": 0, "rate": 0.5})
    for step, expected in (
        (0, [0.0, 5e-4, 0.0]),
        (25, [2e-3, 5e-4 * (1 - 0.9 * 0.25), 1e-3 * (1 - 0.9 * 5 / 80)]),
        (75, [4e-3 * (1 - 0.9 * 0.5), 5e-4 * (1 - 0.9 * 0.75), 1e-3 * (1 - 0.9 * 55 / 80)]),
    ):
        np.testing.assert_allclose(grouping.learning_rates(phase, step), expected, rtol=1e-6)


def test_a_step_moves_each_group_by_its_own_rate():
    """Three updates of AdamW: in a group of three times the rate without decay, one of own decay, and what is frozen."""
    descriptions = ({"match": "tokens", "rate": 3.0, "weight_decay": 0.0}, {"match": "up/kernel", "weight_decay": 2.0})
    grouping = grouped(*descriptions, {"match": "final_norm", "kind": "frozen"})
    mesh = sharding.make_mesh({"data": 1, "fsdp": 1, "tensor": 1})
    places, _ = sharding.parameter_shardings(mesh, GPT2.sharding_rules, SHAPES)
    structs = unflatten({path: jax.ShapeDtypeStruct(shape, np.float32) for path, shape in SHAPES.items()})
    generator = np.random.default_rng(0)
    params = {path: generator.normal(0.0, 0.1, shape).astype(np.float32) for path, shape in SHAPES.items()}
    objective, settings = make_objective("clm", GPT2, CONFIG), default_config().optimizer
    batch = {"tokens": jax.device_put(generator.integers(0, 30, (1, 2, 8)).astype(np.int32))}

    def moved(grouping, rate):
        optimizer = make_optimizer(settings, grouping)
        chosen = trainable_paths(GPT2, SHAPES, "all", grouping=grouping)
        where = state_shardings(mesh, places, optimizer, chosen, structs)
        state = start_phase(jax.device_put(unflatten(params), places), 0, optimizer, chosen, where)
        step = make_train_step(objective, optimizer, chosen, where, grouping=grouping)
        compiled = step.lower(state, batch, rate, train_key(0)).compile(known({"xla_cpu_use_fusion_emitters": False}))
        after = flatten(jax.device_get(compiled(state, batch, rate, train_key(0))[0].params))
        return {path: (params[path] - value) / 1e-2 for path, value in after.items()}

    settings.clip_norm, settings.weight_decay = None, 0.5
    plain, ours = moved(None, np.float32(1e-2)), moved(grouping, np.array([3e-2, 1e-2, 0.0, 1e-2], np.float32))
    for path, expected in plain.items():
        if path == "token_embedding/embedding":
            expected = 3.0 * (expected - 0.5 * params[path])
        elif path == "layers/mlp/up/kernel":
            expected = expected + 1.5 * params[path]
        elif path.startswith("final_norm"):
            expected = np.zeros_like(expected)
        np.testing.assert_allclose(ours[path], expected, atol=2e-4, err_msg=path)


def test_a_run_of_a_version_without_groups_goes_on_without_them(make_config, tmp_path):
    record_config(make_config(), tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    del settings["optimizer"]["groups"], settings["fork"]
    (tmp_path / "config.json").write_text(json.dumps(settings))
    check_config(make_config(), tmp_path)
    with pytest.raises(UserError, match=r"optimizer\.groups was \[\], now "):
        check_config(make_config(optimizer__groups=RECIPE), tmp_path)


@pytest.fixture(scope="module")
def recipe(texts, tmp_path_factory):
    """The recipe, and rows of tokens that also move together."""
    plan = write_plan(tmp_path_factory.mktemp("plan") / "plan.npz", tokens=len(load_tokenizer(texts / "tokenizer")))
    return ({**RECIPE[0], "coordinates": str(plan), "shared": 0.5}, *RECIPE[1:])


@pytest.fixture(scope="module")
def finished(make_config, recipe, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("grouped") / "run"
    # With rows of padding behind the tokens, as `transfer --pad_to` leaves them.
    model = ConfigDict({**MODEL, "vocab_size": 327})
    config = make_config(optimizer__groups=recipe, keep=9, statistics=True, mesh__data=1, model__config=model)
    config.model.pad_vocabulary = 2
    train(config, workdir)
    return config, workdir


def cut(workdir: Path, to: Path) -> Path:
    """Copies a run as if it had been killed after step 10, in its second phase."""
    shutil.copytree(workdir, to)
    for place in ("export", "checkpoints/15", "checkpoints/20"):
        shutil.rmtree(to / place)
    return to


def test_a_run_with_groups_goes_on_exactly(finished, tmp_path):
    config, workdir = finished
    lines = [line for line in read_metrics(workdir / "metrics.jsonl") if line["kind"] == "train"]
    later = [line for line in lines if line["phase"] == "all"]
    assert "update_norm/layers/mlp" in later[-1] and not any("update_norm/position_embedding" in line for line in lines)
    saved = jax.tree_util.tree_leaves_with_path(StandardCheckpointer().restore(workdir / "checkpoints" / "20" / "state"))
    (x,) = (value for path, value in saved if "rows/token_embedding/embedding" in jax.tree_util.keystr(path))
    plan = config.optimizer.groups[0]["coordinates"]
    np.testing.assert_array_equal(x, read_coordinates(plan, len(TransferPlan.load(Path(plan))), len(x))[:])
    train(config, cut(workdir, tmp_path / "run"))
    assert_same_run(workdir, tmp_path / "run")


def test_a_run_whose_plan_has_changed_or_lost_its_coordinates_says_so(finished, tmp_path):
    """Rather than that the checkpoint is another model's and had better be removed."""
    config, workdir = finished[0].copy_and_resolve_references(), cut(finished[1], tmp_path / "run")
    plan = Path(config.optimizer.groups[0]["coordinates"])
    kept = plan.read_bytes()
    try:
        write_plan(plan, tokens=len(TransferPlan.load(plan)), rank=5)
        with pytest.raises(UserError, match=r"optimizer\.groups: the transfer_plan\.npz that coordinates are from has changed"):
            train(config, workdir)
    finally:
        plan.write_bytes(kept)


@pytest.mark.slow
def test_a_run_with_groups_goes_on_on_another_mesh(finished, tmp_path):
    config, workdir = finished[0].copy_and_resolve_references(), cut(finished[1], tmp_path / "run")
    config.mesh.update({"data": 2, "fsdp": 2, "tensor": 2})
    result = train(config, workdir)
    assert result["loss"] == pytest.approx(final_metrics(finished[1] / "metrics.jsonl", 20)["loss"], rel=1e-4)
