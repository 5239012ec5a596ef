"""Where a run of a study stands, read from its own folder: nothing about it is stored anywhere else."""

from __future__ import annotations

import csv
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kumite import config as c
from kumite.errors import UserError
from kumite.lab.study import Job

FREE = {"steps", "quiet", "dir", "track"}
"""Settings that may change while a study is under way; all others make a run that cannot be compared."""
TAIL = 64 * 1024  # bytes at the end of a table that are looked at


@dataclass(frozen=True)
class State:
    """What would be done with a run now."""

    kind: Literal["new", "resume", "done"]
    step: int = 0
    """The newest checkpoint's."""

    def __str__(self) -> str:
        return f"resume from step {self.step:,}" if self.kind == "resume" else self.kind


def state(job: Job) -> State:
    """From the run's folder; a run that this study cannot continue is refused."""
    if unborn(job):
        return State("new")
    check(job)
    newest = checkpoint(job.folder)
    if newest is None:
        return State("resume", 0)
    return State("done" if finished(job, newest) else "resume", int(newest.name))


def unborn(job: Job) -> bool:
    """There is no such run; or one that was ended while its folder was being made, and holds nothing yet."""
    if not job.folder.exists():
        return True
    if {p.name for p in job.folder.iterdir()} - {"manifest.json", "config.yaml"}:
        return False
    path = job.folder / "config.yaml"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    whole = c.to_yaml(job.config, job.algo, job.env)
    return text != whole and whole.startswith(text)


def checkpoint(run: Path) -> Path | None:
    """The newest whole one, by its name."""
    folder = run / "checkpoints"
    found = [p for p in folder.iterdir() if p.name.isdecimal()] if folder.is_dir() else []
    return max((p for p in found if (p / "manifest.json").is_file()), key=lambda p: int(p.name), default=None)


def finished(job: Job, newest: Path) -> bool:
    """Nothing is left to be done: the last step, its evaluation, and its row of metrics are in the checkpoint."""
    stop = job.config.stop_at
    if int(newest.name) < job.config.steps and stop is None:
        return False
    try:
        saved = json.loads((newest / "state.json").read_text(encoding="utf-8"))
        reached = stop is not None and saved["last_eval"] is not None and saved["last_eval"] >= stop
        evaluated = c.intervals(job.config).eval == 0 or saved["eval_step"] == saved["env_step"]
        full = saved["env_step"] >= job.config.steps and evaluated
        return bool((reached or full) and not saved["meter"]["sums"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def check(job: Job) -> None:
    """A run under this name must be one that this study would make; it may become longer, nothing else."""
    place, advice = job.folder, "choose another --name, or remove that run"
    settings = c.load_yaml(place / "config.yaml") if (place / "config.yaml").is_file() else {}
    whose = settings.pop("algo", None), settings.pop("env_id", None)
    if whose != (job.algo, job.env):
        raise UserError(f"{place} is no run of {job.algo} on {job.env}; {advice}")
    try:
        then = c.resolve(job.algo, "", settings)
    except UserError as e:
        raise UserError(f"{place} was begun by another version of kumite ({e}); {advice}") from None
    for key, (old, new) in c.diff(job.config, then).items():
        if key not in FREE:
            raise UserError(f"{place} was begun with {key} = {old}, the study now says {new}; {advice}")
    if job.config.steps < then.steps:
        raise UserError(
            f"{place} was begun for {then.steps:,} steps, the study now says {job.config.steps:,};"
            f" a run may become longer, not shorter: {advice}"
        )


# --- how fast, how far, how well -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Progress:
    step: int = 0
    time_s: float = 0.0
    """Seconds of training up to that step."""
    speed: float = 0.0
    """Environment steps per second, lately."""
    mean: float | None = None
    """Mean return of the newest evaluation."""
    seen: float = 0.0
    """When the newest row was written, as time.time()."""

    def left(self, steps: int) -> float:
        """Seconds until `steps`; inf where that is not known."""
        if self.step >= steps:
            return 0.0
        if self.speed <= 0:
            return math.inf
        return max((steps - self.step) / self.speed - max(time.time() - self.seen, 0.0), 0.0)


def progress(run: Path) -> Progress:
    """From the last rows of metrics.csv and evals.csv; a row that is being written is left out."""
    metrics, evals = tail(run / "metrics.csv"), tail(run / "evals.csv")
    means = [row["mean"] for row in evals if "mean" in row]
    rows = metrics or evals
    if not rows:
        return Progress()
    last = max(metrics[-1:] + evals[-1:], key=lambda row: row["env_step"])
    first = rows[max(-len(rows), -11)]
    seconds = rows[-1]["time_s"] - first["time_s"]
    if len(rows) == 1 or seconds <= 0:
        first, seconds = {"env_step": 0.0}, rows[-1]["time_s"]
    speed = (rows[-1]["env_step"] - first["env_step"]) / seconds if seconds > 0 else 0.0
    return Progress(int(last["env_step"]), last["time_s"], speed, means[-1] if means else None, _changed(run))


def _changed(run: Path) -> float:
    times = [p.stat().st_mtime for name in ("metrics.csv", "evals.csv") if (p := run / name).exists()]
    return max(times, default=0.0)


def tail(path: Path) -> list[dict[str, float]]:
    """The last whole rows of a table of numbers."""
    try:
        with path.open("rb") as file:
            head = file.readline(TAIL)
            size = file.seek(0, 2)
            file.seek(max(len(head), size - TAIL))
            data = file.read(TAIL)
    except OSError:
        return []
    lines = data[: data.rfind(b"\n") + 1].decode("utf-8", "replace").splitlines()
    if len(head) < size - TAIL:
        lines = lines[1:]  # the first one is cut
    columns = next(csv.reader([head.decode("utf-8", "replace")]), [])
    return [row for cells in csv.reader(lines) if len(cells) == len(columns) and (row := _numbers(columns, cells))]


def _numbers(columns: list[str], cells: list[str]) -> dict[str, Any]:
    try:
        row = {name: float(cell) for name, cell in zip(columns, cells) if cell}
    except ValueError:
        return {}
    return row if {"env_step", "time_s"} <= row.keys() else {}


def last_words(log: Path) -> str:
    """Why a run ended, from the end of its output: kumite's own sentence, or the last line."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL))
            lines = [x.strip() for x in file.read().decode("utf-8", "replace").splitlines() if x.strip()]
    except OSError:
        return ""
    begun = max((i for i, x in enumerate(lines) if x.startswith("$ ")), default=-1)
    ours = [x.removeprefix("kumite: ") for x in lines[begun + 1 :] if x.startswith("kumite: ")]
    return (ours or lines[begun + 1 :] or [""])[-1]
