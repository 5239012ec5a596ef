"""The returns that runs are held against, and where each was meant to be reached: (environment, algorithm) -> Bar."""

from __future__ import annotations

from typing import NamedTuple


class Bar(NamedTuple):
    mean: float
    """Mean return of an evaluation."""
    steps: int
    """Within so many environment steps; 0 = within the run."""

    @property
    def text(self) -> str:
        return f"{self.mean:g}" + (f" within {count(self.steps)}" if self.steps else "")


def count(n: float) -> str:
    """50000 -> 50k, 2500000 -> 2.5M, 2040832 -> 2.04M."""
    return f"{n / 1e6:.3g}M" if n >= 999_500 else f"{n / 1e3:.3g}k" if n >= 1_000 else f"{n:g}"


VALUES = ("dqn", "c51", "qrdqn", "iqn", "rainbow")

BARS: dict[tuple[str, str], Bar] = {
    ("CartPole-v1", "ppo"): Bar(500, 50_000),
    ("CartPole-v1", "sac"): Bar(500, 0),
    **{("CartPole-v1", name): Bar(500, 50_000) for name in VALUES},
    ("Pendulum-v1", "sac"): Bar(-200, 10_000),
    ("LunarLander-v3", "ppo"): Bar(200, 1_000_000),
    **{("LunarLander-v3", name): Bar(200, 200_000) for name in VALUES},
    ("Hopper-v5", "sac"): Bar(2500, 500_000),
    ("HalfCheetah-v5", "sac"): Bar(6000, 500_000),
    ("Hopper-v5", "td3"): Bar(2500, 500_000),
    ("HalfCheetah-v5", "td3"): Bar(6500, 500_000),
    ("HalfCheetah-v5", "ddpg"): Bar(4500, 500_000),
    ("HalfCheetah-v5", "ppo"): Bar(2000, 1_000_000),
    ("Walker2d-v5", "ppo"): Bar(3000, 1_000_000),
    ("kumite-CartPoleNoVel-v0", "ppo"): Bar(475, 100_000),
    ("kumite-CartPoleNoVel-v0", "sac"): Bar(475, 50_000),
    ("kumite-PendulumNoVel-v0", "ppo"): Bar(-250, 200_000),
    ("kumite-PendulumNoVel-v0", "sac"): Bar(-200, 20_000),
    ("kumite-Hybrid-v0", "sac"): Bar(0.7, 10_000),
    ("atari-Pong", "ppo"): Bar(15, 2_500_000),
    ("atari-Pong", "rainbow"): Bar(15, 1_000_000),
}
