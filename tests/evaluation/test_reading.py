"""Answers that a model writes and their scores, beside lm-eval's model with torch and its copy of MLQA's rules."""

import json

import numpy as np
import pyarrow
import pytest
import yaml
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.utils import apply_template
from pyarrow import parquet

from tests.evaluation.test_choice import TASKS, utilities
from tests.evaluation.tiny_models import save
from wechsel_jax.data.examples import Task, read_examples
from wechsel_jax.errors import UserError
from wechsel_jax.evaluation import reading
from wechsel_jax.evaluation.loaded import LoadedModel
from wechsel_jax.evaluation.reading import reading_prompts, score_reading
from wechsel_jax.tokens import load_tokenizer

TEXTS = {
    "de": ("Der Fuchs springt über den Hund.", ["Wer springt?", "Über wen?"], "Der Hund schläft.", ["Wer schläft?"]),
    "en": ("The fox jumps over the dog.", ["Who jumps?", "Over whom?"], "The dog sleeps.", ["Who sleeps?"]),
}


def squad(directory, language, ids="abc"):
    ids, paragraphs = iter(ids), []
    for context, questions in paragraphs_of(TEXTS[language]):
        answer = {"text": context[4:8], "answer_start": 4}
        paragraphs.append(
            {"context": context, "qas": [{"id": next(ids), "question": one, "answers": [answer]} for one in questions]}
        )
    path = directory / f"{language}.json"
    path.write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}), encoding="utf-8")
    return path


def paragraphs_of(values):
    return zip(values[::2], values[1::2], strict=True)


@pytest.mark.parametrize("language", sorted({*reading.WORDS} - {"fr", "id", "sw"}))
def test_prompts_in_the_words_of_lm_eval(tmp_path, language):
    class Loader(yaml.SafeLoader):
        pass

    Loader.add_constructor("!function", lambda loader, node: None)
    template = yaml.load((TASKS / "xquad" / f"xquad_{language}.yaml").read_text(encoding="utf-8"), Loader)["doc_to_text"]
    examples = read_examples([squad(tmp_path, "de")], Task("answers"))
    expected = [apply_template(template, {"question": one.texts[0], "context": one.texts[1]}) for one in examples]
    assert reading_prompts(examples, language) == expected


def test_examples_are_about_other_texts(tmp_path):
    examples = read_examples([squad(tmp_path, "en")], Task("answers"))
    first, second, third = reading_prompts(examples, "en", 1)
    sleeps = "Context: The dog sleeps.\n\nQuestion: Who sleeps?\n\nAnswer:"
    assert first == f"{sleeps} dog \n\n{reading_prompts(examples, 'en')[0]}"
    assert second.startswith(sleeps) and second.endswith("Question: Over whom?\n\nAnswer:")
    assert third.startswith("Context: The fox") and third.endswith(sleeps)
    with pytest.raises(UserError, match="shots 2: there are 1 other texts; expected as many"):
        reading_prompts(examples, "en", 2)


def impossible(path, question):
    """Takes the answers of a question out of a file, as SQuAD 2 says it."""
    content = json.loads(path.read_text(encoding="utf-8"))
    for one in (one for part in content["data"][0]["paragraphs"] for one in part["qas"] if one["id"] == question):
        one |= {"answers": [], "is_impossible": True}
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_to_write_nothing_is_right_where_the_text_does_not_tell(gpt2, tmp_path, monkeypatch):
    path = impossible(squad(tmp_path, "en"), "c")
    for written, share in (("", 1.0), ("dog", 0.0)):
        monkeypatch.setattr(reading, "continued", lambda *_, written=written, **__: (["fox", "", written], 0))
        metrics, items = score_reading(gpt2, path)
        assert items["exact_match"].tolist() == items["f1"].tolist() == [1, 0, share]
        assert metrics["no_answer"] == share and metrics["has_answer_f1"] == 0.5 and metrics["f1"] == (1 + share) / 3
    # An example without an answer has nothing behind "Answer:".
    first, *_ = reading_prompts(read_examples([path], Task("answers")), "en", 1)
    assert first.startswith("Context: The dog sleeps.\n\nQuestion: Who sleeps?\n\nAnswer:\n\nContext: The fox")


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    return LoadedModel.open(save(tmp_path_factory.mktemp("gpt2"), "gpt2", 128))


def check(metrics, items, written, path):
    gold, rules = [example.target[0][0] for example in read_examples([path], Task("answers"))], utilities("mlqa")
    for name, compute in (("exact_match", rules.exact_match_score), ("f1", rules.f1_score)):
        values = [compute(text, right, "de") for right, text in zip(gold, written, strict=True)]
        np.testing.assert_allclose(items[name], values)
        assert metrics[name] == pytest.approx(np.mean(values))


def test_right_and_half_right_answers_count_as_in_mlqa(gpt2, tmp_path, monkeypatch):
    written, path = ["Der fuch!", "die Fuch und", "schläft"], squad(tmp_path, "de")
    monkeypatch.setattr(reading, "continued", lambda *_, **__: (written, 0))
    metrics, items = score_reading(gpt2, path, rules="de")
    check(metrics, items, written, path)
    assert items["exact_match"].tolist() == [1, 0, 0] and 0 < items["f1"][1] < 1


def test_answers_as_torch_writes_them_and_mlqa_compares_them(gpt2, tmp_path):
    texts, asked = squad(tmp_path, "de"), squad(tmp_path, "en")
    metrics, items = score_reading(gpt2, texts, questions=asked, words="de", rules="de", max_tokens=16)
    theirs = HFLM(str(gpt2.directory), tokenizer=load_tokenizer(gpt2.directory), device="cpu", dtype="float32", batch_size=4)
    contexts = [
        f"Kontext: {context}\n\nFrage: {question}\n\nAntwort:"
        for (context, own), (_, questions) in zip(paragraphs_of(TEXTS["de"]), paragraphs_of(TEXTS["en"]), strict=True)
        for question in questions
    ]
    requests = [Instance("generate_until", {}, (context, {"until": ["\n"], "max_gen_toks": 16}), 0) for context in contexts]
    expected = theirs.generate_until(requests, disable_tqdm=True)
    assert items["written"].tolist() == expected
    check(metrics, items, expected, texts)
    lengths = [len(theirs.tok_encode(context)) for context in contexts]
    assert metrics["items"] == 3 and metrics["cut"] == sum(length > 112 for length in lengths)


def test_questions_of_another_file_and_unknown_languages(gpt2, tmp_path):
    texts, other = squad(tmp_path, "de"), squad(tmp_path, "en", "abd")
    with pytest.raises(UserError, match=f"^{other}: has no question c, which {texts} has; expected the same questions"):
        score_reading(gpt2, texts, questions=other)
    twice = tmp_path / "twice.json"
    twice.write_text(other.read_text().replace('"b"', '"a"'))
    with pytest.raises(UserError, match=f"^{twice}: 1 questions have the id of another; expected an id for each"):
        score_reading(gpt2, texts, questions=twice)
    with pytest.raises(UserError, match="words 'xx': expected the language of the prompt, one of ar, de"):
        score_reading(gpt2, texts, words="xx")
    with pytest.raises(UserError, match="new tokens 128: expected fewer than the 128 that"):
        score_reading(gpt2, texts, max_tokens=128)


def test_a_masked_model_is_refused_before_its_tokens_are_looked_for(tmp_path):
    """A BERT has neither a first nor a last token, which is not what is wrong with it."""
    model = LoadedModel.open(save(tmp_path / "bert", "bert"))
    with pytest.raises(UserError, match="a bert model fills masks and writes no text; expected a causal model"):
        score_reading(model, squad(tmp_path, "de"))


def test_questions_of_parquet_are_found_by_their_ids(gpt2, tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "continued", lambda _, contexts, **__: (contexts, 0))
    for language, order in (("de", "abc"), ("en", "cab")):
        rows = [
            {
                "id": one,
                "question": f"{language} {one}?",
                "context": "The fox",
                "answers": {"text": ["fox"], "answer_start": [4]},
            }
            for one in order
        ]
        parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / f"{language}.parquet")
    _, items = score_reading(gpt2, tmp_path / "de.parquet", questions=tmp_path / "en.parquet")
    assert [text.split("Question: ")[1][:5] for text in items["written"]] == ["en a?", "en b?", "en c?"]
    unnamed = [{name: value for name, value in row.items() if name != "id"} for row in rows]
    parquet.write_table(pyarrow.Table.from_pylist(unnamed), tmp_path / "unnamed.parquet")
    with pytest.raises(UserError, match=r"unnamed\.parquet: row 1 .*: has no id; expected one"):
        score_reading(gpt2, tmp_path / "de.parquet", questions=tmp_path / "unnamed.parquet")
