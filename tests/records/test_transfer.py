"""transfer.json: read back as it was written, by versions before and after, and named where it is damaged."""

import dataclasses
import json
from pathlib import Path

import pytest

from tests.report.test_card import RECORD
from wechsel_jax.errors import UserError
from wechsel_jax.records import Example, TransferRecord

# As version 0.1.0 wrote them in November 2026, with fewer examples.
EARLIER = Path(__file__).parent / "earlier"


@pytest.mark.parametrize("method", ["anker", "wechsel_tfr"])
def test_an_earlier_record_is_read_and_written_as_it_was(method, tmp_path):
    record = TransferRecord.read(EARLIER / method / "transfer")
    assert record.method == method and record.measures is None and record.target["vocabulary_size"] == 600
    assert sum(record.counts.values()) == 600 and record.counts["mixed"] > 400
    assert record.examples[0].sources and record.alignment["precision_at_1"] > 0 and record.norms["target"]["mean"] > 0
    record.write(tmp_path)
    written, before = (json.loads((place / "transfer.json").read_text()) for place in (tmp_path, EARLIER / method / "transfer"))
    assert written == before and [*written] == [*before]


def test_a_record_survives_writing_and_reading(tmp_path):
    record = TransferRecord(
        "focus",
        counts={"copied": 1, "mixed": 0, "random": 2},
        examples=(Example("a", "copied", (("b", 1.0),)),),
        notes=("Done.",),
        calibration={"loss": [2.0, 1.0]},
        measures={"tables": [], "mixture": None},
    )
    record.write(tmp_path)
    assert TransferRecord.read(tmp_path) == dataclasses.replace(record, file=tmp_path / "transfer.json")


def test_the_first_records_had_less(tmp_path):
    file = tmp_path / "transfer.json"
    file.write_text('{"method": "wechsel", "coverage": [{"rule": "exact", "tokens": 3}], "norms": null, "seconds": NaN}')
    record = TransferRecord.read(tmp_path)
    assert record.coverage["rows"][0]["tokens"] == 3 and record.norms is None and record.settings == {} and record.notes == ()


@pytest.mark.parametrize(
    ("format", "told"),
    [(2, "format 2, of a newer version of wechsel-jax; expected 1, .*; update wechsel-jax"), ("x", "format 'x'; .*run the tr")],
)
def test_a_record_of_another_format_is_refused_with_what_to_do(tmp_path, format, told):
    (tmp_path / "transfer.json").write_text(json.dumps({"method": "wechsel", "format": format, "counts": "of another kind"}))
    with pytest.raises(UserError, match=rf"transfer\.json: {told}") as caught:
        TransferRecord.read(tmp_path)
    assert "\n" not in str(caught.value)


def changed(path: str, value) -> dict:
    """The record with one field changed, or without it for `...`."""
    record = json.loads(json.dumps(RECORD))
    *parents, last = path.split(".")
    place = record
    for name in parents:
        place = place[int(name) if isinstance(place, list) else name]
    if value is ...:
        del place[last]
    else:
        place[int(last) if isinstance(place, list) else last] = value
    return record


DAMAGED = [
    ("method", 3, "method is 3; expected text"),
    ("method", ..., "method is missing; expected text"),
    ("source", [], r"source is \[\]; expected an object"),
    ("source.vocabulary_size", "x", "source.vocabulary_size is 'x'; expected a whole number"),
    ("counts.copied", True, "counts.copied is True; expected a whole number"),
    ("counts.random", ..., "counts.random is missing"),
    ("settings", [], r"settings is \[\]; expected an object"),
    ("behaviour", "x", "behaviour is 'x'; expected a list"),
    ("notes.0", 3, r"notes\.0 is 3; expected text"),
    ("examples.0.sources.0", ["a"], r"examples\.0\.sources\.0 is .* expected a list of 2"),
    ("examples.0.sources.0.1", "a", r"examples\.0\.sources\.0\.1 is 'a'; expected a number"),
    ("coverage.rows.0.rule", None, r"coverage\.rows\.0\.rule is missing"),
    ("alignment", {"anchors": {"equal": "5"}, "rounds": []}, "alignment.anchors.equal is '5'"),
    ("alignment.residual", 10**400, "alignment.residual is 1000*; expected a number"),
    ("similarity.mean_top1", "high", "similarity.mean_top1 is 'high'; expected a number"),
    ("examples.0.how", "magic", "examples.0.how is 'magic'; expected one of copied, mixed, random"),
    ("versions", {"a\n#": 3}, r"versions\.a\\n# is 3; expected text"),
]


@pytest.mark.parametrize(("path", "value", "told"), DAMAGED)
def test_a_damaged_record_is_named_with_its_field(tmp_path, path, value, told):
    file = tmp_path / "transfer.json"
    file.write_text(json.dumps(changed(path, value)))
    with pytest.raises(UserError, match=rf"transfer\.json: field {told}") as caught:
        TransferRecord.read(file)
    assert "\n" not in str(caught.value)
