"""Your own environment: a gymnasium class, given to kumite in three ways.

python examples/own_env.py
PYTHONPATH=examples kumite train ppo own_env:make --steps 20k       # a callable by its address
PYTHONPATH=examples kumite train ppo own_env:Corridor-v0            # a registered id, after importing the module
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

import kumite


class Corridor(gymnasium.Env[Any, Any]):
    """Walk from the middle of a corridor to its right end. Every step costs 1 / length, arriving pays 1."""

    def __init__(self, length: int = 11) -> None:
        self.length = length
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)  # left, right

    def _look(self) -> Any:
        return np.array([2 * self.place / (self.length - 1) - 1], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)  # randomness comes from self.np_random, so that a run can be repeated
        self.place = self.length // 2 + int(self.np_random.integers(-1, 2))
        return self._look(), {}

    def step(self, action: Any) -> Any:
        self.place = int(np.clip(self.place + (1 if action == 1 else -1), 0, self.length - 1))
        arrived = self.place == self.length - 1
        return self._look(), float(arrived) - 1 / self.length, arrived, False, {"success": arrived}


def make(length: int = 11) -> gymnasium.Env[Any, Any]:
    """The limit on time is a wrapper: a truncation, after which the learner still bootstraps."""
    return gymnasium.wrappers.TimeLimit(Corridor(length), 50)


gymnasium.register("Corridor-v0", entry_point=Corridor, max_episode_steps=50)


if __name__ == "__main__":
    sizes = {"num_envs": 4, "horizon": 32, "batch_size": 128, "lr": 3e-3, "quiet": True}

    agent = kumite.PPO(make, **sizes).learn(2_000)  # a callable: copies are made with it
    print(f"callable       mean return {agent.evaluate(10).mean:.2f}")

    agent = kumite.PPO("Corridor-v0", **sizes).learn(2_000)  # a registered id
    print(f"registered id  mean return {agent.evaluate(10).mean:.2f}")

    # make's own keyword arguments, as YAML; --env.kwargs on the command line
    agent = kumite.PPO(make, env={"kwargs": "{length: 7}"}, **sizes).learn(2_000)
    print(f"length 7       mean return {agent.evaluate(10).mean:.2f}")
