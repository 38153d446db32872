"""What a run's settings make of its text, and the command line."""

import json

import jax
import numpy as np
import pytest
from absl import flags

from wechsel_jax import cli
from wechsel_jax.commands import size
from wechsel_jax.data import TokenBlocks, evaluation_batches, prepare, prepare_split
from wechsel_jax.errors import UserError
from wechsel_jax.training import default_config, distributed, run_data
from wechsel_jax.training.config import validate


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.jsonl"
    path.write_text("".join(json.dumps({"body": f"Satz {i % 250} von vielen"}) + "\n" for i in range(400)))
    return path


def settings(**data):
    config = default_config()
    config.block_length = 8
    config.data.update({"text_field": "body", **data})
    return config


def blocks_of(config, tokenizer, workdir):
    return {
        side: run_data._blocks(config, side, str(tokenizer), workdir / "data" / side, False, print)
        for side in ("train", "validation")
    }


def test_every_setting_of_the_text_is_used(tmp_path, tokenizers, text):
    data = {"train": (str(text),), "validation_fraction": 0.2, "max_bytes": 2000, "deduplicate": True}
    blocks = blocks_of(settings(**data), tokenizers["gpt2"], tmp_path / "run")
    options = {"text_field": "body", "validation_fraction": 0.2, "max_bytes": 2000, "deduplicate": True}
    made = prepare_split(text, tokenizers["gpt2"], tmp_path / "out", **options)
    assert {side: block.fingerprint for side, block in blocks.items()} == {side: made[side]["sha256"] for side in made}
    assert blocks_of(settings(**data), tokenizers["gpt2"], tmp_path / "run")["train"].fingerprint == blocks["train"].fingerprint


def test_text_of_its_own_for_validation_is_not_sampled(tmp_path, tokenizers, text):
    data = {"train": (str(text),), "validation": (str(text),), "max_bytes": 2000}
    blocks = blocks_of(settings(**data), tokenizers["gpt2"], tmp_path / "run")
    assert len(blocks["train"]) < len(blocks["validation"])
    whole = prepare(text, tokenizers["gpt2"], tmp_path / "out", text_field="body")
    assert blocks["validation"].fingerprint == whole["sha256"]


@pytest.mark.parametrize("field", [{"max_bytes": 5}, {"deduplicate": True}, {"validation_fraction": 0.1}])
def test_settings_that_come_too_late_are_refused(tmp_path, tokenizers, text, field):
    prepare(text, tokenizers["gpt2"], tmp_path / "out", text_field="body")
    (name,) = field
    with pytest.raises(UserError, match=f"data.{name}: data.train is prepared already"):
        blocks_of(settings(train=(str(tmp_path / "out"),), **field), tokenizers["gpt2"], tmp_path / "run")


def test_settings_of_text_are_those_that_it_was_prepared_with(tmp_path, tokenizers, text):
    prepare(text, tokenizers["gpt2"], tmp_path / "out", text_field="body")
    both = dict.fromkeys(("train", "validation"), (str(tmp_path / "out"),))
    blocks_of(settings(**both), tokenizers["gpt2"], tmp_path / "run")
    blocks_of(settings(**both, text_field="text"), tokenizers["gpt2"], tmp_path / "run")
    for field, made in (({"text_field": "line"}, "body"), ({"documents": "paragraphs"}, "lines")):
        (name,) = field
        with pytest.raises(UserError, match=rf"data\.{name}: is .*out is prepared already, with '{made}'; expected that, or"):
            blocks_of(settings(**both, **field), tokenizers["gpt2"], tmp_path / "run")


def test_settings_of_text_are_not_for_labelled_examples(text):
    for field in ({"text_field": "body"}, {"documents": "files"}, {"max_document_bytes": 5}):
        config = settings(**{"train": (str(text),), "validation": (str(text),), "text_field": "text"} | field)
        config.objective, config.model.checkpoint = "classification", "model"
        with pytest.raises(UserError, match=rf"data\.{next(iter(field))}: is .*text without labels; see task\.texts"):
            validate(config)


def test_only_the_first_process_prepares(tmp_path, tokenizers, text, monkeypatch):
    config = settings(train=(str(text),), validation_fraction=0.2)
    prepare_split(text, tokenizers["gpt2"], tmp_path / "data" / "split", validation_fraction=0.2, text_field="body")
    monkeypatch.setattr(distributed, "is_first", lambda: False)
    waited = []
    monkeypatch.setattr(run_data, "wait_for", waited.append)
    for name in ("prepare", "prepare_split"):
        monkeypatch.setattr(run_data, name, None)
    blocks_of(config, tokenizers["gpt2"], tmp_path)
    assert waited == [tmp_path / "data" / "split" / side for side in ("train", "validation")]


class Watched(np.memmap):
    """A stream that notes which tokens are read."""

    def __getitem__(self, index):
        value = super().__getitem__(index)
        if isinstance(value, np.ndarray) and isinstance(index, np.ndarray):
            self.seen.append(index)
        return value

    def __array_finalize__(self, other):
        super().__array_finalize__(other)
        self.seen = getattr(other, "seen", [])


@pytest.mark.parametrize("causal", [True, False])
def test_a_host_reads_its_rows_only(tmp_path, tokenizers, text, causal):
    prepare(text, tokenizers["gpt2"], tmp_path / "out", text_field="body")
    whole = TokenBlocks.open(tmp_path / "out", 8)
    watched = whole.stream.view(Watched)
    blocks = TokenBlocks(whole.directory, 8, watched, whole.vocabulary_size, whole.fingerprint)
    parts = [blocks.batch(3, 16, 1, rows)["tokens"] for rows in (slice(0, 4), slice(4, 16))]
    assert np.array_equal(np.concatenate(parts), whole.batch(3, 16, 1)["tokens"])
    # A batch of 16 rows: 4 blocks are read for the first host, 12 for the other.
    assert [index.size for index in watched.seen] == [4, 12]
    watched.seen.clear()
    halves = [list(evaluation_batches(blocks, 6, causal, limit=3, rows=rows)) for rows in (slice(0, 2), slice(2, 6))]
    for both, batch in zip(zip(*halves, strict=True), evaluation_batches(whole, 6, causal, limit=3), strict=True):
        joined = jax.tree.map(lambda *rows: np.concatenate(rows), *both)
        assert all(np.array_equal(joined[name], batch[name]) for name in batch)
    assert sorted({index.shape for index in watched.seen}) == [(2, 8), (4, 8)]


def test_the_command(tmp_path, tokenizers, text, capsys):
    flags = [f"--input={text}", f"--tokenizer={tokenizers['gpt2']}", "--text_field=body"]
    chosen = ["--validation_fraction=0.2", "--deduplicate", "--max_bytes=2KB", "--verify", "--processes=0"]
    cli.main(["prepare", *flags, *chosen, f"--output={tmp_path}/out"])
    printed = capsys.readouterr().out
    options = {"text_field": "body", "validation_fraction": 0.2, "max_bytes": 2000, "deduplicate": True}
    made = prepare_split(text, tokenizers["gpt2"], tmp_path / "out", **options)
    assert f"out/train: {made['train']['documents']} documents, {made['train']['tokens']:,} tokens of uint16" in printed
    assert "left out (duplicates): 150 documents" in printed and "left out (subsample)" in printed
    cli.main(["prepare", *flags, f"--output={tmp_path}/all"])
    assert "all: 400 documents" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "expected"), [("16MiB", 16 << 20), ("4GiB", 4 << 30), ("2Ki", 2048), ("1.5 gb", 1_500_000_000), ("7", 7)]
)
def test_sizes(given, expected):
    values = flags.FlagValues()
    size(values, "large", "16MiB", "")
    assert values(["program", f"--large={given}"]) == ["program"] and values.large == expected
    for wrong in ("x", "-1", "1TB", "9" * 400, "5000000000GiB", "nan"):
        with pytest.raises(flags.IllegalFlagValueError, match="expected a size such as"):
            values(["program", f"--large={wrong}"])


def test_mistakes_on_the_command_line(tmp_path, tokenizers, text, capsys):
    command = ["prepare", f"--input={text}", f"--tokenizer={tokenizers['gpt2']}", f"--output={tmp_path}/out"]
    for more, message in (
        (["--max_bytes=x"], "--max_bytes=x: expected a size"),
        ([f"--processes={2**63}"], "in the range [0, 1024]"),
        (["--max_document_bytes=0"], "max_document_bytes 0: expected a number of bytes from 1 to"),
        (["--max_document_bytes=20"], "text.jsonl: line 1: longer than 20 bytes; expected shorter documents"),
        ([], "line 1: has no field 'text' but 'body'"),
    ):
        with pytest.raises(SystemExit) as left:
            cli.main(command + more)
        assert left.value.code == 2 and message in capsys.readouterr().err
