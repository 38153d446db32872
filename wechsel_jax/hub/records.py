"""What a card tells of transfer.json and of a run's settings, checked where it is read: behind it every field has its type."""

from pathlib import Path
from typing import Any

from wechsel_jax.errors import UserError
from wechsel_jax.files.json import ANY, NUMBER, TEXT, WHOLE, mismatch
from wechsel_jax.inspection.records import read_record

_ORIGINS = dict.fromkeys(("copied", "mixed", "random"), WHOLE)
_RULE = {"rule": TEXT, **dict.fromkeys(("tokens", "copied", "mixed", "noise"), WHOLE), "examples": [(TEXT, ANY)]}
# What other readers of the record can do without, too.
_TRANSFER = {
    "paper": TEXT,
    "settings": {},
    "source": {"model": TEXT, "architecture": TEXT, "vocabulary_size": WHOLE},
    "target": {"tokenizer": TEXT, "vocabulary_size": WHOLE},
    "counts": _ORIGINS,
    "coverage?": {"rows": [_RULE]},
    "similarity?": {"mean_top1": NUMBER},
    "examples": [ANY],
    "behaviour": [TEXT],
    "notes": [TEXT],
    "versions": {"*": TEXT},
}
_WORDS = {"pairs": WHOLE, "residual": NUMBER}
_CONTEXTS = {"rounds": [ANY], "source_text": {"tokens": WHOLE}, "target_text": {"tokens": WHOLE}}
_RUN = {
    "model?": {"checkpoint?": TEXT},
    "data?": {"train?": [TEXT], "validation?": [TEXT]},
    "optimizer?": {},
    "phases?": [{}],
}


def read_transfer(file: Path) -> dict[str, Any]:
    """Reads a transfer.json of which a card is made.

    Raises:
      UserError: `read_record` refuses it, or a field that a card tells is missing or of another type; the message names it.
    """
    record = read_record(file)
    alignment = _CONTEXTS if "anchors" in (record.get("alignment") or {}) else _WORDS
    if problem := mismatch(record, {**_TRANSFER, "alignment?": alignment}):
        raise UserError(f"{file}: {problem}, as `wechsel-jax transfer` writes it; put its file there, or remove this one")
    return record


def check_settings(file: Path, settings: dict[str, Any]) -> None:
    """Raises `UserError` where a field of a run's config.json that a card tells is of another type."""
    if problem := mismatch(settings, _RUN):
        raise UserError(f"{file}: {problem} of a run's settings; put back the file that the run wrote")
