"""The evaluations by name. A new one is one function and one line here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from wechsel_jax.evaluation.perplexity import perplexity


@dataclass(frozen=True)
class Evaluation:
    """One way to score a model.

    Attributes:
      name: what the user types.
      run: called with (objective, params, batches, key=None, **options); sums over all batches first and divides once, so that
        neither batch size, padding nor device count changes a score; returns plain Python numbers by name.
      score: which of these numbers is the one to compare models by.
      higher_is_better: whether a larger score means a better model.
      summary: one line for a person.
    """

    name: str
    run: Callable[..., Mapping[str, float]]
    score: str
    higher_is_better: bool
    summary: str


EVALUATIONS: dict[str, Evaluation] = {
    evaluation.name: evaluation
    for evaluation in (
        Evaluation("perplexity", perplexity, "perplexity", False, "exp of the mean loss of a predicted token on held-out text"),
    )
}
