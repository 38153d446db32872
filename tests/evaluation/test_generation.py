"""What a model writes: against `generate` of `transformers` (torch) on the bundled model, and what must not change it."""

import dataclasses
import itertools
import json
import shutil

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tests.tiny_tokenizers import byte_bpe, sentencepiece_bpe
from wechsel_jax import cli, demo
from wechsel_jax.errors import UserError
from wechsel_jax.evaluation import generation
from wechsel_jax.evaluation.generation import end_tokens, generate, likeliest
from wechsel_jax.evaluation.loaded import LoadedModel, few_tokens
from wechsel_jax.models import family

PROMPTS = ["It was a dark and stormy night", "The", "She said", "", "“I do not know,” said the old man, “what to think of it.”"]
NEW = 24
LENGTH = f"--max_tokens={NEW}"


@pytest.fixture(scope="module")
def spread():
    """The bundled model on eight devices."""
    return LoadedModel.open(demo.path("english-gpt2"))


@pytest.fixture(scope="module")
def model(spread):
    """The same on one, whose programs compile sooner."""
    one = Mesh(np.asarray(jax.devices()[:1]), ("data",), axis_types=spread.mesh.axis_types)
    return dataclasses.replace(
        spread, mesh=one, parameters=jax.device_put(spread.parameters, NamedSharding(one, PartitionSpec()))
    )


@pytest.fixture(scope="module")
def greedy(model):
    return generate(model, PROMPTS, max_tokens=NEW)


def test_greedy_texts_are_those_of_transformers(model, greedy):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    reference = transformers.AutoModelForCausalLM.from_pretrained(model.directory, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(model.directory, padding_side="left", pad_token="<|endoftext|>")
    # An empty prompt is one begin-of-text token here, and an error there.
    given = tokenizer([prompt or tokenizer.bos_token for prompt in PROMPTS], padding=True, return_tensors="pt")
    settings = {"do_sample": False, "max_new_tokens": NEW, "pad_token_id": 0, "eos_token_id": tokenizer.eos_token_id}
    written = reference.generate(**given, **settings)[:, given["input_ids"].shape[1] :]
    assert [one.text for one in greedy] == tokenizer.batch_decode(written, skip_special_tokens=True)
    ends = [(row == tokenizer.eos_token_id).nonzero()[:1].flatten().tolist() for row in written]
    for one, row, end in zip(greedy, written.tolist(), ends, strict=True):
        assert list(one.tokens) == (row[: end[0] + 1] if end else row)
        assert one.end == ("eos" if end else "length")
    assert {one.end for one in greedy} == {"eos", "length"}


@pytest.mark.slow
def test_repetitions_are_less_likely_as_in_transformers(model, greedy):
    """Tokens of the prompt count, too. One prompt at a time: transformers counts what fills a shorter row as well."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    reference = transformers.AutoModelForCausalLM.from_pretrained(model.directory, dtype=torch.float32).eval()
    found = generate(model, PROMPTS, max_tokens=NEW, repetition_penalty=1.3)
    for prompt, one in zip(PROMPTS, found, strict=True):
        ids = torch.tensor([model.tokenizer(prompt or "<|endoftext|>")["input_ids"]])
        settings = {"do_sample": False, "max_new_tokens": NEW, "pad_token_id": 0, "repetition_penalty": 1.3}
        assert list(one.tokens) == reference.generate(ids, **settings)[0, ids.shape[1] :].tolist()
    assert [one.text for one in found] != [one.text for one in greedy]


@pytest.mark.slow
def test_top_k_leaves_so_many_tokens(model):
    prompt = model.tokenizer("of the")["input_ids"]
    hidden = model.family.hidden(model.parameters, model.config, np.array([prompt], np.int32))
    order = np.argsort(-np.asarray(model.family.logits(model.parameters, model.config, hidden))[0, -1])
    texts = generate(model, [prompt] * 200, max_tokens=1, temperature=3.0, top_k=5, batch_size=200)
    assert {text.tokens[0] for text in texts} == {*order[:5].tolist()}
    # Of these the likeliest; and one alone is no draw.
    [fewer] = {text.tokens[0] for text in generate(model, [prompt] * 20, max_tokens=1, temperature=3.0, top_k=1)}
    assert fewer == order[0]


@pytest.mark.slow
def test_draws_depend_on_the_prompt_and_the_seed_only(model, spread):
    """Neither on the other prompts of a batch, nor on how many devices share it, nor on whether ids are given."""
    settings = {"max_tokens": NEW, "temperature": 0.9, "top_p": 0.95, "seed": 3, "batch_size": 8}
    prompts = [*PROMPTS, "The", "A most", "The"]
    assert (model.rows, spread.rows) == (1, 8)
    texts = [text.text for text in generate(spread, prompts, **settings)]
    assert texts == [text.text for text in generate(model, prompts, **settings)]
    ids = [model.tokenizer(prompt or "<|endoftext|>")["input_ids"] for prompt in prompts]
    assert texts[:5] == [text.text for text in generate(spread, ids[:5], **settings)]
    # The same prompt at another place, or with another seed, goes on in another way.
    assert len({texts[1], texts[5], texts[7]}) == 3
    assert texts[1] not in [text.text for text in generate(spread, prompts, **settings | {"seed": 4})]


def test_top_p_keeps_what_transformers_keeps():
    torch = pytest.importorskip("torch")
    from transformers import TopPLogitsWarper

    scores = np.random.default_rng(0).normal(size=(5, 400)).astype(np.float32) * np.array(
        [[0.1], [1], [3], [9], [30]], np.float32
    )
    for share in (1e-6, 0.3, 0.9, 0.999):
        expected = TopPLogitsWarper(share)(None, torch.tensor(scores)).numpy()
        np.testing.assert_array_equal(likeliest(scores, np.float32(share)), expected)


@pytest.mark.slow
def test_draws_have_the_probabilities_of_the_model(model):
    """600 first tokens at temperature 0.7, from the likeliest 35 %: nothing else, and each as often as the logits say."""
    prompt = model.tokenizer("of the")["input_ids"]
    hidden = model.family.hidden(model.parameters, model.config, np.array([prompt], np.int32))
    scores = np.asarray(model.family.logits(model.parameters, model.config, hidden), np.float64)[0, -1] / 0.7
    shares = np.exp(scores - scores.max())
    shares /= shares.sum()
    order = np.argsort(-shares)
    kept = order[: np.searchsorted(np.cumsum(shares[order]), 0.35) + 1]
    count = 600
    texts = generate(model, [prompt] * count, max_tokens=1, temperature=0.7, top_p=0.35, batch_size=200)
    drawn = np.bincount([text.tokens[0] for text in texts], minlength=len(shares))
    assert 3 < len(kept) < 100 and drawn[kept].sum() == count
    expected = shares[kept] / shares[kept].sum()
    # Five standard deviations of a binomial count.
    assert np.all(np.abs(drawn[kept] - count * expected) < 5 * np.sqrt(count * expected * (1 - expected)) + 1)


def test_a_stop_string_ends_a_text_wherever_it_begins(model, greedy):
    """Inside of a token or over several; the text before it stays, and what is told early is never taken back."""
    whole = greedy[0].text
    told = []
    for stop in (whole[7:9], whole[10:25], whole[-1:]):
        told.clear()
        [one] = generate(model, PROMPTS[:1], max_tokens=NEW, stop=["§never§", stop], on_text=lambda *news: told.append(news))
        assert one.text == whole[: whole.index(stop)] == "".join(piece for _, piece in told)
        assert one.end == "stop" and one.tokens == greedy[0].tokens[: len(one.tokens)]
        assert stop in model.tokenizer.decode(one.tokens) and stop not in model.tokenizer.decode(one.tokens[:-1])


def script(monkeypatch, *texts):
    """Makes the devices write these ids, and zeros after them."""
    columns = itertools.chain(np.array(texts).T[:, :, None], itertools.repeat(np.zeros((len(texts), 1), int)))
    monkeypatch.setattr(generation, "_next_tokens", lambda *_: (next(columns), None, None))


def with_tokenizer(model, tokenizer):
    return dataclasses.replace(model, tokenizer=tokenizer, generation_config={"eos_token_id": tokenizer.eos_token_id})


def test_half_a_character_waits_for_the_other_half(model, monkeypatch):
    tokenizer = byte_bpe(False)
    ids = tokenizer("€ ß!")["input_ids"]
    assert len(ids) == 6
    script(monkeypatch, ids)
    told = []
    settings = {"max_tokens": len(ids), "on_text": lambda *news: told.append(news)}
    [one] = generate(with_tokenizer(model, tokenizer), ["a"], **settings)
    assert one.text == "€ ß!" and told == [(0, piece) for piece in one.text]
    script(monkeypatch, ids[:2])
    # At the end nothing is left to wait for: what transformers shows for half a character.
    [half] = generate(with_tokenizer(model, tokenizer), ["a"], max_tokens=2)
    assert half.text == tokenizer.decode(ids[:2]) == "\ufffd"


@pytest.mark.parametrize(("prompt", "expected"), [("the", " dog"), ("", "dog")])
def test_prompt_and_text_are_the_whole(model, monkeypatch, prompt, expected):
    """SentencePiece puts a space before a text, which is the text's own anywhere but at its beginning."""
    tokenizer = sentencepiece_bpe("llama")
    ids = tokenizer("dog", add_special_tokens=False)["input_ids"]
    script(monkeypatch, [*ids, tokenizer.eos_token_id])
    [one] = generate(with_tokenizer(model, tokenizer), [prompt], max_tokens=20)
    assert (one.text, one.end, len(one.tokens)) == (expected, "eos", len(ids) + 1)


def test_what_a_tokenizer_puts_behind_a_text_is_not_continued(model, monkeypatch):
    from tokenizers.processors import TemplateProcessing

    tokenizer = sentencepiece_bpe("llama")
    bare = tokenizer("the", add_special_tokens=False)["input_ids"]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    assert tokenizer("the")["input_ids"] == [1, *bare, 2]
    script(monkeypatch, [2, 2])
    texts = generate(with_tokenizer(model, tokenizer), ["the", ""], max_tokens=1)
    assert [text.prompt_tokens for text in texts] == [1 + len(bare), 1]


def test_a_text_ends_at_each_token_that_the_files_name(model, greedy, tmp_path):
    first = greedy[0].tokens
    named = dataclasses.replace(model, generation_config={"eos_token_id": [first[-1], first[4]]})
    [one] = generate(named, PROMPTS[:1], max_tokens=NEW)
    assert one.tokens == first[: min(first.index(first[4]), first.index(first[-1])) + 1] and one.end == "eos"
    assert one.text == model.tokenizer.decode(one.tokens[:-1])
    place = tmp_path / "config.json"
    place.write_text(json.dumps({"eos_token_id": 7}))
    assert end_tokens(dataclasses.replace(model, directory=tmp_path)) == {7}
    assert end_tokens(dataclasses.replace(named, directory=tmp_path)) == {first[-1], first[4]}
    place.write_text(json.dumps({"eos_token_id": 8192}))
    with pytest.raises(UserError, match=r"config.json: eos_token_id is \[8192\]; expected ids from 0 to 8191"):
        end_tokens(dataclasses.replace(model, directory=tmp_path))


def test_batches_of_like_lengths_share_programs(model):
    rng = np.random.default_rng(0)

    def write(lengths):
        done = []
        prompts = [rng.integers(1, 8192, length) for length in lengths]
        texts = generate(model, prompts, max_tokens=NEW, batch_size=8, progress=lambda *numbers: done.append(numbers))
        assert [text.prompt_tokens for text in texts] == lengths
        return done

    assert write([3, 16, 9, 1, 2]) == [(5, 5)]
    compiled = generation._next_tokens._cache_size()
    assert write([*range(1, 14), 5, 6, 7]) == [(8, 16), (16, 16)]
    assert generation._next_tokens._cache_size() == compiled


@pytest.mark.slow
def test_a_cache_that_grows_changes_nothing(spread, greedy, monkeypatch):
    monkeypatch.setattr(generation, "_FIRST_SLOTS", 4)
    assert [one.tokens for one in generate(spread, PROMPTS, max_tokens=NEW)] == [one.tokens for one in greedy]


def test_the_model_may_become_full(model):
    longest = model.config.max_length
    endless = dataclasses.replace(model, generation_config={"eos_token_id": []})
    [one, other] = generate(endless, [[5] * (longest - 3), [5] * 100], max_tokens=10)
    assert (len(one.tokens), one.end, len(other.tokens), other.end) == (3, "full", 10, "length")
    with pytest.raises(
        UserError, match="prompt 2: has 128 tokens, and the model reads 128 at once; expected at least one less"
    ):
        generate(model, ["a", [5] * longest])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_tokens": 0}, "max_tokens 0"),
        ({"temperature": -1.0}, "temperature: is -1.0"),
        ({"temperature": float("nan")}, "temperature: is nan"),
        ({"top_p": 0.0}, "top_p: is 0.0"),
        ({"top_k": -1}, "top_k: is -1"),
        ({"repetition_penalty": float("nan")}, "repetition_penalty: is nan"),
        ({"stop": ["a", ""]}, "stop: holds an empty string"),
        ({"prompts": [[8192]]}, "prompt 1: token 8192; expected ids from 0 to 8191"),
    ],
)
def test_mistakes_are_told(model, settings, message):
    with pytest.raises(UserError, match=message):
        generate(model, **{"prompts": ["a"], **settings})


def test_scores_that_are_no_numbers_make_no_text(model):
    damaged = dataclasses.replace(model, parameters=jax.tree.map(lambda one: one * np.nan, model.parameters))
    with pytest.raises(UserError, match="the score of a token is no number; expected weights that give one"):
        generate(damaged, PROMPTS, max_tokens=NEW)


def test_a_masked_model_writes_nothing(model):
    with pytest.raises(UserError, match="a roberta model fills masks and writes no text; expected a causal model"):
        generate(dataclasses.replace(model, family=family("roberta")), ["a"])


def call(capsys, *arguments) -> str:
    capsys.readouterr()
    cli.main(["generate", *map(str, arguments)])
    out, err = capsys.readouterr()
    assert "tokens/s) and" in err
    return out


def mistake(capsys, *arguments) -> str:
    with pytest.raises(SystemExit) as caught:
        call(capsys, *arguments)
    out, err = capsys.readouterr()
    assert caught.value.code == 2 and out == "" and err.count("\n") == 1
    return err


@pytest.fixture
def one_device(monkeypatch):
    """What a verb opens stands on one device: its programs compile sooner, and those of `model` serve it too."""
    monkeypatch.setattr(jax, "local_devices", lambda: jax.devices()[:1])


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory):
    """The bundled model with a template that writes turns in plain text, and defaults that draw."""
    place = tmp_path_factory.mktemp("generate") / "chat"
    shutil.copytree(demo.path("english-gpt2"), place)
    turns = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    (place / "chat_template.jinja").write_text(turns + "{% if add_generation_prompt %}answer:{% endif %}")
    (place / "generation_config.json").write_text(json.dumps({"do_sample": True, "temperature": 0.5, "top_p": 0.8}))
    return place


@pytest.mark.slow
def test_the_verb_prints_text_and_json(model, greedy, one_device, capsys, tmp_path):
    place = model.directory
    assert call(capsys, place, f"--prompt={PROMPTS[0]}", LENGTH) == PROMPTS[0] + greedy[0].text + "\n"
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS) + "\n", encoding="utf-8")
    printed = call(capsys, place, f"--prompts={tmp_path / 'prompts.txt'}", LENGTH, "--json")
    expected = [(prompt, one) for prompt, one in zip(PROMPTS, greedy, strict=True) if prompt]
    assert [json.loads(line) for line in printed.splitlines()] == [
        {"prompt": prompt, "text": one.text, "tokens": len(one.tokens), "end": one.end} for prompt, one in expected
    ]


@pytest.mark.slow
def test_the_verb_chats_with_the_defaults_of_the_model(chat_model, one_device, capsys):
    question = "Who was it?"
    turn = f"user: {question}\nanswer:"
    loaded = LoadedModel.open(chat_model)
    drawn = generate(loaded, [turn] * 2, max_tokens=NEW, temperature=0.5, top_p=0.8, seed=5)
    chat = (chat_model, "--chat", f"--prompt={question}", LENGTH)
    printed = call(capsys, *chat, "--seed=5", "--samples=2", "--json")
    assert [json.loads(line)["text"] for line in printed.splitlines()] == [one.text for one in drawn]
    [first] = generate(loaded, [turn], max_tokens=NEW)
    assert call(capsys, *chat, "--temperature=0") == first.text + "\n"
    # What else the model asks for is not done, and said.
    place = chat_model / "generation_config.json"
    before = place.read_text()
    more = {"no_repeat_ngram_size": 3, "num_beams": 1, "typical_p": 0.5, "min_p": None}
    place.write_text(json.dumps(json.loads(before) | more))
    for temperature, unread in (("0", "no_repeat_ngram_size"), ("1", "no_repeat_ngram_size, typical_p")):
        cli.main(["generate", *map(str, chat), f"--temperature={temperature}"])
        told = f"note: generation_config.json sets {unread}, which is not read here\n"
        assert told in capsys.readouterr().err
    place.write_text(json.dumps(json.loads(before) | {"top_k": 2, "repetition_penalty": 1.3}))
    [drawn_by_all] = generate(
        loaded, [turn], max_tokens=NEW, temperature=0.5, top_k=2, top_p=0.8, repetition_penalty=1.3, seed=5
    )
    assert call(capsys, *chat, "--seed=5") == drawn_by_all.text + "\n"
    [penalised] = generate(loaded, [turn], max_tokens=NEW, repetition_penalty=1.3)
    assert call(capsys, *chat, "--temperature=0") == penalised.text + "\n"
    place.write_text(before)
    assert first.text not in [one.text for one in drawn]


def test_mistakes_of_the_verb_are_one_line(model, chat_model, capsys, tmp_path):
    place = model.directory
    assert "expected either --prompt or --prompts" in mistake(capsys, place)
    assert "its tokenizer has no chat template" in mistake(capsys, place, "--prompt=a", "--chat")
    assert "temperature 0 writes the same text each time" in mistake(capsys, place, "--prompt=a", "--samples=2")
    for flag in ("top_k=3", "top_p=0.3", "seed=1"):
        assert f"--{flag.split('=')[0]}: has no effect at temperature 0" in mistake(capsys, place, "--prompt=a", f"--{flag}")
    # Otherwise minutes of silence, and then no memory.
    told = mistake(capsys, place, "--prompt=a", "--temperature=1", "--samples=16777216")
    assert "--samples=16777216: 1 times as many are more than 1,048,576 texts; expected fewer" in told
    assert "prompt 1: has" in mistake(capsys, place, f"--prompt={'a b ' * 200}")
    (tmp_path / "empty.txt").write_text("\n \n")
    assert "empty.txt: holds nothing but white space" in mistake(capsys, place, f"--prompts={tmp_path / 'empty.txt'}")
    (chat_model / "chat_template.jinja").write_text("{{ raise_exception('no users here') }}")
    assert "its chat template takes no user's turn (no users here)" in mistake(capsys, chat_model, "--prompt=a", "--chat")
    (chat_model / "chat_template.jinja").write_text("{{ 1 // 0 }}")
    assert "its chat template takes no user's turn (integer division" in mistake(capsys, chat_model, "--prompt=a", "--chat")
    (chat_model / "generation_config.json").write_text(json.dumps({"do_sample": True, "temperature": "hot"}))
    assert "generation_config.json: temperature is 'hot'" in mistake(capsys, chat_model, "--prompt=a")


def test_a_tokenizer_with_far_fewer_tokens_than_the_model_has_rows_is_mentioned(chat_model, capsys, tmp_path):
    """It may be another model's; a few rows without a token are padding, and not mentioned."""
    assert few_tokens("m", 50_257, 50_304) == few_tokens("m", 300, 427) == ""
    place = shutil.copytree(chat_model, tmp_path / "other", ignore=shutil.ignore_patterns("tokenizer*", "chat*", "generation*"))
    byte_bpe(False).save_pretrained(place)
    cli.main(["generate", str(place), "--prompt=a", "--max_tokens=1", "--temperature=0"])
    told = f"note: {place}: its tokenizer has 420 tokens, and the model 8,192 rows: make sure that it is the model's own\n"
    assert capsys.readouterr().err.startswith(told)
