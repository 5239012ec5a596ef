"""Tiny tasks whose values are known, and scripted ones for tests.

The discount is written gamma below. Every task takes its variants as keyword arguments and draws only from `np_random`.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

Obs = Any
Result = tuple[Obs, float, bool, bool, dict[str, Any]]
Env = gymnasium.Env[Any, Any]


def _box(n: int, low: float = -np.inf, high: float = np.inf) -> spaces.Box:
    return spaces.Box(low, high, (n,), np.float32)


def _action_space(action: str, n: int = 2) -> spaces.Space[Any]:
    if action == "discrete":
        return spaces.Discrete(n)
    if action == "box":
        return spaces.Box(-1.0, 1.0, (1,), np.float32)
    raise ValueError(f"action is 'discrete' or 'box', not {action!r}")


def _vector(*values: float) -> np.ndarray[Any, Any]:
    return np.array(values, np.float32)


class One(Env):
    """One step, reward 1, terminated: V = 1."""

    def __init__(self, action: str = "discrete") -> None:
        self.observation_space = _box(1, -1, 1)
        self.action_space = _action_space(action)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        super().reset(seed=seed)
        return _vector(0), {}

    def step(self, action: Any) -> Result:
        return _vector(0), 1.0, True, False, {}


class Delay(Env):
    """Two steps, reward 1 on the second: V of the first observation (-1) is gamma, of the second (1) is 1."""

    def __init__(self, action: str = "discrete") -> None:
        self.observation_space = _box(1, -1, 1)
        self.action_space = _action_space(action)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return _vector(-1), {}

    def step(self, action: Any) -> Result:
        self.time += 1
        return _vector(1), float(self.time == 2), self.time == 2, False, {}


class Endless(Env):
    """Reward 1 on every step and a constant observation, truncated after `limit` steps: V = 1 / (1 - gamma)."""

    def __init__(self, limit: int = 10, action: str = "discrete") -> None:
        self.limit = limit
        self.observation_space = _box(1, -1, 1)
        self.action_space = _action_space(action)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return _vector(1), {}

    def step(self, action: Any) -> Result:
        self.time += 1
        return _vector(1), 1.0, False, self.time >= self.limit, {}


class Echo(Env):
    """One step; the observation is -1 or 1 and so is the reward: V(o) = o."""

    def __init__(self, action: str = "discrete") -> None:
        self.observation_space = _box(1, -1, 1)
        self.action_space = _action_space(action)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        super().reset(seed=seed)
        self.sign = float(self.np_random.integers(2) * 2 - 1)
        return _vector(self.sign), {}

    def step(self, action: Any) -> Result:
        return _vector(self.sign), self.sign, True, False, {}


class Recall(Env):
    """A cue of -1 or 1 is shown at the first step only; the action of step k + 1 must repeat it.

    Observation: (cue or 0, 1 when the answer is due). Reward 1 for the right answer, else 0; it ends the episode.
    Without memory the best return is 0.5, with it 1. Discrete: 0 means -1, 1 means 1. Continuous: the sign counts.
    """

    def __init__(self, k: int = 3, action: str = "discrete") -> None:
        if k < 0:
            raise ValueError("k counts the steps between the cue and the answer")
        self.k = k
        self.observation_space = _box(2, -1, 1)
        self.action_space = _action_space(action)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        self.cue = int(self.np_random.integers(2) * 2 - 1)
        return _vector(self.cue, float(self.k == 0)), {}

    def step(self, action: Any) -> Result:
        self.time += 1
        if self.time <= self.k:
            return _vector(0, float(self.time == self.k)), 0.0, False, False, {}
        if isinstance(self.action_space, spaces.Discrete):
            right = int(action) == (self.cue + 1) // 2
        else:
            right = float(np.ravel(action)[0]) * self.cue > 0
        return _vector(0, 0), float(right), True, False, {"success": right}


class Hybrid(Env):
    """Bring a point in three dimensions to a goal: the discrete part picks the axis, the continuous part the amount.

    Observation: goal - position, three numbers in [-2, 2]. Each step moves the picked axis by the amount (a box of
    [-1, 1], clipped to the cube) and pays the distance (L1, over 3) that was gained; the episode is cut after `limit`
    steps. The goal lies 0.5 to 1 away on every axis from the point, which starts at 0, so one step per axis suffices:
    the best return is the mean of |goal|, 0.75 on average and never below 0.5. Random actions gain about nothing
    (below 0). `kind` nests the action as a "dict" {"amount", "axis"} or a "tuple" (axis, amount).
    """

    def __init__(self, limit: int = 6, kind: str = "dict") -> None:
        self.limit = limit
        self.kind = kind
        self.observation_space = _box(3, -2, 2)
        amount, axis = spaces.Box(-1.0, 1.0, (1,), np.float32), spaces.Discrete(3)
        if kind == "dict":
            self.action_space: spaces.Space[Any] = spaces.Dict({"amount": amount, "axis": axis})
        elif kind == "tuple":
            self.action_space = spaces.Tuple((axis, amount))
        else:
            raise ValueError(f"kind is 'dict' or 'tuple', not {kind!r}")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        self.position = np.zeros(3)
        self.goal = self.np_random.uniform(0.5, 1.0, 3) * (self.np_random.integers(0, 2, 3) * 2 - 1)
        return (self.goal - self.position).astype(np.float32), {}

    def step(self, action: Any) -> Result:
        if self.kind == "dict":
            axis, amount = int(action["axis"]), float(action["amount"][0])
        else:
            axis, amount = int(action[0]), float(action[1][0])
        before = np.abs(self.goal - self.position).mean()
        self.position[axis] = np.clip(self.position[axis] + np.clip(amount, -1, 1), -1, 1)
        after = np.abs(self.goal - self.position).mean()
        self.time += 1
        info = {"success": bool(after < 0.05)}
        return (
            (self.goal - self.position).astype(np.float32),
            float(before - after),
            False,
            self.time >= self.limit,
            info,
        )


class Mask(Env):
    """Six choices of which about half are legal; an illegal one raises.

    The legal choices are drawn anew at every step and one of them, shown one-hot, pays 1, the others 0. `limit`
    steps, so the best return is `limit`. `where` says how the legal choices are told: "obs" (the entry action_mask),
    "info", or "method" (action_masks(), as sb3-contrib asks for it).
    """

    def __init__(self, limit: int = 5, where: str = "obs") -> None:
        if where not in ("obs", "info", "method"):
            raise ValueError(f"where is 'obs', 'info' or 'method', not {where!r}")
        self.limit = limit
        self.where = where
        self.action_space = spaces.Discrete(6)
        goal = _box(6, 0, 1)
        self.observation_space: spaces.Space[Any] = goal
        if where == "obs":
            self.observation_space = spaces.Dict({"observation": goal, "action_mask": spaces.Box(0, 1, (6,), np.int8)})
        if where == "method":
            self.action_masks = lambda: self.legal.astype(bool)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self._show()

    def step(self, action: Any) -> Result:
        if not self.legal[int(action)]:
            raise ValueError(f"the action {int(action)} is not legal; legal are {np.flatnonzero(self.legal).tolist()}")
        reward = float(action == self.goal)
        self.time += 1
        obs, info = self._show()
        return obs, reward, False, self.time >= self.limit, info

    def _show(self) -> tuple[Obs, dict[str, Any]]:
        self.legal = self.np_random.integers(0, 2, 6).astype(np.int8)
        self.goal = int(self.np_random.integers(6))
        self.legal[self.goal] = 1
        shown = np.eye(6, dtype=np.float32)[self.goal]
        if self.where == "obs":
            return {"observation": shown, "action_mask": self.legal.copy()}, {}
        return shown, {"action_mask": self.legal.copy()} if self.where == "info" else {}


class Sensors(Env):
    """Two vectors and two images of different sizes, nested; every sensor shows the same hidden sign.

    The action must repeat the sign (discrete: 0 means -1; box: the sign counts) for reward 1, else 0; a new sign is
    drawn at every step. The best return is `limit`, a random policy gets half of it.
    """

    def __init__(self, limit: int = 5, action: str = "discrete") -> None:
        self.limit = limit
        self.action_space = _action_space(action)
        self.observation_space = spaces.Dict(
            OrderedDict(
                arm=spaces.Dict(OrderedDict(joints=_box(4), touch=spaces.Box(-1.0, 1.0, (2,), np.float64))),
                eyes=spaces.Tuple(
                    (spaces.Box(0, 255, (36, 48, 3), np.uint8), spaces.Box(0, 255, (42, 36), np.uint8)),
                ),
            )
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self._show(), {}

    def step(self, action: Any) -> Result:
        said = int(action) * 2 - 1 if isinstance(self.action_space, spaces.Discrete) else np.sign(np.ravel(action)[0])
        reward = float(said == self.sign)
        self.time += 1
        return self._show(), reward, False, self.time >= self.limit, {}

    def _show(self) -> Obs:
        self.sign = int(self.np_random.integers(2) * 2 - 1)
        colour = self.np_random.integers(0, 60, (36, 48, 3), dtype=np.uint8)
        grey = self.np_random.integers(0, 60, (42, 36), dtype=np.uint8)
        half = slice(None, None) if self.sign < 0 else slice(0, 0)
        colour[:, half] += 180
        grey[half] += 180
        joints = self.np_random.normal(self.sign, 0.1, 4).astype(np.float32)
        return OrderedDict(
            arm=OrderedDict(joints=joints, touch=np.array([self.sign, -self.sign], np.float64)), eyes=(colour, grey)
        )


class Clock(Env):
    """A script for contract tests: what every adapter must hand on unchanged.

    Observation: (time, number of the episode). Episodes of 2 and 3 steps take turns; the first kind terminates, the
    second is truncated. The reward of a step is 10 x episode + time after the step, and the last info says success =
    1 for a terminated episode. `first` shifts the number of the first episode (copies with other phases); `lengths`
    are the two lengths; `seeded` takes the number of the episode from the seed instead of counting, so that it can be
    reproduced.
    """

    def __init__(
        self, first: int = 0, lengths: tuple[int, int] = (2, 3), action: str = "discrete", seeded: bool = False
    ) -> None:
        self.observation_space = _box(2)
        self.action_space = _action_space(action)
        self.episode = first - 1
        self.lengths = tuple(lengths)
        self.seeded = seeded

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode = int(self.np_random.integers(1000)) if self.seeded else self.episode + 1
        self.time = 0
        return _vector(0, self.episode), {}

    def step(self, action: Any) -> Result:
        self.time += 1
        odd = self.episode % 2
        over = self.time >= self.lengths[odd]
        info = {"success": not odd} if over else {}
        reward = 10.0 * self.episode + self.time
        return _vector(self.time, self.episode), reward, over and not odd, over and bool(odd), info
