"""A comparison gives each method what it reads: its transfers, with the training left out."""

import numpy as np
import pytest

from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.comparison import compare, default_config, run
from wechsel_jax.errors import UserError
from wechsel_jax.initializers import TransferPlan
from wechsel_jax.records import TransferRecord
from wechsel_jax.report import write_report


class Training(Exception):
    pass


@pytest.fixture
def config(world, source, helper):
    config = default_config()
    config.source, config.dictionary = str(source), str(world.dictionary)
    config.text.train = config.text.validation = (str(world.root / "german.txt"),)
    config.text.source = (str(world.root / "english.txt"),)
    config.tokenizer.directory = str(world.tokenizer("german", "gpt2"))
    config.vectors.source, config.vectors.target = (str(world.vectors(language)) for language in ("english", "german"))
    config.helper.checkpoint = str(helper)
    # Pairs of words are parallel text too.
    config.parallel = (str(world.dictionary),)
    config.variants = {
        "regressed": {"method": "wechsel_tfr", "regression": True},
        "translated": {"method": "trans_tokenization", "least_count": 1},
    }
    return config


# Four transfers, of which one trains vectors: the only test that follows what a comparison gives each method.
def test_variants_and_methods_get_what_they_read(config, source, tmp_path, monkeypatch):
    def train(*arguments, **options):
        raise Training

    monkeypatch.setattr(run, "train", train)
    config.methods = ("regressed", "translated", "sava", "tokalign")
    with pytest.raises(Training):
        compare(config, tmp_path / "run")
    places = {name: tmp_path / "run" / name / "transfer" for name in config.methods}
    records = {name: TransferRecord.read(place) for name, place in places.items()}
    plans = {name: TransferPlan.load(place / "transfer_plan.npz") for name, place in places.items()}
    assert not [note for record in records.values() for note in record.notes if "was given" in note or "frequencies" in note]
    assert [record.method for record in records.values()] == ["wechsel_tfr", "trans_tokenization", "sava", "tokalign"]
    assert records["regressed"].settings["regression"] is True and plans["regressed"].basis is not None
    assert records["translated"].settings["parallel"] == [config.parallel[0]] and records["translated"].counts["mixed"] > 100
    assert plans["sava"].basis is not None and records["sava"].counts["random"] == 0
    # Each new row is that of one source token.
    plan, old = plans["tokalign"], Checkpoint.open(source)
    rows, made = old.read(old.table), Checkpoint.open(places["tokalign"])
    mixed, copied = plan.is_mixed, plan.copy >= 0
    table = made.read(made.table)
    np.testing.assert_array_equal(table[mixed], rows[plan.neighbors[mixed, 0]])
    np.testing.assert_array_equal(table[copied], rows[plan.copy[copied]])
    assert mixed.sum() > 10 < copied.sum() and 0 < records["tokalign"].similarity["mean_top1"] <= 1
    card = (places["tokalign"] / "README.md").read_text(encoding="utf-8")
    assert "tokenizers cut the same text" in card and "at most 300 shared tokens" in card and "rotation" not in card
    page = write_report([places["tokalign"]], tmp_path / "page.html").read_text(encoding="utf-8")
    assert "described by how similar it is to the shared ones" in page and "One rotation" not in page


def test_a_method_without_its_parallel_text_is_refused(config, tmp_path):
    config.parallel, config.methods = (), ("translated",)
    with pytest.raises(UserError, match="parallel: no file given, which trans_tokenization reads; expected parallel text"):
        compare(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
