"""How far rows have moved, against numpy in float64."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from tokenizers import Tokenizer, models
from transformers import GPT2Config, PreTrainedTokenizerFast

from tests.memory import most_held
from wechsel_jax import TransferPlan, UserError, cli, demo, transfer
from wechsel_jax.inspection.drift import drift

TABLE = "transformer.wte.weight"


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A transfer with half a vocabulary, and the same model with a table that has moved."""
    root = tmp_path_factory.mktemp("drift")
    source = demo.path("english-gpt2")
    state = json.loads(Path(source, "tokenizer.json").read_text())
    state["model"]["merges"] = state["model"]["merges"][:500]
    merged = {"".join(pair.split(" ") if isinstance(pair, str) else pair) for pair in state["model"]["merges"]}
    known = [token for token in state["model"]["vocab"] if len(token) == 1 or token in merged or token.startswith("<|")]
    state["model"]["vocab"] = {token: i for i, token in enumerate(known)}
    (root / "tokenizer.json").write_text(json.dumps(state))
    transfer(source, root / "tokenizer.json", root / "before", method="fvt", log=lambda line: None)
    shutil.copytree(root / "before", root / "after")
    tensors = safetensors.numpy.load_file(root / "before" / "model.safetensors")
    table = tensors[TABLE].copy()
    table[1::2] += np.random.default_rng(0).normal(0, 0.1, table[1::2].shape).astype(table.dtype)
    safetensors.numpy.save_file(tensors | {TABLE: table}, root / "after" / "model.safetensors")
    original = safetensors.numpy.load_file(f"{source}/model.safetensors")[TABLE]
    return root, *(one.astype(np.float64) for one in (tensors[TABLE], table, original))


@pytest.mark.slow
def test_rows_are_compared_with_themselves_and_with_the_source(pair):
    root, old, new, source = pair
    found = drift(root / "after", root / "before", samples=4)
    norms = [np.linalg.norm(table, axis=1) for table in (old, new)]
    cosine = (old * new).sum(axis=1) / norms[0] / norms[1]
    change = np.linalg.norm(new - old, axis=1) / norms[0]
    everything = found["groups"][0]
    assert everything["how"] == "all" and everything["tokens"] == len(old)
    assert everything["cosine"] == pytest.approx(cosine.mean(), rel=1e-9)
    assert everything["change"] == pytest.approx(change.mean(), rel=1e-9)
    assert everything["length"] == pytest.approx((norms[1] / norms[0]).mean(), rel=1e-9)
    assert sum(group["tokens"] for group in found["groups"][1:]) == len(old)

    def nearest(table):
        return np.argsort(-(table @ source.T) / np.linalg.norm(source, axis=1), axis=1, kind="stable")[:, :10]

    kept = [len({*one} & {*other}) / 10 for one, other in zip(nearest(old)[1:], nearest(new)[1:], strict=True)]
    assert found["nearest"]["tokens"] == len(old) - 1 and 0.3 < np.mean(kept) < 0.99
    assert found["nearest"]["kept"] == pytest.approx(np.mean(kept), abs=2e-3)
    assert len(found["samples"]) == 4


def test_rows_that_are_not_finite_are_left_out(pair, tmp_path):
    root, old, _, _ = pair
    shutil.copytree(root / "after", tmp_path / "after")
    tensors = safetensors.numpy.load_file(root / "after" / "model.safetensors")
    tensors[TABLE][7, 0] = np.inf
    safetensors.numpy.save_file(tensors, tmp_path / "after" / "model.safetensors")
    found = drift(tmp_path / "after", root / "before", samples=4)
    assert found["groups"][0]["tokens"] == len(old) - 1
    json.dumps(found, allow_nan=False)
    tensors[TABLE][:] = np.nan
    safetensors.numpy.save_file(tensors, tmp_path / "after" / "model.safetensors")
    assert drift(tmp_path / "after", root / "before")["nearest"] is None


def test_a_plan_of_other_tokens_is_refused(pair, tmp_path):
    shutil.copytree(pair[0] / "before", tmp_path / "before")
    TransferPlan.all_random(5).save(tmp_path / "before" / "transfer_plan.npz")
    with pytest.raises(UserError, match="before: the plan is for 5 tokens, the tokenizer has"):
        drift(pair[0] / "after", tmp_path / "before")


def test_large_tables_are_compared_in_blocks(tmp_path):
    vocabulary = {f"w{i}": i for i in range(3_000)}
    tables = np.random.default_rng(0).normal(size=(2, len(vocabulary), 1024)).astype(np.float32)
    for name, table in zip(("before", "after"), tables, strict=True):
        (tmp_path / name).mkdir()
        backend = Tokenizer(models.WordPiece(vocabulary, unk_token="w0"))
        PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(tmp_path / name)
        config = GPT2Config(vocab_size=len(vocabulary), n_embd=1024, n_head=2, bos_token_id=None, eos_token_id=None)
        config.save_pretrained(tmp_path / name)
        safetensors.numpy.save_file({TABLE: table}, tmp_path / name / "model.safetensors")
    found = {}
    held = most_held(lambda: found.update(drift(tmp_path / "after", tmp_path / "before")))
    assert held < tables.nbytes, "less than both tables take in float32"
    old, new = tables.astype(np.float64)
    norms = [np.linalg.norm(table, axis=1) for table in (old, new)]
    assert found["groups"] == [
        {
            "how": "all",
            "tokens": 3_000,
            "cosine": pytest.approx(((old * new).sum(axis=1) / norms[0] / norms[1]).mean(), rel=1e-9),
            "change": pytest.approx((np.linalg.norm(new - old, axis=1) / norms[0]).mean(), rel=1e-9),
            "length": pytest.approx((norms[1] / norms[0]).mean(), rel=1e-9),
        }
    ]


def test_the_terminal_and_json_tell_it(pair, capsys):
    root = pair[0]
    cli.main(["inspect", str(root / "after"), f"--before={root / 'before'}", "--samples=2"])
    shown = capsys.readouterr().out
    assert "embeddings since" in shown and "nearest source tokens" in shown and "cosine to before" in shown
    cli.main(["inspect", str(root / "after"), f"--before={root / 'before'}", "--json"])
    assert json.loads(capsys.readouterr().out)["drift"]["groups"][0]["how"] == "all"


def test_another_model_is_refused(pair, capsys):
    with pytest.raises(SystemExit) as error:
        cli.main(["inspect", str(pair[0] / "after"), f"--before={demo.path('english-gpt2')}"])
    assert error.value.code == 2 and "expected the model that the training began with" in capsys.readouterr().err
