"""A chat model with a new vocabulary still chats: template and turn tokens go with it, and their rows."""

import shutil

import numpy as np
import pytest
from transformers import AutoTokenizer

from wechsel_jax.initializers import TransferPlan
from wechsel_jax.transfers.job import transfer

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TALK = [{"role": "user", "content": "Wie geht es dir?"}]


@pytest.fixture(scope="module")
def chatting(save_source, tmp_path_factory):
    """A GPT-2 with two turn tokens in its first rows of padding."""
    directory, _ = save_source("gpt2", padding=8)
    place = tmp_path_factory.mktemp("chat") / "model"
    shutil.copytree(directory, place)
    tokenizer = AutoTokenizer.from_pretrained(place)
    tokenizer.add_special_tokens({"extra_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.eos_token, tokenizer.chat_template = "<|im_end|>", TEMPLATE
    tokenizer.save_pretrained(place)
    return place


@pytest.mark.parametrize("method", ["fvt", "trans_inner", "mean"])
def test_template_and_turn_tokens_are_kept(chatting, world, tmp_path, method):
    record = transfer(chatting, world.tokenizer("german", "gpt2"), tmp_path / "out", method=method, log=lambda line: None)
    old, new = AutoTokenizer.from_pretrained(chatting), AutoTokenizer.from_pretrained(tmp_path / "out")
    options = {"tokenize": False, "add_generation_prompt": True}
    assert new.apply_chat_template(TALK, **options) == old.apply_chat_template(TALK, **options)
    plan = TransferPlan.load(tmp_path / "out" / "transfer_plan.npz")
    for token in ("<|im_start|>", "<|im_end|>"):
        assert plan.copy[new.convert_tokens_to_ids(token)] == old.convert_tokens_to_ids(token)
    assert new.eos_token == "<|im_end|>" and len(plan) == len(new) == record["target"]["vocabulary_size"]
    assert any("chat template was kept" in note for note in record["notes"])


def test_what_is_lost_is_said(chatting, world, tmp_path):
    tokenizer = world.tokenizer("german", "gpt2")
    options = {"method": "mean", "special_tokens": "replace", "log": lambda line: None}
    record = transfer(chatting, tokenizer, tmp_path / "out", **options)
    new = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert new.chat_template is None and len(new) == len(AutoTokenizer.from_pretrained(tokenizer))
    (note,) = [note for note in record["notes"] if "chat template" in note]
    assert "was left out" in note and "<|im_start|>" in note
    assert not np.isin("<|im_start|>", list(new.get_vocab()))
