"""Which token of a sentence translates which of the other: links, from a model of our own, from eflomal or from files.

Read `diagonal` first, the model; `links` reads, joins and scores what it or another aligner found.
"""

from wechsel_jax.aligner.diagonal import DiagonalSettings, align_diagonal
from wechsel_jax.aligner.links import SYMMETRIES, alignment_error_rate, last_links, read_links, symmetrize

__all__ = [
    "SYMMETRIES",
    "DiagonalSettings",
    "align_diagonal",
    "alignment_error_rate",
    "last_links",
    "read_links",
    "symmetrize",
]
