"""Everything but the two models that decides the result of a transfer, checked before anything is read."""

import dataclasses
import os
from collections.abc import Sequence
from numbers import Integral, Real

from wechsel_jax.errors import UserError
from wechsel_jax.files import require_file
from wechsel_jax.initializers import METHODS, NOISES, SHUFFLES, STANDARDIZATIONS, Method
from wechsel_jax.initializers.anker.contexts import LARGEST_WINDOW
from wechsel_jax.initializers.clp import clp
from wechsel_jax.initializers.wechsel import wechsel
from wechsel_jax.text.files import LONGEST_DOCUMENT
from wechsel_jax.tokens.overlap import OVERLAPS

ALIGNED, IDENTICAL = "none", "identical"
INPUTS = ("source_vectors", "target_vectors", "dictionary", "helper", "source_text", "target_text")
TOKEN_VECTORS = ("ngram", "tfr", "native")
# Alignments that fit nothing on a dictionary: one only measures them.
WITHOUT_DICTIONARY = ("adversarial", "similarities")
_CHOICES = {
    "head_bias": ("transfer", "zeros"),
    "calibrate": ("none", "unigram"),
    "weighting": ("unique", "wechsel", "legacy"),
    "weights": ("softmax", "sparsemax"),
    "alignment": ("procrustes", *WITHOUT_DICTIONARY),
    "overlap": (None, *OVERLAPS),
    "token_vectors": (None, *TOKEN_VECTORS),
    "noise": (None, *NOISES),
    "standardize": (None, *STANDARDIZATIONS),
    "shuffle": (None, *SHUFFLES),
}
# Settings that some methods do not read.
_SOME_READ = (
    *INPUTS, "token_vectors", "alignment", "refine", "weighting", "normalize", "center", "max_words", "overlap", "symbols",
    "map", "neighbors", "temperature", "weights", "word_start", "atoms", "ridge",
    "regression", "window", "rounds", "dimensions", "text_bytes", "text_field", "max_document_bytes",
)  # fmt: skip
# The least and the most of every number. Above the most a transfer would not end, need more memory than there is or overflow.
_RANGES = {
    "neighbors": (1, 1 << 20),
    "atoms": (1, 1 << 20),
    "refine": (0, 1000),
    "max_words": (1, 1 << 31),
    "temperature": (1e-6, 1e6),
    "word_start": (0, 100),
    "ridge": (0, 1e6),
    "window": (1, LARGEST_WINDOW),
    "rounds": (0, 100),
    "dimensions": (1, 1024),
    "text_bytes": (0, 1 << 40),
    "max_document_bytes": (1, (1 << 31) - 1),
    "latent_dimension": (0, 1 << 20),
    "pad_to": (0, 1 << 16),
    "seed": (0, 2**32 - 1),
}
_FRACTIONS = ("temperature", "word_start", "ridge")


@dataclasses.dataclass(frozen=True)
class TransferSettings:
    """The settings of a transfer; a method reads those that it needs, and a note says which of the given ones it did not.

    Attributes:
      source_vectors: word vectors of the source language, any format of `vectors.load_vectors`.
      target_vectors: word vectors of the target language.
      dictionary: file of word pairs; "identical": words spelled the same; "none": the vectors share a space already.
      token_vectors: how word vectors become token vectors: "ngram" (a token is looked up like a word), "tfr" (mean over the
        words that hold it), "native" (the file's words are the tokenizer's own tokens); None: as the method's paper does.
      alignment: "procrustes" (supervised by the dictionary), or without one, which only measures then: "adversarial", or
        "similarities" (the start of `vectors.self_learning`, refined; faster, and works where adversarial training fails).
      refine: rounds of CSLS refinement after the alignment.
      weighting: how often a dictionary pair counts, see `vectors.align`; None: "wechsel" with `parity`, else "unique".
      normalize: scale word vectors to length 1 before aligning.
      center: take the mean off the word vectors before aligning.
      max_words: with token vectors "tfr", use only this many of the most frequent words.
      overlap: which tokens the vocabularies share, one of `tokens.overlap.OVERLAPS`; None: as the method's paper does.
      symbols: numbers, punctuation and blanks may match as loosely as "fuzzy" allows (FOCUS).
      map: "SOURCE:TARGET" pairs of tokens that override the overlap, see `tokens.mapping.parse_mapping`.
      helper: directory or hub id of a model of the target language, for SALT, OMP and CLP.
      neighbors: k, how many source rows make one target row.
      temperature: of the softmax over similarities.
      weights: "softmax" over the k nearest, or "sparsemax" over all (Tran, 2020), for WECHSEL.
      word_start: is added to the similarity of source tokens that begin a word if the target token does, and do not if not;
        0: nothing is. About 0.1 helps where words are written with spaces. None: 0.1 for anker, 0 for the others.
      source_text: for anker, text of the source language: files and whatever else `text.sources.find_sources` knows.
      target_text: likewise of the target language; `calibrate` reads it too.
      text_bytes: at most about so many bytes of text a language are read, evenly chosen; 0: all.
      text_field: which field holds the text of JSON lines and tables.
      max_document_bytes: text with a longer line or row is refused.
      window: how far from a token its contexts reach, for anker.
      rounds: of anker's self-learning, see `anker.vectors.AnchorSettings`.
      dimensions: of anker's vectors.
      regression: anker's rows are what contexts and frequency predict, see `initializers.anker`; else mixtures only.
      atoms: k of orthogonal matching pursuit.
      ridge: added to the diagonal of SALT's least squares.
      latent_dimension: rank to which the source tables are factorised first (OFA); 0: none.
      factorised: also write the factors, where there is a `latent_dimension`.
      noise: distribution of random rows, see `initializers.draw_noise`; None: as the method's paper does.
      standardize: what becomes of the spread of the finished table (Kim et al., section 3.4), see `initializers.standardize`.
      shuffle: what becomes of the finished table's order, see `initializers.shuffle`.
      head_bias: "transfer": the weights of the embeddings make the head's bias; "zeros".
      calibrate: "unigram": the finished head is changed so that the model's average prediction on `target_text` is the text's
        frequencies, as far as that helps on held-out text, see `transfers.calibration`; "none".
      pad_to: rows are added until the vocabulary is a multiple of this; 0: none.
      keep_source: keep every source token and its id, and append the target tokenizer's new ones.
      seed: of the noise, of every random order, of the held-out dictionary words and of the examples.
      parity: choose as the method's reference implementation does, wherever the default is another.
    """

    source_vectors: str | None = None
    target_vectors: str | None = None
    dictionary: str | None = None
    token_vectors: str | None = None
    alignment: str = "procrustes"
    refine: int = 0
    weighting: str | None = None
    normalize: bool = False
    center: bool = False
    max_words: int | None = None
    overlap: str | None = None
    symbols: bool = False
    map: tuple[str, ...] = ()
    helper: str | None = None
    neighbors: int = 10
    temperature: float = 0.1
    weights: str = "softmax"
    word_start: float | None = None
    source_text: tuple[str, ...] = ()
    target_text: tuple[str, ...] = ()
    text_bytes: int = 16 << 20
    text_field: str = "text"
    max_document_bytes: int = LONGEST_DOCUMENT
    window: int = 4
    rounds: int = 1
    dimensions: int = 128
    regression: bool = True
    atoms: int = 64
    ridge: float = 0.0
    latent_dimension: int = 0
    factorised: bool = False
    noise: str | None = None
    standardize: str | None = None
    shuffle: str | None = None
    head_bias: str = "transfer"
    calibrate: str = "none"
    pad_to: int = 0
    keep_source: bool = False
    seed: int = 0
    parity: bool = False

    @classmethod
    def of(cls, method: str | None, **given) -> tuple[Method, "TransferSettings"]:
        """Finds the method, fills in what follows from it, and refuses impossible settings.

        Args:
          method: a name in `initializers.METHODS`; None: "wechsel" where word vectors are given and no source text, else
            "anker".
          **given: fields of this class.

        Raises:
          UserError: no such method or setting, a value out of range, or a file that is needed and not there.
        """
        if method is None:
            vectors = given.get("source_vectors") or given.get("target_vectors")
            method = "wechsel" if vectors and not given.get("source_text") else "anker"
        if method not in METHODS:
            raise UserError(f"method {method!r}: no such method; expected one of {', '.join(METHODS)}")
        known = [field.name for field in dataclasses.fields(cls)]
        for name in given:
            if name not in known:
                raise UserError(f"setting {name!r}: unknown; expected some of {', '.join(known)}")
        chosen = METHODS[method]
        given = {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in given.items()}
        settings = cls(**given)
        for name in ("token_vectors", "overlap", "noise"):
            if getattr(settings, name) is None:
                default = chosen.vectors if name == "token_vectors" else getattr(chosen, name)
                settings = dataclasses.replace(settings, **{name: default})
        if settings.weighting is None:
            settings = dataclasses.replace(settings, weighting="wechsel" if settings.parity else "unique")
        if settings.word_start is None:
            settings = dataclasses.replace(settings, word_start=0.0 if settings.parity else chosen.word_start)
        listed = {name: _strings(getattr(settings, name)) for name in ("map", "source_text", "target_text")}
        settings = dataclasses.replace(settings, **listed)
        settings._check_values()
        settings._check_inputs(chosen)
        return chosen, settings

    def _check_values(self) -> None:
        for name, known in _CHOICES.items():
            value = getattr(self, name)
            if value not in known:
                raise UserError(f"{name} {value!r}: unknown; expected one of {', '.join(k for k in known if k)}")
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if value is None and name == "max_words":
                continue
            if isinstance(value, bool) or not isinstance(value, Real if name in _FRACTIONS else Integral):
                kind = "a number" if name in _FRACTIONS else "a whole number"
                raise UserError(f"{name} {value!r}: expected {kind} from {least} to {most}")
            if not value >= least:
                raise UserError(f"{name} {value}: expected at least {least}")
            if value > most:
                raise UserError(f"{name} {value}: expected at most {most}")
        if self.word_start and self.parity:
            raise UserError(
                f"word_start {self.word_start}: no reference implementation has it; expected 0 with parity; leave one out"
            )
        self._check_calibration()
        if self.factorised and not self.latent_dimension:
            raise UserError("factorised: there is nothing to factorise; expected a latent_dimension above zero")
        if self.dictionary == ALIGNED and (self.refine or self.alignment != "procrustes"):
            name = "refine" if self.refine else f"alignment {self.alignment!r}"
            raise UserError(
                f"{name}: dictionary {ALIGNED!r} says that the vectors share a space already; expected one of the two; leave "
                "out the other"
            )

    def _check_calibration(self) -> None:
        if self.calibrate == "none":
            return
        if self.parity:
            raise UserError(f"calibrate {self.calibrate}: no reference implementation has it; expected none with parity")
        if self.factorised:
            raise UserError(
                f"calibrate {self.calibrate}: changes tables that are written as factors too; expected one of the two"
            )
        if not self.target_text:
            raise UserError(
                f"calibrate {self.calibrate}: no target_text; expected text in the target language to count tokens in"
            )

    def files(self) -> list[str]:
        """What the settings say to read, but for the two models."""
        named = (getattr(self, name) for name in INPUTS)
        return [file for value in named if value for file in _strings(value)]

    def _check_inputs(self, method: Method) -> None:
        """The method can do what is asked for, and the files that it needs are named and there."""
        if method.redraw_inner and self.keep_source:
            raise UserError(
                f"keep_source: {method.name} draws every parameter again and keeps no token's row; choose another method"
            )
        if method.helper and not self.helper:
            raise UserError(
                f"method {method.name}: no helper; expected the directory or hub id of a model of the target language, whose "
                "embeddings say which tokens are alike"
            )
        needed = method.needs if self.alignment == "procrustes" else tuple(n for n in method.needs if n != "dictionary")
        missing = [name for name in needed if not getattr(self, name)]
        if method.text and bool(self.source_vectors) != bool(self.target_vectors):
            raise UserError(
                f"method {method.name}: word vectors of one language only; expected source_vectors and target_vectors; give "
                "both or neither"
            )
        if missing:
            expected = "text in both languages, or another method" if method.text else "word vectors of the target language"
            if method.space == "both" and not method.text:
                expected = (
                    "two files of word vectors and a dictionary of word pairs, or "
                    f"{IDENTICAL!r} for words spelled the same, or {ALIGNED!r} for vectors that share a space already"
                )
            raise UserError(f"method {method.name}: no {' and no '.join(missing)}; expected {expected}")
        files = ("source_vectors", "target_vectors", "dictionary") if method.text else method.needs
        for name in files:
            value = getattr(self, name)
            if value and not (name == "dictionary" and value in (ALIGNED, IDENTICAL)):
                require_file(value, "a dictionary of word pairs" if name == "dictionary" else "word vectors")

    def unused(self, method: Method) -> tuple[str, ...]:
        """Names of the settings that were given and that the method does not read."""
        reads = {*method.needs, *(("helper",) if method.helper else ()), *method.options} - {"overlap"}
        if method.text:
            reads |= {"dictionary", "source_vectors", "target_vectors"}
            reads |= {"text_bytes", "text_field", "max_document_bytes", "window", "rounds", "dimensions"}
            if self.source_vectors:
                reads |= {"token_vectors", "alignment", "refine", "weighting", "normalize", "center"}
        if (self.weights == "sparsemax" and "weights" in reads) or (self.parity and method.plan is clp):
            reads -= {"neighbors"}
        if method.vectors is not None:
            reads |= {"token_vectors", *(("max_words",) if self.token_vectors == "tfr" else ())}
            if method.space == "both" and self.dictionary != ALIGNED:
                reads |= {"alignment", "refine", "weighting", "normalize", "center"}
        if self.calibrate != "none":
            reads |= {"target_text", "text_bytes", "text_field", "max_document_bytes"}
        if reads_overlap(method, self):
            reads |= {"overlap", "symbols", "map"}
        usual = {field.name: field.default for field in dataclasses.fields(self)}
        usual |= {"word_start": 0.0 if self.parity else method.word_start}
        usual |= {"overlap": method.overlap, "weighting": "wechsel" if self.parity else "unique"}
        return tuple(name for name in _SOME_READ if getattr(self, name) != usual[name] and name not in reads)


def reads_overlap(method: Method, settings: TransferSettings) -> bool:
    """Whether the method copies the shared tokens: WECHSEL's reference does not, and `full_rand` copies none."""
    return "overlap" in method.options and not (settings.parity and method.plan is wechsel)


def _strings(values: str | Sequence[str]) -> tuple[str, ...]:
    values = (values,) if isinstance(values, str | os.PathLike) else values
    return tuple(os.fspath(value) for value in values if os.fspath(value))
