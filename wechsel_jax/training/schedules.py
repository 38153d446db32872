"""Phases of training as data: how long each lasts, what it trains, and its learning rate at every step."""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from wechsel_jax.errors import UserError

DECAYS = ("linear", "cosine", "sqrt", "constant")
NAMED = ("all", "tokens", "embeddings")
_DEFAULTS = {"trainable": "all", "layers": "", "decay": "linear", "peak": 1.0, "floor": 0.0, "decay_fraction": 1.0}
_DEFAULTS |= {"keep_optimizer": False}
FIELDS = {"name", "fraction", "steps", "warmup", "warmup_steps", *_DEFAULTS}
_LAYERS = re.compile(r"(\d{0,9}:\d{0,9})?")


@dataclasses.dataclass(frozen=True)
class Phase:
    """A stretch of steps with its own trainable parameters, warm-up and optimizer state.

    Attributes:
      name: what metrics call it.
      start: the first step, counted over the whole run from 0.
      steps: how many steps it lasts.
      trainable: "all", "tokens", "embeddings" or a regex over "/"-joined parameter paths.
      warmup_steps: steps from 0 to the peak.
      decay: "linear" (to the floor after the last step), "cosine", "sqrt" (1 - root of what is done; likewise) or "constant".
      peak: highest learning rate.
      floor: learning rate that the decay ends at.
      layers: which of the stacked layers train, "first:end" as Python slices them ("6:", ":6"); "" for all.
      keep_optimizer: whether parameters that the phase before trained keep their optimizer state; otherwise it starts at 0.
      stable_steps: steps after which the decay begins, where the warm-up is over; until then the rate stays at the peak.
    """

    name: str
    start: int
    steps: int
    trainable: str
    warmup_steps: int
    decay: str
    peak: float
    floor: float = 0.0
    layers: str = ""
    keep_optimizer: bool = False
    stable_steps: int = 0

    @property
    def end(self) -> int:
        """One more than the last step."""
        return self.start + self.steps

    def learning_rate(self, step: int) -> float:
        """Learning rate of the update number `step` of this phase, counted from 0.

        Warm-up is peak * step / warmup_steps, so that the first update has rate 0, as in optax's and Hugging Face's
        schedules; the decay would reach the floor at step `steps`, one after the last.
        """
        if step < self.warmup_steps:
            return self.peak * step / self.warmup_steps
        stable = max(self.warmup_steps, self.stable_steps)
        if self.decay == "constant" or step < stable:
            return self.peak
        done = (step - stable) / max(1, self.steps - stable)
        forms = {"linear": 1.0 - done, "cosine": 0.5 * (1.0 + math.cos(math.pi * done)), "sqrt": 1.0 - math.sqrt(done)}
        return self.floor + (self.peak - self.floor) * forms[self.decay]


def one_phase(warmup: float = 0.1, decay: str = "linear", trainable: str = "all") -> tuple[dict[str, Any], ...]:
    """Warm-up over a fraction of the steps, then decay (linear: Minixhofer et al., 2022, appendix B; cosine: SALT, appendix C).

    With `trainable="embeddings"` everything else stays frozen to the end (Minixhofer et al., v1, section 5.4.1).
    """
    name = trainable if trainable in NAMED else "chosen"
    return ({"name": name, "fraction": 1.0, "trainable": trainable, "warmup": warmup, "decay": decay, "peak": 1.0},)


def stable_phase(warmup_steps: int, decay: str = "sqrt", decay_fraction: float = 0.2) -> tuple[dict[str, Any], ...]:
    """Warm-up, the highest rate, and a decay over the last fraction of the steps (Hu et al., 2024, MiniCPM, section 4).

    The steps before the decay do not depend on the length of the run, so that runs of every length begin from one:
    `config.fork`. Of the forms of the decay, 1 - root was the best of Hägele et al. (2024, section 3).
    """
    described = {"warmup_steps": warmup_steps, "decay": decay, "decay_fraction": decay_fraction}
    return ({"name": "all", "fraction": 1.0, "trainable": "all", "peak": 1.0, **described},)


def trans_inner_phases(first: float = 0.1, warmup: float = 0.1, trainable: str = "tokens") -> tuple[dict[str, Any], ...]:
    """TransInner's two phases: the new tokens alone, then everything (Minixhofer et al., 2022, section 4).

    The papers leave open what follows the first warm-up; here the whole first phase is warm-up.

    Args:
      first: fraction of all steps that trains the token table and the head's bias only.
      warmup: fraction of the second phase from 0 to the peak; then linear to 0.
      trainable: of the first phase; "embeddings" trains the position table too.
    """
    return (
        {"name": trainable, "fraction": first, "trainable": trainable, "warmup": 1.0, "decay": "constant", "peak": 1.0},
        {"name": "all", "fraction": 1.0 - first, "trainable": "all", "warmup": warmup, "decay": "linear", "peak": 1.0},
    )


def make_phases(descriptions: Sequence[Mapping[str, Any]], total_steps: int, peak_learning_rate: float) -> list[Phase]:
    """Lays phases one behind the other over the steps of a run.

    Args:
      descriptions: dictionaries with "name" and "fraction" (of `total_steps`) or "steps", and as a choice "trainable" ("all"),
        "layers" (""), "warmup" (0.0, fraction of the phase) or "warmup_steps", "decay" ("linear"), "peak" (1.0, multiplies
        `peak_learning_rate`), "floor" (0.0, multiplies the phase's peak), "decay_fraction" (1.0, of the phase, at its end; not
        of the warm-up) and "keep_optimizer" (False).
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
        warmup = values.get("warmup_steps", round(values.get("warmup", 0.0) * steps))
        if warmup > steps:
            raise UserError(f"{where}.warmup_steps: {warmup} is more than the phase's {steps} steps; expected at most that")
        peak = values["peak"] * peak_learning_rate
        if peak > 1e38:
            raise UserError(f"{where}.peak: gives a learning rate of {peak:g}; expected one that float32 holds; lower it")
        phases.append(
            Phase(
                name=values["name"],
                start=start,
                steps=steps,
                trainable=values["trainable"],
                warmup_steps=warmup,
                decay=values["decay"],
                peak=peak,
                floor=values["floor"] * peak,
                layers=values["layers"],
                keep_optimizer=values["keep_optimizer"],
                stable_steps=steps - round(values["decay_fraction"] * steps),
            )
        )
        start = end
    if start != total_steps:
        raise UserError(f"phases: they last {start} steps together; expected steps={total_steps}; fractions must sum to 1")
    return phases


def soft_share(settings: Mapping[str, Any], steps: int, step: int) -> float:
    """How much of the target soft targets make up at an update.

    It falls ever faster, by the square of the steps, so that in the end text alone is learnt.

    Args:
      settings: `soft_targets` of a run: "share" at first, and "steps" until it is 0, or 0 for those of the run.
      steps: of the run.
      step: number of the update, counted from 0.
    """
    return settings["share"] * max(0.0, 1.0 - (step / (settings["steps"] or steps)) ** 2)


def phase_at(phases: Sequence[Phase], step: int) -> int:
    """Returns the index of the phase that makes update number `step`; the last one for a finished run."""
    return next((i for i, phase in enumerate(phases) if step < phase.end), len(phases) - 1)


def _checked(where: str, description: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(description, Mapping):
        raise UserError(f"{where}: is {description!r}; expected a dictionary with {', '.join(sorted(FIELDS))}")
    values = {"name": f"phase {where[7:-1]}", **_DEFAULTS, **description}
    unknown = sorted(set(values) - FIELDS)
    if unknown:
        raise UserError(f"{where}.{unknown[0]}: no such field; expected {', '.join(sorted(FIELDS))}")
    if ("fraction" in values) == ("steps" in values):
        raise UserError(f"{where}: expected either fraction or steps")
    if "warmup" in values and "warmup_steps" in values:
        raise UserError(f"{where}: expected either warmup (a fraction) or warmup_steps")
    for name in ("fraction", "warmup", "peak", "floor", "decay_fraction"):
        value, high = values.get(name, 0.0), 1e38 if name == "peak" else 1.0
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value <= high:
            raise UserError(f"{where}.{name}: is {value!r}; expected a number from 0 to {high:g}")
    for name in ("steps", "warmup_steps"):
        value = values.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
            shown = "2**31 or more" if isinstance(value, int) and value >= 2**31 else repr(value)
            raise UserError(f"{where}.{name}: is {shown}; expected a whole number below 2**31")
    for name in ("name", "trainable"):
        if not isinstance(values[name], str) or not values[name]:
            raise UserError(f"{where}.{name}: is {values[name]!r}; expected a text")
    if not isinstance(values["layers"], str) or not _LAYERS.fullmatch(values["layers"]):
        raise UserError(f"{where}.layers: is {values['layers']!r}; expected first:end, e.g. 6: or :6, or nothing for all")
    if not isinstance(values["keep_optimizer"], bool):
        raise UserError(f"{where}.keep_optimizer: is {values['keep_optimizer']!r}; expected True or False")
    if values["decay"] not in DECAYS:
        raise UserError(f"{where}.decay: is {values['decay']!r}; expected {', '.join(DECAYS)}")
    return values
