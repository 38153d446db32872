"""The vanilla Transformer against `torch.nn.Transformer`, which loads what is exported by name."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wechsel_jax.errors import UserError
from wechsel_jax.initializers.transforms import sinusoidal_positions
from wechsel_jax.models.cache import Cache
from wechsel_jax.models.heads import stated_family, with_head
from wechsel_jax.models.registry import family
from wechsel_jax.models.vanilla import ENCODER, TRANSLATOR, decoder_config
from wechsel_jax.models.weights import unflatten

torch = pytest.importorskip("torch")

HF = {
    "model_type": "transformer",
    "vocab_size": 29,
    "decoder_vocab_size": 23,
    "d_model": 20,
    "nhead": 5,
    "num_encoder_layers": 3,
    "num_decoder_layers": 2,
    "dim_feedforward": 24,
    "max_position_embeddings": 16,
}
# The paper's formula (equation 2), written out; Vaswani's has the same exponent for a sine and its cosine.
translate = jax.jit(
    lambda params, tokens, mask, targets, dropout_key, config: TRANSLATOR.logits(
        params, config, TRANSLATOR.translate(params, config, tokens, mask, targets, dropout_key=dropout_key)
    ),
    static_argnames="config",
)
EXPONENTS = {"literal": lambda j: j, "paired": lambda j: j - j % 2}


class Reference(torch.nn.Module):
    """PyTorch's tutorial on translation: its modules under its names."""

    def __init__(self, hf: dict, decoder: bool = True):
        super().__init__()
        width, self.heads = hf["d_model"], hf["nhead"]
        layers = (hf["num_encoder_layers"], hf["num_decoder_layers"])
        self.src_tok_emb = torch.nn.ModuleDict({"embedding": torch.nn.Embedding(hf["vocab_size"], width)})
        self.transformer = torch.nn.Transformer(width, self.heads, *layers, hf["dim_feedforward"], 0.0, batch_first=True)
        if decoder:
            self.tgt_tok_emb = torch.nn.ModuleDict({"embedding": torch.nn.Embedding(hf["decoder_vocab_size"], width)})
            self.generator = torch.nn.Linear(width, hf["decoder_vocab_size"])
        else:
            del self.transformer.decoder

    def placed(self, table, tokens, positions):
        rows = table["embedding"](tokens) * math.sqrt(table["embedding"].embedding_dim)
        if positions == "none":
            return rows
        place = torch.zeros(rows.shape[1:], dtype=torch.float64)
        for i in range(place.shape[0]):
            for j in range(place.shape[1]):
                angle = i / 10000 ** (EXPONENTS[positions](j) / place.shape[1])
                place[i, j] = math.cos(angle) if j % 2 else math.sin(angle)
        return rows + place.to(rows.dtype)

    def encode(self, tokens, mask, positions):
        return self.transformer.encoder(self.placed(self.src_tok_emb, tokens, positions), src_key_padding_mask=~mask)

    def forward(self, tokens, mask, targets, positions="literal"):
        causal = torch.nn.Transformer.generate_square_subsequent_mask(targets.shape[1])
        memory = self.encode(tokens, mask, positions)
        placed = self.placed(self.tgt_tok_emb, targets, positions)
        hidden = self.transformer.decoder(placed, memory, causal, memory_key_padding_mask=~mask)
        return self.generator(hidden)


@pytest.fixture(scope="module")
def batch():
    generator = np.random.default_rng(0)
    tokens, targets = generator.integers(0, 29, (3, 9)), generator.integers(0, 23, (3, 7))
    mask = np.arange(9) < np.array([[9], [4], [6]])
    return tokens, mask, targets


@pytest.fixture(scope="module")
def model():
    """(config, parameters whose biases and norms say something, the same in PyTorch)."""
    config = TRANSLATOR.config(HF, dropout=0.0)
    generator = np.random.default_rng(1)
    params = jax.tree.map(
        lambda shape: (0.3 * generator.standard_normal(shape)).astype(np.float32),
        unflatten(TRANSLATOR.shapes(config)),
        is_leaf=lambda x: isinstance(x, tuple),
    )
    reference = Reference(HF).eval()
    reference.load_state_dict({n: torch.tensor(x) for n, x in TRANSLATOR.to_hugging_face(params, config).items()})
    return config, params, reference


@pytest.mark.parametrize("positions", ["literal", "paired", "none"])
def test_logits_are_those_of_pytorch(model, batch, positions):
    _, params, reference = model
    config = TRANSLATOR.config(HF | {"positions": positions}, dropout=0.0)
    tokens, mask, targets = batch
    ours = translate(params, tokens, mask, targets, None, config=config)
    with torch.no_grad():
        theirs = reference(*map(torch.tensor, batch), positions)
    np.testing.assert_allclose(ours, theirs.numpy(), atol=2e-5)


def test_gradients_are_those_of_pytorch(model, batch):
    config, params, reference = model
    tokens, mask, targets = batch

    def loss(params):
        logits = TRANSLATOR.logits(params, config, TRANSLATOR.translate(params, config, tokens, mask, targets[:, :-1]))
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[:, 1:, None], axis=-1).mean()

    ours = TRANSLATOR.to_hugging_face(jax.device_get(jax.jit(jax.grad(loss))(params)), config)
    given = [torch.tensor(x) for x in (tokens, mask, targets)]
    logits = reference(given[0], given[1], given[2][:, :-1])
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), given[2][:, 1:].flatten()).backward()
    for name, parameter in reference.named_parameters():
        np.testing.assert_allclose(ours[name], parameter.grad.numpy(), atol=2e-5, err_msg=name)


def test_weights_survive_the_way_to_pytorch_and_back(model):
    config, params, reference = model
    state = {name: value.numpy() for name, value in reference.state_dict().items()}
    again = TRANSLATOR.from_hugging_face(state, config)
    jax.tree.map(np.testing.assert_array_equal, again, params)


def test_a_token_at_a_time_gives_the_same(model, batch):
    config, params, _ = model
    tokens, mask, targets = batch
    whole = translate(params, tokens, mask, targets, None, config=config)
    memory = jax.jit(TRANSLATOR.remember, static_argnums=1)(params, config, tokens, mask)

    @jax.jit
    def write(params, new, cache):
        hidden, cache = TRANSLATOR.write(params, config, new, cache, memory, mask)
        return TRANSLATOR.logits(params, config, hidden), cache

    parts, cache = [], Cache.empty(decoder_config(config), 3, 8)
    for place in range(targets.shape[1]):
        scores, cache = write(params, targets[:, place : place + 1], cache)
        parts.append(scores)
    np.testing.assert_allclose(np.concatenate(parts, axis=1), whole, atol=2e-5)


def test_padding_changes_nothing(model, batch):
    config, params, _ = model
    tokens, mask, targets = batch
    short = translate(params, tokens[1:2, :4], None, targets[1:2], None, config=config)
    whole = translate(params, tokens, mask, targets, None, config=config)
    np.testing.assert_allclose(whole[1:2], short, atol=2e-5)


def test_a_classifier_is_pytorchs_encoder_and_a_mean(batch):
    tokens, mask, _ = batch
    of_labels = with_head(family("transformer"), "classification", 3)
    config = of_labels.config(HF, dropout=0.0)
    params = jax.device_get(jax.jit(of_labels.init, static_argnums=0)(config, jax.random.key(3)))
    tensors = {name: torch.tensor(x) for name, x in of_labels.to_hugging_face(params, config).items()}
    head = {name: tensors.pop(f"classifier.{name}") for name in ("weight", "bias")}
    reference = Reference(HF, decoder=False).eval()
    reference.load_state_dict(tensors)
    with torch.no_grad():
        hidden = reference.encode(torch.tensor(tokens), torch.tensor(mask), "literal")
        # Row 1 has four real tokens.
        means = torch.stack([row[:count].mean(0) for row, count in zip(hidden, mask.sum(1), strict=True)])
        theirs = torch.nn.functional.linear(means, **head)
    np.testing.assert_allclose(
        jax.jit(of_labels.scores, static_argnums=1)(params, config, tokens, mask), theirs.numpy(), atol=2e-5
    )


def test_new_weights_are_xaviers():
    """Limits of `torch.nn.init.xavier_uniform_` for the shapes that PyTorch has, and its biases of 0."""
    wide = HF | {"d_model": 80, "vocab_size": 400, "dim_feedforward": 96}
    config = TRANSLATOR.config(wide)
    params = jax.device_get(jax.jit(TRANSLATOR.init, static_argnums=0)(config, jax.random.key(0)))
    tensors = TRANSLATOR.to_hugging_face(params, config)
    for name, value in tensors.items():
        if value.ndim == 1:
            assert (value == ("norm" in name and name.endswith("weight"))).all(), name
            continue
        limit = float(torch.nn.init.xavier_uniform_(torch.empty(value.shape)).abs().max())
        assert np.abs(value).max() == pytest.approx(limit, rel=0.01) and abs(value.mean()) < 0.05 * limit, name
    layers = params["layers"]["mlp"]["up"]["kernel"]
    assert not np.array_equal(layers[0], layers[1])


def test_positions_are_the_initializers_own():
    np.testing.assert_allclose(
        [[math.sin(3 / 10000 ** (2 / 6)), math.cos(3 / 10000 ** (3 / 6))]], sinusoidal_positions(4, 6)[3:, 2:4], atol=1e-12
    )


def test_parameters_are_counted_as_in_table_5_of_the_paper():
    """Its twelve models, in millions: the widths that it leaves open are the ones that give its numbers."""
    translators = {
        (7800, 5900, 300, 10): 11, (6300, 5500, 768, 8): 39, (6500, 5500, 768, 8): 39,
        (27_000, 20_000, 300, 10): 25, (15_000, 16_000, 768, 8): 62, (18_000, 18_000, 768, 8): 67,
    }  # fmt: skip
    for (source, target, width, heads), millions in translators.items():
        config = TRANSLATOR.config(
            {"vocab_size": source, "decoder_vocab_size": target, "d_model": width, "nhead": heads}, scan_layers=True
        )
        count = sum(map(math.prod, TRANSLATOR.shapes(config).values()))
        assert count / 1e6 == pytest.approx(millions, abs=0.55), (source, count)
    classifiers = {
        (79_000, 300, 10, 3): 26, (26_000, 768, 8, 3): 29, (23_000, 512, 8, 3): 17,
        (13_000, 300, 10, 2): 6, (11_000, 768, 8, 2): 18, (8800, 512, 8, 2): 9,
    }  # fmt: skip
    for (source, width, heads, labels), millions in classifiers.items():
        of_labels = with_head(ENCODER, "classification", labels)
        count = sum(
            map(
                math.prod, of_labels.shapes(of_labels.config({"vocab_size": source, "d_model": width, "nhead": heads})).values()
            )
        )
        assert count / 1e6 == pytest.approx(millions, abs=0.55), (source, count)


def test_every_parameter_has_one_sharding_rule():
    for of_model in (TRANSLATOR, with_head(ENCODER, "classification", 2)):
        for path, shape in of_model.shapes(of_model.config(HF)).items():
            rules = [spec for pattern, spec in of_model.sharding_rules if re.search(pattern, path)]
            assert len(rules) == 1 and len(rules[0]) <= len(shape), path


def test_dropout_is_drawn_from_its_key(model, batch):
    config, params, _ = model
    config = config.override(dropout=0.5, inner_dropout=0.5)
    first, again, other = (translate(params, *batch, jax.random.key(key), config=config) for key in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)


def test_which_model_a_config_describes():
    assert stated_family(HF) is TRANSLATOR
    classifier = {name: value for name, value in HF.items() if name != "decoder_vocab_size"}
    architectures = {"architectures": ["TransformerForSequenceClassification"], "id2label": {"0": "a", "1": "b"}}
    assert stated_family(classifier | architectures) is with_head(ENCODER, "classification", 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"positions": "learned"}, "positions are 'learned'; expected one of literal, paired, none"),
        ({"nhead": 3}, "hidden size 20 is no multiple of 3"),
        ({"num_decoder_layers": 0}, "decoder_layers 0; expected at least 1"),
        ({"d_model": "wide"}, "d_model is 'wide'"),
        ({"norm_first": True}, "norm_first is True, which is not implemented; expected False"),
        ({"bias": False}, "bias is False, which is not implemented; expected True"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings is True, which is not implemented"),
    ],
)
def test_what_makes_no_model_is_one_line(change, message):
    with pytest.raises(UserError, match=message):
        TRANSLATOR.config(HF | change)
