"""Compiling ahead: the memory of a step, what to do where there is too little, and programs that outlive the process."""

import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wechsel_jax.errors import UserError
from wechsel_jax.training import compilation, one_phase, train
from wechsel_jax.training.compilation import compile_step, compiled_programs, memory_line

SIZE = 64 * 64 * 4
ADVICE = {"batch_size": 48, "accumulation": 2, "model.remat": "none", "mesh.fsdp": 1, "batch_devices": 8}


@functools.partial(jax.jit, donate_argnums=0)
def toy_step(state, batch, learning_rate):
    """A step whose state is two matrices, and which keeps as many more as the batch has rows."""
    activations = jnp.sin(batch["rows"][:, None, None] * state["w"])
    moved = state["w"] - learning_rate * jnp.sum(jnp.cumsum(activations, axis=0), axis=0)
    return {"w": moved, "m": state["m"] + moved}, {"loss": jnp.sum(moved)}


def toy_arguments(rows=3):
    return {"w": jnp.ones((64, 64)), "m": jnp.zeros((64, 64))}, {"rows": jnp.ones(rows)}, np.float32(0.1)


def test_the_state_is_updated_in_place_and_the_numbers_add_up():
    state, *others = toy_arguments()
    compiled, memory = compile_step(toy_step, state, *others, advice={})
    assert memory["aliased"] == 2 * SIZE
    assert 2 * SIZE < memory["arguments"] < 2 * SIZE + 1000
    assert memory["outputs"] < 2 * SIZE + 1000
    assert memory["peak"] >= memory["arguments"] + memory["outputs"] - memory["aliased"]
    assert memory["peak"] < memory["arguments"] + memory["temporary"] + 1000
    old = state["w"]
    state, metrics = compiled(state, *others)
    assert old.is_deleted()
    assert float(metrics["loss"]) == pytest.approx(float(state["w"].sum()))
    assert "32.0 KiB of parameters and optimizer state" in memory_line(memory)


def test_more_activations_show_as_temporary_memory():
    few, many = (compile_step(toy_step, *toy_arguments(rows), advice={})[1] for rows in (2, 50))
    assert many["temporary"] - few["temporary"] >= 48 * SIZE
    assert many["aliased"] == few["aliased"]


def test_too_little_memory_is_said_before_the_first_step_with_what_to_do(monkeypatch):
    monkeypatch.setattr(compilation, "_device_limit", lambda: 3 * SIZE)
    state, *others = toy_arguments()
    with pytest.raises(UserError) as error:
        compile_step(toy_step, state, *others, advice=ADVICE)
    message = str(error.value)
    assert "\n" not in message
    assert "a device has 48.0 KiB" in message and "of activations and gradients" in message
    places = [
        message.index(text)
        for text in ("batch_size (now 48; a multiple of 16)", "accumulation=6", "model.remat=dots", "mesh.fsdp=8")
    ]
    assert places == sorted(places)
    assert not state["w"].is_deleted()
    monkeypatch.setattr(compilation, "_device_limit", lambda: 100 * SIZE)
    compile_step(toy_step, state, *others, advice=ADVICE)


def test_advice_leaves_out_what_is_done_already(monkeypatch):
    monkeypatch.setattr(compilation, "_device_limit", lambda: 1)
    settings = {"batch_size": 8, "accumulation": 1, "model.remat": "full", "mesh.fsdp": 8, "batch_devices": 8}
    with pytest.raises(UserError) as error:
        compile_step(toy_step, *toy_arguments(), advice=settings)
    for name in ("batch_size", "accumulation", "remat", "fsdp"):
        assert name not in str(error.value)
    assert "smaller model" in str(error.value)


class Failing:
    """A step that runs out of memory when it is compiled, or when it runs."""

    def __init__(self, at, text="RESOURCE_EXHAUSTED: Out of memory allocating 17179869184 bytes.\nmore lines"):
        self.at, self.error = at, jax.errors.JaxRuntimeError(text)

    def lower(self, *_):
        return self

    def compile(self):
        if self.at == "compile":
            raise self.error
        return self

    def memory_analysis(self):
        return toy_step.lower(*toy_arguments()).compile().memory_analysis()

    def __call__(self, *_):
        raise self.error


def test_the_devices_own_out_of_memory_is_explained():
    with pytest.raises(UserError, match=r"allocating 17179869184 bytes.*batch_size"):
        compile_step(Failing("compile"), *toy_arguments(), advice=ADVICE)
    compiled, _ = compile_step(Failing("run"), *toy_arguments(), advice=ADVICE)
    with pytest.raises(UserError, match=r"on each device.*allocating 17179869184 bytes.*batch_size"):
        compiled(1, 2, 3)


def test_other_errors_stay_what_they_are():
    compiled, _ = compile_step(Failing("run", "INTERNAL: broken"), *toy_arguments(), advice=ADVICE)
    with pytest.raises(jax.errors.JaxRuntimeError, match="broken"):
        compiled(1, 2, 3)


PROGRAM = """
import sys, jax, jax.numpy as jnp
import jax.monitoring
from wechsel_jax.training.compilation import compile_step, compiled_programs
hits = []
jax.monitoring.register_event_listener(lambda name, **_: hits.append(name))
step = jax.jit(lambda state, batch, rate: (state + rate * jnp.sin(batch["x"]), {"loss": jnp.sum(state)}), donate_argnums=0)
with compiled_programs(sys.argv[1]):
    state, *others = jnp.zeros(7), {"x": jnp.ones(7)}, jnp.float32(2.0)
    hits.clear()
    compiled, memory = compile_step(step, state, *others, advice={})
    print(sum(name.endswith("cache_hits") for name in hits), sum(name.endswith("cache_misses") for name in hits))
    state, _ = compiled(state, *others)
    print(float(state[0]), memory["aliased"])
"""


def test_a_directory_for_programs_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    wrong = r"compilation_cache: .*file: cannot be made or written .*; expected a directory"
    with pytest.raises(UserError, match=wrong), compiled_programs(str(tmp_path / "file")):
        pass


@pytest.mark.slow
def test_a_second_process_compiles_nothing(tmp_path):
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    first, second = (
        subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split() for _ in range(2)
    )
    assert first[:2] == ["0", "1"] and second[:2] == ["1", "0"]
    assert first[2:] == second[2:] and first[3] == "28"


@pytest.mark.slow
def test_another_seed_takes_the_same_step(make_config, tmp_path):
    for seed in (0, 1):
        changes = {"steps": 2, "eval_every": 2, "checkpoint_every": 2, "log_every": 1, "phases": one_phase(warmup=0.0)}
        config = make_config(**changes, seed=seed, compilation_cache=str(tmp_path / "compiled"))
        train(config, tmp_path / str(seed))
    assert len(list((tmp_path / "compiled").glob("jit_train_step-*-cache"))) == 1
