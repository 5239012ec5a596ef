"""Which rows to learn from. A sampler draws (row, slot) pairs; `batch` cuts them out of the Stream."""

from __future__ import annotations

import torch
from torch import Tensor

from kumite.stream import Stream


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

    def ready(self, stream: Stream) -> bool:
        return bool((self._ranges(stream)[1] > 0).any())

    def draw(self, stream: Stream, size: int) -> tuple[Tensor, Tensor]:
        first, many = self._ranges(stream)
        ends = many.cumsum(0)
        at = (torch.rand(size, dtype=torch.float64, device=ends.device) * ends[-1]).long()
        slot = torch.searchsorted(ends, at, right=True)
        row = first[slot] + at - (ends - many)[slot]
        return row * self.stride, slot
