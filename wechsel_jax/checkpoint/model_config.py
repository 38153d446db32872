"""A model's config.json and generation_config.json for another vocabulary: sizes and the ids of special tokens."""

import os
import re
from collections.abc import Collection, Mapping

from wechsel_jax.errors import UserError
from wechsel_jax.tokens import Vocabulary

ROLES = ("bos", "eos", "pad", "unk", "mask", "cls", "sep")
# transformers reads these from any config.json; the other roles are changed only where a config has them already.
_ALWAYS_IN_CONFIG = ("bos", "eos", "pad")
# Generation settings that list token ids; kept where every id is that of a special token with a counterpart.
_LISTS_OF_IDS = ("bad_words_ids", "begin_suppress_tokens", "force_words_ids", "suppress_tokens")
# Generation settings that are about the old vocabulary in another way.
_OF_THE_OLD_VOCABULARY = ("constraints", "forced_decoder_ids", "sequence_bias", "stop_strings")
# Placeholders for what is not text; transformers wants a number there, and -1 is no token's.
_PLACEHOLDER = re.compile(r"(\w+_token_index|(image|video|audio|vision\w*|bo[iav]|eo[iav])_token_id)")

_LARGEST = 2**31
# Standard deviations of new weights lie below 1; what is far above becomes infinite in half precision.
_WIDEST_RANGE = 10.0


def check_config(config: Mapping, place: str | os.PathLike) -> None:
    """Checks the fields of a config.json or generation_config.json that are read here; any of them may be missing or null.

    Args:
      config: the content.
      place: the file, for messages.

    Raises:
      UserError: a field is of another type or out of range; the message names both.
    """
    for name, value in config.items():
        for pattern, kind, fits in _FIELDS:
            if value is not None and re.fullmatch(pattern, name) and not fits(value):
                shown = ascii(value)
                shown = shown if len(shown) <= 40 else f"{shown[:37]}..."
                raise UserError(f"{place}: {name} is {shown}; expected {kind}; copy the file again, or mend it")
    if config.get("text_config") is not None:
        check_config(config["text_config"], f"{place}: text_config")


def _is_whole(value: object, least: int = -_LARGEST) -> bool:
    return type(value) is int and least <= value < _LARGEST


# Names of fields, what is expected there, and whether a value is that.
_FIELDS = (
    ("model_type", "the name of an architecture", lambda value: isinstance(value, str) and len(value) <= 100),
    (
        "architectures",
        "a list of names of classes",
        lambda value: isinstance(value, list) and all(isinstance(name, str) for name in value),
    ),
    ("text_config", "an object", lambda value: isinstance(value, Mapping)),
    ("(decoder_)?vocab_size", "a whole number above zero", lambda value: _is_whole(value, 1)),
    ("max_position_embeddings", "a whole number", _is_whole),
    ("num_hidden_layers|n_layer", "a number of layers", lambda value: _is_whole(value, 1)),
    (
        "initializer_range",
        f"a number from 0 to {_WIDEST_RANGE:g}",
        lambda value: type(value) in (int, float) and 0 <= value <= _WIDEST_RANGE,
    ),
    ("tie_word_embeddings|share_encoder_decoder_embeddings", "true or false", lambda value: isinstance(value, bool)),
    ("pad_token_id", "the id of a token", _is_whole),
    (
        rf"({'|'.join(ROLES)})_token_id",
        "the id of a token, or a list of them",
        lambda value: all(map(_is_whole, value)) if isinstance(value, list) else _is_whole(value),
    ),
)


def adapt_config(
    config: Mapping,
    target: Vocabulary,
    positions: int = 0,
    rows: int | None = None,
    copied: Mapping[int, int] | None = None,
    spelled: Collection[int] = (),
) -> tuple[dict, list[str]]:
    """Makes a model's or a generation config fit a new vocabulary.

    Sizes change only where the config has them, so both kinds of config can be passed. The config of a text model inside is
    adapted too.

    Args:
      config: the content of config.json or generation_config.json.
      target: the new vocabulary, V_t tokens.
      positions: by how many rows the position table grows.
      rows: of the new tables; V_t where None.
      copied: target id -> source id of special tokens whose row is a copy.
      spelled: which of these are the same string as their source token.

    Returns:
      The new config, and a sentence for everything that had to be left out.
    """
    new, copied, notes = dict(config), copied or {}, []
    # Of several target tokens the one that spells the same, else the first.
    order = sorted(copied, key=lambda token: (token not in spelled, token), reverse=True)
    special = {copied[token]: token for token in order}
    for key in ("vocab_size", "decoder_vocab_size"):
        if key in new:
            new[key] = len(target) if rows is None else rows
    if positions and new.get("max_position_embeddings") is not None:
        new["max_position_embeddings"] += positions
    if isinstance(config.get("text_config"), Mapping):
        new["text_config"], more = adapt_config(config["text_config"], target, positions, rows, copied, spelled)
        notes += [f"text_config: {note}" for note in more]
    notes += _adapt_roles(new, config, target, copied, spelled, special)
    for key in (*_LISTS_OF_IDS, *_OF_THE_OLD_VOCABULARY):
        value = new.pop(key, None)
        mapped = _mapped(value, special) if key in _LISTS_OF_IDS and value else None
        if mapped is not None:
            new[key] = mapped
        elif value is not None:
            notes.append(f"{key} was left out: it listed tokens of the source vocabulary.")
    if new.pop("auto_map", None) is not None:
        notes.append("auto_map was left out: it named code that is neither run nor copied.")
    if new.pop("tokenizer_class", None) is not None:
        notes.append("tokenizer_class was left out: it named the source's tokenizer.")
    return new, notes


def _adapt_roles(
    new: dict,
    config: Mapping,
    target: Vocabulary,
    copied: Mapping[int, int],
    spelled: Collection[int],
    special: Mapping[int, int],
) -> list[str]:
    """Sets every "..._token_id" of `new`: by its role, by the role whose id it repeats, or by the same special token."""
    notes, ids = [], {role: target.id_with_role(role) for role in ROLES}
    bos = config.get("bos_token_id")
    if ids["bos"] is None and bos is not None and bos == config.get("eos_token_id"):
        ids["bos"] = ids["eos"]
    for role in ROLES:
        key, old = f"{role}_token_id", config.get(f"{role}_token_id")
        if isinstance(old, list) or (role == "eos" and old is not None):
            # Llama 3 lists the ends of a text and of a turn. A chat model's only one may be a turn's.
            ends = old if isinstance(old, list) else [old]
            copy_of = copied.get(ids[role])
            found = [] if ids[role] is None or copy_of in ends else [ids[role]]
            for end in ends:
                # The target's own end stands for the one that it is a copy of, beside a token that spells the same.
                if end == copy_of:
                    found.append(ids[role])
                if end in special and (end != copy_of or special[end] in spelled):
                    found.append(special[end])
            unique = list(dict.fromkeys(found))
            new[key] = unique if len(unique) > 1 else (unique or [None])[0]
            lost = [end for end in ends if end not in special]
            if special and lost:
                which = f"tokens {', '.join(map(str, lost))} have" if len(lost) > 1 else f"token {lost[0]} has"
                notes.append(f"{key}: source {which} no counterpart and {'were' if len(lost) > 1 else 'was'} left out.")
        elif key in new or (role in _ALWAYS_IN_CONFIG and ids[role] is not None):
            new[key] = special.get(old) if ids[role] is None else ids[role]
    named = [key for key in new if key.endswith(("_token_id", "_token_index"))]
    for key in [key for key in named if key.removesuffix("_token_id") not in ROLES]:
        old = new[key]
        same = [role for role in ROLES if old is not None and config.get(f"{role}_token_id") == old]
        new[key] = ids[same[0]] if same else _mapped(old, special)
        if old is not None and new[key] is None:
            notes.append(f"{key} was left out: it named source token {old}, which has no special role.")
            new[key] = -1 if _PLACEHOLDER.fullmatch(key) else None
    return notes


def _mapped(value: object, special: Mapping[int, int]) -> object:
    """The same id or (nested) list of ids in the target vocabulary; None where an id has no counterpart."""
    if isinstance(value, list):
        found = [_mapped(item, special) for item in value]
        return None if None in found else found
    return special.get(value) if isinstance(value, int) else None
