"""Simba (Lee et al. 2024) and SimbaV2 (Lee et al. 2025): hidden layers that keep learning when they grow wide and deep.

Both take the place of the plain hidden layers (`--encoder simba`), for one net or for an ensemble in batched products;
`width` is the size of the residual stream and `depth` the number of blocks.

    Simba     x = W0 in;  x <- x + W2 relu(W1 LN(x)) in every block;  LN(x)
    SimbaV2   x = l2(s (W0 l2([in, 3])));  x <- l2(x + a (mlp(x) - x)),  mlp(x) = l2(W2 (relu(s (W1 x)) + 1e-8))

In SimbaV2 the weights into every unit have length 1: `project_` puts them back after each step (Adam calls it), and
what they lost in freedom the learned scales s and a give back.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from kumite.errors import UserError
from kumite.nn.config import Net
from kumite.nn.layers import EnsembleLinear, Spread, linear, norm, orthogonal_

EXPANSION = 4  # width of a block's inner layer, in widths of the stream


def stream_of(net: Net) -> tuple[int, int]:
    """Width of the residual stream and number of blocks."""
    if net.norm != "none" or net.dropout:
        raise UserError(
            f"--encoder {net.encoder} has norms of its own and no dropout; leave out its --norm and --dropout"
        )
    if len(set(net.layers)) > 1:
        raise UserError(
            f"--encoder {net.encoder} adds up its layers, so all of {list(net.layers)} must be equally wide"
        )
    return (net.layers[0], len(net.layers)) if net.layers else (net.width, net.depth)


# --- Simba ---------------------------------------------------------------------------------------------------------


def he_normal_(layer: nn.Module) -> nn.Module:
    """He et al. 2015, for what a ReLU follows; zero biases."""
    assert isinstance(layer, (nn.Linear, EnsembleLinear))
    fan_in = layer.weight.shape[-1] if isinstance(layer, nn.Linear) else layer.weight.shape[-2]
    nn.init.normal_(layer.weight, 0.0, math.sqrt(2 / fan_in))
    nn.init.zeros_(layer.bias)
    return layer


class Residual(nn.Module):
    """x + W2 relu(W1 LN(x))."""

    def __init__(self, width: int, members: int = 0) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *norm("layer", width, members),
            he_normal_(linear(width, EXPANSION * width, members)),
            nn.ReLU(),
            he_normal_(linear(EXPANSION * width, width, members)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


class Simba(nn.Module):
    """[*, in] -> [*, width], or [E, *, width] for an ensemble."""

    def __init__(self, size_in: int, net: Net, members: int = 0) -> None:
        super().__init__()
        self.size, depth = stream_of(net)
        self.layers = nn.Sequential(
            Spread(members) if members else nn.Identity(),
            orthogonal_(linear(size_in, self.size, members), 1.0),
            *(Residual(self.size, members) for _ in range(depth)),
            *norm("layer", self.size, members),
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        y: Tensor = self.layers(x)
        return y


# --- SimbaV2 -------------------------------------------------------------------------------------------------------


def l2(x: Tensor, dim: int = -1) -> Tensor:
    """Onto the unit sphere."""
    return x / x.norm(dim=dim, keepdim=True).clamp(min=1e-8)


class UnitLinear(nn.Module):
    """A linear layer without bias, weight [in, out] or [E, in, out]; the column into each output has length 1."""

    def __init__(self, size_in: int, size_out: int, members: int = 0) -> None:
        super().__init__()
        weight = torch.empty(max(members, 1), size_in, size_out)
        for w in weight:
            nn.init.orthogonal_(w)
        self.weight = nn.Parameter(weight if members else weight[0])
        with torch.no_grad():
            self.project_()

    def project_(self) -> None:
        self.weight.copy_(l2(self.weight, -2))

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.dim() == 2:
            return x @ self.weight
        members, size_in, size_out = self.weight.shape
        return torch.bmm(x.reshape(members, -1, size_in), self.weight).view(*x.shape[:-1], size_out)


class Scaler(nn.Module):
    """One learned factor per feature: `init` at the start, learned at the pace of a parameter of size `scale`."""

    def __init__(self, size: int, init: float, scale: float, members: int = 0) -> None:
        super().__init__()
        self.factor = init / scale
        self.p = nn.Parameter(torch.full((members, size) if members else (size,), scale))

    def forward(self, x: Tensor) -> Tensor:
        return x * per_member(self.p * self.factor, x)


def per_member(p: Tensor, x: Tensor) -> Tensor:
    """[E, F] as it meets x [E, *, F]; [F] as it is."""
    return p.view(p.shape[0], *[1] * (x.dim() - 2), p.shape[1]) if p.dim() == 2 else p


class Embedder(nn.Module):
    """Onto the sphere; the constant beside the input keeps the input's length readable in its direction."""

    CONSTANT = 3.0

    def __init__(self, size_in: int, width: int, members: int = 0) -> None:
        super().__init__()
        s = math.sqrt(2 / width)
        self.enter, self.scaler = UnitLinear(size_in + 1, width, members), Scaler(width, s, s, members)

    def forward(self, x: Tensor) -> Tensor:
        return l2(self.scaler(self.enter(l2(pad(x, (0, 1), value=self.CONSTANT)))))


class Lerp(nn.Module):
    """A step along the sphere from x towards mlp(x), with a learned share per feature."""

    def __init__(self, width: int, depth: int, members: int = 0) -> None:
        super().__init__()
        inner, s = EXPANSION * width, math.sqrt(2 / width) / math.sqrt(EXPANSION)
        self.enter, self.scaler = UnitLinear(width, inner, members), Scaler(inner, s, s, members)
        self.leave = UnitLinear(inner, width, members)
        self.share = Scaler(width, 1 / (depth + 1), 1 / math.sqrt(width), members)

    def forward(self, x: Tensor) -> Tensor:
        y = l2(self.leave(self.scaler(self.enter(x)).relu() + 1e-8))
        return l2(x + self.share(y - x))


class SimbaV2(nn.Module):
    """[*, in] -> [*, width], or [E, *, width] for an ensemble, all of length 1."""

    def __init__(self, size_in: int, net: Net, members: int = 0) -> None:
        super().__init__()
        self.size, depth = stream_of(net)
        self.layers = nn.Sequential(
            Spread(members) if members else nn.Identity(),
            Embedder(size_in, self.size, members),
            *(Lerp(self.size, depth, members) for _ in range(depth)),
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        y: Tensor = self.layers(x)
        return y


class UnitHead(nn.Module):
    """W2 s(W1 x) + bias: how SimbaV2's features become numbers of any size."""

    def __init__(self, size_in: int, size_out: int, members: int = 0) -> None:
        super().__init__()
        self.enter, self.scaler = UnitLinear(size_in, size_in, members), Scaler(size_in, 1.0, 1.0, members)
        self.leave = UnitLinear(size_in, size_out, members)
        self.bias = nn.Parameter(torch.zeros((members, size_out) if members else (size_out,)))

    def forward(self, x: Tensor) -> Tensor:
        return (y := self.leave(self.scaler(self.enter(x)))) + per_member(self.bias, y)
