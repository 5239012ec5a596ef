"""What every algorithm shares: its numbers' common names and the shape of its three verbs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from kumite.nn.config import Net
from kumite.nn.norm import ObsNorm
from kumite.stream import Stream
from kumite.tree import Tree
from kumite.types import Act, ActionSpec, Spec


@dataclass(frozen=True)
class Config:
    """The numbers that mean the same in every algorithm."""

    lr: float = 3e-4
    """Learning rate."""
    lr_schedule: str = "constant"
    """constant | linear | cosine, over the planned steps (PPO also: kl)."""
    optimizer: str = "adam"
    """adam | adamw."""
    adam_eps: float = 1e-8
    """Adam's epsilon."""
    weight_decay: float = 0.0
    """Decoupled weight decay (adamw)."""
    grad_clip: float = 0.0
    """Largest gradient norm of a net; 0 = no limit."""
    gamma: float = 0.99
    """Discount per decision."""
    normalize_obs: bool = False
    """Normalise vector observations by running mean and deviation."""
    obs_clip: float = 10.0
    """Normalised observations are clipped to this many deviations; 0 = never."""
    normalize_reward: bool = False
    """Divide rewards by the running deviation of the discounted return."""
    reward_clip: float = 10.0
    """Normalised rewards are clipped to this size; 0 = never."""
    actor: Net = field(default_factory=Net)
    """The policy's net."""
    critic: Net = field(default_factory=Net)
    """The value's net."""
    encoder: str = ""
    """The encoder of both nets (see --actor.encoder); empty = as each net says."""
    memory: str = ""
    """The memory of both nets: none | lstm | gru | rnn; empty = as each net says."""
    chunk: int = 16
    """With memory: rows per training sequence."""
