"""What is gathered of target and source language."""

import json
from types import SimpleNamespace

import numpy as np

from benchmarks.target_and_source import by_rare_tokens
from tests.tiny_tokenizers import byte_bpe
from wechsel_jax.data import prepare


def test_sentences_are_parted_by_their_rare_tokens(tmp_path):
    byte_bpe(False).save_pretrained(tmp_path / "tokenizer")
    (tmp_path / "train.txt").write_text("the dog\n" * 400)
    prepare(tmp_path / "train.txt", tmp_path / "tokenizer", tmp_path / "data" / "train")
    # The first and the last are of letters that the text does not hold.
    sentences = ["zz qq", "the dog", "the dog the", "qqzz"]
    (tmp_path / "text.txt").write_text("\n".join(sentences) + "\n")
    task = {"form": "text", "file": str(tmp_path / "text.txt")}
    (tmp_path / "config.json").write_text(json.dumps({"evaluation": {"tasks": {"target text": task}}}))
    bits = {"anker": [4.0, 4.0, 4.0, 4.0], "focus": [2.0, 6.0, 8.0, 1.0], "focus untrained": [9.0] * 4, "source": [9.0] * 4}
    scores = [
        SimpleNamespace(model=name, task="target text", numerators=values, denominators=[2.0] * 4)
        for name, values in bits.items()
    ]
    record = SimpleNamespace(scores=scores, find=lambda model, task: next(one for one in scores if one.model == model))
    found = by_rare_tokens(tmp_path, record)
    assert [*found] == ["focus"]
    np.testing.assert_allclose(sorted(found["focus"][:2]), [1, 2])
    np.testing.assert_allclose(sorted(found["focus"][2:]), [-1.5, -1])
