"""What the numbers of a critic mean: how an ensemble's answers about the next state become a goal, and how far off an
answer is.

An answer is z [E, *, K W]: W numbers for each of the K choices of all branches (K = 1 without any). What follows a row
is a distribution of the soft Q(s', .) over critics, their own spread, and the policy's choices: values [*, J] and their
weights [*, J]. The algorithm moves the values by reward and discount; `goal` makes of them what is to be learned.

    scalar                     the smallest critic's mean
    quantile                   quantiles of all critics in one heap, without the largest (TQC, Kuznetsov et al. 2020)
    c51, two_hot, hl_gauss     a distribution over atoms, from the critic with the smallest mean; it is moved and
                               projected (Bellemare et al. 2017), or its mean is spread over two atoms or a bell
                               (Farebrother et al. 2024)

Several branches: means and quantiles add up, Q(s, c, d) = sum_i Q_i(s, c, d_i); distributions over atoms are mixed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from kumite.errors import UserError
from kumite.nn.dists import pick
from kumite.nn.heads import Bins, chosen, quantile_loss


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


class Follows(NamedTuple):
    """What follows a row, as a distribution."""

    value: Tensor
    """[*, J]."""
    weight: Tensor
    """[*, J]; they add up to 1."""

    def mean(self) -> Tensor:
        return (self.weight * self.value).sum(-1)


class Scalar(nn.Module):
    """The mean alone: squared errors, minimum over critics."""

    width = 1
    """W, numbers per choice."""
    of_means = True
    """All that a goal needs of what follows is its mean."""

    def __init__(self, branches: tuple[int, ...]) -> None:
        super().__init__()
        self.branches = branches

    def taken(self, z: Tensor, d: Tensor) -> Tensor:
        """What is said of the choices that were made: [E, *], with several numbers [E, *, W]."""
        return pick(z, d, self.branches)

    def mean(self, said: Tensor) -> Tensor:
        """Q of what is said: [E, *]."""
        return said

    def follow(self, z: Tensor, p: Tensor, cost: Tensor) -> Follows:
        """By the policy's probabilities p [*, K] of the next choices, of which each costs something [*, K]."""
        value = (p * (z.amin(0) - cost)).sum(-1, keepdim=True)
        return Follows(value, torch.ones_like(value))

    def actor(self, z: Tensor, mean: bool) -> Tensor:
        """Q of every choice as the actor sees it, the ensemble's mean or its minimum: [*, K]."""
        return z.mean(0) if mean else z.amin(0)

    def goal(self, value: Tensor, weight: Tensor) -> Tensor:
        """What is to be learned where these values [*, J] with these weights are the return: [*], or [*, W or J]."""
        return value[..., 0]

    def goal_mean(self, goal: Tensor) -> Tensor:
        """[*]."""
        return goal

    def loss(self, said: Tensor, goal: Tensor) -> Tensor:
        """How far answers are from the goal: [E, *]."""
        return (said - goal).square()


class Several(Scalar):
    """W numbers for each choice."""

    def split(self, z: Tensor) -> Tensor:
        """[E, *, K W] -> [E, *, K, W]."""
        return z.unflatten(-1, (-1, self.width))

    def taken(self, z: Tensor, d: Tensor) -> Tensor:
        return pick(self.split(z).movedim(-1, 0), d, self.branches).movedim(0, -1)


class Quantile(Several):
    """Quantiles at the middles of equal parts."""

    of_means = False

    def __init__(self, branches: tuple[int, ...], quantiles: int, drop: int) -> None:
        super().__init__(branches)
        if drop >= quantiles:
            raise UserError(f"--drop {drop} leaves nothing of --quantiles {quantiles}; drop fewer")
        self.width, self.drop = quantiles, drop
        self.register_buffer("tau", (torch.arange(quantiles) + 0.5) / quantiles, persistent=False)
        self.tau: Tensor

    def mean(self, said: Tensor) -> Tensor:
        return said.mean(-1)

    def goal(self, value: Tensor, weight: Tensor) -> Tensor:
        return value

    def goal_mean(self, goal: Tensor) -> Tensor:
        return goal.mean(-1)

    def follow(self, z: Tensor, p: Tensor, cost: Tensor) -> Follows:
        """Over choices, values of the same rank are averaged."""
        heap = self.split(z).movedim(0, -1).flatten(-2)  # [*, K, W E]
        kept = heap.sort(-1).values[..., : (self.width - self.drop) * z.shape[0]]
        value = (p[..., None] * (kept - cost[..., None])).sum(-2)
        return Follows(value, torch.full_like(value, 1 / value.shape[-1]))

    def actor(self, z: Tensor, mean: bool) -> Tensor:
        return self.mean(self.split(z)).mean(0)

    def loss(self, said: Tensor, goal: Tensor) -> Tensor:
        return quantile_loss(said, self.tau, goal, 1.0)


class Atoms(Several):
    """Logits over atoms; cross-entropy to the goal's distribution over them."""

    def __init__(self, branches: tuple[int, ...], target: str, atoms: int, low: float, high: float) -> None:
        super().__init__(branches)
        if low >= high or atoms < 2:
            raise UserError(f"--v-min {low:g} and --v-max {high:g} leave no room for --atoms {atoms}")
        self.target, self.width, self.bins = target, atoms, Bins(low, high, atoms)
        self.of_means = target != "c51"
        self.share = 1 / max(1, len(branches))

    def taken(self, z: Tensor, d: Tensor) -> Tensor:
        """log p of the mixture over branches: [E, *, W]."""
        log_p = self.split(z).log_softmax(-1)
        if len(self.branches) < 2:
            return pick(log_p.movedim(-1, 0), d, self.branches).movedim(0, -1)
        each = chosen(log_p, d.expand(*z.shape[:-1], -1), self.branches)
        return each.logsumexp(-2) + math.log(self.share)

    def mean(self, said: Tensor) -> Tensor:
        return self.bins.decode(said.exp())

    def means(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities [E, *, K, W] and each choice's part of Q [E, *, K]."""
        p = self.split(z).softmax(-1)
        return p, self.bins.decode(p) * self.share

    def follow(self, z: Tensor, p: Tensor, cost: Tensor) -> Follows:
        each, q = self.means(z)
        lowest = q.argmin(0)[None, ..., None].expand(1, *each.shape[1:])
        weight = (p[..., None] * each.gather(0, lowest)[0]).sum(-2) * self.share
        return Follows(self.bins.at - (p * cost).sum(-1, keepdim=True), weight)

    def actor(self, z: Tensor, mean: bool) -> Tensor:
        q = self.means(z)[1]
        return q.mean(0) if mean else q.amin(0)

    def goal(self, value: Tensor, weight: Tensor) -> Tensor:
        """Probabilities of the atoms."""
        if self.target == "c51":
            return self.bins.project(weight, value)
        mean = (weight * value).sum(-1)
        return self.bins.two_hot(mean) if self.target == "two_hot" else self.bins.gauss(mean)

    def goal_mean(self, goal: Tensor) -> Tensor:
        return self.bins.decode(goal)

    def loss(self, said: Tensor, goal: Tensor) -> Tensor:
        return -(goal * said).sum(-1)


def make_values(cfg: CriticConfig, branches: tuple[int, ...]) -> Scalar:
    if cfg.head == "scalar":
        return Scalar(branches)
    if cfg.head == "quantile":
        return Quantile(branches, cfg.quantiles, cfg.drop)
    return Atoms(branches, cfg.head, cfg.atoms, cfg.v_min, cfg.v_max)
