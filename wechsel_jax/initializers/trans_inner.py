"""Baselines that keep the inner layers and take no word vectors: new random embeddings, or the old ones shuffled."""

import numpy as np

from wechsel_jax.initializers.method import Method
from wechsel_jax.initializers.noise import keyed_generator
from wechsel_jax.initializers.plan import Side, TransferPlan
from wechsel_jax.tokens.overlap import Overlap


def trans_inner(source: Side, target: Side, *, overlap: Overlap | None = None) -> TransferPlan:
    """Random embeddings under transferred inner layers (de Vries and Nissim, 2021; "TransInner" in Minixhofer et al., 2022).

    Neither paper gives the deviation: the noise is N(0, initializer_range), which agrees with the published perplexities before
    training. Special tokens mean the same in every language and are copied.

    Args:
      source: V_s tokens.
      target: V_t tokens.
      overlap: shared tokens, which are copied; None: the special tokens.

    Returns:
      A plan whose rows are all random but for the shared tokens.
    """
    plan = TransferPlan.all_random(len(target.vocabulary))
    return plan.with_special_tokens(source, target) if overlap is None else plan.with_copies(overlap.source)


def trans_inner_shuffle(source: Side, target: Side, *, overlap: Overlap | None = None, seed: int = 0) -> TransferPlan:
    """Source embeddings in a random order under transferred inner layers ("TransInnerShuffleEmb"; Zoph et al., 2016).

    No source token is drawn twice before all have been drawn once, those that shared tokens copy among them. Special tokens are
    copied and take no part; ids without a token are never a source.

    Args:
      source: V_s tokens.
      target: V_t tokens.
      overlap: shared tokens, which are copied and not shuffled; None: the special tokens.
      seed: of the order.

    Returns:
      A plan in which every row is copied.
    """
    plan = trans_inner(source, target, overlap=overlap)
    shuffled = np.flatnonzero(plan.copy < 0)
    pool = np.flatnonzero(source.vocabulary.is_token & ~source.vocabulary.special)
    if not len(pool):
        return plan
    generator = keyed_generator(seed, "trans_inner_shuffle")
    rounds = -(-len(shuffled) // len(pool))
    order = np.concatenate([generator.permutation(pool) for _ in range(rounds)] or [pool[:0]])
    copy = np.full(len(plan), -1, np.int32)
    copy[shuffled] = order[: len(shuffled)]
    return plan.with_copies(copy)


TRANS_INNER = Method(
    name="trans_inner",
    label="TransInner",
    color=1,
    plan=trans_inner,
    paper="de Vries and Nissim, 2021: As Good as New",
    citation="""@inproceedings{de-vries-nissim-2021-good,
  title = {As Good as New. How to Successfully Recycle {E}nglish {GPT}-2 to Make Models for Other Languages},
  author = {de Vries, Wietse and Nissim, Malvina},
  booktitle = {Findings of the Association for Computational Linguistics: ACL-IJCNLP 2021},
  year = {2021},
  pages = {836--846},
}""",
    summary="random embeddings, inner layers kept",
    noise="initializer_range",
)
TRANS_INNER_SHUFFLE = Method(
    name="trans_inner_shuffle",
    label="TransInner-Shuffle",
    color=9,
    plan=trans_inner_shuffle,
    paper="Zoph, Yuret, May and Knight, 2016: Transfer Learning for Low-Resource Neural Machine Translation",
    citation="""@inproceedings{zoph-etal-2016-transfer,
  title = {Transfer Learning for Low-Resource Neural Machine Translation},
  author = {Zoph, Barret and Yuret, Deniz and May, Jonathan and Knight, Kevin},
  booktitle = {Proceedings of the 2016 Conference on Empirical Methods in Natural Language Processing},
  year = {2016},
}""",
    summary="source embeddings in random order, inner layers kept",
    noise="initializer_range",
)
