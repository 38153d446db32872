"""What a transfer writes down about itself: which rules it used, example tokens, norms, versions and timings."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from wechsel_jax.initializers import Method, TransferPlan
from wechsel_jax.initializers.noise import OFA_SEED
from wechsel_jax.initializers.regression import RESIDUAL
from wechsel_jax.inspection.origins import drawn_origins
from wechsel_jax.records.transfer import Example
from wechsel_jax.tokens import Vocabulary
from wechsel_jax.transfers.settings import ALIGNED, IDENTICAL, WITHOUT_DICTIONARY, TransferSettings
from wechsel_jax.vectors import Refinement

_EXAMPLES = 30
_REPORT_EVERY = 2.0


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
        """Returns a function of (done, of all) that logs at most every two seconds, with what is left at the rate so far."""
        start = last = time.monotonic()

        def progress(done: int, total: int) -> None:
            nonlocal last
            if (now := time.monotonic()) - last >= _REPORT_EVERY:
                last = now
                left = (now - start) * (total - done) / max(1, done)
                self.log(f"  {what}: {done} of {total}, {left:.0f} s left")

        return progress


def behaviour(method: Method, settings: TransferSettings) -> list[str]:
    """Returns a plain sentence for every rule on which tools differ, as it was applied."""
    rules, own = [], settings.own
    if method.vectors is not None:
        rules.append(_TOKEN_VECTORS[settings.token_vectors, settings.parity and settings.token_vectors == "ngram"])
        if method.space == "both":
            rules += _alignment_rules(settings)
        if "neighbors" in method.settings:
            rules += [
                "Every source token can be a neighbor, those without a vector too, with similarity 0 (parity)."
                if settings.parity and method.space == "both"
                else "Source tokens without a vector are never neighbors.",
                "Equal similarities are ordered by the lower token id.",
            ]
    rules += method.rules(settings.by_name())
    if "regression" in method.settings and own["regression"]:
        share = own["residual"] if "residual" in method.settings else RESIDUAL if method.features else 1
        known = ", ".join(filter(None, [method.features, "frequency" if settings.source_text else ""]))
        rules.append(
            f"A row that is not copied is predicted from its token's {known} and word start by ridge regression on the source "
            f"tokens; added to it is {share:g} times the weighted residual of its neighbors."
        )
        if method.text and settings.target_vectors:
            rules.append("A token too rare in the text is not predicted, but mixed by the word vectors alone.")
    if "word_start" in method.settings and own["word_start"]:
        rules.append(
            f"A source token counts as {own['word_start']:g} more similar if it and the target token both begin a word, or "
            "both do not."
        )
    if method.redraw_inner:
        kept = "its shape" if settings.noise in ("xavier", "initializer_range") else "its shape, and what rows are drawn like,"
        rules.append(f"Every parameter is drawn again as for a new model; nothing of the source model but {kept} is kept.")
    else:
        rules += _overlap_rules(method, settings)
        rules.append(
            "All tensors without a vocabulary axis are kept byte for byte, but for a table of positions that are counted from "
            "the pad token, where its id has moved."
        )
    if settings.parity and settings.noise in _PARITY_NOISE:
        # The factors' noise is drawn as OFA's code draws it, whatever the method.
        seed = OFA_SEED if settings.latent_dimension else method.reference_seed
        rules.append(_PARITY_NOISE[settings.noise].format(seed=seed))
    else:
        rules.append(_NOISE[settings.noise])
    if settings.head_bias != "transfer":
        moved = settings.calibrate != "none" or settings.tune_coefficients
        rules.append(f"The head's bias is zero{' before what is told below' if moved else ''}.")
    elif not method.redraw_inner:
        # With the same weights, unless the method's own rules say otherwise.
        rules.append("The head's bias is made of the same source tokens as the embeddings.")
    return rules + _table_rules(settings)


def _overlap_rules(method: Method, settings: TransferSettings) -> list[str]:
    if "overlap" not in method.options or "overlap" in method.unread(settings.by_name()):
        # Then the method's own rules tell.
        return []
    if settings.parity and method.reference_overlap:
        rules = [_REFERENCE_OVERLAP[method.reference_overlap]]
    else:
        rules = ["Special tokens are copied from the source token that is spelled the same, else from one with the same role."]
    if settings.overlap != "special":
        rules.append(_OVERLAP[settings.overlap])
    if settings.symbols:
        rules.append("Numbers, punctuation and blanks are copied from a token with the same text but for case and blanks.")
    if settings.map:
        rules.append(f"Pairs of tokens given by hand come before every other rule: {', '.join(settings.map)}.")
    return rules


def _alignment_rules(settings: TransferSettings) -> list[str]:
    if settings.dictionary == ALIGNED:
        return ["The word vectors were taken as they are: they share a space already."]
    if settings.alignment == "adversarial":
        rules = ["The word vectors were aligned adversarially, without a dictionary."]
    elif settings.alignment == "similarities":
        rules = ["The word vectors were aligned by each word's similarities to its own language, without a dictionary."]
    else:
        rules = [_WEIGHTING[IDENTICAL if settings.dictionary == IDENTICAL else settings.weighting]]
    # A map that no dictionary supervised is always refined.
    count = settings.refine or (Refinement.rounds if settings.alignment in WITHOUT_DICTIONARY else 0)
    if count:
        rounds = "1 round" if count == 1 else f"{count} rounds"
        rules.append(f"The alignment was refined in {rounds} on mutual CSLS nearest neighbors.")
    return rules


def _table_rules(settings: TransferSettings) -> list[str]:
    rules = []
    if settings.latent_dimension:
        rules.append(
            f"Source tables were factorised to rank {settings.latent_dimension} first (OFA); what is said of random "
            "rows is said of their coordinates."
        )
    if settings.standardize:
        rules.append(f"The finished tables were standardised: {settings.standardize} (Kim et al., section 3.4).")
    if settings.shuffle:
        rules.append(f"The finished tables were shuffled: {settings.shuffle} (Kim et al., section 3.4).")
    if settings.keep_source:
        calibrated = settings.calibrate != "none"
        changed = settings.latent_dimension or settings.standardize or settings.shuffle or calibrated
        kept = "ids" if changed else "ids and rows"
        rules.append(f"All source tokens keep their {kept}; the target tokenizer's new tokens were appended.")
    if settings.tune_coefficients:
        rules.append(
            f"Rows that are not copied and have coordinates were moved along them by {settings.tune_coefficients} training "
            "steps on target_text under the frozen model, as far as held-out text agreed."
        )
    if settings.distill:
        rules.append(
            f"Input rows of new tokens were fitted on at most {settings.distill} snippets of target_text each, to the source "
            "model's hidden states behind its own tokens (Token Distillation), as far as held-out snippets agreed."
        )
    if settings.match_attention:
        rules.append(
            f"Input rows of new tokens were fitted by {settings.match_attention} steps on target_text to the source model's "
            "attention (attention influence modelling), as far as held-out text agreed."
        )
    if settings.calibrate != "none":
        rules.append(
            "The head was fitted so that the model's average prediction is the frequencies of tokens in target text, as far as "
            "that lowered the loss on held-out text."
        )
    if settings.pad_to:
        rules.append(f"Rows were added until the vocabulary was a multiple of {settings.pad_to}; no token has them.")
    return rules


_TOKEN_VECTORS = {
    ("ngram", True): "A token is looked up by decode(id).strip(), for special tokens too (parity).",
    ("ngram", False): "A token is looked up by its exact bytes as UTF-8, stripped; special tokens, parts of characters "
    "and blanks have no vector.",
    ("tfr", False): "A token's vector is the frequency-weighted mean over the words whose encoding holds it, with and without "
    "a space.",
    ("native", False): "A token is looked up by its own spelling among tokens that the word vectors were trained on.",
}
_OVERLAP = {
    "exact": "Tokens with the same bytes and the same start of a word are copied.",
    "case": "Tokens with the same text but for case and the same start of a word are copied; the same case is preferred.",
    "nospace": "Tokens with the same bytes are copied, whether or not they start a word; one that agrees in that is preferred.",
    "fuzzy": "Tokens with the same text but for case and the start of a word are copied; the most alike is preferred.",
}
_WEIGHTING = {
    "unique": "Each distinct pair of spellings (as given, lower case, title case) in the dictionary counts once.",
    "wechsel": "Pairs of spellings in the dictionary count as often as wechsel 0.0.4 repeats them (parity).",
    "legacy": "Dictionary pairs count once in lower and once in title case, as in the WECHSEL paper's scripts.",
    "identical": "The words that both languages spell the same stand in for a dictionary.",
}
_NOISE = {
    "source": "Random rows have the source table's mean and deviation of each dimension, keyed by seed and row.",
    "source_sample": "Random rows have the source table's mean and sample deviation of each dimension, keyed by seed and row.",
    "multivariate": "Random rows have the source table's mean and covariance, keyed by seed and row.",
    "mean": "Tokens without an origin get the mean of the source table.",
    "xavier": "Random rows are uniform with Xavier's bound, keyed by seed and row; random entries of a bias are zero.",
    "initializer_range": "Random rows are N(0, initializer_range), keyed by seed and row; random entries of a bias are zero.",
}
_PARITY_NOISE = {
    "source": "Random rows have the source table's mean and deviation of each dimension, from RandomState({seed}) (parity).",
    "source_sample": "Random rows have the source table's mean and sample deviation of each dimension, as torch draws them "
    "with seed {seed} (parity).",
}
_REFERENCE_OVERLAP = {
    "deepfocus": "Tokens, special ones too, are compared by their decoded text, as in PyPI deepfocus 1.0.1 (parity).",
    "ofa": "Tokens, special ones too, are compared by their decoded text, and the last of equal ones counts, as in cisnlp/ofa "
    "(parity).",
}


def examples(plan: TransferPlan, source: Vocabulary, target: Vocabulary, seed: int) -> tuple[Example, ...]:
    """Draws 30 target tokens (no special ones) and says where each came from, its heaviest source tokens first."""
    found = drawn_origins(plan, source, target, seed, _EXAMPLES)
    return tuple(Example(one["target"], one["how"], tuple(map(tuple, one["sources"]))) for one in found)
