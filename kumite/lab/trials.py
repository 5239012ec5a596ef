"""The trials of a search at work: their runs as processes, what the pruner is told, and what is shown of it."""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kumite.errors import UserError
from kumite.lab import progress, space
from kumite.lab.journal import Journal, words
from kumite.lab.launch import Launch, Task, reason
from kumite.lab.local import Local
from kumite.lab.study import Job
from kumite.lab.table import LIVE, View
from kumite.runs import Stop

if TYPE_CHECKING:
    from kumite.lab.tune import Hunt

TRIED = 3  # this many trials that fail, and none that made an evaluation: the search is given up


class Trial:
    """One set of numbers and its runs, one seed after the other."""

    def __init__(self, hunt: Hunt, optuna: Any) -> None:
        self.hunt, self.optuna = hunt, optuna
        self.number: int = optuna.number
        self.values = {key: space.tidy(optuna.params[key], d) for key, d in hunt.space.items()}
        if "untuned" in optuna.user_attrs:
            self.values = hunt.usual()
        self.done: list[float] = []  # scores of the seeds that are through
        self.seen = 0  # evaluations of the seed at work that were reported
        self.last: float | None = None
        self.task: Task | None = hunt.task(self._job())

    def _job(self) -> Job:
        return self.hunt.job(self.number, self.values, self.hunt.search.seed + len(self.done))

    def means(self) -> list[float]:
        """The evaluations of the seed at work."""
        assert self.task is not None
        rows = progress.tail(self.task.job.folder / "evals.csv")
        return [row["mean"] for row in rows if "mean" in row]

    def report(self) -> bool:
        """Tell the pruner what is new; does it want an end?"""
        means = self.means()
        known = self.optuna.storage.get_trial(self.optuna._trial_id).intermediate_values
        prune = False
        for k in range(self.seen, len(means)):
            self.last = self._score(means[: k + 1])
            place = len(self.done) * self.hunt.evaluations + k
            if place not in known and math.isfinite(self.last):
                self.optuna.report(self.last, place)
                prune = self.optuna.should_prune()
        self.seen = len(means)
        return prune

    def _score(self, means: Sequence[float]) -> float:
        """Over the seeds that are through and the one at work."""
        return (sum(self.done) + self.hunt.score(means)) / (len(self.done) + 1)

    def next_seed(self) -> float | None:
        """The seed at work is through: on to the next, or the trial's score."""
        self.done.append(self.hunt.score(self.means()))
        self.seen = 0
        if len(self.done) < self.hunt.search.seeds:
            self.task = self.hunt.task(self._job())
            return None
        self.task = None
        return sum(self.done) / len(self.done)

    def tidy_up(self) -> None:
        """The curves and the best checkpoint of its runs stay."""
        for i in range(self.hunt.search.seeds):
            job = self.hunt.job(self.number, self.values, self.hunt.search.seed + i)
            newest = progress.checkpoint(job.folder)
            if newest is not None:
                shutil.rmtree(newest, ignore_errors=True)

    @property
    def share(self) -> float:
        """How much of its evaluations it has."""
        every = self.hunt.evaluations
        return min((len(self.done) * every + self.seen) / (every * self.hunt.search.seeds), 1.0)


class Tuning(Launch):
    """Processes in and out as in a study, with a pruner that looks at them and a sampler that says what comes next."""

    def __init__(
        self, hunt: Hunt, journal: Journal, under_way: list[Trial], trials: int, jobs: int, board: Board, stop: Stop
    ) -> None:
        self.hunt, self.journal, self.under_way, self.wanted = hunt, journal, under_way, trials
        self.board = board
        self.of: dict[int, Trial] = {}  # id of a task -> its trial
        self.failed, self.sound = 0, False  # trials that failed; did any make an evaluation?
        super().__init__([hunt.task(hunt.job(0, {}, hunt.search.seed))], Local(), jobs, 0, board, stop)
        self.waiting = []
        board.running = self.running_trials

    def go(self) -> None:
        begun = len(self.journal.trials())
        so_far = f", {words(self.journal.counts())} so far" if begun else ""
        self.board.say(f"{self.hunt.folder}: {self.wanted} trials, {self.slots} runs at once{so_far}")
        self._refill()
        self.run()

    def running_trials(self) -> list[Trial]:
        return [self.of[id(task)] for task in self.running]

    def _refill(self) -> None:
        while self.stop.signal is None and len(self.running) + len(self.waiting) < self.slots:
            if self.under_way:
                trial = self.under_way.pop(0)
            elif len(self.journal.trials()) < self.wanted and not self._hopeless():
                trial = Trial(self.hunt, self.journal.ask())
            else:
                return
            self._queue(trial)

    def _queue(self, trial: Trial) -> None:
        assert trial.task is not None
        self.of[id(trial.task)] = trial
        self.waiting.append(trial.task)

    def _hopeless(self) -> bool:
        """Nothing but failures."""
        return self.failed >= TRIED and not self.sound

    def _fill(self) -> None:
        self._refill()
        super()._fill()

    def _start(self, task: Task) -> None:
        trial = self.of[id(task)]
        if self._is_done(task):  # by a search that was ended just then
            trial.report()
            self._through(trial)
            return
        super()._start(task)

    def _look(self) -> None:
        if time.monotonic() - self.looked >= LIVE:
            for task in list(self.running):
                trial = self.of[id(task)]
                if task.handle is not None and trial.report() and task.handle.poll() is None:
                    task.handle.kill()
                    self.running.remove(task)
                    self.journal.tell(trial, "PRUNED")
                    self.board.told(trial, f"pruned at {trial.share:.0%}, {shown(trial.last)}")
                    trial.tidy_up()
            self._refill()
        super()._look()

    def _ended(self, task: Task, code: int) -> None:
        trial = self.of[id(task)]
        trial.report()
        self.sound = self.sound or trial.share > 0
        if code == 0 and self._is_done(task):
            self._through(trial)
        elif self.stop.signal is None:
            self._fail(task, reason(task.log, code), hopeless=True)
        self._refill()

    def _is_done(self, task: Task) -> bool:
        try:
            return progress.state(task.job).kind == "done"
        except UserError:  # somebody changed its folder
            return False

    def _through(self, trial: Trial) -> None:
        """One seed is done."""
        try:
            score = trial.next_seed()
        except ZeroDivisionError:
            self._give_up(trial, "it made no evaluation")
            return
        if score is None:
            self._queue(trial)
        elif not math.isfinite(score):
            self._give_up(trial, f"its mean return is {score}")
        else:
            self.journal.tell(trial, "COMPLETE", score)
            trial.tidy_up()
            self.board.told(trial, shown(score))

    def _fail(self, task: Task, error: str, hopeless: bool) -> None:
        self._give_up(self.of[id(task)], error)

    def _give_up(self, trial: Trial, error: str) -> None:
        self.failed += 1
        self.journal.tell(trial, "FAIL", error=error)
        self.board.told(trial, f"failed: {error}")


# --- what is shown ---------------------------------------------------------------------------------------------------


def shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.5g}"


def numbers(values: Mapping[str, Any]) -> str:
    return "  ".join(
        f"{key} {str(value).lower() if isinstance(value, bool) else value}" for key, value in values.items()
    )


class Board(View):
    """A line per trial, and on a terminal a table of those at work below them."""

    def __init__(self, hunt: Hunt, journal: Journal, wanted: int, quiet: bool) -> None:
        super().__init__(hunt.folder.name, [])
        self.hunt, self.journal, self.wanted, self.quiet = hunt, journal, wanted, quiet
        self.running: Callable[[], list[Trial]] = list
        self.live: Any = None
        if not quiet and sys.stdout.isatty():
            from rich.live import Live

            self.live = Live(auto_refresh=False)
            self.live.start()

    def told(self, trial: Trial, outcome: str) -> None:
        self.say(f"trial {trial.number}: {outcome}  |  {numbers(trial.values)}")

    def say(self, text: str) -> None:
        if self.live is not None:
            from rich.text import Text

            self.live.console.print(Text(text))
        elif not self.quiet:
            print(text, flush=True)

    def show(self, slots: int) -> None:
        if self.live is None or time.monotonic() - self.tick < LIVE:
            return
        self.tick = time.monotonic()
        from rich.table import Table
        from rich.text import Text

        best = self.journal.best()
        head = f"{self.name}: {words(self.journal.counts())} of {self.wanted} trials"
        head += f", best {shown(best.value)} (trial {best.number})" if best else ""
        table = Table(box=None, title=Text(head, no_wrap=True), title_justify="left", pad_edge=False)
        for name in ("trial", "done", "score", "numbers"):
            table.add_column(name, no_wrap=True, overflow="ellipsis")
        for trial in self.running():
            row = (str(trial.number), f"{trial.share:.0%}", shown(trial.last), numbers(trial.values))
            table.add_row(*map(Text, row))
        self.live.update(table, refresh=True)

    tick = -math.inf

    def close(self) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None
