"""Finished and unfinished runs as the lab sees them: tables of numbers and the settings behind them.

A record is one run, whoever wrote it. kumite's own folders are read here; `foreign.py` reads those of others.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kumite.config import load_yaml
from kumite.errors import UserError

Column = NDArray[np.float64]
Axis = Literal["steps", "time", "updates"]


@dataclass(frozen=True)
class Curve:
    """One number over the course of one run; the x axis rises, nothing in it is missing."""

    x: Column
    y: Column


@dataclass(frozen=True)
class Record:
    """One run."""

    path: Path
    env: str
    algo: str
    """What is compared: the algorithm's name, with the run's name where that tells variants apart (see `label`)."""
    seed: int
    name: str = ""
    """The run's name without its seed."""
    source: str = "kumite"
    """Who wrote it: kumite, tensorboard, sb3, cleanrl, csv, ..."""
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
        """`what`: eval (mean return of evaluations), train (return of training episodes), or a metric's name."""
        table, column = {"eval": (self.evals, "mean"), "train": (self.episodes, "return")}.get(
            what, (self.metrics, what)
        )
        if column not in table or "env_step" not in table:
            return None
        y, x = table[column], self._axis(table, axis)
        if x is None:
            return None
        good = np.isfinite(x) & np.isfinite(y)
        return Curve(x[good], y[good]) if good.any() else None

    def _axis(self, table: Mapping[str, Column], axis: Axis) -> Column | None:
        if axis == "steps":
            return table["env_step"]
        if axis == "time":
            return table.get("time_s")
        updates, steps = self.metrics.get("train/n_updates"), self.metrics.get("env_step")
        if updates is None or steps is None:
            return None
        known = np.isfinite(updates)
        if not known.any():
            return None
        return np.interp(table["env_step"], steps[known], updates[known])


def read(path: Path) -> Record:
    """One of kumite's run folders."""
    settings = load_yaml(path / "config.yaml")
    facts = _facts(path / "manifest.json")
    algo, env = str(settings.pop("algo", "")), str(settings.pop("env_id", ""))
    if not algo or not env:
        raise UserError(f"'{path}' is no run's folder: its config.yaml names no algorithm and environment")
    config = dict(_flat(settings))
    seed = int(config.get("seed", 0))
    evals, metrics, episodes = (table(path / f"{name}.csv") for name in ("evals", "metrics", "episodes"))
    name = path.name.removesuffix(f"-s{seed}")
    return Record(path, env, algo, seed, name, "kumite", config, facts, evals, metrics, episodes)


def _facts(path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def table(path: Path) -> dict[str, Column]:
    """A CSV file as columns of numbers; nan where a cell holds none. A line that is cut short or torn is left out."""
    try:
        with path.open(newline="", encoding="utf-8", errors="replace") as file:
            rows = list(csv.reader(file))
    except (OSError, csv.Error):
        return {}
    if not rows:
        return {}
    head, body = rows[0], [row for row in rows[1:] if len(row) == len(rows[0])]
    columns = zip(*body, strict=True) if body else ([] for _ in head)
    return {name: np.array([_number(cell) for cell in cells], np.float64) for name, cells in zip(head, columns)}


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return float("nan")


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def find(places: Iterable[str | Path]) -> Iterator[Path]:
    """Every run folder of kumite at or below these places, in a stable order."""
    for place in map(Path, places):
        if is_run(place):
            yield place
        else:
            yield from (p.parent for p in sorted(place.rglob("config.yaml")) if is_run(p.parent))


def is_run(folder: Path) -> bool:
    """A checkpoint's folder holds a config too, but beside a state."""
    return (folder / "config.yaml").is_file() and not (folder / "state.json").exists()
