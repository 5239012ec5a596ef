"""rl_games on EnvPool, with the numbers of its own configurations."""

from __future__ import annotations

import tempfile
from typing import Any

import clock
from rl_games.common import env_configurations, vecenv
from rl_games.common.algo_observer import DefaultAlgoObserver
from rl_games.envs.envpool import Envpool
from rl_games.torch_runner import Runner

given, n = clock.given, clock.given.numbers
watch = clock.Clock()


class Marks(DefaultAlgoObserver):
    """Called once per rollout and its updates."""

    def after_print_stats(self, frame: int, epoch_num: int, total_time: float) -> None:
        watch.check(frame)


class Gymnasium(Envpool):
    """EnvPool's newer interface knows gymnasium's spaces only."""

    def __init__(self, name: str, copies: int, **kwargs: Any) -> None:
        super().__init__(name, copies, env_type="gymnasium", **kwargs)


CONTINUOUS = {
    "algo": "a2c_continuous",
    "model": "continuous_a2c_logstd",
    "network": {
        "name": "actor_critic",
        "separate": False,
        "space": {
            "continuous": {
                "mu_activation": "None",
                "sigma_activation": "None",
                "mu_init": {"name": "default"},
                "sigma_init": {"name": "const_initializer", "val": 0},
                "fixed_sigma": True,
            }
        },
        "mlp": {
            "units": n.get("layers"),
            "activation": "elu",
            "initializer": {"name": "variance_scaling_initializer", "scale": 2.0},
        },
    },
    "more": {
        "normalize_input": True,
        "normalize_value": True,
        "use_smooth_clamp": True,
        "lr_schedule": "adaptive",
        "kl_threshold": 0.008,
        "bounds_loss_coef": 0.0,
        "entropy_coef": 0.0,
    },
    "env": {"env_name": n["env"]},
}
ATARI = {
    "algo": "a2c_discrete",
    "model": "discrete_a2c",
    "network": {
        "name": "actor_critic",
        "separate": False,
        "space": {"discrete": None},
        "cnn": {
            "permute_input": False,
            "type": "conv2d",
            "activation": "relu",
            "initializer": {"name": "orthogonal_initializer", "gain": 1.41421356237},
            "convs": [
                {"filters": 32, "kernel_size": 8, "strides": 4, "padding": 0},
                {"filters": 64, "kernel_size": 4, "strides": 2, "padding": 0},
                {"filters": 64, "kernel_size": 3, "strides": 1, "padding": 0},
            ],
        },
        "mlp": {
            "units": [512],
            "activation": "relu",
            "initializer": {"name": "orthogonal_initializer", "gain": 1.41421356237},
        },
    },
    "more": {
        "normalize_input": False,
        "normalize_value": False,
        "lr_schedule": "None",
        "kl_threshold": 0.01,
        "entropy_coef": n.get("entropy", 0.0),
    },
    "env": {"env_name": f"{n['env']}-v5", "episodic_life": False, "reward_clip": True, "has_lives": True},
}


def main() -> None:
    kind = ATARI if given.work == "ppo-pong" else CONTINUOUS
    vecenv.register("POOL", lambda name, copies, **kw: Gymnasium(name, copies, **kw))
    env_configurations.register("envpool", {"env_creator": None, "vecenv_type": "POOL"})
    config = {
        "name": "bench",
        "env_name": "envpool",
        "value_bootstrap": True,
        "reward_shaper": {"scale_value": 1},
        "normalize_advantage": True,
        "gamma": n["gamma"],
        "tau": n["lam"],
        "learning_rate": n["lr"],
        "grad_norm": n["grad_norm"],
        "truncate_grads": True,
        "e_clip": n["clip"],
        "clip_value": False,
        "num_actors": n["envs"],
        "horizon_length": n["horizon"],
        "minibatch_size": n["batch"],
        "mini_epochs": n["epochs"],
        "critic_coef": n["value"] if kind is CONTINUOUS else 2 * n["value"],
        "max_epochs": 10**6,
        "save_best_after": 10**9,
        "save_frequency": 0,
        "print_stats": False,
        "device": "cpu",
        "device_name": "cpu",
        "ppo_device": "cpu",
        "train_dir": tempfile.mkdtemp(),
        "env_config": kind["env"] | {"seed": given.seed},
        **kind["more"],
    }
    params = {
        "seed": given.seed or 1,
        "algo": {"name": kind["algo"]},
        "model": {"name": kind["model"]},
        "network": kind["network"],
        "config": config,
    }
    runner = Runner(Marks())
    runner.load({"params": params})
    clock.limit_torch()
    try:
        runner.run({"train": True})
    except clock.Done:
        watch.report("rl-games", "torch", "envpool")


main()
