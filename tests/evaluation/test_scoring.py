"""Against lm-eval's `HFLM` with torch, item by item; pseudo-likelihoods against a loop over torch's model."""

import copy
import dataclasses
import json

import jax
import numpy as np
import pytest
import torch
import transformers
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from tokenizers import processors

from tests.evaluation.tiny_models import LENGTH, save
from wechsel_jax.errors import UserError
from wechsel_jax.evaluation import scoring
from wechsel_jax.evaluation.generation import generate
from wechsel_jax.evaluation.loaded import LoadedModel
from wechsel_jax.evaluation.scoring import encode_texts, loglikelihoods, pseudo_loglikelihoods, rolling_loglikelihoods
from wechsel_jax.tokens import load_tokenizer
from wechsel_jax.tokens.encoding import around

LONG = "The quick brown fox jumps over the lazy dog, and the dog sleeps. " * 4
PAIRS = [
    ("The quick brown", " fox"),
    ("The quick brown  ", "fox"),
    ("The quick brown \n", "fox jumps"),
    ("The lazy dog", " jumps over the fox"),
    ("Antwort:", " A"),
    ("Antwort:", " B"),
    ("Antwort:", " A"),
    ("", "Der schnelle Fuchs"),
    ("", " 日本語の文章"),
    (LONG, " and the end"),
    (LONG, LONG[:30]),
    ("x", LONG[:30]),
]


def test_merges_that_are_dropped_by_chance_are_not_in_scores(tmp_path):
    """A tokenizer of BPE dropout cuts a text in many ways, and a context apart from what follows it in others."""
    place = save(tmp_path / "model", "gpt2")
    state = json.loads((place / "tokenizer.json").read_text())
    plain = LoadedModel.open(place)
    (place / "tokenizer.json").write_text(json.dumps(state | {"model": state["model"] | {"dropout": 0.5}}))
    model = LoadedModel.open(place)
    assert model.tokenizer.backend_tokenizer.model.dropout == 0.5
    np.testing.assert_array_equal(loglikelihoods(model, PAIRS[:4])[0], loglikelihoods(plain, PAIRS[:4])[0])
    assert generate(model, [LONG[:40]], max_tokens=4) == generate(plain, [LONG[:40]], max_tokens=4)


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def both(request, tmp_path_factory):
    """(the model here, the same in lm-eval with torch)."""
    directory = save(tmp_path_factory.mktemp(request.param), request.param)
    # With its cache, lm-eval takes the wrong tokens of a pair that reads what another one does and is asked for fewer.
    options = {"device": "cpu", "dtype": "float32", "batch_size": 4, "logits_cache": False}
    theirs = HFLM(str(directory), tokenizer=load_tokenizer(directory), **options)
    return LoadedModel.open(directory), theirs


def requests(kind, arguments):
    return [Instance(kind, {}, one, number) for number, one in enumerate(arguments)]


def check(both, pairs):
    ours, theirs = both
    expected = theirs.loglikelihood(requests("loglikelihood", pairs), disable_tqdm=True)
    sums, greedy = loglikelihoods(ours, pairs)
    np.testing.assert_allclose(sums, [value for value, _ in expected], rtol=2e-5)
    assert greedy.tolist() == [value for _, value in expected]
    return sums


def test_every_pair_as_lm_eval_scores_it(both):
    begin = both[1].tokenizer.decode(both[1].prefix_token_id)
    assert both[0].config.max_length == LENGTH < len(both[1].tok_encode(LONG))
    sums = check(both, [*PAIRS, (f"{begin}The", " dog"), ("", f"{begin}The dog")])
    assert sums[4] == sums[6] != sums[5]


def test_what_ends_a_text_is_neither_context_nor_continuation(both):
    """A tokenizer may put a token behind every text, as RoBERTa's does, and a causal model may have been given it."""
    ours, _ = both
    pairs = [*PAIRS[:6], (LONG, " dog")]
    expected, rolling = loglikelihoods(ours, pairs), rolling_loglikelihoods(ours, [LONG, "The dog"])
    tokenizer = copy.deepcopy(ours.tokenizer)
    before, _ = around(tokenizer.backend_tokenizer)
    special = {tokenizer.convert_ids_to_tokens(one): one for one in (*before, ours.config.vocabulary_size - 1)}
    *first, last = special
    processor = processors.TemplateProcessing(" ".join([*first, "$A", last]), None, [*special.items()])
    tokenizer.backend_tokenizer.post_processor = processor
    ending = dataclasses.replace(ours, tokenizer=tokenizer)
    assert encode_texts(ending, ["The dog"])["The dog"] == encode_texts(ours, ["The dog"])["The dog"]
    assert tokenizer("The dog").input_ids[-1] == special[last]
    np.testing.assert_array_equal(loglikelihoods(ending, pairs)[0], expected[0])
    np.testing.assert_array_equal(rolling_loglikelihoods(ending, [LONG, "The dog"]), rolling)


def test_a_first_guess_is_greedy(both):
    ours, theirs = both
    context = theirs.tok_encode("The lazy")
    with torch.no_grad():
        ids = theirs.model.generate(torch.tensor([context]), max_new_tokens=3, do_sample=False)[0].tolist()
    encoded = [(context, ids[len(context) :]), (context, [*ids[len(context) : -1], ids[-1] ^ 1])]
    assert scoring.token_loglikelihoods(ours, encoded)[1].tolist() == [True, False]


def test_texts_of_any_length_window_by_window(both):
    ours, theirs = both
    ids = theirs.tok_encode(LONG, add_special_tokens=False)
    sizes = (1, LENGTH - 2, LENGTH - 1, LENGTH, LENGTH + 1, 2 * LENGTH - 1, 2 * LENGTH, len(ids))
    texts = [theirs.tokenizer.decode(ids[:size]) for size in sizes] + [""]
    expected = theirs.loglikelihood_rolling(requests("loglikelihood_rolling", [(text,) for text in texts]), disable_tqdm=True)
    np.testing.assert_allclose(rolling_loglikelihoods(ours, texts), expected, rtol=2e-5)


def test_a_shorter_window_can_be_asked_for(both):
    ours, theirs = both
    theirs._max_length = 20
    try:
        (expected,) = theirs.loglikelihood_rolling(requests("loglikelihood_rolling", [(LONG,)]), disable_tqdm=True)
        (pair,) = theirs.loglikelihood(requests("loglikelihood", [(LONG, " dog")]), disable_tqdm=True)
    finally:
        theirs._max_length = None
    assert rolling_loglikelihoods(ours, [LONG], max_length=20) == pytest.approx(expected, rel=2e-5)
    assert loglikelihoods(ours, [(LONG, " dog")], max_length=20)[0] == pytest.approx(pair[0], rel=2e-5)
    with pytest.raises(UserError, match=f"max_length {LENGTH + 1}: expected at most {LENGTH} tokens"):
        rolling_loglikelihoods(ours, [LONG], max_length=LENGTH + 1)


@pytest.mark.parametrize("both", ["gpt2"], indirect=True)
def test_few_programs_are_compiled(both):
    rng = np.random.default_rng(0)
    drawn = [rng.integers(1, 260, size).tolist() for size in rng.integers(2, 32, 200)]
    before = scoring._nats_at._cache_size()
    scoring.token_loglikelihoods(both[0], [(ids[: len(ids) // 2], ids[len(ids) // 2 :]) for ids in drawn])
    assert scoring._nats_at._cache_size() - before <= 4


def test_a_sentence_that_is_longer_than_the_model_is_read_in_windows(both):
    ours, theirs = both
    ids = [theirs.prefix_token_id, *ours.tokenizer.encode(LONG, add_special_tokens=False)]
    total = 0.0
    for start in range(1, len(ids), LENGTH):
        end = min(start + LENGTH, len(ids))
        seen = torch.tensor([ids[max(0, end - 1 - LENGTH) : end - 1]])
        with torch.no_grad():
            scores = theirs.model(seen).logits[0, start - end :].double().log_softmax(-1)
        total += scores[torch.arange(end - start), torch.tensor(ids[start:end])].sum().item()
    sums, greedy = loglikelihoods(ours, [("", "The dog"), ("", LONG), ("The dog", " sleeps")])
    alone = [loglikelihoods(ours, [pair])[0][0] for pair in (("", "The dog"), ("The dog", " sleeps"))]
    assert len(ids) > 2 * LENGTH and sums[1] == pytest.approx(total, rel=2e-5) and not greedy[1]
    np.testing.assert_allclose(sums[[0, 2]], alone, rtol=1e-5)


def test_what_cannot_be_predicted(both):
    ours = both[0]
    with pytest.raises(UserError, match=f"has [0-9]+ tokens; expected at most the {LENGTH} that"):
        loglikelihoods(ours, [("a", LONG)])
    with pytest.raises(UserError, match="the text '': has no token of its own"):
        loglikelihoods(ours, [("The dog", "")])
    with pytest.raises(UserError, match="is a causal model; expected a masked language model"):
        pseudo_loglikelihoods(ours, [("", "The dog")])


def test_a_loss_that_is_no_number_is_no_score(both):
    damaged = dataclasses.replace(both[0], parameters=jax.tree.map(lambda one: one * np.nan, both[0].parameters))
    with pytest.raises(UserError, match="the loss of a token is no finite number; expected weights that give one"):
        loglikelihoods(damaged, [("The dog", " sleeps")])


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    directory = save(tmp_path_factory.mktemp("bert"), "bert")
    return LoadedModel.open(directory), transformers.BertForMaskedLM.from_pretrained(directory).eval()


@pytest.mark.parametrize("within_word", [False, True])
def test_each_token_masked_alone(bert, within_word):
    """Salazar et al.'s equation 1, and with the rest of a word masked too Kauf and Ivanova's."""
    ours, theirs = bert
    tokenizer = ours.tokenizer
    texts = ["The quick brown foxes", "Der faule Hund schläft weiterhin.", "dog"]
    expected, split = [], 0
    for text in texts:
        ids, total = tokenizer(text).input_ids, 0.0
        pieces = tokenizer.convert_ids_to_tokens(ids)
        split += sum(piece.startswith("##") for piece in pieces)
        for place in range(1, len(ids) - 1):
            masked, end = torch.tensor([ids]), place + 1
            while within_word and pieces[end].startswith("##"):
                end += 1
            masked[0, place:end] = tokenizer.mask_token_id
            with torch.no_grad():
                total += theirs(masked).logits[0, place].log_softmax(-1)[ids[place]].item()
        expected.append(total)
    assert split > 3
    found = pseudo_loglikelihoods(ours, [("", text) for text in texts], within_word=within_word)
    np.testing.assert_allclose(found, expected, rtol=2e-5)


def test_equal_texts_are_a_tie_whatever_stands_beside_them(bert, monkeypatch):
    """In batches of another shape the same row has another rounding, so it is scored once."""
    ours, asked, score = bert[0], [], scoring.score_rows
    monkeypatch.setattr(scoring, "score_rows", lambda model, rows: asked.extend(rows) or score(model, rows))
    first, other, again = pseudo_loglikelihoods(ours, [("", "The dog"), ("", "The dog sleeps"), ("", "The dog")])
    assert first == again != other
    ids = [len(ours.tokenizer(text, add_special_tokens=False).input_ids) for text in ("The dog", "The dog sleeps")]
    assert len(asked) == sum(ids)


def test_the_context_of_a_masked_choice_is_read_but_not_counted(bert):
    ours, theirs = bert
    ids = ours.tokenizer("the dog").input_ids
    count = len(ours.tokenizer("dog", add_special_tokens=False).input_ids)
    expected = 0.0
    for place in range(len(ids) - 1 - count, len(ids) - 1):
        masked = torch.tensor([ids])
        masked[0, place] = ours.tokenizer.mask_token_id
        with torch.no_grad():
            expected += theirs(masked).logits[0, place].log_softmax(-1)[ids[place]].item()
    assert pseudo_loglikelihoods(ours, [("the", " dog")]) == pytest.approx(expected, rel=2e-5)


def test_a_masked_model_predicts_no_continuation(bert):
    with pytest.raises(UserError, match="is a masked model; expected a causal one"):
        loglikelihoods(bert[0], [("the", " dog")])
    with pytest.raises(UserError, match="tokens; expected at most the 48 that"):
        pseudo_loglikelihoods(bert[0], [("", LONG)])
