"""What a run is made of but its text: the tokenizer, the model, the objective, and how it is evaluated."""

import contextlib
import copy
import dataclasses
import difflib
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.checkpoint.model_config import check_config
from wechsel_jax.checkpoint.tensors import read_header
from wechsel_jax.data import evaluation_batches
from wechsel_jax.data.batches import Batch, Rows, TokenBlocks
from wechsel_jax.data.examples import FORMS
from wechsel_jax.data.pairs import TranslationRows
from wechsel_jax.data.parallel import ParallelRows
from wechsel_jax.data.rows import LabelledRows, padding_id, with_special_tokens
from wechsel_jax.data.sentences import SentencePairs
from wechsel_jax.errors import UserError, parsing
from wechsel_jax.evaluation import perplexity
from wechsel_jax.evaluation.labels import label_scores
from wechsel_jax.evaluation.loaded import TARGET_TOKENIZER, tokenizer_note
from wechsel_jax.evaluation.translation import greedy_bleu
from wechsel_jax.models import Family, ModelConfig, family
from wechsel_jax.models.config import fields_read
from wechsel_jax.models.heads import (
    NEXT_SENTENCE,
    PRETRAINING,
    ROLES,
    fill_head,
    is_translator,
    stated_head,
    with_head,
    with_next_sentence,
)
from wechsel_jax.models.trilayer import PREFIX
from wechsel_jax.models.vanilla import MODEL_TYPE, TRANSLATOR
from wechsel_jax.models.weights import flatten, unflatten
from wechsel_jax.objectives import Objective, make_objective
from wechsel_jax.objectives.labels import label_objective
from wechsel_jax.objectives.translation import TranslationObjective
from wechsel_jax.tokens import Vocabulary, load_tokenizer
from wechsel_jax.training import sharding
from wechsel_jax.training.config import as_dict
from wechsel_jax.training.step import INIT_STREAM, stream_key

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

TABLE = "embeddings"


# What published files also say, and no model of today's `transformers` has by these names.
_HARMLESS = re.compile(
    r"architectures|model_type|transformers_version|torch_dtype|num_labels|task_specific_params|n_ctx|gradient_checkpointing"
    r"|directionality|pooler_\w+|output_past|cache_implementation|\w+_token_id"
)
# How alike a field must be to one that is known to be taken for a slip.
_SLIP = 0.7
# What a config.json says of the labels of an earlier head.
_OF_A_HEAD = ("id2label", "label2id", "num_labels", "problem_type", ROLES)


@dataclasses.dataclass(frozen=True)
class ModelSpec:
    """A model without its weights: what training builds, and what an export writes besides them.

    Attributes:
      family: the model's family.
      config: its configuration.
      hf_config: fields of `config.json`, as they will be exported.
      generation_config: fields of `generation_config.json` of the checkpoint, where it has one.
      tokenizer: also exported.
      multiple: on the devices, vocabulary axes are padded to a multiple of it; exported tensors are not.
      target_tokenizer: of an encoder-decoder's translations; also exported.
    """

    family: Family
    config: ModelConfig
    hf_config: dict[str, Any]
    generation_config: dict[str, Any] | None
    tokenizer: "PreTrainedTokenizerFast"
    multiple: int = 1
    target_tokenizer: "PreTrainedTokenizerFast | None" = None

    @property
    def head(self) -> bool:
        """Whether it has a head for labels in place of the one for tokens."""
        return self.config.labels > 0

    @property
    def device_config(self) -> ModelConfig:
        """The configuration of the parameters on the devices."""
        return padded(self.config, self.multiple)

    @functools.cached_property
    def vocabulary(self) -> Vocabulary:
        """What the tokens of the tokenizer are."""
        return Vocabulary.from_tokenizer(self.tokenizer)


@dataclasses.dataclass(frozen=True)
class Evaluator:
    """How held-out data is scored.

    Attributes:
      batches: (data, rows of a batch, most batches or None, rows to read) -> batches, each of one shape of few.
      scores: (parameters, placed batches, data, key) -> scores, "loss" among them, for a line of the metrics.
    """

    batches: Callable[[Any, int, int | None, Rows], Iterator[Batch]]
    scores: Callable[[Any, Iterable[Any], Any, jax.Array], dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class RunSpec:
    """What a run trains, apart from the data.

    Attributes:
      model: without its weights.
      objective: what is minimised.
      evaluator: what its evaluations are.
      load_parameters: returns the initial parameters, nested float32 numpy arrays or functions that each build one; None: they
        are drawn, see `initial`.
      notes: what the user should know about them.
    """

    model: ModelSpec
    objective: Objective
    evaluator: Evaluator
    load_parameters: Callable[[], dict[str, Any]] | None
    notes: tuple[str, ...] = ()

    def initial(self, seed: int, shardings: Any) -> dict[str, Any]:
        """Returns the initial parameters, padded, where they shall live: those of `load_parameters`, or new ones."""
        model = self.model
        if self.load_parameters is not None:
            return sharding.put(pad(self.load_parameters(), model.family, model.config, model.multiple)[0], shardings)

        def draw(key: jax.Array) -> dict[str, Any]:
            return pad(model.family.init(model.config, key), model.family, model.config, model.multiple)[0]

        return jax.jit(draw, out_shardings=shardings)(stream_key(seed, INIT_STREAM))


def build_run(config: ConfigDict, weights: bool = True) -> RunSpec:
    """Opens everything that the settings name but the text.

    Args:
      config: settings of the run.
      weights: whether to read the checkpoint that the run starts from once, for weights that do not fit or are not finite; a
        run that goes on from its own needs none of them.

    Raises:
      UserError: something is missing, damaged or does not fit together.
    """
    model = named_model(config)
    if config.block_length > model.config.max_length:
        raise UserError(
            f"block_length: {config.block_length} is more than the model's {model.config.max_length} positions; "
            f"expected at most that: --config.block_length={model.config.max_length}"
        )
    if model.target_tokenizer is not None:
        objective = TranslationObjective(model.family, model.device_config, config.dtype, config.loss_chunk)

        def evaluate(params: Any, batches: Iterable[Any], rows: TranslationRows, key: jax.Array) -> dict[str, Any]:
            batches = list(batches) if config.task.bleu else batches
            scores = perplexity(objective, params, batches, key)
            if not config.task.bleu:
                return scores
            return scores | greedy_bleu(objective, params, batches, rows, model.target_tokenizer, config.task.tokenize)

        evaluator = Evaluator(TranslationRows.evaluation_batches, evaluate)
        return RunSpec(model, objective, evaluator, _weights(config, model, weights))
    if model.head:
        objective = label_objective(model.family, model.device_config, config.dtype, config.objective)
        language = config.task.language
        evaluator = Evaluator(
            LabelledRows.evaluation_batches,
            lambda params, batches, rows, _: label_scores(objective, params, batches, rows, language=language).line(),
        )
        return RunSpec(model, objective, evaluator, _weights(config, model, weights))
    objective = make_objective(
        config.objective,
        model.family,
        model.device_config,
        dtype=config.dtype,
        mask_token_id=model.vocabulary.id_with_role("mask"),
        special_ids=model.vocabulary.without_text(model.config.vocabulary_size),
        chunk=config.loss_chunk,
        mask_rate=config.mask_rate,
        vocabulary_size=model.config.vocabulary_size,
        parity=config.parity,
    )

    # Of the tokens of each text, which is read once for it.
    sizes: dict[Path, np.ndarray] = {}

    def batches(data: Any, rows: int, limit: int | None, held: Rows) -> Iterator[Batch]:
        if isinstance(data, ParallelRows):
            return data.evaluation_batches(rows, limit, held)
        if data.directory not in sizes:
            sizes[data.directory] = TokenBlocks.open(data.directory, 1).byte_lengths(model.vocabulary)
        lengths = sizes[data.directory]
        if isinstance(data, SentencePairs):
            found = data.evaluation_batches(rows, limit, held)
            return (batch | {"bytes": lengths[batch["tokens"]]} for batch in found)
        return evaluation_batches(data, rows, model.family.causal, limit=limit, rows=held, byte_lengths=lengths)

    evaluator = Evaluator(batches, lambda params, batches, _, key: perplexity(objective, params, batches, key))
    load, notes = _weights(config, model, weights), []
    if config.objective == "mlm_nsp" and config.model.checkpoint and weights:
        there = model.family.tensors.present(Checkpoint.open(config.model.checkpoint).names())
        if missing := [name for name in ("pooler.dense", NEXT_SENTENCE) if f"{name}.weight" not in there]:
            notes.append(f"{config.model.checkpoint}: has no {' and no '.join(missing)}; drawn from the seed")
    if note := tokenizer_note(model.tokenizer.name_or_path, model.tokenizer, model.config.vocabulary_size):
        notes.append(note)
    return RunSpec(model, objective, evaluator, load, tuple(notes))


def _weights(config: ConfigDict, model: ModelSpec, check: bool) -> Callable[[], dict[str, Any]] | None:
    """What loads the parameters of the checkpoint that a run starts from, where it does; a new head is drawn from the seed.

    A new model may begin with tables of `wechsel-jax table`; without, there is nothing to load.
    """
    if not config.model.checkpoint:
        sizes = {"token_embedding": model.config.vocabulary_size, "target_embedding": model.config.target_vocabulary_size}
        places = dict(zip(sizes, (config.model.embeddings, config.model.target_embeddings), strict=True))
        tables = {name: _read_table(place, (sizes[name], model.config.hidden_size)) for name, place in places.items() if place}

        def draw() -> dict[str, Any]:
            init = jax.jit(lambda key: model.family.init(model.config, key))
            params = jax.device_get(init(stream_key(config.seed, INIT_STREAM)))
            return params | {name: {"embedding": table} for name, table in tables.items()}

        return draw if tables else None
    checkpoint = Checkpoint.open(config.model.checkpoint)

    def load() -> dict[str, Any]:
        tensors = checkpoint.arrays()
        if model.head or config.objective == "mlm_nsp":
            form, labels = stated_head(checkpoint.config) or ("", ())
            same = form == config.objective and (form == "answers" or labels == tuple(config.task.labels))
            key = stream_key(config.seed, INIT_STREAM)
            tensors = fill_head(tensors, model.family, model.config, key, same_labels=same or not model.head)
        return model.family.from_hugging_face(tensors, model.config, lazy=True)

    if check:
        _check_weights(checkpoint, load())
    return load


def named_model(config: ConfigDict) -> ModelSpec:
    """Returns the model that the settings name: that of a checkpoint, or a new one.

    Raises:
      UserError: a file is missing or damaged, or the tokenizer is not the model's.
    """
    checkpoint = Checkpoint.open(config.model.checkpoint) if config.model.checkpoint else None
    place = config.model.tokenizer or str(checkpoint.directory)
    tokenizer = load_tokenizer(place)
    if checkpoint:
        for name, own in (("tokenizer", checkpoint.directory), ("target_tokenizer", checkpoint.directory / TARGET_TOKENIZER)):
            if config.model[name]:
                _require_own_tokenizer(f"model.{name}: {config.model[name]}", load_tokenizer(config.model[name]), own)
        described, hf_config = checkpoint.directory / "config.json", checkpoint.config
        generation_config = checkpoint.generation_config
    else:
        described, generation_config = "model.config", None
        ids = {f"{role}_token_id": getattr(tokenizer, f"{role}_token_id", None) for role in ("bos", "eos", "pad")}
        known = {name: value for name, value in ids.items() if value is not None}
        hf_config = {"vocab_size": len(Vocabulary.from_tokenizer(tokenizer)), **known, **as_dict(config.model.config)}
    target_tokenizer, translations = None, config.model.target_tokenizer
    if config.objective == "translation":
        target_tokenizer = load_tokenizer(translations or checkpoint.directory / TARGET_TOKENIZER)
        hf_config = {"decoder_vocab_size": len(Vocabulary.from_tokenizer(target_tokenizer)), **hf_config}
    check_config(hf_config, described)
    try:
        with parsing(described, "the description of a model; mend the field"):
            model = described_model(hf_config, generation_config, tokenizer, config, target_tokenizer)
    except UserError as error:
        # The families do not know where the fields that they read come from.
        field = str(error).removeprefix("config.json: ")
        raise UserError(str(error) if field == str(error) else f"{described}: {field}") from None
    _check_numbers(dataclasses.asdict(model.config), described)
    if not checkpoint:
        _refuse_slips(model, as_dict(config.model.config))
    if len(model.vocabulary) > model.config.vocabulary_size:
        raise UserError(
            f"{place}: has {len(model.vocabulary)} tokens and the model only {model.config.vocabulary_size}; "
            "expected the model's own tokenizer; `wechsel-jax transfer` gives a model another one"
        )
    rows = model.config.target_vocabulary_size
    if target_tokenizer is not None and len(target_tokenizer) > rows:
        raise UserError(
            f"{target_tokenizer.name_or_path}: has {len(target_tokenizer)} tokens and the decoder only {rows}; expected the "
            "tokenizer of the model's translations"
        )
    return model


def _refuse_slips(model: ModelSpec, given: Mapping[str, Any]) -> None:
    """Raises `UserError` for a field of a new model that nobody reads, and that looks like one that its family does."""
    from transformers import CONFIG_MAPPING

    name = model.hf_config["model_type"].removeprefix(PREFIX)
    known = fields_read(model.family.read_config, model.hf_config)
    if name in CONFIG_MAPPING:
        known |= {*CONFIG_MAPPING[name]().to_dict()}
    else:
        # An encoder alone leaves out what is the decoder's.
        known |= fields_read(TRANSLATOR.read_config, {"decoder_vocab_size": 1, **model.hf_config})
    for field in sorted(given.keys() - known):
        close = difflib.get_close_matches(field, known, 1, _SLIP)
        if close and not _HARMLESS.fullmatch(field):
            raise UserError(
                f"model.config: {field}: no field of a {name}; expected {close[0]}, it seems; mend it, or leave it out"
            )


def _require_own_tokenizer(named: str, tokenizer: "PreTrainedTokenizerFast", own: Path) -> None:
    """Raises `UserError` where most tokens are others than those of the tokenizer at `own`."""
    strings = ()
    # There may be none, or a damaged one that this one stands in for.
    with contextlib.suppress(UserError):
        strings = Vocabulary.from_tokenizer(load_tokenizer(own)).strings
    pairs = list(zip(strings, Vocabulary.from_tokenizer(tokenizer).strings, strict=False))
    # Single bytes have the same ids in many; and some, such as reserved ones, may have been given other names.
    said = [one == other for one, other in pairs if max(len(one), len(other)) > 1]
    if 2 * sum(said) < len(said):
        raise UserError(
            f"{named}: {len(said) - sum(said):,} of its first {len(pairs):,} tokens are others than in {own}; expected the "
            "model's own tokenizer; `wechsel-jax transfer` gives a model another one"
        )


def described_model(
    hf_config: Mapping[str, Any],
    generation_config: dict[str, Any] | None,
    tokenizer: "PreTrainedTokenizerFast",
    config: ConfigDict,
    target_tokenizer: "PreTrainedTokenizerFast | None" = None,
) -> ModelSpec:
    """Returns the model of a `config.json`, with what the settings of a run change about it.

    Args:
      hf_config: fields of the `config.json`.
      generation_config: fields of a `generation_config.json`, or None.
      tokenizer: of the model.
      config: settings of the run: `model.dropout`, `model.remat`, `model.scan_layers` and `model.pad_vocabulary`.
      target_tokenizer: of an encoder-decoder's translations.
    """
    model_family, settings, hf_config = family(hf_config["model_type"]), config.model, {**hf_config}
    vanilla, translating = model_family.name == MODEL_TYPE, config.objective == "translation"
    if translating != is_translator(hf_config) or (vanilla and config.objective not in FORMS):
        expected = f"a model_type {MODEL_TYPE}" if translating else "classification, tagging, answers, parsing or roles"
        what = "an encoder-decoder" if is_translator(hf_config) else f"a {model_family.name}"
        raise UserError(f"objective: {config.objective} does not fit {what}; expected {expected}")
    if translating:
        model_family = TRANSLATOR
        hf_config["architectures"] = [model_family.architecture]
    elif config.objective in FORMS:
        labels = tuple(config.task.labels)
        # An answer has a start and an end.
        model_family = with_head(model_family, config.objective, len(labels) or 2)
        hf_config = {name: value for name, value in hf_config.items() if name not in _OF_A_HEAD}
        hf_config["architectures"] = [model_family.architecture]
        if config.objective == "roles":
            hf_config[ROLES] = True
        if labels:
            hf_config["id2label"] = {str(number): label for number, label in enumerate(labels)}
            hf_config["label2id"] = {label: number for number, label in enumerate(labels)}
        # The classes of causal models find the last token of a text by it.
        stated = model_family.read_config(hf_config).pad_token_id
        hf_config["pad_token_id"] = padding_id(hf_config.get("pad_token_id") if stated is None else stated, tokenizer)
        generation_config = None
        tokenizer = with_special_tokens(tokenizer, model_family.causal)
        padding = tokenizer.convert_ids_to_tokens(hf_config["pad_token_id"])
        if tokenizer.pad_token is None and padding in tokenizer.all_special_tokens:
            # So that transformers' tokenizer makes batches of the export, too.
            tokenizer = copy.deepcopy(tokenizer)
            tokenizer.pad_token = padding
    elif config.objective == "mlm_nsp":
        model_family = with_next_sentence(model_family)
        hf_config["architectures"] = [model_family.architecture]
    elif stated_head(hf_config) or any(str(name).endswith(PRETRAINING) for name in hf_config.get("architectures") or ()):
        hf_config["architectures"] = [model_family.architecture]
    model = model_family.config(hf_config, dropout=settings.dropout, remat=settings.remat, scan_layers=settings.scan_layers)
    hf_config.setdefault("architectures", [model_family.architecture])
    return ModelSpec(model_family, model, hf_config, generation_config, tokenizer, settings.pad_vocabulary, target_tokenizer)


def padded(config: ModelConfig, multiple: int) -> ModelConfig:
    """Returns the configuration of a model whose tables have the next multiple of rows.

    A multiple of 128 rows suits matrix units, a multiple of mesh.tensor can be split. Rows behind the vocabulary hold zeros.
    The objective gives them probability 0 (see `make_objective`, vocabulary_size), so their gradients are exactly 0 and they
    stay zeros; exported tables are without them.
    """
    return config.override(vocabulary_size=-(-config.vocabulary_size // multiple) * multiple)


def pad(params: Mapping[str, Any], family: Family, config: ModelConfig, multiple: int) -> tuple[dict[str, Any], ModelConfig]:
    """Pads everything that has a vocabulary axis (tables, untied head, bias of the head) with zeros.

    Args:
      params: nested arrays, numpy or JAX (inside `jax.jit` too), or functions that return one.
      family: of the model.
      config: of the model without padding.
      multiple: what the number of rows shall be a multiple of; 1 pads nothing.

    Returns:
      The padded parameters and the configuration that fits them.
    """
    wide = padded(config, multiple)
    behind = wide.vocabulary_size - config.vocabulary_size

    def extend(value: Any) -> Any:
        if callable(value):
            return lambda: extend(value())
        module = np if isinstance(value, np.ndarray) else jnp
        return module.pad(value, ((0, behind),) + ((0, 0),) * (value.ndim - 1))

    return _mapped(params, family, extend if behind else None), wide


def strip(params: Mapping[str, Any], family: Family, config: ModelConfig) -> dict[str, Any]:
    """Undoes `pad`.

    Args:
      params: nested arrays, numpy or JAX.
      family: of the model.
      config: of the model without padding.
    """
    return _mapped(params, family, lambda value: value[: config.vocabulary_size])


def _mapped(params: Mapping[str, Any], family: Family, change: Callable[[Any], Any] | None) -> dict[str, Any]:
    flat = flatten(params)
    if change is None:
        return unflatten(flat)
    # The first axis of every token parameter is the vocabulary.
    return unflatten({path: change(x) if re.search(family.token_parameters, path) else x for path, x in flat.items()})


def _read_table(place: str, wanted: tuple[int, int]) -> np.ndarray:
    """The token table (V, d) that `wechsel-jax table` wrote."""
    stored = read_header(place).get(TABLE)
    if stored is None or stored.shape != wanted:
        found = "no such tensor" if stored is None else f"one of shape {stored.shape}"
        raise UserError(
            f"{place}: expected a tensor {TABLE!r} of shape {wanted}, a row for each token, and found {found}; "
            "make it with `wechsel-jax table --tokenizer`"
        )
    table = stored.read().astype(np.float32)
    if not np.isfinite(table).all():
        row = int(np.flatnonzero(~np.isfinite(table).all(axis=1))[0])
        raise UserError(f"{place}: tensor {TABLE} holds NaN or infinity in row {row}; expected finite numbers; make it again")
    return table


def _check_weights(checkpoint: Checkpoint, parameters: dict[str, Any]) -> None:
    """Builds each parameter once, which raises `UserError` where tensors are missing or have other shapes."""
    for path, build in flatten(parameters).items():
        with np.errstate(over="ignore"):
            finite = np.isfinite(build()).all()
        if not finite:
            # It names the file and the tensor; what is finite in float64 only it does not find.
            checkpoint.require_finite()
            raise UserError(f"{checkpoint.directory}: {path} holds numbers that float32 does not; expected float32 weights")


def _check_numbers(value: Any, place: str | Path, name: str = "") -> None:
    """Raises `UserError` where a model is described by a number that float32 does not hold: NaN, infinity, 1e300."""
    inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, below in inner:
        _check_numbers(below, place, f"{name}.{key}" if name else str(key))
    if isinstance(value, float) and not abs(value) <= np.finfo(np.float32).max:
        raise UserError(f"{place}: {name} is {value}; expected a finite number; mend it")
