"""Fine-tuning on labelled examples by the trainer: texts, words and answers, to models that transformers scores alike."""

import contextlib
import io
import json
import random
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import safetensors
from ml_collections import ConfigDict

from tests.forked import run_module
from tests.training.conftest import MODEL, WORDS
from tests.training.runs import assert_same_run, lines_without_timing
from wechsel_jax import cli
from wechsel_jax.comparison import default_config as comparison_config
from wechsel_jax.data.examples import Task, read_examples
from wechsel_jax.errors import UserError
from wechsel_jax.evaluation.labels import score_labelled
from wechsel_jax.records import best_evaluation, read_run
from wechsel_jax.records.run import seed_runs
from wechsel_jax.records.scores import ScoresRecord
from wechsel_jax.report import write_report
from wechsel_jax.report.runs import read_runs
from wechsel_jax.training import finetune, loop, one_phase, seeds, train
from wechsel_jax.training.exports import export_checkpoint
from wechsel_jax.training.labelled import open_labelled
from wechsel_jax.training.metrics import read_metrics
from wechsel_jax.training.run_spec import build_run
from wechsel_jax.training.workdir import differences

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

ENCODER = {
    "model_type": "bert",
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
    "pad_token_id": 0,
}
PAIRS = {"task__texts": ("one", "other"), "task__columns": ("one", "other", "label")}


@pytest.fixture(scope="module")
def labelled(tmp_path_factory) -> Path:
    """Pairs that share their first word or not, words with a label for what they are, each on the one before, and questions."""
    folder, generator = tmp_path_factory.mktemp("labelled"), random.Random(0)
    for name, count in (("train", 160), ("validation", 45)):
        pairs, tags, asked, trees = [], [], [], []
        for number in range(count):
            words = [generator.choice(WORDS) for _ in range(generator.choice((3, 5, 9, 35)))]
            first = words[0] if number % 2 else generator.choice([word for word in WORDS if word != words[0]])
            pairs.append(f"{' '.join(words)}\t{first}\t{'same' if number % 2 else 'other'}")
            # Short ones are padded to one length, which is one program to compile.
            words = words[:9]
            kinds = ["B-GREEK" if word in WORDS[:4] else "O" for word in words]
            tags.append("".join(f"{word}\t{kind}\n" for word, kind in zip(words, kinds, strict=True)))
            rows = enumerate(zip(words, ["root", *kinds[1:]], strict=True))
            trees.append("".join(f"{n + 1}\t{word}\t_\t_\t_\t_\t{n}\t{kind}:x\t_\t_\n" for n, (word, kind) in rows))
            context = " ".join(words)
            answer = {"text": words[1], "answer_start": len(words[0]) + 1}
            asked.append({"context": context, "qas": [{"id": str(number), "question": words[0], "answers": [answer]}]})
        (folder / f"{name}.tsv").write_text("\n".join(pairs) + "\n")
        (folder / f"{name}.conll").write_text("\n".join(tags))
        (folder / f"{name}.conllu").write_text("\n".join(trees))
        (folder / f"{name}.json").write_text(json.dumps({"data": [{"paragraphs": asked}]}))
    return folder


@pytest.fixture(scope="module")
def settings(make_config, labelled):
    """Returns a function (ending of the files, field=value, ...) -> settings of a short fine-tuning of a new model."""

    def make(ending, **changes):
        data = {f"data__{side}": (str(labelled / f"{side}.{ending}"),) for side in ("train", "validation")}
        fields = {"objective": "classification", "steps": 12, "eval_every": 6, "checkpoint_every": 4, "block_length": 64}
        fields |= {
            "model__config": ConfigDict(MODEL | {"n_positions": 64}),
            "phases": one_phase(),
            "batch_size": 8,
            "optimizer__peak_learning_rate": 1e-3,
            "mesh__data": 1,
        }
        return make_config(**data | fields | (PAIRS if ending == "tsv" else {}) | changes)

    return make


@pytest.fixture(scope="module")
def language_model(texts, tmp_path_factory):
    """A GPT-2 of transformers with new weights."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(texts / "tokenizer")
    tokenizer.save_pretrained(folder)
    described = transformers.AutoConfig.for_model(**MODEL | {"n_positions": 64, "vocab_size": len(tokenizer)})
    transformers.AutoModelForCausalLM.from_config(described).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def classified(settings, language_model, tmp_path_factory):
    """(settings, workdir, result) of a fine-tuning on pairs that begins with the language model."""
    config = settings("tsv", model__checkpoint=str(language_model), model__config=ConfigDict(), epochs=2.0)
    workdir = tmp_path_factory.mktemp("classified") / "run"
    with contextlib.redirect_stderr(io.StringIO()) as said:
        result = train(config, workdir)
    workdir.with_name("said.txt").write_text(said.getvalue())
    return config, workdir, result


@pytest.mark.slow
def test_it_lasts_as_many_epochs_and_records_the_labels(classified):
    _, workdir, result = classified
    recorded = json.loads((workdir / "config.json").read_text())
    assert recorded["steps"] == 40 == result["step"] and recorded["task"]["labels"] == ["other", "same"]
    assert "reads its training data 2.0 times\n" in workdir.with_name("said.txt").read_text()
    run = read_run(workdir)
    assert run.data["train"]["documents"] == 160
    assert best_evaluation(run.evaluations).step == max(run.evaluations[1:], key=lambda one: one.score).step
    assert {"accuracy", "macro_f1", "loss", "metric", "score", "examples"} <= {*result}
    assert result["metric"] == "accuracy" and result["score"] == result["accuracy"] and result["examples"] == 45
    assert "<title>A fine-tuned model</title>" in write_report([workdir], workdir.parent / "report.html").read_text("utf-8")


@pytest.mark.slow
def test_the_verb_scores_a_workdir(classified, labelled, tmp_path, capsys):
    """A run stands for its export, with the form and the columns that it was trained with."""
    _, workdir, result = classified
    examples, scores = labelled / "validation.tsv", tmp_path / "s.json"
    cli.main(["evaluate", f"tuned={workdir}", f"--labels=same={examples}", f"--output={scores}"])
    assert f"accuracy {100 * result['accuracy']:.1f} % of 45" in capsys.readouterr().out
    (score,) = ScoresRecord.read(scores).scores
    assert score.metrics["accuracy"] == pytest.approx(result["accuracy"]) and score.facts["architecture"] == "gpt2"


def test_transformers_scores_the_export_alike(classified, labelled):
    """Its tokenizer, its class, its loss: one example at a time, and all of them with padding."""
    _, workdir, result = classified
    export = workdir / "export"
    model = transformers.AutoModelForSequenceClassification.from_pretrained(export).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(export)
    losses, predicted = [], []
    examples = read_examples([labelled / "validation.tsv"], Task("classification", ("a", "b"), columns=("a", "b", "label")))
    for example in examples:
        with torch.no_grad():
            given = tokenizer(*example.texts, return_tensors="pt")
            out = model(**given, labels=torch.tensor([model.config.label2id[example.target]]))
        losses.append(out.loss.item())
        predicted.append(model.config.id2label[int(out.logits.argmax())])
    assert type(model).__name__ == "GPT2ForSequenceClassification"
    # The model of before has no token for it.
    batch = tokenizer(*map(list, zip(*(example.texts for example in examples), strict=True)), padding=True, return_tensors="pt")
    with torch.no_grad():
        labels = [model.config.id2label[int(found)] for found in model(**batch).logits.argmax(-1)]
    assert labels == predicted and batch["attention_mask"].min() == 0
    assert np.mean(losses) == pytest.approx(result["loss"], abs=2e-5)
    # The settings are the run's, for its export, too.
    scored = score_labelled(export, [labelled / "validation.tsv"])
    assert scored.predicted == predicted and scored.line()["score"] == result["score"]
    assert scored.numerators == [found == example.target for found, example in zip(predicted, examples, strict=True)]
    assert scored.metrics["loss"] == pytest.approx(result["loss"], abs=1e-6)


def test_another_file_is_scored_by_what_it_is_told(classified, labelled, tmp_path):
    _, workdir, _ = classified
    (tmp_path / "other.csv").write_text("b,a,gold\nstone,stone river,same\n")
    scored = score_labelled(workdir / "export", [tmp_path / "other.csv"], texts=("a", "b"), label="gold")
    assert scored.places == [f"{tmp_path / 'other.csv'}: line 2"] and len(scored.predicted) == 1 and "cut" not in scored.metrics
    cut = score_labelled(workdir / "export", [tmp_path / "other.csv"], texts=("a", "b"), label="gold", length=2)
    assert cut.metrics["cut"] == 1
    (tmp_path / "other.csv").write_text("b,a,gold\nstone,stone river,perhaps\n")
    with pytest.raises(
        UserError, match=r"other\.csv: line 2: label 'perhaps' is none of the model's; expected one of 'other', 'same'"
    ):
        score_labelled(workdir / "export", [tmp_path / "other.csv"], texts=("a", "b"), label="gold")


def test_a_language_model_and_one_for_labels_are_told_apart(classified, language_model, labelled):
    with pytest.raises(UserError, match="is a language model; expected a model with a head for labels"):
        score_labelled(language_model, [labelled / "validation.tsv"])


def test_the_same_command_again_trains_nothing_and_any_checkpoint_is_exported(classified, tmp_path):
    config, workdir, result = classified
    before = (workdir / "metrics.jsonl").read_bytes()
    assert train(config, workdir) == result and (workdir / "metrics.jsonl").read_bytes() == before
    assert export_checkpoint(workdir, tmp_path / "export", 40, say=lambda text: None) == 40
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (tmp_path / "export" / name).read_bytes() == (workdir / "export" / name).read_bytes()


def test_examples_that_changed_meanwhile_are_refused(classified, labelled, tmp_path):
    config, workdir, _ = classified
    again = tmp_path / "run"
    shutil.copytree(workdir, again, ignore=shutil.ignore_patterns("export", "40"))
    lines = [line for line in (workdir / "metrics.jsonl").read_text().splitlines(True) if json.loads(line)["step"] <= 36]
    (again / "metrics.jsonl").write_text("".join(lines))
    changed = (labelled / "validation.tsv").read_text().replace("\tsame", "\tother", 1)
    (tmp_path / "validation.tsv").write_text(changed)
    before = (again / "data" / "validation" / "manifest.json").read_bytes()
    other = config.copy_and_resolve_references()
    other.data.validation = (str(tmp_path / "validation.tsv"),)
    recorded = json.loads((again / "config.json").read_text())
    recorded["data"]["validation"] = [str(tmp_path / "validation.tsv")]
    (again / "config.json").write_text(json.dumps(recorded))
    with pytest.raises(UserError, match=r"data\.validation: the text or tokenizer has changed since this run began"):
        train(other, again)
    assert (again / "data" / "validation" / "manifest.json").read_bytes() == before
    # Also where nothing is left to train: the next seed, or the next model, would be of other examples.
    finished = shutil.copytree(workdir, tmp_path / "finished")
    (finished / "config.json").write_text(json.dumps(recorded))
    with pytest.raises(UserError, match=r"data\.validation: the text or tokenizer has changed since this run began"):
        train(other, finished)


def test_only_the_head_is_new_and_it_comes_from_the_seed(settings, language_model, tmp_path):
    from safetensors.numpy import load_file

    heads = []
    start = load_file(language_model / "model.safetensors")
    for seed in (0, 1):
        frozen = one_phase(trainable="^classifier")
        config = settings(
            "tsv", model__checkpoint=str(language_model), model__config=ConfigDict(), steps=1, seed=seed, phases=frozen
        )
        train(config, tmp_path / str(seed))
        tensors = load_file(tmp_path / str(seed) / "export" / "model.safetensors")
        heads.append(tensors.pop("score.weight"))
        assert {*tensors} == {*start} - {"lm_head.weight"}
        for name, value in tensors.items():
            np.testing.assert_array_equal(value, start[name])
    assert not np.array_equal(*heads)


def test_a_classifier_of_the_same_labels_goes_on_with_its_head(settings, classified, tmp_path):
    """And with its order of labels; of others, with a new head."""
    _, workdir, _ = classified
    export = tmp_path / "export"
    shutil.copytree(workdir / "export", export)
    described = json.loads((export / "config.json").read_text())
    described |= {"id2label": {"0": "same", "1": "other"}, "label2id": {"same": 0, "other": 1}, "num_labels": 2}
    described["problem_type"] = "multi_label_classification"
    (export / "config.json").write_text(json.dumps(described))
    config = settings("tsv", model__checkpoint=str(export), model__config=ConfigDict())
    resolved, data = open_labelled(config, tmp_path, print)
    assert tuple(resolved.task.labels) == ("same", "other") == data.train.labels
    with safetensors.safe_open(export / "model.safetensors", "numpy") as file:
        head = file.get_tensor("score.weight").T
    np.testing.assert_array_equal(build_run(resolved).load_parameters()["classifier"]["output"]["kernel"](), head)
    config.task.labels = ("other", "same")
    other = build_run(open_labelled(config, tmp_path, print)[0])
    assert not np.array_equal(other.load_parameters()["classifier"]["output"]["kernel"](), head)
    assert other.model.hf_config["id2label"] == {"0": "other", "1": "same"} and "num_labels" not in other.model.hf_config
    # transformers would take the labels of a text for several.
    assert "problem_type" not in other.model.hf_config


@pytest.mark.slow
def test_words_are_tagged_as_transformers_does(settings, labelled, tmp_path):
    config = settings(
        "conll", objective="tagging", model__config=ConfigDict(ENCODER), steps=40, optimizer__peak_learning_rate=1e-2
    )
    result = train(config, tmp_path / "run")
    assert result["metric"] == "f1" and result["score"] > 0.9, result
    model = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / "run" / "export").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "run" / "export")
    scored = score_labelled(tmp_path / "run", [labelled / "validation.conll"])
    for example, predicted in zip(
        read_examples([labelled / "validation.conll"], Task("tagging")), scored.predicted, strict=True
    ):
        given = tokenizer(" ".join(example.texts), return_tensors="pt", return_offsets_mapping=True)
        offsets = given.pop("offset_mapping")[0].tolist()
        with torch.no_grad():
            labels = model(**given).logits[0].argmax(-1).tolist()
        begins = [sum(len(word) + 1 for word in example.texts[:place]) for place in range(len(example.texts))]
        ends = [begin + len(word) for begin, word in zip(begins, example.texts, strict=True)]
        first = [
            next(i for i, (_, stop) in enumerate(offsets) if begin < stop <= end)
            for begin, end in zip(begins, ends, strict=True)
        ]
        assert [model.config.id2label[labels[place]] for place in first] == list(predicted)


@pytest.mark.slow
def test_trees_are_learned_scored_again_and_gone_on_with_exactly(settings, labelled, tmp_path):
    """The export has a backbone for transformers and scores the same; a run that goes on ends with the same bytes."""
    config = settings(
        "conllu", objective="parsing", model__config=ConfigDict(ENCODER), steps=40, optimizer__peak_learning_rate=1e-2
    )
    result = train(config, tmp_path / "run")
    assert result["metric"] == "las" and result["score"] == result["las"] <= result["uas"] and result["examples"] == 45
    first = read_run(tmp_path / "run").evaluations[0].score
    assert first < 0.2 and result["las"] > first + 0.2
    scored = score_labelled(tmp_path / "run", [labelled / "validation.conllu"])
    assert scored.line() == pytest.approx({name: result[name] for name in scored.line()}, abs=1e-6)
    for tree in scored.predicted:
        assert [head for head, _ in tree].count(0) == 1 == [relation for head, relation in tree if not head].count("root")
        assert all(0 <= head <= len(tree) and head != word for word, (head, _) in enumerate(tree, 1))
    backbone, found = transformers.AutoModel.from_pretrained(tmp_path / "run" / "export", output_loading_info=True)
    assert type(backbone).__name__ == "BertModel" and all("pooler" in name for name in found["missing_keys"])

    again = tmp_path / "again"
    shutil.copytree(tmp_path / "run", again, ignore=shutil.ignore_patterns("export", "40"))
    lines = (again / "metrics.jsonl").read_text().splitlines(True)
    (again / "metrics.jsonl").write_text("".join(line for line in lines if json.loads(line)["step"] <= 36))
    assert train(config, again)["loss"] == result["loss"]
    weights = [tmp_path / name / "export" / "model.safetensors" for name in ("run", "again")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


@pytest.mark.slow
def test_answers_are_found_as_by_transformers(settings, labelled, tmp_path):
    """Its span with the largest sum of scores, in one window, and nothing where the first token's is larger (SQuAD 2)."""
    for side in ("train", "validation"):
        content = json.loads((labelled / f"{side}.json").read_text())
        for paragraph in content["data"][0]["paragraphs"][::2]:
            paragraph["qas"][0] |= {"answers": [], "is_impossible": True}
        (tmp_path / f"{side}.json").write_text(json.dumps(content))
    config = settings("json", objective="answers", model__config=ConfigDict(ENCODER), task__stride=40, steps=12)
    config.data.train, config.data.validation = ((str(tmp_path / f"{side}.json"),) for side in ("train", "validation"))
    result = train(config, tmp_path / "run")
    assert result["metric"] == "f1" and result["score"] >= result["exact_match"] and "no_answer" in result
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path / "run" / "export").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "run" / "export")
    scored = score_labelled(tmp_path / "run", [labelled / "validation.json"])
    assert "" not in scored.predicted
    assert score_labelled(tmp_path / "run", [tmp_path / "validation.json"]).metrics["loss"] == pytest.approx(
        result["loss"], rel=1e-5
    )
    some = score_labelled(tmp_path / "run", [tmp_path / "validation.json"])
    examples = read_examples([labelled / "validation.json"], Task("answers"))
    for example, predicted, of_some in list(zip(examples, scored.predicted, some.predicted, strict=True))[:15]:
        found = tokenizer(*example.texts, return_tensors="pt", return_offsets_mapping=True)
        offsets = found.pop("offset_mapping")[0].tolist()
        of_text = [place for place, number in enumerate(found.sequence_ids(0)) if number == 1]
        types = torch.tensor([[0 if number == 0 else 1 for number in found.sequence_ids(0)]])
        types[0, : of_text[0]] = 0
        with torch.no_grad():
            out = model(**{**found, "token_type_ids": types})
        spans = [(i, j) for i in of_text for j in of_text if i <= j < i + 30]
        first, last = max(spans, key=lambda span: out.start_logits[0, span[0]] + out.end_logits[0, span[1]])
        assert example.texts[1][offsets[first][0] : offsets[last][1]].strip() == predicted
        best, nothing = out.start_logits[0, first] + out.end_logits[0, last], out.start_logits[0, 0] + out.end_logits[0, 0]
        assert of_some == ("" if nothing > best else predicted)


@pytest.mark.slow
def test_seeds_give_mean_and_spread(settings, tmp_path, capsys):
    config = settings("tsv", steps=2, seeds=2, seed=5)
    found = finetune(config, tmp_path / "runs")
    each = [read_metrics(tmp_path / "runs" / f"seed-{seed}" / "metrics.jsonl") for seed in (5, 6)]
    values = [next(line["loss"] for line in lines if line["kind"] == "eval" and line["step"] == 2) for lines in each]
    assert found["scores"]["loss"]["values"] == values and len({*values}) == 2
    assert found["scores"]["loss"]["mean"] == pytest.approx(np.mean(values))
    assert found["scores"]["loss"]["spread"] == pytest.approx(np.std(values, ddof=1))
    assert json.loads((tmp_path / "runs" / "seeds.json").read_text()) == found
    assert "accuracy: " in capsys.readouterr().out
    assert finetune(config, tmp_path / "runs") == found
    assert len(read_runs([tmp_path / "runs"])) == 2
    config.seeds = 1
    with pytest.raises(UserError, match="runs: holds a fine-tuning with several seeds; expected seeds as before"):
        finetune(config, tmp_path / "runs")
    # What is scored as their mean, whatever else lies there.
    (tmp_path / "runs" / "seed-notes").mkdir()
    assert seed_runs(tmp_path / "runs") == [tmp_path / "runs" / f"seed-{seed}" for seed in (5, 6)]


# A second call reads the same from the metrics, where JSON has no infinity.
@pytest.mark.parametrize("value", [float("inf"), float("nan"), None])
def test_a_score_that_is_not_finite_with_one_seed_has_no_mean(settings, tmp_path, monkeypatch, capsys, value):
    ends = {5: 1.0, 6: value}
    line = {"kind": "eval", "step": 2, "evaluation_seconds": 0.1, "metric": "accuracy", "score": 0.5}
    monkeypatch.setattr(seeds, "train", lambda config, place: line | {"loss": ends[config.seed]})
    found = finetune(settings("tsv", steps=2, seeds=2, seed=5), tmp_path / "runs")
    assert found["scores"] == {"score": {"mean": 0.5, "spread": 0.0, "values": [0.5, 0.5]}}
    del line["metric"], line["score"]
    finetune(settings("tsv", steps=2, seeds=2, seed=5), tmp_path / "runs")
    assert capsys.readouterr().out.splitlines() == [
        "accuracy: 0.5000 +- 0.0000 (2 seeds)",
        "loss: not finite with every seed (2 seeds)",
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"task__labels": ("same", "different")}, r"train\.tsv: line \d+: label 'other' is none of the model's"),
        ({"task__texts": ("one", "third")}, r"train\.tsv: line 1: has no column 'third'"),
        ({"task__columns": ()}, r"train\.tsv: line 2: has no column 'one'"),
        ({"data__validation": ("none.tsv",)}, r"none\.tsv: no such file"),
        ({"block_length": 65, "model__config": ConfigDict(ENCODER)}, r"block_length: 65 is more than the model's 64 positions"),
        ({"task__skip": ("other",)}, r"data\.train: all examples of \S*train\.tsv have the label 'same'"),
        ({"task__labels": ("same",)}, r"task\.labels: has 'same' alone; expected all labels of data\.train, or none"),
        ({"task__skip": ("other", "same")}, r"train\.tsv: holds no example"),
        ({"objective": "tagging"}, r"task\.texts: is \['one', 'other'\]; expected the names of 1 to 1 columns"),
        ({"task__language": "tlh"}, r"task\.language: is 'tlh'"),
        ({"task__stride": 7}, r"task\.stride: is 7; expected 64: it is for answers"),
        ({"objective": "answers", "task__texts": ("text",)}, r"task\.columns: is \['one', 'other', 'label'\]; expected \[\]"),
        ({"data__rows": "tlm"}, r"data\.rows: is 'tlm'; expected no value"),
        (
            {"objective": "parsing", "task__texts": ("text",), "task__columns": ()},
            r"train\.tsv: line 1: has 3 columns; expected the 10 of CoNLL-U",
        ),
        ({"objective": "clm"}, r"objective: clm needs no labels; expected one of classification, tagging, answers"),
        ({"seed": 2**31 - 1, "seeds": 2}, r"seed: is 2147483648; expected"),
        ({"data__max_bytes": 5}, r"data\.max_bytes: is 5; expected no value"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(settings, tmp_path, changes, said):
    with pytest.raises(UserError, match=said) as raised:
        finetune(settings("tsv", **changes), tmp_path / "run")
    assert "\n" not in str(raised.value)
    left = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"]
    assert not left


def test_the_program_says_a_mistake_in_one_line(tmp_path):
    done = run_module("train.finetune", "--config=configs/finetune.py:task=xnli,data=none", f"--workdir={tmp_path / 'run'}")
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("python -m train.finetune: error: none/xnli/dev-de.tsv.gz: no such file") and not [
        *tmp_path.iterdir()
    ]


def test_the_card_of_an_export_has_the_score(classified, tmp_path):
    _, workdir, _ = classified
    export_checkpoint(workdir, tmp_path / "export", "best", say=lambda text: None)
    card = (tmp_path / "export" / "README.md").read_text()
    best = max(one.score for one in read_run(workdir).evaluations if one.step)
    assert "| step | accuracy | loss |" in card and f"| {best:.4f} |" in card and "perplexity" not in card
    assert "GPT2ForSequenceClassification" in card


def test_a_missing_package_is_named(settings, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "seqeval.metrics", None)
    with pytest.raises(UserError, match=r"seqeval: not installed; .* score the entities of .*'wechsel-jax\[eval\]'"):
        train(settings("conll", objective="tagging"), tmp_path / "run")


@pytest.mark.slow
def test_the_rate_counts_a_step_that_runs_while_another_length_compiles(settings, tmp_path, monkeypatch):
    compiled, began = loop.compile_step, []

    def compile_step(*arguments, **named):
        began.append(sum(line["kind"] == "train" for line in read_metrics(tmp_path / "run" / "metrics.jsonl")))
        return compiled(*arguments, **named)

    monkeypatch.setattr(loop, "compile_step", compile_step)
    config = settings("tsv", steps=8, eval_every=8, checkpoint_every=8, log_every=1, task__group_by_length=True)
    train(config, tmp_path / "run")
    data, first = open_labelled(config, tmp_path / "run", print)[1].train, {}
    for step in range(config.steps):
        first.setdefault(data.positions(step, config.batch_size, config.seed), step)
    assert len(first) > 1 and began == sorted(first.values())


def test_a_run_of_an_earlier_version_goes_on(make_config):
    """Its config.json lacks what fine-tuning brought; only a value that changes something is a difference."""
    now = json.loads(json.dumps(make_config().to_dict(), default=list))
    earlier = {name: value for name, value in now.items() if name not in ("epochs", "seeds", "task")}
    assert differences(earlier, now) == [] and differences({"training": earlier}, {"training": now}) == []
    assert [name for name, *_ in differences(earlier, now | {"epochs": 2.0})] == ["epochs"]
    # And a comparison's lacks settings of transfers.
    transfer = json.loads(json.dumps(comparison_config().transfer.to_dict(), default=list))
    before = {
        name: value
        for name, value in transfer.items()
        if name not in ("distill", "match_attention", "tune_coefficients", "pivots", "residual")
    }
    assert before != transfer and differences({"transfer": before}, {"transfer": transfer}) == []


@pytest.mark.slow
def test_a_killed_fine_tuning_goes_on_exactly_and_on_other_devices(runs, settings, tmp_path):
    config = settings("tsv", steps=40, eval_every=10, checkpoint_every=3, log_every=2, mesh__data=-1)
    runs.finish(config, tmp_path / "whole")
    for number, kill_at in enumerate((5, 17)):
        run = runs.start(config, tmp_path / "killed")
        run.reach(kill_at)
        run.send(signal.SIGKILL if number else signal.SIGTERM)
        assert run.wait() != 0, run.output
    shutil.copytree(tmp_path / "killed", tmp_path / "four")
    runs.finish(config, tmp_path / "killed")
    assert_same_run(tmp_path / "whole", tmp_path / "killed")
    runs.finish(config, tmp_path / "four", devices=4)
    for line, expected in zip(*map(lines_without_timing, (tmp_path / "four", tmp_path / "whole")), strict=True):
        assert line.get("loss", 0) == pytest.approx(expected.get("loss", 0), abs=2e-3)
