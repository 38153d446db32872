"""A probe of several starts: short runs, the choice, and its record."""

import json

import pytest
import torch
import transformers

from wechsel_jax import cli
from wechsel_jax.errors import UserError
from wechsel_jax.records import ComparisonRecord, read_run
from wechsel_jax.training.probe import probe

MODEL = {"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16}


@pytest.fixture(scope="module")
def starts(texts, tmp_path_factory):
    """A model with torch's random weights, and one that is sure of the wrong tokens."""
    place = tmp_path_factory.mktemp("starts")
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(texts / "tokenizer")
    torch.manual_seed(0)
    config = transformers.GPT2Config(**MODEL, vocab_size=len(tokenizer), bos_token_id=0, eos_token_id=0)
    model = transformers.GPT2LMHeadModel(config)
    for name in ("new", "wrong"):
        model.save_pretrained(place / name)
        tokenizer.save_pretrained(place / name)
        model.transformer.wte.weight.data *= 20.0
    return place


# Each of four runs is compiled, trained and exported.
@pytest.mark.slow
def test_the_start_that_learns_best_is_chosen(starts, texts, tmp_path, capsys):
    arguments = ["probe", str(starts / "new"), f"bad={starts / 'wrong'}", f"--text={texts / 'train.txt'}"]
    arguments += [f"--validation={texts / 'validation.txt'}", "--rates=1e-4,1e30", "--steps=4", "--batch_size=8"]
    arguments += ["--block_length=128", "--recipes=muon", f"--workdir={tmp_path / 'probe'}"]
    cli.main(arguments)
    output = capsys.readouterr().out
    assert "chosen: new-muon-0.0001" in output and "bits per byte after 4 steps" in output
    record = ComparisonRecord.read(tmp_path / "probe")
    assert record.chosen == "new-muon-0.0001"
    assert set(record.methods) == {f"{label}-muon-{rate}" for label in ("new", "bad") for rate in ("0.0001", "1e+30")}
    # Both have one tokenizer, and so the same tokens.
    assert [place.name for place in (tmp_path / "probe" / "data").iterdir()] == ["new"]
    ends = {name: read_run(tmp_path / "probe" / name).evaluations[-1] for name in record.methods}
    assert ends["new-muon-0.0001"].bits_per_byte < 0.9 * ends["bad-muon-0.0001"].bits_per_byte
    compared = record.methods["bad-muon-0.0001"]
    assert compared["start"] == "bad" and compared["bits_per_byte"][-1] == [4, ends["bad-muon-0.0001"].bits_per_byte]
    # A model of 16 positions cannot read rows of 128.
    settings = json.loads((tmp_path / "probe" / "new-muon-0.0001" / "config.json").read_text())
    assert settings["block_length"] == 16 and settings["optimizer"]["groups"][1]["kind"] == "muon"
    cli.main(arguments)
    assert capsys.readouterr().out.count("chosen: ") == 1
    with pytest.raises(UserError, match="steps was 4, now 5"):
        given = {"rates": [1e-4], "recipes": ["muon"], "batch_size": 8, "steps": 5}
        given["validation"] = [str(texts / "validation.txt")]
        probe({"new": starts / "new"}, [str(texts / "train.txt")], tmp_path / "probe", **given)
    cli.main(["report", str(tmp_path / "probe"), f"--output={tmp_path / 'report.html'}"])
    assert "new-muon-0.0001" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ("--rates=fast", "--rates=fast: expected learning rates"),
        ("--rates=-1", "peak_learning_rate: is -1.0; expected more than 0"),
        ("--recipes=adam", "unknown recipe 'adam'; expected some of adamw, two_rates, muon"),
        ("--text=nowhere.txt", "nowhere.txt"),
    ],
)
def test_mistakes_are_named(starts, texts, tmp_path, capsys, changed, named):
    with pytest.raises(SystemExit) as left:
        cli.main(["probe", str(starts / "new"), f"--text={texts / 'train.txt'}", f"--workdir={tmp_path / 'probe'}", changed])
    assert left.value.code == 2
    assert named in capsys.readouterr().err
