"""Batches made ahead: the same ones, not too many, errors where they belong, and no thread left behind."""

import threading
import time

import numpy as np
import pytest

from wechsel_jax.training.placement import Prefetcher


def make(step):
    return np.random.default_rng(step).integers(0, 1000, (4, 8))


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_the_batches_are_those_of_make(depth):
    prefetcher = Prefetcher(make, depth, end=20)
    for step in range(5, 20):
        np.testing.assert_array_equal(prefetcher.get(step), make(step))
    prefetcher.close()


def settled(made, count):
    """Waits until `count` batches were made, and a moment longer for one too many."""
    deadline = time.monotonic() + 20
    while len(made) < count and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.05)
    return made


def test_it_stays_depth_steps_ahead_and_never_passes_the_end():
    made = []
    prefetcher = Prefetcher(lambda step: made.append(step) or step, 2, end=7)
    assert prefetcher.get(3) == 3
    assert settled(made, 3) == [3, 4, 5]
    assert prefetcher.get(4) == 4
    assert settled(made, 4) == [3, 4, 5, 6]
    assert [prefetcher.get(5), prefetcher.get(6)] == [5, 6]
    assert settled(made, 4) == [3, 4, 5, 6]
    prefetcher.close()


def test_another_step_than_the_next_starts_over():
    prefetcher = Prefetcher(make, 2, end=99)
    prefetcher.get(0)
    np.testing.assert_array_equal(prefetcher.get(40), make(40))
    np.testing.assert_array_equal(prefetcher.get(41), make(41))
    np.testing.assert_array_equal(prefetcher.get(41), make(41))
    prefetcher.close()


@pytest.mark.parametrize("depth", [0, 2])
def test_an_error_shows_at_its_own_step_and_can_be_tried_again(depth):
    broken = {2}

    def fragile(step):
        if step in broken:
            raise OSError("disk gone")
        return step

    prefetcher = Prefetcher(fragile, depth, end=99)
    assert [prefetcher.get(0), prefetcher.get(1)] == [0, 1]
    with pytest.raises(OSError, match="disk gone"):
        prefetcher.get(2)
    broken.clear()
    assert prefetcher.get(2) == 2
    prefetcher.close()


def test_what_was_made_ahead_is_not_waited_for():
    made, more = [], threading.Event()

    def make_two(step):
        # A third one is made when this test says so.
        assert step < 2 or more.wait(60)
        made.append(step)
        return step

    ahead = Prefetcher(make_two, 1, end=99)
    assert ahead.get(0) == 0
    assert settled(made, 2) == [0, 1]
    assert ahead.get(1) == 1 and made == [0, 1]
    more.set()
    ahead.close()


def test_no_thread_is_left_behind():
    before = threading.active_count()
    prefetcher = Prefetcher(make, 3, end=99)
    prefetcher.get(0)
    assert threading.active_count() == before + 1
    prefetcher.close()
    assert threading.active_count() == before
    prefetcher.close()
