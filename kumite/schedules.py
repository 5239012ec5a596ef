"""Is it time yet, and how much by now: pure functions of the share of the run, and two small counters."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

Schedule = Callable[[float, float, float], float]


def constant(start: float, end: float, share: float) -> float:
    return start


def linear(start: float, end: float, share: float) -> float:
    """From start (share 0) to end (share 1) in a straight line."""
    share = min(max(share, 0.0), 1.0)
    return start * (1.0 - share) + end * share


def cosine(start: float, end: float, share: float) -> float:
    """From start to end along half a cosine wave: slow, fast, slow."""
    return linear(start, end, 0.5 - 0.5 * math.cos(math.pi * min(max(share, 0.0), 1.0)))


SCHEDULES: dict[str, Schedule] = {"constant": constant, "linear": linear, "cosine": cosine}


class Ratio:
    """Updates per environment step, exactly: what a call cannot give out is carried as a fraction to the next."""

    def __init__(self, ratio: float, warmup: int = 0) -> None:
        self.ratio = Fraction(ratio).limit_denominator(1_000_000)
        self.part, self.whole = self.ratio.numerator, self.ratio.denominator
        self.warmup = warmup
        self.last = 0
        self.credit = 0  # in parts of `whole`: counting integers is cheap, and this is asked at every step

    def due(self, env_step: int) -> int:
        """Updates to make now that this many environment steps lie behind."""
        fresh = env_step - max(self.last, self.warmup)
        self.last = max(self.last, env_step)
        if fresh <= 0:
            return 0
        count, self.credit = divmod(self.credit + fresh * self.part, self.whole)
        return count

    def skip(self, env_step: int) -> None:
        """Forget what has come due so far: nothing to learn from yet, and no burst later."""
        self.last = max(self.last, env_step)
        self.credit = 0

    def state(self) -> dict[str, Any]:
        return {"last": self.last, "credit": [self.credit, self.whole]}

    def restore(self, state: dict[str, Any]) -> None:
        self.last = int(state["last"])
        self.credit = int(Fraction(*state["credit"]) * self.whole)


class Every:
    """True once for each time a multiple of n is reached or passed; n <= 0 = never."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.last = 0

    def due(self, step: int) -> bool:
        passed = self.n > 0 and step // self.n > self.last // self.n
        self.last = max(self.last, step)
        return passed

    def state(self) -> dict[str, Any]:
        return {"last": self.last}

    def restore(self, state: dict[str, Any]) -> None:
        self.last = int(state["last"])
