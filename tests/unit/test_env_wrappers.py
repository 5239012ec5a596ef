"""The learner's reward, stacked frames, and Atari's lives: what the layers above the simulator do to Steps."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from kumite.envs import make_env
from kumite.envs.base import EnvConfig
from kumite.envs.pool import AtariVec, Said
from kumite.envs.spaces import Native
from kumite.envs.suite.probes import Clock
from kumite.envs.wrappers import FrameStack, Reward
from kumite.errors import UserError


def rewards(config: EnvConfig, count: int = 7) -> tuple[list[float], list[float]]:
    """Clock's rewards are 1 2 | 11 12 13 | 21 22 | ..., with a reset between."""
    env = make_env(Clock, config=config)
    env.reset(0)
    seen, returns = [], []
    for _ in range(count):
        env.send(env.action.random(1))
        step = env.recv()
        seen.append(step.reward.item())
        returns += step.episodes.returns if step.episodes else []
    return seen, returns


@pytest.mark.parametrize(
    ("config", "want"),
    [
        (EnvConfig(), [1, 2, 0, 11, 12, 13, 0]),
        (EnvConfig(reward_scale=0.5, reward_shift=-1), [-0.5, 0, 0, 4.5, 5, 5.5, 0]),
        (EnvConfig(reward_shift=-12, reward_transform="sign"), [-1, -1, 0, -1, 0, 1, 0]),
        (EnvConfig(reward_transform="clip"), [1, 1, 0, 1, 1, 1, 0]),
        (EnvConfig(reward_transform="log"), [math.log(2), math.log(3), 0, *(math.log(k) for k in (12, 13, 14)), 0]),
        (EnvConfig(reward_scale=-1, reward_transform="log"), [-math.log(2), -math.log(3), 0, -math.log(12)]),
    ],
)
def test_the_learners_reward_changes_and_the_returns_do_not(config: EnvConfig, want: list[float]) -> None:
    seen, returns = rewards(config, len(want))
    assert seen == pytest.approx(want)
    assert returns == [3, 36][: len(returns)]


def test_unknown_transforms_are_refused() -> None:
    with pytest.raises(UserError, match="did you mean 'sign'"):
        make_env(Clock, config=EnvConfig(reward_transform="sgin"))


def test_wrappers_hand_on_what_is_not_theirs() -> None:
    env = make_env("Pendulum-v1", 2, config=EnvConfig(frame_stack=2, reward_scale=2, max_steps=10))
    assert isinstance(env, FrameStack)
    assert isinstance(env.env, Reward)
    assert (env.slots, env.horizon, env.restorable, env.restarts) == (2, 10, True, 0)
    assert env.native.obs_space["obs"].shape == (3,)
    assert env.obs_space["obs"].shape == (6,)
    assert env.obs_space["obs"].stack == 2
    assert env.makers
    assert not hasattr(env, "nonsense")


def test_every_entry_is_stacked_but_the_mask() -> None:
    env = make_env("kumite/Sensors-v0", 2, config=EnvConfig(frame_stack=2))
    step = env.reset(0)
    assert {k: tuple(v.shape[1:]) for k, v in step.obs.items()} == {
        "arm.joints": (8,),
        "arm.touch": (4,),
        "eyes.0": (6, 36, 48),
        "eyes.1": (2, 42, 36),
    }
    masked = make_env("kumite/Mask-v0", 2, config=EnvConfig(frame_stack=3))
    assert masked.reset(0).obs["mask"].shape == (2, 6)
    rooms = make_env("FrozenLake-v1", config=EnvConfig(frame_stack=2))
    assert rooms.obs_space["obs"].choices == (16, 16)
    assert rooms.obs_space["obs"].frame == (1,)


def test_a_stack_is_not_stacked_again() -> None:
    env = make_env("CartPole-v1", config=EnvConfig(frame_stack=2))
    with pytest.raises(UserError, match="already"):
        FrameStack(env, 2)


# Atari's lives, by a scripted engine.


class Script:
    """An engine of one game copy. Each entry: (reward, terminated, lives); a NEXT_STEP reset follows a termination."""

    def __init__(self, games: list[list[tuple[float, bool, int]]], lives: int) -> None:
        self.games, self.lives = games, lives
        self.game, self.time = -1, 0
        self.actions: list[int] = []

    def _show(self, reward: float, terminated: bool, lives: int) -> Said:
        obs = np.full((1, 1, 8, 8), 10 * self.game + self.time, np.uint8)
        info = {"lives": np.array([lives], np.int32)}
        return Said(obs, np.array([reward]), np.array([terminated]), np.array([False]), info, None)

    def start(self) -> tuple[Any, dict[str, Any]]:
        self.game, self.time, self.over = 0, 0, False
        said = self._show(0, False, self.lives)
        return said.obs, said.info

    def send(self, actions: Any, who: Any) -> None:
        self.actions.append(int(actions[0]))

    def recv(self) -> Said:
        if self.over:
            self.game, self.time, self.over = self.game + 1, 0, False
            return self._show(0, False, self.lives)
        reward, self.over, lives = self.games[self.game][self.time]
        self.time += 1
        return self._show(reward, self.over, lives)

    def close(self) -> None:
        pass


def lives(games: list[list[tuple[float, bool, int]]], start: int, steps: int, episodic: bool = True) -> Any:
    engine = Script(games, start)
    native = Native(spaces.Box(0, 255, (1, 8, 8), np.uint8), spaces.Discrete(4))
    env = AtariVec(lambda seeds: engine, native, 1, 0, episodic, wake=1)
    step = env.reset(0)
    rows = [(int(step.obs["obs"][0, 0, 0, 0]), 0.0, False)]
    episodes = []
    for _ in range(steps):
        env.send({"c": torch.zeros(1, 0), "d": torch.full((1, 1), 3)})
        step = env.recv()
        rows.append((int(step.obs["obs"][0, 0, 0, 0]), step.reward.item(), step.terminated.item()))
        if step.episodes:
            episodes.append((step.episodes.returns[0], step.episodes.lengths[0]))
    return rows, episodes, engine.actions


GAME = [(1.0, False, 2), (5.0, False, 1), (0.0, False, 1), (2.0, True, 0)]


def test_a_lost_life_ends_the_learners_episode_and_the_returns_go_on() -> None:
    rows, episodes, actions = lives([GAME, GAME], 2, 6)
    assert rows == [
        (0, 0, False),
        (1, 1, False),
        (2, 5, True),  # a life is gone
        (3, 0, False),  # the row of the replaced action: the first of the next life
        (4, 2, True),  # and the game
        (10, 0, False),
        (11, 1, False),
    ]
    assert actions == [3, 3, 1, 3, 0, 3]  # the life begins with fire; what a finished game is sent is nobody's
    assert episodes == [(8.0, 3)]


def test_without_episodic_life_only_the_game_ends() -> None:
    rows, episodes, actions = lives([GAME, GAME], 2, 6, episodic=False)
    assert [row[2] for row in rows] == [False, False, False, False, True, False, False]
    assert actions == [3, 3, 3, 3, 0, 3]
    assert episodes == [(8.0, 4)]


def test_a_reward_of_the_replaced_action_counts_for_the_return_only() -> None:
    game = [(0.0, False, 1), (7.0, False, 1), (1.0, True, 0)]
    rows, episodes, _ = lives([game, game], 2, 3)
    assert [row[1] for row in rows] == [0, 0, 0, 1]
    assert episodes == [(8.0, 2)]


def test_a_game_that_ends_in_the_replaced_action_is_told_one_step_later() -> None:
    game = [(1.0, False, 1), (4.0, True, 0)]
    rows, episodes, actions = lives([game, GAME, GAME], 2, 5)
    assert rows == [
        (0, 0, False),
        (1, 1, True),  # the life
        (2, 0, False),  # the replaced action: flags stay down on the first row of a life
        (2, 0, True),  # the game ended there
        (11, 0, False),  # the next game has begun meanwhile, by one replaced action
        (12, 5, True),
    ]
    assert episodes == [(5.0, 1)]
    assert actions[:4] == [3, 1, 3, 1]


def test_pictures_of_atari_come_from_the_frames() -> None:
    native = Native(spaces.Box(0, 255, (1, 8, 8), np.uint8), spaces.Discrete(4))
    env = AtariVec(lambda seeds: Script([GAME], 2), native, 1, 0, False, wake=1)
    env.reset(0)
    env.send({"c": torch.zeros(1, 0), "d": torch.full((1, 1), 3)})
    env.recv()
    picture = env.render()
    assert picture.shape == (32, 32, 3)
    assert picture.dtype == np.uint8
    assert (picture == 1).all()


def test_the_configuration_of_one_simulator_is_not_lost_on_another() -> None:
    for config in (EnvConfig(batch=2), EnvConfig(episodic_life=True)):
        with pytest.raises(UserError, match="only"):
            make_env("CartPole-v1", config=config)
    with pytest.raises(UserError, match="action-repeat works with"):
        make_env("CartPole-v1", config=EnvConfig(mode="native", action_repeat=2))
    with pytest.raises(UserError, match="at least 1"):
        make_env("CartPole-v1", config=EnvConfig(action_repeat=0))
    with pytest.raises(UserError, match="counts frames"):
        make_env("CartPole-v1", config=EnvConfig(frame_stack=-1))
    with pytest.raises(UserError, match="raise, restart or drop"):
        make_env(partial(Clock), config=EnvConfig(on_error="ignore"))
