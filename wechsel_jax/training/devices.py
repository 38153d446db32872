"""What the devices can do at most, a trace of what they do, and what a CPU needs to be fast."""

import ctypes
import re
from pathlib import Path
from typing import Any

import jax

from wechsel_jax.errors import UserError

# Dense bf16 FLOP/s of one JAX device, from the vendors' data sheets; a JAX device is one core on TPU v2 and v3, one chip later.
_PEAK = (
    ("tpu v2", 22.5e12),
    ("tpu v3", 61.5e12),
    ("tpu v4 lite", 138e12),
    ("tpu v4", 275e12),
    ("tpu v5 lite", 197e12),
    ("tpu v5e", 197e12),
    ("tpu v5p", 459e12),
    ("tpu v5", 459e12),
    ("tpu v6 lite", 918e12),
    ("tpu v6e", 918e12),
    ("h200", 989e12),
    ("h100 pcie", 756e12),
    ("h100", 989e12),
    ("a100", 312e12),
)
_STEPS = re.compile(r"(\d{1,18}):(\d{1,18})")


def peak_flops(device_kind: str) -> float | None:
    """Returns the dense bf16 FLOP/s of a device, None where it is not known (CPUs).

    Args:
      device_kind: as `jax.Device.device_kind` spells it.
    """
    kind = device_kind.lower()
    return next((peak for name, peak in _PEAK if name in kind), None)


def utilisation(flops_per_token: float, tokens_per_second: float, devices: list[jax.Device]) -> float | None:
    """Model FLOPs utilisation (Chowdhery et al., 2022, appendix B): what the model's matrix products use of the devices' peak.

    Args:
      flops_per_token: forward and backward.
      tokens_per_second: of all devices together.
      devices: all of one kind.
    """
    peak = peak_flops(devices[0].device_kind)
    return None if peak is None else flops_per_token * tokens_per_second / (peak * len(devices))


def keep_freed_memory() -> bool:
    """Makes this process keep the memory that it frees, for its next step; call it once, before training on a CPU.

    There XLA takes the memory of a step from malloc, and glibc gives large pieces back to the system after each step, so that
    the next one pays for every page again: a tenth of the time of a small model. The process then never shrinks.

    Returns:
      Whether the system's malloc can do this (glibc's can).
    """
    # M_TRIM_THRESHOLD = never, M_MMAP_MAX = no piece apart from the heap, M_ARENA_MAX = one heap; numbers of glibc's malloc.h.
    settings = ((-1, -1), (-4, 0), (-8, 1))
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    return all(mallopt(name, value) == 1 for name, value in settings)


def profiled_steps(text: str) -> tuple[int, int] | None:
    """Reads "100:110": the updates after step 100 up to step 110, ten of them; None where the text is empty.

    Raises:
      UserError: it is something else.
    """
    if not text:
        return None
    match = _STEPS.fullmatch(text)
    if match is None or int(match[1]) >= int(match[2]):
        raise UserError(f'profile_steps: is {text!r}; expected "FIRST:LAST" with FIRST below LAST, such as 100:110, or nothing')
    return int(match[1]), int(match[2])


class Profiler:
    """Traces the updates that the settings name into `workdir/profile`.

    A run that goes on in the middle of them traces the rest. The trace ends when the devices have done the last update.

    Args:
      steps: see `profiled_steps`.
      workdir: of the run.

    Raises:
      UserError: `steps` is malformed.
    """

    def __init__(self, steps: str, workdir: str | Path):
        self._steps = profiled_steps(steps)
        self.directory = Path(workdir) / "profile"
        self._tracing = False
        self._step: Any = None

    def before(self, step: int) -> None:
        """To be called before update number `step` + 1 is given to the devices."""
        if self._steps is None or not self._steps[0] <= step < self._steps[1]:
            return
        if not self._tracing:
            self.directory.mkdir(parents=True, exist_ok=True)
            options = jax.profiler.ProfileOptions()
            # Without the calls of Python: JAX 0.10, following them while a checkpoint was being written, ended the process with
            # a segmentation fault in 2 of 660 traces, and in none of 660 without.
            options.python_tracer_level = 0
            jax.profiler.start_trace(str(self.directory), profiler_options=options)
            self._tracing = True
        self._step = jax.profiler.StepTraceAnnotation("train", step_num=step + 1)
        self._step.__enter__()

    def after(self, step: int, wait_for: Any) -> None:
        """To be called once update number `step` has been given to the devices.

        Args:
          step: updates made so far.
          wait_for: arrays of that update, for which the end of the trace waits.
        """
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None
        if self._tracing and step >= self._steps[1]:
            jax.block_until_ready(wait_for)
            self.close()

    def close(self) -> None:
        """Ends a trace that is being made."""
        if self._tracing:
            self._tracing = False
            jax.profiler.stop_trace()
