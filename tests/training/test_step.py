"""One update: golden values, the same whatever the mesh and the accumulation, and only what is trainable."""

import functools

import jax
import numpy as np
import pytest

from tests.quick import known
from wechsel_jax.models import family
from wechsel_jax.models.weights import flatten, unflatten
from wechsel_jax.objectives import make_objective
from wechsel_jax.training import default_config, sharding
from wechsel_jax.training.optimizer import make_optimizer, split, trainable_paths
from wechsel_jax.training.step import group, make_train_step, start_phase, state_shardings, train_key

GPT2 = family("gpt2")
MODEL = {"model_type": "gpt2", "vocab_size": 320, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 32}
ROWS, LENGTH, STEPS = 32, 16, 3
# Regenerate: PYTHONPATH=. python tests/training/test_step.py
GOLDEN = {
    "losses": [5.9258856773376465, 5.949280261993408, 5.908872127532959],
    "gradient_norms": [0.7276100516319275, 0.5112564563751221, 0.44208523631095886],
    "table": 821.8399047851562,
    "kernel": 662.2223510742188,
}


@functools.cache
def parameters() -> dict:
    """Deterministic float32 parameters, without JAX's random numbers, which may change between versions."""
    generator = np.random.default_rng(0)
    flat = {}
    for path, shape in sorted(GPT2.shapes(GPT2.config(MODEL)).items()):
        noise = generator.normal(0.0, 0.1, shape).astype(np.float32)
        flat[path] = noise + 1.0 if path.endswith("scale") else noise
    return unflatten(flat)


def batches() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 320, (STEPS, ROWS, LENGTH)).astype(np.int32)


def prepared(mesh_shape=(1, 1, 1), accumulation=1, trainable="all", dropout=0.0, statistics=False, alike=False, **model):
    """As `compiled_step`, which is made once however its settings are named."""
    return compiled_step(mesh_shape, accumulation, trainable, dropout, statistics, alike, **model)


@functools.cache
def compiled_step(mesh_shape, accumulation, trainable, dropout, statistics, alike, **model):
    """Returns (first state, batch -> batch on the devices, compiled step) of a small run.

    XLA's older generator of machine code takes half the time; it rounds otherwise in a step with statistics than in one
    without, so `alike` takes the newer one.
    """
    config = GPT2.config(MODEL, dropout=dropout, **model)
    mesh = sharding.make_mesh(dict(zip(sharding.AXES, mesh_shape, strict=True)))
    shapes = GPT2.shapes(config)
    places, _ = sharding.parameter_shardings(mesh, GPT2.sharding_rules, shapes)
    optimizer = make_optimizer(default_config().optimizer)
    chosen = trainable_paths(GPT2, shapes, trainable)
    structs = unflatten({path: jax.ShapeDtypeStruct(shape, np.float32) for path, shape in shapes.items()})
    where = state_shardings(mesh, places, optimizer, chosen, structs)
    own = jax.jit(lambda tree: jax.tree.map(lambda x: x.copy(), tree), out_shardings=places)

    def place(tokens):
        parts = {"tokens": tokens.reshape(accumulation, -1, LENGTH)}
        return sharding.put(parts, sharding.batch_sharding(mesh, accumulated=True))

    def first(params=None):
        return start_phase(own(params or parameters()), 0, optimizer, chosen, where)

    objective = make_objective("clm", GPT2, config)
    step = make_train_step(objective, optimizer, chosen, where, statistics=statistics)
    compiled = step.lower(first(), place(batches()[0]), np.float32(0), train_key(0)).compile(
        known({"xla_cpu_use_fusion_emitters": alike})
    )
    return first, place, compiled


@functools.cache
def updates(**settings):
    """Makes three updates; returns their metrics, the parameters (flat, numpy) and the optimizer state."""
    first, place, compiled = prepared(**settings)
    state, metrics = first(), []
    for tokens in batches():
        state, result = compiled(state, place(tokens), np.float32(1e-2), train_key(0))
        metrics.append({name: float(value) for name, value in result.items()})
    return metrics, flatten(jax.device_get(state.params)), state


def golden_values() -> dict:
    metrics, params, _ = updates()
    return {
        "losses": [line["loss"] for line in metrics],
        "gradient_norms": [line["gradient_norm"] for line in metrics],
        "table": float(np.sum(np.abs(params["token_embedding/embedding"]))),
        "kernel": float(np.sum(np.abs(params["layers/mlp/up/kernel"]))),
    }


def test_golden_updates():
    for name, value in golden_values().items():
        assert value == pytest.approx(GOLDEN[name], rel=1e-4), name


def test_the_weight_is_the_number_of_predicted_tokens():
    assert [line["weight"] for line in updates()[0]] == [ROWS * (LENGTH - 1)] * STEPS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh_shape", "accumulation"), [((8, 1, 1), 1), ((2, 2, 2), 1), ((1, 4, 2), 4), ((1, 1, 1), 4)], ids=str
)
def test_mesh_and_accumulation_change_nothing(mesh_shape, accumulation):
    expected, expected_params, _ = updates()
    metrics, params, state = updates(mesh_shape=mesh_shape, accumulation=accumulation)
    for one, other in zip(expected, metrics, strict=True):
        assert other["loss"] == pytest.approx(one["loss"], abs=1e-5)
        assert other["gradient_norm"] == pytest.approx(one["gradient_norm"], rel=1e-5)
    # Adam divides by the gradient's size, which makes much of the last bit of a gradient near 0: compare as a whole.
    for path, value in params.items():
        assert np.linalg.norm(value - expected_params[path]) <= 1e-3 * np.linalg.norm(expected_params[path]), path
    kernel = state.params["layers"]["mlp"]["up"]["kernel"]
    parts = mesh_shape[1] * mesh_shape[2]
    assert kernel.addressable_shards[0].data.size == kernel.size // parts
    moment = next(part for part in state.opt_state if hasattr(part, "mu")).mu["layers/mlp/up/kernel"]
    assert moment.sharding.is_equivalent_to(kernel.sharding, kernel.ndim)


@pytest.mark.slow
def test_dropout_does_not_depend_on_the_mesh():
    plain, one, eight = updates()[0], updates(dropout=0.3)[0], updates(mesh_shape=(8, 1, 1), dropout=0.3)[0]
    assert [line["loss"] for line in eight] == pytest.approx([line["loss"] for line in one], abs=1e-5)
    assert abs(one[0]["loss"] - plain[0]["loss"]) > 1e-3
    first, place, compiled = prepared(dropout=0.3)
    losses = [compiled(first(), place(batches()[0]), np.float32(1e-2), train_key(seed))[1]["loss"] for seed in (0, 1)]
    assert losses[0] == one[0]["loss"] and losses[0] != losses[1]


def test_only_tokens_are_trained_and_only_they_have_optimizer_state():
    _, params, state = updates(trainable="tokens")
    before = flatten(parameters())
    for path, value in params.items():
        assert np.array_equal(value, before[path]) == (path != "token_embedding/embedding"), path
    adam = next(part for part in state.opt_state if hasattr(part, "mu"))
    assert set(adam.mu) == set(adam.nu) == {"token_embedding/embedding"}
    leaves = [leaf for leaf in jax.tree.leaves(state.opt_state) if leaf.ndim]
    assert [leaf.shape for leaf in leaves] == [(320, 32)] * 2


def test_split_puts_every_parameter_on_one_side():
    paths = list(flatten(parameters()))
    chosen = trainable_paths(GPT2, paths, r"^layers/mlp/")
    trained, frozen = split(parameters(), chosen)
    assert set(trained) == chosen == {path for path in paths if path.startswith("layers/mlp/")}
    assert sorted([*trained, *frozen]) == sorted(paths)
    assert trainable_paths(GPT2, paths, "embeddings") == {"token_embedding/embedding", "position_embedding/embedding"}


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_an_update_that_is_not_finite_is_skipped(poison):
    """Parameters and optimizer state come out bit for bit as they went in, and the run goes on with the next step."""
    first, place, compiled = prepared()
    state, _ = compiled(first(), place(batches()[0]), np.float32(1e-2), train_key(0))
    bad = jax.tree.map(lambda x: x, state.params)
    bad["final_norm"]["scale"] = bad["final_norm"]["scale"].at[0].set(poison)
    before = jax.tree.map(lambda x: np.array(x), (bad, state.opt_state))
    state, metrics = compiled(state._replace(params=bad), place(batches()[1]), np.float32(1e-2), train_key(0))
    assert not metrics["finite"] and not np.isfinite(metrics["loss"])
    assert int(state.step) == 2
    for left, right in zip(jax.tree.leaves(before), jax.tree.leaves((state.params, state.opt_state)), strict=True):
        assert left.tobytes() == np.asarray(right).tobytes()
    assert all(line["finite"] == 1.0 for line in updates()[0])


@pytest.mark.slow
def test_statistics_change_nothing_and_add_up():
    plain, plain_params, _ = updates(alike=True)
    metrics, params, _ = updates(statistics=True, alike=True)
    groups = {"token_embedding", "position_embedding", "final_norm", "layers/attention", "layers/attention_norm"}
    groups |= {"layers/mlp", "layers/mlp_norm"}
    assert {name for name in metrics[0] if "/" in name} == {
        f"{kind}/{name}" for kind in ("gradient_norm", "update_norm") for name in groups
    }
    for line, other in zip(metrics, plain, strict=True):
        assert {name: line[name] for name in other} == pytest.approx(other, rel=1e-6)
        norms = [line[f"gradient_norm/{name}"] for name in groups]
        assert np.sqrt(np.sum(np.square(norms))) == pytest.approx(line["gradient_norm"], rel=1e-5)
    for path, value in params.items():
        np.testing.assert_allclose(value, plain_params[path], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_update_norms_are_how_far_the_parameters_move():
    first, place, compiled = prepared(statistics=True, alike=True)
    before = flatten(parameters())
    state, metrics = compiled(first(), place(batches()[0]), np.float32(1e-2), train_key(0))
    after = flatten(jax.device_get(state.params))
    for name in ("token_embedding", "layers/mlp"):
        moved = [np.sum(np.square(after[path] - before[path])) for path in before if group(path) == name]
        assert float(metrics[f"update_norm/{name}"]) == pytest.approx(np.sqrt(sum(moved)), rel=1e-3)
    assert group("layers/mlp/up/kernel[0:1]") == "layers/mlp"


@pytest.mark.slow
def test_frozen_parameters_take_no_gradient_compute():
    """FLOPs of the whole step, layers unrolled because loops are counted once."""
    _, _, everything = prepared(scan_layers=False)
    _, _, tokens = prepared(trainable="tokens", scan_layers=False)
    _, _, layers = prepared(trainable="^layers/", scan_layers=False)
    flops = {name: step.cost_analysis()["flops"] for name, step in (("all", everything), ("tokens", tokens), ("l", layers))}
    predicted = ROWS * LENGTH
    of_layers = 2 * predicted * 2 * (4 * 32**2 + 2 * 4 * 32**2)
    of_head = 2 * predicted * 320 * 32
    assert flops["all"] - flops["tokens"] > 0.95 * of_layers
    assert flops["all"] - flops["l"] > 0.95 * of_head


@pytest.mark.slow
def test_the_step_keeps_one_copy_of_the_state_and_frozen_parts_have_no_optimizer_state():
    for trainable, moments in (("all", 2.0), ("tokens", 2 * 320 * 32 / sum(x.size for x in flatten(parameters()).values()))):
        first, _, compiled = prepared(trainable=trainable)
        state, memory = first(), compiled.memory_analysis()
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
        model = sum(leaf.nbytes for leaf in jax.tree.leaves(state.params))
        assert size == pytest.approx(model * (1 + moments), rel=1e-3)
        assert memory.alias_size_in_bytes == pytest.approx(size, rel=0.01)
        assert memory.output_size_in_bytes - memory.alias_size_in_bytes < 1000


@pytest.mark.slow
def test_unrolled_layers_compute_the_same():
    for dropout in (0.0, 0.3):
        looped, unrolled = updates(dropout=dropout)[0], updates(dropout=dropout, scan_layers=False)[0]
        assert [line["loss"] for line in unrolled] == pytest.approx([line["loss"] for line in looped], rel=1e-6)


@functools.cache
def with_remat(remat, scan_layers):
    """Gradients and the bytes of temporary memory of a model whose layers hold most of it."""
    config = GPT2.config(MODEL | {"n_layer": 4, "n_positions": 64}, dropout=0.1, remat=remat, scan_layers=scan_layers)
    objective = make_objective("clm", GPT2, config)
    shapes = GPT2.shapes(config)
    rng = np.random.default_rng(0)
    params = unflatten({path: rng.normal(0, 0.1, shape).astype(np.float32) for path, shape in shapes.items()})
    tokens = {"tokens": rng.integers(0, 320, (4, 64)).astype(np.int32)}
    gradient = jax.jit(jax.grad(lambda p: objective(p, tokens, jax.random.key(0), train=True)[0]))
    compiled = gradient.lower(params).compile(known({"xla_cpu_use_fusion_emitters": False}))
    return flatten(compiled(params)), compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.slow
def test_remat_gives_the_same_gradients_in_less_memory():
    expected, _ = with_remat("none", True)
    for remat, scan_layers in (("dots", True), ("full", True), ("full", False)):
        for path, value in with_remat(remat, scan_layers)[0].items():
            largest = float(np.abs(expected[path]).max())
            np.testing.assert_allclose(value, expected[path], rtol=1e-4, atol=2e-6 * largest, err_msg=f"{remat} {path}")
    none, dots, full = (with_remat(remat, True)[1] for remat in ("none", "dots", "full"))
    assert full < 0.7 * dots < 0.7 * none


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    print(golden_values())
