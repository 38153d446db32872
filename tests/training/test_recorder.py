"""What a run writes down of its updates."""

import jax
import jax.numpy as jnp
import pytest

from wechsel_jax.errors import UserError
from wechsel_jax.training import recorder as module
from wechsel_jax.training.metrics import MetricsFile
from wechsel_jax.training.progress import Clock, Progress
from wechsel_jax.training.recorder import Recorder


@pytest.fixture
def recorder(make_config, tmp_path):
    """Of a run of 20 steps, a line every second one; one update may be skipped."""
    metrics = MetricsFile(tmp_path / "metrics.jsonl", None)

    def refuse(line, skipped):
        return UserError(f"not finite at {line['step']} after {skipped}")

    config = make_config(skip_nonfinite=1)
    clock = Clock(lambda first, end: 128 * (end - first), [])
    return Recorder(config, metrics, Progress(20, quiet=True), clock, lambda rate: None, refuse)


def measured(loss: float, **more: float) -> dict[str, jax.Array]:
    numbers = {"loss": loss, "weight": 100.0, "gradient_norm": 2.0, "finite": True, **more}
    return {name: jnp.asarray(value) for name, value in numbers.items()}


def test_the_numbers_of_an_update_are_read_at_one_time(recorder, monkeypatch):
    """And a step late: each read waits for the device."""
    reads, device_get = [], jax.device_get
    monkeypatch.setattr(module.jax, "device_get", lambda tree: reads.append(set(tree)) or device_get(tree))
    for way in ("__float__", "__bool__", "item"):
        monkeypatch.setattr(type(jnp.zeros(())), way, None)
    recorder.update(1, "all", 1e-3, measured(3.0, **{"gradient_norm/tokens": 1.5}))
    assert reads == [] and recorder.metrics.lines == []
    recorder.update(2, "all", 1e-3, measured(2.5))
    assert reads == [{"loss", "weight", "gradient_norm", "finite", "gradient_norm/tokens"}]
    recorder.read()
    recorder.read()
    assert len(reads) == 2
    first, second = recorder.metrics.lines
    assert (first["loss"], first["gradient_norm"], first["gradient_norm/tokens"], second["loss"]) == (3.0, 2.0, 1.5, 2.5)
    assert "weight" not in first and "finite" not in first


@pytest.mark.parametrize("bad", [{"loss": float("nan")}, {"gradient_norm": float("inf")}, {"finite": False}])
def test_an_update_that_is_not_finite_is_written_as_skipped(recorder, bad):
    for step in (3, 5):
        recorder.update(step, "all", 1e-3, measured(**{"loss": 3.0, **bad}))
    assert [(line["kind"], line["step"]) for line in recorder.metrics.lines] == [("skipped", 3)]
    with pytest.raises(UserError, match=r"not finite at 5 after \[3\]"):
        recorder.read()
