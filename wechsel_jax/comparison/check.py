"""What cannot work is refused before anything is written; what other settings have made goes."""

import contextlib
import functools
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from ml_collections import ConfigDict

from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.comparison.scoring import fine_tuning_config, read_tasks, scored_models
from wechsel_jax.comparison.settings import (
    SAMPLE,
    base_method,
    helper_config,
    input_places,
    named_method,
    needs,
    needs_of_all,
    training_config,
    transfer_files,
    transfer_settings,
)
from wechsel_jax.comparison.tuning import TABLES, TUNING_TEXT, tuning_config
from wechsel_jax.data.examples import FORMS, find_labels
from wechsel_jax.data.manifest import remove_prepared
from wechsel_jax.data.unfinished import discard
from wechsel_jax.errors import UserError, naming
from wechsel_jax.files import file_hash, foreign, remove_leftovers, require_file
from wechsel_jax.files.json import is_number
from wechsel_jax.initializers import AUTO, METHODS
from wechsel_jax.models import family
from wechsel_jax.records.names import CONFIG_FILE
from wechsel_jax.text.parallel import PARALLEL, require_parallel
from wechsel_jax.text.sources import find_sources
from wechsel_jax.tokens import Vocabulary, load_tokenizer
from wechsel_jax.tokens.training import require_kind
from wechsel_jax.training import record_config, validate
from wechsel_jax.training.config import as_dict
from wechsel_jax.training.labelled import examples_of
from wechsel_jax.training.run_data import identified
from wechsel_jax.training.workdir import FREE_FIELDS, differences, read_texts, record_texts
from wechsel_jax.transfers.settings import ALIGNED, IDENTICAL, TransferSettings, check_values

# What lies in a workdir beside the runs.
_FOLDERS = ("compiled", "data", "fine_tuning", "helper", "tokenizer", "tuning", "vectors")


def validate_comparison(config: ConfigDict, workdir: Path) -> None:
    """Refuses what cannot work before anything is written, so that the corrected command finds a clean workdir."""
    _validate_types(config)
    for name, variant in config.variants.items():
        if "method" not in variant:
            raise UserError(f"variants.{name}: has no method; expected one of {', '.join(sorted(METHODS))}")
    unknown = sorted({base_method(config, method) for method in config.methods} - set(METHODS))
    if unknown:
        raise UserError(f"methods: unknown method {unknown[0]!r}; expected some of {', '.join(sorted(METHODS))}")
    if not config.methods or len({*config.methods}) < len(config.methods):
        raise UserError(f"methods: is {as_dict(config.methods)}; expected at least one method, and each once")
    if config.probe_steps and AUTO not in (named_method(config, method) for method in config.methods):
        named = ", ".join(config.methods)
        raise UserError(f"probe_steps={config.probe_steps}: the method is named ({named}); expected one of the two")
    check_values(config.transfer, "transfer.")
    for name, given in config.variants.items():
        check_values({field: value for field, value in given.items() if field != "method"}, f"variants.{name}.")
    for name, given in config.overrides.items():
        wrong = sorted({*given} - {*config.training})
        if wrong:
            raise UserError(
                f"overrides.{name}.{wrong[0]}: no such setting; expected one of {', '.join(sorted(config.training))}"
            )
    for name in ("train", "validation"):
        if not config.text[name] and not (name == "validation" and config.training.data.validation_fraction):
            raise UserError(f"text.{name}: no file given; expected text in the target language")
    if config.text.validation and config.training.data.validation_fraction:
        raise UserError("training.data.validation_fraction: text.validation names files already; expected one of the two")
    if config.training.objective not in ("clm", "mlm"):
        raise UserError(
            f"training.objective: is {config.training.objective!r}, which reads more than text; expected clm or mlm; "
            "train.pretrain has the others"
        )
    stray = sorted(set(config.overrides) - set(METHODS) - set(config.variants))
    if stray:
        raise UserError(f"overrides.{stray[0]}: no such method; expected one of {', '.join(sorted(METHODS))}, or of `variants`")
    for files in config.text.values():
        find_sources(files)
    read_tasks(config)
    with naming("tokenizer: "):
        if not config.tokenizer.directory:
            require_kind(config.tokenizer.vocabulary_size, config.tokenizer.algorithm, config.tokenizer.style)
        elif not (workdir / "tokenizer").exists():
            Vocabulary.from_tokenizer(load_tokenizer(config.tokenizer.directory))
    if not config.source:
        raise UserError("source: is empty; expected the directory or the hub id of the model that all methods begin with")
    source = Checkpoint.open(config.source)
    if config.evaluation.tasks or config.evaluation.fine_tuning:
        scored_models(config, workdir)
    needed = needs_of_all(config)
    files = {"dictionary": ("dictionary", config.dictionary, "a dictionary of word pairs")}
    for side in ("source", "target"):
        # Those to be trained are not there yet.
        if not config.vectors.train_here:
            files[f"{side}_vectors"] = (f"vectors.{side}", config.vectors[side], "word vectors")
    for name in config.methods:
        own, read = config.variants.get(name, ConfigDict()), needs(config, name)
        if own.get("keep_source", config.transfer.keep_source):
            raise UserError(
                f"keep_source: {name} would have other tokens than the text that all methods are trained on; expected False; "
                "`wechsel-jax transfer` and train.pretrain make such a model"
            )
        for field, (setting, given, what) in files.items():
            if field in read and not given:
                raise UserError(f"{setting}: no file given, which {name} reads; expected {what}")
            optional = field == "dictionary" and METHODS[base_method(config, name)].takes_words
            given = own.get(field) or (given if field in read or optional else "")
            if given and given not in (ALIGNED, IDENTICAL, SAMPLE):
                require_file(given, what)
        given = own.get("parallel") or (config.parallel if "parallel" in read else ())
        if given:
            require_parallel(given)
        elif "parallel" in read:
            raise UserError(f"parallel: no file given, which {base_method(config, name)} reads; expected {PARALLEL}")
        for side in ("source_text", "target_text"):
            if own.get(side) and not (workdir / name / "transfer").exists():
                find_sources(own[side])
        settings = transfer_settings(config, name, input_places(config, workdir))
        if config.probe_steps and named_method(config, name) == AUTO:
            # One of the starts that are tried reads it.
            settings.pop("parallel", None)
        with naming(f"{name}: "):
            TransferSettings.checked(METHODS[base_method(config, name)], **settings)
    if "helper" in needed and not config.helper.checkpoint:
        try:
            validate(helper_config(config, workdir))
        except UserError as error:
            named = ", ".join(name for name in config.methods if "helper" in needs(config, name))
            raise UserError(f"helper.training, of a helper for {named}: {error}; or name a helper.checkpoint") from None
    sampled = [name for name in config.methods if config.variants.get(name, {}).get("target_vectors") == SAMPLE]
    if sampled and config.text.words:
        raise UserError(
            f"variants.{sampled[0]}.target_vectors: {SAMPLE} is of the text that is trained on, whose words text.words tells "
            "apart and it does not; expected a language with spaces between words, or a file of vectors"
        )
    if config.vectors.train_here and config.vectors.dimensions != source.hidden_size:
        for name in (name for name in config.methods if base_method(config, name) == "trelm"):
            raise UserError(
                f"vectors.dimensions: is {config.vectors.dimensions}, and {config.source} has rows of {source.hidden_size}; "
                f"expected as many for {name}, which turns one into the other: vectors.dimensions={source.hidden_size}"
            )
    _validate_trainings(config, workdir, source)


def _validate_types(config: ConfigDict) -> None:
    """Refuses what no other check could read, names of a comparison's own folders, and settings that it sets itself."""
    for field, value, right, kind in (
        ("methods", config.methods, lambda one: isinstance(one, str), "names"),
        ("evaluation.during", config.evaluation.during, is_number, "numbers"),
    ):
        if not isinstance(value, tuple | list) or not all(map(right, value)):
            raise UserError(f"{field}: is {value!r}; expected a tuple of {kind}")
    texts = {f"text.{name}": files for name, files in config.text.items()} | {"parallel": config.parallel}
    for field, value in texts.items():
        if not all(isinstance(one, str) for one in (value if isinstance(value, tuple | list) else [value])):
            raise UserError(f"{field}: is {value!r}; expected names of files")
    for field, value, least in (
        ("tokenizer.vocabulary_size", config.tokenizer.vocabulary_size, 1),
        ("vectors.dimensions", config.vectors.dimensions, 1),
        ("vectors.epochs", config.vectors.epochs, 1),
        ("probe_steps", config.probe_steps, 0),
    ):
        if type(value) is not int or value < least:
            raise UserError(f"{field}: is {value!r}; expected a whole number of at least {least}")
    for field in ("variants", "overrides"):
        for name, given in config[field].items():
            if not isinstance(given, ConfigDict):
                raise UserError(f"{field}.{name}: is {given!r}; expected a ConfigDict of settings")
    for name in config.methods:
        # Settings of a run by such a name would look like free ones where runs are compared.
        if not name or name in (*_FOLDERS, *FREE_FIELDS) or "/" in name:
            taken = ", ".join(sorted({*_FOLDERS, *FREE_FIELDS}))
            raise UserError(f"methods: {name!r} cannot name a run's folder; expected a name without / that is none of {taken}")
    for where, given in (
        ("training", config.training),
        *((f"overrides.{name}", one) for name, one in config.overrides.items()),
    ):
        settings = as_dict(given)
        if settings.get("seed", 0) not in (0, config.seed):
            raise UserError(
                f"{where}.seed: is {settings['seed']}; expected it as `seed`, {config.seed}, which is that of all runs"
            )
        for place, field in (("model", "checkpoint"), ("data", "train"), ("data", "validation")):
            part = settings.get(place)
            if isinstance(part, dict) and part.get(field):
                raise UserError(
                    f"{where}.{place}.{field}: is {part[field]!r}; expected none: each run begins with its transfer and is "
                    "trained on `text`"
                )


def _validate_trainings(config: ConfigDict, workdir: Path, source: Checkpoint) -> None:
    """Refuses settings of trainings, fine-tunings, and what tunes rates, that make no sense or do not fit the source."""
    of_source = family(source.config.get("model_type"))
    positions = of_source.config(source.config).max_length
    for name in config.evaluation.fine_tuning:
        if name in config.evaluation.tasks:
            raise UserError(f"evaluation.fine_tuning.{name}: a task has this name; expected another, as scores are told by it")
        settings = fine_tuning_config(config, name, Path(config.source), workdir)
        if settings.objective not in (known := [form for form in FORMS if form != "translation"]):
            raise UserError(
                f"evaluation.fine_tuning.{name}.objective: is {settings.objective!r}; expected one of {', '.join(known)}"
            )
        with naming(f"evaluation.fine_tuning.{name}."):
            validate(settings, steps_known=not settings.epochs)
        if settings.block_length > positions:
            raise UserError(
                f"evaluation.fine_tuning.{name}.block_length: {settings.block_length} is more than the {positions} positions "
                f"of {config.source}; expected at most that, or another source"
            )
        # All are read when everything else is done; what is scored has the form, and the labels, of what is trained on.
        read, file = examples_of(settings), config.evaluation.fine_tuning[name].file
        settings.data.train = settings.data.validation = (file,)
        scored = examples_of(settings)["train"]
        if settings.objective in ("classification", "tagging"):
            labels = settings.task.labels or find_labels(read["train"], settings.objective)
            if unknown := {*find_labels([*read["validation"], *scored], settings.objective)} - {*labels}:
                raise UserError(
                    f"evaluation.fine_tuning.{name}: {min(unknown)!r} of its data.validation or {file} is no label of its "
                    f"data.train; expected some of {', '.join(labels)}; see task.label and task.columns, or remove these"
                )
    tuning = as_dict(config.tuning)
    for name in ("rates", "tables"):
        if not isinstance(tuning[name], list) or not all(map(is_number, tuning[name])) or not (tuning[name] or name == "rates"):
            raise UserError(f"tuning.{name}: is {tuning[name]!r}; expected a tuple of numbers, such as (1.0,)")
    if tuning["rates"] and not (is_number(tuning["held_out"]) and 0 < tuning["held_out"] < 1):
        raise UserError(f"tuning.held_out: is {tuning['held_out']!r}; expected a share of the text above 0 and below 1")
    for method in config.methods:
        base = training_config(config, method, workdir / method, workdir)
        with naming(f"training, of {method}: "):
            validate(base)
        if base.seeds > 1 or base.fork:
            field = "fork" if base.fork else "seeds"
            raise UserError(
                f"training.{field}: is {base[field]!r} for {method}, whose runs begin with its transfer, one each; expected "
                f"{'none' if base.fork else '0; set `seed` for another one'}"
            )
        for part in config.evaluation.during:
            step = round(part * config.training.steps)
            if not 0 < step < base.steps or not base.keep_every or step % base.keep_every:
                raise UserError(
                    f"evaluation.during: {part} of {config.training.steps} steps has no checkpoint of {method} that stays; "
                    f"expected a fraction between 0 and 1 whose step is a multiple of training.keep_every={base.keep_every}"
                )
        if (base.objective == "clm") != of_source.causal:
            raise UserError(
                f"training.objective: {base.objective} of {method} does not fit {config.source}, a {of_source.name}; "
                f"expected {'clm' if of_source.causal else 'mlm'}, or another source"
            )
        if base.block_length > positions:
            raise UserError(
                f"training.block_length: {base.block_length} of {method} is more than the {positions} positions of "
                f"{config.source}; expected at most that, or another source"
            )
        for rate in config.tuning.rates:
            for tables in config.tuning.tables:
                with naming(f"tuning, with rate {rate:g} and tables {tables:g}: "):
                    validate(tuning_config(config, base, workdir, rate, tables))
        own = [group["rate"] for group in base.optimizer.groups if group["match"] in TABLES and group.get("rate", 1) != 1]
        if tuning["rates"] and tuning["tables"] == [1.0] and own:
            raise UserError(
                f"tuning.tables: is (1.0,), and optimizer.groups of {method} have tables learn {own[0]:g} times as fast; "
                f"expected what to try, such as ({own[0]:g},); or set their rate to 1"
            )


def settle(config: ConfigDict, workdir: Path) -> None:
    """Records settings and text; until the first training has begun, others may take their place; what depends on them goes.

    Raises:
      UserError: a method has been trained with other settings or on other text, or what depends on them holds what somebody
        added. (A helper that has been trained stays; its own training refuses other settings.)
    """
    texts, known = {name: identified(files) for name, files in config.text.items()}, read_texts(workdir, [{}])
    # Comparisons of earlier versions have no such file.
    other = [name for name in texts if known and known.get(name) != texts[name]]
    inputs, stale = {}, {}
    sha256 = functools.cache(file_hash)
    for name in config.methods:
        texts_read, models, files = transfer_files(config, name, workdir)
        found = [{"name": file.name, "sha256": sha256(file)} for file in files]
        for text in texts_read:
            # What is gone cannot have changed; who still reads it says so.
            with contextlib.suppress(UserError):
                found += identified([text])
        place = f"{name}/transfer"
        if changed := [one for one in found if place in known and one not in known[place]]:
            stale[place] = changed
        there = {one["name"] for one in found}
        inputs[place] = found + [one for one in known.get(place, ()) if one["name"] not in there]
        # Comparisons of earlier versions tell nothing of these.
        read = [{"name": f"{file.parent.name}/{file.name}", "sha256": sha256(file)} for file in models]
        if changed := [one for one in read if one not in known.get(f"{name}/models", read)]:
            stale.setdefault(place, changed)
        inputs[f"{name}/models"] = read
    # Also of a method that this call does not name.
    begun = any(file.parent.name not in _FOLDERS and file.parent.name[0] != "." for file in workdir.glob(f"*/{CONFIG_FILE}"))
    if begun or (workdir / "tuning").exists():
        record_config(config, workdir)
        for where, changed in [*((f"text.{name}", texts[name]) for name in other), *stale.items()][:1]:
            named = ", ".join(entry["name"] for entry in changed)
            raise UserError(f"{where}: {named}: has changed since this comparison began; restore it or use another workdir")
    else:
        _remake(config, workdir, bool(other), [*stale])
    record_texts(texts | inputs, workdir)


def _remake(config: ConfigDict, workdir: Path, other_text: bool, transfers: Sequence[str]) -> None:
    """Removes what other settings or other text have made, and transfers of other files, and records the settings."""
    remove_leftovers(workdir / CONFIG_FILE)
    old, now = {}, json.loads(json.dumps(as_dict(config)))
    with contextlib.suppress(OSError, ValueError):
        old = dict(json.loads((workdir / CONFIG_FILE).read_bytes()))

    fields = [name for name, _, _ in differences(old, now)]
    changed = {name.split(".")[0].split("[")[0] for name in fields}

    # Every text is read by it, not the one alone that is trained on.
    changed |= {"text"} if other_text or "training.data.text_field" in fields else set()

    def differ(*names: str) -> bool:
        return not changed.isdisjoint(names)

    # The names are those of this comparison: a recorded one might lead anywhere.
    writers = {"tokenizer": "tokenizer"} if differ("text", "tokenizer") else {}
    writers |= {name: "transfer" for name in ([f"{name}/transfer" for name in config.methods] if changed else transfers)}
    there = [(workdir / name, writer) for name, writer in writers.items() if old and (workdir / name).exists()]
    for place, writer in there:
        if what := foreign(place, writer):
            raise UserError(
                f"{place}: was made with other settings or files, and {what}; remove it yourself, or use another workdir"
            )
    for place, _ in there:
        shutil.rmtree(place)
    remade = differ("text", "tokenizer") or any(name.startswith("training.data.") for name in fields)
    for side in ("train", "validation", "tuning/train", "tuning/validation"):
        stale = remade or (side.startswith("tuning") and differ("tuning"))
        place = workdir / "data" / side
        if old and stale and place.exists():
            remove_prepared(place)
        if old and stale:
            # What was begun makes the folder seem to hold something.
            discard(place)
    if old and remade:
        (workdir / "data" / TUNING_TEXT).unlink(missing_ok=True)
        for place in (workdir / "data" / "tuning", workdir / "data"):
            with contextlib.suppress(OSError):
                place.rmdir()
    for name in ("source", "target", "native", "sample"):
        if old and differ("text", "tokenizer", "vectors", *(("training",) if name == "sample" else ())):
            (workdir / "vectors" / f"{name}.bin").unlink(missing_ok=True)
    (workdir / CONFIG_FILE).unlink(missing_ok=True)
    record_config(config, workdir)
