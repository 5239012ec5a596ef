"""`kumite bench`: every run of a study in a process of its own, as many at once as the machine carries.

Nothing about the runs is remembered between launches: what is finished, what is to be resumed and from where is read
from the run folders each time (progress.py). A study's own folder, <dir>/studies/<name>/, holds

    study.yaml      the study as it was started last, flags included; `kumite bench` takes this folder
    logs/           what each run said, <env>/<algo>/<name>-s<seed>.log, and beside it the lock of its process
    lock            held by the launcher at work
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import tyro

from kumite.errors import UserError
from kumite.flags import HELP_FLAGS, closest_flag, flags_of, parse, print_table
from kumite.lab import job as guard
from kumite.lab import progress
from kumite.lab import study as studies
from kumite.lab.study import Job, Study
from kumite.lab.table import View, view
from kumite.runs import Stop

GRACE = 300.0  # seconds that a run may take to save and end
POLL = 0.1  # seconds between two looks at the processes
LOOK = 1.0  # seconds between two looks at the runs' files


@dataclass
class Task:
    """One run, as the launcher sees it."""

    job: Job
    log: Path
    state: Literal["waiting", "running", "done", "failed", "stopped"] = "waiting"
    tries: int = 0
    error: str = ""
    now: progress.Progress = field(default_factory=progress.Progress)
    began: float = 0.0
    handle: Handle | None = None
    gpu: str | None = None

    @property
    def lock(self) -> Path:
        return self.log.with_suffix(".lock")


class Handle(Protocol):
    """A process somewhere."""

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""

    def stop(self) -> None:
        """It shall save and end."""

    def kill(self) -> None:
        """It ends at once, with all it has started."""


class Backend(Protocol):
    """Where processes are started."""

    cores: int
    gpus: list[str]

    def start(self, words: Sequence[str], env: Mapping[str, str], log: Path, lock: Path) -> Handle:
        """Run `kumite` with these words under a guard; it gets these variables on top of the usual ones."""


# --- this machine --------------------------------------------------------------------------------------------------


class Process:
    def __init__(self, words: Sequence[str], env: Mapping[str, str], log: Path, lock: Path) -> None:
        guarded = [sys.executable, "-S", guard.__file__, str(os.getpid()), str(lock), str(GRACE)]
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            out.write(f"$ {shlex.join(['kumite', *words])}\n".encode())
            out.flush()
            self.process = subprocess.Popen(
                [*guarded, sys.executable, "-m", "kumite", *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **env},
                start_new_session=True,  # Ctrl-C on the terminal reaches the launcher alone
            )

    def poll(self) -> int | None:
        return self.process.poll()

    def stop(self) -> None:
        self.process.terminate()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Local:
    """Processes on this machine."""

    def __init__(self) -> None:
        self.cores, self.gpus = cores(), gpus()

    def start(self, words: Sequence[str], env: Mapping[str, str], log: Path, lock: Path) -> Handle:
        return Process(words, env, log, lock)


def cores() -> int:
    """Those this process may use: by affinity, and by the quota of a container."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        here = min(here, max(int(quota) // int(period), 1))  # "max" is no number: no quota
    return here


def gpus() -> list[str]:
    """The names by which CUDA_VISIBLE_DEVICES knows what is visible here."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    shown = [x for x in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if x.strip()]
    return shown[:count] if shown else [str(i) for i in range(count)]


def least_used(names: Sequence[str], taken: Sequence[str | None]) -> str | None:
    return min(names, key=taken.count, default=None)


def environment(job: Job, gpu: str | None, share: int) -> dict[str, str]:
    """Threads within what the run was given, whatever library makes them; its output at once, not in pieces."""
    threads = str(job.config.threads or 1)
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    env = dict.fromkeys(names, threads) | {"TORCHINDUCTOR_COMPILE_THREADS": str(share), "PYTHONUNBUFFERED": "1"}
    return env | ({"CUDA_VISIBLE_DEVICES": gpu} if gpu is not None else {})


# --- running a study -----------------------------------------------------------------------------------------------


class Stopped(KeyboardInterrupt):
    """A signal ended the launch; its runs have saved."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by signal {number}")
        self.signal = number


def run(
    study: Study, jobs: int = 0, retries: int = 0, quiet: bool = True, backend: str | Backend = "local"
) -> list[Task]:
    """Make or continue every run of the study, `jobs` at once (0 = as many as the machine carries).

    Gives the runs with their state: done or failed. After Ctrl-C or SIGTERM all runs save, then `Stopped` (a
    KeyboardInterrupt) is raised; the same call goes on from there.
    """
    if jobs < 0 or retries < 0:
        raise UserError(f"--{'jobs' if jobs < 0 else 'retries'}: expected at least 0")
    tasks = plan(study)
    with locked(study), Stop().listening() as stop:
        home = _backend(backend)
        shown = view(study.name, tasks, quiet)
        try:
            orphans(tasks, shown, stop)
            _Launch(tasks, home, jobs, retries, shown, stop).run()
        finally:
            shown.close()
    if stop.signal is not None:
        raise Stopped(stop.signal)
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
        if held is None:
            raise UserError(
                f"study '{study.name}' is being run by another process ({guard.holder(place / 'lock')});"
                " wait for it, or choose another --name"
            )
        with held:
            (place / "study.yaml").write_text(study.to_yaml(), encoding="utf-8")
            yield
    except OSError as error:
        raise UserError(f"cannot write to {place}: {error.strerror}; choose another --dir") from None


def _backend(name: str | Backend) -> Backend:
    if not isinstance(name, str):
        return name
    return Local()


def orphans(tasks: Sequence[Task], shown: View, stop: Stop) -> None:
    """Runs of a launcher that was killed are still saving: wait for them."""
    until, told = time.monotonic() + GRACE + 10, False
    for task in tasks:
        while task.lock.exists() and stop.signal is None:
            held = guard.lock(task.lock)
            if held is not None:
                held.close()
                break
            if time.monotonic() > until:
                raise UserError(f"{task.job.folder} is being trained by another process ({guard.holder(task.lock)})")
            if not told:
                shown.say("waiting for the runs of an earlier launch to save and end")
                told = True
            time.sleep(POLL)
        if told and task.state == "waiting" and progress.state(task.job).kind == "done":
            task.state = "done"


class _Launch:
    """Processes in and out, until all is done or a signal says to end."""

    def __init__(self, tasks: list[Task], home: Backend, jobs: int, retries: int, shown: View, stop: Stop) -> None:
        self.tasks, self.home, self.retries, self.shown, self.stop = tasks, home, retries, shown, stop
        self.waiting = [t for t in tasks if t.state == "waiting"]
        self.running: list[Task] = []
        threads = max(t.job.config.threads or 1 for t in tasks)
        self.slots = jobs or max(home.cores // threads, 1)
        self.share = max(home.cores // self.slots, 1)
        self.looked = 0.0
        if min(self.slots, len(self.waiting)) * threads > home.cores:
            many = f"{self.slots} runs at once with {threads} thread(s) each"
            shown.say(f"{many} slow each other down: there are {home.cores} cores")

    def run(self) -> None:
        try:
            while self.running or (self.waiting and self.stop.signal is None):
                self._fill()
                self._collect()
                self._look()
                if self.stop.signal is not None:
                    self._end()
                time.sleep(POLL)
        except BaseException:  # a second Ctrl-C, or a fault of ours: nothing is left running
            for task in self.running:
                if task.handle is not None:
                    task.handle.kill()
            raise
        self._look(again=True)
        self.shown.end(self.slots)

    def _fill(self) -> None:
        while self.stop.signal is None and self.waiting and len(self.running) < self.slots:
            self._start(self.waiting.pop(0))

    def _start(self, task: Task) -> None:
        job = task.job
        if progress.unborn(job) and job.folder.exists():
            shutil.rmtree(job.folder)
        words = job.train() if not job.folder.exists() else job.resume()
        task.gpu = None
        if job.config.device in ("auto", "cuda"):
            task.gpu = least_used(self.home.gpus, [t.gpu for t in self.running])
        task.handle = self.home.start(words, environment(job, task.gpu, self.share), task.log, task.lock)
        task.state, task.began, task.error = "running", time.monotonic(), ""
        self.running.append(task)
        self.shown.began(task)

    def _collect(self) -> None:
        for task in list(self.running):
            code = task.handle.poll() if task.handle else None
            if code is not None:
                self.running.remove(task)
                self._ended(task, code)

    def _ended(self, task: Task, code: int) -> None:
        task.now = progress.progress(task.job.folder)
        if code == 0 and progress.state(task.job).kind == "done":
            task.state = "done"
        elif self.stop.signal is not None:
            task.state = "stopped"
        else:
            self._failed(task, code)
        if task.state != "waiting":
            self.shown.ended(task)

    def _failed(self, task: Task, code: int) -> None:
        said = progress.last_words(task.log)
        task.error = said or "it said nothing"
        if code == 0:
            task.error = "it ended before its last step was saved"
        elif code >= 128 and not said.startswith("interrupted"):
            task.error = f"killed by {signal_name(code - 128)}" + (f" after: {said}" if said else "")
        if code != 2 and task.tries < self.retries:
            task.tries += 1
            task.state = "waiting"
            self.shown.say(f"{task.job.label}: {task.error}; try {task.tries} of {self.retries} begins")
            self.waiting.insert(0, task)
            return
        task.state = "failed"
        if code == 2 and not task.job.folder.exists():  # a mistake that the other seeds would make too
            job = task.job
            for twin in [
                t for t in self.waiting if (t.job.algo, t.job.env, t.job.name) == (job.algo, job.env, job.name)
            ]:
                if not twin.job.folder.exists():
                    self.waiting.remove(twin)
                    twin.state, twin.error = "failed", f"not tried, as seed {job.seed} ended with: {task.error}"

    def _look(self, again: bool = False) -> None:
        now = time.monotonic()
        if not again and now - self.looked < LOOK:
            return
        self.looked = now
        for task in self.running:
            task.now = progress.progress(task.job.folder)
        self.shown.show(self.slots)

    def _end(self) -> None:
        """Once: the runs in progress are told to save."""
        if not getattr(self, "ending", False):
            self.ending = True
            self.shown.say(f"stopping: {len(self.running)} run(s) save and end (once more: end at once)")
            for task in self.running:
                if task.handle is not None:
                    task.handle.stop()


def signal_name(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    return f"{name} (out of memory?)" if name == "SIGKILL" else name


# --- the command ---------------------------------------------------------------------------------------------------

STUDY = tyro.conf.arg(metavar="[STUDY]")


@dataclass(frozen=True)
class Bench:
    """Many runs: algorithms x environments x seeds, each in a process of its own. What is finished is skipped, what was
    interrupted goes on where it stopped. Every other flag is a parameter of the runs (--lr 1e-3), or of the runs of one
    algorithm (--sac.lr 1e-3)."""

    study: tyro.conf.Positional[Annotated[str, STUDY]] = ""
    """A YAML file, the folder of a study that was begun, or one that comes with kumite (--list)."""
    algos: tuple[str, ...] = ()
    """Names from `kumite algos`."""
    envs: tuple[str, ...] = ()
    """Ids of environments."""
    seeds: tuple[str, ...] = ()
    """How many (5 = 0 to 4), or which: 3 4 5; a single one as `7,`."""
    steps: int | None = None
    """Environment steps of every run; none = what the study or the presets say."""
    name: str = ""
    """The name of the study and of its runs."""
    dir: str = ""
    """Where run folders are made."""
    jobs: int = 0
    """Runs at once; 0 = as many as there are cores for their threads."""
    retries: int = 0
    """How often a run that failed is resumed."""
    dry_run: bool = False
    """Only list the runs and what would be done with each."""
    list: bool = False
    """List the studies that come with kumite."""
    quiet: bool = False
    """Say nothing but errors."""


def bench(words: list[str]) -> int:
    ours, parameters = split(words)
    args, _ = parse(Bench, ours, "kumite bench")
    if args.list:
        found = [(name, studies.load(name)) for name in studies.shipped()]
        print_table(("study", "runs", ""), [(n, str(len(s.jobs())), s.about) for n, s in found])
        return 0
    study = chosen(args, parameters)
    if args.dry_run:
        return dry_run(study)
    try:
        tasks = run(study, args.jobs, args.retries, args.quiet)
    except Stopped as e:
        if not args.quiet:
            print(
                f"{e}; everything is saved; go on with:\n  kumite bench {shlex.quote(str(study.folder))}",
                file=sys.stderr,
            )
        return 128 + e.signal
    failed = [t for t in tasks if t.state == "failed"]
    for task in failed:
        print(f"kumite: {task.job.label} failed: {task.error} (log: {task.log})", file=sys.stderr)
    return 1 if failed else 0


def split(words: list[str]) -> tuple[list[str], dict[str, Any]]:
    """The words of the command itself, and the parameters of the runs with their values as text."""
    known = flags_of(Bench)
    ours: list[str] = []
    parameters: dict[str, Any] = {}
    rest = list(words)
    while rest:
        text = rest.pop(0)
        flag, equals, value = text.partition("=")
        flag = "--" + flag[2:].replace("_", "-")
        if not text.startswith("--") or flag in known or text in HELP_FLAGS:
            ours.append(text)
            while text.startswith("--") and rest and not rest[0].startswith("--"):
                ours.append(rest.pop(0))
            continue
        values = [value] if equals else []
        while not equals and rest and not rest[0].startswith("--"):
            values.append(rest.pop(0))
        name = flag[2:].replace("-", "_")
        if name == "seed":
            raise UserError("unknown flag '--seed'; did you mean '--seeds'?")
        head, _, last = name.rpartition(".")
        if not values and last.startswith("no_"):
            name, values = f"{head}.{last[3:]}".strip("."), ["false"]
        parameters[name] = values[0] if len(values) == 1 else values or "true"
    return ours, parameters


def chosen(args: Bench, parameters: Mapping[str, Any]) -> Study:
    if not args.study and not args.algos and not args.envs:
        near = closest_flag("--study", {})
        raise UserError(
            f"which study? kumite bench STUDY (a YAML file, or one of {', '.join(studies.shipped())}), or"
            f" kumite bench --algos ppo sac --envs CartPole-v1 --seeds 3{near}"
        )
    study = studies.load(args.study) if args.study else Study((), ())
    study = studies.changed(
        study,
        algos=studies.unique(a.lower() for a in args.algos),
        envs=studies.unique(args.envs),
        seeds=studies.read_seeds(args.seeds) if args.seeds else (),
        name=args.name,
        dir=args.dir,
    )
    given = dict(parameters) | ({} if args.steps is None else {"steps": args.steps})
    return studies.flags(study, given)


def dry_run(study: Study) -> int:
    jobs = study.jobs()
    rows = [(str(job.folder), f"{job.config.steps:,}", str(progress.state(job))) for job in jobs]
    print_table(("run", "steps", "would be"), rows)
    return 0
