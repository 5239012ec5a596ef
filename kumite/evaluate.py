"""Evaluation: exactly the episodes asked for, each copy with its quota, so that short episodes are not favoured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from kumite import tree
from kumite.algos.base import Algorithm
from kumite.envs.base import VecEnv
from kumite.nn.cores import forget


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found, in the environment's own rewards."""

    returns: list[float]
    lengths: list[int]
    success: list[float] = field(default_factory=list)
    """One entry per episode where the environment reports success."""

    @property
    def mean(self) -> float:
        return sum(self.returns) / max(1, len(self.returns))

    @property
    def std(self) -> float:
        mean = self.mean
        return (sum((r - mean) ** 2 for r in self.returns) / max(1, len(self.returns))) ** 0.5

    @property
    def min(self) -> float:
        return min(self.returns)

    @property
    def max(self) -> float:
        return max(self.returns)

    @property
    def mean_length(self) -> float:
        return sum(self.lengths) / max(1, len(self.lengths))

    @property
    def success_rate(self) -> float | None:
        return sum(self.success) / len(self.success) if self.success else None

    def row(self) -> dict[str, float | int]:
        """As evals.csv shows it."""
        row: dict[str, float | int] = {
            "mean": self.mean,
            "std": self.std,
            "min": self.min,
            "max": self.max,
            "episodes": len(self.returns),
            "mean_length": self.mean_length,
        }
        return row if self.success_rate is None else row | {"success_rate": self.success_rate}


def copies(episodes: int, most: int = 10) -> int:
    """How many copies play: the largest divisor of `episodes` that is at most `most`, so that nobody idles long."""
    return max(n for n in range(1, min(most, max(1, episodes)) + 1) if episodes % n == 0)


@torch.no_grad()
def evaluate(
    algo: Algorithm,
    env: VecEnv,
    episodes: int,
    seed: int,
    deterministic: bool = True,
    check: Callable[[], None] = lambda: None,
    show: Callable[[Any], None] | None = None,
) -> Evaluation:
    """Play `episodes` episodes. `check` may raise to break off; `show` gets every picture of slot 0."""
    device = next(algo.parameters()).device
    quota = [episodes // env.slots + (i < episodes % env.slots) for i in range(env.slots)]
    done: list[list[tuple[float, int, float | None]]] = [[] for _ in quota]
    step = env.reset(seed)
    core = algo.initial(env.slots)
    first = torch.ones(env.slots, dtype=torch.bool, device=device)
    while any(len(d) < q for d, q in zip(done, quota, strict=True)):
        check()
        if show:
            show(env.render())
        step = step.to(device)
        before = forget(tree.at(core, step.slot), tree.at(first, step.slot))
        act = algo.act(step.obs, before, explore=not deterministic)
        core = tree.put(core, step.slot, act.core)
        first = tree.put(first, step.slot, step.over)
        env.send(tree.to(act.action, "cpu"), None if step.slot is None else step.slot.cpu())
        step = env.recv()
        if step.episodes:
            e = step.episodes
            for i, who in enumerate(e.slot):
                if len(done[who]) < quota[who]:
                    done[who].append((e.returns[i], e.lengths[i], e.success[i] if e.success else None))
    if show:
        show(env.render())
    flat = [x for d in done for x in d]
    return Evaluation([r for r, _, _ in flat], [n for _, n, _ in flat], [s for _, _, s in flat if s is not None])
