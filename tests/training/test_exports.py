"""Any checkpoint of a run as a model: read by transformers and torch, described by its card."""

import json
import shutil

import jax
import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

from tests.records.runs import record as transfer_record
from wechsel_jax.cli import main
from wechsel_jax.data import TokenBlocks
from wechsel_jax.errors import UserError
from wechsel_jax.models.weights import unflatten
from wechsel_jax.records.run import read_starts
from wechsel_jax.records.scores import ScoresRecord
from wechsel_jax.training import train
from wechsel_jax.training.exports import export_checkpoint, record_model, write_model
from wechsel_jax.training.metrics import read_metrics
from wechsel_jax.training.run_spec import named_model
from wechsel_jax.training.workdir import record_start


@pytest.fixture(scope="module")
def run(make_config, tmp_path_factory):
    """A finished run that kept the checkpoints of steps 5, 10 and 15: (config, workdir)."""
    phases = ({"name": "all", "fraction": 1.0, "warmup": 0.2},)
    config = make_config(mesh__data=1, keep=3, eval_every=5, steps=15, phases=phases, profile_steps="6:8")
    config.trackers.tensorboard = True
    workdir = tmp_path_factory.mktemp("export") / "tiny-german"
    train(config, workdir)
    return config, workdir


@pytest.fixture
def bare(run, tmp_path):
    """What is left where the text, the tokenizer and the tokens are not: a copy of the workdir on another machine."""
    _, workdir = run
    place = tmp_path / "tiny-german"
    shutil.copytree(workdir, place, ignore=shutil.ignore_patterns("export", "tokens.bin"))
    settings = json.loads((place / "config.json").read_text())
    settings["model"]["tokenizer"] = settings["data"]["train"][0] = str(tmp_path / "not" / "here")
    (place / "config.json").write_text(json.dumps(settings))
    return place


@pytest.mark.slow
def test_transformers_computes_the_same_logits(run, bare, tmp_path):
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    config, workdir = run
    spec = named_model(config)
    tokens = TokenBlocks.open(workdir / "data" / "validation", 16).blocks(np.arange(6))
    targets = torch.tensor(tokens[:, 1:]).long().reshape(-1)
    losses_seen = []
    for step in (5, 15):
        output = tmp_path / f"step{step}"
        assert export_checkpoint(bare, output, step) == step
        params = spec.family.from_hugging_face(load_file(output / "model.safetensors"), spec.config)
        hidden = spec.family.hidden(params, spec.config, tokens)
        ours = np.asarray(spec.family.logits(params, spec.config, hidden))
        model = AutoModelForCausalLM.from_pretrained(output).eval()
        with torch.no_grad():
            theirs = model(torch.tensor(tokens).long()).logits
        assert np.abs(ours - theirs.numpy()).max() < 2e-5
        losses_seen.append(float(torch.nn.functional.cross_entropy(theirs[:, :-1].reshape(len(targets), -1), targets)))
        assert AutoTokenizer.from_pretrained(output).eos_token == "<|endoftext|>"
    assert losses_seen[1] < losses_seen[0] - 0.05
    # The last checkpoint is what the run itself exported.
    own, made = (load_file(place / "model.safetensors") for place in (workdir / "export", tmp_path / "step15"))
    assert own.keys() == made.keys() and all(np.array_equal(own[name], made[name]) for name in own)


def test_the_mean_of_checkpoints_is_that_of_their_exports(bare, tmp_path, capsys):
    for step in (5, 10, 15):
        export_checkpoint(bare, tmp_path / str(step), step)
    alone = [load_file(tmp_path / str(step) / "model.safetensors") for step in (5, 10, 15)]
    for average, step in ((2, 10), (3, 15)):
        output = tmp_path / f"mean{average}"
        main(["export", str(bare), f"--step={step}", f"--average={average}", f"--output={output}"])
        for name, value in load_file(output / "model.safetensors").items():
            expected = np.mean([one[name].astype(np.float64) for one in alone[:average]], axis=0)
            np.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-7, err_msg=name)
    card = (output / "README.md").read_text()
    assert "the mean of those after steps 5, 10 and 15; scores here are of step 15 alone" in card
    # Nor does it claim the scores of one checkpoint for the mean.
    assert "model-index" not in card and "those of step" not in card and "the mean of 3 checkpoints" in capsys.readouterr().out
    export_checkpoint(bare, tmp_path / "one", 15)
    assert "model-index" in (tmp_path / "one" / "README.md").read_text()
    with pytest.raises(UserError, match=r"average: is 3, and .* has 2 up to step 10"):
        export_checkpoint(bare, tmp_path / "more", 10, average=3)
    assert not (tmp_path / "more").exists()


def test_the_mean_of_checkpoints_is_scored_as_its_export_is(bare, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("Der Fuchs springt über den Hund.\n" * 3)
    scores, common = tmp_path / "scores.json", [f"--text=t={tmp_path}/text.txt", f"--output={tmp_path}/scores.json"]
    main(["export", str(bare), "--average=2", f"--output={tmp_path}/mean2"])
    main(["evaluate", f"export={tmp_path}/mean2", *common])
    for _ in range(2):
        main(["evaluate", f"run={bare}", "--average=2", *common])
    assert capsys.readouterr().out.rstrip().endswith("(measured before)")
    written, mean = ScoresRecord.read(scores).scores
    assert mean.numerators == written.numerators and mean.facts["weights"] == written.facts["weights"]
    assert (mean.facts["average"], mean.facts["directory"]) == (2, str(bare)) and "average" not in written.facts
    main(["report", str(scores), f"--output={tmp_path}/scores.md"])
    assert f"{mean.facts['weights'][:12]}, mean of 2 checkpoints |" in (tmp_path / "scores.md").read_text()
    # Another average is another model.
    (tmp_path / "seeds").mkdir()
    (tmp_path / "seeds" / "seed-0").symlink_to(bare)
    for given, message in (
        ([f"run={bare}", "--average=3"], "has a score of run in t, of other weights"),
        ([f"{tmp_path}/mean2", "--average=2"], "mean2 is no training run; expected runs alone; score it"),
        ([f"{tmp_path}/seeds", "--average=2"], f"expected runs alone; name one of its seeds, as {tmp_path}/seeds/seed-0"),
    ):
        with pytest.raises(SystemExit):
            main(["evaluate", *given, *common])
        assert message in capsys.readouterr().err


def test_the_run_was_watched(run):
    """TensorBoard's own reader finds the lines of the metrics, and there is a trace of the updates asked for."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    _, workdir = run
    events = accumulator.EventAccumulator(str(workdir / "tensorboard"))
    events.Reload()
    lines = read_metrics(workdir / "metrics.jsonl")
    for kind, field in (("train", "loss"), ("train", "learning_rate"), ("train", "seconds"), ("eval", "perplexity")):
        expected = [(line["step"], pytest.approx(line[field], rel=1e-6)) for line in lines if line["kind"] == kind]
        assert [(event.step, event.value) for event in events.Scalars(f"{kind}/{field}")] == expected
    assert len(list((workdir / "profile").rglob("*.xplane.pb"))) == 1


def test_best_and_newest(bare, tmp_path, capsys):
    lines = read_metrics(bare / "metrics.jsonl")
    for line in lines:
        if line["kind"] == "eval":
            line["loss"] = 1.0 if line["step"] == 10 else 2.0
    (bare / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for manifest in (bare / "checkpoints").glob("*/manifest.json"):
        # As earlier versions wrote them, which do not say what the metrics were.
        facts = json.loads(manifest.read_text())
        del facts["metrics"]
        manifest.write_text(json.dumps(facts))
    main(["export", str(bare), "--step=best", f"--output={tmp_path / 'best'}", "--dtype=bfloat16"])
    assert capsys.readouterr().out == f"{tmp_path / 'best'}: the weights of step 10\n"
    assert {tensor.dtype.name for tensor in load_file(tmp_path / "best" / "model.safetensors").values()} == {"bfloat16"}
    damaged = next(path for path in (bare / "checkpoints" / "15" / "state").rglob("*") if path.stat().st_size > 1000)
    damaged.write_bytes(damaged.read_bytes()[:-3])
    said = []
    assert export_checkpoint(bare, tmp_path / "newest", say=said.append) == 10 and "damaged" in said[0]
    with pytest.raises(UserError, match=r"15: is damaged; expected a whole checkpoint"):
        export_checkpoint(bare, tmp_path / "no", 15, say=said.append)
    shutil.rmtree(bare / "checkpoints" / "10")
    told = "best evaluation is that of step 10, whose checkpoint is not there; expected one of 5, 15"
    with pytest.raises(UserError, match=told):
        export_checkpoint(bare, tmp_path / "no", "best")
    assert not (tmp_path / "no").exists()


def test_best_is_not_drawn_from_metrics_that_were_changed(bare, tmp_path):
    changed = shutil.copytree(bare, tmp_path / "changed")
    text = (bare / "metrics.jsonl").read_text()
    (changed / "metrics.jsonl").write_text(text.replace('"loss": ', '"loss": 1', 1))
    with pytest.raises(UserError, match="does not begin with the"):
        export_checkpoint(changed, tmp_path / "out", "best")
    export_checkpoint(changed, tmp_path / "out", "newest")


def test_a_run_that_is_going_on_is_left_alone(bare, tmp_path):
    saving = bare / "checkpoints" / ".25.saving"
    saving.mkdir()
    before = {path: path.stat().st_mtime_ns for path in bare.rglob("*")}
    assert export_checkpoint(bare, tmp_path / "out") == 15
    assert before == {path: path.stat().st_mtime_ns for path in bare.rglob("*")}


def test_the_card_tells_what_was_recorded(bare, tmp_path):
    export_checkpoint(bare, tmp_path / "out", 10, license="cc-by-sa-4.0", language=["de", "gsw"])
    card = (tmp_path / "out" / "README.md").read_text()
    front = yaml.safe_load(card.split("---")[1])
    assert front["license"] == "cc-by-sa-4.0" and front["language"] == ["de", "gsw"]
    assert front["pipeline_tag"] == "text-generation" and "base_model" not in front
    lines = read_metrics(bare / "metrics.jsonl")
    scores = {line["step"]: line["perplexity"] for line in lines if line["kind"] == "eval"}
    bits, metric = front["model-index"][0]["results"][0]["metrics"]
    assert metric["type"] == "perplexity" and metric["value"] == pytest.approx(scores[10], abs=1e-4)
    assert bits["type"] == "bits_per_byte"
    manifest = json.loads((bare / "data" / "train" / "manifest.json").read_text())
    (text,) = manifest["inputs"]
    assert f"| train | `train.txt` | {text['bytes']:,} | `{text['sha256'][:16]}` |" in card
    assert f"{manifest['documents']:,} documents with {manifest['tokens']:,} tokens" in card
    for row in (
        "| objective | `clm` |",
        "| steps | 10 of 15 planned |",
        "| batch | 8 x 16 = 128 tokens |",
        "| tokens seen | 1,280 |",
        "| peak learning rate | 0.01 |",
        f"| 10 | {bits['value']:.3f} | {scores[10]:,.1f} | the best |",
        "These weights are those of step 10.",
        "`cc-by-sa-4.0`. Check the terms of the text",
        "@software{wechsel-jax,",
    ):
        assert row in card, row
    assert "| 15 |" not in card and "Where the tokens came from" not in card
    (start,) = read_starts(bare / "machine.json")
    seconds = max(line["seconds"] for line in lines if line["kind"] == "train" and line["step"] <= 10)
    assert start["seconds"] == 0 and start["devices"] == 1
    assert f"| devices | 1 x {jax.devices()[0].device_kind} |" in card
    assert f"| FLOPs of the model | {start['flops_per_token'] * 1280:.3g} |" in card
    assert f"| device hours | {seconds / 3600:.3g} |" in card and "Energy was not measured" in card
    assert str(tmp_path) not in card


def test_a_run_that_began_with_a_transfer_keeps_its_record(run, bare, tmp_path):
    config, _ = run
    record = {**transfer_record("wechsel"), "paper": "Minixhofer et al., 2022: WECHSEL"}
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "transfer.json").write_text(json.dumps(record))
    began = config.copy_and_resolve_references()
    began.model.checkpoint = str(tmp_path / "source")
    record_model(named_model(config), config, tmp_path / "kept")
    record_model(named_model(config), began, tmp_path / "kept")
    assert not (tmp_path / "kept" / "model" / "transfer.json").exists()
    # Until something is trained another checkpoint may take its place.
    record_model(named_model(config), began, tmp_path / "kept", fresh=True)
    shutil.copy(tmp_path / "kept" / "model" / "transfer.json", bare / "model")
    export_checkpoint(bare, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "transfer.json").read_text()) == record
    card = (tmp_path / "out" / "README.md").read_text()
    assert "# english-gpt2 with the vocabulary of tokenizer" in card and "@inproceedings{minixhofer-etal-2022-wechsel," in card
    assert "| mixed | 91 |" in card and "These weights are those of step 15." in card and "| train | `train.txt` |" in card
    (bare / "model" / "transfer.json").write_text('{"method": 3}')
    with pytest.raises(UserError, match=r"model/transfer\.json: .*method is .?3"):
        export_checkpoint(bare, tmp_path / "no")
    assert not (tmp_path / "no").exists()


def test_starts_that_came_to_nothing_are_not_counted(tmp_path):
    device = jax.devices()[:1]
    for step, seconds in ((0, 0.0), (10, 100.0), (10, 100.0), (30, 300.0), (20, 200.0)):
        record_start(tmp_path, step, seconds, device, 6e6)
    found = read_starts(tmp_path / "machine.json")
    assert [(start["step"], start["seconds"]) for start in found] == [(0, 0.0), (10, 100.0), (20, 200.0)]
    record_start(tmp_path, 0, 0.0, device, 6e6)
    (start,) = read_starts(tmp_path / "machine.json")
    assert (
        start["devices"] == 1 and start["device_kind"] == device[0].device_kind and start["versions"]["jax"] == jax.__version__
    )
    # What it held of earlier starts is not replaced.
    (tmp_path / "machine.json").write_text("{")
    with pytest.raises(UserError, match=r"machine\.json: .*remove it"):
        record_start(tmp_path, 10, 100.0, device, 6e6)
    assert (tmp_path / "machine.json").read_text() == "{"


def test_weights_that_are_no_numbers_are_not_exported(run, tmp_path):
    model = named_model(run[0])
    shapes = model.family.shapes(model.device_config)
    for value in (np.nan, np.inf):
        params = unflatten({path: np.full(shape, value, np.float32) for path, shape in shapes.items()})
        with pytest.raises(UserError, match="holds NaN or infinity: the training diverged; expected numbers"):
            write_model(model, params, "float32", tmp_path)


def test_what_cannot_be_exported_is_one_line(bare, tmp_path):
    (tmp_path / "empty").mkdir()
    for place, step, options, message in [
        (tmp_path / "nothing", "newest", {}, "no such directory"),
        (tmp_path / "empty", "newest", {}, r"config\.json: no such file"),
        (bare / "model", "newest", {}, "holds no settings of a training run"),
        (bare, "7", {}, "step 7 was asked for, whose checkpoint is not there; expected one of 5, 10, 15"),
        (bare, "last", {}, "step: is 'last'; expected a number, best or newest; there are 5, 10, 15"),
        (bare, "9" * 5000, {}, "step: is '9999.*; expected a number, best or newest"),
        (bare, "newest", {"dtype": "int8"}, "dtype: is 'int8'; expected float32, float16, bfloat16"),
        (bare, "newest", {"license": "My own!"}, "license: 'My own!' is not one of the hub's names"),
        (bare, "newest", {"language": ["German"]}, "language: 'German' is no language code"),
    ]:
        with pytest.raises(UserError, match=message) as caught:
            export_checkpoint(place, tmp_path / "out", step, **options)
        assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()
    export_checkpoint(bare, tmp_path / "out")
    with pytest.raises(UserError, match="exists already"):
        export_checkpoint(bare, tmp_path / "out")


def test_a_checkpoint_of_another_model_is_named(bare, tmp_path):
    settings = json.loads((bare / "model" / "config.json").read_text())
    (bare / "model" / "config.json").write_text(json.dumps({**settings, "n_embd": 16}))
    with pytest.raises(UserError, match=r"parameter .* has shape .*; expected shape"):
        export_checkpoint(bare, tmp_path / "out")
