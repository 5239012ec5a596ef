"""Which rows to learn from. A sampler draws (row, slot) pairs; `batch` cuts them out of the Stream.

A sampler counts in strides: candidate c of a slot is the reading that begins at row c * stride.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kumite import native
from kumite.schedules import linear
from kumite.stream import Stream


class Draw(NamedTuple):
    row: Tensor
    slot: Tensor
    weight: Tensor | None = None
    """Importance weights; None = all 1."""
    leaf: Tensor | None = None
    """Where their priorities stand."""


def over_time(error: Tensor, mask: Tensor, mix: float) -> Tensor:
    """One error per sequence, [T, B] -> [B]: mix x the largest + (1 - mix) x the mean of its rows (R2D2's)."""
    error = error * mask
    return mix * error.amax(0) + (1 - mix) * error.sum(0) / mask.sum(0).clamp(min=1.0)


class Uniform:
    """Every row that can be read, with equal probability; every `stride`-th one for sequences.

    `span` is the number of consecutive transitions a reader needs from its first row on.
    """

    def __init__(self, span: int, stride: int = 1) -> None:
        self.span, self.stride = span, stride

    def _ranges(self, stream: Stream) -> tuple[Tensor, Tensor]:
        """Per slot: the first candidate and how many there are."""
        first, last = stream.bounds(self.span)
        first, last = -(-first // self.stride), -(-last // self.stride)
        return first, (last - first).clamp(min=0)

    def _level_range(self, stream: Stream) -> tuple[int, int]:
        """The same while all slots speak together: one range for all, in plain numbers."""
        first, last = stream.level_bounds(self.span)
        first, last = -(-first // self.stride), -(-last // self.stride)
        return first, max(0, last - first)

    def ready(self, stream: Stream) -> bool:
        if stream.level:
            return self._level_range(stream)[1] > 0
        return bool((self._ranges(stream)[1] > 0).any())

    def draw(self, stream: Stream, size: int, share: float = 0.0) -> Draw:
        """`share`: how much of the run lies behind."""
        uniform = torch.rand(size, dtype=torch.float64, device=stream.device)
        if stream.level:
            first, many = self._level_range(stream)
            at = (uniform * (many * stream.slots)).long()
            return Draw((at // stream.slots + first) * self.stride, at % stream.slots)
        starts, counts = self._ranges(stream)
        ends = counts.cumsum(0)
        at = (uniform * ends[-1]).long()
        slot = torch.searchsorted(ends, at, right=True)
        return Draw((starts[slot] + at - (ends - counts)[slot]) * self.stride, slot)

    def tell(self, drawn: Draw, error: Tensor) -> None:
        """How large the errors of the rows that were drawn are by now: nothing to a uniform sampler."""

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        pass


class Sums:
    """Non-negative numbers that can be drawn in proportion to their size: leaves in blocks, and the sum of each block.

    Both searches look for the first partial sum that reaches u, with 0 < u <= total: a leaf of 0 is never found, and
    rounding cannot lead beyond the last one. Nothing synchronises with a device.
    """

    SHIFT = 6
    BLOCK = 1 << SHIFT
    GROUP = 4 * BLOCK
    """Blocks come in groups of this many, for native.draw."""
    LARGE = 1 << 14
    """From so many leaves on a CPU searches them with it."""

    def __init__(self, size: int, device: Any = None) -> None:
        blocks = -(-size // (self.GROUP * self.BLOCK)) * self.GROUP
        self.leaf = torch.zeros(blocks * self.BLOCK, device=device)
        self.rows = self.leaf.view(blocks, self.BLOCK)
        self.block = torch.zeros(blocks, device=device)
        self.sums = torch.zeros(blocks // self.BLOCK, self.BLOCK, dtype=torch.float64, device=device)  # of each draw
        self.strata = torch.ones(0)
        self.native = size >= self.LARGE and self.leaf.device.type == "cpu" and native.draw() is not None

    def put(self, leaf: Tensor, value: Tensor) -> None:
        """Of a leaf that is named twice the larger value stays, in whatever order a device writes."""
        self.leaf.scatter_reduce_(0, leaf, value, "amax", include_self=False)
        block = leaf >> self.SHIFT
        self.block.scatter_(0, block, self.rows.index_select(0, block).sum(-1))

    def fill(self, first: int, value: Tensor) -> None:
        """Neighbouring leaves from `first` on."""
        last = first + value.numel()
        self.leaf[first:last] = value
        block = slice(first // self.BLOCK, -(-last // self.BLOCK))
        self.block[block] = self.rows[block].sum(-1)

    def draw(self, size: int) -> Tensor:
        """Leaves, one from each of `size` equal parts of the total."""
        chance = torch.rand(2, size, device=self.leaf.device)  # which place of its part, which leaf of its block
        return self.search_natively(chance, size) if self.native else self.search(chance, size)

    def search_natively(self, chance: Tensor, size: int) -> Tensor:
        loop, leaf = native.draw(), torch.empty(size, dtype=torch.int64)
        assert loop is not None
        numbers, blocks, sums, at = (x.data_ptr() for x in (self.leaf, self.block, self.sums, chance))
        loop(numbers, blocks, self.block.shape[0], sums, at, size, leaf.data_ptr())
        return leaf

    def search(self, chance: Tensor, size: int) -> Tensor:
        if self.strata.shape[0] != size:
            self.strata = torch.arange(size, dtype=torch.float64, device=self.leaf.device)
        part, within = 1 - chance  # (0, 1]
        groups = torch.cumsum(self.block.view(-1, self.BLOCK), 1, dtype=torch.float64, out=self.sums)
        groups[1:] += groups[:-1, -1].cumsum(0)[:, None]
        sums = groups.view(-1)
        block = torch.searchsorted(sums, (self.strata + part).div_(size).mul_(sums[-1]))
        sums = self.rows.index_select(0, block).cumsum(-1)
        leaf = torch.searchsorted(sums, within[:, None] * sums[:, -1:])
        return torch.add(leaf[:, 0], block, alpha=self.BLOCK)


class Prioritized(Uniform):
    """Rows in proportion to (error + eps)^alpha (Schaul et al. 2016), weighted by (N P)^-beta against the bias.

    A fresh row has the largest priority so far until it is learned from; a row that cannot be read, or at which nothing
    was done, has none. Weights are relative to the largest of the batch, so N and the total cancel. Candidate c of slot
    s has leaf (c % ring) * slots + s.
    """

    def __init__(
        self,
        span: int,
        stride: int = 1,
        alpha: float = 0.6,
        beta: tuple[float, float] = (0.4, 1.0),
        eps: float = 1e-6,
        clip: float = math.inf,
        acts: int | None = 0,
    ) -> None:
        """`beta`: at the run's begin and end. `acts`: the one row of a reading to learn from; None = there are more."""
        super().__init__(span, stride)
        self.alpha, self.beta, self.eps, self.clip, self.acts = alpha, beta, eps, clip, acts
        self.sums: Sums | None = None  # made for the first Stream that is seen
        self.most = torch.ones(())
        self.ring = self.slots = 0
        self.first: Any = 0  # candidates that have a leaf: [first, last), of all slots (a number) or of each (a tensor)
        self.last: Any = 0
        self.saved: dict[str, Any] = {}

    def ready(self, stream: Stream) -> bool:
        self.follow(stream)
        return super().ready(stream)

    def draw(self, stream: Stream, size: int, share: float = 0.0) -> Draw:
        sums = self.follow(stream)
        leaf = sums.draw(size)
        p = sums.leaf.index_select(0, leaf)
        if p.device.type != "cpu":  # sums made in parallel may lead to a leaf of 0, once in a long while
            p = p.masked_fill(p == 0, math.inf)
        weight = (p.amin() / p).pow(linear(*self.beta, share))
        alone = stream.slots == 1
        at, slot = (leaf, torch.zeros_like(leaf)) if alone else (leaf // self.slots, leaf % self.slots)
        candidate = self._candidate(at, self.first if stream.level else self.first.index_select(0, slot))
        return Draw(candidate * self.stride if self.stride > 1 else candidate, slot, weight, leaf)

    def _candidate(self, at: Tensor, first: Any) -> Tensor:
        """The one at this place of the ring: the places before `first`'s are a round further."""
        begin = first % self.ring
        return torch.add(at, at < begin, alpha=self.ring).add_(first - begin)

    def tell(self, drawn: Draw, error: Tensor) -> None:
        if self.sums is not None and drawn.leaf is not None:
            value = error.to(self.sums.leaf.device) + self.eps
            value = (value.clamp_(max=self.clip) if self.clip < math.inf else value).pow_(self.alpha)
            self.most = torch.maximum(self.most, value.amax())
            self.sums.put(drawn.leaf, value)

    # -- what the ring holds ------------------------------------------------------------------------------------------

    def follow(self, stream: Stream) -> Sums:
        """Rows that became readable since the last look get a priority, those that no longer are lose theirs."""
        sums = self.sums or self._begin(stream)
        if not stream.level:
            self._follow_each(stream, sums)
            return sums
        first, many = self._level_range(stream)
        last = first + many
        if isinstance(self.last, Tensor) or last < self.last:  # the rows were forgotten
            sums = self._begin(stream)
        for a, b, _ in self._pieces(self.first, min(first, self.last)):
            sums.fill(a, torch.zeros(b - a, device=stream.device))
        for a, b, c in self._pieces(max(self.last, first), last):
            sums.fill(a, self._fresh_rows(stream, c, (b - a) // self.slots))
        self.first, self.last = first, last
        return sums

    def _pieces(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """Candidates [first, last) of all slots as ranges of leaves, and the candidate each begins with."""
        while first < last:
            at = first % self.ring
            many = min(last - first, self.ring - at)
            yield at * self.slots, (at + many) * self.slots, first
            first += many

    def _fresh_rows(self, stream: Stream, first: int, many: int) -> Tensor:
        """The priorities of `many` candidates of all slots."""
        if self.acts is None:
            return self.most.expand(many * self.slots)
        row = first * self.stride + self.acts
        rows = torch.arange(row, row + many * self.stride, self.stride, device=stream.device) % stream.rows
        terminated, truncated = (stream.data[k].index_select(0, rows) for k in ("terminated", "truncated"))
        return (self.most * ~(terminated | truncated)).flatten()

    def _follow_each(self, stream: Stream, sums: Sums) -> None:
        """The same where slots answer on their own."""
        first, many = self._ranges(stream)
        last = first + many
        if not isinstance(self.last, Tensor):
            self.first, self.last = torch.full_like(first, self.first), torch.full_like(last, self.last)
        if bool((last < self.last).any()):
            sums = self._begin(stream)
            self.first, self.last = torch.zeros_like(first), torch.zeros_like(last)
        gone, slot = _between(self.first, torch.minimum(first, self.last))
        sums.put(gone % self.ring * self.slots + slot, torch.zeros(gone.shape[0], device=stream.device))
        fresh, slot = _between(torch.maximum(self.last, first), last)
        value = self.most.expand(fresh.shape[0])
        if self.acts is not None:
            value = value * ~stream.over(fresh * self.stride + self.acts, slot)
        sums.put(fresh % self.ring * self.slots + slot, value)
        self.first, self.last = first, last

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def _begin(self, stream: Stream) -> Sums:
        """Nothing has a priority yet, or what has one was saved."""
        saved, self.saved = self.saved, {}
        self.ring, self.slots = -(-stream.rows // self.stride), stream.slots
        self.sums = sums = Sums(self.ring * self.slots, stream.device)
        self.most = saved.get("most", self.most).to(stream.device)
        self.first, self.last = (_to(saved.get(name, 0), stream.device) for name in ("first", "last"))
        if saved:
            sums.leaf[: saved["leaf"].shape[0]] = saved["leaf"].to(stream.device)
            sums.block[: saved["block"].shape[0]] = saved["block"].to(stream.device)
        return sums

    def state(self) -> dict[str, Any]:
        if self.sums is None:
            return self.saved
        last = int(self.last.max()) if isinstance(self.last, Tensor) else self.last
        used = min(last, self.ring) * self.slots
        return {
            "leaf": self.sums.leaf[:used],
            "block": self.sums.block[: -(-used // Sums.BLOCK)],
            "most": self.most,
            "first": self.first,
            "last": self.last,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.sums, self.saved = None, state


def _to(x: Any, device: Any) -> Any:
    return x.to(device) if isinstance(x, Tensor) else x


def _between(first: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """All (candidate, slot) with first[slot] <= candidate < last[slot]."""
    many = (last - first).clamp(min=0)
    slot = torch.arange(many.shape[0], device=many.device).repeat_interleave(many)
    before = many.cumsum(0) - many
    return torch.arange(slot.shape[0], device=many.device) - before[slot] + first[slot], slot
