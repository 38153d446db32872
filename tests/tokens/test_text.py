"""Text files as token ids in memory."""

import gzip

import numpy as np
import pytest
import tokenizers
from tokenizers import AddedToken, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tests.tiny_tokenizers import byte_bpe, unigram, wordpiece
from wechsel_jax.errors import UserError
from wechsel_jax.tokens import encoding, text
from wechsel_jax.tokens.text import BOUNDARY, read_token_ids

LINES = ["Der schnelle Hund.", "", "Ein Fuchs über  dem Hund", "  "]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("\n".join(LINES), encoding="utf-8")
    return path


def documents(ids: np.ndarray) -> list[list[int]]:
    return [part[part != BOUNDARY].tolist() for part in np.split(ids, np.flatnonzero(ids == BOUNDARY) + 1)[:-1]]


@pytest.mark.parametrize("make", [lambda: byte_bpe(False), wordpiece])
def test_each_line_is_a_document_without_special_tokens(file, make):
    tokenizer = make()
    ids = read_token_ids(tokenizer, file)
    expected = [tokenizer.encode(line, add_special_tokens=False) for line in LINES if line.strip()]
    assert ids.dtype == np.int32 and ids[-1] == BOUNDARY
    assert documents(ids) == expected


def awkward(name):
    """Tokenizers that cut text in every usual way, and one that joins words over a space."""
    if name == "byte_bpe":
        return byte_bpe(True)
    if name == "wordpiece":
        return wordpiece()
    lines = ["der Hund und der Fuchs", "der Fuchs und der Hund sind in dem Wald"] * 20
    model = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    if name == "metaspace":
        model.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    elif name == "prepended":
        model.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    model.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=200, special_tokens=["<unk>"], show_progress=False))
    return PreTrainedTokenizerFast(tokenizer_object=model, unk_token="<unk>")


@pytest.mark.parametrize("name", ["byte_bpe", "wordpiece", "metaspace", "prepended", "over_spaces"])
@pytest.mark.parametrize("batch", [1, 100, 1 << 18])
def test_words_that_were_seen_before_are_cut_as_in_their_document(name, batch, tmp_path, monkeypatch):
    monkeypatch.setattr(text, "_BATCH_CHARACTERS", batch)
    monkeypatch.setattr(text, "_JOINED", 4)
    monkeypatch.setattr(text, "_PART_BYTES", 40)
    lines = [
        "der Hund und der Fuchs",
        " der Hund",
        "der  Fuchs ",
        "Hund",
        "und\tder Hund\u00a0 der",
        "DER Hund's, 10 000 –",
        "der",
    ]
    file = tmp_path / "a.txt"
    file.write_text("\n".join(lines * 3), encoding="utf-8")
    tokenizer = awkward(name)
    expected = [tokenizer.encode(line, add_special_tokens=False) for line in lines * 3]
    assert documents(read_token_ids(tokenizer, file)) == expected


def test_a_tokenizer_that_joins_words_is_in_the_test_above():
    tokenizer = awkward("over_spaces")
    assert any(" " in token.strip() for token in tokenizer.get_vocab())


def test_a_token_over_a_space_is_found_behind_any_amount_of_other_text(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "_PART_BYTES", 40)
    tokenizer = byte_bpe(False)
    tokenizer.add_tokens(["New York"])
    (tmp_path / "late.txt").write_text("der Hund\n" * 50 + "in New York\n" * 3)
    number = tokenizer.convert_tokens_to_ids("New York")
    assert (read_token_ids(tokenizer, tmp_path / "late.txt") == number).sum() == 3


def test_a_token_that_takes_the_space_behind_it_does_so_behind_any_amount_of_other_text(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "_PART_BYTES", 40)
    tokenizer = byte_bpe(False)
    tokenizer.add_tokens([AddedToken("<|user|>", rstrip=True)])
    (tmp_path / "late.txt").write_text("der Hund\n" * 50 + "<|user|> Hallo Welt\n")
    ids = read_token_ids(tokenizer, tmp_path / "late.txt")
    expected = tokenizer("<|user|> Hallo Welt", add_special_tokens=False).input_ids
    assert ids[-len(expected) - 1 : -1].tolist() == expected


def test_a_token_that_takes_the_space_before_it_is_of_its_own_word_alone(tmp_path, monkeypatch):
    """As <mask> of XLM-R, which leaves the rest of the word beginning like one."""
    monkeypatch.setattr(text, "_PART_BYTES", 40)
    tokenizer = unigram()
    tokenizer.add_tokens([AddedToken("<mask>", lstrip=True)])
    lines = ["der Hund und der Fuchs"] * 50 + ["der Wald <mask>fehlt hier", *["der Wald steht hier"] * 5]
    (tmp_path / "late.txt").write_text("\n".join(lines))
    expected = [tokenizer(line, add_special_tokens=False).input_ids for line in lines]
    assert documents(read_token_ids(tokenizer, tmp_path / "late.txt")) == expected


def test_several_sources_and_compression(file, tmp_path):
    packed = tmp_path / "b.txt.gz"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    tokenizer = byte_bpe(False)
    once = read_token_ids(tokenizer, str(file))
    np.testing.assert_array_equal(read_token_ids(tokenizer, [file, packed]), np.concatenate([once, once]))


@pytest.mark.parametrize("packed", [False, True])
def test_a_limit_takes_about_so_much_and_from_everywhere_in_plain_text(tmp_path, packed):
    lines = [f"{number:07d}" + " Hund" * 100 for number in range(3000)]
    raw = "\n".join(lines).encode()
    path = tmp_path / ("t.gz" if packed else "t.txt")
    path.write_bytes(gzip.compress(raw, 1) if packed else raw)
    tokenizer = byte_bpe(False)
    ids = read_token_ids(tokenizer, path, 1 << 19)
    read = tokenizer.batch_decode(documents(ids))
    assert set(read) <= set(lines) and abs(sum(map(len, read)) / (1 << 19) - 1) < 0.01
    last = int(read[-1][:7])
    assert last < 1500 if packed else last > 2000
    np.testing.assert_array_equal(ids, read_token_ids(tokenizer, path, 1 << 19))


def test_a_limit_holds_for_one_long_line_too(tmp_path):
    path = tmp_path / "line.txt"
    path.write_text("Hund ä " * 200_000, encoding="utf-8")
    tokenizer = byte_bpe(False)
    (text,) = tokenizer.batch_decode(documents(read_token_ids(tokenizer, path, 100_001)))
    assert text == ("Hund ä " * 200_000).encode()[:100_001].decode(errors="ignore")


def test_mistakes_are_told_in_one_line(tmp_path, file):
    tokenizer, blank = byte_bpe(False), tmp_path / "blank.txt"
    blank.write_text(" \n\n", encoding="utf-8")
    with pytest.raises(UserError, match="no text in it"):
        read_token_ids(tokenizer, blank)
    with pytest.raises(UserError, match="missing"):
        read_token_ids(tokenizer, tmp_path / "missing.txt")
    with pytest.raises(UserError, match=r"a\.txt: line 3: longer than 18 bytes; expected shorter documents"):
        read_token_ids(tokenizer, file, longest=18)
    with pytest.raises(UserError, match="max_bytes -1"):
        read_token_ids(tokenizer, file, -1)


@pytest.mark.parametrize("make", [lambda: byte_bpe(True), wordpiece])
def test_long_documents_are_tokenised_in_pieces(tmp_path, monkeypatch, make):
    monkeypatch.setattr(encoding, "_PIECE", 50)
    monkeypatch.setattr(encoding, "_AHEAD", 20)
    # Two spaces in a row: such a document is not cut into words.
    path, line, given = tmp_path / "a.txt", "der  Hund und der Fuchs " * 40, []
    path.write_text(line, encoding="utf-8")
    tokenizer, real = make(), encoding._encode
    monkeypatch.setattr(encoding, "_encode", lambda backend, text: given.append(len(text)) or real(backend, text))
    assert documents(read_token_ids(tokenizer, path)) == [tokenizer.encode(line, add_special_tokens=False)]
    assert given and max(given) <= 70
