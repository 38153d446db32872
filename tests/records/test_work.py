"""What a transfer multiplies and adds: counted by hand, and by XLA for the kernel that takes most of it."""

import dataclasses
import threading

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from tqdm import tqdm

from wechsel_jax import search
from wechsel_jax.initializers import TransferPlan
from wechsel_jax.models.registry import GPT2
from wechsel_jax.records import work
from wechsel_jax.search.neighbors import _nominator
from wechsel_jax.transfers import calibration, unigram
from wechsel_jax.vectors import adversarial


def test_a_search_tells_what_xla_counts_of_its_kernel():
    queries, keys, m = 256, 512, 96
    generator = np.random.default_rng(0)
    with work.counted() as told:
        search.nearest_neighbors(*(generator.standard_normal((n, m)).astype(np.float32) for n in (queries, keys)), 1)
    shapes = (jax.ShapeDtypeStruct(shape, np.float32) for shape in ((queries, m), (1, m, keys), (1, keys)))
    lowered = _nominator(Mesh(np.asarray(jax.local_devices()[:1]), ("targets",)), 1).lower(*shapes)
    # XLA counts comparisons and the penalty besides, a few for each of the products.
    counted = lowered.compile().cost_analysis()["flops"]
    assert 2 * queries * keys * m < counted < 1.1 * 2 * queries * keys * m
    assert told.flops == pytest.approx(counted, rel=0.1) and told.flops > 2 * queries * keys * m


def test_adversarial_training_tells_what_xla_counts_of_its_steps(monkeypatch):
    m, hidden = 48, 96
    # XLA counts what is in a loop once.
    monkeypatch.setattr(adversarial, "_DISCRIMINATOR_STEPS", 1)
    rows = [jax.ShapeDtypeStruct((200, m), np.float32)] * 2
    pairs = ((m, hidden), (hidden, hidden), (hidden, 1))
    layers = [tuple(jax.ShapeDtypeStruct(n, np.float32) for n in (pair, pair[1:])) for pair in pairs]
    state = {"map": jax.ShapeDtypeStruct((m, m), np.float32), "discriminator": layers}
    run, key = adversarial._trainer(adversarial._BATCH_SIZE, 1), jax.random.key(0)
    lowered = run.lower(state, *rows, key, 0, 1, 0.1, adversarial._NUMBERS)
    counted = lowered.compile().cost_analysis()["flops"]
    monkeypatch.setattr(adversarial, "_trainer", lambda *sizes: lambda state, *others: (state, 0.0))
    with work.counted() as told, tqdm(disable=True) as bar:
        settings = adversarial.AdversarialSettings(epochs=1, iterations=1, hidden=hidden)
        adversarial._train_epoch(state, rows, settings, key, 1, 0.1, bar)
    assert told.flops < counted and told.flops == pytest.approx(counted, rel=0.15)


def test_calibration_tells_what_xla_counts_of_a_model_and_its_head():
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 16, "vocab_size": 400}
    config = dataclasses.replace(GPT2.config({"model_type": "gpt2", **sizes}, dropout=0.0), scan_layers=False)
    parameters = GPT2.init(config, jax.random.key(0))
    tokens = np.zeros((8, 16), np.int32)
    with work.counted() as of_model:
        hidden = calibration.hidden_states(GPT2, config, parameters, tokens, np.tile(np.arange(16), (8, 1)))
    counted = calibration._hidden.lower(GPT2, config, parameters, tokens).compile().cost_analysis()["flops"]
    # XLA counts all scores of a causal model, and what is done to single numbers.
    assert of_model.flops < counted and of_model.flops == pytest.approx(counted, rel=0.15)
    score = calibration.Score(GPT2, config)
    with work.counted() as of_head:
        unigram.cross_entropy(score, parameters, hidden, tokens.reshape(-1), size=400)
    with work.counted() as of_fit:
        unigram.fit_offsets(score, parameters, hidden, np.full(400, 1 / 400), steps=2)
    assert of_head.flops == 2 * 128 * 32 * 400
    assert of_fit.flops == 3 * (of_head.flops + 2 * 3 * 128 * 400)


def test_a_plan_tells_its_mixtures_and_its_two_products():
    plan = TransferPlan.mixed([[0, 1], [1, 0], [2, 2]], [[0.5, 0.5], [1, 0], [1, 1]]).with_copies(np.array([-1, -1, 0]))
    plan = plan.with_regression(np.ones((3, 2)), np.ones((2, 4)))
    with work.counted() as told:
        plan.apply(np.ones((4, 5), np.float32))
    # Three weights of two mixed rows; two coefficients of four source rows, which two rows read.
    assert told.flops == 2 * (3 * 5 + 2 * 4 * 5 + 2 * 2 * 5)


def test_other_threads_are_heard_where_they_are_asked_for_and_nobody_else():
    work.product(1, 1)
    with work.counted() as outer, work.counted() as inner:
        for function in (work.carried(work.solve), work.svd):
            thread = threading.Thread(target=function, args=(3, 5))
            thread.start(), thread.join()
        work.text(["für", "a"])
    assert inner.flops == 2 * 27 / 3 + 2 * 9 * 5 and inner.text_bytes == 5
    assert outer.flops == 0
