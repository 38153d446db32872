"""Scores of running text against transformers with torch, window by window and token by token."""

import json
import math

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from tests.evaluation.tiny_models import save
from tests.tiny_tokenizers import LINES, byte_bpe, every_kind, wordpiece
from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.errors import UserError
from wechsel_jax.evaluation.loaded import LoadedModel
from wechsel_jax.evaluation.step_zero import perplexity_at_zero
from wechsel_jax.evaluation.text import score_text

DOCUMENTS = [*LINES[:3], "It mulls over it.", LINES[1] + " " + LINES[0]]
LENGTH = 24


def saved(model, tokenizer, directory):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "LayerNorm" not in name and "ln_" not in name:
                parameter.copy_(0.2 * torch.randn(parameter.shape))
    model.tie_weights()
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return LoadedModel.open(directory), model.eval()


@pytest.fixture(scope="module")
def causal(tmp_path_factory):
    torch.manual_seed(0)
    tokenizer = byte_bpe(add_prefix_space=False)
    config = transformers.GPT2Config(
        vocab_size=len(tokenizer), n_positions=LENGTH, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    return saved(transformers.GPT2LMHeadModel(config), tokenizer, tmp_path_factory.mktemp("causal"))


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    torch.manual_seed(0)
    tokenizer = wordpiece()
    around = [(token, tokenizer.convert_tokens_to_ids(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=around)
    config = transformers.BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=LENGTH, pad_token_id=tokenizer.pad_token_id or 0,
    )  # fmt: skip
    return saved(transformers.BertForMaskedLM(config), tokenizer, tmp_path_factory.mktemp("masked"))


def recipe(model, ids, window, stride):
    """Nats of ids[1:], as in transformers' guide to perplexities of fixed-length models."""
    nats, before = np.zeros(len(ids) - 1), 0
    for begin in range(0, len(ids), stride):
        end = min(begin + window, len(ids))
        with torch.no_grad():
            logits = model(torch.tensor([ids[begin:end]])).logits[0, :-1].double()
        found = torch.nn.functional.cross_entropy(logits, torch.tensor(ids[begin + 1 : end]), reduction="none").numpy()
        fresh = end - max(before, 1)
        nats[max(before, 1) - 1 : end - 1] = found[len(found) - fresh :]
        before = end
        if end == len(ids):
            return nats


@pytest.mark.parametrize(("window", "stride"), [(LENGTH, 0), (LENGTH, LENGTH), (10, 3)])
def test_a_causal_model_predicts_each_token_once(causal, window, stride):
    model, reference = causal
    found = score_text(model, DOCUMENTS, window=0 if window == LENGTH else window, stride=stride)
    pieces = [[*model.tokenizer.encode(document), 0] for document in DOCUMENTS]
    ids = [0, *(token for piece in pieces for token in piece)]
    if stride == window:
        # The cheap way has a token of context at least, where the recipe would predict a window's first token from nothing.
        nats = np.zeros(len(ids) - 1)
        for start in range(0, len(nats), window - 1):
            part = ids[start : start + window]
            nats[start : start + len(part) - 1] = recipe(reference, part, window, window)
    else:
        nats = recipe(reference, ids, window, stride or LENGTH // 2)
    of_text = np.array(ids[1:]) != 0
    owner = np.repeat(np.arange(len(DOCUMENTS)), [len(piece) for piece in pieces])
    expected = np.bincount(owner[of_text], nats[of_text])
    np.testing.assert_allclose(found.nats, expected, rtol=2e-5)
    assert found.tokens.sum() == of_text.sum() and found.special_tokens == len(DOCUMENTS) and found.unknown == 0
    metrics = found.metrics()
    assert metrics["perplexity"] == pytest.approx(math.exp(nats.mean()), rel=2e-5)
    size = len("".join(DOCUMENTS).encode())
    assert metrics["bits_per_byte"] == pytest.approx(expected.sum() / math.log(2) / size, rel=2e-5)
    assert metrics["bits_per_word"] == pytest.approx(expected.sum() / math.log(2) / len(" ".join(DOCUMENTS).split()), rel=2e-5)


def test_the_stride_of_half_a_window_gives_half_a_window_of_context(causal):
    """A model that looks one window back cannot tell a stride of 1 from half a window as long as its text fits."""
    model, _ = causal
    short = DOCUMENTS[3:4]
    np.testing.assert_allclose(score_text(model, short, stride=1).nats, score_text(model, short).nats, rtol=1e-5)
    cheap, half, best = (score_text(model, DOCUMENTS, stride=stride) for stride in (LENGTH, 0, 1))
    assert cheap.tokens.sum() == half.tokens.sum() == best.tokens.sum()
    assert len({round(float(one.nats.sum()), 3) for one in (cheap, half, best)}) == 3


def test_a_masked_model_predicts_each_token_from_all_others(masked):
    model, reference = masked
    # The last document is longer than the model, and is cut into parts that begin and end like it.
    documents = [DOCUMENTS[1], DOCUMENTS[4]]
    found = score_text(model, documents)
    mask, size = model.tokenizer.mask_token_id, LENGTH - 2
    assert len(model.tokenizer.encode(documents[1])) > LENGTH
    for number, document in enumerate(documents):
        begin, *text, end = model.tokenizer.encode(document)
        total = 0.0
        for start in range(0, len(text), size):
            part = [begin, *text[start : start + size], end]
            rows = torch.tensor([part] * (len(part) - 2))
            places = torch.arange(len(part) - 2)
            rows[places, places + 1] = mask
            with torch.no_grad():
                logits = reference(rows).logits[places, places + 1].double()
            total += torch.nn.functional.cross_entropy(logits, torch.tensor(part[1:-1]), reduction="sum").item()
        assert found.nats[number] == pytest.approx(total, rel=2e-5)
        assert found.tokens[number] == len(text)
    unknown = sum(model.tokenizer.encode(document).count(model.tokenizer.unk_token_id) for document in documents)
    metrics = found.metrics()
    assert metrics["unknown_tokens"] == unknown
    assert metrics["pseudo_perplexity"] == pytest.approx(math.exp(found.nats.sum() / found.tokens.sum()), rel=1e-6)


@pytest.mark.parametrize(
    ("options", "documents", "message"),
    [
        ({"window": LENGTH + 1}, DOCUMENTS, "expected 2 to the 24 tokens"),
        ({"window": 1}, DOCUMENTS, "expected 2 to the 24 tokens"),
        ({"stride": LENGTH + 1}, DOCUMENTS, "stride: is 25; expected 1 to 24"),
        ({}, [], "expected text to score"),
    ],
)
def test_what_cannot_be_scored_is_said(causal, options, documents, message):
    with pytest.raises(UserError, match=message):
        score_text(causal[0], documents, **options)


def test_a_text_without_a_token_is_said(masked):
    # BERT's tokenizer takes characters out that nobody sees.
    with pytest.raises(UserError, match=r"has no token that .* could predict"):
        score_text(masked[0], ["\u200b"])


def test_characters_that_a_tokenizer_leaves_out_are_counted(tmp_path):
    """A BPE of characters without an unknown token writes nothing for those that it lacks."""
    backend = Tokenizer(models.BPE({"<s>": 0, "▁": 1, "a": 2, "b": 3, "ab": 4}, [("a", "b")]))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<s>").save_pretrained(tmp_path)
    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 1, "n_positions": 64}
    transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=5, **sizes)).save_pretrained(tmp_path)
    model = LoadedModel.open(tmp_path)
    assert score_text(model, ["ab ba", "a"]).unknown == 0
    assert score_text(model, ["ab жaж ж", "a中"]).unknown == 4


def test_special_tokens_that_a_text_spells_count_neither_in_nats_nor_in_bytes(causal):
    model, _ = causal
    end = model.tokenizer.eos_token
    plain, spelled = score_text(model, ["The dog sleeps."]), score_text(model, [f"The dog{end}{end} sleeps."])
    assert plain.bytes.tolist() == spelled.bytes.tolist() == [15]
    # A stretch of nothing else is no word.
    apart = score_text(model, [f"The dog {end} sleeps. {end}"])
    assert plain.words.tolist() == spelled.words.tolist() == apart.words.tolist() == [3]
    assert plain.tokens.tolist() == spelled.tokens.tolist() and spelled.special_tokens == plain.special_tokens + 2


def test_a_masked_model_reads_no_special_token_that_a_text_spells(masked):
    model, _ = masked
    mask = model.tokenizer.mask_token
    plain, spelled = (score_text(model, [text]) for text in ("The dog sleeps.", f"{mask}The dog sleeps.{mask}"))
    assert plain.tokens.tolist() == spelled.tokens.tolist()
    np.testing.assert_allclose(spelled.nats, plain.nats, rtol=1e-6)


@pytest.mark.parametrize("kind", ["byte", "byte-prefix", "llama", "unigram", "wordpiece"])
def test_a_trainer_and_evaluate_count_the_same_bytes(kind, tmp_path):
    """All tokens are equally likely, so two numbers of bits per byte differ by what they count as bytes."""
    tokenizer = every_kind()[kind]
    if tokenizer.eos_token is None and tokenizer.sep_token is None:
        tokenizer.add_special_tokens({"eos_token": "</s>"})
    tokenizer.save_pretrained(tmp_path)
    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 1, "n_positions": 64}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=len(tokenizer), **sizes))
    for parameter in model.parameters():
        parameter.data.zero_()
    model.save_pretrained(tmp_path)
    # Words and characters without spaces between them, and letters that the tokenizer does not know.
    lines = [*LINES, "Ganz neue Wörter: Zyklus, Ärger, 中国人民银行 und mehr!", "中文日本語の文章"] * 5
    (tmp_path / "text.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    trained = perplexity_at_zero(Checkpoint.open(tmp_path), tmp_path / "text.txt", tokens_limit=1_000_000)
    evaluated = score_text(LoadedModel.open(tmp_path), lines).metrics()
    assert trained["bits_per_byte"] == pytest.approx(evaluated["bits_per_byte"], rel=2e-3)
    # All but the first token, from which the second is predicted.
    assert 0 < sum(len(line.encode()) for line in lines) - trained["bytes"] < 8


def test_an_id_behind_the_models_rows_is_refused_however_few_tokens_there_are(tmp_path):
    save(tmp_path, "gpt2")
    state = json.loads((tmp_path / "tokenizer.json").read_text())
    vocabulary = state["model"]["vocab"]
    vocabulary[max(vocabulary, key=vocabulary.get)] = 500
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    with pytest.raises(UserError, match=r"has ids up to 500 and the model \d+ rows; expected the tokenizer of the model"):
        LoadedModel.open(tmp_path)


def test_a_special_token_behind_the_models_rows_is_left_out_with_a_note(tmp_path):
    save(tmp_path, "gpt2")
    tokenizer = byte_bpe(False)
    before = score_text(LoadedModel.open(tmp_path), LINES).metrics()
    tokenizer.add_special_tokens({"extra_special_tokens": ["<image_soft_token>"]})
    tokenizer.save_pretrained(tmp_path)
    model = LoadedModel.open(tmp_path)
    assert model.note == f"{tmp_path}: <image_soft_token>: without a row in the model, so left out"
    assert score_text(model, LINES).metrics() == before
