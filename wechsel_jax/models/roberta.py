"""RoBERTa (Liu et al., 2019) and XLM-R (Conneau et al., 2020), which differ in their vocabularies only."""

from collections.abc import Mapping
from typing import Any

from wechsel_jax.errors import UserError
from wechsel_jax.models import encoder
from wechsel_jax.models.config import Fields, ModelConfig
from wechsel_jax.models.weights import TensorNames, Weight


def read_config(hf: Mapping[str, Any], model_type: str = "roberta") -> ModelConfig:
    """Reads `config.json` of a RoBERTa or XLM-R; see `Family.config`.

    Positions start at pad_token_id + 1, so that many rows of the position table are never used by real tokens:
    514 rows with padding id 1 hold 512 tokens.
    """
    fields = Fields(hf, encoder.DEFAULTS | {"pad_token_id": 1})
    shared, padding = encoder.shared_fields(fields, model_type), fields.number("pad_token_id")
    if not 0 <= padding < shared["vocabulary_size"]:
        raise UserError(f"config.json: pad_token_id is {padding}; expected an id from 0 to {shared['vocabulary_size'] - 1}")
    # The head's activation is the exact gelu whatever `hidden_act` says.
    return ModelConfig(
        **shared,
        max_length=fields.number("max_position_embeddings") - padding - 1,
        positions="padded",
        pad_token_id=padding,
        head_activation="gelu",
    )


def weights(config: ModelConfig) -> tuple[Weight, ...]:
    """The weight map."""
    return encoder.weights(
        config, dense="lm_head.dense", norm="lm_head.layer_norm", decoder="lm_head.decoder", bias="lm_head.bias"
    )


TENSORS = TensorNames(
    prefix="roberta.",
    # Buffers, the pooler and heads of other tasks.
    ignored=r"embeddings\.(position_ids|token_type_ids)$|^pooler\.|^classifier\.|^qa_outputs\.",
    # The decoder repeats the table and the bias.
    tied=(("lm_head.decoder.weight", "embeddings.word_embeddings.weight"), ("lm_head.decoder.bias", "lm_head.bias")),
    weights=weights,
)
