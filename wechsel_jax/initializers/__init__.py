"""From two vocabularies to the target's embedding matrix: one plan, however it was made.

A new method is a module like those imported here, and its record in the list.

>>> METHODS["wechsel"].label, METHODS["wechsel"].needs
('WECHSEL', ('source_vectors', 'target_vectors', 'dictionary'))
"""

from wechsel_jax.initializers.anker.method import ANKER
from wechsel_jax.initializers.clp import CLP, CLP_NEAREST
from wechsel_jax.initializers.focus import FOCUS
from wechsel_jax.initializers.full_rand import FULL_RAND
from wechsel_jax.initializers.method import Method, Setting
from wechsel_jax.initializers.multivariate import MEAN, MULTIVARIATE
from wechsel_jax.initializers.noise import KINDS as NOISES
from wechsel_jax.initializers.noise import draw_noise
from wechsel_jax.initializers.ofa import OFA
from wechsel_jax.initializers.omp import OMP
from wechsel_jax.initializers.pieces import ASYMMETRIC, FVT
from wechsel_jax.initializers.plan import Side, TransferPlan
from wechsel_jax.initializers.salt import SALT
from wechsel_jax.initializers.sava import SAVA
from wechsel_jax.initializers.tokalign import TOKALIGN
from wechsel_jax.initializers.trans_inner import TRANS_INNER, TRANS_INNER_SHUFFLE
from wechsel_jax.initializers.trans_tokenization import TRANS_TOKENIZATION
from wechsel_jax.initializers.transforms import SHUFFLES, STANDARDIZATIONS, shuffle, standardize
from wechsel_jax.initializers.trelm import TRELM
from wechsel_jax.initializers.wechsel import WECHSEL, WECHSEL_TFR

__all__ = [
    "AUTO", "METHODS", "NOISES", "SHUFFLES", "STANDARDIZATIONS", "Method", "Setting", "Side", "TransferPlan", "draw_noise",
    "shuffle", "standardize",
]  # fmt: skip

# As the name of a method: the one that a transfer chooses itself.
AUTO = "auto"
METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        WECHSEL,
        WECHSEL_TFR,
        ANKER,
        OFA,
        FOCUS,
        SALT,
        SAVA,
        OMP,
        CLP,
        CLP_NEAREST,
        TRELM,
        TRANS_TOKENIZATION,
        TOKALIGN,
        FVT,
        ASYMMETRIC,
        MEAN,
        MULTIVARIATE,
        TRANS_INNER,
        TRANS_INNER_SHUFFLE,
        FULL_RAND,
    )
}
