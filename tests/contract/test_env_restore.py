"""A copy is put back where it was, in the middle of an episode: what follows equals what would have followed."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from kumite import tree
from kumite.envs import make_env
from kumite.envs.base import EnvConfig, VecEnv, derive
from kumite.envs.suite.probes import Clock
from kumite.types import Step

STACKED = EnvConfig(frame_stack=3, reward_transform="log", reward_shift=0.5)
CASES: dict[str, tuple[Any, EnvConfig]] = {
    "cartpole": ("CartPole-v1", EnvConfig()),
    "cartpole-stacked": ("CartPole-v1", STACKED),
    "pendulum-limit-repeat": ("Pendulum-v1", EnvConfig(max_steps=17, action_repeat=2)),
    "hybrid": ("kumite/Hybrid-v0", EnvConfig()),
    "mask": ("kumite/Mask-v0", EnvConfig()),
    "mask-info": ("kumite/Mask-v0", EnvConfig(kwargs="{where: info}")),
    "sensors-stacked": ("kumite/Sensors-v0", STACKED),
    "frozen-lake": ("FrozenLake-v1", EnvConfig()),
    "endless": (partial(Clock, lengths=(10**6, 10**6), seeded=True), EnvConfig()),
}


def advance(env: VecEnv, step: Step, count: int) -> list[Step]:
    steps = []
    for _ in range(count):
        env.send(env.action.random(env.slots, mask=step.obs.get("mask")))
        step = env.recv()
        steps.append(step)
    return steps


def same(a: Step, b: Step) -> bool:
    tensors = all(torch.equal(x, y) for x, y in zip((*a.obs.values(), *a[1:4]), (*b.obs.values(), *b[1:4])))
    return tensors and list(a.obs) == list(b.obs) and a.ticks == b.ticks and a.episodes == b.episodes


def through_files(state: Any) -> Any:
    """The state as a checkpoint sees it: tensors beside JSON."""
    if isinstance(state, torch.Tensor):
        return state.clone()
    if isinstance(state, dict):
        assert all(isinstance(k, str) for k in state)
        return {k: through_files(v) for k, v in state.items()}
    return json.loads(json.dumps(state, allow_nan=False))


def resumed(make: Callable[[], VecEnv], before: int, after: int) -> None:
    torch.manual_seed(1)
    env = make()
    start = env.reset(7)
    step = advance(env, start, before)[-1] if before else start
    state = through_files(env.state())
    random = torch.get_rng_state()
    want = advance(env, step, after)
    other = make()
    assert other.restore(state)
    torch.set_rng_state(random)
    got = advance(other, step, after)
    assert all(same(a, b) for a, b in zip(want, got))
    assert tree_equal(other.state(), env.state())
    env.close()
    other.close()


def tree_equal(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return list(a) == list(b) and all(tree_equal(a[k], b[k]) for k in a)
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else bool(a == b)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("before", [0, 1, 53])
def test_restored_equals_uninterrupted(case: str, before: int) -> None:
    env, config = CASES[case]
    resumed(lambda: make_env(env, 3, seed=7, config=config), before, 40)


def test_at_every_point_of_an_episode_its_end_included() -> None:
    for before in range(1, 9):
        resumed(partial(make_env, partial(Clock, seeded=True), 2), before, 7)


def test_workers_give_the_rows_of_sync_and_take_over_each_others_state() -> None:
    config = EnvConfig(action_repeat=2, max_steps=9)
    here = make_env("Pendulum-v1", 2, config=config)
    there = make_env("Pendulum-v1", 2, config=EnvConfig(mode="workers", action_repeat=2, max_steps=9))
    try:
        a, b = here.reset(3), there.reset(3)
        assert same(a, b)
        for _ in range(17):
            action = here.action.random(2)
            here.send(action)
            there.send(action)
            a, b = here.recv(), there.recv()
            assert same(a, b)
        old = here.state()
        assert tree_equal(old, there.state())
        random = torch.get_rng_state()
        want = advance(here, a, 12)
        torch.set_rng_state(random)
        advance(there, b, 5)
        assert there.restore(old)
        torch.set_rng_state(random)
        assert all(same(x, y) for x, y in zip(want, advance(there, b, 12)))
    finally:
        there.close()


def test_an_environment_that_does_not_arrive_says_so() -> None:
    env = make_env(Clock, 2)  # its episodes are counted, not seeded
    advance(env, env.reset(0), 12)
    state = env.state()
    assert not make_env(Clock, 2).restore(state)
    assert not make_env(Clock, 3).restore(state)
    again = make_env(Clock, 2)
    again.restore(state)
    assert again.reset(0).obs["obs"].shape == (2, 2)


def test_every_episode_has_its_own_seed() -> None:
    seeds: list[int] = []

    class Spy(Clock):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            assert seed is not None
            seeds.append(seed)
            return super().reset(seed=seed, options=options)

    env = make_env(lambda: Spy(), 2)
    advance(env, env.reset(5), 30)
    assert len(set(seeds)) == len(seeds)
    assert {derive(5, slot, k) for slot in range(2) for k in range(8)} <= set(seeds)
    before = len(seeds)
    env.reset(5)
    assert seeds[before:] == [derive(5, 0, 0), derive(5, 1, 0)]


def test_the_log_of_actions_stays_as_long_as_the_episodes() -> None:
    env = make_env("CartPole-v1", 2)
    step = env.reset(0)
    for _ in range(3000):
        env.send(env.action.random(2))
        step = env.recv()
    assert len(env.log.rows) <= 1024 + 500  # type: ignore[attr-defined]
    assert sum(x.numel() for _, x in tree.items({k: env.state()[k] for k in "cd"})) < 2000
    assert step.obs["obs"].shape == (2, 4)


def test_the_state_is_taken_between_steps() -> None:
    env = make_env("CartPole-v1")
    env.reset(0)
    env.send(env.action.random(1))
    with pytest.raises(Exception, match="between steps"):
        env.state()
