"""Whole runs in this process: what they write, how they go on, what they refuse."""

import contextlib
import dataclasses
import hashlib
import json
import math
import shutil

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict
from safetensors.numpy import load_file

from wechsel_jax.checkpoint.tensors import write_tensors
from wechsel_jax.data import TokenBlocks, prepare, prepare_split
from wechsel_jax.errors import UserError
from wechsel_jax.tokens import load_tokenizer
from wechsel_jax.tokens.training import train_tokenizer
from wechsel_jax.training import train
from wechsel_jax.training.metrics import TIMING, read_metrics
from wechsel_jax.training.placement import Placement
from wechsel_jax.training.run_data import Data, open_data, trained_on
from wechsel_jax.training.run_spec import Evaluator, build_run, named_model


@pytest.fixture(scope="module")
def finished(make_config, tmp_path_factory):
    """A run of two phases on one device: (config, workdir, what train returned)."""
    config = make_config(mesh__data=1)
    workdir = tmp_path_factory.mktemp("run") / "run"
    return config, workdir, train(config, workdir)


def without_timing(workdir):
    return [
        {name: value for name, value in line.items() if name not in TIMING} for line in read_metrics(workdir / "metrics.jsonl")
    ]


@pytest.mark.slow
def test_the_record_of_a_run(finished):
    config, workdir, result = finished
    lines = read_metrics(workdir / "metrics.jsonl")
    training = [line for line in lines if line["kind"] == "train"]
    evaluations = [line for line in lines if line["kind"] == "eval"]
    assert [line["step"] for line in training] == [1, *range(2, 21, 2)]
    assert [line["step"] for line in evaluations] == [0, 10, 20]
    assert [line["step"] for line in lines] == sorted(line["step"] for line in lines)
    assert {line["phase"] for line in training if line["step"] <= 6} == {"tokens"}
    assert {line["phase"] for line in training if line["step"] > 6} == {"all"}
    rates = {line["step"]: line["learning_rate"] for line in training}
    assert (rates[1], rates[4]) == pytest.approx((0.0, 1e-2 * 3 / 6))
    assert rates[20] == pytest.approx(1e-2 * (14 - 13) / (14 - 1))
    assert evaluations[0]["perplexity"] == pytest.approx(320, rel=0.3)
    assert evaluations[2]["loss"] < evaluations[1]["loss"] < evaluations[0]["loss"]
    assert result == evaluations[-1] and result["perplexity"] == pytest.approx(math.exp(result["loss"]))
    assert all(line["tokens_per_second"] > 0 for line in training)
    assert json.loads((workdir / "config.json").read_text())["steps"] == config.steps
    assert sorted(int(path.name) for path in (workdir / "checkpoints").iterdir()) == [15, 20]


def test_soft_targets(make_config, tmp_path, capsys):
    """Where batches are few, expecting what the text says in general learns faster; on any devices alike."""
    settings = {"steps": 12, "eval_every": 12, "checkpoint_every": 12, "keep_every": 5, "model__dropout": 0.0}
    layouts = {"one": {"mesh__data": 1}, "eight": {"mesh__fsdp": 2, "mesh__tensor": 2, "accumulation": 2}}
    ends = {"hard": train(make_config(**settings, **layouts["one"]), tmp_path / "hard")}
    for name, layout in layouts.items():
        ends[name] = train(make_config(**settings, **layout, soft_targets__share=0.9), tmp_path / name)
    assert "soft targets of a 3-gram model, whose perplexity on held-out text is" in capsys.readouterr().err
    assert ends["one"]["loss"] < ends["hard"]["loss"] - 0.02
    assert ends["eight"]["loss"] == pytest.approx(ends["one"]["loss"], abs=1e-3)
    # Those that shall stay are saved, whatever checkpoint_every is.
    assert {path.name for path in (tmp_path / "one" / "checkpoints").iterdir()} == {"5", "10", "12"}


def test_transformers_gives_the_exported_model_the_same_loss(finished):
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    config, workdir, result = finished
    model = AutoModelForCausalLM.from_pretrained(workdir / "export").eval()
    assert AutoTokenizer.from_pretrained(workdir / "export").eos_token == "<|endoftext|>"
    stream = TokenBlocks.open(workdir / "data" / "validation", config.block_length).stream.astype(np.int64)
    stride = config.block_length - 1
    loss = count = 0.0
    for start in range(0, len(stream) - 1, stride):
        tokens = torch.tensor(stream[start : start + config.block_length])[None]
        with torch.no_grad():
            logits = model(tokens).logits[0, :-1].double()
        loss += float(torch.nn.functional.cross_entropy(logits, tokens[0, 1:], reduction="sum"))
        count += tokens.shape[1] - 1
    assert count == result["tokens"] == len(stream) - 1
    assert loss / count == pytest.approx(result["loss"], abs=1e-5)


def test_a_finished_run_is_not_trained_again(finished, capsys):
    config, workdir, result = finished
    before = {path: path.stat().st_mtime_ns for path in workdir.rglob("*") if path.is_file()}
    assert train(config, workdir) == result
    assert "all 20 steps are done" in capsys.readouterr().err
    assert before == {path: path.stat().st_mtime_ns for path in workdir.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_run_goes_on_on_another_mesh(finished, make_config, tmp_path):
    """What is left of a run that was stopped after step 15 is trained on eight devices instead of one."""
    _, workdir, result = finished
    shutil.copytree(workdir, tmp_path / "run", ignore=shutil.ignore_patterns("export", "20"))
    config = make_config(mesh__data=2, mesh__fsdp=2, mesh__tensor=2)
    again = train(config, tmp_path / "run")
    assert again["loss"] == pytest.approx(result["loss"], abs=2e-4)
    expected, lines = without_timing(workdir), without_timing(tmp_path / "run")
    assert [line["step"] for line in lines] == [line["step"] for line in expected]
    assert [line for line in lines if line["step"] <= 15] == [line for line in expected if line["step"] <= 15]


@pytest.mark.slow
def test_settings_of_speed_and_memory_change_nothing(finished, make_config, tmp_path):
    """305 tokens become 384 rows on the device, layers are unrolled and computed again: the same run but for rounding."""
    _, workdir, _ = finished
    config = make_config(mesh__data=1, prefetch=0, statistics=True, loss_chunk=5)
    config.model.update({"pad_vocabulary": 128, "scan_layers": False, "remat": "dots"})
    train(config, tmp_path / "run")
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    expected = read_metrics(workdir / "metrics.jsonl")
    assert [(line["kind"], line["step"]) for line in lines] == [(line["kind"], line["step"]) for line in expected]
    for line, other in zip(lines, expected, strict=True):
        if "loss" in line:
            assert line["loss"] == pytest.approx(other["loss"], abs=2e-4), line["step"]
    assert any(name.startswith("update_norm/") for name in lines[-2] | lines[1])
    shapes = [
        {name: tensor.shape for name, tensor in load_file(run / "export" / "model.safetensors").items()}
        for run in (tmp_path / "run", workdir)
    ]
    assert shapes[0] == shapes[1] and shapes[0]["transformer.wte.weight"][0] % 128


def test_a_model_that_another_run_exported_can_be_trained_on(finished, make_config, tmp_path):
    _, workdir, result = finished
    changes = {"model__checkpoint": str(workdir / "export"), "model__config": ConfigDict(), "model__tokenizer": ""}
    changes |= {
        "steps": 1,
        "phases": ({"name": "first", "steps": 1, "warmup": 1.0},),
        "export_dtype": "bfloat16",
        "mesh__data": 1,
    }
    train(make_config(**changes), tmp_path / "run")
    start = read_metrics(tmp_path / "run" / "metrics.jsonl")[0]
    assert (start["step"], start["loss"]) == (0, pytest.approx(result["loss"], abs=1e-6))
    # The only update has learning rate 0, so the export is the source, rounded.
    old, new = load_file(workdir / "export" / "model.safetensors"), load_file(tmp_path / "run" / "export" / "model.safetensors")
    assert set(old) == set(new)
    for name, tensor in old.items():
        assert new[name].dtype.name == "bfloat16"
        assert np.array_equal(new[name], tensor.astype(new[name].dtype)), name
    assert json.loads((tmp_path / "run" / "export" / "config.json").read_text())["dtype"] == "bfloat16"


@pytest.mark.slow
def test_a_masked_model_is_trained(make_config, texts, tmp_path):
    tokenizer = load_tokenizer(texts / "tokenizer")
    names = {"cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>", "mask_token": "<mask>"}
    tokenizer.add_special_tokens({**names, "bos_token": "<s>", "eos_token": "</s>"})
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    model = {
        "model_type": "roberta",
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    changes = {
        "model__config": ConfigDict({**model, "max_position_embeddings": tokenizer.pad_token_id + 17}),
        "model__tokenizer": str(tmp_path / "tokenizer"),
    }
    phases = ({"name": "all", "fraction": 1.0, "warmup": 0.5},)
    changes |= {"objective": "mlm", "steps": 4, "phases": phases, "mesh__data": 1, "batch_size": 32, "accumulation": 2}
    result = train(make_config(**changes), tmp_path / "run")
    stream = TokenBlocks.open(tmp_path / "run" / "data" / "validation", 16).stream
    rows = [~np.isin(stream[start : start + 16], tokenizer.all_special_ids) for start in range(0, len(stream), 16)]
    assert result["tokens"] == sum(round(0.15 * int(row.sum())) for row in rows)
    assert result["loss"] < read_metrics(tmp_path / "run" / "metrics.jsonl")[0]["loss"]
    exported = load_file(tmp_path / "run" / "export" / "model.safetensors")
    assert "lm_head.bias" in exported and np.any(exported["lm_head.bias"] != 0)


@pytest.mark.slow
def test_a_loss_that_is_not_finite_stops_the_run(make_config, tmp_path):
    """After as many skipped updates as allowed, with what is needed to make the batch again; likewise when started again."""
    config = make_config(optimizer__peak_learning_rate=1e30, mesh__data=1, eval_every=100)
    config.skip_nonfinite, config.checkpoint_every = 2, 1
    message = (
        r"loss .* at step (\d+) after 2 skipped updates; expected finite numbers; .*nonfinite-step-\1.json holds the batch"
    )
    with pytest.raises(UserError, match=message) as first:
        train(config, tmp_path / "run")
    assert not (tmp_path / "run" / "export").exists()
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    skipped = [line["step"] for line in lines if line["kind"] == "skipped"]
    assert len(skipped) == 2 and not set(skipped) & {line["step"] for line in lines if line["kind"] == "train"}
    assert all(line["loss"] is not None for line in lines if line["kind"] in ("train", "eval"))
    (file,) = (tmp_path / "run").glob("nonfinite-step-*.json")
    report = json.loads(file.read_text())
    blocks = TokenBlocks.open(tmp_path / "run" / "data" / "train", config.block_length)
    tokens = blocks.blocks(np.array(report["blocks"]))
    assert np.array_equal(tokens, blocks.batch(report["step"] - 1, config.batch_size, config.seed)["tokens"])
    assert hashlib.sha256(np.ascontiguousarray(tokens).tobytes()).hexdigest() == report["tokens_sha256"]
    assert report["skipped_before"] == skipped and report["config"]["batch_size"] == config.batch_size
    assert report["checkpoint"].endswith(str(report["step"] - 1)) and report["seed"] == 0
    with pytest.raises(UserError) as second:
        train(config, tmp_path / "run")
    assert str(second.value) == str(first.value)
    assert [line["step"] for line in read_metrics(tmp_path / "run" / "metrics.jsonl") if line["kind"] == "skipped"] == skipped


@pytest.mark.slow
def test_a_run_without_gain_stops_early_and_exports_its_best(make_config, tmp_path, capsys):
    """After eight good steps the learning rate destroys the model; a run of those eight steps is the oracle."""
    good, bad = (
        {"name": name, "steps": 8, "decay": "constant", "peak": peak} for name, peak in (("good", 1.0), ("bad", 3000.0))
    )
    settings = {"mesh__data": 1, "keep": 1}
    config = make_config(eval_every=2, patience=6, checkpoint_every=5, steps=16, phases=(good, bad), **settings)
    result = train(config, tmp_path / "run")
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    losses = {line["step"]: line["loss"] for line in lines if line["kind"] == "eval" and line["step"]}
    best = min(losses, key=losses.get)
    (stop,), (end,) = ([line for line in lines if line["kind"] == kind] for kind in ("stop", "end"))
    assert best == 8 and stop["step"] == max(losses) == 14 and lines[-1] == end
    assert (stop["best_step"], end["best_step"], end["exported_step"], result["step"]) == (best,) * 4
    assert {int(path.name) for path in (tmp_path / "run" / "checkpoints").iterdir()} == {best, stop["step"]}
    said = capsys.readouterr().err
    assert f"exported the weights of step {best}" in said and f"perplexity {result['perplexity']:,.2f}, at step {best}" in said

    exported = (tmp_path / "run" / "export" / "model.safetensors").read_bytes()
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    assert train(config, tmp_path / "run") == result
    assert f"stopped early at step 14 of 16; the best was step {best}; nothing to train" in capsys.readouterr().err
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before

    # An export that was lost is made again, and nothing else.
    shutil.rmtree(tmp_path / "run" / "export")
    assert train(config, tmp_path / "run") == result
    assert (tmp_path / "run" / "export" / "model.safetensors").read_bytes() == exported
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before

    shorter = make_config(eval_every=2, checkpoint_every=5, steps=8, phases=(good,), **settings)
    assert train(shorter, tmp_path / "shorter")["loss"] == result["loss"]
    assert (tmp_path / "shorter" / "export" / "model.safetensors").read_bytes() == exported


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"seed": 1}, "seed was 0, now 1"),
        ({"nonsense": 1}, "nonsense: no such setting"),
    ],
)
def test_a_workdir_keeps_to_its_settings(finished, make_config, changes, named):
    with pytest.raises(UserError, match=named):
        train(make_config(mesh__data=1, **changes), finished[1])


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"block_length": 64}, "block_length: 64 is more than the model's 32 positions"),
        ({"batch_size": 4}, "batch_size: 4 in 1 parts gives 4 rows, which 8 devices cannot share"),
        ({"objective": "mlm"}, "mlm"),
        ({"data__train": ("missing.txt",)}, "missing.txt"),
        ({"model__tokenizer": "missing"}, "missing"),
        ({"model__config": ConfigDict({"model_type": "gpt2", "vocab_size": 100})}, r"has \d+ tokens and the model only 100"),
        ({"phases": ({"name": "x", "fraction": 1.0, "trainable": "nothing"},)}, "matches no parameter"),
        ({"mesh__data": 16}, "needs 16 devices and there are 8"),
        ({"seeds": 2}, "seeds: is 2; expected 0 or 1, as several are for train.finetune"),
    ],
)
def test_mistakes_are_found_before_training(make_config, tmp_path, changes, named):
    with pytest.raises(UserError, match=named):
        train(make_config(**changes), tmp_path / "run")
    # Nothing is recorded, so that the corrected settings are accepted.
    assert not (tmp_path / "run" / "config.json").exists() and not (tmp_path / "run" / "export").exists()


def test_tokens_of_another_tokenizer_with_no_more_of_them_are_no_text_of_the_model(finished, make_config, texts, tmp_path):
    """Ids of either are below the number of rows, and mean something else."""
    (tmp_path / "other.txt").write_text((texts / "train.txt").read_text()[::-1])
    other = tmp_path / "other"
    train_tokenizer([tmp_path / "other.txt"], 290, other)
    prepare([texts / "train.txt"], other, tmp_path / "prepared")
    with pytest.raises(UserError, match=r"data\.train: .*prepared: was prepared with the tokens of another tokenizer"):
        train(make_config(data__train=(str(tmp_path / "prepared"),)), tmp_path / "run")
    checkpoint = {"model__checkpoint": str(finished[1] / "export"), "model__config": ConfigDict()}
    with pytest.raises(UserError, match=r"model\.tokenizer: .*other: \d+ of its first 290 tokens are others than in .*export;"):
        named_model(make_config(**checkpoint, model__tokenizer=str(other)))
    # It may stand in for one that is not there.
    bare = shutil.copytree(finished[1] / "export", tmp_path / "bare", ignore=shutil.ignore_patterns("tokenizer*"))
    named_model(make_config(**checkpoint | {"model__checkpoint": str(bare)}, model__tokenizer=str(other)))


def test_text_whose_ends_are_another_token_is_no_text_of_the_model(make_config, texts, tmp_path):
    """As of a base model and one for chats, whose tokens are the same."""
    other = load_tokenizer(texts / "tokenizer")
    other.eos_token = "a"
    other.save_pretrained(tmp_path / "other")
    prepare([texts / "train.txt"], tmp_path / "other", tmp_path / "prepared")
    made, end = other.eos_token_id, load_tokenizer(texts / "tokenizer").eos_token_id
    with pytest.raises(
        UserError, match=rf"prepared: was prepared with {made} as the token that ends a text; .* model's, {end} "
    ):
        train(make_config(data__train=(str(tmp_path / "prepared"),)), tmp_path / "run")


@pytest.mark.parametrize(
    ("fields", "meant"),
    [
        ({"model_type": "gpt2", "n_emdb": 32}, "n_emdb: no field of a gpt2; expected n_embd, it seems"),
        ({"model_type": "roberta", "num_layers": 1}, "num_layers: no field of a roberta; expected num_hidden_layers"),
        # GPT-2 calls it n_embd, and transformers takes this name, too.
        ({"model_type": "gpt2", "hidden_size": 16, "n_head": 2, "n_ctx": 8, "torch_dtype": "float32", "num_labels": 2}, None),
        ({"model_type": "bert", "hidden_size": 16, "num_attention_heads": 2, "pooler_num_attention_heads": 12}, None),
        ({"model_type": "transformer", "d_modle": 16, "nhead": 2}, "d_modle: no field of a transformer; expected d_model"),
        # As configs/kim.py has it also where there is no decoder.
        ({"model_type": "transformer", "d_model": 16, "nhead": 2, "num_decoder_layers": 3}, None),
    ],
)
def test_a_slip_in_a_new_models_fields_is_named(make_config, fields, meant):
    config = make_config(model__config=ConfigDict(fields))
    if fields["model_type"] == "transformer":
        config.objective, config.task.labels = "classification", ("a", "b")
    with pytest.raises(UserError, match=meant) if meant else contextlib.nullcontext():
        assert named_model(config).config.hidden_size == 16


def test_a_new_model_begins_with_a_given_table(make_config, texts, tmp_path):
    size = len(load_tokenizer(texts / "tokenizer"))
    table = np.random.default_rng(0).standard_normal((size, 32)).astype(np.float32)
    write_tensors(tmp_path / "table.safetensors", {"embeddings": table})
    plain, given = (build_run(make_config(model__embeddings=place)) for place in ("", str(tmp_path / "table.safetensors")))
    assert plain.load_parameters is None
    drawn = plain.model.family.to_hugging_face(jax.device_get(plain.initial(0, None)), plain.model.config)
    made = given.model.family.to_hugging_face(given.load_parameters(), given.model.config)
    assert [name for name in drawn if not np.array_equal(drawn[name], made[name])] == ["transformer.wte.weight"]
    assert np.array_equal(made["transformer.wte.weight"], table)
    write_tensors(tmp_path / "table.safetensors", {"embeddings": table[1:]})
    with pytest.raises(UserError, match=r"table\.safetensors: expected a tensor 'embeddings' of shape"):
        build_run(make_config(model__embeddings=str(tmp_path / "table.safetensors")))


def test_parts_of_a_step_do_not_change_what_is_evaluated(make_config, tmp_path):
    read = []
    for accumulation in (1, 4):
        config = make_config(accumulation=accumulation, eval_batches=2, mesh__data=1)
        spec = build_run(config)
        # In place of scores, the tokens that they would be of.
        told = Evaluator(spec.evaluator.batches, lambda _, batches, *__: np.concatenate([one["tokens"] for one in batches]))
        placement = Placement(config, dataclasses.replace(spec, evaluator=told), print)
        read.append(placement.evaluate({}, open_data(config, spec.model, tmp_path, fresh=True).validation))
    assert read[0].shape == (2 * 8, 16) and np.array_equal(*read)


def test_changed_text_is_refused(finished, make_config, texts, tmp_path):
    _, workdir, _ = finished
    shutil.copytree(workdir, tmp_path / "run", ignore=shutil.ignore_patterns("export"))
    text = tmp_path / "train.txt"
    text.write_text((texts / "train.txt").read_text() + "one more line\n")
    config = make_config(mesh__data=1, data__train=(str(text),))
    recorded = json.loads((tmp_path / "run" / "config.json").read_text())
    recorded["data"]["train"] = [str(text)]
    (tmp_path / "run" / "config.json").write_text(json.dumps(recorded))
    # Never the advice to delete the only copy of what the run was trained on.
    with pytest.raises(UserError, match=r"other text .*, and this run has been trained on it; restore the text"):
        train(config, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "data" / "train")
    with pytest.raises(UserError, match=r"data\.train: the text or tokenizer has changed since this run began"):
        train(config, tmp_path / "run")


def test_what_cannot_be_compared_any_more_is_said(finished, tmp_path, capsys):
    config, workdir, _ = finished
    shutil.copytree(workdir, tmp_path / "run", ignore=shutil.ignore_patterns("export", "data"))
    train(config, tmp_path / "run")
    assert "fingerprints.json is not there: whether text and tokenizer are those" in capsys.readouterr().err


def test_another_tokenizer_is_refused_and_another_version_is_said(finished, make_config, texts, tmp_path, capsys):
    config, workdir, _ = finished
    shutil.copytree(workdir, tmp_path / "run", ignore=shutil.ignore_patterns("export"))
    file = tmp_path / "run" / "data" / "fingerprints.json"
    recorded = json.loads(file.read_text())
    assert set(recorded) == {"train", "validation", "tokenizer", "versions"}
    file.write_text(json.dumps({**recorded, "tokenizer": "0" * 64}))
    with pytest.raises(UserError, match=r"model\.tokenizer: the tokenizer has changed since this run began"):
        train(config, tmp_path / "run")
    file.write_text(json.dumps({**recorded, "versions": {"wechsel_jax": "0.0.1", "jax": jax.__version__}}))
    train(config, tmp_path / "run")
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("this run began with")]
    assert len(said) == 1 and "wechsel_jax 0.0.1, now " in said[0]


def test_a_damaged_newest_checkpoint_costs_only_its_steps(finished, tmp_path, capsys):
    config, workdir, result = finished
    shutil.copytree(workdir, tmp_path / "run", ignore=shutil.ignore_patterns("export"))
    newest = tmp_path / "run" / "checkpoints" / "20" / "state"
    biggest = max((path for path in newest.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    content = bytearray(biggest.read_bytes())
    content[len(content) // 2] ^= 1
    biggest.write_bytes(content)
    again = train(config, tmp_path / "run")
    said = capsys.readouterr().err
    assert "20: damaged, " in said and "going on from step 15" in said
    assert again["loss"] == result["loss"] and without_timing(tmp_path / "run") == without_timing(workdir)
    exports = [run / "export" / "model.safetensors" for run in (workdir, tmp_path / "run")]
    assert exports[0].read_bytes() == exports[1].read_bytes()


def test_the_compilation_cache_is_given_back(finished):
    assert jax.config.jax_compilation_cache_dir != finished[0].compilation_cache


def test_held_out_text_that_is_trained_on_is_told(texts, tmp_path):
    copy, tokenizer = shutil.copyfile(texts / "train.txt", tmp_path / "copy.txt"), texts / "tokenizer"
    both = [str(texts / "validation.txt"), str(copy)]
    prepare(str(texts / "train.txt"), tokenizer, tmp_path / "train")
    prepare(both, tokenizer, tmp_path / "both")
    prepare(both[0], tokenizer, tmp_path / "apart")
    prepare_split(both, tokenizer, tmp_path / "split", validation_fraction=0.3)

    def told(*places: str) -> list[str]:
        return trained_on(Data(*(TokenBlocks.open(tmp_path / place, 16) for place in places)))

    assert told("train", "both") == ["copy.txt"] and told("train", "train") == ["train.txt"]
    assert told("train", "apart") == told("split/train", "split/validation") == []
