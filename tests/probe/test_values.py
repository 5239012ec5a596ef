"""Environments whose values are known: a net that says another number has a wrong target."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from kumite.agent import Agent
from tests.probe.agents import ppo, sac, values

GAMMA = 0.8
STEPS = {ppo: 2000, sac: 1200}
Make = Callable[..., Agent]


def learned(make: Make, name: str, kwargs: str, **numbers: Any) -> Agent:
    return make(f"kumite/{name}-v0", **{"env.kwargs": kwargs}, **numbers).learn(STEPS[make])


algorithms = pytest.mark.parametrize("make", [ppo, sac], ids=["ppo", "sac"])
actions = pytest.mark.parametrize("action", ["discrete", "box"])


@algorithms
@actions
def test_a_reward_of_one_and_the_end(make: Make, action: str) -> None:
    agent = learned(make, "One", f"{{action: {action}}}")
    assert values(agent, [0.0]) == pytest.approx([1], abs=0.06)


@algorithms
@actions
def test_a_reward_of_one_a_step_later(make: Make, action: str) -> None:
    agent = learned(make, "Delay", f"{{action: {action}}}")
    assert values(agent, [-1.0], [1.0]) == pytest.approx([GAMMA, 1], abs=0.06)


@algorithms
@actions
def test_a_time_limit_is_not_the_end(make: Make, action: str) -> None:
    """V = 1 / (1 - gamma) = 5, though no episode pays more than 2.44."""
    agent = learned(make, "Endless", f"{{limit: 3, action: {action}}}")
    assert values(agent, [1.0]) == pytest.approx([1 / (1 - GAMMA)], abs=0.15)


@algorithms
@actions
def test_a_value_that_is_the_observation(make: Make, action: str) -> None:
    agent = learned(make, "Echo", f"{{action: {action}}}")
    assert values(agent, [-1.0], [1.0]) == pytest.approx([-1, 1], abs=0.1)


@algorithms
def test_a_time_limit_is_not_the_end_with_memory(make: Make) -> None:
    more = {"n_step": 3, "burn_in": 2} if make is sac else {}
    agent = learned(make, "Endless", "{limit: 3}", memory="gru", chunk=8, **more)
    assert values(agent, [1.0]) == pytest.approx([1 / (1 - GAMMA)], abs=0.3)


def test_three_steps_at_once_give_the_same_value() -> None:
    """Sums of one, two and three rewards, cut at the time limit and bootstrapped from its last observation."""
    agent = learned(sac, "Endless", "{limit: 4}", n_step=3)
    assert values(agent, [1.0]) == pytest.approx([1 / (1 - GAMMA)], abs=0.15)


def test_entropy_to_come_is_part_of_a_soft_value() -> None:
    """Both choices pay alike, so the best soft policy is even: Q of the first is gamma (1 + alpha log 2)."""
    agent = learned(sac, "Delay", "{}", alpha="0.5")
    assert values(agent, [-1.0], [1.0]) == pytest.approx([GAMMA * (1 + 0.5 * math.log(2)), 1], abs=0.06)


def test_normalised_values_come_back_in_raw_units() -> None:
    """Rewards and values are learned in other units; their ratio and their order survive."""
    agent = learned(ppo, "Endless", "{limit: 3}", normalize_value=True)
    norm = agent.algo.value_norm
    raw = values(agent, [1.0])[0] * float(norm.stats.var + norm.eps) ** 0.5 + float(norm.stats.mean)
    assert raw == pytest.approx(1 / (1 - GAMMA), abs=0.4)
