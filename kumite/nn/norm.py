"""Running normalisers. They are modules, so checkpoints carry them; they move only in `update`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kumite.batch import Batch
from kumite.returns import discounted
from kumite.types import Spec


class Running(nn.Module):
    """Mean and variance of a stream of vectors, by merging batches (Chan et al.); 0 and 1 while nothing was seen."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("var", torch.ones(size, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.mean: Tensor
        self.var: Tensor
        self.count: Tensor

    def update(self, x: Tensor, mask: Tensor | None = None) -> None:
        """x: [M, size]; rows with mask 0 do not count."""
        x = x.double()
        weight = torch.ones_like(x[:, :1]) if mask is None else mask.double()[:, None]
        n = weight.sum()
        mean = (x * weight).sum(0) / n.clamp(min=1)
        var = ((x - mean).square() * weight).sum(0) / n.clamp(min=1)
        self.count.add_(n)
        share = n / self.count.clamp(min=1)
        delta = mean - self.mean
        self.var.add_(share * (var - self.var) + share * (1 - share) * delta.square())
        self.mean.add_(share * delta)


class ObsNorm(nn.Module):
    """Vector observations in units of their running deviation. Images, choices and masks pass."""

    def __init__(self, obs_space: dict[str, Spec], clip: float = 10.0, eps: float = 1e-8) -> None:
        super().__init__()
        self.clip, self.eps = clip, eps
        self.shapes = {
            k: torch.Size(s.shape) for k, s in obs_space.items() if k != "mask" and not s.image and not s.choices
        }
        total = sum(s.numel() for s in self.shapes.values())
        self.stats = Running(total)
        self.register_buffer("shift", torch.zeros(total))
        self.register_buffer("scale", torch.ones(total))
        self.shift: Tensor
        self.scale: Tensor

    def update(self, obs: dict[str, Tensor]) -> None:
        """Every observation counts once; any leading dimensions."""
        if self.shapes:
            self.stats.update(torch.cat([obs[k].reshape(-1, s.numel()) for k, s in self.shapes.items()], 1))
            self.shift.copy_(self.stats.mean)
            self.scale.copy_((self.stats.var + self.eps).rsqrt())

    def forward(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        out, at = dict(obs), 0
        for key, shape in self.shapes.items():
            part = slice(at, at + shape.numel())
            if key in obs:
                y = (obs[key] - self.shift[part].view(shape)) * self.scale[part].view(shape)
                out[key] = y.clamp(-self.clip, self.clip) if self.clip else y
            at += shape.numel()
        return out

    def batch(self, b: Batch) -> Batch:
        return b._replace(obs=self(b.obs), next_obs=self(b.next_obs)) if self.shapes else b


class RewardNorm(nn.Module):
    """Rewards divided by the running deviation of the discounted return G, or by more: with a `bound`, by at least
    max |G| / bound, so that no return that was seen lies beyond it."""

    def __init__(self, slots: int, gamma: float, clip: float = 10.0, bound: float = 0.0, eps: float = 1e-8) -> None:
        super().__init__()
        self.gamma, self.clip, self.bound, self.eps = gamma, clip, bound, eps
        self.stats = Running(1)
        self.register_buffer("running", torch.zeros(slots))
        self.register_buffer("most", torch.zeros(()))
        self.running: Tensor
        self.most: Tensor

    def update(self, reward: Tensor, over: Tensor, mask: Tensor, slot: Tensor | None = None) -> None:
        """Fresh rewards [T, N] in order, the ends after them, and which rows count."""
        at = slice(None) if slot is None else slot
        returns = discounted(reward * mask, over, self.running[at], self.gamma)
        self.running[at] = returns[-1] * ~over[-1]
        self.stats.update(returns.reshape(-1, 1), mask.reshape(-1))
        self.most.copy_(torch.maximum(self.most, (returns * mask).abs().amax()))

    def forward(self, reward: Tensor) -> Tensor:
        scale = (self.stats.var + self.eps).rsqrt().float()
        if self.bound:
            scale = torch.minimum(scale, self.bound / self.most)
        out = reward * scale
        return out.clamp(-self.clip, self.clip) if self.clip else out


class ValueNorm(nn.Module):
    """Values learned in units of the running deviation of the returns."""

    def __init__(self, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.stats = Running(1)

    def update(self, returns: Tensor, mask: Tensor) -> None:
        self.stats.update(returns.reshape(-1, 1), mask.reshape(-1))

    def _deviation(self) -> Tensor:
        return (self.stats.var + self.eps).sqrt().float()

    def forward(self, value: Tensor) -> Tensor:
        """Raw -> learned units."""
        return (value - self.stats.mean.float()) / self._deviation()

    def inverse(self, value: Tensor) -> Tensor:
        return value * self._deviation() + self.stats.mean.float()
