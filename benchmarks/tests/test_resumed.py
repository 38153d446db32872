"""Results of real models go on only with what they began with."""

import json

import pytest

from benchmarks import real_models, trained_model
from wechsel_jax.errors import UserError

SCORE = {"bits_per_byte": 2.0, "tokens": 9}


def test_real_models_keep_their_settings(tmp_path):
    output = tmp_path / "results.json"
    content = {"models": {}, "settings": {"text_bytes": 5, "english_bytes": 48_000, "window": 512}}
    output.write_text(json.dumps(content))
    real_models.VALUES(["real_models", f"--output={output}"])
    with pytest.raises(UserError, match=r"is of other settings, .*'text_bytes': 5"):
        real_models.main()
    assert json.loads(output.read_text()) == content
    real_models.VALUES(["real_models", f"--output={tmp_path / 'new.json'}", "--text_bytes=5"])
    real_models.main()


@pytest.mark.parametrize("changed", ["source", "text", "validation"])
def test_other_methods_are_of_the_same_model_and_text(tmp_path, monkeypatch, changed):
    monkeypatch.setattr(trained_model, "perplexity", lambda *_: SCORE)
    monkeypatch.setattr(trained_model, "trained", lambda name, *_: {"of": name})
    monkeypatch.setattr(trained_model, "library", lambda *_: None)
    (tmp_path / "source").mkdir()
    files = {"source": tmp_path / "source" / "model.safetensors"}
    files |= {name: tmp_path / f"{name}.txt" for name in ("text", "validation")}
    for file in files.values():
        file.write_text("before")
    output = tmp_path / "results.json"
    given = [f"--{name}={tmp_path / name}" for name in ("source", "scratch")] + [f"--output={output}"]
    given += [f"--{name}={files[name]}" for name in ("text", "validation")]
    for method in ("fvt", "multivariate"):
        trained_model.VALUES(["trained_model", *given, f"--methods={method}"])
        trained_model.main()
    before = output.read_text()
    assert {*json.loads(before)["methods"]} == {"fvt", "multivariate"}
    files[changed].write_text("after")
    with pytest.raises(UserError, match=f"scratch: was made from another --{changed}"):
        trained_model.main()
    trained_model.VALUES.scratch = str(tmp_path / "other")
    with pytest.raises(UserError, match=f"fvt has another --{changed}"):
        trained_model.main()
    assert output.read_text() == before
    # Results of before there were hashes stay.
    without = json.loads(before)
    for found in without["methods"].values():
        del found["sha256"]
    output.write_text(json.dumps(without))
    trained_model.main()
