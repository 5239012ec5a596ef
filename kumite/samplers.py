"""Which rows to learn from. A sampler draws (row, slot) pairs; `batch` cuts them out of the Stream."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kumite.stream import Stream


class Draw(NamedTuple):
    row: Tensor
    slot: Tensor
    weight: Tensor | None = None
    """Importance weights; None = all 1."""


class Uniform:
    """Every row that can be read, with equal probability; every `stride`-th one for sequences.

    `span` is the number of consecutive transitions a reader needs from its first row on.
    """

    def __init__(self, span: int, stride: int = 1) -> None:
        self.span, self.stride = span, stride

    def _ranges(self, stream: Stream) -> tuple[Tensor, Tensor]:
        """Per slot: the first candidate (in strides) and how many there are."""
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
