"""lm-eval's whole run with this package's models beside its own with torch, and the native scorer beside both."""

import dataclasses
import functools
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from tests.evaluation.tiny_models import save
from wechsel_jax import demo
from wechsel_jax.errors import UserError
from wechsel_jax.evaluation import harness, reading
from wechsel_jax.evaluation.choice import score_choices
from wechsel_jax.evaluation.harness_model import HarnessModel
from wechsel_jax.evaluation.reading import continued, reading_examples, reading_prompts, score_reading
from wechsel_jax.tokens import load_tokenizer

TASKS = Path(__file__).parents[2] / "configs" / "lm_eval"
METRICS = ("acc", "acc_norm", "acc_bytes")
ITEMS = 12


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def both(request, tmp_path_factory):
    """(lm-eval's model of this package, its own of torch)."""
    directory = save(tmp_path_factory.mktemp(request.param), request.param, 256)
    theirs = HFLM(str(directory), tokenizer=load_tokenizer(directory), device="cpu", dtype="float32", batch_size=8)
    return HarnessModel(str(directory)), theirs


def evaluate(model, task, path, shots):
    manager = TaskManager(include_path=str(TASKS), include_defaults=False, metadata={"choice_file": str(path)})
    options = {"num_fewshot": shots, "limit": ITEMS, "bootstrap_iters": 1, "task_manager": manager}
    found = simple_evaluate(model, tasks=[task], **options)
    scores = [[value for value, _ in sample["filtered_resps"]] for sample in found["samples"][task]]
    return scores, found["results"][task]


@pytest.mark.slow
def test_three_ways_agree_item_by_item(both, data_directory):
    """Whole runs of lm-eval, which take seconds to begin: sentences by one family, questions behind examples by the other."""
    ours, theirs = both
    if ours.model.family.name == "gpt2":
        task, name, shots = "local_pairs", "multiblimp/eng.tsv.gz", 0
    else:
        task, name, shots = "local_choice", "xcopa/test.sw.jsonl.gz", 2
    path = data_directory / "labelled" / name
    expected, table = evaluate(theirs, task, path, shots)
    found, again = evaluate(ours, task, path, shots)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    metrics, items = score_choices(ours.model, path, shots=shots, limit=ITEMS + shots)
    np.testing.assert_allclose(items["log_likelihood"][:ITEMS], expected, rtol=1e-4)
    assert items["choice"][:ITEMS].tolist() == np.argmax(expected, axis=1).tolist() == np.argmax(found, axis=1).tolist()
    for metric in METRICS:
        assert again[f"{metric},none"] == table[f"{metric},none"] == pytest.approx(items[metric][:ITEMS].mean())
    if not shots:
        assert {metric: metrics[metric] for metric in METRICS} == {metric: table[f"{metric},none"] for metric in METRICS}
        assert metrics["acc_stderr"] == pytest.approx(table["acc_stderr,none"])


@pytest.mark.slow
@pytest.mark.parametrize("shots", [0, 1])
def test_a_file_of_questions_about_texts(both, tmp_path, shots):
    """The task's prompts and scores, which the native scorer has too; what models write is compared below."""
    files = {}
    for name, (who, why) in {"path": ("Who?", "Why?"), "questions": ("Wer?", "Warum?")}.items():
        texts = []
        for number, animal in enumerate(("dog", "cat")):
            answers = [{"text": animal, "answer_start": 4}]
            asked = [{"id": f"{number}-{i}", "question": one, "answers": answers} for i, one in enumerate((who, why))]
            texts.append({"paragraphs": [{"context": f"The {animal} sleeps.", "qas": asked}]})
        files[name] = tmp_path / f"{name}.json"
        files[name].write_text(json.dumps({"data": texts}), encoding="utf-8")
    options = {"words": "de"} | ({"questions": str(files["questions"]), "shots": shots} if shots else {})
    metadata = {"reading_file": str(files["path"]), **options}
    manager = TaskManager(include_path=str(TASKS), include_defaults=False, metadata=metadata)
    # The examples are the task's own, whatever lm-eval would show.
    found = simple_evaluate(both[0], tasks=["local_reading"], num_fewshot=shots, bootstrap_iters=1, task_manager=manager)
    metrics, items = score_reading(both[0].model, files["path"], **options)
    samples = found["samples"]["local_reading"]
    assert [sample["filtered_resps"][0] for sample in samples] == items["written"].tolist()
    prompts = [sample["arguments"][0][0] for sample in samples]
    assert prompts == reading_prompts(reading_examples(files["path"], options.get("questions")), "de", shots)
    assert all(("Wer?" in prompt or "Warum?" in prompt) == bool(shots) for prompt in prompts)
    assert all(prompt.count("Kontext") == 1 + shots for prompt in prompts)
    assert [found["results"]["local_reading"][f"{name},none"] for name in ("exact_match", "f1")] == [
        metrics["exact_match"],
        metrics["f1"],
    ]


def requests(kind, *arguments):
    return [Instance(kind, {}, one, number) for number, one in enumerate(arguments)]


@pytest.mark.slow
def test_texts_and_what_is_written_after_them(both):
    ours, theirs = both
    rolling = requests("loglikelihood_rolling", ("The quick brown fox. " * 40,), ("dog",))
    np.testing.assert_allclose(ours.loglikelihood_rolling(rolling), theirs.loglikelihood_rolling(rolling), rtol=1e-4)
    asked = requests(
        "generate_until",
        ("The quick brown", {"until": [], "max_gen_toks": 12}),
        ("Der faule Hund", {"until": ["e", "a"], "max_gen_toks": 12, "do_sample": False, "temperature": 0.0}),
        # Longer than the model reads.
        ("The lazy dog sleeps. " * 60, {"until": [], "max_gen_toks": 5}),
        ("The lazy", {"until": [], "max_gen_toks": 12}),
    )
    written = theirs.generate_until(asked, disable_tqdm=True)
    assert ours.generate_until(asked) == written
    # What ends a text is cut off in the order that is given, and may be a space, which decoding takes from the first token.
    prompt, text = "The quick brown", written[0]
    asked = [(prompt, {"until": until, "max_gen_toks": 12}) for until in ([text[3], text[2:4]], [text[2:4], text[3]], [" "])]
    asked = requests("generate_until", *asked)
    assert ours.generate_until(asked) == theirs.generate_until(asked, disable_tqdm=True)


@pytest.mark.slow
def test_what_the_models_file_says_of_generation_counts(both, monkeypatch, capsys):
    """As transformers takes it where a task leaves it open; draws, whose keys differ, are of its 50 likeliest tokens, too."""
    ours, theirs = both
    asked = requests("generate_until", ("The quick brown", {"until": [], "max_gen_toks": 12}))
    plain = ours.generate_until(asked)
    monkeypatch.setattr(theirs.model.generation_config, "repetition_penalty", 1.7)
    given = {**ours.model.generation_config, "repetition_penalty": 1.7, "no_repeat_ngram_size": 2}
    monkeypatch.setattr(ours, "model", dataclasses.replace(ours.model, generation_config=given))
    assert ours.generate_until(asked) == theirs.generate_until(asked, disable_tqdm=True) != plain
    assert "note: generation_config.json sets no_repeat_ngram_size" in capsys.readouterr().err
    # What only draws would read is no mistake in a greedy text.
    without = dataclasses.replace(ours.model, generation_config=given | {"top_k": -1})
    assert HarnessModel.generate_until(SimpleNamespace(model=without, max_length=256, seed=0), asked) == ours.generate_until(
        asked
    )
    seen = {}
    monkeypatch.setattr("wechsel_jax.evaluation.harness_model.continued", lambda *_, **given: (seen.update(given) or [""], 0))
    drawn = {"until": [], "max_gen_toks": 1, "do_sample": True, "temperature": 1.0}
    ours.generate_until(requests("generate_until", ("The", drawn)))
    assert {name: seen[name] for name in ("top_k", "top_p", "repetition_penalty")} == {
        **{"top_k": 50, "top_p": 1.0, "repetition_penalty": 1.7}
    }
    ours.generate_until(requests("generate_until", ("The", drawn | {"top_k": 0, "top_p": 0.5})))
    assert (seen["top_k"], seen["top_p"]) == (0, 0.5)


def test_a_template_without_system_turns_gets_none(both, monkeypatch):
    ours, theirs = both
    template = "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    template += "{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}]
    for tokenizer in (ours.model.tokenizer, theirs.tokenizer):
        monkeypatch.setattr(tokenizer, "chat_template", template)
    assert ours.apply_chat_template(talk) == theirs.apply_chat_template(talk) == "user: Who?\n"


def test_nothing_follows_the_end_of_text_of_the_tokenizer(both, monkeypatch):
    """Where the model's configuration names another one, as lm-eval cuts it."""
    model = both[0].model
    first, second = (model.tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("The fox", "sleeps"))
    written = [SimpleNamespace(tokens=(*first, model.tokenizer.eos_token_id, *second))]
    monkeypatch.setattr(reading, "generate", lambda *_, **__: written)
    assert continued(model, ["A"], stop=(), max_tokens=9) == ([model.tokenizer.decode(first)], 0)


def test_what_cannot_be_generated(both):
    with pytest.raises(UserError, match=r"max_gen_toks 256: expected fewer than the 256 .* pass --gen_kwargs max_gen_toks=N"):
        both[0].generate_until(requests("generate_until", ("a", {"until": []})))
    with pytest.raises(UserError, match="generation_kwargs num_beams: expected until, max_gen_toks, do_sample"):
        both[0].generate_until(requests("generate_until", ("a", {"num_beams": 2, "max_gen_toks": 4})))


def test_wrong_arguments_of_the_model(tmp_path):
    with pytest.raises(UserError, match="model_args: has no parallelize; expected pretrained=DIR"):
        HarnessModel(str(tmp_path), parallelize=True)
    with pytest.raises(UserError, match="model_args: names no model; expected pretrained=DIR"):
        HarnessModel()


def test_a_missing_extra_is_one_line(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.setitem(sys.modules, "lm_eval.__main__", None)
    with pytest.raises(SystemExit) as ended:
        harness.main()
    assert ended.value.code == 2
    expected = "expected it to run its tasks with these models; run `pip install 'wechsel-jax[eval]'`"
    assert capsys.readouterr().err == f"lm_eval: error: lm_eval: not installed; {expected}\n"


@pytest.mark.parametrize(("task", "name"), [("choices", "choice_file"), ("reading", "reading_file")])
def test_a_task_without_its_file_says_which(task, name):
    spec = importlib.util.spec_from_file_location("files", TASKS / "files.py")
    spec.loader.exec_module(files := importlib.util.module_from_spec(spec))
    with pytest.raises(UserError, match=f"--metadata: has no {name}; expected the file of the task"):
        getattr(files, task)(pretrained="gpt2")


def arguments(path):
    options = {"--model": "wechsel_jax", "--model_args": f"pretrained={demo.path('english-gpt2')}", "--tasks": "local_pairs"}
    options |= {"--include_path": str(TASKS), "--metadata": json.dumps({"choice_file": str(path)})}
    return [part for option in options.items() for part in option]


@pytest.mark.slow
def test_a_broken_file_ends_the_command_with_one_line(tmp_path, monkeypatch, capsys):
    # lm-eval's program lists its own thousands of tasks first, which takes it eight seconds and is none of ours.
    monkeypatch.setattr(TaskManager, "__init__", functools.partialmethod(TaskManager.__init__, include_defaults=False))
    path = tmp_path / "a.tsv"
    path.write_text("sen\twrong_sen\nThe dog\n", encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["lm_eval", *arguments(path)])
    with pytest.raises(SystemExit) as ended:
        harness.main()
    assert ended.value.code == 2
    expected = f"lm_eval: error: {path}: line 2: has 1 columns; expected 2, as the first line has; mend the line"
    assert capsys.readouterr().err.splitlines()[-1] == expected


WITHOUT_TORCH = """
import functools, importlib.util, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "torch" else found(name, *more)
sys.meta_path.insert(0, Blocked())
from lm_eval.tasks import TaskManager
# As above.
TaskManager.__init__ = functools.partialmethod(TaskManager.__init__, include_defaults=False)
from wechsel_jax.evaluation.harness import main
main()
"""


@pytest.mark.slow
def test_the_command_of_a_user_without_torch(tmp_path):
    """A process of its own, because torch is imported here; lm-eval takes some seconds to begin."""
    path = tmp_path / "a.tsv"
    path.write_text("sen\twrong_sen\nThe dog\tdog The\nThe fox\tfox The\n", encoding="utf-8")
    command = [sys.executable, "-c", WITHOUT_TORCH, *arguments(path)]
    environment = {**os.environ, "PYTHONPATH": str(TASKS.parents[1])}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0 and "|local_pairs|" in run.stdout
