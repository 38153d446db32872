"""The families by their `model_type`."""

import dataclasses
from functools import partial

from jax.sharding import PartitionSpec

from wechsel_jax.errors import UserError
from wechsel_jax.models import bert, decoder, gemma, gpt2, llama, roberta, xglm
from wechsel_jax.models.decoder import Decoder
from wechsel_jax.models.encoder import Encoder
from wechsel_jax.models.family import Family
from wechsel_jax.models.trilayer import tri_family
from wechsel_jax.models.vanilla import ENCODER

# Matrices put the axis of heads or of feed-forward units on "tensor" and d on "fsdp"; tables put the vocabulary on "tensor".
_RULES = (
    (r"^(token_embedding|head)/embedding$", PartitionSpec("tensor", "fsdp")),
    (r"^(position|type|language)_embedding/embedding$", PartitionSpec(None, "fsdp")),
    (r"^layers/mlp/(up|gate)/kernel$", PartitionSpec(None, "fsdp", "tensor")),
    (r"^layers/mlp/(up|gate)/bias$", PartitionSpec(None, "tensor")),
    (r"^layers/mlp/down/kernel$", PartitionSpec(None, "tensor", "fsdp")),
    (r"^layers/(attention/output|mlp/down)/bias$", PartitionSpec()),
    (r"^head/dense/kernel$", PartitionSpec("fsdp", None)),
    (r"^head/bias$", PartitionSpec("tensor")),
    (r"norm/(scale|bias)$|^head/dense/bias$", PartitionSpec()),
)
FUSED_RULES = (
    *_RULES,
    (r"^layers/attention/qkv/kernel$", PartitionSpec(None, "fsdp", None, "tensor")),
    (r"^layers/attention/qkv/bias$", PartitionSpec(None, None, "tensor")),
    (r"^layers/attention/output/kernel$", PartitionSpec(None, "tensor", "fsdp")),
)
# Heads have an axis of their own here, and keys and values fewer of them than queries.
GROUPED_RULES = (
    *_RULES,
    (r"^layers/attention/query/kernel$", PartitionSpec(None, "fsdp", "tensor")),
    (r"^layers/attention/query/bias$", PartitionSpec(None, "tensor")),
    (r"^layers/attention/key_value/kernel$", PartitionSpec(None, "fsdp", None, "tensor")),
    (r"^layers/attention/key_value/bias$", PartitionSpec(None, None, "tensor")),
    (r"^layers/attention/output/kernel$", PartitionSpec(None, "tensor", None, "fsdp")),
)

GPT2 = Family("gpt2", "GPT2LMHeadModel", True, Decoder, gpt2.read_config, gpt2.TENSORS, FUSED_RULES)
BERT = Family("bert", "BertForMaskedLM", False, Encoder, bert.read_config, bert.TENSORS, FUSED_RULES)
ROBERTA = Family("roberta", "RobertaForMaskedLM", False, Encoder, roberta.read_config, roberta.TENSORS, FUSED_RULES)
XLM_ROBERTA = dataclasses.replace(
    ROBERTA,
    name="xlm-roberta",
    architecture="XLMRobertaForMaskedLM",
    read_config=partial(roberta.read_config, model_type="xlm-roberta"),
)
LLAMA = Family("llama", "LlamaForCausalLM", True, Decoder, llama.read_llama, decoder.TENSORS, GROUPED_RULES)
MISTRAL = dataclasses.replace(LLAMA, name="mistral", architecture="MistralForCausalLM", read_config=llama.read_mistral)
QWEN2 = dataclasses.replace(LLAMA, name="qwen2", architecture="Qwen2ForCausalLM", read_config=llama.read_qwen2)
GEMMA = dataclasses.replace(LLAMA, name="gemma", architecture="GemmaForCausalLM", read_config=gemma.read_gemma)
GEMMA2 = dataclasses.replace(LLAMA, name="gemma2", architecture="Gemma2ForCausalLM", read_config=gemma.read_gemma2)
GEMMA3 = dataclasses.replace(LLAMA, name="gemma3_text", architecture="Gemma3ForCausalLM", read_config=gemma.read_gemma3)
XGLM = Family("xglm", "XGLMForCausalLM", True, Decoder, xglm.read_config, xglm.TENSORS, GROUPED_RULES)
FAMILIES = {
    family.name: family for family in (GPT2, ROBERTA, XLM_ROBERTA, BERT, LLAMA, MISTRAL, QWEN2, GEMMA, GEMMA2, GEMMA3, XGLM)
}
FAMILIES |= {f"tri-{family.name}": tri_family(family) for family in (BERT, ROBERTA, XLM_ROBERTA)}
# What to do instead, for a model_type that many checkpoints have.
_HINTS = {"gemma3": "; it reads images too: save its text model alone, as gemma3_text"}


def family(model_type: str) -> Family:
    """Returns the record of a family.

    Args:
      model_type: as `config.json` spells it.

    Raises:
      UserError: there is no such family here.
    """
    if model_type == ENCODER.name:
        return ENCODER
    if model_type not in FAMILIES:
        known, hint = ", ".join(sorted(FAMILIES)), _HINTS.get(model_type, "")
        raise UserError(f"config.json: models of type {model_type!r} cannot be trained here; expected one of {known}{hint}")
    return FAMILIES[model_type]
