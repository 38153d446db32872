"""What a workdir says of its run: who is at work there, its settings, its text and tokenizer, and the machines it ran on."""

import contextlib
import copy
import errno
import fcntl
import hashlib
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
from ml_collections import ConfigDict

import wechsel_jax
from wechsel_jax.errors import UserError
from wechsel_jax.files import refuse_workdir
from wechsel_jax.files.json import mismatch, read_json, record_json
from wechsel_jax.records.machine import versions
from wechsel_jax.records.names import CONFIG_FILE, FINGERPRINTS_FILE, LOCK_FILE, MACHINE_FILE, METRICS_FILE, TEXTS_FILE
from wechsel_jax.records.run import read_starts
from wechsel_jax.records.state import whole_file
from wechsel_jax.tokens.files import tokenizer_hash
from wechsel_jax.training import distributed
from wechsel_jax.training.config import as_dict, default_config
from wechsel_jax.training.coordinates import Coordinates
from wechsel_jax.training.run_data import Data

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# In the workdir of a probe: the text that all are scored on, and its tokens by each tokenizer.
HELD_OUT = "held-out"
_OF_A_RUN = frozenset(("steps", "model", "optimizer"))
# What begins in a workdir -> settings that config.json has of no other; a probe records none.
_RECORDED = {
    "a training run": _OF_A_RUN,
    "a fine-tuning": _OF_A_RUN,
    "a comparison": frozenset(("methods", "training")),
    "a TreLM training": frozenset(("source", "tri_layer")),
    "a choice of method": frozenset(("source", "target_tokenizer", "rates")),
    "a probe": frozenset(),
}
# A lock of the open file, where there are such (Linux), is not lost as one of the process is when another descriptor of the
# file is closed: a process may write a report on its own run.
_TAKE = getattr(fcntl, "F_OFD_SETLK", fcntl.F_SETLK)
# These decide where and how fast a run goes, not what it computes, so a run may go on with other values.
FREE_FIELDS = (
    *("mesh", "distributed", "compilation_cache", "keep", "keep_every", "checkpoint_every"),
    *("prefetch", "profile_steps", "statistics", "trackers", "max_document_bytes"),
    # Of a comparison: what its models are scored on when they have been trained.
    "evaluation",
)
# Differing settings that a message names.
_MOST_NAMED = 20
# Settings that earlier versions had not, and what stands for them in a run of those.
_LATER = {name: as_dict(default_config()[name]) for name in ("epochs", "seeds", "task", "soft_targets")} | {
    "groups": [],
    "fork": "",
    "parity": False,
    "rows": "",
    "first": "",
}
_LATER |= {"target_tokenizer": "", "target_embeddings": "", "bleu": False, "tokenize": "13a", "directory": "", "probe_steps": 0}
# Of a comparison.
_LATER |= {"parallel": [], "pivots": 300, "distill": 0, "match_attention": 0, "tune_coefficients": 0, "residual": 0.5}
_LATER |= {"tuning": {"rates": [], "tables": [1.0], "steps": 60, "held_out": 0.02, "eval_batches": 20}}


@contextlib.contextmanager
def only_run(workdir: str | Path, say: Callable[[str], None] = print) -> Iterator[None]:
    """Holds `workdir/.lock` while the block runs.

    It is a lock of the operating system, which ends with the process however that dies, so there are no stale ones. It also
    works between the machines that share an NFS directory, as long as its lock service runs; where the file system has no
    locks (some bucket mounts) a line says so and the run goes on unguarded. Where the block refuses to begin, by `UserError`
    before it has written a file, a workdir that was empty or not there is left so.

    Raises:
      UserError: another process holds it; the message names its machine and number. Or the workdir cannot be made, or no run
        has begun there and it cannot be written.
    """
    workdir = Path(workdir)
    try:
        made = not workdir.exists()
        fresh = made or not any(workdir.iterdir())
        workdir.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(workdir / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise UserError(
            f"{workdir}: cannot be made or written ({error.strerror}); expected a directory for the run; choose another one"
        ) from None
    try:
        holder = ""
        try:
            fcntl.fcntl(descriptor, _TAKE, whole_file())
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                holder = os.read(descriptor, 200).decode(errors="replace").strip() or "another process"
            else:
                say(f"{workdir}: the file system has no locks ({error.strerror}); make sure that no second run writes here")
        # A refused start may just have removed the file that this one opened.
        if not holder and not os.fstat(descriptor).st_nlink:
            holder = "another process"
        if holder:
            raise UserError(
                f"{workdir}: {holder} is at work here; expected one run a workdir; wait for it, stop it, or use another"
            )
        line = f"process {os.getpid()} on {socket.gethostname()}\n".encode()
        try:
            # Over an earlier line, for which there is room.
            os.pwrite(descriptor, line, 0)
            os.ftruncate(descriptor, len(line))
        except OSError as error:
            # A full disk must not keep a run from its last steps; of a first start, nobody would know the directory again.
            if not has_begun(workdir):
                raise UserError(
                    f"{workdir}: cannot be written ({error.strerror}); expected room for the run; free some space and run the "
                    "same command again"
                ) from None
        try:
            yield
        except UserError:
            # A setting was mistyped, perhaps: nobody shall find what looks like a run.
            places = [*os.walk(workdir, topdown=False)] if fresh else []
            if [name for _, _, names in places for name in names] == [LOCK_FILE]:
                with contextlib.suppress(OSError):
                    os.unlink(workdir / LOCK_FILE)
                    for place, _, _ in places:
                        if made or Path(place) != workdir:
                            os.rmdir(place)
            raise
    finally:
        os.close(descriptor)


def require_workdir(workdir: str | Path, what: str, *, outputs: bool = False) -> None:
    """Refuses a directory that holds something else than `what`, a key of `_RECORDED`; see `refuse_workdir`."""
    refuse_workdir(workdir, lambda place: has_begun(place, what), what, outputs=outputs)


def has_begun(workdir: Path, what: str = "") -> bool:
    """Whether `what` has begun in a directory, or any of `_RECORDED`: it holds the settings of one, or the lock's file."""
    with contextlib.suppress(OSError, ValueError, AttributeError, RecursionError):
        names = json.loads((workdir / CONFIG_FILE).read_bytes()).keys()
        return any(fields and fields <= names for kind, fields in _RECORDED.items() if what in ("", kind))
    with contextlib.suppress(OSError):
        if (workdir / LOCK_FILE).read_bytes().startswith(b"process "):
            # Of a probe, and of several seeds until they have ended, runs stand in a workdir without settings.
            runs = {file.parent.name for file in workdir.glob(f"*/{METRICS_FILE}")}
            seeds = {name for name in runs if name.startswith("seed-")}
            probed = bool(runs - seeds) or (workdir / f"{HELD_OUT}.jsonl").exists()
            return not ((probed and what not in ("", "a probe")) or (seeds and what not in ("", "a fine-tuning")))
    return False


def record_config(config: ConfigDict, workdir: str | Path) -> None:
    """Writes `workdir/config.json`, or checks that the one there records the same settings.

    Fields that change nothing about the result (`FREE_FIELDS`) may differ; the new values are recorded then.

    Raises:
      UserError: the recorded settings differ; the message names them.
    """
    check_config(config, workdir)
    record_json(Path(workdir) / CONFIG_FILE, as_dict(config))


def follow(config: ConfigDict, workdir: Path, *fields: str) -> None:
    """Records where a run now finds what the program around it made for it: that moves with the workdir of them all.

    Args:
      config: settings of the run as they are now.
      workdir: of the run; where none has begun there is nothing to do.
      fields: which are places that the program sets and its user cannot, such as "model.checkpoint".

    Raises:
      UserError: the recorded settings are damaged.
    """
    file = workdir / CONFIG_FILE
    if not file.exists():
        return
    recorded = read_json(file, "the settings of an earlier run", "use another workdir")
    now, before = json.loads(json.dumps(as_dict(config))), copy.deepcopy(recorded)
    for group, field in (name.split(".") for name in fields):
        if isinstance(recorded.get(group), dict):
            recorded[group][field] = now[group][field]
    if recorded != before:
        record_json(file, recorded)


def check_config(config: ConfigDict, workdir: str | Path) -> None:
    """Raises `UserError` where `workdir/config.json` records other settings; the message names them."""
    file = Path(workdir) / CONFIG_FILE
    new = json.loads(json.dumps(as_dict(config)))
    if file.exists():
        recorded = read_json(file, "the settings of an earlier run", "use another workdir")
        differing = differences(recorded, new)
        if differing:
            fields = "; ".join(f"{name} was {_shown(old)}, now {_shown(now)}" for name, old, now in differing[:_MOST_NAMED])
            if len(differing) > _MOST_NAMED:
                fields += f"; and {len(differing) - _MOST_NAMED} more"
            raise UserError(f"{file}: the run there has other settings: {fields}; expected the same; use another workdir")


def differences(old: Any, new: Any) -> list[tuple[str, Any, Any]]:
    """Returns (name, old value, new value) of every setting that differs and changes the result."""
    # Some free ones are fields of a group, and a comparison holds all settings of its trainings in groups.
    return [line for line in _differences(old, new, "") if not {*FREE_FIELDS} & {*line[0].split(".")}]


def _differences(old: Any, new: Any, name: str) -> list[tuple[str, Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        # What they are like is read where there are some; an override may leave that to what it overrides.
        if name.endswith("soft_targets") and old.get("share") == new.get("share") == 0:
            return []
        old = {key: value for key, value in _LATER.items() if key in new} | old
        below = [_differences(old.get(key), new.get(key), f"{name}.{key}" if name else key) for key in sorted({*old, *new})]
        return [line for lines in below for line in lines]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [line for i in range(len(old)) for line in _differences(old[i], new[i], f"{name}[{i}]")]
    # Another way to the same file is no other setting.
    paths = isinstance(old, str) and isinstance(new, str) and os.path.exists(old) and os.path.exists(new)
    return [] if old == new or (paths and os.path.samefile(old, new)) else [(name, old, new)]


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."


def check_data(
    data: Data,
    tokenizer: "PreTrainedTokenizerFast",
    workdir: Path,
    fresh: bool,
    say: Callable[[str], None] = print,
    coordinates: Mapping[str, Coordinates] | None = None,
) -> None:
    """Makes sure that a run goes on with the text, tokenizer and coordinates it began with; says where versions are others.

    Args:
      data: of this start.
      tokenizer: of this start.
      workdir: holds `FINGERPRINTS_FILE` once a run has begun.
      fresh: whether nothing has been trained yet, so that the fingerprints are written.
      say: shows one line to the user.
      coordinates: of tables whose rows also move together, see `groups.Grouping`.

    Raises:
      UserError: the token blocks, the tokenizer or the coordinates are other ones.
    """
    now = {"train": data.train.fingerprint, "validation": data.validation.fingerprint, "tokenizer": tokenizer_hash(tokenizer)}
    # How many: a run goes on with those that its checkpoint holds.
    now["coordinates"] = {path: x.shape[1] for path, x in (coordinates or {}).items()}
    file, versions = workdir / FINGERPRINTS_FILE, {"wechsel_jax": wechsel_jax.__version__, "jax": jax.__version__}
    if fresh or not file.exists():
        if not fresh:
            say(f"note: {file} is not there: whether text and tokenizer are those that this run began with cannot be told")
        if distributed.is_first():
            record_json(file, {name: value for name, value in {**now, "versions": versions}.items() if value})
        return
    recorded = read_json(file, "what the run began with", "put it back or use another workdir")
    for name, fingerprint in now.items():
        if name == "tokenizer" and recorded.get(name) != fingerprint:
            # Of a file of another name than tokenizer.json, earlier versions hashed what the library makes of it.
            earlier = hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()
            fingerprint = earlier if recorded.get(name) == earlier else fingerprint
        if recorded.get(name, fingerprint) != fingerprint:
            where, what = {
                "tokenizer": ("model.tokenizer", "tokenizer"),
                "coordinates": ("optimizer.groups", "transfer_plan.npz that coordinates are from"),
            }.get(name, (f"data.{name}", "text or tokenizer"))
            raise UserError(f"{where}: the {what} has changed since this run began; restore it or use another workdir")
    began = recorded.get("versions")
    for name, version in versions.items():
        if isinstance(began, dict) and began.get(name, version) != version:
            say(f"this run began with {name} {began[name]}, now {version}: numbers may differ in the last digits")


def read_texts(workdir: Path, each: Any) -> dict[str, Any]:
    """Returns what `record_texts` wrote; nothing where it never did, as in a workdir of an earlier version.

    Args:
      workdir: of the program.
      each: what it records under each name, as `files.json.mismatch` takes it.

    Raises:
      UserError: it is damaged, so what has been trained on cannot be told.
    """
    file = workdir / TEXTS_FILE
    advice = "put it back from a copy, or remove it and see to it yourself that no text has changed"
    found = read_json(file, "which text was trained on", advice) if file.exists() else {}
    if problem := mismatch(found, {"*": each}):
        raise UserError(f"{file}: {problem}; {advice}")
    return found


def record_texts(texts: Mapping[str, Any], workdir: Path) -> None:
    """Records which text several runs are of: what `run_data.identified` says of each."""
    record_json(workdir / TEXTS_FILE, texts)


def record_start(workdir: str | Path, step: int, seconds: float, devices: Sequence[jax.Device], flops_per_token: float) -> None:
    """Adds a start to the record.

    Earlier starts after which nothing was kept are dropped, so that from one start to the next the seconds are those of the
    work that counts: times the devices, they are the device hours of a model card.

    Args:
      workdir: of the run.
      step: that training goes on from.
      seconds: of the run so far, as its metrics count them.
      devices: of all processes.
      flops_per_token: of the model's matrix products in training.
    """
    file = Path(workdir) / MACHINE_FILE
    start = {
        "step": step,
        "seconds": round(seconds, 3),
        "devices": len(devices),
        "device_kind": devices[0].device_kind,
        "platform": devices[0].platform,
        "processes": jax.process_count(),
        "flops_per_token": flops_per_token,
        "versions": versions(),
    }
    starts = [old for old in read_starts(file) if old.get("seconds", 0.0) < start["seconds"]] if step else []
    record_json(file, {"starts": [*starts, start]})
