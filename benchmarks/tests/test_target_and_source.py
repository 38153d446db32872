"""What is gathered of target and source language."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import target_and_source
from benchmarks.target_and_source import by_rare_tokens, gather
from tests.records.runs import make_run
from tests.tiny_tokenizers import byte_bpe
from wechsel_jax.data import prepare
from wechsel_jax.errors import UserError
from wechsel_jax.records.scores import Score


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


def comparison(workdir, seed, names=("anker", "wechsel"), **settings):
    """A workdir of `train.compare` with the scores of its runs."""
    scores = []
    for name in names:
        run = make_run(workdir, "wechsel", name=name, seed=seed)
        file = run / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | settings))
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        text = "".join(json.dumps(line | {"bits_per_byte": 2.0}) + "\n" for line in lines)
        (run / "metrics.jsonl").write_text(text)
        facts, machine = {"weights": name, "tokenizer": ""}, {"devices": 1, "device_kind": "cpu"}
        values = (name, "target text", "text", "bits_per_byte", {}, [4.0, 5.0], [2.0, 2.0], [], {}, facts, machine)
        scores.append(vars(Score(*values)) | {"metrics": dict.fromkeys(METRICS, 2.0)})
    (workdir / "scores.json").write_text(json.dumps({"format": 1, "scores": scores}))
    (workdir / "comparison.json").write_text(json.dumps({"methods": {name: {} for name in names}, "seed": seed}))
    return workdir / "scores.json"


METRICS = ("bits_per_byte", "bits_per_word", "bytes_per_token", "unknown_tokens", "perplexity")


def test_seeds_with_other_settings_or_the_same_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(target_and_source, "by_rare_tokens", lambda workdir, record: {})
    first, second = comparison(tmp_path / "0", 0), comparison(tmp_path / "1", 1)
    found = gather([first, second])
    assert found["seed"] == 0 and found["origin"]["seed"] == 0 and [one["seed"] for one in found["other_seeds"]] == [1]
    with pytest.raises(UserError, match="has other settings, of its training or of its start, than seed 0"):
        gather([first, comparison(tmp_path / "longer", 1, steps=2000)])
    with pytest.raises(UserError, match=r"seeds \[0, 0\]; expected each once"):
        gather([first, comparison(tmp_path / "again", 0)])


def test_scores_without_anker_are_refused(tmp_path):
    with pytest.raises(UserError, match="has no scores of anker"):
        gather([comparison(tmp_path / "0", 0, ("wechsel",))])
