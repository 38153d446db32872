"""Every file of configs/ makes settings that pass the checks, and says what its paper says."""

import importlib.util
import re
from pathlib import Path

import pytest
from ml_collections import ConfigDict

from wechsel_jax.comparison.check import validate_comparison
from wechsel_jax.comparison.settings import training_config, transfer_settings
from wechsel_jax.comparison.tuning import tuning_config
from wechsel_jax.errors import UserError
from wechsel_jax.initializers import METHODS
from wechsel_jax.training import config_arguments, validate
from wechsel_jax.training.config import phases
from wechsel_jax.training.trelm import PHASES, phase_settings

CONFIGS = Path(__file__).parents[1] / "configs"
NAMES = sorted(path.stem for path in CONFIGS.glob("*.py"))
COMPARISONS = (
    "demo",
    "compare_initializers",
    "anker",
    "target_and_source",
    "wechsel_grid",
    "wechsel_downstream",
    "wechsel_low_resource",
    "recipe",
    "adapt",
    "arena",
    "wechsel_freezing",
    "wechsel_size",
    "salt_tables",
)


def load(name: str, arguments: str = "") -> ConfigDict:
    spec = importlib.util.spec_from_file_location(f"configs_{name}", CONFIGS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_config(arguments) if arguments else module.get_config()


@pytest.mark.parametrize("name", NAMES)
def test_every_file_makes_settings_that_pass(name):
    config = load(name)
    if name in COMPARISONS:
        config.training.model.checkpoint, config.training.data.train, config.training.data.validation = "a", ("b",), ("c",)
        config.training.data.validation_fraction = 0.0
        config = config.training
    for settings in phase_settings(config, Path("workdir")).values() if name == "trelm" else [config]:
        validate(settings)


@pytest.mark.parametrize("name", NAMES)
def test_every_file_says_how_to_run_it(name):
    text = (CONFIGS / f"{name}.py").read_text(encoding="utf-8")
    assert f"--config=configs/{name}.py" in text and "Command:" in text and "Cost:" in text


def test_some_methods_of_a_config_can_be_compared_alone(tmp_path):
    """The schedules that a config holds for its other methods are no mistake; those of an unknown one are."""
    config = load("demo")
    config.methods = ("anker",)
    validate_comparison(config, tmp_path)
    config.overrides.magic = ConfigDict({"phases": config.training.phases})
    with pytest.raises(UserError, match=r"overrides\.magic: no such method"):
        validate_comparison(config, tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("overrides.full_rand", {"seed": 3}, r"overrides\.full_rand\.seed: is 3; expected it as `seed`, 0"),
        ("overrides.anker", {"model": {"checkpoint": "x"}}, r"overrides\.anker\.model\.checkpoint: is 'x'; expected none"),
        ("overrides.anker", {"data": {"train": ["x"]}}, r"overrides\.anker\.data\.train: is \['x'\]; expected none"),
        ("overrides.anker", {"data": {"validation": ["x"]}}, r"overrides\.anker\.data\.validation: is "),
        ("text.train", (2024,), r"text\.train: is \(2024,\); expected names of files"),
        ("parallel", (5,), r"parallel: is \(5,\); expected names of files"),
        ("transfer.noise", "foo", r"transfer\.noise 'foo': unknown; expected one of "),
        ("transfer.max_words", 0, r"transfer\.max_words 0: expected at least 1"),
        ("transfer.factorised", True, r"factorised: there is nothing to factorise; expected a latent_dimension"),
        (
            "variants.full_rand",
            {"method": "full_rand", "tune_coefficients": 3},
            r"tune_coefficients 3: full_rand keeps nothing",
        ),
        ("evaluation.fine_tuning.t.model", {"checkpoint": "x"}, r"t\.model\.checkpoint: is set; expected none: each"),
        ("evaluation.fine_tuning.t.fork", "x", r"fine_tuning\.t\.fork: is set; expected none: each model"),
        ("evaluation.fine_tuning.t.block_length", 4096, r"t\.block_length: 4096 is more than the 128 positions of "),
        ("evaluation.fine_tuning.t.file", "other.tsv", r"other\.tsv: .*'text'"),
        ("evaluation.fine_tuning.t.file", "new.tsv", r"t: 'dog' of its .* or new\.tsv is no label .* some of house, man; see"),
        ("evaluation.fine_tuning.t.objective", "translation", r"t\.objective: is 'translation'; expected one of class"),
        ("evaluation.tasks.t", {"form": "labels"}, r"evaluation\.fine_tuning\.t: a task has this name"),
    ],
)
def test_what_would_be_found_after_hours_or_never_is_refused_before(tmp_path, monkeypatch, name, value, message):
    """Each begins with what it is called after, has the seed of all, and is fine-tuned from itself on what fits it."""
    monkeypatch.chdir(tmp_path)
    Path("a.tsv").write_text("text\tlabel\nDas Haus.\thouse\nDer Mann.\tman\n")
    Path("other.tsv").write_text("a\tb\nDas Haus.\thouse\n")
    Path("new.tsv").write_text("text\tlabel\nDas Haus.\thouse\nDer Hund.\tdog\n")
    config = load("demo")
    config.unlock()
    data = {"train": ("a.tsv",), "validation": ("a.tsv",)}
    tuning = {"file": "a.tsv", "objective": "classification", "steps": 2, "batch_size": 8, "block_length": 16, "data": data}
    config.evaluation.fine_tuning.t = ConfigDict(tuning)
    config.evaluation.fine_tuning.t.model = ConfigDict({"remat": "none"})
    validate_comparison(config, tmp_path / "run")
    *place, field = name.split(".")
    part = config
    for one in place:
        part = part[one]
    if isinstance(value, dict) and "form" in value:
        value = value | {"file": "a.tsv"}
    with config.ignore_type():
        part[field] = ConfigDict(value) if isinstance(value, dict) else value
    with pytest.raises(UserError, match=message):
        validate_comparison(config, tmp_path / "run")


def test_every_method_that_needs_nothing_more_is_compared(tmp_path):
    data = tmp_path / "data"
    (data / "wechsel_wiktionary").mkdir(parents=True)
    for name in ("de.train.txt", "de.validation.txt", "en.train.txt", "wechsel_wiktionary/german.tsv"):
        (data / name).write_text("a\tb\n")
    config = load("compare_initializers", f"data={data}")
    validate_comparison(config, tmp_path / "run")
    assert {*METHODS} - {*config.methods} == {"trans_tokenization", "trelm"}


def test_a_setting_for_all_goes_to_those_that_read_it_and_to_all_where_none_does():
    config = load("anker", "methods=anker+wechsel,data=d")
    config.transfer.rounds = 3
    inputs = {"dictionary": "d", **dict.fromkeys(("source_text", "target_text", "source_vectors", "target_vectors"), "x")}
    anker_settings, wechsel_settings = (transfer_settings(config, name, inputs) for name in config.methods)
    assert anker_settings["rounds"] == 3 and "normalize" not in anker_settings
    assert wechsel_settings["normalize"] and "rounds" not in wechsel_settings
    config.methods = ("wechsel",)
    assert transfer_settings(config, "wechsel", inputs)["rounds"] == 3
    config.variants = ConfigDict({"crossed": ConfigDict({"method": "wechsel", "regression": True})})
    config.variants.of_pieces = ConfigDict({"method": "fvt", "regression": True})
    config.methods, config.text.source = ("wechsel", "crossed", "of_pieces"), ("en.txt",)
    # The regression counts tokens in the texts, which the method itself does not read.
    for name in ("crossed", "of_pieces"):
        assert transfer_settings(config, name, inputs)["source_text"] == "x"
    assert "source_text" not in transfer_settings(config, "wechsel", inputs)


def test_wechsel_schedules_are_the_papers():
    (one,) = phases(load("wechsel_gpt2"))
    assert (one.steps, one.warmup_steps, one.peak, one.trainable) == (250_000, 25_000, 5e-4, "all")
    first, second = phases(load("wechsel_roberta", "schedule=trans_inner"))
    assert (first.steps, first.trainable, second.steps, second.warmup_steps) == (25_000, "tokens", 225_000, 22_500)
    first, second = phases(load("wechsel_gpt2", "schedule=freeze"))
    assert (first.steps, first.trainable, second.end) == (7_500, "embeddings", 75_000)
    (frozen,) = phases(load("wechsel_gpt2", "schedule=frozen"))
    assert (frozen.trainable, frozen.steps) == ("embeddings", 75_000)
    for name, peak in (("wechsel_gpt2", 5e-4), ("wechsel_roberta", 1e-4)):
        table_6 = {"peak_learning_rate": peak, "b1": 0.9, "b2": 0.98, "eps": 1e-6, "weight_decay": 0.01, "clip_norm": None}
        table_6["groups"] = ()
        assert dict(load(name).optimizer) == table_6
    low = load("wechsel_gpt2", "low_resource=1,bytes=16777216")
    assert (low.eval_every, low.patience, low.data.max_bytes) == (2_500, 10_000, 16 * 2**20)


def test_what_stands_behind_a_start_is_a_setting_of_its_transfer():
    config = load("recipe", "starts=anker-tuned50+wechsel_tfr-regression-tuned7,recipes=muon_soap")
    one, other = (config.variants[name] for name in config.methods)
    assert dict(one) == {"method": "anker", "tune_coefficients": 50}
    assert dict(other) == {"method": "wechsel_tfr", "regression": True, "tune_coefficients": 7}
    config = load("recipe", "starts=anker-residual2+anker-residual1-tuned7,recipes=adamw")
    one, other = (config.variants[name] for name in config.methods)
    assert dict(one) == {"method": "anker", "residual": 2}
    assert dict(other) == {"method": "anker", "residual": 1, "tune_coefficients": 7}
    for start, example in (("anker-tuned", "tuned50"), ("anker-tunedx", "tuned50"), ("anker-residual1.5", "residual2")):
        suffix = example.rstrip("0123456789")
        with pytest.raises(UserError, match=f"start {start}: expected a whole number behind -{suffix}, as in anker-{example}"):
            load("recipe", f"starts={start},recipes=muon_soap")


def test_what_stands_behind_a_recipe_are_soft_targets(tmp_path):
    config = load("recipe", "starts=anker,recipes=muon_soap+muon_soap-soft")
    plain, soft = (training_config(config, name, tmp_path / name, tmp_path) for name in config.methods)
    assert config.methods == ("anker_muon_soap", "anker_muon_soap-soft")
    assert (plain.soft_targets.share, soft.soft_targets.share) == (0.0, 0.9) and plain.optimizer == soft.optimizer
    (phase,) = phases(load("recipe", "steps=400,decay=0.5").training)
    assert (phase.warmup_steps, phase.stable_steps, phase.decay) == (120, 200, "sqrt")
    with pytest.raises(UserError, match=r"decay=0\.8: expected a share of the steps above 0 and below 0\.7"):
        load("recipe", "decay=0.8")
    with pytest.raises(UserError, match=r"recipes=adam-soft: expected some of .*, with or without -soft"):
        load("recipe", "recipes=adam-soft")


def test_arena_tunes_every_start_alike_and_trains_full_rand_longer(tmp_path):
    config = load("arena", "starts=anker+fvt+full_rand,steps=80,lengths=1+4,rates=1e-3+2e-3+4e-3,tables=1+2.5,seed=3")
    validate_comparison(config, tmp_path)
    assert config.methods == ("anker", "fvt", "full_rand", "full_rand_x4") and config.seed == 3
    assert (config.tuning.rates, config.tuning.tables) == ((1e-3, 2e-3, 4e-3), (1.0, 2.5))
    runs = {name: training_config(config, name, tmp_path / name, tmp_path) for name in config.methods}
    assert [run.steps for run in runs.values()] == [80, 80, 80, 320]
    assert all(step % run.eval_every == 0 for run in runs.values() for step in (run.steps,))
    soft = load("arena", "starts=anker,recipe=muon_soap-soft").training
    assert (
        soft.soft_targets.share == 0.9 and soft.optimizer.groups == load("arena", "recipe=muon_soap").training.optimizer.groups
    )
    assert config.training.soft_targets.share == 0
    other = load("arena", "starts=focus-first+wechsel_tfr-calibrated")
    assert other.variants["wechsel_tfr-calibrated"].to_dict() == {"method": "wechsel_tfr", "calibrate": "unigram"}
    assert other.variants["focus-first"].to_dict() == {"method": "focus"} and "wechsel_tfr-calibrated" not in other.overrides
    assert [phase["trainable"] for phase in other.overrides["focus-first"].phases] == ["tokens", "all"]
    # What decides about a rate is not what the arena is scored on.
    runs["anker"].profile_steps = "100:110"
    tuned = tuning_config(config, runs["anker"], tmp_path / "tuning", 2e-3, 2.5)
    assert tuned.steps < 100 and tuned.profile_steps == ""
    assert tuned.data.validation == (str(tmp_path / "tuning" / "validation"),) != runs["anker"].data.validation
    assert tuned.optimizer.peak_learning_rate == 2e-3 and tuned.optimizer.groups == ({"match": "embeddings", "rate": 2.5},)
    with pytest.raises(UserError, match="lang=sw without data="):
        load("arena", "lang=sw")


def test_freezing_is_the_papers_figures_4_and_6_and_relearning_that_of_its_first_version(tmp_path):
    config = load("wechsel_freezing")
    validate_comparison(config, tmp_path)
    runs = {name: phases(training_config(config, name, tmp_path / name, tmp_path)) for name in config.methods}
    assert len(runs) == 6
    for method in ("wechsel_tfr", "trans_inner", "trans_inner_shuffle"):
        assert [phase.trainable for phase in runs[method]] == ["all"]
        first, second = runs[f"{method}_freeze"]
        assert (first.trainable, first.steps, second.trainable, second.end) == ("embeddings", 20, "all", 200)
        assert config.variants[f"{method}_freeze"].method == method
    config = load("wechsel_freezing", "study=relearning")
    validate_comparison(config, tmp_path)
    (one,) = phases(training_config(config, "wechsel_tfr", tmp_path / "run", tmp_path))
    assert (one.trainable, one.steps) == ("embeddings", 200)
    # That version's WECHSEL, also where there are vectors of n-grams.
    assert load("wechsel_freezing", "study=relearning,data=d,lang=fr").methods == ("wechsel_tfr", "trans_inner", "anker")
    paper = load("wechsel_freezing", "scale=paper,data=d")
    assert "wechsel_freeze" in paper.methods and paper.vectors.source == "d/cc.en.300.bin"
    paper = paper.training
    assert (paper.steps, paper.batch_size, paper.block_length, paper.optimizer.peak_learning_rate) == (75_000, 512, 512, 5e-4)


def test_sizes_train_on_a_sample_and_one_run_has_its_word_vectors(tmp_path):
    config = load("wechsel_size", "bytes=262144")
    validate_comparison(config, tmp_path)
    assert config.training.data.max_bytes == 262_144 and config.training.patience == 200
    inputs = {"source_vectors": "s", "target_vectors": "all", "sample": "own", "dictionary": "d"}
    found = {name: transfer_settings(config, name, inputs)["target_vectors"] for name in ("wechsel", "wechsel_sample")}
    assert found == {"wechsel": "all", "wechsel_sample": "own"}
    paper = load("wechsel_size", "scale=paper,data=d,lang=fr,bytes=16777216")
    assert (paper.source, paper.vectors.target, paper.tokenizer.vocabulary_size) == ("gpt2", "d/cc.fr.300.bin", 50_000)
    assert (paper.training.steps, paper.training.eval_every, paper.training.patience) == (250_000, 2_500, 10_000)


def test_salt_tables_ask_what_the_papers_tables_ask(tmp_path):
    asked = {table: load("salt_tables", f"table={table},lang=vi,helper=H,corpora=c") for table in "12345"}
    tasks = {table: {name: task.form for name, task in config.evaluation.tasks.items()} for table, config in asked.items()}
    assert tasks["1"] == dict.fromkeys(("ARC", "TruthfulQA", "XCOPA"), "choice") == tasks["4"] and tasks["5"] == {}
    crossed = asked["3"].evaluation.tasks["English text"]
    assert (crossed.file, crossed.questions) == ("c/labelled/xquad/xquad.en.json.gz", "c/labelled/xquad/xquad.vi.json.gz")
    assert crossed.shots == asked["2"].evaluation.tasks.XQuAD.shots == 3
    assert asked["2"].evaluation.tasks.XQuAD.words == "vi"
    assert {"salt", "focus_words", "ofa", "multivariate"} <= {*asked["1"].methods} and asked["5"].methods == ("salt",)
    # The paper's methods differ in the rows that are not shared alone.
    inputs = dict.fromkeys(("source_vectors", "target_vectors", "dictionary", "helper"), "f")
    shared = {
        name: transfer_settings(asked["1"], name, inputs).get("overlap") for name in ("focus_words", "ofa", "multivariate")
    }
    assert {*shared.values()} == {"nospace"} == {METHODS["salt"].overlap}
    assert asked["1"].helper.checkpoint == asked["1"].tokenizer.directory == "H"
    assert asked["5"].training.eval_every == 20 and "XCOPA" not in load("salt_tables", "lang=de").evaluation.tasks
    paper, alone = load("salt_tables", "scale=paper,steps=390,data=d"), load("salt", "steps=390")
    validate(training_config(paper, "salt", tmp_path / "run", tmp_path))
    assert not paper.training.data.validation_fraction and paper.text.validation
    for name in ("optimizer", "phases", "batch_size", "block_length", "accumulation", "dtype", "steps", "eval_every"):
        assert paper.training[name] == alone[name], name
    assert (paper.vectors.train_here, paper.vectors.target) == (False, "d/cc.de.300.bin")
    assert load("salt_tables", "scale=paper,rows=64").training.batch_size == 64


def test_salt_is_a_cosine():
    (phase,) = phases(load("salt", "steps=2000"))
    assert (phase.decay, phase.warmup_steps, phase.peak) == ("cosine", 100, 1e-5)


def test_trelm_trains_what_the_paper_trains():
    config = load("trelm")
    found = {name: phases(config[name])[0] for name in PHASES}
    assert [found[name].steps for name in PHASES] == [20_000, 20_000, 20_000, 80_000]
    assert [found[name].layers for name in PHASES] == ["", "6:", ":6", ""]
    assert [found[name].peak for name in PHASES] == [3e-5, 3e-5, 3e-5, 2e-5]
    assert all(phase.warmup_steps == 500 for phase in found.values())
    assert re.search(found["commonality"].trainable, "tri_layer/mlp/up/kernel")
    assert not re.search(found["commonality"].trainable, "layers/mlp/up/kernel")
    assert [config[name].objective for name in PHASES] == ["mlm", "cdlm", "cdlm", "mlm"]
    assert [config[name].data.rows for name in PHASES] == ["masked", "forward", "backward", ""]
    short = load("trelm", "steps=0.001,objective=tlm,tri_layer=0,parity=1,depth=4")
    assert [short[name].steps for name in PHASES] == [20, 20, 20, 80] and phases(short.backward)[0].layers == ":2"
    assert (short.tri_layer, short.parity, short.forward.objective) == (False, True, "tlm")
    with pytest.raises(UserError, match="'depth=x' behind the colon; expected depth to be a whole number"):
        load("trelm", "depth=x")
    secondary = load("trelm", "nsp=1").language
    assert (secondary.objective, secondary.data.documents) == ("mlm_nsp", "paragraphs") and config.language.objective == "mlm"
    apart = load("trelm", "first=bert")
    assert [apart[name].data.rows for name in PHASES] == ["masked", "forward_in_turns", "backward_in_turns", ""]
    assert apart.first == "bert" and config.first == ""
    given = load("trelm", "pairs=p,held_out=h,common=c,text=t,validation=v")
    read = {name: (given[name].data.train, given[name].data.validation) for name in PHASES}
    assert read == dict(zip(PHASES, ((("c",), ("h",)), (("p",), ("h",)), (("p",), ("h",)), (("t",), ("v",))), strict=True))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("langauge=de", "'langauge=de' .* expected some of lang=, steps="),
        ("lang", "expected some of lang=, steps="),
        ("steps=3,lang=en", "expected lang to be one of de, sw"),
        ("steps=3,lang=de,steps=4", "steps= stands twice behind the colon"),
        *((f"steps={value}", f"'steps={value}' .* expected steps to be a whole number") for value in ("x", "-1", "1e3", "")),
        *((f"rate={value}", f"'rate={value}' .* expected rate to be a number") for value in ("x", "-1", "nan", "1_0")),
    ],
)
def test_unknown_arguments_are_refused(arguments, named):
    with pytest.raises(UserError, match=named):
        config_arguments(arguments, lang=("de", "sw"), steps=1, rate=float)


@pytest.mark.parametrize(
    ("name", "arguments", "named"),
    [
        ("wechsel_downstream", "tasks=ner+Pos", r"--config: tasks=ner\+Pos: 'ner' is not known; .* some of NLI\+NER\+POS"),
        ("wechsel_downstream", "tasks=NER+Pos", "'Pos' is not known"),
        *((name, "steps=0", "--config: steps=0 behind the colon; expected at least 1")
          for name in ("anker", "compare_initializers", "smollm2", "wechsel_downstream", "wechsel_freezing", "wechsel_size")),
        ("demo", "seed=1", "--config: 'seed=1' behind the colon is not known; expected nothing there; a setting of the run"),
        *(("arena", arguments, f"--config: {told} is none that could be tried; expected numbers such as")
          for arguments, told in (("lengths=0+1", "0"), ("rates=1e-3+-1", "-1"), ("tables=nan", "nan"))),
        ("smollm2", "rows=0", "--config: rows=0 behind the colon; expected at least 1"),
        ("wechsel_freezing", "first=100", "--config: first=100: study=freezing does not read it; expected study=bound"),
        ("wechsel_freezing", "study=bound,first=0", "--config: first=0 behind the colon; expected at least 1"),
        *(("trelm", f"steps={value}", "--config: steps=.*: expected a share of all steps, above 0 and at most 10,000")
          for value in ("1e999", "1e308", "0")),
        *(("kim", f"task=sst2,{name}=target", f"--config: {name}=: task=sst2 is no translation and does not read it; .* leave")
          for name in ("tables", "source", "target")),
        *(("kim", f"{name}=0", f"--config: {name}=0 behind the colon; expected at least 1") for name in ("width", "heads")),
    ],
)  # fmt: skip
def test_arguments_without_sense_or_effect_are_refused(name, arguments, named):
    with pytest.raises(UserError, match=named):
        load(name, arguments)


def test_no_methods_are_those_of_the_file():
    for name in ("wechsel_low_resource", "wechsel_downstream"):
        assert load(name, "methods=").methods == load(name).methods == ("anker", "wechsel", "trans_inner", "full_rand")


def test_inference_is_xnlis_from_the_hub_and_in_chinese_ocnlis_without_its_sentences_in_the_text():
    tuned = load("wechsel_downstream", "lang=sw,tasks=NLI+POS").evaluation.fine_tuning
    assert [*tuned] == ["NLI", "POS"] and tuned.NLI.data.train == ("hf://facebook/xnli:train#sw",)
    assert tuned.NLI.file == "corpora/labelled/xnli/test-sw.tsv.gz" and tuned.NLI.task.texts == ("premise", "hypothesis")
    assert (tuned.NLI.epochs, tuned.NLI.batch_size, tuned.POS.epochs, tuned.POS.batch_size) == (2.0, 128, 10.0, 32)
    chinese, without = load("wechsel_downstream", "lang=zh,tasks=NLI"), load("wechsel_downstream", "lang=zh")
    assert chinese.evaluation.fine_tuning.NLI.file == "corpora/labelled/ocnli/dev.json.gz"
    texts = [[*config.text.train, *config.text.validation, *config.text.words] for config in (chinese, without)]
    assert texts[0] == [f"data/zh_inference.{end}.txt" for end in ("train", "validation", "words")]
    assert texts[1] == [f"data/zh.{end}.txt" for end in ("train", "validation", "words")]


def test_arguments_have_the_type_of_their_default():
    given = {"lang": ("de", "sw"), "steps": 1, "rate": float, "rows": int, "share": 1.0, "text": ""}
    assert config_arguments("", **given) == {**given, "lang": "de", "rate": None, "rows": None}
    found = config_arguments("rate=3e-3,rows=8,share=2,steps=10,text=7,lang=sw", **given)
    assert found == {"lang": "sw", "steps": 10, "rate": 0.003, "rows": 8, "share": 2.0, "text": "7"}
    assert {name: type(value) for name, value in found.items()} == {
        "lang": str, "steps": int, "rate": float, "rows": int, "share": float, "text": str,
    }  # fmt: skip


def test_a_language_that_a_task_has_not_is_named(tmp_path):
    (tmp_path / "xnli").mkdir()
    for language in ("de", "sw"):
        (tmp_path / "xnli" / f"dev-{language}.tsv.gz").touch()
    assert load("finetune", f"task=xnli,lang=sw,data={tmp_path}")
    with pytest.raises(UserError, match=r"lang=xx: .* has de, sw; expected one of these"):
        load("finetune", f"task=xnli,lang=xx,data={tmp_path}")


def test_kim_settings_are_those_of_the_papers_table_5():
    """Epochs and batches of its columns, appendix A.2's rates and Adam, and which parameters table 3 freezes."""
    epochs = {"multi30k": (20, 20, 20), "mnli": (9, 10, 10), "sst2": (5, 5, 5), "iwslt": (20, 20, 20)}
    batches = {"multi30k": (64, 128, 96), "mnli": (128,) * 3, "sst2": (128,) * 3, "iwslt": (128, 128, 112)}
    widths = {"multi30k": (300, 768, 768), "mnli": (300, 768, 512), "sst2": (300, 768, 512), "iwslt": (300, 768, 768)}
    for task in epochs:
        for column, rows in enumerate(("glove", "bert", "t5")):
            config = load("kim", f"task={task},rows={rows}")
            validate(config)
            found = (config.epochs, config.batch_size, config.model.config.d_model)
            assert found == (epochs[task][column], batches[task][column], widths[task][column])
            assert config.model.config.nhead == (10 if rows == "glove" else 8)
            assert config.optimizer.peak_learning_rate == (2e-4 if task in ("multi30k", "iwslt") else 1e-4)
            assert (config.optimizer.b1, config.optimizer.b2, config.optimizer.eps) == (0.9, 0.98, 1e-9)
    frozen = load("kim", "init=pretrained,train=no,positions=none,source=en,target=de,data=d")
    (phase,) = phases(frozen)
    assert not re.search(phase.trainable, "token_embedding/embedding") and re.search(phase.trainable, "head/embedding")
    assert frozen.model.config.positions == "none" and frozen.data.train == ("d/train.en.gz::d/train.de.gz",)
    assert frozen.model.target_embeddings == "kim/multi30k-glove/target-pretrained.safetensors"
    assert load("kim", "init=pretrained,tables=source").model.target_embeddings == ""
    # Table 5 counts GLUE's whole training set.
    assert load("kim", "task=sst2,data=d").data.train == ("d/train.tsv.gz", "d/dev.tsv.gz")
