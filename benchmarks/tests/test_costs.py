"""What `benchmarks/costs.py` counts."""

import json
from types import SimpleNamespace

import fasttext
import numpy as np
import pytest

from benchmarks import costs
from tests.records.runs import make_run
from wechsel_jax.errors import UserError

WORDS = ("the", "rain", "falls", "everywhere", "a")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    file = tmp_path_factory.mktemp("costs") / "text.txt"
    drawn = np.random.default_rng(0).choice(WORDS, size=(4, 900))
    file.write_text("".join(" ".join(line) + "\n" for line in drawn))
    return file


@pytest.mark.parametrize(("kind", "smallest"), [("skipgram", 3), ("cbow", 1)])
def test_flops_of_vectors_are_those_of_their_loop(text, kind, smallest):
    # t=1 keeps every word.
    settings = {"minn": smallest, "maxn": 4, "ws": 3, "neg": 2, "t": 1.0, "minCount": 1, "bucket": 100, "thread": 11}
    # So little text may end in numbers that are none.
    settings["lr"] = 1e-6
    model = fasttext.train_unsupervised(str(text), model=kind, dim=8, epoch=2, verbose=0, **settings)
    rows = {word: len(model.get_subwords(word)[1]) for word in (*WORDS, "</s>")}
    total, products = 0.0, 3 * 6 * 8
    for line in text.read_text().splitlines():
        words = [*line.split(), "</s>"]
        for place in range(len(words)):
            for reach in (1, 2, 3):
                near = [words[i] for i in range(max(0, place - reach), min(len(words), place + reach + 1)) if i != place]
                # Skip-gram compares the word's rows with each neighbour; cbow all neighbours' rows with the word.
                read = [rows[words[place]]] * len(near) if kind == "skipgram" else [sum(rows[word] for word in near)]
                total += sum(3 * 8 * count + products for count in read) / 3
    assert costs.fasttext_flops(model) == pytest.approx(2 * total, rel=0.01)


def test_rare_words_are_kept_and_frequent_ones_left_out():
    def flops(t: float, *counts: int) -> float:
        kind = {"model": SimpleNamespace(name="skipgram"), "minn": 0, "maxn": 0}
        args = SimpleNamespace(t=t, epoch=1, ws=3, dim=8, neg=2, **kind)
        words = [f"w{i}" for i in range(len(counts))], np.array(counts)
        model = SimpleNamespace(f=SimpleNamespace(getArgs=lambda: args), get_words=lambda include_freq: words)
        return costs.fasttext_flops(model)

    assert flops(1.0, 5, 1) == 6 * 4 * 8 * (3 + 6 * 3)
    # Five words, each a fifth of the text, and one that is rarer than t.
    kept = np.sqrt(1e-4 / 0.2) + 1e-4 / 0.2
    assert flops(1e-4, *[10**6] * 5) / flops(1.0, *[10**6] * 5) == pytest.approx(kept)
    assert flops(1e-4, 10**6, 9) - flops(1e-4, 10**6) == pytest.approx(flops(1.0, 9), rel=0.01)


def test_a_helper_that_recorded_no_cost_is_named(tmp_path):
    run = make_run(tmp_path, "full_rand", name="helper")
    (run / "machine.json").write_text(json.dumps({"starts": [{"step": 0, "seconds": 0.0, "devices": 1}]}))
    with pytest.raises(UserError, match="helper: did not record what it cost"):
        costs.made(tmp_path, "helper")
