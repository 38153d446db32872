"""TreLM's model against transformers: a BERT with a layer more, whose hooks reorder and add what the TRILayer adds."""

import functools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from tests.models.test_families import primitives
from wechsel_jax.errors import UserError
from wechsel_jax.models import family
from wechsel_jax.models.encoder import Crossing
from wechsel_jax.models.trilayer import begin, combine, fold
from wechsel_jax.models.weights import flatten, unflatten
from wechsel_jax.training.sharding import make_mesh, parameter_shardings

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOLERANCE = 2e-5
FIELDS = {
    "vocab_size": 61,
    "hidden_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "layer_norm_eps": 1e-5,
}
ENCODERS = {
    "bert": FIELDS | {"model_type": "bert", "max_position_embeddings": 12, "type_vocab_size": 2, "pad_token_id": 0},
    "roberta": FIELDS | {"model_type": "roberta", "max_position_embeddings": 14, "type_vocab_size": 1, "pad_token_id": 1},
}
# What XLA does for the second one takes seconds, and little of it is new.
BOTH = ["bert", pytest.param("roberta", marks=pytest.mark.slow)]
MIDDLE = FIELDS["num_hidden_layers"] // 2
ROWS, LENGTH = 3, 12


def random_params(record, config, seed=0):
    """Weights large enough for mistakes to show."""
    rng = np.random.default_rng(seed)
    flat = {path: 0.3 * rng.normal(size=shape) + path.endswith("scale") for path, shape in record.shapes(config).items()}
    return unflatten({path: value.astype(np.float32) for path, value in flat.items()})


@functools.cache
def model(name):
    """(family, config, config.json, params) of a TreLM model with random weights."""
    hf = ENCODERS[name] | {"model_type": f"tri-{name}", "language_count": 2, "architectures": [f"Tri{name.title()}ForMaskedLM"]}
    record = family(hf["model_type"])
    config = record.config(hf)
    return record, config, hf, random_params(record, config)


def crossed(pad, seed=0):
    """Three translations, shorter and longer than their sources, with links back and forth, several to one, and to nothing."""
    rng = np.random.default_rng(seed)
    sizes, target_sizes = np.array([9, 5, 11]), np.array([6, 12, 10])
    mask, target_mask = (np.arange(LENGTH) < size[:, None] for size in (sizes, target_sizes))
    tokens, targets = (np.where(real, rng.integers(4, 61, real.shape), pad).astype(np.int32) for real in (mask, target_mask))
    # The placeholder stands right behind the source.
    order = np.where(rng.random(mask.shape) < 0.25, sizes[:, None], rng.integers(0, sizes[:, None], mask.shape)).astype(
        np.int32
    )
    order = np.where(target_mask, order, sizes[:, None]).astype(np.int32)
    languages = np.array([0, 1, 0], np.int32)
    return tokens, mask, targets, Crossing(languages, order, target_mask, 1 - languages)


@partial(jax.jit, static_argnums=(0, 1))
def logits(record, config, params, tokens, mask, crossing=None):
    return record.logits(params, config, record.hidden(params, config, tokens, mask, crossing=crossing))


def reference(name, params):
    """transformers' own model of N + 1 layers with the same weights, and the rows that it has no place for."""
    record, config, _, _ = model(name)
    fields = transformers.AutoConfig.for_model(**ENCODERS[name] | {"num_hidden_layers": 5}, attn_implementation="eager")
    oracle = transformers.AutoModelForMaskedLM.from_config(fields).eval()
    tensors, stack = record.to_hugging_face(params, config), {}
    for tensor, value in tensors.items():
        before, layer, rest = tensor.partition(".layer.")
        number, _, rest = rest.partition(".")
        place = f"{before}{layer}{int(number) + (int(number) >= MIDDLE)}.{rest}" if layer else tensor
        stack[place.replace("encoder.tri_layer", f"encoder.layer.{MIDDLE}")] = torch.tensor(value)
    languages = stack.pop(f"{name}.embeddings.language_embeddings.weight").requires_grad_()
    missing, unexpected = oracle.load_state_dict(stack, strict=False)
    assert not unexpected and all("decoder" in key for key in missing)
    return oracle, languages


def run_reference(name, oracle, languages, tokens, mask, crossing, tri_mask=None):
    """Logits (B, L, V) with the source's mask below and the target's from the TRILayer on."""
    base = getattr(oracle, name)
    positions = base.embeddings.position_embeddings.weight
    of_target = torch.tensor(np.asarray(crossing.target_mask)).long()
    ids = torch.arange(LENGTH)[None] if name == "bert" else torch.cumsum(of_target, 1) * of_target + 1

    def visible(real):
        return torch.where(torch.tensor(np.asarray(real))[:, None, None, :], 0.0, torch.finfo(torch.float32).min)

    def add_language(module, arguments):
        return (arguments[0] + languages[torch.tensor(crossing.languages).long()][:, None],)

    def enter(number, module, arguments):
        x, rest = arguments[0], arguments[2:]
        if number < MIDDLE:
            return arguments
        if number == MIDDLE:
            order = torch.tensor(crossing.order).long()[..., None].expand(-1, -1, x.shape[-1])
            x = x.gather(1, order) + languages[torch.tensor(crossing.target_languages).long()][:, None] + positions[ids]
        seen = crossing.target_mask if number > MIDDLE or tri_mask is None else tri_mask
        return (x, visible(seen), *rest)

    hooks = [base.embeddings.LayerNorm.register_forward_pre_hook(add_language)]
    hooks += [layer.register_forward_pre_hook(partial(enter, i)) for i, layer in enumerate(base.encoder.layer)]
    out = oracle(torch.tensor(tokens).long(), attention_mask=torch.tensor(mask).long()).logits
    for hook in hooks:
        hook.remove()
    return out


@pytest.mark.parametrize("name", BOTH)
def test_a_reordered_text_is_what_transformers_computes_and_so_are_its_gradients(name):
    record, config, _, params = model(name)
    tokens, mask, targets, crossing = crossed(config.pad_token_id)
    oracle, languages = reference(name, params)
    expected = run_reference(name, oracle, languages, tokens, mask, crossing)
    real = crossing.target_mask
    chosen = torch.tensor(real)
    torch.nn.functional.cross_entropy(expected[chosen], torch.tensor(targets)[chosen].long()).backward()

    @jax.jit
    @partial(jax.value_and_grad, has_aux=True)
    def loss(params):
        got = record.logits(params, config, record.hidden(params, config, tokens, mask, crossing=crossing))
        nats = -jax.nn.log_softmax(got)
        return jnp.mean(jnp.take_along_axis(nats, targets[..., None], -1)[..., 0], where=real), got

    (_, got), gradient = loss(params)
    assert expected.abs().max() > 1.0
    assert np.abs(got - expected.detach().numpy())[real].max() < TOLERANCE
    ours = record.to_hugging_face(jax.device_get(gradient), config)
    theirs = {key: value.grad for key, value in oracle.named_parameters() if value.grad is not None}
    compared = set()
    of_languages = ours[f"{name}.embeddings.language_embeddings.weight"]
    np.testing.assert_allclose(of_languages, languages.grad.numpy(), atol=TOLERANCE)
    for key, value in ours.items():
        before, layer, rest = key.partition(".layer.")
        number, _, rest = rest.partition(".")
        place = f"{before}{layer}{int(number) + (int(number) >= MIDDLE)}.{rest}" if layer else key
        place = place.replace("encoder.tri_layer", f"encoder.layer.{MIDDLE}")
        if place in theirs:
            expected_value = theirs[place].numpy().copy()
            if "word_embeddings" in key or ("position_embeddings" in key and name == "roberta"):
                # torch never updates the row of the padding token; as an input here it stands for the placeholder.
                value, expected_value[config.pad_token_id] = value.copy(), 0
                value[config.pad_token_id] = 0
            np.testing.assert_allclose(value, expected_value, atol=TOLERANCE, err_msg=key)
            compared.add(key)
    assert len(compared) > 70 and any("tri_layer" in key for key in compared)


def test_each_half_sees_its_own_side_only():
    """What lies behind the ends of source and target changes nothing at real positions, but for the placeholder's own state."""
    record, config, _, params = model("bert")
    tokens, mask, _, crossing = crossed(0)
    right = np.asarray(logits(record, config, params, tokens, mask, crossing))
    ends = mask.sum(1)
    behind = np.arange(LENGTH) > ends[:, None]
    other = np.where(behind, 7, tokens)
    order = np.where(crossing.target_mask, crossing.order, 0)
    real = crossing.target_mask
    same = np.asarray(logits(record, config, params, other, mask, crossing._replace(order=order)))
    np.testing.assert_array_equal(same[real], right[real])
    placeholder = np.where(np.arange(LENGTH) == ends[:, None], 7, tokens)
    changed = np.asarray(logits(record, config, params, placeholder, mask, crossing))
    assert np.abs(changed - right)[real].max() > 1e-3
    wide = np.asarray(logits(record, config, params, tokens, mask, crossing._replace(target_mask=np.ones_like(real))))
    assert np.abs(wide - right)[real].max() > 1e-3


@pytest.mark.parametrize("name", BOTH)
def test_without_the_layer_and_with_zero_languages_it_is_the_plain_encoder(name):
    record, config, _, params = model(name)
    tokens, mask, _, crossing = crossed(config.pad_token_id)
    plain = family(name)
    flat = {path: value for path, value in flatten(params).items() if not path.startswith(("tri_layer", "language"))}
    expected = np.asarray(logits(plain, plain.config(ENCODERS[name]), unflatten(flat), tokens, mask))
    zero = flat | {"language_embedding/embedding": np.zeros((2, 24), np.float32)}
    for changes, given in (({"language_count": 0}, flat), ({"language_count": 2}, zero)):
        other = config.override(tri_layer=False, **changes)
        found = logits(record, other, unflatten(given), tokens, mask, crossing._replace(order=None))
        assert np.abs(found - expected)[mask].max() < TOLERANCE
    assert np.abs(logits(record, config, params, tokens, mask) - expected)[mask].max() > 1e-2


def test_the_order_in_place_is_no_order_and_the_last_language_the_default():
    record, config, _, params = model("bert")
    tokens, mask, _, _ = crossed(0)
    same, last = np.tile(np.arange(LENGTH, dtype=np.int32), (ROWS, 1)), np.ones(ROWS, np.int32)
    told = logits(record, config, params, tokens, mask, Crossing(last, same, mask, last))
    np.testing.assert_allclose(told, logits(record, config, params, tokens, mask), atol=1e-6)
    each = logits(record, config, params, tokens, mask, Crossing(np.broadcast_to(last[:, None], tokens.shape)))
    np.testing.assert_allclose(told, each, atol=1e-6)
    other = logits(record, config, params, tokens, mask, Crossing(0 * last, same, mask, last))
    assert np.abs(told - other)[mask].max() > 1e-3


@pytest.mark.slow
def test_gradients_are_those_of_small_steps():
    record, config, _, params = model("bert")
    tokens, mask, targets, crossing = crossed(0)

    @jax.jit
    def loss(params):
        nats = -jax.nn.log_softmax(
            record.logits(params, config, record.hidden(params, config, tokens, mask, crossing=crossing))
        )
        return jnp.mean(jnp.take_along_axis(nats, targets[..., None], -1)[..., 0], where=crossing.target_mask)

    check_grads(loss, (params,), order=1, modes=("rev",), atol=5e-3, rtol=5e-3, eps=1e-3)


def test_dropout_is_in_both_halves_and_between_them():
    """Counts the keys that are taken for random bits: the body of a loop over layers counts once."""
    record, config, _, params = model("bert")
    tokens, mask, _, crossing = crossed(0)

    def draws(key, **rates):
        settings = config.override(dropout=0.0).override(**rates)
        run = partial(record.hidden, config=settings, tokens=tokens, mask=mask, crossing=crossing, dropout_key=key)
        found = primitives(jax.make_jaxpr(lambda params: run(params))(params).jaxpr)
        return sum(count for (name, *_), count in found.items() if name == "random_unwrap")

    key = jax.random.key(0)
    assert draws(key) == draws(None, dropout=0.1) == 0
    assert draws(key, embedding_dropout=0.1) == 1
    assert draws(key, attention_dropout=0.1) == 3
    assert draws(key, residual_dropout=0.1) == 6


@pytest.mark.parametrize("name", ENCODERS)
def test_a_model_begins_as_the_plain_one_with_a_copied_layer(name):
    plain = family(name)
    params = random_params(plain, plain.config(ENCODERS[name]))
    new, hf = begin(params, ENCODERS[name] | {"architectures": ["BertForMaskedLM"]}, jax.random.key(0))
    record = family(hf["model_type"])
    config = record.config(hf)
    assert hf["architectures"] == ["TriBertForMaskedLM"] and {**flatten(new)}.keys() == record.shapes(config).keys()
    rows = new["language_embedding"]["embedding"]
    np.testing.assert_allclose(rows @ rows.T, np.eye(2), atol=1e-6)
    for copied, made in ((1, new), (2, begin(params, ENCODERS[name], jax.random.key(0), parity=True)[0])):
        for path, value in flatten(made["tri_layer"]).items():
            np.testing.assert_array_equal(value, flatten(params["layers"])[path][copied])
    # Names and shapes of the tensors are read again.
    again = record.from_hugging_face(record.to_hugging_face(new, config), config)
    for path, value in flatten(again).items():
        np.testing.assert_array_equal(value, flatten(new)[path], err_msg=path)
    with pytest.raises(UserError, match="has 1 layer; expected at least 2"):
        begin({**params, "layers": jax.tree.map(lambda x: x[:1], params["layers"])}, ENCODERS[name], jax.random.key(0))


def test_every_parameter_has_a_sharding_and_the_new_layer_that_of_the_others():
    record, config, _, _ = model("bert")
    mesh = make_mesh({"data": 2, "fsdp": 2, "tensor": 2})
    flat = flatten(parameter_shardings(mesh, record.sharding_rules, record.shapes(config))[0])
    assert flat["language_embedding/embedding"].spec == flat["position_embedding/embedding"].spec
    paths = [path for path in flat if path.startswith("tri_layer/")]
    assert len(paths) == 12
    for path in paths:
        stacked = tuple(flat[path.replace("tri_layer", "layers")].spec)
        assert stacked[:1] in ((), (None,)) and tuple(flat[path].spec) == stacked[1:], path
    assert any("fsdp" in tuple(flat[path].spec) for path in paths)


def test_the_combination_takes_each_half_from_the_model_that_trained_it():
    record, config, _, _ = model("bert")
    forward, backward = (random_params(record, config, seed) for seed in (1, 2))
    made = flatten(combine(forward, backward))
    assert made.keys() == record.shapes(config).keys()
    for path, value in made.items():
        from_forward, from_backward = (flatten(params)[path].astype(np.float64) for params in (forward, backward))
        if path.startswith("layers/"):
            for layer in range(4):
                np.testing.assert_array_equal(value[layer], (from_backward if layer < 2 else from_forward)[layer])
        else:
            np.testing.assert_allclose(value, (from_forward + from_backward) / 2, rtol=1e-6, atol=1e-7)
        assert value.dtype == np.float32


@pytest.mark.parametrize("name", ENCODERS)
def test_a_folded_model_is_an_ordinary_one_that_differs_by_positions_alone(name, tmp_path):
    """With one row for all positions transformers computes the same; with different ones it does not, but nearly the same."""
    record, config, hf, params = model(name)
    tokens, mask, _, _ = crossed(config.pad_token_id)
    table = params["position_embedding"]["embedding"]
    flat = params | {"position_embedding": {"embedding": np.broadcast_to(table[5], table.shape).copy()}}
    near = {}
    for kind, given in (("flat", flat), ("own", params)):
        folded, plain_hf = fold(given, config, hf)
        assert plain_hf["architectures"] == [f"{name.title()}ForMaskedLM"] and not {"language_count", "tri_layer"} & {*plain_hf}
        fields = transformers.AutoConfig.for_model(**{key: value for key, value in plain_hf.items() if key != "architectures"})
        oracle = transformers.AutoModelForMaskedLM.from_config(fields).eval()
        plain = family(name)
        tensors = plain.to_hugging_face(folded, plain.config(plain_hf))
        missing, unexpected = oracle.load_state_dict({key: torch.tensor(x) for key, x in tensors.items()}, strict=False)
        assert not unexpected and all("decoder" in key for key in missing)
        with torch.no_grad():
            found = oracle(torch.tensor(tokens).long(), attention_mask=torch.tensor(mask).long()).logits.numpy()
        near[kind] = np.abs(found - logits(record, config, given, tokens, mask))[mask].max()
    assert near["flat"] < TOLERANCE < 1e-2 < near["own"]


def test_folding_reads_the_language_that_it_is_told():
    record, config, hf, params = model("bert")
    tokens, mask, _, _ = crossed(0)
    plain, other = family("bert"), config.override(tri_layer=False)
    flat = {path: value for path, value in flatten(params).items() if not path.startswith("tri_layer")}
    for language in (0, 1):
        folded, plain_hf = fold(unflatten(flat), other, hf | {"tri_layer": False}, language)
        found = logits(plain, plain.config(plain_hf), folded, tokens, mask)
        expected = logits(record, other, unflatten(flat), tokens, mask, Crossing(np.full(ROWS, language, np.int32)))
        assert np.abs(found - expected)[mask].max() < TOLERANCE
