"""Schedules: shapes at their ends, and counters that neither drift nor burst over any sequence of calls."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kumite.schedules import SCHEDULES, Every, Ratio, constant, cosine, linear

shares = st.floats(0, 1)
ratios = st.sampled_from([0.0, 0.1, 0.125, 0.25, 1 / 3, 0.7, 1.0, 2.0, 20.0])
strides = st.lists(st.integers(0, 300), max_size=60)


@given(shares)
def test_linear_and_cosine_stay_between_their_ends(share: float) -> None:
    for schedule in SCHEDULES.values():
        assert 1.0 <= schedule(3.0, 1.0, share) <= 3.0


@pytest.mark.parametrize("schedule", [linear, cosine])
def test_ends_and_middle(schedule: type) -> None:
    assert schedule(3.0, 1.0, 0.0) == 3.0
    assert schedule(3.0, 1.0, 0.5) == pytest.approx(2.0)
    assert schedule(3.0, 1.0, 1.0) == 1.0
    assert schedule(3.0, 1.0, 1.5) == 1.0, "past its end a schedule rests there"
    assert constant(3.0, 1.0, 0.7) == 3.0


def test_cosine_is_slow_at_the_ends() -> None:
    assert cosine(1.0, 0.0, 0.1) > linear(1.0, 0.0, 0.1)
    assert cosine(1.0, 0.0, 0.25) == pytest.approx(0.5 + math.sqrt(0.5) / 2)


@given(ratios, st.integers(0, 500), strides)
def test_ratio_is_exact_whatever_the_calls(ratio: float, warmup: int, moves: list[int]) -> None:
    counter, step, total = Ratio(ratio, warmup), 0, 0
    for move in moves:
        before, step = step, step + move
        due = counter.due(step)
        fresh = max(0, step - max(before, warmup))
        assert 0 <= due <= math.ceil(fresh * ratio), "no burst for what lies further back"
        total += due
    exact = max(0, step - warmup) * Fraction(ratio).limit_denominator(1_000_000)
    assert total == int(exact)


@given(ratios, st.integers(0, 200), strides, st.integers(0, 59))
def test_ratio_goes_on_where_it_was(ratio: float, warmup: int, moves: list[int], cut: int) -> None:
    whole, first, second = Ratio(ratio, warmup), Ratio(ratio, warmup), Ratio(ratio, warmup)
    step = 0
    for i, move in enumerate(moves):
        if i == cut:
            second.restore(first.state())
            first = second
        step += move
        assert whole.due(step) == first.due(step)


def test_ratio_forgets_what_it_could_not_learn_from() -> None:
    counter = Ratio(1.0, warmup=10)
    counter.skip(1000)
    assert counter.due(1003) == 3


@given(st.integers(1, 50), strides)
def test_every_fires_once_per_multiple_reached(n: int, moves: list[int]) -> None:
    timer, step = Every(n), 0
    for move in moves:
        before, step = step, step + move
        assert timer.due(step) == (step // n > before // n)


@given(st.integers(1, 50), strides, st.integers(0, 59))
def test_every_goes_on_where_it_was(n: int, moves: list[int], cut: int) -> None:
    whole, half, step = Every(n), Every(n), 0
    for i, move in enumerate(moves):
        if i == cut:
            resumed = Every(n)
            resumed.restore(half.state())
            half = resumed
        step += move
        assert whole.due(step) == half.due(step)


@pytest.mark.parametrize("n", [0, -1])
def test_every_nothing_is_never(n: int) -> None:
    timer = Every(n)
    assert not any(timer.due(step) for step in range(100))
