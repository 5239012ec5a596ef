"""What runs are held against: the return each was meant to reach, what others have published, another algorithm."""

from __future__ import annotations

from typing import NamedTuple

from kumite.lab.compare import count


class Bar(NamedTuple):
    mean: float
    """Mean return of an evaluation."""
    steps: int
    """Within so many environment steps; 0 = within the run."""

    @property
    def text(self) -> str:
        return f"{self.mean:g}" + (f" within {count(self.steps)}" if self.steps else "")


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
    ("kumite/CartPoleNoVel-v0", "ppo"): Bar(475, 100_000),
    ("kumite/CartPoleNoVel-v0", "sac"): Bar(475, 50_000),
    ("kumite/PendulumNoVel-v0", "ppo"): Bar(-250, 200_000),
    ("kumite/PendulumNoVel-v0", "sac"): Bar(-200, 20_000),
    ("kumite/Hybrid-v0", "sac"): Bar(0.7, 10_000),
    ("atari:Pong", "ppo"): Bar(15, 2_500_000),
    ("atari:Pong", "rainbow"): Bar(15, 1_000_000),
}
"""(environment, algorithm) -> the return that was the aim before the runs."""


class Published(NamedTuple):
    mean: float
    env: str
    """The environment there."""
    steps: int
    source: str


KATA: dict[str, dict[str, float]] = {  # KataRL2 at 1M steps: 3 seeds, read off its plots
    "Ant-v4": {"sac": 5700, "simba_sac": 5200, "ppo": 2550, "simba_ppo": 1940},
    "HalfCheetah-v4": {"sac": 12000, "simba_sac": 6450, "ppo": 2470, "simba_ppo": 3000},
    "Hopper-v4": {"sac": 3270, "simba_sac": 3700, "ppo": 3130, "simba_ppo": 2450},
    "Humanoid-v4": {"sac": 5500, "simba_sac": 6500, "ppo": 690, "simba_ppo": 1220},
    "Walker2d-v4": {"sac": 4620, "simba_sac": 5200, "ppo": 3200, "simba_ppo": 4300},
    "dmc:walker-walk": {"sac": 965, "simba_sac": 975},
    "dmc:walker-run": {"sac": 718, "simba_sac": 678},
}
PUBLISHED: dict[tuple[str, str], Published] = {
    (env.replace("-v4", "-v5"), algo): Published(mean, env, 1_000_000, "KataRL2")
    for env, found in KATA.items()
    for algo, mean in found.items()
}
"""(environment, algorithm) -> others' figures. Shown beside runs that came as far."""


class Duel(NamedTuple):
    env: str
    algo: str
    against: str
    steps: int
    """Where both are measured."""


DUELS = tuple(Duel(env, "tqc", "sac", 100_000) for env in ("Hopper-v5", "Walker2d-v5"))
"""Algorithms that are held against each other instead of against a number."""
