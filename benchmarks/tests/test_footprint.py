"""What `benchmarks/footprint.py` counts, against transformers' own models and tokenizers."""

import gzip
import json

import pytest
import transformers

from benchmarks import footprint
from tests.tiny_tokenizers import byte_bpe, sentencepiece_bpe
from wechsel_jax.errors import UserError

SENTENCES = ["Der Fuchs springt über den Hund.", "Haus"]


@pytest.fixture
def data(tmp_path):
    for text, tokenizer in footprint.TARGETS.values():
        (tmp_path / text).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / text).write_bytes(gzip.compress("\n".join(SENTENCES).encode()))
        sentencepiece_bpe("llama").save_pretrained(tmp_path / tokenizer)
    return tmp_path


@pytest.mark.parametrize("tied", [True, False])
def test_lengths_and_parameters(data, tied):
    old, new = byte_bpe(False), sentencepiece_bpe("llama")
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=len(old), tie_word_embeddings=tied, num_key_value_heads=1, **sizes)
    old.save_pretrained(data / "model")
    config.save_pretrained(data / "model")
    result = footprint.measure({"tiny": data / "model"}, data)
    model = result["models"]["tiny"]
    assert model["parameters"] == transformers.LlamaForCausalLM(config).num_parameters()
    target = model["targets"]["de"]
    config.vocab_size = len(new)
    assert target["parameters"] == transformers.LlamaForCausalLM(config).num_parameters()
    for name, tokenizer in (("tokens", old), ("new_tokens", new)):
        expected = sum(len(tokenizer.tokenize(sentence)) for sentence in SENTENCES) / 2
        assert target[name] == pytest.approx(expected, abs=0.005)
    assert f"| tiny | de | {target['tokens']:.1f} |" in footprint.table(json.loads(json.dumps(result)))


def test_without_a_model_there_is_nothing_to_measure(tmp_path):
    with pytest.raises(UserError, match="expected directories of models, such as gpt2=DIR"):
        footprint.measure({}, tmp_path)
