"""The baseline without any transfer: every parameter is drawn again as a new model's."""

import re

import numpy as np

from wechsel_jax.errors import UserError
from wechsel_jax.initializers.method import Method
from wechsel_jax.initializers.noise import keyed_generator
from wechsel_jax.initializers.plan import Side, TransferPlan
from wechsel_jax.initializers.wechsel import CITATION, PAPER

# Those whose new models are known to be N(0, initializer_range), zeros and ones, and what GPT-2 and Gemma do otherwise.
ARCHITECTURES = (
    "gpt2", "roberta", "bert", "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "xglm",
)  # fmt: skip
_BUFFER = re.compile(
    r"(^|\.)(attn\.(bias|masked_bias)|position_ids|token_type_ids|embed_positions\.weights|\w*inv_freq|embed_scale)$"
)
_BIAS = re.compile(r"(bias|\.beta)$")
_NORM_WEIGHT = re.compile(r"(^|\.)(ln_\w+|\w*norm)\.(weight|gamma)$", re.IGNORECASE)
_RESIDUAL_WEIGHT = re.compile(r"(^|\.)c_proj\.weight$")
_PADDED_TABLE = re.compile(r"(^|\.)(word|position)_embeddings\.weight$")


def full_rand(source: Side, target: Side) -> TransferPlan:
    """Every row random ("FullRand" in Minixhofer et al., 2022); the inner layers are drawn again too, see `redraw`.

    Args:
      source: V_s tokens; not used.
      target: V_t tokens.

    Returns:
      A plan whose rows are all random, special tokens included.
    """
    del source
    return TransferPlan.all_random(len(target.vocabulary))


def require_architecture(architecture: str) -> None:
    """Raises `UserError` where `redraw` does not know how a new model of an architecture is initialised."""
    if architecture not in ARCHITECTURES:
        raise UserError(
            f"full_rand: cannot initialise a {architecture} model; expected one of {', '.join(ARCHITECTURES)}; choose another "
            "method"
        )


def redraw(
    name: str,
    shape: tuple[int, ...],
    dtype: np.dtype,
    *,
    seed: int,
    initializer_range: float,
    layers: int | None,
    architecture: str,
    padding_row: int | None = None,
) -> np.ndarray | None:
    """Draws one tensor as Hugging Face initialises a new model; the draw depends on (seed, name) only.

    Weights are N(0, initializer_range); GPT-2's projections into the residual stream are divided by sqrt(2 layers). Biases are
    zeros; weights of norms ones, but zeros in Gemma, which adds one to them.

    Args:
      name: the tensor's name in the checkpoint, with or without the "transformer." or "roberta." in front.
      shape: of the tensor.
      dtype: any float type.
      seed: any integer.
      initializer_range: the configuration's value.
      layers: number of transformer blocks N, which only GPT-2 needs.
      architecture: one of `ARCHITECTURES`.
      padding_row: the row of RoBERTa's word and position tables that is zero: the configuration's pad_token_id.

    Returns:
      An array of `shape` and `dtype`, or None where the tensor is a buffer and no parameter: keep it as it is.

    Raises:
      UserError: an architecture or a tensor that this function does not know.
    """
    require_architecture(architecture)
    if _BUFFER.search(name):
        return None
    if _BIAS.search(name):
        return np.zeros(shape, dtype)
    if _NORM_WEIGHT.search(name):
        return np.zeros(shape, dtype) if architecture.startswith("gemma") else np.ones(shape, dtype)
    if not name.endswith(".weight"):
        raise UserError(f"full_rand: the tensor {name} is no parameter of a {architecture} model; expected a weight or a bias")
    deviation = initializer_range
    if architecture == "gpt2" and _RESIDUAL_WEIGHT.search(name):
        deviation /= np.sqrt(2 * layers)
    draw = keyed_generator(seed, name).standard_normal(shape, np.float32)
    draw *= np.float32(deviation)
    if padding_row is not None and architecture == "roberta" and _PADDED_TABLE.search(name):
        draw[padding_row] = 0
    return draw.astype(dtype, copy=False)


FULL_RAND = Method(
    name="full_rand",
    label="FullRand",
    color=2,
    plan=full_rand,
    paper=f"{PAPER}, section 4 (FullRand)",
    citation=CITATION,
    summary="every parameter random: training from scratch",
    noise="initializer_range",
    redraw_inner=True,
)
