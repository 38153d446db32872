"""wechsel-jax brings a pretrained language model to a new language.

The public names below are imported when they are first used, so that `import wechsel_jax` costs nothing.

Letters in shapes: V_s, V_t sizes of the source and target vocabulary; d hidden size of the model; m dimensions of word
vectors; W words of a vector file; K neighbors; B rows of a batch; L tokens of a row; N layers.
"""

import importlib

__version__ = "0.1.0"

_HOME = {
    "Alignment": "vectors",
    "Checkpoint": "checkpoint",
    "METHODS": "initializers",
    "Side": "initializers",
    "TransferPlan": "initializers",
    "UserError": "errors",
    "Vocabulary": "tokens",
    "align": "vectors",
    "load_tokenizer": "tokens",
    "load_vectors": "vectors",
    "nearest_neighbors": "search",
    "read_dictionary": "vectors",
    "score": "inspection",
    "train": "training",
    "train_tokenizer": "tokens.training",
    "transfer": "transfers.job",
    "write_report": "report",
}

__all__ = [*_HOME, "__version__"]


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'wechsel_jax' has no attribute {name!r}")
    return getattr(importlib.import_module(f"wechsel_jax.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
