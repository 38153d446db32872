import bz2
import dataclasses
import gzip
import json
import lzma
import random
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.memory import most_held
from wechsel_jax.data import prepare
from wechsel_jax.errors import UserError
from wechsel_jax.text.files import read_lines
from wechsel_jax.text.parts import read_documents, read_parts
from wechsel_jax.text.sources import Source, find_sources

COMPRESSIONS = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress, ".zst": zstandard.compress}
DOCUMENTS = [f"Satz {i} über \u2028Köln\x85 🙂 " + "x" * (i * 37 % 101) for i in range(400)]
texts = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), min_size=1, max_size=20)


def packed_jsonl(documents, field="text"):
    return "".join(json.dumps({"id": i, field: text}) + "\n" for i, text in enumerate(documents)).encode()


def documents_of(name, kind="lines", field="text", part_bytes=1000):
    (source,) = find_sources([name], field)
    return [document for part in read_parts(source, kind, part_bytes) for document in part.documents()[0]]


@pytest.fixture(scope="module")
def everywhere(tmp_path_factory):
    """The same documents as every kind of source: {kind: name}."""
    directory = tmp_path_factory.mktemp("sources")
    names = {}
    for ending, compress in COMPRESSIONS.items():
        for kind, raw in (("txt", "\n".join(DOCUMENTS).encode()), ("jsonl", packed_jsonl(DOCUMENTS))):
            path = directory / f"{kind}{ending}" / f"corpus.{kind}{ending}"
            path.parent.mkdir()
            path.write_bytes(compress(raw))
            names[f"{kind}{ending}"] = str(path)
    table = datasets.Dataset.from_dict({"id": list(range(len(DOCUMENTS))), "text": DOCUMENTS})
    table.to_parquet(directory / "corpus.parquet")
    pq.write_table(pa.table({"text": pa.array(DOCUMENTS).dictionary_encode()}), directory / "words.parquet", row_group_size=90)
    table.save_to_disk(directory / "saved", num_shards=3)
    split = datasets.DatasetDict({"test": table.select([0]), "train": table.select(range(len(DOCUMENTS)))})
    split.save_to_disk(directory / "splits")
    (directory / "hub").mkdir()
    table.to_json(directory / "hub" / "train.jsonl")
    places = {"parquet": "corpus.parquet", "dictionary": "words.parquet"}
    names |= {name: str(directory / place) for name, place in places.items()}
    names |= {"saved": f"datasets:{directory}/saved", "split": f"datasets:{directory}/splits:train"}
    return names | {"hub": f"hf://{directory}/hub:train"}


def test_every_source_gives_the_same_documents(everywhere):
    for kind, name in everywhere.items():
        assert documents_of(name) == DOCUMENTS, kind


@pytest.mark.parametrize("kind", ["jsonl.zst", "split", "hub"])
def test_every_source_gives_the_same_tokens(everywhere, tmp_path, tokenizers, kind):
    first = prepare(everywhere["txt"], tokenizers["roberta"], tmp_path / "text")
    second = prepare(everywhere[kind], tokenizers["roberta"], tmp_path / kind)
    assert (second["sha256"], second["documents"]) == (first["sha256"], len(DOCUMENTS))
    assert second["text_bytes"] == sum(len(text.encode()) for text in DOCUMENTS)


def test_a_pattern_stands_for_its_files_in_order_of_their_names(tmp_path):
    for name in ("b.txt", "a.txt", "deep/c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert [source.place for source in find_sources([str(tmp_path / "*.txt")])] == [f"{tmp_path}/a.txt", f"{tmp_path}/b.txt"]
    assert len(find_sources([str(tmp_path / "**" / "*.txt")])) == 3
    (tmp_path / "odd[1].txt").write_text("a file of this very name is no pattern")
    assert [source.place for source in find_sources([tmp_path / "odd[1].txt"])] == [f"{tmp_path}/odd[1].txt"]
    assert list(read_documents(str(tmp_path / "?.txt"))) == ["a.txt", "b.txt"]
    with pytest.raises(UserError, match=r"\*\.md: no file has such a name"):
        find_sources([str(tmp_path / "*.md")])
    with pytest.raises(UserError, match=r"a name of text is empty \(a comma too many\?\); expected a text file"):
        find_sources([str(tmp_path / "a.txt"), ""])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hf://user/name", ("user/name", "", "", "")),
        ("hf://name:test", ("name", "", "test", "")),
        ("hf://user/name@1f3e:train[:1%]#sw", ("user/name", "1f3e", "train[:1%]", "sw")),
        ("hf://user/name#sw_KE", ("user/name", "", "", "sw_KE")),
    ],
)
def test_names_of_the_hub(name, expected):
    place, revision, split, config = expected
    assert find_sources([name]) == [Source("hub", place, "text", split, config, revision)]


def test_what_cannot_be_had_from_the_hub_is_named(tokenizers, tmp_path):
    with pytest.raises(UserError, match=r"hf://no/such: cannot be found on the hub \(.*hf://NAME:SPLIT#CONFIG"):
        prepare("hf://no/such", tokenizers["gpt2"], tmp_path / "out")
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "train.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(UserError, match=r"local:test: cannot be read from the hub \(.*test"):
        prepare(f"hf://{tmp_path}/local:test", tokenizers["gpt2"], tmp_path / "out")
    # What is streamed is read late.
    (tmp_path / "local" / "train.jsonl").write_text('{"text": "a"}\n' * 9 + '{"text": \n')
    with pytest.raises(UserError, match=r"local:train: cannot be read from the hub \("):
        prepare(f"hf://{tmp_path}/local:train", tokenizers["gpt2"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_column_of_nothing_but_null_is_no_text(tmp_path):
    pq.write_table(pa.table({"text": pa.nulls(3)}), tmp_path / "empty.parquet")
    pq.write_table(pa.table({"text": ["a", None]}), tmp_path / "more.parquet")
    assert documents_of(tmp_path / "empty.parquet") == []
    assert documents_of(tmp_path / "more.parquet") == ["a"]


@settings(deadline=None, max_examples=60)
@given(documents=texts, part_bytes=st.integers(1, 60), compression=st.sampled_from(list(COMPRESSIONS)))
def test_no_character_is_lost_wherever_parts_end(tmp_path_factory, documents, part_bytes, compression):
    directory = tmp_path_factory.mktemp("parts")
    path = directory / "a.jsonl"
    path.write_bytes(COMPRESSIONS[compression](packed_jsonl(documents)))
    solid = [text for text in documents if text and not text.isspace()]
    assert documents_of(path, part_bytes=part_bytes) == solid
    pq.write_table(pa.table({"text": pa.array(documents)}), directory / "a.parquet")
    assert documents_of(directory / "a.parquet", part_bytes=part_bytes) == solid


@settings(deadline=None, max_examples=60)
@given(
    raw=st.lists(st.sampled_from(["a", "ü b", "\u3000", " ", "", "\r"]), min_size=1, max_size=30).map("\n".join).filter(bool),
    part_bytes=st.integers(1, 20),
    kind=st.sampled_from(["lines", "paragraphs", "files"]),
    compression=st.sampled_from(["", ".gz"]),
)
def test_where_parts_end_changes_no_document(tmp_path_factory, raw, part_bytes, kind, compression):
    path = tmp_path_factory.mktemp("parts") / "a.txt"
    path.write_bytes(COMPRESSIONS[compression](raw.encode()))
    assert documents_of(path, kind, part_bytes=part_bytes) == documents_of(path, kind, part_bytes=10**6)


@pytest.mark.parametrize("compression", list(COMPRESSIONS))
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (
            b'{"text": "a"\n',
            r"line 301: not JSON \(.* at character \d+\); expected one JSON object a line, with",
        ),
        (b'["text"]\n', "line 301: is list, no JSON object"),
        (b'{"body": "a", "id": 1}\n', "line 301: has no field 'text' but 'body', 'id': name it with text_field"),
        (b'{"text": 5}\n', "line 301: field 'text' holds int, no text"),
        (b'{"text": "\xfc"}\n', r"line 301: not UTF-8 \(byte 0xfc at position 11\)"),
        (b'{"text": "\\ud800"}\n', "line 301: .*surrogates not allowed"),
        (b'{"text": ' + b"[" * 100_000 + b"\n", "line 301: nested too deep; expected one JSON object a line"),
        (b'{"text": ' + b"1" * 5000 + b"}\n", "line 301: Exceeds the limit .* for integer"),
        (b'{"text": 1e999}\n', "line 301: field 'text' holds float, no text"),
        (
            json.dumps({"n" * 99: 1, **dict.fromkeys("abcdefghijkl")}).encode() + b"\n",
            "line 301: has no .*'n{40}'..., 'a', .*'i': name",
        ),
    ],
)
def test_a_bad_line_is_named(tmp_path, tokenizers, compression, bad, message):
    path = tmp_path / f"corpus.jsonl{compression}"
    path.write_bytes(COMPRESSIONS[compression](packed_jsonl(DOCUMENTS[:299]) + b"\n" + bad + packed_jsonl(DOCUMENTS)))
    with pytest.raises(UserError, match=rf"corpus\.jsonl{compression}: {message}"):
        documents_of(path)


def test_the_first_mistake_is_reported_although_text_is_read_ahead(tmp_path, tokenizers, monkeypatch):
    import importlib

    monkeypatch.setattr(importlib.import_module("wechsel_jax.data.prepare"), "PART_BYTES", 1000)
    lines = packed_jsonl(DOCUMENTS).split(b"\n")
    lines[100], lines[300] = b"{", b"{"
    path = tmp_path / "corpus.jsonl.gz"
    path.write_bytes(gzip.compress(b"\n".join(lines))[:-200])
    with pytest.raises(UserError, match="line 101: not JSON"):
        prepare(path, tokenizers["gpt2"], tmp_path / "out")
    assert [entry.name for entry in tmp_path.iterdir()] == ["corpus.jsonl.gz"]


def test_other_fields_and_missing_text(tmp_path, tokenizers):
    (tmp_path / "a.jsonl").write_text('{"body": "eins"}\n\n{"body": null}\n{"body": " "}\n')
    manifest = prepare(tmp_path / "a.jsonl", tokenizers["gpt2"], tmp_path / "out", text_field="body")
    assert (manifest["documents"], manifest["dropped"]) == (1, {"blank": {"documents": 2}})
    pq.write_table(pa.table({"body": pa.array(["a", None]), "number": [1, 2]}), tmp_path / "a.parquet")
    assert documents_of(tmp_path / "a.parquet", field="body") == ["a"]
    with pytest.raises(UserError, match=r"a\.parquet: has no field 'text'; expected one of 'body', 'number'"):
        documents_of(tmp_path / "a.parquet")
    with pytest.raises(UserError, match="field 'number' is int64; expected text"):
        documents_of(tmp_path / "a.parquet", field="number")


def test_bytes_that_are_no_text_in_a_table(tmp_path):
    column = pa.StringArray.from_buffers(2, pa.py_buffer(np.asarray([0, 1, 2], np.int32)), pa.py_buffer(b"a\xff"))
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"a\.parquet: row 2: not UTF-8"):
        documents_of(tmp_path / "a.parquet")


@pytest.mark.parametrize("kind", ["txt", "txt.gz", "jsonl", "jsonl.zst", "parquet", "saved", "hub"])
def test_the_longest_document_is_read_and_a_longer_one_named(everywhere, kind):
    longest = max(len(json.dumps({"id": 1, "text": text}) if "json" in kind else text.encode()) for text in DOCUMENTS) + 2
    (source,) = find_sources([everywhere[kind]], longest=longest)
    for part_bytes in (50, 10**6):
        parts = list(read_parts(source, "lines", part_bytes))
        assert [document for part in parts for document in part.documents()[0]] == DOCUMENTS
    place = f"{'row' if kind in ('parquet', 'saved', 'hub') else 'line'} 1: longer than 20 bytes; expected shorter documents"
    with pytest.raises(UserError, match=rf"{Path(everywhere[kind]).name}: {place}.*raise max_document_bytes"):
        [part.documents() for part in read_parts(dataclasses.replace(source, longest=20), "lines", 1000)]


@settings(deadline=None, max_examples=200)
@given(
    sizes=st.lists(st.integers(0, 20), min_size=1, max_size=12),
    longest=st.integers(1, 20),
    part_bytes=st.integers(1, 60),
    kind=st.sampled_from(["lines", "paragraphs", "files"]),
    compression=st.sampled_from(["", ".gz"]),
)
# A part that ends at a blank line, and a line that is as long as may be.
@example(sizes=[0, 0], longest=3, part_bytes=1, kind="paragraphs", compression="")
@example(sizes=[0, 3], longest=3, part_bytes=1, kind="paragraphs", compression=".gz")
def test_documents_are_too_long_wherever_parts_end(tmp_path_factory, sizes, longest, part_bytes, kind, compression):
    path = tmp_path_factory.mktemp("parts") / "a.txt"
    lines = ["x" * size for size in sizes]
    raw = "\n".join([*lines, "end"]).encode()
    path.write_bytes(COMPRESSIONS[compression](raw))
    expected = {"lines": [*lines, "end"], "paragraphs": "\n".join([*lines, "end"]).split("\n\n"), "files": [raw.decode()]}[kind]
    (source,) = find_sources([path], longest=longest)

    def documents():
        return [document for part in read_parts(source, kind, part_bytes) for document in part.documents()[0]]

    if max(len(document.strip("\n")) for document in expected) > longest or (kind == "files" and len(raw) > longest):
        with pytest.raises(UserError, match=rf"a\.txt: .*longer than {longest} bytes"):
            documents()
    else:
        assert "\n".join(documents()).replace("\n", "") == raw.decode().replace("\n", "")


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz", ".zst"])
@pytest.mark.parametrize("kind", ["lines", "paragraphs", "files", "json", "a list"])
def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path, bombs, ending, kind):
    path = bombs[ending]
    if kind == "json":
        path = tmp_path / f"a.jsonl{ending}"
        path.symlink_to(bombs[ending])
    (source,) = find_sources([path], longest=1 << 20)

    def read():
        with pytest.raises(UserError, match=r"(line 1: )?longer than 1,048,576 bytes"):
            if kind == "a list":
                list(read_lines(path, "a list", 1 << 20))
            else:
                [part.documents() for part in read_parts(source, kind, 1 << 16)]

    assert most_held(read) < 50 << 20


@pytest.fixture(scope="module")
def bombs(tmp_path_factory):
    """Files that unpack to 200 MB without a newline."""
    directory = tmp_path_factory.mktemp("bombs")
    for ending, compress in COMPRESSIONS.items():
        if ending:
            # Each of these formats may follow itself.
            (directory / f"a{ending}").write_bytes(compress(b"x" * 20_000_000) * 10)
    return {ending: directory / f"a{ending}" for ending in COMPRESSIONS}


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz", ".zst"])
def test_whatever_a_decompressor_says_of_damage_names_the_file(tmp_path, ending):
    compress = COMPRESSIONS[ending] if ending != ".zst" else zstandard.ZstdCompressor(write_checksum=True).compress
    raw = bytearray(compress(random.Random(0).randbytes(20_000).hex().encode()))
    path = tmp_path / f"a{ending}"
    for place in range(10, len(raw), len(raw) // 40):
        raw[place] ^= 0xFF
        path.write_bytes(raw)
        with pytest.raises(UserError, match=rf"a\{ending}: cannot be read \(.*\); .* damaged or cut short"):
            documents_of(path)
        raw[place] ^= 0xFF


@pytest.mark.parametrize("kind", ["jsonl.zst", "txt.zst", "txt.bz2", "parquet"])
def test_a_file_cut_short_is_not_taken_for_its_beginning(everywhere, tmp_path, kind):
    whole = Path(everywhere[kind]).read_bytes()
    path = tmp_path / f"a.{kind}"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=rf"a\.{kind}: .*damaged or cut short"):
        documents_of(path)


def test_several_frames_and_large_windows_of_zstd(tmp_path):
    parameters = zstandard.ZstdCompressionParameters(window_log=28)
    frames = [zstandard.ZstdCompressor(compression_params=parameters).compress(f"{i}\n".encode()) for i in range(3)]
    (tmp_path / "a.zst").write_bytes(b"".join(frames))
    assert documents_of(tmp_path / "a.zst") == ["0", "1", "2"]
    # A frame without text, as pzstd puts one before each.
    empty = b"\x50\x2a\x4d\x18\x04\0\0\0abcd"
    (tmp_path / "c.zst").write_bytes(empty + frames[0] + empty + frames[1])
    assert documents_of(tmp_path / "c.zst") == ["0", "1"]
    noise = random.Random(0).randbytes(5000)
    (tmp_path / "b.zst").write_bytes(frames[0] + zstandard.compress(noise.hex().encode())[:4000] + noise)
    with pytest.raises(UserError, match="damaged or cut short"):
        documents_of(tmp_path / "b.zst")


def test_without_the_package_for_zstd_it_is_named(everywhere, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    with pytest.raises(UserError, match=r"zstandard: not installed; expected it to read .*txt\.zst, which is"):
        documents_of(everywhere["txt.zst"])


def test_directories_of_datasets(everywhere, tmp_path):
    saved, splits = everywhere["saved"], everywhere["split"].removesuffix(":train")
    assert documents_of(f"{splits}:test") == DOCUMENTS[:1]
    with pytest.raises(UserError, match=rf"expected one of {splits}:test, {splits}:train"):
        documents_of(splits)
    with pytest.raises(UserError, match=f"without splits; expected {saved}"):
        documents_of(f"{saved}:train")
    with pytest.raises(UserError, match="datasets:nowhere: no such directory"):
        documents_of("datasets:nowhere")
    with pytest.raises(UserError, match=f"name it {saved}"):
        documents_of(saved.removeprefix("datasets:"))
    with pytest.raises(UserError, match="cannot be read"):
        documents_of(f"datasets:{tmp_path}")
