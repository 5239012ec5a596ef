"""The table of names: each is a file of arithmetic and the numbers that make it that paper's algorithm."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from kumite.errors import UserError, nearest


@dataclass(frozen=True)
class Row:
    home: str
    """module:Class of the arithmetic."""
    paper: str
    numbers: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """What the name means: config values that differ from the class's defaults."""
    title: str = ""
    """The class's public name in Python: kumite.<title>."""


SIMBA = {
    "actor.encoder": "simba",
    "actor.width": 128,
    "actor.depth": 1,
    "critic.encoder": "simba",
    "critic.width": 512,
    "critic.depth": 2,
    "optimizer": "adamw",
    "weight_decay": 1e-2,
    "normalize_obs": True,
    "obs_clip": 0.0,
}
"""Residual nets, decay of their weights, observations in units of their running deviation."""

PIXELS = {
    "augment": "shift",
    "share_encoder": True,
    "actor.encoder": "drq",
    "actor.width": 1024,
    "actor.init": "orthogonal",
    "critic.encoder": "drq",
    "critic.width": 1024,
    "critic.init": "orthogonal",
}
"""Moved images, an encoder that only the critics train, wide nets behind it."""

ROWS: dict[str, Row] = {
    "ppo": Row("kumite.algos.ppo:PPO", "Schulman et al. 2017, Proximal policy optimization algorithms", title="PPO"),
    "a2c": Row(
        "kumite.algos.ppo:PPO",
        "Mnih et al. 2016, Asynchronous methods for deep reinforcement learning",
        {
            "epochs": 1,
            "minibatches": 1,
            "clip": float("inf"),
            "lam": 1.0,
            "norm_adv": "none",
            "horizon": 5,
            "lr": 7e-4,
        },
        title="A2C",
    ),
    "simba_ppo": Row(
        "kumite.algos.ppo:PPO",
        "Lee et al. 2024, SimBa: simplicity bias for scaling up parameters in deep reinforcement learning, with PPO",
        SIMBA,
        title="SimbaPPO",
    ),
    "sac": Row(
        "kumite.algos.sac:SAC", "Haarnoja et al. 2018, Soft actor-critic algorithms and applications", title="SAC"
    ),
    "simba_sac": Row(
        "kumite.algos.sac:SAC",
        "Lee et al. 2024, SimBa: simplicity bias for scaling up parameters in deep reinforcement learning",
        {
            **SIMBA,
            "lr": 1e-4,
            "gamma": -1.0,
            "alpha_init": 0.01,
            "alpha_loss": "exp",
            "target_entropy": -0.5,
            "log_std_min": -10.0,
        },
        title="SimbaSAC",
    ),
    "simbav2_sac": Row(
        "kumite.algos.sac:SAC",
        "Lee et al. 2025, Hyperspherical normalization for scalable deep reinforcement learning",
        {
            **SIMBA,
            "actor.encoder": "simbav2",
            "critic.encoder": "simbav2",
            "optimizer": "adam",
            "weight_decay": 0.0,
            "head": "c51",
            "atoms": 101,
            "v_min": -5.0,
            "v_max": 5.0,
            "normalize_reward": True,
            "reward_bound": 5.0,
            "reward_clip": 0.0,
            "lr": 1e-4,
            "lr_schedule": "linear",
            "lr_end": 0.5,
            "gamma": -1.0,
            "alpha_init": 0.01,
            "alpha_loss": "exp",
            "target_entropy": -0.5,
            "log_std_min": -10.0,
        },
        title="SimbaV2SAC",
    ),
    "redq": Row(
        "kumite.algos.sac:SAC",
        "Chen et al. 2021, Randomized ensembled double Q-learning: learning fast without a model",
        {"critics": 10, "subset": 2, "update_ratio": 20.0, "policy_delay": 20, "policy_steps": 1},
        title="REDQ",
    ),
    "droq": Row(
        "kumite.algos.sac:SAC",
        "Hiraoka et al. 2022, Dropout Q-functions for doubly efficient reinforcement learning",
        {
            "critics": 2,
            "subset": 2,
            "update_ratio": 20.0,
            "policy_delay": 20,
            "policy_steps": 1,
            "critic.norm": "layer",
            "critic.dropout": 0.01,
        },
        title="DroQ",
    ),
    "tqc": Row(
        "kumite.algos.sac:SAC",
        "Kuznetsov et al. 2020, Controlling overestimation bias with truncated mixture of continuous distributional"
        " quantile critics",
        {"head": "quantile", "critics": 5, "quantiles": 25, "drop": 2, "critic.width": 512, "critic.depth": 3},
        title="TQC",
    ),
    "crossq": Row(
        "kumite.algos.sac:SAC",
        "Bhatt et al. 2024, CrossQ: batch normalization in deep reinforcement learning for greater sample efficiency"
        " and simplicity",
        {
            "joint": True,
            "actor.norm": "renorm",
            "critic.norm": "renorm",
            "critic.width": 2048,
            "lr": 1e-3,
            "adam_beta": 0.5,
            "policy_delay": 3,
            "policy_steps": 1,
        },
        title="CrossQ",
    ),
    "drq": Row(
        "kumite.algos.sac:SAC",
        "Kostrikov et al. 2021, Image augmentation is all you need: regularizing deep reinforcement learning from"
        " pixels",
        {
            **PIXELS,
            "augment_views": 2,
            "lr": 1e-3,
            "alpha_init": 0.1,
            "policy_delay": 2,
            "policy_steps": 1,
            "log_std_min": -10.0,
        },
        title="DrQ",
    ),
    "td3": Row(
        "kumite.algos.td3:TD3",
        "Fujimoto et al. 2018, Addressing function approximation error in actor-critic methods",
        title="TD3",
    ),
    "ddpg": Row(
        "kumite.algos.td3:TD3",
        "Lillicrap et al. 2016, Continuous control with deep reinforcement learning",
        {"critics": 1, "target_noise": 0.0, "policy_delay": 1},
        title="DDPG",
    ),
    "drqv2": Row(
        "kumite.algos.td3:TD3",
        "Yarats et al. 2022, Mastering visual continuous control: improved data-augmented reinforcement learning",
        {
            **PIXELS,
            "lr": 1e-4,
            "tau": 0.01,
            "n_step": 3,
            "policy_delay": 1,
            "target_clip": 0.3,
            "noise.std": 1.0,
            "noise.std_end": 0.1,
        },
        title="DrQv2",
    ),
    "dqn": Row(
        "kumite.algos.dqn:DQN",
        "Mnih et al. 2015, Human-level control through deep reinforcement learning",
        title="DQN",
    ),
    "c51": Row(
        "kumite.algos.dqn:DQN",
        "Bellemare et al. 2017, A distributional perspective on reinforcement learning",
        {"head": "c51"},
        title="C51",
    ),
    "qrdqn": Row(
        "kumite.algos.dqn:DQN",
        "Dabney et al. 2018, Distributional reinforcement learning with quantile regression",
        {"head": "quantile"},
        title="QRDQN",
    ),
    "iqn": Row(
        "kumite.algos.dqn:DQN",
        "Dabney et al. 2018, Implicit quantile networks for distributional reinforcement learning",
        {"head": "iqn", "quantiles": 64},
        title="IQN",
    ),
    "rainbow": Row(
        "kumite.algos.dqn:DQN",
        "Hessel et al. 2018, Rainbow: combining improvements in deep reinforcement learning",
        {
            "head": "c51",
            "double": True,
            "dueling": True,
            "noisy": True,
            "n_step": 3,
            "priority": 0.5,
            "epsilon_start": 0.0,
            "epsilon_end": 0.0,
        },
        title="Rainbow",
    ),
}


def row(name: str) -> Row:
    key = name.lower()
    if key not in ROWS:
        raise UserError(f"unknown algorithm '{name}'{nearest(key, list(ROWS))} (known: {', '.join(ROWS)})")
    return ROWS[key]


def algorithm(name: str) -> Any:
    """The class behind a name."""
    module, _, attribute = row(name).home.partition(":")
    return getattr(importlib.import_module(module), attribute)


def register(name: str, home: str, paper: str = "", title: str = "", **numbers: Any) -> None:
    """Add an algorithm from outside: `register("mine", "package.module:Mine")`."""
    ROWS[name.lower()] = Row(home, paper, MappingProxyType(numbers), title or name.upper())
