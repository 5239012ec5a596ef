"""Loops in C against torch's convolutions: the same numbers but for rounding, and torch wherever they do not fit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from kumite import native
from kumite.nn import convs
from kumite.nn.convs import Convs, loops
from kumite.nn.encoders import Pixels, drq, nature

STACKS = {
    "nature": (4, 84, 84),
    "drq": (9, 48, 40),
    "one plane, lines of odd lengths": ((1, 37, 50), [(32, 8, 4, 0), (64, 4, 2, 0), (64, 3, 1, 0)]),
    "few channels, a last line of its own": ((3, 21, 30), [(16, 5, 2, 0)]),
    "kernels of one and seven": ((5, 40, 41), [(48, 2, 2, 0), (16, 1, 1, 0), (32, 7, 3, 0)]),
}
quick = pytest.mark.skipif(loops((4, 84, 84), ((32, 8, 4, 0),)) is None, reason="no compiler or no such CPU")


def eye(name: str) -> tuple[Pixels, tuple[int, ...]]:
    if name in ("nature", "drq"):
        shape = STACKS[name]
        return Pixels(shape, 1 / 255, (nature if name == "nature" else drq)(shape)), shape
    shape, sizes = STACKS[name]
    return Pixels(shape, 1 / 255, Convs(shape, sizes)), shape


def by_torch(net: Pixels, x: Tensor) -> Tensor:
    return net.body(net.floats(x))


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-5 * float(expected.detach().abs().max()))


@quick
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", STACKS)
def test_features_and_gradients_are_torchs(name: str, threads: int) -> None:
    net, shape = eye(name)
    x = torch.randint(0, 256, (7, *shape), dtype=torch.uint8)  # no multiple of what is worked on at once
    params, up = list(net.parameters()), torch.randn(7, net.size)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert net.quick and net.convs[0].quick(x)
        y, expected = net(x), by_torch(net, x)
        close(y, expected)
        with torch.no_grad():
            assert torch.equal(net(x), y), "acting and learning see the same"
        for found, right in zip(torch.autograd.grad(y, params, up), torch.autograd.grad(expected, params, up)):
            close(found, right)
    finally:
        torch.set_num_threads(before)


@quick
def test_activations_of_two_passes_are_kept_apart() -> None:
    net, shape = eye("few channels, a last line of its own")
    params = list(net.parameters())
    for _ in range(2):  # the second time with memory that the first has left
        x, z = torch.randint(0, 256, (2, 3, *shape), dtype=torch.uint8)
        found = torch.autograd.grad((net(x) - 2 * net(z)).square().sum(), params)
        right = torch.autograd.grad((by_torch(net, x) - 2 * by_torch(net, z)).square().sum(), params)
        for a, b in zip(found, right):
            close(a, b)
    y = net(x).sum()
    torch.autograd.grad(y, params, retain_graph=True)
    with pytest.raises(Exception, match=r"kept|NoneType"):  # its activations may be another pass's by now
        torch.autograd.grad(y, params)


@quick
def test_what_is_not_a_number_stays_so() -> None:
    net, shape = eye("nature")
    with torch.no_grad():
        net.convs[0][0].bias[3] = torch.nan
        assert net(torch.zeros(1, *shape, dtype=torch.uint8)).isnan().any()


@quick
def test_torch_does_what_the_loops_cannot() -> None:
    net, shape = eye("nature")
    x = torch.randint(0, 256, (2, *shape), dtype=torch.uint8)
    assert not net.convs[0].quick(x.float())
    with torch.autocast("cpu", torch.bfloat16):
        assert not net.convs[0].quick(x)
        assert net(x).dtype == torch.bfloat16
    assert not Pixels(shape, 1.0, nature(shape)).quick, "floats"
    assert not nature((4, 84, 84)).double().quick(x)
    small = Pixels((3, 20, 20), 1 / 255, nature((3, 20, 20)))
    assert not small.quick, "padding"
    assert small(torch.zeros(2, 3, 20, 20, dtype=torch.uint8)).shape == (2, small.size)
    assert loops((4, 40, 40), ((20, 8, 4, 0),)) is None, "channels that fill no vector"
    graph = torch.compile(net, backend="eager", fullgraph=True)
    close(graph(x), by_torch(net, x))


def test_without_a_compiler_torch_does_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native.shutil, "which", lambda name: None)
    monkeypatch.setattr(convs, "loops", convs.loops.__wrapped__)
    net, shape = eye("nature")
    x = torch.randint(0, 256, (2, *shape), dtype=torch.uint8)
    assert not net.quick
    assert torch.equal(net(x), by_torch(net, x))


def test_checkpoints_name_the_layers_as_a_plain_sequence_does() -> None:
    names = [f"{i}.{part}" for i in (0, 2, 4) for part in ("weight", "bias")]
    assert list(nature((4, 84, 84)).state_dict()) == names
    assert [type(m) for m in nature((4, 84, 84))] == [nn.Conv2d, nn.ReLU] * 3 + [nn.Flatten]
