"""Stable-Baselines3 and sb3-contrib."""

from __future__ import annotations

import sys
import time
from typing import Any

import clock
import gymnasium
import numpy as np
import torch
from marks import Marks
from stable_baselines3 import DQN, PPO, SAC, TD3
from stable_baselines3.common.callbacks import EvalCallback, StopTrainingOnRewardThreshold
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import VecFrameStack

given, n = clock.given, clock.given.numbers


def sac() -> Any:
    env = gymnasium.make(n["env"])
    return SAC(
        "MlpPolicy",
        env,
        learning_rate=n["lr"],
        buffer_size=n["buffer"],
        learning_starts=n["random_steps"],
        batch_size=n["batch"],
        tau=n["tau"],
        gamma=n["gamma"],
        policy_kwargs={"net_arch": n["layers"]},
        seed=given.seed,
        device="cpu",
    )


def td3() -> Any:
    env = gymnasium.make(n["env"])
    noise = NormalActionNoise(np.zeros(env.action_space.shape), np.full(env.action_space.shape, n["noise"]))
    return TD3(
        "MlpPolicy",
        env,
        learning_rate=n["lr"],
        buffer_size=n["buffer"],
        learning_starts=n["random_steps"],
        batch_size=n["batch"],
        tau=n["tau"],
        gamma=n["gamma"],
        policy_delay=n["delay"],
        action_noise=noise,
        policy_kwargs={"net_arch": n["layers"]},
        seed=given.seed,
        device="cpu",
    )


def dqn() -> Any:
    pong = n["env"] == "Pong"
    return DQN(
        "CnnPolicy" if pong else "MlpPolicy",
        pong_env() if pong else gymnasium.make(n["env"]),
        learning_rate=n["lr"],
        buffer_size=n["buffer"],
        learning_starts=n["random_steps"],
        batch_size=n["batch"],
        train_freq=n["every"],
        gradient_steps=1,
        gamma=n["gamma"],
        target_update_interval=n["target_every"],
        policy_kwargs=None if pong else {"net_arch": n["layers"]},
        seed=given.seed,
        device="cpu",
    )


def pong_env() -> Any:
    import ale_py

    gymnasium.register_envs(ale_py)
    return VecFrameStack(make_atari_env("PongNoFrameskip-v4", n_envs=n["envs"], seed=given.seed), n_stack=4)


def ppo_numbers() -> dict[str, Any]:
    return {
        "learning_rate": n["lr"],
        "n_steps": n["horizon"],
        "batch_size": n["batch"],
        "n_epochs": n["epochs"],
        "gamma": n["gamma"],
        "gae_lambda": n["lam"],
        "clip_range": n["clip"],
        "ent_coef": n["entropy"],
        "vf_coef": n["value"],
        "max_grad_norm": n["grad_norm"],
        "seed": given.seed,
        "device": "cpu",
    }


def ppo() -> Any:
    if n["env"] == "Pong":
        return PPO("CnnPolicy", pong_env(), **ppo_numbers())
    env = make_vec_env(n["env"], n_envs=n["envs"], seed=given.seed)
    if "lstm" in n:
        from sb3_contrib import RecurrentPPO

        net = {"net_arch": n["layers"], "lstm_hidden_size": n["lstm"]}
        return RecurrentPPO("MlpLstmPolicy", env, policy_kwargs=net, **ppo_numbers())
    return PPO("MlpPolicy", env, policy_kwargs={"net_arch": n["layers"]}, **ppo_numbers())


def update_alone() -> None:
    """The mean time of train() in the loop."""
    model, watch = sac(), clock.Clock()
    inner, spent = model.train, [0.0, 0]

    def timed(*args: Any, **kwargs: Any) -> None:
        start = time.perf_counter()
        inner(*args, **kwargs)
        if watch.begin is not None:
            spent[0] += time.perf_counter() - start
            spent[1] += 1

    model.train = timed
    model.learn(10**9, callback=Marks(watch, True))
    watch.report("stable_baselines3", "torch")
    clock.say(figure=1e3 * spent[0] / spent[1], updates=spent[1])


def solve() -> None:
    """CartPole until an evaluation reaches 475."""
    model = PPO(
        "MlpPolicy",
        make_vec_env(n["env"], n_envs=n["envs"], seed=given.seed),
        policy_kwargs={"net_arch": n["layers"]},
        **ppo_numbers() | {"learning_rate": lambda left: n["lr"] * left, "clip_range": lambda left: n["clip"] * left},
    )
    watch = EvalCallback(
        make_vec_env(n["env"], n_envs=n["eval_episodes"], seed=given.seed + 1000),
        callback_on_new_best=StopTrainingOnRewardThreshold(475),
        n_eval_episodes=n["eval_episodes"],
        eval_freq=n["eval_every"] // n["envs"],
        verbose=0,
    )
    model.learn(n["steps"], callback=watch)
    clock.say(solved=watch.best_mean_reward >= 475, steps=model.num_timesteps)


def main() -> None:
    clock.limit_torch()
    if given.work == "cartpole-475":
        return solve()
    if given.work == "sac-update":
        return update_alone()
    watch = clock.Clock()
    off_policy = {"sac": sac, "td3": td3, "dqn": dqn}.get(given.work.partition("-")[0])
    model = (off_policy or ppo)()
    model.learn(10**9, callback=Marks(watch, off_policy is not None))
    packages = ["stable_baselines3", "torch", "gymnasium"] + (["sb3_contrib"] if "sb3_contrib" in sys.modules else [])
    watch.report(*packages, threads_used=torch.get_num_threads())


main()
