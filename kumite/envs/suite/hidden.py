"""Classic control with its velocities hidden: what one observation shows is not enough, what was seen before is."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import ObservationWrapper, spaces
from gymnasium.envs.classic_control import CartPoleEnv, PendulumEnv


class Partial(ObservationWrapper[Any, Any, Any]):
    """Some entries of a vector observation, the others never."""

    def __init__(self, env: Any, shown: tuple[int, ...]) -> None:
        super().__init__(env)
        self.shown = list(shown)
        box = env.observation_space
        self.observation_space = spaces.Box(box.low[self.shown], box.high[self.shown], dtype=np.float32)

    def observation(self, observation: Any) -> Any:
        return observation[self.shown]


def cartpole(**kwargs: Any) -> Partial:
    """CartPole-v1 that shows the cart's place and the pole's angle."""
    return Partial(CartPoleEnv(**kwargs), (0, 2))


def pendulum(**kwargs: Any) -> Partial:
    """Pendulum-v1 that shows the cosine and sine of its angle."""
    return Partial(PendulumEnv(**kwargs), (0, 1))
