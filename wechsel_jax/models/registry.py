"""The families by their `model_type`."""

from jax.sharding import PartitionSpec

from wechsel_jax.errors import UserError
from wechsel_jax.models import gpt2, roberta
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
    module=roberta.Roberta,
    read_config=roberta.read_config,
    weights=roberta.weights,
    check_tensors=roberta.check_tensors,
    prefix=roberta.PREFIX,
    ignored_tensors=roberta.IGNORED_TENSORS,
    token_parameters=TOKEN_PARAMETERS,
    embedding_parameters=EMBEDDING_PARAMETERS,
    sharding_rules=SHARDING_RULES,
    head_flops=roberta.head_flops,
)
FAMILIES = {family.name: family for family in (GPT2, ROBERTA)}


def family(model_type: str) -> Family:
    """Returns the record of a family.

    Args:
      model_type: as `config.json` spells it.

    Raises:
      UserError: there is no such family here.
    """
    if model_type not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise UserError(f"config.json: models of type {model_type!r} cannot be trained here; expected one of {known}")
    return FAMILIES[model_type]
