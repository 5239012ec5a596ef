"""The guard around one run of a study: python job.py LAUNCHER LOCK GRACE COMMAND ...

It holds the run's lock, starts the command, and looks after the launcher's process. When the launcher is gone (or says
SIGTERM) the run is told to save and end; one that does not end within GRACE seconds is killed, with all it has started.
This file stands alone: it starts in a blink and does not import kumite.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

POLL = 0.3  # seconds between two looks at the launcher


def lock(path: Path) -> IO[str] | None:
    """The file, locked for as long as it stays open and held by no one else; or None. It holds the holder's pid."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a+", encoding="utf-8")
    try:
        import fcntl
    except ImportError:  # no such locks here: two launchers at once are the user's to avoid
        return file
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    return file


def holder(path: Path) -> str:
    """The pid in a lock's file."""
    try:
        return path.read_text(encoding="utf-8").strip() or "?"
    except OSError:
        return "?"


def die_with_parent() -> None:
    """Linux: SIGTERM for this process when its parent ends, even by SIGKILL."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def main(launcher: int, place: Path, grace: float, command: list[str]) -> int:
    held = lock(place)
    if held is None:
        print(f"kumite: this run is being trained by another process ({holder(place)})", file=sys.stderr)
        return 1
    child: subprocess.Popen[bytes] | None = None

    def end(*_: object) -> None:
        nonlocal grace
        grace = -abs(grace)  # negative: the time is running
        if child is not None:
            child.terminate()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.getppid() != launcher:
        return 143
    child = subprocess.Popen(command, pass_fds=[held.fileno()], preexec_fn=before)
    if grace < 0:  # asked to end while it was being started
        child.terminate()
    left = abs(grace)
    while True:
        try:
            code = child.wait(POLL)
            return code if code >= 0 else 128 - code
        except subprocess.TimeoutExpired:
            pass
        if os.getppid() != launcher and grace > 0:
            end()
        if grace < 0:
            left -= POLL
            if left <= 0:
                os.killpg(0, signal.SIGKILL)


def before() -> None:
    """In the child, before the command: dies with its guard, and hears Ctrl-C like any program."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    die_with_parent()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]))
