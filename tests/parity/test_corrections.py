"""Corrected targets in whole runs: ratios of a policy to itself are 1, the sums telescope, and limits cut them off."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from kumite.batch import Batch
from kumite.errors import UserError
from tests.contract.test_algorithms import ACTIONS, make

V = 3.0


def played(kind: str, memory: str = "none", **numbers: Any) -> tuple[Any, Batch]:
    """SAC that never moved, and a batch of what it did."""
    plain = {"normalize_obs": False, "normalize_reward": False, "alpha": "0", "lr": 0.0, "warmup": 0}
    own = plain | {"n_step": 4, "correction": "vtrace", "batch_size": 64} | numbers
    agent = make("sac", action=kind, memory=memory, **own).learn(80)
    assert agent.run is not None
    algo = agent.algo
    with torch.no_grad():  # the target says V of everything
        algo.target.out.weight.zero_()
        algo.target.out.bias.fill_(V / max(1, len(agent.action.branches)))
        return algo, algo.sample(agent.run.stream)[1]


def targets(algo: Any, b: Batch) -> Tensor:
    with torch.no_grad():
        policy = algo.actor.next(b.steps.of("actor"))
        new = policy.sample()
        after = algo.target.next(b.steps.of("critic"), new.c)
        goal = algo.goal(b, after, policy, new, algo.temperature().exp())
        y: Tensor = algo.values.goal_mean(goal)
    return y


def log_ratio(algo: Any, b: Batch) -> Tensor:
    with torch.no_grad():
        policy = algo.actor(b.steps.of("actor"))
        ratio: Tensor = policy.log_prob(b.steps.extras["u"], b.steps.action["d"]) - b.steps.extras["log_prob"]
    return ratio[b.steps.mask > 0]


@pytest.mark.parametrize("memory", ["none", "gru-before"])
@pytest.mark.parametrize("kind", ACTIONS)
def test_on_policy_they_are_the_n_step_returns(kind: str, memory: str) -> None:
    for correction in ("vtrace", "retrace"):
        algo, b = played(kind, memory, correction=correction)
        assert (b.hop > 1).any()
        torch.testing.assert_close(log_ratio(algo, b), torch.zeros(()).expand_as(log_ratio(algo, b)), atol=1e-4, rtol=0)
        learned = b.mask > 0
        torch.testing.assert_close(targets(algo, b)[learned], (b.reward + b.discount * V)[learned], atol=1e-3, rtol=0)


@pytest.mark.parametrize("kind", ["continuous", "hybrid"])
def test_without_later_steps_they_are_the_one_step_targets(kind: str) -> None:
    algo, b = played(kind, trace_rho=0.0)
    one = b.steps.reward[0] + b.steps.discount[0] * V
    torch.testing.assert_close(targets(algo, b)[b.mask > 0], one[b.mask > 0])


@pytest.mark.parametrize(("kind", "density"), [("continuous", 0.25), ("discrete", 1 / 3), ("hybrid", 1 / 12)])
def test_the_random_start_is_stored_with_its_own_density(kind: str, density: float) -> None:
    """And the ratio to it is that of the policy's density: far from 1."""
    algo, b = played(kind, warmup=1000)
    said = b.steps.extras["log_prob"][b.steps.mask > 0]
    torch.testing.assert_close(said, torch.full_like(said, math.log(density)))
    assert log_ratio(algo, b).abs().max() > 0.01


def test_one_step_has_nothing_to_correct() -> None:
    with pytest.raises(UserError, match=r"--correction vtrace .* --n-step 2 or more"):
        make("sac", n_step=1, correction="vtrace")
