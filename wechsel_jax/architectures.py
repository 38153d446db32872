"""What vocabulary surgery must know of an architecture: where its vocabulary lies, and what depends on token ids."""

import dataclasses
import re
from collections.abc import Mapping

from wechsel_jax.errors import UserError
from wechsel_jax.tokens import Vocabulary

ROLES = ("bos", "eos", "pad", "unk", "mask", "cls", "sep")
# transformers reads these from any config.json; the other roles are changed only where a config has them already.
_ALWAYS_IN_CONFIG = ("bos", "eos", "pad")
# Generation settings that list token ids of the old vocabulary and have no role to be mapped by.
_LISTS_OF_TOKENS = (
    "bad_words_ids", "begin_suppress_tokens", "constraints", "force_words_ids", "forced_decoder_ids", "sequence_bias",
    "stop_strings", "suppress_tokens",
)  # fmt: skip
_MOST_PADDING_SHIFT = 1000
# Layers, position tables, norms and other tasks' heads have no vocabulary axis, even where a length happens to agree.
_NO_VOCABULARY = re.compile(
    r"(^|\.)\d+\.|(^|\.)(wpe|ln_f|position_embeddings|position_ids|token_type_embeddings|token_type_ids"
    r"|LayerNorm|layer_norm|lm_head\.dense|pooler|classifier|score)(\.|$)"
)


@dataclasses.dataclass(frozen=True)
class Architecture:
    """Where one `model_type` keeps its vocabulary.

    Attributes:
      base: the architecture whose tensors it has, for drawing them again.
      input: regex of the names of the input table (V, d).
      head: regex of the names of the output head (V, d).
      bias: regex of the names of the head's bias (V,), or "" where the architecture has none.
      roles: the special tokens without which the model cannot be used.
      positions: regex of the position table, where positions count from pad_token_id + 1; else "".
      position_buffers: regex of stored tensors that follow from the size of that table, and that transformers no longer saves.
    """

    base: str
    input: str
    head: str
    bias: str = ""
    roles: tuple[str, ...] = ("eos",)
    positions: str = ""
    position_buffers: str = ""

    def role(self, name: str) -> str | None:
        """Returns "input", "head" or "bias" for a tensor with a vocabulary axis, else None."""
        for role, pattern in (("input", self.input), ("head", self.head), ("bias", self.bias)):
            if pattern and re.fullmatch(pattern, name):
                return role
        return None


_ROBERTA = Architecture(
    base="roberta",
    input=r"(roberta\.)?embeddings\.word_embeddings\.weight",
    head=r"lm_head\.(decoder\.)?weight",
    bias=r"lm_head\.(decoder\.)?bias",
    roles=("bos", "eos", "pad", "unk", "mask"),
    positions=r"(roberta\.)?embeddings\.position_embeddings\.weight",
    position_buffers=r"(roberta\.)?embeddings\.(position_ids|token_type_ids)",
)
ARCHITECTURES = {
    "gpt2": Architecture(base="gpt2", input=r"(transformer\.)?wte\.weight", head=r"lm_head\.weight"),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
}


def architecture(model_type: str, where: object) -> Architecture:
    """Returns the record of a `model_type`; `UserError` that names `where` for an unknown one."""
    if model_type not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise UserError(f"{where}: no vocabulary surgery for model_type {model_type!r}; expected one of {known}")
    return ARCHITECTURES[model_type]


def has_no_vocabulary(name: str) -> bool:
    """Whether a tensor's name says that its first axis is not the vocabulary."""
    return bool(_NO_VOCABULARY.search(name))


def require_special_tokens(record: Architecture, target: Vocabulary, tokenizer: object, model_type: str) -> None:
    """Raises `UserError` where the target tokenizer lacks a special token that the architecture needs."""
    missing = [role for role in record.roles if target.id_with_role(role) is None]
    if missing:
        raise UserError(
            f"{tokenizer}: has no {', '.join(missing)} token, which a {model_type} model needs; expected a tokenizer with "
            f"{', '.join(record.roles)}; add the tokens to its tokenizer_config.json and tokenizer.json"
        )


def adapt_config(config: Mapping, target: Vocabulary, positions: int = 0) -> tuple[dict, list[str]]:
    """Makes a model's or a generation config fit a new vocabulary.

    `vocab_size` and `max_position_embeddings` change only where the config has them, so both kinds of config can be passed.

    Args:
      config: the content of config.json or generation_config.json.
      target: the new vocabulary, V_t tokens.
      positions: by how many rows the position table grows.

    Returns:
      The new config, and a sentence for everything that had to be left out.
    """
    new, notes = dict(config), []
    if "vocab_size" in new:
        new["vocab_size"] = len(target)
    if positions and "max_position_embeddings" in new:
        new["max_position_embeddings"] += positions
    ids = {role: target.id_with_role(role) for role in ROLES}
    bos = config.get("bos_token_id")
    if ids["bos"] is None and bos is not None and bos == config.get("eos_token_id"):
        ids["bos"] = ids["eos"]
    for role, token_id in ids.items():
        key = f"{role}_token_id"
        if key in new or (role in _ALWAYS_IN_CONFIG and token_id is not None):
            new[key] = token_id
    for key in [key for key in new if key.endswith("_token_id") and key.removesuffix("_token_id") not in ROLES]:
        same = [role for role in ROLES if new[key] is not None and config.get(f"{role}_token_id") == new[key]]
        if new[key] is not None and not same:
            notes.append(f"{key} was left out: it named source token {new[key]}, which has no special role.")
        new[key] = ids[same[0]] if same else None
    for key in _LISTS_OF_TOKENS:
        if new.pop(key, None) is not None:
            notes.append(f"{key} was left out: it listed tokens of the source vocabulary.")
    if new.pop("auto_map", None) is not None:
        notes.append("auto_map was left out: it named code that is neither run nor copied.")
    return new, notes


def position_shift(record: Architecture, config: Mapping, target: Vocabulary, tokenizer: object) -> int:
    """Returns by how many rows the position table must move because positions count from pad_token_id + 1.

    Raises:
      UserError: the shift is so large that it would waste thousands of rows.
    """
    padding = target.id_with_role("pad")
    if not record.positions or padding is None:
        return 0
    stored = config.get("pad_token_id")
    source_padding = 1 if stored is None else stored
    shift = padding - source_padding
    if abs(shift) > _MOST_PADDING_SHIFT:
        raise UserError(
            f"{tokenizer}: its pad token has id {padding}, the model's {source_padding}; this model counts positions from that "
            f"id, and its position table would grow by {shift} rows; expected a low id; give the pad token one"
        )
    return shift
