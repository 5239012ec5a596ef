"""Your own simulator as a backend: a batch of point masses stepped by torch, behind ids such as `points:easy`.

    python examples/own_backend.py

A backend is a function maker(name, num_envs, seed, config, render) that gives a VecEnv. One rule binds it: an
observation is always the true one. The Step that ends an episode shows its last observation; the action that answers it
is ignored, and the next Step brings the first observation of a fresh episode, with reward 0 and both flags False.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

import kumite
from kumite.envs.base import VecEnv, derive
from kumite.envs.spaces import Native
from kumite.errors import UserError
from kumite.types import Episodes, Step

RADIUS = {"easy": 0.5, "hard": 1.0}


class Points(VecEnv):
    """Bring a point to the origin: observation (x, y), action the speed, reward -distance, 20 steps."""

    def __init__(self, slots: int, radius: float) -> None:
        self.slots, self.radius, self.horizon = slots, radius, 20
        # Native converts between the agent's format and gymnasium's: agent.predict speaks the latter.
        self.native = Native(spaces.Box(-np.inf, np.inf, (2,), np.float32), spaces.Box(-1.0, 1.0, (2,), np.float32))
        self.obs_space, self.action = dict(self.native.obs_space), self.native.action

    def reset(self, seed: int = 0) -> Step:
        self.random = torch.Generator().manual_seed(derive(seed, 0))
        self.x = self._start()
        self.time, self.total = torch.zeros(self.slots, dtype=torch.int64), torch.zeros(self.slots)
        self.over = torch.zeros(self.slots, dtype=torch.bool)
        return Step({"obs": self.x.clone()}, torch.zeros(self.slots), self.over, self.over)

    def _start(self) -> Tensor:
        return (torch.rand(self.slots, 2, generator=self.random) * 2 - 1) * self.radius

    def send(self, action: dict[str, Tensor], slot: Tensor | None = None) -> None:
        self.speed = action["c"]  # in [-1, 1], as every continuous action

    def recv(self) -> Step:
        fresh = self.over  # these ended with the last Step: now they begin anew
        moved = self.x + 0.1 * self.speed.clamp(-1, 1)
        self.x = torch.where(fresh[:, None], self._start(), moved)
        reward = torch.where(fresh, 0.0, -self.x.norm(dim=1))
        self.time = torch.where(fresh, 0, self.time + 1)
        self.total = torch.where(fresh, 0.0, self.total + reward)
        truncated = self.time >= self.horizon
        self.over = truncated
        return Step(
            {"obs": self.x.clone()},
            reward,
            terminated=torch.zeros(self.slots, dtype=torch.bool),
            truncated=truncated,
            ticks=int((~fresh).sum()),  # environment steps: resets do not count
            episodes=self._ended(truncated),
        )

    def _ended(self, over: Tensor) -> Episodes | None:
        if not over.any():
            return None
        return Episodes(over.nonzero()[:, 0].tolist(), self.total[over].tolist(), self.time[over].tolist())

    def close(self) -> None:
        pass


def make(name: str, num_envs: int, seed: int, config: Any, render: bool) -> VecEnv:
    if name not in RADIUS:
        raise UserError(f"points:{name} is not known (known: {', '.join(RADIUS)})")
    return Points(num_envs, RADIUS[name])


kumite.register_env("points", make)


if __name__ == "__main__":
    agent = kumite.PPO("points:easy", num_envs=32, horizon=32, batch_size=256, gamma=0.9, lr=1e-3, quiet=True)
    before = agent.evaluate(32).mean
    agent.learn(30_000)
    print(f"mean return before {before:.2f}, after 30k steps {agent.evaluate(32).mean:.2f}")
    print("speed at (0.3, -0.3):", agent.predict([0.3, -0.3])[0])
