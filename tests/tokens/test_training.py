"""Trained tokenizers load anywhere, have the size that was asked for, keep their text, and come out the same every time."""

import gzip
import hashlib
import json
import lzma
import re
import subprocess
import sys
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from tests.full_disk import no_file_above
from wechsel_jax.errors import UserError
from wechsel_jax.files import RECORD
from wechsel_jax.tokens import Vocabulary, load_tokenizer, training
from wechsel_jax.tokens.files import write_tokenizer
from wechsel_jax.tokens.training import train_tokenizer

SIZE = {"byte_bpe": 400, "unigram": 390, "wordpiece": 200}
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>"]
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SYLLABLES = [
    "Haus",
    "Baum",
    "mei",
    "ster",
    "grö",
    "ßer",
    "Stra",
    "ße",
    "lau",
    "fen",
    "läuft",
    "was",
    "ser",
    "fall",
    "schön",
    "heit",
    "ver",
    "ge",
    "lich",
    "keit",
    "un",
    "ten",
    "ber",
]


def sample() -> str:
    random = Random(0)
    words = ["".join(random.choices(SYLLABLES, k=random.randint(1, 4))) for _ in range(400)]
    return "".join(" ".join(random.choices(words, k=12)) + ".\n" for _ in range(60))


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("text") / "german.txt"
    path.write_text(sample(), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def trained(text, tmp_path_factory):
    root = tmp_path_factory.mktemp("trained")
    made = {}
    for algorithm, size in SIZE.items():
        for style in ("gpt2", "roberta"):
            output = root / f"{algorithm}-{style}"
            made[algorithm, style] = train_tokenizer(text, size, output, algorithm, style), output
    return made


def test_the_size_is_exact_and_every_id_has_a_token(trained):
    for (algorithm, _), (tokenizer, _) in trained.items():
        vocabulary = Vocabulary.from_tokenizer(tokenizer)
        assert len(vocabulary) == len(tokenizer) == SIZE[algorithm]
        assert "" not in vocabulary.strings


@pytest.mark.parametrize("algorithm", SIZE)
def test_training_prints_nothing_where_there_is_no_terminal(text, tmp_path, capfd, algorithm):
    train_tokenizer(text, SIZE[algorithm], tmp_path / "out", algorithm)
    assert capfd.readouterr().out == ""


def test_special_tokens_have_their_places(trained):
    for (algorithm, style), (tokenizer, _) in trained.items():
        tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
        encoded = tokenizer.convert_ids_to_tokens(tokenizer("Haus").input_ids)
        if algorithm == "wordpiece":
            assert tokens[:5] == BERT and tokenizer.cls_token_id == 2 and tokenizer.mask_token_id == 4
            assert (encoded[0], encoded[-1]) == ("[CLS]", "[SEP]")
        elif style == "gpt2":
            assert tokens[0] == "<|endoftext|>"
            assert tokenizer.bos_token_id == tokenizer.eos_token_id == tokenizer.unk_token_id == 0
            assert tokenizer.pad_token_id is None and 0 not in tokenizer("Haus").input_ids
        else:
            assert tokens[:4] == ROBERTA and tokens[-1] == "<mask>"
            assert (tokenizer.bos_token_id, tokenizer.cls_token_id, tokenizer.pad_token_id) == (0, 0, 1)
            assert (tokenizer.eos_token_id, tokenizer.sep_token_id, tokenizer.unk_token_id) == (2, 2, 3)
            assert (encoded[0], encoded[-1]) == ("<s>", "</s>")
            pair = tokenizer("Haus", "Baum").input_ids
            assert pair == [0, *tokenizer("Haus").input_ids[1:-1], 2, 2, *tokenizer("Baum").input_ids[1:-1], 2]


def test_the_mask_swallows_the_space_before_it(trained):
    tokenizer, _ = trained["byte_bpe", "roberta"]
    assert tokenizer("Haus <mask>").input_ids == tokenizer("Haus<mask>").input_ids


def test_transformers_loads_the_same_tokenizer(trained):
    for tokenizer, directory in trained.values():
        assert {file.name for file in directory.iterdir()} == {"tokenizer.json", "tokenizer_config.json", RECORD}
        other = AutoTokenizer.from_pretrained(directory)
        assert other.get_vocab() == tokenizer.get_vocab()
        assert other.special_tokens_map == tokenizer.special_tokens_map
        assert other("Häuser im Wasserfall 日").input_ids == tokenizer("Häuser im Wasserfall 日").input_ids
        assert json.loads((directory / "tokenizer_config.json").read_text())["tokenizer_class"] == "PreTrainedTokenizerFast"


def test_how_a_tokenizer_was_loaded_is_not_saved_with_it(trained, tmp_path):
    _, directory = trained["byte_bpe", "roberta"]
    load_tokenizer(directory).save_pretrained(tmp_path)
    assert {"local_files_only", "is_local"}.isdisjoint(json.loads((tmp_path / "tokenizer_config.json").read_text()))


def test_a_tokenizer_that_was_loaded_is_written_for_transformers_4_too(trained, tmp_path):
    """Whose AutoTokenizer does not know the name that transformers 5 writes."""
    tokenizer, directory = trained["byte_bpe", "roberta"]
    write_tokenizer(load_tokenizer(directory), tmp_path)
    written = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert written["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert AutoTokenizer.from_pretrained(tmp_path)("Häuser im Wald").input_ids == tokenizer("Häuser im Wald").input_ids


SNIPPETS = ["Haus", " ", "  ", "\n", "ü", "日", "<0x41>", "<0x", "A>", "<", "😀"]


@settings(max_examples=300, deadline=None)
@given(text=st.text() | st.lists(st.sampled_from(SNIPPETS)).map("".join))
def test_byte_bpe_and_unigram_keep_every_text(trained, text):
    assume(not re.search(r"</?s>|<pad>|<unk>|<mask>|<\|endoftext\|>", text))
    for (algorithm, _), (tokenizer, _) in trained.items():
        ids = tokenizer(text, add_special_tokens=False).input_ids
        joined = Vocabulary.from_tokenizer(tokenizer).join(ids)
        if algorithm == "byte_bpe":
            assert joined == text.encode()
        if algorithm == "unigram":
            assert joined == text.replace("▁", " ").encode()


def test_wordpiece_keeps_case_and_umlauts(trained):
    tokenizer, _ = trained["wordpiece", "gpt2"]
    assert tokenizer.decode(tokenizer("Häuser größer", add_special_tokens=False).input_ids) == "Häuser größer"


def test_wordpiece_cuts_a_sentence_without_spaces(trained, text):
    """As Thai's, of more than BERT's 100 characters."""
    tokenizer, _ = trained["wordpiece", "gpt2"]
    stretch = re.sub(r"[^a-zäöüß]", "", sample())[:250]
    ids = tokenizer(stretch, add_special_tokens=False).input_ids
    assert tokenizer.unk_token_id not in ids and tokenizer.decode(ids) == stretch


def digest(directory: Path) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(directory.iterdir()))).hexdigest()


def test_the_same_text_gives_the_same_files_in_another_process(trained, text, tmp_path):
    for algorithm in ("byte_bpe", "wordpiece"):
        _, directory = trained[algorithm, "roberta"]
        command = (
            "import sys; from wechsel_jax.tokens.training import train_tokenizer;"
            f"train_tokenizer(sys.argv[1], {SIZE[algorithm]}, sys.argv[2], {algorithm!r}, 'roberta')"
        )
        subprocess.run([sys.executable, "-c", command, str(text), str(tmp_path / algorithm)], check=True)
        assert digest(tmp_path / algorithm) == digest(directory)


def test_compressed_and_split_files_are_the_same_text(trained, text, tmp_path):
    first, second = sample()[:1000].rsplit("\n", 1)[0] + "\n", ""
    second = sample()[len(first) :]
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(first.encode()))
    (tmp_path / "b.txt.xz").write_bytes(lzma.compress(second.replace("\n", "\r\n").encode()))
    train_tokenizer([tmp_path / "a.txt.gz", tmp_path / "b.txt.xz"], SIZE["byte_bpe"], tmp_path / "out")
    assert digest(tmp_path / "out") == digest(trained["byte_bpe", "gpt2"][1])


def test_json_lines_tables_and_patterns_are_the_same_text(trained, tmp_path):
    lines = sample().splitlines()
    records = [{"url": "http://a", "body": "\n".join(lines[i : i + 3])} for i in range(0, 30, 3)]
    (tmp_path / "1.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, records)).encode()))
    pq.write_table(pa.table({"body": lines[30:40]}), tmp_path / "2.parquet")
    for name, part in (("3.txt", lines[40:50]), ("4.txt", lines[50:])):
        (tmp_path / name).write_text("\n".join(part), encoding="utf-8")
    files = [tmp_path / "1.jsonl.gz", tmp_path / "2.parquet", tmp_path / "*.txt"]
    train_tokenizer(files, SIZE["byte_bpe"], tmp_path / "out", text_field="body")
    assert digest(tmp_path / "out") == digest(trained["byte_bpe", "gpt2"][1])
    refused(r"1\.jsonl\.gz: line 1: has no field 'text' but 'url', 'body'", files, 300, tmp_path / "other")


@pytest.mark.parametrize("algorithm", ["byte_bpe", "wordpiece"])
def test_a_long_line_is_cut_where_that_changes_no_word(tmp_path, monkeypatch, algorithm):
    (tmp_path / "line.txt").write_text(sample().replace("\n", "  ") * 2, encoding="utf-8")
    train_tokenizer(tmp_path / "line.txt", SIZE[algorithm], tmp_path / "whole", algorithm)
    longest, real = [], training._pieces
    monkeypatch.setattr(training, "_LONGEST_PIECE", 100)
    monkeypatch.setattr(training, "_pieces", lambda line: (longest.append(len(piece)) or piece for piece in real(line)))
    train_tokenizer(tmp_path / "line.txt", SIZE[algorithm], tmp_path / "cut", algorithm)
    assert digest(tmp_path / "cut") == digest(tmp_path / "whole") and 50 < max(longest) <= 100
    assert list(real("x" * 250)) == ["x" * 100, "x" * 100, "x" * 50]


def test_a_line_above_the_limit_is_named_and_leaves_nothing(text, tmp_path):
    message = (
        r"german\.txt: line 1: longer than 20 bytes; expected shorter documents; cut them at newlines, or raise max_document_b"
    )
    refused(message, text, 300, tmp_path / "out", max_document_bytes=20)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_named_and_leaves_nothing(text, tmp_path):
    with no_file_above(4096):
        refused(r"out: cannot be written \(File too large\); free some space", text, 300, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def refused(message: str, *arguments, **keywords):
    with pytest.raises(UserError, match=message) as error:
        train_tokenizer(*arguments, **keywords)
    assert "\n" not in str(error.value)


def test_bad_input_is_named_and_leaves_nothing(text, tmp_path):
    inputs, output = tmp_path / "inputs", tmp_path / "outputs" / "tokenizer"
    inputs.mkdir()
    (inputs / "latin1.txt").write_bytes("eins\nzwei\nGr\u00fc\u00dfe\n".encode("latin-1"))
    (inputs / "cut.gz").write_bytes(gzip.compress(sample().encode())[:-30])
    (inputs / "cut.xz").write_bytes(lzma.compress(sample().encode())[:-30])
    (inputs / "blank.txt").write_text("\n  \n")
    (inputs / "empty.txt").write_text("")
    (inputs / "short.txt").write_text("ein Haus\n")
    refused(r"latin1\.txt: line 3: not UTF-8", inputs / "latin1.txt", 300, output)
    refused(r"cut\.gz: .*this one is damaged or cut short", inputs / "cut.gz", 300, output)
    refused(r"cut\.xz: .*this one is damaged or cut short", inputs / "cut.xz", 300, output)
    refused(r"blank\.txt: nothing but blank lines", inputs / "blank.txt", 300, output)
    refused(r"empty\.txt: the file is empty", inputs / "empty.txt", 300, output)
    refused(r"none\.txt: no such file", inputs / "none.txt", 300, output)
    refused("no text files", [], 300, output)
    refused(r"short\.txt: too little text, it gives 26\d tokens; expected 5000", inputs / "short.txt", 5000, output)
    refused(r"short\.txt: too little text", inputs / "short.txt", 5000, output, "wordpiece")
    refused(r"short\.txt: (too little text|no tokenizer can)", inputs / "short.txt", 5000, output, "unigram")
    (inputs / "signs.txt").write_text("".join(map(chr, range(0x4E00, 0x4F00))) + "\n")
    refused(r"signs\.txt: no tokenizer can .*; take a larger vocabulary_size", inputs / "signs.txt", 290, output, "unigram")
    refused("vocabulary size 200: too small; expected at least 257", text, 200, output)
    refused("vocabulary size 99999999999: too large", text, 99_999_999_999, output)
    refused("alone make .* tokens", text, 20, output, "wordpiece")
    refused("unknown algorithm", text, 300, output, "magic")
    refused("unknown style", text, 300, output, "byte_bpe", "t5")
    assert not output.parent.exists() or not list(output.parent.iterdir())


def test_an_existing_output_is_kept_unless_overwritten(text, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    refused("exists already", text, 300, tmp_path / "out")
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "mine.txt"]
    refused("would be lost", tmp_path / "out" / "mine.txt", 300, tmp_path / "out", overwrite=True)
    refused("holds no record of that", text, 300, tmp_path / "out", overwrite=True)
    (tmp_path / "out" / "mine.txt").unlink()
    for size in (300, 310):
        train_tokenizer(text, size, tmp_path / "out", overwrite=True)
        assert len(load_tokenizer(tmp_path / "out")) == size
