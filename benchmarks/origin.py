"""What results that are gathered from runs come from, as the runs recorded it: for every file here that gathers some.

Where a run lay is no part of it: of places in the settings the last name is taken.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wechsel_jax.errors import UserError
from wechsel_jax.records import RunRecord
from wechsel_jax.records.run import SIDES

# Of groups and phases; a "/" in them stands between a parameter's names.
_REGEXES = ("match", "trainable")
# Settings of transfers that are younger than results that were gathered, with the value that says what all did before.
_YOUNGER = {"match_attention": 0}
# What runs must share for their numbers to stand under one name.
SHARED = {
    "train": "another text to train on",
    "validation": "another held-out text",
    "tokenizer": "another tokenizer",
    "unseeded": "other settings, of its training or of its start,",
}


def origin(run: RunRecord) -> dict[str, Any]:
    """Returns what a run was made with and of; what it did not record is left out.

    "config" is the sha256 of its settings, "transfer" that of the settings that its start was made with; "seed"; "devices" and,
    of the last start, "versions"; "train" and "validation" are the sha256 of the tokens, "tokenizer" that of the tokenizer's
    file.
    """
    start = run.transfer and {
        name: getattr(run.transfer, name) for name in ("method", "parity", "settings", "source", "target")
    }
    found = {
        "config": _hashed(_settings(run)),
        "transfer": start and _hashed(start),
        "seed": run.config.get("seed"),
        "devices": ", ".join(sorted({f"{one.get('devices')} x {one.get('device_kind')}" for one in run.starts})),
        "versions": run.starts[-1].get("versions") if run.starts else None,
        **{side: run.data.get(side, {}).get("sha256") for side in SIDES},
        "tokenizer": next((one["tokenizer"]["sha256"] for one in run.data.values() if "tokenizer" in one), None),
    }
    return {name: value for name, value in found.items() if value not in (None, "")}


def with_seed(known: Mapping[str, Mapping[str, Any]], run: RunRecord, *, tuned: bool = False) -> dict[str, dict[str, Any]]:
    """Returns origins of the seeds of one run with that of one more, which has "unseeded" too.

    That is the sha256 of its settings, and of those of its start, but for the seed.

    Args:
      known: seed -> its origin; seeds that were gathered before there was "unseeded" lack it.
      run: of the further seed.
      tuned: learning rates are left out of "unseeded": each seed has those that were tuned for it, or takes another's.

    Raises:
      UserError: it is of other text, has another tokenizer or other settings than one of these.
    """
    seed, config = str(run.config.get("seed")), {name: value for name, value in _settings(run).items() if name != "seed"}
    if tuned:
        optimizer = {name: value for name, value in config["optimizer"].items() if name != "peak_learning_rate"}
        groups = [{name: value for name, value in group.items() if name != "rate"} for group in optimizer.get("groups", ())]
        # Tuning makes a group for the tables where there was none, with a rate alone.
        config["optimizer"] = optimizer | {"groups": [group for group in groups if group.keys() != {"match"}]}
    settings = run.transfer and {
        name: value
        for name, value in run.transfer.settings.items()
        if name != "seed" and not (name in _YOUNGER and value == _YOUNGER[name])
    }
    found = origin(run) | {"unseeded": _hashed({"run": config, "transfer": settings})}
    for earlier, one in known.items():
        require_same(one, found, str(run.path), f"seed {earlier}")
    return {**known, seed: found}


def require_same(known: Mapping[str, Any], found: Mapping[str, Any], where: str, name: str) -> None:
    """Raises `UserError` where two origins differ in what is `SHARED`; what one of them lacks is not compared."""
    for part, told in SHARED.items():
        if part in known and part in found and known[part] != found[part]:
            raise UserError(
                f"{where}: has {told} than {name}, with which it is gathered; expected the same; gather it under "
                "another name, or take the earlier result out of the file"
            )


def origins(runs: Mapping[str, RunRecord]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Returns what runs that are compared have in common, and of each what it has of its own, with the "settings" that differ.

    Raises:
      UserError: two of them are of other text or have another tokenizer.
    """
    every: dict[str, dict[str, Any]] = {}
    for name, run in runs.items():
        found = origin(run)
        for earlier, one in every.items():
            require_same(one, found, str(run.path), earlier)
        every[name] = found
    settings = {name: _flat(_without_places(_settings(run))) for name, run in runs.items()}
    own = {name: _differing(name, every) for name in runs}
    for name in runs:
        if found := _differing(name, settings):
            own[name]["settings"] = found
    first = next(iter(runs), None)
    return {part: value for part, value in every.get(first, {}).items() if part not in own[first]}, own


def _settings(run: RunRecord) -> dict[str, Any]:
    """The settings of a run, as a version without those that change nothing would have recorded them."""
    unused = ["soft_targets"] if not run.config.get("soft_targets", {}).get("share") else []
    return {name: value for name, value in run.config.items() if name not in unused}


def _differing(name: str, every: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What of a mapping is not the same in all of them."""
    return {part: value for part, value in every[name].items() if any(one.get(part) != value for one in every.values())}


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings by their names with dots; lists stay."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        inner = _flat(value) if isinstance(value, Mapping) else None
        found |= {name: value} if inner is None else {f"{name}.{below}": one for below, one in inner.items()}
    return found


def _hashed(settings: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(_without_places(settings), sort_keys=True).encode()).hexdigest()


def _without_places(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: one if name in _REGEXES else _without_places(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_without_places(one) for one in value]
    return Path(value).name if isinstance(value, str) and "/" in value else value
