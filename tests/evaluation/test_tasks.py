"""`wechsel-jax evaluate` and the tables of `wechsel-jax report`, as a user runs them."""

import csv
import dataclasses
import json
import shutil
import subprocess
import sys
import threading
import xml.etree.ElementTree as ElementTree

import pytest

from tests.records.runs import make_run
from wechsel_jax import cli, demo
from wechsel_jax.commands.evaluate import named
from wechsel_jax.errors import UserError
from wechsel_jax.evaluation import tasks
from wechsel_jax.evaluation.labels import LabelScores
from wechsel_jax.records.scores import ScoresRecord
from wechsel_jax.report.latex import latex
from wechsel_jax.report.scores_table import figure, grid, heat_map, read_scores, write_scores
from wechsel_jax.report.section import Table

PAIRS = "sen\twrong_sen\tphenomenon\n" + "".join(
    f"The {one} is here.\tThe {one} are here.\tSV\n" for one in ("house", "man", "garden", "king", "child", "door")
)
TEXT = "It was a dark night.\nThe rain fell in torrents, and the wind swept the streets.\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("evaluate")
    (root / "text.txt").write_text(TEXT)
    (root / "pairs.tsv").write_text(PAIRS)
    return root


def run(*arguments):
    cli.main(["evaluate", *map(str, arguments)])


@pytest.fixture(scope="module")
def scores(place):
    """The demonstration's English model in two tasks."""
    run(f"english={demo.path('english-gpt2')}", f"--text=night={place}/text.txt", f"--choice={place}/pairs.tsv",
        f"--output={place}/scores.json")  # fmt: skip
    return place / "scores.json"


def test_scores_are_recorded_with_all_that_they_depend_on(scores, place):
    record = ScoresRecord.read(scores)
    night, pairs = record.scores
    assert night.key == ("english", "night") and pairs.key == ("english", "pairs.tsv")
    assert sum(night.denominators) == len(TEXT.replace("\n", "").encode())
    assert night.metrics["bits_per_byte"] == pytest.approx(sum(night.numerators) / sum(night.denominators), rel=1e-5)
    assert 1 < night.metrics["bits_per_byte"] < 4
    # Denominators that are all 1 are not written.
    assert json.loads(scores.read_text())["scores"][1]["denominators"] == [] and list(pairs.denominators) == [1] * 6
    assert len(pairs.numerators) == 6 and pairs.metrics["acc"] == sum(pairs.numerators) / 6
    assert pairs.files[0]["name"] == "pairs.tsv" and len(pairs.files[0]["sha256"]) == 64
    assert night.facts["vocabulary_size"] == 8192 and night.facts["parameters"] == 5_289_472
    assert night.machine["devices"] == 8 and "jax" in night.machine["versions"]


def test_what_is_there_is_not_measured_again(scores, place, capsys, monkeypatch):
    before = scores.read_bytes()
    monkeypatch.setattr(tasks, "LoadedModel", None)
    run(f"english={demo.path('english-gpt2')}", f"--text=night={place}/text.txt", f"--output={scores}")
    assert "measured before" in capsys.readouterr().out and scores.read_bytes() == before


def test_scores_may_lie_in_the_model_that_they_are_of(place, tmp_path, capsys):
    shutil.copytree(demo.path("english-gpt2"), tmp_path / "model")
    for said in ("s)", "(measured before)"):
        run(tmp_path / "model", f"--text={place}/text.txt", f"--output={tmp_path}/model/scores.json")
        assert capsys.readouterr().out.strip().endswith(said)
    with pytest.raises(SystemExit):
        run(tmp_path / "model", f"--text={place}/text.txt", f"--output={tmp_path}/model/config.json")
    assert "its contents are of another kind" in capsys.readouterr().err


def test_groups_of_items_have_their_number(scores, tmp_path):
    cli.main(["report", str(scores), f"--output={tmp_path / 'scores.csv'}"])
    with open(tmp_path / "scores.csv", newline="") as handle:
        rows = [row for row in csv.DictReader(handle) if row["task"] == "pairs.tsv" and row["metric"] == "acc"]
    assert [(row["group"], row["items"]) for row in rows] == [("", "6"), ("SV", "6")]


def test_labels_are_scored_in_the_type_that_is_recorded(tmp_path, monkeypatch):
    seen = []

    def scored(directory, names, **options):
        seen.append(options["dtype"])
        return LabelScores({"accuracy": 1.0}, "accuracy", ["a.tsv: line 1"], ["yes"], [1.0], [1.0])

    monkeypatch.setattr("wechsel_jax.evaluation.labels.score_labelled", scored)
    tasks.labels(tmp_path, "a.tsv", dtype="bfloat16")
    assert seen == ["bfloat16"]


def test_the_method_that_a_run_began_with_is_recorded(place, tmp_path, monkeypatch):
    """What a run exports need not say how its start was made; of several seeds all began alike."""
    for seed in (0, 1):
        workdir = make_run(tmp_path, "wechsel", name=f"seed-{seed}")
        (workdir / "export").symlink_to(demo.path("english-gpt2"))
    (tmp_path / "seeds.json").write_text('{"seeds": [0, 1]}')
    monkeypatch.setitem(tasks.FORMS, "labels", lambda *_, **__: tasks.Result("acc", {"acc": 1.0}, [1], [1]))
    asked = tasks.Task("ours", "labels", str(place / "pairs.tsv"))
    (workdir / "stages").mkdir()
    (workdir / "stages" / "10").symlink_to(demo.path("english-gpt2"))
    # As a comparison names them, too.
    models = {"export": workdir / "export", "stage": workdir / "stages" / "10"}
    found = tasks.evaluate({"seeds": tmp_path, "run": workdir, "english": demo.path("english-gpt2")} | models, [asked])
    assert [one.facts.get("method") for one in found.scores] == ["wechsel", "wechsel", None, "wechsel", "wechsel"]
    # A file of that name beside a model may be of another program.
    other = tmp_path / "other"
    other.mkdir()
    (other / "export").symlink_to(demo.path("english-gpt2"))
    (other / "metrics.jsonl").write_text('{"loss": 1.0}\n')
    monkeypatch.setitem(tasks.FORMS, "choice", lambda *_, **__: tasks.Result("acc", {"acc": 1.0}, [1], [1]))
    asked = tasks.Task("pairs", "choice", str(place / "pairs.tsv"))
    assert tasks.evaluate({"other": other / "export"}, [asked]).scores[0].facts.get("method") is None
    # Those of a transfer that are lists are of files.
    told = {"neighbors": 10, "temperature": 0.1, "seed": 0}
    assert [one.facts.get("settings") for one in found.scores] == [told, told, None, told, told]


def test_fine_tuned_models_of_other_right_answers_are_not_compared(place, tmp_path, monkeypatch):
    """What is right, and which examples are left out, has to be the same; how long a row a model reads is its own."""
    monkeypatch.setitem(tasks.FORMS, "labels", lambda *_, **__: tasks.Result("acc", {"acc": 1.0}, [1], [1]))
    labels = tasks.Task("words", "labels", str(place / "pairs.tsv"))

    def tuned(name, length=128, **task):
        workdir = make_run(tmp_path, "wechsel", name=name)
        (workdir / "export").symlink_to(demo.path("english-gpt2"))
        recorded = json.loads((workdir / "config.json").read_text())
        (workdir / "config.json").write_text(json.dumps(recorded | {"block_length": length, "task": task}))
        return workdir

    upos = tuned("upos", label="upos", skip=["-"])
    for name, other, same in (
        ("xpos", {"label": "xpos", "skip": ["-"]}, False),
        ("some", {"label": "upos", "skip": ["-", "X"]}, False),
        ("rules", {"label": "upos", "skip": ["-"], "language": "de"}, False),
        ("columns", {"label": "upos", "skip": ["-"], "columns": ["word", "x", "upos"]}, False),
        ("short", {"label": "upos", "skip": ["-"], "length": 16}, True),
    ):
        file = tmp_path / f"{name}.json"
        tasks.evaluate({"upos": upos, "other": tuned(name, **other)}, [labels], output=file)
        if same:
            assert len(read_scores([file]).scores) == 2
        else:
            with pytest.raises(UserError, match="words: other was scored on other data or with other settings than upos"):
                read_scores([file])
    # The same weights in rows of another length are measured anew.
    with pytest.raises(UserError, match="has a score of other in words, of other settings of its texts; expected the same"):
        tasks.evaluate({"other": upos}, [labels], output=file)
    old = ScoresRecord.read(file)
    facts = {name: value for name, value in old.scores[0].facts.items() if name != "read"}
    ScoresRecord((dataclasses.replace(old.scores[0], facts=facts),)).write(file)
    with pytest.raises(
        UserError, match=r"of other version, which did not record what is right; expected the same; .*--overwrite"
    ):
        tasks.evaluate({"upos": upos}, [labels], output=file)


def test_what_another_process_adds_meanwhile_stays(scores, place, tmp_path, monkeypatch):
    file, theirs = tmp_path / "scores.json", ScoresRecord.read(scores)

    def measured(_model, _place, **_settings):
        theirs.write(file)
        return tasks.Result("acc", {"acc": 1.0}, [1], [1])

    monkeypatch.setitem(tasks.FORMS, "labels", measured)
    asked = tasks.Task("ours", "labels", str(place / "pairs.tsv"))
    found = tasks.evaluate({"english": demo.path("english-gpt2")}, [asked], output=file)
    assert [one.task for one in found.scores] == [one.task for one in ScoresRecord.read(file).scores]
    assert [one.task for one in found.scores] == ["night", "pairs.tsv", "ours"]


def test_what_another_process_scores_otherwise_meanwhile_is_not_replaced(place, tmp_path, monkeypatch):
    file = tmp_path / "scores.json"
    models = {"english": demo.path("english-gpt2")}

    def score(limit, overwrite=False):
        asked = tasks.Task("ours", "choice", str(place / "pairs.tsv"), {"limit": limit})
        tasks.evaluate(models, [asked], output=file, overwrite=overwrite)

    def measured(_model, _place, limit):
        if limit == 4:
            score(2)
        return tasks.Result("acc", {"acc": limit / 4}, [1], [1])

    monkeypatch.setitem(tasks.FORMS, "choice", measured)
    with pytest.raises(UserError, match=r"scores\.json: has a score of english in ours, of other settings"):
        score(4)
    assert [one.metrics["acc"] for one in ScoresRecord.read(file).scores] == [0.5]
    file.unlink()
    score(4, overwrite=True)
    assert [one.metrics["acc"] for one in ScoresRecord.read(file).scores] == [1.0]


def test_two_that_write_at_the_same_moment_lose_nothing(place, tmp_path, monkeypatch):
    file, others, write = tmp_path / "new" / "scores.json", [], ScoresRecord.write
    monkeypatch.setitem(tasks.FORMS, "labels", lambda *_, **__: tasks.Result("acc", {"acc": 1.0}, [1], [1]))

    def score(name):
        asked = tasks.Task(name, "labels", str(place / "pairs.tsv"))
        tasks.evaluate({"english": demo.path("english-gpt2")}, [asked], output=file)

    def slowly(record, output):
        if not others:
            others.append(threading.Thread(target=score, args=("theirs",)))
            others[0].start()
            others[0].join(1.0)
        write(record, output)

    monkeypatch.setattr(ScoresRecord, "write", slowly)
    score("ours")
    others[0].join()
    assert [one.task for one in ScoresRecord.read(file).scores] == ["ours", "theirs"]


def test_other_text_or_settings_under_the_same_name_are_refused(scores, place, capsys, tmp_path):
    (tmp_path / "other.txt").write_text("Another text.\n")
    before = scores.read_bytes()
    for options, what in (
        ([f"--text=night={tmp_path}/other.txt"], "data"),
        ([f"--text=night={place}/text.txt", "--stride=3"], "settings"),
    ):
        with pytest.raises(SystemExit) as error:
            run(f"english={demo.path('english-gpt2')}", *options, f"--output={scores}")
        assert error.value.code == 2
        assert f"has a score of english in night, of other {what}" in capsys.readouterr().err
    assert scores.read_bytes() == before


def test_a_score_of_one_item_is_told_without_an_interval(place, tmp_path):
    (tmp_path / "line.txt").write_text("It was a dark night.\n")
    run(f"one={demo.path('english-gpt2')}", f"two={demo.path('english-gpt2')}", f"--text={tmp_path}/line.txt",
        f"--output={tmp_path}/scores.json")  # fmt: skip
    for ending in ("md", "csv", "svg"):
        cli.main(["report", f"{tmp_path}/scores.json", f"--output={tmp_path}/scores.{ending}"])
    told = (tmp_path / "scores.md").read_text()
    assert (
        "line.txt: 1 item)" in told
        and "+0.000 |" in told
        and "± 0" not in told
        and "[" not in told.split("## ")[2]
        and "nan" not in told
    )
    row = next(csv.DictReader((tmp_path / "scores.csv").read_text().splitlines()))
    assert row["metric"] == "bits_per_byte" and not row["low"] and not row["high"]


def test_a_model_that_changed_is_not_measured_before(place, tmp_path, capsys):
    shutil.copytree(demo.path("english-gpt2"), tmp_path / "model")
    tokenizer = json.loads((tmp_path / "model" / "tokenizer.json").read_text())["model"]
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "model" / name).unlink()
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in tokenizer["merges"]]
    (tmp_path / "model" / "vocab.json").write_text(json.dumps(tokenizer["vocab"]))
    (tmp_path / "model" / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    arguments = (f"m={tmp_path}/model", f"--text={place}/text.txt", f"--output={tmp_path}/scores.json")
    run(*arguments)
    capsys.readouterr()
    settings = tmp_path / "model" / "config.json"
    before = settings.read_text()
    settings.write_text(before.replace('"n_head": 4', '"n_head": 8'))
    assert settings.read_text() != before
    for other in ("settings of the model", "tokens"):
        with pytest.raises(SystemExit):
            run(*arguments)
        assert f"has a score of m in text.txt, of other {other}; expected the same" in capsys.readouterr().err
        settings.write_text(before)
        (tmp_path / "model" / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges[:100]) + "\n")
    # A score of an earlier version does not tell the settings.
    (tmp_path / "model" / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    content = json.loads((tmp_path / "scores.json").read_text())
    del content["scores"][0]["facts"]["config"]
    (tmp_path / "scores.json").write_text(json.dumps(content))
    run(*arguments)
    assert "measured before" in capsys.readouterr().out


def test_what_stands_beside_the_configuration_decides_too(place, tmp_path, capsys):
    """The token before a text and those that end one are named in these files."""
    shutil.copytree(demo.path("english-gpt2"), tmp_path / "model")
    arguments = (f"m={tmp_path}/model", f"--text={place}/text.txt", f"--output={tmp_path}/scores.json")
    run(*arguments)
    told = "tokenizer_config.json, special_tokens_map.json or generation_config.json"
    tokenizer = tmp_path / "model" / "tokenizer_config.json"
    for name, text in (
        ("tokenizer_config.json", json.dumps(json.loads(tokenizer.read_text()) | {"bos_token": "a"})),
        ("special_tokens_map.json", "{}"),
        ("generation_config.json", '{"eos_token_id": 5}'),
    ):
        file = tmp_path / "model" / name
        before = file.read_bytes() if file.exists() else None
        file.write_text(text)
        with pytest.raises(SystemExit):
            run(*arguments)
        assert f"has a score of m in text.txt, of other {told}; expected the same" in capsys.readouterr().err
        # In another task, too, it would be two models in a row.
        with pytest.raises(SystemExit):
            run(arguments[0], f"--choice={place}/pairs.tsv", arguments[2])
        assert f"has a score of m in text.txt, of other {told}; expected one model a name" in capsys.readouterr().err
        if before is None:
            file.unlink()
        else:
            file.write_bytes(before)
    run(*arguments)
    # Earlier files do not tell them.
    content = json.loads((tmp_path / "scores.json").read_text())
    del content["scores"][0]["facts"]["beside_config"]
    (tmp_path / "scores.json").write_text(json.dumps(content))
    (tmp_path / "model" / "generation_config.json").write_text('{"eos_token_id": 5}')
    run(*arguments)
    assert capsys.readouterr().out.count("measured before") == 2


@pytest.mark.parametrize(
    ("fact", "told"),
    [("tokenizer", "tokens"), ("config", "settings of the model"), ("beside_config", "tokenizer_config.json, special")],
)
def test_a_row_is_of_one_model(scores, tmp_path, fact, told):
    content = json.loads(scores.read_text())
    content["scores"][1]["facts"][fact] = "0" * 64
    (tmp_path / "other.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=f"english: other {told}.* in pairs.tsv than in night; expected one model a name"):
        read_scores([tmp_path / "other.json"])
    if fact != "tokenizer":
        del content["scores"][0]["facts"][fact]
        (tmp_path / "other.json").write_text(json.dumps(content))
        assert len(read_scores([tmp_path / "other.json"]).scores) == 2


def test_names_leave_the_comments_of_tables_what_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = "x---><b>\n\\input{a}.json"
    (tmp_path / file).write_text(json.dumps({"format": 1, "scores": [PARSED | {"task": "t\n\\input{b}\x01"}]}))
    for ending in ("tex", "md", "svg"):
        write_scores([file], f"table.{ending}")
    assert not [line for line in (tmp_path / "table.tex").read_text().splitlines() if line.startswith("\\input")]
    begin, end = (tmp_path / "table.md").read_text().split("-->", 1)
    assert "--" not in begin.removeprefix("<!--") and end.startswith("\n\n## Scores")
    ElementTree.parse(tmp_path / "table.svg")


def test_a_name_stands_for_one_model_in_all_tasks(scores, place, tmp_path, capsys):
    shutil.copy(scores, tmp_path / "scores.json")
    (tmp_path / "line.txt").write_text("It was a dark night.\n")
    changed = json.loads((tmp_path / "scores.json").read_text())
    for score in changed["scores"]:
        score["facts"]["weights"] = "0" * 64
    (tmp_path / "scores.json").write_text(json.dumps(changed))
    with pytest.raises(SystemExit):
        run(f"english={demo.path('english-gpt2')}", f"--text={tmp_path}/line.txt", "--overwrite",
            f"--output={tmp_path}/scores.json")  # fmt: skip
    assert "has a score of english in night, of other weights; expected one model a name" in capsys.readouterr().err
    # Whoever scores all of it again has one model again.
    run(f"english={demo.path('english-gpt2')}", f"--text=night={place}/text.txt", f"--text={tmp_path}/line.txt",
        f"--choice={place}/pairs.tsv", "--overwrite", f"--output={tmp_path}/scores.json")  # fmt: skip
    assert len({score.facts["weights"] for score in read_scores([tmp_path / "scores.json"]).scores}) == 1


def test_tables_of_two_models(scores, place, tmp_path, capsys):
    copy = tmp_path / "scores.json"
    shutil.copyfile(scores, copy)
    # A second model by hand: each pair right, each text at half the bits.
    content = json.loads(copy.read_text())
    for score in list(content["scores"]):
        better = json.loads(json.dumps(score)) | {"model": "better|one"}
        better["facts"]["weights"] = "0" * 64
        factor = 0.5 if score["form"] == "text" else 0
        better["numerators"] = [factor * value if factor else 1 for value in score["numerators"]]
        better["metrics"][score["main"]] = sum(better["numerators"]) / (
            sum(better["denominators"]) or len(better["numerators"])
        )
        content["scores"].append(better)
    copy.write_text(json.dumps(content))
    for ending in ("md", "tex", "csv", "svg", "png"):
        cli.main(["report", str(copy), f"--output={tmp_path}/table.{ending}"])
    shown = capsys.readouterr().out
    bits = ScoresRecord.read(copy).scores[0].metrics["bits_per_byte"]
    assert f"{bits:.3f} ±" in shown and f"{bits / 2:.3f} ±" in shown and "Differences from english" in shown
    text = (tmp_path / "table.md").read_text()
    assert r"| better\|one | **" in text and "| night | english |" in text
    assert r"\textbf{100.0} \\" in (tmp_path / "table.tex").read_text()
    with open(tmp_path / "table.csv", newline="") as handle:
        rows = [row for row in csv.DictReader(handle) if row["task"] == "night" and row["metric"] == "bits_per_byte"]
    assert [float(row["value"]) for row in rows] == pytest.approx([bits, bits / 2], rel=1e-5)
    assert float(rows[0]["low"]) < bits < float(rows[0]["high"])
    drawing = (tmp_path / "table.svg").read_text()
    assert "better|one" in drawing and "bits per byte" in drawing and "accuracy, %" in drawing
    assert (tmp_path / "table.png").read_bytes()[:4] == b"\x89PNG"
    assert "An unknown token is one guess" not in (tmp_path / "table.md").read_text()
    content = json.loads(copy.read_text())
    next(one for one in content["scores"] if one["form"] == "text")["metrics"]["unknown_tokens"] = 3
    (tmp_path / "unknown.json").write_text(json.dumps(content))
    cli.main(["report", str(tmp_path / "unknown.json"), f"--output={tmp_path}/unknown.md"])
    assert "An unknown token is one guess" in (tmp_path / "unknown.md").read_text()
    # The heat map: fewer bits are better, and dark.
    cli.main(["report", str(copy), f"--output={tmp_path}/heat.svg", "--heat_map"])
    assert f">{bits:.3f}<" in (tmp_path / "heat.svg").read_text() and ">100.0<" in (tmp_path / "heat.svg").read_text()
    cells = heat_map(read_scores([copy])).plot.cells
    assert cells[0][0] == (f"{bits:.3f}", 0.0) and cells[1][0] == (f"{bits / 2:.3f}", 1.0)
    # Tables are replaced only where asked for, and never something else.
    (tmp_path / "table.md").write_text("mine")
    for ending, options in (("tex", []), ("md", ["--overwrite"])):
        with pytest.raises(SystemExit):
            cli.main(["report", str(copy), f"--output={tmp_path}/table.{ending}", *options])
    assert (tmp_path / "table.md").read_text() == "mine"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda one: one["files"][0].update(sha256="1" * 64), "was scored on other data or with other settings than english"),
        (lambda one: one["settings"].update(stride=7), "was scored on other data or with other settings than english"),
        (lambda one: one.update(model="english"), "english, night: is in"),
        (lambda one: one.update(model="english", task="day"), "english: other weights in day than in night"),
    ],
)
def test_what_cannot_be_compared_is_not_put_side_by_side(scores, tmp_path, capsys, change, message):
    content = json.loads(scores.read_text())
    other = content["scores"][0] | {"model": "other"}
    other["facts"] = other["facts"] | {"weights": "0" * 64}
    change(other)
    (tmp_path / "other.json").write_text(json.dumps({"format": 1, "scores": [other]}))
    with pytest.raises(SystemExit) as error:
        cli.main(["report", str(scores), f"{tmp_path}/other.json", f"--output={tmp_path}/table.md"])
    assert error.value.code == 2 and message in capsys.readouterr().err and not (tmp_path / "table.md").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected --text, --choice, --reading, --labels, or --tasks that holds one"),
        (["--labels={place}/pairs.tsv", "--limit=3"], "--limit: has no effect on --labels; leave it out"),
        (["--choice={place}/pairs.tsv", "--examples={place}/pairs.tsv"], "--examples: has no effect without --shots; leave it"),
        (["--text={place}/text.txt", "--tasks={place}/tasks.json", "--shots=1"], "--shots: has no effect on --text, --tasks;"),
        (["--text=more={place}/text.txt", "--tasks={place}/tasks.json"], "two tasks are named 'more'"),
        (["--text={place}/text.txt", "--output=/proc/scores.json"], "/proc/scores.json: /proc cannot be written to; choose"),
        (["--text={place}/missing.txt"], "no such file"),
        (["--choice={place}/text.txt"], "its first record has the fields"),
        (["--text={place}/text.txt", "--output={place}/scores.md"], "expected the name of a .json file"),
        (["--text={place}/text.txt", "--output={place}/foreign.json"], "its contents are of another kind"),
        (["--text=a={place}/text.txt", "--choice=a={place}/pairs.tsv"], "two tasks are named 'a'"),
        (["--text=a={place}/text.txt", "--text=a={place}/pairs.tsv"], "a task is named 'a' already"),
        (["--text={place}/text.txt", "--window=1000"], "expected 2 to the 128 tokens"),
        (["--choice={place}/empty.tsv"], "empty.tsv: the file is empty; expected a file of a forced-choice task: JSON lines, "),
        (["--reading={place}/empty.tsv"], "empty.tsv: the file is empty; expected a file as SQuAD has it"),
        (["--labels={place}/missing.tsv"], "missing.tsv: no such file; expected labelled examples (columns with tabs"),
        (["--reading=xquad={place}/text.txt", "--words=xx"], "xquad.words: is 'xx'; expected one of 'ar', 'de', 'el', "),
    ],
)
def test_mistakes_are_one_line(place, capsys, arguments, message):
    (place / "foreign.json").write_text("{}")
    (place / "empty.tsv").touch()
    (place / "tasks.json").write_text(json.dumps({"more": {"form": "text", "file": f"{place}/text.txt"}}))
    with pytest.raises(SystemExit) as error:
        run(demo.path("english-gpt2"), *(argument.format(place=place) for argument in arguments))
    said = capsys.readouterr().err
    assert error.value.code == 2 and message in said and len(said.splitlines()) == 1
    assert (place / "foreign.json").read_text() == "{}"


def test_a_task_that_is_called_as_its_file_is_named_once(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "blank.txt").write_text("  \n \n")
    for option, begins in (("--text=blank.txt", "blank.txt: holds"), ("--text=a=blank.txt", "a: blank.txt: holds")):
        with pytest.raises(SystemExit):
            run(demo.path("english-gpt2"), option)
        assert capsys.readouterr().err.startswith(f"wechsel-jax evaluate: error: {begins} nothing but white space")


def test_a_file_of_scores_that_is_missing_is_named(tmp_path, capsys):
    with pytest.raises(SystemExit):
        cli.main(["report", f"{tmp_path}/none.json", f"--output={tmp_path}/page.html"])
    assert "none.json: no such file; expected a file of scores" in capsys.readouterr().err


def test_a_file_of_tasks_holds_what_has_no_flag(place, tmp_path):
    """Questions in one language about texts in another, and a probe, as train.compare has them."""
    for language, question in (("en", "Who sleeps?"), ("de", "Wer schläft?")):
        asked = {"id": "a", "question": question, "answers": [{"text": "dog", "answer_start": 4}]}
        content = {"data": [{"paragraphs": [{"context": "The dog sleeps.", "qas": [asked]}]}]}
        (tmp_path / f"{language}.json").write_text(json.dumps(content))
    (tmp_path / "topics.tsv").write_text("text\tcategory\n" + "the dog barks\tanimals\nthe rain falls\tweather\n" * 4)
    topics = f"{tmp_path}/topics.tsv"
    asked = {
        "crossed": {"form": "reading", "file": f"{tmp_path}/en.json", "questions": f"{tmp_path}/de.json", "rules": "de"},
        "topics": {"form": "probe", "file": topics, "train": topics, "texts": ["text"], "label": "category"},
    }
    (tmp_path / "tasks.json").write_text(json.dumps(asked))
    run(f"english={demo.path('english-gpt2')}", f"--text={place}/text.txt", f"--tasks={tmp_path}/tasks.json",
        f"--output={tmp_path}/scores.json")  # fmt: skip
    record = ScoresRecord.read(tmp_path / "scores.json")
    assert record.tasks == ("text.txt", "crossed", "topics")
    crossed, topics = record.scores[1:]
    assert [file["name"] for file in crossed.files] == ["en.json", "de.json"] and crossed.settings["rules"] == "de"
    assert topics.metrics["accuracy"] == 1 and topics.metrics["majority"] == 0.5


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ([], "tasks.json: x: expected a form and a file, and settings of the form"),
        ({"form": "text"}, "tasks.json: x: expected a form and a file"),
        ({"form": "guess", "file": "a"}, "tasks.json: x: form 'guess' is not known; expected one of text, choice"),
        ({"form": "probe", "file": "{place}/pairs.tsv"}, "tasks.json: x: train is missing, which probe needs"),
        ({"form": "text", "file": "a", "magic": 1}, "tasks.json: x.magic: text has no such setting"),
        ({"form": "text", "file": "a", "window": True}, "tasks.json: x.window: is True; expected a whole number, 0 or more"),
        ({"form": "labels", "file": "a", "texts": "text"}, "tasks.json: x.texts: is 'text'; expected a list of texts"),
        (
            {"form": "labels", "file": "a", "texts": ["a", "b", "c"]},
            "tasks.json: x.texts: is ['a', 'b', 'c']; expected the names",
        ),
        ({"form": "probe", "file": "a", "train": "a", "texts": []}, "tasks.json: x.texts: is []; expected the names of 1 to 2"),
        (
            {"form": "probe", "file": "a", "train": "a", "kind": "tagging", "texts": ["a", "b"]},
            "tasks.json: x.texts: is ['a', 'b']; expected the names of 1 to 1",
        ),
        ({"form": "choice", "file": "a", "examples": "a"}, "tasks.json: x.examples: has no effect without shots"),
        ({"form": "choice", "file": "a", "within_word": 1}, "tasks.json: x.within_word: is 1; expected true or false"),
        ({"form": "reading", "file": "{place}/pairs.tsv", "questions": "b"}, "tasks.json: x: b: no such file"),
        ({"form": "reading", "file": "a", "words": "tlh"}, "tasks.json: x.words: is 'tlh'; expected one of 'ar', 'de', 'el', "),
        ({"form": "reading", "file": "a", "rules": "fr"}, "tasks.json: x.rules: is 'fr'; expected one of '', 'en', 'es', "),
        ({"form": "text", "file": "a", "documents": "pages"}, "x.documents: is 'pages'; expected one of 'lines', "),
        ({"form": "probe", "file": "a", "train": "a", "kind": "answers"}, "x.kind: is 'answers'; expected one of 'classif"),
        # Found only when it is read, and what it advises is a setting of this task.
        ({"form": "probe", "file": "{place}/pairs.tsv", "train": "{place}/pairs.tsv"}, "x: {place}/pairs.tsv: line 2: has no"),
    ],
)
def test_mistakes_in_a_file_of_tasks_name_it_and_the_task(place, tmp_path, capsys, task, message):
    (tmp_path / "tasks.json").write_text(json.dumps({"x": task}).replace("{place}", str(place)))
    with pytest.raises(SystemExit) as error:
        run(demo.path("english-gpt2"), f"--tasks={tmp_path}/tasks.json")
    said = capsys.readouterr().err
    assert error.value.code == 2 and message.replace("{place}", str(place)) in said and len(said.splitlines()) == 1


def test_seeds_that_are_unfinished_are_said_to_be(place, tmp_path, capsys):
    for seed in (0, 1):
        (tmp_path / "tuned" / f"seed-{seed}").mkdir(parents=True)
        (tmp_path / "tuned" / f"seed-{seed}" / "config.json").write_text("{}")
    with pytest.raises(SystemExit):
        run(tmp_path / "tuned", f"--labels={place}/pairs.tsv")
    said = capsys.readouterr().err
    assert "tuned: a fine-tuning that is unfinished (seed-0, seed-1 have begun)" in said
    assert "the same train.finetune command goes on" in said


def test_a_model_is_named_after_its_run():
    runs = ["english=gpt2", "gpt2", "runs/anker/export", "runs/wechsel/export/", "export"]
    assert [*named(runs, "model")] == ["english", "gpt2", "anker", "wechsel", "export"]


def test_a_missing_extra_is_one_line(place):
    """A verb that runs a model, in an environment without flax."""
    code = (
        "import sys\nsys.modules['flax'] = None\nfrom wechsel_jax import cli\n"
        f"cli.main(['evaluate', {str(demo.path('english-gpt2'))!r}, '--text={place}/text.txt'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    expected = (
        "wechsel-jax evaluate: error: flax: not installed; expected it to run a model; run `pip install 'wechsel-jax[train]'`\n"
    )
    assert (done.returncode, done.stderr) == (2, expected)


PARSED = {
    **{"model": "a", "task": "b", "form": "labels", "main": "las", "metrics": {"las": 0.5, "uas": 0.75}},
    **{"numerators": [2, 0, 0], "denominators": [3, 0, 1], "files": [], "settings": {}},
    "facts": {"weights": "0", "tokenizer": "1", "parameters": 3},
}
OF_TEXT = PARSED | {"form": "text", "main": "bits_per_byte"}
OF_TEXT["metrics"] = dict.fromkeys(["bits_per_byte", "bits_per_word", "bytes_per_token", "unknown_tokens"], 1)
OF_TEXT["metrics"] |= {"perplexity": "x"}


@pytest.mark.parametrize("ending", ["md", "csv", "svg"])
def test_parsers_have_tables_too(tmp_path, capsys, ending):
    (tmp_path / "scores.json").write_text(json.dumps({"format": 1, "scores": [PARSED]}))
    cli.main(["report", f"{tmp_path}/scores.json", f"--output={tmp_path}/table.{ending}"])
    # A third of the draws from three items have none with a denominator, or fewer.
    assert "labelled attachment, %" in capsys.readouterr().out and "nan" not in (tmp_path / f"table.{ending}").read_text()


def test_several_seeds_are_told_with_their_spread_and_ties_with_their_number(tmp_path, capsys):
    seeds = PARSED | {"model": "seeds", "metrics": {"las": 0.5, "seeds": 3, "spread": 0.0123}}
    tied = PARSED | {"task": "pairs", "main": "acc", "metrics": {"acc": 0.5, "acc_ties": 2}, "numerators": [1, 0]}
    tied["denominators"] = []
    (tmp_path / "scores.json").write_text(json.dumps({"format": 1, "scores": [PARSED, seeds, tied]}))
    for ending in ("md", "tex", "csv", "svg"):
        cli.main(["report", f"{tmp_path}/scores.json", f"--output={tmp_path}/table.{ending}"])
    text = (tmp_path / "table.md").read_text()
    assert "50.0 ± 1.2 (3 seeds)" in text and "± is the standard deviation of what models scored that differ in their" in text
    assert "(2 ties) |" in text and "Ties are items with several best choices" in text
    assert text.count("seeds)") == 1 and "Of several seeds their means on each item are compared" in text
    # Every table, with what is said of it.
    tex = (tmp_path / "table.tex").read_text()
    assert tex.count(r"\begin{tabular}") == tex.count(r"\end{tabular}") == 3
    assert "% Differences from a" in tex and r"50.0 $\pm$ 1.2 (3 seeds)" in tex
    assert all(line.startswith("%") for line in tex.splitlines() if "interval" in line)
    assert "± of 3 seeds, else 95 %" in (tmp_path / "table.svg").read_text()
    record = read_scores([tmp_path / "scores.json"])
    assert tasks.told(record.scores[-1]) == "acc 50.0 % of 2, 2 of them ties"
    low, high = figure(record).plot.panels[0][1][1][1:]
    assert (low, high) == pytest.approx((48.77, 51.23))
    assert [row[0] and row[0][0] for row in heat_map(record).plot.cells] == ["50.0", "50.0 ± 1.2"]
    capsys.readouterr()


def tried(place, *transfers, **changed):
    """A file of scores of (method, k, tau, labelled attachment of 100) each, and of a model that no transfer made."""
    scores = [PARSED | {"numerators": [1], "denominators": [2]}]
    for number, (method, neighbors, temperature, las) in enumerate(transfers):
        settings = {"neighbors": neighbors, "temperature": temperature, "noise": "fitted"} | changed.get(f"of_{number}", {})
        facts = {"weights": str(number), "tokenizer": "1", "method": method, "settings": settings}
        facts |= changed.get(f"facts_{number}", {})
        numbers = {"metrics": {"las": las / 100}, "numerators": [las], "denominators": [100]}
        scores.append(PARSED | {"model": f"m{number}", "facts": facts} | numbers)
    place.write_text(json.dumps({"format": 1, "scores": scores}))
    return place


# Beside them a method that has the same settings in its record, and reads none of them.
GRID = (("wechsel", 50, 1.0, 20), ("wechsel", 1, 0.1, 40), ("wechsel", 50, 0.1, 30), ("full_rand", 10, 0.1, 90))


def test_two_settings_of_transfers_are_a_heat_map(tmp_path):
    file = tried(tmp_path / "scores.json", *GRID)
    cli.main(["report", str(file), f"--output={tmp_path}/grid.svg", "--grid=neighbors,temperature"])
    plot = grid(read_scores([file]), ("neighbors", "temperature")).plot
    assert plot.rows == ("neighbors 1", "neighbors 50") and plot.together == 2
    assert [head.splitlines()[2] for head in plot.columns] == ["temperature 0.1", "temperature 1"]
    assert plot.cells == ((("40.0", 1.0), None), (("30.0", pytest.approx(0.5)), ("20.0", 0.0)))
    drawing = (tmp_path / "grid.svg").read_text()
    assert all(f">{text}<" in drawing for text in ("neighbors 50", "temperature 1", "30.0")) and ">90.0<" not in drawing
    # The columns' setting may be the rows', too, and texts are values.
    by_noise = tried(tmp_path / "noise.json", *GRID[:2], of_0={"noise": "zeros", "temperature": 0.1})
    plot = grid(read_scores([by_noise]), ("noise", "neighbors")).plot
    assert plot.rows == ("noise fitted", "noise zeros") and plot.cells == ((("40.0", 1.0), None), (None, ("20.0", 0.0)))


@pytest.mark.parametrize(
    ("transfers", "settings", "message"),
    [
        (GRID, "neighbors", "grid neighbors: expected two settings of transfers, as in neighbors,temperature"),
        (GRID, "neighbors,tau", "grid neighbors,tau: no method has scores of several values; expected one that has"),
        (GRID[2:], "neighbors,temperature", "no method has scores of several values"),
        ((*GRID, ("ofa", 1, 1.0, 3), ("ofa", 2, 1.0, 3)), "neighbors,temperature", "methods wechsel, ofa have scores of"),
        ((*GRID, GRID[0]), "neighbors,temperature", "m0 and m4 have the same; expected one model a cell; leave one out"),
        (GRID, "neighbors,noise", "the transfers differ in temperature, too; expected these two alone"),
    ],
)
def test_settings_that_make_no_grid_are_refused(tmp_path, capsys, transfers, settings, message):
    file = tried(tmp_path / "scores.json", *transfers)
    with pytest.raises(SystemExit) as error:
        cli.main(["report", str(file), f"--output={tmp_path}/grid.png", f"--grid={settings}"])
    said = capsys.readouterr().err
    assert error.value.code == 2 and message in said and len(said.splitlines()) == 1 and not (tmp_path / "grid.png").exists()


@pytest.mark.parametrize("fact", ["architecture", "tokenizer", "vocabulary_size"])
def test_models_of_other_sources_make_no_grid(tmp_path, fact):
    record = read_scores([tried(tmp_path / "scores.json", *GRID, facts_2={fact: 7 if fact == "vocabulary_size" else "other"})])
    with pytest.raises(UserError, match=f"the transfers differ in {fact}, too"):
        grid(record, ("neighbors", "temperature"))


def test_names_are_text_in_latex():
    table = Table(("a|b", "<c>"), (('"[x]"', "1"), ("[x]", "2"), ("*", "3")))
    lines = latex(table).splitlines()
    assert lines[2] == r"a\textbar{}b & \textless{}c\textgreater{} \\"
    assert lines[4:7] == [r"{\char34}[x]{\char34} & 1 \\", r"{}[x] & 2 \\", r"{}* & 3 \\"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--output={}/a.md", "--heat_map"], "--heat_map: has no effect on --output="),
        (["--output={}/a.md", "--grid=a,b"], "--grid: has no effect on --output="),
        (["--output={}/a.png", "--grid=a,b", "--heat_map"], "--heat_map: has no effect with --grid"),
        (["--output={}/a.csv", "--title=x"], "--title: has no effect on --output="),
    ],
)
def test_flags_without_effect_are_refused(tmp_path, capsys, options, message):
    (tmp_path / "scores.json").write_text(json.dumps({"format": 1, "scores": [PARSED]}))
    with pytest.raises(SystemExit) as error:
        cli.main(["report", f"{tmp_path}/scores.json", *(option.format(tmp_path) for option in options)])
    assert error.value.code == 2 and message in capsys.readouterr().err and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"format": 2, "scores": []}, "is of format 2; expected 1 at most; update wechsel-jax"),
        ({"scores": []}, "has no format"),
        ({"format": 1, "scores": [{"model": "a"}]}, "field scores.0.task is missing"),
        ({"format": 1, "scores": []}, "hold no score; expected what"),
        ({"format": 1, "scores": [PARSED | {"main": "nonsense", "metrics": {"nonsense": 1}}]}, "is in 'nonsense'; expected"),
        ({"format": 1, "scores": [PARSED | {"metrics": {"uas": 1}}]}, "field metrics.las is missing"),
        ({"format": 1, "scores": [PARSED | {"numerators": [], "denominators": []}]}, "a, b: has no items"),
        ({"format": 1, "scores": [PARSED | {"form": "text"}]}, "field metrics.bits_per_byte is missing"),
        ({"format": 1, "scores": [OF_TEXT]}, "field metrics.perplexity is 'x'; expected a number"),
        ({"format": 1, "scores": [PARSED | {"facts": PARSED["facts"] | {"parameters": "x"}}]}, "facts.parameters is 'x'"),
    ],
)
def test_damaged_files_of_scores(tmp_path, capsys, content, message):
    (tmp_path / "scores.json").write_text(json.dumps(content))
    with pytest.raises(SystemExit) as error:
        cli.main(["report", f"{tmp_path}/scores.json", f"--output={tmp_path}/table.md"])
    assert error.value.code == 2 and message in capsys.readouterr().err
