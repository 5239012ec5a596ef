"""What a launch shows: a live table on a terminal, plain lines now and then elsewhere, nothing when quiet."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kumite.lab.launch import Task
    from kumite.lab.progress import State

PLAIN = 60.0  # seconds between two plain summaries
LIVE = 0.5  # seconds between two frames
ORDER = ("running", "failed", "stopped", "done", "waiting")
"""What is left out last when the window is too low for all."""
COLOURS = {"running": "cyan", "failed": "red", "stopped": "yellow", "done": "green", "waiting": "dim"}


class View:
    """Says nothing."""

    def __init__(self, name: str, tasks: Sequence[Task]) -> None:
        self.name, self.tasks, self.shown = name, tasks, -math.inf

    def began(self, task: Task, state: State) -> None: ...

    def ended(self, task: Task) -> None: ...

    def say(self, text: str) -> None: ...

    def show(self, slots: int) -> None: ...

    def end(self, slots: int) -> None:
        """Once more, whenever it was shown last."""
        self.shown = -math.inf
        self.show(slots)

    def close(self) -> None: ...


class Plain(View):
    """A line per event, and a summary now and then."""

    def began(self, task: Task, state: State) -> None:
        self.say(f"{task.job.label}: {'begun' if state.kind == 'new' else f'resumed at step {state.step:,}'}")

    def ended(self, task: Task) -> None:
        self.say(f"{task.job.label}: {outcome(task)}")

    def say(self, text: str) -> None:
        with contextlib.suppress(OSError):  # nobody reads any more: no reason to end the runs
            print(text, flush=True)

    def show(self, slots: int) -> None:
        if time.monotonic() - self.shown < PLAIN:
            return
        self.shown = time.monotonic()
        self.say(f"{self.name}: {summary(self.tasks, slots)}")
        for task in self.tasks:
            if task.state == "running":
                self.say("  " + "  ".join(x for x in (task.job.label, *cells(task)[1:]) if x))


class Live(View):
    """A table that stays in its place; the runs at work on top when it does not fit."""

    def __init__(self, name: str, tasks: Sequence[Task]) -> None:
        super().__init__(name, tasks)
        from rich.live import Live as RichLive

        self.live = RichLive(auto_refresh=False)
        self.live.start()

    def ended(self, task: Task) -> None:
        if task.state == "failed":
            self.say(f"{task.job.label}: {outcome(task)}")

    def say(self, text: str) -> None:
        from rich.text import Text

        self.live.console.print(Text(text))

    def show(self, slots: int) -> None:
        if time.monotonic() - self.shown >= LIVE:
            self.shown = time.monotonic()
            self.live.update(self.table(slots, max(self.live.console.height - 6, 5)), refresh=True)

    def table(self, slots: int, rows: int) -> Any:
        from rich.table import Table
        from rich.text import Text

        chosen = sorted(self.tasks, key=lambda t: ORDER.index(t.state))[:rows]
        lines = [(task, line(self.name, task)) for task in self.tasks if task in chosen]
        title = Text(f"{self.name}: {summary(self.tasks, slots)}", no_wrap=True, overflow="ellipsis")
        table = Table(box=None, title=title, title_justify="left", padding=(0, 1, 0, 0), pad_edge=False)
        for i, head in enumerate(HEADS):
            least = None if i == 0 else max(len(words[i]) for words in [HEADS, *(words for _, words in lines)])
            table.add_column(head, min_width=least, justify="right" if i > 3 else "left", no_wrap=True)
        for task, words in lines:
            table.add_row(*map(Text, words[:3]), Text(words[3], style=COLOURS[task.state]), *map(Text, words[4:]))
        if len(chosen) < len(self.tasks):
            table.add_row(Text(f"and {len(self.tasks) - len(chosen)} more", style="dim"))
        return table

    def close(self) -> None:
        self.live.stop()


def view(name: str, tasks: Sequence[Task], quiet: bool) -> View:
    if quiet:
        return View(name, tasks)
    return Live(name, tasks) if sys.stdout.isatty() else Plain(name, tasks)


# --- words ---------------------------------------------------------------------------------------------------------


HEADS = ("environment", "", "seed", "", "progress", "steps/s", "left", "eval")


def line(study: str, task: Task) -> tuple[str, ...]:
    """A row of the table; the first cell is the one that may be cut."""
    variant = task.job.name.removeprefix(study).removeprefix("-")
    return task.job.env, " ".join(x for x in (task.job.algo, variant) if x), str(task.job.seed), *cells(task)


def cells(task: Task) -> tuple[str, str, str, str, str]:
    """State, progress, speed, time left, evaluation."""
    now, steps, at_work = task.now, task.job.config.steps, task.state == "running"
    share = min(now.step / max(steps, 1), 1.0)
    progress = f"{share:.0%} of {count(steps)}" if now.step or at_work else count(steps)
    speed = f"{now.speed:,.0f}" if at_work and now.speed else ""
    left = duration(now.left(steps)) if at_work and now.speed else ""
    return task.state, progress, speed, left, "" if now.mean is None else f"{now.mean:.5g}"


def outcome(task: Task) -> str:
    if task.state == "failed":
        return f"failed: {task.error} (log: {task.log})"
    if task.state == "stopped":
        return f"stopped at step {task.now.step:,}"
    result = "" if task.now.mean is None else f", evaluation {task.now.mean:.5g}"
    return f"done, {task.now.step:,} steps in {duration(task.now.time_s)}{result}"


def summary(tasks: Sequence[Task], slots: int) -> str:
    """12 of 36 done, 2 running, 21 waiting, 1 failed, 3h 20m left"""
    numbers = {state: sum(t.state == state for t in tasks) for state in ORDER}
    parts = [f"{numbers['done']} of {len(tasks)} done"]
    parts += [f"{numbers[state]} {state}" for state in ("running", "waiting", "failed", "stopped") if numbers[state]]
    seconds = 0.0 if numbers["stopped"] else remaining(tasks, slots)
    return ", ".join(parts + ([f"{duration(seconds)} left"] if 0 < seconds < math.inf else []))


def remaining(tasks: Sequence[Task], slots: int) -> float:
    """Seconds until all is done, from the speeds seen so far; inf where none is known for an algorithm."""
    at_work = [t.now.left(t.job.config.steps) for t in tasks if t.state == "running"]
    waiting = [(t.job.config.steps - t.now.step) / (speed(t, tasks) or math.nan) for t in tasks if t.state == "waiting"]
    total = sum(at_work) + sum(waiting)
    if math.isnan(total):
        return math.inf
    return max([total / max(slots, 1), *at_work])


def speed(task: Task, tasks: Iterable[Task]) -> float:
    """Of runs like this one: its own, the same algorithm's there, the same algorithm's elsewhere."""
    known = [t for t in tasks if t.now.step and t.now.time_s > 0]
    alike = [t for t in known if t.alike(task)]
    for group in ([task] if task in known else [], alike, [t for t in known if t.job.algo == task.job.algo]):
        if group:
            return sum(t.now.step for t in group) / sum(t.now.time_s for t in group)
    return 0.0


def count(n: int) -> str:
    """950, 40k, 1.5M"""
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if n >= size:
            return f"{n / size:.4g}{letter}"
    return str(n)


def duration(seconds: float) -> str:
    """3h 20m, 5m 10s, 8s"""
    if not math.isfinite(seconds):
        return "?"
    minutes, s = divmod(int(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}h {m:02d}m" if hours else f"{m}m {s:02d}s" if m else f"{s}s"
