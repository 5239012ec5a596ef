"""The places for a run's numbers: one file each, and the table of what `--track` knows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from kumite.errors import UserError, nearest
from kumite.sinks.base import Sink
from kumite.sinks.csv import Csv
from kumite.sinks.tensorboard import TensorBoard
from kumite.sinks.tracker import Tracker, check

TRACKERS = ("wandb", "swanlab")
SINKS: dict[str, Callable[[Path, Mapping[str, Any]], Sink]] = {
    "csv": Csv,
    "tensorboard": TensorBoard,
    **{name: partial(Tracker, name) for name in TRACKERS},
}
"""What `--track` knows: name -> how to make it for a run's folder and its config."""


def check_sinks(names: Iterable[str]) -> None:
    for name in names:
        if name not in SINKS:
            raise UserError(f"track: '{name}' is not known{nearest(name, list(SINKS))} (known: {', '.join(SINKS)})")


def ready(names: Iterable[str], options: Mapping[str, Any]) -> None:
    """Before anything is written: the packages of the trackers are there, and a key where one is asked for."""
    for name in names:
        if name in TRACKERS:
            check(name, options)
