"""A trace of some updates, for TensorBoard's profiler and Perfetto."""

import re
from pathlib import Path
from typing import Any

import jax

from wechsel_jax.errors import UserError

_STEPS = re.compile(r"(\d{1,18}):(\d{1,18})")


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
            jax.profiler.start_trace(str(self.directory))
            self._tracing = True
        self._step = jax.profiler.StepTraceAnnotation("train", step_num=step + 1)
        self._step.__enter__()

    def after(self, step: int, wait_for: Any = None) -> None:
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
