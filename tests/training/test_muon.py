"""Muon against torch's, against the singular values that its polynomial makes, and shared out over a mesh."""

import functools
import re

import jax
import numpy as np
import pytest

from wechsel_jax.models import family
from wechsel_jax.models.weights import flatten, unflatten
from wechsel_jax.training import default_config, sharding
from wechsel_jax.training.groups import assign, read_groups
from wechsel_jax.training.muon import scale_by_muon
from wechsel_jax.training.optimizer import make_optimizer

MODELS = {
    "gpt2": {"vocab_size": 30, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 8},
    "roberta": {
        **{"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2},
        **{"intermediate_size": 24, "max_position_embeddings": 10},
    },
    "llama": {
        **{"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2},
        **{"intermediate_size": 24, "max_position_embeddings": 8},
    },
    "transformer": {
        **{"vocab_size": 30, "d_model": 16, "nhead": 2, "num_encoder_layers": 2, "dim_feedforward": 24},
        **{"num_decoder_layers": 0, "max_position_embeddings": 8},
    },
}


@functools.cache
def grouped(name: str):
    """Returns (family, config, shapes, grouping): Muon for all kernels, at twice the rate and with a weight decay of 0.3."""
    model = family(name)
    config = model.config(MODELS[name])
    shapes = model.shapes(config)
    groups = read_groups([{"match": "kernel$", "kind": "muon", "rate": 2.0, "weight_decay": 0.3}])
    return model, config, shapes, assign(groups, model, config, shapes)


def matrices(model, config, params: dict) -> dict[str, np.ndarray]:
    """Every matrix of the checkpoint that Hugging Face would write, in float64; queries, keys and values apart."""
    found = {}
    for name, tensor in model.to_hugging_face(unflatten(params), config).items():
        if tensor.ndim == 2 and not re.search(r"emb|wte|wpe|lm_head\.(decoder|weight)", name):
            side = {"c_attn": 1, "in_proj": 0}.get(next(iter(re.findall("c_attn|in_proj", name)), ""))
            parts = [tensor] if side is None else np.split(tensor, 3, axis=side)
            found |= {f"{name}[{i}]": np.asarray(part, np.float64) for i, part in enumerate(parts)}
    return found


@pytest.mark.parametrize("name", ["gpt2", pytest.param("roberta", marks=pytest.mark.slow), "llama", "transformer"])
def test_five_updates_equal_those_of_torch_matrix_by_matrix(name, monkeypatch):
    torch = pytest.importorskip("torch")
    # Its Newton-Schulz steps round to bfloat16, which would hide mistakes.
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda self: self.clone())
    model, config, shapes, grouping = grouped(name)
    settings = default_config().optimizer
    settings.clip_norm = None
    generator = np.random.default_rng(0)
    params = {path: generator.normal(size=shape).astype(np.float32) for path, shape in shapes.items()}
    theirs = {place: torch.nn.Parameter(torch.tensor(x)) for place, x in matrices(model, config, params).items()}
    muon = torch.optim.Muon(list(theirs.values()), weight_decay=0.3, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    optimizer = make_optimizer(settings, grouping)
    state, update = optimizer.init(params), jax.jit(optimizer.update)
    assert sum(x.size for x in jax.tree.leaves(state[1].inner_states["muon"])) == sum(x.numel() for x in theirs.values())
    for rate in (0.0, 1e-2, 3e-2, 1e-2, 1e-3):
        gradient = {path: generator.normal(size=shape).astype(np.float32) for path, shape in shapes.items()}
        for place, value in matrices(model, config, gradient).items():
            theirs[place].grad = torch.tensor(value)
        muon.param_groups[0]["lr"] = 2 * rate
        muon.step()
        direction, state = update(gradient, state, params)
        rates = np.array([2 * rate, rate])
        params = {path: np.asarray(x - rates[grouping.of[path]] * direction[path], np.float32) for path, x in params.items()}
        for place, value in matrices(model, config, params).items():
            np.testing.assert_allclose(value, theirs[place].detach().numpy(), rtol=1e-5, atol=1e-5, err_msg=place)


def test_singular_values_follow_the_polynomial_and_vectors_stay():
    _, _, shapes, grouping = grouped("gpt2")
    path = "layers/attention/qkv/kernel"
    gradient = np.random.default_rng(1).normal(size=shapes[path]).astype(np.float32)
    # The third matrix of the second layer has no gradient.
    gradient[1, :, 2] = 0.0
    muon = scale_by_muon(grouping.axes, {})
    direction, _ = muon.update({path: gradient}, muon.init({path: gradient}))
    for layer in range(2):
        for part in range(3):
            left, values, right = np.linalg.svd(gradient[layer, :, part].astype(np.float64))
            values /= max(np.linalg.norm(values), 1e-30)
            for _ in range(5):
                values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
            expected = 0.2 * np.sqrt(16) * (left * values) @ right
            np.testing.assert_allclose(direction[path][layer, :, part], expected, atol=2e-5)
            # About as large as Adam's updates.
            assert layer + part == 3 or 0.1 < np.sqrt(np.mean(expected**2)) < 0.3


@pytest.mark.parametrize(("name", "mesh_shape"), [("gpt2", (2, 2, 2)), ("llama", (1, 4, 2))])
def test_a_mesh_shares_the_matrices_out_and_changes_nothing(name, mesh_shape):
    model, _, shapes, grouping = grouped(name)
    mesh = sharding.make_mesh(dict(zip(sharding.AXES, mesh_shape, strict=True)))
    places = flatten(sharding.parameter_shardings(mesh, model.sharding_rules, shapes)[0])
    generator = np.random.default_rng(2)
    chosen = [path for path in shapes if re.search(r"(qkv|key_value|attention/output|down)/kernel", path)]
    gradient = {path: generator.normal(size=shapes[path]).astype(np.float32) for path in chosen}
    alone = scale_by_muon(grouping.axes, {})
    expected, _ = alone.update(gradient, alone.init(gradient))
    places = {path: places[path] for path in chosen}
    muon = scale_by_muon(grouping.axes, places)
    on_mesh = jax.device_put(gradient, places)
    where = sharding.matching_shardings(jax.eval_shape(muon.init, gradient), unflatten(places), mesh)
    state = jax.jit(muon.init, out_shardings=where)(on_mesh)
    compiled = jax.jit(muon.update, out_shardings=(places, where)).lower(on_mesh, state).compile()
    direction, _ = compiled(on_mesh, state)
    for path in chosen:
        np.testing.assert_allclose(direction[path], expected[path], atol=1e-5, err_msg=path)

    def sizes(operation: str) -> list[int]:
        found = re.findall(rf"= f32\[([\d,]+)\]\S* {operation}\(", compiled.as_text())
        return [int(np.prod([int(size) for size in shape.split(",")])) for shape in found]

    # Of 2 to 6 matrices a parameter, each of the 8 devices computes one, and only the copies along "data" are gathered.
    largest = max(np.prod(shapes[path]) // 2 for path in chosen if "down" in path)
    assert sizes("dot") and max(sizes("dot")) <= largest
    assert max(sizes("all-gather"), default=0) == (2 * largest if mesh_shape[0] > 1 else 0)
