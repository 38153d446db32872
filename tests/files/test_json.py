"""JSON that others wrote: read within bounds, one line for every mistake, and compared with what is expected."""

import json
import math

import pytest

from wechsel_jax.errors import UserError
from wechsel_jax.files import json as json_files
from wechsel_jax.files.json import ANY, NUMBER, TEXT, WHOLE, is_number, mismatch, parse_json, read_json, write_json


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b'{"a": ', "not JSON: .* line 1 column 7"),
        (b"\xff\xfe{}", "not JSON: .*utf-8"),
        (b"[1]", "no JSON object"),
        (b'{"a": %s}' % (b"9" * 5000), "a number of thousands of digits"),
        (b'{"a": %s%s}' % (b"[" * 100_000, b"]" * 100_000), "nested too deep"),
        (b'{"a": %s%s}' % (b"[" * 100, b"]" * 100), "nested too deep"),
        (rb'{"a": ["\ud83d\ude00", "\uDE00"]}', r"half a character, .ude00"),
        (rb'{"\ud800": 1}', r"half a character, .ud800"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_file(tmp_path, content, reason):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=rf"^{path}: .*{reason}.*; expected the config") as caught:
        read_json(path, "the config of a model")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


def test_what_is_read_can_be_written_and_read_again(tmp_path):
    (tmp_path / "a.json").write_bytes(rb'{"a": ["\ud83d\ude00", "\u00df"], "b": %s%s}' % (b"[" * 98, b"]" * 98))
    found = read_json(tmp_path / "a.json", "anything")
    assert found["a"] == ["😀", "ß"]
    write_json(tmp_path / "b.json", found)
    assert read_json(tmp_path / "b.json", "anything") == found
    (tmp_path / "a.json").write_text('{"time_step_limit": [0.0, Infinity]}')
    assert read_json(tmp_path / "a.json", "a config.json of transformers")["time_step_limit"][1] == math.inf


def test_only_the_levels_that_are_there_are_looked_at(monkeypatch):
    looked = []
    monkeypatch.setattr(json_files, "range", lambda most: (looked.append(i) or i for i in range(most)), raising=False)
    assert parse_json(b'{"a": {"b": 1}}') == {"a": {"b": 1}}
    assert len(looked) == 2


def test_what_is_no_file_or_too_large_is_refused(tmp_path, monkeypatch):
    (tmp_path / "loop").symlink_to("loop")
    for path, reason in (
        (tmp_path / "loop", "is no regular file"),
        (tmp_path, "is a directory"),
        ("/dev/zero", "is no regular file"),
    ):
        with pytest.raises(UserError, match=f"{path}: {reason}; expected a record"):
            read_json(path, "a record")
    monkeypatch.setattr(json_files, "_MOST_BYTES", 1 << 20)
    (tmp_path / "large.json").write_text(json.dumps({"a": "x" * (1 << 20)}))
    with pytest.raises(UserError, match=r"large\.json: more than 1 MiB; expected a record; run it again"):
        read_json(tmp_path / "large.json", "a record", "run it again")


@pytest.mark.parametrize("value", [10**400, math.nan, -math.inf, True, "1", None])
def test_what_is_no_finite_number(value):
    assert not is_number(value) and is_number(1) and is_number(-0.5)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"name": "a", "rows": []}, None),
        ({"name": "a", "rows": [{"at": ["x", 1.5], "more": 1}], "counts": {"b": 3}, "left": None}, None),
        ({"rows": []}, "field name is missing; expected text"),
        ({"name": "a", "rows": {}}, "field rows is {}; expected a list"),
        ({"name": "a", "rows": [{"at": ["x", 1]}, {"at": ["x"]}]}, "field rows.1.at is ['x']; expected a list of 2"),
        ({"name": "a", "rows": [{"at": ["x", math.nan]}]}, "field rows.0.at.1 is nan; expected a number"),
        ({"name": "a", "rows": [], "counts": {"b": 1, "c": True}}, "field counts.c is True; expected a whole number"),
        ({"name": "a", "rows": [], "counts": {"\x1b": 1.5}}, r"field counts.\x1b is 1.5; expected a whole number"),
    ],
)
def test_the_first_field_that_is_another_is_named(value, told):
    expected = {"name": TEXT, "rows": [{"at": (TEXT, NUMBER), "more?": ANY}], "counts?": {"*": WHOLE}, "left?": TEXT}
    assert mismatch(value, expected) == told


def test_what_may_be_anything_must_be_there():
    assert mismatch({"answer": None}, {"answer": ANY}) is None
    assert mismatch({"items": [{}]}, {"items": [{"answer": ANY}]}) == "field items.0.answer is missing; expected anything"
