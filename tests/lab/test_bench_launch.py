"""The order of events in a launch, with processes that only pretend; the table; the words of the command."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kumite.cli import main
from kumite.errors import UserError
from kumite.lab import job as guard
from kumite.lab import launch, local, progress, study, table
from kumite.lab.launch import Launch, Stopped, Task
from kumite.lab.progress import Progress
from kumite.lab.study import Study
from kumite.runs import Stop

ONE = Study(("ppo",), ("CartPole-v1",), (0, 1, 2), parameters={"steps": 100})


class Fake:
    """A process that ends with the next of these codes after some looks at it."""

    def __init__(self, home: FakeHome, words: Sequence[str], code: int, looks: int) -> None:
        self.home, self.words, self.code, self.looks = home, words, code, looks
        self.stopped = self.killed = False
        home.alive.append(self)

    def poll(self) -> int | None:
        self.looks -= 1
        if self.looks > 0:
            return None
        if self in self.home.alive:
            self.home.alive.remove(self)
            self.home.ended.append((self.words, self.code))
        return self.code

    def stop(self) -> None:
        self.stopped, self.looks, self.code = True, 1, 143

    def kill(self) -> None:
        self.killed = True


@dataclass
class FakeHome:
    codes: list[int] = field(default_factory=list)
    cores: int = 4
    gpus: list[str] = field(default_factory=list)
    looks: int = 3
    alive: list[Fake] = field(default_factory=list)
    ended: list[tuple[Sequence[str], int]] = field(default_factory=list)
    most: int = 0
    envs: list[Mapping[str, str]] = field(default_factory=list)
    started: Callable[[Fake], None] = lambda fake: None

    def start(self, words: Sequence[str], env: Mapping[str, str], log: Path, lock: Path) -> Fake:
        fake = Fake(self, words, self.codes.pop(0) if self.codes else 0, self.looks)
        self.most = max(self.most, len(self.alive))
        self.envs.append(env)
        self.started(fake)
        return fake

    def close(self) -> None: ...


@pytest.fixture
def go(runs: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Task]]:
    """Launch a study whose processes are pretended; a run whose last code was 0 counts as done."""

    def run(home: FakeHome, said: Study = ONE, *, jobs: int = 0, retries: int = 0, quiet: bool = True) -> list[Task]:
        def state(job: Any) -> progress.State:
            codes = [code for words, code in home.ended if f"--seed={job.seed}" in words or str(job.folder) in words]
            return progress.State("done" if codes and codes[-1] == 0 else "resume" if codes else "new")

        monkeypatch.setattr(progress, "state", state)
        monkeypatch.setattr(launch, "reach", lambda backend: home)
        monkeypatch.setattr(launch, "POLL", 0.0)
        return launch.run(said, jobs, retries, quiet)

    return run


Go = Callable[..., list[Task]]


def test_as_many_at_once_as_asked(go: Go) -> None:
    for jobs, most in ((1, 1), (2, 2), (0, 3)):
        home = FakeHome()
        assert {t.state for t in go(home, jobs=jobs)} == {"done"}
        assert home.most == most
        assert len(home.ended) == 3


def test_threads_are_counted(go: Go, capsys: pytest.CaptureFixture[str]) -> None:
    home = FakeHome(cores=4)
    go(home, study.flags(ONE, {"threads": "2"}))
    assert home.most == 2
    assert {env["OMP_NUM_THREADS"] for env in home.envs} == {"2"}
    go(FakeHome(cores=4), study.flags(ONE, {"threads": "2"}), jobs=3, quiet=False)
    assert "3 runs at once with 2 threads each slow each other down: there are 4 cores" in capsys.readouterr().out


def test_gpus_are_dealt_out(go: Go) -> None:
    home = FakeHome(gpus=["0", "MIG-7"])
    go(home, study.changed(ONE, seeds=tuple(range(6))), jobs=4)
    seen = [env["CUDA_VISIBLE_DEVICES"] for env in home.envs]
    assert seen[:4] == ["0", "MIG-7", "0", "MIG-7"]
    assert set(seen[4:]) <= {"0", "MIG-7"}
    home = FakeHome(gpus=["0", "1"])
    go(home, study.flags(ONE, {"device": "cpu"}))
    assert not any("CUDA_VISIBLE_DEVICES" in env for env in home.envs)


def test_a_failure_does_not_stop_the_rest(go: Go) -> None:
    tasks = go(FakeHome([1, 0, 0]), jobs=1)
    assert [t.state for t in tasks] == ["failed", "done", "done"]
    assert tasks[0].error == "it ended with exit code 1 and said nothing"


def test_retries(go: Go) -> None:
    home = FakeHome([1, 137, 0, 1, 1, 1, 1, 1, 1])
    tasks = go(home, jobs=1, retries=2)
    assert [t.state for t in tasks] == ["done", "failed", "failed"]
    assert [words[0] for words, _ in home.ended][:4] == ["train", "resume", "resume", "train"]
    assert [code for _, code in home.ended] == [1, 137, 0, 1, 1, 1, 1, 1, 1]


def test_a_mistake_is_made_once(go: Go) -> None:
    """Exit code 2 before anything was written: the other seeds are spared, other runs are not, and no retry."""
    said = study.changed(ONE, envs=("Hoper-v5", "CartPole-v1"))
    home = FakeHome([2, 0])
    tasks = go(home, said, jobs=1, retries=5)
    assert {t.job.seed: t.state for t in tasks if t.job.env == "Hoper-v5"} == {0: "failed", 1: "failed", 2: "failed"}
    assert {t.state for t in tasks if t.job.env == "CartPole-v1"} == {"done"}
    assert len(home.ended) == 4
    assert all("not tried after seed 0" in t.error for t in tasks if t.state == "failed" and t.job.seed)


def test_ended_without_its_last_step_is_a_failure(go: Go, monkeypatch: pytest.MonkeyPatch) -> None:
    home = FakeHome()
    home.started = lambda fake: monkeypatch.setattr(progress, "state", lambda job: progress.State("resume", 50))
    tasks = go(home)
    assert {(t.state, t.error) for t in tasks} == {("failed", "it ended before its last step was saved")}


def test_a_run_that_cannot_start_is_a_failure(go: Go) -> None:
    home = FakeHome()

    def full(fake: Fake) -> None:
        if "--seed=1" in fake.words:
            home.alive.remove(fake)
            raise OSError(28, "No space left on device")

    home.started = full
    assert [(t.state, t.error[-24:]) for t in go(home)][1] == ("failed", " No space left on device")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_runs_save(go: Go, number: signal.Signals, capsys: pytest.CaptureFixture[str]) -> None:
    home = FakeHome(looks=10_000)
    seen: list[Fake] = []

    def started(fake: Fake) -> None:
        seen.append(fake)
        if len(seen) == 2:
            signal.raise_signal(number)

    home.started = started
    with pytest.raises(Stopped) as end:
        go(home, jobs=2, quiet=False)
    assert end.value.signal == number
    assert len(seen) == 2
    assert all(fake.stopped and not fake.killed for fake in seen)
    assert "stopping: 2 runs save and end" in capsys.readouterr().out


def test_a_run_that_could_not_save_is_told(
    go: Go, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = FakeHome(looks=10_000)

    def stop(fake: Fake) -> None:
        fake.looks, fake.code = 1, 143 if "--seed=0" in fake.words else 137

    monkeypatch.setattr(Fake, "stop", stop)
    home.started = lambda fake: signal.raise_signal(signal.SIGTERM) if len(home.alive) == 2 else None
    with pytest.raises(Stopped) as end:
        go(home, jobs=2, retries=3)
    assert [t.state for t in end.value.tasks] == ["stopped", "failed", "waiting"]

    def stopped(*_: Any) -> None:
        raise end.value

    monkeypatch.setattr(launch, "run", stopped)
    assert main(["bench", "quick"]) == 143
    failed, last = capsys.readouterr().err.splitlines()
    assert "bench-s1 failed: killed by SIGKILL" in failed
    assert last == "kumite: stopped by SIGTERM, the runs are saved; go on with: kumite bench runs/studies/quick"


def test_a_second_ctrl_c_ends_at_once(go: Go, monkeypatch: pytest.MonkeyPatch) -> None:
    home = FakeHome(looks=10_000)
    monkeypatch.setattr(Fake, "stop", lambda self: signal.raise_signal(signal.SIGINT))
    home.started = lambda fake: signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        go(home, jobs=1)
    assert [fake.killed for fake in home.alive] == [True]


def test_a_fault_lets_the_runs_save(go: Go, monkeypatch: pytest.MonkeyPatch) -> None:
    home = FakeHome(looks=10_000)
    seen: list[Fake] = []
    home.started = seen.append
    monkeypatch.setattr(Launch, "_look", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        go(home, jobs=2)
    assert [(fake.stopped, fake.killed) for fake in seen] == [(True, False)] * 2


def test_nobody_reads_any_more(go: Go, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("builtins.print", broken)
    assert {t.state for t in go(FakeHome(), quiet=False)} == {"done"}


def test_nothing_is_written_where_ray_is_missing(runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["bench", "quick", "--backend", "ray"]) == 2
    assert "pip install 'kumite[distributed]'" in capsys.readouterr().err
    assert not list(runs.iterdir())


def test_one_launcher_at_a_time(go: Go) -> None:
    home = FakeHome()

    def second(fake: Fake) -> None:
        with pytest.raises(UserError, match=r"study 'bench' is being run by another process \(\d+\); wait for it"):
            launch.run(ONE)

    home.started = second
    assert {t.state for t in go(home)} == {"done"}
    assert {t.state for t in go(home)} == {"done"}, "the lock is free again"


def test_runs_that_still_save_are_waited_for(go: Go, capsys: pytest.CaptureFixture[str]) -> None:
    """A lock that is held: the process of an earlier launch has not ended yet."""
    path = Path("runs/studies/bench/logs/CartPole-v1/ppo/bench-s1.lock")
    held = guard.lock(path)
    assert held is not None
    naps: list[float] = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            held.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch.time, "sleep", sleep)
        assert {t.state for t in go(FakeHome(), quiet=False)} == {"done"}
    assert "waiting for the runs of an earlier launch" in capsys.readouterr().out


def test_a_lock_belongs_to_one(tmp_path: Path) -> None:
    one = guard.lock(tmp_path / "a" / "lock")
    assert one is not None
    assert guard.lock(tmp_path / "a" / "lock") is None
    assert guard.holder(tmp_path / "a" / "lock").isdecimal()
    one.close()
    again = guard.lock(tmp_path / "a" / "lock")
    assert again is not None
    again.close()


def test_a_folder_that_cannot_be_written(runs: Path) -> None:
    (runs / "studies").write_text("a file")
    with pytest.raises(UserError, match=r"cannot write to runs/studies/bench: .*; choose another --dir"):
        launch.run(ONE)


def test_what_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda self: "150000 100000")
    assert local.cores() == 1
    monkeypatch.setattr(Path, "read_text", lambda self: "max 100000")
    assert local.cores() >= 1
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, 5")
    assert local.gpus() == ["3", "5"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert local.gpus() == ["0", "1"]


# --- what is shown -------------------------------------------------------------------------------------------------


def tasks(n: int = 3) -> list[Task]:
    return [Task(job, Path("log")) for job in study.changed(ONE, seeds=tuple(range(n))).jobs()]


def test_summary_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress.time, "time", lambda: 1000.0)
    some = tasks(4)
    assert table.summary(some, 2) == "0 of 4 done, 4 waiting"
    some[0].state, some[0].now = "done", Progress(100, 50.0, 2.0, 9.0, 900.0)
    some[1].state, some[1].now = "running", Progress(40, 20.0, 2.0, 9.0, 990.0)
    # the one at work: 60 steps at 2 per second, 10 s of them ago; each that waits: 100 at 2 per second; two at once
    assert table.remaining(some, 2) == pytest.approx((20 + 50 + 50) / 2)
    assert table.summary(some, 2) == "1 of 4 done, 1 running, 2 waiting, 1m 00s left"
    some[2].state = "failed"
    assert "1 failed" in table.summary(some, 2)


def test_cells() -> None:
    (task,) = tasks(1)
    assert table.cells(task) == ("waiting", "100", "", "", "")
    task.state, task.now = "running", Progress(25, 10.0, 2.5, -1234.5678, progress.time.time())
    state, share, speed, left, mean = table.cells(task)
    assert (state, share, speed, mean) == ("running", "25% of 100", "2", "-1234.6")
    assert left in ("29s", "30s")
    assert [table.count(n) for n in (950, 40_000, 1_500_000)] == ["950", "40k", "1.5M"]
    assert [table.duration(s) for s in (8, 310, 12_000, float("inf"))] == ["8s", "5m 10s", "3h 20m", "?"]


def test_the_table_fits(runs: Path) -> None:
    """80 columns, and no more rows than there is room for; what is at work and what failed is never left out."""
    said = Study(("ppo", "sac"), ("dmc:cartpole-swingup_sparse", "HalfCheetah-v5"), tuple(range(20)), name="readme")
    many = [Task(job, Path("log"), "done", now=Progress(123_456, 99.0, 10.0, -1234.5, 0.0)) for job in said.jobs()]
    many[70].state = many[71].state = "running"
    many[72].state, many[72].error = "failed", "x" * 300
    live = table.Live("readme", many)
    live.close()
    out = io.StringIO()
    Console(file=out, width=80, height=20).print(live.table(2, 10))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) == 1 + 1 + 10 + 1
    shown = [line.split() for line in lines[2:-1]]
    assert [(words[1], words[2]) for words in shown if words[3] == "running"] == [("ppo", "17"), ("sac", "17")]
    assert [words[3] for words in shown].count("failed") == 1
    assert all(words[-1] == "-1234.5" for words in shown)
    assert lines[-1].strip() == "and 70 more"


# --- the command ---------------------------------------------------------------------------------------------------

MISTAKES = {
    "nothing": ("", "which study? kumite bench STUDY"),
    "a study that is not there": ("quik", "there is no study 'quik'; did you mean 'quick'?"),
    "a flag": ("quick --job 2", "unknown flag '--job'; did you mean '--jobs'?"),
    "a parameter": ("quick --learning-rate 1", "unknown flag '--learning-rate'; did you mean '--lr'?"),
    "one seed": ("quick --seed 1", "unknown flag '--seed'; did you mean '--seeds'?"),
    "algorithms by another name": ("--algo ppo --envs CartPole-v1", "unknown flag '--algo'; did you mean '--algos'?"),
    "an algorithm": ("--algos pppo --envs CartPole-v1", "unknown algorithm 'pppo'; did you mean 'ppo'?"),
    "no environments": ("--algos ppo", "names no envs; for example: --envs CartPole-v1"),
    "a value": ("quick --ppo.lr fast", "lr: expected a number, got 'fast'"),
    "jobs": ("quick --jobs -1", "jobs: expected at least 0, got -1"),
    "the parameter of one": ("quick --horizon 8", "for ppo alone say --ppo.horizon"),
    "a backend": ("quick --backend slurm", "backend"),
    "two studies": ("quick readme", "readme"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes(case: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words, sentence = MISTAKES[case]
    assert main(["bench", *words.split()]) == 2
    out, err = capsys.readouterr()
    assert sentence in err
    assert err.startswith("kumite: ")
    assert err.count("\n") == 1
    assert out == ""
    assert not list(runs.iterdir())


def test_list_and_dry_run(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--list"]) == 0
    assert {line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]} == set(study.shipped())
    assert main(["bench", "quick", "--algos", "sac", "--seeds", "7,", "--steps", "2k", "--name", "t", "--dry-run"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["run", "steps", "would", "be"]
    assert [row.split() for row in rows] == [
        ["runs/CartPole-v1/sac/t-s7", "2,000", "new"],
        ["runs/Pendulum-v1/sac/t-s7", "2,000", "new"],
    ]
    assert not list(runs.iterdir())


def test_failures_are_told(runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    bad, good = tasks(2)
    bad.state, bad.error, good.state = "failed", "the wheel fell off", "done"
    monkeypatch.setattr(launch, "run", lambda *_: [bad, good])
    assert main(["bench", "quick", "--quiet"]) == 1
    assert capsys.readouterr().err == f"kumite: {bad.job.label} failed: the wheel fell off (log: log)\n"
    monkeypatch.setattr(launch, "run", lambda *_: [good])
    assert main(["bench", "quick", "--quiet"]) == 0

    def stopped(*_: Any) -> None:
        raise Stopped(signal.SIGTERM)

    monkeypatch.setattr(launch, "run", stopped)
    assert main(["bench", "quick", "--quiet"]) == 143
    assert "stopped by SIGTERM" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "said", "why"),
    [
        (1, "kumite: 'loss' is not finite", "'loss' is not finite"),
        (1, "Segmentation fault", "Segmentation fault"),
        (1, "", "it ended with exit code 1 and said nothing"),
        (137, "10/20 50%", "killed by SIGKILL (out of memory?)"),
        (139, "10/20 50%", "killed by SIGSEGV"),
        (143, "kumite: interrupted; the last good one is x", "interrupted; the last good one is x"),
        (0, "10/20 50%", "it ended before its last step was saved"),
    ],
)
def test_why_a_run_ended(code: int, said: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(f"$ kumite train\n{said}\n")
    assert launch.reason(tmp_path / "log", code) == why


def test_launch_needs_nothing_when_all_is_done(runs: Path) -> None:
    done = tasks(2)
    for task in done:
        task.state = "done"
    home = FakeHome()
    Launch(done, home, 0, 0, table.View("x", done), Stop()).run()
    assert not home.ended
