"""Model directories as data; transformers with torch says what a checkpoint means."""

import json
import shutil
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
import transformers
from huggingface_hub.utils import filter_repo_objects
from tokenizers.processors import TemplateProcessing

from tests.tiny_tokenizers import wordpiece
from wechsel_jax.checkpoint import Checkpoint, write_checkpoint
from wechsel_jax.checkpoint.model_config import adapt_config
from wechsel_jax.checkpoint.tensors import read_header, write_tensors
from wechsel_jax.errors import UserError
from wechsel_jax.tokens import Vocabulary, load_tokenizer


def change_config(directory, **fields) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def change_tensors(directory, **fields) -> None:
    tensors = {name: np.array(stored.read()) for name, stored in read_header(directory / "model.safetensors").items()}
    write_tensors(
        directory / "model.safetensors", {name: array for name, array in (tensors | fields).items() if array is not None}
    )


@pytest.mark.parametrize(
    ("kind", "tied", "prefix", "expected"),
    [
        ("gpt2", True, True, [("transformer.wte.weight", "input")]),
        ("gpt2", True, False, [("wte.weight", "input")]),
        ("gpt2", False, True, [("transformer.wte.weight", "input"), ("lm_head.weight", "head")]),
        ("roberta", True, True, [("roberta.embeddings.word_embeddings.weight", "input"), ("lm_head.bias", "bias")]),
        ("roberta", True, False, [("embeddings.word_embeddings.weight", "input")]),
        (
            "roberta", False, True,
            [
                ("roberta.embeddings.word_embeddings.weight", "input"), ("lm_head.decoder.weight", "head"),
                ("lm_head.bias", "bias"), ("lm_head.decoder.bias", "bias"),
            ],
        ),
    ],
)  # fmt: skip
def test_vocabulary_tensors_are_found_by_name(save_source, kind, tied, prefix, expected):
    directory, model = save_source(kind, tied=tied, prefix=prefix, padding=3)
    checkpoint = Checkpoint.open(directory)
    assert [(tensor.name, tensor.role) for tensor in checkpoint.vocabulary_tensors()] == expected
    assert checkpoint.architecture == kind and checkpoint.tied is tied
    assert (checkpoint.vocabulary_size, checkpoint.hidden_size) == tuple(model.get_input_embeddings().weight.shape)


def test_sizes_that_agree_by_chance_are_no_vocabulary(world, save_source):
    directory, _ = save_source("gpt2", n_positions=700, n_inner=700)
    checkpoint = Checkpoint.open(directory)
    assert checkpoint.tensors["transformer.wpe.weight"].shape[0] == checkpoint.vocabulary_size
    assert len(checkpoint.vocabulary_tensors()) == 1


def test_a_stored_copy_of_the_tied_table_is_recognised(save_source):
    directory, _ = save_source("gpt2")
    table = np.array(Checkpoint.open(directory).read("transformer.wte.weight"))
    change_tensors(directory, **{"lm_head.weight": table})
    checkpoint = Checkpoint.open(directory)
    assert checkpoint.tied and checkpoint.tied_copies == ("lm_head.weight",) and len(checkpoint.vocabulary_tensors()) == 1
    # transformers does not tie where the file holds two different tables, whatever config.json says.
    change_tensors(directory, **{"lm_head.weight": table + 1})
    checkpoint = Checkpoint.open(directory)
    model = transformers.GPT2LMHeadModel.from_pretrained(directory)
    assert not checkpoint.tied and not torch.equal(model.lm_head.weight, model.transformer.wte.weight)
    assert [tensor.role for tensor in checkpoint.vocabulary_tensors()] == ["input", "head"]


def test_a_lone_tied_head_is_the_table(save_source):
    directory, _ = save_source("gpt2")
    table = np.array(Checkpoint.open(directory).read("transformer.wte.weight"))
    change_tensors(directory, **{"lm_head.weight": table, "transformer.wte.weight": None})
    assert [(t.name, t.role) for t in Checkpoint.open(directory).vocabulary_tensors()] == [("lm_head.weight", "input")]


@pytest.mark.parametrize(
    ("fields", "tensors", "message"),
    [
        ({"model_type": "bart"}, {}, "expected one input table of a bart model, found none"),
        ({"vocab_size": 12}, {}, "vocab_size is 12, but transformer.wte.weight has shape"),
        ({}, {"transformer.wte.weight": None}, "expected one input table of a gpt2 model, found none"),
        ({}, {"wte.weight": np.zeros((700, 16), np.float32)}, "found 2 of them"),
        ({}, {"lm_head.weight": np.zeros((9, 16), np.float32)}, "lm_head.weight has shape"),
        ({}, {"extra.logits": np.zeros((700, 3), np.float32)}, "extra.logits has an axis as long as the vocabulary"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(save_source, fields, tensors, message):
    directory, _ = save_source("gpt2")
    change_config(directory, **fields)
    change_tensors(directory, **tensors)
    with pytest.raises(UserError, match=message):
        Checkpoint.open(directory).vocabulary_tensors()


def test_weights_that_are_not_finite_are_refused_but_not_in_padding(save_source):
    directory, _ = save_source("gpt2", padding=4)
    table = np.array(Checkpoint.open(directory).read("transformer.wte.weight"))
    table[702] = np.nan
    change_tensors(directory, **{"transformer.wte.weight": table})
    Checkpoint.open(directory).require_finite(rows=700)
    table[17, 3] = np.inf
    change_tensors(directory, **{"transformer.wte.weight": table})
    with pytest.raises(UserError, match=r"wte\.weight holds NaN or infinity in row 17"):
        Checkpoint.open(directory).require_finite(rows=700)
    table[17, 3] = 0
    change_tensors(directory, **{"transformer.wte.weight": table})
    with pytest.raises(UserError, match=r"wte\.weight holds NaN or infinity in row 702"):
        Checkpoint.open(directory).require_finite()
    change_tensors(directory, **{"transformer.wte.weight": np.zeros((704, 16), np.int32)})
    with pytest.raises(UserError, match="type I32"):
        Checkpoint.open(directory).require_finite(rows=700)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
def test_every_kind_of_bad_number_is_found_in_every_type(tmp_path, dtype, value):
    array = torch.randn(40, 3, dtype=torch.float64)
    array[:2] = torch.finfo(dtype).max
    array[2:4] = torch.finfo(dtype).tiny
    for row in (None, 0, 23, 39):
        spoiled = array.clone()
        if row is not None:
            spoiled[row, 2] = value
        safetensors.torch.save_file({"wte.weight": spoiled.to(dtype)}, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text('{"model_type": "gpt2", "vocab_size": 40}')
        checkpoint = Checkpoint.open(tmp_path)
        checkpoint.require_finite(rows=40 if row is None else row)  # what padding holds does not matter
        if row is not None:
            with pytest.raises(UserError, match=rf"wte.weight holds NaN or infinity in row {row};"):
                checkpoint.require_finite(rows=40)


def test_pickled_weights_are_refused_with_a_command_that_converts_them(save_source, tmp_path):
    directory, model = save_source("gpt2")
    (directory / "model.safetensors").unlink()
    torch.save(model.state_dict(), directory / "pytorch_model.bin")
    with pytest.raises(UserError, match="pickled weights") as caught:
        Checkpoint.open(directory)
    command = str(caught.value).split(' -c "')[1].removesuffix('"')
    exec(command)
    converted = Checkpoint.open(directory)
    assert np.array_equal(converted.read("transformer.wte.weight"), model.transformer.wte.weight.detach().numpy())


def test_only_what_a_checkpoint_needs_is_fetched_from_the_hub(monkeypatch, tmp_path):
    kept = ["config.json", "generation_config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json"]
    kept += ["model.safetensors", "tokenizer.json", "tokenizer.model", "chat_template.jinja"]
    left = ["consolidated.safetensors", "original/consolidated.safetensors", "model/model.safetensors", "pytorch_model.bin"]
    fetched = []

    def fetch(name, **patterns):
        fetched.extend(filter_repo_objects(kept + left, **patterns))
        (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
        return tmp_path

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    with pytest.raises(UserError, match=r"^some/model: .* no model\.safetensors; .*`hf download some/model --local-dir model`"):
        Checkpoint.open("some/model")
    assert fetched == kept


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: (d / "config.json").unlink(), r"config\.json: no such file"),
        (lambda d: (d / "config.json").write_text("{"), r"config\.json: .*not JSON"),
        (lambda d: (d / "config.json").write_bytes(b"\xff\xfe"), r"config\.json: .*not JSON"),
        (lambda d: (d / "config.json").write_text("[]"), r"config\.json: .*holds no JSON object"),
        (lambda d: (d / "config.json").write_text("{}"), r"config\.json: has no model_type"),
        (lambda d: (d / "generation_config.json").write_text("?"), r"generation_config\.json: .*not JSON"),
        (lambda d: (d / "model.safetensors").unlink(), r"holds no model\.safetensors"),
        (lambda d: (d / "model.safetensors").write_bytes(b""), r"model\.safetensors: the file is empty"),
    ],
)
def test_what_is_no_model_directory_is_named(save_source, spoil, message):
    directory, _ = save_source("gpt2")
    spoil(directory)
    with pytest.raises(UserError, match=message):
        Checkpoint.open(directory)


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("config.json", {"model_type": 3}, "model_type is 3; expected the name of an architecture"),
        ("config.json", {"text_config": 3}, "text_config is 3; expected an object"),
        ("config.json", {"text_config": {"initializer_range": -1}}, "text_config: initializer_range is -1; expected a number"),
        ("config.json", {"initializer_range": float("nan")}, "initializer_range is nan; expected a number from 0 to 10"),
        ("config.json", {"initializer_range": 1e300}, r"initializer_range is 1e\+300"),
        ("config.json", {"initializer_range": "big"}, "initializer_range is 'big'"),
        ("config.json", {"n_layer": 0}, "n_layer is 0; expected a number of layers"),
        ("config.json", {"n_layer": "x"}, "n_layer is 'x'; expected a number of layers"),
        ("config.json", {"vocab_size": [700]}, r"vocab_size is \[700\]; expected a whole number above zero"),
        ("config.json", {"pad_token_id": [0]}, r"pad_token_id is \[0\]; expected the id of a token"),
        ("config.json", {"architectures": [{}]}, r"architectures is \[\{\}\]; expected a list of names"),
        ("config.json", {"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no'; expected true or false"),
        ("generation_config.json", {"eos_token_id": "x" * 99}, r"eos_token_id is 'x{36}\.\.\.; expected the id of a"),
        ("generation_config.json", {"pad_token_id": {"a": 1}}, "pad_token_id is {'a': 1}; expected the id of a token"),
        ("generation_config.json", {"bos_token_id": [0, 1.5]}, r"bos_token_id is \[0, 1\.5\]"),
    ],
)
def test_a_wrong_value_is_named_with_its_file(source, tmp_path, file, change, message):
    shutil.copytree(source, tmp_path / "model")
    content = json.loads((source / file).read_text(encoding="utf-8"))
    (tmp_path / "model" / file).write_text(json.dumps(content | change), encoding="utf-8")
    with pytest.raises(UserError, match=rf"/{file}: {message}"):
        Checkpoint.open(tmp_path / "model")


def test_places_that_are_no_directory(tmp_path, source, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    for place, message in [
        ("loop", "loop: is no directory; expected a model directory"),
        (source / "config.json", "is a file"),
        (tmp_path / "nowhere", "no such directory"),
        ("nobody/nothing", "no such directory, and not to be had from the hub"),
    ]:
        with pytest.raises(UserError, match=message):
            Checkpoint.open(place)
    with pytest.raises(UserError, match="loop: no such file or directory; expected"):
        load_tokenizer("loop")


@pytest.mark.parametrize("kind", ["gpt2", "roberta"])
def test_what_is_written_loads_in_transformers(world, save_source, tmp_path, kind):
    directory, model = save_source(kind, dtype=torch.bfloat16)
    checkpoint = Checkpoint.open(directory)
    write_checkpoint(
        tmp_path, checkpoint.config, checkpoint.tensors, world.tokenizer("english", kind), checkpoint.generation_config
    )
    loaded, info = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    for (name, one), (_, other) in zip(model.state_dict().items(), loaded.state_dict().items(), strict=True):
        assert one.dtype == other.dtype == torch.bfloat16 and torch.equal(one, other), name
    text = "It was a bright cold day, für Käse."
    original = load_tokenizer(world.tokenizer("english", kind))
    assert transformers.AutoTokenizer.from_pretrained(tmp_path)(text).input_ids == original(text).input_ids


def test_files_beside_a_tokenizer_are_copied_while_they_say_what_it_has(world, tmp_path):
    place = shutil.copytree(world.tokenizer("german", "gpt2"), tmp_path / "tokenizer")
    (place / "vocab.json").write_text("{}")
    extended = load_tokenizer(place)
    extended.add_tokens(["Zeitgeist"])
    for name, tokenizer in (("same", load_tokenizer(place)), ("extended", extended)):
        (tmp_path / name).mkdir()
        write_checkpoint(tmp_path / name, {}, {}, tokenizer=tokenizer)
    assert (tmp_path / "same" / "vocab.json").exists() and not (tmp_path / "extended" / "vocab.json").exists()


@pytest.mark.parametrize(("kind", "segments"), [("bert", True), ("roberta", False), ("gpt2", False), ("llama", False)])
def test_a_tokenizer_names_the_segments_of_a_pair_to_models_that_know_them(tmp_path, kind, segments):
    """Else BERT would read `model(**tokenizer(question, text))` as one segment; and Llama has no such argument."""
    tokenizer = wordpiece()
    special = [(token, tokenizer.convert_tokens_to_ids(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=special
    )
    config = transformers.AutoConfig.for_model(kind).to_dict() | ({"type_vocab_size": 1} if kind == "roberta" else {})
    for place in (tmp_path / "first", tmp_path / "again"):
        place.mkdir()
        # A tokenizer that comes from another model names what that has.
        names = ["input_ids", *["token_type_ids"][segments:], "attention_mask"]
        tokenizer.init_kwargs["model_input_names"] = tokenizer.model_input_names = names
        write_checkpoint(place, config, {}, tokenizer=tokenizer)
        found = transformers.AutoTokenizer.from_pretrained(place)("the dog", "the fox")
        assert set(found) == {"input_ids", "attention_mask", *["token_type_ids"][:segments]}
        assert not segments or {0, 1} == set(found["token_type_ids"])
        tokenizer = load_tokenizer(place)


def test_arrays_are_written_as_they_look(tmp_path):
    tensors = {"wte.weight": np.arange(12, dtype=np.float32).reshape(3, 4).T, "b": np.zeros(2, np.float16)}
    write_checkpoint(tmp_path, {"model_type": "gpt2", "name": "größe"}, tensors, None)
    found = safetensors.numpy.load_file(tmp_path / "model.safetensors")
    assert np.array_equal(found["wte.weight"], tensors["wte.weight"])
    assert json.loads((tmp_path / "config.json").read_text())["name"] == "größe"
    assert not (tmp_path / "tokenizer.json").exists()


def vocabulary(**ids) -> Vocabulary:
    roles = [frozenset(role for role, token_id in ids.items() if token_id == i) for i in range(10)]
    strings = tuple(f"t{i}" for i in range(10))
    return Vocabulary(strings, tuple(s.encode() for s in strings), np.zeros(10, bool), tuple(roles), "byte_bpe")


def test_config_ids_follow_the_tokenizer():
    old = {"vocab_size": 99, "bos_token_id": 50, "eos_token_id": 51, "pad_token_id": None, "cls_token_id": 50, "n_embd": 8}
    new, notes = adapt_config(old, vocabulary(bos=1, eos=2, pad=0, mask=9), positions=4)
    assert new == {"vocab_size": 10, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "cls_token_id": 1, "n_embd": 8}
    assert notes == [] and old["vocab_size"] == 99


def test_a_single_end_token_stays_single_and_lost_roles_become_null():
    new, _ = adapt_config({"vocab_size": 99, "bos_token_id": 50, "eos_token_id": 50, "pad_token_id": 50}, vocabulary(eos=3))
    assert new == {"vocab_size": 10, "bos_token_id": 3, "eos_token_id": 3, "pad_token_id": None}


def test_the_end_of_a_turn_stays_beside_the_end_of_a_text():
    """A chat model's only eos_token_id may be another token than its tokenizer's eos."""
    for end in (22, [22]):
        new, notes = adapt_config({"eos_token_id": end}, vocabulary(bos=1, eos=1), copied={1: 20, 5: 22})
        assert (new["eos_token_id"], notes) == ([1, 5], [])
    new, notes = adapt_config({"eos_token_id": 22}, vocabulary(bos=1, eos=1), copied={1: 20})
    assert (new["eos_token_id"], notes) == (1, ["eos_token_id: source token 22 has no counterpart and was left out."])
    # GPT-2's only special token is what two of RoBERTa's are copies of: the one that ends a text is the end.
    for end in (50256, [50256]):
        new, notes = adapt_config({"eos_token_id": end}, vocabulary(bos=0, eos=2), copied={0: 50256, 2: 50256})
        assert (new["eos_token_id"], notes) == (2, [])
    # A tokenizer of its own chat template has an end of texts, which is one by its role, and the source's end of turns.
    for end in (22, [22]):
        new, notes = adapt_config({"eos_token_id": end}, vocabulary(eos=2), copied={2: 22, 5: 22}, spelled=[5])
        assert (new["eos_token_id"], notes) == ([2, 5], [])


def test_ids_without_a_counterpart_are_left_out_with_a_note():
    old = {
        "eos_token_id": [7, 8], "bos_token_id": 4, "decoder_start_token_id": 4, "forced_eos_token_id": 77,
        "suppress_tokens": [1, 2], "auto_map": {"AutoModel": "x.Y"}, "max_position_embeddings": 12,
    }  # fmt: skip
    new, notes = adapt_config(old, vocabulary(bos=1, eos=2), positions=3)
    assert new == {
        "eos_token_id": 2, "bos_token_id": 1, "decoder_start_token_id": 1, "forced_eos_token_id": None,
        "max_position_embeddings": 15,
    }  # fmt: skip
    assert [note.split()[0] for note in notes] == ["forced_eos_token_id", "suppress_tokens", "auto_map"]
