"""Run folders and the signals that end a run: where things lie, and how to stop without losing any of them."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from kumite import checkpoint
from kumite.errors import UserError, nearest


def open_folder(parent: Path, name: str, seed: int, texts: dict[str, str]) -> Path:
    """A new folder <name>-s<seed> with these files; a name that is taken gets a suffix, runs are never mixed."""
    stem = f"{name or time.strftime('%Y%m%d-%H%M%S')}-s{seed}"
    for attempt in range(1, 10_000):
        path = parent / (stem if attempt == 1 else f"{stem}-{attempt}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise UserError(f"cannot make the run's folder {path}: {error.strerror}; choose another --dir") from None
        try:
            for file, text in texts.items():
                (path / file).write_text(text, encoding="utf-8")
        except OSError as error:
            shutil.rmtree(path, ignore_errors=True)
            raise UserError(f"cannot write to {path}: {error.strerror}; choose another --dir") from None
        return path
    raise UserError(f"there are too many runs named {stem} in {parent}; choose another --name")


@contextmanager
def alone(folder: Path | None) -> Iterator[None]:
    """Nobody else writes to this run meanwhile. The lock leaves no file, and goes with the process however it ends."""
    with ExitStack() as stack:
        if folder is not None and os.name == "posix":
            import fcntl

            place = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, place)
            try:
                fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(f"{folder} is being written by another process; end that one first") from None
            except OSError:  # a file system without locks
                pass
        yield


def find(name: str | Path, root: str | Path = "runs") -> Path:
    """The run folder meant by a path or by a unique part of its name below `root`."""
    path = Path(name)
    if (path / "checkpoints").is_dir() or is_run(path):
        return path
    if path.parent.name == "checkpoints" and path.is_dir():
        return path.parent.parent
    known = [p.parent for p in sorted(Path(root).glob("*/*/*/config.yaml"))]
    close = [p for p in known if p.as_posix().endswith(f"/{path.as_posix()}")] or [
        p for p in known if str(name) in str(p)
    ]
    if len(close) == 1:
        return close[0]
    if close:
        shown = ", ".join(map(str, close[:4])) + (", ..." if len(close) > 4 else "")
        raise UserError(f"'{name}' could be any of {shown}; write more of the path")
    raise UserError(f"there is no run '{name}'{nearest(str(name), [str(p) for p in known])}")


def is_run(path: Path) -> bool:
    """A run's folder, which holds a config beside no state of its own."""
    return (path / "config.yaml").is_file() and not list(path.glob("state.*"))


def pick_checkpoint(run: Path, which: str = "last") -> Path:
    """best, last, or a step. Damaged ones are skipped with a warning."""
    folder = run / "checkpoints"
    checkpoint.rescue_all(folder)
    if which == "best" and (folder / "best").is_dir():
        trouble = checkpoint.problem(folder / "best")
        if trouble is None:
            return folder / "best"
        checkpoint.skipped(folder / "best", trouble)
    if which in ("best", "last"):
        for good in checkpoint.newest(folder):
            return good
        raise UserError(f"{run} holds no checkpoint that can be used")
    if not (folder / which).is_dir():
        have = [p.name for p in checkpoint.numbered(folder)]
        raise UserError(f"{run} has no checkpoint '{which}' (it has: best, last, {', '.join(have)})")
    return folder / which


SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, name))
"""What ends a run once it has saved. SIGUSR1 is how batch systems say that the time is nearly up, SIGHUP comes when the
terminal or the connection is gone."""


def ignored(number: int) -> bool:
    """nohup asks for that, and gets it."""
    return number == getattr(signal, "SIGHUP", None) and signal.getsignal(number) is signal.SIG_IGN


class Stop:
    """Remembers a signal until the loop looks; a second Ctrl-C leaves at once."""

    def __init__(self) -> None:
        self.signal: int | None = None

    @contextmanager
    def listening(self) -> Iterator[Stop]:
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = {number: signal.signal(number, self._heard) for number in SIGNALS if not ignored(number)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _heard(self, number: int, frame: Any) -> None:
        if self.signal is not None and number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            raise KeyboardInterrupt
        self.signal = number
