"""Masked tokens and pairs of segments together, against BertForPreTraining of transformers with torch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wechsel_jax.errors import UserError
from wechsel_jax.evaluation import perplexity
from wechsel_jax.models import family
from wechsel_jax.models.heads import fill_head, with_next_sentence
from wechsel_jax.objectives import make_objective
from wechsel_jax.objectives.mlm import mask_tokens

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOLERANCE = 2e-5
FIELDS = {
    "vocab_size": 64,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 24,
    "pad_token_id": 0,
    # No dropout, so that training computes what torch does in evaluation.
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
CLS, SEP, MASK = 1, 2, 3
ROWS, LENGTH = 6, 20
KEY = jax.random.key(5)
BERT = with_next_sentence(family("bert"))
CONFIG = BERT.config(FIELDS)
OBJECTIVE = make_objective("mlm_nsp", BERT, CONFIG, mask_token_id=MASK, special_ids=(0, 1, 2, 3))
# One program in place of dozens, one for each operation.
masked_by = jax.jit(mask_tokens, static_argnums=(4, 5))


@pytest.fixture(scope="module")
def reference():
    torch.manual_seed(0)
    model = transformers.BertForPreTraining(transformers.BertConfig(**FIELDS)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.25 * torch.randn(parameter.shape))
    return model


@pytest.fixture(scope="module")
def params(reference):
    return BERT.from_hugging_face({name: value.numpy().copy() for name, value in reference.state_dict().items()}, CONFIG)


def make_batch():
    """Pairs of different lengths, as `SentencePairs` makes them."""
    rng = np.random.default_rng(0)
    first, second = rng.integers(2, 9, (2, ROWS, 1))
    place = np.arange(LENGTH)
    mask = place < first + second + 3
    tokens = np.where(mask, rng.integers(4, 64, mask.shape), 0).astype(np.int32)
    tokens[:, 0], tokens[(place == first + 1) | (place == first + second + 2)] = CLS, SEP
    types = ((place >= first + 2) & mask).astype(np.int32)
    return {"tokens": tokens, "mask": mask, "types": types, "labels": np.array([0, 1, 1, 0, 1, 0], np.int32)}


BATCH = make_batch()


def torchs(reference, batch, key=KEY):
    """The outputs of BertForPreTraining on the same masked tokens."""
    mask_key, _ = jax.random.split(key)
    eligible = (batch["tokens"] > 3) & batch["mask"] & (batch.get("weights", np.ones(len(batch["mask"])))[:, None] > 0)
    masked = masked_by(mask_key, batch["tokens"], eligible, jnp.arange(4, 64), MASK, 0.15)
    labels = np.full(batch["tokens"].shape, -100)
    for row, (positions, chosen) in enumerate(zip(np.asarray(masked.positions), np.asarray(masked.chosen), strict=True)):
        labels[row, positions[chosen]] = batch["tokens"][row, positions[chosen]]
    assert (labels >= 0).sum() > 3
    as_torch = {
        "input_ids": np.asarray(masked.tokens),
        **{"attention_mask": batch["mask"], "token_type_ids": batch["types"], "labels": labels},
        "next_sentence_label": batch["labels"],
    }
    return reference(**{name: torch.tensor(np.asarray(value)).long() for name, value in as_torch.items()}), labels


@jax.jit
def mean_and_gradients(params, batch):
    def mean(params):
        loss, weight, metrics = OBJECTIVE(params, batch, KEY, train=True)
        return loss / weight, (weight, metrics)

    return jax.value_and_grad(mean, has_aux=True)(params)


def test_loss_and_gradients_are_torchs(reference, params):
    (loss, (weight, metrics)), gradients = mean_and_gradients(params, BATCH)
    reference.zero_grad()
    expected, labels = torchs(reference, BATCH)
    expected.loss.backward()
    np.testing.assert_allclose(loss, expected.loss.item(), rtol=TOLERANCE)
    assert weight == (labels >= 0).sum() and metrics["nsp_weight"] == ROWS
    guesses = expected.seq_relationship_logits.detach()
    alone = torch.nn.functional.cross_entropy(guesses, torch.tensor(BATCH["labels"]).long(), reduction="sum")
    np.testing.assert_allclose(metrics["nsp_loss"], alone.item(), rtol=TOLERANCE)
    assert metrics["nsp_correct"] == (guesses.argmax(1).numpy() == BATCH["labels"]).sum()
    np.testing.assert_allclose(metrics["mlm_loss"] / weight + alone.item() / ROWS, expected.loss.item(), rtol=TOLERANCE)
    ours = BERT.to_hugging_face(jax.device_get(gradients), CONFIG)
    theirs = {name: value.grad.numpy() for name, value in reference.named_parameters() if value.grad is not None}
    assert {*ours} == {*theirs} and {"bert.pooler.dense.weight", "cls.seq_relationship.bias"} <= {*ours}
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name], value, atol=TOLERANCE, err_msg=name)


def test_evaluations_divide_each_loss_by_its_own_count_and_leave_out_what_fills_up(reference, params):
    halves = [{name: value[part] for name, value in BATCH.items()} for part in (slice(0, 4), slice(4, 6))]
    filled = {name: np.concatenate([value, BATCH[name][:2]]) for name, value in halves[1].items()}
    batches = [halves[0] | {"weights": np.ones(4, np.float32)}, filled | {"weights": np.array([1, 1, 0, 0], np.float32)}]
    tokens, pairs = [], []
    for number, batch in enumerate(batches):
        output, labels = torchs(reference, batch, jax.random.fold_in(KEY, number))
        logits, guesses = (value.detach().log_softmax(-1).numpy() for value in (output[1], output[2]))
        tokens += [-logits[row, place, labels[row, place]] for row, place in np.argwhere(labels >= 0)]
        pairs += [(-guesses[row, label], guesses[row].argmax() == label) for row, label in enumerate(batch["labels"])]
    (guessed, right), masked = np.mean(pairs[:ROWS], axis=0), np.mean(tokens)
    found = perplexity(OBJECTIVE, params, batches, key=KEY)
    expected = {"loss": masked + guessed, "mlm_loss": masked, "nsp_loss": guessed, "nsp_accuracy": right}
    assert found["tokens"] == len(tokens)
    for name, value in (expected | {"perplexity": np.exp(masked)}).items():
        np.testing.assert_allclose(found[name], value, rtol=TOLERANCE, err_msg=name)


def test_an_ordinary_checkpoint_gets_new_heads_and_one_with_them_keeps_them(reference, params):
    tensors = {name: value.numpy().copy() for name, value in reference.state_dict().items()}
    kept = fill_head(tensors, BERT, CONFIG, KEY, same_labels=True)
    assert kept.keys() == tensors.keys() and all(kept[name] is tensors[name] for name in tensors)
    # As BertModel has them, without a prefix.
    bare = {name.removeprefix("bert."): value for name, value in tensors.items()}
    assert all(value is bare[name] for name, value in fill_head(bare, BERT, CONFIG, KEY, same_labels=True).items())
    plain = {name: value for name, value in tensors.items() if "pooler" not in name and "seq_relationship" not in name}
    new = fill_head(plain, BERT, CONFIG, KEY, same_labels=True)
    assert new.keys() == tensors.keys()
    pooler = new["bert.pooler.dense.weight"]
    assert 0.01 < pooler.std() < 0.03 and not new["cls.seq_relationship.bias"].any()
    changed = BERT.from_hugging_face(new, CONFIG)
    same = jax.tree.map(np.array_equal, changed, params)
    assert not same["classifier"]["dense"]["kernel"] and all(jax.tree.leaves(same["layers"]))


def test_models_without_segments_are_refused():
    for name in ("roberta", "xlm-roberta", "tri-roberta"):
        with pytest.raises(UserError, match=f"mlm_nsp does not fit a {name}, which has neither token types nor a pooler"):
            with_next_sentence(family(name))
    with pytest.raises(UserError, match="type_vocab_size is 1; expected 2 for mlm_nsp"):
        BERT.config(FIELDS | {"type_vocab_size": 1})
    with pytest.raises(UserError, match="mlm_nsp does not fit a bert without a head for it"):
        make_objective("mlm_nsp", family("bert"), CONFIG, mask_token_id=MASK)
