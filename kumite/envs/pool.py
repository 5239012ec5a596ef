"""Simulators with their own pool of threads (EnvPool, ALE's vector environment), and Atari's lives above them.

An engine starts, takes actions and answers with arrays; `PoolVec` makes Steps of them. Lives are counted here and not
in the engine, because engines disagree about them: ALE's restarts the whole game when a life is lost, and then the
returns of games can no longer be told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from torch import Tensor

from kumite.envs.base import derive
from kumite.envs.spaces import Array, Native
from kumite.envs.vector import Batch, simulating, success_of
from kumite.errors import RunError
from kumite.types import Step


class Said(NamedTuple):
    """An engine's answer: one row per copy in `who`."""

    obs: Any
    reward: Array
    terminated: Array
    truncated: Array
    info: dict[str, Any]
    who: Array | None


class Engine(Protocol):
    def start(self) -> tuple[Any, dict[str, Any]]:
        """First observations of every copy."""

    def send(self, actions: Any, who: Array) -> None: ...

    def recv(self) -> Said: ...

    def close(self) -> None: ...


class PoolVec(Batch):
    """Steps of an engine that follows NEXT_STEP. Engines are seeded when they are made, so a reset makes a new one."""

    def __init__(self, build: Callable[[list[int]], Engine], native: Native, slots: int, horizon: int) -> None:
        super().__init__(native, slots, horizon)
        self.build = build
        self.engine: Engine | None = None
        self.sent: tuple[Array, Array] | None = None

    def reset(self, seed: int = 0) -> Step:
        if self.engine is not None:
            self.engine.close()
        with simulating("the simulator"):
            self.engine = self.build([derive(seed, i, 0) for i in range(self.slots)])
            obs, info = self.engine.start()
        self._started(info)
        return self._first(obs)

    def send(self, action: dict[str, Tensor], slot: Tensor | None = None) -> None:
        c, d, who = self._take(action, slot)
        assert self.engine is not None
        self.sent = (c, d) if slot is None else None  # an asynchronous answer is to an older action
        self._replace(d, who)
        with simulating("the simulator"):
            self.engine.send(self.native.decode_batch(c, d), who)

    def recv(self) -> Step:
        if self.engine is None:
            raise RunError("reset the environment before asking for its answers")
        with simulating("the simulator"):
            said = self.engine.recv()
        return self._answer(said)

    def close(self) -> None:
        if self.engine is not None:
            self.engine.close()
            self.engine = None

    def _started(self, info: dict[str, Any]) -> None:
        """A subclass looks at the infos of a reset."""

    def _replace(self, d: Array, who: Array) -> None:
        """A subclass changes actions that nobody means."""

    def _answer(self, said: Said) -> Step:
        ids = self.everyone if said.who is None else said.who
        success = success_of(said.info, len(ids))
        # EnvPool's dm_control tasks rate the first observation too; nothing was done for that reward.
        reward = np.where(self.over[ids], 0.0, said.reward)
        out = self._encode(said.obs)
        return self._say(out, reward, said.terminated, said.truncated, said.who, success=success, action=self.sent)


class AtariVec(PoolVec):
    """Atari games: lives, and the last frame as the picture. Steps are the agent's decisions, four frames each."""

    atari = True

    def __init__(
        self,
        build: Callable[[list[int]], Engine],
        native: Native,
        slots: int,
        horizon: int,
        episodic_life: bool,
        wake: int,
    ) -> None:
        super().__init__(build, native, slots, horizon)
        self.episodic_life = episodic_life
        self.wake = wake
        """The action that starts the next life: fire where the game has it, else nothing."""
        self.picture: Array | None = None

    def reset(self, seed: int = 0) -> Step:
        step = super().reset(seed)
        self.picture = step.obs["obs"][0].numpy()
        return step

    def _started(self, info: dict[str, Any]) -> None:
        self.lives = np.array(info["lives"]).reshape(self.slots)
        self.lost = np.zeros(self.slots, bool)
        """A life was lost: the next action is replaced and its row is the first of the next life."""
        self.late: dict[int, tuple[dict[str, Array], bool, bool]] = {}
        """Games that ended in a replaced action. The learner is told one step later, with the row kept here."""

    def _replace(self, d: Array, who: Array) -> None:
        d[self.lost[who], 0] = self.wake

    def _answer(self, said: Said) -> Step:
        ids = self.everyone if said.who is None else said.who
        out = self._encode(said.obs)
        raw = np.array(said.reward, np.float64).reshape(len(ids))
        end, cut = np.array(said.terminated, bool), np.array(said.truncated, bool)
        lives = np.array(said.info["lives"]).reshape(len(ids))
        self._inspect(out, raw, said.who, self.sent)
        fresh = self.over[ids].copy()
        stepped = ~fresh
        raw[fresh & ~self.lost[ids]] = 0.0
        reward, game_over = raw.copy(), end | cut
        if self.episodic_life:
            for j in np.flatnonzero(self.lost[ids]).tolist():
                self._wake(j, int(ids[j]), out, reward, end, cut, game_over)
            for i in list(self.late):
                for j in np.flatnonzero((ids == i) & ~fresh).tolist():
                    self._tell_late(j, i, out, end, cut, game_over)
                    stepped[j] = False
            died = (lives < self.lives[ids]) & ~fresh & ~end & ~cut
            end |= died
            self.lost[ids[died]] = True
        self.lives[ids] = lives
        episodes = self.book.add(ids, raw, stepped, game_over, None)
        if 0 in ids:
            self.picture = out["obs"][int(np.flatnonzero(ids == 0)[0])]
        return self._hand_out(out, reward, end, cut, said.who, fresh, episodes)

    def _wake(
        self, j: int, i: int, out: dict[str, Array], reward: Array, end: Array, cut: Array, game_over: Array
    ) -> None:
        """Row j is the first of slot i's next life."""
        self.lost[i] = False
        reward[j] = 0.0
        if game_over[j]:
            self.late[i] = ({k: v[j].copy() for k, v in out.items()}, bool(end[j]), bool(cut[j]))
            end[j] = cut[j] = game_over[j] = False

    def _tell_late(self, j: int, i: int, out: dict[str, Array], end: Array, cut: Array, game_over: Array) -> None:
        """The engine has reset slot i by now; the learner still has to hear of the end."""
        kept, end[j], cut[j] = self.late.pop(i)
        for k, v in out.items():
            v[j] = kept[k]
        game_over[j] = True
        self.lost[i] = True

    def render(self) -> Any:
        if self.picture is None:
            raise RunError("there is no picture before the first reset")
        grey = np.repeat(np.repeat(self.picture[-1], 4, 0), 4, 1)
        return np.repeat(grey[..., None], 3, 2)
