"""The loop. It names no algorithm and no simulator.

    act -> stream.record -> env.send -> env.recv -> stream.observe -> algo.learn -> hooks

`RunState` is what a checkpoint holds, and nothing else: every attribute of it is saved by walking.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch

from kumite import tree
from kumite.algos.base import Algorithm
from kumite.envs.base import RESTARTED, VecEnv, derive
from kumite.errors import RunError
from kumite.log import Logger, Meter
from kumite.machine import products
from kumite.nn.cores import forget
from kumite.schedules import Every
from kumite.stream import Stream
from kumite.types import Step


class Interrupted(KeyboardInterrupt):
    """A signal asked for an end; the run stands between two steps and has been saved."""

    def __init__(self, signal: int) -> None:
        super().__init__(f"interrupted by signal {signal}")
        self.signal = signal


class RestartWarning(RuntimeWarning):
    """A resumed run begins with fresh episodes."""


class RunState:
    def __init__(
        self, algo: Algorithm, env: VecEnv, seed: int, logger: Logger, device: torch.device, storage: torch.device
    ) -> None:
        """`storage`: where the stream lies, beside the nets or on the host."""
        self.algo, self.logger = algo, logger
        self.stream: Stream = algo.make_stream(storage)
        self.core = algo.initial(env.slots)
        self.first = torch.ones(env.slots, dtype=torch.bool, device=device)  # slots whose observation begins an episode
        self.step: dict[str, Any] = {}  # the Step to be answered next, as a dict
        self.env_step = 0
        self.episodes = 0
        self.best = -math.inf
        self.last_eval: float | None = None
        self.eval_step = -1  # where the last evaluation was made
        self.threads = 1
        self.precision = "highest"
        self.compiled: bool | None = None  # decided once per run: a resumed run computes as before
        self.thorough = False  # how
        self.meter = Meter()
        self.timers: dict[str, Every] = {}
        self.env = env
        self.seed = seed
        self.device = device

    LIVE = ("env", "device")  # env is saved through its own state(), if it has one

    def state(self) -> dict[str, Any]:
        """Everything, by walking."""
        saved = {k: v for k, v in vars(self).items() if k not in self.LIVE}
        return saved | {"env": self.env.state() if self.env.restorable else None}

    def restore(self, state: dict[str, Any]) -> None:
        """Back to where the state was taken; environments that cannot go back start fresh episodes."""
        self.algo.load_state_dict(state["algo"])
        for name, timer in self.timers.items():
            timer.restore(state["timers"].get(name, timer.state()))
        for name, value in vars(self).items():
            if name in state and name not in ("algo", "timers", "env", "stream"):
                if hasattr(value, "restore"):
                    value.restore(state[name])
                else:
                    setattr(self, name, state[name])
        self.core, self.first = tree.to(self.core, self.device), self.first.to(self.device)
        if "stream" in state:
            self.stream.restore(state["stream"])
        if self.step and not (state["env"] is not None and self.env.restorable and self.env.restore(state["env"])):
            self.restart()
        elif self.step and int(self.stream.count.max()) == 0:
            self.stream.observe(self.current.to(self.stream.device))

    @property
    def current(self) -> Step:
        return Step(**self.step).to(self.device)

    def restart(self) -> None:
        """Fresh episodes: what was under way counts as cut short at its last observation."""
        warnings.warn(
            "the environments cannot be put back where they were: fresh episodes begin, everything else is as it was",
            RestartWarning,
            stacklevel=2,
        )
        self.stream.cut()
        fresh = self.env.reset(derive(self.seed, RESTARTED, self.env_step))
        self.core = self.algo.initial(self.env.slots)
        self.first = torch.ones(self.env.slots, dtype=torch.bool, device=self.device)
        self.take(fresh)

    def take(self, step: Step) -> None:
        """A Step arrived: it moves to the learner's device once."""
        arrived, step = step, step.to(self.device)
        self.step = step._replace(episodes=None)._asdict()
        self.stream.observe(step if self.stream.device == self.device else arrived.to(self.stream.device))
        self.algo.observe(step, tree.at(self.first, step.slot))


Hook = Callable[[RunState], None]
MANY = 64  # rows from which on acting gains by products that are made for large matrices


@torch.no_grad()
def online(run: RunState, until: int, hooks: Mapping[str, Hook], check: Callable[[], None]) -> None:
    """Train until `until` environment steps; hooks fire by the timers of their names, `check` may raise Interrupted."""
    algo, env, stream = run.algo, run.env, run.stream
    small = env.slots < MANY and run.precision != "highest"
    if not run.step:
        run.take(env.reset(run.seed))
    while True:
        for name, hook in hooks.items():
            _fire(run, name, hook)
        check()
        if run.env_step >= until:
            return
        step = run.current
        before = forget(tree.at(run.core, step.slot), tree.at(run.first, step.slot))
        with products("highest") if small else nullcontext():
            act = algo.explore(step.obs, before, run.env_step, until, step.slot)
        stream.record(act, before, step.slot)
        env.send(tree.to(act.action, "cpu"), None if step.slot is None else step.slot.cpu())
        run.core = tree.put(run.core, step.slot, act.core)
        run.first = tree.put(run.first, step.slot, step.over)
        step = env.recv()
        run.take(step)
        run.env_step += step.ticks
        if step.episodes:
            run.episodes += len(step.episodes.returns)
            run.logger.episodes(run.env_step, step.episodes)
        for metrics in algo.learn(stream, run.env_step, until):
            run.meter.add(metrics)
        run.logger.progress(run.env_step)


def _fire(run: RunState, name: str, hook: Hook) -> None:
    """A hook that is broken off counts as not fired: a resumed run begins with it."""
    timer = run.timers[name]
    before = timer.state()
    if timer.due(run.env_step):
        try:
            hook(run)
        except Interrupted:
            timer.restore(before)
            raise


def log_metrics(run: RunState) -> None:
    """A row of means. A loss that is not a number ends the run."""
    values = run.meter.flush()
    bad = [name for name, value in values.items() if not math.isfinite(value)]
    if bad:
        raise RunError(
            f"'{bad[0]}' is not a finite number at step {run.env_step:,} (seed {run.seed});"
            " a smaller --lr or --grad-clip often helps"
        )
    restarts = {"rollout/restarts": run.env.restarts} if run.env.restarts else {}
    run.logger.metrics(run.env_step, values | restarts | {"train/n_updates": run.algo.updates})
