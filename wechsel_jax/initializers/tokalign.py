"""TokAlign: each new token takes the row of the source token that stands in the most similar places of the same text."""

import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Annotated

import numpy as np
from scipy.sparse import csr_array

from wechsel_jax import search
from wechsel_jax.errors import UserError
from wechsel_jax.initializers.anchors import anchored_plan
from wechsel_jax.initializers.anker.contexts import count_neighbors
from wechsel_jax.initializers.anker.sides import Language, of_text
from wechsel_jax.initializers.method import Method, Setting
from wechsel_jax.initializers.noise import keyed_generator
from wechsel_jax.initializers.plan import Side, TransferPlan
from wechsel_jax.initializers.regression import Predicted, regressed
from wechsel_jax.records import work
from wechsel_jax.search.threads import one_thread
from wechsel_jax.text.files import LONGEST_DOCUMENT
from wechsel_jax.tokens.overlap import Overlap, find_overlap

# Those of GloVe in the authors' scripts.
_WINDOW, _LEAST_COUNT, _DIMENSIONS = 15, 5, 300
# A share of shared tokens that find themselves below which the two spaces hardly say which tokens are alike.
_FEW_FOUND = 0.1


@one_thread()
def same_text_sides(
    source: Language,
    target: Language,
    *,
    pivots: Annotated[int, Setting("Shared tokens that all others are compared with", 1, 1 << 16)] = 300,
    seed: int = 0,
    text_bytes: int = 0,
    text_field: str = "text",
    max_document_bytes: int = LONGEST_DOCUMENT,
    log: Callable[[str], None],
) -> tuple[Side, Side, dict, list[str]]:
    """Makes the two sides that `tokalign` compares: tokens of both tokenizers by their similarities to shared tokens.

    Both tokenizers cut the same text, that of the source language and then that of the target language, and `glove_vectors`
    are trained on either's tokens: 300 dimensions, a window of 15 tokens, tokens that occur 5 times. A token's vector here is
    its relative representation (Moschella et al., 2023): its cosine similarities to the pivots, shared tokens drawn at random.

    Args:
      source: the source language.
      target: the target language.
      pivots: how many shared tokens are drawn, at most.
      seed: of the pivots and of GloVe.
      text_bytes: how many bytes of text are read per language, at most and about; 0: all.
      text_field: which field holds the text of JSON lines and tables.
      max_document_bytes: text with a longer line or row is refused.
      log: called with progress lines.

    Returns:
      The source side, the target side, with vectors (V, pivots) that are zeros for special tokens and those that are too rare,
      and `counts` in the text of their own language, what is known of the text, and sentences about how far the pivots carry.

    Raises:
      UserError: a file is damaged or empty, or no shared token occurs often enough.
    """
    # Here, since who lists the methods' settings need not load the libraries that read text and vectors.
    from wechsel_jax.tokens.text import BOUNDARY, read_token_ids
    from wechsel_jax.vectors.glove import glove_vectors

    texts, ended = list(dict.fromkeys((source.text, target.text))), threading.Event()

    def made(number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        language = (source, target)[number]
        size, options = len(language.vocabulary), (text_bytes, text_field, max_document_bytes)
        parts = {text: read_token_ids(language.tokenizer, text, *options) for text in texts}
        ids = np.concatenate(list(parts.values()))
        own, counts = (np.bincount(part[part != BOUNDARY], minlength=size) for part in (parts[language.text], ids))
        usable = (counts >= _LEAST_COUNT) & ~language.vocabulary.special
        name = ("source", "target")[number]
        log(f"  {name} tokenizer: {counts.sum():,} tokens of text, {usable.sum():,} tokens that occur {_LEAST_COUNT} times")
        return (
            own,
            counts,
            glove_vectors(
                token_pairs(ids, usable),
                keyed_generator(seed, f"tokalign {name}"),
                dim=_DIMENSIONS,
                progress=lambda epoch, loss: tell(f"  {name} tokenizer: GloVe, epoch {epoch}, loss {loss:.4f}"),
            ),
        )

    def tell(line: str) -> None:
        if ended.is_set():
            raise SystemExit
        log(line)

    with ThreadPoolExecutor(2) as threads:
        try:
            own, counts, vectors = zip(*threads.map(work.carried(made), range(2)), strict=True)
        except BaseException:
            # A mistake, or a signal, waits for both threads: for one epoch, then, and not for all of them.
            ended.set()
            raise
    shared = find_overlap(source.vocabulary, target.vocabulary, "exact").source
    known = np.flatnonzero((shared >= 0) & vectors[1].any(axis=1) & vectors[0].any(axis=1)[shared])
    if not len(known):
        raise UserError(
            f"{', '.join(file for text in texts for file in text)}: none of the {int((shared >= 0).sum())} tokens that both "
            f"vocabularies have occurs {_LEAST_COUNT} times; expected shared tokens to compare others with; give more text"
        )
    order = keyed_generator(seed, "tokalign pivots").permutation(known)
    drawn, others = order[:pivots], order[pivots:]
    units = [search.unit_rows(each) for each in vectors]
    for unit in units:
        work.product(*unit.shape, len(drawn))
    sides = [
        Side(language.vocabulary, unit @ unit[ids].T, counts=count)
        for language, unit, ids, count in zip((source, target), units, (shared[drawn], drawn), counts, strict=True)
    ]
    notes = []
    if len(drawn) < pivots:
        notes.append(
            f"Only {len(drawn)} shared tokens occur {_LEAST_COUNT} times and could be pivots; {pivots} were asked for."
        )
    if len(others):
        share = float((most_similar(*sides, others) == shared[others]).mean())
        told = f"Of {len(others):,} shared tokens that are no pivots, {share:.0%} are most similar to themselves"
        log(f"  {told.lower()}")
        notes.append(f"{told}: more text of both languages helps." if share < _FEW_FOUND else f"{told}.")
    texts_told = {f"{name}_text": of_text(side) for name, side in zip(("source", "target"), sides, strict=True)}
    # How frequent a token is in its own language: what the regression reads.
    sides = [replace(side, counts=count) for side, count in zip(sides, own, strict=True)]
    return *sides, {"method": "tokalign", "pivots": len(drawn), **texts_told}, notes


def token_pairs(ids: np.ndarray, usable: np.ndarray) -> csr_array:
    """(V, V) symmetric, how often usable tokens stand within 15 tokens of each other; at distance o a pair counts 1 / o.

    Args:
      ids: int32 (n,), tokens one after the other; a negative number ends a document.
      usable: bool (V,); other tokens are taken out of the text, as GloVe's program does it.
    """
    kept = ids[(ids < 0) | usable[ids]]
    after = count_neighbors(kept, len(usable), window=_WINDOW) / math.lcm(*range(1, _WINDOW + 1))
    return csr_array(after + after.T)


def tokalign(
    source: Side,
    target: Side,
    *,
    overlap: Overlap,
    regression: Predicted = False,
    progress: Callable[[int, int], None] | None = None,
    notes: Callable[[str], None] | None = None,
) -> TransferPlan:
    """Each token that is not shared has the row of its most similar source token (TokAlign, Li et al., 2025).

    Input and output rows are of the same source token; shared tokens keep their own. Our reading, after the paper and the
    authors' code: similar is the cosine of the relative representations that `same_text_sides` makes (the code takes their
    inner product, by which few source tokens, near many pivots, are the answer to most), special tokens match each other and
    never an answer, and a token too rare to have a vector is random (the code takes a random source token's row).

    Args:
      source: V_s tokens with vectors (V_s, m) of `same_text_sides`.
      target: V_t tokens likewise.
      overlap: the shared tokens; the paper matches by spelling ("exact").
      regression: rows that are not copied are those of `regressed`.
      progress: called with (tokens done, tokens to do).
      notes: see `regressed`.

    Returns:
      A plan in which every mixed row has one neighbor, of weight 1 without the regression.

    Raises:
      UserError: no source token has a vector.
    """
    wanted = np.flatnonzero(~overlap.shared & target.has_vector)
    nearest = most_similar(source, target, wanted, progress)
    plan = anchored_plan(overlap, wanted, nearest[:, None], np.ones((len(wanted), 1)))
    return regressed(plan, source, target, notes=notes) if regression else plan


def most_similar(source: Side, target: Side, ids: np.ndarray, progress: Callable[[int, int], None] | None = None) -> np.ndarray:
    """The source token of highest cosine for each of the target tokens `ids` (n,); of equal ones the first."""
    vectors = target.vectors[ids], source.vectors
    _, nearest = search.nearest_neighbors(*vectors, 1, candidates=source.has_vector, progress=progress)
    return nearest[:, 0]


TOKALIGN = Method(
    name="tokalign",
    label="TokAlign",
    color=19,
    plan=tokalign,
    text=same_text_sides,
    source_rows=True,
    paper="Li, Zhang and Zong, 2025: TokAlign",
    citation="""@inproceedings{li-etal-2025-tokalign,
  title = {{T}ok{A}lign: Efficient Vocabulary Adaptation via Token Alignment},
  author = {Li, Chong and Zhang, Jiajun and Zong, Chengqing},
  booktitle = {Proceedings of the 63rd Annual Meeting of the Association for Computational Linguistics (Volume 1: Long Papers)},
  year = {2025},
  pages = {4109--4126},
}""",
    summary="shared tokens copied, others the row of the one source token that stands in like places of the same text",
    rules=lambda settings: [
        "Both tokenizers cut the same text, in both languages; GloVe vectors of their tokens were compared by their cosine "
        "similarities to at most {pivots} shared tokens.".format(**settings),
        "A token that is not shared has the row of its most similar source token.",
    ],
    overlap="exact",
)
