"""Memory: the cells are torch's, episodes do not see each other, one step at a time is the same as all at once."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from kumite import tree
from kumite.errors import UserError
from kumite.nn.cores import CORES, Core, forget, make_core

TORCH = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
T, B, F, W = 7, 3, 5, 4

kinds = pytest.mark.parametrize("kind", sorted(CORES))
depths = pytest.mark.parametrize("layers", [1, 3])


def torchs(core: Core, kind: str) -> nn.RNNBase:
    """torch's own with the same weights."""
    other = TORCH[kind](F, W, core.layers)
    for i in range(core.layers):
        getattr(other, f"weight_ih_l{i}").data = core.w_in[i].data
        getattr(other, f"weight_hh_l{i}").data = core.w_state[i].data
        getattr(other, f"bias_ih_l{i}").data = core.b_in[i].data
        getattr(other, f"bias_hh_l{i}").data = core.b_state[i].data
    return other


def random_state(core: Core, n: int = B) -> dict[str, Tensor]:
    return tree.map(torch.randn_like, core.initial(n))


def never(steps: int = T) -> Tensor:
    return torch.zeros(steps, B, dtype=torch.bool)


@kinds
@depths
def test_cells_are_torchs(kind: str, layers: int) -> None:
    core, x = make_core(kind, F, W, layers), torch.randn(T, B, F)
    start = random_state(core)
    y, end = core.unrolled(x, start, never())
    states = {k: v.transpose(0, 1).contiguous() for k, v in start.items()}
    theirs, last = torchs(core, kind)(x, (states["h"], states["c"]) if kind == "lstm" else states["h"])
    torch.testing.assert_close(y, theirs)
    for mine, other in zip(end.values(), last if kind == "lstm" else (last,), strict=True):
        torch.testing.assert_close(mine, other.transpose(0, 1))


@kinds
@depths
def test_gradients_are_torchs(kind: str, layers: int) -> None:
    core, x = make_core(kind, F, W, layers), torch.randn(T, B, F)
    other = torchs(core, kind)
    ours = torch.autograd.grad(core.unrolled(x, core.initial(B), never())[0].square().sum(), core.w_state[0])
    theirs = torch.autograd.grad(other(x)[0].square().sum(), other.weight_hh_l0)
    torch.testing.assert_close(ours, theirs)


@kinds
def test_weights_begin_as_torchs_do(kind: str) -> None:
    core, other = make_core(kind, 30, 64, 2), TORCH[kind](30, 64, 2)
    assert sum(p.numel() for p in core.parameters()) == sum(p.numel() for p in other.parameters())
    for p in core.parameters():
        assert 0.11 < p.abs().max() <= 0.125


@kinds
@depths
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_torchs_layers_give_what_the_unrolled_cells_give(kind: str, layers: int, share: float) -> None:
    """With episodes that end anywhere: outputs, gradients of weights, inputs and the first state."""
    core, x = make_core(kind, F, W, layers), torch.randn(T, B, F).requires_grad_()
    first = torch.rand(T, B) < share
    start = tree.map(lambda s: s.requires_grad_(), random_state(core))
    of = [x, *start.values(), *core.parameters()]
    ours, theirs = core.outputs(x, start, first), core.unrolled(x, start, first)[0]
    torch.testing.assert_close(ours, theirs)
    weight = torch.randn_like(ours)
    for mine, other in zip(
        torch.autograd.grad((ours * weight).sum(), of), torch.autograd.grad((theirs * weight).sum(), of), strict=True
    ):
        torch.testing.assert_close(mine, other)


@kinds
@depths
def test_episodes_in_a_row_are_separate_sequences(kind: str, layers: int) -> None:
    """Slot by slot: what comes before a first row has no influence on what comes after it."""
    core, x = make_core(kind, F, W, layers), torch.randn(T, B, F)
    first = never()
    first[0, 1] = first[3, 0] = first[3, 1] = first[6, 2] = True
    start = random_state(core)
    y, end = core(x, start, first)
    for b in range(B):
        starts = [0, *[t for t in range(1, T) if first[t, b]], T]
        state = tree.take(start, slice(b, b + 1)) if not first[0, b] else core.initial(1)
        for begin, stop in pairwise(starts):
            alone, state = core(x[begin:stop, b : b + 1], state, torch.zeros(stop - begin, 1, dtype=torch.bool))
            torch.testing.assert_close(y[begin:stop, b : b + 1], alone)
            last, state = state, core.initial(1)
        for k in end:
            torch.testing.assert_close(end[k][b : b + 1], last[k])


@kinds
@depths
def test_single_steps_are_the_unroll(kind: str, layers: int) -> None:
    core, x = make_core(kind, F, W, layers), torch.randn(T, B, F)
    first = torch.rand(T, B) < 0.3
    start = random_state(core)
    y, end = core(x, start, first)
    state = start
    for t in range(T):
        step, state = core(x[t : t + 1], forget(state, first[t]), never(1))
        torch.testing.assert_close(step[0], y[t])
    for k in end:
        torch.testing.assert_close(state[k], end[k])


def test_the_initial_state_is_zero_and_forgetting_brings_it_back() -> None:
    core = make_core("lstm", F, W, 2)
    start = core.initial(B)
    assert {k: v.shape for k, v in start.items()} == {"h": (B, 2, W), "c": (B, 2, W)}
    assert not any(v.any() for v in start.values())
    state = random_state(core)
    kept = forget({"actor": state}, torch.tensor([True, False, True]))["actor"]
    for k in state:
        assert torch.equal(kept[k][1], state[k][1])
        assert not kept[k][[0, 2]].any()
    assert forget({}, torch.tensor([True])) == {}


def test_an_unknown_memory_is_named() -> None:
    with pytest.raises(
        UserError, match=r"unknown memory 'ltsm'; did you mean 'lstm'\? \(known: none, lstm, gru, rnn\)"
    ):
        make_core("ltsm", F, W, 1)
