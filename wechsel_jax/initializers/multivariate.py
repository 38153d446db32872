"""Baselines that keep what two vocabularies share and know nothing of the other tokens but how source rows are distributed."""

from collections.abc import Callable

from wechsel_jax.initializers.method import Method
from wechsel_jax.initializers.plan import Side, TransferPlan
from wechsel_jax.initializers.regression import Predicted, regressed_by_counts
from wechsel_jax.initializers.salt import CITATION, PAPER
from wechsel_jax.tokens.overlap import Overlap


def multivariate(source: Side, target: Side, *, overlap: Overlap) -> TransferPlan:
    """Shared tokens copied, the others from N(m, C) of the source table: the baseline "Multivariate" of the SALT paper.

    The draw itself is `draw_noise`'s kind "multivariate", with the full covariance C of the source rows divided by V_s. It is
    not what Hugging Face's `resize_token_embeddings(mean_resizing=True)` draws: that scales C by 1e-9, see `mean`.

    Args:
      source: V_s tokens; nothing but their number matters.
      target: V_t tokens.
      overlap: the shared tokens, special tokens included.

    Returns:
      A plan whose rows are copied or random.
    """
    del source, target
    return TransferPlan.copied(overlap.source)


def mean(
    source: Side,
    target: Side,
    *,
    overlap: Overlap,
    regression: Predicted = False,
    notes: Callable[[str], None] | None = None,
) -> TransferPlan:
    """Shared tokens copied, every other one the mean of all source rows (Hewitt, 2021: Initializing New Word Embeddings).

    Hugging Face's `resize_token_embeddings(mean_resizing=True)` gives new rows N(m, 1e-9 C), which is the mean with a trace of
    noise; here (`draw_noise`'s kind "mean") it is the mean itself, the same row for all of these tokens.

    Args:
      source: V_s tokens; nothing but their number matters.
      target: V_t tokens.
      overlap: the shared tokens, special tokens included.
      regression: rows that are not copied are those of `regressed_by_counts`: the mean given frequency and word start.
      notes: see `regressed`.

    Returns:
      A plan whose rows are copied or "random"; that the latter are the mean is the noise's business.
    """
    plan = multivariate(source, target, overlap=overlap)
    return regressed_by_counts(plan, source, target, notes) if regression else plan


MULTIVARIATE = Method(
    name="multivariate",
    label="Multivariate",
    color=12,
    plan=multivariate,
    paper=f"{PAPER}, section 4 (Multivariate)",
    citation=CITATION,
    summary="shared tokens copied, others drawn from a Gaussian with the source table's covariance",
    overlap="exact",
    noise="multivariate",
)
MEAN = Method(
    name="mean",
    label="Mean",
    color=10,
    plan=mean,
    paper="Hewitt, 2021: Initializing New Word Embeddings for Pretrained Language Models",
    citation="""@misc{hewitt-2021-initializing,
  title = {Initializing New Word Embeddings for Pretrained Language Models},
  author = {Hewitt, John},
  year = {2021},
}""",
    summary="shared tokens copied, all others the mean of the source table",
    overlap="exact",
    noise="mean",
    features="",
)
