"""What vocabulary surgery must know of an architecture: where its vocabulary lies, and what depends on token ids."""

import dataclasses
import re
from collections.abc import Mapping

from wechsel_jax.errors import UserError
from wechsel_jax.tokens import Vocabulary

_MOST_PADDING_SHIFT = 1000
_MOST_COMPUTED_SHIFT = 16
# Layers, position tables, norms, projections and other tasks' heads have no vocabulary axis, even where a length agrees.
_NO_VOCABULARY = re.compile(
    r"(^|\.)\d+\.|(^|\.)(wpe|ln_f|\w*[nN]orm\w*|position_embeddings|embed_positions|position_ids|token_type_embeddings"
    r"|token_type_ids|lm_head\.dense|head\.dense|pooler|classifier|score|project_in|project_out"
    r"|embeddings_project|embedding_hidden_mapping_in|transform|vocab_transform|generator_predictions|discriminator_predictions"
    r"|vision_tower|vision_model|multi_modal_projector|visual|rel_embeddings)(\.|$)"
)


@dataclasses.dataclass(frozen=True)
class Architecture:
    """Where one `model_type` keeps its vocabulary.

    Attributes:
      base: the architecture whose tensors it has, for drawing them again.
      input: regex of the names of the input table (V, d).
      head: regex of the names of the output head (V, d).
      bias: regex of the names of the head's bias (V,) or (1, V), or "" where the architecture has none.
      roles: the special tokens without which the model cannot be used.
      positions: regex of the position table, where positions count from pad_token_id + 1; else "".
      position_buffers: regex of stored tensors that follow from the size of that table, and that transformers no longer saves.
      more_inputs: regex of the encoder's and the decoder's own input tables (V, d), usually copies of the first; else "".
      tied: whether the head is the input table where config.json does not say; None: it is where no head is stored.
      tie_setting: whether `tie_word_embeddings` decides that; the T5 family always ties and reads something else from it.
      computed_positions: positions count from pad_token_id + 1, in a table that the model computes and does not store.
      detected: the record is a guess from names and shapes.
    """

    base: str
    input: str
    head: str = r"lm_head\.weight"
    bias: str = ""
    roles: tuple[str, ...] = ("eos",)
    positions: str = ""
    position_buffers: str = ""
    more_inputs: str = ""
    tied: bool | None = True
    tie_setting: bool = True
    computed_positions: bool = False
    detected: bool = False

    def role(self, name: str) -> str | None:
        """Returns "input", "more_inputs", "head" or "bias" for a tensor with a vocabulary axis, else None."""
        for role in ("input", "more_inputs", "head", "bias"):
            pattern = getattr(self, role)
            if pattern and re.fullmatch(pattern, name):
                return role
        return None


_WORDS = r"embeddings\.word_embeddings\.weight"
_LM_DECODER = {"head": r"lm_head\.(decoder\.)?weight", "bias": r"lm_head\.(decoder\.)?bias"}
_MASKED = ("cls", "sep", "pad", "mask")


def _padded_positions(base: str, prefix: str) -> Architecture:
    return Architecture(
        base=base,
        input=rf"({prefix}\.)?{_WORDS}",
        **_LM_DECODER,
        roles=("bos", "eos", "pad", "unk", "mask"),
        positions=rf"({prefix}\.)?embeddings\.position_embeddings\.weight",
        position_buffers=rf"({prefix}\.)?embeddings\.(position_ids|token_type_ids)",
    )


def _masked(base: str, prefix: str, predictions: str) -> Architecture:
    """A BERT: the head is `predictions`.decoder, its bias stored once or twice."""
    return Architecture(
        base=base,
        input=rf"({prefix}\.)?{_WORDS}",
        head=rf"{predictions}\.decoder\.weight",
        bias=rf"{predictions}\.(decoder\.)?bias",
        roles=_MASKED,
    )


def _encoder_decoder(base: str, prefix: str, roles: tuple[str, ...], **fields: object) -> Architecture:
    return Architecture(
        base=base,
        input=rf"{prefix}shared\.weight",
        more_inputs=rf"{prefix}(encoder|decoder)\.embed_tokens\.weight",
        roles=roles,
        **fields,
    )


_ROBERTA = _padded_positions("roberta", "roberta")
_T5 = _encoder_decoder("t5", r"(transformer\.)?", ("eos", "pad"), tie_setting=False)
_BART = _encoder_decoder("bart", r"(model\.)?", ("bos", "eos", "pad"), bias="final_logits_bias")
_LLAMA = Architecture(
    base="llama",
    # A model that also sees keeps its text model under one more name, and the head beside it or inside.
    input=r"((model|language_model|text_model)\.)*embed_tokens\.weight",
    head=r"((model|language_model)\.)*lm_head\.weight",
    bias=r"lm_head\.bias",
    tied=False,
)
_GPT2 = Architecture(base="gpt2", input=r"(transformer\.)?wte\.weight")
_BLOOM = Architecture(base="bloom", input=r"(transformer\.)?word_embeddings\.weight")
_UNTIED = (
    "granite", "llama", "mistral", "mixtral", "olmo", "olmo2", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe",
    "stablelm",
)  # fmt: skip
_TIED = ("cohere", "gemma", "gemma2", "gemma3", "gemma3_text", "smollm3", "starcoder2")
ARCHITECTURES = {
    "gpt2": _GPT2,
    "gpt_neo": dataclasses.replace(_GPT2, base="gpt_neo"),
    "gptj": dataclasses.replace(_GPT2, base="gptj", bias=r"lm_head\.bias", tied=False),
    "mpt": dataclasses.replace(_GPT2, base="mpt"),
    "bloom": _BLOOM,
    "falcon": dataclasses.replace(_BLOOM, base="falcon"),
    "gpt_neox": Architecture(
        base="gpt_neox", input=r"(gpt_neox\.)?embed_in\.weight", head=r"(embed_out|lm_head)\.weight", tied=False
    ),
    "opt": Architecture(base="opt", input=r"(model\.)?(decoder\.)?embed_tokens\.weight"),
    "xglm": Architecture(
        base="xglm", input=r"(model\.)?embed_tokens\.weight", roles=("bos", "eos", "pad"), computed_positions=True
    ),
    **{name: dataclasses.replace(_LLAMA, base=name) for name in _UNTIED},
    **{name: dataclasses.replace(_LLAMA, base=name, tied=True) for name in _TIED},
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "mpnet": _padded_positions("mpnet", "mpnet"),
    "bert": _masked("bert", "bert", r"cls\.predictions"),
    "deberta-v2": _masked("deberta-v2", "deberta", r"(cls\.predictions|lm_predictions\.lm_head)"),
    "albert": _masked("albert", "albert", "predictions"),
    "distilbert": Architecture(
        "distilbert", rf"(distilbert\.)?{_WORDS}", r"vocab_projector\.weight", r"vocab_projector\.bias", _MASKED
    ),
    "electra": Architecture(
        "electra", rf"(electra\.)?{_WORDS}", r"generator_lm_head\.weight", r"generator_lm_head\.bias", _MASKED
    ),
    "modernbert": Architecture(
        "modernbert", r"(model\.)?embeddings\.tok_embeddings\.weight", r"decoder\.weight", r"decoder\.bias", _MASKED
    ),
    "t5": _T5,
    "mt5": _T5,
    "umt5": _T5,
    "bart": _BART,
    "mbart": _BART,
    "m2m_100": _encoder_decoder("m2m_100", r"(model\.)?", ("bos", "eos", "pad"), computed_positions=True),
    "marian": dataclasses.replace(_BART, base="marian", roles=("eos", "pad")),
    "pegasus": dataclasses.replace(_BART, base="pegasus", roles=("eos", "pad")),
}
_USUAL = {
    "input": r"(\w+\.)*(embed_tokens|wte|word_embeddings?|tok_embeddings|token_embeddings?|embed_in|shared"
    r"|src_tok_emb\.embedding)\.weight",
    "head": r"(\w+\.)*(lm_head|embed_out|output|lm_head\.decoder|predictions\.decoder)\.weight",
    "bias": r"(\w+\.)*(lm_head|embed_out|lm_head\.decoder|predictions|predictions\.decoder)\.bias|final_logits_bias",
}


def architecture(model_type: str, where: object, shapes: Mapping[str, tuple[int, ...]], size: int | None) -> Architecture:
    """Returns the record of a `model_type`; for an unknown one a guess, where names and shapes leave no doubt.

    Args:
      model_type: as config.json has it.
      where: that file, for messages.
      shapes: name -> shape of every tensor.
      size: V as config.json states it.

    Raises:
      UserError: an unknown `model_type` whose input table cannot be told for certain.
    """
    if model_type in ARCHITECTURES:
        return ARCHITECTURES[model_type]
    usual = {role: [name for name in shapes if re.fullmatch(pattern, name)] for role, pattern in _USUAL.items()}
    tables = [name for name in usual["input"] if len(shapes[name]) == 2 and shapes[name][0] == size]
    if len(tables) != 1:
        what = f"{len(tables)} tables ({', '.join(tables)})" if tables else "no table"
        known = ", ".join(ARCHITECTURES)
        raise UserError(
            f"{where}: no vocabulary surgery for model_type {model_type!r}, and the files hold {what} of the usual names with "
            f"vocab_size = {size} rows; expected exactly one, or one of {known}; add a record of its tensors' names to "
            "wechsel_jax.checkpoint.architectures.ARCHITECTURES"
        )
    return Architecture(model_type, re.escape(tables[0]), _USUAL["head"], _USUAL["bias"], tied=None, detected=True)


def has_no_vocabulary(name: str) -> bool:
    """Whether a tensor's name says that none of its axes is the vocabulary."""
    return bool(_NO_VOCABULARY.search(name))


def stated_size(config: Mapping) -> int | None:
    """Returns V as config.json states it, for the text model of one that also sees; None where it leaves it to the default."""
    return _text_config(config).get("vocab_size", config.get("vocab_size"))


def ties(record: Architecture, config: Mapping) -> bool | None:
    """Whether config.json says that the head is the input table; None where only the files can tell."""
    if not record.tie_setting:
        return True
    stated = [
        part["tie_word_embeddings"] for part in (config, _text_config(config)) if part.get("tie_word_embeddings") is not None
    ]
    return stated[0] is not False if stated else record.tied


def require_special_tokens(record: Architecture, target: Vocabulary, tokenizer: object, model_type: str) -> None:
    """Raises `UserError` where the target tokenizer lacks a special token that the architecture needs."""
    missing = [role for role in record.roles if target.id_with_role(role) is None]
    if missing:
        raise UserError(
            f"{tokenizer}: has no {', '.join(missing)} token, which a {model_type} model needs; expected a tokenizer with "
            f"{', '.join(record.roles)}; add the tokens to its tokenizer_config.json and tokenizer.json"
        )


def position_shift(record: Architecture, config: Mapping, target: Vocabulary, tokenizer: object) -> int:
    """Returns by how many rows the position table must move because positions count from pad_token_id + 1.

    Raises:
      UserError: the shift is so large that it would waste thousands of rows, or cannot be made good.
    """
    shift = padding_shift(record, config, target)
    limit = _MOST_COMPUTED_SHIFT if record.computed_positions else _MOST_PADDING_SHIFT
    if abs(shift) > limit:
        padding = target.id_with_role("pad")
        harm = (
            f"every position would be another by {shift}"
            if record.computed_positions
            else f"its table would grow by {shift} rows"
        )
        raise UserError(
            f"{tokenizer}: its pad token has id {padding}, the model's {padding - shift}; this model counts positions from "
            f"that id, and {harm}; expected a low id; give the pad token one"
        )
    return 0 if record.computed_positions else shift


def padding_shift(record: Architecture, config: Mapping, target: Vocabulary) -> int:
    """Returns by how much pad_token_id grows where positions count from it, in a stored or a computed table; else 0."""
    padding = target.id_with_role("pad")
    if not (record.positions or record.computed_positions) or padding is None:
        return 0
    stored = config.get("pad_token_id")
    return padding - (1 if stored is None else stored)


def _text_config(config: Mapping) -> Mapping:
    text = config.get("text_config")
    return text if isinstance(text, Mapping) else {}
