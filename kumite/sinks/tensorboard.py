"""Event files for TensorBoard."""

from __future__ import annotations

import math
import os
import platform
import struct
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kumite.errors import missing_extra
from kumite.sinks.base import Sink
from kumite.sinks.files import Growing
from kumite.sinks.names import evaluated, style_of

EVENTS = "events.out.tfevents."


class TensorBoard(Sink):
    """Event files, written here and now: no thread, no queue, and their length is always known."""

    WAITING = 10_000  # events that wait for a full disk before the oldest are dropped

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
        except ImportError:
            raise missing_extra("tensorboard", "all") from None
        self.event, self.summary = event_pb2, summary_pb2
        self.folder, self.style = folder, style_of(config)
        self.old: dict[str, int] = {}
        self.file: Growing | None = None
        self.waiting: deque[bytes] = deque(maxlen=self.WAITING)
        self.last = self.written = -1  # newest step

    def metrics(self, env_step: int, time_s: float, values: Mapping[str, float]) -> None:
        tags = {tag.encode("utf-8", "replace").decode(): float(x) for tag, x in values.items()}
        summary = self.summary.Summary(
            value=[self.summary.Summary.Value(tag=tag, simple_value=_single(x)) for tag, x in tags.items()]
        )
        self.waiting.append(self._record(step=env_step, summary=summary))
        self.last = max(self.last, env_step)

    def evaluation(self, env_step: int, time_s: float, row: Mapping[str, float]) -> None:
        self.metrics(env_step, time_s, evaluated(row, self.style, env_step, time_s))

    def _record(self, **event: Any) -> bytes:
        return framed(self.event.Event(wall_time=time.time(), **event).SerializeToString())

    def flush(self) -> None:
        if not self.waiting:
            return
        if self.file is None or self.file.shrunk():
            self._open()
        assert self.file is not None
        self.file.append((b"" if self.file.size else self._head()) + b"".join(self.waiting))
        self.waiting.clear()
        self.written = self.last

    def _head(self) -> bytes:
        """A reader that has seen more of an earlier file forgets it from this step on."""
        head = self._record(file_version="brain.Event:2")
        if not self.old:
            return head
        start = self.event.SessionLog(status=self.event.SessionLog.START)
        return head + self._record(step=self.written + 1, session_log=start)

    def _open(self) -> None:
        """Readers take the files of a folder in the order of their names, which begin with the time."""
        if self.file is not None and self.file.path.exists():
            self.old[self.file.path.name] = self.file.path.stat().st_size
        stamps = [_stamp(name) for name in self.old]
        stamp = max([int(time.time()), *(s + 1 for s in stamps)])
        self.file = Growing(self.folder / f"{EVENTS}{stamp:010d}.{platform.node() or 'host'}.{os.getpid()}.0")

    def state(self) -> dict[str, Any]:
        here = {self.file.path.name: self.file.size} if self.file is not None else {}
        return {"files": {**self.old, **here}, "last": self.last}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.waiting.clear()
        self.file = None
        self.last = self.written = int(state["last"])
        self.old = {str(name): int(size) for name, size in state["files"].items()}
        for path in self.folder.glob(f"{EVENTS}*"):
            if path.name in self.old:
                Growing(path).cut(self.old[path.name])
            else:
                path.unlink()


def framed(data: bytes) -> bytes:
    """A record as event files hold it: its length and itself, a checksum behind each. TensorBoard's own writer does the
    same; to import it takes longer than anything else of the start of a run but torch.
    """
    length = struct.pack("<Q", len(data))
    return length + _checksum(length) + data + _checksum(data)


def _checksum(data: bytes) -> bytes:
    """CRC-32C, masked."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _crc_of(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


CRC = tuple(map(_crc_of, range(256)))


def _stamp(name: str) -> int:
    digits = name.removeprefix(EVENTS).partition(".")[0]
    return int(digits) if digits.isdecimal() else 0


def _single(x: float) -> float:
    """What fits in 32 bits."""
    return x if math.isnan(x) or abs(x) < 3.4e38 else math.copysign(math.inf, x)
