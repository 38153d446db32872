"""The programs of train/, run as a user runs them: small, interrupted, with mistakes."""

import itertools
import json
import lzma
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ml_collections import ConfigDict

from tests.forked import run_module
from wechsel_jax import demo
from wechsel_jax.comparison.check import validate_comparison
from wechsel_jax.comparison.scoring import score_models
from wechsel_jax.errors import UserError
from wechsel_jax.evaluation.labels import score_labelled
from wechsel_jax.records import read_run
from wechsel_jax.records.scores import ScoresRecord
from wechsel_jax.training import default_config

ROOT = Path(__file__).parents[1]
QUICK = [
    *("--config.training.steps=6", "--config.training.eval_every=3", "--config.training.checkpoint_every=3"),
    "--config.training.keep_every=3",
    "--config.tokenizer.vocabulary_size=2048",
    *("--config.training.batch_size=4", "--config.training.block_length=32", "--config.training.eval_batches=2"),
]

# The demonstration, with its optimizer for one method alone: that takes long to compile.
DEMONSTRATION = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from configs import demo

def get_config():
    config = demo.get_config()
    optimizer = config.training.optimizer
    config.overrides.anker, optimizer.groups = {{"optimizer": {{"groups": optimizer.groups}}}}, ()
    config.unlock()
    return config
"""


def run(*arguments: str) -> subprocess.CompletedProcess:
    """`python -m train.compare` as a user starts it; most tests fork it instead, which spares them its imports."""
    return subprocess.run(
        [sys.executable, "-m", "train.compare", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=600
    )


@pytest.fixture(scope="module")
def demonstration(tmp_path_factory) -> Path:
    """A configuration to run, and for others to change."""
    file = tmp_path_factory.mktemp("config") / "demonstration.py"
    file.write_text(DEMONSTRATION)
    return file


@pytest.fixture(scope="module")
def compared(demonstration, tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess]:
    workdir = tmp_path_factory.mktemp("runs") / "demo"
    return workdir, run_module("train.compare", f"--config={demonstration}", f"--workdir={workdir}", *QUICK)


@pytest.mark.slow
def test_compare_prints_a_table_and_writes_report_and_models(compared):
    workdir, done = compared
    assert done.returncode == 0, done.stderr
    assert "FullRand needs" in done.stdout
    result = json.loads((workdir / "comparison.json").read_text())
    assert set(result["methods"]) == {"anker", "wechsel_tfr", "trans_inner", "full_rand"}
    # What a configuration says of all methods is no mistake where only some read it.
    assert "does not use it" not in done.stderr + done.stdout
    for method, values in result["methods"].items():
        assert [step for step, _ in values["evaluations"]] == [0, 3, 6]
        points = read_run(workdir / method).evaluations
        assert values["bits_per_byte"] == [[point.step, point.bits_per_byte] for point in points] and len(points) == 3
        assert (workdir / method / "export" / "model.safetensors").stat().st_size > 1e6
    before = {method: values["evaluations"][0][1] for method, values in result["methods"].items()}
    assert before["wechsel_tfr"] < 0.7 * min(before["trans_inner"], before["full_rand"])
    assert before["anker"] < 0.5 * before["wechsel_tfr"]
    assert "<svg" in (workdir / "report.html").read_text() and (workdir / "report-learning-curves.png").exists()


@pytest.mark.slow
def test_every_method_sees_the_same_tokens_and_keeps_its_own_phases(compared):
    workdir, _ = compared
    configs = [json.loads((workdir / name / "config.json").read_text()) for name in ("wechsel_tfr", "trans_inner", "full_rand")]
    assert len({json.dumps([config["data"], config["steps"], config["seed"]]) for config in configs}) == 1
    assert [len(config["phases"]) for config in configs] == [1, 2, 1]


@pytest.mark.slow
def test_the_same_command_again_trains_nothing_and_keeps_the_result(demonstration, compared):
    workdir, _ = compared
    before = json.loads((workdir / "comparison.json").read_bytes())
    # It is made again of what the runs hold.
    (workdir / "comparison.json").write_text("{")
    weights = (workdir / "wechsel_tfr" / "export" / "model.safetensors").stat().st_mtime_ns
    # Elsewhere, since somebody moved it: what its runs read moved with it.
    moved = workdir.rename(workdir.with_name("moved"))
    try:
        done = run_module("train.compare", f"--config={demonstration}", f"--workdir={moved}", *QUICK)
    finally:
        moved.rename(workdir)
    assert done.returncode == 0, done.stderr
    after = json.loads((workdir / "comparison.json").read_bytes())
    assert after["methods"] == before["methods"]
    # Of all starts together.
    assert after["seconds"].keys() == before["seconds"].keys()
    assert all(after["seconds"][name] >= seconds for name, seconds in before["seconds"].items())
    assert (workdir / "wechsel_tfr" / "export" / "model.safetensors").stat().st_mtime_ns == weights


@pytest.mark.slow
def test_models_are_scored_after_the_comparison(demonstration, compared, tmp_path):
    workdir, _ = compared
    (tmp_path / "english.txt").write_text("It was a dark and stormy night.\n")
    (tmp_path / "pairs.tsv").write_text("sen\twrong_sen\nDas Haus ist alt.\tDas Haus sind alt.\n")
    (tmp_path / "scored.py").write_text(
        f"import sys\nsys.path.insert(0, {str(demonstration.parent)!r})\nimport demonstration\n"
        "def get_config():\n    c = demonstration.get_config()\n    c.evaluation.before = True\n"
        f"    c.evaluation.tasks = dict(english=dict(form='text', file={str(tmp_path / 'english.txt')!r}),\n"
        f"        pairs=dict(form='choice', file={str(tmp_path / 'pairs.tsv')!r}, limit=1))\n    return c"
    )
    weights = (workdir / "wechsel_tfr" / "export" / "model.safetensors").stat().st_mtime_ns
    done = run_module("train.compare", f"--config={tmp_path / 'scored.py'}", f"--workdir={workdir}", *QUICK)
    assert done.returncode == 0, done.stderr
    scores = json.loads((workdir / "scores.json").read_text())["scores"]
    methods = ("anker", "wechsel_tfr", "trans_inner", "full_rand")
    models = ["source", *(f"{name} untrained" for name in methods), *methods]
    assert [(score["model"], score["task"]) for score in scores] == [(m, t) for m in models for t in ("english", "pairs")]
    english = {score["model"]: score["metrics"]["bits_per_byte"] for score in scores if score["task"] == "english"}
    assert english["source"] < 3 < min(bits for model, bits in english.items() if model != "source")
    assert "Differences from source" in (workdir / "scores.md").read_text() and "scores.md" in done.stdout
    # Nothing was trained for it.
    assert (workdir / "wechsel_tfr" / "export" / "model.safetensors").stat().st_mtime_ns == weights


@pytest.mark.slow
def test_models_of_every_stage_are_fine_tuned(compared, tmp_path):
    """During and after training, with two seeds; what is scored is the mean of the seeds."""
    workdir, _ = compared
    (tmp_path / "topics.tsv").write_text("text\tlabel\n" + "Das Haus ist alt.\thouse\nDer Mann ist alt.\tman\n" * 2)
    config = ConfigDict(json.loads((workdir / "config.json").read_text()))
    topics = str(tmp_path / "topics.tsv")
    data = {"train": (topics,), "validation": (topics,)}
    config.methods = ("full_rand",)
    tuning = {"objective": "classification", "steps": 2, "batch_size": 8, "block_length": 16, "seeds": 2, "data": data}
    # Part of another configuration, as a file of configs/ has it.
    tuning["optimizer"] = default_config().optimizer
    config.evaluation = ConfigDict({"tasks": {}, "before": False, "during": (0.5,), "after": True})
    config.evaluation.fine_tuning = ConfigDict({"topics": {"file": topics, **tuning}})
    # As a program gets it.
    config.lock()
    validate_comparison(config, workdir)
    score_models(config, workdir)
    found = [score for score in ScoresRecord.read(workdir / "scores.json").scores if score.task == "topics"]
    assert [score.model for score in found] == ["source", "full_rand 50 %", "full_rand"]
    assert len({score.facts["fine_tuned"] for score in found}) == len({score.facts["weights"] for score in found}) == 3
    for score in found:
        assert score.settings["training"]["data"]["train"] == ["topics.tsv"] and "/" not in json.dumps(dict(score.settings))
    runs = [workdir / "fine_tuning" / "topics" / "full_rand_50" / f"seed-{seed}" for seed in (0, 1)]
    each, score = [score_labelled(run, [topics]) for run in runs], found[1]
    assert score.metrics["accuracy"] == np.mean([one.metrics["accuracy"] for one in each]) and score.metrics["seeds"] == 2
    assert list(score.numerators) == list(np.mean([one.numerators for one in each], axis=0))
    # Measured once: what was fine-tuned and scored stays.
    before = {path: path.stat().st_mtime_ns for path in (workdir / "fine_tuning").rglob("model.safetensors")}
    score_models(config, workdir)
    assert before == {path: path.stat().st_mtime_ns for path in (workdir / "fine_tuning").rglob("model.safetensors")}
    config.evaluation.during = (0.3,)
    with pytest.raises(UserError, match=r"evaluation\.during: 0\.3 of \d+ steps has no checkpoint of full_rand that stays"):
        validate_comparison(config, workdir)
    config.unlock()
    for name, other in (("full_rand_50", "full_rand 50 %"), ("source", "source")):
        config.evaluation.during, config.methods = (0.5,), ("full_rand", name)
        config.variants[name] = {"method": "full_rand"}
        with pytest.raises(UserError, match=f"methods: the scores of '{name}' and '{other}' would not be told apart"):
            validate_comparison(config, workdir)
    config.evaluation.during, config.evaluation.fine_tuning.topics.magic = (), 1
    config.methods = ("full_rand",)
    with pytest.raises(UserError, match=r"evaluation\.fine_tuning\.topics\.magic: no such setting"):
        validate_comparison(config, workdir)
    del config.evaluation.fine_tuning.topics["magic"]
    config.evaluation.fine_tuning.topics.batch_size, before = 0, config.evaluation.fine_tuning.topics.get("batch_size", 4)
    with pytest.raises(UserError, match=r"evaluation\.fine_tuning\.topics\.batch_size: is 0; expected"):
        validate_comparison(config, tmp_path)
    config.evaluation.fine_tuning.topics.batch_size = before
    config.evaluation.fine_tuning.topics.data.validation = (str(tmp_path / "nowhere.tsv"),)
    with pytest.raises(UserError, match=r"nowhere\.tsv: no such file"):
        validate_comparison(config, workdir)
    config.evaluation.fine_tuning.topics.data.validation = (topics,)
    config.evaluation.fine_tuning.topics.objective = "clm"
    with pytest.raises(UserError, match=r"evaluation\.fine_tuning\.topics\.objective: is .clm.; expected one of class"):
        validate_comparison(config, workdir)
    config.evaluation.fine_tuning.topics.objective = "classification"
    with config.ignore_type():
        config.evaluation.fine_tuning.topics.steps = "2"
    with pytest.raises(
        UserError, match=r"evaluation\.fine_tuning\.topics: .*expected settings of a training with values of their"
    ):
        validate_comparison(config, workdir)


@pytest.mark.slow
def test_exports_load_in_transformers_and_write_german_tokens(compared):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    workdir, _ = compared
    model = AutoModelForCausalLM.from_pretrained(workdir / "wechsel_tfr" / "export")
    tokenizer = AutoTokenizer.from_pretrained(workdir / "wechsel_tfr" / "export")
    ids = tokenizer("Der alte Mann ging", return_tensors="pt").input_ids
    assert tokenizer.decode(ids[0]) == "Der alte Mann ging"
    assert model(ids).logits.shape == (1, ids.shape[1], len(tokenizer))


@pytest.mark.parametrize("name", ["compare", "finetune", "pretrain", "trelm"])
def test_help_tells_the_flags(name):
    done = run_module(f"train.{name}", "--help")
    assert done.returncode == 0 and not done.stderr
    assert all(part in done.stdout for part in (f"python -m train.{name} --config=", "--config: ", "--workdir: ", "--helpfull"))


def test_helpfull_lists_the_settings_of_the_file(tmp_path):
    (tmp_path / "a.py").write_text(
        "from ml_collections import ConfigDict\n"
        "def get_config():\n    return ConfigDict(dict(steps=3, model=dict(dropout=0.5, config={}), data=dict(train=('a b',))))"
    )
    for arguments in ([f"--config={tmp_path / 'a.py'}", "--helpfull"], ["--helpfull", "--config", str(tmp_path / "a.py")]):
        done = run_module("train.pretrain", *arguments, "--config.steps=4")
        assert done.returncode == 0 and not done.stderr
        lines = done.stdout.splitlines()
        settings = ["data.train = ('a b',)", "model.config = {}", "model.dropout = 0.5", "steps = 4"]
        assert sorted(line for line in lines if not line.startswith(" ")) == settings
        # What each is stands below it.
        assert lines[lines.index("steps = 4") + 1] == "    Updates of the whole run."
    # The same name is another thing in a transfer, in a run and in what holds them.
    for name, config, settings in (
        (
            "compare",
            "demo",
            {"transfer.parity": "reference implementation", "training.epochs": "labelled", "transfer.epochs": "adversarial"},
        ),
        ("trelm", "trelm", {"parity": "TRILayer", "backward.parity": "cdlm", "seed": "languages", "forward.seed": "random"}),
    ):
        done = run_module(f"train.{name}", f"--config={ROOT}/configs/{config}.py", "--helpfull")
        lines = done.stdout.splitlines()
        for setting, part in settings.items():
            place = next(number for number, line in enumerate(lines) if line.startswith(f"{setting} = "))
            assert part in lines[place + 1], (setting, lines[place + 1])
    done = run_module("train.compare", "--helpfull")
    assert done.returncode == 0 and "--workdir: " in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config=configs/none.py", "--workdir=DIR"], "none.py"),
        (
            ["--config=configs/demo.py:lang=de", "--workdir=DIR"],
            "'lang=de' behind the colon is not known; expected nothing there;",
        ),
        (["--config=configs/demo.py"], "--workdir is required"),
        (
            ["--config=configs/demo_english.py", "--workdir=DIR"],
            "--config: holds settings of train.pretrain or train.finetune, without dictionary; expected those of",
        ),
        (["--workdir=DIR"], "--config is required"),
        (["--config=configs/demo.py", "--workdir=DIR", "--config.training.stpes=3"], "stpes"),
        (["--config=configs/demo.py", "--workdir=DIR", "--config.no_such_field=1"], "--config has no such field: "),
        (["--config=configs/demo.py", "--workdir=DIR", "--config.training.steps=many"], "steps"),
        (
            ["--config=configs/demo.py", "--workdir=DIR", "--config.training.phases[7].peak=1"],
            "--config: a flag names an item ([N]) that its list lacks",
        ),
        (["--config=configs/demo.py", "--workdir=DIR", "--config.training.steps=0"], "steps"),
        (["--config=configs/demo.py", "--workdir=DIR", "--config.methods=('magic',)"], "magic"),
        (["--config=configs/demo.py", "--workdir=DIR", "--config.dictionary=/none.tsv"], "/none.tsv"),
        (["--config=configs/demo.py", "--workdir=DIR", "--config.source=/none"], "/none"),
        (["--config=configs/demo.py", "--workdir=DIR", "stray"], "stray"),
        (
            ["--config=configs/recipe.py:rate=x", "--workdir=DIR"],
            "--config: 'rate=x' behind the colon; expected rate to be a number",
        ),
        (["--config=configs/demo.py", "--workdir="], "--workdir is empty (an unset variable of the shell?)"),
        (["--config=configs/demo.py", "--workdir=DIR", "--config.methods=('anker', 'anker')"], "each once"),
    ],
)
def test_mistakes_give_one_line_and_status_2(arguments, message, tmp_path):
    done = run_module("train.compare", *(argument.replace("DIR", str(tmp_path / "run")) for argument in arguments))
    lines = [line for line in done.stderr.splitlines() if "error" in line]
    assert done.returncode == 2, done.stderr
    assert len(lines) == 1 and message in lines[0] and lines[0].startswith("python -m train.compare: error: "), done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("a.py", "def get_config():\n    raise RuntimeError('of its own')", "a.py: line 2: RuntimeError: of its own"),
        ("a.py", "def get_config():\n    return 1 / 0", "a.py: line 2: ZeroDivisionError"),
        ("a.py", "def get_config():\n    return open('/missing/file')", "a.py: line 2: FileNotFoundError"),
        ("a.py", "import nothing_of_this_name", "a.py: line 1: ModuleNotFoundError"),
        ("a.py", "import sys\nsys.exit(0)", "a.py: line 2: SystemExit"),
        ("a.py", "def get_config():\n    return get_config()", "a.py: line 2: RecursionError"),
        ("a.py", "def get_config(:\n", "a.py"),
        ("a.py", "x = 1", "get_config"),
        ("a.py", "def get_config():\n    return None", "get_config() returns no settings; expected those of default_config()"),
        ("a.json", "{}", "a.json: is no .py file; expected a Python file with get_config()"),
        ("a.py", "{demo}\n    c.transfer.magic = 1\n    return c", "transfer.magic: no such setting"),
        ("a.py", "{demo}\n    c.overrides.anker = dict(magic=1)\n    return c", "overrides.anker.magic: no such setting"),
        ("a.py", "{demo}\n    c.overrides.anker = dict(steps='10')\n    return c", "overrides.anker: "),
        ("a.py", "{demo}\n    c.variants.mine = dict(neighbors=1)\n    return c", "variants.mine: has no method"),
        ("a.py", "{demo}\n    c.variants.mine = dict(method='anker', magic=1)\n    return c", "variants.mine.magic: no such"),
        ("a.py", "{demo}\n    c.evaluation.tasks.x = dict(form='text')\n    return c", "tasks.x: expected a form and a file"),
        ("a.py", "{demo}\n    c.evaluation.tasks.x = dict(form='y', file='z')\n    return c", "tasks.x: form 'y' is not known"),
        ("a.py", "{demo}\n    c.evaluation.tasks.x = dict(form='text', file='z')\n    return c", "z: no such file"),
        (
            "a.py",
            "{demo}\n    c.evaluation.tasks.x = dict(form='text', file='a', magic=1)\n    return c",
            "evaluation.tasks.x.magic: text has no such setting",
        ),
        (
            "a.py",
            "{demo}\n    c.evaluation.tasks.x = dict(form='text', file='a', window=-5)\n    return c",
            "evaluation.tasks.x.window: is -5; expected a whole number, 0 or more",
        ),
        ("a.py", "{demo}\n    c.tuning.update(dict(rates=(1e-3,), held_out=2.0))\n    return c", "tuning.held_out: is 2.0"),
        ("a.py", "{demo}\n    c.tuning.rates = (1e-3,)\n    return c", "tuning.tables: is (1.0,), and optimizer.groups of "),
        (
            "a.py",
            "{demo}\n    c.tuning.rates = (-1.0,)\n    return c",
            "error: tuning, with rate -1 and tables 1: optimizer.peak_",
        ),
    ],
)
def test_what_a_configuration_does_wrong_is_one_line(name, code, message, tmp_path):
    demonstration = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom configs import demo\n"
    demonstration += "def get_config():\n    c = demo.get_config()\n    c.unlock()"
    (tmp_path / name).write_text(code.replace("{demo}", demonstration))
    done = run_module("train.compare", f"--config={tmp_path / name}", f"--workdir={tmp_path / 'run'}")
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("python -m train.compare: error: ") and message in line
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_comparison_makes_what_its_methods_need(tmp_path):
    """Variants of a method, vectors of tokens and a helper model, which the demonstration does without."""
    (tmp_path / "wechsel_wiktionary").mkdir()
    texts = {"de.train": "german.train", "de.validation": "german.validation", "en.train": "english.train"}
    for name, bundled in texts.items():
        with lzma.open(demo.path(f"{bundled}.txt.xz"), "rt", encoding="utf-8") as handle:
            (tmp_path / f"{name}.txt").write_text("".join(itertools.islice(handle, 1500)), encoding="utf-8")
    with lzma.open(demo.path("english-german.tsv.xz"), "rb") as handle:
        (tmp_path / "wechsel_wiktionary" / "german.tsv").write_bytes(handle.read())
    workdir = tmp_path / "run"
    small = [
        *("--config.tokenizer.vocabulary_size=600", "--config.vectors.dimensions=16", "--config.vectors.epochs=1"),
        *("--config.helper.training.model.config.vocab_size=600", "--config.helper.training.steps=2"),
        *("--config.helper.training.batch_size=4", "--config.helper.training.block_length=32"),
        *("--config.helper.training.eval_batches=2", "--config.training.steps=1"),
    ]
    config = f"configs/compare_initializers.py:lang=de,data={tmp_path},steps=1,methods=tran+focus+clp"
    done = run_module("train.compare", f"--config={config}", f"--workdir={workdir}", *QUICK, *small)
    assert done.returncode == 0, done.stderr
    records = {
        name: json.loads((workdir / name / "transfer" / "transfer.json").read_text()) for name in ("tran", "focus", "clp")
    }
    used = {name: (record["method"], record["settings"]) for name, record in records.items()}
    assert used["tran"][0] == "wechsel" and used["tran"][1]["weights"] == "sparsemax"
    assert used["tran"][1]["dictionary"] == "identical" and records["tran"]["alignment"]["weighting"] == "identical"
    assert used["focus"][1]["target_vectors"] == str(workdir / "vectors" / "native.bin")
    assert used["focus"][1]["source_vectors"] is None and records["focus"]["counts"]["mixed"] > 0
    assert used["clp"][1]["helper"] == str(workdir / "helper" / "export") and records["clp"]["counts"]["mixed"] > 0
    assert set(json.loads((workdir / "comparison.json").read_text())["methods"]) == set(records)


@pytest.mark.slow
def test_another_setting_in_the_same_workdir_is_refused(demonstration, compared):
    workdir, _ = compared
    done = run(f"--config={demonstration}", f"--workdir={workdir}", *QUICK, "--config.transfer.neighbors=3")
    assert done.returncode == 2
    assert "neighbors was 10, now 3" in done.stderr


@pytest.mark.slow
def test_programs_leave_pytorch_out():
    """transformers imports it wherever it is installed, as it is for tests: a second of each start.

    The others ask whether it has been imported, and must not think so.
    """
    ends = (
        "import transformers.utils as t, scipy.stats, sklearn.linear_model, datasets\n"
        "rows = datasets.Dataset.from_dict({'text': ['a']}).to_iterable_dataset().map(dict)\n"
        "print(t.is_torch_available(), 'torch' in sys.modules, datasets.config.TORCH_AVAILABLE, *rows)"
    )
    for start in (
        "import sys; from wechsel_jax.cli import main; sys.argv = ['wechsel-jax', '--help']; main()",
        "import sys, contextlib; from train.program import run; sys.argv = ['pretrain', '--help']\n"
        "with contextlib.suppress(SystemExit): run('shows', 'show')",
    ):
        done = subprocess.run([sys.executable, "-c", f"{start}\n{ends}"], capture_output=True, text=True)
        assert done.stdout.splitlines()[-1] == "False False False {'text': 'a'}", done.stderr
