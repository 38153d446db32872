"""The families by their `model_type`."""

import dataclasses
from functools import partial

from jax.sharding import PartitionSpec

from wechsel_jax.errors import UserError
from wechsel_jax.models import bert, decoder, encoder, gemma, gpt2, llama, roberta, xglm
from wechsel_jax.models.family import Family

# Matrices put the axis of heads or of feed-forward units on "tensor" and d on "fsdp"; tables put the vocabulary on "tensor".
SHARDING_RULES = (
    (r"^(token_embedding|head)/embedding$", PartitionSpec("tensor", "fsdp")),
    (r"^(position|type)_embedding/embedding$", PartitionSpec(None, "fsdp")),
    (r"^layers/attention/qkv/kernel$", PartitionSpec(None, "fsdp", None, "tensor")),
    (r"^layers/attention/qkv/bias$", PartitionSpec(None, None, "tensor")),
    (r"^layers/mlp/up/kernel$", PartitionSpec(None, "fsdp", "tensor")),
    (r"^layers/mlp/up/bias$", PartitionSpec(None, "tensor")),
    (r"^layers/(attention/output|mlp/down)/kernel$", PartitionSpec(None, "tensor", "fsdp")),
    (r"^layers/(attention/output|mlp/down)/bias$", PartitionSpec()),
    (r"^head/dense/kernel$", PartitionSpec("fsdp", None)),
    (r"^head/bias$", PartitionSpec("tensor")),
    (r"norm/(scale|bias)$|^head/dense/bias$", PartitionSpec()),
)
# Heads have an axis of their own here, and keys and values fewer of them than queries.
DECODER_SHARDING_RULES = (
    (r"^(token_embedding|head)/embedding$", PartitionSpec("tensor", "fsdp")),
    (r"^layers/attention/query/kernel$", PartitionSpec(None, "fsdp", "tensor")),
    (r"^layers/attention/query/bias$", PartitionSpec(None, "tensor")),
    (r"^layers/attention/key_value/kernel$", PartitionSpec(None, "fsdp", None, "tensor")),
    (r"^layers/attention/key_value/bias$", PartitionSpec(None, None, "tensor")),
    (r"^layers/attention/output/kernel$", PartitionSpec(None, "tensor", None, "fsdp")),
    (r"^layers/mlp/(up|gate)/kernel$", PartitionSpec(None, "fsdp", "tensor")),
    (r"^layers/mlp/(up|gate)/bias$", PartitionSpec(None, "tensor")),
    (r"^layers/mlp/down/kernel$", PartitionSpec(None, "tensor", "fsdp")),
    (r"norm/(scale|bias)$|^layers/(attention/output|mlp/down)/bias$", PartitionSpec()),
)
TOKEN_PARAMETERS = r"^(token_embedding|head)/embedding$|^head/bias$"
EMBEDDING_PARAMETERS = r"^(token_embedding|position_embedding|type_embedding|head)/embedding$|^head/bias$"

GPT2 = Family(
    name="gpt2",
    architecture="GPT2LMHeadModel",
    causal=True,
    module=gpt2.GPT2,
    read_config=gpt2.read_config,
    weights=gpt2.weights,
    check_tensors=gpt2.check_tensors,
    prefix=gpt2.PREFIX,
    ignored_tensors=gpt2.IGNORED_TENSORS,
    token_parameters=TOKEN_PARAMETERS,
    embedding_parameters=EMBEDDING_PARAMETERS,
    sharding_rules=SHARDING_RULES,
    head_flops=gpt2.head_flops,
)
ROBERTA = Family(
    name="roberta",
    architecture="RobertaForMaskedLM",
    causal=False,
    module=encoder.Encoder,
    read_config=roberta.read_config,
    weights=roberta.weights,
    check_tensors=roberta.check_tensors,
    prefix=roberta.PREFIX,
    ignored_tensors=roberta.IGNORED_TENSORS,
    token_parameters=TOKEN_PARAMETERS,
    embedding_parameters=EMBEDDING_PARAMETERS,
    sharding_rules=SHARDING_RULES,
    head_flops=encoder.head_flops,
)
XLM_ROBERTA = dataclasses.replace(
    ROBERTA,
    name="xlm-roberta",
    architecture="XLMRobertaForMaskedLM",
    read_config=partial(roberta.read_config, model_type="xlm-roberta"),
)
BERT = dataclasses.replace(
    ROBERTA,
    name="bert",
    architecture="BertForMaskedLM",
    read_config=bert.read_config,
    weights=bert.weights,
    check_tensors=bert.check_tensors,
    prefix=bert.PREFIX,
    ignored_tensors=bert.IGNORED_TENSORS,
)
LLAMA = Family(
    name="llama",
    architecture="LlamaForCausalLM",
    causal=True,
    module=decoder.Decoder,
    read_config=llama.read_llama,
    weights=decoder.weights,
    check_tensors=decoder.check_tensors,
    prefix=decoder.PREFIX,
    ignored_tensors=decoder.IGNORED_TENSORS,
    token_parameters=TOKEN_PARAMETERS,
    embedding_parameters=EMBEDDING_PARAMETERS,
    sharding_rules=DECODER_SHARDING_RULES,
    head_flops=decoder.head_flops,
)
MISTRAL = dataclasses.replace(LLAMA, name="mistral", architecture="MistralForCausalLM", read_config=llama.read_mistral)
QWEN2 = dataclasses.replace(LLAMA, name="qwen2", architecture="Qwen2ForCausalLM", read_config=llama.read_qwen2)
GEMMA = dataclasses.replace(LLAMA, name="gemma", architecture="GemmaForCausalLM", read_config=gemma.read_gemma)
GEMMA2 = dataclasses.replace(LLAMA, name="gemma2", architecture="Gemma2ForCausalLM", read_config=gemma.read_gemma2)
GEMMA3 = dataclasses.replace(LLAMA, name="gemma3_text", architecture="Gemma3ForCausalLM", read_config=gemma.read_gemma3)
XGLM = dataclasses.replace(
    LLAMA, name="xglm", architecture="XGLMForCausalLM", read_config=xglm.read_config, weights=xglm.weights
)
FAMILIES = {
    family.name: family for family in (GPT2, ROBERTA, XLM_ROBERTA, BERT, LLAMA, MISTRAL, QWEN2, GEMMA, GEMMA2, GEMMA3, XGLM)
}
# What to do instead, for a model_type that many checkpoints have.
_HINTS = {"gemma3": "; it reads images too: save its text model alone, as gemma3_text"}


def family(model_type: str) -> Family:
    """Returns the record of a family.

    Args:
      model_type: as `config.json` spells it.

    Raises:
      UserError: there is no such family here.
    """
    if model_type not in FAMILIES:
        known, hint = ", ".join(sorted(FAMILIES)), _HINTS.get(model_type, "")
        raise UserError(f"config.json: models of type {model_type!r} cannot be trained here; expected one of {known}{hint}")
    return FAMILIES[model_type]
