"""A source tokenizer with the target language's tokens appended: every source id stays what it was."""

import json
import tempfile
from collections.abc import Container
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wechsel_jax.errors import UserError
from wechsel_jax.tokens import Vocabulary, byte_level_string
from wechsel_jax.tokens.files import fast_tokenizer_class
from wechsel_jax.tokens.overlap import is_byte_fallback, match, match_special
from wechsel_jax.tokens.splitting import cuts_at_marks, keep_marks

if TYPE_CHECKING:
    import tokenizers
    from transformers import PreTrainedTokenizerFast

_ADVICE = "train the new tokenizer with the kind of the source's (wechsel-jax tokenizer), or replace the vocabulary instead"
# A piece that the text never reaches (an added token is cut out of it before) still needs a score in a unigram model.
_NEVER = 1000.0
_ROUNDS = 4
# A noncharacter of Unicode, which no text shall hold: no text is cut into a token that begins with it.
_UNREACHED = "\ufdd0"
# How a token is found in a text: as it stands there, before anything is normalised.
_LITERAL = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


def extend_tokenizer(source: "PreTrainedTokenizerFast", target: "PreTrainedTokenizerFast") -> "PreTrainedTokenizerFast":
    """Appends the target tokenizer's tokens that the source lacks, with the ids V_s, V_s + 1, ... in target id order.

    A token is lacking where the source has none of the same bytes and word start. A WordPiece source looks words up as it
    normalises them, so tokens are appended in that form: to an uncased source "Haus" comes as "haus". Special tokens are
    appended, as special tokens, where the source has none with a role in common or the same name. Other added tokens of the
    target stay what they are, found in a text before it is cut. Never appended: holes,
    byte-fallback tokens, and what the source's way of spelling cannot express (parts of characters in SentencePiece and
    WordPiece). Everything else stays the source's: normalisation, splitting, post-processing, chat template, the names of
    special tokens. One exception: a source that cuts words at combining marks, as GPT-2 and Llama 3 do, would never reach the
    words of a target that does not, so it learns to keep marks on their letters where its pattern is known (see
    `splitting.keep_marks`); text without marks is cut as before.

    How new text comes to use the new tokens depends on the model:
      BPE: the target's merges go after the source's, so known text is cut as before wherever no new token fits; then every new
        token that these do not build gets the merge of the two pieces that it is left as (see `append_merges`).
      Unigram: pieces come with their scores, log probabilities, all shifted by one number so that the most probable piece of
        the target is as probable as the source's: frequent new pieces compete with frequent old ones.
      WordPiece: the longest match wins, so the tokens alone are enough.

    A target that already extends the source (every source token has its id there) is returned as it is.

    Args:
      source: V_s ids; its class and files decide everything but the vocabulary.
      target: the tokenizer of the new language, of the source's kind: byte-level BPE, SentencePiece BPE, unigram or WordPiece.
        (Few unigram pieces can be built by merges of two others, and merges have no probabilities, so these do not mix.)

    Returns:
      A new tokenizer of V_s + N ids.

    Raises:
      UserError: the two kinds do not go together.
    """
    if target.get_vocab().items() >= source.get_vocab().items():
        return target
    vocabularies = Vocabulary.from_tokenizer(source), Vocabulary.from_tokenizer(target)
    state, donor = (json.loads(tokenizer.backend_tokenizer.to_str()) for tokenizer in (source, target))
    _require_fit(source, target, *vocabularies, state["model"], donor["model"])
    normalizer = source.backend_tokenizer.normalizer if vocabularies[0].kind == "wordpiece" else None
    spelled = {i: _spelling(vocabularies[1], i, state, vocabularies[0].kind, normalizer) for i in range(len(vocabularies[1]))}
    lacking, known = _lacking(*vocabularies), source.get_vocab()
    # Found in a text before it is cut, as special tokens are, and written as they stand there.
    apart = {token["content"] for token in donor["added_tokens"] if not token["special"]}
    whole = {i: vocabularies[1].strings[i] for i in lacking if vocabularies[1].strings[i] in apart}
    ordinary = {i: spelled[i] for i in lacking if spelled[i] is not None and i not in whole}
    new, special = _numbered(ordinary, whole, *vocabularies, known)
    _anchor_added(state)
    if cuts_at_marks(source.backend_tokenizer.pre_tokenizer) and not cuts_at_marks(target.backend_tokenizer.pre_tokenizer):
        state["pre_tokenizer"] = keep_marks(state["pre_tokenizer"])
    kind = state["model"]["type"]
    if kind == "BPE":
        state["model"]["vocab"] |= new
        _append_bpe(state["model"], donor["model"], list(new), spelled, vocabularies[1])
    elif kind == "Unigram":
        _append_unigram(state["model"], donor["model"], new, special, ordinary)
    else:
        state["model"]["vocab"] |= new
    _append_special(state, special, donor, {*whole.values()})
    return _rebuilt(source, state, known | new | special)


def place_beside(second: "PreTrainedTokenizerFast", first: "PreTrainedTokenizerFast") -> tuple["PreTrainedTokenizerFast", int]:
    """Makes one table of two vocabularies that share nothing but the special tokens around a text (Li et al., 2021, table 8).

    Text is cut as `second` cuts it. No text gives the tokens behind: those of `first`, each with an id of its own, whether
    `second` has the same one or not. Who cuts text with `first` adds the number that is returned to its ids.

    Args:
      second: V_2 ids, which stay.
      first: V_1 ids, which become V_2, V_2 + 1, ...

    Returns:
      A tokenizer of V_2 + V_1 ids, and V_2.
    """
    state = json.loads(second.backend_tokenizer.to_str())
    _anchor_added(state)
    strings, size = Vocabulary.from_tokenizer(first).strings, len(Vocabulary.from_tokenizer(second))
    # Ids without a token need a name, too: those behind them would not keep theirs.
    names = {_UNREACHED + (string or f"<{i}>"): size + i for i, string in enumerate(strings)}
    if isinstance(state["model"]["vocab"], dict):
        state["model"]["vocab"] |= names
    else:
        lowest = min(score for _, score in state["model"]["vocab"])
        state["model"]["vocab"] += [[name, lowest - _NEVER] for name in names]
    added = json.loads(first.backend_tokenizer.to_str())["added_tokens"]
    special = (_UNREACHED + token["content"] for token in added if token["special"])
    state["added_tokens"] += [{"id": names[name], "content": name, "special": True, **_LITERAL} for name in special]
    return _rebuilt(second, state, second.get_vocab() | names), size


def unreached_from(tokenizer: "PreTrainedTokenizerFast | tokenizers.Tokenizer") -> int | None:
    """The first id of what `place_beside` has placed behind a vocabulary; None where nothing was."""
    return min((i for token, i in tokenizer.get_vocab().items() if token.startswith(_UNREACHED)), default=None)


def is_beside(tokenizer: "PreTrainedTokenizerFast", first: "PreTrainedTokenizerFast") -> bool:
    """Whether `place_beside` has placed the tokens of `first` behind those of a tokenizer."""
    known, behind = tokenizer.get_vocab(), unreached_from(tokenizer)
    return behind is not None and all(known.get(_UNREACHED + token) == behind + i for token, i in first.get_vocab().items())


def _require_fit(source, target, known: Vocabulary, other: Vocabulary, model: dict, donor: dict) -> None:
    kinds = (known.kind, model["type"]), (other.kind, donor["type"])
    if kinds[0] != kinds[1]:
        names = [getattr(tokenizer, "name_or_path", "") or "the tokenizer" for tokenizer in (target, source)]
        raise UserError(
            f"{names[0]}: its tokens ({' '.join(kinds[1])}) cannot be appended to those of {names[1]} ({' '.join(kinds[0])}); "
            f"expected the same kind; {_ADVICE}"
        )


def _lacking(source: Vocabulary, target: Vocabulary) -> list[int]:
    """Target ids of ordinary tokens whose text the source has no token for."""
    same = match(source, target)
    return [
        i
        for i, found in enumerate(same.tolist())
        if found < 0 and target.bytes[i] and not target.roles[i] and not is_byte_fallback(target, i)
    ]


def _numbered(
    ordinary: dict[int, str], whole: dict[int, str], source: Vocabulary, target: Vocabulary, known: dict[str, int]
) -> tuple[dict[str, int], dict[str, int]]:
    """Gives ids to the new ordinary tokens and to those found whole in a text, special ones too; both in target id order."""
    counterpart = match_special(source, target)
    new, special = {}, {}
    following = len(source)
    for token_id in range(len(target)):
        if target.roles[token_id]:
            name, chosen = target.strings[token_id], special
            wanted = counterpart[token_id] < 0
        elif token_id in whole:
            name, chosen, wanted = whole[token_id], special, True
        else:
            name, chosen = ordinary.get(token_id, ""), new
            wanted = bool(name)
        if wanted and name not in known and name not in new and name not in special:
            chosen[name] = following
            following += 1
    return new, special


def _spelling(vocabulary: Vocabulary, token_id: int, state: dict, kind: str, normalizer: Any) -> str | None:
    """How the source would spell the target token; None where it cannot. `normalizer`: of a WordPiece source, or None."""
    raw = vocabulary.bytes[token_id]
    if vocabulary.roles[token_id] or not raw:
        return None
    if kind == "byte_bpe":
        return byte_level_string(raw)
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return None
    if kind == "sentencepiece":
        return text.replace(" ", _marker(state))
    begins, text = text.startswith(" "), text.removeprefix(" ")
    if normalizer is not None:
        text = normalizer.normalize_str(text).strip()
    if not text or text.split() != [text]:
        return None
    return text if begins else state["model"]["continuing_subword_prefix"] + text


def _marker(state: dict) -> str:
    """What the source's pieces write for a space: all SentencePiece models that we know of write this."""
    for step in (state["pre_tokenizer"], *(state["pre_tokenizer"] or {}).get("pretokenizers", ())):
        if step is not None and step["type"] == "Metaspace":
            return step["replacement"]
    return "▁"


def _anchor_added(state: dict) -> None:
    """Writes the added tokens into the model's vocabulary: otherwise the library numbers them after the new tokens."""
    model = state["model"]
    for token in sorted(state["added_tokens"], key=lambda token: token["id"]):
        if isinstance(model["vocab"], dict):
            model["vocab"].setdefault(token["content"], token["id"])
        elif token["id"] >= len(model["vocab"]):
            lowest = min(score for _, score in model["vocab"])
            model["vocab"].append([token["content"], lowest - _NEVER])


def _append_bpe(model: dict, donor: dict, new: list[str], spelled: dict[int, str | None], target: Vocabulary) -> None:
    """Appends the donor's merges, in the source's spelling, and then those that the new tokens still need."""
    by_string = {target.strings[i]: text for i, text in spelled.items() if text is not None}
    merges, known = _pairs(model), model["vocab"]
    taken = set(merges)
    for pair in ((by_string.get(left), by_string.get(right)) for left, right in _pairs(donor)):
        if pair not in taken and pair[0] in known and pair[1] in known and pair[0] + pair[1] in known:
            taken.add(pair)
            merges.append(pair)
    model["merges"] = [list(pair) for pair in append_merges(model, merges, new)]


def _append_unigram(model: dict, donor: dict, new: dict[str, int], special: dict[str, int], ordinary: dict[int, str]) -> None:
    """Appends the new pieces with their scores, and places for the special tokens among them."""
    best = [max(score for piece, score in side["vocab"] if score < 0) for side in (model, donor)]
    scores = {ordinary[i]: donor["vocab"][i][1] for i in ordinary if i < len(donor["vocab"])}
    lowest = min(score for _, score in model["vocab"] + donor["vocab"])
    for name in sorted(new | special, key=(new | special).get):
        score = scores.get(name, lowest) + best[0] - best[1] if name in new else lowest - _NEVER
        model["vocab"].append([name, score])


def _append_special(state: dict, special: dict[str, int], donor: dict, ordinary: Container[str]) -> None:
    """Appends tokens that are found whole in a text; all but `ordinary` ones are special."""
    flags = {token["content"]: token for token in donor["added_tokens"]}
    for name, token_id in special.items():
        own = {"id": token_id, "content": name, "special": name not in ordinary}
        state["added_tokens"].append(_LITERAL | flags.get(name, {}) | own)
        if isinstance(state["model"]["vocab"], dict):
            state["model"]["vocab"][name] = token_id


def _rebuilt(source: "PreTrainedTokenizerFast", state: dict, expected: dict[str, int]) -> "PreTrainedTokenizerFast":
    """The source's own files with the new state in place of tokenizer.json."""
    with tempfile.TemporaryDirectory() as directory:
        source.save_pretrained(directory)
        (Path(directory) / "tokenizer.json").write_text(json.dumps(state, ensure_ascii=False), encoding="utf-8")
        # Not `load_tokenizer`, which names special tokens where the files do not.
        extended = fast_tokenizer_class().from_pretrained(directory, local_files_only=True)
    extended.name_or_path = source.name_or_path
    if extended.get_vocab() != expected:
        moved = min(expected.items() ^ extended.get_vocab().items(), key=lambda item: item[1])
        raise UserError(
            f"{source.name_or_path}: token {moved[0]!r} would not keep its id {moved[1]} in an extended tokenizer; expected "
            "one id for each token; replace the vocabulary instead"
        )
    return extended


def _pairs(model: dict) -> list[tuple[str, str]]:
    """Returns the merges of the "model" of a tokenizer.json, either of whose two spellings of them."""
    return [tuple(pair.split(" ")) if isinstance(pair, str) else tuple(pair) for pair in model["merges"]]


def append_merges(model: dict, merges: list[tuple[str, str]], new: list[str]) -> list[tuple[str, str]]:
    """Returns `merges` and after them those that build the new tokens which these cannot.

    A token that comes out as two pieces gets the merge of the two; that may help longer ones, so it is done until nothing
    changes. Where a token comes out as more pieces, it gets every merge of two known tokens that gives it, as in SentencePiece
    vocabularies written as merges. A token whose parts the earlier merges cut otherwise may still never come out: that the
    earlier ones keep their priority, and so known text its tokens, matters more.

    Args:
      model: the "model" of a tokenizer.json with the new tokens in its vocabulary.
      merges: pairs in order of priority.
      new: the tokens to reach, the most important first.
    """
    merges, known = list(merges), model["vocab"]
    taken = set(merges)
    for attempt in range(_ROUNDS):
        before = len(merges)
        # What is reached stays reached: later merges come after those that reach it.
        unreached = [(token, pieces) for token, pieces in _segmented(model, merges, new) if len(pieces) > 1]
        for token, pieces in unreached:
            pairs = [(pieces[0], pieces[-1])] if len(pieces) == 2 else _splits(token, known) if attempt == 0 else []
            fresh = [pair for pair in pairs if pair not in taken and pair[0] + pair[1] == token]
            taken.update(fresh)
            merges += fresh
        new = [token for token, _ in unreached]
        if len(merges) == before:
            break
    return merges


def _splits(token: str, known: Container[str]) -> list[tuple[str, str]]:
    """Every two known tokens that give `token`."""
    splits = ((token[:i], token[i:]) for i in range(1, len(token)))
    return [pair for pair in splits if pair[0] in known and pair[1] in known]


def _segmented(model: dict, merges: list[tuple[str, str]], tokens: list[str]) -> list[tuple[str, list[str]]]:
    """What the merges make of each token's characters, without normalisation and splitting."""
    from tokenizers import Tokenizer, models

    # Direct look-ups of whole words, dropout and byte fallback would hide what the merges do.
    backend = Tokenizer(models.BPE(vocab=model["vocab"], merges=merges, unk_token=model["unk_token"]))
    # `encode_batch_fast` leaves the tokens' strings out.
    return [(token, encoding.tokens) for token, encoding in zip(tokens, backend.encode_batch(tokens), strict=True)]
