"""What a place for numbers has to offer, and the names under which evaluations are shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kumite.types import Episodes


class Sink:
    """A place for numbers. Every method may fail: the Logger warns once per kind of failure and goes on."""

    def metrics(self, env_step: int, time_s: float, values: Mapping[str, float]) -> None: ...

    def episodes(self, env_step: int, time_s: float, episodes: Episodes) -> None: ...

    def evaluation(self, env_step: int, time_s: float, row: Mapping[str, float]) -> None: ...

    def due(self, time_s: float) -> bool:
        """Is it time to show progress?"""
        return False

    def progress(self, env_step: int, time_s: float) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None: ...


EVALUATION = ("mean", "std", "min", "max", "episodes", "mean_length")
EVAL_NAMES = {"mean": "eval/mean_reward", "std": "eval/std_reward", "mean_length": "eval/mean_ep_length"}
EVAL_NAMES |= {"min": "eval/min_reward", "max": "eval/max_reward"}
