"""Where words live: word vectors of any format, their training and alignment, and subword vectors made from them."""

from wechsel_jax.vectors.adversarial import AdversarialSettings, adversarial_align
from wechsel_jax.vectors.alignment import Alignment, align
from wechsel_jax.vectors.archive import save_vectors
from wechsel_jax.vectors.dictionaries import read_dictionary
from wechsel_jax.vectors.refinement import Refinement
from wechsel_jax.vectors.subwords import native_vectors, ngram_vectors, tfr_vectors
from wechsel_jax.vectors.training import train_vectors
from wechsel_jax.vectors.word_formats import load_vectors
from wechsel_jax.vectors.word_vectors import PlainVectors, WordVectors

__all__ = [
    "AdversarialSettings",
    "Alignment",
    "PlainVectors",
    "Refinement",
    "WordVectors",
    "adversarial_align",
    "align",
    "load_vectors",
    "native_vectors",
    "ngram_vectors",
    "read_dictionary",
    "save_vectors",
    "tfr_vectors",
    "train_vectors",
]
