"""AdamW against torch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wechsel_jax.errors import UserError
from wechsel_jax.models import family
from wechsel_jax.models.vanilla import TRANSLATOR
from wechsel_jax.models.weights import flatten, unflatten
from wechsel_jax.training import default_config
from wechsel_jax.training.optimizer import decayed, join, kept, make_optimizer, split, trainable_paths

SHAPES = {"token_embedding/embedding": (11, 4), "mlp/up/kernel": (4, 8), "mlp/up/bias": (8,), "final_norm/scale": (4,)}


@pytest.mark.slow
@pytest.mark.parametrize("clip_norm", [1.0, None])
def test_updates_equal_torch_adamw(clip_norm):
    torch = pytest.importorskip("torch")
    settings = default_config().optimizer
    settings.weight_decay, settings.clip_norm = 0.3, clip_norm
    generator = np.random.default_rng(0)
    params = {path: generator.normal(size=shape).astype(np.float32) for path, shape in SHAPES.items()}
    theirs = {path: torch.nn.Parameter(torch.tensor(value)) for path, value in params.items()}
    groups = [
        {"params": [theirs["token_embedding/embedding"], theirs["mlp/up/kernel"]], "weight_decay": settings.weight_decay},
        {"params": [theirs["mlp/up/bias"], theirs["final_norm/scale"]], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, lr=1.0, betas=(settings.b1, settings.b2), eps=settings.eps)
    optimizer = make_optimizer(settings)
    state = optimizer.init(params)
    # The second gradient is above the norm of 1, the first and the others below.
    for scale, rate in ((0.01, 0.0), (5.0, 1e-2), (0.02, 3e-2), (0.03, 1e-2), (0.001, 1e-3)):
        gradient = {path: scale * generator.normal(size=shape).astype(np.float32) for path, shape in SHAPES.items()}
        for path, parameter in theirs.items():
            parameter.grad = torch.tensor(gradient[path])
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(list(theirs.values()), clip_norm)
        for group in adamw.param_groups:
            group["lr"] = rate
        adamw.step()
        direction, state = optimizer.update(gradient, state, params)
        params = {path: np.asarray(value - rate * direction[path], np.float32) for path, value in params.items()}
        for path, value in params.items():
            np.testing.assert_allclose(value, theirs[path].detach().numpy(), rtol=2e-6, atol=2e-7, err_msg=path)


def test_checkpoints_have_one_structure_with_and_without_clipping():
    settings, params = default_config().optimizer, {"a/kernel": np.ones((2, 2), np.float32)}
    clipped = make_optimizer(settings).init(params)
    settings.clip_norm = None
    assert jax.tree.structure(make_optimizer(settings).init(params)) == jax.tree.structure(clipped)


@pytest.mark.parametrize("name", ["gpt2", "roberta"])
def test_biases_and_norms_are_not_decayed(name):
    model = family(name)
    paths = model.shapes(model.config({"vocab_size": 30, "n_layer": 1, "num_hidden_layers": 1}))
    decays = {path for path, applies in decayed(paths).items() if applies}
    assert {path.rsplit("/", 1)[1] for path in decays} == {"embedding", "kernel"}
    assert {path.rsplit("/", 1)[1] for path in set(paths) - decays} == {"bias", "scale"}


def test_a_regex_that_trains_nothing_is_refused():
    with pytest.raises(UserError, match="matches no parameter"):
        trainable_paths(family("gpt2"), {"a/b": (1,)}, "^c$")
    with pytest.raises(UserError, match="no regular expression"):
        trainable_paths(family("gpt2"), {"a/b": (1,)}, "(")


def test_some_of_the_layers_train():
    shapes = {"token_embedding/embedding": (5, 2), "layers/mlp/up/kernel": (6, 2, 3), "layers/mlp/up/bias": (6, 3)}
    params = {path: np.arange(np.prod(shape), dtype=np.float32).reshape(shape) for path, shape in shapes.items()}
    trainable = trainable_paths(family("gpt2"), shapes, "all", layers="2:5")
    assert trainable == {"token_embedding/embedding", "layers/mlp/up/kernel[2:5]", "layers/mlp/up/bias[2:5]"}
    trained, frozen = split(unflatten(params), trainable)
    assert trained["layers/mlp/up/kernel[2:5]"].shape == (3, 2, 3) and set(trained) == trainable
    assert set(frozen) == {f"layers/mlp/up/{name}{part}" for name in ("kernel", "bias") for part in ("[0:2]", "[5:6]")}
    assert decayed(trained)["layers/mlp/up/kernel[2:5]"] and not decayed(trained)["layers/mlp/up/bias[2:5]"]
    for path, value in flatten(join(trained, frozen)).items():
        np.testing.assert_array_equal(value, params[path])
    assert trainable_paths(family("gpt2"), shapes, "all", layers="0:6") == frozenset(shapes)
    for layers in ("6:", "3:3", ":7"):
        with pytest.raises(UserError, match="of a model with 6 layers"):
            trainable_paths(family("gpt2"), shapes, "all", layers=layers)


def test_layers_of_two_stacks_are_no_choice():
    shapes = {"layers/mlp/up/kernel": (3, 2, 3), "decoder/mlp/up/kernel": (3, 2, 3)}
    with pytest.raises(UserError, match=r"layers '1:' of an encoder-decoder, .*; choose a whole stack by trainable"):
        trainable_paths(TRANSLATOR, shapes, "all", layers="1:")
    assert trainable_paths(TRANSLATOR, shapes, "all") == {*shapes}


def test_a_phase_can_keep_what_the_optimizer_knows():
    optimizer = make_optimizer(default_config().optimizer)
    params = {"a/kernel": np.ones((2, 2), np.float32), "b/kernel": np.ones((3,), np.float32)}
    alone = {"a/kernel": params["a/kernel"]}
    _, old = optimizer.update(alone, optimizer.init(alone), alone)
    state = kept(optimizer.init(params), old)
    assert int(state[1].count) == 1
    np.testing.assert_array_equal(state[1].mu["a/kernel"], old[1].mu["a/kernel"])
    assert float(np.abs(old[1].mu["a/kernel"]).max()) > 0 and float(np.abs(state[1].mu["b/kernel"]).max()) == 0


def test_layers_that_both_phases_train_keep_what_the_optimizer_knows():
    optimizer = make_optimizer(default_config().optimizer)
    whole = {"layers/a/kernel": jnp.ones((4, 2)), "head/kernel": jnp.ones(3)}
    part = {"layers/a/kernel[2:4]": jnp.ones((2, 2)), "head/kernel": jnp.ones(3)}
    other = {"layers/a/kernel[1:3]": jnp.ones((2, 2))}

    def trained(params):
        grads = {path: jnp.arange(1.0, x.size + 1).reshape(x.shape) for path, x in params.items()}
        return optimizer.update(grads, optimizer.init(params), params)[1]

    for old, new, expected in (
        (part, whole, lambda mu: [[0, 0], [0, 0], *mu["layers/a/kernel[2:4]"]]),
        (whole, part, lambda mu: mu["layers/a/kernel"][2:]),
        (part, other, lambda mu: [[0, 0], mu["layers/a/kernel[2:4]"][0]]),
    ):
        before = trained(old)
        after = jax.jit(lambda params, before: kept(optimizer.init(params), before))(new, before)
        (path,) = (path for path in new if path.startswith("layers"))
        np.testing.assert_array_equal(after[1].mu[path], np.array(expected(before[1].mu)))
        assert int(after[1].count) == 1
