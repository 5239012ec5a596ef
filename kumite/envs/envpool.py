"""EnvPool's 1,600 tasks in C++ threads: `envpool:HalfCheetah-v4`, `envpool:Pong-v5`, `envpool:WalkerWalk-v1`, ...

`--env.batch n` answers as soon as n copies are ready. EnvPool checks no action and seeds only when it is made; both are
dealt with here. It cannot be put back where it was.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from kumite.envs import ids
from kumite.envs.base import EnvConfig, VecEnv
from kumite.envs.episode import velocities
from kumite.envs.pool import AtariVec, PoolVec, Said
from kumite.envs.spaces import Array, Native
from kumite.envs.vector import refuse_inner
from kumite.errors import UserError, missing_extra, nearest

ATARI_FRAMES, ATARI_SKIP = 108_000, 4
# The games whose second action is not fire.
FIRELESS = frozenset(
    {
        *("Asterix", "Backgammon", "CrazyClimber", "Freeway", "Frogger", "JourneyEscape", "Koolaid", "KungFuMaster"),
        *("LostLuggage", "MsPacman", "Pacman", "Skiing", "Surround", "Tutankham", "VideoCheckers"),
    }
)


class Pool:
    """An EnvPool object."""

    def __init__(self, env: Any, slots: int, batch: int) -> None:
        self.env = env
        self.slots = slots
        self.batch = batch
        self.asynchronous = batch < slots

    def start(self) -> tuple[Any, dict[str, Any]]:
        if not self.asynchronous:
            return self.env.reset()
        self.env.async_reset()
        parts = [self.env.recv() for _ in range(self.slots // self.batch)]
        order = np.argsort(np.concatenate([part[4]["env_id"] for part in parts]))
        obs = _in_order([part[0] for part in parts], order)
        lives = [part[4]["lives"] for part in parts if "lives" in part[4]]
        return obs, {"lives": np.concatenate(lives)[order]} if lives else {}

    def send(self, actions: Any, who: Array) -> None:
        self.env.send(actions, who.astype(np.int32))

    def recv(self) -> Said:
        obs, reward, terminated, truncated, info = self.env.recv()
        who = np.asarray(info["env_id"], np.int64)
        everyone = len(who) == self.slots and bool((who == np.arange(self.slots)).all())
        return Said(obs, reward, terminated, truncated, info, None if everyone else who)

    def close(self) -> None:
        self.env.close()


def _in_order(parts: list[Any], order: Array) -> Any:
    if isinstance(parts[0], dict):
        return {k: _in_order([part[k] for part in parts], order) for k in parts[0]}
    return np.concatenate(parts)[order]


def make(name: str, num_envs: int, seed: int, config: EnvConfig, render: bool) -> VecEnv:
    refuse_inner(config, "EnvPool")
    if config.mode == "workers":
        raise UserError("EnvPool runs in threads of its own: use --env.mode sync")
    # A reset hears every copy, so batches fill their number exactly; evaluation may have other numbers than training.
    batch = max(k for k in range(1, num_envs + 1) if num_envs % k == 0 and k <= (config.batch or num_envs))
    try:
        import envpool
    except ImportError:
        raise missing_extra("envpool", "envpool") from None
    known = envpool.list_all_envs()
    if name not in known:
        raise UserError(f"EnvPool has no task '{name}'{nearest(name, known)}")
    atari = type(_spec(name, {})).__name__ == "AtariEnvSpec"
    if render and not atari:
        return _same_in_gymnasium(name, num_envs, seed, config)
    options: dict[str, Any] = {}
    limit = config.max_steps
    if atari:
        limit = limit or ATARI_FRAMES // ATARI_SKIP
        options = {
            "stack_num": 1,
            "frame_skip": ATARI_SKIP,
            "noop_max": 30,
            "img_height": 84,
            "img_width": 84,
            "gray_scale": True,
            "episodic_life": False,
            "reward_clip": False,
            "use_fire_reset": True,
            "zero_discount_on_life_loss": False,
            "full_action_space": False,
            "repeat_action_probability": config.sticky,
        }
    if limit:
        options["max_episode_steps"] = limit
    options |= ids.keywords(config.kwargs)

    def build(seeds: list[int]) -> Pool:
        with _quiet():
            env = envpool.make(name, "gymnasium", num_envs=num_envs, batch_size=batch, seed=seeds, **options)
            _ = env.observation_space, env.action_space  # made when first asked for, so ask here
        return Pool(env, num_envs, batch)

    try:
        spec = _spec(name, {"num_envs": num_envs, **options})
    except (TypeError, ValueError, RuntimeError) as err:
        raise UserError(f"EnvPool does not take these keywords for '{name}': {err}") from err
    if spec.config.max_num_players > 1:
        raise UserError(f"EnvPool's '{name}' has several players, which is not supported")
    with _quiet():
        observation, action = spec.gymnasium_observation_space, spec.gymnasium_action_space
    horizon = int(limit or getattr(spec.config, "max_episode_steps", 0) or 0)
    if atari:
        wake = 0 if name.split("-")[0] in FIRELESS else 1
        return AtariVec(build, Native(observation, action), num_envs, horizon, config.episodic_life, wake)
    hide = tuple(config.hide)
    if config.mask_velocity:
        hide += velocities(SimpleNamespace(spec=SimpleNamespace(id=name), observation_space=observation))
    return PoolVec(build, Native(observation, action, hide, config.flatten), num_envs, horizon)


def _spec(name: str, options: dict[str, Any]) -> Any:
    import envpool

    with _quiet():
        return envpool.make_spec(name, **options)


@contextmanager
def _quiet() -> Iterator[None]:
    """gymnasium has words about the precision of EnvPool's bounds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _same_in_gymnasium(name: str, num_envs: int, seed: int, config: EnvConfig) -> VecEnv:
    """EnvPool's own renderer may end the process without a word, so pictures come from the same task in gymnasium."""
    import gymnasium

    from kumite.envs.gymnasium import make as make_in_gymnasium

    if name not in gymnasium.registry:
        raise UserError(
            f"EnvPool cannot draw '{name}' safely, and gymnasium has no task of that name; go on without --video"
        )
    return make_in_gymnasium(name, num_envs, seed, replace(config, batch=0), True)
