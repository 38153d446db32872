"""What a transfer writes down about itself: which rules it used, example tokens, norms, versions and timings."""

import contextlib
import importlib.metadata
import platform
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np

from wechsel_jax.initializers import Method, TransferPlan
from wechsel_jax.tokens import Vocabulary

_EXAMPLES = 30
_ROWS_AT_ONCE = 8192
_REPORT_EVERY = 2.0
_WORD_START = {"byte_bpe": "Ġ", "sentencepiece": "▁"}
_PACKAGES = ("wechsel-jax", "jax", "numpy", "tokenizers", "transformers")


def to_stderr(line: str) -> None:
    """Prints a progress line."""
    print(line, file=sys.stderr, flush=True)


class Steps:
    """Names the steps of a job as they begin, and keeps how many seconds each took."""

    def __init__(self, log: Callable[[str], None]):
        self.log = log
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self.log(f"{name} ...")
        start = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - start, 3)

    def counter(self, what: str) -> Callable[[int, int], None]:
        """Returns a function of (done, of all) that logs at most every two seconds."""
        last = time.monotonic()

        def progress(done: int, total: int) -> None:
            nonlocal last
            if time.monotonic() - last >= _REPORT_EVERY:
                last = time.monotonic()
                self.log(f"  {what}: {done} of {total}")

        return progress


def behaviour(method: Method, parity: bool, aligned: bool, weighting: str, head_bias: str) -> list[str]:
    """Returns a plain sentence for every rule on which tools differ, as it was applied."""
    rules = []
    if method.vectors == "ngram":
        rules.append(
            "A token is looked up by decode(id).strip(), for special tokens too (parity)."
            if parity
            else "A token is looked up by its exact bytes as UTF-8, stripped; special tokens, parts of characters "
            "and blanks have no vector."
        )
    elif method.vectors == "tfr":
        rules.append(
            "A token's vector is the frequency-weighted mean over the words whose encoding holds it, with and without a space."
        )
    if method.vectors is not None and not aligned:
        rules.append(_WEIGHTING[weighting])
    if method.vectors is not None:
        rules.append(
            "Every source token can be a neighbor, those without a vector too, with similarity 0 (parity)."
            if parity
            else "Source tokens without a vector are never neighbors."
        )
        rules.append("Equal similarities are ordered by the lower token id.")
    if method.redraw_inner:
        rules.append("Every parameter is drawn again as for a new model; nothing of the source model but its shape is kept.")
    else:
        rules.append(
            "Special tokens are copied from the source token that is spelled the same (parity)."
            if parity and method.vectors is not None
            else "Special tokens are copied from the source token with the same role."
        )
        rules.append("All tensors without a vocabulary axis are kept byte for byte.")
    rules.append(_NOISE["parity" if parity and method.noise == "source" else method.noise])
    rules.append(
        "The head's bias is made of the same source tokens with the same weights as the embeddings."
        if head_bias == "transfer"
        else "The head's bias is zero."
    )
    return rules


_WEIGHTING = {
    "unique": "Each distinct pair of spellings (as given, lower case, title case) in the dictionary counts once.",
    "wechsel": "Pairs of spellings in the dictionary count as often as wechsel 0.0.4 repeats them (parity).",
    "legacy": "Dictionary pairs count once in lower and once in title case, as in the WECHSEL paper's scripts.",
    "identical": "The words that both languages spell the same stand in for a dictionary.",
}
_NOISE = {
    "source": "Tokens without a vector get noise with the source table's mean and deviation, keyed by seed and row.",
    "initializer_range": "Random rows are N(0, initializer_range), keyed by seed and row; random entries of a bias are zero.",
    "parity": "Tokens without a vector get noise with the source table's mean and deviation, from RandomState(1234) (parity).",
}


def examples(plan: TransferPlan, source: Vocabulary, target: Vocabulary, seed: int) -> list[dict]:
    """Draws 30 target tokens (no special ones) and says where each came from, its heaviest source tokens first."""
    ordinary = np.flatnonzero(~np.asarray(target.special) & np.array([bool(string) for string in target.strings], bool))
    chosen = np.sort(np.random.default_rng(seed).permutation(ordinary)[:_EXAMPLES])
    return [origin(plan, source, target, int(token_id)) for token_id in chosen]


def origin(plan: TransferPlan, source: Vocabulary, target: Vocabulary, token_id: int) -> dict:
    """Says where one target token came from: {"target", "how", "sources": [[source token, weight], ...]}."""
    if plan.random[token_id]:
        how, sources = "random", []
    elif plan.copy[token_id] >= 0:
        how, sources = "copied", [[readable(source, int(plan.copy[token_id])), 1.0]]
    else:
        weights = plan.weights[token_id]
        order = [k for k in np.argsort(-np.abs(weights), kind="stable") if weights[k]]
        sources = [[readable(source, int(plan.neighbors[token_id, k])), round(float(weights[k]), 4)] for k in order]
        how = "mixed"
    return {"target": readable(target, token_id), "how": how, "sources": sources}


def readable(vocabulary: Vocabulary, token_id: int) -> str:
    """A token as a person reads it: "Ġfür" rather than byte-level BPE's "ĠfÃ¼r"; the mark of a word's start is kept."""
    string, raw = vocabulary.strings[token_id], vocabulary.bytes[token_id]
    mark = _WORD_START.get(vocabulary.kind)
    if vocabulary.special[token_id] or mark is None:
        return string
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return string
    text = mark + text[1:] if text.startswith(" ") else text
    return text if text.isprintable() else string


def row_norms(table: np.ndarray) -> dict[str, float]:
    """Mean and standard deviation of the lengths of the rows of a table (V, d)."""
    blocks = range(0, len(table), _ROWS_AT_ONCE)
    norms = [np.linalg.norm(table[start : start + _ROWS_AT_ONCE].astype(np.float32), axis=1) for start in blocks]
    lengths = np.concatenate(norms).astype(np.float64)
    return {"mean": float(lengths.mean()), "std": float(lengths.std())}


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that decide the result."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found
