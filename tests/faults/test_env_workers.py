"""Worker processes that raise, die, hang or are killed; and what is left of them afterwards: nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from kumite.envs import make_env
from kumite.envs.base import EnvConfig, derive
from kumite.envs.gymnasium import DroppedWarning
from kumite.envs.workers import WorkerVec
from kumite.errors import RunError, UserError
from kumite.types import Step

pytestmark = pytest.mark.skipif(os.name != "posix", reason="workers need Linux or macOS")
SEED = 4


@pytest.fixture
def crew() -> Iterator[Callable[..., WorkerVec]]:
    """Copies of 6-step episodes of which some meet with an accident; closed, and gone, after the test."""
    made: list[WorkerVec] = []

    def make(accident: str, copies: int = 2, at: int = 3, victims: str = "first", **config: Any) -> WorkerVec:
        first = derive(SEED, 1, 0)

        def build() -> Any:  # un-picklable by name: a class in a function, closed over values
            import os
            import time

            import gymnasium
            import numpy as np

            class Accident(gymnasium.Env[Any, Any]):
                observation_space = gymnasium.spaces.Box(-100, 100, (2,), np.float32)
                action_space = gymnasium.spaces.Box(-2.0, 2.0, (1,))

                def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
                    self.time, self.seed = 0, seed
                    if at == 0:
                        self.happen()
                    return np.zeros(2, np.float32), {}

                def step(self, action: Any) -> Any:
                    self.time += 1
                    obs = np.full(2, self.time, np.float32)
                    if self.time == at and (victims == "all" or self.seed == first):
                        obs = self.happen(obs)
                    return obs, 1.0, False, self.time == 6, {}

                def happen(self, obs: Any = None) -> Any:
                    if accident == "raise":
                        raise RuntimeError("the gripper is stuck")
                    if accident == "exit":
                        os._exit(9)
                    if accident == "hang":
                        time.sleep(100)
                    if accident == "nan":
                        return obs * np.nan
                    if accident == "kill":
                        os.kill(os.getpid(), 9)
                    return obs

            return Accident()

        env = make_env(build, copies, config=EnvConfig(mode="workers", **config))
        assert isinstance(env, WorkerVec)
        made.append(env)
        return env

    yield make
    for env in made:
        processes = [w.process for w in env.workers]
        env.close()
        env.close()
        assert all(p.returncode is not None for p in processes)


def push(env: WorkerVec) -> Step:
    env.send({"c": torch.full((env.slots, 1), 0.25), "d": torch.zeros(env.slots, 0, dtype=torch.int64)})
    return env.recv()


ACCIDENTS = {
    "raise": r"failed: RuntimeError: the gripper is stuck at test_env_workers\.py:\d+",
    "exit": "ended with exit code 9",
    "kill": r"was killed by SIGKILL \(the usual end of a process that takes too much memory\)",
    "hang": r"did not answer within 1 s \(--env\.timeout\)",
    "nan": "NaN in the observation 'obs'",
}


@pytest.mark.parametrize("accident", ACCIDENTS)
def test_raise_names_everything_and_restart_goes_on(crew: Callable[..., WorkerVec], accident: str) -> None:
    patience = 1.0 if accident == "hang" else 60.0
    env = crew(accident, timeout=patience)
    env.reset(SEED)
    push(env)
    before = push(env)
    with pytest.raises(RunError, match=ACCIDENTS[accident]) as caught:
        push(env)
    text = str(caught.value)
    assert text.startswith("environment 1 ")
    assert f"(episode seed {derive(SEED, 1, 0)}, step 3 of the episode, action [0.5]); " in text
    assert "--env.on-error restart" in text

    env = crew(accident, timeout=patience, on_error="restart")
    env.reset(SEED)
    push(env)
    push(env)
    step = push(env)
    assert step.truncated.tolist() == [False, True]
    assert step.reward.tolist() == [1, 0]
    assert torch.equal(step.obs["obs"][1], before.obs["obs"][1])
    assert step.episodes is None
    assert step.ticks == 1
    fresh = push(env)
    assert fresh.obs["obs"].tolist() == [[4, 4], [0, 0]]
    assert fresh.ticks == 1
    ended = []
    for _ in range(8):
        step = push(env)
        ended += list(zip(step.episodes.slot, step.episodes.lengths)) if step.episodes else []
    assert ended == [(0, 6), (1, 6)]
    assert env.restarts == 1


@pytest.mark.parametrize("accident", ["exit", "nan"])
def test_a_dropped_worker_is_void_and_the_others_go_on(crew: Callable[..., WorkerVec], accident: str) -> None:
    """The same again after a restore."""
    env, again = crew(accident, copies=3, on_error="drop"), crew("none", copies=3, on_error="drop")
    env.reset(SEED)
    push(env)
    before = push(env)
    with pytest.warns(DroppedWarning, match=rf"environment 1 .*{ACCIDENTS[accident]}.*step 3 .*; it is dropped"):
        step = push(env)
    assert step.truncated.tolist() == [False, True, False]
    assert torch.equal(step.obs["obs"][1], before.obs["obs"][1])
    assert again.restore(env.state())
    for ticks in (2, 2, 2, 0, 2, 2, 2):
        step, other = push(env), push(again)
        assert step.over[1]
        assert step.ticks == ticks
        assert step.obs["obs"].isfinite().all()
        assert torch.equal(step.obs["obs"], other.obs["obs"])
        assert torch.equal(step.over, other.over)


def test_a_crash_loop_stops(crew: Callable[..., WorkerVec]) -> None:
    env = crew("exit", copies=1, at=0, on_error="restart")
    with pytest.raises(RunError, match=r"exit code 9 .*step 0 of the episode.*5 restarts in a row did not help"):
        env.reset(SEED)


def test_a_worker_killed_from_outside(crew: Callable[..., WorkerVec]) -> None:
    env = crew("none", on_error="restart")
    env.reset(SEED)
    push(env)
    env.workers[0].process.kill()
    env.workers[0].process.wait()
    step = push(env)
    assert step.truncated.tolist() == [True, False]
    assert push(env).obs["obs"].tolist() == [[0, 0], [3, 3]]


def test_a_slow_one_does_not_hold_up_the_report_of_another(crew: Callable[..., WorkerVec]) -> None:
    env = crew("hang", timeout=1.0)
    env.reset(SEED)
    push(env)
    push(env)
    start = time.monotonic()
    with pytest.raises(RunError, match="environment 1 did not answer"):
        push(env)
    assert time.monotonic() - start < 20


def test_mistakes_in_the_making_are_told_as_such() -> None:
    workers = EnvConfig(mode="workers")

    def missing() -> Any:
        raise FileNotFoundError("no such robot")

    with pytest.raises(UserError, match="making the environment failed: FileNotFoundError: no such robot"):
        make_env(missing, 2, config=workers)
    with pytest.raises(UserError, match="no gymnasium environment"):
        make_env(lambda: 3, config=workers)

    def dying() -> Any:
        import os

        os._exit(3)

    with pytest.raises(RunError, match=r"environment 0 died.*exit code 3.*while it was made"):
        make_env(dying, config=workers)


def test_workers_ignore_the_interrupt_and_have_one_thread(crew: Callable[..., WorkerVec]) -> None:
    env = crew("none")
    env.reset(SEED)
    for w in env.workers:
        w.process.send_signal(signal.SIGINT)
        environment = Path(f"/proc/{w.process.pid}/environ")
        if environment.exists():
            assert b"OMP_NUM_THREADS=1" in environment.read_bytes().split(b"\0")
    time.sleep(0.1)
    assert push(env).obs["obs"].tolist() == [[1, 1], [1, 1]]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] != "Z"


@pytest.mark.parametrize("end", ["SIGTERM", "SIGKILL", "exception"])
def test_no_orphans_whatever_becomes_of_the_parent(end: str, tmp_path: Path) -> None:
    """One of the workers hangs, so that only its own watch can end it."""
    script = textwrap.dedent("""
        import sys, time
        import gymnasium
        from kumite.envs import make_env
        from kumite.envs.base import EnvConfig

        class Hanging(gymnasium.Wrapper):
            def step(self, action):
                time.sleep(100)

        # no guard around the main program: workers do not import it
        env = make_env(lambda: Hanging(gymnasium.make("CartPole-v1")), 2, config=EnvConfig(mode="workers"))
        env.reset(0)
        env.send(env.action.random(2))
        print(*[w.process.pid for w in env.workers], flush=True)
        if sys.argv[1] == "exception":
            raise SystemError("the run failed")
        time.sleep(100)
    """)
    path = tmp_path / "träin it.py"
    path.write_text(script, encoding="utf-8")
    parent = subprocess.Popen(
        [sys.executable, str(path), end],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    parent.stdout.close()
    assert len(pids) == 2
    assert all(map(alive, pids))
    if end != "exception":
        parent.send_signal(getattr(signal, end))
    parent.wait(timeout=30)
    deadline = time.monotonic() + 15
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, pids))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")
def test_nothing_is_left_behind(crew: Callable[..., WorkerVec]) -> None:
    def count() -> tuple[int, set[str]]:
        shared = Path("/dev/shm")
        return len(os.listdir("/proc/self/fd")), set(os.listdir(shared)) if shared.exists() else set()

    crew("none", copies=1).close()
    before = count()
    for _ in range(2):
        env = crew("exit", copies=1, at=1, victims="all", on_error="restart")
        env.reset(SEED)
        push(env)
        env.close()
    after = count()
    assert after[0] <= before[0]
    assert after[1] <= before[1]


def test_an_environment_that_nobody_closes_ends_with_its_last_reference() -> None:
    env = make_env("CartPole-v1", config=EnvConfig(mode="workers"))
    assert isinstance(env, WorkerVec)
    process = env.workers[0].process
    del env
    assert process.returncode == 0


def test_a_worker_needs_no_torch() -> None:
    def make() -> Any:
        import sys

        import gymnasium

        assert "torch" not in sys.modules
        return gymnasium.make("CartPole-v1")

    make_env(make, config=EnvConfig(mode="workers")).close()


def test_many_environments_one_after_the_other_leave_no_descriptors() -> None:
    if not Path("/proc/self/fd").exists():
        pytest.skip("counts descriptors in /proc")
    for k in range(300):
        env = make_env("CartPole-v1", 2)
        env.reset(k)
        env.send(env.action.random(2))
        env.recv()
        env.close()
        if k == 20:
            before = len(os.listdir("/proc/self/fd"))
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_reset_forgets_what_was_under_way(crew: Callable[..., WorkerVec]) -> None:
    env = crew("raise", on_error="raise")
    env.reset(SEED)
    push(env)
    push(env)
    with pytest.raises(RunError, match="gripper"):
        push(env)
    assert env.reset(SEED + 1).obs["obs"].tolist() == [[0, 0], [0, 0]]
    assert push(env).obs["obs"].tolist() == [[1, 1], [1, 1]]
    env.send({"c": torch.zeros(2, 1), "d": torch.zeros(2, 0, dtype=torch.int64)})
    env.reset(SEED + 1)
    assert push(env).obs["obs"].tolist() == [[1, 1], [1, 1]]


def test_a_replay_that_breaks_is_no_arrival(crew: Callable[..., WorkerVec]) -> None:
    env, other = crew("none"), crew("raise", at=2)
    env.reset(SEED)
    for _ in range(3):
        push(env)
    state = env.state()
    assert not other.restore(state)
    assert other.reset(SEED + 1).obs["obs"].tolist() == [[0, 0], [0, 0]]
    assert push(other).obs["obs"].tolist() == [[1, 1], [1, 1]]
