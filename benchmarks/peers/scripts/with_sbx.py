"""SBX: Stable-Baselines3 in JAX, every update compiled."""

from __future__ import annotations

import time
from typing import Any

import clock
import gymnasium
import numpy as np
from marks import Marks
from sbx import DQN, PPO, SAC, TD3
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import VecFrameStack, VecTransposeImage

given, n = clock.given, clock.given.numbers


def sac() -> Any:
    return SAC(
        "MlpPolicy",
        gymnasium.make(n["env"]),
        learning_rate=n["lr"],
        buffer_size=n["buffer"],
        learning_starts=n["random_steps"],
        batch_size=n["batch"],
        tau=n["tau"],
        gamma=n["gamma"],
        policy_kwargs={"net_arch": n["layers"]},
        seed=given.seed,
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
    )


def dqn() -> Any:
    pong = n["env"] == "Pong"
    if pong:
        import ale_py

        gymnasium.register_envs(ale_py)
        made = make_atari_env("PongNoFrameskip-v4", n_envs=n["envs"], seed=given.seed)
        env: Any = VecTransposeImage(VecFrameStack(made, n_stack=4))
    else:
        env = gymnasium.make(n["env"])
    return DQN(
        "CnnPolicy" if pong else "MlpPolicy",
        env,
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
    )


def ppo() -> Any:
    return PPO(
        "MlpPolicy",
        make_vec_env(n["env"], n_envs=n["envs"], seed=given.seed),
        learning_rate=n["lr"],
        n_steps=n["horizon"],
        batch_size=n["batch"],
        n_epochs=n["epochs"],
        gamma=n["gamma"],
        gae_lambda=n["lam"],
        clip_range=n["clip"],
        ent_coef=n["entropy"],
        vf_coef=n["value"],
        max_grad_norm=n["grad_norm"],
        policy_kwargs={"net_arch": n["layers"]},
        seed=given.seed,
    )


def update_alone() -> None:
    """The mean time of train() in the loop; jax answers before it is done, so the parameters are waited for."""
    import jax

    model, watch = sac(), clock.Clock()
    inner, spent = model.train, [0.0, 0]

    def timed(*args: Any, **kwargs: Any) -> None:
        start = time.perf_counter()
        inner(*args, **kwargs)
        jax.block_until_ready(model.policy.actor_state.params)
        jax.block_until_ready(model.policy.qf_state.params)
        if watch.begin is not None:
            spent[0] += time.perf_counter() - start
            spent[1] += 1

    model.train = timed
    model.learn(10**9, callback=Marks(watch, True))
    watch.report("sbx-rl", "jax")
    clock.say(figure=1e3 * spent[0] / spent[1], updates=spent[1])


def main() -> None:
    clock.limit_torch()
    if given.work == "sac-update":
        return update_alone()
    off_policy = {"sac": sac, "td3": td3, "dqn": dqn}.get(given.work.partition("-")[0])
    watch = clock.Clock()
    model = (off_policy or ppo)()
    model.learn(10**9, callback=Marks(watch, off_policy is not None))
    watch.report("sbx-rl", "jax", "stable_baselines3", "gymnasium")


main()
