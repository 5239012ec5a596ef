"""What a picture and a page show of many runs: lines for each environment, a row per algorithm and environment, and
aggregates over environments. The arithmetic is that of `stats.py`; here it is decided what is compared with what.
"""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from kumite.config import coerce
from kumite.errors import UserError, nearest
from kumite.lab import stats
from kumite.lab.records import MEAN_RETURN, Axis, Column, Curve, Groups, LabWarning, Record
from kumite.lab.scores import Ends, Scale, normalised, pick
from kumite.lab.stats import Band, Bands, Centre, Interval

EPISODES = 100
"""Training episodes behind a point of `train`, unless said otherwise: as many as in rollout/ep_rew_mean."""
HALF = 0.9
"""Steps below this share of the longest run's are worth a word."""


# --- lines ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """One label in one environment."""

    label: str
    env: str
    x: Column
    centre: Bands
    runs: Sequence[Curve]
    """Every run by itself, smoothed."""

    @property
    def tails(self) -> list[Curve]:
        """What longer runs did after the shortest had ended: no mean of theirs is drawn there."""
        end = self.x[-1] if len(self.x) else -np.inf
        late = [c for c in self.runs if c.x[-1] > 1.03 * end]
        return [Curve(c.x[i:], c.y[i:]) for c in late for i in [max(int(np.searchsorted(c.x, end, "right")) - 1, 0)]]


def curve(record: Record, y: str, axis: Axis, smooth: int = 0) -> Curve | None:
    """A run's curve, smoothed: 0 = a mean over 100 training episodes, and nothing else."""
    found = record.curve(y, axis)
    if found is None:
        return None
    raw = y == "train" and "return" in record.episodes and len(record.episodes["return"])
    return stats.single(stats.smooth(found, smooth or (EPISODES if raw else 1)))


def lines(
    groups: Groups,
    y: str = "eval",
    axis: Axis = "steps",
    smooth: int = 0,
    centre: Centre = "mean",
    band: Band = "ci",
) -> dict[str, list[Line]]:
    """Environment -> its lines. Runs without this curve are left out with a warning; UserError where none has it."""
    found: dict[str, list[Line]] = {}
    missing: list[Record] = []
    for label, envs in groups.items():
        for env, records in envs.items():
            curves = {id(r): curve(r, y, axis, smooth) for r in records}
            missing += [r for r in records if curves[id(r)] is None]
            runs = [c for c in curves.values() if c is not None]
            if runs:
                x, values = stats.together(runs)
                found.setdefault(env, []).append(Line(label, env, x, stats.band(values, centre, band), runs))
    everything = [r for envs in groups.values() for records in envs.values() for r in records]
    if not found:
        raise UserError(_nothing(everything, y, axis))
    if missing:
        names = ", ".join(str(r.path) for r in missing[:3]) + (f" and {len(missing) - 3} more" if missing[3:] else "")
        other = f"; {_other(missing, y)}" if _other(missing, y) else ""
        warnings.warn(f"left out for having no {_what(y, axis)}: {names}{other}", LabWarning)
    return {env: found[env] for env in sorted(found, key=lambda e: (e.lower(), e))}


def _what(y: str, axis: Axis) -> str:
    on = "" if axis == "steps" else {"time": " over time", "updates": " over updates"}[axis]
    return {"eval": "evaluations", "train": "training episodes"}.get(y, f"'{y}'") + on


def _other(records: Sequence[Record], y: str) -> str:
    if y == "eval" and any(r.curve("train") for r in records):
        return "--y train shows the returns of training"
    return "--y eval shows evaluations" if y == "train" and any(r.curve("eval") for r in records) else ""


def _nothing(records: Sequence[Record], y: str, axis: Axis) -> str:
    many = f"none of the {len(records)} runs has" if len(records) > 1 else f"'{records[0].path}' has no"
    text = f"{many} {_what(y, axis)}"
    if axis != "steps" and any(r.curve(y) for r in records):
        return f"{text}; --x steps works"
    if other := _other(records, y):
        return f"{text}; {other}"
    known = sorted({name for r in records for name in r.metrics if name not in ("env_step", "time_s", MEAN_RETURN)})
    if y not in ("eval", "train") and known:
        known = ["eval", "train", *known]
        return f"{text}{nearest(y, known)} (known: {', '.join(known[:12])}{', ...' if known[12:] else ''})"
    return f"{text} yet"


# --- scores --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One label in one environment, in numbers; intervals over its runs."""

    label: str
    env: str
    runs: Sequence[Record]
    steps: float
    """Those of its shortest run."""
    final: Interval
    best: Interval
    area: Interval
    """The mean height of the curve."""
    seconds: float
    """Median time of a run to its last point; nan where it is not known."""
    finals: Sequence[float]
    """The final score of every run."""


def rows(groups: Groups, y: str = "eval", smooth: int = 0, last: int = 1) -> list[Row]:
    """A row per label and environment that has this curve, every run measured where the shortest of its row ended."""
    out = []
    for label, envs in groups.items():
        for env, records in envs.items():
            pairs = [(r, c) for r in records if (c := curve(r, y, "steps", smooth))]
            if not pairs:
                continue
            runs, curves = [r for r, _ in pairs], [c for _, c in pairs]
            end = curves_end(curves)
            finals = [stats.final(c, end, last) for c in curves]
            bests = [stats.best(c, end) for c in curves]
            areas = [stats.area(c, end) for c in curves]
            clocks = [float(c.x[-1]) for r in runs if (c := r.curve(y, "time"))]
            seconds = float(np.median(clocks)) if clocks else float("nan")
            values = (_interval(finals), _interval(bests), _interval(areas))
            out.append(Row(label, env, runs, end, *values, seconds, finals))
    return out


def _interval(values: Sequence[float]) -> Interval:
    return stats.interval(stats.mean, stats.scores([values]))


@dataclass(frozen=True)
class Aggregates:
    """Labels over the environments that all of them have."""

    scale: Scale
    envs: Sequence[str]
    at: Mapping[str, float]
    """Environment -> the steps at which everything was measured."""
    longest: Mapping[str, float]
    """Environment -> the steps of its longest run."""
    scores: Mapping[str, Sequence[Column]]
    """Label -> one array of normalised scores per environment, in the order of `envs`."""
    intervals: Mapping[str, Mapping[str, Interval]]
    """Label -> IQM, median, mean, optimality gap."""
    taus: Column
    profiles: Mapping[str, Bands]
    better: Mapping[tuple[str, str], Interval]
    """(a, b) -> the probability that a run of a beats one of b."""


def aggregates(
    groups: Groups, scale: Scale = "auto", at: float = 0, last: int = 1, y: str = "eval", reps: int = stats.REPS
) -> Aggregates:
    """Statistics over environments, all runs measured at the same steps of their environment.

    at: those steps; 0 = the last that every run of the environment reached.
    """
    curves = _shared(groups, y)
    labels, envs = list(curves), sorted(next(iter(curves.values())), key=str.lower)
    at_env = {env: at or curves_end([c for label in labels for c in curves[label][env]]) for env in envs}
    raw = {label: [_finals(label, env, curves[label][env], at_env[env], last) for env in envs] for label in labels}
    seen: dict[str, Ends] = {}
    for i, env in enumerate(envs):
        all_of = np.concatenate([raw[label][i] for label in labels])
        seen[env] = (float(all_of.min()), float(all_of.max()))
    scale = pick(envs, scale)
    scores = {label: [normalised(raw[label][i], env, scale, seen) for i, env in enumerate(envs)] for label in labels}
    taus = _taus(scores.values())
    return Aggregates(
        scale,
        envs,
        at_env,
        {env: max(float(c.x[-1]) for label in labels for c in curves[label][env]) for env in envs},
        scores,
        {
            label: {name: stats.interval(f, x, reps=reps) for name, f in stats.AGGREGATES.items()}
            for label, x in scores.items()
        },
        taus,
        {
            label: stats.intervals(lambda s: stats.profile(s, taus), x, reps=min(reps, 2_000))
            for label, x in scores.items()
        },
        _better(scores, reps),
    )


def _better(scores: Mapping[str, Sequence[Column]], reps: int) -> dict[tuple[str, str], Interval]:
    """Both ways round; the one is what the other lacks to 1."""
    found = {}
    for a, b in combinations(scores, 2):
        p = found[a, b] = stats.interval(stats.improvement, scores[a], scores[b], reps=reps)
        found[b, a] = Interval(1 - p.value, 1 - p.high, 1 - p.low)
    return found


def _shared(groups: Groups, y: str) -> dict[str, dict[str, list[Curve]]]:
    """Label -> environment -> curves, for the environments that every label has."""
    curves: dict[str, dict[str, list[Curve]]] = {}
    for label, by_env in groups.items():
        for env, records in by_env.items():
            here = [c for r in records if (c := curve(r, y, "steps"))]
            if here:
                curves.setdefault(label, {})[env] = here
    if not curves:
        raise UserError(_nothing([r for e in groups.values() for rs in e.values() for r in rs], y, "steps"))
    common = set.intersection(*(set(c) for c in curves.values()))
    if not common:
        has = "; ".join(f"{label}: {', '.join(c)}" for label, c in curves.items())
        has = textwrap.shorten(has, 300, placeholder=" ...")
        raise UserError(f"no environment has runs of all of them, so there is nothing to sum up over ({has})")
    left = sorted({env for c in curves.values() for env in c} - common)
    if left:
        warnings.warn(
            f"the summary is over the {len(common)} environment(s) that all {len(curves)} have; without"
            f" {', '.join(left[:6])}{', ...' if left[6:] else ''} (--algos and --envs choose)",
            LabWarning,
        )
    return {label: {env: c[env] for env in c if env in common} for label, c in curves.items()}


def curves_end(curves: Sequence[Curve]) -> float:
    """Where the shortest of them ends."""
    return min(float(c.x[-1]) for c in curves)


def short(found: Aggregates) -> str:
    """A sentence where the steps that all reached are far below what some did; '' where they are not."""
    cut = [env for env in found.envs if found.at[env] < HALF * found.longest[env]]
    said = ", ".join(f"{env} at {count(found.at[env])} of {count(found.longest[env])}" for env in cut[:4])
    more = f" and {len(cut) - 4} more" if cut[4:] else ""
    return f"scores are those at the steps that every run reached: {said}{more} (--at STEPS chooses)" if cut else ""


def _finals(label: str, env: str, curves: Sequence[Curve], at: float, last: int) -> Column:
    long = [c for c in curves if c.x[-1] >= at * (1 - 1e-2) and c.x[0] <= at * (1 + 1e-3)]
    if not long:
        raise UserError(f"--at: no run of '{label}' on {env} reached {at:,.0f} steps")
    if len(long) < len(curves):
        warnings.warn(f"'{label}' on {env}: {len(curves) - len(long)} run(s) did not reach {at:,.0f} steps", LabWarning)
    return np.array([stats.final(c, at, last) for c in long])


def _taus(scores: Iterable[Sequence[Column]]) -> Column:
    """Thresholds from 0 (or below) to the highest score."""
    everything = np.concatenate([s for x in scores for s in x])
    low, high = min(0.0, float(everything.min())), max(float(everything.max()), 1e-9)
    return np.linspace(low, high, 101)


# --- words ---------------------------------------------------------------------------------------------------------


def count(n: float) -> str:
    """50000 -> 50k, 2500000 -> 2.5M, 2040832 -> 2.04M."""
    for limit, scale, letter in ((999.5e6, 1e9, "G"), (999.5e3, 1e6, "M"), (1e3, 1e3, "k")):
        if abs(n) >= limit:
            return f"{n / scale:.3g}{letter}"
    return f"{n:g}"


def clock(longest: float) -> tuple[float, str]:
    """The unit for times up to this many seconds: (seconds, name)."""
    return (3600.0, "h") if longest > 2 * 3600 else (60.0, "min") if longest > 120 else (1.0, "s")


def pairs(words: Sequence[str], flag: str) -> dict[str, str]:
    """name=value, as in --scale, --columns and --goals."""
    split = [word.rpartition("=") for word in words]
    if wrong := next((w for w, (a, _, b) in zip(words, split, strict=True) if not (a and b)), None):
        raise UserError(f"{flag}: expected name=value, got '{wrong}'")
    return {a: b for a, _, b in split}


def factors(words: Sequence[str]) -> dict[str, float]:
    """label=factor."""
    return {k: float(coerce(v, float, f"--scale {k}")) for k, v in pairs(words, "--scale").items()}


def goals(words: Sequence[str], groups: Groups) -> dict[str, float]:
    """env=return."""
    envs = sorted({env for by_env in groups.values() for env in by_env})
    found = pairs(words, "--goals")
    if unknown := next((env for env in found if env not in envs), None):
        raise UserError(f"--goals: no run is of '{unknown}'{nearest(unknown, envs)}")
    return {env: float(coerce(text, float, f"--goals {env}")) for env, text in found.items()}
