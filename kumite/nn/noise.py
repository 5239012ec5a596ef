"""Noise on continuous actions: its kind, its size over time, and over the copies of the environment.

A module, so that checkpoints carry it: where an Ornstein-Uhlenbeck walk stands, and levels that are drawn per episode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from kumite.errors import UserError
from kumite.schedules import SCHEDULES


@dataclass(frozen=True)
class NoiseConfig:
    """What is added to actions while training, in units of half an action's range."""

    kind: Literal["gaussian", "ou", "none"] = "gaussian"
    """gaussian: anew at each step; ou: a walk that returns to zero (Ornstein-Uhlenbeck), forgotten at episode ends."""
    std: float = 0.1
    """Deviation, of one step of the walk for ou."""
    std_end: float | None = None
    """Deviation at the end of its schedule; none = it stays."""
    schedule: Literal["linear", "cosine"] = "linear"
    """The way from std to std_end."""
    share: float = 1.0
    """How long the way is: this share of the run."""
    steps: int = 0
    """How long the way is in environment steps; replaces the share when given."""
    copies: Literal["alike", "spread", "ladder", "random"] = "alike"
    """spread: evenly from floor to std; ladder: std^(1 + 7 i / (N - 1)); random: anew for each episode."""
    floor: float = 0.0
    """The smallest deviation of a copy, for spread and random."""
    theta: float = 0.15
    """ou: share of the walk that is forgotten at each step."""
    uniform: float = 0.0
    """Share of actions that are drawn uniformly instead."""


class Noise(nn.Module):
    def __init__(self, cfg: NoiseConfig, slots: int, size: int) -> None:
        super().__init__()
        self.cfg, self.size = cfg, size
        if cfg.copies == "ladder" and cfg.std >= 1:
            raise UserError(f"--noise.std {cfg.std} on a ladder grows with every copy; it must be below 1")
        self.register_buffer("std", torch.tensor(cfg.std))
        self.register_buffer("levels", self._levels(slots))
        self.register_buffer("walk", torch.zeros(slots, size if cfg.kind == "ou" else 0))
        self.std: Tensor
        self.levels: Tensor
        self.walk: Tensor

    def _levels(self, n: int) -> Tensor:
        """Of each copy, relative to std."""
        cfg = self.cfg
        if cfg.copies == "spread" and cfg.std:
            return torch.linspace(cfg.floor / cfg.std, 1, n)
        if cfg.copies == "ladder":
            return cfg.std ** (7 * torch.linspace(0, 1, n))
        return torch.ones(n)

    def begin(self, first: Tensor, slot: Tensor | None) -> None:
        """`first`: which of the copies that just spoke begin an episode."""
        cfg, at = self.cfg, slice(None) if slot is None else slot
        if cfg.kind == "ou":
            self.walk[at] = self.walk[at] * ~first[:, None]
        if cfg.copies == "random" and cfg.std:
            least = cfg.floor / cfg.std
            fresh = least + (1 - least) * torch.rand(first.shape, device=first.device)
            self.levels[at] = torch.where(first, fresh, self.levels[at])

    def schedule(self, env_step: int, total: int) -> None:
        cfg = self.cfg
        if cfg.std_end is not None:
            way = cfg.steps or max(1.0, cfg.share * total)
            self.std.fill_(SCHEDULES[cfg.schedule](cfg.std, cfg.std_end, env_step / way))

    def follow(self, c: Tensor, slot: Tensor | None) -> Tensor:
        """Actions of these copies, one step further."""
        cfg, at = self.cfg, slice(None) if slot is None else slot
        noise = torch.randn_like(c)
        if cfg.kind == "ou":
            noise = self.walk[at] = (1 - cfg.theta) * self.walk[at] + noise
        return self._disturbed(c, noise * (self.std * self.levels[at])[:, None])

    def once(self, c: Tensor) -> Tensor:
        """Actions outside of training, which leave no trace: the deviation of this moment, whatever the copy."""
        wide = (self.cfg.theta * (2 - self.cfg.theta)) ** -0.5 if self.cfg.kind == "ou" and self.cfg.theta else 1.0
        return self._disturbed(c, torch.randn_like(c) * self.std * wide)  # a walk's own deviation, far from its start

    def _disturbed(self, c: Tensor, noise: Tensor) -> Tensor:
        if self.cfg.kind != "none":
            c = (c + noise).clamp(-1, 1)
        if self.cfg.uniform:
            elsewhere = torch.rand(c.shape[0], 1, device=c.device) < self.cfg.uniform
            c = torch.where(elsewhere, 2 * torch.rand_like(c) - 1, c)
        return c
