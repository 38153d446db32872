import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ml_collections import ConfigDict

from wechsel_jax.comparison import default_config as default_comparison_config
from wechsel_jax.errors import UserError
from wechsel_jax.training import default_config, default_trelm_config, one_phase, record_config, validate
from wechsel_jax.training.config import as_dict, described
from wechsel_jax.training.trelm import PHASES


def test_a_good_config_passes(make_config):
    validate(make_config())


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"stpes": 10}, "stpes: no such setting"),
        ({"optimizer__beta1": 0.9}, "optimizer.beta1: no such setting"),
        ({"steps": 0}, "steps: is 0"),
        ({"model__remat": True}, "model.remat: is True; expected a text"),
        ({"model__remat": "some"}, "model.remat: is 'some'; expected none, dots, full"),
        ({"model__scan_layers": 1}, "model.scan_layers: is 1; expected True or False"),
        ({"model__pad_vocabulary": 0}, "model.pad_vocabulary"),
        ({"epochs": 2.0}, "epochs: is 2.0; expected 0: passes are counted of labelled examples; set steps"),
        ({"mask_rate": 0.0}, "mask_rate"),
        ({"objective": "mlm", "mask_rate": 0.03, "block_length": 16}, "mask_rate: is 0.03; expected more than 0.031, so that"),
        ({"mask_rate": 0.3}, "mask_rate: is 0.3; expected 0.15: it is for mlm, mlm_nsp, cdlm, tlm, brlm"),
        ({"objective": "mlm", "loss_chunk": 8}, "loss_chunk: is 8; expected 0: it is for clm, cdlm, translation"),
        ({"parity": True}, "parity: is True; expected False: it is for cdlm"),
        ({"task__label": "topic"}, "task.label: is 'topic'; expected 'label': it is for classification, tagging"),
        ({"task__group_by_length": True}, "task.group_by_length: is True; expected False: it is for classification, tagging"),
        ({"patience": -1}, "patience"),
        ({"distributed__timeout": 0}, "distributed.timeout"),
        ({"distributed__heartbeat": 0}, "distributed.heartbeat"),
        ({"data__validation_fraction": 1.0}, "data.validation_fraction"),
        ({"data__validation_fraction": 0.1}, "data.validation names files already"),
        ({"data__max_bytes": -1}, "data.max_bytes"),
        ({"steps": "many"}, "steps: is 'many'; expected a whole number"),
        ({"steps": True}, "steps: is True"),
        ({"batch_size": 8, "accumulation": 3}, "accumulation: 3 does not divide"),
        ({"optimizer__peak_learning_rate": -1.0}, "optimizer.peak_learning_rate"),
        ({"optimizer__b2": 1.0}, "optimizer.b2"),
        # On the devices they are 0, 0 and 1.
        ({"optimizer__peak_learning_rate": 1e-50}, "optimizer.peak_learning_rate: is 1e-50; expected 1.2e-38 or more"),
        ({"optimizer__eps": 1e-50}, "optimizer.eps: is 1e-50; expected 1.2e-38 or more"),
        ({"optimizer__b1": 0.99999999999}, "optimizer.b1: is 0.99999999999; expected a number from 0 to 1 - 6e-8"),
        ({"dtype": "float8"}, "dtype: is 'float8'"),
        ({"export_dtype": "int8"}, "export_dtype"),
        ({"model__dropout": 1.5}, "model.dropout"),
        ({"model__checkpoint": "gpt2"}, "both of checkpoint and config"),
        ({"model__config": ConfigDict()}, "neither of checkpoint and config"),
        ({"model__tokenizer": ""}, "model.tokenizer"),
        ({"data__train": ()}, "data.train"),
        ({"data__validation": (3,)}, "data.validation"),
        ({"mesh__data": 0}, "mesh.data"),
        ({"mesh__fsdp": -1}, "more than one axis is -1"),
        ({"eval_batches": 0}, "eval_batches"),
        ({"optimizer__clip_norm": 0.0}, "optimizer.clip_norm: is 0.0; expected more than 0, or None for no clipping"),
        ({"optimizer__clip_norm": "off"}, "optimizer.clip_norm: is 'off'; expected a finite number"),
        ({"optimizer__eps": None}, "optimizer.eps: is None; expected a finite number"),
        ({"phases": ({"name": "x", "fraction": 1.0, "speed": 2},)}, r"phases\[0\].speed"),
        ({"mesh": 8}, "mesh: is 8"),
        ({"soft_targets__share": 1.5}, "soft_targets.share: is 1.5; expected a share from 0"),
        ({"soft_targets__steps": -1}, "soft_targets.steps: is -1; expected 0"),
        ({"soft_targets__share": 0.5, "soft_targets__steps": 21}, "soft_targets.steps: is 21; expected 0 .* or at most its 20"),
        ({"soft_targets__order": 1}, "soft_targets.order: is 1; expected a number from 2 to 8"),
        ({"soft_targets__continuations": 0}, "soft_targets.continuations: is 0"),
        ({"objective": "mlm", "soft_targets__share": 0.5}, "soft_targets.share: is 0.5 with objective=mlm; expected 0"),
    ],
)
def test_mistakes_are_named(make_config, changes, named):
    with pytest.raises(UserError, match=named):
        validate(make_config(**changes))


def numbers(config, prefix=""):
    """Names of all fields that hold a number, or None in place of one."""
    for name, value in config.items():
        if isinstance(value, ConfigDict):
            yield from numbers(value, f"{prefix}{name}__")
        elif value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
            yield prefix + name


@pytest.mark.parametrize("value", [-1, 0, 2**31, 2**63, 10**30, math.nan, math.inf, -math.inf, 1e308, -1e308])
def test_no_number_is_too_large_for_a_clear_line(make_config, value):
    """Every number of the settings: what is impossible is one line that names the field."""
    may_be = {-1: ("mesh__", "distributed__process"), 0: ("",)}.get(value, ())
    # float32 holds them.
    may_be += ("optimizer__",) if value in (2**31, 2**63, 10**30) else ()
    may_be += ("data__max_bytes",) if value == 2**31 else ()
    for name in numbers(default_config()):
        try:
            validate(make_config(**{name: value}))
        except UserError as error:
            assert "\n" not in str(error) and name.split("__")[0] in str(error), (name, str(error))
        else:
            assert name.startswith(may_be), name
    for field in ("fraction", "steps", "warmup", "warmup_steps", "peak", "floor"):
        phase = {"name": "x", field: value} | ({} if field == "steps" else {"fraction": 1.0, field: value})
        if abs(value) > (1e300 if field == "peak" else 1) or math.isnan(value):
            with pytest.raises(UserError, match="phases"):
                validate(make_config(phases=(phase,)))


def test_a_fraction_can_stand_for_validation_files(make_config):
    validate(make_config(data__validation=(), data__validation_fraction=0.1))


def test_clipping_can_be_switched_off(make_config, tmp_path):
    """And a run that was begun with a number, as all were once, goes on with it."""
    record_config(make_config(), tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["optimizer"]["clip_norm"] == 1.0
    record_config(make_config(optimizer__clip_norm=1.0), tmp_path)
    without = make_config(optimizer__clip_norm=None)
    validate(without)
    with pytest.raises(UserError, match=r"optimizer\.clip_norm was 1\.0, now null"):
        record_config(without, tmp_path)
    record_config(without, tmp_path / "other")


def test_none_is_a_value_on_the_command_line(tmp_path):
    """In a process of its own: the flags of a program are global."""
    (tmp_path / "settings.py").write_text("from wechsel_jax.training import default_config as get_config\n", encoding="utf-8")
    shown = "config.optimizer.clip_norm, config.optimizer.b1, config.eval_batches, config.keep"
    program = f"from settings import get_config as default_config\ndef show(config, workdir):\n    print({shown})\n"
    (tmp_path / "shows.py").write_text(program, encoding="utf-8")
    given = ("optimizer.clip_norm=none", "optimizer.b1=0.5", "eval_batches=None", "keep=3")
    done = subprocess.run(
        [
            *(sys.executable, "-c", "from train.program import run; run('shows', 'show')"),
            *(f"--config={tmp_path}/settings.py", f"--workdir={tmp_path}"),
            *(f"--config.{setting}" for setting in given),
        ],
        env={**os.environ, "PYTHONPATH": f"{Path(__file__).parents[2]}{os.pathsep}{tmp_path}"},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "None 0.5 None 3\n", done.stderr


def test_a_missing_field_is_named(make_config):
    config = make_config()
    del config.optimizer.eps
    with pytest.raises(UserError, match=r"optimizer\.eps: is missing"):
        validate(config)


def test_another_config_is_refused_naming_every_field(make_config, tmp_path):
    record_config(make_config(), tmp_path)
    before = (tmp_path / "config.json").read_bytes()
    record_config(make_config(), tmp_path)
    with pytest.raises(UserError) as error:
        record_config(make_config(seed=3, optimizer__b2=0.999, phases=one_phase()), tmp_path)
    for part in ("seed was 0, now 3", "optimizer.b2 was 0.98, now 0.999", "phases was"):
        assert part in str(error.value)
    assert (tmp_path / "config.json").read_bytes() == before


def test_fields_that_change_no_result_may_differ(make_config, tmp_path):
    record_config(make_config(), tmp_path)
    record_config(make_config(mesh__fsdp=2, keep=5, compilation_cache="cache"), tmp_path)
    recorded = json.loads((tmp_path / "config.json").read_text())
    assert (recorded["mesh"]["fsdp"], recorded["keep"], recorded["compilation_cache"]) == (2, 5, "cache")


@pytest.mark.parametrize("defaults", [default_config, default_comparison_config, default_trelm_config])
def test_every_setting_says_what_it_is(defaults):
    said, settings = described(defaults), as_dict(defaults())
    # Runs and transfers that lie in others say it themselves.
    for inner in {"training", "transfer", *PHASES} & {*settings}:
        settings[inner] = {}
    if "helper" in settings:
        settings["helper"]["training"] = {}

    def names(values, prefix=""):
        for name, value in values.items():
            yield from names(value, f"{prefix}{name}.") if isinstance(value, dict) and value else [prefix + name]

    assert {*names(settings)} - {*PHASES} <= {*said}
    assert all(what.endswith(".") for what in said.values())


def test_the_comments_of_settings_are_read_whole():
    def defaults():
        config = ConfigDict()
        # One line,
        # and another.
        config.first = 1

        # Of nothing that follows at once.

        config.second = 2
        config.third = 3  # with its line
        return config

    assert described(defaults) == {"first": "One line, and another."}
