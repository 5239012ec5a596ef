"""Linear layers (alone or as an ensemble in one product), activations, norms, initial weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from kumite.errors import UserError, nearest


class Tanh(nn.Module):
    """Eagerly 2 sigmoid(2x) - 1: torch's own takes three times as long on CPUs that are not Intel's, save in graphs."""

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda or torch.compiler.is_compiling():
            return x.tanh()
        return (x + x).sigmoid().mul(2).sub(1)


ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": Tanh,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "mish": nn.Mish,
    "selu": nn.SELU,
    "leaky_relu": nn.LeakyReLU,
    "softplus": nn.Softplus,
    "sigmoid": nn.Sigmoid,
}


def activation(name: str) -> nn.Module:
    if name not in ACTIVATIONS:
        raise UserError(
            f"unknown activation '{name}'{nearest(name, list(ACTIVATIONS))} (known: {', '.join(ACTIVATIONS)})"
        )
    return ACTIVATIONS[name]()


NARROW = 16


def traced(x: Tensor) -> bool:
    """In a graph for a CPU, where the kernel of the activation can add the bias; a library does that apart."""
    return x.device.type == "cpu" and torch.compiler.is_compiling()


def loops(x: Tensor, size_out: int) -> bool:
    """Whether the compiler makes a product by loops of its own: one into few numbers per row is done before a library
    has found out what to do.
    """
    return size_out <= NARROW and traced(x)


class Linear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        if loops(x, self.out_features):
            return (x[..., None, :] * self.weight).sum(-1) + self.bias
        if traced(x):
            return nn.functional.linear(x, self.weight) - -self.bias  # the compiler would give "+" to the library
        return super().forward(x)


class EnsembleLinear(nn.Module):
    """E linear layers as one batched product. [*, in] or [E, *, in] -> [E, *, out]."""

    def __init__(self, members: int, size_in: int, size_out: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(size_in)
        self.weight = nn.Parameter(torch.empty(members, size_in, size_out).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(members, 1, size_out).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        members, size_in, size_out = self.weight.shape
        rows = x.reshape(members, -1, size_in)
        if loops(x, size_out):
            y = (rows[:, :, None] * self.weight.mT[:, None]).sum(-1) + self.bias
        elif traced(x):
            y = torch.bmm(rows, self.weight) + self.bias
        else:
            y = torch.baddbmm(self.bias, rows, self.weight)
        return y.view(*x.shape[:-1], size_out)


class Spread(nn.Module):
    """[*, F] -> [E, *, F] without copying: the entrance of an ensemble."""

    def __init__(self, members: int) -> None:
        super().__init__()
        self.register_buffer("members", torch.empty(members, 0), persistent=False)  # so many rows, of nothing
        self.members: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return x.expand(self.members.shape[0], *x.shape)


class EnsembleNorm(nn.Module):
    """Layer norm with one gain and bias per member."""

    def __init__(self, members: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(members, size))
        self.bias = nn.Parameter(torch.zeros(members, size))

    def forward(self, x: Tensor) -> Tensor:
        shape = (x.shape[0], *[1] * (x.dim() - 2), x.shape[-1])
        return nn.functional.layer_norm(x, x.shape[-1:]) * self.weight.view(shape) + self.bias.view(shape)


class BatchRenorm(nn.Module):
    """Batch renormalisation (Ioffe 2017): (x - mean) / deviation * r + d, of each feature over the rows that count.

    While its net learns (inside `Adam.descend`) mean and deviation are the batch's, and r and d, held constant, pull
    them back towards the running ones; the first WARMUP times r = 1 and d = 0, plain batch normalisation. Otherwise
    they are the running ones. The batch's statistics enter those in `settle_`, behind the step.
    """

    WARMUP, KEEP, EPS, R_MAX, D_MAX = 100_000, 0.99, 1e-3, 3.0, 5.0

    def __init__(self, size: int, members: int = 0) -> None:
        super().__init__()
        shape = (members, size) if members else (size,)
        self.learning = False
        self.seen: tuple[Tensor, Tensor] | None = None
        self.weight, self.bias = nn.Parameter(torch.ones(shape)), nn.Parameter(torch.zeros(shape))
        self.register_buffer("running_mean", torch.zeros(shape))
        self.register_buffer("running_var", torch.ones(shape))
        self.register_buffer("times", torch.zeros(()))  # float32: see Adam's step count
        self.running_mean: Tensor
        self.running_var: Tensor
        self.times: Tensor

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """x: [*, F], or [E, *, F] for members; mask: [*], the rows that count."""
        members = self.weight.shape[0] if self.weight.dim() == 2 else 0
        rows = x.reshape(max(members, 1), -1, x.shape[-1])  # [E, M, F]
        mean, deviation = self.running_mean, (self.running_var + self.EPS).sqrt()
        r, d = torch.ones_like(mean), torch.zeros_like(mean)
        if self.learning:
            weight = rows.new_ones(1, rows.shape[1], 1) if mask is None else mask.reshape(1, -1, 1)
            share = weight / weight.sum().clamp(min=1.0)
            own = (rows * share).sum(1)
            var = ((rows - own[:, None]).square() * share).sum(1)
            own, var = own.view(mean.shape), var.view(mean.shape)
            self.seen = own.detach(), var.detach()
            own_deviation = (var + self.EPS).sqrt()
            warm = self.times >= self.WARMUP
            r = torch.where(warm, (own_deviation / deviation).clamp(1 / self.R_MAX, self.R_MAX), r).detach()
            d = torch.where(warm, ((own - mean) / deviation).clamp(-self.D_MAX, self.D_MAX), d).detach()
            mean, deviation = own, own_deviation
        scale = self.weight * r / deviation
        shift = self.bias + self.weight * (d - r * mean / deviation)
        return torch.addcmul(shift.view(max(members, 1), 1, -1), rows, scale.view(max(members, 1), 1, -1)).view(x.shape)

    def settle_(self, mean: Tensor, var: Tensor) -> None:
        self.running_mean.lerp_(mean, 1 - self.KEEP)
        self.running_var.lerp_(var, 1 - self.KEEP)
        self.times.add_(1)


@contextmanager
def whole(drops: Sequence[nn.Dropout]) -> Iterator[None]:
    """Inside, these leave nothing out."""
    for drop in drops:
        drop.training = False
    try:
        yield
    finally:
        for drop in drops:
            drop.training = True


def dropouts(net: nn.Module) -> tuple[nn.Dropout, ...]:
    return tuple(m for m in net.modules() if isinstance(m, nn.Dropout))


def linear(size_in: int, size_out: int, members: int = 0) -> nn.Module:
    return EnsembleLinear(members, size_in, size_out) if members else Linear(size_in, size_out)


def norm(name: str, size: int, members: int = 0) -> list[nn.Module]:
    if name == "none":
        return []
    if name == "layer":
        return [EnsembleNorm(members, size) if members else nn.LayerNorm(size)]
    if name == "rms":
        return [nn.RMSNorm(size)]
    raise UserError(f"unknown norm '{name}' (known: none, layer, rms, renorm)")


def orthogonal_(module: nn.Module, gain: float = math.sqrt(2)) -> nn.Module:
    """Orthogonal weights and zero biases, in every linear and convolution of the module."""
    for m in module.modules():
        if isinstance(m, EnsembleLinear):
            for w in m.weight.data:
                nn.init.orthogonal_(w, gain)
            nn.init.zeros_(m.bias)
        elif isinstance(m, (nn.Linear, nn.Conv1d, nn.Conv2d)):
            nn.init.orthogonal_(m.weight, gain)
            if m.bias is not None:
                nn.init.zeros_(m.bias)
    return module
