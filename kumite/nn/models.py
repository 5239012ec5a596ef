"""Torsos with heads: actors, action values, state values."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import softplus

from kumite.batch import Batch
from kumite.nn.config import Net
from kumite.nn.dists import Branches, Normal, Policy
from kumite.nn.encoders import make_out
from kumite.nn.layers import orthogonal_
from kumite.nn.torso import Torso, make_torso
from kumite.tree import Tree
from kumite.types import ActionSpec, Spec


class PolicyHead(nn.Module):
    """Features -> Policy."""

    def __init__(
        self,
        size: int,
        action: ActionSpec,
        squash: bool,
        std: str = "tanh",
        log_std: tuple[float, float] = (-5.0, 2.0),
        log_std_init: float = 0.0,
        gain: float | None = None,
        net: Net | None = None,
    ) -> None:
        """std: tanh (state-dependent, within log_std) | exp | softplus (a free parameter), state_exp | state_softplus.

        `gain`: orthogonal weights of that size; None = as the last layer of `net` begins.
        """
        super().__init__()
        self.action, self.squash, self.std, self.log_std_range = action, squash, std, log_std
        C, self.state_std = action.continuous, std in ("tanh", "state_exp", "state_softplus")
        self.out = make_out(size, (C, C * self.state_std, sum(action.branches)), net or Net())
        self.init = _softplus_inverse(math.exp(log_std_init)) if "softplus" in std else log_std_init
        if not self.state_std:
            self.free = nn.Parameter(torch.full((C,), self.init))
        if gain is not None:
            orthogonal_(self.out, gain)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Policy:
        C, y = self.action.continuous, self.out(x)
        mean, logits = y[..., :C], y[..., C + C * self.state_std :]
        raw = y[..., C : 2 * C] if self.state_std else self.free.expand_as(mean)
        if self.std == "tanh":
            low, high = self.log_std_range
            log_std = low + 0.5 * (high - low) * (raw.tanh() + 1)
        elif "softplus" in self.std:
            log_std = (softplus(raw + self.init * self.state_std) + 1e-3).log()
        else:
            log_std = raw + self.init * self.state_std
        branches = Branches.of(logits if self.action.branches else y, self.action.branches, mask)
        return Policy(Normal(mean, log_std, self.squash), branches)


def _softplus_inverse(y: float) -> float:
    return y + math.log(-math.expm1(-y))


class Actor(nn.Module):
    """torso -> policy, or whatever the head says."""

    def __init__(self, torso: Torso, head: nn.Module) -> None:
        super().__init__()
        self.torso, self.head = torso, head

    def forward(self, b: Batch) -> Any:
        return self.head(self.torso(b), self.torso.entry(b, "mask"))

    def next(self, b: Batch) -> Any:
        return self.head(self.torso.next(b), self.torso.next_entry(b, "mask"))

    def step(self, obs: dict[str, Tensor], core: Tree) -> tuple[Any, Tree]:
        x, core = self.torso.step(obs, core)
        return self.head(x, obs.get("mask")), core


class ActionValue(nn.Module):
    """What an ensemble says of Q(s, c, .): [E, *, K W], K = all choices of all branches, or 1 (see Branches)."""

    def __init__(
        self, obs_space: dict[str, Spec], action: ActionSpec, net: Net, members: int, span: int, width: int = 1
    ) -> None:
        """`width`: W, numbers per choice (see critics)."""
        super().__init__()
        self.torso = make_torso(obs_space, net, span, action.continuous, members)
        self.out = make_out(self.torso.size, (max(1, sum(action.branches)) * width,), net, members)

    def forward(self, b: Batch, c: Tensor, next_c: Tensor | None = None) -> Any:
        """Of the rows of b; with `next_c` of both these and the bootstrap rows, in one pass."""
        if next_c is None:
            return self.out(self.torso(b, c))
        now, ahead = self.torso.both(b, c, next_c)
        return self.out(now), self.out(ahead)

    def next(self, b: Batch, c: Tensor) -> Tensor:
        return self.out(self.torso.next(b, c))

    def alone(self, b: Batch, c: Tensor) -> Tensor:
        """What the first of the ensemble says, without asking the others: [1, *, K W]."""
        tensors = (*self.named_parameters(), *self.named_buffers())
        first = {name: x[:1] if x.dim() else x for name, x in tensors if name.startswith(("torso.hidden.", "out."))}
        said: Tensor = functional_call(self, first, (b, c))
        return said


class ActorCritic(nn.Module):
    """Policy and state value, on one torso or two."""

    def __init__(
        self,
        obs_space: dict[str, Spec],
        action: ActionSpec,
        actor: Net,
        critic: Net,
        share: bool,
        span: int,
        values: int = 1,
        **head: Any,
    ) -> None:
        super().__init__()
        orthogonal = actor.init == "orthogonal"
        torso = make_torso(obs_space, actor, span)
        gain = 0.01 if orthogonal else None
        self.actor = Actor(torso, PolicyHead(torso.size, action, gain=gain, net=actor, **head))
        self.share = share
        self.critic: Torso
        if share:  # one name only: torch compiles no update of a parameter that has two
            self.__dict__["critic"] = torso
        else:
            self.critic = make_torso(obs_space, critic, span)
        self.value = make_out(self.critic.size, (values,), actor if share else critic)
        if orthogonal:
            orthogonal_(self.value, 1.0)

    def forward(self, b: Batch) -> tuple[Policy, Tensor]:
        x = self.actor.torso(b.of("actor"))
        policy = self.actor.head(x, self.actor.torso.entry(b, "mask"))
        return policy, self.value(x if self.share else self.critic(b.of("critic")))[..., 0]

    def values(self, b: Batch) -> Tensor:
        """Of every row of b.obs, the bootstrap row included."""
        return self.value(self.critic.unroll(b.of("actor" if self.share else "critic")))[..., 0]

    def step(self, obs: dict[str, Tensor], core: Tree) -> tuple[Policy, Tree]:
        policy, actor = self.actor.step(obs, core["actor"])
        return policy, {"actor": actor, "critic": {} if self.share else self.critic.advance(obs, core["critic"])}

    def initial(self, n: int, device: Any = None) -> Tree:
        critic = {} if self.share else self.critic.initial(n, device)
        return {"actor": self.actor.torso.initial(n, device), "critic": critic}
