"""Simulators that step a whole batch at once: gymnasium's VectorEnv in all three autoreset modes.

The rule is the same as everywhere: the last observation of an episode is shown, then its first successor. Where a
simulator has already reset an ended copy, its Step comes in two: first the true ends, for the slots that ended; then
one Step with their fresh observations and the ordinary rows of the others. No simulator step is lost and no action is
made up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kumite.envs.base import EnvConfig, VecEnv, derive
from kumite.envs.episode import refuse_foreign, short, velocities
from kumite.envs.spaces import Array, BadObservation, Native
from kumite.errors import FOREIGN, RunError, UserError, origin
from kumite.types import Episodes, Step


class Book:
    """Return and length of every slot's running episode."""

    def __init__(self, slots: int) -> None:
        self.total = np.zeros(slots)
        self.length = np.zeros(slots, np.int64)

    def add(self, who: Array, reward: Array, stepped: Array, over: Array, success: Array | None) -> Episodes | None:
        """One row per slot in `who`; `success` holds NaN where the simulator says nothing."""
        self.total[who] += reward
        self.length[who] += stepped
        if not over.any():
            return None
        ended = who[over]
        episodes = Episodes(ended.tolist(), self.total[ended].tolist(), self.length[ended].tolist())
        if success is not None and not np.isnan(success[over]).any():
            episodes.success = success[over].tolist()
        self.total[ended], self.length[ended] = 0.0, 0
        return episodes


class Batch(VecEnv):
    """What batch simulators share: conversion, checks and statistics of one answer."""

    def __init__(self, native: Native, slots: int, horizon: int) -> None:
        self.native = native
        self.obs_space = dict(native.obs_space)
        self.action = native.action
        self.slots = slots
        self.horizon = horizon
        self.everyone = np.arange(slots)
        self.started = False
        self._forget()

    def _forget(self) -> None:
        self.book = Book(self.slots)
        self.over = np.zeros(self.slots, bool)

    def _take(self, action: dict[str, Tensor], slot: Tensor | None) -> tuple[Array, Array, Array]:
        """The action as arrays, and who it is for; refused if no simulator should see it."""
        if not self.started:
            raise RunError("reset the environment before the first action")
        c = np.array(action["c"].numpy(force=True), np.float32)
        d = np.array(action["d"].numpy(force=True), np.int64)
        who = self.everyone if slot is None else slot.numpy(force=True)
        void = self.over[who]
        self.native.refuse(c, d, len(who), ~void)
        if void.any():
            c[void], d[void] = 0, 0
        return c, d, who

    def _first(self, obs: Any) -> Step:
        """The Step of a reset of every slot."""
        self._forget()
        self.started = True
        none = np.zeros(self.slots, bool)
        return self._say(self._encode(obs), np.zeros(self.slots), none, none, fresh=~none)

    def _encode(self, obs: Any) -> dict[str, Array]:
        try:
            return self.native.encode(obs, batched=True)
        except BadObservation as err:
            raise RunError(f"the simulator failed: {err}; its spaces and its observations must agree") from err

    def _say(
        self,
        out: dict[str, Array],
        reward: Any,
        terminated: Any,
        truncated: Any,
        who: Array | None = None,
        fresh: Array | None = None,
        success: Array | None = None,
        action: tuple[Array, Array] | None = None,
    ) -> Step:
        """A Step from arrays with one row per slot in `who`; `fresh` marks the resets (the rows after an end)."""
        rows = self.slots if who is None else len(who)
        try:
            raw = np.asarray(reward, np.float64).reshape(rows)
            end, cut = np.array(terminated, bool).reshape(rows), np.array(truncated, bool).reshape(rows)
        except (TypeError, ValueError) as err:
            raise RunError(f"the simulator failed: its rewards and flags are not {rows} numbers: {err}") from err
        self._inspect(out, raw, who, action)
        ids = self.everyone if who is None else who
        fresh = self.over[ids] if fresh is None else fresh
        wrong = fresh & ((raw != 0) | end | cut)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise self._broken(int(ids[row]), "a reward or an end where it had to reset an ended episode", action, row)
        episodes = self.book.add(ids, raw, ~fresh, end | cut, success)
        return self._hand_out(out, raw, end, cut, who, fresh, episodes)

    def _hand_out(
        self,
        out: dict[str, Array],
        reward: Array,
        end: Array,
        cut: Array,
        who: Array | None,
        fresh: Array,
        episodes: Episodes | None,
    ) -> Step:
        over = end | cut
        if "mask" in out:
            row = self.native.allow(out["mask"], over)
            if row >= 0:
                raise self._broken(row if who is None else int(who[row]), "no legal action in mid-episode", None, row)
        self.over[self.everyone if who is None else who] = over
        return Step(
            {k: torch.from_numpy(v) for k, v in out.items()},
            torch.from_numpy(reward.astype(np.float32)),
            torch.from_numpy(end),
            torch.from_numpy(cut),
            None if who is None else torch.from_numpy(who.astype(np.int64)),
            int((~fresh).sum()),
            episodes,
        )

    def _inspect(
        self, out: dict[str, Array], raw: Array, who: Array | None, action: tuple[Array, Array] | None
    ) -> None:
        """Nothing that is not a number goes further."""
        row = self.native.check(out)
        what = self.native.describe(out, row) if row >= 0 else ""
        if row < 0 and not np.isfinite(raw).all():
            row = int(np.argmin(np.isfinite(raw)))
            what = f"the reward {raw[row]}"
        if row >= 0:
            raise self._broken(row if who is None else int(who[row]), what, action, row)

    def _broken(self, i: int, what: str, action: tuple[Array, Array] | None, row: int) -> RunError:
        did = ""
        if action is not None and len(action[0]) > row:
            did = f", action {short(self.native.decode(action[0][row : row + 1], action[1][row : row + 1])[0])}"
        step = int(self.book.length[i]) + 1
        return RunError(f"environment {i} gave {what} (step {step} of the episode{did}); mend the environment")


WORKERS = "; --env.mode workers would say which copy it was, and could go on without it"


@contextmanager
def simulating(name: str, advice: str = "") -> Iterator[None]:
    """An error inside belongs to the simulator."""
    try:
        yield
    except (RunError, UserError):
        raise
    except FOREIGN as err:
        raise RunError(f"{name} failed: {type(err).__name__}: {err}{origin(err)}{advice}") from err


class BatchVec(Batch):
    """A gymnasium VectorEnv. It cannot be put back where it was."""

    def __init__(self, env: Any, seed: int = 0, config: EnvConfig | None = None, owned: bool = True) -> None:
        from gymnasium.vector import AutoresetMode

        self.owned = owned
        config = config or EnvConfig()
        refuse_inner(config, "a vector environment")
        mode = env.metadata.get("autoreset_mode")
        try:
            self.mode = mode.value if isinstance(mode, AutoresetMode) else AutoresetMode(mode).value
        except ValueError:
            raise UserError(
                f"{type(env).__name__} does not say when it resets an ended copy: set metadata['autoreset_mode'] "
                "to gymnasium.vector.AutoresetMode.NEXT_STEP, SAME_STEP or DISABLED"
            ) from None
        self.env = env
        refuse_foreign(config, "batch", "episodic_life")
        if config.max_steps:
            raise UserError("--env.max-steps is for environments made by their id; limit the vector environment itself")
        hide = tuple(config.hide) + (velocities(env) if config.mask_velocity else ())
        native = Native(env.single_observation_space, env.single_action_space, hide, config.flatten)
        horizon = getattr(getattr(env, "spec", None), "max_episode_steps", None) or 0
        super().__init__(native, int(env.num_envs), int(horizon))
        self.queue: deque[Step] = deque()
        self.held: tuple[Array, Array] | None = None

    def reset(self, seed: int = 0) -> Step:
        from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

        self.queue.clear()
        self.held = None
        seeds: Any = derive(seed, 0, 0)
        if isinstance(self.env.unwrapped, SyncVectorEnv | AsyncVectorEnv):
            seeds = [derive(seed, i, 0) for i in range(self.slots)]
        with simulating(type(self.env).__name__, WORKERS):
            obs, _ = self.env.reset(seed=seeds)
        return self._first(obs)

    def send(self, action: dict[str, Tensor], slot: Tensor | None = None) -> None:
        c, d, who = self._take(action, slot)
        if self.queue:
            return  # these slots ended and are reset already; what they see next is here
        if self.held is not None:
            self.held[0][who], self.held[1][who] = c, d
            c, d = self.held
            self.held = None
        elif len(who) != self.slots:
            raise RunError("send the actions of the slots that spoke last")
        elif self.mode == "Disabled" and self.over.any():
            return self._reset_ended(c, d)
        with simulating(type(self.env).__name__, WORKERS):
            answer = self.env.step(self.native.decode_batch(c, d))
        if self.mode == "SameStep":
            return self._split(answer, c, d)
        obs, reward, terminated, truncated, info = answer
        success = success_of(info, self.slots)
        step = self._say(self._encode(obs), reward, terminated, truncated, success=success, action=(c, d))
        self.queue.append(step)

    def recv(self) -> Step:
        if not self.queue:
            raise RunError("ask for an answer after sending actions")
        return self.queue.popleft()

    def close(self) -> None:
        if self.owned:
            self.env.close()

    def render(self) -> Any:
        pictures = self.env.render()
        if pictures is None or not len(pictures):
            raise RunError("the vector environment gave no picture: make it with render_mode='rgb_array'")
        return np.asarray(pictures[0], np.uint8)

    def _reset_ended(self, c: Array, d: Array) -> None:
        """DISABLED: the ended copies are reset and speak alone, while the actions of the others wait."""
        ended = self.everyone[self.over]
        with simulating(type(self.env).__name__, WORKERS):
            obs, _ = self.env.reset(options={"reset_mask": self.over.copy()})
        nothing = np.zeros(len(ended), bool)
        if len(ended) < self.slots:
            self.held = (c, d)
        self.queue.append(self._say(self._encode(_rows(obs, ended)), np.zeros(len(ended)), nothing, nothing, ended))

    def _split(self, answer: Any, c: Array, d: Array) -> None:
        """SAME_STEP: the true ends first, then everybody's row, fresh for those that ended."""
        obs, reward, terminated, truncated, info = answer
        reward = np.array(reward, np.float64)
        terminated, truncated = np.array(terminated, bool), np.array(truncated, bool)
        over = terminated | truncated
        if over.any():
            ended = self.everyone[over]
            out = self._encode_final(info.get("final_obs"), ended)
            success = success_of(info.get("final_info", {}), self.slots)
            success = None if success is None else success[over]
            step = self._say(
                out, reward[over], terminated[over], truncated[over], ended, success=success, action=(c, d)
            )
            self.queue.append(step)
            reward[over], terminated, truncated = 0.0, np.zeros_like(over), np.zeros_like(over)
        self.queue.append(self._say(self._encode(obs), reward, terminated, truncated, action=(c, d)))

    def _encode_final(self, final: Any, ended: Array) -> dict[str, Array]:
        """The last observations, one object per copy (None where it goes on) or one batch."""
        if final is None:
            raise RunError("the vector environment resets in the same step but gives no final_obs")
        if not isinstance(final, np.ndarray) or final.dtype != object:
            return self._encode(_rows(final, ended))
        parts = [self.native.encode(final[i], batched=False) for i in ended]
        return {k: np.stack([part[k] for part in parts]) for k in parts[0]}


def _rows(obs: Any, who: Array) -> Any:
    """Some rows of a batch as gymnasium nests it."""
    if isinstance(obs, dict):
        return {k: _rows(v, who) for k, v in obs.items()}
    if isinstance(obs, tuple):
        return tuple(_rows(v, who) for v in obs)
    return obs[who]


def success_of(info: dict[str, Any], slots: int) -> Array | None:
    """What the infos say about success; NaN for the copies that say nothing."""
    for name in ("success", "is_success"):
        if name in info:
            value = np.asarray(info[name], np.float64).reshape(slots).copy()
            told = info.get(f"_{name}")
            if told is not None:
                value[~np.asarray(told, bool)] = np.nan
            return value
    return None


def refuse_inner(config: EnvConfig, what: str) -> None:
    """Settings that work inside a copy have no place in a batch simulator."""
    if config.action_repeat != 1:
        raise UserError(f"--env.action-repeat works with --env.mode sync and workers, not with {what}")
    if config.on_error != "raise":
        raise UserError(f"--env.on-error {config.on_error} works with --env.mode sync and workers, not with {what}")


def make_native(name: str, num_envs: int, seed: int, config: EnvConfig, kwargs: dict[str, Any]) -> VecEnv:
    """A registered id through its own vector code."""
    import gymnasium

    if name.startswith("ALE/"):  # through gymnasium it would clip the rewards, and so the returns
        from kumite.envs.atari import make

        return make(name, num_envs, seed, config, False)
    if gymnasium.spec(name).vector_entry_point is None:
        raise UserError(f"'{name}' has no vector code of its own; use --env.mode sync or workers")
    limit = config.max_steps
    if limit:
        kwargs = {**kwargs, "max_episode_steps": limit}
    env = gymnasium.make_vec(name, num_envs=num_envs, vectorization_mode="vector_entry_point", **kwargs)
    made = BatchVec(env, seed, replace(config, max_steps=0))
    made.horizon = limit or made.horizon
    return made
