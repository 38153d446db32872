"""A chat model's template and turn tokens go over to a new tokenizer, or it is said that they do not."""

import json

import pytest
from tokenizers import AddedToken
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tests.tiny_tokenizers import byte_bpe, sentencepiece_bpe, unigram
from wechsel_jax.errors import UserError
from wechsel_jax.tokens import Vocabulary, load_tokenizer
from wechsel_jax.tokens.chat import carry_chat
from wechsel_jax.tokens.extension import extend_tokenizer
from wechsel_jax.tokens.overlap import match_special

LLAMA3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim"
    " + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>' }}{% endif %}"
)
# GLM 4's way to name a turn token.
SPOKEN = "[gMASK]{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}{% endfor %}{{ eos_token }}"
TALKS = [
    [{"role": "user", "content": "Der Hund?"}],
    [
        {"role": "system", "content": "Sei kurz. "},
        {"role": "user", "content": "<b>日本</b>"},
        {"role": "assistant", "content": "é 😀"},
    ],
]


def chat_model(template, special: list[str], plain: list[str] = (), **roles: str) -> PreTrainedTokenizerFast:
    tokenizer = byte_bpe(False)
    tokenizer.add_tokens([AddedToken(name, special=True, normalized=False) for name in special], special_tokens=True)
    tokenizer.add_tokens([AddedToken(name, special=False, normalized=False) for name in plain])
    for role in ("bos", "eos"):
        setattr(tokenizer, f"{role}_token", roles.get(role))
    tokenizer.chat_template = template
    return tokenizer


def llama3() -> PreTrainedTokenizerFast:
    reserved = [f"<|reserved_special_token_{i}|>" for i in range(5)]
    headers = ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    special = ["<|begin_of_text|>", "<|end_of_text|>", *reserved, *headers]
    return chat_model(LLAMA3, special, bos="<|begin_of_text|>", eos="<|eot_id|>")


def chatml() -> PreTrainedTokenizerFast:
    return chat_model(CHATML, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], ["<think>", "<other>"], eos="<|im_end|>")


def spoken() -> PreTrainedTokenizerFast:
    names = ["[gMASK]", "<|system|>", "<|user|>", "<|assistant|>", "<|video|>", "<|end|>"]
    return chat_model(SPOKEN, names, eos="<|end|>")


CASES = {
    "llama3": (llama3, ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]),
    "chatml": (chatml, ["<|im_start|>", "<|im_end|>", "<think>"]),
    "spoken": (spoken, ["[gMASK]", "<|system|>", "<|user|>", "<|assistant|>"]),
}
TARGETS = {"byte": lambda: byte_bpe(False), "gemma": lambda: sentencepiece_bpe("gemma"), "unigram": unigram}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CASES)
def test_the_new_tokenizer_chats_as_the_source_did(case, target, tmp_path):
    make, turns = CASES[case]
    source, new = make(), TARGETS[target]()
    size, before = len(new), new.backend_tokenizer.to_str()
    # byte_bpe has "<|end|>" already.
    turns = turns + (["<|end|>"] if case == "spoken" and target != "byte" else [])
    kept, notes = carry_chat(source, new, "keep")
    assert new.backend_tokenizer.to_str() == before and new.chat_template is None
    assert set(kept.get_vocab()) - set(new.get_vocab()) == set(turns) and len(kept) == size + len(turns)
    assert kept.eos_token == source.eos_token
    kept.save_pretrained(tmp_path)
    for loaded in (kept, load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)):
        for talk in TALKS:
            for prompt in (False, True):
                text = source.apply_chat_template(talk, tokenize=False, add_generation_prompt=prompt)
                assert loaded.apply_chat_template(talk, tokenize=False, add_generation_prompt=prompt) == text
                counted = [loaded.encode(text, add_special_tokens=False).count(loaded.convert_tokens_to_ids(t)) for t in turns]
                assert counted == [text.count(turn) for turn in turns] and sum(counted)
    assert notes[0].startswith("The source's chat template was kept; ") and all(turn in notes[0] for turn in turns)
    assert all(note.endswith(".") and "\n" not in note for note in notes)


def test_turn_tokens_keep_their_flags_and_find_their_rows():
    source = chatml()
    kept, notes = carry_chat(source, byte_bpe(False), "keep")
    flags = {token.content: token.special for token in kept.added_tokens_decoder.values()}
    assert flags["<|im_start|>"] and flags["<|im_end|>"] and not flags["<think>"]
    assert "<other>" not in flags and "<|endoftext|>" not in flags
    assert notes[1:] == ["<|im_end|> is the new tokenizer's eos token, as it is the source's; it was <|end|>."]
    old, new = Vocabulary.from_tokenizer(source), Vocabulary.from_tokenizer(kept)
    same = match_special(old, new)
    for name in ("<|im_start|>", "<|im_end|>"):
        assert old.strings[same[kept.convert_tokens_to_ids(name)]] == name


def test_white_space_is_no_turn_token():
    """As Gemma has tokens for several lines, which its template writes, too."""
    source = chatml()
    source.add_tokens([AddedToken(text, normalized=False) for text in ("\n", "\n\n", "    ")])
    source.chat_template = source.chat_template + "\n\n    "
    kept, _ = carry_chat(source, byte_bpe(False), "keep")
    assert not {"\n", "\n\n", "    "} & {*kept.get_vocab()}
    assert kept.tokenize("a\nb") == byte_bpe(False).tokenize("a\nb")


def test_replacing_says_what_is_lost():
    target = byte_bpe(False)
    same, notes = carry_chat(llama3(), target, "replace")
    assert same is target and target.chat_template is None
    assert notes == [
        "The source's chat template was left out, and the new tokenizer has none of its tokens <|start_header_id|>, "
        "<|end_header_id|>, <|eot_id|>, <|begin_of_text|>: the new model cannot chat as the source does."
    ]


@pytest.mark.parametrize("mode", ["keep", "replace"])
def test_nothing_is_said_where_nothing_is_lost(mode):
    target = byte_bpe(False)
    assert carry_chat(byte_bpe(False), target, mode) == (target, [])
    source = llama3()
    extended = extend_tokenizer(source, sentencepiece_free_target())
    assert carry_chat(source, extended, mode) == (extended, [])
    kept, _ = carry_chat(source, target, "keep")
    assert carry_chat(source, kept, mode) == (kept, [])


def sentencepiece_free_target() -> PreTrainedTokenizerFast:
    return byte_bpe(False).train_new_from_iterator(["Mwanamke alikwenda sokoni kununua matunda"] * 9, vocab_size=300)


@pytest.mark.parametrize("mode", ["keep", "replace"])
def test_a_template_of_the_new_tokenizer_stays(mode):
    target = chatml()
    same, notes = carry_chat(llama3(), target, mode)
    assert same is target and target.chat_template == CHATML
    assert notes == ["The new tokenizer has a chat template of its own; the source's was left out."]


def test_several_templates_and_a_role_that_the_source_lacks():
    source = chat_model({"default": CHATML, "tools": "{{ bos_token }}<|tool|>"}, ["<|im_start|>", "<|tool|>"])
    kept, notes = carry_chat(source, byte_bpe(False), "keep")
    assert kept.chat_template == source.chat_template and {"<|im_start|>", "<|tool|>"} < set(kept.get_vocab())
    assert notes[1:] == ["The chat template writes the bos token, <|end|> here; the source has none."]


def test_a_template_in_a_file_of_its_own_is_read(tmp_path):
    source = chatml()
    source.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert "chat_template" not in config and (tmp_path / "chat_template.jinja").is_file()
    assert load_tokenizer(tmp_path).chat_template == CHATML


def test_an_unknown_mode():
    with pytest.raises(UserError, match="special_tokens drop: unknown; expected keep or replace"):
        carry_chat(chatml(), byte_bpe(False), "drop")
