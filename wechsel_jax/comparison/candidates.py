"""Which method, by what its model learns: transfers by several, some steps from each, and the best of them kept."""

import contextlib
import dataclasses
import hashlib
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.comparison.settings import inputs_of
from wechsel_jax.errors import UserError
from wechsel_jax.files import copy_tree, file_hash, new_directory, refuse_directory
from wechsel_jax.initializers import METHODS
from wechsel_jax.models import family
from wechsel_jax.records import TransferRecord
from wechsel_jax.records.names import CONFIG_FILE, LOCK_FILE
from wechsel_jax.report.card import model_card
from wechsel_jax.text.files import LONGEST_DOCUMENT
from wechsel_jax.text.sources import find_sources, identify
from wechsel_jax.tokens import load_tokenizer
from wechsel_jax.training import record_config
from wechsel_jax.training.config import as_dict
from wechsel_jax.training.groups import DEFAULT as RECIPE
from wechsel_jax.training.probe import RATES, probe
from wechsel_jax.training.workdir import only_run, require_workdir
from wechsel_jax.transfers.choice import DEFAULT
from wechsel_jax.transfers.job import transfer
from wechsel_jax.transfers.record import to_stderr
from wechsel_jax.transfers.settings import TransferSettings, described_settings, strings

# As far as what is given allows: one method of each kind of input, and settings of its own. Which share of the residuals is
# better differs from case to case: docs/anker.md.
CANDIDATES = {name: (name, {}) for name in ("anker", "fvt", "wechsel", "focus", "clp", "trans_tokenization")}
CANDIDATES["anker_residual2"] = ("anker", {"residual": 2.0})

_REMOVED = "removed"


def transfer_by_probe(
    source: str | os.PathLike,
    target_tokenizer: str | os.PathLike,
    output: str | os.PathLike,
    *,
    steps: int,
    rates: Sequence[float] = RATES,
    recipes: Sequence[str] | Mapping[str, Mapping[str, Any]] = (RECIPE,),
    overwrite: bool = False,
    log: Callable[[str], None] = to_stderr,
    **settings,
) -> dict:
    """Transfers by every method that the given inputs allow, trains some steps from each, and keeps what came furthest.

    The methods are those of `CANDIDATES`; `training.probe.probe` trains them on `target_text`.
    Until the output is there, all of it lies in `OUTPUT.probe`, and the same call goes on where it stopped.

    Args:
      source: as in `transfer`, of a family that can be trained here.
      target_tokenizer: as in `transfer`.
      output: as in `transfer`; `choice` of its transfer.json holds the curves.
      steps: of each run.
      rates: as in `probe`.
      recipes: as in `probe`.
      overwrite: replace an existing `output`.
      log: called with progress lines; the curves are printed.
      **settings: as in `transfer`.

    Returns:
      What transfer.json holds.

    Raises:
      UserError: as `transfer` and `probe`; there is no target text, or only one method to choose from, or `OUTPUT.probe`
        holds a probe of other inputs.
    """
    files = TransferSettings.filled(METHODS[DEFAULT], **settings).files()
    place = probe_directory(output)
    try:
        refuse_directory(output, "transfer", overwrite, [source, target_tokenizer, *files])
    except UserError as error:
        # Killed after its last file, and before it had cleared up.
        left = f"; {place} is left of a probe and can go" if (place / CONFIG_FILE).exists() else ""
        raise UserError(f"{error}{left}") from None
    # What is missing is found before anything is written.
    family(Checkpoint.open(source).config.get("model_type"))
    load_tokenizer(target_tokenizer)
    given = _given(settings)
    candidates = _allowed(given)
    require_workdir(place, "a choice of method")
    with only_run(place):
        models = {"source": os.fspath(source), "target_tokenizer": os.fspath(target_tokenizer)}
        trained = {"rates": [*rates], "recipes": recipes if isinstance(recipes, Mapping) else [*recipes]}
        read = _contents([Checkpoint.open(source).directory, target_tokenizer, *files], given)
        described = ConfigDict({**models, "steps": steps, **trained, "settings": as_dict(given), "sha256_of_files": read})
        # What an earlier call was about to remove.
        shutil.rmtree(place / _REMOVED, ignore_errors=True)
        try:
            record_config(described, place)
        except UserError as error:
            if (place / "probe").exists():
                raise UserError(f"{error}, that is another output, or remove {place}") from None
            # Nothing has been trained: what depends on the settings is made again.
            for name in CANDIDATES:
                shutil.rmtree(place / name, ignore_errors=True)
            (place / CONFIG_FILE).unlink()
            record_config(described, place)
        for name in candidates:
            if not (place / name).exists():
                log(f"== {name}")
                transfer(source, target_tokenizer, place / name, log=log, **candidates[name])
        options = {name: given[name] for name in ("text_bytes", "text_field", "max_document_bytes", "seed") if name in given}
        starts = {name: place / name for name in candidates}
        probed = probe(starts, given["target_text"], place / "probe", steps=steps, rates=rates, recipes=recipes, **options)
        best = probed.methods[probed.chosen]
        measure = next(name for name in ("bits_per_byte", "loss") if name in best)
        ends = {one["start"]: [] for one in probed.methods.values()}
        for one in probed.methods.values():
            # A run that diverged has no value at its end.
            ends[one["start"]] += [value for step, value in one[measure] if step == steps]
        said = ", ".join(f"{name} {min(values):.4g}" if values else f"{name} diverged" for name, values in ends.items())
        unit = "bits per byte" if measure == "bits_per_byte" else "nats a token"
        because = f"after {steps} training steps its model is the best on held-out text, in {unit}: {said}"
        with new_directory(output, "transfer", overwrite) as directory:
            copy_tree(place / best["start"], directory)
            record = TransferRecord.read(directory)
            record = dataclasses.replace(
                record,
                notes=(*record.notes, f"No method was named; {best['start']} was chosen: {because}."),
                choice={
                    "method": record.method,
                    "start": best["start"],
                    "because": because,
                    "measure": unit,
                    "value": best[measure][-1][1],
                    "curves": {name: one[measure] for name, one in probed.methods.items()},
                },
            )
            record.write(directory)
            (directory / "README.md").write_text(model_card(record), encoding="utf-8")
    (place / _REMOVED).mkdir()
    # Whole or not at all: what has lost a file would be taken for a candidate by the next call.
    for name in (*candidates, "probe"):
        (place / name).rename(place / _REMOVED / name)
    shutil.rmtree(place / _REMOVED)
    for name in (CONFIG_FILE, LOCK_FILE):
        (place / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        # Somebody may have put something there.
        place.rmdir()
    log(f"{output}: by {best['start']}: {because}")
    return record.content()


def probe_directory(output: str | os.PathLike) -> Path:
    """Where `transfer_by_probe` works until its output is there."""
    return Path(output).with_name(f"{Path(output).name}.probe")


def _contents(places: Sequence[str | os.PathLike], given: Mapping[str, Any]) -> str:
    """One sha256 of all that is read from files: text, and what lies at the other places."""
    named = [text for name in ("source_text", "target_text") for text in given.get(name, ())]
    hashes = []
    if named:
        sources = find_sources(named, given.get("text_field", "text"), given.get("max_document_bytes", LONGEST_DOCUMENT))
        hashes = [text["sha256"] for text in identify(sources, os.cpu_count() or 1)[1]]
    for place in (Path(place) for place in places if os.fspath(place) not in named):
        files = sorted(place.rglob("*")) if place.is_dir() else [place]
        hashes += [file_hash(file) for file in files if file.is_file()]
    return hashlib.sha256("".join(hashes).encode()).hexdigest()


def _given(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without those that are there and empty, as flags are that nobody gave."""
    several = {name for name, described in described_settings().items() if described.kind is tuple}
    filled = {name: strings(value) if name in several else value for name, value in settings.items()}
    return {name: value for name, value in filled.items() if value not in (None, "", ())}


def _allowed(given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The candidates that have what they need, each with its method and what that reads.

    Raises:
      UserError: there are fewer than two, or a file is missing.
    """
    if "target_text" not in given:
        raise UserError("probe_steps: there is no target_text; expected text of the new language to train on")
    find_sources(given["target_text"])
    found, known = {}, described_settings()
    for name, (method, own) in CANDIDATES.items():
        method = METHODS[method]
        # Where both languages have vectors, those of the target are of words, not of tokens.
        of_words = method.space == "target" and "source_vectors" in given
        decided = any(given.get(key, known[key].default) != known[key].default for key in own)
        # Without a regression there are no residuals.
        decided |= "residual" in own and given.get("regression") is False
        if {*inputs_of(method)} <= {*given} and not of_words and not decided:
            found[name] = {"method": method.name, **TransferSettings.read_by(method, given), **own}
            find_sources(TransferSettings.of(**found[name])[1].source_text)
    if len(found) < 2:
        raise UserError(
            f"probe_steps: what is given allows {', '.join(found)} only; expected source_text, or vectors and a dictionary, "
            "for other methods; or leave probe_steps out"
        )
    return found
