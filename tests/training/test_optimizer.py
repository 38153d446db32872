"""AdamW against torch."""

import numpy as np
import pytest

from wechsel_jax.errors import UserError
from wechsel_jax.models import family
from wechsel_jax.training import default_config
from wechsel_jax.training.optimizer import decayed, make_optimizer, trainable_paths

SHAPES = {"token_embedding/embedding": (11, 4), "mlp/up/kernel": (4, 8), "mlp/up/bias": (8,), "final_norm/scale": (4,)}


def test_updates_equal_torch_adamw():
    torch = pytest.importorskip("torch")
    settings = default_config().optimizer
    settings.weight_decay = 0.3
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
    # The second gradient is above the norm that is clipped to, the first and the others below.
    for scale, rate in ((0.01, 0.0), (5.0, 1e-2), (0.02, 3e-2), (0.03, 1e-2), (0.001, 1e-3)):
        gradient = {path: scale * generator.normal(size=shape).astype(np.float32) for path, shape in SHAPES.items()}
        for path, parameter in theirs.items():
            parameter.grad = torch.tensor(gradient[path])
        torch.nn.utils.clip_grad_norm_(list(theirs.values()), settings.clip_norm)
        for group in adamw.param_groups:
            group["lr"] = rate
        adamw.step()
        direction, state = optimizer.update(gradient, state, params)
        params = {path: np.asarray(value - rate * direction[path], np.float32) for path, value in params.items()}
        for path, value in params.items():
            np.testing.assert_allclose(value, theirs[path].detach().numpy(), rtol=2e-6, atol=2e-7, err_msg=path)


@pytest.mark.parametrize("name", ["gpt2", "roberta"])
def test_biases_and_norms_are_not_decayed(name):
    model = family(name)
    paths = model.shapes(model.config({"vocab_size": 30, "n_layer": 1, "num_hidden_layers": 1}))
    decays = {path for path, applies in decayed(paths).items() if applies}
    assert {path.rsplit("/", 1)[1] for path in decays} == {"embedding", "kernel"}
    assert {path.rsplit("/", 1)[1] for path in set(paths) - decays} == {"bias", "scale"}


def test_a_regex_that_trains_nothing_is_refused():
    with pytest.raises(UserError, match="matches no parameter"):
        trainable_paths(family("gpt2"), ["a/b"], "^c$")
    with pytest.raises(UserError, match="no regular expression"):
        trainable_paths(family("gpt2"), ["a/b"], "(")
