"""Samplers: every readable row with equal probability, and no other."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kumite.samplers import Uniform
from tests.unit.recorded import IS_CUT, Case, Event, Recorded, cases


def candidates(recorded: Recorded, span: int, stride: int) -> set[tuple[int, int]]:
    slots = range(recorded.case.slots)
    return {(r, s) for s in slots for r in recorded.readable(s, span) if r % stride == 0}


@given(cases(), st.integers(1, 4), st.integers(1, 3))
def test_only_readable_rows_on_the_stride_are_drawn(case: Case, span: int, stride: int) -> None:
    recorded = Recorded(case).play(case.events)
    allowed, sampler = candidates(recorded, span, stride), Uniform(span, stride)
    assert sampler.ready(recorded.stream) == bool(allowed)
    if allowed:
        row, slot = sampler.draw(recorded.stream, 60)[:2]
        assert set(zip(row.tolist(), slot.tolist(), strict=True)) <= allowed


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(("span", "stride"), [(1, 1), (3, 1), (5, 4)])
def test_draws_are_uniform(together: bool, span: int, stride: int) -> None:
    """Chi-square: the statistic of a uniform draw stays within five deviations of its mean, df and sqrt(2 df)."""
    ends = (0, 0, IS_CUT)
    parts = [None] if together else [None, (0,), (2, 0), (1,), (0, 2)]
    events = [Event(parts[i % len(parts)], ends) for i in range(33)]
    recorded = Recorded(Case(20, 3, 1, 1, events)).play(events)
    allowed = candidates(recorded, span, stride)
    size = 400 * len(allowed)
    row, slot = Uniform(span, stride).draw(recorded.stream, size)[:2]
    counts = Counter(zip(row.tolist(), slot.tolist(), strict=True))
    assert set(counts) == allowed
    chi = sum((n - 400) ** 2 / 400 for n in counts.values())
    df = len(allowed) - 1
    assert abs(chi - df) < 5 * (2 * df) ** 0.5


def test_the_two_ways_to_draw_agree() -> None:
    """While all slots speak together the ranges are plain numbers; the general way gives the same rows."""
    events = [Event(None, (0, 0))] * 30
    recorded = Recorded(Case(12, 2, 4, 1, events)).play(events)
    sampler = Uniform(2, 3)
    together = sampler.draw(recorded.stream, 500)[:2]
    recorded.stream.level = False
    apart = sampler.draw(recorded.stream, 500)[:2]
    assert {*zip(*map(torch.Tensor.tolist, together))} == {*zip(*map(torch.Tensor.tolist, apart))}
