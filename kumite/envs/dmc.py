"""DeepMind Control tasks `dmc:walker-walk`, and any dm_env environment, as a gymnasium Env.

LAST with discount 0 is a termination, LAST with discount 1 the time limit. The entries of the observation are joined in
the simulator's order. `--env.kwargs '{pixels: true}'` shows pictures instead (`size`, `camera`), `{flatten: false}`
keeps the entries apart, and every other keyword goes to the task.
"""

from __future__ import annotations

import math
import warnings
from collections import OrderedDict
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from kumite.envs import ids
from kumite.envs.base import EnvConfig, VecEnv
from kumite.errors import UserError, missing_extra, nearest

Array = np.ndarray[Any, Any]


class DmEnv(gymnasium.Env[Any, Any]):
    """A dm_env environment. A reset with a seed reseeds the task, so an episode can be repeated."""

    metadata = {"render_modes": ["rgb_array"]}

    def __init__(
        self,
        env: Any,
        flatten: bool = True,
        pixels: bool = False,
        size: int = 84,
        camera: int = 0,
        render_mode: str | None = None,
    ) -> None:
        self.dm = env
        self.pixels, self.size, self.camera = pixels, size, camera
        self.render_mode = render_mode
        self.viewer: Any = None
        spec = env.observation_spec()
        self.entries = OrderedDict(spec) if isinstance(spec, dict) else None
        self.flatten = flatten and self.entries is not None
        self.observation_space = self._space(spec)
        self.action_space = _box(env.action_spec())
        limit = getattr(env, "_step_limit", math.inf)
        self.horizon = int(limit) if math.isfinite(limit) else 0
        self.velocity_indices = self._velocities()

    def _space(self, spec: Any) -> spaces.Space[Any]:
        if self.pixels:
            return spaces.Box(0, 255, (self.size, self.size, 3), np.uint8)
        if self.entries is None:
            return _box(spec)
        if self.flatten:
            width = sum(math.prod(s.shape) for s in self.entries.values())
            return spaces.Box(-np.inf, np.inf, (width,), np.float32)
        return spaces.Dict(OrderedDict((k, _box(s)) for k, s in self.entries.items()))

    def _velocities(self) -> tuple[int, ...] | None:
        """Where the joined observation holds velocities, by the names of the entries."""
        if self.entries is None or not self.flatten or self.pixels:
            return None
        found: list[int] = []
        at = 0
        for name, spec in self.entries.items():
            size = math.prod(spec.shape)
            if "vel" in name:
                found += range(at, at + size)
            at += size
        return tuple(found) or None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        task = getattr(self.dm, "task", None)
        if seed is not None and task is not None:
            task._random = np.random.RandomState(seed)
        return self._show(self.dm.reset()), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        now = self.dm.step(action)
        over = now.last()
        terminated = over and now.discount == 0.0
        reward = 0.0 if now.reward is None else float(now.reward)
        return self._show(now), reward, terminated, over and not terminated, {}

    def _show(self, now: Any) -> Any:
        if self.pixels:
            return self.dm.physics.render(height=self.size, width=self.size, camera_id=self.camera)
        if self.flatten:
            return np.concatenate([np.ravel(x) for x in now.observation.values()]).astype(np.float32)
        return now.observation

    def render(self) -> Array:
        """By gymnasium's viewer: dm_control chose its renderer when it was imported, perhaps before one was needed."""
        from gymnasium.envs.mujoco.mujoco_rendering import OffScreenViewer

        physics = self.dm.physics
        if self.viewer is None:
            self.viewer = OffScreenViewer(physics.model.ptr, physics.data.ptr, 480, 480)
        self.viewer.data = physics.data.ptr
        return np.asarray(self.viewer.render(render_mode="rgb_array", camera_id=self.camera))

    def close(self) -> None:
        if self.viewer is not None:
            self.viewer.close()
        self.dm.close()


def _box(spec: Any) -> spaces.Space[Any]:
    count = getattr(spec, "num_values", None)
    if count is not None:
        return spaces.Discrete(int(count))
    low = np.broadcast_to(getattr(spec, "minimum", -np.inf), spec.shape)
    high = np.broadcast_to(getattr(spec, "maximum", np.inf), spec.shape)
    dtype = np.dtype(spec.dtype)
    if dtype.kind not in "fiu":
        raise UserError(f"the entry {spec} is not made of numbers")
    if dtype.kind in "iu" and not np.isfinite(low).all():
        dtype = np.dtype(np.float32)
    return spaces.Box(low.astype(dtype), high.astype(dtype), spec.shape, dtype.type)


def make_task(name: str, kwargs: dict[str, Any], render: bool = False) -> DmEnv:
    """One copy of a control suite task."""
    kwargs = dict(kwargs)
    own = {k: kwargs.pop(k) for k in ("flatten", "pixels", "size", "camera") if k in kwargs}
    if render or own.get("pixels"):
        from kumite.envs.rendering import prepare_mujoco

        prepare_mujoco()
    domain, _, task = name.partition("-")
    suite = _suite()
    known = [f"{d}-{t}" for d, module in suite._DOMAINS.items() for t in module.SUITE]
    if name not in known:
        raise UserError(f"dm_control has no task '{name}'{nearest(name, known)}")
    own.setdefault("camera", 2 if domain == "quadruped" else 0)
    try:
        env = suite.load(domain, task, task_kwargs=kwargs or None)
    except AttributeError as err:
        raise _mismatch(err) from err
    return DmEnv(env, render_mode="rgb_array" if render else None, **own)


def _suite() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about displays, where there is none
            from dm_control import suite
    except ModuleNotFoundError:
        raise missing_extra("dm_control", "dmc") from None
    except AttributeError as err:
        raise _mismatch(err) from err
    return suite


def _mismatch(err: AttributeError) -> Exception:
    """dm_control reads fields of MuJoCo that come and go with its versions, and declares no upper bound."""
    if "Mj" not in str(err) and "mj" not in str(err):
        return err
    from importlib.metadata import version

    return UserError(
        f"dm_control {version('dm_control')} does not work with mujoco {version('mujoco')} ({err}); "
        "install a pair that does with: pip install 'kumite[dmc]'"
    )


def make(name: str, num_envs: int, seed: int, config: EnvConfig, render: bool) -> VecEnv:
    from kumite.envs.gymnasium import from_makers

    kwargs = ids.keywords(config.kwargs)
    return from_makers(ids.makers(make_task, num_envs, render, name, kwargs), seed, config)
