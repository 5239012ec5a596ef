"""Running a study: every run in a process of its own, as many at once as the machine carries.

Nothing about the runs is remembered between launches: what is finished, what is to be resumed and from where is read
from the run folders each time (progress.py). A study's own folder, <dir>/studies/<name>/, holds

    study.yaml      the study as it was started last, flags included; `kumite bench` takes this folder
    logs/           what each run said, <env>/<algo>/<name>-s<seed>.log, and beside it the lock of its process
    lock            held by the launcher at work
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from kumite.errors import UserError
from kumite.lab import job as guard
from kumite.lab import progress
from kumite.lab.local import GRACE, Backend, Handle, Local, environment, least_used
from kumite.lab.study import Job, Study
from kumite.lab.table import View, view
from kumite.runs import Stop

POLL = 0.1  # seconds between two looks at the processes
SAVED = (0, 129, 130, 138, 143)  # exit codes of a run that was told to end
LOOK = 1.0  # seconds between two looks at the runs' files


@dataclass(eq=False)
class Task:
    """One run, as the launcher sees it."""

    job: Job
    log: Path
    state: Literal["waiting", "running", "done", "failed", "stopped"] = "waiting"
    error: str = ""
    now: progress.Progress = field(default_factory=progress.Progress)
    tries: int = 0
    handle: Handle | None = None
    gpu: str | None = None

    @property
    def lock(self) -> Path:
        return self.log.with_suffix(".lock")

    @property
    def threads(self) -> int:
        return int(self.job.config.threads) or 1

    def alike(self, other: Task) -> bool:
        """Another seed of the same."""
        mine, theirs = self.job, other.job
        return (mine.algo, mine.env, mine.name) == (theirs.algo, theirs.env, theirs.name)


class Stopped(KeyboardInterrupt):
    """A signal ended the launch; its runs have saved, but for those among `tasks` that failed."""

    def __init__(self, number: int, tasks: Sequence[Task] = ()) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.signal, self.tasks = number, tasks


def run(study: Study, jobs: int = 0, retries: int = 0, quiet: bool = True, backend: str = "local") -> list[Task]:
    """Make or continue every run of the study, `jobs` at once (0 = as many as the machine carries).

    Gives the runs with their state, done or failed. After Ctrl-C or SIGTERM all runs save, then `Stopped` (a
    KeyboardInterrupt) is raised; the same call goes on from there.
    """
    for name, number in (("jobs", jobs), ("retries", retries)):
        if number < 0:
            raise UserError(f"{name}: expected at least 0, got {number}")
    tasks = plan(study)
    with contextlib.ExitStack() as stack:
        stop = stack.enter_context(Stop().listening())
        home = reach(backend)
        stack.callback(home.close)
        stack.enter_context(stop.listening())  # once more: Ray puts a handler of its own
        stack.enter_context(locked(study))
        shown = view(study.name, tasks, quiet)
        stack.callback(shown.close)
        orphans(tasks, shown, stop)
        Launch(tasks, home, jobs, retries, shown, stop).run()
    if stop.signal is not None:
        raise Stopped(stop.signal, tasks)
    return tasks


def plan(study: Study) -> list[Task]:
    """Every run and whether it is done; refuses what cannot be run before anything is written."""
    tasks = []
    for job in study.jobs():
        log = study.folder / "logs" / job.folder.parent.parent.name / job.algo / f"{job.folder.name}.log"
        done = progress.state(job).kind == "done"
        tasks.append(Task(job, log, "done" if done else "waiting", now=progress.progress(job.folder)))
    return tasks


@contextlib.contextmanager
def locked(study: Study) -> Iterator[None]:
    """The study's folder with its file, for one launcher at a time."""
    place = study.folder
    try:
        held = guard.lock(place / "lock")
        if held is not None:
            (place / ".study.yaml").write_text(study.to_yaml(), encoding="utf-8")
            os.replace(place / ".study.yaml", place / "study.yaml")
    except OSError as error:
        raise UserError(f"cannot write to {place}: {error.strerror}; choose another --dir") from None
    if held is None:
        owner = guard.holder(place / "lock")
        raise UserError(
            f"study '{study.name}' is being run by another process ({owner}); wait for it, or choose another --name"
        )
    with held:
        yield


def reach(backend: str) -> Backend:
    if backend == "ray":
        from kumite.lab.cluster import Cluster

        return Cluster()
    if backend != "local":
        raise UserError(f"backend: expected local or ray, got '{backend}'")
    return Local()


def orphans(tasks: Sequence[Task], shown: View, stop: Stop) -> None:
    """Runs of a launcher that was killed are still saving: wait for them."""
    until, waited = time.monotonic() + GRACE + 10, False
    for task in tasks:
        while task.lock.exists() and stop.signal is None:
            held = guard.lock(task.lock)
            if held is not None:
                held.close()
                break
            if not waited:
                shown.say("waiting for the runs of an earlier launch to save and end")
                waited = True
            if time.monotonic() > until:
                raise UserError(f"{task.job.folder} is being trained by another process ({guard.holder(task.lock)})")
            time.sleep(POLL)
    for task in tasks if waited else ():
        if task.state == "waiting" and progress.state(task.job).kind == "done":
            task.state, task.now = "done", progress.progress(task.job.folder)


class Launch:
    """Processes in and out, until all is done or a signal says to end."""

    def __init__(self, tasks: list[Task], home: Backend, jobs: int, retries: int, shown: View, stop: Stop) -> None:
        self.home, self.retries, self.shown, self.stop = home, retries, shown, stop
        self.waiting = [t for t in tasks if t.state == "waiting"]
        self.running: list[Task] = []
        threads = max(t.threads for t in tasks)
        self.slots = jobs or max(home.cores // threads, 1)
        self.share = max(home.cores // self.slots, 1)
        self.looked = 0.0
        self.ending = False
        if min(self.slots, len(self.waiting)) * threads > home.cores:
            many = f"{self.slots} runs at once with {threads} thread{'s' * (threads > 1)} each"
            shown.say(f"{many} slow each other down: there are {home.cores} cores")

    def run(self) -> None:
        try:
            while self.running or (self.waiting and self.stop.signal is None):
                self._fill()
                self._collect()
                self._look()
                if self.stop.signal is not None and not self.ending:
                    self._end()
                time.sleep(POLL)
        except KeyboardInterrupt:  # a second Ctrl-C
            self._each(lambda handle: handle.kill())
            raise
        except BaseException:  # a fault of ours: nothing is left running, nothing is lost
            self._each(lambda handle: handle.stop())
            raise
        self.shown.end(self.slots)

    def _fill(self) -> None:
        while self.stop.signal is None and self.waiting and len(self.running) < self.slots:
            task = self.waiting.pop(0)
            try:
                self._start(task)
            except (UserError, OSError) as error:  # a full disk, a folder that somebody changed
                self._fail(task, str(error), hopeless=True)

    def _start(self, task: Task) -> None:
        job = task.job
        state = progress.state(job)
        if state.kind == "new" and job.folder.exists():
            shutil.rmtree(job.folder)
        task.gpu = None
        if job.config.device in ("auto", "cuda"):
            task.gpu = least_used(self.home.gpus, [t.gpu for t in self.running])
        env = environment(task.threads, self.share, task.gpu)
        task.handle = self.home.start(job.train() if state.kind == "new" else job.resume(), env, task.log, task.lock)
        task.state, task.error = "running", ""
        self.running.append(task)
        self.shown.began(task, state)

    def _collect(self) -> None:
        for task in list(self.running):
            code = task.handle.poll() if task.handle else None
            if code is not None:
                self.running.remove(task)
                self._ended(task, code)

    def _ended(self, task: Task, code: int) -> None:
        task.now = progress.progress(task.job.folder)
        try:
            done = code == 0 and progress.state(task.job).kind == "done"
        except UserError as error:
            return self._fail(task, str(error), hopeless=True)
        if done:
            task.state = "done"
            self.shown.ended(task)
        elif self.stop.signal is not None and code in SAVED:
            task.state = "stopped"
            self.shown.ended(task)
        else:
            self._fail(task, reason(task.log, code), hopeless=code == 2 or self.stop.signal is not None)
            if code == 2 and not task.job.folder.exists():
                self._spare(task)

    def _fail(self, task: Task, error: str, hopeless: bool) -> None:
        task.error = error
        if not hopeless and task.tries < self.retries:
            task.tries, task.state = task.tries + 1, "waiting"
            self.waiting.insert(0, task)
            self.shown.say(f"{task.job.label}: {error}; try {task.tries} of {self.retries} begins")
            return
        task.state = "failed"
        self.shown.ended(task)

    def _spare(self, task: Task) -> None:
        """The user's mistake, found before anything was written: other seeds would make it too."""
        for twin in [t for t in self.waiting if t.alike(task) and not t.job.folder.exists()]:
            self.waiting.remove(twin)
            self._fail(twin, f"not tried after seed {task.job.seed}: {task.error}", hopeless=True)

    def _look(self) -> None:
        now = time.monotonic()
        if now - self.looked >= LOOK:
            self.looked = now
            for task in self.running:
                task.now = progress.progress(task.job.folder)
            self.shown.show(self.slots)

    def _end(self) -> None:
        """The runs are told to save."""
        self.ending = True
        count = len(self.running)
        what = "the run saves and ends" if count == 1 else f"{count} runs save and end"
        self.shown.say(f"stopping: {what} (once more: end at once)")
        self._each(lambda handle: handle.stop())

    def _each(self, call: Callable[[Handle], None]) -> None:
        for task in self.running:
            if task.handle is not None:
                call(task.handle)


def reason(log: Path, code: int) -> str:
    """Why a run ended, in a line."""
    if code == 0:
        return "it ended before its last step was saved"
    said = progress.last_words(log)
    if code < 128 or said.startswith("interrupted"):
        return said or f"it ended with exit code {code} and said nothing"
    try:
        name = signal.Signals(code - 128).name
    except ValueError:
        name = f"signal {code - 128}"
    return f"killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
