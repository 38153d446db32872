"""The main job: a source checkpoint, a target tokenizer and what a method needs become a target checkpoint."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.checkpoint.surgery import Surgery, write_target
from wechsel_jax.errors import UserError, from_extra
from wechsel_jax.files import new_directory, refuse_directory
from wechsel_jax.files.hub import HUB_ID
from wechsel_jax.initializers import METHODS, Side, TransferPlan, shuffle, standardize
from wechsel_jax.initializers.wechsel import nearest_similarity
from wechsel_jax.inspection import measure, verdict
from wechsel_jax.records import work
from wechsel_jax.records.machine import versions
from wechsel_jax.records.names import PLAN_FILE
from wechsel_jax.records.transfer import TransferRecord
from wechsel_jax.report.card import model_card
from wechsel_jax.tokens.files import reloads_alike
from wechsel_jax.transfers.attention_matching import match_attention
from wechsel_jax.transfers.calibration import calibrate, require_family
from wechsel_jax.transfers.choice import DEFAULT, choose_method
from wechsel_jax.transfers.coefficients import tune_coefficients
from wechsel_jax.transfers.coverage import coverage
from wechsel_jax.transfers.distillation import causal_family, distill
from wechsel_jax.transfers.inputs import Job, make_sides, open_job
from wechsel_jax.transfers.record import Steps, behaviour, examples, to_stderr
from wechsel_jax.transfers.settings import TransferSettings

# What `inspect` may find to look at in what was given, and not in the method.
_OF_INPUTS = ("target text", "similarity", "dictionary pairs")


def transfer(
    source: str | os.PathLike,
    target_tokenizer: str | os.PathLike,
    output: str | os.PathLike,
    *,
    method: str | None = None,
    overwrite: bool = False,
    log: Callable[[str], None] = to_stderr,
    **settings,
) -> dict:
    """Gives a model a new vocabulary and writes a directory that transformers loads.

    One plan is computed and applied to every tensor with a vocabulary axis; all others are copied byte for byte (but for
    `full_rand`, which draws them again, and RoBERTa's position table, which moves where the id of the pad token changes).

    Args:
      source: model directory with config.json, model.safetensors and its tokenizer, or a hub id.
      target_tokenizer: directory, tokenizer.json or hub id of the tokenizer with V_t tokens.
      output: the directory to write: the model, its tokenizer, transfer_plan.npz, transfer.json and README.md.
      method: a name in `initializers.METHODS`; None: "wechsel" where word vectors are given and no source text; else
        "anker", or "fvt" where the source model reads the target language already, see `choice.choose_method`.
      overwrite: replace an existing `output`.
      log: called with progress lines.
      **settings: fields of `transfers.settings.TransferSettings`, where each is described.

    Returns:
      What transfer.json holds: method, settings, counts of copied, mixed and random tokens, coverage of the overlap, alignment
      quality, similarity, tensors, norms of the rows, 30 examples, the rules that were applied, notes, versions, timings in
      seconds and the cost in FLOPs.

    Raises:
      UserError: an input is missing, damaged or does not fit; nothing is written then.

    >>> import tempfile
    >>> from wechsel_jax import demo
    >>> model, quiet = demo.path("english-gpt2"), lambda line: None
    >>> with tempfile.TemporaryDirectory() as place:
    ...     record = transfer(model, model, f"{place}/copy", method="fvt", log=quiet)
    >>> record["counts"]
    {'copied': 8192, 'mixed': 0, 'random': 0}
    """
    chosen, filled = TransferSettings.of(method, **settings)
    if Path(source).is_dir() and Path(output).exists() and Path(output).samefile(source):
        raise UserError(f"{output}: is the source model itself; choose another output")
    refuse_directory(output, "transfer", overwrite, [source, target_tokenizer, *filled.files()])
    steps = Steps(log)
    with steps("reading the source model and both tokenizers"):
        job = open_job(chosen, filled, source, target_tokenizer)
    choice = None
    with work.counted() as choosing:
        if method is None and chosen.name == DEFAULT:
            job, choice = _chosen_by_the_source(job, settings, source, target_tokenizer, steps)
            chosen, filled = job.method, job.settings
    for name in ("tune_coefficients", "distill", "match_attention"):
        if getattr(filled, name):
            with from_extra("train", f"for {name}"):
                import optax  # noqa: F401
    for name in ("calibrate", "tune_coefficients"):
        if getattr(filled, name) not in ("none", 0):
            require_family(job.checkpoint, name)
    for name in ("distill", "match_attention"):
        if getattr(filled, name):
            causal_family(job.checkpoint, name)
    if filled.latent_dimension > job.checkpoint.hidden_size:
        raise UserError(
            f"latent_dimension {filled.latent_dimension}: the rows of {job.checkpoint.table} cannot have so many "
            f"dimensions; expected 1 to {job.checkpoint.hidden_size}"
        )
    with work.counted() as making:
        source_side, target_side, alignment = make_sides(job, steps)
        plan = _plan(job, source_side, target_side, steps)
    with new_directory(output, "transfer", overwrite) as directory:
        with steps("writing the model"), work.counted() as applying:
            surgery = _surgery(job, plan)
            write_target(surgery, directory, job.target_tokenizer)
            plan.save(directory / PLAN_FILE)
        if not reloads_alike(directory, job.target_tokenizer, job.checkpoint.directory / "config.json"):
            job.notes.append(
                f"transformers' AutoTokenizer cuts text of a {job.checkpoint.architecture} model by the rule of its first "
                "tokenizer, whatever tokenizer.json says: load this one with PreTrainedTokenizerFast.from_pretrained."
            )
        with work.counted() as fitting:
            _tuning(job, plan, directory, steps)
            _distil(job, plan, directory, steps)
            _match(job, plan, directory, steps)
            calibration = _calibration(job, directory, steps)
        # Reports judge by these, and need not read both models' tables again.
        measures = measure(plan, Checkpoint.open(directory), job.checkpoint, job.target, len(job.source))
        table = next(table for table in measures["tables"] if table["role"] == "input")
        similarity = None if source_side.vectors is None else nearest_similarity(plan, source_side, target_side)
        has_vector = None if target_side.vectors is None else target_side.has_vector
        checkpoint, place = job.checkpoint, os.fspath(source)
        if Path(place).is_dir() and HUB_ID.fullmatch(place):
            # A card may be written where the directory is not: no id of the hub begins so.
            place = f"./{place}"
        names = checkpoint.config.get("architectures") or [None]
        record = TransferRecord(
            method=chosen.name,
            parity=filled.parity,
            settings={
                name: list(value) if isinstance(value, tuple) else value
                for name, value in filled.by_name().items()
                if name != "parity"
            },
            source={
                "model": place,
                "architecture": checkpoint.architecture,
                # For the card's example.
                "class": names[0] if isinstance(names[0], str) and names[0].isidentifier() else None,
                "vocabulary_size": len(job.source),
                "hidden_size": checkpoint.hidden_size,
                "tied": checkpoint.tied,
            },
            target={"tokenizer": os.fspath(target_tokenizer), "vocabulary_size": len(job.target)},
            counts=plan.counts(),
            tensors=tuple(
                {
                    "name": tensor.name,
                    "role": tensor.role,
                    "shape": list(tensor.shape(checkpoint.tensors[tensor.name].shape, surgery.rows)),
                    "dtype": checkpoint.tensors[tensor.name].dtype.name,
                }
                for tensor in checkpoint.vocabulary_tensors()
            ),
            examples=examples(plan, job.source, job.target, filled.seed),
            behaviour=tuple(behaviour(chosen, filled)),
            notes=tuple(job.notes),
            versions=versions(),
            paper=chosen.paper,
            coverage=coverage(job.overlap, plan, job.source, job.target, has_vector, seed=filled.seed),
            alignment=alignment,
            similarity=None
            if similarity is None or not len(similarity)
            else {"mean_top1": float(similarity.mean()), "median_top1": float(np.median(similarity))},
            norms={side: {"mean": table[side]["norm_mean"], "std": table[side]["norm_std"]} for side in ("source", "target")},
            choice=choice,
            calibration=calibration,
            timings=steps.seconds,
            cost={
                "flops": round(choosing.flops + making.flops + applying.flops + fitting.flops),
                "text_bytes": choosing.text_bytes + making.text_bytes + fitting.text_bytes,
            },
            measures=measures,
        )
        record.write(directory)
        (directory / "README.md").write_text(model_card(record), encoding="utf-8")
    for note in record.notes:
        log(f"note: {note}")
    content = record.content()
    # What `inspect` would say of what is known here, as far as it is wrong or of what was given.
    facts = {name: content[name] for name in ("method", "counts", "alignment", "similarity", "source", "target", "coverage")}
    facts |= {"regression": measures["regression"], "noise": filled.noise}
    for finding in verdict(facts):
        if finding.severity == "wrong" or (finding.severity == "look" and finding.about in _OF_INPUTS):
            log(f"{finding.severity}: {finding.text}")
    counts = ", ".join(f"{count} {how}" for how, count in record.counts.items())
    log(f"{output}: {len(plan)} tokens: {counts}")
    return content


def _chosen_by_the_source(
    job: Job, given: dict, source: str | os.PathLike, target_tokenizer: str | os.PathLike, steps: Steps
) -> tuple[Job, dict]:
    """Looks how well the source model reads the target language; returns the job of the method that follows, and why."""
    filled = job.settings
    with steps("looking how well the source model reads the target language"):
        texts = filled.source_text, filled.target_text
        bounds = {"text_field": filled.text_field, "max_document_bytes": filled.max_document_bytes}
        choice = choose_method(job.checkpoint, job.source_tokenizer, job.source, *texts, **bounds, log=steps.log)
    if choice["method"] != job.method.name:
        other = METHODS[choice["method"]]
        job = open_job(*TransferSettings.of(other.name, **TransferSettings.read_by(other, given)), source, target_tokenizer)
    job.notes.append(f"No method was named; {job.method.name} was chosen: {choice['because']}.")
    return job, choice


def _plan(job: Job, source: Side, target: Side, steps: Steps) -> TransferPlan:
    """Calls the method with those of the options that it takes."""
    available = job.settings.by_name() | {
        "overlap": job.overlap,
        "notes": job.notes.append,
        "progress": steps.counter("tokens"),
        "log": steps.log,
    }
    options = {name: available[name] for name in job.method.options if name in available}
    if "pieces" in job.method.options:
        options["pieces"] = job.pieces()
    if "translations" in job.method.options:
        with steps("aligning the parallel text"):
            options["translations"] = job.translations(steps.log)
    with steps("making the plan"):
        plan = job.method.plan(source, target, **options)
        if job.settings.keep_source:
            kept = np.where(np.arange(len(plan)) < len(job.source), job.overlap.source, -1)
            plan = plan.with_copies(kept)
    return plan


def _tuning(job: Job, plan: TransferPlan, directory: Path, steps: Steps) -> None:
    """Tunes the written model's rows along their coordinates, where that is asked for."""
    settings = job.settings
    if not settings.tune_coefficients:
        return
    with steps("tuning coefficients"):
        found = tune_coefficients(
            directory,
            plan,
            job.target_tokenizer,
            job.target,
            settings.target_text,
            steps=settings.tune_coefficients,
            progress=steps.counter("steps"),
            **_of_text(settings),
        )
    work.flops(found["flops"])
    job.notes.append(
        "Rows were moved along {coordinates} coordinates by {steps:,} steps on {tokens:,} tokens ({flops:.3g} FLOPs); the loss "
        "on {held_out:,} held-out tokens went from {loss[0]:.4g} to {loss[1]:.4g} nats{}.".format(
            "" if found["kept"] else ", so they were left as they were", **found
        )
    )


def _distil(job: Job, plan: TransferPlan, directory: Path, steps: Steps) -> None:
    """Fits the rows of the written model that are not copied, where that is asked for."""
    settings = job.settings
    if not settings.distill:
        return
    with steps("fitting new rows to the source model"):
        # What is copied means what it meant.
        phrases = [piece if plan.copy[token] < 0 else piece[:0] for token, piece in enumerate(job.pieces())]
        found = distill(
            directory,
            job.checkpoint,
            job.source_tokenizer,
            job.source,
            phrases,
            settings.target_text,
            snippets=settings.distill,
            log=steps.log,
            **_of_text(settings),
        )
    work.flops(found["flops"])
    job.notes.append(
        "{tokens:,} tokens were fitted to the source model on {snippets:,} snippets ({flops:.3g} FLOPs); the mean squared "
        "difference of hidden states on {held_out:,} others went from {loss[0]:.4g} to {loss[1]:.4g}{}.".format(
            "" if found["kept"] else ", so their rows were left as they were", **found
        )
    )


def _match(job: Job, plan: TransferPlan, directory: Path, steps: Steps) -> None:
    """Fits the rows of the written model that are not copied to the source's attention, where that is asked for."""
    settings = job.settings
    if not settings.match_attention:
        return
    with steps("matching the source model's attention"):
        found = match_attention(
            directory,
            job.checkpoint,
            (job.source_tokenizer, job.target_tokenizer),
            (job.source, job.target),
            # What is copied means what it meant.
            plan.copy < 0,
            settings.target_text,
            steps=settings.match_attention,
            progress=steps.counter("steps"),
            **_of_text(settings),
        )
    work.flops(found["flops"])
    job.notes.append(
        "Input rows of {tokens:,} tokens were fitted to the attention of the source's layer {layers} by {steps:,} steps on "
        "{read:,} tokens ({flops:.3g} FLOPs); the mean squared difference on held-out text went from {loss[0]:.4g} to "
        "{loss[1]:.4g}{}.".format("" if found["kept"] else ", so they were left as they were", **found)
    )


def _calibration(job: Job, directory: Path, steps: Steps) -> dict | None:
    """Calibrates the written model where that is asked for; returns what the record says of it."""
    settings = job.settings
    if settings.calibrate == "none":
        return None
    with steps("calibrating the model"):
        found = calibrate(
            directory,
            job.target_tokenizer,
            job.target,
            settings.target_text,
            log=steps.log,
            **_of_text(settings),
        )
    if found["loss"][1] == found["loss"][0]:
        job.notes.append("Calibration was left out: on held-out text it did not lower the loss.")
    return found


def _of_text(settings: TransferSettings) -> dict:
    """How the target text is read, and what is drawn from it."""
    return {name: getattr(settings, name) for name in ("text_bytes", "text_field", "max_document_bytes", "seed")}


def _surgery(job: Job, plan: TransferPlan) -> Surgery:
    settings = job.settings
    return Surgery(
        checkpoint=job.checkpoint,
        plan=plan,
        method=job.method,
        source=job.source,
        target=job.target,
        seed=settings.seed,
        parity=settings.parity,
        head_bias=settings.head_bias,
        shift=job.shift,
        notes=job.notes,
        pad_to=settings.pad_to,
        noise=settings.noise,
        transform=_transform(settings),
        latent_dimension=settings.latent_dimension,
        factorised=settings.factorised,
    )


def _transform(settings: TransferSettings) -> Callable[[np.ndarray, str], np.ndarray] | None:
    """What is done to a finished table, Kim et al.'s transforms in the order of their section 3.4; None: nothing."""
    if settings.standardize is None and settings.shuffle is None:
        return None

    def transformed(table: np.ndarray, role: str) -> np.ndarray:
        if settings.standardize is not None:
            table = standardize(table, settings.standardize, seed=settings.seed, name=role)
        return table if settings.shuffle is None else shuffle(table, settings.shuffle, seed=settings.seed)

    return transformed
