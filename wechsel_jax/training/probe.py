"""Some steps from each of several starts, with several rates: which one to train on, since step 0 does not tell."""

import itertools
import json
import math
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.data import TokenBlocks, prepare, prepare_split
from wechsel_jax.data.encoder import Encoder
from wechsel_jax.data.manifest import MANIFEST, read_manifest
from wechsel_jax.data.selection import VALIDATION, facts, side_of
from wechsel_jax.errors import UserError
from wechsel_jax.files import file_hash, new_file
from wechsel_jax.models import family
from wechsel_jax.records import ComparisonRecord, read_run
from wechsel_jax.records.comparison import COMPARISON_FILE
from wechsel_jax.records.machine import machine
from wechsel_jax.records.names import CONFIG_FILE
from wechsel_jax.report import comparison_table
from wechsel_jax.text.files import LONGEST_DOCUMENT
from wechsel_jax.text.parts import read_documents
from wechsel_jax.text.sources import Source, find_sources
from wechsel_jax.tokens import load_tokenizer
from wechsel_jax.training.config import default_config, validate
from wechsel_jax.training.groups import DEFAULT, RECIPES
from wechsel_jax.training.loop import train
from wechsel_jax.training.schedules import one_phase
from wechsel_jax.training.workdir import HELD_OUT, only_run, require_workdir

RATES = (1e-3, 3e-3)
_EVALUATIONS = 5
_HELD_OUT_SHARE = 0.02


def probe(
    starts: Mapping[str, str | Path],
    text: Sequence[str],
    workdir: str | Path,
    *,
    validation: Sequence[str] = (),
    rates: Sequence[float] = RATES,
    recipes: Sequence[str] | Mapping[str, Mapping[str, Any]] = (DEFAULT,),
    steps: int = 50,
    batch_size: int = 16,
    block_length: int = 128,
    eval_bytes: int = 1 << 17,
    seed: int = 0,
    text_bytes: int = 0,
    text_field: str = "text",
    max_document_bytes: int = LONGEST_DOCUMENT,
) -> ComparisonRecord:
    """Trains every start with every recipe and rate for some steps, and says which came furthest.

    Each is a run of `train` in `workdir/START-RECIPE-RATE`, a schedule of its own: warm-up over 30 % of the steps, then linear
    to 0. The same call goes on where it stopped. What is compared is the bits per byte of held-out text after the last step;
    or the loss a predicted token where one of them has none. Every evaluation reads all of the same text, in bytes and not in
    batches, of which the tokens of another tokenizer, or longer rows, would cover another part.

    Args:
      starts: label -> model directory, of one or of several tokenizers.
      text: to train on, see `text.sources.find_sources`.
      workdir: gets the runs, the tokens and comparison.json, which `wechsel-jax report` reads.
      validation: held-out text; where there is none, 2 % of the documents.
      rates: highest learning rates; a recipe gives some parameters a multiple.
      recipes: names of `groups.RECIPES`; or name -> fields of `optimizer`, see `config.default_config`.
      steps: of each run.
      batch_size: rows in a step.
      block_length: tokens in a row; models with fewer positions take those.
      eval_bytes: of held-out text that an evaluation reads, the first of the documents; 0: all.
      seed: of the order of the text.
      text_bytes: read a random sample of documents of this many bytes; 0: all.
      text_field: which holds the text of JSON lines and tables.
      max_document_bytes: text with a longer line, row or document is refused.

    Returns:
      What comparison.json holds, with what earlier calls with the same held-out text found of other starts, recipes and rates:
      in `chosen` the name of the best run of as many steps, and for each its "start", its "evaluations", and what is
      compared: [step, value] pairs as "bits_per_byte", or as "loss".

    Raises:
      UserError: a start is no model, a rate is impossible, text is missing or too short, or the workdir holds another probe.
    """
    require_workdir(workdir, "a probe")
    workdir = Path(workdir)
    for what, given in (("starts", starts), ("text", text), ("rates", rates), ("recipes", recipes)):
        if not given:
            raise UserError(f"{what}: is empty; expected at least one")
    known = recipes if isinstance(recipes, Mapping) else {name: {"groups": groups} for name, groups in RECIPES.items()}
    for recipe in recipes:
        if recipe not in known:
            raise UserError(f"recipes: unknown recipe {recipe!r}; expected some of {', '.join(RECIPES)}")
    for label in starts:
        if label in ("", ".", "..") or Path(label).name != label:
            raise UserError(f"starts: the label {label!r} is no name of a folder; expected one such as anker")
    sources, held_out = (find_sources(texts, text_field, max_document_bytes) for texts in (text, validation))
    checkpoints = {label: Checkpoint.open(start) for label, start in starts.items()}
    configs: dict[str, ConfigDict] = {}
    start_of: dict[str, str] = {}
    # By tokenizers, of which an earlier call may have named another start first.
    sides = [file.parent for file in workdir.glob(f"data/*/train/{MANIFEST}")]
    manifests = {side.parent: read_manifest(side) for side in sides}
    made = {(manifest["tokenizer"]["sha256"], manifest["end_token"]): place for place, manifest in manifests.items()}
    prepared: dict[tuple[str, int | None], tuple[Path, Path]] = {}
    for label, checkpoint in checkpoints.items():
        of_model, tokenizer = family(checkpoint.config.get("model_type")), checkpoint.directory / "tokenizer.json"
        # Starts of one tokenizer share its tokens; what ends a text may be another one's of the same file.
        end = Encoder.of(load_tokenizer(checkpoint.directory), str(checkpoint.directory)).end
        own = (file_hash(tokenizer) if tokenizer.is_file() else label, end)
        place, _ = prepared.setdefault(own, (made.get(own, workdir / "data" / label), checkpoint.directory))
        if len(prepared) > 1 and not of_model.causal:
            raise UserError("starts: masked models of several tokenizers cannot be compared; expected one tokenizer")
        for recipe in recipes:
            for rate in rates:
                config = default_config()
                config.seed, config.steps, config.batch_size = seed, steps, batch_size
                config.objective = "clm" if of_model.causal else "mlm"
                config.block_length = min(block_length, of_model.config(checkpoint.config).max_length)
                config.model.checkpoint, config.model.dropout = str(checkpoint.directory), 0.0
                config.data.train, config.data.validation = (str(place / "train"),), (str(workdir / HELD_OUT / place.name),)
                config.data.max_document_bytes = max_document_bytes
                config.optimizer.update({**known[recipe], "peak_learning_rate": rate})
                config.phases = one_phase(warmup=0.3)
                config.eval_every = math.ceil(steps / _EVALUATIONS)
                config.checkpoint_every, config.keep, config.keep_best = steps, 1, False
                # A rate that is too high is something to be seen, no mistake.
                config.skip_nonfinite = steps
                config.compilation_cache = str(workdir / "compiled")
                validate(config)
                name = f"{label}-{recipe}-{rate:g}"
                if name in configs:
                    raise UserError(f"{name}: stands for two runs; expected starts, recipes and rates that differ by name")
                configs[name], start_of[name] = config, label
    if len({config.objective for config in configs.values()}) > 1:
        raise UserError("starts: causal and masked models cannot be compared; expected one kind")
    with only_run(workdir):
        earlier = ComparisonRecord.read(workdir) if (workdir / COMPARISON_FILE).exists() else ComparisonRecord()
        if earlier.seed not in (None, seed):
            raise UserError(f"{workdir}: holds a probe with seed {earlier.seed}; expected the same; choose another --workdir")
        written, share = workdir / f"{HELD_OUT}.jsonl", 1.0 if validation else _HELD_OUT_SHARE
        if any(workdir.glob(f"*/{CONFIG_FILE}")):
            # What runs were scored on stays as it is.
            with tempfile.TemporaryDirectory() as folder:
                _write_held_out(held_out or sources, share, eval_bytes, Path(folder) / written.name)
                if not written.exists() or (Path(folder) / written.name).read_bytes() != written.read_bytes():
                    raise UserError(
                        f"{workdir}: holds a probe that is scored on other text; expected the same --text or --validation and "
                        "the same --eval_bytes; choose another --workdir"
                    )
        else:
            # Nothing was scored on it: after a mistake, other text may take its place.
            shutil.rmtree(workdir / HELD_OUT, ignore_errors=True)
            _write_held_out(held_out or sources, share, eval_bytes, written)
        for place, tokenizer in prepared.values():
            # JSON may take several bytes for one.
            prepare(written, tokenizer, workdir / HELD_OUT / place.name, max_document_bytes=(1 << 31) - 1)
        for config in configs.values():
            TokenBlocks.open(config.data.validation[0], config.block_length)
        settings = {"max_bytes": text_bytes, "text_field": text_field, "max_document_bytes": max_document_bytes}
        for place, tokenizer in prepared.values():
            if validation:
                prepare(text, tokenizer, place / "train", **settings)
            else:
                prepare_split(text, tokenizer, place, validation_fraction=_HELD_OUT_SHARE, **settings)
        runs = {}
        for name, config in configs.items():
            print(f"== {name}", flush=True)
            train(config, workdir / name)
            runs[name] = read_run(workdir / name)
        shutil.rmtree(workdir / "compiled", ignore_errors=True)
    finite = {name: run.evaluations[-1] for name, run in runs.items() if math.isfinite(run.evaluations[-1].loss)}
    if not finite:
        raise UserError(f"rates: no run has a finite loss after {steps} steps; expected lower ones than {min(rates):g}")
    measure = "loss" if any(end.bits_per_byte is None for end in finite.values()) else "bits_per_byte"
    # What an earlier call found of other starts, recipes or rates stays.
    methods = {name: found for name, found in earlier.methods.items() if (workdir / name).is_dir()}
    for name in configs:
        points = [(one.step, getattr(one, measure)) for one in runs[name].evaluations]
        methods[name] = {
            "evaluations": [list(point) for point in runs[name].curve],
            "start": start_of[name],
            measure: [[step, value] for step, value in points if value is not None and math.isfinite(value)],
        }
    ends = {name: one[measure][-1] for name, one in methods.items() if one.get(measure)}
    values = {name: value for name, (step, value) in ends.items() if step == steps}
    chosen = min(values, key=values.__getitem__)
    record = ComparisonRecord(methods=methods, seed=seed, machine=machine(), chosen=chosen)
    record.write(workdir)
    print(comparison_table([workdir / name for name in methods]))
    unit = "bits per byte" if measure == "bits_per_byte" else "nats a token"
    print(f"chosen: {chosen}, {values[chosen]:.4g} {unit} after {steps} steps", flush=True)
    return record


def _write_held_out(sources: Sequence[Source], share: float, size: int, output: Path) -> None:
    """Writes the documents that `prepare_split` holds out of a share, as JSON lines: the first `size` bytes of them; 0: all."""
    most = left = size or 1 << 62
    with new_file(output, "w") as handle:
        for document in itertools.chain.from_iterable(map(read_documents, sources)):
            if side_of(facts([document]), share)[0] == VALIDATION:
                text = document.encode()[:left]
                handle.write(json.dumps({"text": text.decode(errors="ignore")}, ensure_ascii=False) + "\n")
                left -= len(text)
                if not left:
                    break
        if left == most:
            raise UserError(
                f"{sources[0].name}: {share:.0%} of its documents leave none to score on; expected more of them, or held-out "
                "text of its own: --validation=FILE"
            )
