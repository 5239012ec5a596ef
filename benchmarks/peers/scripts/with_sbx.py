"""SBX: Stable-Baselines3 in JAX, every update compiled."""

from __future__ import annotations

import time
from typing import Any

import clock
import gymnasium
from marks import Marks
from sbx import PPO, SAC
from stable_baselines3.common.env_util import make_vec_env

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
    off_policy = given.work.startswith("sac")
    watch = clock.Clock()
    model = sac() if off_policy else ppo()
    model.learn(10**9, callback=Marks(watch, off_policy))
    watch.report("sbx-rl", "jax", "stable_baselines3", "gymnasium")


main()
