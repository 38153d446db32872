"""Translation by the trainer: an encoder-decoder with two tokenizers and tables, resumed exactly, exported and read again."""

import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from ml_collections import ConfigDict

from tests.training.conftest import WORDS
from tests.training.runs import assert_same_run
from wechsel_jax import cli
from wechsel_jax.data.examples import Task, read_examples
from wechsel_jax.errors import UserError
from wechsel_jax.evaluation.loaded import LoadedModel
from wechsel_jax.evaluation.translation import score_translations, translate
from wechsel_jax.records import read_run
from wechsel_jax.records.scores import ScoresRecord
from wechsel_jax.tokens.task_vocabulary import task_tokenizer
from wechsel_jax.training import finetune, one_phase, train
from wechsel_jax.training.exports import export_checkpoint
from wechsel_jax.training.metrics import read_metrics

MODEL = {
    "model_type": "transformer",
    "d_model": 32,
    "nhead": 2,
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "dim_feedforward": 48,
    "max_position_embeddings": 32,
}
# A language in which every word is spelled backwards.
OTHERS = {word: word[::-1] for word in WORDS}


@pytest.fixture(scope="module")
def sentences(tmp_path_factory) -> Path:
    """Sentences and their translations line by line, the tokenizers of both, and a table for each."""
    folder, generator = tmp_path_factory.mktemp("sentences"), random.Random(0)
    for name, count in (("train", 400), ("validation", 40)):
        sources = [" ".join(generator.choice(WORDS) for _ in range(generator.randint(2, 6))) for _ in range(count)]
        targets = [" ".join(OTHERS[word] for word in source.split()) for source in sources]
        (folder / f"{name}.source").write_text("\n".join(sources) + "\n")
        (folder / f"{name}.target").write_text("\n".join(targets) + "\n")
    generator = np.random.default_rng(0)
    for side in ("source", "target"):
        tokenizer = task_tokenizer([folder / f"train.{side}"], folder / side, min_count=2)
        table = 0.1 * generator.standard_normal((len(tokenizer), 32)).astype(np.float32)
        safetensors.numpy.save_file({"embeddings": table}, folder / f"{side}.safetensors")
    return folder


@pytest.fixture(scope="module")
def settings(make_config, sentences):
    """Returns a function (field=value, ...) -> settings of a short training."""

    def make(**changes) -> ConfigDict:
        data = {f"data__{side}": (f"{sentences / side}.source::{sentences / side}.target",) for side in ("train", "validation")}
        fields = {
            "objective": "translation",
            "steps": 12,
            "eval_every": 6,
            "checkpoint_every": 4,
            "model__config": ConfigDict(MODEL),
            "model__tokenizer": str(sentences / "source"),
            "model__target_tokenizer": str(sentences / "target"),
            "task__texts": ("source", "target"),
            "phases": one_phase(),
            "batch_size": 16,
            "optimizer__peak_learning_rate": 1e-2,
            "mesh__data": 1,
        }
        return make_config(**data | fields | changes)

    return make


@pytest.fixture(scope="module")
def trained(settings, sentences, tmp_path_factory):
    """(settings, workdir, result) of a training from tables that stay as they are."""
    frozen = one_phase(trainable="^(?!token_embedding|target_embedding)")
    tables = {
        f"model__{name}": str(sentences / f"{side}.safetensors")
        for name, side in (("embeddings", "source"), ("target_embeddings", "target"))
    }
    config = settings(epochs=4.0, task__bleu=True, phases=frozen, eval_every=50, checkpoint_every=50, **tables)
    workdir = tmp_path_factory.mktemp("translation") / "run"
    return config, workdir, train(config, workdir)


def test_it_learns_to_translate(trained):
    _, workdir, result = trained
    first = next(line for line in read_metrics(workdir / "metrics.jsonl") if line["kind"] == "eval")
    assert result["step"] == 100 and result["loss"] < first["loss"] / 2 and result["bleu"] > first["bleu"]
    assert read_run(workdir).data["train"]["documents"] == 400


def test_what_is_exported_translates_as_the_run_did(trained, sentences):
    _, workdir, result = trained
    model = LoadedModel.open(workdir / "export", translation=True)
    examples = read_examples(
        [f"{sentences / 'validation'}.source::{sentences / 'validation'}.target"], Task("translation", ("a", "b"))
    )
    written = translate(model, [one.texts[0] for one in examples], max_tokens=16)
    scores = score_translations([one.text for one in written], [one.target for one in examples])
    assert scores["bleu"] == pytest.approx(result["bleu"], abs=1e-9)


def test_the_verb_prints_translations_and_scores_them(trained, sentences, capsys):
    _, workdir, result = trained
    sides = [f"--{flag}={sentences / 'validation'}.{side}" for flag, side in (("input", "source"), ("reference", "target"))]
    cli.main(["translate", str(workdir), *sides, "--max_tokens=16"])
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 40 and f"BLEU {result['bleu']:.2f}, chrF" in printed.err
    for flags, message in (
        ([sides[0], f"--reference={sentences / 'train.target'}"], "train.target: has 400 lines and "),
        ([f"--input={sentences / 'missing'}"], "missing: no such file"),
    ):
        with pytest.raises(SystemExit) as ended:
            cli.main(["translate", str(workdir / "export"), *flags])
        assert ended.value.code == 2 and message in capsys.readouterr().err
    with pytest.raises(UserError, match="is an encoder-decoder that translates; expected a language model"):
        LoadedModel.open(workdir / "export")


def test_tables_are_the_start_and_stay_where_nothing_trains_them(trained, sentences):
    _, workdir, _ = trained
    tensors = safetensors.numpy.load_file(workdir / "export" / "model.safetensors")
    for name, side in (("src", "source"), ("tgt", "target")):
        table = safetensors.numpy.load_file(sentences / f"{side}.safetensors")["embeddings"]
        np.testing.assert_array_equal(tensors[f"{name}_tok_emb.embedding.weight"], table)


def test_the_same_command_again_trains_nothing_and_any_checkpoint_is_exported(trained, tmp_path):
    config, workdir, result = trained
    assert train(config, workdir) == result
    export_checkpoint(workdir, tmp_path / "export", 100, say=lambda text: None)
    for name in ("model.safetensors", "config.json", "target_tokenizer/tokenizer.json"):
        assert (tmp_path / "export" / name).read_bytes() == (workdir / "export" / name).read_bytes()


@pytest.mark.slow
def test_seeds_are_compared_by_bleu(settings, tmp_path):
    found = finetune(settings(steps=2, seeds=2, task__bleu=True, eval_every=2), tmp_path / "runs")
    assert found["metric"] == "bleu" and found["seeds"] == [0, 1] and len({*found["scores"]["loss"]["values"]}) == 2


@pytest.mark.slow
def test_a_run_that_stopped_goes_on_bit_for_bit(settings, tmp_path, capfd):
    config = settings(keep=9)
    train(config, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "again", ignore=shutil.ignore_patterns("export", "[5-9]", "1?"))
    train(config, tmp_path / "again")
    assert "going on from step 4" in capfd.readouterr().err
    assert_same_run(tmp_path / "whole", tmp_path / "again")


def test_training_goes_on_from_an_export(settings, trained, sentences, tmp_path):
    _, workdir, _ = trained
    start = {"model__checkpoint": str(workdir / "export"), "model__config": ConfigDict()}
    config = settings(**start, model__tokenizer="", model__target_tokenizer="", steps=1, optimizer__peak_learning_rate=1e-9)
    result = train(config, tmp_path / "run")
    assert result["loss"] == pytest.approx(trained[2]["loss"], abs=1e-4)
    other = settings(**start, model__tokenizer="", model__target_tokenizer=str(sentences / "source"))
    with pytest.raises(UserError, match=r"model\.target_tokenizer: .*source: \d+ of its first 14 tokens are others than in"):
        train(other, tmp_path / "other")


@pytest.mark.slow
def test_a_classifier_learns_from_a_table(settings, sentences, tmp_path):
    """The same settings with labels: Kim et al.'s encoder."""
    rows = [f"{line}\t{line.split()[0]}" for line in (sentences / "train.source").read_text().splitlines()]
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    (tmp_path / "validation.tsv").write_text("text\tlabel\n" + "\n".join(rows[:40]) + "\n")
    config = settings(
        objective="classification",
        data__train=(str(tmp_path / "train.tsv"),),
        data__validation=(str(tmp_path / "validation.tsv"),),
        task__texts=("text",),
        model__target_tokenizer="",
        model__embeddings=str(sentences / "source.safetensors"),
        phases=one_phase(trainable="^(?!token_embedding)"),
        steps=60,
        eval_every=60,
    )
    found = finetune(config, tmp_path / "run")
    assert found["metric"] == "accuracy" and found["score"] > 0.9
    tensors = safetensors.numpy.load_file(tmp_path / "run" / "export" / "model.safetensors")
    table = safetensors.numpy.load_file(sentences / "source.safetensors")["embeddings"]
    np.testing.assert_array_equal(tensors["src_tok_emb.embedding.weight"], table)
    cli.main(
        ["evaluate", str(tmp_path / "run"), f"--labels={tmp_path / 'validation.tsv'}", f"--output={tmp_path / 'scores.json'}"]
    )
    (score,) = ScoresRecord.read(tmp_path / "scores.json").scores
    assert score.metrics["accuracy"] == pytest.approx(found["score"])
    assert score.facts["embedding_parameters"] == table.size and score.facts["vocabulary_size"] == len(table)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model__target_tokenizer": ""}, r"model\.target_tokenizer: is empty; expected the directory of a tokenizer"),
        ({"task__texts": ("text",)}, r"task\.texts: is \['text'\]; expected the names of 2 to 2 columns"),
        (
            {"objective": "clm", "model__target_tokenizer": "", "task__texts": ("text",)},
            "objective: clm does not fit a transformer",
        ),
        (
            {"model__config": ConfigDict({"model_type": "gpt2"})},
            "objective: translation does not fit a gpt2; expected a model_type",
        ),
        ({"model__config": ConfigDict(MODEL | {"decoder_vocab_size": 13})}, "target: has 14 tokens and the decoder only 13"),
        ({"task__tokenize": "zh"}, r"task\.tokenize: is 'zh'; expected '13a': it is how task\.bleu counts"),
        ({"task__labels": ("a", "b")}, r"task\.labels: is \['a', 'b'\]; expected \[\]: it is for classification, tagging"),
        ({"objective": "classification", "task__bleu": True}, r"task\.bleu: is True; expected False: it is for translation"),
        ({"task__bleu": True, "task__tokenize": "klingon"}, r"task\.tokenize: klingon: sacrebleu has no such tokenizer"),
        ({"task__bleu": True, "task__tokenize": "ja-mecab"}, r"task\.tokenize: ja-mecab: .*pip install sacrebleu\[ja\]"),
        ({"model__target_embeddings": "source"}, r"source.safetensors: expected a tensor 'embeddings' of shape \(14, 16\)"),
    ],
)
def test_what_does_not_fit_is_one_line(settings, sentences, changes, message, tmp_path):
    if "model__target_embeddings" in changes:
        changes = {"model__target_embeddings": str(sentences / "source.safetensors")}
        changes["model__config"] = ConfigDict(MODEL | {"d_model": 16})
    with pytest.raises(UserError, match=message):
        train(settings(**changes), tmp_path / "run")


def test_sides_that_do_not_fit_are_one_line(settings, sentences, tmp_path):
    (tmp_path / "short").write_text("one line\n")
    config = settings(data__train=(f"{sentences / 'train.source'}::{tmp_path / 'short'}",))
    with pytest.raises(UserError, match=r"short: has 1 lines, and .*train\.source has 400"):
        train(config, tmp_path / "run")
    (tmp_path / "short").write_text("\n" * 400)
    with pytest.raises(UserError, match=r"train\.source::.*short: line 1: nothing in target, and a sentence in source"):
        train(config, tmp_path / "run")
