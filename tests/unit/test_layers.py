"""Layers: an ensemble is its members side by side; initial weights and names."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from kumite.errors import UserError
from kumite.nn.config import Net
from kumite.nn.encoders import Hidden
from kumite.nn.layers import (
    ACTIVATIONS,
    NARROW,
    EnsembleLinear,
    EnsembleNorm,
    Spread,
    activation,
    linear,
    norm,
    orthogonal_,
)


def member(layer: EnsembleLinear, e: int) -> nn.Linear:
    """One of its layers as torch's own."""
    alone = nn.Linear(layer.weight.shape[1], layer.weight.shape[2])
    alone.weight.data, alone.bias.data = layer.weight[e].T.clone(), layer.bias[e, 0].clone()
    return alone


@pytest.mark.parametrize("lead", [(), (5,), (3, 5)])
def test_an_ensemble_is_separate_layers(lead: tuple[int, ...]) -> None:
    layer, x = EnsembleLinear(4, 6, 3), torch.randn(4, *lead, 6)
    y = layer(x)
    assert y.shape == (4, *lead, 3)
    for e in range(4):
        torch.testing.assert_close(y[e], member(layer, e)(x[e]))


def test_members_learn_apart() -> None:
    layer, x = EnsembleLinear(3, 6, 2), torch.randn(5, 6)
    y = layer(Spread(3)(x))
    (gradient,) = torch.autograd.grad(y[1].square().sum(), layer.weight)
    assert gradient[0].abs().sum() == gradient[2].abs().sum() == 0
    assert gradient[1].abs().sum() > 0


@pytest.mark.slow
def test_layers_of_a_graph_are_the_eager_ones() -> None:
    """Graphs make products in ways of their own, by loops or with the bias apart; sums in another order: 1e-5."""
    layers, inputs = [], []
    for size_out in (NARROW, NARROW + 1):
        layers += [linear(9, size_out), linear(9, size_out, 2)]
        inputs += [torch.randn(4, 3, 9), torch.randn(2, 4, 3, 9)]

    def all_of(inputs: list[Tensor]) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
        def loss(p: dict[str, Tensor], layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
            y = functional_call(layer, p, (x,))
            return y.square().sum(), y

        found = [grad(loss, has_aux=True)(dict(layer.named_parameters()), layer, x) for layer, x in zip(layers, inputs)]
        return [y for _, y in found], [g for g, _ in found]

    ys, gradients = torch.compile(all_of, fullgraph=True, dynamic=False)(inputs)
    for y, gradient, layer, x in zip(ys, gradients, layers, inputs, strict=True):
        expected = layer(x)
        torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
        slopes = torch.autograd.grad(expected.square().sum(), list(layer.parameters()))
        torch.testing.assert_close(list(gradient.values()), list(slopes), rtol=1e-5, atol=1e-5)


def test_spread_copies_nothing() -> None:
    x = torch.randn(5, 6)
    assert Spread(3)(x).shape == (3, 5, 6)
    assert Spread(3)(x).data_ptr() == x.data_ptr()


def test_members_begin_as_torchs_layers_do() -> None:
    layer = EnsembleLinear(200, 16, 3)
    assert layer.weight.abs().max() <= 0.25
    assert layer.weight.std().item() == pytest.approx(0.25 / math.sqrt(3), rel=0.05)
    assert not torch.equal(layer.weight[0], layer.weight[1])


def test_an_ensembles_norm_is_separate_norms() -> None:
    layer, x = EnsembleNorm(2, 6), torch.randn(2, 3, 5, 6)
    layer.weight.data, layer.bias.data = torch.randn(2, 6), torch.randn(2, 6)
    for e in range(2):
        alone = nn.functional.layer_norm(x[e], (6,), layer.weight[e], layer.bias[e])
        torch.testing.assert_close(layer(x)[e], alone)


@pytest.mark.parametrize("name", ["none", "layer", "rms"])
@pytest.mark.parametrize("members", [0, 3])
def test_a_whole_ensemble_of_hidden_layers_is_separate_nets(name: str, members: int) -> None:
    """Also checks one net without ensemble against its formula."""
    hidden, x = Hidden(6, Net(layers=(5, 4), norm=name, activation="tanh"), members), torch.randn(7, 6)
    y = hidden(x)
    assert hidden.size == 4

    def layer_of(i: int, z: Tensor, e: int) -> Tensor:
        first = hidden.layers[i][0]
        z = (member(first, e) if members else first)(z)
        if name == "layer":
            z = nn.functional.layer_norm(z, z.shape[-1:])
        if name == "rms":
            z = z / (z.square().mean(-1, keepdim=True) + torch.finfo(z.dtype).eps).sqrt()
        return z.tanh()

    for e in range(max(1, members)):
        torch.testing.assert_close(y[e] if members else y, layer_of(1, layer_of(0, x, e), e), rtol=1e-5, atol=1e-5)


def test_d2rl_feeds_the_input_to_every_layer() -> None:
    hidden, x = Hidden(6, Net(layers=(5, 4, 3), encoder="d2rl"), 0), torch.randn(7, 6)
    y = x
    for i, layer in enumerate(hidden.layers):
        y = (nn.functional.linear(y if i == 0 else torch.cat([y, x], -1), layer[0].weight, layer[0].bias)).relu()
    torch.testing.assert_close(hidden(x), y)


def test_layers_replace_width_and_depth() -> None:
    def sizes(net: Net) -> list[int]:
        return [layer[0].out_features for layer in Hidden(6, net).layers]

    assert sizes(Net(width=9, depth=3)) == [9, 9, 9]
    assert sizes(Net(width=9, depth=3, layers=(8, 4))) == [8, 4]
    assert Hidden(6, Net(depth=0)).size == 6, "no hidden layer hands its input on"


@pytest.mark.parametrize("layer", [nn.Linear(8, 5), nn.Conv2d(2, 5, 3), nn.Conv1d(2, 5, 3)])
def test_orthogonal_weights(layer: nn.Module) -> None:
    orthogonal_(layer, 1.5)
    rows = layer.weight.flatten(1)
    torch.testing.assert_close(rows @ rows.T, 2.25 * torch.eye(5), rtol=0, atol=1e-5)
    assert not layer.bias.any()


def test_every_member_is_orthogonal_by_itself() -> None:
    layer = EnsembleLinear(3, 8, 5)
    orthogonal_(nn.Sequential(layer), 1.0)
    products = layer.weight.transpose(1, 2) @ layer.weight
    torch.testing.assert_close(products, torch.eye(5).expand(3, 5, 5), rtol=0, atol=1e-5)
    assert not layer.bias.any()
    assert not torch.equal(layer.weight[0], layer.weight[1])


def test_the_init_of_a_net() -> None:
    for members in (0, 2):
        first = Hidden(8, Net(layers=(8,), init="orthogonal"), members).layers[0][0].weight
        w = first[0] if members else first
        torch.testing.assert_close(w @ w.T, 2 * torch.eye(8), rtol=0, atol=1e-5)
        assert not torch.allclose(w @ w.T, Hidden(8, Net(layers=(8,))).layers[0][0].weight)


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_activations_are_torchs_functions(name: str) -> None:
    x = torch.linspace(-3, 3, 20)
    function = getattr(torch, name, None) or getattr(nn.functional, name)
    torch.testing.assert_close(activation(name)(x), function(x))


def test_unknown_names_name_the_nearest() -> None:
    with pytest.raises(UserError, match="unknown activation 'rellu'; did you mean 'relu'"):
        activation("rellu")
    with pytest.raises(UserError, match=r"unknown norm 'batch' \(known: none, layer, rms, renorm\)"):
        norm("batch", 4)
    with pytest.raises(UserError, match="unknown init 'ortho'"):
        Hidden(4, Net(init="ortho"))


def test_one_layer_is_torchs() -> None:
    assert isinstance(linear(3, 4), nn.Linear)
    assert norm("none", 4) == []
