"""A learner that breaks, and signals: the run ends at once, says where, and leaves its last good checkpoint."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import kumite
from kumite import checkpoint
from kumite.errors import RunError, UserError
from kumite.runs import Stop
from kumite.train import Interrupted

SMALL: dict[str, dict[str, Any]] = {
    "ppo": {"num_envs": 2, "horizon": 16, "batch_size": 16, "epochs": 2},
    "sac": {"warmup": 20, "batch_size": 16},
}
COMMON: dict[str, Any] = {
    "actor": {"width": 8},
    "critic": {"width": 8},
    "log": {"every": 40},
    "save": {"every": 50},
    "eval": {"every": -1},
    "name": "it",
    "steps": 2000,
    "quiet": True,
}
ENVS = {"ppo": "Pendulum-v1", "sac": "Pendulum-v1"}


def make(algo: str, folder: Path, **more: Any) -> Any:
    return getattr(kumite, algo.upper())(ENVS[algo], **(SMALL[algo] | COMMON | {"dir": str(folder)} | more))


def poison(agent: Any, where: str, at: int) -> Any:
    """A callback that puts NaN into the first tensor of this name after `at` steps."""

    def callback(run: Any) -> None:
        if run.env_step >= at:
            value = next(v for k, v in agent.algo.named_parameters() if where in k)
            with torch.no_grad():
                value.view(-1)[0] = float("nan")

    return callback


def finite(run: Path) -> list[int]:
    """The steps of the checkpoints, after every one was found whole and finite."""
    steps = []
    for folder in checkpoint.numbered(run / "checkpoints"):
        for name, value in checkpoint.read(folder)["algo"].items():
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                assert value.isfinite().all(), name
        steps.append(int(folder.name))
    return steps


@pytest.mark.parametrize("algo", SMALL)
@pytest.mark.parametrize("net", ["actor", "critic"])
def test_nan_in_a_net_ends_the_run_with_its_place(algo: str, net: str, tmp_path: Path) -> None:
    agent = make(algo, tmp_path)
    with pytest.raises(RunError) as caught:
        agent.learn(callback=poison(agent, net, 120))
    said = str(caught.value)
    assert agent.path is not None
    steps = finite(agent.path)
    assert steps, "what was saved before stays"
    assert steps[0] <= 120
    assert said.endswith(f"the last good checkpoint is {agent.path}/checkpoints/{steps[0]}")
    assert re.search(r"not a finite number at step \d+ \(seed 0\)|the action for environment \d is not valid", said)
    assert agent.env_step < 300, "soon after it happened"


def test_the_first_broken_tensor_is_named(tmp_path: Path) -> None:
    agent = make("sac", tmp_path)
    with pytest.raises(RunError, match=r"first broken tensor: '(actor|critic)\."):
        agent.learn(callback=poison(agent, "critic.torso.hidden", 120))


def test_what_is_not_finite_is_never_saved_by_hand_either(tmp_path: Path) -> None:
    agent = make("sac", tmp_path).learn(30)
    with torch.no_grad():
        next(agent.algo.actor.parameters()).fill_(float("inf"))
    with pytest.raises(RunError, match=r"actor\.\S+' holds values that are not finite"):
        agent.save(tmp_path / "mine")
    assert not (tmp_path / "mine").exists()


class Falls(gymnasium.Env[Any, Any]):
    """A reward that is infinite from step 130 on."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.zeros(2, np.float32), math.inf if self.steps >= 130 else 1.0, False, False, {}


def test_an_environment_that_breaks_leaves_the_last_good_checkpoint(tmp_path: Path) -> None:
    agent = kumite.SAC(Falls, **(SMALL["sac"] | COMMON | {"dir": str(tmp_path), "save": {"every": 60}}))
    with pytest.raises(RunError, match=r"environment 0 .*reward.*the last good checkpoint is .*/checkpoints/120$"):
        agent.learn()
    assert finite(agent.path) == [120, 60]


# --- memory --------------------------------------------------------------------------------------------------------


def test_a_replay_beyond_the_memory_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    """4 observations, one choice, reward and two flags: 3 * 4 + 4 + 4 + 1 + 1 bytes for Pendulum."""
    agent = make("sac", tmp_path, steps=10**12, buffer_size=10**12)
    with pytest.raises(
        UserError, match=r"1,000,000,000,000 rows of 22 bytes take 22000.0 GB .*--buffer-size [\d,]+ fits"
    ):
        agent.learn()
    assert list(tmp_path.iterdir()) == []


def test_a_ring_that_cannot_be_made_is_told_in_a_sentence(tmp_path: Path) -> None:
    """A short run would never fill it, and the system does not even promise it."""
    with pytest.raises(UserError, match=r"no memory on cpu for 1,000,000,000,000,000 rows .*--buffer-size"):
        make("sac", tmp_path, steps=100, buffer_size=10**15).learn()


# --- signals -------------------------------------------------------------------------------------------------------


def start(folder: Path, *more: str) -> subprocess.Popen[str]:
    words = "train ppo CartPole-v1 --steps 10M --num-envs 2 --horizon 16 --batch-size 16 --name it --save.every -1"
    command = [sys.executable, "-c", "import sys; from kumite.cli import main; sys.exit(main())", *words.split()]
    return subprocess.Popen(
        [*command, "--log.every", "200", *more], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def underway(folder: Path) -> Path:
    run = folder / "runs" / "CartPole-v1" / "ppo" / "it-s0"
    end = time.monotonic() + 60
    while not (run / "metrics.csv").is_file() and time.monotonic() < end:
        time.sleep(0.05)
    assert (run / "metrics.csv").is_file()
    return run


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGUSR1, 138)])
def test_a_signal_saves_and_ends_with_its_code(number: int, code: int, tmp_path: Path) -> None:
    process = start(tmp_path)
    run = underway(tmp_path)
    began = time.monotonic()
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert time.monotonic() - began < 20
    assert process.returncode == code
    (saved,) = checkpoint.numbered(run / "checkpoints")
    assert (
        f"kumite: interrupted; the last good checkpoint is runs/CartPole-v1/ppo/it-s0/checkpoints/{saved.name}" in said
    )
    assert "Traceback" not in said
    agent = kumite.resume(run, quiet=True)
    assert agent.env_step == int(saved.name)


def test_a_second_interrupt_leaves_at_once() -> None:
    with Stop().listening() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signal == signal.SIGTERM, "nothing has ended yet"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_lost_terminal_ends_the_run_and_nohup_keeps_its_word() -> None:
    for before, heard in ((signal.SIG_DFL, signal.SIGHUP), (signal.SIG_IGN, None)):
        usual = signal.signal(signal.SIGHUP, before)
        try:
            with Stop().listening() as stop:
                os.kill(os.getpid(), signal.SIGHUP)
            assert stop.signal == heard
            assert signal.getsignal(signal.SIGHUP) is before
        finally:
            signal.signal(signal.SIGHUP, usual)


def test_workers_go_with_the_run(tmp_path: Path) -> None:
    process = start(tmp_path, "--env.mode", "workers")
    underway(tmp_path)
    children = children_of(process.pid)
    assert len(children) >= 2
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    end = time.monotonic() + 20
    while any(alive(pid) for pid in children) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(alive(pid) for pid in children)


def children_of(pid: int) -> list[int]:
    import psutil

    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


def alive(pid: int) -> bool:
    import psutil

    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_an_interrupt_during_an_evaluation_is_resumed_with_it(tmp_path: Path) -> None:
    """The evaluation that was broken off is made again, so that evals.csv equals an uninterrupted run's."""
    settings = {"eval": {"every": 64, "episodes": 4}, "steps": 128}
    one = make("ppo", tmp_path / "one", **settings).learn()
    agent = make("ppo", tmp_path / "two", **settings)
    inner, looks = agent._interrupted, iter(range(10_000))

    def interrupted() -> None:
        if agent.env_step >= 64 and next(looks) == 20:  # once per step of the evaluation
            agent.stop.signal = signal.SIGTERM
        inner()

    agent._interrupted = interrupted
    with pytest.raises(Interrupted):
        agent.learn()
    assert not (agent.path / "evals.csv").exists(), "it was in the middle of the first"
    again = kumite.resume(agent.path, quiet=True).learn()

    def rows(path: Path) -> list[list[str]]:
        return [line.split(",")[2:] for line in (path / "evals.csv").read_text().splitlines()]

    assert rows(again.path) == rows(one.path)


def test_no_environment_variable_of_a_secret_is_written(tmp_path: Path, cli: Any) -> None:
    secret = "hunter2-" + str(os.getpid())
    done = cli("train", "ppo", "CartPole-v1", "--steps", "64", "--num-envs", "2", "--horizon", "16", MY_API_KEY=secret)
    assert done.returncode == 0
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes(), path
