"""One update: golden values, the same whatever the mesh and the accumulation, and only what is trainable."""

import functools

import jax
import numpy as np
import pytest

from wechsel_jax.models import family
from wechsel_jax.models.weights import flatten, unflatten
from wechsel_jax.objectives import make_objective
from wechsel_jax.training import default_config, sharding
from wechsel_jax.training.optimizer import make_optimizer, split, trainable_paths
from wechsel_jax.training.step import make_train_step, start_phase, state_shardings

GPT2 = family("gpt2")
MODEL = {"model_type": "gpt2", "vocab_size": 320, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 32}
ROWS, LENGTH, STEPS = 32, 16, 3
# Optimised machine code is not what these tests are about, and takes three times as long to make.
FAST = {"xla_backend_optimization_level": 0}
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


@functools.cache
def updates(mesh_shape=(1, 1, 1), accumulation=1, trainable="all", dropout=0.0):
    """Makes three updates; returns their metrics, the parameters (flat, numpy) and the optimizer state."""
    config = GPT2.config(MODEL, dropout=dropout)
    mesh = sharding.make_mesh(dict(zip(sharding.AXES, mesh_shape, strict=True)))
    shapes = GPT2.shapes(config)
    places, _ = sharding.parameter_shardings(mesh, GPT2.sharding_rules, shapes)
    optimizer = make_optimizer(default_config().optimizer)
    chosen = trainable_paths(GPT2, list(shapes), trainable)
    structs = unflatten({path: jax.ShapeDtypeStruct(shape, np.float32) for path, shape in shapes.items()})
    where = state_shardings(mesh, places, optimizer, chosen, structs)
    own = jax.jit(lambda tree: jax.tree.map(lambda x: x.copy(), tree), out_shardings=places)
    state = start_phase(own(parameters()), 0, optimizer, chosen, where)
    step = make_train_step(make_objective("clm", GPT2, config), optimizer, chosen, where, seed=0)
    compiled, metrics = None, []
    for tokens in batches():
        parts = {"tokens": tokens.reshape(accumulation, -1, LENGTH)}
        batch = sharding.put(parts, sharding.batch_sharding(mesh, accumulated=True))
        compiled = compiled or step.lower(state, batch, np.float32(0)).compile(compiler_options=FAST)
        state, result = compiled(state, batch, np.float32(1e-2))
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


@pytest.mark.parametrize(
    ("mesh_shape", "accumulation"), [((8, 1, 1), 1), ((2, 2, 2), 1), ((1, 4, 2), 4), ((1, 1, 1), 4)], ids=str
)
def test_mesh_and_accumulation_change_nothing(mesh_shape, accumulation):
    expected, expected_params, _ = updates()
    metrics, params, state = updates(mesh_shape, accumulation)
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


def test_dropout_does_not_depend_on_the_mesh():
    plain, one, eight = updates()[0], updates(dropout=0.3)[0], updates((8, 1, 1), dropout=0.3)[0]
    assert [line["loss"] for line in eight] == pytest.approx([line["loss"] for line in one], abs=1e-5)
    assert abs(one[0]["loss"] - plain[0]["loss"]) > 1e-3


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


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    print(golden_values())
