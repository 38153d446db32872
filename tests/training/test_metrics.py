import errno
import json
import math
import os

import pytest

from wechsel_jax.errors import UserError
from wechsel_jax.training.metrics import MetricsFile, best_evaluation, final_metrics, losses, read_metrics, require_lines


def train_line(step: int) -> dict:
    return {"kind": "train", "step": step, "loss": 1.0 / step}


def test_lines_after_the_restored_step_are_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path, None)
    for step in range(1, 8):
        file.write(train_line(step))
    with path.open("ab") as handle:
        handle.write(b'{"kind": "train", "st')
    again = MetricsFile(path, 5)
    assert again.lines == read_metrics(path) == [train_line(step) for step in range(1, 6)]
    again.write({"kind": "eval", "step": 5, "loss": 2.0})
    assert again.evaluated(5) and not again.evaluated(4)
    assert [line["step"] for line in read_metrics(path)] == [1, 2, 3, 4, 5, 5]
    assert final_metrics(path, 5) == {"kind": "eval", "step": 5, "loss": 2.0}
    assert final_metrics(path, 6) is None


def test_a_fresh_run_starts_empty(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps(train_line(1)) + "\n")
    assert MetricsFile(path, None).lines == [] == read_metrics(path)


@pytest.mark.parametrize("extra", ["", "later lines", "a line once more", "half a line"])
def test_the_lines_of_a_checkpoint_are_found_again(tmp_path, extra):
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path, None)
    for step in range(1, 6):
        file.write({**train_line(step), "text": "ä\u2028", "large": 1e300, "lost": math.nan})
    facts, lines = {"step": 5, **file.facts()}, list(read_metrics(path))
    whole = path.read_bytes()
    more = {"later lines": b'{"kind": "train", "step": 6}\n', "a line once more": whole.splitlines(keepends=True)[2]}
    path.write_bytes(whole + more.get(extra, b'{"ki' if extra else b""))
    again = MetricsFile(path, 5, facts)
    assert again.lines == lines and path.read_bytes() == whole and again.facts() == file.facts()
    again.write({"kind": "eval", "step": 5, "loss": 1.0})
    require_lines(path, facts)
    require_lines(path, {"step": 5, **again.facts()})
    with pytest.raises(UserError, match="does not begin with the 6 lines that the checkpoint of step 5 was saved with"):
        path.write_bytes(whole)
        require_lines(path, {"step": 5, **again.facts()})


@pytest.mark.parametrize(
    "metrics", [[], {"lines": 1}, {"lines": "1", "sha256": "0"}, {"lines": -1, "sha256": "0"}, {"lines": 10**30, "sha256": "0"}]
)
def test_a_damaged_note_of_the_lines_is_one_line_too(tmp_path, metrics):
    MetricsFile(tmp_path / "metrics.jsonl", None).write(train_line(1))
    with pytest.raises(UserError, match="put the file back from a copy, or remove it"):
        require_lines(tmp_path / "metrics.jsonl", {"step": 1, "metrics": metrics})


def test_a_damaged_line_is_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps(train_line(1)) + "\nnonsense\n" + json.dumps(train_line(2)) + "\n")
    with pytest.raises(UserError, match="line 2: not a line of metrics"):
        MetricsFile(path, 2)
    for line in ("[" * 100_000, '{"kind": [], "step": 1}', '{"kind": "end"}', "{}", "3"):
        path.write_text(line + "\n")
        with pytest.raises(UserError, match="line 1: not a line of metrics"):
            final_metrics(path, 2)


def test_only_the_writer_touches_the_file(tmp_path):
    file = MetricsFile(tmp_path / "metrics.jsonl", None, write=False)
    file.write(train_line(1))
    assert file.lines == [train_line(1)] and not file.path.exists()


def test_infinite_numbers_stay_json(tmp_path):
    file = MetricsFile(tmp_path / "metrics.jsonl", None)
    file.write({"kind": "eval", "step": 1, "perplexity": math.inf})
    assert read_metrics(file.path) == [{"kind": "eval", "step": 1, "perplexity": None}]


def test_what_a_full_disk_does_not_take_is_written_later(tmp_path, monkeypatch):
    """The disk takes ten bytes of a line, then nothing; nothing is lost, nothing is there twice, and it is said once."""
    said, write = [], os.write
    file = MetricsFile(tmp_path / "metrics.jsonl", None, say=said.append)
    file.write(train_line(1))
    space = [10]

    def little(descriptor: int, data: bytes) -> int:
        if not space[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = write(descriptor, data[: space[0]])
        space[0] -= written
        return written

    monkeypatch.setattr(os, "write", little)
    file.write(train_line(2))
    file.write(train_line(3))
    assert not file.sync() and read_metrics(file.path) == [train_line(1)]
    assert said == [f"{file.path}: cannot be written (No space left on device); its lines are kept in memory; training goes on"]
    space[0] = 10_000
    file.write(train_line(4))
    assert file.sync() and read_metrics(file.path) == file.lines == [train_line(step) for step in range(1, 5)]
    file.close()
    assert len(said) == 1


def test_the_best_evaluation_and_the_end_of_a_run(tmp_path):
    file = MetricsFile(tmp_path / "metrics.jsonl", None)
    for step, loss in ((0, 1.0), (10, 4.0), (20, 3.0), (30, math.nan), (40, 3.0)):
        file.write({"kind": "eval", "step": step, "loss": loss})
    lines = read_metrics(file.path)
    assert losses(lines) == {10: 4.0, 20: 3.0, 40: 3.0} and best_evaluation(lines)["step"] == 20
    assert best_evaluation(lines[:1]) is None and final_metrics(file.path, 100) is None
    file.write({"kind": "stop", "step": 40, "best_step": 20, "best_loss": 3.0})
    assert final_metrics(file.path, 100)["step"] == 40
    file.write({"kind": "end", "step": 40, "exported_step": 20})
    assert final_metrics(file.path, 100)["step"] == 20
