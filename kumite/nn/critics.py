"""What the numbers of a critic mean: how an ensemble's answers about the next state become a target, and how far off
an answer is.

An answer is z [E, *, K W]: W numbers for each of the K choices of all branches (K = 1 without any). What follows a row
is a distribution of Q(s', .) over critics, their own spread, and the policy's choices: values at [*, J] and their
weights [*, J], to which the algorithm adds entropy, discount and reward. Its mean is V(s') whatever the kind.

    scalar                     the smallest critic's mean
    quantile                   quantiles of all critics in one heap, without the largest (TQC, Kuznetsov et al. 2020)
    c51, two_hot, hl_gauss     a distribution over atoms, from the critic with the smallest mean; the target is
                               projected (Bellemare et al. 2017), or its mean is spread over two atoms or a bell
                               (Farebrother et al. 2024)

Several branches: means and quantiles add up, Q(s, c, d) = sum_i Q_i(s, c, d_i); distributions over atoms are mixed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from kumite.errors import UserError
from kumite.nn.dists import pick
from kumite.nn.heads import Bins, quantile_loss


@dataclass(frozen=True)
class CriticConfig:
    head: Literal["scalar", "quantile", "c51", "two_hot", "hl_gauss"] = "scalar"
    """What a critic learns: a mean, quantiles, or a distribution over atoms with that kind of target."""
    quantiles: int = 25
    """quantile: how many per critic."""
    drop: int = 2
    """quantile: targets leave out this many of the largest per critic."""
    atoms: int = 101
    """Distributions: places."""
    v_min: float = -10.0
    """Distributions: the lowest place."""
    v_max: float = 10.0
    """Distributions: the highest place."""


class Scalar(nn.Module):
    """The mean alone: squared errors, minimum over critics."""

    width = 1
    """Numbers per choice."""

    def __init__(self, branches: tuple[int, ...]) -> None:
        super().__init__()
        self.branches = branches

    def split(self, z: Tensor) -> Tensor:
        """[E, *, K W] -> [E, *, K, W]."""
        return z.unflatten(-1, (-1, self.width))

    def taken(self, z: Tensor, d: Tensor) -> Tensor:
        """What is said of the choices that were made: [E, *, W]."""
        return pick(self.split(z).movedim(-1, 0), d, self.branches).movedim(0, -1)

    def mean(self, said: Tensor) -> Tensor:
        """[..., W] of a choice -> its Q."""
        return said[..., 0]

    def follow(self, z: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        """Values of what follows and their weights, by the policy's probabilities p [*, K]: [*, J] both."""
        value = (p * self.mean(self.split(z)).amin(0)).sum(-1, keepdim=True)
        return value, torch.ones_like(value)

    def actor(self, z: Tensor, mean: bool) -> Tensor:
        """Q of every choice as the actor sees it, the ensemble's mean or its minimum: [*, K]."""
        q = self.mean(self.split(z))
        return q.mean(0) if mean else q.amin(0)

    def loss(self, said: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """How far answers [E, *, W] are from values y with weights [*, J]: [E, *]."""
        return (said - y)[..., 0].square()


class Quantile(Scalar):
    """Quantiles at the middles of equal parts."""

    def __init__(self, branches: tuple[int, ...], quantiles: int, drop: int) -> None:
        super().__init__(branches)
        if drop >= quantiles:
            raise UserError(f"--drop {drop} leaves nothing of --quantiles {quantiles}; drop fewer")
        self.width, self.drop = quantiles, drop
        self.register_buffer("tau", (torch.arange(quantiles) + 0.5) / quantiles, persistent=False)
        self.tau: Tensor

    def mean(self, said: Tensor) -> Tensor:
        return said.mean(-1)

    def follow(self, z: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        """Over choices, values of the same rank are averaged."""
        heap = self.split(z).movedim(0, -1).flatten(-2)  # [*, K, W E]
        kept = heap.sort(-1).values[..., : (self.width - self.drop) * z.shape[0]]
        value = (p[..., None] * kept).sum(-2)
        return value, torch.full_like(value, 1 / value.shape[-1])

    def actor(self, z: Tensor, mean: bool) -> Tensor:
        return self.mean(self.split(z)).mean(0)

    def loss(self, said: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        return quantile_loss(said, self.tau, y, 1.0)


class Atoms(Scalar):
    """Logits over atoms; cross-entropy to the target's distribution over them."""

    def __init__(self, branches: tuple[int, ...], target: str, atoms: int, low: float, high: float) -> None:
        super().__init__(branches)
        if low >= high or atoms < 2:
            raise UserError(f"--v-min {low} and --v-max {high} leave no room for --atoms {atoms}")
        self.target, self.width, self.bins = target, atoms, Bins(low, high, atoms)
        self.share = 1 / max(1, len(branches))

    def taken(self, z: Tensor, d: Tensor) -> Tensor:
        """log p of the mixture over branches: [E, *, W]."""
        log_p = self.split(z).log_softmax(-1)
        if len(self.branches) < 2:
            return pick(log_p.movedim(-1, 0), d, self.branches).movedim(0, -1)
        offsets = torch.tensor([sum(self.branches[:i]) for i in range(len(self.branches))], device=d.device)
        index = (d + offsets)[..., None].expand(*z.shape[:-1], len(self.branches), self.width)
        return log_p.gather(-2, index).logsumexp(-2) + math.log(self.share)

    def mean(self, said: Tensor) -> Tensor:
        return self.bins.decode(said.exp())

    def means(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities [E, *, K, W] and each choice's part of Q [E, *, K]."""
        p = self.split(z).softmax(-1)
        return p, self.bins.decode(p) * self.share

    def follow(self, z: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        each, q = self.means(z)
        lowest = q.argmin(0)[None, ..., None].expand(1, *each.shape[1:])
        weight = (p[..., None] * each.gather(0, lowest)[0]).sum(-2) * self.share
        return self.bins.at.expand_as(weight), weight

    def actor(self, z: Tensor, mean: bool) -> Tensor:
        q = self.means(z)[1]
        return q.mean(0) if mean else q.amin(0)

    def loss(self, said: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        if self.target == "c51":
            goal = self.bins.project(weight, y)
        else:
            value = (weight * y).sum(-1)
            goal = self.bins.two_hot(value) if self.target == "two_hot" else self.bins.gauss(value)
        return -(goal * said).sum(-1)


def make_values(cfg: CriticConfig, branches: tuple[int, ...]) -> Scalar:
    if cfg.head == "scalar":
        return Scalar(branches)
    if cfg.head == "quantile":
        return Quantile(branches, cfg.quantiles, cfg.drop)
    return Atoms(branches, cfg.head, cfg.atoms, cfg.v_min, cfg.v_max)
