"""The step of a phase, compiled ahead of its first update: the memory it takes, what to do where that ends, and the cache."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from wechsel_jax.errors import UserError, one_line

_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def compile_step(
    train_step: Callable,
    *arguments: Any,
    advice: Mapping[str, Any],
) -> tuple[Callable[..., tuple[Any, dict[str, jax.Array]]], dict[str, int]]:
    """Compiles a step without running it, so that too little memory shows before the first update.

    Args:
      train_step: what `make_train_step` returns.
      arguments: state, batch, learning rate and key of one step, or their shapes with shardings.
      advice: current values of the settings that decide about memory, by name: "batch_size", "accumulation", "block_length",
        "model.remat", "mesh.fsdp", and "batch_devices", how many devices share the rows. Absent ones are not advised about.

    Returns:
      The compiled step, (*arguments) -> (state, metrics), and the bytes of one device that it takes:
      {"arguments" (state and batch), "outputs", "temporary", "aliased" (of the arguments whose memory the outputs take over),
      "peak"}.

    Raises:
      UserError: a step needs more memory than a device has. The compiled step raises it too, where memory ends as it runs.
    """
    limit = _device_limit()
    try:
        compiled = train_step.lower(*arguments).compile()
    except jax.errors.JaxRuntimeError as error:
        raise _explained(error, None, limit, advice) from error
    memory = step_memory(compiled)
    if limit is not None and memory["peak"] > limit:
        raise UserError(_message(memory, limit, advice))

    def run(*arguments: Any) -> tuple[Any, dict[str, jax.Array]]:
        try:
            return compiled(*arguments)
        except jax.errors.JaxRuntimeError as error:
            raise _explained(error, memory, limit, advice) from error

    return run, memory


@contextlib.contextmanager
def enough_memory(advice: Mapping[str, Any]) -> Iterator[None]:
    """Raises `UserError` where the block runs out of memory, of a device or of the host; `advice` as for `compile_step`."""
    try:
        yield
    except Exception as error:
        if isinstance(error, UserError) or not out_of_memory(error):
            raise
        said = one_line(error).rstrip(".")
        has = f"memory: this run needs more than there is; the machine says: {said}; expected settings that fit"
        raise UserError(f"{has}; {', or '.join(_remedies(advice))}") from error


def out_of_memory(error: Exception) -> bool:
    """Whether an error, of XLA, numpy or another library, says that memory has run out."""
    text = str(error)
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in text or "out of memory" in text.lower()


@contextlib.contextmanager
def compiled_programs(directory: str) -> Iterator[None]:
    """Keeps compiled programs in a directory while the block runs; "" changes nothing.

    Raises:
      UserError: the directory cannot be made or written.
    """
    if not directory:
        yield
        return
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()
    except OSError as error:
        raise UserError(
            f"compilation_cache: {directory}: cannot be made or written ({error.strerror}); expected a directory; name another "
            'one, or "" for none'
        ) from None
    settings = {"jax_compilation_cache_dir": str(Path(directory).resolve()), "jax_persistent_cache_min_compile_time_secs": 0.0}
    old = {name: getattr(jax.config, name) for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    # JAX opens the directory at the first compilation and then stays with it.
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        for name, value in old.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()


def step_memory(compiled: Any) -> dict[str, int]:
    """Returns the bytes of one device that a compiled program takes; see `compile_step`. All 0 where a backend does not say."""
    found = compiled.memory_analysis()
    names = {"arguments": "argument", "outputs": "output", "temporary": "temp", "aliased": "alias"}
    memory = {name: int(getattr(found, f"{theirs}_size_in_bytes", 0)) for name, theirs in names.items()}
    # Some backends' own figure of the peak leaves the temporary memory out.
    held = memory["arguments"] + memory["outputs"] - memory["aliased"]
    return memory | {"peak": held + memory["temporary"]}


def memory_line(memory: Mapping[str, int]) -> str:
    """Says in one line what a step takes."""
    state = memory["aliased"]
    return (
        f"a step takes {_size(memory['peak'])} of a device's memory: {_size(state)} of parameters and optimizer state, updated "
        f"in place, {_size(memory['temporary'])} of activations and gradients"
    )


def _device_limit() -> int | None:
    """Bytes of memory of one device; None where it does not say (CPUs)."""
    statistics = jax.local_devices()[0].memory_stats()
    return int(statistics["bytes_limit"]) if statistics and "bytes_limit" in statistics else None


def _explained(error: Exception, memory: Mapping[str, int] | None, limit: int | None, advice: Mapping[str, Any]) -> Exception:
    """The error of a user whose model is too large, or the error itself."""
    if not out_of_memory(error):
        return error
    return UserError(_message(memory, limit, advice, one_line(error)))


def _message(memory: Mapping[str, int] | None, limit: int | None, advice: Mapping[str, Any], device_says: str = "") -> str:
    needs = "a step needs more memory than a device has"
    if memory is not None:
        rest = memory["peak"] - memory["temporary"]
        needs = (
            f"a step needs {_size(memory['peak'])} on each device ({_size(rest)} of parameters, optimizer state and batch, "
            f"{_size(memory['temporary'])} of activations and gradients)"
        )
    has = "" if limit is None else f"; a device has {_size(limit)}"
    said = f"; the device says: {device_says}" if device_says else ""
    return f"memory: {needs}{has}{said}; expected a step that fits; {', or '.join(_remedies(advice))}"


def _remedies(advice: Mapping[str, Any]) -> list[str]:
    """What to change, in words; what changes the result least costs most, so the user chooses."""
    # Every part of a batch is shared out evenly: what is advised must be, too.
    devices, parts = advice.get("batch_devices", 1), advice.get("accumulation", 1)
    rows = advice.get("batch_size", 1)
    remedies = []
    if rows > (least := parts * devices):
        remedies.append(f"lower batch_size (now {rows}{f'; a multiple of {least}' if least > 1 else ''})")
    if more := next((n for n in range(2 * parts, rows + 1) if rows % (n * devices) == 0), 0):
        remedies.append(f"set accumulation={more} (an update from smaller parts)")
    if advice.get("block_length", 0) > 2:
        remedies.append(f"lower block_length (now {advice['block_length']})")
    if advice.get("model.remat") in ("none", "dots"):
        remat = "dots" if advice["model.remat"] == "none" else "full"
        remedies.append(f"set model.remat={remat} (computes more to keep less)")
    if 0 < advice.get("mesh.fsdp", 0) < devices:
        remedies.append(f"set mesh.data=1 and mesh.fsdp={devices} (parameters and optimizer state are split over the devices)")
    return remedies or ["use a device with more memory, or a smaller model"]


def _size(count: int) -> str:
    for unit, name in _UNITS:
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} bytes"
