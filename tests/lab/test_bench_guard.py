"""The guard around a run: what it does when its launcher, its run, or it itself is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from kumite.lab import job as guard

# A launcher that starts a guard, says its pid, and waits for it; and runs that end well, or not at all.
LAUNCHER = """
import os, subprocess, sys
guarded = subprocess.Popen([sys.executable, "-S", sys.argv[1], str(os.getpid()), *sys.argv[2:]], start_new_session=True)
print(guarded.pid, flush=True)
sys.exit(guarded.wait())
"""
RUN = """
import pathlib, signal, sys, time
def end(*_):
    pathlib.Path("saved").touch()
    sys.exit(143)
signal.signal(signal.SIGTERM, {handler})
pathlib.Path("begun").touch()
time.sleep(60)
"""


def start(tmp_path: Path, *command: str, grace: float = 30) -> subprocess.Popen[str]:
    words = [sys.executable, "-S", "-c", LAUNCHER, guard.__file__, str(tmp_path / "lock"), str(grace), *command]
    return subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


def wait(what: Callable[[], Any], seconds: float = 20.0) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "it did not come to that"
        time.sleep(0.02)


def free(tmp_path: Path) -> bool:
    held = guard.lock(tmp_path / "lock")
    if held is not None:
        held.close()
    return held is not None


@pytest.mark.parametrize(("how", "code"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", 137), ("pass", 0)])
def test_the_exit_code_is_that_of_the_run(tmp_path: Path, how: str, code: int) -> None:
    process = start(tmp_path, *python(f"import os, sys; {how}"))
    process.communicate(timeout=20)
    assert process.returncode == code
    assert free(tmp_path)


def test_a_run_is_told_to_save_when_its_launcher_is_killed(tmp_path: Path) -> None:
    process = start(tmp_path, *python(RUN.format(handler="end")))
    wait((tmp_path / "begun").exists)
    assert not free(tmp_path)
    assert guard.holder(tmp_path / "lock") == process.stdout.readline().strip()  # type: ignore[union-attr]
    process.kill()
    process.communicate()
    wait((tmp_path / "saved").exists)
    wait(lambda: free(tmp_path))


def test_a_run_that_does_not_listen_is_killed(tmp_path: Path) -> None:
    process = start(tmp_path, *python(RUN.format(handler="signal.SIG_IGN")), grace=0.5)
    wait((tmp_path / "begun").exists)
    process.kill()
    process.communicate()
    wait(lambda: free(tmp_path))
    assert not (tmp_path / "saved").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG")
def test_a_run_does_not_outlive_its_guard(tmp_path: Path) -> None:
    process = start(tmp_path, *python(RUN.format(handler="end")))
    wait((tmp_path / "begun").exists)
    os.kill(int(process.stdout.readline()), signal.SIGKILL)  # type: ignore[union-attr]
    process.communicate(timeout=20)
    wait((tmp_path / "saved").exists)
    wait(lambda: free(tmp_path))


def test_one_run_is_trained_by_one_process(tmp_path: Path) -> None:
    held = guard.lock(tmp_path / "lock")
    assert held is not None
    with held:
        process = start(tmp_path, *python("import pathlib; pathlib.Path('begun').touch()"))
        _, err = process.communicate(timeout=20)
    assert process.returncode == 1
    assert err == f"kumite: this run is being trained by another process ({os.getpid()})\n"
    assert not (tmp_path / "begun").exists()


def test_a_guard_whose_launcher_is_gone_starts_nothing(tmp_path: Path) -> None:
    gone = psutil.Process().ppid()
    words = [sys.executable, "-S", guard.__file__, str(gone), str(tmp_path / "lock"), "30", *python("print('begun')")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stdout) == (143, "")
