"""One copy of an environment and its episodes: seeds, limits, repeats, statistics, and sentences for what can go wrong.

The same code steps a copy in this process and in a worker, so both give the same rows. It needs no torch.
"""

from __future__ import annotations

import inspect
import os
import traceback
import warnings
from collections.abc import Callable
from math import isfinite
from typing import Any

import numpy as np

from kumite.envs.base import EnvConfig
from kumite.envs.spaces import Array, BadObservation, Native
from kumite.errors import FOREIGN, RunError, UserError, missing_extra, origin

NEVER = 1 << 62
REMEDY = "mend the environment, or let --env.on-error restart replace broken copies"


class Broken(RunError):
    """A copy that cannot go on."""


class Copy:
    """An environment, the running episode, and where its observations are written."""

    def __init__(self, env: Any, index: int, config: EnvConfig, seed: int) -> None:
        self.whole = env
        self.index = index
        self.env, self.limit = peel(env)
        if config.max_steps:
            self.limit = config.max_steps
        self.horizon = self.limit or own_limit(env)
        self.limit = self.limit or NEVER
        self.repeat = config.action_repeat
        hide = tuple(config.hide)
        if config.mask_velocity:
            hide += velocities(env)
        self.native = Native(env.observation_space, env.action_space, hide, config.flatten)
        self.seed = seed
        self.length = 0
        self.spent = 0
        """Simulator steps of the last decision."""
        self.total = 0.0
        self.success: float | None = None
        self.first: tuple[int, Any, dict[str, Any]] | None = None
        self.legal = self._find_legal()
        self._step = self.env.step
        self._write = self.native.write

    def _find_legal(self) -> str:
        """Where the legal choices come from: obs | method | info, or nothing."""
        if self.native.masked:
            return "obs"
        if not self.native.branches:
            return ""
        if callable(attribute(self.whole, "action_masks")):
            return "method"
        # Only a reset shows what the info holds; it is kept and serves as the first episode's.
        obs, info = self._reset(self.seed)
        self.first = (self.seed, obs, info)
        mask = info.get("action_mask")
        return "info" if mask is not None and np.size(mask) == sum(self.native.branches) else ""

    def blank(self, rows: int) -> dict[str, Array]:
        out = self.native.blank(rows)
        if self.legal in ("method", "info"):
            out["mask"] = np.ones((rows, sum(self.native.branches)), dtype=bool)
        return out

    def begin(self, seed: int, out: dict[str, Array], row: int) -> None:
        """A fresh episode; its first observation goes to that row."""
        self.seed, self.length, self.total, self.success = seed, 0, 0.0, None
        try:
            if self.first is not None and self.first[0] == seed:
                obs, info = self.first[1:]
            else:
                obs, info = self._reset(seed)
            self.first = None
            self._write(obs, out, row)
            if self.legal:
                self._write_legal(info, out, row, False)
        except RunError:
            raise
        except FOREIGN as err:
            raise self.broken(err) from err

    def step(self, action: Any, out: dict[str, Array], row: int) -> tuple[float, bool, bool]:
        """Reward, terminated, truncated; the observation goes to that row."""
        try:
            self.length += 1
            self.spent = 1
            obs, reward, terminated, truncated, info = self._step(action)
            if reward.__class__ is not float:
                reward = number(reward)
            if self.length >= self.limit:
                truncated = True
            for _ in range(1, self.repeat):
                if terminated or truncated:
                    break
                self.length += 1
                self.spent += 1
                obs, more, terminated, truncated, info = self._step(action)
                reward += number(more)
                if self.length >= self.limit:
                    truncated = True
            if not isfinite(reward):
                raise BadObservation(f"the reward is {reward}")
            self.total += reward
            self._write(obs, out, row)
            if self.legal:
                self._write_legal(info, out, row, terminated or truncated)
            if terminated or truncated:
                self.success = success(info)
                return reward, bool(terminated), bool(truncated)
            return reward, False, False
        except FOREIGN as err:
            raise self.broken(err, action) from err

    def replay(self, seed: int, actions: list[Any], out: dict[str, Array], row: int) -> bool:
        """The episode again, up to where it was; False if it ends on the way."""
        self.begin(seed, out, row)
        for action in actions:
            _, terminated, truncated = self.step(action, out, row)
            if terminated or truncated:
                return False
        return self.native.check({k: v[row : row + 1] for k, v in out.items()}) < 0

    def broken(self, what: BaseException | str, action: Any = None) -> Broken:
        if isinstance(what, ValueError) and "to unpack" in str(what) and __file__.endswith(_file(what)):
            what = BadObservation("step() must return (observation, reward, terminated, truncated, info)")
        if isinstance(what, BadObservation | str):
            text = f"gave {what}" if isinstance(what, str) else f"failed: {what}"
        else:
            text = f"failed: {type(what).__name__}: {what}{origin(what)}"
        did = "" if action is None else f", action {short(action)}"
        return Broken(
            f"environment {self.index} {text} "
            f"(episode seed {self.seed}, step {self.length} of the episode{did}); {REMEDY}"
        )

    def render(self) -> Array:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # where there is nothing to show, the sentence below says so
                picture = self.env.render()
        except Exception as err:
            if type(err).__name__ == "DependencyNotInstalled" and "pygame" in str(err):  # gymnasium names its own extra
                raise missing_extra("pygame", "classic") from None
            raise RunError(f"the environment cannot be rendered: {type(err).__name__}: {err}") from err
        if isinstance(picture, list):
            picture = picture[-1] if picture else None
        if not isinstance(picture, np.ndarray) or picture.ndim != 3:
            raise RunError("the environment gave no picture: make it with render=True (render_mode='rgb_array')")
        return picture.astype(np.uint8, copy=False)

    def close(self) -> None:
        try:
            self.whole.close()
        except Exception as err:  # a copy that fails while closing must not keep the others open
            warnings.warn(f"environment {self.index} failed while closing: {type(err).__name__}: {err}", stacklevel=2)

    def _reset(self, seed: int) -> tuple[Any, dict[str, Any]]:
        answer = self.env.reset(seed=seed)
        if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict)):
            raise BadObservation("reset() must return (observation, info), as gymnasium's environments do")
        return answer

    def _write_legal(self, info: dict[str, Any], out: dict[str, Array], row: int, over: bool) -> None:
        if self.legal == "method":
            out["mask"][row] = np.asarray(attribute(self.whole, "action_masks")()).ravel() != 0
        elif self.legal == "info":
            mask = info.get("action_mask")
            out["mask"][row] = True if mask is None else np.asarray(mask).ravel() != 0
        if self.native.allow(out["mask"][row : row + 1], np.array([over])) >= 0:
            raise BadObservation("no action is legal, and the episode is not over")


def open_copy(maker: Callable[[], Any], index: int, config: EnvConfig, seed: int) -> Copy:
    """Make one environment; what goes wrong here is a mistake of the set-up."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # gymnasium's notices about older versions of an id
            env = maker()
    except (UserError, RunError):
        raise
    except FOREIGN as err:
        raise UserError(f"making the environment failed: {type(err).__name__}: {err}{origin(err)}") from err
    for name in ("reset", "step", "observation_space", "action_space"):
        if not hasattr(env, name):
            raise UserError(f"{type(env).__name__} is no gymnasium environment: it has no '{name}'")
    try:
        return Copy(env, index, config, seed)
    except UserError:
        raise
    except FOREIGN as err:
        raise RunError(
            f"environment {index} failed at its first reset: {type(err).__name__}: {err}{origin(err)}"
        ) from err


def peel(env: Any) -> tuple[Any, int]:
    """The environment without the outermost bookkeeping that Copy does itself and faster, and its time limit."""
    from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

    limit = 0
    while type(env) in (TimeLimit, OrderEnforcing, PassiveEnvChecker):
        if type(env) is TimeLimit:
            limit = min(limit or NEVER, env._max_episode_steps)
        env = env.env
    return env, limit


def own_limit(env: Any) -> int:
    """A limit that the environment applies itself."""
    spec = getattr(env, "spec", None)
    limit = getattr(spec, "max_episode_steps", None) or attribute(env, "horizon")
    return int(limit) if isinstance(limit, int) and limit > 0 else 0


def attribute(env: Any, name: str) -> Any:
    """An attribute of the environment or of a wrapper around it, or None."""
    while env is not None:
        if hasattr(env, name):
            return getattr(env, name)
        env = getattr(env, "env", None)
    return None


def number(reward: Any) -> float:
    try:
        return float(reward.item() if getattr(reward, "size", 0) == 1 else reward)
    except (TypeError, ValueError):
        raise BadObservation(f"the reward is {short(reward)}, which is not a number") from None


def success(info: dict[str, Any]) -> float | None:
    value = info.get("success", info.get("is_success"))
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):
        return None


def short(value: Any) -> str:
    """A value in a sentence."""
    if isinstance(value, np.ndarray):
        value = np.round(value, 4).tolist() if value.dtype.kind == "f" else value.tolist()
    text = " ".join(str(value).split())
    return text if len(text) <= 120 else text[:117] + "..."


def _file(err: BaseException) -> str:
    frames = traceback.extract_tb(err.__traceback__)
    return os.path.basename(frames[-1].filename) if frames else ""


# Velocities. Positions come first in these observations; a table is short because the layouts never change.

_CLASSIC = {
    "CartPole": (1, 3),
    "Pendulum": (2,),
    "MountainCar": (1,),
    "MountainCarContinuous": (1,),
    "Acrobot": (4, 5),
    "LunarLander": (2, 3, 5),
    "LunarLanderContinuous": (2, 3, 5),
    "BipedalWalker": (1, 2, 3, 5, 7, 10, 12),
    "BipedalWalkerHardcore": (1, 2, 3, 5, 7, 10, 12),
    "Hopper": tuple(range(5, 11)),
    "HalfCheetah": tuple(range(8, 17)),
    "Walker2d": tuple(range(8, 17)),
    "Swimmer": tuple(range(3, 8)),
    "Ant": tuple(range(13, 27)),
    "InvertedPendulum": (2, 3),
    "InvertedDoublePendulum": (5, 6, 7),
    "Reacher": (6, 7),
    "Pusher": tuple(range(7, 14)),
}
# Joint velocities, then the bodies' own after the inertias; version 5 leaves the world body out.
_HUMANOID = {376: (*range(22, 45), *range(185, 269)), 348: (*range(22, 45), *range(175, 253))}


def velocities(env: Any) -> tuple[int, ...]:
    """The indices of the velocities in the observation of a known task."""
    own = attribute(env, "velocity_indices")
    if own is not None:
        return tuple(own)
    name = getattr(getattr(env, "spec", None), "id", "") or ""
    family = name.split("/")[-1].split("-")[0]
    if family in ("Humanoid", "HumanoidStandup"):
        found = _HUMANOID.get(getattr(env, "single_observation_space", env.observation_space).shape[0])
    else:
        found = _CLASSIC.get(family)
    if found is None:
        raise UserError(
            f"--env.mask-velocity does not know the velocities of {name or type(env).__name__}; use --env.hide"
        )
    return found


def refuse_foreign(config: EnvConfig, *names: str) -> None:
    """A setting that this simulator does not know must not be lost in silence."""
    homes = {"batch": "EnvPool", "episodic_life": "Atari (atari:..., envpool:...)"}
    for name in names:
        if getattr(config, name):
            raise UserError(f"--env.{name.replace('_', '-')} is for {homes[name]} only")


def accepts(fn: Callable[..., Any], name: str) -> bool:
    """Whether a callable takes this keyword."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(p.name == name or p.kind is p.VAR_KEYWORD for p in parameters)
