"""Moved images against a loop, and where they are moved: in every batch from replay, a row apart from what follows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kumite.algos.dqn import DQN, DQNConfig
from kumite.algos.sac import SAC, SACConfig
from kumite.algos.td3 import TD3, TD3Config
from kumite.batch import Batch
from kumite.errors import UserError
from kumite.nn.augment import Shift, shift
from kumite.nn.config import Net
from kumite.nn.torso import Behind
from kumite.types import Act, ActionSpec, Spec, Step

EYE, ARM = Spec((6, 10, 12), torch.uint8, image=True, stack=3), Spec((2,))
SPACE = {"eye": EYE, "arm": ARM}


def moved(x: Tensor, dy: int, dx: int) -> Tensor:
    """x: [C, H, W], pixel by pixel."""
    y = torch.empty_like(x)
    _, H, W = x.shape
    for i in range(H):
        for j in range(W):
            y[:, i, j] = x[:, min(max(i + dy, 0), H - 1), min(max(j + dx, 0), W - 1)]
    return y


def move_of(image: Tensor, was: Tensor, pad: int) -> tuple[int, int]:
    """By how much an image was moved."""
    size = range(-pad, pad + 1)
    found = [(dy, dx) for dy in size for dx in size if torch.equal(image, moved(was, dy, dx))]
    assert len(found) == 1
    return found[0]


def images(*lead: int) -> Tensor:
    return torch.randint(0, 256, (*lead, *EYE.shape), dtype=torch.uint8)


def test_a_shift_is_a_loop_over_pixels() -> None:
    """A move per row, all channels of a stack alike, edges repeated, nothing converted."""
    x = images(40)
    y = shift(x, 2, x.shape[:1])
    assert y.dtype == torch.uint8
    moves = [move_of(y[i], x[i], 2) for i in range(40)]
    assert len(set(moves)) > 12
    for axis in (0, 1):
        assert {m[axis] for m in moves} == {-2, -1, 0, 1, 2}


def test_what_stands_before_the_rows_moves_alike() -> None:
    x = images(3, 8)
    y = shift(x, 4, x.shape[1:2])
    moves = [[move_of(y[t, b], x[t, b], 4) for b in range(8)] for t in range(3)]
    assert moves[0] == moves[1] == moves[2]
    assert len(set(moves[0])) > 3
    apart = shift(x, 4, x.shape[:2])
    assert len({move_of(apart[t, b], x[t, b], 4) for t in range(3) for b in range(8)}) > 8


def test_images_of_an_observation_move_and_nothing_else() -> None:
    space = SPACE | {"other": replace(EYE, stack=1), "mask": Spec((3,), torch.bool)}
    x = images(30)
    obs = {"eye": x, "other": x, "arm": torch.randn(30, 2), "mask": torch.ones(30, 3, dtype=torch.bool)}
    new = Shift(space, 4)(obs)
    assert new["arm"] is obs["arm"]
    assert new["mask"] is obs["mask"]
    assert not torch.equal(new["eye"], new["other"]), "two cameras move apart"
    assert Shift(space, 4)({}) == {}


# -- in an algorithm --------------------------------------------------------------------------------------------------

SMALL = Net(encoder="drq", width=8)
NUMBERS: dict[str, Any] = {"augment": "shift", "augment_pixels": 2, "buffer_size": 60, "batch_size": 16}


def make(kind: str, **numbers: Any) -> Any:
    nets = {"actor": SMALL, "critic": SMALL} | NUMBERS | numbers
    if kind == "sac":
        return SAC(SPACE, ActionSpec(2), 2, SACConfig(**nets))
    if kind == "td3":
        return TD3(SPACE, ActionSpec(2), 2, TD3Config(**nets))
    del nets["actor"]
    return DQN(SPACE, ActionSpec(0, (3,)), 2, DQNConfig(**nets))


def filled(algo: Any) -> Any:
    """Its replay with 25 rows of two slots: single frames of a stack of three."""
    stream = algo.make_stream()
    for t in range(25):
        n = stream.slots
        obs = {"eye": images(n), "arm": torch.randn(n, 2)}
        over = torch.full((n,), t % 7 == 6)
        stream.observe(Step(obs, torch.ones(n), over & (t % 2 == 0), over & (t % 2 == 1)))
        act: Act = algo.act(obs, algo.initial(n))
        stream.record(act, algo.initial(n))
    return stream


def raw_and_prepared(algo: Any) -> tuple[Batch, Batch]:
    stream = filled(algo)
    assert stream.data["obs.eye"].shape[2:] == (2, 10, 12), "one frame per row"
    assert algo.sampler.ready(stream)
    raw = algo.sample(stream)[1]
    return raw, algo.prepared(raw)


@pytest.mark.parametrize("kind", ["sac", "td3", "dqn"])
def test_a_row_and_what_follows_move_apart(kind: str) -> None:
    raw, b = raw_and_prepared(make(kind))
    now = [move_of(b.obs["eye"][i], raw.obs["eye"][i], 2) for i in range(16) if raw.obs["eye"][i, 0].any()]
    then = [move_of(b.next_obs["eye"][i], raw.next_obs["eye"][i], 2) for i in range(len(now))]
    assert len(set(now)) > 3
    assert now != then
    assert torch.equal(b.obs["arm"], raw.obs["arm"])


@pytest.mark.parametrize("kind", ["sac", "td3", "dqn"])
def test_the_images_of_a_sequence_move_alike(kind: str) -> None:
    """A memory compares them; n steps and burn-in rows belong to the sequence."""
    net = replace(SMALL, memory="gru", memory_width=6)
    nets = {"critic": net} | ({} if kind == "dqn" else {"actor": net})
    raw, b = raw_and_prepared(make(kind, **nets, chunk=4, n_step=2, burn_in=2))
    rows, columns = b.obs["eye"].shape[:2]
    assert rows == 2 + 4 + 2
    for c in range(columns):
        moves = {move_of(b.obs["eye"][t, c], raw.obs["eye"][t, c], 2) for t in range(rows)}
        assert len(moves) == 1
    assert b.next_obs == {}


@pytest.mark.parametrize("kind", ["sac", "td3", "dqn"])
@pytest.mark.parametrize("memory", ["none", "gru"])
def test_copies_of_a_row_move_apart_and_share_a_goal(kind: str, memory: str) -> None:
    """Three times the rows, the mean of their goals, and one priority per row that was drawn."""
    net = replace(SMALL, memory=memory, memory_width=6)
    nets = {"critic": net} | ({} if kind == "dqn" else {"actor": net})
    algo = make(kind, **nets, chunk=4, augment_views=3, priority=0.6, batch_size=32)
    stream = filled(algo)
    assert algo.sampler.ready(stream)
    drawn, raw = algo.sample(stream)
    n = drawn.row.shape[0]
    b = algo.prepared(raw)
    assert b.mask.shape == ((3 * n,) if memory == "none" else (4, 3 * n))
    rows = 0 if memory == "none" else 1
    for x in (raw.reward, raw.weight, raw.obs["arm"], raw.obs["eye"], *raw.action.values()):
        first, *others = x.chunk(3, rows)
        assert all(torch.equal(first, other) for other in others)
    for a, c in zip(raw.core.get("critic", {}).values(), b.core.get("critic", {}).values(), strict=True):
        assert a.shape[0] == 3 * n
        assert torch.equal(a, c)
    eyes = b.obs["eye"].chunk(3, rows)
    assert not torch.equal(eyes[0], eyes[1])
    goal = torch.randn(*b.mask.shape, 5)
    mean = torch.stack(goal.chunk(3, rows)).mean(0)
    torch.testing.assert_close(algo.over_views(goal), torch.cat([mean] * 3, rows))
    told = []
    algo.sampler.tell = lambda drawn, error: told.append((drawn.row.shape, error.shape))
    algo.ratio.due = lambda step: 2
    algo.learn(stream, 10, 100)
    assert len(told) == 2
    assert all(rows == errors for rows, errors in told)


def test_without_it_images_stay() -> None:
    raw, b = raw_and_prepared(make("sac", augment="none"))
    assert torch.equal(b.obs["eye"], raw.obs["eye"])


# -- an encoder that only the critics train ---------------------------------------------------------------------------


def state(net: torch.nn.Module) -> list[Tensor]:
    return [p.clone() for p in net.parameters()]


def differs(net: torch.nn.Module, before: list[Tensor]) -> list[bool]:
    return [not torch.equal(p, q) for p, q in zip(net.parameters(), before, strict=True)]


@pytest.mark.parametrize("kind", ["sac", "td3"])
@pytest.mark.parametrize("memory", ["none", "gru"])
def test_the_actor_sees_by_the_critics_eyes(kind: str, memory: str) -> None:
    """Its own net has no eyes and no memory; what it says changes with the critics' and never changes them."""
    net = replace(SMALL, memory=memory, memory_width=6)
    algo = make(kind, actor=net, critic=net, chunk=4, share_encoder=True)
    torso = algo.actor.torso
    assert isinstance(torso, Behind)
    assert not any("sensors" in name or "core" in name for name, _ in algo.actor.named_parameters())
    raw = raw_and_prepared(algo)[0]
    one = 1 if kind == "sac" else True
    eyes, hidden, before = state(algo.critic.torso.sensors), state(torso.hidden), state(algo.critic)
    algo.update(raw, one)
    assert any(differs(algo.critic.torso.sensors, eyes)), "the critics train them"
    assert all(differs(torso.hidden, hidden))
    after = state(algo.critic)
    loss, _ = algo.adam_actor.descend(lambda actor: (_mean(actor(raw.of("actor"))).square().mean(), ()))
    assert float(loss) > 0
    assert not any(differs(algo.critic, after)), "the actor's own step does not"
    assert any(differs(algo.critic, before))
    obs = {"eye": images(3), "arm": torch.randn(3, 2)}
    said = algo.act(obs, algo.initial(3), False)
    assert not torch.equal(
        said.action["c"], algo.act(obs | {"eye": 255 - obs["eye"]}, algo.initial(3), False).action["c"]
    )
    with torch.no_grad():
        for p in algo.critic.torso.sensors.parameters():
            p.add_(0.3 * torch.randn_like(p))
    assert not torch.equal(said.action["c"], algo.act(obs, algo.initial(3), False).action["c"])


def _mean(said: Any) -> Tensor:
    return said if isinstance(said, Tensor) else said.c.mean  # type: ignore[no-any-return]


def test_a_target_actor_sees_by_the_target_critics_eyes() -> None:
    algo = make("td3", share_encoder=True)
    raw = raw_and_prepared(algo)[0]
    said = algo.target_actor.next(raw)
    with torch.no_grad():
        for p in algo.critic.parameters():
            p.add_(1.0)
    assert torch.equal(algo.target_actor.next(raw), said)
    with torch.no_grad():
        for p in algo.target.torso.sensors.parameters():
            p.add_(0.3 * torch.randn_like(p))
    assert not torch.equal(algo.target_actor.next(raw), said)


def test_both_nets_must_say_the_same_of_what_is_seen() -> None:
    with pytest.raises(UserError, match=r"so --actor.keys must be --critic.keys: \('eye',\), not \(\)"):
        make("sac", critic=replace(SMALL, keys=("eye",)), share_encoder=True)
    with pytest.raises(UserError, match=r"so --actor\.memory must be --critic\.memory: 'none', not 'gru'"):
        make("td3", actor=replace(SMALL, memory="gru"), share_encoder=True)
