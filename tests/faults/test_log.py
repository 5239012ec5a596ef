"""Logging that cannot write: one warning per kind, training goes on, old rows stay whole, and it tries again."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kumite.log import Logger, LogWarning
from kumite.sinks import SINKS
from kumite.sinks.base import Sink
from kumite.sinks.csv import Table
from kumite.sinks.files import Growing
from kumite.types import Episodes

EVAL = {"mean": 1.5, "std": 0.5, "min": 1.0, "max": 2.0, "episodes": 2, "mean_length": 7.0}


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def full_disk(monkeypatch: pytest.MonkeyPatch, room: int) -> Callable[[], None]:
    """Every append writes at most `room` bytes and then fails, until the returned function is called."""
    real = Path.open

    class Full:
        def __init__(self, file: Any, raw: bool) -> None:
            self.file, self.room, self.raw = file, room, raw

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *error: Any) -> None:
            self.file.close()

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

        def write(self, data: Any) -> int:
            took = int(self.file.write(data[: self.room]))
            self.room -= took
            if took < len(data) and not (self.raw and took):  # a raw file says how much it took, a buffered one fails
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return took

    def full(self: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        file = real(self, mode, *args, **kwargs)
        return Full(file, kwargs.get("buffering") == 0) if "a" in mode or "w" in mode else file

    patch = pytest.MonkeyPatch()
    patch.setattr(Path, "open", full)
    return patch.undo


def caught(act: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        act()
    return [str(w.message) for w in found if issubclass(w.category, LogWarning)]


@pytest.mark.parametrize("room", [0, 1, 7, 40])
def test_a_full_disk_costs_a_warning_and_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    logger = Logger(tmp_path, quiet=True)
    logger.metrics(1, {"loss": 1.0})
    before = (tmp_path / "metrics.csv").read_bytes()
    emptied = full_disk(monkeypatch, room)
    said = caught(lambda: [logger.metrics(i, {"loss": 1.0, "new": 2.0}) for i in range(2, 9)])
    assert len(said) == 2, "one for each sink"
    assert all("No space left" in text and "training goes on" in text for text in said)
    emptied()
    now = (tmp_path / "metrics.csv").read_bytes()
    assert now == before, "old rows stay as they were"
    assert not caught(lambda: logger.metrics(9, {"loss": 1.0}))
    logger.close()
    assert [line.split(",")[0] for line in lines(tmp_path / "metrics.csv")] == ["env_step", *map(str, range(1, 10))]
    assert not list(tmp_path.glob(".*")), "no temporary file stays"
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(tmp_path))
    reader.Reload()
    assert [e.step for e in reader.Scalars("train/loss")] == list(range(1, 10))


@pytest.mark.skipif(sys.platform == "win32", reason="RLIMIT_FSIZE is a matter of POSIX")
def test_a_real_file_size_limit(tmp_path: Path) -> None:
    """RLIMIT_FSIZE tears a write in the middle of a row."""
    code = """
import resource, sys, warnings, pathlib
from kumite.log import Logger
warnings.simplefilter("always")
resource.setrlimit(resource.RLIMIT_FSIZE, (700, resource.RLIM_INFINITY))
logger = Logger(pathlib.Path(sys.argv[1]), ("csv",), quiet=True)
for i in range(100):
    logger.metrics(i, {"loss": i / 3})
logger.close()
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stderr.count("LogWarning: ") == 1
    data = (tmp_path / "metrics.csv").read_bytes()
    assert data.endswith(b"\n")
    assert 300 < len(data) <= 700
    assert {line.count(",") for line in lines(tmp_path / "metrics.csv")} == {3}


def test_the_folder_is_deleted_while_it_runs(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    logger = Logger(folder, quiet=True)
    logger.metrics(1, {"loss": 1.0})
    shutil.rmtree(folder)
    logger.metrics(2, {"loss": 2.0})
    logger.evaluation(2, EVAL)
    logger.metrics(3, {"loss": 3.0})
    state = logger.state()
    logger.close()
    assert [line.split(",")[0] for line in lines(folder / "metrics.csv")] == ["env_step", "2", "3"]
    again = Logger(folder, quiet=True)
    again.restore(state)
    again.metrics(4, {"loss": 4.0})
    assert len(lines(folder / "metrics.csv")) == 4
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder))
    reader.Reload()
    assert [e.step for e in reader.Scalars("train/loss")] == [2, 3, 4]


def test_something_that_is_no_folder_is_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    logger = Logger(tmp_path / "run", quiet=True)
    said = caught(lambda: [logger.metrics(i, {"x": 1.0}) for i in range(5)])
    assert len(said) == 2
    (tmp_path / "run").unlink()
    assert not caught(lambda: logger.metrics(5, {"x": 1.0}))
    assert len(lines(tmp_path / "run" / "metrics.csv")) == 7


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder(tmp_path: Path) -> None:
    logger = Logger(tmp_path, quiet=True)
    tmp_path.chmod(0o500)
    try:
        assert len(caught(lambda: [logger.metrics(i, {"x": 1.0}) for i in range(5)])) == 2
    finally:
        tmp_path.chmod(0o700)
    logger.metrics(5, {"x": 1.0})
    assert len(lines(tmp_path / "metrics.csv")) == 7


def test_numbers_that_are_none(tmp_path: Path) -> None:
    logger = Logger(tmp_path, quiet=True)
    said = caught(
        lambda: [logger.metrics(i, {"loss": float("nan"), "huge": 1e300, "q": float("inf")}) for i in range(3)]
    )
    assert said == ["train/loss, train/q at step 0: not a finite number (training goes on; this is said once)"]
    assert lines(tmp_path / "metrics.csv")[1].endswith(",nan,1e+300,inf")


def test_odd_names(tmp_path: Path) -> None:
    logger = Logger(tmp_path, quiet=True)
    odd = {'loß/ü,\n"x"': 1.0, "日本": 2.0, "a" * 500: 3.0, "half \ud800": 4.0}
    logger.metrics(1, odd)
    logger.metrics(2, odd)
    logger.close()
    assert len(lines(tmp_path / "metrics.csv")) == 3


def test_a_sink_that_always_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Sink):
        def metrics(self, env_step: int, time_s: float, values: Any) -> None:
            raise ValueError("no network")

        def flush(self) -> None:
            raise ConnectionError("gone")

        def state(self) -> dict[str, Any]:
            raise ValueError("no state")

        def restore(self, state: Any) -> None:
            raise KeyError("x")

    monkeypatch.setitem(SINKS, "broken", lambda folder, config: Broken())
    logger = Logger(tmp_path, ("broken", "csv"), quiet=True)
    said = caught(lambda: [logger.metrics(i, {"x": 1.0}) for i in range(5)])
    assert [text.split(" (")[0] for text in said] == [
        "broken cannot be written: no network",
        "broken cannot be written: gone",
    ]
    state: dict[str, Any] = {}
    caught(lambda: state.update(logger.state()))
    assert "csv" in state["sinks"]
    caught(lambda: logger.restore(state | {"sinks": state["sinks"] | {"broken": {}}}))
    assert len(lines(tmp_path / "metrics.csv")) == 6


def test_a_torn_last_line_goes(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"step,x\n1,2.0\n2,3")
    table = Table(path, ("step",))
    table.put({"step": 3, "x": 4.0})
    table.flush()
    assert lines(path) == ["step,x", "1,2.0", "3,4.0"]
    assert table.state() == {"columns": ["step", "x"], "rows": 2}


@pytest.mark.parametrize("size", range(0, 60, 7))
def test_a_file_cut_anywhere_is_continued_after_its_last_whole_row(tmp_path: Path, size: int) -> None:
    logger = Logger(tmp_path, ("csv",), quiet=True)
    for i in range(4):
        logger.metrics(i, {"loss": 1.0})
    state = logger.state()
    path = tmp_path / "metrics.csv"
    os.truncate(path, path.stat().st_size - size)
    whole = path.read_bytes().count(b"\n") - 1
    resumed = Logger(tmp_path, ("csv",), quiet=True)
    said = caught(lambda: resumed.restore(state))
    assert bool(said) == (whole < 4)
    resumed.metrics(9, {"loss": 9.0})
    assert [line.split(",")[0] for line in lines(path)] == ["env_step", *map(str, range(whole)), "9"]


def test_missing_files_at_a_resume(tmp_path: Path) -> None:
    logger = Logger(tmp_path, quiet=True)
    logger.episodes(1, Episodes([0], [1.0], [1]))
    logger.metrics(1, {"loss": 1.0})
    state = logger.state()
    for path in tmp_path.iterdir():
        path.unlink()
    resumed = Logger(tmp_path, quiet=True)
    said = caught(lambda: resumed.restore(state))
    assert len(said) == 1
    assert "from before the checkpoint are missing" in said[0]
    resumed.metrics(2, {"loss": 2.0})
    assert len(lines(tmp_path / "metrics.csv")) == 2


def test_growing_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = Growing(tmp_path / "x")
    file.append(b"abc")
    undo = full_disk(monkeypatch, 2)
    with pytest.raises(OSError, match="No space"):
        file.append(b"defghi")
    undo()
    assert (tmp_path / "x").read_bytes() == b"abc"
    (tmp_path / "x").write_bytes(b"abcTORN")
    file.append(b"def")
    assert (tmp_path / "x").read_bytes() == b"abcdef"


def test_waiting_rows_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Table, "WAITING", 10)
    table = Table(tmp_path / "x.csv", ("step",))
    for i in range(25):
        table.put({"step": i})
    table.flush()
    assert lines(tmp_path / "x.csv")[1] == "15"
