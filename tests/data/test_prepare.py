import json
import lzma
import os
from itertools import islice

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from wechsel_jax.data import TokenBlocks, prepare, prepare_split
from wechsel_jax.errors import UserError
from wechsel_jax.text.parts import read_documents
from wechsel_jax.tokens import encoding

TEXT = "Grüße aus  Köln \n\n \nzwei\n\u2028drei\x85\r\nvier"
LINES = ["Grüße aus  Köln ", "zwei", "\u2028drei\x85", "vier"]


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(TEXT.encode())
    return path


def stream(directory):
    manifest = json.loads((directory / "manifest.json").read_text())
    return np.fromfile(directory / "tokens.bin", manifest["dtype"])


@pytest.mark.parametrize("style", ["gpt2", "roberta"])
def test_the_stream_is_what_transformers_makes_of_each_document(tmp_path, tokenizers, text, style):
    manifest = prepare([text, text], tokenizers[style], tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tokenizers[style])
    end = [tokenizer.eos_token_id] if style == "gpt2" else []
    expected = [token for line in LINES + LINES for token in tokenizer(line).input_ids + end]
    assert stream(tmp_path / "out").tolist() == expected
    assert (manifest["tokens"], manifest["documents"], manifest["bytes"]) == (len(expected), 8, 2 * len(expected))
    assert manifest == json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["vocabulary_size"] == len(tokenizer)
    assert {"name": "text.txt", "bytes": len(TEXT.encode())}.items() <= manifest["inputs"][1].items()


@pytest.mark.parametrize(("documents", "count"), [("lines", 4), ("paragraphs", 2), ("files", 1)])
def test_each_document_is_ended_once(tmp_path, tokenizers, text, documents, count):
    manifest = prepare(text, tokenizers["gpt2"], tmp_path / "out", documents=documents)
    tokens = stream(tmp_path / "out")
    assert manifest["documents"] == count == np.sum(tokens == 0)
    assert tokens[-1] == 0


def test_a_text_is_ended_also_by_a_tokenizer_without_latin_letters(tmp_path):
    """Which makes nothing of "a", and puts a token before a text, but none behind it."""
    backend = Tokenizer(models.BPE({"<s>": 0, "</s>": 1, "ก": 2, "า": 3}, []))
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>").save_pretrained(tmp_path / "thai")
    (tmp_path / "text.txt").write_text("กา\nากา\n", encoding="utf-8")
    prepare([tmp_path / "text.txt"], tmp_path / "thai", tmp_path / "out")
    assert stream(tmp_path / "out").tolist() == [0, 2, 3, 1, 0, 3, 2, 3, 1]


def test_the_size_of_groups_changes_nothing(tmp_path, tokenizers, text, monkeypatch):
    prepare(text, tokenizers["roberta"], tmp_path / "one")
    monkeypatch.setattr(encoding, "GROUP_TEXTS", 3)
    prepare(text, tokenizers["roberta"], tmp_path / "two")
    monkeypatch.setattr(encoding, "_GROUP_CHARACTERS", 1)
    prepare(text, tokenizers["roberta"], tmp_path / "three")
    assert stream(tmp_path / "one").tolist() == stream(tmp_path / "two").tolist() == stream(tmp_path / "three").tolist()


@pytest.mark.parametrize(("largest", "dtype"), [(65535, "uint16"), (65536, "uint32")])
def test_ids_fit_whatever_the_vocabulary(tmp_path, text, largest, dtype):
    words = {f"word{i}": i for i in range(2, largest)}
    backend = Tokenizer(models.WordLevel({"zwei": largest, "<unk>": 1, "</s>": 0, **words}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="<unk>")
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    manifest = prepare(text, tmp_path / "tokenizer", tmp_path / "out")
    assert (manifest["dtype"], manifest["vocabulary_size"]) == (dtype, largest + 1)
    blocks = TokenBlocks.open(tmp_path / "out", 8)
    assert blocks.blocks(np.asarray([0])).tolist()[0] == [1, 1, 1, 0, largest, 0, 1, 0]


def test_a_tokenizer_that_cuts_and_pads_texts_loses_none_here(tmp_path, tokenizers, text):
    backend = Tokenizer.from_file(str(tokenizers["roberta"] / "tokenizer.json"))
    backend.enable_truncation(4)
    backend.enable_padding(length=50)
    (tmp_path / "tokenizer").mkdir()
    backend.save(str(tmp_path / "tokenizer" / "tokenizer.json"))
    cut = prepare(text, tmp_path / "tokenizer", tmp_path / "cut")
    assert cut["sha256"] == prepare(text, tokenizers["roberta"], tmp_path / "whole")["sha256"]


def test_what_an_older_version_prepared_is_used(tmp_path, tokenizers, text):
    made = prepare(text, tokenizers["gpt2"], tmp_path / "out")
    new = ("text_field", "max_bytes", "deduplicate", "validation_fraction", "text_bytes", "dropped")
    old = {name: value for name, value in made.items() if name not in new}
    (tmp_path / "out" / "manifest.json").write_text(json.dumps(old))
    assert prepare(text, tokenizers["gpt2"], tmp_path / "out") == old
    with pytest.raises(UserError, match="was prepared with deduplicate = False, not True"):
        prepare(text, tokenizers["gpt2"], tmp_path / "out", deduplicate=True)


def test_the_same_inputs_are_not_prepared_again(tmp_path, tokenizers, text):
    first = prepare([text], tokenizers["gpt2"], tmp_path / "out")
    (tmp_path / "elsewhere").mkdir()
    moved = text.rename(tmp_path / "elsewhere" / "text.txt")
    os.utime(moved, (0, 0))
    before = (tmp_path / "out" / "tokens.bin").stat().st_mtime_ns, (tmp_path / "out").stat().st_ino
    assert prepare([moved], tokenizers["gpt2"], tmp_path / "out") == first
    assert ((tmp_path / "out" / "tokens.bin").stat().st_mtime_ns, (tmp_path / "out").stat().st_ino) == before


def test_other_inputs_are_refused_and_named(tmp_path, tokenizers, text):
    other = tmp_path / "other.txt"
    other.write_text("other\n")
    output = tmp_path / "out"
    prepare([text, other], tokenizers["gpt2"], output)
    before = (output / "tokens.bin").read_bytes()
    with pytest.raises(UserError, match=r"out: was prepared with another tokenizer"):
        prepare([text, other], tokenizers["roberta"], output)
    with pytest.raises(UserError, match=r"out: was prepared from the same files in another order"):
        prepare([other, text], tokenizers["gpt2"], output)
    with pytest.raises(UserError, match=r"out: was prepared with documents_are = 'lines', not 'files'"):
        prepare([text, other], tokenizers["gpt2"], output, documents="files")
    other.write_text("othes\n")
    with pytest.raises(UserError, match=r"out: was prepared from other text than other\.txt holds now"):
        prepare([text, other], tokenizers["gpt2"], output)
    assert (output / "tokens.bin").read_bytes() == before


def test_what_was_prepared_as_one_is_not_two_and_the_other_way_round(tmp_path, tokenizers, text):
    prepare([text], tokenizers["gpt2"], tmp_path / "one")
    with pytest.raises(UserError, match=r"one: was prepared without validation_fraction; choose another output or delete it$"):
        prepare_split([text], tokenizers["gpt2"], tmp_path / "one", validation_fraction=0.5)
    prepare_split([text], tokenizers["gpt2"], tmp_path / "two", validation_fraction=0.5)
    with pytest.raises(UserError, match=r"two: was prepared with validation_fraction; choose another output or delete it$"):
        prepare([text], tokenizers["gpt2"], tmp_path / "two")


def test_a_directory_of_something_else_is_left_alone(tmp_path, tokenizers, text):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("precious")
    with pytest.raises(UserError, match=r"out: exists already and holds no prepared text; choose another output$"):
        prepare([text], tokenizers["gpt2"], tmp_path / "out")
    assert os.listdir(tmp_path / "out") == ["thesis.tex"]


def test_an_empty_directory_is_filled(tmp_path, tokenizers, text):
    (tmp_path / "out").mkdir()
    assert prepare([text], tokenizers["gpt2"], tmp_path / "out")["documents"] == 4


def test_what_was_cut_short_is_not_reused(tmp_path, tokenizers, text):
    prepare([text], tokenizers["gpt2"], tmp_path / "out")
    with open(tmp_path / "out" / "tokens.bin", "r+b") as handle:
        handle.truncate(6)
    with pytest.raises(UserError, match=r"tokens\.bin: cut short, 6 bytes"):
        prepare([text], tokenizers["gpt2"], tmp_path / "out")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"bad\.txt: the file is empty"),
        (b" \n\n\t\n", r"bad\.txt: holds nothing but white space"),
        ("gut\nKäse\n".encode("latin-1"), r"bad\.txt: line 2: not UTF-8"),
        ("gut".encode("utf-16"), r"bad\.txt: line 1: the text is UTF-16"),
        ("यह एक छोटा वाक्य है\n".encode("utf-16-le") * 9, r"bad\.txt: line 1: has as many zero bytes as UTF-16"),
        (lzma.compress(b"text\n" * 1000)[:-20], r"bad\.txt: .*damaged or cut short"),
        (lzma.compress(b"PAR1\x15" + bytes(40)), r"bad\.txt: line 1: a Parquet file that was compressed once more"),
    ],
)
def test_bad_text_leaves_nothing_behind(tmp_path, tokenizers, content, message):
    bad = tmp_path / "bad.txt"
    bad.write_bytes(content)
    with pytest.raises(UserError, match=message):
        prepare([bad], tokenizers["gpt2"], tmp_path / "out")
    assert os.listdir(tmp_path) == ["bad.txt"]


def test_text_may_begin_as_parquet_does(tmp_path, tokenizers):
    (tmp_path / "a.txt.xz").write_bytes(lzma.compress(b"PAR1 is a name\n"))
    assert prepare([tmp_path / "a.txt.xz"], tokenizers["gpt2"], tmp_path / "out")["documents"] == 1


def test_a_few_zero_bytes_in_a_long_line_without_spaces_are_text(tmp_path, tokenizers):
    (tmp_path / "zh.txt").write_text("这是一个很长的句子" * 200 + "\0" * 4, encoding="utf-8")
    assert prepare([tmp_path / "zh.txt"], tokenizers["gpt2"], tmp_path / "out")["documents"] == 1


def test_other_mistakes(tmp_path, tokenizers, text):
    with pytest.raises(UserError, match=r"missing\.txt: no such file"):
        prepare([text, tmp_path / "missing.txt"], tokenizers["gpt2"], tmp_path / "out")
    with pytest.raises(UserError, match="no file is named"):
        prepare([], tokenizers["gpt2"], tmp_path / "out")
    with pytest.raises(UserError, match="expected lines, paragraphs or files"):
        prepare([text], tokenizers["gpt2"], tmp_path / "out", documents="pages")
    with pytest.raises(UserError, match="endless: has no token that ends a text"):
        prepare([text], tokenizers["endless"], tmp_path / "out")
    assert os.listdir(tmp_path) == ["text.txt"]


@pytest.mark.parametrize("name", ["gpt2", "roberta"])
def test_german_text_comes_back_from_its_tokens(tmp_path, data_directory, name):
    source = data_directory / "text" / "de.wikipedia_mlqa_xquad.txt.xz"
    lines = list(islice(read_documents(source, "lines"), 300))
    path = tmp_path / "de.txt"
    path.write_text("\n".join(lines), encoding="utf-8", newline="")
    manifest = prepare([path], data_directory / "tokenizers" / name, tmp_path / "out")
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(data_directory / "tokenizers" / name / "tokenizer.json"))
    ends = {"gpt2": 50256, "roberta": 2}
    tokens = stream(tmp_path / "out")
    documents = np.split(tokens, np.flatnonzero(tokens == ends[name]) + 1)[:-1]
    start = 1 if name == "roberta" else 0
    decoded = [tokenizer.decode(ids[start:-1], clean_up_tokenization_spaces=False) for ids in documents]
    assert decoded == lines
    assert manifest["documents"] == 300


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.symlink_to("nothing"), "out: is a link; expected a directory to write"),
        (lambda path: path.symlink_to("out"), "out: is a link"),
        (lambda path: path.symlink_to("tok"), "out: is a link"),
        (lambda path: path.write_text("mine"), "out: exists already and holds no prepared text"),
    ],
)
def test_an_output_that_is_no_directory_is_refused_and_nothing_left(tmp_path, tokenizers, text, make, message):
    (tmp_path / "tok").symlink_to(tokenizers["gpt2"])
    make(tmp_path / "out")
    before = sorted(os.listdir(tmp_path)), sorted(os.listdir(tokenizers["gpt2"]))
    with pytest.raises(UserError, match=message):
        prepare(text, tokenizers["gpt2"], tmp_path / "out")
    assert (sorted(os.listdir(tmp_path)), sorted(os.listdir(tokenizers["gpt2"]))) == before


def test_an_output_below_a_file_is_refused_before_text_is_read(tmp_path, tokenizers):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match=r"file is a file; expected a directory to write in"):
        prepare(tmp_path / "missing.txt", tokenizers["gpt2"], tmp_path / "file" / "out")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["mine.txt"], r"\.out\.partial: holds mine\.txt; expected unfinished work on out; move it elsewhere"),
        (["output/mine.txt", "plan.json"], r"\.out\.partial: holds output/mine\.txt"),
        (["output/tokens.bin"], r"\.out\.partial: holds output(/tokens\.bin)? but no plan\.json"),
        (None, r"\.out\.partial: is no directory"),
    ],
)
def test_what_others_put_where_unfinished_work_lies_stays(tmp_path, tokenizers, text, files, message):
    place = tmp_path / ".out.partial"
    for file in files or []:
        (place / file).parent.mkdir(parents=True, exist_ok=True)
        (place / file).write_text("mine")
    if files is None:
        place.symlink_to(tmp_path)
    with pytest.raises(UserError, match=message):
        prepare(text, tokenizers["gpt2"], tmp_path / "out")
    assert all((place / file).read_text() == "mine" for file in files or [])
    assert {entry.name for entry in tmp_path.iterdir()} == {".out.partial", text.name}
    # Nor is it removed where everything is done already.
    place.rename(tmp_path / "aside")
    prepare(text, tokenizers["gpt2"], tmp_path / "out")
    (tmp_path / "aside").rename(place)
    prepare(text, tokenizers["gpt2"], tmp_path / "out")
    assert all((place / file).read_text() == "mine" for file in files or [])


def test_what_others_put_where_the_lock_lies_stays(tmp_path, tokenizers, text):
    (tmp_path / ".out.lock").write_text("mine")
    with pytest.raises(UserError, match=r"\.out\.lock: holds something; expected an empty file"):
        prepare(text, tokenizers["gpt2"], tmp_path / "out")
    assert (tmp_path / ".out.lock").read_text() == "mine"


def test_absurd_numbers_are_refused(tmp_path, tokenizers, text):
    for name in ("max_bytes", "max_document_bytes"):
        with pytest.raises(UserError, match=f"{name}.*expected"):
            prepare(text, tokenizers["gpt2"], tmp_path / "out", **{name: 2**63})
