"""The places for a run's numbers: one file each, and the table of what `--track` knows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from kumite.errors import UserError, nearest
from kumite.sinks.base import Sink
from kumite.sinks.csv import Csv
from kumite.sinks.tensorboard import TensorBoard

SINKS: dict[str, Callable[[Path, Mapping[str, Any]], Sink]] = {"csv": Csv, "tensorboard": TensorBoard}
"""What `--track` knows: name -> how to make it for a run's folder and its config."""


def check_sinks(names: Iterable[str]) -> None:
    for name in names:
        if name not in SINKS:
            raise UserError(f"track: '{name}' is not known{nearest(name, list(SINKS))} (known: {', '.join(SINKS)})")
