"""An extended tokenizer keeps the source's ids and text, and writes new text with fewer tokens."""

import itertools
import json
import lzma

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

from tests.tiny_tokenizers import (
    LINES,
    byte_bpe,
    edited,
    every_kind,
    real_tokenizer,
    sentencepiece_bpe,
    unigram,
    wordpiece,
    wrap,
)
from wechsel_jax.errors import UserError
from wechsel_jax.tokens import Vocabulary, load_tokenizer
from wechsel_jax.tokens.extension import extend_tokenizer, is_beside, place_beside, unreached_from
from wechsel_jax.tokens.overlap import match

NEW_LINES = [
    "Mwanamke alikwenda sokoni kununua matunda na mboga kwa ajili ya watoto wake wadogo nyumbani.",
    "Watoto wadogo walikwenda shuleni asubuhi na mapema, wakarudi nyumbani jioni; mboga ziliuzwa sokoni.",
] * 4
TEXT_FILES = {"de": "de.wikipedia_mlqa_xquad", "sw": "sw.wikipedia_tydiqa", "ar": "ar.wikipedia_tydiqa"}
# (source, target, source's language, at most this share of the source's tokens for new text)
REAL_PAIRS = [
    ("gpt2", "de/bpe-50k", "en", 0.65),
    ("gpt2", "ar/bpe-50k", "en", 0.35),
    ("de/xlmr-unigram-50k", "sw/xlmr-unigram-50k", "de", 0.55),
]
KINDS = ("byte", "byte-prefix", "llama", "gemma", "metaspace", "unigram", "wordpiece")


def retrained(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """The same kind of tokenizer, for the new lines."""
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    special = [token.content for token in backend.get_added_tokens_decoder().values()]
    model = json.loads(backend.to_str())["model"]["type"]
    new = tokenizer.train_new_from_iterator(NEW_LINES, vocab_size=150 if model == "Unigram" else 420)
    assert special == [] or special[0] in new.get_vocab()
    return new


@pytest.fixture(scope="module")
def tiny() -> dict[str, tuple[PreTrainedTokenizerFast, PreTrainedTokenizerFast, PreTrainedTokenizerFast]]:
    made = {}
    for name, source in every_kind().items():
        target = retrained(source)
        made[name] = source, target, extend_tokenizer(source, target)
    return made


def encode(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    return tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids


def check_ids(
    source: PreTrainedTokenizerFast, target: PreTrainedTokenizerFast, extended: PreTrainedTokenizerFast
) -> Vocabulary:
    """Every source id is what it was, and the new tokens are those of the target that were lacking, in its order."""
    old, other, new = (Vocabulary.from_tokenizer(tokenizer) for tokenizer in (source, target, extended))
    for field in ("strings", "bytes", "roles"):
        assert getattr(new, field)[: len(old)] == getattr(old, field)
    assert (new.kind, new.prefix_space) == (old.kind, old.prefix_space)
    lacking = [other.bytes[i] for i, s in enumerate(match(old, other)) if s < 0 and not other.special[i] and other.bytes[i]]
    added = [raw for raw, special in zip(new.bytes, new.special, strict=True) if not special][(~old.special).sum() :]
    if new.kind == "byte_bpe":
        assert added == lacking
    else:
        assert added == [raw for raw in lacking if decodes(raw)]
    assert "" not in new.strings[len(old) :] and len(set(new.strings[len(old) :])) == len(new) - len(old)
    return new


def decodes(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize("kind", KINDS)
def test_ids_stay_and_new_text_gets_shorter(tiny, kind):
    source, target, extended = tiny[kind]
    new = check_ids(source, target, extended)
    before, after, ideal = (len(encode(tokenizer, NEW_LINES[0])) for tokenizer in (source, extended, target))
    assert after < (0.9 if kind == "wordpiece" else 0.65) * before and after <= 2 * ideal
    if kind != "wordpiece":
        assert new.join(encode(extended, NEW_LINES[0])) == NEW_LINES[0].encode()
    assert extended.special_tokens_map == source.special_tokens_map


@settings(max_examples=200, deadline=None)
@given(text=st.lists(st.sampled_from(["Der", " Hund", "mboga", " watoto", " ", "  ", "\n", "é", "😀", "dog", "日本", "x"])))
def test_every_text_is_still_written_exactly(tiny, text):
    text = "".join(text)
    for kind in ("byte", "llama", "gemma"):
        extended = tiny[kind][2]
        assert Vocabulary.from_tokenizer(extended).join(encode(extended, text)) == text.encode()


def test_new_ids_come_after_added_tokens_at_the_end():
    for source in (byte_bpe(False), sentencepiece_bpe("gemma"), unigram(), wordpiece()):
        source.add_special_tokens({"pad_token": "<|pad|>"})
        source.add_tokens([AddedToken("Grüße!", normalized=False)])
        old = source.get_vocab()
        extended = extend_tokenizer(source, retrained(source))
        assert old.items() <= extended.get_vocab().items() and len(extended) > len(old)
        assert extended.pad_token_id == old["<|pad|>"] == source.pad_token_id
        assert old["Grüße!"] in encode(extended, "x Grüße! <|pad|>") and old["<|pad|>"] in encode(extended, "x <|pad|>")
        assert sorted(extended.get_vocab().values()) == list(range(len(extended)))
        assert Vocabulary.from_tokenizer(extended).bytes[old["Grüße!"]].strip() == "Grüße!".encode()


def test_special_tokens_without_a_counterpart_are_appended():
    source, target = byte_bpe(False), byte_bpe(False)
    source.add_tokens(["mboga"])
    target.add_special_tokens({"mask_token": AddedToken("<mask>", lstrip=True), "pad_token": "<|end|>", "sep_token": "</s>"})
    target.add_special_tokens({"extra_special_tokens": ["<|im_start|>"]})
    extended = extend_tokenizer(source, target)
    # </s> does what <|end|> does; both tokenizers have the same ordinary tokens.
    assert set(extended.get_vocab()) - set(source.get_vocab()) == {"<mask>", "<|im_start|>"}
    assert extended.convert_tokens_to_ids("<mask>") == len(source) and extended.mask_token is None
    assert extended("dog<mask>", add_special_tokens=False).input_ids[-1] == len(source)
    state = json.loads(extended.backend_tokenizer.to_str())
    assert [(t["lstrip"], t["special"]) for t in state["added_tokens"] if t["content"] == "<mask>"] == [(True, True)]


def test_new_words_are_spelled_as_the_source_normalises_them():
    source = wordpiece()
    cased = wrap(Tokenizer.from_str(source.backend_tokenizer.to_str()), unk_token="[UNK]")

    def with_capitals(state):
        del state["model"]["vocab"]["springt"]
        state["model"]["vocab"] |= {"Größe": source.convert_tokens_to_ids("springt"), "##EN": len(source)}

    cased._tokenizer = edited(cased.backend_tokenizer, with_capitals)
    extended = extend_tokenizer(source, cased)
    assert "große" not in source.get_vocab() and {*extended.get_vocab()} - {*source.get_vocab()} == {"große"}
    assert "##en" in source.get_vocab()
    assert extended.tokenize("GRÖßE") == ["große"]


def test_a_target_that_extends_the_source_is_taken_as_it_is():
    source, target = byte_bpe(False), byte_bpe(False)
    target.add_tokens(["mboga"])
    assert extend_tokenizer(source, target) is target
    assert extend_tokenizer(source, source) is source


def test_the_chat_template_and_the_post_processor_stay(tiny, tmp_path):
    source, target, _ = tiny["gemma"]
    source = wrap(Tokenizer.from_str(source.backend_tokenizer.to_str()), bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    source.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"

    def template(state):
        state["post_processor"] = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}]}
        state["post_processor"]["single"].append({"Sequence": {"id": "A", "type_id": 0}})
        state["post_processor"] |= {"pair": state["post_processor"]["single"]}
        state["post_processor"]["special_tokens"] = {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}

    source._tokenizer = edited(source.backend_tokenizer, template)
    extended = extend_tokenizer(source, target)
    assert extended.chat_template == source.chat_template
    assert extended("mboga").input_ids[0] == 1 == source("mboga").input_ids[0]
    extended.save_pretrained(tmp_path)
    again = load_tokenizer(tmp_path)
    assert again.get_vocab() == extended.get_vocab() and again.special_tokens_map == extended.special_tokens_map
    assert again.backend_tokenizer.to_str() == extended.backend_tokenizer.to_str()
    assert again.chat_template == source.chat_template


@pytest.mark.parametrize(
    ("source", "target"), [("byte", "unigram"), ("unigram", "llama"), ("llama", "unigram"), ("llama", "byte")]
)
def test_kinds_that_do_not_go_together_are_refused(tiny, source, target):
    with pytest.raises(UserError, match="cannot be appended") as error:
        extend_tokenizer(tiny[source][0], tiny[target][1])
    assert "\n" not in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize(("source", "target", "own", "share"), REAL_PAIRS)
def test_real_tokenizers(data_directory, source, target, own, share):
    (tokenizer, old), (other, _) = real_tokenizer(data_directory, source), real_tokenizer(data_directory, target)
    extended = extend_tokenizer(tokenizer, other)
    new = check_ids(tokenizer, other, extended)
    assert len(new) > len(old) + 38_000

    def tokens(of, lines):
        return [encoding.ids for encoding in of.backend_tokenizer.encode_batch(lines, add_special_tokens=False)]

    for language, most in ((target[:2], share), (own, 1.0)):
        path = data_directory / "text" / f"{(TEXT_FILES | {'en': 'en.wikipedia_tydiqa'})[language]}.txt.xz"
        with lzma.open(path, "rt", encoding="utf-8") as handle:
            lines = [line.strip() for line in itertools.islice(handle, 100)]
        before, after = tokens(tokenizer, lines), tokens(extended, lines)
        assert sum(map(len, after)) <= most * sum(map(len, before))
        if language == own:
            # Names and loan words get shorter; most of the source's own text is written as it was.
            assert sum(map(len, after)) > 0.97 * sum(map(len, before))
        if old.kind == "byte_bpe":
            assert [new.join(ids) for ids in after] == [line.encode() for line in lines]
        else:
            known = [i for i, ids in enumerate(after) if tokenizer.unk_token_id not in ids]
            assert len(known) > 90
            plain = [" ".join(tokenizer.backend_tokenizer.normalizer.normalize_str(lines[i]).split()).encode() for i in known]
            assert [new.join(after[i]) for i in known] == plain


@pytest.mark.parametrize("name", KINDS)
def test_a_vocabulary_beside_another_shares_nothing_with_it(name, tmp_path):
    """Text is cut as before, whatever it is, and token i of the other one is V + i, special where it was."""
    second = every_kind()[name]
    first = (wordpiece if name.startswith("byte") else byte_bpe)(*([] if name.startswith("byte") else [False]))
    joined, size = place_beside(second, first)
    joined.save_pretrained(tmp_path)
    vocabularies = [Vocabulary.from_tokenizer(one) for one in (second, first, load_tokenizer(tmp_path))]
    assert size == len(vocabularies[0]) == unreached_from(joined) and len(vocabularies[2]) == size + len(vocabularies[1])
    assert vocabularies[2].strings[:size] == vocabularies[0].strings and unreached_from(second) is None
    for i, string in enumerate(vocabularies[1].strings):
        assert vocabularies[2].strings[size + i] == "\ufdd0" + string
    assert [bool(role) for role in vocabularies[2].roles[size:]] == vocabularies[1].special.tolist()
    for role in ("mask", "pad", "unk", "bos", "eos"):
        assert vocabularies[2].id_with_role(role) == vocabularies[0].id_with_role(role)
    loaded = load_tokenizer(tmp_path)
    assert is_beside(loaded, first) and not is_beside(loaded, second) and not is_beside(second, first)
    for text in (*LINES, *vocabularies[1].strings, *(f"{string} {string}" for string in vocabularies[1].strings)):
        assert encode(loaded, text) == encode(second, text)


@pytest.mark.parametrize("kind", KINDS)
def test_added_tokens_that_are_not_special_are_found_whole(tiny, kind):
    source, target, _ = tiny[kind]
    donor = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(target.backend_tokenizer.to_str()))
    donor.add_tokens([AddedToken(token, normalized=False) for token in ("<think>", "foo bar")])
    extended = extend_tokenizer(source, donor)
    for token in ("<think>", "foo bar"):
        assert extended.tokenize(f"mboga {token} mboga").count(token) == 1
        assert extended.convert_tokens_to_ids(token) >= len(Vocabulary.from_tokenizer(source))
    assert "<think>" in extended.decode(extended("<think>", add_special_tokens=False).input_ids, skip_special_tokens=True)
    # What the source has, it keeps.
    assert extended.get_vocab().items() >= source.get_vocab().items()
