"""gymnasium environments, every copy stepped in this process.

Each episode has its own seed, derived from the run's seed, the slot and the episode's number, and the actions of the
running episode are kept: a copy is put back where it was by resetting it with the seed and replaying them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kumite.envs import ids
from kumite.envs.base import EnvConfig, VecEnv, derive
from kumite.envs.episode import REMEDY, Broken, open_copy, refuse_foreign
from kumite.envs.spaces import Array
from kumite.errors import RunError, UserError
from kumite.types import Episodes, Spec, Step

CRASHES = 5  # broken copies of one slot in a row before the run stops
SOUND = 1000  # steps after which a copy no longer counts as crashing in a row
Maker = Callable[[], Any]


class DroppedWarning(RuntimeWarning):
    """A broken copy is left out from now on."""


class Log:
    """The actions of the running episodes: one (c, d) per send, and where each slot's episode starts."""

    def __init__(self, slots: int) -> None:
        self.rows: list[tuple[Array, Array]] = []
        self.base = 0
        self.start = [0] * slots
        self.trim = 1024

    def add(self, c: Array, d: Array) -> None:
        self.rows.append((c, d))
        if len(self.rows) >= self.trim:
            drop = min(self.start) - self.base
            del self.rows[:drop]
            self.base += drop
            self.trim = max(1024, 2 * len(self.rows))

    def begin(self, slot: int) -> None:
        """What was logged so far is of no use to this slot."""
        self.start[slot] = self.base + len(self.rows)

    def of(self, slot: int) -> tuple[Array, Array]:
        """[T, C] and [T, D]: the slot's actions since its episode began."""
        rows = self.rows[self.start[slot] - self.base :]
        return np.stack([c[slot] for c, _ in rows]), np.stack([d[slot] for _, d in rows])

    def length(self, slot: int) -> int:
        return self.base + len(self.rows) - self.start[slot]

    @classmethod
    def rebuilt(cls, c: list[Array], d: list[Array]) -> Log:
        """From each slot's own actions."""
        log = cls(len(c))
        longest = max(len(x) for x in c)
        whole_c = np.zeros((longest, len(c), c[0].shape[1]), np.float32)
        whole_d = np.zeros((longest, len(d), d[0].shape[1]), np.int64)
        for i in range(len(c)):
            log.start[i] = longest - len(c[i])
            whole_c[log.start[i] :, i] = c[i]
            whole_d[log.start[i] :, i] = d[i]
        log.rows = [(whole_c[t], whole_d[t]) for t in range(longest)]
        return log


class GymVec(VecEnv):
    """Copies made by `makers`, one per slot."""

    restorable = True

    def __init__(
        self, makers: Sequence[Maker], seed: int = 0, config: EnvConfig | None = None, owned: bool = True
    ) -> None:
        self.owned = owned
        self.config = config or EnvConfig()
        if self.config.action_repeat < 1:
            raise UserError("--env.action-repeat must be at least 1")
        if self.config.on_error not in ("raise", "restart", "drop"):
            raise UserError(f"--env.on-error is raise, restart or drop, not '{self.config.on_error}'")
        refuse_foreign(self.config, "batch", "episodic_life")
        self.makers = list(makers)
        self.slots = len(self.makers)
        if not self.slots:
            raise UserError("at least one environment copy is needed")
        self.seed = seed
        self.episode = [0] * self.slots
        self.over = [False] * self.slots
        self.crashes = [0] * self.slots
        self.gone = [False] * self.slots  # dropped: their rows are void from then on
        self.log = Log(self.slots)
        self.last: dict[str, Array] = {}
        self.sent: tuple[Array, Array] | None = None
        self._open()
        self.action = self.native.action
        self.nothing = np.zeros((self.slots, 0), np.float32), np.zeros((self.slots, 0), np.int64)
        self.obs_space = dict(self.native.obs_space)
        if self.legal in ("method", "info"):
            self.obs_space["mask"] = Spec((sum(self.native.branches),), torch.bool)

    # The contract.

    def reset(self, seed: int = 0) -> Step:
        self.seed = seed
        self.episode = [0] * self.slots
        self.crashes = [0] * self.slots
        self.gone = [False] * self.slots
        self.over = [False] * self.slots
        self.log = Log(self.slots)
        self.sent = None
        out = self._blank()
        self._begin_all(out)
        self.over = list(self.gone)
        return self._step(out, np.zeros(self.slots, np.float32), self._flags(), np.array(self.gone), 0, None)

    def send(self, action: dict[str, Tensor], slot: Tensor | None = None) -> None:
        if not self.last:
            raise RunError("reset the environment before the first action")
        if self.sent is not None:
            raise RunError("an action was sent twice without asking for the answer")
        c = np.array(action["c"].numpy(force=True), np.float32) if self.action.continuous else self.nothing[0]
        d = np.array(action["d"].numpy(force=True), np.int64) if self.action.branches else self.nothing[1]
        if slot is not None and (len(slot) != self.slots or not torch.equal(slot.cpu(), torch.arange(self.slots))):
            raise RunError("every copy of this environment answers at once: send the actions of all slots, in order")
        self.native.refuse(c, d, self.slots, ~np.array(self.over) if True in self.over else None)
        self.log.add(c, d)
        self.sent = (c, d)
        self._post(c, d)

    def recv(self) -> Step:
        if self.sent is None:
            raise RunError("ask for an answer after sending actions")
        n = self.slots
        out = self._blank()
        reward, terminated, truncated = [0.0] * n, self._flags(), self._flags()
        ticks, ended = self._advance(*self.sent, out, reward, terminated, truncated)
        for i in self._dropped():
            reward[i], terminated[i], truncated[i], self.over[i] = 0.0, False, True, True
            self.log.begin(i)
        self.sent = None
        episodes = None
        if ended:
            episodes = Episodes()
            for i, total, length, success in ended:
                self.crashes[i] = 0
                episodes.slot.append(i)
                episodes.returns.append(total)
                episodes.lengths.append(length)
                if success is not None:
                    episodes.success.append(success)
            if len(episodes.success) not in (0, len(episodes.slot)):
                episodes.success = []
        return self._step(out, np.array(reward, np.float32), terminated, truncated, ticks, episodes)

    def state(self) -> dict[str, Any]:
        if self.sent is not None:
            raise RunError("the state of an environment is taken between steps")
        c, d = {}, {}
        for i in range(self.slots):
            if self.log.length(i) and not self.over[i]:
                own = self.log.of(i)
                c[str(i)], d[str(i)] = torch.from_numpy(own[0]), torch.from_numpy(own[1])
        totals, lengths = self._running()
        return {
            "seed": self.seed,
            "episode": list(self.episode),
            "over": list(self.over),
            "return": totals,
            "length": lengths,
            "restarts": self.restarts,
            "gone": list(self.gone),
            "c": c,
            "d": d,
            "obs": {k: torch.from_numpy(v.copy()) for k, v in self.last.items()},
        }

    def restore(self, state: dict[str, Any]) -> bool:
        if len(state.get("episode", ())) != self.slots or set(state["obs"]) != set(self.obs_space):
            return False
        self.seed = int(state["seed"])
        self.episode = [int(k) for k in state["episode"]]
        self.over = [bool(x) for x in state["over"]]
        self.restarts = int(state["restarts"])
        self.gone = [bool(x) for x in state.get("gone", self._flags())]
        self.crashes = [0] * self.slots
        self.sent = None
        want = {k: v.cpu().numpy() for k, v in state["obs"].items()}
        actions = []
        for i in range(self.slots):
            key = str(i)
            c = state["c"][key].numpy() if key in state["c"] else np.zeros((0, self.action.continuous), np.float32)
            d = state["d"][key].numpy() if key in state["d"] else np.zeros((0, len(self.action.branches)), np.int64)
            actions.append((c, d))
        out = self._blank()
        for k, v in want.items():
            if v.shape != out[k].shape:
                return False
            out[k][...] = v  # a copy at its episode's end needs no replay: the next step resets it
        try:
            if not self._replay_all(actions, state["return"], state["length"], out):
                return False
        except Broken:
            return False
        if any(not np.array_equal(out[k], want[k]) for k in want):
            return False
        self.log = Log.rebuilt([c for c, _ in actions], [d for _, d in actions])
        self.last = out
        return True

    # What a subclass that steps its copies elsewhere replaces.

    def _open(self) -> None:
        self.copies = [open_copy(make, i, self.config, derive(self.seed, i, 0)) for i, make in enumerate(self.makers)]
        first = self.copies[0]
        for copy in self.copies[1:]:
            same = copy.native.obs_native == first.native.obs_native
            if not (same and copy.native.action_native == first.native.action_native):
                raise UserError(f"environment {copy.index} has other spaces than environment 0; all copies must agree")
        self.native, self.legal, self.horizon = first.native, first.legal, first.horizon
        self.layout = [(k, x.shape, x.dtype) for k, x in first.blank(self.slots).items()]

    def _blank(self) -> dict[str, Array]:
        return {k: np.empty(shape, dtype) for k, shape, dtype in self.layout}

    def _begin_all(self, out: dict[str, Array]) -> None:
        for i in range(self.slots):
            self._begin(i, out)
        while (i := self.native.check(out)) >= 0:
            self._replace(i, self.copies[i].broken(self.native.describe(out, i)))
            self._begin(i, out)

    def _post(self, c: Array, d: Array) -> None:
        """Copies in this process do their work when the answer is asked for."""

    def _advance(
        self, c: Array, d: Array, out: dict[str, Array], reward: list[float], terminated: Array, truncated: Array
    ) -> tuple[int, list[tuple[int, float, int, float | None]]]:
        """Steps or resets every copy: the simulator steps, and (slot, return, length, success) of ended episodes."""
        over, gone = self.over, self.gone
        actions = self.native.decode(c, d)
        ticks = 0
        ended = []
        for i, copy in enumerate(self.copies):
            if gone[i]:
                self._stand_in(i, out)
                continue
            if over[i]:
                over[i] = False
                self.episode[i] += 1
                self._begin(i, out)
                continue
            try:
                reward[i], end, cut = copy.step(actions[i], out, i)
            except Broken as err:
                self._drop(i, err, out, reward, terminated, truncated)
                continue
            ticks += copy.spent
            if end or cut:
                terminated[i], truncated[i], over[i] = end, cut, True
                ended.append(i)
        while (i := self.native.check(out)) >= 0:
            what = self.copies[i].broken(self.native.describe(out, i), actions[i])
            if not self.copies[i].length:
                self._replace(i, what)
                self._begin(i, out)
                continue
            ticks -= self.copies[i].spent
            self._drop(i, what, out, reward, terminated, truncated)
            ended = [j for j in ended if j != i]
        return ticks, [(i, x.total, x.length, x.success) for i in ended for x in (self.copies[i],)]

    def _running(self) -> tuple[list[float], list[int]]:
        """Return and length of the running episodes."""
        return [x.total for x in self.copies], [x.length for x in self.copies]

    def _replay_all(
        self, actions: list[tuple[Array, Array]], totals: list[float], lengths: list[int], out: dict[str, Array]
    ) -> bool:
        for i, copy in enumerate(self.copies):
            if not self.over[i]:
                seed = derive(self.seed, i, self.episode[i])
                if not copy.replay(seed, self.native.decode(*actions[i]), out, i):
                    return False
            copy.total, copy.length = float(totals[i]), int(lengths[i])
        return True

    def render(self) -> Any:
        return self.copies[0].render()

    def close(self) -> None:
        for copy in self.copies if self.owned else ():
            copy.close()

    # Broken copies.

    def _begin(self, i: int, out: dict[str, Array]) -> None:
        """The first observation of the slot's episode, from a fresh copy if need be."""
        self.log.begin(i)
        while not self.gone[i]:
            try:
                return self.copies[i].begin(derive(self.seed, i, self.episode[i]), out, i)
            except Broken as err:
                self._replace(i, err)
        self._stand_in(i, out)

    def _stand_in(self, i: int, out: dict[str, Array]) -> None:
        """What a dropped slot shows: a living one's last observation, so that the means of observations stay theirs."""
        other = self.gone.index(False)
        for k, v in out.items():
            v[i] = self.last[k][other] if self.last else k == "mask"

    def _dropped(self) -> list[int]:
        return [i for i, gone in enumerate(self.gone) if gone] if True in self.gone else []

    def _drop(
        self, i: int, err: Broken, out: dict[str, Array], reward: list[float], terminated: Array, truncated: Array
    ) -> None:
        """A copy broke in the middle of an episode: the slot repeats its last observation and is cut short there."""
        self._replace(i, err)
        self.episode[i] -= 1  # the reset that follows counts it again
        for k, v in out.items():
            v[i] = self.last[k][i]
        reward[i], terminated[i], truncated[i], self.over[i] = 0.0, False, True, True

    def _replace(self, i: int, err: RunError) -> None:
        """A fresh copy and a fresh episode number, or no copy any more, or the error."""
        if self.config.on_error == "drop":
            what = str(err).removesuffix(f"; {REMEDY}")
            self.gone[i] = True
            if all(self.gone):
                raise RunError(f"{what}; it was the last copy") from err
            return warnings.warn(f"{what}; it is dropped, the other copies go on", DroppedWarning, stacklevel=2)
        while True:
            if self.config.on_error != "restart":
                raise err
            self.crashes[i] = 1 if self._length(i) >= SOUND else self.crashes[i] + 1
            if self.crashes[i] > CRASHES:
                tried = str(err).removesuffix(f"; {REMEDY}")
                raise RunError(f"{tried}; {CRASHES} restarts in a row did not help") from err
            self.restarts += 1
            self.episode[i] += 1
            try:
                return self._renew(i)
            except (RunError, UserError) as again:
                err = RunError(str(again))

    def _renew(self, i: int) -> None:
        self.copies[i].close()
        self.copies[i] = open_copy(self.makers[i], i, self.config, derive(self.seed, i, self.episode[i]))

    def _length(self, i: int) -> int:
        return self.copies[i].length

    # Small parts.

    def _flags(self) -> Array:
        return np.zeros(self.slots, bool)

    def _step(
        self,
        out: dict[str, Array],
        reward: Array,
        terminated: Array,
        truncated: Array,
        ticks: int,
        episodes: Episodes | None,
    ) -> Step:
        self.last = out
        return Step(
            {k: torch.from_numpy(v) for k, v in out.items()},
            torch.from_numpy(reward),
            torch.from_numpy(terminated),
            torch.from_numpy(truncated),
            None,
            ticks,
            episodes,
        )


def from_makers(makers: Sequence[Maker], seed: int, config: EnvConfig) -> VecEnv:
    """Copies in this process, or one worker process each."""
    if config.mode == "workers":
        from kumite.envs.workers import WorkerVec

        return WorkerVec(makers, seed, config)
    if config.mode == "native":
        raise UserError("--env.mode native is for simulators with their own vector code; this environment has none")
    return GymVec(makers, seed, config)


def make(name: str, num_envs: int, seed: int, config: EnvConfig, render: bool) -> VecEnv:
    """Any registered gymnasium id."""
    kwargs = ids.keywords(config.kwargs)
    name = ids.find_id(name)
    if config.mode == "native" and not (render and not name.startswith("ALE/")):
        from kumite.envs.vector import make_native

        return make_native(name, num_envs, seed, config, kwargs)
    if config.mode == "native":  # a picture of one copy is asked for, which the same task in single copies can give
        config = replace(config, mode="sync")
    return from_makers(ids.makers(ids.make_id, num_envs, render, name, kwargs), seed, config)
