"""Every file of configs/ makes settings that pass the checks, and says what its paper says."""

import importlib.util
from pathlib import Path

import pytest
from ml_collections import ConfigDict

from wechsel_jax.comparison import _settings, _validate
from wechsel_jax.errors import UserError
from wechsel_jax.training import config_arguments, validate
from wechsel_jax.training.config import phases

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
        config = config.training
    validate(config)


@pytest.mark.parametrize("name", NAMES)
def test_every_file_says_how_to_run_it(name):
    text = (CONFIGS / f"{name}.py").read_text(encoding="utf-8")
    assert f"--config=configs/{name}.py" in text and "Command:" in text and "Cost:" in text


def test_some_methods_of_a_config_can_be_compared_alone(tmp_path):
    """The schedules that a config holds for its other methods are no mistake; those of an unknown one are."""
    config = load("demo")
    config.methods = ("anker",)
    _validate(config, tmp_path)
    config.overrides.magic = ConfigDict({"phases": config.training.phases})
    with pytest.raises(UserError, match=r"overrides\.magic: no such method"):
        _validate(config, tmp_path)


def test_a_setting_for_all_goes_to_those_that_read_it_and_to_all_where_none_does():
    config = load("anker", "methods=anker+wechsel,data=d")
    config.transfer.rounds = 3
    inputs = {"dictionary": "d", **dict.fromkeys(("source_text", "target_text", "source_vectors", "target_vectors"), "x")}
    anker_settings, wechsel_settings = (_settings(config, name, inputs) for name in config.methods)
    assert anker_settings["rounds"] == 3 and "normalize" not in anker_settings
    assert wechsel_settings["normalize"] and "rounds" not in wechsel_settings
    config.methods = ("wechsel",)
    assert _settings(config, "wechsel", inputs)["rounds"] == 3


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
        assert dict(load(name).optimizer) == table_6
    low = load("wechsel_gpt2", "low_resource=1,bytes=16777216")
    assert (low.eval_every, low.patience, low.data.max_bytes) == (2_500, 10_000, 16 * 2**20)


def test_salt_is_a_cosine():
    (phase,) = phases(load("salt", "steps=2000"))
    assert (phase.decay, phase.warmup_steps, phase.peak) == ("cosine", 100, 1e-5)


def test_trelm_freezes_what_the_paper_freezes():
    (phase,) = phases(load("trelm"))
    assert (phase.steps, phase.warmup_steps, phase.peak) == (20_000, 500, 3e-5)
    assert [phases(load("trelm", f"phase=transfer,half={half}"))[0].layers for half in ("upper", "lower")] == ["6:", ":6"]
    (phase,) = phases(load("trelm", "phase=language"))
    assert (phase.steps, phase.peak, phase.trainable, phase.layers) == (80_000, 2e-5, "all", "")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("langauge=de", "'langauge=de' .* expected some of lang=, steps="),
        ("lang", "expected some of lang=, steps="),
        ("steps=3,lang=en", "expected lang to be one of de, sw"),
    ],
)
def test_unknown_arguments_are_refused(arguments, named):
    with pytest.raises(UserError, match=named):
        config_arguments(arguments, lang=("de", "sw"), steps="1")
