"""TensorBoard's files as TensorBoard reads them; W&B as a stand-in that remembers, and as itself without a network."""

import json
import math
import struct
import subprocess
import sys
import time
import types

import pytest
from ml_collections import ConfigDict

from wechsel_jax.errors import UserError
from wechsel_jax.training.metrics import MetricsFile
from wechsel_jax.training.trackers import Trackers, scalars

CONFIG = {"steps": 12, "model": {"checkpoint": "x"}}


def lines(first: int, last: int) -> list[dict]:
    """What a run writes after step `first` up to step `last`: a training line each step, an evaluation every fourth."""
    found = []
    for step in range(first + 1, last + 1):
        train = {"kind": "train", "step": step, "phase": "all", "loss": 10.0 / step, "seconds": float(step), "mfu": 0.25}
        found.append({**train, "gradient_norm/tokens": math.inf if step == 3 else 1.0})
        if step % 4 == 0:
            found.append({"kind": "eval", "step": step, "perplexity": 100.0 / step, "loss": None})
    return found


def session(workdir, settings: dict, restored: int | None, last: int, **options) -> None:
    """A start of the run from a checkpoint, up to a step; the process then dies without a word."""
    metrics = MetricsFile(workdir / "metrics.jsonl", restored)
    trackers = Trackers(
        ConfigDict({"tensorboard": False, "wandb": "", **settings}), workdir, CONFIG, metrics.lines, write=True, **options
    )
    for line in lines(restored or 0, last):
        metrics.write(line)
        trackers.write(line)
    if last == 12:
        trackers.close()
    metrics.close()


def test_scalars_are_the_finite_numbers():
    line = {"kind": "train", "step": 3, "phase": "all", "loss": 1, "bad": math.nan, "none": None, "gradient_norm/x": 2.0}
    assert scalars(line) == {"train/loss": 1.0, "train/gradient_norm/x": 2.0}


def test_tensorboard_has_every_step_once(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    session(tmp_path, {"tensorboard": True}, None, 6)
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [1, 2, 3, 4, 5, 6]
    session(tmp_path, {"tensorboard": True}, 4, 9)
    session(tmp_path, {"tensorboard": True}, 8, 12)
    events.Reload()
    fresh = accumulator.EventAccumulator(str(tmp_path / "tensorboard"), purge_orphaned_data=False)
    fresh.Reload()
    # One that looks on all the time and one that comes late see the same.
    for seen in (events, fresh):
        assert [(event.step, event.value) for event in seen.Scalars("train/loss")] == [
            (step, pytest.approx(10.0 / step)) for step in range(1, 13)
        ]
        assert [event.step for event in seen.Scalars("eval/perplexity")] == [4, 8, 12]
        assert [event.step for event in seen.Scalars("train/gradient_norm/tokens")] == [1, 2, *range(4, 13)]
        assert "eval/loss" not in seen.Tags()["scalars"] and "train/phase" not in seen.Tags()["scalars"]
    times = [event.wall_time for event in fresh.Scalars("train/loss")]
    assert times == sorted(times) and times[7] - times[0] == pytest.approx(7.0, abs=0.01)


def test_tensorboard_shows_the_settings(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    session(tmp_path, {"tensorboard": True}, None, 2)
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    (shown,) = events.Tensors("settings")
    assert json.loads(shown.tensor_proto.string_val[0].decode().strip("`\n")) == CONFIG


def test_event_files_need_no_torch(tmp_path):
    """In a process of its own: the package must not bring torch or TensorFlow into a training run."""
    pytest.importorskip("tensorboard")
    program = (
        "import sys\nfrom ml_collections import ConfigDict\nfrom wechsel_jax.training.trackers import Trackers\n"
        "settings = ConfigDict({'tensorboard': True, 'wandb': ''})\n"
        "Trackers(settings, sys.argv[1], {}, [], write=True).write({'kind': 'train', 'step': 1, 'loss': 2.0})\n"
        "print({'torch', 'tensorflow'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "set()\n"


def test_tensorboard_turned_on_later_has_the_whole_run(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    session(tmp_path, {}, None, 8)
    assert not (tmp_path / "tensorboard").exists()
    session(tmp_path, {"tensorboard": True}, 8, 12)
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == list(range(1, 13))


@pytest.fixture
def wandb(monkeypatch):
    """A stand-in for W&B, whose server keeps rows by the id of the run."""
    module = types.ModuleType("wandb")
    module.rows, module.starts, module.fail = {}, [], None

    class Run:
        def __init__(self, key):
            self.key = key

        def log(self, row):
            if module.fail:
                raise module.fail
            module.rows[self.key].append(row)

        def define_metric(self, *_arguments, **_options):
            pass

        def finish(self):
            module.starts.append("finish")

    def init(**options):
        if module.fail:
            raise module.fail
        module.starts.append(options)
        module.rows.setdefault(options["id"], [])
        return Run(options["id"])

    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def test_wandb_has_one_run_with_every_line_once(wandb, tmp_path):
    settings = {"wandb": "german"}
    session(tmp_path, settings, None, 6)
    session(tmp_path, settings, 4, 8)
    # Died after the training line of step 9 had been sent, and before its own record of it.
    session(tmp_path, settings, 8, 12)
    (rows,) = wandb.rows.values()
    assert [row["step"] for row in rows if "train/loss" in row] == list(range(1, 13))
    assert [row["step"] for row in rows if "eval/perplexity" in row] == [4, 8, 12]
    first, *others = [start for start in wandb.starts if start != "finish"]
    assert {start["id"] for start in others} == {first["id"]} and wandb.starts[-1] == "finish"
    assert first["project"] == "german" and first["resume"] == "allow" and first["config"] == CONFIG


def test_wandb_gets_what_it_has_not_got(wandb, tmp_path):
    session(tmp_path, {}, None, 8)
    record = {"id": "abc", "step": 4, "kinds": ["train"]}
    (tmp_path / "wandb.json").write_text(json.dumps(record))
    session(tmp_path, {"wandb": "german"}, 8, 12)
    rows = wandb.rows["abc"]
    assert [row["step"] for row in rows if "train/loss" in row] == list(range(5, 13))
    # The evaluation of step 4 had not been sent.
    assert [row["step"] for row in rows if "eval/perplexity" in row] == [4, 8, 12]


def test_a_tracker_that_fails_later_does_not_end_the_run(wandb, tmp_path):
    metrics = MetricsFile(tmp_path / "metrics.jsonl", None)
    said = []
    settings = ConfigDict({"tensorboard": False, "wandb": "german"})
    trackers = Trackers(settings, tmp_path, CONFIG, metrics.lines, write=True, say=said.append)
    wandb.fail = ConnectionError("the network\nis away")
    for line in lines(0, 3):
        trackers.write(line)
    trackers.close()
    metrics.close()
    assert said == [
        "Weights & Biases: failed and is given up (the network is away); training goes on; metrics.jsonl has all lines"
    ]
    with pytest.raises(UserError, match=r"trackers\.wandb: cannot begin \(the network is away\); expected a login"):
        Trackers(settings, tmp_path, CONFIG, metrics.lines, write=True)


@pytest.mark.parametrize(("settings", "package"), [({"tensorboard": True}, "tensorboard"), ({"wandb": "german"}, "wandb")])
def test_a_missing_package_names_its_extra(settings, package, tmp_path, monkeypatch):
    for name in [package, *(name for name in sys.modules if name.startswith(f"{package}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    advice = rf"run `pip install 'wechsel-jax\[watch\]'` or set trackers\.{package} to"
    with pytest.raises(UserError, match=rf"{package}: not installed; .*{advice}"):
        session(tmp_path, settings, None, 1)


def test_processes_but_the_first_write_nothing(wandb, tmp_path):
    settings = ConfigDict({"tensorboard": True, "wandb": "german"})
    trackers = Trackers(settings, tmp_path, CONFIG, [], write=False)
    trackers.write(lines(0, 1)[0])
    trackers.close()
    assert not list(tmp_path.iterdir()) and wandb.starts == []


def offline_records(file):
    """The records of a W&B file: a log as LevelDB writes it, in blocks of 32 KiB, behind a header of seven bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    raw, place, whole = file.read_bytes(), 7, b""
    while place + 7 <= len(raw):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        _, size, kind = struct.unpack_from("<IHB", raw, place)
        whole += raw[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):
            yield Record.FromString(whole)
            whole = b""


@pytest.mark.slow
def test_wandb_itself_offline(tmp_path, monkeypatch):
    """The real package without a network, interrupted once; its own files are read back."""
    wandb = pytest.importorskip("wandb")
    for name, value in {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_CONSOLE": "off"}.items():
        monkeypatch.setenv(name, value)
    for folder in ("CACHE", "CONFIG", "DATA"):
        monkeypatch.setenv(f"WANDB_{folder}_DIR", str(tmp_path / folder))
    run = tmp_path / "run"
    run.mkdir()
    for restored, last in ((None, 6), (4, 12)):
        session(run, {"wandb": "german"}, restored, last)
        wandb.finish()
        # W&B names its files by the second.
        time.sleep(1.1)
    records = [record for file in sorted((run / "wandb").rglob("*.wandb")) for record in offline_records(file)]
    rows = [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.WhichOneof("record_type") == "history"
    ]
    assert len({record.run.run_id for record in records if record.WhichOneof("record_type") == "run"}) == 1
    assert [row["step"] for row in rows if "train/loss" in row] == list(range(1, 13))
    assert [row["step"] for row in rows if "eval/perplexity" in row] == [4, 8, 12]
