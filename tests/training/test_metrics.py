import json
import math

import pytest

from wechsel_jax.errors import UserError
from wechsel_jax.training.metrics import MetricsFile, final_metrics, read_metrics


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


def test_a_damaged_line_is_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps(train_line(1)) + "\nnonsense\n" + json.dumps(train_line(2)) + "\n")
    with pytest.raises(UserError, match="line 2: not a line of metrics"):
        MetricsFile(path, 2)


def test_only_the_writer_touches_the_file(tmp_path):
    file = MetricsFile(tmp_path / "metrics.jsonl", None, write=False)
    file.write(train_line(1))
    assert file.lines == [train_line(1)] and not file.path.exists()


def test_infinite_numbers_stay_json(tmp_path):
    file = MetricsFile(tmp_path / "metrics.jsonl", None)
    file.write({"kind": "eval", "step": 1, "perplexity": math.inf})
    assert read_metrics(file.path) == [{"kind": "eval", "step": 1, "perplexity": None}]
