"""The linear probe of `benchmarks/anker_probe.py`: what it reads, which states it takes, and its table."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import anker_probe
from wechsel_jax import demo
from wechsel_jax.errors import UserError

CONLLU = """# text
1-2\tim\t_\t_
1\tin\tin\tADP\tx\t_\t3\tcase\t_\t_
2\tdem\tder\tDET\tx\t_\t3\tdet\t_\t_

1\tJa\tja\tINTJ\tx\t_\t0\troot\t_\t_
"""


@pytest.fixture(scope="module")
def encoder():
    return anker_probe.Encoder(Path(demo.path("english-gpt2")))


def packed(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()))
    return path


def test_tagged_words_of_both_formats(tmp_path):
    wanted = [[("in", "ADP"), ("dem", "DET")], [("Ja", "INTJ")]]
    assert anker_probe.tagged(packed(tmp_path / "a.conllu.gz", CONLLU)) == wanted
    assert anker_probe.tagged(packed(tmp_path / "a.txt.gz", "in ADP\ndem DET\n\n\nJa INTJ\n")) == wanted


def test_a_word_is_the_state_of_its_last_token_and_a_text_the_mean(encoder):
    import torch
    from transformers import AutoModel

    sentences = [["The", "unbelievable", "fact"], ["It"]]
    texts = [" ".join(words) for words in sentences]
    model = AutoModel.from_pretrained(demo.path("english-gpt2")).float().eval()
    with torch.no_grad():
        ids = [encoder.tokenizer.encode(text) for text in texts]
        expected = [model(torch.tensor([row])).last_hidden_state[0].numpy() for row in ids]
    first, pair = (len(encoder.tokenizer.encode(part)) for part in ("The", "The unbelievable"))
    assert pair - first > 1
    states, seen = encoder.words(sentences)
    assert seen.all()
    np.testing.assert_allclose(states, np.stack([*expected[0][[first - 1, pair - 1, -1]], expected[1][-1]]), atol=1e-4)
    np.testing.assert_allclose(encoder.texts(texts), [part.mean(axis=0) for part in expected], atol=1e-4)


def test_words_that_do_not_fit_in_are_left_out(encoder):
    states, seen = encoder.words([["a"] * 200, ["b"]])
    assert seen.tolist() == [True] * 128 + [False] * 72 + [True] and len(states) == 129


def test_probe_tells_what_can_be_told(encoder, tmp_path):
    """Articles of two topics whose words differ, and a test set of three of one and one of the other."""
    (tmp_path / "masakhanews").mkdir()
    lines = {"sports": "The horse ran the race\tand the horse won", "health": "The doctor gave him medicine\tfor his fever"}
    for part, topics in (("train", ["sports", "health"] * 5), ("test", ["sports"] * 3 + ["health"])):
        rows = "".join(f"{topic}\t{lines[topic]}\n" for topic in topics)
        packed(tmp_path / "masakhanews" / f"swa-{part}.tsv.gz", f"category\theadline\ttext\n{rows}")
    found = anker_probe.probe(encoder, tmp_path, "sw", "topics")
    assert found == {"accuracy": 1.0, "most_frequent": 0.75, "fitted_on": 10, "judged_on": 4}


def test_probed_again_other_runs_stay(tmp_path, monkeypatch):
    """A new seed of one method joins the earlier one's; another setting and another method are kept."""
    run = tmp_path / "sw-2-new" / "anker"
    for place in ("transfer", "export"):
        (run / place).mkdir(parents=True)
    training = {"steps": 200, "phases": [{"warmup": 0.3}], "optimizer": {"peak_learning_rate": 1.5e-3}}
    (tmp_path / "sw-2-new" / "config.json").write_text(json.dumps({"training": training}))
    monkeypatch.setattr(anker_probe, "Encoder", lambda place: place)
    monkeypatch.setattr(anker_probe, "probe", lambda place, *_: {"accuracy": 0.5, "most_frequent": 0.2, "name": place.name})

    def steps(accuracy):
        tasks = {task: {"accuracy": accuracy, "most_frequent": 0.2} for task in anker_probe.TASKS["sw"]}
        return {"0": tasks, "200": tasks}

    earlier = {
        "settings": {"sw-800": {"anker": {"0": steps(0.9)}}, "sw": {"anker": {"0": steps(0.7)}, "wechsel": {"0": steps(0.1)}}},
    }
    found = anker_probe.measure(tmp_path, tmp_path, json.loads(json.dumps(earlier)))["settings"]
    assert list(found) == ["sw", "sw-800"] and found["sw-800"] == earlier["settings"]["sw-800"]
    assert found["sw"]["wechsel"] == earlier["settings"]["sw"]["wechsel"]
    assert {step: tasks["topics"]["name"] for step, tasks in found["sw"]["anker"]["2"].items()} == {
        "0": "transfer",
        "200": "export",
    }
    assert "| Swahili | topics | `anker` | 2 | 60.0% ± 14.1 |" in anker_probe.probe_table({"settings": found})


@pytest.mark.parametrize(("training", "told"), [(None, "holds no trained models"), ({}, "was not made by configs/anker.py")])
def test_folders_of_others_change_no_figure(tmp_path, monkeypatch, training, told):
    monkeypatch.setattr(anker_probe, "OUTPUT", tmp_path / "anker_probe.json")
    (tmp_path / "runs" / "sw-0-x").mkdir(parents=True)
    if training is not None:
        (tmp_path / "runs" / "sw-0-x" / "config.json").write_text(json.dumps({"training": training}))
    with pytest.raises(UserError, match=told):
        anker_probe.main([str(tmp_path), str(tmp_path / "runs")])
    with pytest.raises(UserError, match="nowhere: no such directory"):
        anker_probe.main([str(tmp_path), str(tmp_path / "nowhere")])
    assert not (tmp_path / "anker_probe.json").exists()
