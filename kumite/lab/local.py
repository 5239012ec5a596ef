"""Processes on this machine: a run under its guard, and what the machine has for runs."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from kumite.lab import job as guard

GRACE = 300.0  # seconds that a run may take to save and end


class Handle(Protocol):
    """A process somewhere."""

    def poll(self) -> int | None:
        """Its exit code (128 + n after signal n), or None while it runs."""

    def stop(self) -> None:
        """It shall save and end."""

    def kill(self) -> None:
        """It ends at once, with all it has started."""


class Backend(Protocol):
    """Where processes are started."""

    cores: int
    gpus: list[str]
    """The names of those that the launcher deals out."""

    def start(self, words: Sequence[str], env: Mapping[str, str], log: Path, lock: Path) -> Handle:
        """Run `kumite` with these words under a guard; it gets these variables on top of the usual ones."""

    def close(self) -> None: ...


class Process:
    def __init__(
        self, words: Sequence[str], env: Mapping[str, str], log: Path, lock: Path, cwd: str | None = None
    ) -> None:
        guarded = [sys.executable, "-S", guard.__file__, str(os.getpid()), str(lock), str(GRACE)]
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            out.write(f"$ {shlex.join(['kumite', *words])}\n".encode())
            out.flush()
            self.process = subprocess.Popen(
                [*guarded, sys.executable, "-m", "kumite", *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **env},
                cwd=cwd,
                start_new_session=True,  # Ctrl-C on the terminal reaches the launcher alone
            )

    def poll(self) -> int | None:
        code = self.process.poll()
        return code if code is None or code >= 0 else 128 - code

    def wait(self) -> int:
        code = self.process.wait()
        return code if code >= 0 else 128 - code

    def stop(self) -> None:
        self.process.terminate()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Local:
    def __init__(self) -> None:
        self.cores, self.gpus = cores(), gpus()

    def start(self, words: Sequence[str], env: Mapping[str, str], log: Path, lock: Path) -> Handle:
        return Process(words, env, log, lock)

    def close(self) -> None: ...


def cores() -> int:
    """Those this process may use: by affinity, and by the quota of a container."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        here = min(here, max(int(quota) // int(period), 1))  # "max" is no number: no quota
    return here


def gpus() -> list[str]:
    """The names by which CUDA_VISIBLE_DEVICES knows what is visible here."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    shown = [x.strip() for x in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if x.strip()]
    return shown[:count] if shown else [str(i) for i in range(count)]


def least_used(names: Sequence[str], taken: Sequence[str | None]) -> str | None:
    return min(names, key=taken.count, default=None)


def environment(threads: int, share: int, gpu: str | None) -> dict[str, str]:
    """Threads within what the run was given, whatever library makes them; its output at once, not in pieces.

    `share`: the run's part of the cores, for what compiles before it trains.
    """
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    env = dict.fromkeys(names, str(threads)) | {"TORCHINDUCTOR_COMPILE_THREADS": str(share), "PYTHONUNBUFFERED": "1"}
    return env | ({} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu})
