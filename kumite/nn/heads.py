"""Value heads: from features to what is known of Q(s, d), the return after every choice d of every discrete branch.

    scalar      its mean                                                     z [*, K, 1]
    c51         N logits over atoms that stand still (Bellemare et al. 2017)  z [*, K, N]
    quantile    N quantiles at the middles of N equal parts (Dabney et al. 2018a)
    iqn         quantiles at fractions drawn anew each time (Dabney et al. 2018b)

K counts the choices of all branches. Several branches add up, values and quantiles as Q(s, d) = sum_i Q_i(s, d_i), and
c51 mixes its branches' distributions; either way each branch has a best choice of its own.

A head holds the last hidden layer, once per stream: dueling (Wang et al. 2016), Q = V + A - mean A, has one for V and
one for A.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from kumite.batch import Batch
from kumite.errors import UserError
from kumite.nn.config import Net
from kumite.nn.dists import offsets
from kumite.nn.encoders import Hidden, lowered, make_out
from kumite.nn.layers import Linear, dropouts, orthogonal_, whole
from kumite.nn.torso import make_torso
from kumite.tree import Tree
from kumite.types import Spec


@dataclass(frozen=True)
class ValueConfig:
    """What a head is."""

    head: Literal["scalar", "c51", "quantile", "iqn"] = "scalar"
    """What is learned of each value: its mean, a distribution over atoms, quantiles, or quantiles at any fraction."""
    dueling: bool = False
    """Q = V + A - mean A, with a stream of layers for each."""
    noisy: bool = False
    """Noisy layers explore by noise on their weights; fresh at every acting step and every update."""
    noisy_sigma: float = 0.5
    """noisy: the deviation that the noise starts with (over the root of a layer's inputs)."""
    atoms: int = 51
    """c51: places of the distribution."""
    v_min: float = -10.0
    """c51: the lowest of them."""
    v_max: float = 10.0
    """c51: the highest of them."""
    quantiles: int = 200
    """quantile: how many; iqn: fractions drawn per update and row."""
    cosines: int = 64
    """iqn: waves that a fraction is told by; with few of them neighbouring fractions learn together (short runs)."""
    kappa: float = 1.0
    """Huber's threshold: errors beyond it count straight (not for c51); scalar: inf = the squared error."""


# --- distributions over equal bins ---------------------------------------------------------------------------------


class Bins(nn.Module):
    """Values as distributions over n places from low to high: encode, and decode(encode(x)) = x."""

    def __init__(self, low: float, high: float, n: int) -> None:
        super().__init__()
        self.low, self.high, self.step = low, high, (high - low) / (n - 1)
        self.register_buffer("at", torch.linspace(low, high, n), persistent=False)
        self.at: Tensor

    def decode(self, p: Tensor) -> Tensor:
        """The mean: [*, n] -> [*]."""
        return p @ self.at

    def two_hot(self, x: Tensor) -> Tensor:
        """Each x on its two neighbours, so that the mean is x: [*] -> [*, n]. Beyond the ends counts as the end."""
        away = (x.clamp(self.low, self.high)[..., None] - self.at).abs()
        return (1 - away / self.step).clamp(min=0)

    def gauss(self, x: Tensor, width: float = 0.75) -> Tensor:
        """HL-Gauss (Imani and White 2018): a normal distribution around x, its deviation in bins."""
        edges = torch.cat([self.at - self.step / 2, self.at[-1:] + self.step / 2])
        below = torch.erf((edges - x.clamp(self.low, self.high)[..., None]) / (width * self.step * math.sqrt(2)))
        return below.diff(dim=-1) / (below[..., -1:] - below[..., :1])

    def project(self, p: Tensor, x: Tensor) -> Tensor:
        """Mass p at places x, each split between its neighbours (C51's projection): [*, m] both -> [*, n]."""
        return (p[..., None, :] @ self.two_hot(x))[..., 0, :]


# --- noisy layers --------------------------------------------------------------------------------------------------


class NoisyLinear(nn.Module):
    """w = mu + sigma f(e_out) f(e_in)^T, f(e) = sgn(e) sqrt|e| (Fortunato et al. 2018).

    Each pass draws noise, once for all its rows; in evaluation mode the means speak alone.
    """

    def __init__(self, mean: nn.Linear, sigma: float) -> None:
        super().__init__()
        self.weight, self.bias = mean.weight, mean.bias
        start = sigma / math.sqrt(mean.in_features)
        self.weight_sigma = nn.Parameter(torch.full_like(mean.weight, start))
        self.bias_sigma = nn.Parameter(torch.full_like(mean.bias, start))

    def forward(self, x: Tensor) -> Tensor:
        mean = nn.functional.linear(x, self.weight, self.bias)
        if not self.training:
            return mean
        out, enter = (_factor(size, x) for size in self.weight.shape)
        return mean + nn.functional.linear(x * enter, self.weight_sigma, self.bias_sigma) * out


def _factor(size: int, like: Tensor) -> Tensor:
    e = torch.randn(size, device=like.device, dtype=like.dtype)
    return e.sign() * e.abs().sqrt()


def noisy_(module: nn.Module, sigma: float) -> int:
    """Every linear layer inside becomes a noisy one around the weights it has; how many there were."""
    count = 0
    for name, child in module.named_children():
        if type(child) is nn.Linear or type(child) is Linear:
            setattr(module, name, NoisyLinear(child, sigma))
            count += 1
        else:
            count += noisy_(child, sigma)
    return count


@contextmanager
def still(net: nn.Module) -> Iterator[None]:
    """Inside, noisy layers say their means."""
    net.train(False)
    try:
        yield
    finally:
        net.train(True)


# --- heads ---------------------------------------------------------------------------------------------------------


class Values(NamedTuple):
    """What a head says: of every choice z [*, K, N], or of the choices that were taken z [*, N]."""

    z: Tensor
    tau: Tensor | None = None
    """Which fractions the quantiles are of: [N] or [*, N]."""


def greedy(q: Tensor, branches: tuple[int, ...], mask: Tensor | None = None) -> Tensor:
    """The best (legal) choice of every branch: [*, K] -> [*, D]."""
    if mask is not None:
        q = torch.where(mask, q, -math.inf)
    return torch.stack([x.argmax(-1) for x in q.split(branches, -1)], -1)


def chosen(z: Tensor, d: Tensor, branches: tuple[int, ...]) -> Tensor:
    """Each branch's part of what was taken: [*, K, N], [*, D] -> [*, D, N]."""
    return z.gather(-2, (d + offsets(branches, d.device))[..., None].expand(*d.shape, z.shape[-1]))


def huber(u: Tensor, kappa: float) -> Tensor:
    """u^2 / 2, and straight beyond kappa; kappa inf = never."""
    size = u.abs()
    near = size.clamp(max=kappa)
    return near * (size - 0.5 * near)


def quantile_loss(z: Tensor, tau: Tensor, y: Tensor, kappa: float) -> Tensor:
    """sum_i mean_j |tau_i - 1[y_j < z_i]| huber(y_j - z_i) / kappa.  z: [*, N], tau: [N] or [*, N], y: [*, M]."""
    u = y[..., None, :] - z[..., None]  # [*, N, M]
    weight = (tau[..., None] - (u < 0).to(u.dtype)).abs()
    return (weight * huber(u, kappa)).mean(-1).sum(-1) / kappa


class Head(nn.Module):
    """Scalar values, and the streams of all heads.

    `mean` reads what `forward` and `taken` say; `target` and `loss` are the two halves of an update.
    """

    def __init__(self, size: int, net: Net, branches: tuple[int, ...], cfg: ValueConfig, outputs: int = 1) -> None:
        """`net`: the hidden layer of a stream. `outputs`: N."""
        super().__init__()
        self.branches, self.outputs, self.kappa = branches, outputs, cfg.kappa
        self.share = 1 / len(branches)
        self.choices = _stream(size, net, sum(branches) * outputs)
        self.state = _stream(size, net, outputs) if cfg.dueling else None

    def streams(self, x: Tensor) -> Tensor:
        """[*, F] -> [*, K, N]."""
        z: Tensor = self.choices(x).unflatten(-1, (-1, self.outputs))
        if self.state is None:
            return z
        means = [part.mean(-2, keepdim=True).expand_as(part) for part in z.split(self.branches, -2)]
        return z - torch.cat(means, -2) + self.share * self.state(x)[..., None, :]

    def forward(self, x: Tensor) -> Values:
        return Values(self.streams(x))

    def look(self, x: Tensor) -> Values:
        """`forward` while acting: nothing is drawn but noisy layers' noise."""
        said: Values = self(x)
        return said

    def mean(self, z: Tensor) -> Tensor:
        """[*, N] -> [*]: of every choice, or of what was taken."""
        return z.mean(-1)

    def taken(self, said: Values, d: Tensor) -> Values:
        return said._replace(z=chosen(said.z, d, self.branches).sum(-2))

    def target(self, best: Values, move: Callable[[Tensor], Tensor]) -> Tensor:
        """What is to be learned where `best` follows; `move(v)` is the return if v follows."""
        return move(best.z)

    def loss(self, said: Values, y: Tensor) -> tuple[Tensor, Tensor]:
        """Per row, and the size of its error: [*] both."""
        u = (y - said.z)[..., 0]
        return huber(u, self.kappa), u.abs()


class C51(Head):
    """Logits over atoms: cross-entropy to the moved and projected distribution of what follows."""

    def __init__(self, size: int, net: Net, branches: tuple[int, ...], cfg: ValueConfig) -> None:
        super().__init__(size, net, branches, cfg, cfg.atoms)
        if cfg.v_min >= cfg.v_max:
            raise UserError(f"--v-min {cfg.v_min:g} must lie below --v-max {cfg.v_max:g}")
        self.bins = Bins(cfg.v_min, cfg.v_max, cfg.atoms)
        self.share = 1.0  # each branch has a whole distribution

    def mean(self, z: Tensor) -> Tensor:
        return self.bins.decode(z.softmax(-1))

    def taken(self, said: Values, d: Tensor) -> Values:
        """log p: [*, N]."""
        log_p = chosen(said.z, d, self.branches).log_softmax(-1)
        return Values(log_p.logsumexp(-2) - math.log(len(self.branches)))

    def target(self, best: Values, move: Callable[[Tensor], Tensor]) -> Tensor:
        return self.bins.project(best.z.exp(), move(self.bins.at))

    def loss(self, said: Values, y: Tensor) -> tuple[Tensor, Tensor]:
        loss = -(y * said.z).sum(-1)
        return loss, loss


class Quantiles(Head):
    """Quantiles at fixed fractions."""

    def __init__(
        self, size: int, net: Net, branches: tuple[int, ...], cfg: ValueConfig, outputs: int | None = None
    ) -> None:
        super().__init__(size, net, branches, cfg, outputs or cfg.quantiles)
        if not 0 < cfg.kappa < math.inf:
            raise UserError(f"--kappa {cfg.kappa:g}: quantiles need a finite number above 0")
        self.register_buffer("tau", (torch.arange(cfg.quantiles) + 0.5) / cfg.quantiles, persistent=False)
        self.tau: Tensor

    def forward(self, x: Tensor) -> Values:
        return Values(self.streams(x), self.tau)

    def loss(self, said: Values, y: Tensor) -> tuple[Tensor, Tensor]:
        assert said.tau is not None
        loss = quantile_loss(said.z, said.tau, y, self.kappa)
        return loss, loss


class ImplicitQuantiles(Quantiles):
    """The features times an embedding of the fraction, relu(W cos(pi i tau)), i < `cosines`, enter the streams.

    n waves tell fractions apart that lie 1 / n from each other. With the paper's 64 each learns nearly alone, from few
    draws: the low ones, whose loss counts what lies above them tau-fold, stay behind growing values, targets hand that
    on, and values settle late in a short run.
    """

    def __init__(self, size: int, net: Net, branches: tuple[int, ...], cfg: ValueConfig) -> None:
        super().__init__(size, net, branches, cfg, outputs=1)
        self.embed = nn.Linear(cfg.cosines, size)
        self.register_buffer("waves", math.pi * torch.arange(cfg.cosines), persistent=False)
        self.waves: Tensor

    def forward(self, x: Tensor) -> Values:
        return self.at(x, torch.rand(*x.shape[:-1], self.tau.shape[0], device=x.device))

    def look(self, x: Tensor) -> Values:
        """At evenly spread fractions instead of drawn ones: the same observation, the same choice."""
        return self.at(x, self.tau)

    def at(self, x: Tensor, tau: Tensor) -> Values:
        phi = self.embed((tau[..., None] * self.waves).cos()).relu()  # [*, n, F]
        return Values(self.streams(x[..., None, :] * phi)[..., 0].mT, tau)


HEADS: dict[str, type[Head]] = {"scalar": Head, "c51": C51, "quantile": Quantiles, "iqn": ImplicitQuantiles}


def _stream(size: int, net: Net, outputs: int) -> nn.Module:
    """The last hidden layer, if there is one, and what makes numbers of it."""
    hidden = Hidden(size, net)
    out = make_out(hidden.size, (outputs,), net)
    return nn.Sequential(lowered(hidden, net), orthogonal_(out, 1.0) if net.init == "orthogonal" else out)


class ValueNet(nn.Module):
    """torso -> head."""

    def __init__(
        self, obs_space: dict[str, Spec], branches: tuple[int, ...], net: Net, span: int, cfg: ValueConfig
    ) -> None:
        super().__init__()
        layers = net.layers or (net.width,) * net.depth
        if net.encoder.startswith("simba"):  # its blocks belong together
            self.torso = make_torso(obs_space, net, span)
            layers = ()
        else:
            self.torso = make_torso(obs_space, replace(net, layers=layers[:-1], depth=0), span)
        self.head = HEADS[cfg.head](self.torso.size, replace(net, layers=layers[-1:], depth=0), branches, cfg)
        self.drops = dropouts(self.head)
        if cfg.noisy and not noisy_(self, cfg.noisy_sigma):
            raise UserError(
                f"--noisy has no linear layer to work on in --critic.encoder {net.encoder}; use another one"
            )

    def forward(self, b: Batch) -> Values:
        said: Values = self.head(self.torso(b))
        return said

    def next(self, b: Batch) -> Values:
        said: Values = self.head(self.torso.next(b))
        return said

    def step(self, obs: dict[str, Tensor], core: Tree) -> tuple[Tensor, Tree]:
        """The mean of every choice, [N, K], and the state after this observation."""
        x, core = self.torso.step(obs, core)
        with whole(self.drops):
            return self.head.mean(self.head.look(x).z), core
