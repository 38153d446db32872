"""BERT (Devlin et al., 2019): RoBERTa's encoder with positions from 0 and the model's own activation in the head."""

from collections.abc import Mapping
from typing import Any

from wechsel_jax.models import encoder
from wechsel_jax.models.config import Fields, ModelConfig
from wechsel_jax.models.weights import TensorNames, Weight


def read_config(hf: Mapping[str, Any]) -> ModelConfig:
    """Reads `config.json` of a BERT; see `Family.config`. Every token is of the first segment type."""
    fields = Fields(hf, encoder.DEFAULTS | {"pad_token_id": 0})
    shared = encoder.shared_fields(fields, "bert")
    return ModelConfig(
        **shared,
        max_length=fields.number("max_position_embeddings"),
        positions="learned",
        pad_token_id=fields.padding(shared["vocabulary_size"]),
        head_activation=shared["activation"],
    )


def weights(config: ModelConfig) -> tuple[Weight, ...]:
    """The weight map."""
    head = "cls.predictions."
    return encoder.weights(
        config,
        dense=head + "transform.dense",
        norm=head + "transform.LayerNorm",
        decoder=head + "decoder",
        bias=head + "bias",
    )


TENSORS = TensorNames(
    prefix="bert.",
    # Buffers, the pooler, the guess whether a sentence follows, and heads of other tasks.
    ignored=r"embeddings\.(position_ids|token_type_ids)$|^pooler\.|^classifier\.|^qa_outputs\.|^cls\.seq_relationship\.",
    # The decoder repeats the table and the bias.
    tied=(
        ("cls.predictions.decoder.weight", "embeddings.word_embeddings.weight"),
        ("cls.predictions.decoder.bias", "cls.predictions.bias"),
    ),
    weights=weights,
)
