"""Runs with next sentence prediction: what is said of new heads, the export as BERT's pretraining class, and mistakes."""

import random
import shutil

import numpy as np
import pytest
from ml_collections import ConfigDict

from tests.training.test_trelm import SPECIAL, tensors, write_bert
from wechsel_jax.data import prepare
from wechsel_jax.errors import UserError
from wechsel_jax.training import one_phase, train
from wechsel_jax.training.metrics import read_metrics
from wechsel_jax.training.run_data import find_data
from wechsel_jax.training.run_spec import build_run, named_model

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A BERT without pooler, text with a sentence a line and a blank line between documents, and text without."""
    folder, generator = tmp_path_factory.mktemp("nsp"), random.Random(0)
    names = [*SPECIAL, *(f"w{i}" for i in range(20))]
    write_bert(folder / "bert", names, 0)
    for name, count in (("train", 30), ("validation", 6)):
        sizes = [[generator.randint(2, 8) for _ in range(generator.randint(1, 6))] for _ in range(count)]
        documents = ["\n".join(" ".join(generator.choices(names[5:], k=size)) for size in some) for some in sizes]
        (folder / f"{name}.txt").write_text("\n\n".join(documents) + "\n")
    return folder


@pytest.fixture(scope="module")
def settings(folder, make_config):
    def make(**changes):
        begin = {"model__checkpoint": str(folder / "bert"), "model__tokenizer": "", "model__config": ConfigDict()}
        data = {f"data__{side}": (str(folder / f"{side}.txt"),) for side in ("train", "validation")}
        length = {"steps": 4, "eval_every": 4, "checkpoint_every": 2, "block_length": 16, "mesh__data": 1}
        fixed = {"objective": "mlm_nsp", "phases": one_phase(warmup=0.1), "data__documents": "paragraphs"}
        return make_config(**(begin | data | length | fixed | changes))

    return make


@pytest.mark.slow
def test_a_run_trains_both_heads_and_exports_them(folder, settings, tmp_path, capsys):
    config, workdir = settings(), tmp_path / "run"
    found = train(config, workdir)
    said = capsys.readouterr().err
    assert "bert: has no pooler.dense and no cls.seq_relationship; drawn from the seed" in said
    told = f"best held-out {found['bits_per_byte']:.3f} bits per byte, perplexity {np.exp(found['mlm_loss']):.2f}, at step 4"
    assert told in said
    assert found["loss"] == pytest.approx(found["mlm_loss"] + found["nsp_loss"]) and 0 <= found["nsp_accuracy"] <= 1
    assert found["bits_per_byte"] > 0 and found["perplexity"] == pytest.approx(np.exp(found["mlm_loss"]))
    model, info = transformers.BertForPreTraining.from_pretrained(workdir / "export", output_loading_info=True)
    assert not any(info.values()) and model.config.architectures == ["BertForPreTraining"]
    exported = tensors(workdir / "export")
    # What is trained on from there begins with both heads, and nothing is said.
    again = settings(model__checkpoint=str(workdir / "export"))
    spec = build_run(again)
    kernel = spec.load_parameters()["classifier"]["output"]["kernel"]()
    np.testing.assert_array_equal(kernel.T, exported["cls.seq_relationship.weight"])
    assert spec.notes == ()
    # With masked tokens alone, they are left out, and config.json does not promise them.
    again.objective = "mlm"
    assert named_model(again).hf_config["architectures"] == ["BertForMaskedLM"]
    # After a kill behind step 2 the run goes on to the same weights.
    other = tmp_path / "other"
    shutil.copytree(workdir, other)
    shutil.rmtree(other / "export")
    shutil.rmtree(other / "checkpoints" / "4")
    train(config, other)
    assert (other / "export" / "model.safetensors").read_bytes() == (workdir / "export" / "model.safetensors").read_bytes()
    assert [line["loss"] for line in read_metrics(other / "metrics.jsonl") if "loss" in line] == [
        line["loss"] for line in read_metrics(workdir / "metrics.jsonl") if "loss" in line
    ]


def test_text_without_sentences_is_refused_before_any_work(folder, settings, tmp_path):
    with pytest.raises(UserError, match=r"data.train: .*train.txt: each line is a document.*data.documents=paragraphs"):
        find_data(settings(data__documents="lines"))
    prepare(folder / "validation.txt", folder / "bert", tmp_path / "prepared", documents="paragraphs")
    with pytest.raises(UserError, match=r"prepared: was prepared without the places of its sentences"):
        find_data(settings(data__validation=(str(tmp_path / "prepared"),)))
    # A line of JSON lines is a document that may have several sentences.
    (tmp_path / "text.jsonl").write_text('{"text": "w1 w2\\nw3"}\n')
    find_data(settings(data__documents="lines", data__train=(str(tmp_path / "text.jsonl"),) * 2,
                       data__validation=(str(tmp_path / "text.jsonl"),)))  # fmt: skip


def test_a_roberta_is_refused(folder, settings):
    config = settings(model__checkpoint="", model__tokenizer=str(folder / "bert"))
    config.model.config = ConfigDict({"model_type": "roberta"})
    with pytest.raises(UserError, match="mlm_nsp does not fit a roberta, which has neither token types nor a pooler"):
        build_run(config)
