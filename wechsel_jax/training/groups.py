"""Groups of parameters with an optimizer, a learning rate, a weight decay and a warm-up of their own, as data."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from wechsel_jax.errors import UserError
from wechsel_jax.files.json import is_number
from wechsel_jax.models import Family, ModelConfig
from wechsel_jax.records.names import PLAN_FILE
from wechsel_jax.training.coordinates import BEST, OWN, TRANSFER, Coordinates, own_coordinates, read_coordinates
from wechsel_jax.training.schedules import NAMED, Phase

KINDS = ("adamw", "soap", "muon", "frozen")
# Groups under their names, for `optimizer.groups`: tables learn faster than the body (benchmarks/recipe.json).
RECIPES: Mapping[str, tuple[dict[str, Any], ...]] = {
    "adamw": (),
    "two_rates": ({"match": "embeddings", "rate": 2.5},),
    # Biases and norms by AdamW at the body's rate.
    "muon": ({"match": "embeddings", "rate": 4 / 3}, {"match": "layers/.*kernel$", "kind": "muon"}),
    # Rows of tokens also move together.
    "shared": ({"match": "embeddings", "coordinates": BEST},),
    "muon_shared": (
        {"match": "embeddings", "rate": 4 / 3, "coordinates": BEST},
        {"match": "layers/.*kernel$", "kind": "muon"},
    ),
    # SOAP bears tables that learn faster still.
    "muon_soap": (
        {"match": "embeddings", "kind": "soap", "rate": 2.0, "coordinates": BEST},
        {"match": "layers/.*kernel$", "kind": "muon"},
    ),
}
# Ahead of the others from `anker`'s rows of a small GPT-2, in every language and at every length that was tried
# (docs/recipe.md).
DEFAULT = "muon_soap"
# Inputs and outputs of the matrices that a parameter holds; its other axes number them.
Axes = tuple[tuple[int, ...], tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Group:
    """How some of the parameters are updated.

    Attributes:
      match: "tokens", "embeddings" or a regex, searched for in "/"-joined parameter paths; "" finds all.
      kind: "adamw", "soap" (of embeddings; of a bias it is AdamW), "muon" (of matrices) or "frozen".
      rate: factor of the phase's learning rate.
      weight_decay: decoupled, times the group's learning rate; None: the one of all parameters. Not on biases and norms.
      warmup: own warm-up as a fraction of the phase; None: the phase's.
      warmup_steps: the same in steps.
      coordinates: by which its tokens' rows also move together (`coordinates.scale_by_coordinates`): a transfer_plan.npz, a
        folder with one, "transfer": the one of the checkpoint that a run begins from, where it holds some, "rows": the rows of
        that checkpoint's input table, or "best": its transfer's, else its rows. "": none.
      shared: how large these shared updates are beside the rows' own.
    """

    match: str
    kind: str = "adamw"
    rate: float = 1.0
    weight_decay: float | None = None
    warmup: float | None = None
    warmup_steps: int | None = None
    coordinates: str = ""
    shared: float = 1.0

    def schedule(self, phase: Phase) -> Phase:
        """Returns the phase as this group goes through it.

        Raises:
          UserError: it is shorter than the group's warm-up.
        """
        steps = phase.warmup_steps if self.warmup_steps is None else self.warmup_steps
        if self.warmup is not None:
            steps = round(self.warmup * phase.steps)
        if steps > phase.steps:
            raise UserError(
                f"optimizer.groups: {self.match!r} has warmup_steps {steps}, more than the {phase.steps} steps of phase "
                f"{phase.name!r}; expected at most that"
            )
        return dataclasses.replace(phase, warmup_steps=steps, peak=self.rate * phase.peak, floor=self.rate * phase.floor)


@dataclasses.dataclass(frozen=True)
class Grouping:
    """Which parameter is in which group.

    Attributes:
      groups: in their order, the one of all other parameters last.
      of: "/"-joined path -> number of its group, for every parameter.
      axes: path -> inputs and outputs of its matrices, for parameters that Muon updates.
      coordinates: path -> (V, r), for tables whose rows also move together; the same of all that are in one group.
    """

    groups: tuple[Group, ...]
    of: Mapping[str, int]
    axes: Mapping[str, Axes]
    coordinates: Mapping[str, Coordinates] = dataclasses.field(default_factory=dict)

    def group(self, path: str) -> Group:
        """The group of a parameter."""
        return self.groups[self.of[path]]

    def learning_rates(self, phase: Phase, step: int) -> np.ndarray:
        """The learning rate of every group at update number `step` of a phase, counted from 0: float32 (groups,)."""
        return np.array([group.schedule(phase).learning_rate(step) for group in self.groups], np.float32)


def parameter_regex(family: Family, name: str) -> str:
    """The regex of the parameters that a setting names: "all", "tokens", "embeddings" of a family, or itself a regex."""
    return dict(zip(NAMED, ("", family.token_parameters, family.embedding_parameters), strict=True)).get(name, name)


def read_groups(descriptions: Sequence[Mapping[str, Any]]) -> tuple[Group, ...]:
    """Reads what the settings say of groups.

    Args:
      descriptions: dictionaries with "match" and, as a choice, the other fields of `Group`.

    Returns:
      The groups, and behind them the one of all other parameters.

    Raises:
      UserError: a field is unknown, missing or impossible.
    """
    fields = {field.name for field in dataclasses.fields(Group)}
    groups = []
    for i, values in enumerate(descriptions):
        where = f"optimizer.groups[{i}]"
        if not isinstance(values, Mapping):
            raise UserError(f"{where}: is {values!r}; expected a dictionary with {', '.join(sorted(fields))}")
        for name in sorted({*values} - fields):
            raise UserError(f"{where}.{name}: no such field; expected {', '.join(sorted(fields))}")
        # None says the same as leaving it out.
        values = {name: value for name, value in values.items() if value is not None}
        match, kind = values.get("match"), values.get("kind", "adamw")
        if not isinstance(match, str) or not match:
            raise UserError(f"{where}.match: is {match!r}; expected a regex that finds parameter paths, tokens or embeddings")
        try:
            re.compile(match)
        except re.error as error:
            raise UserError(f"{where}.match: {match!r} is no regular expression ({error}); expected one") from error
        if kind not in KINDS:
            raise UserError(f"{where}.kind: is {kind!r}; expected {', '.join(KINDS)}")
        for name, low, high in (("rate", 0.0, 1e4), ("weight_decay", 0.0, 1e4), ("warmup", 0.0, 1.0), ("shared", 0.0, 1e4)):
            value = values.get(name, 1.0)
            if not is_number(value) or not low <= value <= high:
                raise UserError(f"{where}.{name}: is {value!r}; expected a number from {low:g} to {high:g}")
        steps = values.get("warmup_steps", 0)
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
            raise UserError(f"{where}.warmup_steps: is {steps!r}; expected a whole number")
        place = values.get("coordinates", "")
        if not isinstance(place, str) or (place and kind not in ("adamw", "soap")):
            raise UserError(
                f"{where}.coordinates: is {place!r}, of kind {kind}; "
                f"expected a path, {TRANSFER!r}, {OWN!r} or {BEST!r}, of kind adamw or soap"
            )
        if "shared" in values and not place:
            raise UserError(f"{where}.shared: there are no coordinates; expected those, too")
        if "warmup" in values and "warmup_steps" in values:
            raise UserError(f"{where}: expected either warmup (a fraction) or warmup_steps")
        if kind == "frozen" and len(values) > 2:
            raise UserError(
                f"{where}: what is frozen has no {', '.join(sorted({*values} - {'match', 'kind'}))}; leave that out"
            )
        groups.append(Group(**values))
    return (*groups, Group(match=""))


def assign(
    groups: Sequence[Group],
    family: Family,
    config: ModelConfig,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    tokens: int = 0,
    checkpoint: str = "",
) -> Grouping:
    """Puts every parameter into the first group that finds it.

    Args:
      groups: what `read_groups` returns.
      family: of the model.
      config: of the model.
      shapes: "/"-joined path -> shape of every parameter.
      tokens: of the tokenizer; tables may have rows of padding behind theirs.
      checkpoint: that the run begins from.

    Raises:
      UserError: a group gets no parameter, Muon one that holds no matrices, SOAP one that is no embedding, or coordinates none
        with an axis of tokens; or there are no coordinates.
    """
    patterns = [re.compile(parameter_regex(family, group.match)) for group in groups]
    of = {path: next(i for i, pattern in enumerate(patterns) if pattern.search(path)) for path in shapes}
    for i, group in enumerate(groups[:-1]):
        if i not in of.values():
            earlier = any(patterns[i].search(path) for path in shapes)
            why = "finds only parameters of the groups before it" if earlier else "finds no parameter"
            raise UserError(f"optimizer.groups[{i}].match: {group.match!r} {why}; expected some of {', '.join(sorted(shapes))}")
    weights = {weight.path: weight for weight in family.tensors.weights(config)}
    axes = {}
    for path, i in of.items():
        if groups[i].kind == "soap" and not re.search(family.embedding_parameters, path):
            raise UserError(
                f"optimizer.groups[{i}]: soap is for tables, and {path} is none; expected tokens, embeddings or a regex of "
                "some, or kind adamw"
            )
        if groups[i].kind == "muon":
            axes[path] = weights[path].matrix_axes(len(shapes[path]))
            if axes[path] is None:
                raise UserError(
                    f"optimizer.groups[{i}]: muon is for matrices, and {path} of shape {shapes[path]} holds none; "
                    "expected a regex of kernels, such as 'layers/.*kernel$', or kind adamw"
                )
    coordinates = {}
    for i, group in enumerate(groups):
        paths = [path for path in of if of[path] == i and re.search(family.token_parameters, path)]
        if group.coordinates and not paths:
            raise UserError(f"optimizer.groups[{i}].coordinates: {group.match!r} finds no table of tokens; expected 'tokens'")
        if group.coordinates in (TRANSFER, OWN, BEST) and not checkpoint:
            raise UserError(
                f"optimizer.groups[{i}].coordinates: the run begins from no checkpoint; expected the path of a {PLAN_FILE}"
            )
        if group.coordinates:
            rows, found = shapes[paths[0]][0], None
            if group.coordinates in (TRANSFER, BEST):
                found = read_coordinates(checkpoint, tokens, rows, required=False)
            elif group.coordinates != OWN:
                found = read_coordinates(group.coordinates, tokens, rows)
            if found is None and group.coordinates != TRANSFER:
                found = own_coordinates(checkpoint, tokens, rows)
            coordinates |= dict.fromkeys(paths if found is not None else (), found)
    return Grouping(tuple(groups), of, axes, coordinates)
