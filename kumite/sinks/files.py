"""Files that a full disk or a kill cannot leave half written."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


class Growing:
    """A file that takes whole pieces: all of a piece gets in, or none of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = path.stat().st_size if path.exists() else 0

    def append(self, piece: bytes) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab", buffering=0) as file:
            if file.seek(0, os.SEEK_END) > self.size:  # what an earlier failure left behind
                file.truncate(self.size)
            try:
                view = memoryview(piece)
                while view:
                    view = view[file.write(view) :]
            except BaseException:
                with contextlib.suppress(OSError):
                    file.truncate(self.size)
                raise
        self.size += len(piece)

    def shrunk(self) -> bool:
        """Somebody took away what was written."""
        return self.size > (self.path.stat().st_size if self.path.exists() else 0)

    def cut(self, size: int) -> None:
        """Back to this many bytes, or fewer if there are fewer."""
        there = self.path.stat().st_size if self.path.exists() else 0
        if there > size:
            os.truncate(self.path, size)
        self.size = min(there, size)


def replace_file(path: Path, data: bytes) -> None:
    """The whole new file or the old one, never half of either."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
