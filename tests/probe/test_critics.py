"""Modern critics on environments whose values are known, and every new name on a task that it solves."""

from __future__ import annotations

from typing import Any

import pytest

import kumite
from kumite.agent import Agent
from tests.probe.agents import BOTH, SAC, sac, values

GAMMA = 0.8
HEADS: dict[str, dict[str, Any]] = {
    "quantile": {"quantiles": 8, "drop": 1},
    "c51": {"atoms": 31, "v_min": -2.0, "v_max": 7.0, "lr": 1e-2},
    "two_hot": {"atoms": 10, "v_min": -2.0, "v_max": 7.0, "lr": 3e-2},
    "hl_gauss": {"atoms": 31, "v_min": -2.0, "v_max": 7.0, "lr": 1e-2},
}
heads = pytest.mark.parametrize("head", HEADS)


@heads
def test_a_time_limit_is_not_the_end(head: str) -> None:
    """V = 5, though no episode pays more than 2.44."""
    agent = sac("kumite/Endless-v0", head=head, **HEADS[head], **{"env.kwargs": "{limit: 3}"}).learn(1200)
    assert values(agent, [1.0]) == pytest.approx([1 / (1 - GAMMA)], abs=0.25)


@pytest.mark.parametrize("head", ["quantile", "c51"])
def test_the_discount_with_three_steps_priorities_and_memory(head: str) -> None:
    more = {"n_step": 3, "priority": 0.6, "memory": "gru", "chunk": 4, "burn_in": 1}
    agent = sac("kumite/Delay-v0", head=head, **(HEADS[head] | more)).learn(600)
    assert values(agent, [-1.0]) == pytest.approx([GAMMA], abs=0.1)


def test_corrected_steps_with_a_head_of_means() -> None:
    more = {"n_step": 3, "correction": "retrace", "env.kwargs": "{limit: 4}"}
    agent = sac("kumite/Endless-v0", head="two_hot", **(HEADS["two_hot"] | more)).learn(1200)
    assert values(agent, [1.0]) == pytest.approx([1 / (1 - GAMMA)], abs=0.25)


def test_scaled_rewards_are_values_within_the_atoms() -> None:
    """SimbaV2 learns in units in which the largest return, here 2.44, is at most 5; V lies beyond what was seen."""
    numbers = {"num_envs": 4, "batch_size": 32, "warmup": 100, "update_ratio": 0.25, "lr": 1e-2, "tau": 0.1}
    more = {"alpha": "1e-4", "v_max": 25.0, "v_min": -5.0, "gamma": GAMMA, "env.kwargs": "{limit: 3, action: box}"}
    nets = {"actor.width": 16, "critic.width": 16}
    agent = kumite.SimbaV2SAC("kumite/Endless-v0", quiet=True, **numbers, **more, **nets).learn(1000)
    norm = agent.algo.reward_norm
    assert float(norm.most) == pytest.approx(2.44)
    deviation = float((norm.stats.var + norm.eps).sqrt())
    assert deviation == pytest.approx(0.589, abs=0.01)
    assert values(agent, [1.0])[0] * max(deviation, 2.44 / 5) == pytest.approx(5, abs=0.3)


NAMES: dict[str, dict[str, Any]] = {
    "REDQ": {"update_ratio": 0.5, "policy_delay": 2},
    "DroQ": {"update_ratio": 0.5, "policy_delay": 2},
    "TQC": {"quantiles": 8, "critic.depth": 2},
    "CrossQ": {"policy_delay": 1, "critic.width": 64},
    "SimbaV2SAC": {},
}


@pytest.mark.parametrize("name", NAMES)
def test_every_name_gives_the_right_answer(name: str) -> None:
    """One step that pays 1 if the action has the sign that is shown: 0.5 by chance."""
    shared = {k: v for k, v in (BOTH | SAC).items() if k not in ("actor", "critic")}
    nets = {"actor.width": 16, "critic.width": 16}
    more = shared | nets | {"alpha": "0.01", "env.kwargs": "{k: 0, action: box}"} | NAMES[name]
    agent = getattr(kumite, name)("kumite/Recall-v0", **more).learn(1500)
    assert agent.evaluate(50).mean >= 0.96


# -- images -----------------------------------------------------------------------------------------------------------

PIXELS: dict[str, dict[str, Any]] = {
    "DrQ": {"actor.keys": ["eyes.0"], "actor.width": 32, "alpha": "0.02", "policy_delay": 1},
    "DrQv2": {"actor.keys": ["eyes.0"], "actor.width": 32, "n_step": 1, "noise.steps": 500, "lr": 1e-3},
    "DQN": {"augment": "shift", "target_every": 0, "encoder": "drq", "epsilon_steps": 500},
}


def on_images(name: str) -> Agent:
    """One of two nested cameras shows the sign of the right answer, five times per episode."""
    action = "discrete" if name == "DQN" else "box"
    shared: dict[str, Any] = {"num_envs": 4, "batch_size": 32, "warmup": 100, "update_ratio": 0.25, "tau": 0.1}
    shared |= {"lr": 1e-3, "gamma": 0.5, "critic.keys": ["eyes.0"], "critic.width": 32, "quiet": True}
    more = {"buffer_size": 2000, "env.kwargs": f"{{action: {action}}}"}
    return getattr(kumite, name)("kumite/Sensors-v0", **(shared | more | PIXELS[name]))  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", PIXELS)
def test_images_alone_are_enough(name: str) -> None:
    assert on_images(name).learn(1000).evaluate(20).mean >= 4.7
