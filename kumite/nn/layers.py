"""Linear layers (alone or as an ensemble in one product), activations, norms, initial weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from kumite.errors import UserError, nearest

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
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


class EnsembleLinear(nn.Module):
    """E linear layers as one batched product. [*, in] or [E, *, in] -> [E, *, out]."""

    def __init__(self, members: int, size_in: int, size_out: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(size_in)
        self.weight = nn.Parameter(torch.empty(members, size_in, size_out).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(members, 1, size_out).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        members, size_in, size_out = self.weight.shape
        return torch.baddbmm(self.bias, x.reshape(members, -1, size_in), self.weight).view(*x.shape[:-1], size_out)


class Spread(nn.Module):
    """[*, F] -> [E, *, F] without copying: the entrance of an ensemble."""

    def __init__(self, members: int) -> None:
        super().__init__()
        self.members = members

    def forward(self, x: Tensor) -> Tensor:
        return x.expand(self.members, *x.shape)


class EnsembleNorm(nn.Module):
    """Layer norm with one gain and bias per member."""

    def __init__(self, members: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(members, size))
        self.bias = nn.Parameter(torch.zeros(members, size))

    def forward(self, x: Tensor) -> Tensor:
        shape = (x.shape[0], *[1] * (x.dim() - 2), x.shape[-1])
        return nn.functional.layer_norm(x, x.shape[-1:]) * self.weight.view(shape) + self.bias.view(shape)


def linear(size_in: int, size_out: int, members: int = 0) -> nn.Module:
    return EnsembleLinear(members, size_in, size_out) if members else nn.Linear(size_in, size_out)


def norm(name: str, size: int, members: int = 0) -> list[nn.Module]:
    if name == "none":
        return []
    if name == "layer":
        return [EnsembleNorm(members, size) if members else nn.LayerNorm(size)]
    if name == "rms":
        return [nn.RMSNorm(size)]
    raise UserError(f"unknown norm '{name}' (known: none, layer, rms)")


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
