"""Rows that also move together: against torch with the coefficients as parameters of their own, and what is refused."""

import jax
import numpy as np
import optax
import pytest
import torch
import transformers
from huggingface_hub import constants

from tests.hub.stub import StubHub
from wechsel_jax.errors import UserError
from wechsel_jax.initializers import TransferPlan, regression
from wechsel_jax.models import family
from wechsel_jax.training.coordinates import own_coordinates, read_coordinates, scale_by_coordinates, with_coordinates
from wechsel_jax.training.groups import assign, read_groups

GPT2 = family("gpt2")
CONFIG = GPT2.config({"vocab_size": 30, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 8})


def write_plan(path, tokens=30, rank=4, seed=0):
    """A plan of which a sixth of the rows are copied and have no coordinates."""
    generator = np.random.default_rng(seed)
    copy = np.where(np.arange(tokens) % 6, -1, 0)
    plan = TransferPlan.mixed(np.zeros((tokens, 1)), np.ones((tokens, 1))).with_copies(copy)
    coordinates = generator.normal(size=(tokens, rank)) @ generator.normal(size=(rank, rank)) + 3
    plan.with_regression(coordinates, np.ones((rank, 5))).save(path)
    return path


@pytest.mark.parametrize("factor", [1.0, 0.25])
def test_the_sum_of_both_is_what_torch_trains(factor):
    """A table and a bias of its tokens, ten updates of Adam on a loss of E + X K and b + X k."""
    generator = np.random.default_rng(1)
    x = generator.normal(size=(30, 4)).astype(np.float32)
    start = {"table": generator.normal(size=(30, 16)).astype(np.float32), "bias": np.zeros(30, np.float32)}
    inputs = generator.normal(size=(12, 16)).astype(np.float32)
    labels = generator.integers(0, 30, 12)

    own = {name: torch.tensor(value, requires_grad=True) for name, value in start.items()}
    shared = {name: torch.zeros((4, *value.shape[1:]), requires_grad=True) for name, value in start.items()}
    settings = {"betas": (0.9, 0.98), "eps": 1e-6}
    optimizer = torch.optim.Adam(
        [{"params": own.values(), "lr": 1e-2}, {"params": shared.values(), "lr": factor * 1e-2}], **settings
    )
    for _ in range(10):
        table, bias = (own[name] + torch.tensor(x) @ shared[name] for name in start)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(torch.tensor(inputs) @ table.T + bias, torch.tensor(labels)).backward()
        optimizer.step()
    expected = {name: (own[name] + torch.tensor(x) @ shared[name]).detach().numpy() for name in start}

    def loss(params):
        logits = inputs @ params["table"].T + params["bias"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    direction = scale_by_coordinates(optax.scale_by_adam(b1=0.9, b2=0.98, eps=1e-6), x.shape[1], factor)

    @jax.jit
    def step(params, state):
        directions, state = direction.update(jax.grad(loss)(params), state)
        return jax.tree.map(lambda value, one: value - 1e-2 * one, params, directions), state

    params, state = start, direction.init(start)
    here = jax.NamedSharding(jax.make_mesh((1,), ("data",)), jax.P())
    state = with_coordinates(state, dict.fromkeys(start, x), jax.tree.map(lambda _: here, state))
    for _ in range(10):
        params, state = step(params, state)
    for name in start:
        np.testing.assert_allclose(params[name], expected[name], atol=2e-5, err_msg=name)


def test_coordinates_are_white_and_of_length_one_in_the_mean(tmp_path):
    path = write_plan(tmp_path / "transfer_plan.npz")
    x = read_coordinates(tmp_path, tokens=30, rows=32)[:]
    np.testing.assert_array_equal(x, read_coordinates(path, tokens=30, rows=32)[:])
    assert x.dtype == np.float32 and x.shape == (32, 4)
    assert not x[30:].any() and not x[0:30:6].any()
    assert np.square(x[:30], dtype=np.float64).sum(1)[np.arange(30) % 6 > 0].mean() == pytest.approx(1)
    gram = x.T.astype(np.float64) @ x
    np.testing.assert_allclose(gram, gram[0, 0] * np.eye(4), atol=1e-5)


def test_a_plan_on_the_hub_is_fetched(tmp_path, monkeypatch):
    """That file alone, from a hub on this machine; a model that has none there is one without coordinates."""
    path = write_plan(tmp_path / "transfer_plan.npz")
    hub = StubHub("token")
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}")
    for name, value in {"ENDPOINT": hub.endpoint, "HF_HUB_CACHE": str(tmp_path / "cache"), "HF_HUB_OFFLINE": False}.items():
        monkeypatch.setattr(constants, name, value)
    monkeypatch.setenv("HF_TOKEN", "token")
    try:
        for repo in ("me/swahili", "me/plain"):
            hub.make(repo)
            hub.files(repo)["config.json"] = b"{}"
        hub.files("me/swahili")["transfer_plan.npz"] = path.read_bytes()
        x = read_coordinates("me/swahili", tokens=30, rows=32, required=False)
        np.testing.assert_array_equal(x[:], read_coordinates(path, tokens=30, rows=32)[:])
        assert hub.sent("GET", "transfer_plan.npz") == 1 and not hub.sent("GET", "config.json")
        assert read_coordinates("me/plain", tokens=30, rows=32, required=False) is None
        with pytest.raises(UserError, match="me/none: no such directory, and not to be had from the hub"):
            read_coordinates("me/none", tokens=30, rows=32, required=False)
    finally:
        hub.close()


def test_own_coordinates_are_the_orthogonal_factor_of_the_table(tmp_path):
    """The polar decomposition's, by the SVD, of the tokens' rows; of padding there are none. In blocks as in one."""
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=40))
    model.save_pretrained(tmp_path)
    table = model.transformer.wte.weight.detach().numpy()[:36].astype(np.float64)
    left, _, right = np.linalg.svd(table, full_matrices=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(regression, "_ROWS_AT_ONCE", 7)
        ours = own_coordinates(tmp_path, tokens=36, rows=48)[:]
    np.testing.assert_allclose(ours[:36], left @ right * np.sqrt(36 / 16), atol=1e-5)
    assert ours.shape == (48, 16) and not ours[36:].any()

    config = GPT2.config({"vocab_size": 48, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 8})

    def of_group(name):
        groups = read_groups([{"match": "tokens", "coordinates": name}])
        grouping = assign(groups, GPT2, config, GPT2.shapes(config), tokens=36, checkpoint=str(tmp_path))
        return grouping.coordinates["token_embedding/embedding"][:]

    for name in ("rows", "best"):
        np.testing.assert_allclose(of_group(name), ours, atol=1e-6)
    plan = write_plan(tmp_path / "transfer_plan.npz", tokens=36)
    np.testing.assert_allclose(of_group("rows"), ours, atol=1e-6)
    np.testing.assert_array_equal(of_group("best"), read_coordinates(plan, tokens=36, rows=48)[:])

    with torch.no_grad():
        model.transformer.wte.weight[3, 0] = torch.nan
    model.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"wte.weight is all zeros or not finite"):
        own_coordinates(tmp_path, tokens=36, rows=48)


def test_a_coordinate_that_others_make_up_counts_once(tmp_path):
    plan = TransferPlan.load(write_plan(tmp_path / "transfer_plan.npz"))
    twice = plan.with_regression(plan.coordinates @ np.eye(4, 8) + 2 * plan.coordinates @ np.eye(4, 8, 4), np.ones((8, 5)))
    (tmp_path / "twice").mkdir()
    twice.save(tmp_path / "twice" / "transfer_plan.npz")
    plain, ours = (read_coordinates(place, 30, 30)[:].astype(np.float64) for place in (tmp_path, tmp_path / "twice"))
    # Shared updates are sums over coordinates: what rows have in common is x x'.
    np.testing.assert_allclose(ours @ ours.T, plain @ plain.T, atol=1e-5)


@pytest.mark.parametrize(
    ("description", "named"),
    [
        ({"match": "tokens", "coordinates": 3}, r"groups\[0\].coordinates: is 3"),
        ({"match": "mlp/up/kernel", "kind": "muon", "coordinates": "transfer"}, r"coordinates: is 'transfer', of kind muon"),
        ({"match": "tokens", "coordinates": "transfer", "shared": -1.0}, r"groups\[0\].shared: is -1.0"),
        ({"match": "tokens", "shared": 1.0}, r"groups\[0\].shared: there are no coordinates"),
        ({"match": "position", "coordinates": "PLACE"}, r"groups\[0\].coordinates: 'position' finds no table of tokens"),
        ({"match": "tokens", "coordinates": "transfer"}, r"the run begins from no checkpoint; expected the path of a tr"),
        ({"match": "tokens", "coordinates": "rows"}, r"the run begins from no checkpoint; expected the path of a tr"),
        ({"match": "tokens", "coordinates": "PLACE/none"}, r"none: no such file"),
        (
            {"match": "tokens", "coordinates": "PLACE/small"},
            r"small.transfer_plan.npz: is of 20 tokens and the tokenizer has",
        ),
        ({"match": "tokens", "coordinates": "PLACE/plain"}, r"plain.transfer_plan.npz: its method has given the tokens no"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, description, named):
    for name in ("small", "plain"):
        (tmp_path / name).mkdir()
    write_plan(tmp_path / "transfer_plan.npz")
    write_plan(tmp_path / "small" / "transfer_plan.npz", tokens=20)
    TransferPlan.all_random(30).save(tmp_path / "plain" / "transfer_plan.npz")
    description = {
        name: value.replace("PLACE", str(tmp_path)) if name == "coordinates" and isinstance(value, str) else value
        for name, value in description.items()
    }
    with pytest.raises(UserError, match=named):
        assign(read_groups([description]), GPT2, CONFIG, GPT2.shapes(CONFIG), tokens=30)


def test_of_embeddings_those_of_tokens_move_together_where_there_are_coordinates(tmp_path):
    shapes = GPT2.shapes(CONFIG)
    groups = read_groups([{"match": "embeddings", "coordinates": "transfer"}])
    write_plan(tmp_path / "transfer_plan.npz")
    assert {*assign(groups, GPT2, CONFIG, shapes, tokens=30, checkpoint=str(tmp_path)).coordinates} == {
        "token_embedding/embedding"
    }
    TransferPlan.all_random(30).save(tmp_path / "transfer_plan.npz")
    for checkpoint in (tmp_path, tmp_path / "no transfer"):
        assert not assign(groups, GPT2, CONFIG, shapes, tokens=30, checkpoint=str(checkpoint)).coordinates


def test_a_phase_that_trains_no_table_of_tokens_has_no_state():
    direction = scale_by_coordinates(optax.identity(), 4, 1.0)
    state = direction.init({"layers": optax.MaskedNode()})
    assert not jax.tree.leaves(state) and direction.update({"layers": optax.MaskedNode()}, state)[1] == state
