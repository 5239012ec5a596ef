"""The simulators themselves, where they are installed: rows keep the contract, and their traps stay closed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from kumite.envs import make_env
from kumite.envs.base import EnvConfig, VecEnv
from kumite.errors import RunError, UserError
from kumite.types import Step


def keeps_the_contract(env: VecEnv, steps: int) -> tuple[list[float], list[int]]:
    """Plays at random and checks every Step; returns the returns and lengths of finished episodes."""
    over = np.zeros(env.slots, bool)
    returns: list[float] = []
    lengths: list[int] = []
    step = env.reset(3)
    assert step.slot is None
    assert step.ticks == 0
    fresh = np.ones(env.slots, bool)
    for _ in range(steps):
        who = np.arange(env.slots) if step.slot is None else step.slot.numpy()
        n = len(who)
        assert list(step.obs) == list(env.obs_space)
        for k, spec in env.obs_space.items():
            assert tuple(step.obs[k].shape) == (n, *spec.shape)
            assert step.obs[k].dtype == spec.dtype
        assert step.reward.shape == step.terminated.shape == step.truncated.shape == (n,)
        assert step.reward.dtype == torch.float32
        assert step.terminated.dtype == torch.bool
        assert not step.reward[torch.from_numpy(fresh)].any()
        assert not step.over[torch.from_numpy(fresh)].any()
        assert step.ticks == 0 or step.ticks == (~fresh).sum()
        over[who] = step.over.numpy()
        if step.episodes is not None:
            returns += step.episodes.returns
            lengths += step.episodes.lengths
        env.send(env.action.random(n, mask=step.obs.get("mask")), step.slot)
        step = env.recv()
        fresh = over[np.arange(env.slots) if step.slot is None else step.slot.numpy()]
    env.close()
    return returns, lengths


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("CartPole-v1", EnvConfig()),
        ("CartPole-v1", EnvConfig(mode="native")),
        ("Acrobot-v1", EnvConfig(max_steps=20)),
        ("Taxi-v4", EnvConfig(max_steps=20)),
        ("FrozenLake-v1", EnvConfig()),
        ("MountainCarContinuous-v0", EnvConfig(max_steps=15, action_repeat=1)),
        ("kumite/Sensors-v0", EnvConfig(flatten=True)),
    ],
)
def test_gymnasium(name: str, config: EnvConfig) -> None:
    _, lengths = keeps_the_contract(make_env(name, 3, config=config), 80)
    assert lengths
    if config.max_steps:
        assert set(lengths) == {config.max_steps}


def test_taxi_tells_its_legal_actions_in_the_info() -> None:
    env = make_env("Taxi-v4", 2)
    step = env.reset(0)
    assert env.obs_space["mask"].shape == (6,)
    assert not step.obs["mask"].all()


@pytest.mark.parametrize("name", ["HalfCheetah-v4", "Hopper-v5", "Humanoid-v5"])
def test_mujoco(name: str) -> None:
    pytest.importorskip("mujoco")
    env = make_env(name, 2, config=EnvConfig(max_steps=12))
    keeps_the_contract(env, 30)
    assert env.obs_space["obs"].dtype == torch.float32


def test_mujoco_and_box2d_are_restored() -> None:
    pytest.importorskip("mujoco")
    for name in ("HalfCheetah-v5", "LunarLander-v3"):
        env, other = make_env(name, 2), make_env(name, 2)
        env.reset(1)
        for _ in range(30):
            env.send(env.action.random(2))
            env.recv()
        assert other.restore(env.state())
        for _ in range(30):
            action = env.action.random(2)
            env.send(action)
            other.send(action)
            a, b = env.recv(), other.recv()
            assert torch.equal(a.obs["obs"], b.obs["obs"])
            assert torch.equal(a.reward, b.reward)


# dm_control


def test_dm_control() -> None:
    pytest.importorskip("dm_control")
    env = make_env("dmc:walker-walk", 2, config=EnvConfig(max_steps=15))
    assert env.obs_space["obs"].shape == (24,)
    assert env.restorable
    _, lengths = keeps_the_contract(env, 40)
    assert set(lengths) == {15}
    assert make_env("dmc:walker-walk").horizon == 1000
    apart = make_env("dmc:walker-walk", config=EnvConfig(kwargs="{flatten: false}"))
    assert {k: s.shape for k, s in apart.obs_space.items()} == {
        "orientations": (14,),
        "height": (1,),
        "velocity": (9,),
    }
    assert make_env("dmc:walker-walk", config=EnvConfig(mask_velocity=True)).obs_space["obs"].shape == (15,)
    with pytest.raises(UserError, match="did you mean 'walker-walk'"):
        make_env("dmc:walker-wlk")


def test_dm_control_truncates_at_its_limit_and_is_restored() -> None:
    pytest.importorskip("dm_control")
    config = EnvConfig(kwargs="{time_limit: 0.2}")
    env = make_env("dmc:cartpole-swingup", 2, config=config)
    step = env.reset(5)
    flags = []
    for _ in range(env.horizon):
        env.send(env.action.random(2))
        step = env.recv()
        flags.append((step.terminated.tolist(), step.truncated.tolist()))
    assert flags[-1] == ([False, False], [True, True])
    assert not any(any(cut) for _, cut in flags[:-1])
    for _ in range(8):
        env.send(env.action.random(2))
        env.recv()
    other = make_env("dmc:cartpole-swingup", 2, config=config)
    assert other.restore(env.state())
    for _ in range(30):
        action = env.action.random(2)
        env.send(action)
        other.send(action)
        a, b = env.recv(), other.recv()
        assert torch.equal(a.obs["obs"], b.obs["obs"])


# Atari


@pytest.mark.parametrize("config", [EnvConfig(), EnvConfig(episodic_life=True, sticky=0.0, frame_stack=2)])
def test_atari(config: EnvConfig) -> None:
    pytest.importorskip("ale_py")
    env = make_env("atari:Breakout", 3, config=config)
    k = config.frame_stack or 4
    assert env.obs_space["obs"].shape == (k, 84, 84)
    assert env.obs_space["obs"].stack == k
    assert env.horizon == 27000
    returns, lengths = keeps_the_contract(env, 260)
    assert returns
    assert min(lengths) > 60  # five lives, told as one game


def test_atari_games_by_any_name_and_their_options() -> None:
    pytest.importorskip("ale_py")
    for name in ("ms_pacman", "MsPacman", "ALE/MsPacman-v5", "MsPacmanNoFrameskip-v4"):
        assert make_env(f"atari:{name}").action.branches == (9,)
    assert make_env("atari:UpNDown").action.branches == (6,)
    with pytest.raises(UserError, match="did you mean 'Pong'"):
        make_env("atari:Pog")
    with pytest.raises(UserError, match="no Atari game 'Combat'"):  # two players; ALE ends the process over it
        make_env("atari:Combat")
    assert make_env("atari:Pong", config=EnvConfig(kwargs="{full_action_space: true}")).action.branches == (18,)
    with pytest.raises(UserError, match="failed"):
        make_env("atari:Pong", config=EnvConfig(kwargs="{spede: 3}"))


def test_atari_limits_and_rewards() -> None:
    pytest.importorskip("ale_py")
    env = make_env("atari:Pong", 2, config=EnvConfig(max_steps=60))
    lengths, returns, rewards = [], [], set()
    env.reset(0)
    for _ in range(200):
        env.send(env.action.random(2))
        step = env.recv()
        rewards |= set(step.reward.tolist())
        if step.episodes:
            lengths += step.episodes.lengths
            returns += step.episodes.returns
    assert rewards <= {-1.0, 0.0, 1.0}
    assert len(set(lengths)) == 1
    assert abs(lengths[0] - 60) <= 1
    env.close()
    native = make_env("ALE/Breakout-v5", 2, config=EnvConfig(mode="native"))
    assert native.obs_space["obs"].shape == (4, 84, 84)


def test_the_same_seed_gives_the_same_game() -> None:
    pytest.importorskip("ale_py")

    def play(seed: int) -> torch.Tensor:
        torch.manual_seed(0)
        env = make_env("atari:Breakout", 2)
        step = env.reset(seed)
        for _ in range(40):
            env.send(env.action.random(2))
            step = env.recv()
        env.close()
        return step.obs["obs"]

    assert torch.equal(play(1), play(1))
    assert not torch.equal(play(1), play(2))


# EnvPool


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("CartPole-v1", EnvConfig()),
        ("CartPole-v1", EnvConfig(batch=3, max_steps=10)),
        ("HalfCheetah-v4", EnvConfig(max_steps=20)),
        ("WalkerWalk-v1", EnvConfig(flatten=True, batch=2, max_steps=20)),
        ("Breakout-v5", EnvConfig(episodic_life=True)),
        ("Breakout-v5", EnvConfig(episodic_life=True, batch=2)),
    ],
)
def test_envpool(name: str, config: EnvConfig) -> None:
    pytest.importorskip("envpool")
    env = make_env(f"envpool:{name}", 4, config=config)
    assert not env.restorable
    share = 2 if config.batch else 1  # fewer copies answer each time, and nobody says which
    _, lengths = keeps_the_contract(env, 300 * share if "Breakout" in name else 90)
    assert lengths
    if config.max_steps and name != "CartPole-v1":
        assert set(lengths) == {config.max_steps}
    if config.episodic_life:
        assert min(lengths) > 60


def test_envpool_is_seeded_and_checks_actions() -> None:
    pytest.importorskip("envpool")

    def first(seed: int, again: int | None = None) -> torch.Tensor:
        env = make_env("envpool:HalfCheetah-v4", 3, seed=seed)
        step: Step = env.reset(seed)
        if again is not None:
            step = env.reset(again)
        env.close()
        return step.obs["obs"]

    assert torch.equal(first(1), first(1))
    assert torch.equal(first(2, again=1), first(1))
    assert not torch.equal(first(1), first(2))
    assert len(first(1).unique(dim=0)) == 3
    env = make_env("envpool:HalfCheetah-v4", 2)
    env.reset(0)
    action: dict[str, Any] = env.action.random(2)
    action["c"][1, 2] = float("nan")
    with pytest.raises(RunError, match="the action for environment 1 is not valid"):
        env.send(action)
    env.close()


def test_envpool_says_what_it_cannot_do() -> None:
    pytest.importorskip("envpool")
    for name, config, words in (
        ("Nothing-v0", EnvConfig(), "EnvPool has no task"),
        ("HalfCheetah-v4", EnvConfig(action_repeat=2), "not with EnvPool"),
        ("HalfCheetah-v4", EnvConfig(mode="workers"), "threads of its own"),
        ("HalfCheetah-v4", EnvConfig(kwargs="{spede: 3}"), "does not take these keywords"),
    ):
        with pytest.raises(UserError, match=words):
            make_env(f"envpool:{name}", 4, config=config)
    assert make_env("envpool:CartPole-v1", config=EnvConfig(mask_velocity=True)).obs_space["obs"].shape == (2,)
    with pytest.raises(UserError, match="cannot draw 'WalkerWalk-v1' safely"):
        make_env("envpool:WalkerWalk-v1", render=True)
    drawn = make_env("envpool:CartPole-v1", render=True)
    drawn.reset(0)
    assert drawn.render().shape[2] == 3
    game = make_env("envpool:Pong-v5", render=True)
    game.reset(0)
    assert game.render().shape == (336, 336, 3)
