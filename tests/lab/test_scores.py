"""Scales and suites against published figures."""

from __future__ import annotations

import numpy as np
import pytest

from kumite.errors import UserError
from kumite.lab import scores


def test_the_atari_table_is_whole() -> None:
    """57 games. With the scores of Mnih et al. 2015 for Breakout (401.2), Pong (18.9), Montezuma's Revenge (0), human
    play from Wang et al. 2016: (401.2 - 1.7) / 28.8, (18.9 + 20.7) / 35.3, 0.
    """
    assert len(scores.ATARI) == 57
    assert all(human != random for random, human in scores.ATARI.values())
    found = [
        float(scores.normalised(np.array(x), env, "atari"))
        for env, x in (("atari:Breakout", 401.2), ("ALE/Pong-v5", 18.9), ("MontezumaRevengeNoFrameskip-v4", 0.0))
    ]
    assert found == pytest.approx([399.5 / 28.8, 39.6 / 35.3, 0.0])


@pytest.mark.parametrize(
    ("env", "low", "high"),
    [
        ("halfcheetah-medium-v2", -280.178953, 12135.0),
        ("hopper-medium-replay-v2", -20.272305, 3234.3),
        ("walker2d-expert-v0", 1.629008, 4592.3),
        ("ant-random-v2", -325.6, 3879.7),
        ("antmaze-large-play-v2", 0, 1),
        ("pen-human-v1", 96.262799, 3076.8331017826877),
        ("maze2d-umaze-v1", 23.85, 161.86),
        ("maze2d-large-dense-v1", 30.569041, 303.4857382709002),
        ("maze2d-eval-umaze-v1", 36.63, 141.4),
        ("bullet-hopper-medium-v0", 20.058972, 1441.8059623430963),
        ("kitchen-mixed-v0", 0, 4),
        ("Hopper-v5", -20.272305, 3234.3),
    ],
)
def test_d4rl_scores(env: str, low: float, high: float) -> None:
    assert scores.ends(env, "d4rl") == (low, high)
    assert scores.normalised(np.array([low, high]), env, "d4rl").tolist() == [0, 1]


def test_every_pattern_of_d4rl_is_the_first_for_some_name() -> None:
    """No pattern hides behind an earlier one."""
    for pattern, ends in scores.D4RL:
        name = pattern.replace("-*", "-medium-v0").replace("*", "-medium-v2")
        assert scores.ends(name, "d4rl") == ends, pattern


@pytest.mark.parametrize(
    ("env", "suite"),
    [
        ("atari:Pong", "atari"),
        ("ALE/Pong-v5", "atari"),
        ("PongNoFrameskip-v4", "atari"),
        ("envpool:Pong-v5", "atari"),
        ("dmc:walker-walk", "dmc"),
        ("dm_control/walker-walk-v0", "dmc"),
        ("envpool:WalkerWalk-v1", "dmc"),
        ("envpool:BallInCupCatch-v1", "dmc"),
        ("envpool:HalfCheetah-v4", "mujoco"),
        ("HumanoidStandup-v5", "mujoco"),
        ("Walker2d-v5", "mujoco"),
        ("CartPole-v1", "classic"),
        ("LunarLander-v3", "box2d"),
        ("hopper-medium-v2", "d4rl"),
        ("D4RL/pen/human-v2", "d4rl"),
        ("kumite/Recall-v0", "kumite"),
        ("MiniGrid-Empty-5x5-v0", "other"),
        ("my.module:make", "other"),
    ],
)
def test_suites(env: str, suite: str) -> None:
    assert scores.suite(env) == suite


def test_one_scale_for_one_comparison() -> None:
    assert scores.pick(["atari:Pong", "ALE/Breakout-v5"]) == "atari"
    assert scores.pick(["dmc:walker-walk", "dmc:dog-run"]) == "dmc"
    assert scores.pick(["hopper-medium-v2", "pen-human-v1"]) == "d4rl"
    assert scores.pick(["dmc:walker-walk", "CartPole-v1"]) == "range"
    assert scores.pick(["D4RL/pen/human-v2"]) == "range"  # other physics than D4RL's own: its scores do not fit
    with pytest.raises(UserError, match="--scores atari knows no scores of 'CartPole-v1'"):
        scores.pick(["atari:Pong", "CartPole-v1"], "atari")


def test_returns_as_scores() -> None:
    assert scores.normalised(np.array([0.0, 500, 1000]), "dmc:walker-walk", "dmc").tolist() == [0, 0.5, 1]
    seen = {"CartPole-v1": (100.0, 300.0), "Pendulum-v1": (5.0, 5.0)}
    assert scores.normalised(np.array([100.0, 200]), "CartPole-v1", "range", seen).tolist() == [0, 0.5]
    assert scores.normalised(np.array([5.0, 5.0]), "Pendulum-v1", "range", seen).tolist() == [1, 1]
