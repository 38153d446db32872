"""Everything but the two models that decides the result of a transfer, checked before anything is read."""

import dataclasses
import os
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from wechsel_jax.errors import UserError
from wechsel_jax.files import require_file
from wechsel_jax.initializers import METHODS
from wechsel_jax.initializers.method import Method, Own, Setting
from wechsel_jax.initializers.noise import KINDS as NOISES
from wechsel_jax.initializers.regression import RESIDUAL
from wechsel_jax.initializers.transforms import SHUFFLES, STANDARDIZATIONS
from wechsel_jax.text.files import LONGEST_DOCUMENT
from wechsel_jax.text.parallel import BESIDE, PARALLEL, require_parallel
from wechsel_jax.text.sources import find_sources
from wechsel_jax.tokens.chat import MODES as CHAT_MODES
from wechsel_jax.tokens.overlap import OVERLAPS

ALIGNED, IDENTICAL = "none", "identical"
INPUTS = ("source_vectors", "target_vectors", "dictionary", "helper", "source_text", "target_text", "parallel")
# Alignments that fit nothing on a dictionary: one only measures them.
WITHOUT_DICTIONARY = ("adversarial", "similarities")
_ALIGNMENT = ("alignment", "refine", "weighting", "normalize", "center")
_TEXT = ("text_bytes", "text_field", "max_document_bytes")
_WITH_TEXT = {
    "calibrate": "count tokens in",
    "distill": "find new tokens in",
    "match_attention": "read",
    "tune_coefficients": "read",
}
# Of these, what the source model's own layers are run for.
FITTED = ("distill", "match_attention", "tune_coefficients")
_OVERLAP = ("overlap", "symbols", "map")
# Settings of this module that some methods do not read.
_SOME_READ = (*INPUTS, "token_vectors", *_ALIGNMENT, "max_words", *_OVERLAP, *_TEXT)


def _choice(help: str, *choices: str) -> Any:
    return Annotated[str, Setting(help, choices=choices)]


@dataclasses.dataclass(frozen=True)
class TransferSettings:
    """The settings of a transfer: those that methods share, and in `own` those that methods have of their own.

    What a field means and may be stands in its `Setting`, of which the flags of `wechsel-jax transfer` are made. A method reads
    those that it needs, and a note says which of the given ones it did not. None: as the method's paper does.
    """

    source_vectors: Annotated[str | None, Setting("Word vectors of the source language: .bin, .vec, .txt or .npz")] = None
    target_vectors: Annotated[str | None, Setting("Word vectors of the target language")] = None
    dictionary: Annotated[
        str | None,
        Setting("File of word pairs; 'identical': words spelled the same; 'none': the vectors share a space already"),
    ] = None
    helper: Annotated[
        str | None, Setting("A model of the target language (directory or hub id), whose embeddings say which tokens are alike")
    ] = None
    source_text: Annotated[
        tuple[str, ...], Setting("Text of the source language: files, patterns, data sets; may be given several times")
    ] = ()
    target_text: Annotated[tuple[str, ...], Setting("Text of the target language; --calibrate reads it too")] = ()
    parallel: Annotated[
        tuple[str, ...],
        Setting(f"{PARALLEL[0].upper()}{PARALLEL[1:]}; the source language first; may be given several times"),
    ] = ()
    text_bytes: Annotated[
        int, Setting("At most about so many bytes of text a language are read, evenly chosen; 0: all", 0, 1 << 40)
    ] = 16 << 20
    text_field: Annotated[str, Setting("Of JSON lines and tables, the field that holds the text")] = "text"
    max_document_bytes: Annotated[int, Setting("Refuse text with a longer line or row", 1, (1 << 31) - 1)] = LONGEST_DOCUMENT
    token_vectors: _choice(
        "How word vectors become token vectors (ngram: a token is looked up like a word; tfr: the mean over the words that "
        "hold it; native: the file's words are the tokenizer's tokens)",
        *("ngram", "tfr", "native"),
    ) = None
    max_words: Annotated[int, Setting("With tfr token vectors: use only so many of the most frequent words", 1, 1 << 31)] = None
    alignment: _choice(
        "How the two languages' vectors are aligned (without procrustes, a dictionary only measures)",
        *("procrustes", *WITHOUT_DICTIONARY),
    ) = "procrustes"
    refine: Annotated[int, Setting("Rounds of CSLS refinement after the alignment", 0, 1000)] = 0
    weighting: _choice("How often a dictionary pair counts", "unique", "wechsel", "legacy") = None
    normalize: Annotated[bool, Setting("Scale word vectors to length 1 before aligning")] = False
    center: Annotated[bool, Setting("Take the mean off the word vectors before aligning")] = False
    overlap: _choice("Which tokens count as shared, and are copied", *OVERLAPS) = None
    symbols: Annotated[bool, Setting("Numbers, punctuation and blanks match as loosely as fuzzy allows (FOCUS)")] = False
    map: Annotated[tuple[str, ...], Setting("SOURCE:TARGET, a pair of tokens that overrides the overlap")] = ()
    noise: _choice("Distribution of random rows", *NOISES) = None
    latent_dimension: Annotated[
        int, Setting("Rank to factorise the source tables to first, as OFA does; 0: not at all", 0, 1 << 20)
    ] = 0
    factorised: Annotated[bool, Setting("Write the factors too, where there is a latent_dimension")] = False
    standardize: _choice("Change the spread of the finished table (Kim et al., section 3.4)", *STANDARDIZATIONS) = None
    shuffle: _choice("Shuffle the finished table (Kim et al., section 3.4)", *SHUFFLES) = None
    head_bias: _choice("What becomes of the bias of the output head", "transfer", "zeros") = "transfer"
    calibrate: _choice(
        "Fit average predictions to the frequencies in target_text, as far as that helps on held-out text", "none", "unigram"
    ) = "none"
    distill: Annotated[
        int,
        Setting(
            "Fit the input rows of new tokens to what the source model, which reads the language, makes of its own tokens, on "
            "so many snippets of target_text for each; 0: do not",
            0,
            1 << 20,
        ),
    ] = 0
    match_attention: Annotated[
        int,
        Setting(
            "Fit the input rows of new tokens by so many steps on target_text to how the source model, which reads the "
            "language, attends with its own tokens; 0: do not",
            0,
            1 << 20,
        ),
    ] = 0
    tune_coefficients: Annotated[
        int,
        Setting(
            "Move all rows at once along the coordinates of their tokens by so many training steps on target_text, under the "
            "frozen model; 0: do not",
            0,
            1 << 20,
        ),
    ] = 0
    pad_to: Annotated[int, Setting("Add rows until the vocabulary is a multiple of this; 0: none", 0, 1 << 16)] = 0
    keep_source: Annotated[bool, Setting("Keep every source token, and append the target tokenizer's new ones")] = False
    special_tokens: _choice(
        "A chat model's template and turn tokens are kept, with new ids where the new tokenizer lacks them, or left out",
        *CHAT_MODES,
    ) = "keep"
    seed: Annotated[int, Setting("Of every random number", 0, 2**32 - 1)] = 0
    parity: Annotated[bool, Setting("Choose as the method's reference implementation does wherever ours differs")] = False
    own: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, method: str | None, **given) -> tuple[Method, "TransferSettings"]:
        """Finds the method, fills in what follows from it, and refuses impossible settings.

        Args:
          method: a name in `initializers.METHODS`; None: "wechsel" where word vectors are given and no source text, else
            "anker".
          **given: fields of this class, and methods' own settings.

        Raises:
          UserError: no such method or setting, a value out of range, or a file that is needed and not there.
        """
        if method is None:
            vectors = given.get("source_vectors") or given.get("target_vectors")
            method = "wechsel" if vectors and not given.get("source_text") else "anker"
        if method not in METHODS:
            raise UserError(f"method {method!r}: no such method; expected one of {', '.join(METHODS)}")
        chosen = METHODS[method]
        settings = cls.checked(chosen, **given)
        settings._require_inputs(chosen)
        return chosen, settings

    @classmethod
    def checked(cls, method: Method, **given) -> "TransferSettings":
        """The settings as in `of`, before there are the files that they name.

        Raises:
          UserError: no such setting, a value out of range, or two that contradict each other.
        """
        check_values(given)
        settings = cls.filled(method, **given)
        settings._refuse_contradictions(method)
        return settings

    @classmethod
    def filled(cls, method: Method, **given) -> "TransferSettings":
        """The settings with everything that follows from the method; nothing is checked."""
        fields = {field.name for field in dataclasses.fields(cls)} - {"own"}
        given = {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in given.items()}
        settings = cls(**{name: value for name, value in given.items() if name in fields})
        follows = {"token_vectors": method.vectors, "overlap": method.overlap, "noise": method.noise}
        follows["weighting"] = "wechsel" if settings.parity else "unique"
        new = {name: value for name, value in follows.items() if getattr(settings, name) is None}
        new |= {name: strings(getattr(settings, name)) for name in ("map", "source_text", "target_text", "parallel")}
        own = {}
        for name, described in own_settings().items():
            default = method.settings.get(name, described).default
            if name in method.settings and settings.parity and described.setting.parity is not None:
                default = described.setting.parity
            own[name] = default if given.get(name) is None else given[name]
        return dataclasses.replace(settings, own=own, **new)

    @classmethod
    def read_by(cls, method: Method, given: Mapping[str, Any]) -> dict[str, Any]:
        """The given settings without those that the method does not read: no mistake where nobody named the method."""
        unread = cls.filled(method, **given).unused(method)
        return {name: value for name, value in given.items() if name not in unread}

    def by_name(self) -> dict[str, Any]:
        """All settings, shared and own, by name."""
        shared = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "own"}
        return shared | dict(self.own)

    def files(self) -> list[str]:
        """What the settings say to read, but for the two models."""
        values = (value for name in INPUTS for value in strings(getattr(self, name) or ()))
        return [file for value in values for file in value.split(BESIDE)]

    def _refuse_contradictions(self, method: Method) -> None:
        for name, described in own_settings().items():
            value, expected = self.own[name], described.setting.parity
            if self.parity and expected is not None and value not in (None, expected):
                raise UserError(
                    f"{name} {value}: no reference implementation has it; expected {expected:g} with parity; leave one out"
                )
        for name in _WITH_TEXT:
            value = getattr(self, name)
            if value in ("none", 0):
                continue
            if self.parity:
                raise UserError(f"{name} {value}: no reference implementation has it; leave parity or {name} out")
            if self.factorised:
                raise UserError(f"{name} {value}: changes tables that are written as factors too; expected one of the two")
            if not self.target_text:
                raise UserError(f"{name} {value}: no target_text; expected text in the target language to {_WITH_TEXT[name]}")
        for name in FITTED:
            if getattr(self, name) and (self.standardize or self.shuffle):
                raise UserError(
                    f"{name} {getattr(self, name)}: rows are fitted to the source's own tables; expected no standardize and no "
                    "shuffle"
                )
        if self.factorised and not self.latent_dimension:
            raise UserError("factorised: there is nothing to factorise; expected a latent_dimension above zero")
        if self.factorised and (self.standardize or self.shuffle):
            raise UserError("factorised: the factors are of the table before standardize or shuffle; expected one of the two")
        if self.dictionary == ALIGNED and (self.refine or self.alignment != "procrustes"):
            name = "refine" if self.refine else f"alignment {self.alignment!r}"
            raise UserError(
                f"{name}: dictionary {ALIGNED!r} says that the vectors share a space already; expected one of the two; leave "
                "out the other"
            )
        if method.redraw_inner and self.latent_dimension:
            raise UserError(
                f"latent_dimension {self.latent_dimension}: {method.name} keeps nothing of the source model, whose table these "
                "dimensions are of; leave it out"
            )
        if method.redraw_inner and self.keep_source:
            raise UserError(
                f"keep_source: {method.name} draws every parameter again and keeps no token's row; choose another method"
            )
        for name in FITTED:
            if method.redraw_inner and getattr(self, name):
                raise UserError(
                    f"{name} {getattr(self, name)}: {method.name} keeps nothing of the source model; choose another method"
                )
        if self.parallel and "parallel" not in method.needs:
            readers = ", ".join(other.name for other in METHODS.values() if "parallel" in other.needs)
            raise UserError(f"parallel: {method.name} does not read it; expected method {readers}, or no parallel text")
        if self.own["regression"] and "regression" not in method.settings:
            readers = ", ".join(other.name for other in METHODS.values() if "regression" in other.settings)
            raise UserError(f"regression: {method.name} does not read it; expected method {readers}; or leave it out")
        if method.text is None and self.own["regression"]:
            if self.parity:
                raise UserError("regression: no reference implementation has it; expected regression or parity; leave one out")
            if bool(self.source_text) != bool(self.target_text):
                raise UserError(
                    "regression: text of one language only, to count its tokens in; expected source_text and target_text; give "
                    "both or neither"
                )
            if not (method.features or self.source_text):
                raise UserError(
                    f"regression: {method.name} has no vectors of both languages' tokens to predict rows from; expected "
                    "source_text and target_text, to count how frequent tokens are"
                )
        if "residual" in method.settings and self.own["residual"] != RESIDUAL and not self.own["regression"]:
            raise UserError(
                f"residual {self.own['residual']:g}: without a regression there are no residuals; expected one of the two; "
                "leave residual or noregression out"
            )

    def _require_inputs(self, method: Method) -> None:
        """The files that the method needs are named and there."""
        if method.helper and not self.helper:
            raise UserError(
                f"method {method.name}: no helper; expected the directory or hub id of a model of the target language, whose "
                "embeddings say which tokens are alike"
            )
        needed = method.needs if self.alignment == "procrustes" else tuple(n for n in method.needs if n != "dictionary")
        missing = [name for name in needed if not getattr(self, name)]
        if method.takes_words and bool(self.source_vectors) != bool(self.target_vectors):
            raise UserError(
                f"method {method.name}: word vectors of one language only; expected source_vectors and target_vectors; give "
                "both or neither"
            )
        if missing:
            expected = "text in both languages, or another method" if method.text else "word vectors of the target language"
            if missing == ["parallel"]:
                expected = PARALLEL
            elif method.space == "both" and not method.text:
                expected = (
                    "two files of word vectors and a dictionary of word pairs, or "
                    f"{IDENTICAL!r} for words spelled the same, or {ALIGNED!r} for vectors that share a space already"
                )
            raise UserError(f"method {method.name}: no {' and no '.join(missing)}; expected {expected}")
        files = ("source_vectors", "target_vectors", "dictionary") if method.takes_words else method.needs
        for name in (name for name in files if name not in ("source_text", "target_text")):
            value = getattr(self, name)
            if name == "parallel":
                require_parallel(value)
            elif value and not (name == "dictionary" and value in (ALIGNED, IDENTICAL)):
                require_file(value, "a dictionary of word pairs" if name == "dictionary" else "word vectors")
        # One side's text may take long to count before the other's is opened.
        find_sources((*self.source_text, *self.target_text), self.text_field, self.max_document_bytes)

    def unused(self, method: Method) -> tuple[str, ...]:
        """Names of the settings that differ from their defaults and that the method does not read."""
        reads = {*method.needs, *(("helper",) if method.helper else ()), *method.settings}
        if method.text:
            reads |= {*_TEXT}
        if method.takes_words:
            reads |= {"source_vectors", "target_vectors"}
            # Tokens of the same bytes are anchors without it.
            reads |= {"dictionary"} if self.source_vectors or self.dictionary not in (ALIGNED, IDENTICAL) else set()
            if self.source_vectors:
                reads |= {"token_vectors", *_ALIGNMENT, *(("max_words",) if self.token_vectors == "tfr" else ())}
        if self.parallel:
            reads.add("max_document_bytes")
        if "regression" in method.settings and self.own["regression"]:
            reads |= {"source_text", "target_text", *_TEXT}
        if method.vectors is not None:
            reads |= {"token_vectors", *(("max_words",) if self.token_vectors == "tfr" else ())}
            if method.space == "both" and self.dictionary != ALIGNED:
                reads |= {*_ALIGNMENT}
        if self.dictionary == IDENTICAL or self.alignment in WITHOUT_DICTIONARY:
            reads.discard("weighting")
        if self.dictionary == IDENTICAL and self.alignment in WITHOUT_DICTIONARY:
            reads.discard("dictionary")
        if any(getattr(self, name) not in ("none", 0) for name in _WITH_TEXT):
            reads |= {"target_text", *_TEXT}
        if "overlap" in method.options:
            reads |= {*_OVERLAP}
        values = self.by_name()
        unread = method.unread(values)
        reads -= unread | ({*_OVERLAP} if "overlap" in unread else set())
        usual = {name: described.default for name, described in described_settings().items()}
        usual |= {"overlap": method.overlap, "weighting": "wechsel" if self.parity else "unique"}
        usual |= {"token_vectors": method.vectors}
        names = (*_SOME_READ, *own_settings())
        return tuple(name for name in names if name not in reads and values[name] not in (usual[name], None))


def own_settings() -> dict[str, Own]:
    """Every method's own settings by name; the default of one on which methods differ is None."""
    found: dict[str, Own] = {}
    for method in METHODS.values():
        for name, described in method.settings.items():
            same = found.get(name, described)
            found[name] = same if same.default == described.default else same._replace(default=None)
    return found


def described_settings() -> dict[str, Own]:
    """Every setting of a transfer by name, shared ones and methods' own: type, default and what it means."""
    hints = typing.get_type_hints(TransferSettings, include_extras=True)
    shared = {}
    for field in dataclasses.fields(TransferSettings):
        if field.name != "own":
            kind, setting = typing.get_args(hints[field.name])[:2]
            kind = next((one for one in (int, float, bool) if kind is one), tuple if "tuple" in str(kind) else str)
            shared[field.name] = Own(kind, field.default, setting)
    return shared | own_settings()


def check_values(given: Mapping[str, Any], where: str = "") -> None:
    """Raises `UserError` where there is no such setting, or a value is out of range; `where` stands before its name."""
    known = described_settings()
    for name, value in given.items():
        if name not in known:
            raise UserError(f"{where}{name}: no such setting; expected one of {', '.join(sorted(known))}")
        if not (value is None and known[name].default is None):
            known[name].setting.check(f"{where}{name}", value, known[name].kind)


def strings(values: str | Sequence[str]) -> tuple[str, ...]:
    """One name or several, as text, without empty ones."""
    values = (values,) if isinstance(values, str | os.PathLike) else values or ()
    return tuple(os.fspath(value) for value in values if os.fspath(value))
