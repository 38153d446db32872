import hashlib
import json

import numpy as np
import pytest

from wechsel_jax.data import TokenBlocks, manifest, prepare
from wechsel_jax.errors import UserError


@pytest.fixture
def prepared(tmp_path, tokenizers):
    (tmp_path / "text.txt").write_text("eins zwei drei\nvier fünf sechs\n", encoding="utf-8")
    prepare([tmp_path / "text.txt"], tokenizers["gpt2"], tmp_path / "out")
    return tmp_path / "out"


def test_blocks_are_the_stream_in_order(prepared):
    stream = np.fromfile(prepared / "tokens.bin", "<u2")
    blocks = TokenBlocks.open(prepared, 5)
    assert len(blocks) == len(stream) // 5 == 6
    assert blocks.blocks(np.arange(6)).ravel().tolist() == stream[:30].tolist()
    several = blocks.blocks(np.asarray([4, 0, 4]))
    assert several.dtype == np.int32
    assert several.tolist() == [stream[20:25].tolist(), stream[:5].tolist(), stream[20:25].tolist()]
    assert blocks.vocabulary_size == 257


@pytest.mark.parametrize("index", [-1, 6])
def test_there_is_no_block_behind_the_last(prepared, index):
    with pytest.raises(IndexError):
        TokenBlocks.open(prepared, 5).blocks(np.asarray([0, index]))


def test_the_fingerprint_is_the_stream_s_alone(prepared, tmp_path, tokenizers):
    assert TokenBlocks.open(prepared, 5).fingerprint == TokenBlocks.open(prepared, 7).fingerprint
    (tmp_path / "text.txt").write_text("eins zwei drei\nvier fünf sechz\n", encoding="utf-8")
    prepare([tmp_path / "text.txt"], tokenizers["gpt2"], tmp_path / "other")
    assert TokenBlocks.open(prepared, 5).fingerprint != TokenBlocks.open(tmp_path / "other", 5).fingerprint


def test_text_shorter_than_a_block(prepared):
    count = len(np.fromfile(prepared / "tokens.bin", "<u2"))
    assert len(TokenBlocks.open(prepared, count)) == 1
    with pytest.raises(UserError, match=f"out: {count} tokens; expected at least one block of {count + 1}"):
        TokenBlocks.open(prepared, count + 1)
    with pytest.raises(UserError, match="block length 0; expected at least 1"):
        TokenBlocks.open(prepared, 0)


def test_every_token_is_verified_in_one_reading(prepared, monkeypatch, capsys):
    monkeypatch.setattr(manifest, "_CHUNK", 8)
    monkeypatch.setattr(manifest, "_NOTICE_BYTES", 10)
    TokenBlocks.open(prepared, 5, verify=True)
    assert "tokens.bin: comparing 0.0 GB with their sha256" in capsys.readouterr().err
    whole = (prepared / "tokens.bin").read_bytes()
    for place in (0, 33, len(whole) - 1):
        (prepared / "tokens.bin").write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        TokenBlocks.open(prepared, 5)
        with pytest.raises(UserError, match=r"tokens\.bin: damaged: its sha256 is "):
            TokenBlocks.open(prepared, 5, verify=True)
    # A tokenizer's mistake would be in the sha256, too.
    tokens = np.frombuffer(whole, "<u2").copy()
    tokens[17] = 257
    tokens.tofile(prepared / "tokens.bin")
    said = json.loads((prepared / "manifest.json").read_text())
    said["sha256"] = hashlib.sha256(tokens.tobytes()).hexdigest()
    (prepared / "manifest.json").write_text(json.dumps(said))
    with pytest.raises(UserError, match=r"tokens\.bin: holds token 257; expected ids below the 257 of the vocabulary"):
        TokenBlocks.open(prepared, 5, verify=True)


def test_damaged_directories_are_named(prepared, tmp_path):
    whole, manifest = (prepared / "tokens.bin").read_bytes(), json.loads((prepared / "manifest.json").read_text())
    (prepared / "tokens.bin").write_bytes(whole[:-1])
    with pytest.raises(UserError, match=r"tokens\.bin: cut short, \d+ bytes; expected \d+"):
        TokenBlocks.open(prepared, 5)
    (prepared / "tokens.bin").write_bytes(whole + b"\0\0")
    with pytest.raises(UserError, match=r"tokens\.bin: too long"):
        TokenBlocks.open(prepared, 5)
    (prepared / "tokens.bin").unlink()
    with pytest.raises(UserError, match=r"tokens\.bin: no such file"):
        TokenBlocks.open(prepared, 5)
    for content, message in (
        ("{", ".*not JSON"),
        ("[" * 100_000, ".*nested too deep"),
        ("[]", ".*holds no JSON object"),
        (json.dumps(manifest | {"format": 2}), "format 2; expected 1"),
        (json.dumps(manifest | {"dtype": "int8"}), "dtype is 'int8'"),
        (json.dumps(manifest | {"tokens": None}), "field tokens is missing; expected a whole number"),
        (json.dumps({name: value for name, value in manifest.items() if name != "sha256"}), "field sha256 is missing"),
        (json.dumps(manifest | {"inputs": ["a.txt"]}), "field inputs.0 is 'a.txt'; expected an object"),
        (json.dumps(manifest | {"tokenizer": {"vocabulary": 7}}), "field tokenizer.vocabulary is 7; expected text"),
    ):
        (prepared / "manifest.json").write_text(content)
        with pytest.raises(UserError, match=rf"manifest\.json: {message}"):
            TokenBlocks.open(prepared, 5)
    (prepared / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"manifest\.json: no such file"):
        TokenBlocks.open(prepared, 5)
    with pytest.raises(UserError, match="nowhere: no such directory"):
        TokenBlocks.open(tmp_path / "nowhere", 5)
