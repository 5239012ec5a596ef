"""A stack of plain convolutions over an image, each followed by a ReLU.

torch makes layer after layer for the whole batch: the pixels as floats, then the activations of each layer, all of them
larger than a core's cache, with turned copies in between. Frame by frame they stay in it and the whole takes about half
the time. So bytes on an x86 CPU go through convs.c, which is compiled for the stack at hand when that first sees an
image; its sums differ from torch's by rounding. Without a compiler, on GPUs, within graphs and for layers with padding
torch does the work.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kumite import native

REGISTERS = {"AVX512": (16, 12, 8), "AVX2": (8, 6, 6)}
"""What torch calls the CPU: floats in a vector, and how many positions or weights have their sums in registers."""
SCALE = 1 / 255  # of a byte
CACHE = 1 << 17  # floats of activations that may be worked on at once

Size = tuple[int, int, int, int]
"""Channels out, kernel, stride, padding."""


class Convs(nn.Sequential):
    """[B, C, H, W] -> [B, features]. Takes floats, and bytes where it is `quick` with them."""

    def __init__(self, shape: tuple[int, ...], sizes: Sequence[Size]) -> None:
        layers: list[nn.Module] = []
        channels = shape[0]
        for size in sizes:
            layers += [nn.Conv2d(channels, *size), nn.ReLU()]
            channels = size[0]
        super().__init__(*layers, nn.Flatten())
        self.stack = (tuple(shape), tuple(sizes))

    def __getitem__(self, at: Any) -> Any:
        """A layer, or some of them as a stack of torch's own."""
        return nn.Sequential(*list(self)[at]) if isinstance(at, slice) else super().__getitem__(at)

    def quick(self, x: Tensor) -> bool:
        w = next(self.parameters())
        here = x.device.type == w.device.type == "cpu" and x.dtype == torch.uint8 and w.dtype == torch.float32
        plain = not torch.compiler.is_compiling() and not torch.is_autocast_enabled("cpu")
        return here and plain and loops(*self.stack) is not None

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != torch.uint8:
            return super().forward(x)
        made, params, x = loops(*self.stack), [p.contiguous() for p in self.parameters()], x.contiguous()
        assert made is not None
        if torch.is_grad_enabled() and any(p.requires_grad for p in params):
            seen: Tensor = See.apply(made, x, *params)
            return seen
        return made.see(x, params, keep=False)[0]


class See(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, made: Loops, x: Tensor, *params: Tensor) -> Tensor:
        out, ctx.kept = made.see(x, params, keep=True)
        ctx.made = made
        ctx.save_for_backward(x, *params)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, *params = ctx.saved_tensors
        ctx.kept, kept = None, ctx.kept
        found = ctx.made.learn(x, kept, grad.contiguous(), params)
        ctx.made.spare[:] = [kept]  # fresh memory comes page by page, which takes a tenth of the time
        return None, None, *found


class Loops:
    """convs.c for one stack; `params`: weight, bias, weight, bias, ..."""

    def __init__(self, library: ctypes.CDLL, kept: int, last: int) -> None:
        address, many, scale, few = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int
        self.to_see, self.to_learn, self.kept, self.last = library.see, library.learn, kept, last
        self.spare: list[Tensor] = []
        self.to_see.argtypes = [address, many, scale, address, address, address, few]
        self.to_learn.argtypes = [address, many, scale, address, address, address, address, few]
        self.to_see.restype = self.to_learn.restype = None

    def see(self, x: Tensor, params: Sequence[Tensor], keep: bool) -> tuple[Tensor, Tensor]:
        """Features [B, last]; what each layer made of every frame [B, kept], or nothing."""
        B = x.shape[0]
        out, kept = torch.empty(B, self.last), self.buffer(B if keep else 0)
        to = kept.data_ptr() if keep else None
        threads = max(1, min(B, torch.get_num_threads()))
        self.to_see(x.data_ptr(), B, SCALE, addresses(params), to, out.data_ptr(), threads)
        return out, kept

    def buffer(self, rows: int) -> Tensor:
        with suppress(IndexError):
            spare = self.spare.pop()
            if len(spare) == rows:
                return spare
        return torch.empty(rows, self.kept)

    def learn(self, x: Tensor, kept: Tensor, grad: Tensor, params: Sequence[Tensor]) -> list[Tensor]:
        """Gradients of the params, from those of the features."""
        B, sizes = x.shape[0], [p.numel() for p in params]
        threads = max(1, min(B, torch.get_num_threads()))
        sums = torch.empty(threads, sum(sizes))
        made = (addresses(params), kept.data_ptr(), grad.data_ptr(), sums.data_ptr())
        self.to_learn(x.data_ptr(), B, SCALE, *made, threads)
        return [restored(part, p, p is params[0]) for part, p in zip(sums.sum(0).split(sizes), params)]


def addresses(params: Sequence[Tensor]) -> Any:
    return (ctypes.c_void_p * len(params))(*(p.data_ptr() for p in params))


def restored(part: Tensor, p: Tensor, first: bool) -> Tensor:
    """A gradient as torch has it, from [planes, y, x, depth, out]: pixels lie in planes, activations in depth."""
    if p.dim() == 1:
        return part
    out, channels, *kernel = p.shape
    if first:
        return part.view(channels, *kernel, out).permute(3, 0, 1, 2).contiguous()
    return part.view(*kernel, channels, out).permute(3, 2, 0, 1).contiguous()


@functools.cache
def loops(shape: tuple[int, ...], sizes: tuple[Size, ...]) -> Loops | None:
    """The compiled loops of a stack, or None where torch has to do without."""
    capability = torch.backends.cpu.get_cpu_capability()
    if capability not in REGISTERS:
        return None
    wide, most, taps = REGISTERS[capability]
    if any(out % wide or padding for out, _, _, padding in sizes):
        return None
    depth, height, width = shape
    planes, depth = depth, 1
    layers, at, weight, turned = [], 0, 0, 0
    before = 0
    for out, kernel, stride, _ in sizes:
        rows, columns = (height - kernel) // stride + 1, (width - kernel) // stride + 1
        bias = weight + planes * kernel * kernel * depth * out
        numbers = (planes, height, width, depth, out, kernel, stride, rows, columns, before, at, weight, bias, turned)
        layers.append(f"((Layer){{{', '.join(map(str, numbers))}}})")
        if len(layers) > 1:
            turned += bias - weight
        before, at, weight = at, at + rows * columns * out, bias + out
        planes, depth, height, width = 1, out, rows, columns
    sizes_of = {
        "WIDE": wide,
        "MOST": most,
        "TAPS": taps,
        "PIXELS": shape[0] * shape[1] * shape[2],
        "KEPT": at,
        "LAST": depth * height * width,
        "CHANNELS": depth,
        "PLACES": height * width,
        "TOTAL": weight,
        "GROUP": max(1, min(4, CACHE // at)),
        **{f"LAYER{n}": layer for n, layer in enumerate(layers)},
        "UP(STEP)": " ".join(f"STEP({n}, LAYER{n})" for n in range(len(layers))),
        "DOWN(STEP)": " ".join(f"STEP({n}, LAYER{n})" for n in reversed(range(1, len(layers)))),
    }
    head = "".join(f"#define {name} {value}\n" for name, value in sizes_of.items())
    source = Path(__file__).with_suffix(".c").read_text(encoding="utf-8")
    library = native.library(head + source, "-fopenmp")
    return None if library is None else Loops(library, at, depth * height * width)
