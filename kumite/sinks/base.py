"""What a place for numbers has to offer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kumite.types import Episodes


class Sink:
    """A place for numbers. Every method may fail: the Logger warns once per kind of failure and goes on."""

    def metrics(self, env_step: int, time_s: float, values: Mapping[str, float]) -> None:
        """A row, under the names of the run's style."""

    def episodes(self, env_step: int, time_s: float, episodes: Episodes) -> None: ...

    def evaluation(self, env_step: int, time_s: float, row: Mapping[str, float]) -> None:
        """A row of evals.csv, under its own names."""

    def due(self, time_s: float) -> bool:
        """Is it time to show progress?"""
        return False

    def progress(self, env_step: int, time_s: float) -> None: ...

    def flush(self) -> None: ...

    def news(self) -> list[str]:
        """Lines for whoever is watching, each given once."""
        return []

    def finished(self, env_step: int) -> None:
        """The run has reached its end, and its last checkpoint is written."""

    def close(self) -> None: ...

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None: ...


EVALUATION = ("mean", "std", "min", "max", "episodes", "mean_length")
