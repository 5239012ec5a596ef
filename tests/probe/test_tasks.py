"""Tasks that are solved by what they are about, and not without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kumite.agent import Agent
from tests.probe.agents import ppo, sac

Make = Callable[..., Agent]
RECALL: dict[Make, dict[str, Any]] = {
    ppo: {"num_envs": 8, "horizon": 24, "batch_size": 96, "epochs": 8, "gamma": 0.9, "entropy_coef": 0.01},
    sac: {"num_envs": 8, "batch_size": 128, "update_ratio": 0.125, "gamma": 0.9, "lr": 1e-2, "alpha": "0.01"},
}
algorithms = pytest.mark.parametrize("make", [ppo, sac], ids=["ppo", "sac"])


@algorithms
@pytest.mark.parametrize(("memory", "action"), [("lstm", "discrete"), ("gru", "discrete"), ("gru", "box")])
def test_a_cue_is_recalled_with_memory(make: Make, action: str, memory: str) -> None:
    net = {"width": 16, "memory_width": 16}
    more = {"memory": memory, "chunk": 8, "actor": net, "critic": net, "env.kwargs": f"{{k: 2, action: {action}}}"}
    agent = make("kumite/Recall-v0", **RECALL[make], **more).learn(4000)
    assert agent.evaluate(50).mean >= 0.95


@algorithms
def test_a_cue_is_forgotten_without_memory(make: Make) -> None:
    agent = make("kumite/Recall-v0", **RECALL[make], **{"env.kwargs": "{k: 2}"}).learn(4000)
    assert agent.evaluate(50).mean <= 0.7


@algorithms
def test_only_legal_choices_are_made_and_the_right_ones(make: Make) -> None:
    """The environment raises at an illegal choice, while training and while evaluating."""
    net = {"width": 32}
    more = {"alpha": "0.02"} if make is sac else {}
    agent = make("kumite/Mask-v0", actor=net, critic=net, lr=5e-3, **more).learn(3000 if make is sac else 6000)
    assert agent.evaluate(20).mean >= 4.8
    assert agent.evaluate(20, deterministic=False).mean > 4, "draws are legal too"


def test_ppo_solves_what_needs_both_kinds_of_action() -> None:
    net = {"width": 64}
    more = {"num_envs": 16, "batch_size": 128, "epochs": 10, "lr": 5e-3, "entropy_coef": 0.003}
    agent = ppo("kumite/Hybrid-v0", actor=net, critic=net, gamma=0.9, **more).learn(20_000)
    assert agent.evaluate(50).mean >= 0.6, "the best is 0.75, chance is below 0"


def test_sac_solves_what_needs_both_kinds_of_action() -> None:
    net = {"width": 64}
    more = {"num_envs": 8, "batch_size": 128, "alpha": "auto", "alpha_init": 0.1, "target_entropy_discrete": 0.3}
    agent = sac("kumite/Hybrid-v0", actor=net, critic=net, gamma=0.9, **more).learn(5000)
    assert agent.evaluate(50).mean >= 0.65, "the best is 0.75, chance is below 0"
