"""What is read of transfer.json, checked where it is read: behind it every field that is there has its type."""

import math
from pathlib import Path
from typing import Any

from wechsel_jax.errors import UserError
from wechsel_jax.files.json import ANY, NUMBER, TEXT, WHOLE, mismatch, read_json

FORMAT = 1
_WHAT, _ADVICE = "the transfer.json that `wechsel-jax transfer` writes", "run the transfer again"
_SPREAD = {"mean": NUMBER, "std": NUMBER}
_GROUP = {"tokens?": WHOLE, "examples?": [ANY]}
_RECORD = {
    "method": TEXT,
    "settings?": {},
    "source?": {"model?": TEXT, "vocabulary_size?": WHOLE},
    "target?": {"tokenizer?": TEXT, "vocabulary_size?": WHOLE},
    "counts?": {"copied": WHOLE, "mixed": WHOLE, "random": WHOLE, "*": WHOLE},
    "coverage?": {
        "rows?": [
            {
                **{"rule": TEXT, "tokens": NUMBER, "share?": NUMBER, "examples?": [ANY]},
                **dict.fromkeys(("with_vector?", "copied?", "mixed?", "noise?"), WHOLE),
            }
        ],
        "without_vector?": _GROUP,
        "noise?": _GROUP,
    },
    "alignment?": {
        **dict.fromkeys(("pairs?", "pairs_found?", "pairs_given?", "held_out_words?"), WHOLE),
        **{"precision_at_1?": NUMBER, "residual?": NUMBER, "anchors?": {"*": WHOLE}},
        **{"source_text?": {"without_vector?": WHOLE}, "target_text?": {"without_vector?": WHOLE}},
    },
    "similarity?": {"*": NUMBER},
    "norms?": {"source": _SPREAD, "target": _SPREAD},
    "examples?": [{"target": TEXT, "how": TEXT, "sources": [(TEXT, NUMBER)]}],
    "behaviour?": [TEXT],
    "notes?": [TEXT],
    "versions?": {},
    "timings?": {"*": NUMBER},
}


def read_record(file: Path) -> dict[str, Any]:
    """Reads a transfer.json; what an older or shortened one lacks is missing.

    Raises:
      UserError: it holds no JSON object, another format, no method, or a field of another type; the message names it.
    """
    record = _finite(read_json(file, _WHAT, _ADVICE))
    if record.get("format", FORMAT) != FORMAT:
        shown = ascii(record["format"])[:40]
        raise UserError(f"{file}: format {shown}; expected {FORMAT}, the one that this version reads; {_ADVICE}")
    if isinstance(record.get("coverage"), list):
        record["coverage"] = {"rows": record["coverage"]}
    problem = mismatch(record, _RECORD)
    if problem is None and "anchors" in (record.get("alignment") or {}):
        problem = mismatch(record["alignment"], {"rounds?": [{"anchors": WHOLE}], "anchors": {}}, "alignment")
    if problem is not None:
        raise UserError(f"{file}: {problem}, as `wechsel-jax transfer` writes it; {_ADVICE}")
    return record


def _finite(value: Any) -> Any:
    """The same value with null for NaN and infinities, which JSON cannot hold when it is written again."""
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
