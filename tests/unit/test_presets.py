"""Every preset: its keys are known, its values in range, its source named, and it says something."""

from __future__ import annotations

from pathlib import Path

import pytest

from kumite import config as c
from kumite.algos import ROWS
from kumite.errors import UserError

FOLDER = Path(c.__file__).parent / "presets"
FILES = sorted(FOLDER.glob("*.yaml"))
BLOCKS = [(path.stem, block) for path in FILES for block in c.presets(path.stem)]

FAMILIES = [
    *("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1"),
    *("LunarLander-v3", "LunarLanderContinuous-v3", "BipedalWalker-v3", "BipedalWalkerHardcore-v3", "CarRacing-v3"),
    *(f"{name}-v{v}" for v in (4, 5) for name in ("Ant", "HalfCheetah", "Hopper", "Humanoid", "HumanoidStandup")),
    *(f"{name}-v5" for name in ("InvertedPendulum", "InvertedDoublePendulum", "Pusher", "Reacher", "Swimmer")),
    *("Walker2d-v4", "Walker2d-v5", "envpool:Ant-v4", "envpool:Humanoid-v5", "envpool:InvertedPendulum-v4"),
    *("atari:Pong", "ALE/Breakout-v5", "envpool:Pong-v5", "envpool:Hero-v5", "dmc:walker-walk", "dmc:dog-run"),
]
VALUES = ("dqn", "c51", "qrdqn", "iqn", "rainbow")
CHOICES = ("CartPole", "Acrobot", "MountainCar-", "LunarLander-", "atari:", "ALE/", "envpool:Pong", "envpool:Hero")
"""How the names begin whose actions are choices."""


def test_presets_belong_to_algorithms() -> None:
    assert {path.stem for path in FILES} <= set(ROWS)
    assert {"ppo", "a2c", "sac", "td3", "ddpg", *VALUES} <= {path.stem for path in FILES}


@pytest.mark.parametrize(("algo", "block"), BLOCKS, ids=[f"{a}:{b.pattern[:40]}" for a, b in BLOCKS])
def test_a_block_is_sound(algo: str, block: c.Block) -> None:
    default = c.run_type(algo)()
    config = c.merge(default, block.values)
    c.check(config)
    assert len(block.source) > 10
    assert block.values, "a block without values"
    assert set(block.values).isdisjoint({"seed", "name", "dir", "device", "quiet", "track"}), "a matter of the user"


@pytest.mark.parametrize("env", FAMILIES)
@pytest.mark.parametrize("algo", ["ppo", "a2c", "sac"])
def test_the_usual_environments_have_presets(algo: str, env: str) -> None:
    assert any(block.matches(env) for block in c.presets(algo))
    config = c.resolve(algo, env)
    if hasattr(config, "horizon"):
        rows = config.horizon * config.num_envs
        assert config.minibatches or rows % config.batch_size == 0 or rows < config.batch_size


@pytest.mark.parametrize("algo", [*VALUES, "td3", "ddpg"])
def test_algorithms_of_one_kind_of_action_know_theirs(algo: str) -> None:
    for env in FAMILIES:
        known = any(block.matches(env) for block in c.presets(algo))
        assert known == (env.startswith(CHOICES) == (algo in VALUES)) or env == "CarRacing-v3", env


def test_patterns() -> None:
    block = c.Block("envpool:*-v5 | atari:* | !envpool:Ant-*", "", {})
    assert block.matches("envpool:Pong-v5")
    assert block.matches("atari:Pong")
    assert not block.matches("envpool:Ant-v5")
    assert not block.matches("Pong-v5")
    assert c.Block("CartPole-v1", "", {}).matches("gym:CartPole-v1")


def test_mujoco_and_atari_of_envpool_are_told_apart() -> None:
    for algo in ("ppo", "a2c", "sac", *VALUES):
        for env in ("envpool:Ant-v5", "envpool:HumanoidStandup-v5", "envpool:InvertedDoublePendulum-v5"):
            assert c.resolve(algo, env).critic.encoder == "auto"
        pong = c.resolve(algo, "envpool:Pong-v5")
        assert "nature" in (pong.actor.encoder, pong.critic.encoder)


def test_a_block_must_name_its_source() -> None:
    with pytest.raises(UserError, match=r"presets/ppo\.yaml: the block 'X' must name its source"):
        c._block("ppo", "X", {"lr": 1})


def test_an_algorithm_without_presets() -> None:
    assert c.presets("nobody") == ()
