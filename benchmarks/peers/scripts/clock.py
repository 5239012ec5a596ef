"""What every script shares: its orders, and the clock. Plain Python: it runs in every library's environment.

    python SCRIPT.py '{"work": "sac-cheetah", "threads": 1, ...}'

The last line of the script's output is a JSON object with what was measured.
"""

from __future__ import annotations

import json
import os
import sys
import time
from types import SimpleNamespace
from typing import Any


class Done(Exception):
    """Enough was measured."""


def orders() -> Any:
    """Threads are limited here: whoever imports this file first does so before torch and jax look."""
    given = SimpleNamespace(**json.loads(sys.argv[1]))
    if given.threads:
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NPROC"):
            os.environ[name] = str(given.threads)
        if given.threads == 1:
            os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    return given


given = orders()


def limit_torch() -> None:
    import torch

    if given.threads:
        torch.set_num_threads(given.threads)
    torch.manual_seed(given.seed)


class Clock:
    """Starts at the first mark behind the warm-up, stops at the first one after enough seconds."""

    def __init__(self) -> None:
        self.warm, self.enough = given.warm, given.seconds
        self.begin: tuple[int, float, float] | None = None
        self.end = (0, 0.0, 0.0)
        self.born = given.born

    def mark(self, steps: int) -> bool:
        """True when it is over. Call it where a whole number of steps and their updates are done."""
        if steps < self.warm:
            return False
        now = (int(steps), time.perf_counter(), time.process_time())
        if self.begin is None:
            self.begin = now
            self.started = time.time() - self.born
        self.end = now
        return now[1] - self.begin[1] >= self.enough and now[0] > self.begin[0]

    def check(self, steps: int) -> None:
        if self.mark(steps):
            raise Done

    def report(self, *packages: str, **facts: Any) -> None:
        from importlib.metadata import version

        assert self.begin is not None, "the warm-up was never over"
        (s0, t0, c0), (s1, t1, c1) = self.begin, self.end
        say(
            figure=(s1 - s0) / (t1 - t0),
            steps=s1 - s0,
            seconds=t1 - t0,
            cpu=c1 - c0,
            before=self.started,
            versions={name: version(name) for name in packages},
            **facts,
        )


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)
