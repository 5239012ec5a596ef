"""Time lives here. A torso turns a Batch into features: `torso(b)` for its rows, `torso.next(b)` for the bootstrap
rows, `torso.step(obs, core)` while acting. Nobody else asks whether there is a memory, or whether dropout rests.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from kumite.batch import Batch
from kumite.errors import UserError
from kumite.nn.config import Net
from kumite.nn.cores import make_core
from kumite.nn.encoders import make_hidden, make_sensors
from kumite.nn.layers import dropouts, whole
from kumite.tree import Tree
from kumite.types import Spec


class Torso(nn.Module):
    """sensors -> (action) -> hidden layers."""

    span: int | None = None
    """Rows per training sequence; None = rows are independent."""

    def __init__(self, obs_space: dict[str, Spec], net: Net, action: int = 0, members: int = 0) -> None:
        super().__init__()
        self.sensors = make_sensors(obs_space, net)
        self.hidden = make_hidden(int(self.sensors.size) + action, net, members)  # type: ignore[arg-type]
        self.size = int(self.hidden.size)  # type: ignore[arg-type]
        self.drops = dropouts(self)

    def features(self, obs: dict[str, Tensor], action: Tensor | None) -> Tensor:
        return self.combine(self.sensors(obs), action)

    def combine(self, y: Tensor, action: Tensor | None, mask: Tensor | None = None) -> Tensor:
        """The hidden layers behind what was seen (and remembered); `mask`: the rows that count."""
        return self.hidden(y if action is None else torch.cat([y, action], -1), mask)

    def seen(self, b: Batch) -> Tensor:
        """What the rows of `forward` put into `combine`."""
        return self.sensors({k: _now(x, b) for k, x in b.obs.items()})

    def seen_next(self, b: Batch) -> Tensor:
        return self.sensors(b.next_obs or {k: _ahead(x, b) for k, x in b.obs.items()})

    def forward(self, b: Batch, action: Tensor | None = None) -> Tensor:
        return self.combine(self.seen(b), action, b.mask)

    def next(self, b: Batch, action: Tensor | None = None) -> Tensor:
        return self.combine(self.seen_next(b), action)

    def both(self, b: Batch, action: Tensor, next_action: Tensor) -> tuple[Tensor, Tensor]:
        """`forward` and `next` in one pass of the hidden layers: the statistics of a batch are those of both halves."""
        y = torch.cat([self.seen(b), self.seen_next(b)], -2)
        now, ahead = self.combine(y, torch.cat([action, next_action], -2), torch.cat([b.mask, b.mask], -1)).chunk(2, -2)
        return now, ahead

    def unroll(self, b: Batch) -> Tensor:
        """Features of all rows of b.obs, as when acting: nothing is left out."""
        with whole(self.drops):
            return self.features(b.obs, None)

    def look(self, obs: dict[str, Tensor], core: Tree) -> tuple[Tensor, Tree]:
        """What one observation puts into `combine`, and the state after it."""
        return self.sensors(obs), core

    def step(self, obs: dict[str, Tensor], core: Tree) -> tuple[Tensor, Tree]:
        with whole(self.drops):
            y, core = self.look(obs, core)
            return self.combine(y, None), core

    def advance(self, obs: dict[str, Tensor], core: Tree) -> Tree:
        """Only the state after this observation (nothing to do without memory)."""
        return core

    def initial(self, n: int, device: Any = None) -> Tree:
        return {}

    def entry(self, b: Batch, key: str) -> Tensor | None:
        """An observation entry in the rows of `forward`."""
        return _now(b.obs[key], b) if key in b.obs else None

    def next_entry(self, b: Batch, key: str) -> Tensor | None:
        if b.next_obs or key not in b.obs:
            return b.next_obs.get(key)
        return _ahead(b.obs[key], b)


class Through(nn.Module):
    """No hidden layers."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return x


class RecurrentTorso(Torso):
    """sensors -> memory -> (action) -> hidden layers; or sensors -> hidden layers -> memory -> (action -> layer)."""

    def __init__(self, obs_space: dict[str, Spec], net: Net, action: int = 0, members: int = 0, span: int = 16) -> None:
        nn.Module.__init__(self)
        self.span = span
        self.sensors = make_sensors(obs_space, net)
        size = int(self.sensors.size)  # type: ignore[arg-type]
        self.before: nn.Module = Through()
        self.hidden = Through()
        if net.memory_place == "after":
            self.before = make_hidden(size, net)
            size = int(self.before.size)  # type: ignore[arg-type]
        self.core = make_core(net.memory, size, net.memory_width, net.memory_layers)
        self.size = net.memory_width
        if net.memory_place == "before" or action or members:
            layers = net if net.memory_place == "before" else _one_layer(net)
            self.hidden = make_hidden(net.memory_width + action, layers, members)
            self.size = int(self.hidden.size)  # type: ignore[arg-type]
        self.drops = dropouts(self)

    def remember(self, b: Batch) -> Tensor:
        """The memory's output for every row of obs behind the burn-in."""
        x, k = self.before(self.sensors(b.obs)), b.burn_in
        core = b.core
        if k:
            with torch.no_grad():
                _, core = self.core(x[:k].detach(), core, b.first[:k])
        return self.core.outputs(x[k:], core, b.first[k:])

    def seen(self, b: Batch) -> Tensor:
        return self.remember(b)[: b.mask.shape[0]]

    def seen_next(self, b: Batch) -> Tensor:
        return _at(self.remember(b), b.hop)

    def unroll(self, b: Batch) -> Tensor:
        with whole(self.drops):
            return self.combine(self.remember(b), None)

    def advance(self, obs: dict[str, Tensor], core: Tree) -> Tree:
        with whole(self.drops):
            return self.look(obs, core)[1]

    def look(self, obs: dict[str, Tensor], core: Tree) -> tuple[Tensor, Tree]:
        x = self.before(self.sensors(obs))
        y, core = self.core(x[None], core, torch.zeros(1, x.shape[0], dtype=torch.bool, device=x.device))
        return y[0], core

    def initial(self, n: int, device: Any = None) -> Tree:
        return self.core.initial(n, device)


class Behind(Torso):
    """The hidden layers of one torso behind what another one sees and remembers, which only the other's net learns."""

    other: Torso

    def __init__(self, mine: Torso, other: Torso) -> None:
        nn.Module.__init__(self)
        self.__dict__["other"] = other  # not a child: its parameters belong to the other net
        self.span, self.hidden, self.size, self.drops = other.span, mine.hidden, mine.size, dropouts(mine.hidden)

    def seen(self, b: Batch) -> Tensor:
        return self.other.seen(b)

    def seen_next(self, b: Batch) -> Tensor:
        return self.other.seen_next(b)

    def look(self, obs: dict[str, Tensor], core: Tree) -> tuple[Tensor, Tree]:
        with whole(self.other.drops):
            return self.other.look(obs, core)

    def advance(self, obs: dict[str, Tensor], core: Tree) -> Tree:
        return self.other.advance(obs, core)

    def initial(self, n: int, device: Any = None) -> Tree:
        return self.other.initial(n, device)


def behind(mine: Torso, other: Torso, actor: Net, critic: Net) -> Behind:
    """The actor's torso behind the critic's senses; what both nets say of these must agree."""
    for name in ("keys", "encoder", "memory", "memory_width", "memory_layers", "memory_place"):
        if getattr(actor, name) != getattr(critic, name):
            raise UserError(
                f"--share-encoder lets the actor see by the critic's eyes, so --actor.{name.replace('_', '-')} must be"
                f" --critic.{name.replace('_', '-')}: {getattr(critic, name)!r}, not {getattr(actor, name)!r}"
            )
    return Behind(mine, other)


def _now(x: Tensor, b: Batch) -> Tensor:
    """An observation's rows that are learned from; a net without memory may stand beside one that has it."""
    return x[b.burn_in :][: b.mask.shape[0]]


def _ahead(x: Tensor, b: Batch) -> Tensor:
    """An observation's bootstrap rows, where they lie among the others."""
    return _at(x[b.burn_in :], b.hop)


def _at(x: Tensor, hop: Tensor) -> Tensor:
    """x[t + hop[t, b], b]: [T + n, B, ...] -> [T, B, ...]."""
    T, B = hop.shape
    row = torch.arange(T, device=x.device)[:, None] + hop
    return x[row, torch.arange(B, device=x.device)]


def _one_layer(net: Net) -> Net:
    from dataclasses import replace

    return replace(net, layers=((net.layers or (net.width,))[-1],))


def make_torso(obs_space: dict[str, Spec], net: Net, span: int, action: int = 0, members: int = 0) -> Torso:
    """`action`: continuous dimensions that join the features; `members`: how many hidden nets side by side."""
    if net.memory == "none":
        return Torso(obs_space, net, action, members)
    return RecurrentTorso(obs_space, net, action, members, span)
