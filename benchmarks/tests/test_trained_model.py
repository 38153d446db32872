"""What `benchmarks/trained_model.py` takes for the same inputs."""

import pytest

from benchmarks.trained_model import VALUES, main, same_inputs
from wechsel_jax.errors import UserError


@pytest.fixture
def given(tmp_path):
    """Flags of the program, and the folder that they name."""
    files = {"text": "a", "validation": "b", "dictionary": "c", "english": "d"}
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_text(name)
    places = {name: str(tmp_path / name) for name in files} | {
        "source": str(tmp_path / "one"),
        "output": str(tmp_path / "o.json"),
    }
    VALUES(["", *(f"--{name}={value}" for name, value in places.items()), "--vocab_size=300"])
    yield tmp_path
    VALUES.unparse_flags()


def test_a_scratch_folder_of_another_model_or_vocabulary_is_refused(given):
    scratch = given / "scratch"
    first = same_inputs(scratch)
    assert same_inputs(scratch) == first and first["vocab_size"] == 300
    VALUES.dictionary = ""
    same_inputs(scratch)
    VALUES.source = str(given / "two")
    with pytest.raises(UserError, match="scratch: was made from another --source; expected the same; name another --scratch"):
        same_inputs(scratch)
    VALUES.source, VALUES.vocab_size = str(given / "one"), 301
    with pytest.raises(UserError, match="another --vocab_size"):
        same_inputs(scratch)
    VALUES.vocab_size, VALUES.dictionary = 300, str(given / "text")
    with pytest.raises(UserError, match="another --dictionary"):
        same_inputs(scratch)
    (given / "old" / "tokenizer").mkdir(parents=True)
    with pytest.raises(UserError, match="does not say what it was made from"):
        same_inputs(given / "old")


def test_mistakes_are_found_before_anything_is_made(given):
    VALUES.scratch, VALUES.methods = str(given / "scratch"), ["fvt"]
    for name, value, told in (
        ("vectors", ["en.bin"], "--vectors=en.bin: expected two files"),
        ("vectors", ["/nope", "/nope2"], "/nope: no such file; expected what --vectors names"),
        ("output", str(given), "is a directory; expected the name of a file"),
        ("methods", [], "--methods=: unknown; expected some of anker"),
    ):
        before = VALUES[name].value
        VALUES[name].value = value
        with pytest.raises(UserError, match=told):
            main()
        VALUES[name].value = before
    assert not (given / "scratch" / "tokenizer").exists()
