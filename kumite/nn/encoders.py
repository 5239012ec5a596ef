"""From observations to features: sensors (one small net per entry) and the hidden layers behind them."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from kumite.errors import FOREIGN, UserError, failed_import, nearest, origin
from kumite.nn.config import Net
from kumite.nn.convs import Convs
from kumite.nn.layers import BatchRenorm, Spread, activation, linear, norm, orthogonal_
from kumite.nn.simba import Simba, SimbaV2, UnitHead
from kumite.types import Spec

ENCODERS = ("auto", "mlp", "d2rl", "nature", "impala", "drq", "conv1d", "simba", "simbav2")
FLAT = ("mlp", "d2rl", "conv1d")  # these see the pixels of an image one by one


class Pixels(nn.Module):
    """uint8 images become floats in [0, 1] here and nowhere before; any leading dimensions."""

    def __init__(self, shape: tuple[int, ...], scale: float, body: nn.Module) -> None:
        super().__init__()
        self.dims, self.scale, self.body = len(shape), scale, body
        self.convs = [m for m in body.modules() if isinstance(m, Convs)][:1]  # a list: their home is the body
        with torch.no_grad():
            self.size = body(torch.zeros(1, *shape)).shape[-1]

    def forward(self, x: Tensor) -> Tensor:
        lead = x.shape[: x.dim() - self.dims]
        x = x.reshape(-1, *x.shape[len(lead) :])
        if not (self.convs and self.convs[0].quick(x)):
            x = self.floats(x)
        return self.body(x).view(*lead, self.size)

    @property
    def quick(self) -> bool:
        """Whether it sees through loops in C, which no graph holds."""
        return bool(self.convs) and self.scale != 1.0 and self.convs[0].quick(torch.empty(0, dtype=torch.uint8))

    def floats(self, x: Tensor) -> Tensor:
        if self.dims == 3:  # convolutions are a third faster on channels side by side; bytes are quickly turned
            x = x.contiguous(memory_format=torch.channels_last)
        return x.to(torch.float32, copy=True).mul_(self.scale)


def nature(shape: tuple[int, ...]) -> nn.Module:
    """Mnih et al. 2015; images under 36 pixels get three 3x3 convolutions of stride 2 instead."""
    if min(shape[1:]) >= 36:
        sizes = [(32, 8, 4, 0), (64, 4, 2, 0), (64, 3, 1, 0)]
    else:
        sizes = [(32, 3, 2, 1), (64, 3, 2, 1), (64, 3, 2, 1)]
    return Convs(shape, sizes)


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


def impala(shape: tuple[int, ...], depths: tuple[int, ...] = (16, 32, 32)) -> nn.Module:
    """Espeholt et al. 2018."""
    layers: list[nn.Module] = []
    channels = shape[0]
    for depth in depths:
        layers += [nn.Conv2d(channels, depth, 3, padding=1), nn.MaxPool2d(3, 2, 1), Residual(depth), Residual(depth)]
        channels = depth
    return nn.Sequential(*layers, nn.ReLU(), nn.Flatten())


def drq(shape: tuple[int, ...], features: int = 50) -> nn.Module:
    """Kostrikov et al. 2021: four convolutions, the first of stride 2, then few features within [-1, 1]."""
    body = Convs(shape, [(32, 3, stride, 0 if min(shape[1:]) >= 36 else 1) for stride in (2, 1, 1, 1)])
    with torch.no_grad():
        size = body(torch.zeros(1, *shape)).shape[-1]
    return nn.Sequential(body, nn.Linear(size, features), nn.LayerNorm(features), nn.Tanh())


def conv1d(shape: tuple[int, ...]) -> nn.Module:
    """Rays and short histories [channels, length]."""
    return nn.Sequential(
        nn.Conv1d(shape[0], 32, 5, 2, 2), nn.ReLU(), nn.Conv1d(32, 32, 3, 2, 1), nn.ReLU(), nn.Flatten()
    )


EYES: dict[str, Callable[[tuple[int, ...]], nn.Module]] = {"impala": impala, "drq": drq}


class Flat(nn.Module):
    """Joins an entry's dimensions."""

    def __init__(self, shape: tuple[int, ...], scale: float = 1.0) -> None:
        super().__init__()
        self.dims, self.scale, self.size = len(shape), scale, math.prod(shape)

    def forward(self, x: Tensor) -> Tensor:
        x = x.reshape(*x.shape[: x.dim() - self.dims], self.size)
        return x.float() * self.scale if self.scale != 1.0 else x.float()


class OneHot(nn.Module):
    def __init__(self, choices: tuple[int, ...]) -> None:
        super().__init__()
        self.choices, self.size = choices, sum(choices)

    def forward(self, x: Tensor) -> Tensor:
        x = x.long()
        return torch.cat([nn.functional.one_hot(x[..., i], k).float() for i, k in enumerate(self.choices)], -1)


def sensor(spec: Spec, encoder: str) -> nn.Module:
    if spec.choices:
        return OneHot(spec.choices * (math.prod(spec.shape) // len(spec.choices)))
    scale = 1 / 255 if spec.dtype == torch.uint8 else 1.0
    if spec.image and encoder not in FLAT:
        return Pixels(spec.shape, scale, EYES.get(encoder, nature)(spec.shape))
    if len(spec.shape) == 2 and encoder == "conv1d":
        return Pixels(spec.shape, scale, conv1d(spec.shape))
    return Flat(spec.shape, scale)


class Sensors(nn.Module):
    """Every observation entry through its own small net, joined: [*, size]. Legal-action masks are no input."""

    def __init__(self, obs_space: dict[str, Spec], encoder: str = "auto") -> None:
        super().__init__()
        self.keys = [k for k in obs_space if k != "mask"]
        self.nets = nn.ModuleList(sensor(obs_space[k], encoder) for k in self.keys)
        self.size: int = sum(n.size for n in self.nets)  # type: ignore[misc]

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        parts = [net(obs[k]) for k, net in zip(self.keys, self.nets, strict=True)]
        # How a product rounds depends on where its rows begin in memory: numbers as they came are copied to where a
        # tensor begins, so that a resumed run, which gets them from elsewhere, computes the same.
        alone = len(parts) == 1 and not isinstance(self.nets[0], Flat)
        return parts[0] if alone else torch.cat(parts, -1)


class Hidden(nn.Module):
    """The hidden layers; an ensemble runs them as batched products; d2rl feeds the input to every layer.

    linear, dropout, norm, activation; but renorm stands before the first layer and behind each activation (CrossQ).
    """

    def __init__(self, size_in: int, net: Net, members: int = 0) -> None:
        super().__init__()
        sizes = net.layers or (net.width,) * net.depth
        self.dense = net.encoder == "d2rl"
        self.spread = Spread(members) if members else nn.Identity()
        self.layers, self.norms = nn.ModuleList(), nn.ModuleList()
        renorm = net.norm == "renorm"
        if renorm:
            self.norms.append(BatchRenorm(size_in, members))
        size = size_in
        for i, out in enumerate(sizes):
            enter = size + size_in if self.dense and i > 0 else size
            drop = [nn.Dropout(net.dropout)] if net.dropout else []
            between = [] if renorm else norm(net.norm, out, members)
            self.layers.append(nn.Sequential(linear(enter, out, members), *drop, *between, activation(net.activation)))
            if renorm:
                self.norms.append(BatchRenorm(out, members))
            size = out
        self.size = size
        if net.init == "orthogonal":
            orthogonal_(self)
        elif net.init != "uniform":
            raise UserError(f"unknown init '{net.init}' (known: uniform, orthogonal)")

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """`mask`: the rows that count, for statistics of the batch."""
        x = self.spread(x)
        if self.norms:
            x = self.norms[0](x, mask)
        y = x
        for i, layer in enumerate(self.layers):
            y = layer(torch.cat([y, x], -1) if self.dense and i > 0 else y)
            if self.norms:
                y = self.norms[i + 1](y, mask)
        return y


def make_hidden(size_in: int, net: Net, members: int = 0) -> nn.Module:
    """What stands behind the sensors (and the action): hidden layers with a `size`."""
    kinds: dict[str, Any] = {"simba": Simba, "simbav2": SimbaV2}
    hidden: nn.Module = kinds.get(net.encoder, Hidden)(size_in, net, members)
    return lowered(hidden, net)


class Half(nn.Module):
    """Products and convolutions in bfloat16 (torch's autocast); weights, gradients and features stay float32."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body, self.size = body, body.size

    def forward(self, x: Any, *more: Any) -> Tensor:
        device = next(iter(x.values())) if isinstance(x, dict) else x
        with torch.autocast(device.device.type, torch.bfloat16):
            y: Tensor = self.body(x, *more)
        return y.float()


def lowered(body: nn.Module, net: Net) -> nn.Module:
    return Half(body) if net.bf16 else body


class Heads(nn.Module):
    """Several heads on the same features, joined: [*, sum of their sizes]."""

    def __init__(self, *heads: nn.Module) -> None:
        super().__init__()
        self.heads = nn.ModuleList(heads)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([head(x) for head in self.heads], -1)


def make_out(size_in: int, sizes: tuple[int, ...], net: Net, members: int = 0) -> nn.Module:
    """The last layer of a net, as its encoder wants it: `sizes` numbers of several kinds side by side."""
    if net.encoder == "simbav2":
        return Heads(*(UnitHead(size_in, size, members) for size in sizes if size))
    out = linear(size_in, sum(sizes), members)
    return orthogonal_(out, 1.0) if net.encoder == "simba" else out


def load_class(name: str) -> Any:
    """'module:Class' from the user's own code."""
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(f"cannot load '{name}': {error}; write it as module:Class of an importable module") from error
    except FOREIGN as error:
        raise failed_import(module, error) from error


def made(name: str, kind: Any, seen: dict[str, Spec]) -> Any:
    try:
        return kind(seen)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"making the encoder '{name}' failed: {type(error).__name__}: {error}{origin(error)}; it is given one dict,"
            " {name: Spec} of what it sees"
        ) from error


def make_sensors(obs_space: dict[str, Spec], net: Net) -> nn.Module:
    """The net's view of the observation: its keys, through its encoder. An own class gets the specs and has `.size`."""
    unknown = [k for k in net.keys if k not in obs_space]
    if unknown:
        raise UserError(
            f"the observation has no entry '{unknown[0]}'{nearest(unknown[0], list(obs_space))}"
            f" (it has: {', '.join(obs_space)})"
        )
    seen = {k: s for k, s in obs_space.items() if not net.keys or k in net.keys}
    if ":" in net.encoder:
        own = made(net.encoder, load_class(net.encoder), seen)
        if not isinstance(getattr(own, "size", None), int):
            raise UserError(f"the encoder '{net.encoder}' must set self.size, the number of features it returns")
        return lowered(own, net)
    if net.encoder not in ENCODERS:
        raise UserError(
            f"unknown encoder '{net.encoder}'{nearest(net.encoder, list(ENCODERS))}"
            f" (known: {', '.join(ENCODERS)}, or module:Class)"
        )
    sensors = Sensors(seen, net.encoder)
    return lowered(orthogonal_(sensors) if net.init == "orthogonal" else sensors, net)
