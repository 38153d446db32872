"""How a run begins and goes on: what is wrong with what it reads is found first, and leaves a clean place."""

import json
import os
import shutil
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict
from safetensors.numpy import load_file, save_file

from wechsel_jax.checkpoint.tensors import write_tensors
from wechsel_jax.data import prepare
from wechsel_jax.errors import UserError
from wechsel_jax.records import read_run
from wechsel_jax.training import compilation, run_spec, train
from wechsel_jax.training.metrics import read_metrics
from wechsel_jax.training.placement import Placement

ONE = ({"name": "all", "fraction": 1.0, "warmup": 0.5},)


@pytest.fixture(scope="module")
def settings(make_config):
    """Returns a function (field=value, ...) -> settings of a run of four updates on one device."""

    def make(**changes) -> ConfigDict:
        short = {"steps": 4, "eval_every": 2, "checkpoint_every": 2, "log_every": 1, "phases": ONE, "mesh__data": 1}
        return make_config(**{**short, **changes})

    return make


@pytest.fixture(scope="module")
def finished(settings, tmp_path_factory):
    """(config, workdir, what train returned); not to be changed."""
    config, workdir = settings(), tmp_path_factory.mktemp("finished") / "run"
    return config, workdir, train(config, workdir)


@pytest.fixture
def stopped(finished, tmp_path) -> Path:
    """A copy of the workdir as it is where a run was stopped after step 2."""
    shutil.copytree(finished[1], tmp_path / "run", ignore=shutil.ignore_patterns("export", "4"))
    return tmp_path / "run"


def start_from(model: Path) -> dict:
    return {"model__checkpoint": str(model), "model__config": ConfigDict(), "model__tokenizer": ""}


def lines_of(workdir: Path) -> list[tuple]:
    return [(line["kind"], line["step"], line.get("loss")) for line in read_metrics(workdir / "metrics.jsonl")]


@pytest.mark.slow
@pytest.mark.parametrize("side", ["train", "validation"])
@pytest.mark.parametrize("how", ["a byte", "an id"])
def test_damaged_tokens_are_not_trained_on(finished, stopped, side, how):
    """Neither by a run that goes on nor by one that begins; also where the damaged id is none of the vocabulary."""
    file = stopped / "data" / side / "tokens.bin"
    tokens = bytearray(file.read_bytes())
    tokens[1001 if how == "an id" else 1000] ^= 0xFF if how == "an id" else 1
    file.write_bytes(tokens)
    for _ in ("goes on", "begins"):
        before = (stopped / "metrics.jsonl").read_bytes()
        with pytest.raises(UserError, match=rf"data/{side}/tokens\.bin: damaged: its sha256") as error:
            train(finished[0], stopped)
        assert "\n" not in str(error.value) and (stopped / "metrics.jsonl").read_bytes() == before
        shutil.rmtree(stopped / "checkpoints", ignore_errors=True)


def test_what_was_damaged_is_prepared_again(finished, stopped):
    """As the message advises; the run then ends as it would have."""
    (stopped / "data" / "train" / "tokens.bin").write_bytes(b"")
    with pytest.raises(UserError, match="delete the directory and prepare the text again"):
        train(finished[0], stopped)
    shutil.rmtree(stopped / "data" / "train")
    assert train(finished[0], stopped) == pytest.approx(finished[2] | {"evaluation_seconds": 0}, abs=100)
    assert lines_of(stopped) == lines_of(finished[1])


def test_a_checkpoint_under_another_name_is_not_used(finished, stopped, capsys):
    shutil.copytree(finished[1] / "checkpoints" / "2", stopped / "checkpoints" / "3")
    result = train(finished[0], stopped)
    said = capsys.readouterr().err
    assert "checkpoints/3: damaged, it was saved as the checkpoint of step 2; it is not used" in said
    assert "going on from step 2" in said and result["loss"] == finished[2]["loss"]
    assert lines_of(stopped) == lines_of(finished[1])


CHANGES = {
    "emptied": lambda lines: [],
    "cut at the front": lambda lines: lines[1:],
    "every line twice": lambda lines: [line for line in lines for _ in range(2)],
    "a NaN": lambda lines: [lines[0].replace('"loss": ', '"loss": NaN, "was": '), *lines[1:]],
    "in another order": lambda lines: [lines[1], lines[0], *lines[2:]],
    "cut at the end": lambda lines: lines[:2],
}


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_metrics_that_were_changed_are_not_believed(finished, stopped, change, ended):
    """A finished run is recognised by its metrics, so where too little is left of them, it goes on as one that was stopped."""
    if ended:
        shutil.rmtree(stopped)
        shutil.copytree(finished[1], stopped)
    file = stopped / "metrics.jsonl"
    changed = "".join(CHANGES[change](file.read_text().splitlines(keepends=True)))
    file.write_text(changed)
    with pytest.raises(UserError, match=r"metrics\.jsonl: does not begin with the \d+ lines that the checkpoint of step [24]"):
        train(finished[0], stopped)
    assert file.read_text() == changed


def test_a_forged_end_of_a_run_is_not_believed(finished, tmp_path):
    shutil.copytree(finished[1], tmp_path / "run")
    file = tmp_path / "run" / "metrics.jsonl"
    *lines, end = file.read_text().splitlines(keepends=True)
    assert '"exported_step": 4' in end
    file.write_text("".join([*lines, end.replace('"exported_step": 4', '"exported_step": 2')]))
    with pytest.raises(UserError, match="does not begin with the 8 lines that the checkpoint of step 4 was saved with"):
        train(finished[0], tmp_path / "run")


@pytest.mark.slow
def test_a_run_goes_on_without_its_metrics(finished, stopped, capsys):
    """Where the user removes them, as the message says; then killed once more, and reported."""
    (stopped / "metrics.jsonl").unlink()
    train(finished[0], stopped)
    said = capsys.readouterr().err
    assert "metrics.jsonl: is missing; the run goes on from step 2 without the lines before" in said
    expected = [line for line in lines_of(finished[1]) if line[1] > 2 or line[:2] == ("eval", 2)]
    assert lines_of(stopped) == expected
    # What is left is what the checkpoints say: a start from the older one accepts it too.
    shutil.rmtree(stopped / "export")
    shutil.rmtree(stopped / "checkpoints" / "4")
    train(finished[0], stopped)
    assert lines_of(stopped) == expected and "missing" not in capsys.readouterr().err
    assert [step for step, _ in read_run(stopped).curve] == [2, 4]


def test_runs_of_older_versions_go_on(finished, stopped):
    """Their checkpoints do not say which lines there were; a tail that a kill cut off, or a line twice, is mended."""
    manifest = stopped / "checkpoints" / "2" / "manifest.json"
    facts = json.loads(manifest.read_text())
    assert facts.pop("metrics")["lines"] == 4
    manifest.write_text(json.dumps(facts))
    text = (stopped / "metrics.jsonl").read_text().splitlines(keepends=True)
    (stopped / "metrics.jsonl").write_text("".join([*text[:4], text[3], *text[4:6], text[6][:9]]))
    train(finished[0], stopped)
    assert lines_of(stopped) == lines_of(finished[1])


def break_weights(model: Path, change) -> None:
    tensors = load_file(model / "model.safetensors")
    change(tensors)
    save_file(tensors, model / "model.safetensors", {"format": "pt"})


def set_field(model: Path, field: str, value) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, field: value}))


WEIGHTS = {
    "NaN": (
        lambda model: break_weights(model, lambda tensors: tensors["transformer.wpe.weight"].__setitem__((3, 1), np.nan)),
        r"model\.safetensors: tensor transformer\.wpe\.weight holds NaN or infinity in row 3",
    ),
    "float64 only": (
        lambda model: break_weights(
            model, lambda tensors: tensors.update({"transformer.wpe.weight": np.full((32, 32), 1e300)})
        ),
        "holds numbers that float32 does not",
    ),
    "more layers": (lambda model: set_field(model, "n_layer", 3), r"h\.2\..*the checkpoint has no tensor of this name"),
    "fewer layers": (lambda model: set_field(model, "n_layer", 1), "belongs to no parameter"),
    "wider": (lambda model: set_field(model, "n_embd", 64), "has shape"),
    "NaN in config.json": (lambda model: set_field(model, "layer_norm_epsilon", np.nan), "layer_norm_epsilon is nan; expected"),
    "no whole number": (
        lambda model: set_field(model, "n_embd", np.nan),
        r"model/config\.json: n_embd is nan; expected a number",
    ),
    "infinity in config.json": (
        lambda model: set_field(model, "layer_norm_epsilon", np.inf),
        r"model/config\.json: layer_norm_epsilon is inf; expected a number",
    ),
}


@pytest.mark.parametrize("how", WEIGHTS)
def test_a_model_that_cannot_be_trained_is_named_before_data_are_prepared(finished, settings, tmp_path, how):
    shutil.copytree(finished[1] / "export", tmp_path / "model")
    harm, message = WEIGHTS[how]
    harm(tmp_path / "model")
    with pytest.raises(UserError, match=message):
        train(settings(**start_from(tmp_path / "model")), tmp_path / "run")
    assert not (tmp_path / "run" / "data").exists()


def test_a_run_that_goes_on_does_not_read_the_model_that_it_began_with(finished, settings, tmp_path, monkeypatch):
    shutil.copytree(finished[1] / "export", tmp_path / "model")
    config = settings(**start_from(tmp_path / "model"))
    train(config, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "export")
    monkeypatch.setattr(run_spec, "_check_weights", None)
    train(config, tmp_path / "run")
    with pytest.raises(TypeError):
        train(config, tmp_path / "other")


@pytest.mark.slow
def test_mistakes_leave_the_workdir_to_the_corrected_settings(settings, texts, finished, tmp_path, monkeypatch, capsys):
    """One after the other in the same workdir; cheap ones leave no data, and what was prepared is used again where it fits."""
    run = tmp_path / "run"
    shutil.copytree(finished[1] / "export", tmp_path / "nan")
    WEIGHTS["NaN"][0](tmp_path / "nan")
    size = len(load_file(finished[1] / "export" / "model.safetensors")["transformer.wte.weight"])
    write_tensors(tmp_path / "table.safetensors", {"embeddings": np.full((size, 32), np.inf, np.float32)})
    (tmp_path / "word.txt").write_text("alpha\n")
    monkeypatch.setitem(sys.modules, "wandb", None)
    for changes, message in (
        ({"mesh__data": 3, "mesh__fsdp": 3}, "needs 9 devices and there are 8"),
        ({"batch_size": 6, "mesh__data": 4}, "which 4 devices cannot share"),
        ({"trackers__wandb": "project"}, "wandb: not installed"),
        (start_from(tmp_path / "nan"), "holds NaN or infinity"),
        ({"model__embeddings": str(tmp_path / "table.safetensors")}, "table.safetensors: tensor embeddings holds NaN or inf"),
        ({"data__validation": ("missing.txt",)}, "missing.txt"),
        ({"phases": ({"name": "x", "fraction": 1.0, "trainable": "nothing"},)}, "matches no parameter"),
    ):
        with pytest.raises(UserError, match=message):
            train(settings(**changes), run)
        assert not (run / "data").exists(), changes
    with pytest.raises(UserError, match="expected at least one block of 16"):
        train(settings(data__train=(str(tmp_path / "word.txt"),)), run)
    with monkeypatch.context() as patch:
        patch.setattr(compilation, "_device_limit", lambda: 1000)
        with pytest.raises(UserError, match=r"a device has 1000 bytes; .* lower batch_size \(now 8\)"):
            train(settings(seed=5), run)
    assert "other text than train.txt holds now, and nothing was trained on it; it is made again" in capsys.readouterr().err
    made = os.stat(run / "data" / "train" / "tokens.bin")
    assert {"config.json", "model", "export"}.isdisjoint(path.name for path in run.iterdir())
    result = train(settings(), run)
    assert os.path.samestat(os.stat(run / "data" / "train" / "tokens.bin"), made)
    assert result["loss"] == finished[2]["loss"] and lines_of(run) == lines_of(finished[1])
    # Now a run has begun, and keeps its data.
    with pytest.raises(UserError, match=r"config\.json: the run there has other settings: data\.train"):
        train(settings(data__train=(str(tmp_path / "word.txt"),)), run)


def test_a_split_is_made_again_too(settings, texts, tmp_path):
    run, text = tmp_path / "run", {"data__train": (str(texts / "validation.txt"),), "data__validation": ()}
    for fraction in (0.9, 0.2):
        with pytest.raises(UserError, match=r"split/train: .* expected at least one block of 32"):
            train(settings(**text, data__validation_fraction=fraction, data__max_bytes=130, block_length=32), run)
    manifest = json.loads((run / "data" / "split" / "train" / "manifest.json").read_text())
    assert manifest["validation_fraction"] == 0.2


def test_a_split_is_never_removed_by_half(settings, texts, tmp_path, monkeypatch):
    run, text = tmp_path / "run", {"data__train": (str(texts / "validation.txt"),), "data__validation": ()}
    few = {"data__max_bytes": 130, "block_length": 32, **text}
    with pytest.raises(UserError, match="expected at least one block of 32"):
        train(settings(data__validation_fraction=0.9, **few), run)
    unlink = os.unlink

    def killed(path, **directory):
        if Path(path).name == "manifest.json":
            raise KeyboardInterrupt
        unlink(path, **directory)

    monkeypatch.setattr(os, "unlink", killed)
    with pytest.raises(KeyboardInterrupt):
        train(settings(data__validation_fraction=0.2, **few), run)
    monkeypatch.undo()
    for _ in range(2):
        with pytest.raises(UserError, match="expected at least one block of 32"):
            train(settings(data__validation_fraction=0.2, **few), run)
    assert [path.name for path in (run / "data").iterdir()] == ["split"]


def test_nothing_that_somebody_else_wrote_is_removed(settings, texts, tmp_path):
    prepare([texts / "validation.txt"], texts / "tokenizer", tmp_path / "run" / "data" / "train")
    (tmp_path / "run" / "data" / "train" / "notes").write_text("mine")
    (tmp_path / "run" / ".lock").write_text("process 1 on x\n")
    with pytest.raises(OSError, match="not empty"):
        train(settings(), tmp_path / "run")
    assert (tmp_path / "run" / "data" / "train" / "notes").read_text() == "mine"


def no_memory(*_, **__):
    raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 39040000000 bytes.\nmore")


def no_memory_on_the_host(*_, **__):
    raise MemoryError("Unable to allocate 36.4 TiB for an array")


@pytest.mark.parametrize(
    ("place", "name", "fail", "goes_on"),
    [
        (Placement, "evaluate", no_memory, False),
        (Placement, "initial", no_memory, False),
        (Placement, "batch", no_memory_on_the_host, False),
        (Placement, "restore", no_memory, True),
        (Placement, "batch", no_memory, True),
    ],
)
def test_a_lack_of_memory_says_what_to_lower(finished, settings, stopped, tmp_path, monkeypatch, place, name, fail, goes_on):
    monkeypatch.setattr(place, name, fail)
    config, workdir = (finished[0], stopped) if goes_on else (settings(accumulation=2), tmp_path / "new")
    with pytest.raises(UserError) as error:
        train(config, workdir)
    message = str(error.value)
    assert message.startswith("memory: this run needs more than there is; the machine says: ") and "\n" not in message
    rows = f"batch_size (now 8{'' if goes_on else '; a multiple of 2'})"
    for setting in (rows, "accumulation=", "block_length (now 16)", "model.remat="):
        assert setting in message
    assert goes_on or not (workdir / "config.json").exists()
