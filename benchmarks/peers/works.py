"""The works: what is to be done, the same numbers for everybody, who does it, and what is aimed for.

A work's `numbers` go to every script as they are; each script says them in its own library's words.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SAC = {
    "env": "HalfCheetah-v5",
    "envs": 1,
    "batch": 256,
    "layers": [256, 256],
    "lr": 3e-4,
    "gamma": 0.99,
    "tau": 0.005,
    "buffer": 1_000_000,
    "random_steps": 1_000,
}
TD3 = SAC | {"delay": 2, "noise": 0.1}
DQN = {  # Stable-Baselines3's own, but for the random start
    "envs": 1,
    "batch": 32,
    "every": 4,
    "lr": 1e-4,
    "gamma": 0.99,
    "buffer": 100_000,
    "target_every": 10_000,
    "random_steps": 1_000,
}
PPO = {  # Stable-Baselines3's own
    "envs": 8,
    "horizon": 2048,
    "batch": 64,
    "epochs": 10,
    "layers": [64, 64],
    "lr": 3e-4,
    "gamma": 0.99,
    "lam": 0.95,
    "clip": 0.2,
    "entropy": 0.0,
    "value": 0.5,
    "grad_norm": 0.5,
}


@dataclass(frozen=True)
class Work:
    title: str
    numbers: dict[str, Any]
    entrants: tuple[str, ...]
    """Scripts that do it; kumite first."""
    bars: dict[str, float] = field(default_factory=dict)
    """Entrant -> how many times faster kumite has to be."""
    goals: dict[str, float] = field(default_factory=dict)
    warm: int = 0
    """Environment steps before the clock starts: compilation and first allocations lie there."""
    seconds: float = 10.0
    """How long the clock runs, at least; it stops at the end of a rollout."""
    unit: str = "steps/s"
    """Of the figure. Rates are better when large, ms and s when small."""
    note: str = ""

    @property
    def larger_is_better(self) -> bool:
        return self.unit.endswith("/s")


WORKS: dict[str, Work] = {
    "sac-cheetah": Work(
        "SAC HalfCheetah-v5, 1 env, an update per step, batch 256, 2 x 256",
        SAC,
        ("kumite", "sb3", "sbx", "plain", "tianshou", "skrl"),
        {"sb3": 3.0, "sbx": 1.2},
        {"sbx": 1.7},
        warm=1_300,
        note="The clock starts 300 updates after the random steps.",
    ),
    "ppo-cheetah": Work(
        "PPO HalfCheetah-v5, 8 envs, SB3's settings (rollouts of 8 x 2048, minibatch 64, 10 epochs, 2 x 64 tanh)",
        PPO | {"env": "HalfCheetah-v5"},
        ("kumite", "sb3", "sbx", "plain", "tianshou", "skrl"),
        {"sb3": 3.0, "sbx": 1.7},
        {"sbx": 2.5},
        warm=16_384,
        note="The clock starts after the first rollout and its updates.",
    ),
    "ppo-pool": Work(
        "PPO HalfCheetah-v4, 64 EnvPool envs, rl_games' settings (64 x 256, minibatch 2048, 5 epochs, 128-64-32 elu)",
        {
            "env": "HalfCheetah-v4",
            "envs": 64,
            "horizon": 256,
            "batch": 2048,
            "epochs": 5,
            "layers": [128, 64, 32],
            "lr": 5e-4,
            "gamma": 0.99,
            "lam": 0.95,
            "clip": 0.2,
            "value": 4.0,
            "grad_norm": 1.0,
        },
        ("kumite", "rl_games"),
        {"rl_games": 1.3},
        {"rl_games": 1.7},
        warm=32_768,
        note="Normalised observations and values, adaptive learning rate, shared net. "
        "The clock starts after two rollouts.",
    ),
    "ppo-cartpole": Work(
        "PPO CartPole-v1, 8 envs, SB3's settings (rollouts of 8 x 2048, minibatch 64, 10 epochs, 2 x 64 tanh)",
        PPO | {"env": "CartPole-v1"},
        ("kumite", "sb3", "sbx", "plain", "tianshou", "skrl"),
        {"sb3": 3.5, "sbx": 2.0},
        {"sbx": 4.0},
        warm=16_384,
        note="The clock starts after the first rollout and its updates.",
    ),
    "ppo-pong": Work(
        "PPO Pong, 8 envs, the usual Atari settings (8 x 128, minibatch 256, 4 epochs, Nature's CNN)",
        {
            "env": "Pong",
            "envs": 8,
            "horizon": 128,
            "batch": 256,
            "epochs": 4,
            "lr": 2.5e-4,
            "gamma": 0.99,
            "lam": 0.95,
            "clip": 0.1,
            "entropy": 0.01,
            "value": 0.5,
            "grad_norm": 0.5,
        },
        ("kumite", "sb3", "rl_games"),
        {"sb3": 2.2},
        {"sb3": 3.0},
        warm=2_048,
        seconds=15.0,
        note="Each library's own Atari stack: kumite ALE's vector environment, SB3 gymnasium, rl_games EnvPool.",
    ),
    "rppo-cartpole": Work(
        "Recurrent PPO CartPole-v1, 8 envs, LSTM 256 for actor and critic (8 x 128, minibatch 128, 10 epochs)",
        {
            "env": "CartPole-v1",
            "envs": 8,
            "horizon": 128,
            "batch": 128,
            "epochs": 10,
            "layers": [64, 64],
            "lstm": 256,
            "lr": 3e-4,
            "gamma": 0.99,
            "lam": 0.95,
            "clip": 0.2,
            "entropy": 0.0,
            "value": 0.5,
            "grad_norm": 0.5,
        },
        ("kumite", "kumite-whole", "sb3"),
        {"sb3": 4.0},
        {"sb3": 8.0},
        warm=2_048,
        note="kumite learns from sequences of 16 rows; kumite-whole from whole rollouts of 128, as sb3-contrib does.",
    ),
    "sac-update": Work(
        "The SAC update of the first row, inside the loop, without acting, simulation and sampling",
        SAC,
        ("kumite", "floor", "sb3", "sbx"),
        {"floor": 1 / 2.5},
        {"floor": 1 / 1.3},
        warm=1_300,
        unit="ms",
        note="floor: hand-written AVX-512 C++ (floor.cpp) doing the same arithmetic and nothing else. "
        "The peers' figure is the mean time of train() in their loop, sampling included.",
    ),
    "td3-cheetah": Work(
        "TD3 HalfCheetah-v5, 1 env, an update per step, batch 256, 2 x 256, the actor at every second",
        TD3,
        ("kumite", "sb3", "sbx"),
        {"sb3": 3.0, "sbx": 1.2},
        warm=1_300,
        note="The clock starts 300 updates after the random steps.",
    ),
    "dqn-cartpole": Work(
        "DQN CartPole-v1, 1 env, an update per 4 steps, batch 32, 2 x 64",
        DQN | {"env": "CartPole-v1", "layers": [64, 64]},
        ("kumite", "sb3", "sbx"),
        {"sb3": 3.0},
        warm=2_500,
        note="The clock starts 375 updates after the random steps.",
    ),
    "dqn-pong": Work(
        "DQN Pong, 1 env, an update per 4 steps, batch 32, Nature's CNN",
        DQN | {"env": "Pong"},
        ("kumite", "sb3", "sbx"),
        {"sb3": 3.0},
        warm=1_200,
        seconds=15.0,
        note="The clock starts 50 updates after the random steps. kumite's frames come from ALE's vector environment, "
        "the others' from gymnasium.",
    ),
    "cartpole-475": Work(
        "CartPole-v1 to an evaluation of 475, from the shell's Enter to exit",
        {
            "env": "CartPole-v1",
            "envs": 8,
            "horizon": 32,
            "batch": 256,
            "epochs": 20,
            "layers": [64, 64],
            "lr": 1e-3,
            "gamma": 0.98,
            "lam": 0.8,
            "clip": 0.2,
            "value": 0.5,
            "entropy": 0.0,
            "grad_norm": 0.5,
            "steps": 100_000,
            "eval_every": 2_560,
            "eval_episodes": 10,
        },
        ("kumite", "sb3"),
        {"sb3": 1.0},
        {"sb3": 2.0},
        unit="s",
        note="Everything counts: imports, learning, an evaluation of ten episodes each 2,560 steps. rl-zoo's numbers; "
        "each repeat has a seed of its own, the same for everybody.",
    ),
}
