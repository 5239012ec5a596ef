"""One scripted environment through every adapter and mode: identical rows, whatever the simulator's habits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from kumite.envs import make_env
from kumite.envs.base import EnvConfig, VecEnv
from kumite.envs.dmc import DmEnv
from kumite.envs.envpool import Pool
from kumite.envs.gymnasium import GymVec
from kumite.envs.pool import PoolVec
from kumite.envs.spaces import Native
from kumite.envs.suite.probes import Clock
from kumite.envs.workers import WorkerVec
from kumite.errors import RunError, UserError

Row = tuple[float, float, float, bool, bool]
ROWS = 23


def script(first: int, lengths: tuple[int, int]) -> tuple[list[Row], list[tuple[float, int, float]]]:
    """Clock by hand: (time, episode, reward, terminated, truncated) per row, (return, length, success) per episode."""
    rows: list[Row] = []
    episodes = []
    episode = first
    while len(rows) < ROWS:
        rows.append((0, episode, 0, False, False))
        odd = episode % 2
        total = 0.0
        for t in range(1, lengths[odd] + 1):
            over = t == lengths[odd]
            total += 10 * episode + t
            rows.append((t, episode, 10 * episode + t, over and not odd, over and bool(odd)))
        episodes.append((total, lengths[odd], float(not odd)))
        episode += 1
    return rows[:ROWS], episodes


def play(env: VecEnv, size: int = 2) -> tuple[list[list[Row]], list[list[tuple[float, int, float]]], int]:
    """The rows of every slot, its episodes, and the simulator steps behind them."""
    rows: list[list[Row]] = [[] for _ in range(env.slots)]
    episodes: list[list[Any]] = [[] for _ in range(env.slots)]
    kept = []
    step = env.reset(0)
    ticks = step.ticks
    while min(map(len, rows)) < ROWS:
        who = list(range(env.slots)) if step.slot is None else step.slot.tolist()
        for j, i in enumerate(who):
            seen = step.obs["obs"][j][-size:].tolist()
            rows[i].append((*seen, step.reward[j].item(), step.terminated[j].item(), step.truncated[j].item()))
        if step.episodes is not None:
            e = step.episodes
            success = e.success or [float("nan")] * len(e.slot)
            for i, total, length, good in zip(e.slot, e.returns, e.lengths, success):
                episodes[i].append((total, length, good))
        kept.append((step, {k: v.clone() for k, v in step.obs.items()}, step.reward.clone(), step.over.clone()))
        env.send(env.action.random(len(who)), step.slot)
        step = env.recv()
        ticks += step.ticks
    for old, obs, reward, over in kept:  # a Step that was handed out never changes
        assert all(torch.equal(old.obs[k], obs[k]) for k in obs)
        assert torch.equal(old.reward, reward)
        assert torch.equal(old.over, over)
    return [r[:ROWS] for r in rows], episodes, ticks


def check(env: VecEnv, firsts: list[int], lengths: tuple[int, int] = (2, 3), success: bool = True) -> None:
    try:
        rows, episodes, _ = play(env)
    finally:
        env.close()
    for i, first in enumerate(firsts):
        want, ends = script(first, lengths)
        assert rows[i] == want
        got = episodes[i] if success else [(a, b, g) for (a, b, _), (_, _, g) in zip(episodes[i], ends)]
        assert got[:4] == ends[:4]


# A fake of each API that is not gymnasium's.


class FakePool:
    """EnvPool's surface: rows in the order of arrival, NEXT_STEP, ended copies reset by their next action."""

    def __init__(self, envs: list[Clock], batch: int) -> None:
        self.envs = envs
        self.batch = batch
        self.queue: list[tuple[int, Any]] = []
        self.over = [False] * len(envs)

    def reset(self) -> tuple[Any, dict[str, Any]]:
        return np.stack([e.reset()[0] for e in self.envs]), {"env_id": np.arange(len(self.envs), dtype=np.int32)}

    def async_reset(self) -> None:
        self.queue = [(i, (e.reset()[0], 0.0, False, False)) for i, e in reversed(list(enumerate(self.envs)))]

    def send(self, actions: Any, env_id: Any) -> None:
        assert env_id.dtype == np.int32
        for action, i in zip(actions, env_id):
            if self.over[i]:
                said = (self.envs[i].reset()[0], 7.0, False, False)  # its dm_control tasks rate a reset
            else:
                said = self.envs[i].step(action)[:4]
            self.over[i] = said[2] or said[3]
            self.queue.append((int(i), said))

    def recv(self) -> Any:
        now, self.queue = self.queue[: self.batch], self.queue[self.batch :]
        columns = [np.array([said[k] for _, said in now]) for k in range(4)]
        return *columns, {"env_id": np.array([i for i, _ in now], np.int32), "elapsed_step": np.zeros(len(now))}

    def close(self) -> None:
        pass


class FakeSpec:
    def __init__(self, shape: tuple[int, ...], low: Any, high: Any) -> None:
        self.shape, self.minimum, self.maximum, self.dtype = shape, low, high, np.float64


class FakeTime:
    def __init__(self, obs: Any, reward: float | None, discount: float | None, last: bool) -> None:
        self.observation, self.reward, self.discount = obs, reward, discount
        self._last = last

    def last(self) -> bool:
        return self._last


class FakeDm:
    """dm_env's surface: FIRST without a reward, LAST with discount 0 or 1."""

    def __init__(self, env: Clock) -> None:
        self.env = env

    def observation_spec(self) -> dict[str, FakeSpec]:
        return {"zeit": FakeSpec((), -np.inf, np.inf), "episode": FakeSpec((1,), -np.inf, np.inf)}

    def action_spec(self) -> FakeSpec:
        return FakeSpec((1,), -1.0, 1.0)

    def _show(self, obs: Any) -> dict[str, Any]:
        return {"zeit": float(obs[0]), "episode": obs[1:].astype(np.float64)}

    def reset(self) -> FakeTime:
        return FakeTime(self._show(self.env.reset()[0]), None, None, False)

    def step(self, action: Any) -> FakeTime:
        assert action.dtype == np.float64
        obs, reward, terminated, truncated, _ = self.env.step(action)
        return FakeTime(self._show(obs), reward, 0.0 if terminated else 1.0, terminated or truncated)

    def close(self) -> None:
        pass


def pool(firsts: list[int], lengths: tuple[int, int], batch: int) -> VecEnv:
    def build(seeds: list[int]) -> Pool:
        return Pool(FakePool([Clock(first=f, lengths=lengths) for f in firsts], batch), len(firsts), batch)

    return PoolVec(build, Native(spaces.Box(-np.inf, np.inf, (2,)), spaces.Discrete(2)), len(firsts), 0)


def dm(first: int, lengths: tuple[int, int]) -> DmEnv:
    return DmEnv(FakeDm(Clock(first=first, lengths=lengths)))


def clocks(firsts: list[int], lengths: tuple[int, int]) -> list[Callable[[], Clock]]:
    return [partial(Clock, first=f, lengths=lengths) for f in firsts]


def vector(kind: Any, mode: AutoresetMode, firsts: list[int], lengths: tuple[int, int]) -> VecEnv:
    env = make_env(kind(clocks(firsts, lengths), autoreset_mode=mode))
    env.owned = True  # type: ignore[attr-defined]
    return env


ADAPTERS: dict[str, Callable[[list[int], tuple[int, int]], VecEnv]] = {
    "sync": lambda firsts, lengths: GymVec(clocks(firsts, lengths)),
    "workers": lambda firsts, lengths: WorkerVec(clocks(firsts, lengths)),
    "next-step": partial(vector, SyncVectorEnv, AutoresetMode.NEXT_STEP),
    "same-step": partial(vector, SyncVectorEnv, AutoresetMode.SAME_STEP),
    "disabled": partial(vector, SyncVectorEnv, AutoresetMode.DISABLED),
    "async-same-step": partial(vector, AsyncVectorEnv, AutoresetMode.SAME_STEP),
    "pool": lambda firsts, lengths: pool(firsts, lengths, len(firsts)),
    "pool-async": lambda firsts, lengths: pool(firsts, lengths, 1),
    "dm": lambda firsts, lengths: GymVec([partial(dm, f, lengths) for f in firsts]),
}
SILENT = ("pool", "pool-async", "dm")  # these APIs say nothing about success


SCRIPTS: dict[str, tuple[list[int], tuple[int, int]]] = {
    "mixed": ([0, 1, 2], (2, 3)),
    "together": ([0, 0, 0], (2, 3)),
    "at-step-1": ([0, 1, 0], (1, 1)),
    "one-and-four": ([1, 0, 3], (1, 4)),
    "single": ([4], (3, 2)),
}
PROCESSES = ("workers", "async-same-step")  # slow to start: one script each


@pytest.mark.parametrize(
    ("adapter", "name"), [(a, n) for a in ADAPTERS for n in SCRIPTS if a not in PROCESSES or n == "mixed"]
)
def test_every_adapter_gives_the_same_rows(adapter: str, name: str) -> None:
    firsts, lengths = SCRIPTS[name]
    check(ADAPTERS[adapter](firsts, lengths), firsts, lengths, success=adapter not in SILENT)


@pytest.mark.parametrize("adapter", [a for a in ADAPTERS if a not in PROCESSES])
def test_ticks_count_steps_and_never_resets(adapter: str) -> None:
    env = ADAPTERS[adapter]([0, 1], (2, 3))
    rows = [[], []]
    step = env.reset(0)
    stepped = step.ticks
    assert stepped == 0
    for _ in range(40):
        who = [0, 1] if step.slot is None else step.slot.tolist()
        for j, i in enumerate(who):
            rows[i].append(step.obs["obs"][j][0].item())
        env.send(env.action.random(len(who)), step.slot)
        step = env.recv()
        stepped += step.ticks
    who = [0, 1] if step.slot is None else step.slot.tolist()
    for j, i in enumerate(who):
        rows[i].append(step.obs["obs"][j][0].item())
    assert stepped == sum(t > 0 for r in rows for t in r)


@pytest.mark.parametrize("adapter", ["sync", "same-step", "disabled", "pool", "pool-async"])
def test_stacked_frames_never_show_an_earlier_episode(adapter: str) -> None:
    from kumite.envs.wrappers import FrameStack

    env = FrameStack(ADAPTERS[adapter]([0, 1], (2, 3)), 3)
    assert env.obs_space["obs"].shape == (6,)
    assert env.obs_space["obs"].frame == (2,)
    history: list[list[list[float]]] = [[], []]
    step = env.reset(0)
    for _ in range(40):
        who = [0, 1] if step.slot is None else step.slot.tolist()
        for j, i in enumerate(who):
            shown = step.obs["obs"][j].reshape(3, 2).tolist()
            newest = shown[-1]
            if newest[0] == 0:
                history[i] = []
            history[i].append(newest)
            want = [[0.0, 0.0]] * (3 - len(history[i])) + history[i][-3:]
            assert shown == want
        env.send(env.action.random(len(who)), step.slot)
        step = env.recv()
    env.close()


def test_gymnasium_wrappers_and_classes_as_factories() -> None:
    from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit

    check(make_env(lambda: TimeLimit(RecordEpisodeStatistics(Clock()), 50), 2), [0, 0])
    check(make_env(Clock, 3), [0, 0, 0])
    check(make_env("kumite/Clock-v0", 2, config=EnvConfig(kwargs="{first: 5}")), [5, 5])
    check(
        make_env(f"{Clock.__module__}:Clock", 2, config=EnvConfig(kwargs="{first: 1, lengths: [1, 2]}")), [1, 1], (1, 2)
    )
    env = make_env(Clock())
    check(env, [0])


def test_the_limit_and_the_repeat_are_applied_outside() -> None:
    env = make_env(partial(Clock, lengths=(10, 10)), config=EnvConfig(action_repeat=3, max_steps=7))
    step = env.reset(0)
    seen = []
    for _ in range(4):
        env.send(env.action.random(1))
        step = env.recv()
        seen.append((step.obs["obs"][0, 0].item(), step.reward.item(), step.truncated.item(), step.ticks))
    # rewards of Clock's episode 0 are 1, 2, 3, ...; the third decision is cut after one step
    assert seen == [(3, 6, False, 3), (6, 15, False, 3), (7, 7, True, 1), (0, 0, False, 0)]
    assert env.horizon == 7


def test_a_longer_limit_replaces_the_registered_one() -> None:
    env = make_env("CartPole-v1", config=EnvConfig(max_steps=3))
    env.reset(0)
    flags = []
    for _ in range(3):
        env.send({"c": torch.zeros(1, 0), "d": torch.zeros(1, 1, dtype=torch.int64)})
        flags.append(env.recv().truncated.item())
    assert flags == [False, False, True]


def test_a_vector_environment_says_how_it_resets() -> None:
    env = SyncVectorEnv([Clock])
    env.metadata = {}
    with pytest.raises(UserError, match="autoreset_mode"):
        make_env(env)


def test_a_vector_environment_that_breaks_its_promise_is_caught() -> None:
    class Liar(SyncVectorEnv):
        def step(self, actions: Any) -> Any:
            obs, reward, terminated, truncated, info = super().step(actions)
            return obs, reward + 1, terminated, truncated, info

    env = make_env(Liar([Clock]))
    env.reset(0)
    with pytest.raises(RunError, match="reset an ended episode"):
        for _ in range(4):
            env.send(env.action.random(1))
            env.recv()


def test_dict_observations_survive_the_same_step_mode() -> None:
    from kumite.envs.suite.probes import Mask

    for mode in AutoresetMode:
        env = make_env(SyncVectorEnv([Mask] * 3, autoreset_mode=mode))
        step = env.reset(0)
        assert step.obs["mask"].dtype == torch.bool
        for _ in range(30):
            n = 3 if step.slot is None else len(step.slot)
            env.send(env.action.random(n, mask=step.obs["mask"]), step.slot)
            step = env.recv()
            assert (step.obs["observation"].sum(1) == 1).all()


def test_native_mode_uses_the_simulators_own_vector_code() -> None:
    env = make_env("CartPole-v1", 4, config=EnvConfig(mode="native", max_steps=9))
    step = env.reset(0)
    lengths = []
    for _ in range(60):
        env.send(env.action.random(4))
        step = env.recv()
        lengths += step.episodes.lengths if step.episodes else []
    assert max(lengths) == env.horizon == 9
    assert not env.restorable
    assert env.state() == {}
    with pytest.raises(UserError, match="no vector code"):
        make_env("Pendulum-v1", config=EnvConfig(mode="native"))
