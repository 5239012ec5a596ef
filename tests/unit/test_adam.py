"""Adam.descend takes torch's steps, on its own net alone, eagerly and compiled."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kumite.nn.adam import Adam, polyak_


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def data(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(16, 4, generator=generator), 10 * torch.randn(16, 2, generator=generator)


def loss_of(f: Any, step: int) -> Tensor:
    x, y = data(step)
    return (f(x) - y).square().mean()


@pytest.mark.parametrize("clip", [0.0, 0.5, 100.0])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_fifty_steps_are_torchs(clip: float, decay: float) -> None:
    """torch.optim.AdamW behind clip_grad_norm_; without decay that is Adam. The learning rate changes on the way."""
    ours, theirs = net(), net()
    theirs.load_state_dict(ours.state_dict())
    adam = Adam(ours, 1e-2, 1e-6, decay, clip, (0.8, 0.99))
    other = torch.optim.AdamW(theirs.parameters(), 1e-2, (0.8, 0.99), 1e-6, decay)
    for step in range(50):
        if step == 25:
            adam.lr.fill_(3e-3)
            other.param_groups[0]["lr"] = 3e-3
        found, aux = adam.descend(lambda f, step=step: (loss_of(f, step), step))
        assert aux == step
        expected = loss_of(theirs, step)
        other.zero_grad()
        expected.backward()
        if clip:
            nn.utils.clip_grad_norm_(theirs.parameters(), clip)
        other.step()
        torch.testing.assert_close(found, expected.detach(), rtol=1e-4, atol=1e-5)
    assert float(adam.t) == 50
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("beta", [0.9, 0.5, 0.0])
def test_plain_adam_is_torchs(beta: float) -> None:
    ours, theirs = net(), net()
    theirs.load_state_dict(ours.state_dict())
    adam, other = Adam(ours, 3e-3, betas=(beta, 0.999)), torch.optim.Adam(theirs.parameters(), 3e-3, (beta, 0.999))
    for step in range(10):
        adam.descend(lambda f, step=step: (loss_of(f, step), ()))
        other.zero_grad()
        loss_of(theirs, step).backward()
        other.step()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q.detach())


def test_other_nets_are_constants() -> None:
    moving, still = net(), net()
    adam, adam_still = Adam(moving), Adam(still)
    before = deepcopy(still.state_dict())
    x, _ = data(0)
    adam.descend(lambda f: ((f(x) * still(x)).sum(), ()))
    for key, value in still.state_dict().items():
        assert torch.equal(value, before[key])
    assert all(p.grad is None for p in [*moving.parameters(), *still.parameters()])
    assert float(adam_still.t) == 0


def test_a_net_looked_through_passes_the_gradient_on() -> None:
    """As the critic does in the actor's loss."""
    moving, still, theirs = net(), nn.Linear(2, 1), net()
    theirs.load_state_dict(moving.state_dict())
    adam, _ = Adam(moving, 1.0), Adam(still)
    x, _ = data(0)
    adam.descend(lambda f: (still(f(x)).sum(), ()))
    still(theirs(x)).sum().backward()
    for i, q in enumerate(theirs.parameters()):
        assert q.grad is not None
        torch.testing.assert_close(getattr(adam, f"m{i}"), 0.1 * q.grad)


def test_nothing_requires_grad_outside() -> None:
    moving = net()
    adam = Adam(moving)
    assert not any(p.requires_grad for p in moving.parameters())
    x, _ = data(0)
    with torch.no_grad():  # as the training loop calls it
        loss, aux = adam.descend(lambda f: (f(x).sum(), {"y": f(x), "more": (f(x), [f(x)])}))
    tensors = [loss, aux["y"], aux["more"][0], aux["more"][1][0], *moving.parameters(), *adam.buffers()]
    assert not any(t.requires_grad for t in tensors)


def test_a_loss_that_fails_leaves_nothing_requiring_grad() -> None:
    moving = net()
    adam = Adam(moving)
    before = deepcopy(moving.state_dict())
    with pytest.raises(ZeroDivisionError):
        adam.descend(lambda f: 1 / 0)  # type: ignore[arg-type, return-value]
    assert not any(p.requires_grad for p in moving.parameters())
    assert float(adam.t) == 0
    assert all(torch.equal(v, before[k]) for k, v in moving.state_dict().items())


def test_parameters_a_loss_does_not_use_stay() -> None:
    moving = net()
    adam = Adam(moving)
    last = deepcopy(moving[2].state_dict())
    x, _ = data(0)
    adam.descend(lambda f: (moving[0](x).square().sum(), ()))
    assert all(torch.equal(v, last[k]) for k, v in moving[2].state_dict().items())


def test_a_checkpoint_holds_all_of_it() -> None:
    """A copy that is loaded takes the same next step."""
    first, second = net(), net()
    adam, other = Adam(first, 1e-2), Adam(second, 5.0)
    for step in range(5):
        adam.descend(lambda f, step=step: (loss_of(f, step), ()))
    second.load_state_dict(first.state_dict())
    other.load_state_dict(adam.state_dict())
    assert not any(key.startswith("net") for key in adam.state_dict()), "the net belongs to its algorithm"
    for a in (adam, other):
        a.descend(lambda f: (loss_of(f, 9), ()))
    for p, q in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.slow
def test_compiled_steps_are_the_eager_ones() -> None:
    """All of them: a counter that stood still in the compiled graph once made every step a first one."""
    eager, compiled = net(), net()
    compiled.load_state_dict(eager.state_dict())
    adam, other = Adam(eager, 1e-2, clip=1.0, weight_decay=0.1), Adam(compiled, 1e-2, clip=1.0, weight_decay=0.1)

    def update(a: Adam, x: Tensor, y: Tensor) -> Tensor:
        return a.descend(lambda f: ((f(x) - y).square().mean(), ()))[0]

    graph = torch.compile(lambda x, y: update(other, x, y), fullgraph=True)
    with torch.no_grad():
        for step in range(6):
            adam.lr.mul_(0.9)
            other.lr.mul_(0.9)
            torch.testing.assert_close(graph(*data(step)), update(adam, *data(step)), rtol=1e-4, atol=1e-5)
            assert float(other.t) == step + 1, "counters grow inside the graph"
    for p, q in zip(eager.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)
        assert not q.requires_grad
    for a, b in zip(adam.state_dict().values(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_no_counter_is_a_float64_number() -> None:
    """torch 2.13 on the CPU loses in-place changes of such tensors in compiled graphs without a word."""
    for buffer in Adam(net()).buffers():
        assert buffer.dtype == torch.float32


@pytest.mark.parametrize("tau", [0.0, 0.005, 1.0])
def test_polyak_moves_a_share_of_the_way(tau: float) -> None:
    target, source = net().requires_grad_(False), net().requires_grad_(False)
    before = deepcopy(target.state_dict())
    polyak_(target, source, tau)
    for key, value in target.state_dict().items():
        torch.testing.assert_close(value, (1 - tau) * before[key] + tau * source.state_dict()[key])
