"""The DQN family on environments whose values are known, with every head, with memory, masks and several branches."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import kumite
from kumite.agent import Agent
from kumite.nn.heads import still

GAMMA = 0.8
NUMBERS: dict[str, Any] = {"num_envs": 4, "batch_size": 32, "warmup": 100, "update_ratio": 0.25, "lr": 3e-3, "tau": 0.1}
NUMBERS |= {"target_every": 0, "epsilon_start": 0.2, "epsilon_end": 0.2, "gamma": GAMMA, "quiet": True}
HEADS: dict[str, dict[str, Any]] = {
    "DQN": {},
    "C51": {"v_min": -2.0, "v_max": 7.0},
    "QRDQN": {"quantiles": 8},
    "IQN": {"quantiles": 8, "cosines": 4},
    "Rainbow": {"v_min": -2.0, "v_max": 7.0, "lr": 1e-2, "epsilon_start": 0.0, "epsilon_end": 0.0},
}
TASKS: dict[str, tuple[str, list[list[float]], list[float], float]] = {
    "One": ("{}", [[0.0]], [1.0], 0.06),
    "Delay": ("{}", [[-1.0], [1.0]], [GAMMA, 1.0], 0.06),
    "Endless": ("{limit: 3}", [[1.0]], [1 / (1 - GAMMA)], 0.2),
    "Echo": ("{}", [[-1.0], [1.0]], [-1.0, 1.0], 0.1),
}


def agent_of(name: str, env: Any, **numbers: Any) -> Agent:
    own = {"critic": {"width": 16}} | NUMBERS | HEADS[name]
    return getattr(kumite, name)(env, **(own | numbers))  # type: ignore[no-any-return]


def values(agent: Agent, observations: list[list[float]]) -> list[float]:
    """Of first observations, the worse choice's: the tasks asked about pay alike for each."""
    net, n = agent.algo.online, len(observations)
    with torch.no_grad(), still(net):
        q, _ = net.step({"obs": torch.tensor(observations)}, net.torso.initial(n))
    return q.amin(-1).tolist()


def check_values(name: str, task: str, **numbers: Any) -> None:
    kwargs, observations, wanted, near = TASKS[task]
    agent = agent_of(name, f"kumite/{task}-v0", **{"env.kwargs": kwargs}, **numbers).learn(1000)
    assert values(agent, observations) == pytest.approx(wanted, abs=near)


@pytest.mark.parametrize("task", TASKS)
def test_values_are_the_known_ones(task: str) -> None:
    check_values("DQN", task)


@pytest.mark.parametrize("task", ["Delay", "Endless"])
@pytest.mark.parametrize("name", [name for name in HEADS if name != "DQN"])
def test_with_every_head(name: str, task: str) -> None:
    """The discount, and a time limit that is not the end: 5, though no episode pays more than 2.44."""
    check_values(name, task)


def test_rescaled_values_are_h_of_the_known_one() -> None:
    agent = agent_of("DQN", "kumite/Endless-v0", rescale=True, **{"env.kwargs": "{limit: 3}"}).learn(1200)
    assert values(agent, [[1.0]]) == pytest.approx([6**0.5 - 1 + 0.005], abs=0.05)


def test_a_target_that_is_copied_now_and_then() -> None:
    check_values("DQN", "Delay", target_every=40, tau=1.0)


def test_a_time_limit_is_not_the_end_with_memory_and_three_steps() -> None:
    more = {"memory": "gru", "chunk": 4, "burn_in": 2, "n_step": 3, "env.kwargs": "{limit: 3}"}
    agent = agent_of("DQN", "kumite/Endless-v0", critic={"width": 16, "memory_width": 8}, **more)
    assert values(agent.learn(1000), [[1.0]]) == pytest.approx([5], abs=0.3)


def test_a_cue_is_recalled_with_memory() -> None:
    net = {"width": 16, "memory_width": 16}
    more = {"num_envs": 8, "batch_size": 128, "lr": 1e-2, "gamma": 0.9, "memory": "gru", "chunk": 8}
    agent = agent_of("DQN", "kumite/Recall-v0", critic=net, update_ratio=0.1, **more, **{"env.kwargs": "{k: 2}"})
    assert agent.learn(3000).evaluate(50).mean >= 0.95


def test_only_legal_choices_are_made_and_the_right_ones() -> None:
    """The environment raises at an illegal choice, while training and while evaluating."""
    agent = agent_of("C51", "kumite/Mask-v0", critic={"width": 32}, lr=1e-2).learn(2000)
    assert agent.evaluate(20).mean >= 4.8
    assert agent.evaluate(20, deterministic=False).mean > 3, "random choices are legal too"


class Sum(gymnasium.Env[Any, Any]):
    """One step; each of two branches pays by a table of its own."""

    PAYS = ((0.0, 1.0, -1.0), (0.5, -0.5, 0.0, 1.5))
    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.MultiDiscrete([3, 4])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        pay = sum(table[int(i)] for table, i in zip(self.PAYS, action, strict=True))
        return np.zeros(1, np.float32), pay, True, False, {}


def test_branches_learn_their_parts_of_a_sum() -> None:
    agent = agent_of("DQN", Sum, epsilon_start=1.0, epsilon_end=1.0, lr=1e-2).learn(1200)
    assert agent.evaluate(3).mean == 2.5
    with torch.no_grad():
        q = agent.algo.online.step({"obs": torch.zeros(1, 1)}, {})[0][0]
    pairs = (q[:3, None] + q[None, 3:]).tolist()
    wanted = [[a + b for b in Sum.PAYS[1]] for a in Sum.PAYS[0]]
    for got, want in zip(pairs, wanted, strict=True):
        assert got == pytest.approx(want, abs=0.15)
