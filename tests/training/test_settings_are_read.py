"""Every setting of a run is read by something that is neither the check nor the record of the settings."""

import sys

import jax
import pytest
from ml_collections import ConfigDict

from wechsel_jax.errors import UserError
from wechsel_jax.training import distributed, labelled, loop, one_phase, seeds
from wechsel_jax.training.config import as_dict
from wechsel_jax.training.run_spec import build_run


def leaves(values: dict, prefix: str = "") -> set[str]:
    """ "."-joined names of all fields that hold no further fields; a model's own config.json counts as one."""
    found = set()
    for name, value in values.items():
        inner = isinstance(value, dict) and prefix + name != "model.config"
        found |= leaves(value, f"{prefix}{name}.") if inner else {prefix + name}
    return found


@pytest.fixture
def read(monkeypatch):
    """Returns (names that have been read, function that watches the fields of a ConfigDict)."""
    names, places = set(), {}
    original = ConfigDict.__getitem__

    def recorded() -> bool:
        """Whether `as_dict`, which copies settings whole, is what reads (in Python 3.11 from a frame of its own)."""
        frame = sys._getframe(2)
        return "as_dict" in (frame.f_code.co_name, frame.f_back.f_code.co_name)

    def getitem(self, key):
        if id(self) in places and not recorded():
            names.add(places[id(self)] + key)
        return original(self, key)

    def watch(config, prefix=""):
        places[id(config)] = prefix
        # Watching is no reading.
        for name in config:
            value = original(config, name)
            if isinstance(value, ConfigDict):
                watch(value, f"{prefix}{name}.")

    monkeypatch.setattr(ConfigDict, "__getitem__", getitem)
    monkeypatch.setattr(ConfigDict, "__getattr__", lambda self, name: self[name])
    return names, watch


@pytest.mark.slow
def test_every_setting_is_read(make_config, tmp_path, read, monkeypatch):
    names, watch = read
    # What soft targets are like is read where there are some.
    soft = {"soft_targets__share": 0.5}
    config = make_config(steps=2, eval_every=2, checkpoint_every=2, patience=100, mesh__data=1, **soft)
    for check in ("validate", "check_config", "record_config"):
        monkeypatch.setattr(loop, check, lambda *_, **__: None)
    watch(config)
    names.clear()
    loop.train(config, tmp_path / "run")
    # Only a run that goes wrong reads how many updates it may skip, and only one of several processes how long it may wait.
    config.optimizer.peak_learning_rate = 1e30
    config.phases, config.steps = one_phase(warmup=0.0), 4
    with pytest.raises(UserError, match="finite"):
        loop.train(config, tmp_path / "nonfinite")
    config.distributed.update({"coordinator": "localhost:1", "processes": 2, "process": 1, "timeout": 1, "heartbeat": 1})
    monkeypatch.setattr(jax.distributed, "initialize", lambda *_, **__: None)
    distributed.start(config.distributed)
    assert leaves(as_dict(config)) - names == {f"task.{name}" for name in config.task}
    # Those are of labelled examples. Copies of settings are read in their place.
    words = tmp_path / "words.tsv"
    words.write_text("text\tlabel\nalpha beta\tno\ngamma delta\tyes\n")
    tasks = make_config(
        objective="classification", epochs=1.0, seeds=2, **dict.fromkeys(("data__train", "data__validation"), (str(words),))
    )
    for module in (seeds, labelled):
        monkeypatch.setattr(module.copy, "deepcopy", lambda config: config)
    monkeypatch.setattr(seeds, "train", lambda config, workdir: build_run(labelled.open_labelled(config, workdir, print)[0]))
    for check in ("validate", "check_config"):
        monkeypatch.setattr(seeds, check, lambda *_, **__: None)
    watch(tasks)
    with pytest.raises(AttributeError):
        seeds.finetune(tasks, tmp_path / "seeds")
    # Of translations alone; `test_translation` sees what it does.
    assert leaves(as_dict(config)) - names == {"task.bleu", "task.tokenize"}


def test_what_nothing_reads_is_noticed(make_config, tmp_path, read, monkeypatch):
    names, watch = read
    config = make_config()
    watch(config)
    names.clear()
    assert config.optimizer.b2 == 0.98 and as_dict(config)["steps"]
    assert "optimizer.b2" in names and not {"optimizer.b1", "steps"} & names
