"""A new method is one module and one entry of the registry: everything that is said of it follows from its record."""

import json
import re
from typing import Annotated

import numpy as np
import pytest

from wechsel_jax import cli
from wechsel_jax.errors import UserError
from wechsel_jax.initializers import METHODS, Method, Setting, Side, TransferPlan
from wechsel_jax.tokens.overlap import Overlap
from wechsel_jax.transfers.job import transfer


def toy(
    source: Side,
    target: Side,
    *,
    overlap: Overlap,
    stride: Annotated[int, Setting("How many source tokens lie between two that are used", 1, 99)] = 7,
) -> TransferPlan:
    rows = np.arange(len(target.vocabulary)) * stride % len(source.vocabulary)
    return TransferPlan.mixed(rows[:, None], np.ones((len(rows), 1), np.float32)).with_copies(overlap.source)


TOY = Method(
    name="toy",
    label="Toy Method",
    color=15,
    plan=toy,
    paper="Doe, 2027: Toys, section 1",
    citation="@misc{doe-2027-toys,\n  title = {Toys},\n  author = {Doe, Jane},\n  year = {2027},\n}",
    summary="every seventh source row in turn",
    rules=lambda settings: [f"Source tokens are taken in steps of {settings['stride']}."],
)


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setitem(METHODS, "toy", TOY)


@pytest.fixture
def made(registered, world, source, tmp_path):
    tokenizer = world.tokenizer("german", "gpt2")
    record = transfer(source, tokenizer, tmp_path / "toy", method="toy", stride=3, neighbors=5, log=lambda line: None)
    return tmp_path / "toy", record


def test_the_flag_and_its_help(registered, capsys):
    cli.main(["transfer", "--help"])
    printed = capsys.readouterr().out
    assert re.search(r"--method: .*\btoy\b", printed)
    assert "--stride: How many source tokens lie between two that are used (toy). (default: 7)" in printed
    with pytest.raises(SystemExit):
        cli.main(["transfer", "--source=a", "--target_tokenizer=b", "--output=c", "--method=toy", "--stride=100"])
    assert "--stride" in capsys.readouterr().err


def test_the_record(made, world, source, tmp_path):
    directory, record = made
    assert json.loads((directory / "transfer.json").read_text())["method"] == "toy" and record["settings"]["stride"] == 3
    assert "Source tokens are taken in steps of 3." in record["behaviour"] and record["paper"] == TOY.paper
    assert "neighbors was given, but toy does not use it." in record["notes"]
    with pytest.raises(UserError, match="stride 0: expected at least 1"):
        transfer(source, world.tokenizer("german", "gpt2"), tmp_path / "other", method="toy", stride=0)


def test_the_card_and_the_citation(made):
    card = (made[0] / "README.md").read_text()
    assert "Toy Method" in card and TOY.citation in card and "in steps of 3" in card


def test_the_report(made, tmp_path):
    from wechsel_jax.report import write_report

    write_report([made[0]], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "Toy Method" in page and "in steps of 3" in page


def test_a_comparison_takes_its_setting(registered):
    from wechsel_jax.comparison import default_config

    assert default_config().transfer.stride == 7


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_a_method_says_what_it_is(method):
    assert method.label and method.summary and method.paper and method.citation.startswith("@")
    assert method.color is not None, "a method of ours has a colour of its own"
    assert [other.name for other in METHODS.values() if other.color == method.color] == [method.name]
    assert [other.name for other in METHODS.values() if other.label == method.label] == [method.name]
