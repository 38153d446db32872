"""configs/adapt.py: what follows from its dial, and one run of it from text to a model, resumed and made longer."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers

from configs import adapt
from tests.forked import run_module
from tests.test_configs import load
from wechsel_jax import demo
from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.errors import UserError
from wechsel_jax.models import family
from wechsel_jax.training.config import as_dict, default_config, phases
from wechsel_jax.training.groups import DEFAULT

ROOT = Path(__file__).parents[2]
GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}


@pytest.mark.parametrize("tokens", ["40960", "40961", "50K", "300k", "1.6M", "50M", "1.5B", "1000B"])
def test_the_dial_is_what_is_trained(tokens):
    training = load("adapt", f"tokens={tokens}").training
    step = training.batch_size * training.block_length
    wanted = adapt.read_tokens(tokens)
    assert wanted <= training.steps * step < wanted + 2 * step
    assert training.batch_size & (training.batch_size - 1) == 0 and training.batch_size % training.accumulation == 0
    # The decay begins at a checkpoint that stays, which `longer` goes on from.
    (phase,) = phases(training)
    assert phase.stable_steps == training.keep_every == training.steps // 2
    assert 18 <= training.steps / training.checkpoint_every <= 26 and 8 <= training.steps / training.eval_every <= 12
    assert phase.warmup_steps < phase.stable_steps < training.steps


def test_the_dial_passes_through_what_was_measured():
    """800 steps of 16 x 128 tokens; of this text the demonstration has 8,192 tokens."""
    config = load("adapt", f"tokens={800 * 16 * 128}")
    training = config.training
    assert (training.steps, training.batch_size, training.block_length) == (800, 16, 128)
    assert training.optimizer.peak_learning_rate == 2e-3 and config.tokenizer.vocabulary_size == 8192
    assert [dict(group) for group in training.optimizer.groups] == [
        {"match": "embeddings", "kind": "soap", "rate": 2.0, "coordinates": "best"},
        {"match": "layers/.*kernel$", "kind": "muon"},
    ]


def test_short_runs_of_causal_models_have_soft_targets(save_source, tmp_path):
    short, long, paper = (load("adapt", given).training for given in ("tokens=1.6M", "tokens=3M", "tokens=1.6M,recipe=wechsel"))
    # Steps of their own, so that `longer` finds the updates that were made.
    assert (short.soft_targets.share, short.soft_targets.steps) == (0.9, short.steps)
    assert long.soft_targets.share == paper.soft_targets.share == 0.0
    text = tmp_path / "text.txt"
    text.write_text("x" * 99 + "\n")
    masked, _ = save_source("roberta")
    assert load("adapt", f"source={masked},text={text}").training.soft_targets.share == 0.0


def test_the_documentation_shows_what_the_dial_does():
    lines = (ROOT / "docs" / "recipe.md").read_text(encoding="utf-8").split("dial -->")[1].splitlines()
    rows = [
        [cell.strip().replace(",", "") for cell in line.strip("| ").split("|")] for line in lines if re.match(r"\| \d", line)
    ]
    assert len(rows) == 4
    for tokens, step, batch, *numbers, recipe in rows:
        training = default_config()
        adapt.set_length(training, adapt.read_tokens(tokens), 1024)
        assert batch == f"{training.batch_size} x {training.block_length}"
        assert int(step) == training.batch_size * training.block_length
        warmup = min(adapt.MOST_WARMUP, round(adapt.WARMUP * training.steps))
        assert [int(number) for number in numbers] == [training.steps, warmup, training.eval_every, training.checkpoint_every]
        cheap = adapt.muon_cost(SimpleNamespace(config=GPT2), training, 32768) <= adapt.MUON_COST
        assert recipe == f"`{DEFAULT if cheap else adapt.WITHOUT_MUON}`"


def test_the_documentation_says_what_muon_costs():
    text = " ".join((ROOT / "docs" / "recipe.md").read_text(encoding="utf-8").split())
    smollm2 = {
        **{"model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "vocab_size": 49152},
        **{"num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 2048, "tie_word_embeddings": True},
    }
    training = default_config()
    adapt.set_length(training, adapt.read_tokens("2M"), 1024)
    costs = [round(100 * adapt.muon_cost(SimpleNamespace(config=one), training, 32768)) for one in (GPT2, smollm2)]
    costs.append(round(100 * adapt.muon_cost(Checkpoint.open(demo.path("english-gpt2")), training, 8192)))
    assert "pays {} % for steps of 2,048 tokens, SmolLM2-135M {} %, and the model of this page {} %".format(*costs) in text


def test_the_recipe_is_the_one_that_came_out_ahead():
    assert load("adapt").training.optimizer.groups == load("adapt", f"recipe={DEFAULT}").training.optimizer.groups != ()


def test_muon_is_left_out_where_it_costs_more_than_it_is_worth(save_source, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("x" * 99 + "\n")
    wide, _ = save_source("gpt2", n_embd=256)
    small, large = (load("adapt", f"source={wide},text={text},tokens={tokens}").training for tokens in ("1M", "50M"))
    assert [dict(group) for group in small.optimizer.groups] == [{"match": "embeddings", "coordinates": "best"}]
    assert small.optimizer.peak_learning_rate == 1.5e-3
    assert [group.get("kind") for group in large.optimizer.groups] == ["soap", "muon"]
    # 300 d^3 for a layer, as docs/recipe.md has it.
    gpt2 = family("gpt2")
    model = gpt2.config({**Checkpoint.open(wide).config, "vocab_size": 512})
    step = gpt2.flops_per_token(model, 32) * 2048
    assert adapt.muon_cost(Checkpoint.open(wide), small, 512) == pytest.approx(model.layers * 300 * 256**3 / step)
    # A large vocabulary makes the step dearer, and Muon's share of it smaller.
    given = f"source={wide},text={text},tokens=1M,tokenizer={demo.path('english-gpt2')}"
    assert [group.get("kind") for group in load("adapt", given).training.optimizer.groups] == ["soap", "muon"]


def test_the_papers_recipe_is_one_argument_away():
    config, paper = load("adapt", "recipe=wechsel,tokens=1.6M"), load("wechsel_gpt2")
    assert config.training.optimizer.to_dict() == paper.optimizer.to_dict()
    assert [dict(phase) for phase in config.training.phases] == [dict(phase) for phase in paper.phases]
    assert config.variants[config.methods[0]].method == "wechsel" and config.dictionary == "identical"
    assert load("adapt", "recipe=wechsel,method=anker").methods == ("anker",)


def test_the_model_decides_objective_tokenizer_rate_and_rows(source, save_source, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("x" * 99 + "\n" * 1)
    masked, _ = save_source("roberta")
    causal, other = (load("adapt", f"source={model},text={text},tokens=50M") for model in (source, masked))
    assert (causal.training.objective, causal.tokenizer.style) == ("clm", "gpt2")
    assert (other.training.objective, other.tokenizer.style) == ("mlm", "roberta")
    # 32 positions and a width of 16; the text is small.
    assert causal.training.block_length == 32 and causal.training.optimizer.peak_learning_rate == pytest.approx(2e-3 * 16)
    assert causal.tokenizer.vocabulary_size == 512
    with open(text, "wb") as handle:
        handle.truncate(1 << 30)
    large = load("adapt", f"source={source},text={text},tokens=1M")
    assert large.tokenizer.vocabulary_size == 32768 and large.training.data.max_bytes == 16_000_000
    assert large.training.data.validation_fraction == 0.002
    unknown = load("adapt", f"source={source},text=hf://me/text")
    assert unknown.training.data.validation_fraction == 0.001 and unknown.tokenizer.vocabulary_size == 32768
    named = load("adapt", f"source={source},text={text},validation={text}")
    assert named.training.data.validation_fraction == 0 and named.text.validation == (str(text),)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("tokens=many", r"tokens=many: expected a number of at least 40,960 \(20 steps of 2,048\), such as 300k"),
        (f"tokens={'9' * 400}", "tokens=9+: expected a number of at least 40,960"),
        ("tokens=40959", "tokens=40959: expected a number of at least 40,960"),
        ("probe=50,method=fvt", r"--config: probe=50: the method is named \(fvt\); expected one of the two"),
        ("probe=50,recipe=wechsel", r"the method is named \(wechsel\)"),
        ("method=magic", "method=magic: expected auto or one of wechsel"),
        ("probe=yes", "'probe=yes' behind the colon; expected probe to be a whole number"),
        ("recipe=sgd", "expected recipe to be one of auto, adamw"),
        ("weeks=3", "expected some of source="),
        (
            "hours=3",
            "hours=3: at what speed. expected like=, .*; give tokens=300k instead and another --workdir=TRY first, and then",
        ),
        ("like=/nowhere", "like=/nowhere: its speed is for hours=, which is missing"),
        ("hours=3,tokens=1M,like=/nowhere", "tokens= beside hours=: each says how long the run is; expected one of the two"),
        ("hours=0,like=/nowhere", "hours=0: expected more than 0"),
        ("hours=3,like=/nowhere", "/nowhere: no such directory"),
        ("longer=/nowhere,hours=3,like=/nowhere", "like= beside longer="),
        ("longer=/nowhere", "/nowhere: no such directory"),
        ("longer=/nowhere,recipe=wechsel,tokens=1M", "--config: recipe= beside longer=: the run has that already"),
        (
            "recipe=wechsel,source_vectors=a",
            "--config: target_vectors= is missing beside source_vectors=, and wechsel reads both",
        ),
        ("method=ofa,target_vectors=a", "--config: source_vectors= is missing beside target_vectors=, and ofa reads both"),
        ("text=/nowhere.txt", "/nowhere.txt: no such file"),
        ("text=,tokens=1M", "--config: text= has no value"),
        ("longer=", "--config: longer= has no value"),
        # The bundled German is for the bundled model alone.
        ("source=gpt2", "text= is missing; expected text of the new language"),
    ],
)
def test_mistakes_are_named(arguments, named):
    with pytest.raises(UserError, match=named):
        load("adapt", arguments)


def test_longer_wants_the_run_of_a_method_and_not_their_comparison(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"methods": ["auto"], "training": {"steps": 20}}))
    with pytest.raises(UserError, match=r"holds no training; expected the run of one method$"):
        load("adapt", f"longer={tmp_path},tokens=50k")
    (tmp_path / "auto").mkdir()
    (tmp_path / "auto" / "metrics.jsonl").touch()
    with pytest.raises(UserError, match=r"holds no training; expected the run of one method, such as .*/auto"):
        load("adapt", f"longer={tmp_path},tokens=50k")


def test_longer_wants_a_checkpoint_that_stays(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"steps": 20, "model": {}, "optimizer": {}, "keep_every": 0}))
    with pytest.raises(UserError, match=r"longer=.*: has no checkpoint that stays before its decay \(its keep_every is 0\)"):
        load("adapt", f"longer={tmp_path},tokens=500k")


@pytest.mark.parametrize(("steps", "fork"), [(160, "80"), (1000, "480"), (150, None)])
def test_longer_goes_on_from_the_last_checkpoint_before_the_decay(tmp_path, steps, fork):
    """Also where the steps were given by hand, and the checkpoints that stay do not follow from them."""
    training = load("adapt", "tokens=327680").training
    assert training.keep_every == 80
    training.steps = steps
    (tmp_path / "config.json").write_text(json.dumps(as_dict(training)))
    if fork is None:
        with pytest.raises(UserError, match=r"no checkpoint that stays before its decay \(its keep_every is 80\)"):
            load("adapt", f"longer={tmp_path},tokens=4M")
    else:
        assert load("adapt", f"longer={tmp_path},tokens=4M").fork == str(tmp_path / "checkpoints" / fork)


# Text to a trained model, the only test that shows it: one compiled step, of a tiny model, which all three runs share.
@pytest.mark.slow
def test_one_command_makes_a_model_and_again_goes_on_and_longer(world, source, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    given = f"source={source},text={world.root / 'german.txt'},source_text={world.root / 'english.txt'},tokens=40960"
    given += f",tokenizer={world.tokenizer('german', 'gpt2')}"
    command = ["train.compare", f"--config=configs/adapt.py:{given}", f"--workdir={tmp_path / 'run'}"]
    command += ["--config.training.optimizer.peak_learning_rate=3e-3"]
    done = run_module(*command)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "run" / "auto"
    record = json.loads((run / "transfer" / "transfer.json").read_text())
    assert record["method"] == record["choice"]["method"] == "anker" and "No method was named" in done.stderr
    curve = json.loads((tmp_path / "run" / "comparison.json").read_text())["methods"]["auto"]["evaluations"]
    assert [step for step, _ in curve] == list(range(0, 21, 2)) and curve[-1][1] < 0.9 * curve[0][1]
    # What is held out of the text is not trained on; the export is what was trained.
    manifests = [
        json.loads((tmp_path / "run" / "data" / side / "manifest.json").read_text()) for side in ("train", "validation")
    ]
    documents = sum(manifest["documents"] for manifest in manifests)
    assert 0.005 < manifests[1]["documents"] / documents < 0.05
    model = transformers.AutoModelForCausalLM.from_pretrained(run / "export")
    tokenizer = transformers.AutoTokenizer.from_pretrained(run / "export")
    given = transformers.AutoTokenizer.from_pretrained(world.tokenizer("german", "gpt2"))
    assert tokenizer("Der alte Mann").input_ids == given("Der alte Mann").input_ids
    assert model(torch.tensor([[1, 2]])).logits.shape == (1, 2, len(given))
    before = (run / "export" / "model.safetensors").stat().st_mtime_ns
    again = run_module(*command)
    assert again.returncode == 0 and "all 20 steps are done; nothing to train" in again.stderr
    assert before == (run / "export" / "model.safetensors").stat().st_mtime_ns
    longer = [f"--config=configs/adapt.py:longer={run},tokens=50k", f"--workdir={tmp_path / 'longer'}"]
    done = run_module("train.pretrain", *longer)
    assert done.returncode == 0 and "until step 10" in done.stderr, done.stderr
    ends = [json.loads(line) for line in (tmp_path / "longer" / "metrics.jsonl").read_text().splitlines()]
    assert max(line.get("step", 0) for line in ends) == 26 and (tmp_path / "longer" / "export").exists()
    # In hours: at the speed of the run, with all that it did beside.
    last = [line for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()) if line["kind"] == "train"][-1]
    hours = 10 * last["seconds"] / 3600
    assert load("adapt", f"hours={hours:.10f},like={run}").training.steps in (200, 202)
    assert load("adapt", f"longer={run},hours={hours:.10f}").steps in (210, 212)
    with pytest.raises(UserError, match=r"hours=1e-06: are \d+ tokens at the speed of .*; expected 40,960 to"):
        load("adapt", f"hours=0.000001,like={run}")
    with pytest.raises(UserError, match="holds no metrics"):
        load("adapt", f"hours=1,like={tmp_path / 'run' / 'data'}")
    # As if it had been killed before its end.
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / "metrics.jsonl").write_text("".join(line for line in lines if json.loads(line)["step"] < 15))
    shutil.copy(run / "config.json", tmp_path / "killed")
    with pytest.raises(UserError, match="holds no training on text that has ended, whose speed could count"):
        load("adapt", f"hours=1,like={tmp_path / 'killed'}")
    # One that is longer still goes on from where the decay of this one began.
    fork = Path(load("adapt", f"longer={tmp_path / 'longer'},tokens=200k").fork)
    assert fork == tmp_path / "longer" / "checkpoints" / "13" and fork.is_dir()
    with pytest.raises(UserError, match=r"tokens=40960: .* trains on 40,960; expected more"):
        load("adapt", f"longer={run},tokens=40960")
    with pytest.raises(UserError, match=r"hours=1e-06: with the 20,480 before its decay 20,\d+: .* trains on 40,960; expected"):
        load("adapt", f"longer={run},hours=0.000001")
    with pytest.raises(UserError, match=r"longer=.*: for how long. expected tokens=, more than its 40,960, or hours="):
        load("adapt", f"longer={run}")
