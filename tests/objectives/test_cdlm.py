"""CdLM and MLM in one batch: torch's loss, which positions count, the public code's masks, meshes; and TLM."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.helpers import dot_flops
from wechsel_jax.errors import UserError
from wechsel_jax.models import family
from wechsel_jax.models.encoder import Crossing
from wechsel_jax.models.weights import unflatten
from wechsel_jax.objectives import make_objective
from wechsel_jax.objectives.mlm import mask_tokens
from wechsel_jax.training import loop, sharding

FIELDS = {
    "vocab_size": 64,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 24,
    "pad_token_id": 0,
}
TRI = family("tri-bert")
CONFIG = TRI.config(FIELDS, dropout=0.0)
CLS, SEP, MASK = 1, 2, 3
ROWS, LENGTH = 8, 20
KEY = jax.random.key(5)


# One program in place of dozens, one for each operation.
masked_by = jax.jit(mask_tokens, static_argnums=(4, 5))


def random_params(config, seed=0):
    rng = np.random.default_rng(seed)
    flat = {path: 0.3 * rng.normal(size=shape) + path.endswith("scale") for path, shape in TRI.shapes(config).items()}
    return unflatten({path: value.astype(np.float32) for path, value in flat.items()})


PARAMS = random_params(CONFIG)


def make_batch():
    """Rows 0, 2, 4, ... translate, rows 1, 3, 5, ... are masked."""
    rng = np.random.default_rng(0)
    sizes, target_sizes = rng.integers(6, LENGTH - 1, (2, ROWS))
    is_masked = np.arange(ROWS) % 2 == 1
    sizes = np.where(is_masked, target_sizes, sizes)

    def sentences(sizes):
        mask = np.arange(LENGTH) < sizes[:, None]
        tokens = np.where(mask, rng.integers(4, 64, mask.shape), 0).astype(np.int32)
        tokens[:, 0], tokens[np.arange(ROWS), sizes - 1] = CLS, SEP
        return tokens, mask

    (tokens, mask), (targets, target_mask) = sentences(sizes), sentences(target_sizes)
    tokens = np.where(is_masked[:, None], targets, tokens)
    order = np.where(rng.random(mask.shape) < 0.2, sizes[:, None], rng.integers(0, sizes[:, None], mask.shape))
    order = np.where(is_masked[:, None], np.arange(LENGTH), np.where(target_mask, order, sizes[:, None])).astype(np.int32)
    languages = np.where(is_masked, 1, 0).astype(np.int32)
    return {
        **{"tokens": tokens, "mask": mask, "languages": languages, "order": order, "masked": is_masked},
        **{"targets": targets, "target_mask": target_mask, "target_languages": np.ones(ROWS, np.int32)},
    }


BATCH = make_batch()


def objective(name="cdlm", config=CONFIG, **settings):
    return make_objective(name, TRI, config, mask_token_id=MASK, special_ids=(0, 1, 2, 3), **settings)


@functools.cache
def compiled(name="cdlm", train=False, **settings):
    run = objective(name, **settings)
    return jax.jit(lambda params, batch: run(params, batch, KEY, train=train))


@functools.partial(jax.jit, static_argnames="parity")
def nats(params, tokens, batch, parity=False):
    """What each target token costs, from the model alone."""
    given = Crossing(batch["languages"], batch["order"], batch["target_mask"], batch["target_languages"])
    if parity:
        given = given._replace(
            languages=jnp.ones_like(given.languages), target_mask=batch["mask"], tri_mask=jnp.ones_like(batch["mask"])
        )
    hidden = TRI.hidden(params, CONFIG, tokens, batch["mask"], crossing=given)
    return TRI.logits(params, CONFIG, hidden)


def expected(batch, parity=False):
    """(loss, weight) of all rows and of those that translate, by torch's cross-entropy."""
    torch = pytest.importorskip("torch")
    mask_key, _ = jax.random.split(KEY)
    eligible = (batch["tokens"] > 3) & batch["mask"] & batch["masked"][:, None]
    masked = masked_by(mask_key, batch["tokens"], eligible, jnp.arange(4, 64), MASK, 0.15)
    chosen = np.zeros(eligible.shape, bool)
    for row, (positions, real) in enumerate(zip(np.asarray(masked.positions), np.asarray(masked.chosen), strict=True)):
        chosen[row, positions[real]] = True
    assert not (chosen & ~eligible).any() and chosen.sum() == np.round(0.15 * eligible.sum(1)).sum() > 4
    np.testing.assert_array_equal(np.asarray(masked.tokens)[~batch["masked"]], batch["tokens"][~batch["masked"]])
    counted = np.where(batch["masked"][:, None], chosen, batch["target_mask"])
    scores = torch.tensor(np.asarray(nats(PARAMS, masked.tokens, batch, parity)))
    labels = torch.tensor(np.where(counted, batch["targets"], -100)).long()
    cost = torch.nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="none").reshape(counted.shape)
    crossed = ~batch["masked"]
    return cost.sum().item(), counted.sum(), cost[torch.tensor(crossed)].sum().item(), counted[crossed].sum()


@pytest.mark.parametrize("parity", [False, True])
def test_the_loss_is_torchs_over_target_positions_and_masked_ones(parity):
    loss, weight, metrics = compiled(parity=parity)(PARAMS, BATCH)
    found = [float(loss), float(weight), float(metrics["cdlm_loss"]), float(metrics["cdlm_weight"])]
    np.testing.assert_allclose(found, expected(BATCH, parity), rtol=1e-5)
    # [CLS] and [SEP] of the translations count.
    assert found[3] == BATCH["target_mask"][::2].sum()
    assert abs(found[0] - expected(BATCH, not parity)[0]) > 1e-2


def test_training_computes_the_same_sums_in_chunks_and_adds_up_rows():
    every = np.ones(ROWS, np.float32)
    whole = compiled(train=True)(PARAMS, BATCH | {"weights": every})
    parts = compiled(train=True, chunk=7)(PARAMS, BATCH | {"weights": every})
    evaluated = compiled()(PARAMS, BATCH)
    for other in (parts, evaluated):
        np.testing.assert_allclose(other[0], whole[0], rtol=1e-5)
        assert float(other[1]) == float(whole[1]) and float(other[2]["correct"]) == float(whole[2]["correct"])
    weights = np.float32([1, 1, 0, 0, 1, 1, 1, 0])
    some = [float(compiled(train=True)(PARAMS, BATCH | {"weights": given})[0]) for given in (weights, 1 - weights)]
    assert sum(some) == pytest.approx(float(whole[0]), rel=1e-5) and min(some) > 1


def test_what_is_not_predicted_and_not_read_does_not_count():
    """Tokens behind both ends, and the target's own tokens as something to read."""
    whole = float(compiled()(PARAMS, BATCH)[0])
    behind = np.arange(LENGTH) > np.maximum(BATCH["mask"].sum(1), BATCH["target_mask"].sum(1))[:, None]
    noise = {name: np.where(behind, 9, BATCH[name]) for name in ("tokens", "targets")}
    assert float(compiled()(PARAMS, BATCH | noise)[0]) == whole


def test_the_mlm_rows_are_those_of_mlm_alone():
    rows = np.where(BATCH["masked"], 1.0, 0.0).astype(np.float32)
    loss, weight, metrics = compiled()(PARAMS, BATCH)
    alone, count, _ = compiled("mlm")(PARAMS, BATCH | {"weights": rows})
    assert float(weight) - float(metrics["cdlm_weight"]) == float(count)
    assert float(loss) - float(metrics["cdlm_loss"]) == pytest.approx(float(alone), rel=1e-4)


@pytest.fixture(scope="module")
def on_one():
    """(function, its loss, its gradients) on one device."""
    run = objective()
    gradient = jax.value_and_grad(lambda params, batch: run(params, batch, KEY, train=True)[0])
    return gradient, *jax.jit(gradient)(PARAMS, BATCH)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(2, 2, 2), (8, 1, 1)])
def test_a_mesh_gives_the_same_loss_and_gradients(on_one, shape):
    gradient, value, grads = on_one
    mesh = sharding.make_mesh(dict(zip(sharding.AXES, shape, strict=True)))
    where, _ = sharding.parameter_shardings(mesh, TRI.sharding_rules, TRI.shapes(CONFIG))
    with jax.set_mesh(mesh):
        step = jax.jit(gradient, out_shardings=(sharding.replicated(mesh), where))
        there, sharded = step(jax.device_put(PARAMS, where), jax.device_put(BATCH, sharding.batch_sharding(mesh)))
    assert float(there) == pytest.approx(float(value), rel=1e-5)
    scale = max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(grads))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5 * scale), sharded, grads)


@pytest.mark.parametrize("name", ["mlm", "tlm", "brlm"])
def test_flops_are_those_of_what_is_read(name):
    """A position of tlm stands for a token of either sentence, each of which sees both."""
    bert = family("bert")
    config, length = bert.config(FIELDS | {"max_position_embeddings": 32}, dropout=0.0), 20
    run = make_objective(name, bert, config, mask_token_id=MASK, special_ids=(0, 1, 2, 3))
    links = {"links": jnp.full((ROWS, length), -1)}
    params = {"params": bert.init(config, KEY)}["params"]
    found = dot_flops(jax.make_jaxpr(lambda params: run(params, BATCH | links, KEY, train=False)[0])(params).jaxpr)
    spec = types.SimpleNamespace(model=types.SimpleNamespace(family=bert, config=config), objective=run)
    this = types.SimpleNamespace(spec=spec, config=types.SimpleNamespace(block_length=length))
    assert loop._Run._flops_per_token(this) * BATCH["tokens"].size == pytest.approx(3 * found, rel=1e-9)


def test_tlm_reads_the_pair_as_one_text_of_two_languages():
    """Against MLM over rows that hold both sentences, each token with its own language and position."""
    loss, weight, _ = compiled("tlm")(PARAMS, BATCH)
    both = BATCH["mask"], BATCH["target_mask"] & ~BATCH["masked"][:, None]
    languages = [np.repeat(BATCH[name][:, None], LENGTH, 1) for name in ("languages", "target_languages")]
    joined = {
        "tokens": np.concatenate([BATCH["tokens"], BATCH["targets"]], 1),
        "mask": np.concatenate(both, 1),
        "languages": np.concatenate(languages, 1),
        "positions": np.tile(np.arange(LENGTH), (ROWS, 2)),
    }
    again = compiled("mlm")(PARAMS, joined)
    assert float(loss) == pytest.approx(float(again[0]), rel=1e-6)
    eligible = joined["mask"] & (joined["tokens"] > 3)
    assert float(weight) == np.round(0.15 * eligible.sum(1)).sum()
    changed = {"tokens": np.where(BATCH["masked"][:, None] | (BATCH["tokens"] < 4), BATCH["tokens"], 5)}
    assert abs(float(compiled("tlm")(PARAMS, BATCH | changed)[0]) - float(loss)) > 1e-2


def test_brlm_predicts_a_masked_token_from_the_one_that_it_is_linked_with():
    """Against torch's cross-entropy of states that are looked up link by link."""
    torch = pytest.importorskip("torch")
    masks = BATCH["mask"], BATCH["target_mask"] & ~BATCH["masked"][:, None]
    joined = np.concatenate([BATCH["tokens"], BATCH["targets"]], 1)
    mask_key, _ = jax.random.split(KEY)
    masked = masked_by(mask_key, joined, np.concatenate(masks, 1) & (joined > 3), jnp.arange(4, 64), MASK, 0.15)
    languages = [np.repeat(BATCH[name][:, None], LENGTH, 1) for name in ("languages", "target_languages")]
    crossing = Crossing(np.concatenate(languages, 1), positions=np.tile(np.arange(LENGTH), (ROWS, 2)))

    @jax.jit
    def scores(params):
        hidden = TRI.hidden(params, CONFIG, masked.tokens, np.concatenate(masks, 1), crossing=crossing)
        return TRI.logits(params, CONFIG, hidden)

    made, total, across = np.asarray(scores(PARAMS)), 0.0, 0
    for row in range(ROWS):
        linked = {}
        for target in range(LENGTH) if not BATCH["masked"][row] else ():
            source = int(BATCH["order"][row, target])
            if BATCH["target_mask"][row, target] and BATCH["mask"][row, source]:
                linked |= {LENGTH + target: source, source: LENGTH + target}
        for place, token, real in zip(*(np.asarray(part)[row] for part in masked[1:]), strict=True):
            if real:
                across += int(place) in linked
                state = made[row, linked.get(int(place), int(place))]
                total += torch.nn.functional.cross_entropy(torch.tensor(state), torch.tensor(int(token))).item()
    loss, weight, _ = compiled("brlm")(PARAMS, BATCH)
    assert 3 < across < float(weight) == np.asarray(masked.chosen).sum()
    assert float(loss) == pytest.approx(total, rel=1e-5)


def test_what_does_not_fit_is_refused():
    plain = family("bert")
    with pytest.raises(UserError, match="cdlm does not fit a bert; expected a model with a TRILayer"):
        make_objective("cdlm", plain, plain.config(FIELDS), mask_token_id=MASK)
    with pytest.raises(UserError, match="cdlm does not fit a tri-bert; expected a model with a TRILayer"):
        objective(config=TRI.config(FIELDS | {"tri_layer": False}))
    with pytest.raises(UserError, match="chunk is -1"):
        objective(chunk=-1)
    with pytest.raises(UserError, match="expected clm, mlm, mlm_nsp, cdlm, tlm or brlm"):
        objective("nsp")
