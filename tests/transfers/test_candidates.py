"""The method that short trainings choose: which are tried, what is kept, and what an interruption leaves."""

import copy
import json
import shutil
from pathlib import Path

import pytest

from wechsel_jax import cli
from wechsel_jax.comparison import candidates, compare, default_config, run
from wechsel_jax.comparison.candidates import transfer_by_probe
from wechsel_jax.errors import UserError
from wechsel_jax.records import ComparisonRecord
from wechsel_jax.training.groups import DEFAULT, RECIPES
from wechsel_jax.transfers.job import transfer

QUIET = {"log": lambda line: None}
STEPS = 7


@pytest.fixture
def given(world, source):
    texts = {"source_text": world.root / "english.txt", "target_text": world.root / "german.txt", "dimensions": 16}
    return {"source": source, "target_tokenizer": world.tokenizer("german", "gpt2"), "steps": STEPS, **texts}


def probed(**ends):
    """What a probe answers: (last value of every run, the best last); None where it diverged."""

    def probe(starts, text, workdir, **settings):
        assert all((place / "model.safetensors").is_file() for place in starts.values()) and set(ends) == set(starts)
        probe.called = text, settings
        Path(workdir).mkdir()
        methods = {}
        for name, end in ends.items():
            for rate, worse in (("0.001", 0.5), ("0.003", 0.0)):
                curve = [[0, 9.0]] if end is None else [[0, 9.0], [STEPS, end + worse]]
                methods[f"{name}-muon_soap-{rate}"] = {"start": name, "bits_per_byte": curve, "evaluations": []}
        best = min((name for name in ends if ends[name]), key=ends.__getitem__)
        return ComparisonRecord(methods=methods, chosen=f"{best}-muon_soap-0.003")

    return probe


def test_without_a_regression_there_is_no_start_of_larger_residuals(given, tmp_path, monkeypatch):
    monkeypatch.setattr(candidates, "probe", probed(anker=2.5, fvt=2.25))
    record = transfer_by_probe(output=tmp_path / "out", **given, regression=False, **QUIET)
    assert record["method"] == "fvt"


def test_what_came_furthest_is_kept_and_the_record_says_why(given, tmp_path, monkeypatch):
    monkeypatch.setattr(candidates, "probe", probe := probed(anker=2.5, fvt=2.25, anker_residual2=3.0))
    record = transfer_by_probe(output=tmp_path / "out", **given, **QUIET)
    assert record == json.loads((tmp_path / "out" / "transfer.json").read_text())
    assert record["method"] == record["choice"]["method"] == "fvt" and record["choice"]["value"] == 2.25
    assert record["choice"]["curves"]["anker-muon_soap-0.001"] == [[0, 9.0], [STEPS, 3.0]]
    assert any("in bits per byte: anker 2.5, fvt 2.25, anker_residual2 3." in note for note in record["notes"])
    assert "fvt 2.25" in (tmp_path / "out" / "README.md").read_text()
    assert probe.called == ((str(given["target_text"]),), {"recipes": (DEFAULT,), "rates": (1e-3, 3e-3), "steps": STEPS})
    # It is the transfer that its name alone would have given, whole, and all that is left.
    named = {name: given[name] for name in ("source", "target_tokenizer")}
    transfer(output=tmp_path / "named", method="fvt", **named, **QUIET)
    for file in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (tmp_path / "out" / file).read_bytes() == (tmp_path / "named" / file).read_bytes()
    assert {place.name for place in tmp_path.iterdir()} == {"out", "named"}
    with pytest.raises(UserError, match="exists already"):
        transfer_by_probe(output=tmp_path / "out", **given, **QUIET)
    # As another verb's output, it may be replaced where that is said.
    monkeypatch.setattr(candidates, "probe", probed(anker=2.0, fvt=None, anker_residual2=1.75))
    record = transfer_by_probe(output=tmp_path / "out", overwrite=True, **given, **QUIET)
    assert record["method"] == "anker" and record["settings"]["residual"] == 2.0
    assert record["choice"]["because"].endswith("anker 2, fvt diverged, anker_residual2 1.75")
    # Two candidates are of one method.
    assert record["choice"]["start"] == "anker_residual2"
    assert any("; anker_residual2 was chosen: after" in note for note in record["notes"])


def test_an_interruption_loses_nothing_and_leaves_no_output(given, tmp_path, monkeypatch):
    def interrupted(starts, text, workdir, **settings):
        if settings["steps"] == STEPS:
            workdir.mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(candidates, "probe", interrupted)
    # Before the first training settings may change.
    for steps in (1, STEPS):
        with pytest.raises(KeyboardInterrupt):
            transfer_by_probe(output=tmp_path / "out", **given | {"steps": steps}, **QUIET)
    work = tmp_path / "out.probe"
    before = {path: path.stat().st_mtime_ns for path in work.glob("*/model.safetensors")}
    assert len(before) == 3 and not (tmp_path / "out").exists()
    with pytest.raises(UserError, match=r"steps was 7, now 8; expected the same; .* another output, or remove .*out\.probe"):
        transfer_by_probe(output=tmp_path / "out", **given | {"steps": 8}, **QUIET)

    def again(starts, text, workdir, **settings):
        assert before == {path: path.stat().st_mtime_ns for path in work.glob("*/model.safetensors")}
        workdir.rmdir()
        return probed(anker=2.0, fvt=3.0, anker_residual2=3.0)(starts, text, workdir, **settings)

    monkeypatch.setattr(candidates, "probe", again)
    assert transfer_by_probe(output=tmp_path / "out", **given, **QUIET)["method"] == "anker"
    assert [place.name for place in tmp_path.iterdir()] == ["out"]


def test_text_that_changes_meanwhile_is_not_taken_for_what_was_read(given, tmp_path, monkeypatch):
    def interrupted(starts, text, workdir, **settings):
        workdir.mkdir()
        raise KeyboardInterrupt

    def before_it(starts, text, workdir, **settings):
        raise KeyboardInterrupt

    text, lines = tmp_path / "german.txt", given["target_text"].read_text().splitlines(keepends=True)
    given = given | {"target_text": text}
    for count, probe in ((len(lines), before_it), (len(lines) // 2, interrupted)):
        monkeypatch.setattr(candidates, "probe", probe)
        text.write_text("".join(lines[:count]))
        with pytest.raises(KeyboardInterrupt):
            transfer_by_probe(output=tmp_path / "out", **given, **QUIET)
    # Before the first training, what was made of the old text is made again.
    transfer(output=tmp_path / "named", method="anker", **{key: given[key] for key in given if key != "steps"}, **QUIET)
    rows = [(place / "model.safetensors").read_bytes() for place in (tmp_path / "out.probe" / "anker", tmp_path / "named")]
    assert rows[0] == rows[1]
    # After it, the trainings are of text that is gone.
    text.write_text("".join(lines))
    with pytest.raises(UserError, match=r'sha256_of_files was "\w+", now "\w+"; expected the same; .* remove .*out\.probe'):
        transfer_by_probe(output=tmp_path / "out", **given, **QUIET)


def test_a_candidate_that_was_being_removed_is_made_again(given, tmp_path, monkeypatch):
    """Killed while it clears up, a call leaves its output and whole candidates or none."""

    def killed(place, *arguments, **named):
        if Path(place).name == "removed" and Path(place).exists():
            (Path(place) / "anker" / "config.json").unlink()
            raise KeyboardInterrupt
        return remove(place, *arguments, **named)

    remove = shutil.rmtree
    monkeypatch.setattr(candidates, "probe", probed(anker=2.5, fvt=2.25, anker_residual2=3.0))
    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        transfer_by_probe(output=tmp_path / "out", **given, **QUIET)
    assert (tmp_path / "out" / "transfer.json").exists()
    monkeypatch.setattr(shutil, "rmtree", remove)
    assert transfer_by_probe(output=tmp_path / "out", overwrite=True, **given, **QUIET)["method"] == "fvt"
    assert [place.name for place in tmp_path.iterdir()] == ["out"]


class Training(Exception):
    pass


@pytest.fixture
def config(given, monkeypatch):
    """Of a comparison that ends where its training begins."""

    def train(*arguments):
        raise Training

    monkeypatch.setattr(run, "train", train)
    config = default_config()
    config.training.block_length = 32
    config.source, config.probe_steps, config.methods = str(given["source"]), STEPS, ("auto",)
    config.text.train = config.text.validation = (str(given["target_text"]),)
    config.text.source = (str(given["source_text"]),)
    config.tokenizer.directory, config.transfer.dimensions = str(given["target_tokenizer"]), 16
    config.training.optimizer.update({"peak_learning_rate": 7e-4, "groups": RECIPES["two_rates"], "weight_decay": 0.3})
    return config


def test_a_comparison_probes_with_the_optimizer_that_it_trains_with(config, tmp_path, monkeypatch):
    def interrupted(starts, text, workdir, **settings):
        workdir.mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(candidates, "probe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compare(config, tmp_path / "run")
    # Other settings of what is trained would not have led to what is there.
    other = copy.deepcopy(config)
    other.training.optimizer.peak_learning_rate = 1e-3
    with pytest.raises(UserError, match=r"rates\[0\] was 0.0007, now 0.001; .*; expected the same"):
        compare(other, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "auto" / "transfer.probe" / "probe")
    monkeypatch.setattr(candidates, "probe", probe := probed(anker=2.5, fvt=2.25, anker_residual2=3.0))
    with pytest.raises(Training):
        compare(config, tmp_path / "run")
    _, settings = probe.called
    optimizer = settings["recipes"]["training"]
    assert settings["rates"] == (7e-4,) and settings["steps"] == STEPS and optimizer["weight_decay"] == 0.3
    assert optimizer["groups"] == [*RECIPES["two_rates"]]
    config.methods = ("fvt",)
    with pytest.raises(UserError, match=r"probe_steps=7: the method is named \(fvt\); expected one of the two"):
        compare(config, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_runs_of_one_optimizer_share_a_probe(config, tmp_path, monkeypatch):
    rates = []

    def chosen(_source, _tokenizer, output, **settings):
        rates.append(settings["rates"])
        output.mkdir(parents=True)

    monkeypatch.setattr(run, "transfer_by_probe", chosen)
    config.variants = {name: {"method": "auto"} for name in ("twin", "other")}
    config.methods, config.overrides.twin = ("auto", "twin", "other"), {"steps": 5}
    config.overrides.other = {"optimizer": {"peak_learning_rate": 1e-3}}
    with pytest.raises(Training):
        compare(config, tmp_path / "run")
    assert rates == [(7e-4,), (1e-3,)]


@pytest.mark.parametrize(
    ("names", "tried"),
    [
        (("source_text",), ["anker", "fvt", "anker_residual2"]),
        (("source_text", "residual"), ["anker", "fvt"]),
        (("source_text", "source_vectors", "target_vectors", "dictionary"), ["anker", "fvt", "wechsel", "anker_residual2"]),
        (("source_vectors", "target_vectors", "dictionary"), ["fvt", "wechsel"]),
        (("target_vectors",), ["fvt", "focus"]),
        (("helper",), ["fvt", "clp"]),
        (("parallel",), ["fvt", "trans_tokenization"]),
    ],
)
def test_what_is_given_decides_which_methods_are_tried(names, tried, given, world, helper, tmp_path, monkeypatch):
    """Each gets what it reads, which no note calls a mistake, and nothing else."""

    class Probed(Exception):
        pass

    def probe(starts, *arguments, **settings):
        raise Probed(*starts)

    calls = {}
    monkeypatch.setattr(candidates, "probe", probe)
    monkeypatch.setattr(candidates, "transfer", lambda _, __, place, *, log, **settings: calls.update({place.name: settings}))
    inputs = world.inputs() | {
        "source_text": given["source_text"],
        "helper": helper,
        "parallel": world.dictionary,
        "residual": 1.5,
    }
    plain = {name: given[name] for name in ("source", "target_tokenizer", "target_text", "steps")}
    with pytest.raises(Probed) as found:
        transfer_by_probe(output=tmp_path / "out", **plain, **{name: inputs[name] for name in names}, **QUIET)
    assert [*found.value.args] == [*calls] == tried
    assert calls["fvt"] == {"method": "fvt"} and calls.get("anker", {}).get("residual") == (
        1.5 if "residual" in names else None
    )
    assert set(calls.get("wechsel", {})) <= {"method", "source_vectors", "target_vectors", "dictionary"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--method=anker"], "--probe_steps=3: the method is named (anker); expected one of the two"),
        (["--target_text="], "probe_steps: there is no target_text; expected text of the new language"),
        (["--dictionary=none.tsv", "--source_text=TEXT"], "none.tsv: no such file"),
        ([], "probe_steps: what is given allows fvt only; expected source_text"),
        (["--source_text=none.txt"], "none.txt"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(flags, message, given, tmp_path, capsys):
    arguments = [f"--{name}={given[name]}" for name in ("source", "target_tokenizer")]
    if "--target_text=" not in flags:
        flags = [f"--target_text={given['target_text']}", *(flag.replace("TEXT", str(given["source_text"])) for flag in flags)]
    with pytest.raises(SystemExit) as left:
        cli.main(["transfer", *arguments, f"--output={tmp_path / 'out'}", "--probe_steps=3", *flags])
    assert left.value.code == 2 and message in capsys.readouterr().err
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.probe").exists()
