"""Simba and SimbaV2 by hand: blocks, initial weights, ensembles as nets side by side, weights that stay on spheres."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from kumite.algos.ppo import PPO, PPOConfig
from kumite.algos.sac import SAC, SACConfig
from kumite.errors import UserError
from kumite.nn.adam import Adam
from kumite.nn.config import Net
from kumite.nn.encoders import make_hidden, make_out, make_sensors
from kumite.nn.layers import EnsembleLinear, EnsembleNorm
from kumite.nn.simba import Embedder, Lerp, Residual, Scaler, Simba, SimbaV2, UnitHead, UnitLinear
from kumite.types import ActionSpec, Spec

V1, V2 = Net(encoder="simba", width=6, depth=2), Net(encoder="simbav2", width=6, depth=2)
kinds = pytest.mark.parametrize("net", [V1, V2], ids=["simba", "simbav2"])


def stir(net: nn.Module) -> nn.Module:
    """No parameter keeps a value that hides its effect, such as 0 or 1."""
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return net


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight + bias


def sphere(x: Tensor) -> Tensor:
    return x / x.square().sum(-1, keepdim=True).sqrt()


# -- Simba ------------------------------------------------------------------------------------------------------------


def test_simba_by_hand() -> None:
    net, x = stir(Simba(5, V1)), torch.randn(7, 5)
    _, enter, *blocks, leave = net.layers
    y = x @ enter.weight.T + enter.bias
    for block in blocks:
        assert isinstance(block, Residual)
        n, first, _, second = block.body
        z = layer_norm(y, n.weight, n.bias) @ first.weight.T + first.bias
        y = y + z.clamp(min=0) @ second.weight.T + second.bias
    torch.testing.assert_close(net(x), layer_norm(y, leave.weight, leave.bias), rtol=1e-4, atol=1e-5)
    assert len(blocks) == 2
    assert blocks[0].body[1].weight.shape == (24, 6), "four times the stream inside"


@pytest.mark.parametrize("members", [0, 3])
def test_simba_begins_orthogonal_outside_and_he_normal_inside(members: int) -> None:
    net = Simba(64, Net(encoder="simba", width=48, depth=1), members)
    _, enter, block, _ = net.layers
    weights = [enter.weight, block.body[1].weight, block.body[3].weight]
    w, first, second = (w if members else w.T[None] for w in weights)  # [E, in, out]
    products = w.mT @ w
    torch.testing.assert_close(products, torch.eye(48).expand_as(products), rtol=0, atol=1e-5)
    assert first.std().item() == pytest.approx(math.sqrt(2 / 48), rel=0.03)
    assert second.std().item() == pytest.approx(math.sqrt(2 / 192), rel=0.03)
    assert first.abs().max() > 3 * math.sqrt(2 / 48), "normal, not uniform"
    for layer in net.modules():
        if isinstance(layer, (nn.Linear, EnsembleLinear)):
            assert not layer.bias.any()


def test_a_head_on_simba_is_orthogonal() -> None:
    for members in (0, 3):
        w = make_out(6, (2, 0, 3), V1, members).weight
        w = w if members else w.T[None]
        products = w.mT @ w
        torch.testing.assert_close(products, torch.eye(5).expand_as(products), rtol=0, atol=1e-5)
    torch.manual_seed(0)
    plain = make_out(6, (2, 3), Net())
    torch.manual_seed(0)
    assert torch.equal(plain.weight, nn.Linear(6, 5).weight), "other nets begin as torch's do"


# -- SimbaV2 ----------------------------------------------------------------------------------------------------------


def test_a_scaler_starts_at_init_and_learns_at_the_pace_of_its_scale() -> None:
    scaler, x = Scaler(3, init=0.2, scale=0.05), torch.tensor([[1.0, -2.0, 4.0]])
    torch.testing.assert_close(scaler(x), 0.2 * x)
    assert scaler.p.tolist() == pytest.approx([0.05] * 3)
    with torch.no_grad():
        scaler.p += 0.01
    torch.testing.assert_close(scaler(x), (0.05 + 0.01) * 0.2 / 0.05 * x)


def scale(scaler: Scaler) -> Tensor:
    return scaler.p * scaler.factor


def test_simba_v2_by_hand() -> None:
    net, x = stir(SimbaV2(5, V2)), torch.randn(7, 5)
    _, embed, *blocks = net.layers
    assert isinstance(embed, Embedder)
    lifted = torch.cat([x, torch.full((7, 1), 3.0)], -1)
    y = sphere(scale(embed.scaler) * (sphere(lifted) @ embed.enter.weight))
    for block in blocks:
        assert isinstance(block, Lerp)
        inner = (scale(block.scaler) * (y @ block.enter.weight)).clamp(min=0) + 1e-8
        y = sphere(y + scale(block.share) * (sphere(inner @ block.leave.weight) - y))
    torch.testing.assert_close(net(x), y, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(y.norm(dim=-1), torch.ones(7))
    head = stir(UnitHead(6, 4))
    expected = (scale(head.scaler) * (y @ head.enter.weight)) @ head.leave.weight + head.bias
    torch.testing.assert_close(head(y), expected, rtol=1e-4, atol=1e-5)


def test_the_papers_scales() -> None:
    net = SimbaV2(5, Net(encoder="simbav2", width=32, depth=3))
    _, embed, block, *_ = net.layers
    s = math.sqrt(2 / 32)
    assert scale(embed.scaler)[0].item() == pytest.approx(s)
    assert embed.scaler.p[0].item() == pytest.approx(s)
    assert block.scaler.p.shape == (128,)
    assert block.scaler.p[0].item() == pytest.approx(s / 2)
    assert scale(block.scaler)[0].item() == pytest.approx(s / 2)
    assert scale(block.share)[0].item() == pytest.approx(1 / 4)
    assert block.share.p[0].item() == pytest.approx(1 / math.sqrt(32))
    head = UnitHead(32, 4)
    assert (scale(head.scaler) == 1).all()
    assert not head.bias.any()


def test_the_length_of_an_observation_is_not_lost() -> None:
    """Without the constant beside it, an input and its double would be the same direction."""
    net, x = SimbaV2(5, V2), torch.randn(7, 5)
    assert not torch.allclose(net(x), net(2 * x), atol=1e-2)


def columns(net: nn.Module) -> Tensor:
    """The lengths of the weights into every unit of the net: all of them."""
    layers = [m for m in net.modules() if isinstance(m, UnitLinear)]
    assert layers
    return torch.cat([layer.weight.norm(dim=-2).flatten() for layer in layers])


@pytest.mark.parametrize("members", [0, 3])
@pytest.mark.parametrize(("size_in", "size_out"), [(4, 9), (9, 4)])
def test_weights_into_a_unit_have_length_one_from_the_start(size_in: int, size_out: int, members: int) -> None:
    layer = UnitLinear(size_in, size_out, members)
    torch.testing.assert_close(columns(layer), torch.ones(size_out * max(members, 1)))
    x = torch.randn(*([members] if members else []), 5, size_in)
    torch.testing.assert_close(layer(x), torch.einsum("...bi,...io->...bo", x, layer.weight), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("members", [0, 3])
def test_weights_stay_on_the_sphere_after_steps(members: int) -> None:
    """Along the axis of the inputs; along the other axis lengths move."""
    net = nn.Sequential(SimbaV2(5, V2, members), make_out(6, (2,), V2, members))
    before = {name: p.clone() for name, p in net.named_parameters()}
    adam, x = Adam(net, 1e-2), torch.randn(7, 5)
    for _ in range(3):
        adam.descend(lambda f: ((f(x) - 3).square().mean(), ()))
    assert all(not torch.equal(p, before[name]) for name, p in net.named_parameters()), "all of it learns"
    torch.testing.assert_close(columns(net), torch.ones_like(columns(net)), rtol=0, atol=1e-6)
    rows = next(m for m in net.modules() if isinstance(m, Lerp)).enter.weight.norm(dim=-1)
    assert (rows - 1).abs().min() > 1e-3


# -- both -------------------------------------------------------------------------------------------------------------


@kinds
def test_an_ensemble_is_separate_nets(net: Net) -> None:
    whole = nn.Sequential(stir(make_hidden(5, net, 3)), stir(make_out(6, (2, 0, 1), net, 3)))
    x = torch.randn(4, 7, 5)
    y = whole(x)
    assert y.shape == (3, 4, 7, 3)
    for e in range(3):
        alone = nn.Sequential(make_hidden(5, net), make_out(6, (2, 0, 1), net))
        theirs = dict(whole.named_parameters())
        layers = dict(whole.named_modules())
        with torch.no_grad():
            for name, p in alone.named_parameters():
                owner = layers[name.rpartition(".")[0]]
                q = theirs[name][e]
                if isinstance(owner, EnsembleLinear):
                    q = q.T if name.endswith("weight") else q[0]
                assert isinstance(owner, (EnsembleLinear, EnsembleNorm, Scaler, UnitLinear, UnitHead))
                p.copy_(q)
        torch.testing.assert_close(y[e], alone(x), rtol=1e-4, atol=1e-5)


@kinds
def test_images_go_through_convolutions_first(net: Net) -> None:
    space = {"eye": Spec((3, 36, 36), torch.uint8, image=True), "arm": Spec((2,))}
    sensors = make_sensors(space, net)
    assert [type(m) for m in sensors.nets[0].body[:2]] == [nn.Conv2d, nn.ReLU]
    assert make_hidden(sensors.size, net).size == 6


@kinds
def test_width_is_the_stream_and_depth_the_blocks(net: Net) -> None:
    def blocks(**shape: object) -> tuple[int, int]:
        from dataclasses import replace

        hidden = make_hidden(5, replace(net, **shape))  # type: ignore[arg-type]
        return hidden.size, sum(isinstance(m, (Residual, Lerp)) for m in hidden.modules())  # type: ignore[return-value]

    assert blocks(width=8, depth=3) == (8, 3)
    assert blocks(layers=(4, 4)) == (4, 2)
    with pytest.raises(UserError, match=r"--encoder simba.* all of \[4, 5\] must be equally wide"):
        blocks(layers=(4, 5))


@kinds
@pytest.mark.parametrize("kind", ["sac", "ppo"])
def test_every_net_of_an_algorithm_is_of_that_kind(kind: str, net: Net) -> None:
    """Encoder and last layer, of actor and critic; PPO's policy begins as even as ever."""
    space, action = {"obs": Spec((3,))}, ActionSpec(2, (3,))
    algo: SAC | PPO
    if kind == "sac":
        algo = SAC(space, action, 1, SACConfig(actor=net, critic=net, buffer_size=50))
        actor, torsos, outs = algo.actor, [algo.actor.torso, algo.critic.torso], [algo.actor.head.out, algo.critic.out]
    else:
        algo = PPO(space, action, 1, PPOConfig(actor=net, critic=net))
        actor, torsos, outs = algo.net.actor, [algo.net.actor.torso, algo.net.critic], [algo.net.value]
    assert all(isinstance(t.hidden, Simba if net is V1 else SimbaV2) for t in torsos)
    if net is V2:
        assert all(isinstance(m, UnitHead) for out in outs for m in out.heads)
        assert len(actor.head.out.heads) == (3 if kind == "sac" else 2), "mean, log deviation and logits apart"
    policy, _ = actor.step({"obs": torch.randn(5, 3)}, {})
    assert policy.c.mean.shape == (5, 2)
    assert policy.d.p.shape == (5, 3)
