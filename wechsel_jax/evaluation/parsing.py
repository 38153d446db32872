"""Dependency trees: the best one of a matrix of scores, and how many heads and relations are right (CoNLL 2018's rules)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from wechsel_jax.errors import UserError

# (head, relation) of each word of each sentence; heads are numbers of words from 1 on, or 0, the root.
Trees = Sequence[Sequence[tuple[int, str]]]


def best_tree(scores: np.ndarray) -> np.ndarray:
    """Returns the tree whose arcs have the largest sum of scores, with one word at the root (Chu and Liu, 1965; Edmonds, 1967).

    Args:
      scores: (n, n + 1), of the arc to each word from the root (column 0) and from each word. Those of the root are finite;
        what a word says of itself is not read.

    Returns:
      int64 (n,), the head of each word: 0 for the root, else a number from 1.

    Raises:
      UserError: a score is not a number, as those of damaged weights.
    """
    count = len(scores)
    if not count:
        return np.zeros(0, np.int64)
    # Of each node the arcs to it, so that node 0 has none.
    arcs = np.full((count + 1, count + 1), -np.inf)
    arcs[1:] = scores
    np.fill_diagonal(arcs, -np.inf)
    if np.isnan(arcs).any():
        raise UserError("the score of a word's head is no number; expected weights that give one")
    heads = _best_heads(arcs)
    if np.count_nonzero(heads == 0) > 1:
        # A price that no other arcs can outweigh leaves one arc from the root, of which there must be one, in the best tree.
        # Not at first: with it a sentence is contracted, cycle by cycle, until no word is left outside.
        finite = arcs[np.isfinite(arcs)]
        arcs[1:, 0] -= 1.0 + count * (finite.max() - finite.min())
        heads = _best_heads(arcs)
    return heads


def _best_heads(arcs: np.ndarray) -> np.ndarray:
    """The head of each node but the first, of arcs (n + 1, n + 1) to each node."""
    levels = []
    while True:
        heads = arcs.argmax(axis=1)
        cycle = _cycle(heads)
        if not cycle.size:
            break
        # The words of the cycle become one node, the last, whose arcs are the best of theirs: to one word instead of the one
        # that the cycle has, or from any of them.
        others = np.setdiff1d(np.arange(len(arcs)), cycle)
        entering = arcs[np.ix_(cycle, others)] - arcs[cycle, heads[cycle]][:, None]
        leaving = arcs[np.ix_(others, cycle)]
        levels.append((others, cycle, heads[cycle], cycle[entering.argmax(axis=0)], cycle[leaving.argmax(axis=1)]))
        arcs = np.block(
            [
                [arcs[np.ix_(others, others)], leaving.max(axis=1, keepdims=True)],
                [entering.max(axis=0, keepdims=True), np.full((1, 1), -np.inf)],
            ]
        )
    for others, cycle, within, entered, left in reversed(levels):
        outside, into = heads[:-1], others[heads[-1]]
        broken = entered[heads[-1]]
        heads = np.zeros(len(others) + len(cycle), np.int64)
        heads[others] = np.where(outside == len(others), left, others[np.minimum(outside, len(others) - 1)])
        heads[cycle] = within
        heads[broken] = into
    return heads[1:]


def _cycle(heads: np.ndarray) -> np.ndarray:
    """The nodes of one cycle of heads; none where all lead to node 0."""
    seen = np.zeros(len(heads), np.int64)
    seen[0] = -1
    for start in range(1, len(heads)):
        node = start
        while not seen[node]:
            seen[node] = start
            node = heads[node]
        if seen[node] == start:
            cycle = [node]
            while (node := heads[node]) != cycle[0]:
                cycle.append(node)
            return np.sort(cycle)
    return np.zeros(0, np.int64)


def parsing_scores(gold: Trees, predicted: Trees) -> dict[str, Any]:
    """Attachment scores as `conll18_ud_eval` counts them for given words: all of them count, punctuation too.

    Args:
      gold: the right trees, relations as `data.treebanks` reads them.
      predicted: the model's, of the same words.

    Returns:
      {"uas": share of the words with the right head, "las": with the right head and relation, "items"}. Items are (right heads
      and relations, words) of each sentence, which make up the LAS.
    """
    heads, items = 0, []
    for right, found in zip(gold, predicted, strict=True):
        both = list(zip(right, found, strict=True))
        hits = [one == other for one, other in both]
        heads += sum(one == other for (one, _), (other, _) in both)
        items.append((float(sum(hits)), float(len(hits))))
    words = sum(count for _, count in items)
    return {"las": sum(hits for hits, _ in items) / words, "uas": heads / words, "items": items}
