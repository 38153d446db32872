"""Text to token blocks on disk, and from there to the batch of any step.

Read `prepare` first: text of any kind becomes one file of tokens. It calls `encoder` (a document's tokens), `selection` (which
documents), `unfinished` (what a kill leaves, and how the next call goes on) and `manifest` (what the tokens were made of).
Training reads the file by `batches`, in the order that `order` computes; `ngrams` says what its counts expect after each token.

Labelled examples are read by `examples` (trees by `treebanks`, semantic roles by `propositions`), and become `rows` of tokens
in memory, or `pairs` where a translation is the label; `parallel` are sentences with links between their tokens, which `align`
writes, and `sentences` pairs of segments of prepared text. `padded` makes batches of all four.
"""

from wechsel_jax.data.batches import Dataset, TokenBlocks, evaluation_batches
from wechsel_jax.data.manifest import wait_for
from wechsel_jax.data.order import permuted
from wechsel_jax.data.prepare import prepare, prepare_split

__all__ = [
    "Dataset",
    "TokenBlocks",
    "evaluation_batches",
    "permuted",
    "prepare",
    "prepare_split",
    "wait_for",
]
