"""`wechsel-jax inspect`: the score, the verdict, and its forms."""

import json
import shutil

import numpy as np
import pytest
from absl import flags

from tests.tiny_tokenizers import byte_bpe
from wechsel_jax import cli
from wechsel_jax.commands import inspect
from wechsel_jax.errors import UserError
from wechsel_jax.initializers import TransferPlan
from wechsel_jax.inspection import origins
from wechsel_jax.report.score import origin_line

TOKENS = ["--vectors=one.bin,two.bin", "--dictionary=d.tsv", "--tokens=a"]


def inspected(capsys, *arguments) -> str:
    cli.main(["inspect", *map(str, arguments)])
    return capsys.readouterr().out


def run(*options) -> None:
    """Runs the verb without a directory."""
    values = flags.FlagValues()
    inspect.define(values)
    values(["inspect", *map(str, options)])
    inspect.run(values, [])


@pytest.mark.slow
def test_the_verdict_is_said_last_and_the_numbers_before_it(transferred, world, capsys):
    lines = inspected(
        capsys, transferred, f"--text={world.root / 'german.txt'}", "--tokens_limit=200", "--samples=3"
    ).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("verdict: "))
    assert {line.split()[0] for line in lines[start + 1 :]} <= {"wrong", "look", "ok"} and len(lines) - start > 7
    text = "\n".join(lines[:start])
    assert "a uniform guess would be 600" in text and "over 200 predicted tokens" in text
    assert "spread (std)" in text and "alignment: P@1 " in text and "mixed rows: lean on " in text and "rules:\n" in text
    samples = lines[lines.index("samples:") + 1 :][:3]
    assert all(line.startswith("  ") and any(how in line for how in (": mixed", ": copied", ": random")) for line in samples)


def test_json_is_the_score_and_nothing_else(transferred, capsys):
    facts = json.loads(inspected(capsys, transferred, "--json", "--samples=2"))
    assert facts["vocabulary_size"] == 600 and len(facts["samples"]) == 2 and facts["findings"]


def test_of_a_run_its_export_is_shown(transferred, tmp_path, capsys):
    shutil.copytree(transferred, tmp_path / "export")
    (tmp_path / "metrics.jsonl").touch()
    facts = [json.loads(inspected(capsys, place, "--json")) for place in (tmp_path, tmp_path / "export")]
    assert facts[0] == facts[1]


def test_tokens_of_a_plan_are_those_of_the_model_beside_it(transferred, tmp_path, capsys):
    (told,) = (line for line in inspected(capsys, transferred, "--tokens=Ġfür").splitlines() if line.startswith("Ġfür ("))
    plan = transferred / "transfer_plan.npz"
    assert told in inspected(capsys, plan, "--tokens=Ġfür").splitlines()
    run(f"--plan={plan}", "--tokens=Ġfür")
    assert told in capsys.readouterr().out.splitlines()
    (token,) = json.loads(inspected(capsys, transferred, "--tokens=Ġfür", "--json"))["tokens"]
    assert told.startswith(f"{token['target']} ({token['token_id']}): {token['how']}: {token['sources'][0][0]} ")
    with pytest.raises(UserError, match=r"has no transfer\.json, which --tokens reads"):
        run(f"--plan={shutil.copy(plan, tmp_path)}", "--tokens=Ġfür")


def test_a_source_that_is_named_from_elsewhere_is_asked_for(transferred, tmp_path, capsys):
    moved = shutil.copytree(transferred, tmp_path / "moved")
    record = json.loads((moved / "transfer.json").read_text(encoding="utf-8"))
    place, record["source"]["model"] = record["source"]["model"], "../en/"
    (moved / "transfer.json").write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(UserError, match=r"^\.\./en/: no such file .* name its place with --source"):
        origins(moved, ["Ġfür"])
    assert "Ġfür (" in inspected(capsys, moved, "--tokens=Ġfür", f"--source={place}")
    other = tmp_path / "other"
    byte_bpe(False).save_pretrained(other)
    TransferPlan.mixed(np.full((600, 1), 5000, np.int32), np.ones((600, 1), np.float32)).save(moved / "transfer_plan.npz")
    with pytest.raises(UserError, match=r"the plan names source token 5,000, and the source model has \d+ tokens; .* --source"):
        origins(moved, ["Ġfür"], source=other)


def test_a_row_of_the_regression_alone_says_so():
    token = {"target": "heit", "token_id": 7, "how": "mixed", "sources": []}
    assert origin_line(token) == "heit (7): mixed: of no source tokens, by the regression alone"
    assert origin_line({"target": "a", "how": "random", "sources": []}) == "a: random"
    token = {"target": "a", "how": "mixed", "sources": [["b", 0.00012], ["c", 0.5]]}
    assert origin_line(token, 1) == "a: mixed: b 0.00012, 1 more"


@pytest.mark.parametrize("option", ["--json", "--nojson"])
def test_what_holds_no_model_is_refused(tmp_path, option, capsys):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(SystemExit) as caught:
        inspected(capsys, tmp_path, option)
    shown = capsys.readouterr()
    assert caught.value.code == 2 and shown.out == "" and f"{tmp_path}: holds no config.json, " in shown.err
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(SystemExit):
        inspected(capsys, tmp_path, option)
    assert "holds no model.safetensors" in capsys.readouterr().err


def test_coverage_is_a_table_where_it_was_recorded(transferred, tmp_path, capsys):
    record = json.loads((transferred / "transfer.json").read_text(encoding="utf-8"))
    rows = [{"rule": "exact", "tokens": 150, "share": 0.25, "with_vector": None, "examples": [["Ġin", "Ġin"], ["Der", "Ġder"]]}]
    rest = {"noise": {"tokens": 12, "examples": ["Ã"]}, "without_vector": None}
    for coverage in (rows, {"rows": rows, **rest}):
        (tmp_path / "transfer.json").write_text(json.dumps(record | {"coverage": coverage}), encoding="utf-8")
        told = inspected(capsys, tmp_path)
        assert "exact     150  25.0 %  Ġin, Der = Ġder" in told and ("not shared, random: 12 tokens, such as Ã" in told) == (
            coverage is not rows
        )


def test_a_plan_alone(transferred, capsys):
    plan = transferred / "transfer_plan.npz"
    told = inspected(capsys, plan)
    assert told.startswith("plan: 600 tokens, ") and "verdict: " in told
    run(f"--plan={plan}")
    assert capsys.readouterr().out == told


def test_word_vectors_before_a_transfer(world, capsys):
    run(f"--vectors={world.vectors('english')},{world.vectors('german')}", f"--dictionary={world.dictionary}", "--samples=2")
    told = capsys.readouterr().out
    assert told.startswith("alignment: P@1 ") and ": nearest: " in told and "verdict: " in told


@pytest.mark.parametrize("options", [[], ["--vectors=one.bin", "--dictionary=d.tsv"], ["--vectors=one.bin,two.bin"], TOKENS])
def test_what_is_missing_is_named(options):
    with pytest.raises(UserError, match=r"expected|--tokens: has no effect with --vectors"):
        run(*options)


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("--dictionary=d.tsv", "is for --vectors"),
        ("--tokens_limit=30", "is for --text"),
        ("--all", "lists the tensors of a directory"),
        ("--samples=3", "has no effect on a plan alone"),
        ("--seed=7", "has no effect on a plan alone"),
        ("--source=elsewhere", "has no effect on a plan alone"),
    ],
)
def test_what_has_no_effect_is_refused(option, reason):
    with pytest.raises(UserError, match=f"{option.split('=')[0]}: {reason}"):
        run("--plan=plan.npz", option)
