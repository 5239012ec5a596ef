"""Memory: recurrent cells unrolled over time. A state is {"h": [B, layers, width], ...}; it is zero at a first row."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from kumite import tree
from kumite.errors import UserError, nearest
from kumite.tree import Tree


class Core(nn.Module):
    """Base of the cells. Weights, gate order and arithmetic are those of torch.nn.LSTM, GRU and RNN.

    Eagerly on the CPU torch's own layers run: they cannot forget within a sequence, so episodes become sequences of
    their own there. A graph (torch 2.13 compiles no such layer inside torch.func) unrolls the cell over time.
    """

    gates = 1
    layer: Any = None
    """Torch's function of the whole sequence."""
    states: tuple[str, ...] = ("h",)

    def __init__(self, size_in: int, width: int, layers: int) -> None:
        super().__init__()
        self.size, self.layers = width, layers
        bound = 1 / math.sqrt(width)
        self.w_in, self.w_state, self.b_in, self.b_state = (nn.ParameterList() for _ in range(4))
        for i in range(layers):
            rows = self.gates * width
            self.w_in.append(nn.Parameter(torch.empty(rows, size_in if i == 0 else width).uniform_(-bound, bound)))
            self.w_state.append(nn.Parameter(torch.empty(rows, width).uniform_(-bound, bound)))
            self.b_in.append(nn.Parameter(torch.empty(rows).uniform_(-bound, bound)))
            self.b_state.append(nn.Parameter(torch.empty(rows).uniform_(-bound, bound)))

    def initial(self, n: int, device: Any = None) -> dict[str, Tensor]:
        return {k: torch.zeros(n, self.layers, self.size, device=device) for k in self.states}

    def forward(self, x: Tensor, core: Tree, first: Tensor) -> tuple[Tensor, Tree]:
        """x: [T, B, F], first: [T, B] bool -> [T, B, width] and the state after the last row."""
        if _eager(x) and (x.shape[0] == 1 or not first[1:].any()):
            return self.whole(x, forget(core, first[0]))
        return self.unrolled(x, core, first)

    def outputs(self, x: Tensor, core: Tree, first: Tensor) -> Tensor:
        """The first half of `forward`."""
        if not _eager(x) or not first[1:].any():
            return self(x, core, first)[0]
        T, B = first.shape
        begins = first.t().clone()  # [B, T]
        begins[:, 0] = True
        flat = begins.flatten()
        start = flat.nonzero()[:, 0]  # [S], where episodes (or the rest of one) begin in [B T]
        episode = flat.cumsum(0) - 1  # [B T]
        time = torch.arange(B * T) - start[episode]
        padded = (start + torch.arange(int(time.max()) + 1)[:, None]).clamp(max=B * T - 1)  # [longest, S]
        column = start // T
        zero = (start % T != 0) | first[0][column]
        y, _ = self.whole(x.transpose(0, 1).flatten(0, 1)[padded], forget(tree.take(core, column), zero))
        return y[time, episode].unflatten(0, (B, T)).transpose(0, 1)

    def whole(self, x: Tensor, core: Tree) -> tuple[Tensor, Tree]:
        """Sequences without an end on the way, by torch's own layers."""
        weights = [w for four in zip(self.w_in, self.w_state, self.b_in, self.b_state, strict=True) for w in four]
        states = tuple(core[k].transpose(0, 1).contiguous() for k in self.states)
        before = states if len(states) > 1 else states[0]
        y, *after = type(self).layer(x, before, weights, True, self.layers, 0.0, False, False, False)
        return y, {k: s.transpose(0, 1) for k, s in zip(self.states, after, strict=True)}

    def unrolled(self, x: Tensor, core: Tree, first: Tensor) -> tuple[Tensor, Tree]:
        keep = (~first)[..., None].to(x.dtype)
        ends: dict[str, list[Tensor]] = {k: [] for k in self.states}
        for i in range(self.layers):
            projected = nn.functional.linear(x, self.w_in[i], self.b_in[i])
            state = tuple(core[k][:, i] for k in self.states)
            outputs = []
            for t in range(x.shape[0]):
                state = self.cell(projected[t], tuple(s * keep[t] for s in state), self.w_state[i], self.b_state[i])
                outputs.append(state[0])
            x = torch.stack(outputs)
            for k, s in zip(self.states, state, strict=True):
                ends[k].append(s)
        return x, {k: torch.stack(v, 1) for k, v in ends.items()}

    def cell(self, x: Tensor, state: tuple[Tensor, ...], w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        raise TypeError("a core defines its cell")


class LSTM(Core):
    gates = 4
    states = ("h", "c")
    layer = staticmethod(torch.lstm)

    def cell(self, x: Tensor, state: tuple[Tensor, ...], w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        h, c = state
        enter, forget, new, out = (x + nn.functional.linear(h, w, b)).chunk(4, -1)
        c = forget.sigmoid() * c + enter.sigmoid() * new.tanh()
        return out.sigmoid() * c.tanh(), c


class GRU(Core):
    gates = 3
    layer = staticmethod(torch.gru)

    def cell(self, x: Tensor, state: tuple[Tensor, ...], w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        (h,) = state
        reset_x, update_x, new_x = x.chunk(3, -1)
        reset_h, update_h, new_h = nn.functional.linear(h, w, b).chunk(3, -1)
        update = (update_x + update_h).sigmoid()
        new = (new_x + (reset_x + reset_h).sigmoid() * new_h).tanh()
        return (new + update * (h - new),)


class RNN(Core):
    layer = staticmethod(torch.rnn_tanh)

    def cell(self, x: Tensor, state: tuple[Tensor, ...], w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return ((x + nn.functional.linear(state[0], w, b)).tanh(),)


CORES: dict[str, type[Core]] = {"lstm": LSTM, "gru": GRU, "rnn": RNN}


def make_core(kind: str, size_in: int, width: int, layers: int) -> Core:
    if kind not in CORES:
        raise UserError(f"unknown memory '{kind}'{nearest(kind, ['none', *CORES])} (known: none, {', '.join(CORES)})")
    return CORES[kind](size_in, width, layers)


def _eager(x: Tensor) -> bool:
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def forget(core: Tree, first: Tensor) -> Tree:
    """The state with zeros where an episode begins."""
    return tree.map(lambda x: x * (~first).view(-1, *[1] * (x.dim() - 1)).to(x.dtype), core)
