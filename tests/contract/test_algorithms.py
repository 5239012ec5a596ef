"""Every algorithm with every kind of action, memory and observation: it learns, acts, saves and comes back."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from itertools import cycle, product
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

import kumite
from kumite.agent import Agent
from kumite.algos import ROWS, algorithm
from kumite.config import keys, run_type
from kumite.errors import UserError

ACTIONS: dict[str, spaces.Space[Any]] = {
    "continuous": spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32)),
    "discrete": spaces.Discrete(3, start=5),
    "multi-discrete": spaces.MultiDiscrete([2, 3]),
    "hybrid": spaces.Dict({"push": spaces.Box(-1.0, 1.0, (2,), np.float32), "gear": spaces.Discrete(3)}),
}
OBSERVATIONS: dict[str, spaces.Space[Any]] = {
    "vector": spaces.Box(-1.0, 1.0, (3,), np.float32),
    "nested": spaces.Dict(
        {
            "arm": spaces.Dict({"joints": spaces.Box(-1.0, 1.0, (2,), np.float32), "gear": spaces.Discrete(3)}),
            "eyes": spaces.Tuple(
                (spaces.Box(0, 255, (8, 10, 3), np.uint8), spaces.Box(0, 255, (9, 7), np.uint8)),
            ),
        }
    ),
    "frames": spaces.Box(0, 255, (8, 8), np.uint8),
}
MEMORIES = ["none", *(f"{kind}-{place}" for kind in ("lstm", "gru", "rnn") for place in ("before", "after"))]
HOMES = list({row.home: name for name, row in reversed(ROWS.items())}.values())[::-1]
"""One name per file of arithmetic: what does not depend on a name's numbers is tested with these."""
SMALL: dict[str, Any] = {
    "num_envs": 2,
    "horizon": 8,
    "minibatches": 2,
    "batch_size": 8,
    "epochs": 2,
    "chunk": 4,
    "quiet": True,
    "warmup": 12,
    "buffer_size": 60,
    "update_ratio": 0.25,
    "normalize_obs": True,
    "normalize_reward": True,
}
NET = {"width": 8, "memory_width": 6}


class Toy(gymnasium.Env[Any, Any]):
    """Random observations and rewards; episodes of 2 to 5 steps with ends of both kinds."""

    def __init__(self, observation: str = "vector", action: str = "continuous") -> None:
        self.observation_space = deepcopy(OBSERVATIONS[observation])  # copies must not draw from each other's
        self.action_space = ACTIONS[action]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(2, 6))
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.left -= 1
        over, cut = self.left == 0, bool(self.np_random.integers(2))
        return self.observation_space.sample(), float(self.np_random.normal()), over and not cut, over and cut, {}


def make(
    name: str, observation: str = "vector", action: str = "continuous", memory: str = "none", **more: Any
) -> Agent:
    kind, _, place = memory.partition("-")
    net = NET | {"memory": kind, "memory_place": place or "before"}
    own = set(ROWS[name].numbers) - {"horizon", "update_ratio"}  # what the name means stays
    numbers = {k: v for k, v in SMALL.items() if k in keys(run_type(name)) and k not in own}
    numbers |= {"actor": net, "critic": net}
    if observation == "frames":
        numbers["env.frame_stack"] = 3
    return Agent(partial(Toy, observation, action), algo=name, **(numbers | more))


def batch_of(space: spaces.Space[Any], n: int) -> Any:
    return concatenate(space, [space.sample() for _ in range(n)], create_empty_array(space, n))


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    return bool(np.array_equal(a, b))


def check_learning(agent: Agent, steps: int = 48) -> None:
    before = [p.clone() for p in agent.algo.parameters()]
    agent.learn(steps)  # a loss that is not a number would end it
    assert agent.algo.updates > 0
    assert all(p.isfinite().all() for p in agent.algo.parameters())
    changed = [not torch.equal(p, q) for p, q in zip(agent.algo.parameters(), before, strict=True)]
    assert sum(changed) > len(changed) / 2


def check_acting(agent: Agent, other: Agent | None = None) -> None:
    """Single and batch, three steps with the state handed back; `other` says the same as agent."""
    toy = agent.source()
    toy.observation_space.seed(0)
    for n in (None, 4):
        state = twin = None
        for step in range(3):
            obs = toy.observation_space.sample() if n is None else batch_of(toy.observation_space, n)
            start = step == 2
            action, state = agent.predict(obs, state, episode_start=start)
            if n is None:
                assert toy.action_space.contains(action)
            else:
                rows = list(iterate(batch_space(toy.action_space, n), action))
                assert len(rows) == n
                assert all(toy.action_space.contains(row) for row in rows)
            if other is not None:
                same, twin = other.predict(obs, twin, episode_start=start)
                assert equal(action, same)


def check_all(agent: Agent, folder: Path) -> None:
    check_learning(agent)
    check_acting(agent)
    assert len(agent.evaluate(3).returns) == 3
    agent.save(folder / "saved")
    check_acting(agent, kumite.load(folder / "saved"))


def combinations() -> list[tuple[str, str, str, str]]:
    """Every name with every kind of action and observation, with and without memory; every memory for every file."""
    every = list(product(ROWS, ACTIONS, ("none", "gru-before"), OBSERVATIONS))
    rest = [memory for memory in MEMORIES if memory not in ("none", "gru-before")]
    views = cycle(OBSERVATIONS)
    return every + [(*parts, next(views)) for parts in product(HOMES, ACTIONS, rest)]


@pytest.mark.parametrize(("name", "action", "memory", "observation"), combinations())
def test_every_combination(name: str, action: str, memory: str, observation: str, tmp_path: Path) -> None:
    if action not in algorithm(name).actions or (memory != "none" and not algorithm(name).memory):
        with pytest.raises(UserError):
            make(name, observation, action, memory)
        return
    check_all(make(name, observation, action, memory), tmp_path)


# -- single features --------------------------------------------------------------------------------------------------


def knows(name: str, *fields: str) -> bool:
    return all(field in keys(run_type(name)) for field in fields)


def names_with(*fields: str) -> list[str]:
    return [name for name in ROWS if knows(name, *fields)]


@pytest.mark.parametrize("memory", ["none", "gru-before"])
@pytest.mark.parametrize("name", HOMES)
def test_an_actor_that_sees_less_than_its_critic(name: str, memory: str, tmp_path: Path) -> None:
    kind = memory.partition("-")[0]
    actor = NET | {"keys": ["arm.joints"], "memory": kind}
    agent = make(name, "nested", "continuous", memory, actor=actor)
    check_all(agent, tmp_path)
    obs = agent.source().observation_space.sample()
    blind = obs | {"eyes": tuple(255 - eye for eye in obs["eyes"])}
    assert equal(agent.predict(obs)[0], agent.predict(blind)[0])
    moved = obs | {"arm": obs["arm"] | {"joints": -obs["arm"]["joints"]}}
    assert not equal(agent.predict(obs)[0], agent.predict(moved)[0])


@pytest.mark.parametrize("memories", [("gru", "none"), ("none", "lstm"), ("rnn", "gru")], ids="-".join)
@pytest.mark.parametrize("name", HOMES)
def test_each_net_has_a_memory_of_its_own(name: str, memories: tuple[str, str], tmp_path: Path) -> None:
    actor, critic = (NET | {"memory": memory} for memory in memories)
    check_all(make(name, "vector", "hybrid", actor=actor, critic=critic), tmp_path)


@pytest.mark.parametrize("memory", ["none", "lstm-before"])
@pytest.mark.parametrize("observation", ["vector", "frames"])
@pytest.mark.parametrize("name", names_with("share"))
def test_actor_and_critic_on_one_net(name: str, observation: str, memory: str, tmp_path: Path) -> None:
    agent = make(name, observation, "hybrid", memory, share=True)
    apart = make(name, observation, "hybrid", memory)
    assert sum(p.numel() for p in agent.algo.parameters()) < sum(p.numel() for p in apart.algo.parameters())
    check_all(agent, tmp_path)


@pytest.mark.parametrize("memory", ["none", "gru-before"])
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("name", names_with("n_step", "critics", "subset"))
def test_steps_and_critics(name: str, action: str, memory: str, tmp_path: Path) -> None:
    more: dict[str, Any] = {"burn_in": 2} if memory != "none" else {}
    agent = make(name, "vector", action, memory, n_step=3, critics=5, subset=2, policy_delay=2, **more)
    check_all(agent, tmp_path)


@pytest.mark.parametrize("numbers", [{"squash": True}, {"state_std": True}, {"std": "softplus", "log_std_init": -1.0}])
@pytest.mark.parametrize("action", ["continuous", "hybrid"])
@pytest.mark.parametrize("name", names_with("squash", "state_std", "std"))
def test_forms_of_the_policy(name: str, action: str, numbers: dict[str, Any], tmp_path: Path) -> None:
    check_all(make(name, "vector", action, **numbers), tmp_path)


@pytest.mark.parametrize("memory", ["none", "lstm-before"])
@pytest.mark.parametrize("name", HOMES)
def test_masks(name: str, memory: str) -> None:
    """The environment raises at an illegal choice: warm-up, training, evaluation and predictions make none."""
    numbers = {k: v for k, v in SMALL.items() if knows(name, k)}
    agent = Agent("kumite/Mask-v0", algo=name, memory=memory.partition("-")[0], **numbers)
    check_learning(agent)
    agent.evaluate(5, deterministic=False)
    for chosen in range(6):
        obs = {"observation": np.ones(6, np.float32), "action_mask": np.eye(6, dtype=np.int8)[chosen]}
        assert agent.predict(obs, deterministic=False)[0] == chosen


@pytest.mark.parametrize("encoder", ["mlp", "d2rl", "impala", "simba", "simbav2"])
@pytest.mark.parametrize("name", HOMES)
def test_encoders(name: str, encoder: str, tmp_path: Path) -> None:
    check_all(make(name, "nested", "discrete", encoder=encoder), tmp_path)


@pytest.mark.parametrize("memory", ["none", "gru-before"])
@pytest.mark.parametrize("name", names_with("batch_size", "horizon"))
def test_a_whole_roll_out_as_one_batch(name: str, memory: str) -> None:
    agent = make(name, memory=memory, batch_size=0, minibatches=0, epochs=3)
    agent.learn(2 * SMALL["horizon"] + 2)  # one roll-out of two copies; every episode's first Step is none
    assert agent.algo.updates == 3


@pytest.mark.parametrize("name", ROWS)
def test_what_was_loaded_can_go_on_learning(name: str, tmp_path: Path) -> None:
    agent = make(name)
    agent.learn(48)
    agent.save(tmp_path / "saved")
    again = kumite.load(tmp_path / "saved", env=agent.source)
    assert again.env_step == agent.env_step
    check_learning(again)


@pytest.mark.parametrize("name", ROWS)
def test_two_runs_of_one_seed_are_one_run(name: str) -> None:
    first, second, other = make(name), make(name), make(name, seed=1)
    for agent in (first, second, other):
        agent.learn(48)
        torch.rand(3)  # what others draw does not matter
    parameters = [torch.cat([p.flatten() for p in agent.algo.parameters()]) for agent in (first, second, other)]
    assert torch.equal(parameters[0], parameters[1])
    assert not torch.equal(parameters[0], parameters[2])
