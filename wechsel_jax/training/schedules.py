"""Phases of training as data: how long each lasts, what it trains, and its learning rate at every step."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from wechsel_jax.errors import UserError

DECAYS = ("linear", "cosine", "constant")
FIELDS = {"name", "fraction", "steps", "trainable", "warmup", "decay", "peak"}


@dataclasses.dataclass(frozen=True)
class Phase:
    """A stretch of steps with its own trainable parameters, warm-up and optimizer state.

    Attributes:
      name: what metrics call it.
      start: the first step, counted over the whole run from 0.
      steps: how many steps it lasts.
      trainable: "all", "tokens", "embeddings" or a regex over "/"-joined parameter paths.
      warmup_steps: steps from 0 to the peak.
      decay: "linear" (to 0 after the last step), "cosine" (likewise) or "constant".
      peak: highest learning rate.
    """

    name: str
    start: int
    steps: int
    trainable: str
    warmup_steps: int
    decay: str
    peak: float

    @property
    def end(self) -> int:
        """One more than the last step."""
        return self.start + self.steps

    def learning_rate(self, step: int) -> float:
        """Learning rate of the update number `step` of this phase, counted from 0.

        Warm-up is peak * step / warmup_steps, so that the first update has rate 0, as in optax's and Hugging Face's
        schedules; the decay would reach 0 at step `steps`, one after the last.
        """
        if step < self.warmup_steps:
            return self.peak * step / self.warmup_steps
        if self.decay == "constant":
            return self.peak
        done = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        if self.decay == "linear":
            return self.peak * max(0.0, 1.0 - done)
        return self.peak * 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))


def one_phase(warmup: float = 0.1, decay: str = "linear") -> tuple[dict[str, Any], ...]:
    """All parameters, warm-up over a fraction of the steps, then decay (Minixhofer et al., 2022, appendix B)."""
    return ({"name": "all", "fraction": 1.0, "trainable": "all", "warmup": warmup, "decay": decay, "peak": 1.0},)


def trans_inner_phases(first: float = 0.1, warmup: float = 0.1) -> tuple[dict[str, Any], ...]:
    """TransInner's two phases: the new tokens alone, then everything (Minixhofer et al., 2022, section 4).

    The papers leave open what follows the first warm-up; here the whole first phase is warm-up.

    Args:
      first: fraction of all steps that trains the token table and the head's bias only.
      warmup: fraction of the second phase from 0 to the peak; then linear to 0.
    """
    return (
        {"name": "tokens", "fraction": first, "trainable": "tokens", "warmup": 1.0, "decay": "constant", "peak": 1.0},
        {"name": "all", "fraction": 1.0 - first, "trainable": "all", "warmup": warmup, "decay": "linear", "peak": 1.0},
    )


def make_phases(descriptions: Sequence[Mapping[str, Any]], total_steps: int, peak_learning_rate: float) -> list[Phase]:
    """Lays phases one behind the other over the steps of a run.

    Args:
      descriptions: dictionaries with "name" and "fraction" (of `total_steps`) or "steps", and as a choice "trainable" ("all"),
        "warmup" (0.0, fraction of the phase), "decay" ("linear") and "peak" (1.0, multiplies `peak_learning_rate`).
      total_steps: of the whole run; the phases must fill it.
      peak_learning_rate: of phases with peak 1.

    Raises:
      UserError: a field is unknown, missing or impossible, or the phases do not add up to `total_steps`.
    """
    if not descriptions:
        raise UserError("phases: there is none; expected at least one phase, e.g. wechsel_jax.training.one_phase()")
    phases: list[Phase] = []
    fractions, start = 0.0, 0
    for i, description in enumerate(descriptions):
        where = f"phases[{i}]"
        values = _checked(where, description)
        if "fraction" in values:
            # Ends, not lengths, are rounded, so that fractions that sum to 1 fill the run whatever its length.
            fractions += values["fraction"]
            end = round(fractions * total_steps)
        else:
            end = start + values["steps"]
            fractions += values["steps"] / total_steps
        steps = end - start
        if steps < 1:
            raise UserError(f"{where}: lasts {steps} of {total_steps} steps; expected at least 1; raise fraction or steps")
        warmup = round(values["warmup"] * steps)
        peak = values["peak"] * peak_learning_rate
        phases.append(Phase(values["name"], start, steps, values["trainable"], warmup, values["decay"], peak))
        start = end
    if start != total_steps:
        raise UserError(f"phases: they last {start} steps together; expected steps={total_steps}; fractions must sum to 1")
    return phases


def phase_at(phases: Sequence[Phase], step: int) -> int:
    """Returns the index of the phase that makes update number `step`; the last one for a finished run."""
    return next((i for i, phase in enumerate(phases) if step < phase.end), len(phases) - 1)


def _checked(where: str, description: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(description, Mapping):
        raise UserError(f"{where}: is {description!r}; expected a dictionary with {', '.join(sorted(FIELDS))}")
    values = {"name": f"phase {where[7:-1]}", "trainable": "all", "warmup": 0.0, "decay": "linear", "peak": 1.0, **description}
    unknown = sorted(set(values) - FIELDS)
    if unknown:
        raise UserError(f"{where}.{unknown[0]}: no such field; expected {', '.join(sorted(FIELDS))}")
    if ("fraction" in values) == ("steps" in values):
        raise UserError(f"{where}: expected either fraction or steps")
    for name, low, high in (("fraction", 0.0, 1.0), ("warmup", 0.0, 1.0), ("peak", 0.0, math.inf)):
        value = values.get(name, 0.0)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise UserError(f"{where}.{name}: is {value!r}; expected a number from {low:g} to {high:g}")
    if "steps" in values and (isinstance(values["steps"], bool) or not isinstance(values["steps"], int)):
        raise UserError(f"{where}.steps: is {values['steps']!r}; expected a whole number")
    for name in ("name", "trainable"):
        if not isinstance(values[name], str) or not values[name]:
            raise UserError(f"{where}.{name}: is {values[name]!r}; expected a text")
    if values["decay"] not in DECAYS:
        raise UserError(f"{where}.decay: is {values['decay']!r}; expected one of {', '.join(DECAYS)}")
    return values
