"""Noise on actions: its size over time and copies, the walk's statistics, and what an episode's end does to it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kumite.errors import UserError
from kumite.nn.noise import Noise, NoiseConfig


def deviations(noise: Noise, slots: int, steps: int = 4000) -> Tensor:
    """Of each copy's actions around 0."""
    return torch.stack([noise.follow(torch.zeros(slots, 1), None)[:, 0] for _ in range(steps)]).std(0)


def test_gaussian_noise_has_its_deviation_and_respects_the_limits() -> None:
    noise = Noise(NoiseConfig(std=0.2), 3, 2)
    out = noise.follow(torch.zeros(3, 2).expand(3, 2), None)
    assert out.shape == (3, 2)
    torch.testing.assert_close(
        deviations(Noise(NoiseConfig(std=0.2), 3, 1), 3), torch.full((3,), 0.2), rtol=0.05, atol=0
    )
    edge = noise.follow(torch.ones(3, 2), None)
    assert bool((edge <= 1).all())
    assert bool((edge < 1).any())


def test_no_noise_is_none() -> None:
    c = torch.rand(4, 2)
    assert torch.equal(Noise(NoiseConfig(kind="none"), 4, 2).follow(c, None), c)
    assert torch.equal(Noise(NoiseConfig(std=0.0), 4, 2).follow(c, None), c)


@pytest.mark.parametrize(
    ("numbers", "at", "std"),
    [
        ({}, 500, 0.4),
        ({"std_end": 0.1}, 0, 0.4),
        ({"std_end": 0.1}, 500, 0.25),
        ({"std_end": 0.1}, 1000, 0.1),
        ({"std_end": 0.1, "share": 0.5}, 250, 0.25),
        ({"std_end": 0.1, "share": 0.5}, 800, 0.1),
        ({"std_end": 0.1, "steps": 100}, 50, 0.25),
        ({"std_end": 0.1, "schedule": "cosine"}, 250, 0.4 - 0.3 * 0.1464466),
    ],
)
def test_the_deviation_follows_its_schedule(numbers: dict[str, Any], at: int, std: float) -> None:
    noise = Noise(NoiseConfig(std=0.4, **numbers), 1, 1)
    noise.schedule(at, 1000)
    assert float(noise.std) == pytest.approx(std)


@pytest.mark.parametrize(
    ("numbers", "levels"),
    [
        ({"copies": "spread", "floor": 0.1}, [0.1, 0.2, 0.3]),
        ({"copies": "ladder"}, [0.3, 0.3**4.5, 0.3**8]),
        ({}, [0.3, 0.3, 0.3]),
    ],
)
def test_copies_differ(numbers: dict[str, Any], levels: list[float]) -> None:
    noise = Noise(NoiseConfig(std=0.3, **numbers), 3, 1)
    torch.testing.assert_close(deviations(noise, 3), torch.tensor(levels), rtol=0.06, atol=0)
    part = torch.stack([noise.follow(torch.zeros(2, 1), torch.tensor([2, 0]))[:, 0] for _ in range(4000)]).std(0)
    torch.testing.assert_close(part, torch.tensor([levels[2], levels[0]]), rtol=0.06, atol=0)


def test_a_ladder_stands_below_one() -> None:
    with pytest.raises(UserError, match="must be below 1"):
        Noise(NoiseConfig(std=1.0, copies="ladder"), 3, 1)


def test_levels_that_are_drawn_are_drawn_per_episode() -> None:
    noise = Noise(NoiseConfig(std=0.4, copies="random", floor=0.1), 3, 1)
    noise.begin(torch.tensor([True, True, True]), None)
    first = noise.levels.clone()
    noise.begin(torch.tensor([False, False, False]), None)
    assert torch.equal(noise.levels, first)
    noise.begin(torch.tensor([False, True]), torch.tensor([0, 2]))
    assert torch.equal(noise.levels[:2], first[:2])
    assert noise.levels[2] != first[2]
    seen = []
    for _ in range(500):
        noise.begin(torch.ones(3, dtype=torch.bool), None)
        seen.append(noise.levels * noise.std)
    seen_all = torch.cat(seen)
    assert 0.1 <= float(seen_all.min()) < 0.12
    assert 0.38 < float(seen_all.max()) <= 0.4
    assert float(seen_all.mean()) == pytest.approx(0.25, abs=0.01)


def test_the_walk_is_the_recursion() -> None:
    """x <- (1 - theta) x + xi, the action moves by std x; after an episode's end x begins at 0."""
    noise, x = Noise(NoiseConfig("ou", std=0.05, theta=0.3), 2, 1), torch.zeros(2, 1)
    for t in range(6):
        first = torch.tensor([t == 0, t in (0, 3)])
        noise.begin(first, None)
        x = x * ~first[:, None]
        torch.manual_seed(t)
        c = noise.follow(torch.zeros(2, 1), None)
        torch.manual_seed(t)
        x = 0.7 * x + torch.randn(2, 1)
        torch.testing.assert_close(c, 0.05 * x)


def test_the_walk_of_a_part_of_the_copies() -> None:
    noise = Noise(NoiseConfig("ou", std=0.05, theta=0.3), 3, 1)
    noise.follow(torch.zeros(3, 1), None)
    before = noise.walk.clone()
    noise.follow(torch.zeros(1, 1), torch.tensor([1]))
    assert torch.equal(noise.walk[[0, 2]], before[[0, 2]])
    assert not torch.equal(noise.walk[1], before[1])
    noise.begin(torch.tensor([True]), torch.tensor([2]))
    assert float(noise.walk[2]) == 0
    assert float(noise.walk[0]) != 0


def test_the_walk_spreads_as_theory_says() -> None:
    """Its own deviation is std / sqrt(theta (2 - theta)); neighbouring steps correlate by 1 - theta."""
    noise = Noise(NoiseConfig("ou", std=0.05, theta=0.2), 50, 1)
    walk = torch.stack([noise.follow(torch.zeros(50, 1), None)[:, 0] for _ in range(2000)])[100:]
    assert float(walk.std()) == pytest.approx(0.05 / (0.2 * 1.8) ** 0.5, rel=0.05)
    assert float((walk[1:] * walk[:-1]).mean() / walk.var()) == pytest.approx(0.8, abs=0.02)
    once = torch.stack([noise.once(torch.zeros(50, 1))[:, 0] for _ in range(500)])
    assert float(once.std()) == pytest.approx(float(walk.std()), rel=0.05)


def test_outside_of_training_nothing_is_remembered() -> None:
    noise = Noise(NoiseConfig("ou"), 2, 3)
    noise.follow(torch.zeros(2, 3), None)
    before = {k: v.clone() for k, v in noise.state_dict().items()}
    noise.once(torch.zeros(7, 3))
    assert all(torch.equal(v, before[k]) for k, v in noise.state_dict().items())
    assert {"walk", "levels", "std"} <= set(before), "a checkpoint holds it"


def test_a_share_of_the_actions_is_uniform() -> None:
    noise = Noise(NoiseConfig("none", uniform=0.25), 4000, 2)
    c = noise.follow(torch.full((4000, 2), 0.5), None)
    elsewhere = (c != 0.5).any(1)
    assert float(elsewhere.float().mean()) == pytest.approx(0.25, abs=0.03)
    drawn = c[elsewhere]
    assert float(drawn.mean()) == pytest.approx(0, abs=0.06)
    assert float(drawn.std()) == pytest.approx(3**-0.5, rel=0.05)
