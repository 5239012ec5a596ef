"""Encoders: every entry of an observation becomes features, whatever it is and however many dimensions lead."""

from __future__ import annotations

import sys
import types

import pytest
import torch
from torch import Tensor, nn

from kumite.errors import UserError
from kumite.nn.config import Net
from kumite.nn.encoders import (
    ENCODERS,
    Flat,
    OneHot,
    Pixels,
    Residual,
    drq,
    impala,
    make_hidden,
    make_sensors,
    nature,
)
from kumite.types import Spec

NESTED = {
    "arm.joints": Spec((4,)),
    "arm.touch": Spec((2,)),
    "eyes.0": Spec((3, 36, 48), torch.uint8, image=True),
    "eyes.1": Spec((1, 20, 24), torch.uint8, image=True),
    "depth": Spec((1, 12, 9), image=True),
    "gear": Spec((2,), torch.int64, choices=(3, 5)),
    "mask": Spec((6,), torch.bool),
}


def observation(space: dict[str, Spec], *lead: int) -> dict[str, Tensor]:
    """Random values of every kind."""
    out = {}
    for key, spec in space.items():
        if spec.choices:
            out[key] = torch.stack([torch.randint(k, lead) for k in spec.choices], -1)
        elif spec.dtype == torch.uint8:
            out[key] = torch.randint(0, 256, (*lead, *spec.shape), dtype=torch.uint8)
        else:
            out[key] = torch.randn(*lead, *spec.shape).to(spec.dtype)
    return out


def test_nested_observations_join_in_the_order_of_the_space() -> None:
    sensors = make_sensors(NESTED, Net())
    obs = observation(NESTED, 5)
    features = sensors(obs)
    assert features.shape == (5, sensors.size)
    parts = dict(zip(sensors.keys, features.split([n.size for n in sensors.nets], -1), strict=True))
    assert list(parts) == ["arm.joints", "arm.touch", "eyes.0", "eyes.1", "depth", "gear"], "a mask is no input"
    torch.testing.assert_close(parts["arm.joints"], obs["arm.joints"])
    one_hot = torch.cat([nn.functional.one_hot(obs["gear"][:, i], k) for i, k in enumerate((3, 5))], -1).float()
    torch.testing.assert_close(parts["gear"], one_hot)
    for i, key in ((2, "eyes.0"), (3, "eyes.1")):
        torch.testing.assert_close(parts[key], sensors.nets[i].body(obs[key].float() / 255))
    torch.testing.assert_close(parts["depth"], sensors.nets[4].body(obs["depth"])), "floats keep their scale"


@pytest.mark.parametrize("encoder", ENCODERS)
def test_any_leading_dimensions(encoder: str) -> None:
    sensors = make_sensors(NESTED | {"rays": Spec((2, 16))}, Net(encoder=encoder))
    obs = observation(NESTED | {"rays": Spec((2, 16))}, 2, 3)
    features = sensors(obs)
    assert features.shape == (2, 3, sensors.size)
    for i in range(2):
        torch.testing.assert_close(sensors({k: v[i] for k, v in obs.items()}), features[i])
        torch.testing.assert_close(sensors({k: v[i, 2] for k, v in obs.items()}), features[i, 2])


@pytest.mark.parametrize("shape", [(1, 84, 84), (3, 36, 40), (4, 16, 16), (3, 7, 7)])
def test_images_of_any_size_have_features(shape: tuple[int, int, int]) -> None:
    for body in (nature(shape), impala(shape), drq(shape)):
        net = Pixels(shape, 1.0, body)
        assert net(torch.randn(2, *shape)).shape == (2, net.size)
        assert net.size > 0


def test_natures_convolutions_are_the_papers() -> None:
    layers = [m for m in nature((4, 84, 84)) if isinstance(m, nn.Conv2d)]
    assert [(c.out_channels, c.kernel_size[0], c.stride[0]) for c in layers] == [(32, 8, 4), (64, 4, 2), (64, 3, 1)]
    assert Pixels((4, 84, 84), 1.0, nature((4, 84, 84))).size == 64 * 7 * 7


def test_impalas_blocks_add_to_their_input() -> None:
    block = Residual(3)
    nn.init.zeros_(block.body[3].weight)
    nn.init.zeros_(block.body[3].bias)
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(block(x), x)
    assert sum(isinstance(m, Residual) for m in impala((3, 32, 32)).modules()) == 6
    assert Pixels((3, 64, 64), 1.0, impala((3, 64, 64))).size == 32 * 8 * 8


def test_drqs_features_are_few_and_within_one() -> None:
    """35 x 35 places of 32 channels behind the convolutions; a layer norm before the tanh."""
    eye = Pixels((9, 84, 84), 1 / 255, drq((9, 84, 84)))
    layers = [m for m in eye.body.modules() if isinstance(m, nn.Conv2d)]
    assert [(c.out_channels, c.kernel_size[0], c.stride[0]) for c in layers] == [(32, 3, 2)] + [(32, 3, 1)] * 3
    assert eye.body[1].in_features == 32 * 35 * 35
    y = eye(torch.randint(0, 256, (2, 9, 84, 84), dtype=torch.uint8)).detach()
    assert y.shape == (2, 50)
    torch.testing.assert_close(y.atanh().mean(-1), torch.zeros(2), rtol=0, atol=1e-3)
    torch.testing.assert_close(y.atanh().std(-1, correction=0), torch.ones(2), rtol=0, atol=0.1)


def test_encoders_choose_what_an_image_goes_through() -> None:
    space = {"eye": Spec((3, 36, 36), torch.uint8, image=True)}
    bodies = {name: type(make_sensors(space, Net(encoder=name)).nets[0]) for name in ENCODERS}
    assert [k for k, v in bodies.items() if v is Pixels] == ["auto", "nature", "impala", "drq", "simba", "simbav2"]
    flat = make_sensors(space, Net(encoder="mlp"))
    x = observation(space, 4)
    torch.testing.assert_close(flat(x), x["eye"].flatten(1).float() / 255)


def test_rays_go_through_one_dimensional_convolutions() -> None:
    sensors = make_sensors({"rays": Spec((2, 16))}, Net(encoder="conv1d"))
    assert [type(m) for m in sensors.nets[0].body[::2]] == [nn.Conv1d, nn.Conv1d, nn.Flatten]
    assert sensors({"rays": torch.randn(5, 2, 16)}).shape == (5, 32 * 4)


def test_one_hot_of_many_choices() -> None:
    assert OneHot((2, 3))(torch.tensor([[1, 2], [0, 0]])).tolist() == [[0, 1, 0, 0, 1], [1, 0, 1, 0, 0]]


def test_flat_joins_dimensions() -> None:
    x = torch.randn(5, 2, 3)
    assert torch.equal(Flat((2, 3))(x), x.flatten(1))


def test_a_net_sees_its_own_keys() -> None:
    sensors = make_sensors(NESTED, Net(keys=("arm.touch",)))
    obs = observation(NESTED, 5)
    assert torch.equal(sensors(obs), obs["arm.touch"])
    assert torch.equal(sensors({"arm.touch": obs["arm.touch"]}), obs["arm.touch"]), "the others may be absent"


def test_orthogonal_reaches_the_convolutions() -> None:
    body = make_sensors({"eye": Spec((3, 36, 36), image=True)}, Net(init="orthogonal")).nets[0].body
    rows = body[0].weight.flatten(1)
    torch.testing.assert_close(rows @ rows.T, 2 * torch.eye(32), rtol=0, atol=1e-5)


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the user's with two encoders, one of them without a size."""

    class Twice(nn.Module):
        def __init__(self, obs_space: dict[str, Spec]) -> None:
            super().__init__()
            self.keys = list(obs_space)
            self.size = 2 * obs_space["arm.touch"].shape[0]

        def forward(self, obs: dict[str, Tensor]) -> Tensor:
            return torch.cat([obs["arm.touch"]] * 2, -1)

    class Sizeless(nn.Module):
        def __init__(self, obs_space: dict[str, Spec]) -> None:
            super().__init__()

    module = types.ModuleType("own_encoders")
    module.Twice, module.Sizeless = Twice, Sizeless  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_encoders", module)
    return "own_encoders"


def test_an_own_class_gets_the_specs_of_its_keys(own: str) -> None:
    sensors = make_sensors(NESTED, Net(keys=("arm.touch", "arm.joints"), encoder=f"{own}:Twice"))
    assert sensors.keys == ["arm.joints", "arm.touch"]
    assert sensors.size == 4
    assert sensors(observation(NESTED, 5)).shape == (5, 4)


@pytest.mark.parametrize(
    ("net", "sentence"),
    [
        (Net(encoder="natur"), "unknown encoder 'natur'; did you mean 'nature'"),
        (Net(keys=("arm.joint",)), r"no entry 'arm.joint'; did you mean 'arm.joints'.*it has: arm.joints, arm.touch"),
        (Net(encoder="own_encoders:Thrice"), "cannot load 'own_encoders:Thrice'"),
        (Net(encoder="no_such_module:Twice"), "cannot load 'no_such_module:Twice'"),
        (Net(encoder="own_encoders:Sizeless"), r"must set self\.size"),
    ],
)
def test_mistakes_are_named(own: str, net: Net, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        make_sensors(NESTED, net)


@pytest.mark.parametrize("encoder", ["auto", "simba"])
def test_bfloat16_rounds_inside_and_says_float32(encoder: str) -> None:
    torch.manual_seed(0)
    full, low = (
        nn.ModuleList([make_sensors(NESTED, net), make_hidden(30, net)])
        for net in (Net(encoder=encoder), Net(encoder=encoder, bf16=True))
    )
    low.load_state_dict(dict(zip(low.state_dict(), full.state_dict().values(), strict=True)))
    for (exact, rounded), x in zip(
        zip(full, low, strict=True), (observation(NESTED, 7), torch.randn(7, 30)), strict=True
    ):
        one, two = exact(x), rounded(x)
        assert two.dtype == torch.float32 and not torch.equal(one, two)
        torch.testing.assert_close(two, one, rtol=0.05, atol=0.05)
        two.square().sum().backward()
        assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in rounded.parameters())
