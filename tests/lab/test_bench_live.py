"""Studies with real processes: killed, interrupted and failing, here and on a Ray cluster."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from kumite.agent import Agent
from kumite.cli import main
from kumite.lab import study
from kumite.lab.study import Study
from tests.resume.records import check_same

TINY: dict[str, Any] = {
    "steps": 160,
    "actor.width": 8,
    "critic.width": 8,
    "log.every": 40,
    "eval.every": 60,
    "eval.episodes": 1,
    "save.every": 50,
    "env.max_steps": 40,
    "device": "cpu",
}
OWN = {
    "ppo": {"num_envs": 1, "horizon": 16, "batch_size": 16, "epochs": 2},
    "sac": {"warmup": 40, "batch_size": 16, "update_ratio": 0.25},
}


def tiny(name: str, **more: Any) -> Study:
    said = {
        "name": name,
        "algos": ["ppo", "sac"],
        "envs": ["CartPole-v1", "Pendulum-v1"],
        "seeds": 3,
        "parameters": TINY,
        "where": [{"algos": algo, **numbers} for algo, numbers in OWN.items()],
    }
    return study.make(said | more)


def write(said: Study, folder: Path) -> Path:
    path = folder / f"{said.name}.yaml"
    path.write_text(said.to_yaml(), encoding="utf-8")
    return path


def launch(*words: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "kumite", "bench", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def wait(what: Callable[[], Any], seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "it did not come to that"
        time.sleep(0.05)


def alive(folder: Path) -> list[psutil.Process]:
    """The processes that work in this folder, apart from this one."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and Path(process.cwd()) == folder and process.status() != "zombie":
                found.append(process)
        except psutil.Error:
            continue
    return found


def whole(said: Study) -> Iterator[Path]:
    """The same runs, one after the other in this process and undisturbed."""
    for job in said.jobs():
        agent = Agent(job.env, algo=job.algo, config=job.config)
        agent.learn()
        assert agent.path is not None
        yield agent.path


@pytest.mark.slow
def test_killed_twice_and_finished(runs: Path) -> None:
    """2 algorithms x 2 environments x 3 seeds; the launcher dies twice at random moments. No process outlives it for
    long, and in the end everything is as if nothing had happened."""
    said = tiny("it")
    file = write(said, runs.parent)
    dice = random.Random()
    for done in (1, 5):
        process = launch(file, "--jobs", "2", "--quiet")
        wait(lambda done=done: len(list(runs.glob("*/*/*/checkpoints/160"))) >= done)
        time.sleep(dice.uniform(0, 2.5))
        process.kill()
        process.communicate()
        wait(lambda: not alive(runs.parent), 20)
        assert 0 < len(list(runs.glob("*/*/*/checkpoints/160"))) < 12, "there is still something to do"
    process = launch(file, "--jobs", "2")
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert "it: 12 of 12 done" in out
    assert "resumed at step" in out or "done, " in out
    assert not alive(runs.parent)
    for path in whole(study.changed(said, dir="whole")):
        check_same(path, runs / path.relative_to("whole"))
    before = {p: p.stat().st_mtime_ns for p in runs.glob("*/*/it-s*/*")}
    assert main(["bench", str(runs / "studies" / "it"), "--quiet"]) == 0
    assert before == {p: p.stat().st_mtime_ns for p in runs.glob("*/*/it-s*/*")}, "what is done is left alone"


def test_interrupted_and_seen_from_outside(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C lets the run save; meanwhile a second launcher is refused; afterwards its state is in its folder."""
    long = TINY | {"steps": "10M", "compile": "off"}
    said = tiny("long", algos=["ppo"], envs=["CartPole-v1"], seeds=1, parameters=long)
    file = write(said, runs.parent)
    process = launch(file)
    run = runs / "CartPole-v1" / "ppo" / "long-s0"
    wait(lambda: list(run.glob("checkpoints/*/manifest.json")))
    assert main(["bench", str(file)]) == 2
    assert f"study 'long' is being run by another process ({process.pid})" in capsys.readouterr().err
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert json.loads((run / "manifest.json").read_text())["command"][:4] == ["kumite", "train", "ppo", "CartPole-v1"]
    assert "CartPole-v1 ppo long-s0: stopped at step" in out
    assert err == "kumite: stopped by SIGINT, the runs are saved; go on with: kumite bench runs/studies/long\n"
    assert not alive(runs.parent)
    assert (
        "interrupted; the last good checkpoint is"
        in (runs / "studies/long/logs/CartPole-v1/ppo/long-s0.log").read_text()
    )
    assert main(["bench", "runs/studies/long", "--dry-run"]) == 0
    newest = max(int(p.name) for p in (run / "checkpoints").iterdir() if p.name.isdecimal())
    assert f"resume from step {newest:,}" in capsys.readouterr().out
    assert main(["bench", str(file), "--lr", "0.5"]) == 2
    assert "was begun with lr = " in capsys.readouterr().err


BROKEN = """
from pathlib import Path

import gymnasium


class Broken(gymnasium.Wrapper):
    steps = 0

    def step(self, action):
        self.steps += 1
        if self.steps == 70 or Path("broken").exists():
            Path("broken").touch()
            raise RuntimeError("the wheel fell off")
        return self.env.step(action)


def make():
    return Broken(gymnasium.make("CartPole-v1"))
"""


def test_a_run_that_fails(runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It is reported with its error and its log, is resumed as often as asked, and the others are finished."""
    (runs.parent / "broken_env.py").write_text(BROKEN)
    said = tiny("some", algos=["ppo"], envs=["broken_env:make", "Hoper-v5", "CartPole-v1"], seeds=1)
    assert main(["bench", str(write(said, runs.parent)), "--jobs", "3", "--retries", "1"]) == 1
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert len(lines) == 2
    assert "broken_env:make ppo some-s0 failed: " in lines[0]
    assert "the wheel fell off" in lines[0]
    log = runs / "studies/some/logs/broken_env:make/ppo/some-s0.log"
    assert lines[0].endswith(f"(log: {log.relative_to(runs.parent)})")
    assert [line.split()[1:3] for line in log.read_text().splitlines() if line.startswith("$")] == [
        ["kumite", "train"],
        ["kumite", "resume"],
    ]
    assert "there is no environment 'Hoper-v5'; did you mean 'Hopper-v5'?" in lines[1]
    assert "try 1 of 1 begins" in out
    assert "CartPole-v1 ppo some-s0: done, 160 steps" in out
    assert "some: 1 of 3 done, 2 failed" in out


@pytest.mark.slow
def test_on_a_ray_cluster(runs: Path) -> None:
    """The same runs with the same results; nothing of the cluster is left behind."""
    pytest.importorskip("ray")
    said = tiny("ray", algos=["ppo"], envs=["CartPole-v1"], seeds=2)
    process = launch(write(said, runs.parent), "--backend", "ray", "--jobs", "2")
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert "ray: 2 of 2 done" in out
    wait(lambda: not alive(runs.parent), 30)
    for path in whole(study.changed(said, dir="whole")):
        check_same(path, runs / path.relative_to("whole"))
