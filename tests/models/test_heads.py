"""Models with a head for labels against the classes of transformers with torch: scores, gradients, tensors, new heads."""

import warnings
from functools import partial

import jax
import numpy as np
import pytest

from tests.models.make_golden import CONFIGS
from wechsel_jax.errors import UserError
from wechsel_jax.models import family
from wechsel_jax.models.heads import FORMS, fill_head, stated_family, stated_head, with_head
from wechsel_jax.models.weights import flatten, unflatten
from wechsel_jax.objectives.labels import LabelObjective
from wechsel_jax.training.sharding import make_mesh, parameter_shardings

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOLERANCE = 2e-5
AUTO = {
    "classification": transformers.AutoModelForSequenceClassification,
    "tagging": transformers.AutoModelForTokenClassification,
    "answers": transformers.AutoModelForQuestionAnswering,
}
# Every way to name a head and its model.
CASES = [
    *((name, form) for name in ("gpt2", "roberta", "bert", "llama") for form in AUTO),
    *(("qwen2_tied", "answers"), ("gemma3", "classification")),
]
LABELS = 3


def fields_of(name):
    return CONFIGS[name] | {"pad_token_id": CONFIGS[name].get("pad_token_id", 2)}


def count(form):
    return 2 if form == "answers" else LABELS


@partial(jax.jit, static_argnums=0)
def scores_and_gradients(objective, params, batch):
    """Scores; the trainer's loss divided by its weight, and the gradients of that."""

    def mean(params):
        loss, weight, _ = objective(params, batch, None, train=False)
        return loss / weight

    value, gradients = jax.value_and_grad(mean)(params)
    return objective.scores(params, batch), value, gradients


def batch_of(form, tokens, mask, types):
    labels = labels_of(form)
    weights = np.full(labels.shape, 0.5 if form == "answers" else 1.0, np.float32)
    return {"tokens": tokens, "mask": mask, "labels": labels, "weights": weights} | ({} if types is None else {"types": types})


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def case(request):
    """(torch model, our family, config, parameters of the torch model's tensors, form)."""
    name, form = request.param
    fields = fields_of(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        described = transformers.AutoConfig.for_model(**fields, num_labels=count(form))
        reference = AUTO[form].from_config(described, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for path, parameter in reference.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_norm_scale = parameter.ndim == 1 and path.endswith("weight")
            parameter.copy_(("gemma" not in name) + 0.2 * noise if is_norm_scale else 0.25 * noise)
    model = with_head(family(fields["model_type"]), form, count(form))
    config = model.config(reference.config.to_dict())
    tensors = {path: value.numpy().copy() for path, value in reference.state_dict().items()}
    return reference, model, config, model.from_hugging_face(tensors, config), form


def random_parameters(model, config):
    rng = np.random.default_rng(0)
    return unflatten({path: rng.normal(size=shape).astype(np.float32) for path, shape in model.shapes(config).items()})


def rows(model, config, padded=True):
    """(tokens, mask, types): three rows, two of them padded on the right."""
    mask = np.ones((3, 9), bool)
    if padded:
        mask[1, 6:], mask[2, 4:] = False, False
    tokens = np.where(mask, np.random.default_rng(1).integers(4, 31, mask.shape), config.pad_token_id or 2).astype(np.int32)
    if padded and config.label_padding_id is not None:
        # Of a text, as an end of text that pads, too.
        tokens[0, 7:] = tokens[1, 5] = config.label_padding_id
    types = ((np.arange(9) > 2) & mask).astype(np.int32) if config.type_vocabulary_size > 1 else None
    return tokens, mask, types


def labels_of(form):
    shape = {"classification": (3,), "tagging": (3, 9), "answers": (3, 2)}[form]
    return np.random.default_rng(2).integers(0, 9 if form == "answers" else LABELS, shape)


def answer(reference, form, tokens, mask, types, **labels):
    given = {"input_ids": torch.tensor(tokens).long(), "attention_mask": torch.tensor(mask).long()}
    if types is not None:
        given["token_type_ids"] = torch.tensor(types).long()
    out = reference(**given, **labels)
    return (torch.stack([out.start_logits, out.end_logits], 1) if form == "answers" else out.logits), out.loss


@pytest.mark.slow
def test_scores_with_padding_and_segments(case):
    reference, model, config, params, form = case
    tokens, mask, types = rows(model, config)
    with torch.no_grad():
        expected = answer(reference, form, tokens, mask, types)[0].numpy()
    objective = LabelObjective(model, config, "float32", form)
    found = np.asarray(scores_and_gradients(objective, params, batch_of(form, tokens, mask, types))[0])
    assert found.shape == expected.shape and found.dtype == np.float32
    real = {"classification": np.ones((3, LABELS), bool), "tagging": mask[..., None], "answers": mask[:, None]}[form]
    real = np.broadcast_to(real, expected.shape)
    assert np.abs(expected[real]).max() > 0.1
    assert np.abs(found - expected)[real].max() < TOLERANCE
    if form == "answers":
        assert np.all(np.isneginf(found[~real]))


def test_gradients_are_those_of_torch(case):
    """Those of the trainer's objective and of the class's own loss; rows without padding, where those of answers agree."""
    reference, model, config, params, form = case
    tokens, mask, types = rows(model, config, padded=False)
    labels = labels_of(form)
    if form == "answers":
        given = {"start_positions": torch.tensor(labels[:, 0]), "end_positions": torch.tensor(labels[:, 1])}
    else:
        given = {"labels": torch.tensor(labels)}
    reference.zero_grad()
    loss = answer(reference, form, tokens, mask, types, **given)[1]
    loss.backward()

    objective = LabelObjective(model, config, "float32", form)
    _, value, gradients = scores_and_gradients(objective, params, batch_of(form, tokens, mask, types))
    np.testing.assert_allclose(value, loss.item(), atol=TOLERANCE)
    names = dict(reference.named_parameters())
    written = model.to_hugging_face(jax.device_get(gradients), config)
    assert set(written) == set(names)
    for name, gradient in written.items():
        expected = names[name].grad
        expected = np.zeros(gradient.shape) if expected is None else expected.numpy()
        if name.endswith(("wte.weight", "word_embeddings.weight", "embed_tokens.weight")):
            # torch leaves the padding row of a table without a gradient.
            gradient, expected = (
                np.delete(gradient, config.pad_token_id or 2, 0),
                np.delete(expected, config.pad_token_id or 2, 0),
            )
        np.testing.assert_allclose(gradient, expected, atol=2e-5, err_msg=name)


def test_what_is_written_is_what_the_class_has(case):
    reference, model, config, params, _ = case
    tensors, expected = model.to_hugging_face(params, config), reference.state_dict()
    assert set(tensors) == set(expected)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor, expected[name].numpy(), err_msg=name)
    assert model.architecture == type(reference).__name__


def test_every_parameter_has_one_rule_of_sharding(case):
    _, model, config, _, _ = case
    mesh = make_mesh({"data": 1, "fsdp": 4, "tensor": 2})
    shapes = model.shapes(config)
    where, _ = parameter_shardings(mesh, model.sharding_rules, shapes)
    assert set(flatten(where)) == set(shapes)


def test_a_new_head_is_drawn_as_transformers_draws_it_and_the_backbone_is_read():
    fields = fields_of("roberta") | {"hidden_size": 60}
    backbone = family("roberta")
    config = backbone.config(fields)
    language_model = backbone.to_hugging_face(random_parameters(backbone, config), config)
    model = with_head(backbone, "classification", 3)
    ours = model.config(fields)
    tensors = fill_head(language_model, model, ours, jax.random.key(5), same_labels=False)
    params = model.from_hugging_face(tensors, ours)
    np.testing.assert_array_equal(
        params["token_embedding"]["embedding"], language_model["roberta.embeddings.word_embeddings.weight"]
    )
    kernel = params["classifier"]["dense"]["kernel"]
    assert abs(kernel.std() - 0.02) < 2e-3 and not params["classifier"]["output"]["bias"].any()
    again, other = (fill_head(language_model, model, ours, jax.random.key(seed), same_labels=False) for seed in (5, 6))
    name = "classifier.dense.weight"
    assert np.array_equal(tensors[name], again[name]) and not np.array_equal(tensors[name], other[name])


def test_a_head_of_the_same_labels_is_kept_and_another_one_is_not():
    model, fields = with_head(family("bert"), "classification", 3), fields_of("bert")
    config = model.config(fields)
    tensors = model.to_hugging_face(random_parameters(model, config), config)
    kept = fill_head(tensors, model, config, jax.random.key(5), same_labels=True)
    assert all(np.array_equal(kept[name], tensors[name]) for name in tensors) and set(kept) == set(tensors)
    new = fill_head(tensors, model, config, jax.random.key(5), same_labels=False)
    differs = {name for name in tensors if not np.array_equal(new[name], tensors[name])}
    assert differs == {"classifier.weight", "classifier.bias"}
    two = with_head(family("bert"), "classification", 2)
    smaller = fill_head(tensors, two, two.config(fields), jax.random.key(5), same_labels=True)
    assert smaller["classifier.weight"].shape[0] == 2
    assert two.from_hugging_face(smaller, two.config(fields))


def test_a_config_says_which_head_a_model_has():
    hf = fields_of("roberta") | {"architectures": ["RobertaForTokenClassification"], "id2label": {"1": "B", "0": "A", "2": "C"}}
    assert stated_head(hf) == ("tagging", ("A", "B", "C"))
    assert stated_family(hf) is with_head(family("roberta"), "tagging", 3)
    assert stated_family(fields_of("roberta")) is family("roberta")
    assert stated_head(hf | {"architectures": ["RobertaForQuestionAnswering"]}) == ("answers", ("start", "end"))
    # The class of transformers is the same, and only a field says that a predicate belongs to the text.
    assert stated_head(hf | {"semantic_roles": True})[0] == "roles"
    with pytest.raises(UserError, match="id2label"):
        stated_head(hf | {"id2label": {"one": "A"}})


@pytest.mark.parametrize(("name", "form"), [("xglm", "classification"), ("gemma", "answers"), ("gemma3_text", "tagging")])
def test_what_transformers_has_no_class_for_is_refused(name, form):
    with pytest.raises(UserError, match=f"no class for {form} with a {name}"):
        with_head(family(name), form, 2)


def test_roles_need_a_model_that_sees_the_predicate():
    with pytest.raises(UserError, match="roles does not fit a gpt2, whose words do not see the predicate"):
        with_head(family("gpt2"), "roles", 3)
    assert with_head(family("bert"), "roles", 3).architecture == "BertForTokenClassification"


def test_dropout_of_the_head_follows_the_classes():
    fields = fields_of("roberta") | {"hidden_dropout_prob": 0.2}
    rates = {form: with_head(family("roberta"), form, 2).config(fields).classifier_dropout for form in FORMS}
    assert rates == {"classification": 0.2, "tagging": 0.2, "answers": 0.0, "parsing": 0.33, "roles": 0.2}
    stated = with_head(family("roberta"), "tagging", 2).config(fields | {"classifier_dropout": 0.3})
    assert stated.classifier_dropout == 0.3 and stated.override(dropout=0.0).classifier_dropout == 0.0
    assert with_head(family("gpt2"), "tagging", 2).config(fields_of("gpt2")).classifier_dropout == 0.1
    assert with_head(family("gpt2"), "classification", 2).config(fields_of("gpt2")).classifier_dropout == 0.0
