"""Small models with random weights, and one compiled function that the tests of models share."""

from functools import partial

import jax
import numpy as np

from tests.models.make_golden import CONFIGS
from wechsel_jax.models import family
from wechsel_jax.models.weights import unflatten

TOKENS = np.random.default_rng(0).integers(4, 31, (2, 11)).astype(np.int32)
ALL = np.ones(TOKENS.shape, bool)


def small_model(name):
    """(family, config, params) of one of CONFIGS; random weights, scales of norms around 1, no compiling."""
    fields = CONFIGS[name]
    record = family(fields["model_type"])
    config = record.config(fields)
    rng = np.random.default_rng(0)
    one = 1 - config.norm_offset
    flat = {path: 0.3 * rng.normal(size=shape) + one * path.endswith("scale") for path, shape in record.shapes(config).items()}
    return record, config, unflatten({path: value.astype(np.float32) for path, value in flat.items()})


@partial(jax.jit, static_argnums=(0, 1))
def logits(record, config, params, tokens, mask):
    """Evaluation logits (B, L, V) in float32."""
    return record.logits(params, config, record.hidden(params, config, tokens, mask))


def dot_flops(jaxpr, times=1):
    """Two FLOPs a multiplication of every matrix product, those of a loop's body once an iteration."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            total += 2 * times * equation.outvars[0].aval.size * int(np.prod([shape[i] for i in contracted]))
        repeats = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                total += dot_flops(inner, times * repeats)
    return total
