"""What a transfer multiplies and adds: counted by hand, and by XLA for the kernel that takes most of it."""

import threading

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from wechsel_jax import search
from wechsel_jax.initializers import TransferPlan
from wechsel_jax.records import work
from wechsel_jax.search.neighbors import _nominator


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
