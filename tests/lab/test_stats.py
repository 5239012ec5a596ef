"""Statistics against arithmetic by hand, published fixtures, and definitions in slow loops."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kumite.lab import stats
from kumite.lab.records import Curve
from kumite.lab.stats import Interval

X = np.array([[1, 2], [2, 2], [1, 1], [2, 1]])
Y = np.array([[1, 1], [2, 2], [3, 3]])
"""[runs, tasks]: the fixtures of rliable's own tests, which cannot be installed beside today's pandas."""

numbers = st.floats(-100, 100).map(lambda x: round(x, 2))
tasks = st.lists(st.lists(numbers, min_size=1, max_size=6), min_size=1, max_size=4)


def curve(*points: tuple[float, float]) -> Curve:
    x, y = np.array(points, np.float64).T
    return Curve(x, y)


# --- aggregates ----------------------------------------------------------------------------------------------------


def test_aggregates_of_the_published_fixtures() -> None:
    x, y = stats.scores(X), stats.scores(Y)
    assert [stats.median(x), stats.mean(x), stats.iqm(x)] == [1.5, 1.5, 1.5]
    assert [stats.median(y), stats.mean(y), stats.iqm(y)] == [2, 2, 2]
    assert stats.improvement(x, y) == pytest.approx(1 / 3)


def test_aggregates_by_hand() -> None:
    """Tasks (0, 1, 5) and (2, 2, 14): means 2 and 6.

    mean = (2 + 6) / 2 = 4; median = 4; of the six runs 0 1 2 2 5 14 one goes at either end (6 / 4 rounded down):
    IQM = (1 + 2 + 2 + 5) / 4 = 2.5; gap to 3 = ((3 + 2 + 0) / 3 + (1 + 1 + 0) / 3) / 2 = 7 / 6.
    """
    x = stats.scores([[0, 1, 5], [2, 2, 14]])
    assert stats.mean(x) == 4
    assert stats.median(x) == 4
    assert stats.iqm(x) == 2.5
    assert stats.optimality_gap(x, 3.0) == pytest.approx(7 / 6)


def test_the_median_is_over_tasks_not_runs() -> None:
    """Task means 1, 10, 100: their median is 10, though most runs are at 1."""
    assert stats.median(stats.scores([[1, 1, 1, 1, 1], [10], [100]])) == 10


@given(tasks)
def test_aggregates_are_their_definitions(values: list[list[float]]) -> None:
    x = stats.scores(values)
    means = [math.fsum(v) / len(v) for v in values]
    assert stats.mean(x) == pytest.approx(math.fsum(means) / len(means), abs=1e-9)
    assert stats.median(x) == pytest.approx(float(np.median(means)), abs=1e-9)
    pooled = sorted(itertools.chain(*values))
    cut = len(pooled) // 4
    middle = pooled[cut : len(pooled) - cut]
    assert stats.iqm(x) == pytest.approx(math.fsum(middle) / len(middle), abs=1e-9)
    short = [math.fsum(max(1 - s, 0) for s in v) / len(v) for v in values]
    assert stats.optimality_gap(x) == pytest.approx(math.fsum(short) / len(short), abs=1e-9)


@given(tasks, st.integers(1, 5))
def test_improvement_counts_pairs(values: list[list[float]], runs: int) -> None:
    other = [[v[0] + i - 1 for i in range(runs)] for v in values]
    per_task = []
    for a, b in zip(values, other, strict=True):
        wins = [1.0 if p > q else 0.5 if p == q else 0.0 for p in a for q in b]
        per_task.append(math.fsum(wins) / len(wins))
    found = stats.improvement(stats.scores(values), stats.scores(other))
    assert found == pytest.approx(math.fsum(per_task) / len(per_task))
    assert found + stats.improvement(stats.scores(other), stats.scores(values)) == pytest.approx(1)


def test_profile_by_hand() -> None:
    """Runs 1 2 1 2 (task 1) and 2 2 1 1 (task 2): none above 2, four of eight above 1, all above 0."""
    assert stats.profile(stats.scores(X), np.array([0.0, 1.0, 1.5, 2.0])).tolist() == [1.0, 0.5, 0.5, 0.0]


@given(tasks, st.lists(numbers, min_size=1, max_size=5))
def test_profile_is_its_definition(values: list[list[float]], taus: list[float]) -> None:
    pooled = list(itertools.chain(*values))
    wanted = [sum(s > tau for s in pooled) / len(pooled) for tau in taus]
    assert stats.profile(stats.scores(values), np.array(taus)).tolist() == pytest.approx(wanted)


def test_statistics_work_on_many_resamples_at_once() -> None:
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(7, 3)), rng.normal(size=(7, 5))]
    y = [rng.normal(size=(7, 4)), rng.normal(size=(7, 2))]
    taus = np.array([-0.5, 0.5])
    for i in range(7):
        one, other = [s[i] for s in x], [s[i] for s in y]
        for statistic in stats.AGGREGATES.values():
            assert statistic(x)[i] == pytest.approx(statistic(one))
        assert stats.improvement(x, y)[i] == pytest.approx(stats.improvement(one, other))
        assert stats.profile(x, taus)[i].tolist() == stats.profile(one, taus).tolist()


# --- intervals -----------------------------------------------------------------------------------------------------


def test_interval_against_every_resample() -> None:
    """Two tasks of two runs, (0, 1) and (10, 20): each task's mean is 0, .5, .5, 1 and 10, 15, 15, 20 equally often.

    The mean over tasks is one of the 16 sums over 2; its 2.5 % and 97.5 % points are the lowest and highest, 5 and
    10.5, each having a share of 1/16 = 6.25 %. At 80 % (10 % at either end) they are the next ones, 5.25 and 10.25.
    """
    x = stats.scores([[0, 1], [10, 20]])
    every = sorted((a + b) / 2 for a in (0, 0.5, 0.5, 1) for b in (10, 15, 15, 20))
    assert every[0] == 5 and every[-1] == 10.5
    assert stats.interval(stats.mean, x) == Interval(7.75, 5.0, 10.5)
    assert stats.interval(stats.mean, x, level=0.8) == Interval(7.75, 5.25, 10.25)


def test_resampling_is_stratified_and_seeded() -> None:
    """No resample mixes tasks; each run of a task is drawn equally often."""
    x = stats.scores([[0, 1, 2], [100, 200]])
    a, b = stats.resampled(x, 20_000, np.random.default_rng(1))
    assert a.shape == (20_000, 3) and b.shape == (20_000, 2)
    assert set(np.unique(a)) == {0, 1, 2} and set(np.unique(b)) == {100, 200}
    shares = [np.mean(a == v) for v in (0, 1, 2)] + [np.mean(b == v) for v in (100, 200)]
    assert shares == pytest.approx([1 / 3] * 3 + [1 / 2] * 2, abs=0.01)
    y = stats.scores(np.random.default_rng(2).normal(size=(5, 4)))
    assert stats.interval(stats.iqm, y, seed=3) == stats.interval(stats.iqm, y, seed=3)
    assert stats.interval(stats.iqm, y, seed=3) != stats.interval(stats.iqm, y, seed=4)


def test_intervals_cover_the_truth() -> None:
    """Of 200 studies of 10 seeds on 4 tasks, about 95 % of the intervals for the mean hold the true mean, 0.

    The percentile bootstrap of 10 runs is a little too narrow: its spread is sqrt(9/10) of the right one.
    """
    rng = np.random.default_rng(0)
    inside = 0
    for i in range(200):
        found = stats.interval(stats.mean, stats.scores(rng.normal(size=(10, 4))), reps=500, seed=i)
        inside += found.low <= 0 <= found.high
    assert 0.88 <= inside / 200 <= 0.98


def test_one_run_says_nothing_about_the_spread() -> None:
    found = stats.interval(stats.mean, stats.scores([[3.0], [5.0]]))
    assert found.value == 4
    assert math.isnan(found.low) and math.isnan(found.high)


def test_interval_of_a_comparison_resamples_both() -> None:
    """x always wins against y, whatever is drawn; against itself it is even odds with a wide interval."""
    x, y = stats.scores(X + 10.0), stats.scores(Y)
    assert stats.interval(stats.improvement, x, y) == Interval(1, 1, 1)
    even = stats.interval(stats.improvement, x, x)
    assert even.value == 0.5 and even.low < 0.3 and even.high > 0.7


# --- curves --------------------------------------------------------------------------------------------------------


def test_smoothing_looks_back_only() -> None:
    c = stats.smooth(curve((1, 1), (2, 3), (3, 8), (4, 1)), 2)
    assert c.y.tolist() == [1, 2, 5.5, 4.5]
    assert c.x.tolist() == [1, 2, 3, 4]
    same = curve((1, 1), (2, 3))
    assert stats.smooth(same, 0) is same


def test_points_at_one_step_become_one() -> None:
    c = stats.single(curve((1, 1), (2, 3), (2, 5), (3, 8)))
    assert c.x.tolist() == [1, 2, 3]
    assert c.y.tolist() == [1, 4, 8]


def test_curves_on_one_axis_invent_nothing() -> None:
    """From the latest start, 2, to the earliest end, 4; at 3 the first curve lies half-way between its neighbours."""
    x, y = stats.together([curve((0, 0), (2, 20), (4, 40), (9, 90)), curve((2, 1), (3, 2), (4, 5))])
    assert x.tolist() == [2, 3, 4]
    assert y.tolist() == [[20, 30, 40], [1, 2, 5]]


def test_curves_apart_have_no_common_axis() -> None:
    x, y = stats.together([curve((0, 0), (1, 1)), curve((2, 1), (3, 2))])
    assert x.size == 0 and y.shape == (2, 0)
    assert stats.band(y).value.size == 0


def test_long_curves_are_thinned() -> None:
    long = Curve(np.arange(10_000.0), np.arange(10_000.0))
    x, y = stats.together([long, long], points=100)
    assert len(x) == 100 and x[0] == 0 and x[-1] == 9_999
    assert np.allclose(y[0], x)


def test_bands_by_hand() -> None:
    """Runs (1, 5), (2, 5), (6, 5): mean 3 and 5, deviation sqrt((4 + 1 + 9) / 2) = sqrt(7) and 0."""
    y = np.array([[1.0, 5], [2, 5], [6, 5]])
    spread = stats.band(y, "mean", "std")
    assert spread.value.tolist() == [3, 5]
    assert spread.high.tolist() == pytest.approx([3 + 7**0.5, 5])
    whole = stats.band(y, "median", "range")
    assert [whole.value.tolist(), whole.low.tolist(), whole.high.tolist()] == [[2, 5], [1, 5], [6, 5]]
    sure = stats.band(
        y, "mean", "ci"
    )  # all from one run has a chance of 1/27 > 2.5 %: the ends are the runs themselves
    assert [sure.low.tolist(), sure.high.tolist()] == [[1, 5], [6, 5]]
    assert np.isnan(stats.band(y[:1]).low).all()
    assert stats.band(y[:1]).value.tolist() == [1, 5]


def test_the_interquartile_mean_of_runs() -> None:
    """Of four runs one goes at either end, of three none (3 / 4 rounded down)."""
    assert stats.band(np.array([[0.0], [1], [3], [100]]), "iqm", "none").value.tolist() == [2]
    assert stats.band(np.array([[0.0], [1], [5]]), "iqm", "none").value.tolist() == [2]


def test_area_by_hand() -> None:
    """(0, 0) (2, 4) (4, 4): 4 + 8 = 12 over 4 steps. Up to 3: 4 + 4 = 8 over 3. Up to 1: height 2, so 1 over 1."""
    c = curve((0, 0), (2, 4), (4, 4))
    assert stats.area(c) == 3
    assert stats.area(c, 3) == pytest.approx(8 / 3)
    assert stats.area(c, 1) == 1
    assert math.isnan(stats.area(c, 5))
    assert stats.area(curve((3, 7))) == 7


def test_final_and_best() -> None:
    c = curve((1000, 5), (2000, 9), (3000, 1), (4000, 3))
    assert stats.final(c) == 3
    assert stats.final(c, last=2) == 2
    assert stats.final(c, at=2000) == 9
    assert stats.final(c, at=1999) == 9  # copies step together: a run may end a step late
    assert stats.final(c, at=1900) == 5
    assert stats.best(c) == 9
    assert stats.best(c, at=1500) == 5
    assert math.isnan(stats.final(c, at=10))


def test_steps_to_a_threshold() -> None:
    c = curve((1000, 5), (2000, 9), (3000, 1))
    assert stats.reach(c, 5) == 1000
    assert stats.reach(c, 5.1) == 2000
    assert stats.reach(c, 10) == math.inf


def test_thresholds_over_seeds() -> None:
    """Reached at 10, 20 and never: the median is 20; of two runs of which one never did, it is infinite."""
    fast, slow, never = curve((10, 1)), curve((20, 1)), curve((30, 0))
    assert stats.reaches([slow, never, fast], 1) == stats.Reach(2, 3, 20.0)
    assert stats.reaches([fast, never], 1) == stats.Reach(1, 2, math.inf)
    assert stats.reaches([fast, slow], 1) == stats.Reach(2, 2, 15.0)
