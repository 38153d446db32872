"""What the learning curves of several runs say when they are laid over each other."""

import math
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

from wechsel_jax.files.json import is_number
from wechsel_jax.records import Evaluation, RunRecord
from wechsel_jax.report.display import number

# The method that trains from scratch.
BASELINE = "full_rand"
MASKED = ("mlm", "mlm_nsp", "cdlm", "tlm", "brlm")
# Settings that change what an evaluation asks -> the objectives of which they do, and what differs.
_ASKED = {
    "block_length": (("clm", "mlm", "mlm_nsp"), "read other lengths of held-out text at once"),
    "mask_rate": (MASKED, "mask other shares of the held-out text"),
}


@dataclass(frozen=True)
class Measure:
    """What runs are compared in, the lower the better.

    Attributes:
      field: of `Evaluation`.
      name: of the values.
      pattern: of one or several values in words.
      linear: what of a value is taken to change linearly with the steps between two evaluations.
      far: a start so many times above the median of all values would press the curves of a drawing flat (1e87, of a transfer
        with a poor helper).
    """

    field: str
    name: str
    pattern: str
    linear: Callable[[float], float]
    far: float

    def at(self, run: RunRecord, step: int) -> float | None:
        """Returns the value of an evaluation, inf where it is not finite; None where there was none."""
        return self._of(run.evaluated_at[step]) if step in run.evaluated_at else None

    def curve(self, run: RunRecord) -> list[tuple[int, float]]:
        """Returns (step, value) of the evaluations with a finite value."""
        return [(point.step, value) for point in run.evaluations if math.isfinite(value := self._of(point))]

    def lowest(self, run: RunRecord) -> tuple[int, float] | None:
        """Returns (step, value) where the value was lowest after training began; None where there is none.

        Not always at the `best_evaluation`: a loss counts what ends a text, and what else an objective asks.
        """
        return min(((step, value) for step, value in self.curve(run) if step), key=lambda point: point[::-1], default=None)

    def number(self, value: float | None) -> str:
        """Formats a value: bits per byte with three decimals, since they differ little."""
        return number(value) if self is PERPLEXITY or value is None or math.isinf(value) else f"{value:,.3f}"

    def told(self, *values: float) -> str:
        """ "perplexity 296", "3.125 to 2.052 bits per byte"."""
        return self.pattern.format(" to ".join(map(self.number, values)))

    def _of(self, point: Evaluation) -> float:
        value = getattr(point, self.field)
        return math.inf if value is None else value


PERPLEXITY = Measure("perplexity", "perplexity", "perplexity {}", math.log, 1e3)
BITS = Measure("bits_per_byte", "bits per byte", "{} bits per byte", float, 3.0)


def measure(runs: Sequence[RunRecord]) -> Measure:
    """Returns bits per byte where all runs recorded them at every evaluation on text, else perplexity."""
    points = [point for run in runs for point in run.evaluations if point.score is None and math.isfinite(point.loss)]
    return BITS if points and all(point.bits_per_byte is not None for point in points) else PERPLEXITY


def steps_needed(
    curve: Sequence[Sequence[float]], other: Sequence[Sequence[float]], linear: Callable[[float], float] = math.log
) -> list[float | None]:
    """Finds how many steps one run needs to reach every value of another.

    Args:
      curve: (step, value) by step, of the run that is asked.
      other: (step, value) by step, of the run whose values are to be reached.
      linear: what of a value is taken to change linearly with the steps between two evaluations: of a perplexity its logarithm.

    Returns:
      For each evaluation of `other` the first step at which the run is as low, or None where it never is.
    """
    return [_first_reached(curve, value, linear) for _, value in other]


def _first_reached(curve: Sequence[Sequence[float]], value: float | None, linear: Callable[[float], float]) -> float | None:
    if value is None or not 0 < value < math.inf:
        return None
    before: tuple[float, float] | None = None
    for step, reached in curve:
        if reached is None or not 0 < reached < math.inf:
            continue
        if reached <= value:
            if before is None:
                return float(step)
            share = (linear(before[1]) - linear(value)) / (linear(before[1]) - linear(reached))
            return before[0] + share * (step - before[0])
        before = step, reached
    return None


def common_steps(runs: Sequence[RunRecord]) -> list[int]:
    """Returns the steps at which all runs that were evaluated at all were evaluated."""
    evaluated = [{point.step for point in run.evaluations} for run in runs if run.evaluations]
    return sorted(set.intersection(*evaluated)) if evaluated else []


def chosen_steps(steps: Sequence[int], most: int) -> list[int]:
    """Returns at most `most` of the steps, spread evenly, the first and the last among them."""
    if len(steps) <= most:
        return list(steps)
    return [steps[round(i * (len(steps) - 1) / (most - 1))] for i in range(most)]


def scored(run: RunRecord) -> list[Evaluation]:
    """Returns the evaluations of a run on labelled examples, which have a score; none of others."""
    return [point for point in run.evaluations if point.score is not None]


def best_at(runs: Sequence[RunRecord], step: int, measure: Measure) -> list[RunRecord]:
    """Returns the runs with the lowest finite value at a step; several where they tie, none where there is no other."""
    values = [(measure.at(run, step), run) for run in runs]
    finite = [(value, run) for value, run in values if value is not None and math.isfinite(value)]
    if len(finite) < 2:
        return []
    lowest = min(value for value, _ in finite)
    return [run for value, run in finite if value == lowest]


def decisive_step(evaluated: Sequence[RunRecord], measure: Measure) -> int | None:
    """Returns the last step at which all runs have a finite value."""
    finite = [step for step in common_steps(evaluated) if all(math.isfinite(measure.at(run, step)) for run in evaluated)]
    return finite[-1] if finite else None


def leader(runs: Sequence[RunRecord], measure: Measure) -> RunRecord | None:
    """Returns the run with the lowest value at the last step that all share; None where none can be called best."""
    evaluated = [run for run in runs if measure.curve(run)]
    if len(evaluated) == 1:
        return evaluated[0]
    step = decisive_step(evaluated, measure) if evaluated and not incomparable(evaluated, measure) else None
    best = best_at(evaluated, step, measure) if step is not None else []
    return best[0] if len(best) == 1 else None


def incomparable(runs: Sequence[RunRecord], measure: Measure) -> str | None:
    """Says in a sentence why the values or scores of runs must not be compared; None where nothing speaks against it."""
    evaluated = [run for run in runs if run.evaluations]
    labelled = any(map(scored, evaluated))
    end = f"their {'scores' if labelled else 'perplexities' if measure is PERPLEXITY else measure.name} cannot be compared."
    objectives = {run.config["objective"] for run in evaluated if isinstance(run.config.get("objective"), str)}
    if len(objectives) > 1:
        return f"The runs have different objectives ({', '.join(sorted(objectives))}); {end}"
    if labelled:
        # Other tokenizers make other rows of the same examples, whose scores can be compared.
        return None
    for name, (concerned, differ) in _ASKED.items():
        values = {run.config[name] for run in evaluated if is_number(run.config.get(name))} if objectives & {*concerned} else ()
        if len(values) > 1:
            return f"The runs {differ} ({name} {', '.join(f'{value:,}' for value in sorted(values))}); {end}"
    points = [point for run in evaluated for point in run.evaluations]
    sizes = {point.bytes for point in points}
    # Of several tokenizers, `eval_batches` may be of more or less of the text. Masked models are asked for tokens of their own.
    if measure is BITS and not objectives & {*MASKED} and None not in sizes and _of_one_text(evaluated):
        return f"The evaluations counted {_span(sizes)} bytes of the held-out text; {end}" if _differ(sizes) else None
    tokens = {point.tokens for point in points} - {None}
    if _differ(tokens):
        return f"The evaluations counted {_span(tokens)} tokens: another tokenizer or text; {end}"
    sizes = {run.transfer.target.get("vocabulary_size") for run in evaluated if run.transfer} - {None}
    if len(sizes) > 1:
        return f"The runs have vocabularies of different size; {end}"
    # As many tokens of another text, where `eval_batches` are read of each.
    texts = {run.data.get("validation", {}).get("sha256") or run.fingerprints.get("validation") for run in evaluated}
    # The first runs left none.
    if len(texts - {None}) > 1:
        differ = "tokenizers" if differ_in_tokenizer(evaluated) else "held-out text"
        return f"The runs have different {differ}; {end}"
    return None


def _differ(counts: Set[float]) -> bool:
    # Masked language models are scored on a random part of the text, and tokenizers cut its last row elsewhere.
    return len(counts) > 1 and min(counts) < 0.98 * max(counts)


def _span(counts: Set[float]) -> str:
    return " and ".join(f"{count:,.0f}" for count in (min(counts), max(counts)))


def _of_one_text(runs: Sequence[RunRecord]) -> bool:
    """Whether all runs recorded what their held-out text was made from, and how much of it there is, and none differs."""
    made = [(files_of(run, "validation"), run.data.get("validation", {})) for run in runs]
    texts = {(frozenset(files), text.get("documents"), text.get("text_bytes")) for files, text in made}
    return len(texts) == 1 and all(files for files, _ in made)


def differ_in_tokenizer(runs: Sequence[RunRecord]) -> bool:
    """Whether tokenizers are others, among the runs that recorded them."""
    recorded = ((run.data.get("validation", {}).get("tokenizer") or {}).get("sha256") for run in runs)
    return len({one or run.fingerprints.get("tokenizer") for one, run in zip(recorded, runs, strict=True)} - {None}) > 1


def files_of(run: RunRecord, side: str) -> dict[str, str]:
    """Returns the files that the text of a side was made from, sha256 -> name; empty where they were not recorded."""
    inputs = run.data.get(side, {}).get("inputs") or ()
    return {one["sha256"]: one.get("name") or "" for one in inputs if one.get("sha256")}


def differ_in_text(runs: Sequence[RunRecord], side: str) -> bool:
    """Whether the files that the text of a side was made from are others, among the runs that recorded them."""
    # The same tokens are the same text, in whatever files it lay.
    made = {run.data[side].get("sha256", run.path): {*files} for run in runs if (files := files_of(run, side))}
    return len({*map(frozenset, made.values())}) > 1


def baseline(runs: Sequence[RunRecord]) -> RunRecord | None:
    """Returns the run trained from scratch, where there is exactly one."""
    found = [run for run in runs if run.method == BASELINE and run.curve]
    return found[0] if len(found) == 1 else None


def head_start(run: RunRecord, scratch: RunRecord, measure: Measure) -> tuple[float, int, float] | None:
    """Says how much sooner `run` is where `scratch` ends.

    Returns:
      (step at which `run` reaches the last value of `scratch`, step at which `scratch` did, that value); None where `run` does
      not get there, or not sooner.
    """
    if run is scratch or not measure.curve(scratch):
        return None
    last, value = measure.curve(scratch)[-1]
    reached = steps_needed(measure.curve(run), [(last, value)], measure.linear)[0]
    return None if reached is None or reached >= last else (reached, last, value)
