"""The head for trees against the formulas of Dozat and Manning in torch, on models of transformers: scores and gradients."""

from functools import partial

import jax
import numpy as np
import pytest

from tests.models.make_golden import CONFIGS
from wechsel_jax.models import family
from wechsel_jax.models.heads import fill_head, stated_family, stated_head, with_head
from wechsel_jax.models.weights import flatten, unflatten
from wechsel_jax.objectives.labels import label_objective
from wechsel_jax.training.sharding import make_mesh, parameter_shardings

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
functional = torch.nn.functional

TOLERANCE = 2e-5
LABELS = 3
# Three rows of five, three and one words.
MASK = np.asarray([[1] * 9, [1] * 6 + [0] * 3, [1] * 4 + [0] * 5], bool)
WORDS = np.asarray([[1, 2, 4, 5, 7], [1, 3, 4, -1, -1], [2, -1, -1, -1, -1]], np.int32)
HEADS = np.asarray([[2, 0, 2, 5, 2], [3, 1, 0, 0, 0], [0] * 5], np.int32)
# -1: a relation that the model has not; weight 0: a head that is not in the row.
RELATIONS = np.asarray([[0, 1, 2, -1, 0], [1, 1, 2, -1, -1], [2, -1, -1, -1, -1]], np.int32)
WEIGHTS = np.asarray([[1, 1, 1, 1, 0], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0]], np.float32)


@partial(jax.jit, static_argnums=0)
def scores_and_gradients(objective, params, batch):
    """Those of the sum over words."""

    def loss(params):
        scores = objective.scores(params, batch)
        return objective.loss(scores, batch)[0], scores

    (value, scores), gradients = jax.value_and_grad(loss, has_aux=True)(params)
    return scores, value, gradients


def in_torch(tensors, hidden):
    """Scores of arcs and of the relations to every head, (B, W, W + 1) and (B, W, W + 1, C), as the paper writes them."""
    rows = torch.arange(3)[:, None]
    x = hidden[rows, torch.tensor(np.maximum(WORDS, 0)).long()]
    root = tensors["classifier.root"].expand(3, 1, -1)
    states = {}
    for name in ("arc_dependent", "arc_head", "label_dependent", "label_head"):
        given = torch.cat([root, x], 1) if name.endswith("head") else x
        weight, bias = tensors[f"classifier.{name}.weight"], tensors[f"classifier.{name}.bias"]
        states[name] = functional.leaky_relu(functional.linear(given, weight, bias), 0.1)
    # Equation 6: heads U dependent + heads u.
    arcs = states["arc_dependent"] @ tensors["classifier.arcs"][:-1] @ states["arc_head"].mT
    arcs = arcs + (states["arc_head"] @ tensors["classifier.arcs"][-1])[:, None]
    # Equation 3: the product of both, what is said by either alone, and a bias.
    both, words = tensors["classifier.labels"], 5
    dependent = states["label_dependent"][:, :, None].expand(-1, -1, words + 1, -1).contiguous()
    head = states["label_head"][:, None].expand(-1, words, -1, -1).contiguous()
    labels = functional.bilinear(dependent, head, both[:, :-1, :-1].contiguous(), both[:, -1, -1])
    labels = labels + functional.linear(dependent, both[:, :-1, -1]) + functional.linear(head, both[:, -1, :-1])
    possible = torch.tensor(np.pad(WORDS >= 0, ((0, 0), (1, 0)), constant_values=True))[:, None].expand_as(arcs).clone()
    possible[:, torch.arange(words), torch.arange(words) + 1] = False
    return arcs.masked_fill(~possible, -torch.inf), labels


@pytest.fixture(scope="module", params=["bert", "gpt2"])
def case(request):
    """(torch model, our family, config, tensors of ours with gradients)."""
    fields = CONFIGS[request.param] | {"pad_token_id": 0}
    reference = transformers.AutoModel.from_config(
        transformers.AutoConfig.for_model(**fields), attn_implementation="eager"
    ).eval()
    model = with_head(family(request.param), "parsing", LABELS)
    config = model.config(fields)
    rng = np.random.default_rng(0)
    # A sum over 500 states is large enough with less.
    scales = {path: 0.05 if path.endswith("/arcs") else 0.25 for path in model.shapes(config)}
    drawn = {path: scales[path] * rng.normal(size=shape) for path, shape in model.shapes(config).items()}
    params = unflatten({path: value.astype(np.float32) for path, value in drawn.items()})
    tensors = {name: torch.tensor(value, requires_grad=True) for name, value in model.to_hugging_face(params, config).items()}
    return reference, model, config, params, tensors


def batch_of(config):
    tokens = np.where(MASK, np.random.default_rng(1).integers(4, 31, MASK.shape), 0).astype(np.int32)
    batch = {"tokens": tokens, "mask": MASK, "words": WORDS, "heads": HEADS, "labels": RELATIONS, "weights": WEIGHTS}
    return batch | ({"types": (np.arange(9) > 2) & MASK} if config.type_vocabulary_size > 1 else {})


def test_scores_and_gradients_are_those_of_the_paper(case):
    reference, model, config, params, tensors = case
    batch = batch_of(config)
    backbone = {name.removeprefix(model.tensors.prefix): value for name, value in tensors.items() if "classifier" not in name}
    given = {"input_ids": torch.tensor(batch["tokens"]).long(), "attention_mask": torch.tensor(MASK).long()}
    if "types" in batch:
        batch["types"] = batch["types"].astype(np.int32)
        given["token_type_ids"] = torch.tensor(batch["types"]).long()
    hidden = torch.func.functional_call(reference, backbone, kwargs=given).last_hidden_state
    arcs, labels = in_torch(tensors, hidden)
    chosen = labels.take_along_dim(torch.tensor(HEADS).long()[..., None, None], 2)[:, :, 0]
    of_heads = torch.tensor(WEIGHTS > 0)
    of_labels = of_heads & torch.tensor(RELATIONS >= 0)
    loss = functional.cross_entropy(arcs[of_heads], torch.tensor(HEADS).long()[of_heads], reduction="sum")
    loss = loss + functional.cross_entropy(chosen[of_labels], torch.tensor(RELATIONS).long()[of_labels], reduction="sum")
    loss.backward()

    found, value, gradients = scores_and_gradients(label_objective(model, config, "float32", "parsing"), params, batch)
    assert np.isfinite(arcs[of_heads].detach().numpy()).sum() > 20
    assert np.abs(chosen.detach().numpy()).max() > 0.5
    np.testing.assert_allclose(found.arcs, arcs.detach().numpy(), rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(found.labels, chosen.detach().numpy(), rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(found.best, labels.argmax(-1).numpy())
    np.testing.assert_allclose(value, loss.item(), atol=TOLERANCE)
    for name, gradient in model.to_hugging_face(jax.device_get(gradients), config).items():
        expected = tensors[name].grad
        expected = np.zeros(gradient.shape) if expected is None else expected.numpy()
        if name.endswith(("word_embeddings.weight", "wte.weight")):
            gradient, expected = gradient[1:], expected[1:]
        np.testing.assert_allclose(gradient, expected, rtol=TOLERANCE, atol=TOLERANCE, err_msg=name)


def test_what_is_written_is_read_again_and_has_one_rule_of_sharding(case):
    _, model, config, params, tensors = case
    again = model.from_hugging_face({name: value.detach().numpy() for name, value in tensors.items()}, config)
    assert flatten(again).keys() == flatten(params).keys()
    for path, value in flatten(again).items():
        np.testing.assert_array_equal(value, flatten(params)[path], err_msg=path)
    where, notes = parameter_shardings(
        make_mesh({"data": 1, "fsdp": 4, "tensor": 2}), model.sharding_rules, model.shapes(config)
    )
    assert set(flatten(where)) == set(flatten(params)) and not [note for note in notes if "classifier" in note]


def test_a_new_head_knows_nothing_and_a_config_names_it():
    """Every head and every relation is as likely as the others; a head of labels takes the place of one for trees, and back."""
    fields = CONFIGS["bert"] | {"architectures": ["BertForDependencyParsing"], "id2label": {"0": "obj", "1": "root"}}
    assert stated_head(fields) == ("parsing", ("obj", "root"))
    model = stated_family(fields)
    assert model is with_head(family("bert"), "parsing", 2) and with_head(family("xglm"), "parsing", 2)
    config = model.config(fields)
    assert config.classifier_dropout == 0.33 and model.config(fields, dropout=0.0).classifier_dropout == 0.0
    rng = np.random.default_rng(0)
    drawn = {path: rng.normal(size=shape).astype(np.float32) for path, shape in model.shapes(config).items()}
    tensors = model.to_hugging_face(unflatten(drawn), config)
    new = fill_head(tensors, model, config, jax.random.key(1), same_labels=False)
    assert not new["classifier.arcs"].any() and not new["classifier.labels"].any()
    assert 0.9 < new["classifier.arc_head.weight"].std() * config.hidden_size**0.5 < 1.1
    tagger = with_head(family("bert"), "tagging", 2)
    other = tensors | {"classifier.weight": np.zeros((2, 12), np.float32), "classifier.bias": np.zeros(2, np.float32)}
    assert tagger.from_hugging_face(other, tagger.config(fields))["classifier"].keys() == {"output"}
    kept = fill_head(tensors, model, config, jax.random.key(1), same_labels=True)
    assert all(np.array_equal(kept[name], tensors[name]) for name in tensors)
