"""The workdir of a run: what a run takes for its own, and how an export that was damaged comes back."""

import fcntl
import hashlib
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from ml_collections import ConfigDict

from tests.full_disk import no_file_above
from wechsel_jax import comparison, demo
from wechsel_jax.comparison import check, run
from wechsel_jax.errors import UserError
from wechsel_jax.files import RECORD, new_directory, refuse_workdir
from wechsel_jax.records.names import FINGERPRINTS_FILE, LOCK_FILE
from wechsel_jax.tokens import load_tokenizer
from wechsel_jax.training import one_phase, record_config, train
from wechsel_jax.training.metrics import read_metrics
from wechsel_jax.training.run_data import Data
from wechsel_jax.training.workdir import check_config, check_data, differences, follow, has_begun, only_run, require_workdir


@pytest.fixture(scope="module")
def finished(make_config, tmp_path_factory):
    """A short run of one phase: (config, workdir, what train returned)."""
    root = tmp_path_factory.mktemp("run")
    config = make_config(mesh__data=1, steps=2, phases=({"name": "all", "fraction": 1.0},))
    return config, root / "run", train(config, root / "run")


def _flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


def test_what_was_made_for_a_run_moves_with_it_and_nothing_else_changes(make_config, tmp_path):
    first, now = make_config(model__checkpoint="a/start"), make_config(model__checkpoint="b/start", seed=1)
    follow(now, tmp_path, "model.checkpoint")
    assert not [*tmp_path.iterdir()]
    record_config(first, tmp_path)
    with pytest.raises(UserError, match=r'model\.checkpoint was "a/start", now "b/start"; seed was 0, now 1'):
        check_config(now, tmp_path)
    follow(now, tmp_path, "model.checkpoint", "model.tokenizer")
    with pytest.raises(UserError, match="other settings: seed was 0, now 1; expected"):
        check_config(now, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda export: _flip(export / "model.safetensors"), "model.safetensors has other contents than were written"),
        (lambda export: os.truncate(export / "config.json", 9), "config.json has 9 bytes instead of"),
        (lambda export: (export / "tokenizer.json").unlink(), "tokenizer.json is missing"),
        (lambda export: (export / RECORD).write_text("{"), f"{RECORD} is damaged"),
        (lambda export: shutil.rmtree(export), None),
        (lambda export: export.rename(export.with_name(".export.01234567.old")), ""),
    ],
    ids=["flipped", "cut", "deleted", "record", "all", "killed between two names"],
)
def test_a_finished_run_exports_again_what_was_damaged(finished, tmp_path, capsys, harm, said):
    config, workdir, result = finished
    again = Path(shutil.copytree(workdir, tmp_path / "run"))
    weights = (workdir / "export" / "model.safetensors").read_bytes()
    harm(again / "export")
    if said == f"{RECORD} is damaged":
        # Nothing says any more that a run wrote it.
        with pytest.raises(UserError, match="export: it holds no record of that"):
            train(config, again)
        return
    assert train(config, again) == result
    err = capsys.readouterr().err
    assert (f"damaged, {said}" in err and "it is written again" in err) if said else "damaged" not in err
    assert ("nothing to train" in err) == (said == "")
    assert (again / "export" / "model.safetensors").read_bytes() == weights
    assert (again / "metrics.jsonl").read_bytes() == (workdir / "metrics.jsonl").read_bytes()
    assert not list(again.glob(".export*"))


def test_where_the_best_weights_are_lost_the_end_names_those_that_are_exported(make_config, tmp_path):
    # So high a rate that the first evaluation stays the best.
    rate = {"optimizer__peak_learning_rate": 3.0, "optimizer__clip_norm": None, "phases": one_phase(warmup=0.5)}
    config = make_config(mesh__data=1, steps=16, eval_every=4, checkpoint_every=4, keep=9, patience=100, **rate)
    best = train(config, tmp_path / "run")["step"]
    assert best < 16

    def ends() -> list[int]:
        return [line["exported_step"] for line in read_metrics(tmp_path / "run" / "metrics.jsonl") if line["kind"] == "end"]

    shutil.rmtree(tmp_path / "run" / "checkpoints" / str(best))
    shutil.rmtree(tmp_path / "run" / "export")
    result = train(config, tmp_path / "run")
    other = result["step"]
    assert other != best and ends() == [best, other]
    assert train(config, tmp_path / "run") == result
    shutil.rmtree(tmp_path / "run" / "export")
    assert train(config, tmp_path / "run") == result and ends() == [best, other]


def test_what_somebody_put_into_an_export_is_kept(finished, tmp_path):
    config, workdir, _ = finished
    again = Path(shutil.copytree(workdir, tmp_path / "run"))
    (again / "export" / "notes.txt").write_text("mine")
    assert train(config, again)["step"] == 2
    _flip(again / "export" / "model.safetensors")
    with pytest.raises(UserError, match=r"export: it also holds notes\.txt; only what training wrote is replaced"):
        train(config, again)
    assert (again / "export" / "notes.txt").read_text() == "mine"


def test_an_export_of_an_earlier_version_is_left_as_it_is(finished, tmp_path, capsys):
    config, workdir, result = finished
    again = Path(shutil.copytree(workdir, tmp_path / "run"))
    (again / "export" / RECORD).unlink()
    assert train(config, again) == result
    assert "holds no record of what was written, so damage would not be seen" in capsys.readouterr().err


def test_a_place_for_the_export_is_made_sure_of_before_training(make_config, tmp_path):
    workdir = tmp_path / "run"
    with only_run(workdir):
        pass
    (workdir / "export").mkdir()
    (workdir / "export" / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="export: it holds no record of that"):
        train(make_config(mesh__data=1), workdir)
    assert sorted(path.name for path in workdir.iterdir()) == [LOCK_FILE, "export"]


def test_a_directory_is_a_runs_from_the_moment_that_it_is_locked(make_config, tmp_path):
    place = tmp_path / "run"
    place.mkdir()
    assert not has_begun(place)
    (place / LOCK_FILE).write_text("of some other program")
    (place / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_layer": 2}))
    assert not has_begun(place)
    (place / "config.json").unlink()
    record_config(make_config(), place)
    assert has_begun(place)
    with only_run(tmp_path / "other"):
        assert has_begun(tmp_path / "other")
        with pytest.raises(UserError, match=f"process {os.getpid()} on .* is at work here"), only_run(tmp_path / "other"):
            pass
        # Whoever closes the file elsewhere in this process does not end the lock.
        (tmp_path / "other" / LOCK_FILE).read_text()
        with pytest.raises(UserError, match="is at work here"), only_run(tmp_path / "other"):
            pass
    assert has_begun(tmp_path / "other")


def test_programs_tell_their_workdirs_apart(make_config, tmp_path):
    run, comparison, trelm, probe, seeds = (tmp_path / name for name in ("run", "comparison", "trelm", "probe", "seeds"))
    record_config(make_config(), run)
    for place, settings in (
        (comparison, {"methods": ["anker"], "training": {}}),
        (trelm, {"source": "bert", "tri_layer": True}),
    ):
        place.mkdir()
        (place / "config.json").write_text(json.dumps(settings))
    for place in (run, comparison, trelm, probe, seeds):
        with only_run(place):
            pass
    # Neither has settings of its own while its runs go.
    for place in (probe / "anker", seeds / "seed-0"):
        place.mkdir()
        (place / "metrics.jsonl").write_text("")
    owners = {"a training run": run, "a comparison": comparison, "a TreLM training": trelm, "a probe": probe}
    owners |= {"a fine-tuning": seeds, "a choice of method": None}
    for what, own in owners.items():
        for place in (run, comparison, trelm, probe, seeds):
            there = sorted(path.name for path in place.iterdir())
            # A fine-tuning with one seed is a training run.
            if place == own or (what == "a fine-tuning" and place == run):
                require_workdir(place, what)
            else:
                with pytest.raises(UserError, match=f"{place.name}: holds .*, and nothing that {what} wrote"):
                    require_workdir(place, what)
            assert sorted(path.name for path in place.iterdir()) == there and has_begun(place)
    (probe / "anker" / "metrics.jsonl").unlink()
    require_workdir(probe, "a comparison")
    (probe / "held-out.jsonl").write_text("")
    with pytest.raises(UserError, match="nothing that a comparison wrote"):
        require_workdir(probe, "a comparison")


def test_a_run_whose_settings_are_gone_is_not_called_done(make_config, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").write_text("process 1 on there\n")
    lines = [{"kind": "eval", "step": 20, "loss": 3.0, "perplexity": 20.0}, {"kind": "end", "step": 20, "exported_step": 20}]
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(UserError, match=r"config\.json: is missing, and metrics\.jsonl is there: what was trained is not"):
        train(make_config(steps=20), tmp_path / "run")


def test_a_full_disk_at_the_first_start_does_not_shut_the_workdir(tmp_path):
    place = tmp_path / "run"
    with new_directory(place / "transfer", "transfer"):
        pass
    with no_file_above(0), pytest.raises(UserError, match=r"run: cannot be written .*; free some space and run the same"):
        with only_run(place):
            pass
    refuse_workdir(place, has_begun, "a training run", outputs=True)
    with only_run(place):
        pass
    # What has begun goes on.
    with no_file_above(0), only_run(place):
        assert has_begun(place)
    assert has_begun(place)


@pytest.mark.parametrize("there", [False, True])
def test_a_refused_start_leaves_the_workdir_as_it_was(make_config, tmp_path, there):
    place = tmp_path / "run"
    if there:
        place.mkdir()
    config = make_config(mesh__data=1)
    config.model.tokenizer = str(tmp_path / "nothing")
    with pytest.raises(UserError, match="nothing: no such file or directory"):
        train(config, place)
    assert list(tmp_path.rglob("*")) == [place] * there
    with pytest.raises(UserError, match="late"), only_run(place):
        (place / "metrics.jsonl").write_text("")
        raise UserError("late")
    assert has_begun(place)


def test_who_opens_a_lock_that_is_being_removed_is_refused(tmp_path, monkeypatch):
    place = tmp_path / "run"
    taken = fcntl.fcntl

    def removed_first(*arguments):
        (place / LOCK_FILE).unlink()
        return taken(*arguments)

    monkeypatch.setattr(fcntl, "fcntl", removed_first)
    with pytest.raises(UserError, match="another process is at work here"), only_run(place):
        pass


def test_what_a_killed_probe_left_is_cleared_before_the_training(tmp_path, monkeypatch):
    class Training(Exception):
        pass

    def train(config, place):
        refuse_workdir(place, has_begun, "a training run", outputs=True)
        raise Training

    config, workdir = comparison.default_config(), tmp_path / "run"
    config.methods = ("auto",)
    with new_directory(workdir / "auto" / "transfer", "transfer"):
        pass
    (workdir / "auto" / "transfer.probe" / "anker").mkdir(parents=True)
    (workdir / "tokenizer").mkdir()
    monkeypatch.setattr(run, "train", train)
    for name in ("validate_comparison", "settle", "load_tokenizer", "prepare_split", "make_inputs"):
        monkeypatch.setattr(run, name, lambda *_, **__: {})
    monkeypatch.setattr(run, "transfer_settings", lambda *_: {})
    monkeypatch.setattr(run.Checkpoint, "open", lambda place: None)
    (workdir / LOCK_FILE).write_text("process 1 on x\n")
    with pytest.raises(Training):
        comparison.compare(config, workdir)
    assert [path.name for path in (workdir / "auto").iterdir()] == ["transfer"]


@pytest.mark.parametrize("name", ["words.json", "tokenizer.json"])
def test_a_tokenizer_is_known_by_its_file_whatever_version_of_a_library_reads_it(tmp_path, name):
    file, data = tmp_path / name, Data(*[SimpleNamespace(fingerprint=side) for side in ("train", "validation")])
    written = json.loads(Path(demo.path("english-gpt2"), "tokenizer.json").read_text(encoding="utf-8"))
    # Not as the library writes it.
    file.write_text(json.dumps(written, indent=3), encoding="utf-8")
    (tmp_path / "run" / "data").mkdir(parents=True)
    check_data(data, load_tokenizer(file), tmp_path / "run", fresh=True, say=print)
    recorded = json.loads((tmp_path / "run" / FINGERPRINTS_FILE).read_text())
    assert recorded["tokenizer"] == hashlib.sha256(file.read_bytes()).hexdigest()
    # A run of an earlier version, which hashed what the library made of a file of another name.
    earlier = hashlib.sha256(load_tokenizer(file).backend_tokenizer.to_str().encode()).hexdigest()
    (tmp_path / "run" / FINGERPRINTS_FILE).write_text(json.dumps(recorded | {"tokenizer": earlier}))
    check_data(data, load_tokenizer(file), tmp_path / "run", fresh=False, say=print)
    written["model"]["merges"].pop()
    file.write_text(json.dumps(written), encoding="utf-8")
    with pytest.raises(UserError, match=r"model\.tokenizer: the tokenizer has changed since this run began"):
        check_data(data, load_tokenizer(file), tmp_path / "run", fresh=False, say=print)


def test_another_way_to_the_same_text_is_no_other_setting(make_config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("text.txt", "other.txt"):
        (tmp_path / name).write_text("one\n")
    config = make_config()
    config.data.train = ("text.txt",)
    record_config(config, "run")
    config.data.train = (str(tmp_path / "text.txt"),)
    record_config(config, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["data"]["train"] == [str(tmp_path / "text.txt")]
    config.data.train = (str(tmp_path / "other.txt"),)
    with pytest.raises(UserError, match=r"other settings: data\.train\[0\] was "):
        record_config(config, "run")


def test_a_comparison_of_a_version_without_a_free_setting_goes_on(tmp_path):
    config = comparison.default_config()
    (tmp_path / "anker").mkdir()
    (tmp_path / "anker" / "config.json").write_text("{}")
    config.methods = ("anker",)
    check.settle(config, tmp_path)
    recorded = json.loads((tmp_path / "config.json").read_text())
    del recorded["transfer"]["max_document_bytes"], recorded["helper"]["training"]["data"]["max_document_bytes"]
    (tmp_path / "config.json").write_text(json.dumps(recorded))
    check.settle(config, tmp_path)
    config.transfer.neighbors = 3
    with pytest.raises(UserError, match=r"transfer\.neighbors was 10, now 3; expected the same"):
        check.settle(config, tmp_path)


def test_what_a_killed_comparison_began_to_prepare_goes_with_its_settings(tmp_path):
    config = comparison.default_config()
    check.settle(config, tmp_path)
    for name in ("data/.train.partial", "data/.validation.partial", "data/tuning"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "data" / ".train.lock").touch()
    (tmp_path / "data" / ".validation.partial" / "notes.txt").write_text("mine")
    config.training.data.validation_fraction = 0.1
    check.settle(config, tmp_path)
    assert [path.name for path in (tmp_path / "data").iterdir()] == [".validation.partial"]
    (tmp_path / "data" / ".validation.partial" / "notes.txt").unlink()
    config.training.data.validation_fraction = 0.2
    check.settle(config, tmp_path)
    # So that preparing it does not find something there.
    assert not (tmp_path / "data").exists()


def test_settings_of_a_comparison_may_change_until_a_method_is_trained(tmp_path):
    config = comparison.default_config()
    text = tmp_path / "a.txt"
    text.write_text("one\n")
    config.text.train = (str(text),)
    made = ("tokenizer", "data/train", "data/tuning/train", "data/tuning.jsonl", "vectors/source.bin", "helper")
    made += ("anker/transfer", "wechsel_tfr/transfer")
    away = tmp_path / "mine" / "transfer"
    away.mkdir(parents=True)

    def settle(**changes) -> list[str]:
        for name in made:
            place, writer = workdir / name, Path(name).name if name.endswith(("tokenizer", "transfer")) else ""
            if writer and not place.exists():
                with new_directory(place, writer) as directory:
                    (directory / "file").write_text("made")
            elif place.suffix:
                place.parent.mkdir(exist_ok=True)
                place.write_text("made")
            else:
                place.mkdir(parents=True, exist_ok=True)
        for name, value in changes.items():
            group, _, field = name.partition("__")
            (config[group] if field else config)[field or group] = value
        check.settle(config, workdir)
        return [name for name in made if (workdir / name).exists()]

    workdir = tmp_path / "run"
    # What lay there when the comparison began is not touched.
    assert settle(methods=("anker", "wechsel_tfr")) == [*made]
    assert settle() == [*made]
    # What decides how fast a training goes costs nothing.
    config.helper.training.mesh.data = 1
    assert settle() == [*made]
    assert settle(transfer__neighbors=3) == [*made[:6]]
    assert settle(vectors__epochs=3) == [*made[:4], "helper"]
    assert settle(tuning__held_out=0.1) == ["tokenizer", "data/train", *made[3:6]]
    config.training.data.text_field = "body"
    assert settle() == ["helper"]
    assert settle(tokenizer__vocabulary_size=300) == ["helper"]
    text.write_text("two\n")
    assert settle() == ["helper"]
    assert settle() == [*made]
    recorded = json.loads((workdir / "config.json").read_text())
    assert recorded["tokenizer"]["vocabulary_size"] == 300
    # Names that somebody wrote into the record lead nowhere, and what somebody added to an output is kept.
    (workdir / "config.json").write_text(json.dumps({**recorded, "methods": ["../mine", str(tmp_path / "mine")]}))
    assert settle() == [*made[:6]] and away.exists()
    settle()
    (workdir / "tokenizer" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"tokenizer: was made with other settings or files, and it also holds notes\.txt"):
        settle(tokenizer__vocabulary_size=350)
    assert all((workdir / name).exists() for name in made)
    config.tokenizer.vocabulary_size = 300
    (workdir / "anker" / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"tokenizer\.vocabulary_size was 300, now 400"):
        settle(tokenizer__vocabulary_size=400)
    config.tokenizer.vocabulary_size = 300
    text.write_text("three\n")
    with pytest.raises(UserError, match=r"text\.train: a\.txt: has changed since this comparison began; restore it or use"):
        settle()
    text.write_text("two\n")
    settle()
    whole = (workdir / "texts.json").read_text()
    (workdir / "texts.json").write_text(whole[:20])
    with pytest.raises(UserError, match=r"texts\.json: .*; put it back from a copy, or remove it"):
        settle()
    # Of a version that recorded no text.
    (workdir / "texts.json").unlink()
    text.write_text("three\n")
    settle()
    text.write_text("two\n")
    with pytest.raises(UserError, match="has changed since this comparison began"):
        settle()
    assert all((workdir / name).exists() for name in made)


def test_files_that_transfers_read_may_change_until_a_method_is_trained(tmp_path):
    """A transfer that is there must not stand beside others of another dictionary, or of other parallel text."""
    workdir, files = tmp_path / "run", {name: tmp_path / name for name in ("a.tsv", "b.tsv", "own.tsv", "pairs.tsv")}
    for file in files.values():
        file.write_text("dog\tHund\n")
    config = comparison.default_config()
    config.dictionary, config.parallel = str(files["a.tsv"]), (str(files["pairs.tsv"]),)
    config.variants.mine = ConfigDict({"method": "wechsel", "dictionary": str(files["own.tsv"])})
    config.methods = ("wechsel", "mine", "trans_tokenization", "fvt")

    def settle() -> list[str]:
        for name in config.methods:
            if not (place := workdir / name / "transfer").exists():
                with new_directory(place, "transfer") as directory:
                    (directory / "file").write_text("made")
        check.settle(config, workdir)
        return [name for name in config.methods if (workdir / name / "transfer").exists()]

    assert settle() == settle() == [*config.methods]
    files["a.tsv"].write_text("cat\tKatze\n")
    assert settle() == ["mine", "trans_tokenization", "fvt"]
    files["own.tsv"].write_text("cat\tKatze\n")
    assert settle() == ["wechsel", "trans_tokenization", "fvt"]
    files["pairs.tsv"].write_text("cat\tKatze\n")
    assert settle() == ["wechsel", "mine", "fvt"]
    assert settle() == [*config.methods]
    # Workdirs of earlier versions do not say what their transfers have read.
    recorded = json.loads((workdir / "texts.json").read_text())
    (workdir / "texts.json").write_text(json.dumps({name: one for name, one in recorded.items() if "/" not in name}))
    files["a.tsv"].write_text("bird\tVogel\n")
    assert settle() == [*config.methods]
    (workdir / "fvt" / "config.json").write_text("{}")
    files["a.tsv"].write_text("fish\tFisch\n")
    with pytest.raises(UserError, match=r"wechsel/transfer: a\.tsv: has changed since this comparison began; rest"):
        settle()
    files["a.tsv"].write_text("bird\tVogel\n")
    assert settle() == [*config.methods]
    # What is gone has not changed, and the transfers that read it are there.
    files["own.tsv"].unlink()
    assert settle() == [*config.methods]


def test_transfers_of_a_source_or_a_helper_that_has_changed_are_made_again(tmp_path):
    workdir, config = tmp_path / "run", comparison.default_config()
    for name in ("source", "helper"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"old")
    config.source, config.helper.checkpoint = str(tmp_path / "source"), str(tmp_path / "helper")
    config.methods = ("ofa", "salt")

    def settle() -> list[str]:
        for name in config.methods:
            (workdir / name / "transfer").mkdir(parents=True, exist_ok=True)
        check.settle(config, workdir)
        return [name for name in config.methods if (workdir / name / "transfer").exists()]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(check, "foreign", lambda *_: None)
        assert settle() == settle() == ["ofa", "salt"]
        (tmp_path / "helper" / "model.safetensors").write_bytes(b"new")
        assert settle() == ["ofa"]
        (tmp_path / "source" / "model.safetensors").write_bytes(b"new")
        assert settle() == []
    # A workdir of an earlier version knows no models.
    recorded = json.loads((workdir / "texts.json").read_text())
    kept = {name: files for name, files in recorded.items() if not name.endswith("/models")}
    (workdir / "texts.json").write_text(json.dumps(kept))
    assert settle() == ["ofa", "salt"]
    (workdir / "salt" / "config.json").write_text("{}")
    (tmp_path / "source" / "model.safetensors").write_bytes(b"third")
    with pytest.raises(UserError, match=r"ofa/transfer: source/model\.safetensors: has changed since this comparison began"):
        settle()


def test_text_of_a_variant_and_what_a_probe_reads_are_told_by_content(tmp_path, monkeypatch):
    """Also behind a pattern, and beside a workdir that is named from within."""
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path / "run")
    corpus, pairs = tmp_path / "corpus", tmp_path / "pairs.tsv"
    corpus.mkdir()
    for file in (corpus / "a.txt", pairs):
        file.write_text("dog\tHund\n")
    config = comparison.default_config()
    config.parallel, config.probe_steps = ("../pairs.tsv",), 5
    text = {"method": "anker", "source_text": ("../corpus/*.txt",), "target_text": ("../corpus/a.txt",)}
    config.variants.update({"mine": ConfigDict(text), "chosen": ConfigDict({"method": "auto"})})
    config.methods = ("mine", "chosen")

    def settle() -> list[str]:
        for name in config.methods:
            if not (place := Path(name, "transfer")).exists():
                with new_directory(place, "transfer") as directory:
                    (directory / "file").write_text("made")
        check.settle(config, Path("."))
        return [name for name in config.methods if Path(name, "transfer").exists()]

    assert settle() == settle() == ["mine", "chosen"]
    (corpus / "a.txt").write_text("cat\n")
    assert settle() == ["chosen"]
    pairs.write_text("cat\tKatze\n")
    assert settle() == ["mine"]
    assert settle() == ["mine", "chosen"]
    (corpus / "a.txt").unlink()
    assert settle() == ["mine", "chosen"]
    # Though one text is gone, the other is looked at.
    (corpus / "b.txt").write_text("bird\n")
    assert settle() == ["chosen"]


def test_a_call_that_names_other_methods_changes_no_comparison_that_is_trained(tmp_path):
    config = comparison.default_config()
    config.methods = ("fvt", "trans_inner")
    check.settle(config, tmp_path)
    (tmp_path / "fvt").mkdir()
    (tmp_path / "fvt" / "config.json").write_text("{}")
    recorded = (tmp_path / "config.json").read_bytes()
    config.methods = ("full_rand",)
    with pytest.raises(UserError, match=r'methods was \["fvt", "trans_inner"\], now \["full_rand"\]; expected the same'):
        check.settle(config, tmp_path)
    assert (tmp_path / "config.json").read_bytes() == recorded
    config.methods = ("fvt", "trans_inner")
    check.settle(config, tmp_path)


def test_soft_targets_that_a_run_has_not_are_no_difference():
    """A workdir of an earlier version goes on with settings that leave them out."""
    old, new = {"training": {"steps": 5}}, {"training": {"steps": 5, "soft_targets": {"share": 0.0, "steps": 5}}}
    assert differences(old, new) == []
    new["training"]["soft_targets"]["share"] = 0.5
    assert {"training.soft_targets.share", "training.soft_targets.steps"} <= {name for name, *_ in differences(old, new)}
    old, new = ({"overrides": {"anker": {"soft_targets": {"order": order}}}} for order in (3, 4))
    assert differences(old, new) == [("overrides.anker.soft_targets.order", 3, 4)]
