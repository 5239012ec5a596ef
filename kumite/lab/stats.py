"""Statistics of runs: what a comparison of a few seeds can say, and how sure it is.

Scores are a sequence with one array per task, its last axis the runs of that task; numbers of runs may differ between
tasks. Leading axes are resamples: every statistic maps [..., n_t] per task to [...], so that a bootstrap is one call.
Definitions follow Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice"; they
stand with their formulas in docs/results.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kumite.lab.records import Column, Curve

Scores = Sequence[Column]
Statistic = Callable[[Scores], Column]
Centre = Literal["mean", "median", "iqm"]
Band = Literal["ci", "std", "range", "none"]
REPS = 10_000
LEVEL = 0.95


def scores(values: ArrayLike | Sequence[ArrayLike]) -> list[Column]:
    """One array per task from a matrix [runs, tasks], as papers print it, or from a list of arrays."""
    if isinstance(values, np.ndarray) and values.ndim == 2:
        return [np.asarray(column, np.float64) for column in values.T]
    return [np.atleast_1d(np.asarray(v, np.float64)) for v in values]  # type: ignore[union-attr]


# --- one number for many runs on many tasks ------------------------------------------------------------------------


def mean(x: Scores) -> Column:
    """The mean over tasks of the mean over a task's runs."""
    return np.mean(_means(x), axis=0)


def median(x: Scores) -> Column:
    """The median over tasks of the mean over a task's runs."""
    return np.median(_means(x), axis=0)


def iqm(x: Scores) -> Column:
    """The mean of the middle half of all runs of all tasks: a quarter of them (rounded down) goes at either end."""
    return trimmed(np.concatenate([np.asarray(s) for s in x], axis=-1))


def optimality_gap(x: Scores, goal: float = 1.0) -> Column:
    """How far scores fall short of the goal on average; what lies beyond it does not make up for the rest."""
    return np.mean(_means([goal - np.minimum(s, goal) for s in x]), axis=0)


AGGREGATES: dict[str, Statistic] = {"IQM": iqm, "median": median, "mean": mean, "optimality gap": optimality_gap}


def trimmed(x: Column, cut: float = 0.25) -> Column:
    """The mean along the last axis without this share of the lowest and of the highest."""
    x = np.sort(x, axis=-1)
    k = int(cut * x.shape[-1])
    return np.mean(x[..., k : x.shape[-1] - k], axis=-1)


def _means(x: Scores) -> Column:
    """[tasks, ...]"""
    return np.stack([np.mean(s, axis=-1) for s in x])


def improvement(x: Scores, y: Scores) -> Column:
    """The probability that a run of x beats a run of y on the same task, averaged over tasks; a tie is half a win."""
    return np.mean(np.stack([_wins(a, b) for a, b in zip(x, y, strict=True)]), axis=0)


def _wins(a: Column, b: Column) -> Column:
    """[..., n] against [..., m]: the Mann-Whitney statistic over n m."""
    a, b = a[..., :, None], b[..., None, :]
    return np.mean((a > b) + 0.5 * (a == b), axis=(-2, -1))


def profile(x: Scores, taus: Column) -> Column:
    """The share of all runs of all tasks whose score exceeds each threshold: [..., taus]."""
    pooled = np.concatenate([np.asarray(s) for s in x], axis=-1)
    return np.stack([np.mean(pooled > tau, axis=-1) for tau in taus], axis=-1)


# --- how sure ------------------------------------------------------------------------------------------------------


class Interval(NamedTuple):
    """A value, and the interval that holds it; nan ends where one run says nothing about the spread."""

    value: float
    low: float
    high: float


class Bands(NamedTuple):
    """The same for many values."""

    value: Column
    low: Column
    high: Column


def resampled(x: Scores, reps: int, rng: np.random.Generator) -> list[Column]:
    """Stratified: each task's runs are drawn anew from that task's runs, with replacement: [reps, n_t] per task."""
    return [s[rng.integers(0, len(s), (reps, len(s)))] for s in x]


def intervals(
    statistic: Callable[..., Column], *x: Scores, level: float = LEVEL, reps: int = REPS, seed: int = 0
) -> Bands:
    """A statistic of one or more algorithms' scores, with percentile intervals of the stratified bootstrap.

    The same seed gives the same interval. Where no task has two runs there is nothing to resample: nan.
    """
    value = np.asarray(statistic(*x))
    if all(len(s) < 2 for one in x for s in one):
        unknown = np.full(value.shape, np.nan)
        return Bands(value, unknown, unknown)
    rng = np.random.default_rng(seed)
    draws = statistic(*(resampled(one, reps, rng) for one in x))
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return Bands(value, low, high)


def interval(
    statistic: Callable[..., Column], *x: Scores, level: float = LEVEL, reps: int = REPS, seed: int = 0
) -> Interval:
    """The same for a statistic that is one number."""
    return Interval(*(float(v) for v in intervals(statistic, *x, level=level, reps=reps, seed=seed)))


# --- curves --------------------------------------------------------------------------------------------------------


def smooth(curve: Curve, window: int) -> Curve:
    """Each point becomes the mean of itself and those before it, `window` in all; at the start of those there are."""
    if window <= 1:
        return curve
    total = np.cumsum(np.append(0.0, curve.y))
    end = np.arange(1, len(curve.y) + 1)
    start = np.maximum(end - window, 0)
    return Curve(curve.x, (total[end] - total[start]) / (end - start))


def single(curve: Curve) -> Curve:
    """One point per x: the mean of those that share it (episodes that end at the same step)."""
    x, where, many = np.unique(curve.x, return_inverse=True, return_counts=True)
    return Curve(x, np.bincount(where, curve.y) / many)


GRID = 400


def together(curves: Sequence[Curve], points: int = GRID) -> tuple[Column, NDArray[np.float64]]:
    """Several curves on one axis: x [G] and y [curves, G].

    The axis reaches from the latest first to the earliest last point, so that nothing lies beyond any curve. It holds
    every x of every curve there; where those are more than `points`, that many at equal distances. Between two
    neighbours of a curve the value is on the line between them.
    """
    curves = [single(c) for c in curves]
    start, end = max(c.x[0] for c in curves), min(c.x[-1] for c in curves)
    x = np.unique(np.concatenate([c.x[(c.x >= start) & (c.x <= end)] for c in curves]))
    if len(x) > points:
        x = np.linspace(start, end, points)
    return x, np.stack([np.interp(x, c.x, c.y) for c in curves]) if len(x) else np.empty((len(curves), 0))


CENTRES: dict[str, Callable[[Column], Column]] = {
    "mean": lambda y: np.mean(y, axis=-1),
    "median": lambda y: np.median(y, axis=-1),
    "iqm": trimmed,
}


def band(
    y: NDArray[np.float64], centre: Centre = "mean", kind: Band = "ci", level: float = LEVEL, seed: int = 0
) -> Bands:
    """The centre of several runs at each point, y [runs, G], and the band around it; one run has none (nan).

    ci: percentile interval of the bootstrap over whole runs; std: one standard deviation (n - 1); range: from the
    lowest to the highest run.
    """
    middle = CENTRES[centre](y.T)
    if len(y) < 2 or not y.size or kind == "none":
        return Bands(middle, np.full_like(middle, np.nan), np.full_like(middle, np.nan))
    if kind == "range":
        return Bands(middle, y.min(0), y.max(0))
    if kind == "std":
        spread = y.std(0, ddof=1)
        return Bands(middle, middle - spread, middle + spread)
    rng = np.random.default_rng(seed)
    draws = rng.integers(0, len(y), (1_000, len(y)))
    many = np.stack([CENTRES[centre](column[draws]) for column in y.T], axis=-1)  # [reps, G]
    low, high = np.quantile(many, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return Bands(middle, low, high)


def final(curve: Curve, at: float | None = None, last: int = 1) -> float:
    """The mean of the last `last` points at or before `at`; nan where there is none."""
    y = curve.y if at is None else curve.y[curve.x <= at * (1 + 1e-3)]  # copies step together: ends differ by a few
    return float(np.mean(y[-last:])) if len(y) else float("nan")


def best(curve: Curve, at: float | None = None) -> float:
    """The highest point at or before `at`."""
    y = curve.y if at is None else curve.y[curve.x <= at * (1 + 1e-3)]
    return float(np.max(y)) if len(y) else float("nan")


def area(curve: Curve, end: float | None = None) -> float:
    """The area under the curve from its first point to `end`, over that distance: its mean height.

    nan where the curve ends before. Trapezia; the height at `end` lies on the line between its neighbours.
    """
    c = single(curve)
    end = float(c.x[-1]) if end is None else end
    if end > c.x[-1] * (1 + 1e-3) or end < c.x[0]:
        return float("nan")
    end = min(end, float(c.x[-1]))
    x = np.append(c.x[c.x < end], end)
    y = np.interp(x, c.x, c.y)
    return float(np.sum((y[1:] + y[:-1]) / 2 * np.diff(x)) / (end - x[0])) if len(x) > 1 else float(y[0])


def reach(curve: Curve, threshold: float) -> float:
    """The x of the first point that is at least this high; inf where none is. Steps or seconds, as the curve's axis."""
    high = np.flatnonzero(curve.y >= threshold)
    return float(curve.x[high[0]]) if len(high) else float("inf")


class Reach(NamedTuple):
    """When runs got there."""

    reached: int
    runs: int
    median: float
    """Over all runs, those that never did counting as infinitely late: inf unless more than half of them did."""


def reaches(curves: Iterable[Curve], threshold: float) -> Reach:
    """Steps or seconds to a threshold, over seeds."""
    at = sorted(reach(c, threshold) for c in curves)
    done = sum(np.isfinite(at))
    middle = at[(len(at) - 1) // 2], at[len(at) // 2]
    return Reach(int(done), len(at), float(sum(middle) / 2) if at else float("inf"))
