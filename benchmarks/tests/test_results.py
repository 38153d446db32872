"""Arguments of the programs that gather results, and what these say of mistakes."""

import runpy
import sys

import pytest
from absl import flags

from benchmarks.results import named_places, read_flags, read_results, with_tables, write_results
from wechsel_jax.errors import UserError


def test_arguments_name_places(tmp_path):
    assert named_places([f"de={tmp_path}"]) == [("de", tmp_path)]
    assert named_places([f"salt/zh, noise=2={tmp_path}"], last=True) == [("salt/zh, noise=2", tmp_path)]
    for wrong in ("de", "de=", f"={tmp_path}"):
        with pytest.raises(UserError, match="expected NAME=PLACE"):
            named_places([wrong])
    with pytest.raises(UserError, match="nowhere is not there"):
        named_places([f"de={tmp_path / 'nowhere'}"])


def test_tables_go_where_their_marks_are():
    text = "a\n<!-- one -->\nold\n<!-- /one -->\nb\n<!-- two -->\n<!-- /two -->\n"
    expected = "a\n<!-- one -->\n| \\1 |\n<!-- /one -->\nb\n<!-- two -->\nnew\n<!-- /two -->\n"
    assert with_tables(text, {"one": "| \\1 |", "two": "new"}) == expected
    with pytest.raises(UserError, match="no place for the table 'three'"):
        with_tables(text, {"one": "x", "three": "y"})


def test_flags_that_a_benchmark_has_not_are_told_in_one_line(capsys):
    values = flags.FlagValues()
    flags.DEFINE_integer("steps", 3, "How many.", flag_values=values)
    read_flags(values, "What it measures.", ["--steps=4"])
    assert values.steps == 4
    for wrong, told in ((["--stpes=4"], "'stpes'"), (["--steps=x"], "steps"), (["steps=4"], "'steps=4': expected flags, each")):
        with pytest.raises(UserError, match=told):
            read_flags(values, "What it measures.", wrong)
    with pytest.raises(SystemExit, match="0"):
        read_flags(values, "What it measures.", ["--help"])
    assert "What it measures." in (out := capsys.readouterr().out) and "--steps" in out


def test_results_are_read_as_they_were_written(tmp_path):
    assert read_results(tmp_path / "results.json") == {}
    write_results(tmp_path / "results.json", {"a": [1, None]})
    assert read_results(tmp_path / "results.json") == {"a": [1, None]}


@pytest.mark.parametrize(
    ("program", "argument"),
    [(name, "de=nowhere") for name in ("arena", "forgetting", "initializers", "recipe", "studies", "target_and_source")]
    + [("anker", "gather nowhere"), ("demo_seeds", "nowhere"), ("recipe", "--other"), ("recipe", "de"), ("recipe", "--rows")],
)
def test_a_mistake_is_one_line(program, argument, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", [program, *argument.split()])
    monkeypatch.delitem(sys.modules, f"benchmarks.{program}", raising=False)
    with monkeypatch.context() as inside, pytest.raises(SystemExit) as ended:
        inside.chdir(tmp_path)
        runpy.run_module(f"benchmarks.{program}", run_name="__main__")
    error = capsys.readouterr().err
    assert ended.value.code == 2 and error.startswith(f"benchmarks.{program}: error: ") and error.count("\n") == 1
