"""What a simulator says and what an agent answers: the words every other file speaks.

A slot is one agent in one copy of an environment. An observation is always the true one, the last of an episode
included: after an end the next action of that slot is ignored, and the next Step brings the first observation of a
fresh episode with reward 0 and both flags False.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kumite import tree
from kumite.tree import Tree


@dataclass(frozen=True)
class Spec:
    """One entry of an observation, for one slot."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    image: bool = False
    """The shape is [channels, height, width]."""
    choices: tuple[int, ...] = ()
    """Integer entries: how many values each may take; encoders see them one-hot."""
    stack: int = 1
    """The newest frames joined along the first dimension. `shape` is the joined shape; storage keeps single frames."""

    @property
    def frame(self) -> tuple[int, ...]:
        """The shape of one stored frame."""
        return (self.shape[0] // self.stack, *self.shape[1:]) if self.stack > 1 else self.shape


@dataclass(frozen=True)
class ActionSpec:
    """An action is a pair: `c`, continuous in [-1, 1]^C, and `d`, one index per discrete branch."""

    continuous: int = 0
    branches: tuple[int, ...] = ()
    bounded: bool = True
    """False where a continuous dimension has no finite limits; such dimensions pass through unscaled."""

    @property
    def kind(self) -> str:
        if self.continuous and self.branches:
            return "hybrid"
        if self.continuous:
            return "continuous"
        return "discrete" if len(self.branches) == 1 else "multi-discrete"

    def random(self, n: int, device: Any = "cpu", mask: Tensor | None = None) -> dict[str, Tensor]:
        """Uniform actions, from torch's generator; among the legal choices where a mask [n, sum K] is given."""
        c = torch.rand(n, self.continuous, device=device) * 2 - 1
        d = torch.zeros(n, len(self.branches), dtype=torch.int64, device=device)
        offset = 0
        for i, k in enumerate(self.branches):
            weight = torch.ones(n, k, device=device) if mask is None else mask[:, offset : offset + k].float()
            d[:, i] = torch.multinomial(weight, 1)[:, 0]
            offset += k
        return {"c": c, "d": d}


@dataclass
class Episodes:
    """Episodes that just ended, in the environment's own rewards and its own steps."""

    slot: list[int] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    success: list[float] = field(default_factory=list)
    """One entry per episode where the environment reports success, else empty."""


class Step(NamedTuple):
    """What a simulator says: one entry per slot that answered."""

    obs: dict[str, Tensor]
    """{"obs": [N, ...]} or the flat names of a nested space ("camera", "arm.joints", "0"); "mask": legal choices."""
    reward: Tensor
    """[N] float32, what the learner sees."""
    terminated: Tensor
    """[N] bool: no future, bootstrap 0."""
    truncated: Tensor
    """[N] bool: cut short, bootstrap with the value of `obs`."""
    slot: Tensor | None = None
    """[N] int64, who answered; None = every slot, in order."""
    ticks: int = 0
    """Simulator steps behind this Step: inner steps of an action repeat count, resets do not."""
    episodes: Episodes | None = None
    """The episodes that ended with this Step."""

    @property
    def over(self) -> Tensor:
        return self.terminated | self.truncated

    def to(self, device: torch.device) -> Step:
        if self.reward.device == device:
            return self
        moved = tree.to({k: v for k, v in self._asdict().items() if isinstance(v, (Tensor, dict))}, device)
        return self._replace(**moved)


class Act(NamedTuple):
    """What an agent answers."""

    action: dict[str, Tensor]
    """{"c": [N, C] in [-1, 1], "d": [N, D] int64}."""
    core: Tree
    """The recurrent state after this step; {} without memory."""
    extras: dict[str, Tensor] = {}
    """Stored with the row: what the losses need of the moment of acting (log-probability, pre-squash action)."""


class Out(NamedTuple):
    """What one gradient step says."""

    metrics: dict[str, Tensor]
    """0-d tensors, still on the device."""
    priority: Tensor | None = None
