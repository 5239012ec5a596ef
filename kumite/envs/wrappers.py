"""What any adapter may wear: the learner's reward, and frames joined into stacks.

Wrappers see Steps, so they work alike on copies in this process, in workers, and on batch simulators.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kumite.envs.base import EnvConfig, VecEnv
from kumite.errors import UserError, nearest
from kumite.types import Step

TRANSFORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda r: r,
    "sign": torch.sign,
    "clip": lambda r: r.clamp(-1, 1),
    "log": lambda r: r.sign() * r.abs().log1p(),
}


def wrap(env: VecEnv, config: EnvConfig) -> VecEnv:
    """What the configuration asks for, or what the simulator's family is used to."""
    atari = getattr(env, "atari", False)
    transform = config.reward_transform
    if transform == "auto":
        transform = "sign" if atari else "none"
    if transform not in TRANSFORMS:
        known = ["auto", *TRANSFORMS]
        raise UserError(f"--env.reward-transform is one of {', '.join(known)}{nearest(transform, known)}")
    if transform != "none" or config.reward_scale != 1.0 or config.reward_shift != 0.0:
        env = Reward(env, config.reward_scale, config.reward_shift, transform)
    stack = config.frame_stack or (4 if atari else 1)
    if stack < 0:
        raise UserError("--env.frame-stack counts frames")
    return FrameStack(env, stack) if stack > 1 else env


class Wrapper(VecEnv):
    """Hands everything on; subclasses change the Step."""

    def __init__(self, env: VecEnv) -> None:
        self.env = env
        self.slots = env.slots
        self.obs_space = env.obs_space
        self.action = env.action
        self.groups = env.groups
        self.restorable = env.restorable
        self.horizon = env.horizon
        self.native = env.native

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    @property
    def restarts(self) -> int:  # type: ignore[override]
        return self.env.restarts

    def reset(self, seed: int = 0) -> Step:
        return self._first(self.env.reset(seed))

    def send(self, action: dict[str, Tensor], slot: Tensor | None = None) -> None:
        self.env.send(action, slot)

    def recv(self) -> Step:
        return self._next(self.env.recv())

    def close(self) -> None:
        self.env.close()

    def state(self) -> dict[str, Any]:
        return self.env.state()

    def restore(self, state: dict[str, Any]) -> bool:
        return self.env.restore(state)

    def render(self) -> Any:
        return self.env.render()

    def _first(self, step: Step) -> Step:
        return self._next(step)

    def _next(self, step: Step) -> Step:
        return step


class Reward(Wrapper):
    """The learner's reward: scale x reward + shift, then the transform. The statistics stay the environment's own."""

    def __init__(self, env: VecEnv, scale: float = 1.0, shift: float = 0.0, transform: str = "none") -> None:
        super().__init__(env)
        self.scale, self.shift, self.transform = scale, shift, TRANSFORMS[transform]
        self.over = torch.zeros(env.slots, dtype=torch.bool)

    def _first(self, step: Step) -> Step:
        self.over = torch.zeros(self.slots, dtype=torch.bool)
        return step

    def _next(self, step: Step) -> Step:
        reward = self.transform(step.reward * self.scale + self.shift)
        who = slice(None) if step.slot is None else step.slot.cpu()
        reset = self.over[who].to(reward.device)
        if reset.any():
            reward = torch.where(reset, torch.zeros_like(reward), reward)  # nothing was earned by a reset
        self.over[who] = step.over.cpu()
        return step._replace(reward=reward)

    def state(self) -> dict[str, Any]:
        return {"env": self.env.state(), "over": self.over.clone()}

    def restore(self, state: dict[str, Any]) -> bool:
        self.over = state["over"].clone()
        return self.env.restore(state["env"])


class FrameStack(Wrapper):
    """The newest `k` frames of the episode joined along the first dimension, oldest first, zeros before its start.

    Storage keeps the newest frame only and joins again on reading, so the rule is exact: a frame of an earlier
    episode is never shown.
    """

    def __init__(self, env: VecEnv, k: int) -> None:
        super().__init__(env)
        self.k = k
        self.keys = [key for key in env.obs_space if key != "mask"]
        if any(env.obs_space[key].stack > 1 for key in self.keys):
            raise UserError("the frames are stacked already")
        self.obs_space = dict(env.obs_space)
        for key in self.keys:
            spec = env.obs_space[key]
            shape = (spec.shape[0] * k, *spec.shape[1:])
            self.obs_space[key] = replace(spec, shape=shape, choices=spec.choices * k, stack=k)
        # Arrays where the tensors live on the CPU: torch would wake its threads for a copy this small.
        self.frames: dict[str, Any] = {}
        self.over = np.zeros(env.slots, bool)

    def _first(self, step: Step) -> Step:
        self.over = np.ones(self.slots, bool)
        self.frames = {
            key: _raw(torch.zeros(self.slots, *self.obs_space[key].shape, dtype=x.dtype, device=x.device))
            for key, x in step.obs.items()
            if key in self.keys
        }
        return self._next(step)

    def _next(self, step: Step) -> Step:
        who = slice(None) if step.slot is None else step.slot.numpy(force=True)
        fresh = np.flatnonzero(self.over[who])
        obs = dict(step.obs)
        for key in self.keys:
            new = _raw(step.obs[key])
            size = new.shape[1]
            old = self.frames[key][who]
            joined = _empty_like(old)
            joined[:, :-size] = old[:, size:]
            joined[:, -size:] = new
            for i in fresh:
                joined[i, :-size] = 0
            self.frames[key][who] = joined
            obs[key] = torch.from_numpy(joined) if isinstance(joined, np.ndarray) else joined
        self.over[who] = step.over.numpy(force=True)
        return step._replace(obs=obs)

    def state(self) -> dict[str, Any]:
        frames = {key: torch.as_tensor(x).clone() for key, x in self.frames.items()}
        return {"env": self.env.state(), "frames": frames, "over": torch.from_numpy(self.over.copy())}

    def restore(self, state: dict[str, Any]) -> bool:
        frames = {key: _raw(x.clone()) for key, x in state["frames"].items()}
        want = {key: (self.slots, *self.obs_space[key].shape) for key in self.keys}
        if {key: tuple(x.shape) for key, x in frames.items()} != want:
            return False
        self.frames, self.over = frames, state["over"].numpy(force=True).copy()
        return self.env.restore(state["env"])


def _raw(x: Tensor) -> Any:
    return x.numpy() if x.device.type == "cpu" else x


def _empty_like(x: Any) -> Any:
    return np.empty_like(x) if isinstance(x, np.ndarray) else torch.empty_like(x)
