"""Torsos: now, next and step agree with each other, with memory and without, and burn-in teaches nothing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kumite import tree
from kumite.batch import Batch
from kumite.nn.config import Net
from kumite.nn.cores import forget
from kumite.nn.torso import RecurrentTorso, Torso, make_torso
from kumite.tree import Tree
from kumite.types import Spec

SPACE = {"obs": Spec((3,)), "mask": Spec((4,), torch.bool)}
T, B, N = 4, 5, 2  # learned rows, sequences, n-step
PLAIN = Net(width=6, activation="tanh")
MEMORIES = [
    Net(width=6, activation="tanh", memory=kind, memory_width=4, memory_place=place, memory_layers=layers)
    for kind, place, layers in [("lstm", "before", 2), ("gru", "after", 1), ("rnn", "before", 1), ("lstm", "after", 1)]
]


def rows(*lead: int) -> dict[str, Tensor]:
    return {"obs": torch.randn(*lead, 3), "mask": torch.rand(*lead, 4) < 0.5}


def transitions() -> Batch:
    m = torch.ones(B)
    return Batch(rows(B), rows(B), {}, m, m, m.long(), m, m, {}, m, {})


def sequences(core: Tree, burn_in: int = 0) -> Batch:
    m = torch.ones(T, B)
    span = burn_in + T + N
    hop = torch.randint(1, N + 1, (T, B))
    first = torch.rand(span, B) < 0.2
    return Batch(rows(span, B), {}, {}, m, m, hop, m, m, core, first, {}, burn_in)


def started(torso: Torso) -> Tree:
    return tree.map(torch.randn_like, torso.initial(B))


def stepped(torso: Torso, b: Batch) -> Tensor:
    """Features of all rows of a batch of sequences, one step at a time."""
    core, out = b.core, []
    for t in range(b.obs["obs"].shape[0]):
        features, core = torso.step(tree.take(b.obs, t), forget(core, b.first[t]))
        out.append(features)
    return torch.stack(out)


nets = pytest.mark.parametrize("net", [PLAIN, *MEMORIES], ids=lambda n: f"{n.memory}-{n.memory_place}")
memories = pytest.mark.parametrize("net", MEMORIES, ids=lambda n: f"{n.memory}-{n.memory_place}")


def test_memory_decides_the_torso() -> None:
    assert type(make_torso(SPACE, PLAIN, 8)) is Torso
    assert make_torso(SPACE, PLAIN, 8).span is None
    assert type(make_torso(SPACE, MEMORIES[0], 8)) is RecurrentTorso
    assert make_torso(SPACE, MEMORIES[0], 8).span == 8


def test_without_memory_now_next_and_step_are_one_function() -> None:
    torso, b = make_torso(SPACE, PLAIN, 8), transitions()
    torch.testing.assert_close(torso(b), torso.step(b.obs, {})[0])
    torch.testing.assert_close(torso.next(b), torso.step(b.next_obs, {})[0])
    torch.testing.assert_close(torso.unroll(b), torso(b))
    assert torso.step(b.obs, {})[1] == torso.advance(b.obs, {}) == torso.initial(B) == {}
    assert torso(b).shape == (B, torso.size)


@nets
@pytest.mark.parametrize("burn_in", [0, 3])
def test_a_sequence_is_what_steps_give(net: Net, burn_in: int) -> None:
    """A net without memory reads sequences too, where it stands beside one with memory."""
    torso = make_torso(SPACE, net, T)
    b = sequences(started(torso), burn_in)
    every = stepped(torso, b)[burn_in:]
    torch.testing.assert_close(torso(b), every[:T])
    following = torso.next(b)
    for t in range(T):
        for i in range(B):
            torch.testing.assert_close(following[t, i], every[t + int(b.hop[t, i]), i])


@memories
def test_a_sequence_of_one_row_is_a_step(net: Net) -> None:
    torso = make_torso(SPACE, net, 1)
    core, m = started(torso), torch.ones(1, B)
    b = Batch(rows(2, B), {}, {}, m, m, m.long(), m, m, core, torch.zeros(2, B, dtype=torch.bool), {})
    now, after = torso.step(tree.take(b.obs, 0), core)
    torch.testing.assert_close(torso(b)[0], now)
    torch.testing.assert_close(torso.next(b)[0], torso.step(tree.take(b.obs, 1), after)[0])


@memories
def test_unroll_gives_every_row_behind_the_burn_in(net: Net) -> None:
    torso = make_torso(SPACE, net, T)
    b = sequences(started(torso), 2)
    torch.testing.assert_close(torso.unroll(b), stepped(torso, b)[2:])


@memories
def test_advance_is_the_state_of_a_step(net: Net) -> None:
    torso, obs = make_torso(SPACE, net, T), rows(B)
    core = started(torso)
    after, alone = torso.step(obs, core)[1], torso.advance(obs, core)
    for a, b in zip(tree.leaves(after), tree.leaves(alone), strict=True):
        torch.testing.assert_close(a, b)


@memories
def test_burn_in_refreshes_the_state_and_carries_no_gradient(net: Net) -> None:
    torso = make_torso(SPACE, net, T)
    b = sequences(started(torso), burn_in=3)
    b = b._replace(first=torch.zeros_like(b.first))
    b.obs["obs"].requires_grad_(True)
    for x in tree.leaves(b.core):
        x.requires_grad_(True)
    targets = [b.obs["obs"], *tree.leaves(b.core)]
    gradient, *of_core = torch.autograd.grad(torso(b).square().sum(), targets, allow_unused=True)
    assert not gradient[:3].any()
    assert gradient[3 : 3 + T].abs().sum(-1).all()
    assert not gradient[3 + T :].any(), "rows ahead are only read by next"
    assert of_core == [None] * len(of_core)
    moved = b.obs["obs"].detach().clone()
    moved[:3] += 1
    assert not torch.allclose(torso(b._replace(obs=b.obs | {"obs": moved})), torso(b)), "but the state comes from them"


@nets
def test_entries_are_the_rows_of_now_and_next(net: Net) -> None:
    torso = make_torso(SPACE, net, T)
    b = sequences(started(torso), 2)
    mask = b.obs["mask"][2:]
    now, following = torso.entry(b, "mask"), torso.next_entry(b, "mask")
    assert now is not None
    assert following is not None
    assert torch.equal(now, mask[:T])
    for t in range(T):
        for i in range(B):
            assert torch.equal(following[t, i], mask[t + int(b.hop[t, i]), i])
    assert torso.entry(b, "other") is torso.next_entry(b, "other") is None


def test_entries_of_single_transitions() -> None:
    torso, b = make_torso(SPACE, PLAIN, T), transitions()
    now, following = torso.entry(b, "mask"), torso.next_entry(b, "mask")
    assert now is not None
    assert following is not None
    assert torch.equal(now, b.obs["mask"])
    assert torch.equal(following, b.next_obs["mask"])
    assert torso.entry(b, "other") is torso.next_entry(b, "other") is None


@nets
@pytest.mark.parametrize("members", [0, 3])
def test_an_action_joins_the_features_behind_the_memory(net: Net, members: int) -> None:
    """The state of a critic depends on what was seen, not on what was done; every member sees the action."""
    torso = make_torso(SPACE, net, T, action=2, members=members)
    b = sequences(started(torso))
    a, other = torch.randn(2, T, B, 2).unbind(0)
    other = torch.cat([other[:1], a[1:]])  # differs in the first row only
    assert torso(b, a).shape == ((members,) if members else ()) + (T, B, torso.size)
    same = (torso(b, a) == torso(b, other)).all(-1)
    assert same[..., 1:, :].all()
    assert not same[..., 0, :].any()


@pytest.mark.parametrize("place", ["before", "after"])
def test_hidden_layers_stand_where_the_net_says(place: str) -> None:
    torso = make_torso(SPACE, Net(layers=(6, 7), memory="gru", memory_width=4, memory_place=place), T)
    assert isinstance(torso, RecurrentTorso)
    assert torso.core.w_in[0].shape[1] == (3 if place == "before" else 7)
    assert torso.size == (7 if place == "before" else 4)
