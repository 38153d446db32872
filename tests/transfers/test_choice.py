"""The method that nobody named: chosen by whether the source model reads the target language, printed and recorded."""

import math

import numpy as np
import pytest
import tokenizers
import torch
import transformers

from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.tokens import Vocabulary, load_tokenizer
from wechsel_jax.transfers import choice
from wechsel_jax.transfers.job import transfer


@pytest.fixture
def given(world, source):
    texts = {"source_text": world.root / "english.txt", "target_text": world.root / "german.txt"}
    return {"source": source, "target_tokenizer": world.tokenizer("german", "gpt2"), **texts}


@pytest.mark.slow
def test_a_model_that_reads_nothing_gets_anker_and_the_record_says_why(given, tmp_path):
    lines = []
    record = transfer(output=tmp_path / "out", log=lines.append, dimensions=16, **given)
    assert record["method"] == record["choice"]["method"] == "anker"
    assert record["choice"]["measure"] == "bits per byte" and record["choice"]["ratio"] > record["choice"]["threshold"] == 0.8
    (note,) = [note for note in record["notes"] if note.startswith("No method was named; anker was chosen: ")]
    assert "hardly reads the target language" in note and f"note: {note}" in lines
    named = transfer(output=tmp_path / "named", log=lines.append, method="anker", dimensions=16, **given)
    assert "choice" not in named and not any("No method was named" in note for note in named["notes"])


def test_a_model_that_reads_the_language_keeps_its_pieces(given, tmp_path, monkeypatch):
    monkeypatch.setattr(choice, "_SHARE_OF_BZIP2", 100)
    record = transfer(output=tmp_path / "out", log=lambda line: None, **given)
    assert record["method"] == "fvt" and record["choice"]["method"] == "fvt" and record["counts"]["mixed"] > 100
    # What was given for anker is no mistake of the user's.
    assert [note for note in record["notes"] if "does not use it" in note] == []
    assert any("reads the target language" in note for note in record["notes"])


def test_bits_per_byte_are_those_of_transformers(given):
    checkpoint = Checkpoint.open(given["source"])
    tokenizer = load_tokenizer(checkpoint.directory)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    ids = np.arange(40, 340) % len(vocabulary)
    begin = vocabulary.id_with_role("bos")
    sizes = choice.token_sizes(vocabulary, ids, b"")
    found = choice._bits_per_byte(checkpoint, begin, sizes, ids)
    model = transformers.AutoModelForCausalLM.from_pretrained(given["source"])
    length = min(128, model.config.n_positions)
    total, size = 0.0, 0
    for start in range(0, len(ids) - length + 1, length):
        row = [begin, *ids[start : start + length]]
        with torch.no_grad():
            logits = model(torch.tensor([row[:-1]])).logits[0].log_softmax(-1)
        total -= float(logits[torch.arange(length), torch.tensor(row[1:])].sum())
        size += sum(len(vocabulary.bytes[i]) for i in row[1:])
    assert found == pytest.approx(total / math.log(2) / size, rel=1e-5)


def test_without_flax_the_tokenizer_decides(given, monkeypatch):
    checkpoint = Checkpoint.open(given["source"])
    vocabulary = Vocabulary.from_tokenizer(load_tokenizer(checkpoint.directory))
    monkeypatch.setattr(choice.importlib.util, "find_spec", lambda name: None)
    sizes = choice.token_sizes(vocabulary, np.arange(9), b"")
    assert choice._bits_per_byte(checkpoint, None, sizes, np.arange(40, 340) % len(vocabulary)) is None


def test_where_the_model_cannot_be_run_its_tokenizer_decides(given, world, monkeypatch):
    checkpoint = Checkpoint.open(given["source"])
    tokenizer = load_tokenizer(checkpoint.directory)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    monkeypatch.setattr(choice, "_MOST_PARAMETERS", 1)
    english, german = given["source_text"], given["target_text"]
    options = {"max_document_bytes": 1 << 24}
    own = choice.choose_method(checkpoint, tokenizer, vocabulary, [english], [english], **options)
    assert own["measure"] == "tokens per byte" and own["ratio"] == pytest.approx(1) and own["method"] == "fvt"
    other = choice.choose_method(checkpoint, tokenizer, vocabulary, [english], [german], **options)
    assert other["ratio"] > 1.5 and other["method"] == "anker"
    # The ratio is of what the texts hold, not of their bytes.
    assert f"of target text, per byte that bzip2 leaves of it {other['ratio']:.2f} times those of" in other["because"]


def test_an_unknown_token_stands_for_the_bytes_that_no_other_has(given, tmp_path):
    backend = tokenizers.Tokenizer(tokenizers.models.WordPiece({"<unk>": 0, "a": 1, "Haus": 2}, unk_token="<unk>"))
    backend.pre_tokenizer, backend.decoder = tokenizers.pre_tokenizers.Whitespace(), tokenizers.decoders.WordPiece()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    text = "a मकान Haus किताब a"
    found = choice.token_sizes(vocabulary, np.array(tokenizer.encode(text)), text.encode())
    known = [len(word) for word in vocabulary.bytes[1:]]
    assert found.tolist() == [(len(text.encode()) - 2 * known[0] - known[1]) / 2, *known]
    # What is compressed, and too little or not, is the text itself.
    (tmp_path / "text.txt").write_text(f"{text}\n" * 100)
    checkpoint = Checkpoint.open(given["source"])
    files = [[tmp_path / "text.txt"]] * 2
    chosen = choice.choose_method(checkpoint, tokenizer, vocabulary, *files, max_document_bytes=1 << 24)
    assert f"{len(text.encode()) * 100} bytes of target text are too few" in chosen["because"]


def test_too_little_text_says_nothing(given, tmp_path):
    short = tmp_path / "short.txt"
    short.write_text("Guten Tag.\n")
    checkpoint = Checkpoint.open(given["source"])
    tokenizer = load_tokenizer(checkpoint.directory)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    found = choice.choose_method(checkpoint, tokenizer, vocabulary, [short], [short], max_document_bytes=1 << 24)
    assert (found["method"], found["measure"]) == ("anker", None) and "10 bytes of target text are too few" in found["because"]
