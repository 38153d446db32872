"""Traces of some updates."""

import jax
import jax.numpy as jnp
import pytest

from wechsel_jax.errors import UserError
from wechsel_jax.training import default_config, validate
from wechsel_jax.training.devices import Profiler, profiled_steps


@pytest.mark.parametrize("text", ["100", "100:", ":110", "110:100", "5:5", "-1:3", "a:b", "1:2:3", "1.5:2"])
def test_a_mistake_is_one_line(text, tmp_path):
    with pytest.raises(UserError, match=r'profile_steps: is .*; expected "FIRST:LAST"'):
        Profiler(text, tmp_path)


def test_steps_are_read():
    assert profiled_steps("100:110") == (100, 110) and profiled_steps("") is None


def test_updates_that_the_run_does_not_make_are_refused():
    config = default_config()
    config.steps, config.profile_steps = 20, "20:30"
    with pytest.raises(UserError, match="profile_steps: is '20:30', and the run ends after 20 steps"):
        validate(config)
    # Of epochs only the data says how many steps they are.
    with pytest.raises(UserError, match="model: "):
        validate(config, steps_known=False)


@pytest.mark.slow
@pytest.mark.parametrize("begins", [0, 4])
def test_the_updates_that_were_asked_for_are_traced(tmp_path, monkeypatch, begins):
    """From step 0, and by a run that goes on in the middle of them."""
    marked, annotation = [], jax.profiler.StepTraceAnnotation

    def noted(name: str, step_num: int):
        marked.append(step_num)
        return annotation(name, step_num=step_num)

    monkeypatch.setattr(jax.profiler, "StepTraceAnnotation", noted)
    update = jax.jit(lambda x: x @ x)
    x = jnp.eye(8)
    profiler = Profiler("3:6", tmp_path)
    for step in range(begins, 9):
        profiler.before(step)
        x = update(x)
        profiler.after(step + 1, x)
        assert bool(list(tmp_path.rglob("*.xplane.pb"))) == (step + 1 >= 6)
    profiler.close()
    assert marked == [step for step in (4, 5, 6) if step > begins]
    (trace,) = tmp_path.rglob("*.xplane.pb")
    assert (tmp_path / "profile") in trace.parents and b"train" in trace.read_bytes()
    # Calls of Python are not followed, which crashes where threads end.
    assert b"noted" not in trace.read_bytes()


def test_a_run_that_ends_within_ends_the_trace(tmp_path):
    profiler = Profiler("0:100", tmp_path)
    profiler.before(0)
    profiler.after(1, ())
    profiler.close()
    assert list(tmp_path.rglob("*.xplane.pb"))


def test_nothing_is_traced_unless_asked_for(tmp_path):
    profiler = Profiler("", tmp_path)
    profiler.before(0)
    profiler.after(1, ())
    profiler.close()
    assert not list(tmp_path.iterdir())
