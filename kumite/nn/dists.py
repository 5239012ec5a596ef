"""Distributions over actions (c, d): continuous dimensions times discrete branches, either possibly absent.

`u` is a continuous action before squashing; it is what gets stored and what densities are asked for.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

LOG_2PI = math.log(2 * math.pi)
ILLEGAL = -1e9


class Normal(NamedTuple):
    """Independent Gaussians, summed over the last dimension. Of no dimensions all sums are 0."""

    mean: Tensor
    log_std: Tensor
    squashed: bool = False
    """Actions are tanh(u)."""

    def sample(self) -> Tensor:
        return self.mean + self.log_std.exp() * torch.randn_like(self.mean)

    def squash(self, u: Tensor) -> Tensor:
        return u.tanh() if self.squashed else u

    @property
    def none(self) -> bool:
        return self.mean.shape[-1] == 0

    def log_prob(self, u: Tensor) -> Tensor:
        if self.none:
            return self.mean.sum(-1)
        z = (u - self.mean) * (-self.log_std).exp()
        density = -0.5 * z.square() - self.log_std - 0.5 * LOG_2PI
        if self.squashed:  # log(1 - tanh(u)^2), stable for any u
            density = density - 2 * (math.log(2) - u - softplus(-2 * u))
        return density.sum(-1)

    def entropy(self) -> Tensor:
        """Of u: the squashed entropy has no closed form."""
        if self.none:
            return self.mean.sum(-1)
        return (self.log_std + 0.5 * LOG_2PI + 0.5).sum(-1)

    def kl(self, other: Normal) -> Tensor:
        """KL(self || other), of u."""
        if self.none:
            return self.mean.sum(-1)
        ratio = (2 * (self.log_std - other.log_std)).exp()
        move = (self.mean - other.mean).square() * (-2 * other.log_std).exp()
        return (other.log_std - self.log_std + 0.5 * (ratio + move - 1)).sum(-1)


class Branches(NamedTuple):
    """One categorical per branch, side by side in the last dimension. No branch counts as one certain choice."""

    log_p: Tensor
    """[*, sum K], normalised within each branch; 0 for the certain choice of no branch, [*, 1]."""
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, logits: Tensor, sizes: tuple[int, ...], mask: Tensor | None = None) -> Branches:
        """`mask`: True = legal."""
        if not sizes:
            return cls(torch.zeros_like(logits[..., :1]), sizes)
        if mask is not None:
            logits = torch.where(mask, logits, ILLEGAL)
        if len(sizes) == 1:
            return cls(logits.log_softmax(-1), sizes)
        return cls(torch.cat([x.log_softmax(-1) for x in logits.split(sizes, -1)], -1), sizes)

    @property
    def p(self) -> Tensor:
        return self.log_p.exp()

    def _split(self, x: Tensor) -> tuple[Tensor, ...]:
        return x.split(self.sizes or (1,), -1)

    def sample(self) -> Tensor:
        """Gumbel's trick, one draw per branch: [*, D]."""
        if not self.sizes:
            return self.no_choice()
        noise = -torch.empty_like(self.log_p).exponential_().log()
        return torch.stack([x.argmax(-1) for x in (self.log_p + noise).split(self.sizes, -1)], -1)

    def mode(self) -> Tensor:
        if not self.sizes:
            return self.no_choice()
        return torch.stack([x.argmax(-1) for x in self.log_p.split(self.sizes, -1)], -1)

    def no_choice(self) -> Tensor:
        return torch.zeros(*self.log_p.shape[:-1], 0, dtype=torch.int64, device=self.log_p.device)

    def log_prob(self, d: Tensor) -> Tensor:
        return pick(self.log_p, d, self.sizes)

    def entropies(self) -> Tensor:
        """Per branch: [*, max(D, 1)]."""
        if not self.sizes:
            return self.log_p  # 0
        plogp = self.p * self.log_p.clamp(min=ILLEGAL)
        return torch.stack([-x.sum(-1) for x in self._split(plogp)], -1)

    def entropy(self) -> Tensor:
        return self.entropies().sum(-1)

    def legal(self) -> Tensor:
        """How many choices each branch allows: [*, max(D, 1)]."""
        return torch.stack([(x > ILLEGAL / 2).sum(-1) for x in self._split(self.log_p)], -1)

    def kl(self, other: Branches) -> Tensor:
        if not self.sizes:
            return self.log_p.squeeze(-1)  # 0
        return (self.p * (self.log_p - other.log_p)).sum(-1)

    def weights(self, per_branch: Tensor) -> Tensor:
        """[max(D, 1)] -> [sum K]: each branch's number at each of its choices."""
        return torch.cat([per_branch[i].expand(k) for i, k in enumerate(self.sizes or (1,))])


def pick(x: Tensor, d: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """sum_i x[..., d_i of branch i]: [..., sum K], [*, D] -> [...]. Leading ensemble dimensions of x are free."""
    if not sizes:
        return x.squeeze(-1)
    if len(sizes) == 1:
        return x.gather(-1, d.expand(*x.shape[:-1], 1)).squeeze(-1)
    index = (d + offsets(sizes, d.device)).expand(*x.shape[:-1], len(sizes))
    return x.gather(-1, index).sum(-1)


def offsets(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """Where each branch begins among the choices of all: [D]. Filled in, not copied: copies wait for a device."""
    return torch.cat([torch.full((1,), sum(sizes[:i]), device=device) for i in range(len(sizes))])


class Sample(NamedTuple):
    c: Tensor
    d: Tensor
    u: Tensor
    log_c: Tensor
    """log density of c: [*]."""


class Policy(NamedTuple):
    """What an actor says: a distribution over (c, d)."""

    c: Normal
    d: Branches

    def sample(self, choose: bool = True) -> Sample:
        """`choose` False: of the branches nothing is drawn, for where all their choices are weighed."""
        u = self.c.sample()
        return Sample(self.c.squash(u), self.d.sample() if choose else self.d.no_choice(), u, self.c.log_prob(u))

    def mode(self) -> dict[str, Tensor]:
        return {"c": self.c.squash(self.c.mean), "d": self.d.mode()}

    def log_prob(self, u: Tensor, d: Tensor) -> Tensor:
        return self.c.log_prob(u) + self.d.log_prob(d)

    def entropy(self) -> Tensor:
        return self.c.entropy() + self.d.entropy()

    def kl(self, other: Policy) -> Tensor:
        return self.c.kl(other.c) + self.d.kl(other.d)

    def numbers(self) -> dict[str, Tensor]:
        """What rebuilds the policy: stored with each row."""
        return {"mean": self.c.mean, "log_std": self.c.log_std, "log_p": self.d.log_p}

    @classmethod
    def of(cls, numbers: dict[str, Tensor], sizes: tuple[int, ...], squashed: bool) -> Policy:
        """The policy that said these numbers."""
        return cls(Normal(numbers["mean"], numbers["log_std"], squashed), Branches(numbers["log_p"], sizes))
