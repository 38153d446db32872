"""The merges of a BPE model, and those that new tokens need so that text comes to use them."""

from collections.abc import Container

_ROUNDS = 4


def pairs_of(model: dict) -> list[tuple[str, str]]:
    """Returns the merges of the "model" of a tokenizer.json, either of whose two spellings of them."""
    return [tuple(pair.split(" ")) if isinstance(pair, str) else tuple(pair) for pair in model["merges"]]


def write_pairs(model: dict, merges: list[tuple[str, str]]) -> None:
    """Sets the merges of the "model" of a tokenizer.json."""
    model["merges"] = [list(pair) for pair in merges]


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
