"""Batch: rows to learn from, and how they are cut out of a Stream. gamma and n live in `fold` and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kumite import tree
from kumite.stream import Stream
from kumite.tree import Tree


class Batch(NamedTuple):
    """* = [B] without memory, [T, B] with it."""

    obs: dict[str, Tensor]
    """[*, ...]; with memory all rows the unroll needs: [burn_in + T (+ n), B, ...]."""
    next_obs: dict[str, Tensor]
    """The bootstrap observation, [B, ...]; {} with memory (it is among obs, `hop` rows ahead) and on-policy."""
    action: dict[str, Tensor]
    reward: Tensor
    """n steps, discounted."""
    discount: Tensor
    """Of the bootstrap value: gamma^k, 0 on termination."""
    hop: Tensor
    """How many rows ahead the bootstrap observation lies."""
    mask: Tensor
    """1 for rows that count, 0 for void ones."""
    weight: Tensor
    """Importance weights."""
    core: Tree
    """Recurrent state before the first row of obs; {} without memory."""
    first: Tensor
    """With memory: rows of obs that begin an episode (the state is forgotten there)."""
    extras: dict[str, Tensor]
    burn_in: int = 0
    steps: Any = None
    """Where asked for: every step that the rewards are of, as a Batch of single steps, [n, B] or [T + n - 1, B]."""

    def mean(self, x: Tensor) -> Tensor:
        """The one reduction: over rows that count, importance-weighted; leading ensemble dims are summed."""
        return (x * self.share()).sum()

    def share(self) -> Tensor:
        """What each row counts in a mean."""
        return self.mask * self.weight / self.mask.sum().clamp(min=1.0)

    def standardize(self, x: Tensor) -> Tensor:
        """x with mean 0 and deviation 1 over the rows that count."""
        n = self.mask.sum().clamp(min=2.0)
        centred = x - (x * self.mask).sum() / n
        return centred / (((centred.square() * self.mask).sum() / (n - 1)).sqrt() + 1e-8)

    def to(self, device: torch.device) -> Batch:
        """There, without waiting for the copies: from where replay lies to where nets learn."""
        if self.mask.device == device:
            return self
        pinned = device.type == "cuda"
        rows = {k: v for k, v in self._asdict().items() if isinstance(v, (Tensor, dict))}
        moved = tree.map(lambda x: (x.pin_memory() if pinned else x).to(device, non_blocking=pinned), rows)
        return self._replace(**moved)._replace(steps=self.steps and self.steps.to(device))

    def repeated(self, n: int) -> Batch:
        """Every row n times, copies of the whole batch side by side: [n B] or [T, n B]."""

        def again(x: Tensor) -> Tensor:
            return torch.cat([x] * n, self.mask.dim() - 1)

        rows = self._replace(core={}, burn_in=0, steps=None)._asdict()
        twice = tree.map(again, {k: v for k, v in rows.items() if isinstance(v, (Tensor, dict))})
        core = tree.map(lambda x: torch.cat([x] * n), self.core)
        return self._replace(**twice)._replace(core=core, steps=self.steps and self.steps.repeated(n))

    def of(self, net: str) -> Batch:
        """The batch as one net sees it: with its own recurrent state."""
        return self._replace(core=self.core.get(net, {}))


def fold(reward: Tensor, terminated: Tensor, over: Tensor, n: int, gamma: float) -> tuple[Tensor, Tensor, Tensor]:
    """n-step returns along dim 0 that stop where the episode does. [T + n - 1, B] -> reward, discount, hop: [T, B]."""
    T = reward.shape[0] - n + 1
    total, discount = torch.zeros_like(reward[:T]), torch.ones_like(reward[:T])
    alive = torch.ones_like(over[:T])
    hop = torch.zeros_like(reward[:T], dtype=torch.int64)
    for k in range(n):
        total = total + alive * discount * reward[k : k + T]
        hop = hop + alive
        discount = torch.where(alive, gamma * discount * ~terminated[k : k + T], discount)
        alive = alive & ~over[k : k + T]
    return total, discount, hop


def transitions(stream: Stream, row: Tensor, slot: Tensor, n: int, gamma: float, steps: bool = False) -> Batch:
    """One n-step transition per (row, slot): [B], or whatever shape these have."""
    t = torch.arange(n, device=row.device).view(n, *[1] * row.dim())
    ahead, at = row + t + 1, slot.expand(n, *slot.shape)  # what arrived: [n, B]
    terminated, truncated = stream.read("terminated", ahead, at), stream.read("truncated", ahead, at)
    reward, discount, hop = fold(stream.read("reward", ahead, at), terminated, terminated | truncated, n, gamma)
    mask = (~stream.over(row, slot)).float()
    return Batch(
        obs=stream.group("obs", row, slot),
        next_obs=stream.group("obs", row + hop[0], slot),
        action=stream.group("action", row, slot),
        reward=reward[0],
        discount=discount[0],
        hop=hop[0],
        mask=mask,
        weight=torch.ones_like(mask),
        core={},
        first=mask,
        extras=stream.group("extras", row, slot),
        steps=transitions(stream, row + t, at, 1, gamma) if steps else None,
    )


def sequences(
    stream: Stream, row: Tensor, slot: Tensor, length: int, burn_in: int, n: int, gamma: float, steps: bool = False
) -> Batch:
    """Windows that start at (row, slot): burn_in rows that only refresh the state, then `length` to learn from."""
    span = burn_in + length
    t = torch.arange(span + n, device=row.device)[:, None]
    rows, slots = row + t, slot.expand(span + n, -1)  # [span + n, B]
    learn, at = rows[burn_in:span], slots[burn_in:span]
    ahead, at_ahead = rows[burn_in + 1 :], slots[burn_in + 1 :]
    terminated, truncated = stream.read("terminated", ahead, at_ahead), stream.read("truncated", ahead, at_ahead)
    each = stream.read("reward", ahead, at_ahead)
    reward, discount, hop = fold(each, terminated, terminated | truncated, n, gamma)
    mask = (~stream.over(learn, at)).float()
    b = Batch(
        obs=stream.group("obs", rows, slots),
        next_obs={},
        action=stream.group("action", learn, at),
        reward=reward,
        discount=discount,
        hop=hop,
        mask=mask,
        weight=torch.ones_like(mask),
        core=stream.core(row, slot),
        first=stream.first(rows, slots),
        extras=stream.group("extras", learn, at),
        burn_in=burn_in,
    )
    if not steps:
        return b
    now, at = rows[burn_in:-1], slots[burn_in:-1]
    mask = (~stream.over(now, at)).float()
    _, discount, hop = fold(each, terminated, terminated | truncated, 1, gamma)
    single = b._replace(
        action=stream.group("action", now, at),
        reward=each,
        discount=discount,
        hop=hop,
        mask=mask,
        weight=torch.ones_like(mask),
        extras=stream.group("extras", now, at),
    )
    return b._replace(steps=single)


def rollout(stream: Stream, count: int, length: int | None) -> Batch:
    """The newest `count` transitions of every slot, in order: [count, N]; obs has one more row, the bootstrap one.

    With memory, `core` holds the states at every `length`-th row: [count / length, N, ...].
    """
    row, slot = stream.drain(count)
    now, at, ahead = row[:-1], slot[:-1], row[1:]
    terminated = stream.read("terminated", ahead, at)
    mask = (~stream.over(now, at)).float()
    return Batch(
        obs=stream.group("obs", row, slot),
        next_obs={},
        action=stream.group("action", now, at),
        reward=stream.read("reward", ahead, at),
        discount=(~terminated).float(),
        hop=torch.ones_like(now),
        mask=mask,
        weight=torch.ones_like(mask),
        core=stream.core(now[:: length or count], at[:: length or count]),
        first=stream.first(row, slot),
        extras=stream.group("extras", now, at) | {"over": terminated | stream.read("truncated", ahead, at)},
    )


def minibatches(b: Batch, size: int, length: int | None, epochs: int = 1) -> Iterator[Iterable[Batch]]:
    """Shuffled passes over a rollout [T, N]: rows ([B]) without memory, sequences ([length, B]) with it.

    An epoch is gathered once, in shuffled order, and handed out in slices; a last incomplete minibatch is spread over
    the others by choosing the number of minibatches first. Where all is one minibatch its order does not matter.
    """
    T, N = b.mask.shape
    whole = {"obs": tree.map(lambda x: x[:T], b.obs), "action": b.action, "extras": b.extras, "mask": b.mask}
    if length is None:
        whole = tree.map(lambda x: x.flatten(0, 1), whole)
        core: Tree = {}
        columns = T * N
    else:
        chunks = T // length
        whole["first"] = b.first[:T]

        def fold_time(x: Tensor) -> Tensor:  # [T, N, ...] -> [length, chunks * N, ...]
            return x.unflatten(0, (chunks, length)).transpose(0, 1).flatten(1, 2)

        whole = tree.map(fold_time, whole)
        core = tree.map(lambda x: x.flatten(0, 1), b.core)
        columns, size = chunks * N, max(1, size // length) if size else 0
    whole["weight"] = torch.ones_like(whole["mask"])
    count = max(1, columns // size) if size else 1
    dim = 0 if length is None else 1
    step = columns // count
    sizes = [step] * (count - 1) + [columns - (count - 1) * step]
    alone = [_minibatch(whole, core)] if count == 1 else None
    for _ in range(epochs):
        if alone:
            yield alone
            continue
        order = torch.randperm(columns, device=b.mask.device)
        rows = tree.map(lambda x: x.index_select(dim, order), whole)
        cores = _split(tree.map(lambda x: x.index_select(0, order), core), sizes, 0)
        yield map(_minibatch, _split(rows, sizes, dim), cores)  # one by one: many objects at once are much to search


def _minibatch(rows: dict[str, Any], core: Tree) -> Batch:
    mask = rows["mask"]
    return Batch(
        obs=rows["obs"],
        next_obs={},
        action=rows["action"],
        reward=mask,
        discount=mask,
        hop=mask,
        mask=mask,
        weight=rows["weight"],
        core=core,
        first=rows.get("first", mask),
        extras=rows["extras"],
    )


def _split(x: Tree, sizes: list[int], dim: int) -> list[Any]:
    """Neighbouring parts, leaf by leaf: all views of a leaf are made at once."""
    if not isinstance(x, dict):
        return list(x.split(sizes, dim))
    parts = {k: _split(v, sizes, dim) for k, v in x.items()}
    return [{k: v[i] for k, v in parts.items()} for i in range(len(sizes))]
