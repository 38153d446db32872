"""Vocabulary surgery in every family: torch says what the model computes before and after."""

import dataclasses
import functools
import json

import numpy as np
import pytest
import torch
import transformers as hf
from safetensors import safe_open

from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.checkpoint.architectures import ARCHITECTURES
from wechsel_jax.checkpoint.surgery import Surgery, write_target
from wechsel_jax.checkpoint.tensors import read_header, write_tensors
from wechsel_jax.errors import UserError
from wechsel_jax.initializers import METHODS, TransferPlan
from wechsel_jax.tokens import Vocabulary, load_tokenizer
from wechsel_jax.tokens.overlap import match_special
from wechsel_jax.tokens.training import train_tokenizer
from wechsel_jax.transfers.job import transfer

PADDING = 3
_SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
_BERT = _SMALL | {"max_position_embeddings": 66}
_LLAMA = _BERT | {"num_key_value_heads": 1, "head_dim": 8, "pad_token_id": None, "bos_token_id": 0, "eos_token_id": 0}
_T5 = {"d_model": 16, "d_kv": 8, "num_layers": 2, "num_heads": 2, "d_ff": 24, "pad_token_id": 1, "eos_token_id": 2}
_T5 |= {"decoder_start_token_id": 1}
_BART = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
_BART |= {"encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 64, "pad_token_id": 1, "eos_token_id": 2}
_BART |= {"decoder_start_token_id": 2, "forced_eos_token_id": 2, "bos_token_id": 0}
_GPT = {"n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 64, "bos_token_id": 0, "eos_token_id": 0}
_EYE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24, "image_size": 28}
_EYE |= {"patch_size": 14}


@dataclasses.dataclass(frozen=True)
class Family:
    """A tiny model of one kind; `style` is that of its tokenizers, `tables` the vocabulary tensors that its file holds."""

    model: str
    config: dict
    style: str
    tables: tuple[str, ...]


def family(model: str, config: dict, style: str, *tables: str) -> Family:
    return Family(model, config, style, tables)


_EMBED, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_DECODER = "gpt2"
_BLOOM_TABLE, _ROBERTA_TABLE = "transformer.word_embeddings.weight", "roberta.embeddings.word_embeddings.weight"
FAMILIES = {
    "gpt2": family("GPT2LMHeadModel", _GPT, _DECODER, "transformer.wte.weight"),
    "gptj": family("GPTJForCausalLM", _GPT | {"rotary_dim": 4}, _DECODER, "transformer.wte.weight", _HEAD, "lm_head.bias"),
    "gpt_neo": family(
        "GPTNeoForCausalLM",
        {
            "hidden_size": 16, "num_layers": 2, "num_heads": 2, "max_position_embeddings": 64,
            "attention_types": [[["global", "local"], 1]],
        },
        _DECODER, "transformer.wte.weight",
    ),
    "mpt": family(
        "MptForCausalLM", {"d_model": 16, "n_layers": 2, "n_heads": 2, "max_seq_len": 64}, _DECODER, "transformer.wte.weight"
    ),
    "bloom": family("BloomForCausalLM", {"hidden_size": 16, "n_layer": 2, "n_head": 2}, _DECODER, _BLOOM_TABLE),
    "falcon": family(
        "FalconForCausalLM", {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}, _DECODER,
        _BLOOM_TABLE,
    ),
    "gpt_neox": family("GPTNeoXForCausalLM", _BERT, _DECODER, "gpt_neox.embed_in.weight", "embed_out.weight"),
    "opt": family(
        "OPTForCausalLM",
        {
            "hidden_size": 16, "word_embed_proj_dim": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 24,
            "max_position_embeddings": 64,
        },
        _DECODER, "model.decoder.embed_tokens.weight",
    ),
    "xglm": family(
        "XGLMForCausalLM", {"d_model": 16, "num_layers": 2, "attention_heads": 2, "ffn_dim": 24, "max_position_embeddings": 64},
        "roberta", _EMBED,
    ),
    "llama": family("LlamaForCausalLM", _LLAMA, _DECODER, _EMBED, _HEAD),
    "llama-tied": family("LlamaForCausalLM", _LLAMA | {"tie_word_embeddings": True}, _DECODER, _EMBED),
    "mistral": family("MistralForCausalLM", _LLAMA, _DECODER, _EMBED, _HEAD),
    "mixtral": family("MixtralForCausalLM", _LLAMA | {"num_local_experts": 2}, _DECODER, _EMBED, _HEAD),
    "qwen2": family("Qwen2ForCausalLM", _LLAMA, _DECODER, _EMBED, _HEAD),
    "qwen3": family("Qwen3ForCausalLM", _LLAMA, _DECODER, _EMBED, _HEAD),
    "phi": family("PhiForCausalLM", _BERT, _DECODER, _EMBED, _HEAD, "lm_head.bias"),
    "phi3": family("Phi3ForCausalLM", _LLAMA, _DECODER, _EMBED, _HEAD),
    "gemma": family("GemmaForCausalLM", _LLAMA, _DECODER, _EMBED),
    "gemma2": family("Gemma2ForCausalLM", _LLAMA, _DECODER, _EMBED),
    "gemma3_text": family("Gemma3ForCausalLM", _LLAMA, _DECODER, _EMBED),
    "gemma3": family(
        "Gemma3ForConditionalGeneration",
        {
            "text_config": _LLAMA, "vision_config": _EYE, "mm_tokens_per_image": 4, "image_token_index": 5,
            "boi_token_index": 6, "eoi_token_index": 7,
        },
        _DECODER, "language_model.model.embed_tokens.weight",
    ),
    "olmo2": family("Olmo2ForCausalLM", _LLAMA, _DECODER, _EMBED, _HEAD),
    "smollm3": family("SmolLM3ForCausalLM", _LLAMA, _DECODER, _EMBED),
    "cohere": family("CohereForCausalLM", _LLAMA, _DECODER, _EMBED),
    "starcoder2": family("Starcoder2ForCausalLM", _LLAMA, _DECODER, _EMBED),
    "granite": family("GraniteForCausalLM", _LLAMA, _DECODER, _EMBED, _HEAD),
    "stablelm": family("StableLmForCausalLM", _BERT | {"num_key_value_heads": 2}, _DECODER, _EMBED, _HEAD),
    "roberta": family("RobertaForMaskedLM", _BERT, "roberta", _ROBERTA_TABLE, "lm_head.bias"),
    "roberta-untied": family(
        "RobertaForMaskedLM", _BERT | {"tie_word_embeddings": False}, "roberta", "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.weight", "lm_head.bias", "lm_head.decoder.bias",
    ),
    "xlm-roberta": family("XLMRobertaForMaskedLM", _BERT, "roberta", _ROBERTA_TABLE, "lm_head.bias"),
    "camembert": family("CamembertForMaskedLM", _BERT, "roberta", _ROBERTA_TABLE, "lm_head.bias"),
    "mpnet": family("MPNetForMaskedLM", _BERT, "roberta", "mpnet.embeddings.word_embeddings.weight", "lm_head.bias"),
    "bert": family("BertForMaskedLM", _BERT, "wordpiece", "bert.embeddings.word_embeddings.weight", "cls.predictions.bias"),
    "bert-untied": family(
        "BertForMaskedLM", _BERT | {"tie_word_embeddings": False}, "wordpiece", "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.weight", "cls.predictions.bias", "cls.predictions.decoder.bias",
    ),
    "bert-pretraining": family(
        "BertForPreTraining", _BERT, "wordpiece", "bert.embeddings.word_embeddings.weight", "cls.predictions.bias"
    ),
    "distilbert": family(
        "DistilBertForMaskedLM", {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "max_position_embeddings": 64},
        "wordpiece", "distilbert.embeddings.word_embeddings.weight", "vocab_projector.bias",
    ),
    "electra": family(
        "ElectraForMaskedLM", _BERT | {"embedding_size": 12}, "wordpiece", "electra.embeddings.word_embeddings.weight",
        "generator_lm_head.bias",
    ),
    "albert": family(
        "AlbertForMaskedLM", _BERT | {"embedding_size": 12}, "unigram", "albert.embeddings.word_embeddings.weight",
        "predictions.bias",
    ),
    "deberta-v2": family(
        "DebertaV2ForMaskedLM", _BERT, "unigram", "deberta.embeddings.word_embeddings.weight", "cls.predictions.bias"
    ),
    "modernbert": family(
        "ModernBertForMaskedLM", _BERT | dict.fromkeys(("pad_token_id", "bos_token_id", "cls_token_id"), 1)
        | {"eos_token_id": 2, "sep_token_id": 2}, "roberta", "model.embeddings.tok_embeddings.weight", "decoder.bias",
    ),
    "t5": family("T5ForConditionalGeneration", _T5, "unigram", "shared.weight"),
    "mt5": family("MT5ForConditionalGeneration", _T5, "unigram", "shared.weight"),
    "umt5": family("UMT5ForConditionalGeneration", _T5, "unigram", "shared.weight"),
    "bart": family("BartForConditionalGeneration", _BART, "roberta", "model.shared.weight", "final_logits_bias"),
    "mbart": family("MBartForConditionalGeneration", _BART, "unigram", "model.shared.weight", "final_logits_bias"),
    "m2m_100": family("M2M100ForConditionalGeneration", _BART, "unigram", "model.shared.weight"),
    "marian": family("MarianMTModel", _BART, "unigram", "model.shared.weight", "final_logits_bias"),
    "pegasus": family("PegasusForConditionalGeneration", _BART, "unigram", "model.shared.weight", "final_logits_bias"),
}  # fmt: skip


@functools.cache
def build(name: str, rows: int) -> hf.PreTrainedModel:
    """A random model whose weights, biases and buffers are large enough that a wrong row shows."""
    kind = getattr(hf, FAMILIES[name].model)
    config = {key: dict(value) if isinstance(value, dict) else value for key, value in FAMILIES[name].config.items()}
    for part in (config, config.get("text_config", {})):
        part["vocab_size"] = rows
    torch.manual_seed(len(name))
    model = kind(kind.config_class(**config)).eval()
    with torch.no_grad():
        for name_, tensor in (*model.named_parameters(), *model.named_buffers()):
            if name_.endswith("final_logits_bias") or (
                tensor.requires_grad and "norm" not in name_.lower() and "ln_" not in name_
            ):
                tensor.copy_(torch.randn(tensor.shape) * 0.3)
    return model


@dataclasses.dataclass(frozen=True)
class Tokens:
    """Two vocabularies of one kind, and a plan with copies, mixtures and noise that leads from one to the other."""

    source: Vocabulary
    target: Vocabulary
    tokenizer: hf.PreTrainedTokenizerFast
    plan: TransferPlan


def random_plan(source: Vocabulary, target: Vocabulary, seed: int = 0) -> TransferPlan:
    random = np.random.default_rng(seed)
    kind = random.integers(0, 3, len(target))
    neighbors, weights = random.integers(0, len(source), (len(target), 5)), random.standard_normal((len(target), 5))
    copy = np.where(kind == 1, random.integers(300, 650, len(target)), -1)
    special = match_special(source, target)
    return TransferPlan.mixed(neighbors, weights).with_noise(kind == 2).with_copies(np.where(target.special, special, copy))


@pytest.fixture(scope="session")
def tokens(world, tmp_path_factory):
    """Returns a function: style of tokenizer -> its `Tokens`."""

    @functools.cache
    def make(style: str) -> Tokens:
        pair = []
        for language, size in (("english", 700), ("german", 600)):
            place = world.root / f"{style}-{language}"
            if not place.exists():
                text = tmp_path_factory.mktemp("text") / "some.txt"
                text.write_text("".join((world.root / f"{language}.txt").read_text().splitlines(keepends=True)[:400]))
                train_tokenizer(text, size, place, style, "roberta")
            pair.append(load_tokenizer(place))
        source, target = (Vocabulary.from_tokenizer(tokenizer) for tokenizer in pair)
        return Tokens(source, target, pair[1], random_plan(source, target))

    return make


def cut(model: hf.PreTrainedModel, directory, tokens: Tokens, output, **options) -> Surgery:
    """Saves a model and gives it the target vocabulary."""
    model.save_pretrained(directory)
    return operate(directory, tokens, output, **options)


def operate(directory, tokens: Tokens, output, **options) -> Surgery:
    output.mkdir()
    surgery = Surgery(
        Checkpoint.open(directory), options.pop("plan", tokens.plan), METHODS[options.pop("method", "wechsel")],
        tokens.source, tokens.target, **options,
    )  # fmt: skip
    write_target(surgery, output, tokens.tokenizer)
    return surgery


def reload(model: hf.PreTrainedModel, directory) -> hf.PreTrainedModel:
    """Loads with transformers and asserts that every tensor was expected and none is missing."""
    loaded, info = type(model).from_pretrained(directory, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    return loaded.eval()


def logits(model: hf.PreTrainedModel, ids: np.ndarray) -> torch.Tensor:
    ids = torch.from_numpy(ids.astype(np.int64))
    inputs = {"input_ids": ids} | ({"decoder_input_ids": ids.flip(0)} if model.config.is_encoder_decoder else {})
    with torch.no_grad():
        out = model(**inputs)
    return getattr(out, "logits", None) if hasattr(out, "logits") else out.prediction_logits


def assert_computes_the_same(model: hf.PreTrainedModel, new: hf.PreTrainedModel, tokens: Tokens) -> None:
    copied = np.flatnonzero((tokens.plan.copy >= 0) & ~np.asarray(tokens.target.special))
    ids = np.random.default_rng(1).choice(copied, (2, 9))
    old_logits, new_logits = logits(model, tokens.plan.copy[ids]), logits(new, ids)
    assert old_logits.std() > 0.01
    torch.testing.assert_close(new_logits[..., copied], old_logits[..., tokens.plan.copy[copied]], atol=1e-5, rtol=1e-5)


def stored(directory) -> dict[str, np.ndarray]:
    return {name: np.array(tensor.read()) for name, tensor in Checkpoint.open(directory).tensors.items()}


def assert_rows(old: np.ndarray, new: np.ndarray, plan: TransferPlan) -> None:
    """Copied rows bit for bit, mixed rows as float64 computes them, random rows with the source's mean and deviation."""
    copied, mixed = plan.copy >= 0, plan.is_mixed
    assert new[copied].tobytes() == old[plan.copy[copied]].tobytes() and new.dtype == old.dtype
    expected = np.einsum(
        "tk,tk...->t...", plan.weights[mixed].astype(np.float64), old[plan.neighbors[mixed]].astype(np.float64)
    )
    precision = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 1.6e-2}[old.dtype.name]
    np.testing.assert_allclose(new[mixed].astype(np.float64), expected, atol=precision, rtol=precision)
    noise = new[plan.random].astype(np.float64)
    assert len(np.unique(noise[:, 0] if noise.ndim > 1 else noise)) > 100
    assert abs(noise.std() / old.astype(np.float64).std() - 1) < 0.15


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_computes_what_it_computed(tokens, tmp_path, name):
    family, mine = FAMILIES[name], tokens(FAMILIES[name].style)
    model = build(name, len(mine.source) + PADDING)
    surgery = cut(model, tmp_path / "source", mine, tmp_path / "out")
    found = surgery.checkpoint.vocabulary_tensors()
    assert {tensor.name for tensor in found} == set(family.tables) and found[0].name == family.tables[0]
    assert surgery.checkpoint.architecture in ARCHITECTURES
    new = reload(model, tmp_path / "out")
    assert_computes_the_same(model, new, mine)
    before, after = stored(tmp_path / "source"), stored(tmp_path / "out")
    assert before.keys() == after.keys()
    for tensor in found:
        assert_rows(tensor.rows(before.pop(tensor.name)), tensor.rows(after.pop(tensor.name)), mine.plan)
    assert all(before[name].tobytes() == after[name].tobytes() for name in before)
    text = new.config.get_text_config()
    assert text.vocab_size == 600 == new.get_input_embeddings().weight.shape[0]
    head = new.get_output_embeddings()
    if head is not None:
        tied = head.weight is new.get_input_embeddings().weight
        assert tied is surgery.checkpoint.tied is (model.get_output_embeddings().weight is model.get_input_embeddings().weight)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bart", "bert-untied"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_half_precision_stays(tokens, tmp_path, name, dtype):
    mine = tokens(FAMILIES[name].style)
    model = build.__wrapped__(name, len(mine.source)).to(dtype)
    surgery = cut(model, tmp_path / "source", mine, tmp_path / "out")
    assert {parameter.dtype for parameter in reload(model, tmp_path / "out").parameters()} == {dtype}
    before, after = stored(tmp_path / "source"), stored(tmp_path / "out")
    for tensor in surgery.checkpoint.vocabulary_tensors():
        assert_rows(tensor.rows(before[tensor.name]), tensor.rows(after[tensor.name]), mine.plan)


def without(directory, *names: str, **more: np.ndarray) -> None:
    """Changes which tensors a saved model holds."""
    tensors = {name: array for name, array in stored(directory).items() if name not in names} | more
    write_tensors(directory / "model.safetensors", tensors)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "copies"),
    [
        ("t5", ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", _HEAD)),
        ("bart", ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", _HEAD)),
        ("bert", ("cls.predictions.decoder.weight",)),
        ("distilbert", ("vocab_projector.weight",)),
        ("opt", (_HEAD,)),
        ("gemma", (_HEAD,)),
    ],
)
@pytest.mark.parametrize("first", [True, False], ids=["all", "only copies"])
def test_stored_copies_of_a_tied_table(tokens, tmp_path, name, copies, first):
    mine, table = tokens(FAMILIES[name].style), FAMILIES[name].tables[0]
    model = build(name, len(mine.source))
    model.save_pretrained(tmp_path / "source")
    array = stored(tmp_path / "source")[table]
    without(tmp_path / "source", *(() if first else (table,)), **dict.fromkeys(copies, array))
    surgery = operate(tmp_path / "source", mine, tmp_path / "out")
    kept = table if first else copies[0]
    assert surgery.checkpoint.tied and surgery.checkpoint.table == kept
    assert sum("left out" in note and "token_id" not in note for note in surgery.notes) == len(set(copies) - {kept})
    assert_computes_the_same(model, reload(model, tmp_path / "out"), mine)


@pytest.mark.parametrize(("name", "setting"), [("t5", True), ("t5", False), ("bart", True), ("gemma", True), ("gpt2", True)])
def test_a_head_that_differs_stays_a_head(tokens, tmp_path, name, setting):
    """T5 1.1 and mT5 hold a head of their own; their `tie_word_embeddings: false` also says how the decoder is scaled."""
    mine, table = tokens(FAMILIES[name].style), FAMILIES[name].tables[0]
    build(name, len(mine.source)).save_pretrained(tmp_path / "source")
    head = np.random.default_rng(0).standard_normal((len(mine.source), 16), np.float32)
    without(tmp_path / "source", **{_HEAD: head})
    config = json.loads((tmp_path / "source" / "config.json").read_text()) | {"tie_word_embeddings": setting}
    (tmp_path / "source" / "config.json").write_text(json.dumps(config))
    model = type(build(name, len(mine.source))).from_pretrained(tmp_path / "source").eval()
    surgery = operate(tmp_path / "source", mine, tmp_path / "out")
    roles = {tensor.name: tensor.role for tensor in surgery.checkpoint.vocabulary_tensors()}
    assert not surgery.checkpoint.tied and roles[table] == "input" and roles[_HEAD] == "head"
    assert_computes_the_same(model, reload(model, tmp_path / "out"), mine)
    assert_rows(head, stored(tmp_path / "out")[_HEAD], mine.plan)
    if name == "t5":
        assert json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"] is setting


def test_separate_tables_of_encoder_and_decoder_stay_separate(tokens, tmp_path):
    mine = tokens("roberta")
    build("bart", len(mine.source)).save_pretrained(tmp_path / "source")
    random = np.random.default_rng(0)
    names = [f"model.{part}.embed_tokens.weight" for part in ("encoder", "decoder")]
    tables = {name: random.standard_normal((len(mine.source), 16), np.float32) for name in names}
    without(tmp_path / "source", **tables)
    surgery = operate(tmp_path / "source", mine, tmp_path / "out")
    assert [tensor.role for tensor in surgery.checkpoint.vocabulary_tensors()] == ["input"] * 3 + ["bias"]
    for name, table in tables.items():
        assert_rows(table, stored(tmp_path / "out")[name], mine.plan)
    model = build("bart", len(mine.source))
    assert_computes_the_same(type(model).from_pretrained(tmp_path / "source").eval(), reload(model, tmp_path / "out"), mine)


def test_a_source_in_shards_gives_a_target_in_the_same_shards(tokens, tmp_path):
    mine, model = tokens("gpt2"), build("llama", 703)
    model.save_pretrained(tmp_path / "whole")
    model.save_pretrained(tmp_path / "source", max_shard_size="50KB")
    index = json.loads((tmp_path / "source" / "model.safetensors.index.json").read_text())["weight_map"]
    assert len(set(index.values())) > 2
    operate(tmp_path / "source", mine, tmp_path / "out")
    operate(tmp_path / "whole", mine, tmp_path / "single")
    written = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert written["weight_map"] == index and not (tmp_path / "out" / "model.safetensors").exists()
    one, other = stored(tmp_path / "out"), stored(tmp_path / "single")
    assert one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)
    assert written["metadata"]["total_size"] == sum(array.nbytes for array in one.values())
    assert_computes_the_same(model, reload(model, tmp_path / "out"), mine)


def test_an_unknown_architecture_is_detected_where_there_is_no_doubt(tokens, tmp_path):
    mine, model = tokens("gpt2"), build("phi", 703)
    model.save_pretrained(tmp_path / "source")
    path = tmp_path / "source" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_type": "brand_new"}))
    surgery = operate(tmp_path / "source", mine, tmp_path / "out")
    assert surgery.checkpoint.record.detected and not surgery.checkpoint.tied
    assert any("No brand_new model is known here" in note for note in surgery.notes)
    path = tmp_path / "out" / "config.json"
    assert json.loads(path.read_text())["vocab_size"] == 600
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_type": "phi"}))
    assert_computes_the_same(model, reload(model, tmp_path / "out"), mine)
    without(tmp_path / "source", **{"wte.weight": np.zeros((703, 4), np.float32)})
    with pytest.raises(UserError, match=r"'brand_new', and the files hold 2 tables .*add a record"):
        Checkpoint.open(tmp_path / "source").vocabulary_tensors()
    without(tmp_path / "source", "wte.weight", "model.embed_tokens.weight")
    with pytest.raises(UserError, match=r"'brand_new', and the files hold no table of the usual names with vocab_size = 703"):
        Checkpoint.open(tmp_path / "source").vocabulary_tensors()


def test_a_size_that_config_leaves_to_the_class_is_written(tokens, tmp_path):
    """gemma-3's config.json has no vocab_size: the class has it, and it is no longer right."""
    mine, model = tokens("gpt2"), build("gemma3", 703)
    model.save_pretrained(tmp_path / "source")
    path = tmp_path / "source" / "config.json"
    config = json.loads(path.read_text())
    del config["text_config"]["vocab_size"]
    path.write_text(json.dumps(config))
    surgery = operate(tmp_path / "source", mine, tmp_path / "out")
    new = reload(model, tmp_path / "out")
    assert new.config.text_config.vocab_size == 600 and new.config.image_token_index == -1
    assert any(note.startswith("image_token_index") for note in surgery.notes)


def test_two_vocabularies_in_one_model_are_refused(tokens, tmp_path):
    config = _BART | {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 703, "vocab_size": 703}
    hf.MarianMTModel(hf.MarianConfig(**config, tie_word_embeddings=False)).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="share_encoder_decoder_embeddings is false"):
        Checkpoint.open(tmp_path).vocabulary_tensors()


def test_drawing_everything_again_is_refused_where_it_is_not_known_how(tokens, tmp_path):
    mine = tokens("gpt2")
    with pytest.raises(UserError, match="full_rand: cannot initialise a phi model"):
        cut(
            build("phi", 703),
            tmp_path / "source",
            mine,
            tmp_path / "out",
            method="full_rand",
            plan=TransferPlan.all_random(600),
        )


def test_it_is_refused_before_the_weights_are_read(world, tmp_path, monkeypatch):
    build("phi", 703).save_pretrained(tmp_path / "source")
    load_tokenizer(world.tokenizer("english", "gpt2")).save_pretrained(tmp_path / "source")
    monkeypatch.setattr(Checkpoint, "require_finite", lambda *_: pytest.fail("weights were read"))
    with pytest.raises(UserError, match="full_rand: cannot initialise a phi model"):
        transfer(tmp_path / "source", world.tokenizer("german", "gpt2"), tmp_path / "out", method="full_rand")


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "bert", "xglm"])
def test_drawing_everything_again_makes_a_new_model(tokens, tmp_path, name):
    mine = tokens(FAMILIES[name].style)
    model = build(name, 703)
    plan = TransferPlan.all_random(600)
    cut(model, tmp_path / "source", mine, tmp_path / "out", method="full_rand", noise="initializer_range", plan=plan)
    old, new = stored(tmp_path / "source"), stored(tmp_path / "out")
    drawn = reload(model, tmp_path / "out")
    zeros = [(one.get_input_embeddings().weight == 0).all(dim=1).nonzero() for one in (drawn, type(drawn)(drawn.config))]
    # Where the configuration names a pad token, its row.
    assert zeros[0].tolist() == zeros[1].tolist() and len(zeros[0]) == (drawn.config.pad_token_id is not None)
    for tensor, values in drawn.state_dict().items():
        if "norm" in tensor.lower():
            assert (values == (0 if "gemma" in name or tensor.endswith("bias") else 1)).all(), tensor
        elif tensor.endswith("bias"):
            assert not values.any(), tensor
        elif tensor in new:
            assert values.std() == pytest.approx(0.02, rel=0.15) and old[tensor].std() > 0.2, tensor


def test_the_format_says_pytorch(tokens, tmp_path):
    cut(build("gemma", 700), tmp_path / "source", tokens("gpt2"), tmp_path / "out")
    with safe_open(tmp_path / "out" / "model.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt"}
    assert set(read_header(tmp_path / "out" / "model.safetensors")) == set(stored(tmp_path / "source"))
