"""What the learning curves of several runs say when they are laid over each other."""

import math
from collections.abc import Sequence

from wechsel_jax.files.json import is_number
from wechsel_jax.records import Evaluation, RunRecord

# The method that trains from scratch.
BASELINE = "full_rand"
MASKED = ("mlm", "mlm_nsp", "cdlm", "tlm", "brlm")
# Settings that change what an evaluation asks -> the objectives of which they do, and what differs.
_ASKED = {
    "block_length": (("clm", "mlm", "mlm_nsp"), "read other lengths of held-out text at once"),
    "mask_rate": (MASKED, "mask other shares of the held-out text"),
}


def steps_needed(curve: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> list[float | None]:
    """Finds how many steps one run needs to reach every value of another.

    Between two evaluations the logarithm of the perplexity is taken to change linearly with the steps.

    Args:
      curve: (step, perplexity) by step, of the run that is asked.
      other: (step, perplexity) by step, of the run whose values are to be reached.

    Returns:
      For each evaluation of `other` the first step at which the run is as low, or None where it never is.
    """
    return [_first_reached(curve, value) for _, value in other]


def _first_reached(curve: Sequence[Sequence[float]], value: float | None) -> float | None:
    if value is None or not 0 < value < math.inf:
        return None
    before: tuple[float, float] | None = None
    for step, perplexity in curve:
        if perplexity is None or not 0 < perplexity < math.inf:
            continue
        if perplexity <= value:
            if before is None:
                return float(step)
            share = math.log(before[1] / value) / math.log(before[1] / perplexity)
            return before[0] + share * (step - before[0])
        before = step, perplexity
    return None


def all_steps(runs: Sequence[RunRecord]) -> list[int]:
    """Returns every step at which some run was evaluated."""
    return sorted({point.step for run in runs for point in run.evaluations})


def common_steps(runs: Sequence[RunRecord]) -> list[int]:
    """Returns the steps at which all runs that were evaluated at all were evaluated."""
    evaluated = [{point.step for point in run.evaluations} for run in runs if run.evaluations]
    return sorted(set.intersection(*evaluated)) if evaluated else []


def chosen_steps(steps: Sequence[int], most: int) -> list[int]:
    """Returns at most `most` of the steps, spread evenly, the first and the last among them."""
    if len(steps) <= most:
        return list(steps)
    return [steps[round(i * (len(steps) - 1) / (most - 1))] for i in range(most)]


def perplexity_at(run: RunRecord, step: int) -> float | None:
    """Returns the perplexity of an evaluation, inf where it overflowed; None where there was none."""
    return run.evaluated_at[step].perplexity if step in run.evaluated_at else None


def scored(run: RunRecord) -> list[Evaluation]:
    """Returns the evaluations of a run on labelled examples, which have a score; none of others."""
    return [point for point in run.evaluations if point.score is not None]


def bits_at(run: RunRecord, step: int) -> float | None:
    """Returns the bits per byte of an evaluation; None where there was none, or it recorded none."""
    return run.evaluated_at[step].bits_per_byte if step in run.evaluated_at else None


def best_at(runs: Sequence[RunRecord], step: int) -> list[RunRecord]:
    """Returns the runs with the lowest finite perplexity at a step; several where they tie, none where there is no other."""
    values = [(perplexity_at(run, step), run) for run in runs]
    finite = [(value, run) for value, run in values if value is not None and math.isfinite(value)]
    if len(finite) < 2:
        return []
    lowest = min(value for value, _ in finite)
    return [run for value, run in finite if value == lowest]


def decisive_step(evaluated: Sequence[RunRecord]) -> int | None:
    """Returns the last step at which all runs have a finite perplexity."""
    finite = [step for step in common_steps(evaluated) if all(math.isfinite(perplexity_at(run, step)) for run in evaluated)]
    return finite[-1] if finite else None


def leader(runs: Sequence[RunRecord]) -> RunRecord | None:
    """Returns the run with the lowest perplexity at the last step that all share; None where none can be called best."""
    evaluated = [run for run in runs if run.curve]
    if len(evaluated) == 1:
        return evaluated[0]
    step = decisive_step(evaluated) if evaluated and not incomparable(evaluated) else None
    best = best_at(evaluated, step) if step is not None else []
    return best[0] if len(best) == 1 else None


def incomparable(runs: Sequence[RunRecord]) -> str | None:
    """Says in a sentence why the perplexities or scores of runs must not be compared; None where nothing speaks against it."""
    evaluated = [run for run in runs if run.evaluations]
    labelled = any(map(scored, evaluated))
    end = f"their {'scores' if labelled else 'perplexities'} cannot be compared."
    objectives = {run.config["objective"] for run in evaluated if isinstance(run.config.get("objective"), str)}
    if len(objectives) > 1:
        return f"The runs have different objectives ({', '.join(sorted(objectives))}); {end}"
    manifests = [run.data.get("validation", {}) for run in evaluated]
    if labelled:
        # Other tokenizers make other rows of the same examples, whose scores can be compared.
        return f"The runs have different held-out examples; {end}" if differ_in_text(evaluated, "validation") else None
    for name, (concerned, differ) in _ASKED.items():
        values = {run.config[name] for run in evaluated if is_number(run.config.get(name))} if objectives & {*concerned} else ()
        if len(values) > 1:
            return f"The runs {differ} ({name} {', '.join(f'{value:,}' for value in sorted(values))}); {end}"
    tokens = {point.tokens for run in evaluated for point in run.evaluations if point.tokens is not None}
    # Masked language models are scored on a random part of the text, which may differ a little.
    if len(tokens) > 1 and min(tokens) < 0.98 * max(tokens):
        counts = " and ".join(f"{count:,.0f}" for count in (min(tokens), max(tokens)))
        return f"The evaluations counted {counts} tokens: another tokenizer or text; {end}"
    sizes = {run.transfer.target.get("vocabulary_size") for run in evaluated if run.transfer} - {None}
    if len(sizes) > 1:
        return f"The runs have vocabularies of different size; {end}"
    # As many tokens of another text, where `eval_batches` are read of each.
    texts, tokenizers = set(), set()
    for run, manifest in zip(evaluated, manifests, strict=True):
        texts.add(manifest.get("sha256") or run.fingerprints.get("validation"))
        tokenizers.add(manifest.get("tokenizer", {}).get("sha256") or run.fingerprints.get("tokenizer"))
    # The first runs left neither.
    texts, tokenizers = texts - {None}, tokenizers - {None}
    if len(texts) > 1:
        differ = "tokenizers" if len(tokenizers) > 1 else "held-out text"
        return f"The runs have different {differ}; {end}"
    return None


def differ_in_text(runs: Sequence[RunRecord], side: str) -> bool:
    """Whether the files that the text of a side was made from are others, among the runs that recorded them."""
    made = [run.data.get(side, {}).get("inputs") for run in runs]
    return len({frozenset(one.get("sha256") for one in inputs) for inputs in made if inputs}) > 1


def baseline(runs: Sequence[RunRecord]) -> RunRecord | None:
    """Returns the run trained from scratch, where there is exactly one."""
    found = [run for run in runs if run.method == BASELINE and run.curve]
    return found[0] if len(found) == 1 else None


def head_start(run: RunRecord, scratch: RunRecord) -> tuple[float, int, float] | None:
    """Says how much sooner `run` is where `scratch` ends.

    Returns:
      (step at which `run` reaches the last value of `scratch`, step at which `scratch` did, that perplexity); None where `run`
      does not get there, or not sooner.
    """
    if run is scratch or not scratch.curve:
        return None
    last, value = scratch.curve[-1]
    reached = steps_needed(run.curve, [(last, value)])[0]
    return None if reached is None or reached >= last else (reached, last, value)
