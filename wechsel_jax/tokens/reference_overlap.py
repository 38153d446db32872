"""The overlap rules of other tools, repeated choice for choice, so that their published results can be reproduced."""

import string

import numpy as np

from wechsel_jax.tokens import BYTE_TOKEN, Vocabulary

_MANY = 100


def deepfocus_overlap(
    source: Vocabulary, target: Vocabulary, exact: bool = True, fuzzy: bool = False, symbols: bool = False
) -> tuple[np.ndarray, list[str]]:
    """Matches what PyPI deepfocus 1.0.1 matches (Dobler and de Melo, 2023), and chooses the source token that it uses.

    Tokens are compared as decoded text, all blanks at its beginning removed, with a mark where a word starts. So tokens that
    are parts of characters are all one, and special tokens match where they are spelled the same. Of several exact
    candidates the highest id is taken; of several fuzzy ones the highest that is lower case without a word start, else the
    lowest id.

    Args:
      source: V_s tokens.
      target: V_t tokens.
      exact: match equal canonical forms.
      fuzzy: then match forms without the mark and without case.
      symbols: first match special, numeric, ASCII punctuation and blank tokens, exactly or else by the fuzzy form.

    Returns:
      int32 (V_t,) source ids, -1 where nothing matches; and the name of each token's rule.
    """
    by_form, by_fuzzy = {}, {}
    for token_id, form in enumerate(_canonical(source)):
        if form is not None:
            by_form[form] = token_id
            key = _fuzzy(form)
            if form == key:
                by_fuzzy[key] = token_id
            else:
                by_fuzzy.setdefault(key, token_id)
    special = {token for token, roles in zip(target.strings, target.roles, strict=True) if roles}
    found, names = np.full(len(target), -1, np.int32), ["none"] * len(target)
    for token_id, form in enumerate(_canonical(target)):
        if form is None:
            continue
        key = _fuzzy(form)
        symbol = symbols and (key in special or _symbolic(key))
        if (exact or symbol) and form in by_form:
            found[token_id], names[token_id] = by_form[form], "exact" if exact else "symbols"
        elif (fuzzy or symbol) and key in by_fuzzy:
            found[token_id], names[token_id] = by_fuzzy[key], "fuzzy" if fuzzy else "symbols"
        if found[token_id] >= 0 and target.roles[token_id]:
            names[token_id] = "special"
    return found, names


def ofa_overlap(source: Vocabulary, target: Vocabulary, fuzzy: bool = True) -> tuple[np.ndarray, list[str]]:
    """Matches what OFA's code matches (Liu et al., 2024): equal text with its space, then without case.

    Of tokens that are decoded alike only the last one counts, on both sides; the others stay unmatched. Without case, the
    source token that sorts last as a string is taken, and source token 0 is never found.

    Args:
      source: V_s tokens.
      target: V_t tokens.
      fuzzy: match without case where nothing is equal.

    Returns:
      int32 (V_t,) source ids, -1 where nothing matches; and the name of each token's rule.
    """
    sources, targets = ({form: i for i, form in enumerate(_spaced(side)) if form is not None} for side in (source, target))
    lower = {form.lower(): sources[form] for form in sorted(sources)}
    found, names = np.full(len(target), -1, np.int32), ["none"] * len(target)
    for form, token_id in targets.items():
        if form in sources:
            found[token_id], names[token_id] = sources[form], "special" if target.roles[token_id] else "exact"
        elif fuzzy and lower.get(form.lower(), 0) > 0:
            found[token_id], names[token_id] = lower[form.lower()], "special" if target.roles[token_id] else "fuzzy"
    return found, names


def _kind(vocabulary: Vocabulary) -> str:
    """Both tools guess the kind from how many tokens have its mark."""
    if sum(token.startswith("▁") for token in vocabulary.strings) > _MANY:
        return "sentencepiece"
    return "wordpiece" if sum(token.startswith("##") for token in vocabulary.strings) > _MANY else "byte_bpe"


def _decoded(vocabulary: Vocabulary) -> list[str]:
    return [raw.decode(errors="replace") for raw in vocabulary.bytes]


def _canonical(vocabulary: Vocabulary) -> list[str | None]:
    """deepfocus's canonical forms; None for holes."""
    kind = _kind(vocabulary)
    if kind == "wordpiece":
        return [_inside(token, "▁") for token in vocabulary.strings]
    mark = "▁" if kind == "sentencepiece" else "Ġ"
    forms = []
    for token, text in zip(vocabulary.strings, _decoded(vocabulary), strict=True):
        if not token:
            forms.append(None)
        elif kind == "sentencepiece" and BYTE_TOKEN.match(token):
            forms.append(token)
        else:
            forms.append(("▁" if token.startswith(mark) else "") + text.lstrip())
    return forms


def _spaced(vocabulary: Vocabulary) -> list[str | None]:
    """OFA's forms; None for holes."""
    kind = _kind(vocabulary)
    if kind == "wordpiece":
        return [_inside(token, " ") for token in vocabulary.strings]
    if kind == "sentencepiece":
        return [token.replace("▁", " ") if token else None for token in vocabulary.strings]
    return [text if token else None for token, text in zip(vocabulary.strings, _decoded(vocabulary), strict=True)]


def _inside(token: str, mark: str) -> str | None:
    """WordPiece: the text of a token, with a mark before everything but the inside of words, special tokens too."""
    return None if not token else token[2:] if token.startswith("##") else mark + token


def _fuzzy(form: str) -> str:
    return form.replace("▁", "").lower()


def _symbolic(key: str) -> bool:
    # The empty key of a blank token counts as punctuation there, too.
    return key.isnumeric() or all(c in string.punctuation for c in key) or key.isspace()
