"""What makes a tokenizer chat: its template, the tokens around a turn, and the roles that the template names."""

import copy
import re
from typing import TYPE_CHECKING

from wechsel_jax.errors import UserError
from wechsel_jax.tokens.vocabulary import ROLES

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

MODES = ("keep", "replace")
# Some templates write "<|" + role + "|>" rather than "<|user|>".
_SPEAKERS = ("system", "user", "assistant", "tool", "observation")


def carry_chat(
    source: "PreTrainedTokenizerFast", target: "PreTrainedTokenizerFast", mode: str
) -> tuple["PreTrainedTokenizerFast", list[str]]:
    """Carries a chat model's template and turn tokens into the tokenizer that takes the place of its own.

    Turn tokens are the added tokens that the template names, such as <|im_start|> or <|eot_id|>, also those that it names by
    their role (`bos_token`). Where the source's eos token is one of them, as it is for most chat models, it becomes the new
    tokenizer's: otherwise a generated answer would not end. Then `apply_chat_template` gives the text that the source's gives,
    and each turn token is one id.

    Args:
      source: the model's own tokenizer, V_s ids.
      target: the new tokenizer, V_t ids; it is not changed.
      mode: "keep" appends the turn tokens that `target` lacks, with ids V_t, V_t + 1, ... and the source's flags; "replace"
        leaves `target` as it is.

    Returns:
      The tokenizer to use, and sentences on what was kept or lost: none where the source has no template, or where the new
      tokenizer has all of it, as an extended source tokenizer has. A template that `target` brings itself stays in both modes.

    Raises:
      UserError: there is no such mode.
    """
    if mode not in MODES:
        raise UserError(f"special_tokens {mode}: unknown; expected {' or '.join(MODES)}")
    template = source.chat_template
    if not template:
        return target, []
    # Some models have several templates, by name.
    text = "\n".join(template.values()) if isinstance(template, dict) else template

    def named(token: str) -> bool:
        return token in text or any(
            speaker in token and all(part in text for part in token.split(speaker)) for speaker in _SPEAKERS
        )

    added = {token.content: token for _, token in sorted(source.added_tokens_decoder.items())}
    # White space is in every template; some models have tokens for several spaces or lines.
    turns = [name for name in added if name.strip() and named(name)]
    read = [role for role in ROLES if re.search(rf"\b{role}_token\b", text)]
    roles = {role: getattr(source, f"{role}_token") for role in ROLES}
    roles = {role: name for role, name in roles.items() if name and (role in read or (role == "eos" and name in turns))}
    turns += [name for name in dict.fromkeys(roles.values()) if name not in turns]
    lacking = [name for name in turns if name not in target.get_vocab()]
    before = {role: getattr(target, f"{role}_token") for role in ROLES}
    if target.chat_template == template and not lacking and all(before[role] == name for role, name in roles.items()):
        return target, []
    if target.chat_template and target.chat_template != template:
        return target, ["The new tokenizer has a chat template of its own; the source's was left out."]
    if mode == "replace":
        lost = f", and the new tokenizer has none of its tokens {', '.join(lacking)}" if lacking else ""
        return target, [f"The source's chat template was left out{lost}: the new model cannot chat as the source does."]

    kept = copy.deepcopy(target)
    # A token that the new tokenizer knows keeps its id, and is from now on never cut.
    for name in turns:
        token = added.get(name, name)
        kept.add_tokens([token], special_tokens=getattr(token, "special", True))
    for role, name in roles.items():
        setattr(kept, f"{role}_token", name)
    kept.chat_template = copy.deepcopy(template)
    new = f"; {', '.join(lacking)} were added to the new tokenizer" if lacking else ""
    notes = [f"The source's chat template was kept{new}."]
    for role, name in roles.items():
        if before[role] != name:
            notes.append(f"{name} is the new tokenizer's {role} token, as it is the source's; it was {before[role] or 'none'}.")
    for role in read:
        if role not in roles and before[role]:
            notes.append(f"The chat template writes the {role} token, {before[role]} here; the source has none.")
    return kept, notes
