"""Finished and unfinished runs as the lab sees them: tables of numbers and the settings behind them.

A `Record` is one run, whoever wrote it. kumite's own folders are read here, those of others in `foreign.py`; `load`
reads whatever lies at some places, `labelled` says which runs are compared under one name, `chosen` filters them.
"""

from __future__ import annotations

import csv
import fnmatch
import functools
import json
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kumite.config import load_yaml
from kumite.errors import UserError, nearest
from kumite.runs import is_run

Column = NDArray[np.float64]
Axis = Literal["steps", "time", "updates"]
AXES: tuple[Axis, ...] = ("steps", "time", "updates")


class LabWarning(UserWarning):
    """Something was left out of a picture or table; the rest is there."""


@dataclass(frozen=True)
class Curve:
    """One number over the course of one run; x never falls, nothing in it is missing."""

    x: Column
    y: Column


@dataclass(frozen=True)
class Record:
    """One run."""

    path: Path
    env: str
    algo: str
    seed: int | None = None
    """None where it is not known."""
    name: str = ""
    """The run's name without its seed."""
    label: str = ""
    """The name given with the place (sb3=logs/...), in front of the algorithm's."""
    source: str = "kumite"
    """Who wrote it: kumite, sb3, cleanrl, rl_games, skrl, rsl_rl, tensorboard, csv."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Flat dotted settings; {} where they are not known."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The manifest: versions, machine, commit, command."""
    evals: Mapping[str, Column] = field(default_factory=dict)
    """env_step, time_s, mean, std, min, max, episodes, mean_length, ... one row per evaluation."""
    metrics: Mapping[str, Column] = field(default_factory=dict)
    """env_step, time_s, and every metric by its name; nan where a row has none."""
    episodes: Mapping[str, Column] = field(default_factory=dict)
    """env_step, time_s, slot, return, length; one row per training episode."""

    def curve(self, what: str = "eval", axis: Axis = "steps") -> Curve | None:
        """`what`: eval (mean return of an evaluation), train (return of training episodes), or a metric's name.

        Where a run did not keep its training episodes, `train` is their logged mean, rollout/ep_rew_mean.
        """
        table, column = self._home(what)
        if column not in table or "env_step" not in table:
            return None
        y, x = table[column], self._axis(table, axis)
        if x is None:
            return None
        good = np.isfinite(x) & np.isfinite(y)
        order = np.argsort(x[good], kind="stable")
        return Curve(x[good][order], y[good][order]) if good.any() else None

    def _home(self, what: str) -> tuple[Mapping[str, Column], str]:
        if what == "eval":
            return self.evals, "mean"
        if what == "train":
            here = "return" in self.episodes and bool(len(self.episodes["return"]))
            return (self.episodes, "return") if here else (self.metrics, MEAN_RETURN)
        group, _, column = what.partition("/")
        return (self.evals, column) if group == "evals" else (self.metrics, what)

    def _axis(self, table: Mapping[str, Column], axis: Axis) -> Column | None:
        if axis == "steps":
            return table["env_step"]
        column = {"time": "time_s", "updates": "train/n_updates"}[axis]
        return table[column] if column in table else self._between(table["env_step"], column)

    def _between(self, steps: Column, column: str) -> Column | None:
        """A column of metrics at other steps, between its neighbours; nan where they are beyond what is known."""
        y, x = self.metrics.get(column), self.metrics.get("env_step")
        if y is None or x is None:
            return None
        known = np.isfinite(y) & np.isfinite(x)
        if not known.any():
            return None
        x, y = np.append(0.0, x[known]), np.append(0.0, y[known])  # every run begins with nothing
        return np.interp(steps, x, y, right=np.nan)

    @property
    def steps(self) -> int:
        """How far it came, in environment steps."""
        ends = [t["env_step"] for t in (self.evals, self.metrics, self.episodes) if len(t.get("env_step", ()))]
        return int(max((np.nanmax(x) for x in ends if np.isfinite(x).any()), default=0))

    @property
    def planned(self) -> int:
        """How many steps it was to have; 0 where that is not known."""
        steps = self.config.get("steps") if self.source == "kumite" else None
        return steps if isinstance(steps, int) and not isinstance(steps, bool) else 0


MEAN_RETURN = "rollout/ep_rew_mean"


# --- kumite's own folders ------------------------------------------------------------------------------------------


def read(path: Path) -> Record:
    """One of kumite's run folders, finished or not. Without CSV files its TensorBoard events are read."""
    settings = load_yaml(path / "config.yaml")
    facts = _facts(path / "manifest.json")
    algo, env = str(settings.pop("algo", "")), str(settings.pop("env_id", ""))
    if not algo or not env:
        raise UserError(f"'{path}' is no run's folder: its config.yaml names no algorithm and environment")
    config = dict(flat(settings))
    seed = config.get("seed", 0)
    seed = seed if isinstance(seed, int) else None
    tables: tuple[Mapping[str, Column], ...]
    files = [path / f"{name}.csv" for name in ("evals", "metrics", "episodes")]
    if any(file.is_file() for file in files):
        tables = tuple(Later(file) for file in files)
    else:
        from kumite.lab.foreign import event_tables

        tables = event_tables(path)
    evals, metrics, episodes = tables
    name = re.sub(rf"(^|-)s{seed}(-\d+)?$", "", path.name)  # a second run of this name has a number behind its seed
    name = name or str(config.get("name", ""))
    return Record(path, plain_env(env), algo, seed, name, "", "kumite", config, facts, evals, metrics, episodes)


def plain_env(env: str) -> str:
    """gymnasium's own ids have no backend in front."""
    for prefix in ("gymnasium:", "gym:"):
        env = env.removeprefix(prefix)
    return env


def _facts(path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


class Later(Mapping[str, Column]):
    """A CSV file that is read when somebody looks: most pictures need one of a run's three."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @functools.cached_property
    def columns(self) -> dict[str, Column]:
        return table(self.path)

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)


def table(path: Path, ended: bool = True) -> dict[str, Column]:
    """A CSV file as columns of numbers; nan where a cell holds none.

    A line with too few or too many cells is left out; `ended`: so is a last line without its end, which a run may be
    writing just now.
    """
    head, rows = cells(path, ended)
    columns: list[tuple[str, ...]] = list(zip(*rows)) if rows else [() for _ in head]
    return {name: numbers(column) for name, column in zip(head, columns)}


def cells(path: Path, ended: bool = True) -> tuple[list[str], list[list[str]]]:
    """The header of a CSV file, and its whole lines."""
    try:
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError:
        return [], []
    *lines, last = text.replace("\0", "").split("\n")
    if not ended:
        lines.append(last)
    rows = [row for line in lines if (row := _cells(line.rstrip("\r")))]
    return (rows[0], [row for row in rows[1:] if len(row) == len(rows[0])]) if rows else ([], [])


def _cells(line: str) -> list[str]:
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return []


def numbers(words: Iterable[str]) -> Column:
    return np.array([_number(word) for word in words], np.float64)


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return float("nan")


def flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of nested settings."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def find(place: str | Path) -> Iterator[Path]:
    """Every run folder of kumite at or below this place, in a stable order."""
    place = Path(place)
    if is_run(place):
        yield place
    else:
        yield from (p.parent for p in sorted(place.rglob("config.yaml")) if is_run(p.parent))


# --- many runs -----------------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """Where runs lie, as said in a word: PATH, LABEL=PATH or LABEL@ENV=PATH."""

    path: Path
    label: str = ""
    env: str = ""


def place(word: str | Path) -> Place:
    text = str(word)
    label, equals, path = text.partition("=")
    if not equals or Path(text).exists() or "/" in label:
        return Place(Path(text).expanduser())
    label, _, env = label.partition("@")
    return Place(Path(path).expanduser(), label, env)


def load(
    places: Sequence[str | Path] = ("runs",),
    scale: Mapping[str, float] | None = None,
    columns: Mapping[str, str] | None = None,
) -> list[Record]:
    """Every run at these places, each once, in a stable order.

    A place is the folder of a run, a folder above runs, a study's folder or file, or the logs of another library; see
    `place` for its words. `scale`: {label: factor} for the steps of logs that count otherwise (agent steps of 4 frames,
    iterations). `columns`: what the columns of a plain CSV are called: {"step": "Step", "return": "Value"}.
    What cannot be read is left out with a warning; when nothing is left, that is a UserError.
    """
    from kumite.lab.foreign import Hints

    found: dict[tuple[Any, ...], Record] = {}
    for said in [place(word) for word in places]:
        hints = Hints(said.env, columns or {})
        here = list(_at(said, hints))
        for record in here:
            key = (record.path.resolve(), record.env, record.algo, record.seed)
            known = found.setdefault(key, record)
            if said.label and not known.label:
                found[key] = record
        if not here:
            nothing = f"there are no runs in '{said.path}': neither kumite's nor logs of another library"
            raise UserError(hints.problems[0] if hints.problems else nothing)
        for problem in hints.problems:
            warnings.warn(f"left out: {problem}", LabWarning)
    records = list(found.values())
    for label, factor in (scale or {}).items():
        if not any(label in (r.label, r.source) for r in records):
            raise UserError(f"--scale: there is no '{label}' among the labels{nearest(label, _labels(records))}")
        records = [_scaled(r, factor) if label in (r.label, r.source) else r for r in records]
    return records


def _labels(records: Iterable[Record]) -> list[str]:
    return sorted({r.label or r.source for r in records})


def _at(said: Place, hints: Any) -> Iterator[Record]:
    """The runs of one place, own and foreign."""
    from kumite.lab import foreign

    if not said.path.exists():
        raise UserError(f"there is no file or folder '{said.path}'")
    study = next(
        (p for p in (said.path, said.path / "study.yaml") if p.suffix in (".yaml", ".yml") and p.is_file()), None
    )
    if study is not None and not is_run(said.path):
        from kumite.lab.study import load as load_study

        own = [job.folder for job in load_study(study).jobs() if is_run(job.folder)]
    else:
        own = list(find(said.path)) if said.path.is_dir() else []
    for path in own:
        try:
            record = read(path)
        except UserError as e:
            hints.problems.append(str(e))
            continue
        yield replace(record, label=said.label, env=said.env or record.env)
    if study is None:
        for record in foreign.find(said.path, hints, skip=frozenset(own)):
            yield replace(record, label=said.label)


def _scaled(record: Record, factor: float) -> Record:
    tables = {
        name: {**table, "env_step": table["env_step"] * factor} if "env_step" in table else table
        for name, table in (("evals", record.evals), ("metrics", record.metrics), ("episodes", record.episodes))
    }
    return replace(record, **tables)  # type: ignore[arg-type]


# --- which of them are compared ------------------------------------------------------------------------------------

Groups = dict[str, dict[str, list[Record]]]
"""Label -> environment -> the runs that count as its seeds."""
STAMP = re.compile(r"\d{8}-\d{6}$")


def grouped(records: Iterable[Record], by: Sequence[str] = ()) -> Groups:
    """Runs under one label are seeds of one thing; see `labelled`. Labels and environments in alphabetical order."""
    groups: Groups = {}
    for label, record in sorted(labelled(list(records), by), key=lambda pair: (_fold(pair[0]), _fold(pair[1].env))):
        groups.setdefault(label, {}).setdefault(record.env, []).append(record)
    for envs in groups.values():
        for runs in envs.values():
            runs.sort(key=lambda r: (r.seed is None, r.seed or 0, str(r.path)))
    _say_twins(groups)
    return groups


def _fold(text: str) -> tuple[str, str]:
    return text.lower(), text


def labelled(records: Sequence[Record], by: Sequence[str] = ()) -> list[tuple[str, Record]]:
    """(label, run). A label begins with the place's label or the algorithm; `by` adds what else is told apart: `name`,
    `source`, or settings (lr, actor.width).

    Nothing said: where runs of one algorithm share environment and seed, their names are added. ("algo",): never.
    """
    bases = [(_base(r, records), r) for r in records]
    keys = [key.replace("-", "_") for key in by if key != "algo"]
    for key in keys:
        known = {k for r in records for k in r.config} | {"name", "source", "algo"}
        if key not in known:
            raise UserError(f"--by: no run has a setting '{key}'{nearest(key, sorted(known))}")
    twins = set() if by else _twins(bases)
    labels = []
    for base, r in bases:
        more = [_said(r, key) for key in keys]
        if base in twins and r.name and not STAMP.match(r.name):
            more.append(r.name)
        labels.append((" ".join([base, *filter(None, more)]), r))
    return labels


def _base(record: Record, records: Sequence[Record]) -> str:
    """The place's label, with the algorithm behind it where one label has several."""
    if not record.label:
        return record.algo
    several = len({r.algo for r in records if r.label == record.label}) > 1
    return f"{record.label} {record.algo}" if several else record.label


def _said(record: Record, key: str) -> str:
    if key in ("name", "source"):
        return str(getattr(record, key))
    return f"{key}={_short(record.config[key])}" if key in record.config else ""


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return ",".join(map(_short, value)) if isinstance(value, list) else str(value)


def _twins(bases: Sequence[tuple[str, Record]]) -> set[str]:
    """Labels under which two runs share environment and seed, and have different names."""
    seen: dict[tuple[str, str, int], set[str]] = {}
    for base, r in bases:
        if r.seed is not None:
            seen.setdefault((base, r.env, r.seed), set()).add(r.name)
    return {base for (base, _, _), names in seen.items() if len(names) > 1}


def _say_twins(groups: Groups) -> None:
    for label, envs in groups.items():
        for env, runs in envs.items():
            seeds = [r.seed for r in runs if r.seed is not None]
            twice = next((s for s in seeds if seeds.count(s) > 1), None)
            if twice is None:
                continue
            same = [r for r in runs if r.seed == twice]
            apart = differing(same)
            how = f"; tell them apart with --by {apart[0]}" if apart else ""
            paths = ", ".join(str(r.path) for r in same[:3]) + (", ..." if len(same) > 3 else "")
            warnings.warn(
                f"'{label}' on {env} has {len(same)} runs with seed {twice}, counted as one each: {paths}{how}",
                LabWarning,
            )


IDENTITY = frozenset({"seed", "name", "dir", "track", "quiet", "device", "threads", "compile"})
"""Settings that say which run it is and where it runs, not what it does."""


def differing(records: Sequence[Record]) -> list[str]:
    """The settings in which these runs differ."""
    keys = dict.fromkeys(key for r in records for key in r.config if key not in IDENTITY)
    return [key for key in keys if any(r.config.get(key) != records[0].config.get(key) for r in records)]


def chosen(
    records: Sequence[Record], algos: Sequence[str] = (), envs: Sequence[str] = (), suites: Sequence[str] = ()
) -> list[Record]:
    """The runs whose algorithm or label, environment and suite are named; patterns with * and ? are welcome."""
    from kumite.lab.scores import suite

    def names(r: Record) -> list[str]:
        return [r.algo, r.label, f"{r.label} {r.algo}"] if r.label else [r.algo]

    kept = list(records)
    for flag, patterns, of in (
        ("algos", algos, names),
        ("envs", envs, lambda r: [r.env]),
        ("suite", suites, lambda r: [suite(r.env)]),
    ):
        known = sorted({name for r in records for name in of(r)})
        for pattern in patterns:
            if not any(_like(name, pattern) for name in known):
                there = ", ".join(known[:8]) + (", ..." if len(known) > 8 else "")
                raise UserError(f"--{flag}: there is no '{pattern}'{nearest(pattern, known)} (there are: {there})")
        if patterns:
            kept = [r for r in kept if any(_like(name, p) for name in of(r) for p in patterns)]
    if not kept:
        raise UserError("no run is left after --algos, --envs and --suite")
    return kept


def _like(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name.lower(), pattern.lower())
