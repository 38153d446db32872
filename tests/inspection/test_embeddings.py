"""`wechsel-jax embeddings`: what is opened, what is judged, its file, and what the report makes of it."""

import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from wechsel_jax import cli, demo
from wechsel_jax.checkpoint import Checkpoint
from wechsel_jax.errors import UserError
from wechsel_jax.initializers import TransferPlan
from wechsel_jax.initializers.transforms import absorption, standardize
from wechsel_jax.inspection import positions
from wechsel_jax.inspection.analogies import read_questions
from wechsel_jax.inspection.distribution import TableRows, distribution, moments_of, transformed
from wechsel_jax.inspection.embeddings import judged, open_tables, study
from wechsel_jax.records.embeddings import EmbeddingsRecord
from wechsel_jax.report import embeddings_sections
from wechsel_jax.tokens import load_tokenizer
from wechsel_jax.transfers.new_table import make_table

QUESTIONS = ": capitals\nathens greece baghdad iraq\nGreece Athens Iraq Baghdad\n: none\nathens greece oslo norway\n"

BERT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
SIZES = {
    "gpt2": {"n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 32},
    "bert": BERT,
    "t5": {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2},
    "gemma3_text": BERT | {"num_key_value_heads": 1, "head_dim": 8},
}


@pytest.fixture(scope="module")
def glove(tmp_path_factory):
    """Word vectors in GloVe's form, far too spread out."""
    generator = np.random.default_rng(0)
    words = ["athens", "greece", "baghdad", "iraq", *(f"w{i}" for i in range(60))]
    table = 40 * generator.standard_normal((64, 24))
    table[3] = table[2] / np.linalg.norm(table[2]) + table[1] / np.linalg.norm(table[1]) - table[0] / np.linalg.norm(table[0])
    place = tmp_path_factory.mktemp("glove") / "glove.txt"
    rows = (f"{word} {' '.join(f'{x:.5f}' for x in row)}\n" for word, row in zip(words, table, strict=True))
    place.write_text("".join(rows), encoding="utf-8")
    place.with_name("questions.txt").write_text(QUESTIONS, encoding="utf-8")
    return place


def told(capsys, *arguments) -> str:
    cli.main(["embeddings", *map(str, arguments)])
    return capsys.readouterr().out


@pytest.fixture(scope="module")
def make_model(tmp_path_factory):
    """Returns a function that saves a tiny model of any kind with the demonstration's tokenizer: (directory, model)."""
    import torch
    import transformers

    def make(family: str, padding: int = 0, **fields):
        torch.manual_seed(0)
        config = transformers.AutoConfig.for_model(family, vocab_size=8192 + padding, **SIZES[family], **fields)
        model = (transformers.GPT2LMHeadModel if family == "gpt2" else transformers.AutoModel.from_config)(config)
        directory = tmp_path_factory.mktemp(family)
        model.save_pretrained(directory)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(Path(demo.path("english-gpt2")) / name, directory)
        return directory, model

    return make


@pytest.fixture(scope="module")
def transferred(make_model):
    """A GPT-2 with a plan beside it, as a transfer leaves them."""
    directory, _ = make_model("gpt2")
    copy = np.where(np.arange(8192) < 100, np.arange(8192), -1).astype(np.int32)
    plan = TransferPlan.mixed(np.zeros((8192, 1), np.int32), np.ones((8192, 1), np.float32)).with_copies(copy)
    plan.with_noise(np.arange(8192) >= 8000).save(directory / "transfer_plan.npz")
    return directory


def test_origins_of_a_transfer_are_measured_apart(transferred):
    (rows,) = open_tables(transferred)
    checkpoint = Checkpoint.open(transferred)
    table = checkpoint.read(checkpoint.table).astype(np.float64)
    found = {one.group: one for one in study(rows, steps=(), length=8).distributions}
    parts = {"all": slice(None), "copied": slice(100), "mixed": slice(100, 8000), "random": slice(8000, None)}
    assert found.keys() == parts.keys()
    for group, part in parts.items():
        assert found[group].rows == len(table[part])
        assert found[group].sd == pytest.approx(table[part].std(ddof=1), rel=1e-9)


def test_padding_is_no_row_and_an_untied_head_is_a_table_of_its_own(make_model):
    directory, model = make_model("gpt2", padding=20, tie_word_embeddings=False)
    tables = open_tables(directory)
    assert [one.table for one in tables] == ["transformer.wte.weight", "lm_head.weight"]
    for rows, weight in zip(tables, (model.get_input_embeddings().weight, model.lm_head.weight), strict=True):
        assert rows.shape == (8192, 16)
        np.testing.assert_array_equal(rows.read(np.arange(8192)), weight[:8192].detach().numpy())
    assert tables[0].positions.kind == "learned" and tables[1].positions is None


@pytest.mark.parametrize("family", ["bert", "t5", "gemma3_text"])
def test_tables_of_every_kind_of_model_are_opened(family, make_model):
    directory, model = make_model(family)
    (rows,) = open_tables(directory)
    weight = model.get_input_embeddings().weight.detach().numpy()
    assert distribution(rows).sd == pytest.approx(weight.astype(np.float64).std(ddof=1), rel=1e-9)
    own = next(one for one in study(rows, steps=(), length=8).findings if one.about == "own positions")
    kinds = {"bert": "positions explain", "t5": "attention alone", "gemma3_text": "queries and keys are turned"}
    assert kinds[family] in own.text and own.severity == "ok"


@pytest.mark.parametrize(("positions", "kind"), [("literal", "sinusoidal"), ("paired", "paired"), ("none", None)])
def test_models_that_were_trained_from_a_table_are_opened(positions, kind, make_model, tmp_path):
    """Kim et al.'s: the rows times sqrt(D), and sines."""
    directory, _ = make_model("gpt2")
    shutil.copytree(directory, tmp_path / "model")
    table = np.random.default_rng(0).standard_normal((8192, 16)).astype(np.float32)
    save_file({"src_tok_emb.embedding.weight": table}, tmp_path / "model" / "model.safetensors")
    config = {"model_type": "transformer", "vocab_size": 8192, "d_model": 16, "positions": positions}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (rows,) = open_tables(tmp_path / "model", length=8)
    np.testing.assert_array_equal(rows.read(np.arange(8192)), table)
    assert (rows.positions and (rows.positions.kind, rows.positions.scale)) == (kind and (kind, 4.0))


def test_words_of_a_model_are_its_tokens_that_start_one(transferred):
    (rows,) = open_tables(transferred)
    place = rows.words.index("the")
    assert rows.words.count("the") == 1
    assert load_tokenizer(transferred).convert_ids_to_tokens(place) == "Ġthe"


def test_a_new_table_has_its_words_and_the_drawn_rows_apart(glove, tmp_path):
    words = tmp_path / "words.txt"
    words.write_text("athens\nw1\nunheard\niraq\n", encoding="utf-8")
    made = make_table(
        tmp_path / "t.safetensors", tmp_path / "t.json", vectors=str(glove), words=str(words), standardize="pretrained_xavier"
    )
    (rows,) = open_tables(tmp_path / "t.safetensors")
    assert rows.words == ("athens", "w1", "unheard", "iraq") and made["found"] == 3
    assert rows.groups["drawn"].tolist() == [False, False, True, False]
    assert distribution(rows, group="found", where=rows.groups["found"]).ratio == pytest.approx(1, rel=1e-6)
    (tmp_path / "t.json").write_text(json.dumps({"words": ["one"], "missing_ids": []}), encoding="utf-8")
    with pytest.raises(UserError, match=r"t\.json: is not of a table with 4 rows"):
        open_tables(tmp_path / "t.safetensors")
    save_file({"embeddings": np.zeros((3, 0), np.float32)}, tmp_path / "t.safetensors")
    with pytest.raises(UserError, match=r"t\.safetensors: holds embeddings \[3, 0\]; expected a table"):
        open_tables(tmp_path / "t.safetensors")


def test_a_table_of_a_tokenizer_has_the_words_of_tokens_that_begin_one(tmp_path):
    place = tmp_path / "t.safetensors"
    make_table(place, tmp_path / "t.json", source=demo.path("english-gpt2"), tokenizer=demo.path("english-gpt2"))
    (rows,) = open_tables(place)
    (whole,) = open_tables(demo.path("english-gpt2"))
    assert rows.words == whole.words and rows.words.count(None) > 1000


def test_absorption_agrees_with_what_a_new_table_records(glove):
    (rows,) = open_tables(glove)
    scaled = next(one for one in study(rows, steps=(), length=64).absorptions if one.scale > 1 and not one.steps)
    theirs = absorption(rows.read(np.arange(64)), length=64)
    assert scaled.embedding_sd == pytest.approx(theirs["embedding_sd"], rel=1e-6)
    assert scaled.position_sd == pytest.approx(theirs["position_sd"], rel=1e-9)


def test_another_spread_is_measured_as_if_its_rows_were_read():
    table = np.random.default_rng(3).standard_normal((4000, 12)) * np.linspace(1, 4, 12) + 0.5
    rows = TableRows.of(table, "t")
    found = [one for one in study(rows, steps=(), kinds=("paired",), length=8).absorptions if one.steps]
    assert [one.steps for one in found] == [("pretrained_xavier",)] * 2 + [("xavier",)]
    for one in found:
        moments = moments_of(transformed(rows, *one.steps))
        share, linear = positions.absorption(*moments, positions.sinusoidal("paired", 8, 12), 8, one.scale)
        # Of a draw it is the expectation.
        close = {"rel": 0.05} if one.steps == ("xavier",) else {"rel": 1e-9}
        assert (one.share, one.linear) == (pytest.approx(share, **close), pytest.approx(linear, **close))
        assert one.embedding_sd == pytest.approx(one.scale * np.sqrt(2 / 4012), rel=1e-9)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_numbers_that_no_transformer_can_scale_are_named(dtype):
    """They would be infinite behind a step, and then said to stand in the table."""
    table = np.random.default_rng(0).normal(size=(50, 16)).astype(dtype)
    largest = np.finfo(np.float16 if dtype == np.float16 else np.float32).max
    table[7, 3] = -largest / 5
    study(TableRows.of(table, "t"), steps=("scaled",))
    table[7, 3] = -largest / 3
    with pytest.raises(UserError, match=r"^t: words holds -[\d.e+]+, which times the root of 16 dimensions is beyond float"):
        study(TableRows.of(table, "t"), steps=("scaled",))


@pytest.mark.parametrize(
    ("spread", "scale_severity", "position_severity"),
    [(6.0, "wrong", "wrong"), (0.25, "look", "ok"), (0.06, "ok", "ok"), (0.002, "look", "look")],
)
def test_the_verdict_is_the_papers(spread, scale_severity, position_severity):
    """By table 6: GloVe's are absorbed, BERT's and Xavier's are not, and unscaled Xavier's drown."""
    table = np.random.default_rng(0).standard_normal((2000, 20)) * spread
    found = {one.about: one for one in judged(study(TableRows.of(table, "t"), steps=(), kinds=("paired",)))}
    assert (found["spread"].severity, found["new positions"].severity) == (scale_severity, position_severity)
    standard = standardize(table, "pretrained_xavier")
    assert study(TableRows.of(standard, "t"), steps=()).findings[-1].severity == "ok"


def test_a_draw_of_xaviers_is_not_drowned_by_positions():
    """However large the table is; positions then explain nearly all of what a new model begins with."""
    table = np.random.default_rng(0).standard_normal((30_000, 8)) * math.sqrt(2 / 30_008)
    found = {one.about: one for one in study(TableRows.of(table, "t"), steps=()).findings}
    assert found["new positions"].value > 0.98 and found["new positions"].severity == "ok"
    found = {one.about: one for one in study(TableRows.of(table / 3, "t"), steps=()).findings}
    assert found["new positions"].severity == "look" and "drown" in found["new positions"].text


def test_rows_that_point_in_one_direction_are_told_and_of_which_origin():
    table = np.random.default_rng(0).standard_normal((2000, 20)) * 0.03
    assert "likeness" not in {one.about for one in study(TableRows.of(table, "t"), steps=()).findings}
    (found,) = [one for one in study(TableRows.of(table + 5, "t"), steps=()).findings if one.about == "likeness"]
    assert found.severity == "wrong" and found.value > 0.99 and found.text.startswith("The rows are alike")
    random = np.arange(2000) < 100
    table[random] = table[0]
    (found,) = [
        one
        for one in study(TableRows.of(table, "t", groups={"mixed": ~random, "random": random}), steps=()).findings
        if one.about == "likeness"
    ]
    assert found.severity == "wrong" and found.text.startswith("The 100 random rows are alike, their mean cosine is 1.000")


def test_the_verb_says_it_and_writes_it(glove, tmp_path, capsys):
    output = tmp_path / "embeddings.json"
    text = told(capsys, glove, f"--analogies={glove.with_name('questions.txt')}", f"--output={output}", "--length=8", "--probe")
    assert "Will they train well? 2 things are wrong." in text and "they are absorbed" in text
    (table,) = EmbeddingsRecord.read(output).tables
    (rows,) = open_tables(glove)
    assert table == study(rows, length=8, probe=True, questions=read_questions(glove.with_name("questions.txt")))
    plain = table.analogies[0]
    assert (plain.asked, plain.total) == (3, 2) and plain.sections == {"capitals": (plain.correct, 2)} and plain.correct >= 1
    with pytest.raises(SystemExit):
        cli.main(["embeddings", str(glove), f"--output={output}"])
    assert "exists" in capsys.readouterr().err


def test_what_appears_during_the_work_is_not_replaced(glove, tmp_path, monkeypatch, capsys):
    output = tmp_path / "embeddings.json"

    def slow(*arguments, **options):
        output.write_text("{}")
        return study(*arguments, **options)

    monkeypatch.setattr("wechsel_jax.inspection.embeddings.study", slow)
    with pytest.raises(SystemExit):
        cli.main(["embeddings", str(glove), "--length=8", f"--output={output}"])
    assert "exists" in capsys.readouterr().err and output.read_text() == "{}"


def test_who_reads_the_tables_may_go_away(glove, tmp_path, monkeypatch):
    """As `| head` does: what was measured is in the file."""

    def gone(*parts):
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("builtins.print", gone)
    with pytest.raises((SystemExit, BrokenPipeError)):
        cli.main(["embeddings", str(glove), "--length=8", f"--output={tmp_path / 'embeddings.json'}"])
    assert len(EmbeddingsRecord.read(tmp_path / "embeddings.json").tables) == 1


def test_the_report_tells_it_in_a_page_and_in_markdown(glove, transferred, tmp_path, capsys):
    record = tmp_path / "embeddings.json"
    told(capsys, glove, transferred, f"--output={record}", "--length=8", "--steps=pretrained_xavier,scaled")
    for name in ("page.html", "page.md"):
        cli.main(["report", str(record), f"--output={tmp_path / name}"])
    page, text = ((tmp_path / name).read_text(encoding="utf-8") for name in ("page.html", "page.md"))
    assert page.count("<svg") == 4 and len(list(tmp_path.glob("page-embeddings-*.png"))) == 2
    tables = EmbeddingsRecord.read(record).tables
    for one in (part for table in tables for part in table.distributions):
        assert embeddings_sections.distribution_table([one]).rows[0][5] in text
    # The parts of the rows by their names, each once.
    ranges = [re.findall(r"(?:^|; )([a-z ]+?) -?[\d.]", found) for found in re.findall(r"Whole ranges: (.*)", text)]
    assert ["as it is", "copied", "mixed", "random"] in [names[:4] for names in ranges]
    assert text.count("## ") >= 2 and "Will they train well?" in text and re.search(r"learned \|", text)


@pytest.mark.parametrize(
    "content", ["{}", '{"embeddings_format": 2, "tables": []}', '{"embeddings_format": 1, "tables": [{"name": 3}]}']
)
def test_a_file_of_something_else_is_one_line(content, tmp_path):
    file = tmp_path / "embeddings.json"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=f"^{file}: .*expected "):
        EmbeddingsRecord.read(file)


def test_mistakes_are_one_line(glove, transferred, tmp_path, capsys):
    for arguments, message in (
        ([glove, "--steps=turned"], "--steps=turned: unknown; expected some of scaled, "),
        ([glove, "--position_rows=9"], "--position_rows: is for --analogies; expected that, or leave it out"),
        ([glove, "--positions=learned"], "--positions=learned: unknown"),
        ([glove, "--output=x.txt"], "expected a name that ends in .json"),
        ([tmp_path / "nothing"], "no such directory"),
        ([], "expected MODEL|VECTORS|TABLE"),
    ):
        with pytest.raises(SystemExit) as stopped:
            cli.main(["embeddings", *map(str, arguments)])
        error = capsys.readouterr().err
        assert stopped.value.code == 2 and message in error and error.count("\n") == 1
    moved = shutil.copytree(transferred, tmp_path / "model")
    TransferPlan.all_random(10).save(moved / "transfer_plan.npz")
    with pytest.raises(UserError, match=r"the plan is for 10 tokens, the tokenizer has 8192"):
        open_tables(moved)
