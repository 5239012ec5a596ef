"""Where the time of a run goes, measured from outside.

While a profile watches, the methods named in PARTS are replaced on the very objects of the run by ones that look at the
clock. The loop knows nothing of it, and without a profile nothing is there that could cost time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

Clock = Callable[[], float]

PARTS: dict[str, tuple[str, ...]] = {
    "act": ("algo.explore",),
    "env": ("env.send", "env.recv"),
    "store": ("stream.observe", "stream.record", "algo.observe"),
    "sample": ("algo.learn",),  # less the updates in it: drawing and cutting batches, values, advantages
    "update": ("algo.step_update",),
    "log": (
        *("logger.episodes", "logger.progress", "logger.metrics", "logger.evaluation"),
        *("meter.add", "meter.flush"),
    ),
    "eval": ("agent._evaluate_hook",),
    "save": ("agent._save_hook", "agent._write"),
}
COMPILE, OTHER = "compile", "other"


class Profile:
    """Seconds and calls per part. A second counts once: a part that calls another one is not charged for it."""

    def __init__(self, device: torch.device | None = None, clock: Clock = time.perf_counter) -> None:
        self.clock = clock
        self.device = device if device is not None and device.type == "cuda" else None
        self.seconds = dict.fromkeys([*PARTS, COMPILE, OTHER], 0.0)
        self.calls = dict.fromkeys(self.seconds, 0)
        self.steps = 0
        self.wall = self.cpu = 0.0
        self.inner = [0.0]
        """Per open call: the seconds that belong to parts inside it."""

    @contextmanager
    def watching(self, run: Any, agent: Any) -> Iterator[None]:
        """Count what this run spends until the end of the block."""
        homes = {"agent": agent, **{k: getattr(run, k) for k in ("algo", "env", "stream", "logger", "meter")}}
        places = [(part, homes[home], name) for part in PARTS for home, _, name in map(_halves, PARTS[part])]
        begun, wall, cpu = run.env_step, self.clock(), time.process_time()
        before = [vars(home).get(name) for _, home, name in places]  # None: the method is the class's, as usual
        for part, home, name in places:
            setattr(home, name, self._timed(part, getattr(home, name)))
        try:
            yield
        finally:
            for (_, home, name), own in zip(places, before, strict=True):
                if own is None:
                    delattr(home, name)
                else:
                    setattr(home, name, own)
            self.steps += run.env_step - begun
            self.wall += self.clock() - wall
            self.cpu += time.process_time() - cpu
            self.seconds[OTHER] = self.wall - sum(s for part, s in self.seconds.items() if part != OTHER)

    def _timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            graphs, start = _graphs(), self.clock()
            self.inner.append(0.0)
            try:
                return call(*args, **kwargs)
            finally:
                if self.device is not None:  # what was only queued belongs to whoever asked for it
                    torch.cuda.synchronize(self.device)
                spent = self.clock() - start
                own = COMPILE if part == "update" and _graphs() != graphs else part
                self.seconds[own] += spent - self.inner.pop()
                self.calls[own] += 1
                self.inner[-1] += spent

        return timed

    def rows(self) -> list[dict[str, Any]]:
        """A dict per part that took any time: seconds, share, per step and per call in microseconds."""
        whole = max(self.wall, 1e-9)
        return [
            {
                "part": part,
                "seconds": spent,
                "share": spent / whole,
                "us_per_step": 1e6 * spent / max(self.steps, 1),
                "calls": self.calls[part],
                "us_per_call": 1e6 * spent / self.calls[part] if self.calls[part] else 0.0,
            }
            for part, spent in self.seconds.items()
            if self.calls[part] or part == OTHER
        ]

    def __str__(self) -> str:
        rate = self.steps / max(self.wall, 1e-9)
        lines = [
            f"where the time went: {self.steps:,} steps in {self.wall:.2f} s ({self.cpu:.2f} s of CPU), {rate:,.0f}/s",
            f"  {'':8}{'seconds':>10}{'percent':>9}{'us/step':>10}{'calls':>10}{'us/call':>13}",
        ]
        for r in self.rows():
            calls = f"{r['calls']:>10,}{r['us_per_call']:>13,.1f}" if r["calls"] else ""
            lines.append(f"  {r['part']:8}{r['seconds']:>10.2f}{r['share']:>9.1%}{r['us_per_step']:>10,.1f}{calls}")
        return "\n".join(lines)


def _halves(place: str) -> tuple[str, str, str]:
    return place.partition(".")


def _graphs() -> int:
    """How many graphs torch has compiled so far in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return int(dynamo.counters["stats"]["unique_graphs"]) if dynamo else 0
