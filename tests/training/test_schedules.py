import math

import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wechsel_jax.errors import UserError
from wechsel_jax.training.schedules import (
    DECAYS,
    make_phases,
    one_phase,
    phase_at,
    soft_share,
    stable_phase,
    trans_inner_phases,
)


def test_one_phase_equals_optax():
    (phase,) = make_phases(one_phase(warmup=0.1), 200, 5e-4)
    expected = optax.join_schedules([optax.linear_schedule(0.0, 5e-4, 20), optax.linear_schedule(5e-4, 0.0, 180)], [20])
    assert [phase.learning_rate(i) for i in range(200)] == pytest.approx(
        [float(expected(i)) for i in range(200)], rel=1e-5, abs=1e-10
    )
    assert phase.learning_rate(0) == 0.0
    assert phase.learning_rate(20) == 5e-4


def test_cosine_equals_optax():
    (phase,) = make_phases(one_phase(warmup=0.25, decay="cosine"), 80, 1e-3)
    expected = optax.warmup_cosine_decay_schedule(0.0, 1e-3, 20, 80)
    assert [phase.learning_rate(i) for i in range(80)] == pytest.approx(
        [float(expected(i)) for i in range(80)], rel=1e-4, abs=1e-9
    )


@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_floors_and_warmup_in_steps_equal_optax(decay):
    (phase,) = make_phases([{"name": "a", "steps": 90, "warmup_steps": 7, "decay": decay, "floor": 0.1, "peak": 2.0}], 90, 1e-3)
    down = {"linear": optax.linear_schedule(2e-3, 2e-4, 83), "cosine": optax.cosine_decay_schedule(2e-3, 83, alpha=0.1)}[decay]
    expected = optax.join_schedules([optax.linear_schedule(0.0, 2e-3, 7), down], [7])
    assert [phase.learning_rate(i) for i in range(90)] == pytest.approx(
        [float(expected(i)) for i in range(90)], rel=1e-4, abs=1e-9
    )


def test_soft_targets_fall_to_nothing():
    assert [soft_share({"share": 0.8, "steps": 0}, 40, step) for step in (0, 20, 40)] == pytest.approx([0.8, 0.6, 0.0])
    # In so many steps whatever the length of the run.
    for steps in (40, 400):
        assert [soft_share({"share": 0.8, "steps": 20}, steps, i) for i in (0, 10, 20, 39)] == pytest.approx([0.8, 0.6, 0, 0])


def test_one_phase_can_train_the_embeddings_alone():
    (phase,) = make_phases(one_phase(trainable="embeddings"), 50, 1.0)
    assert (phase.name, phase.trainable, phase.steps) == ("embeddings", "embeddings", 50)


def test_trans_inner_is_two_warmups():
    first, second = make_phases(trans_inner_phases(), 1000, 1e-4)
    assert (first.start, first.steps, first.trainable) == (0, 100, "tokens")
    assert (second.start, second.steps, second.trainable) == (100, 900, "all")
    assert [first.learning_rate(i) for i in range(100)] == pytest.approx([1e-4 * i / 100 for i in range(100)])
    closed_form = [1e-4 * i / 90 if i < 90 else 1e-4 * (900 - i) / 810 for i in range(900)]
    assert [second.learning_rate(i) for i in range(900)] == pytest.approx(closed_form)


@given(
    st.integers(3, 5000),
    st.lists(st.floats(0.05, 1.0), min_size=1, max_size=4),
    st.floats(0, 1),
    st.sampled_from(DECAYS),
)
def test_phases_fill_the_run_and_stay_below_the_peak(total, parts, warmup, decay):
    fractions = [part / math.fsum(parts) for part in parts]
    descriptions = [{"name": str(i), "fraction": f, "warmup": warmup, "decay": decay} for i, f in enumerate(fractions)]
    try:
        phases = make_phases(descriptions, total, 1.0)
    except UserError:
        assert total * min(fractions) < 1.5
        return
    assert [phase.start for phase in phases] == [0, *(phase.end for phase in phases[:-1])]
    assert phases[-1].end == total
    for phase in phases:
        assert phase_at(phases, phase.start) == phase_at(phases, phase.end - 1) == phases.index(phase)
        assert all(0.0 <= phase.learning_rate(i) <= 1.0 for i in range(0, phase.steps, max(1, phase.steps // 7)))


@pytest.mark.parametrize(
    ("descriptions", "named"),
    [
        ([], "phases"),
        ([{"name": "a", "fraction": 0.5}], "fractions must sum to 1"),
        ([{"name": "a", "steps": 99}], "steps=100"),
        ([{"name": "a", "fraction": 1.0, "warmpu": 0.1}], r"phases\[0\].warmpu"),
        ([{"name": "a", "fraction": 1.0, "warmup": 2.0}], r"phases\[0\].warmup"),
        ([{"name": "a", "fraction": 1.0, "decay": "exponential"}], r"phases\[0\].decay"),
        ([{"name": "a"}], "either fraction or steps"),
        ([{"name": "a", "fraction": 0.001}, {"name": "b", "fraction": 0.999}], r"phases\[0\]: lasts 0"),
        ([{"name": "a", "fraction": 1.0, "warmup": 0.1, "warmup_steps": 3}], "either warmup"),
        ([{"name": "a", "fraction": 1.0, "warmup_steps": 101}], r"phases\[0\].warmup_steps: 101 is more"),
        ([{"name": "a", "fraction": 1.0, "warmup_steps": 0.5}], r"phases\[0\].warmup_steps: is 0.5"),
        ([{"name": "a", "fraction": 1.0, "floor": -1.0}], r"phases\[0\].floor"),
        ([{"name": "a", "fraction": 1.0, "layers": "6"}], r"phases\[0\].layers"),
        ([{"name": "a", "fraction": 1.0, "keep_optimizer": 1}], r"phases\[0\].keep_optimizer"),
        (["all"], r"phases\[0\]"),
    ],
)
def test_impossible_phases_are_refused(descriptions, named):
    with pytest.raises(UserError, match=named):
        make_phases(descriptions, 100, 1.0)


@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_a_stable_part_before_the_decay_equals_optax(decay):
    (phase,) = make_phases(stable_phase(10, decay, decay_fraction=0.3), 100, 1e-3)
    down = {"linear": optax.linear_schedule(1e-3, 0.0, 30), "cosine": optax.cosine_decay_schedule(1e-3, 30)}[decay]
    parts = [optax.linear_schedule(0.0, 1e-3, 10), optax.constant_schedule(1e-3), down]
    expected = optax.join_schedules(parts, [10, 70])
    assert [phase.learning_rate(i) for i in range(100)] == pytest.approx(
        [float(expected(i)) for i in range(100)], rel=1e-4, abs=1e-9
    )


def test_the_root_decays_fast_first_and_a_long_warm_up_shortens_the_decay():
    (phase,) = make_phases(stable_phase(10, decay_fraction=0.64), 100, 1.0)
    assert [phase.learning_rate(i) for i in (36, 52, 84)] == pytest.approx([1.0, 0.5, 1.0 - math.sqrt(0.75)])
    (phase,) = make_phases(stable_phase(60, "linear", decay_fraction=0.8), 100, 1.0)
    assert [phase.learning_rate(i) for i in (59, 60, 80)] == pytest.approx([59 / 60, 1.0, 0.5])
    with pytest.raises(UserError, match=r"phases\[0\].decay_fraction: is 1.5"):
        make_phases(stable_phase(10, decay_fraction=1.5), 100, 1.0)
