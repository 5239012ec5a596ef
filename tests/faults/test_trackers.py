"""Trackers that hang, refuse, fail, crawl or die: training does not notice, one warning says so, files are whole."""

from __future__ import annotations

import csv
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from kumite.log import Logger, LogWarning
from kumite.sinks.tracker import Relay, Tracker
from tests.unit.standin import install, told


def logger_for(folder: Path, kind: str = "wandb", patience: int = 4, **log: Any) -> Logger:
    return Logger(folder / "run", ("csv", kind), quiet=True, config={"log": {"patience": patience, **log}})


def caught(act: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        act()
    return [
        str(w.message).removesuffix(" (training goes on; this is said once)") for w in found if w.category is LogWarning
    ]


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "run" / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def until(true: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def relay_of(logger: Logger, kind: str = "wandb") -> Relay:
    sink = logger.sinks[kind]
    assert isinstance(sink, Tracker)
    assert sink.relay is not None
    return sink.relay


def test_one_that_hangs_at_its_start_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "hangs")
    logger = logger_for(tmp_path, patience=1)
    began = time.monotonic()
    for i in range(500):
        logger.metrics(i, {"loss": 1.0})
    assert time.monotonic() - began < 5
    while (started := relay_of(logger).process) is None:  # made by a thread, which a busy machine lets wait
        assert time.monotonic() - began < 30
        time.sleep(0.01)
    process = psutil.Process(started.pid)
    began = time.monotonic()
    said = caught(logger.close)
    assert time.monotonic() - began < 8
    assert len(said) == 1
    assert said[0].startswith("wandb cannot be written: ")
    assert not process.is_running()
    assert len(rows(tmp_path)) == 500


def test_a_process_that_takes_long_to_make_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forking on a machine that swaps; and what is made after the end does not stay."""
    install(tmp_path, monkeypatch)
    made: list[Any] = []
    spawn, ready = Relay._spawn, threading.Event()

    def slowly(self: Relay) -> Any:
        ready.wait(20)
        made.append(spawn(self))
        return made[0]

    monkeypatch.setattr(Relay, "_spawn", slowly)
    logger = logger_for(tmp_path, patience=1)
    logger.metrics(1, {"loss": 1.0})
    relay, began = relay_of(logger), time.monotonic()
    said = caught(logger.close)
    assert time.monotonic() - began < 10
    assert said == ["wandb cannot be written: it did not finish within 1 s"]
    ready.set()
    relay.thread.join(20)
    assert made[0].returncode is not None


def test_a_server_that_does_not_answer_leads_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row of the waiting time gets there."""
    notes = install(tmp_path, monkeypatch, "hangs online")
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    logger = logger_for(tmp_path, patience=3)
    for i in range(20):
        logger.metrics(i, {"loss": 1.0})
    said = caught(logger.close)
    assert len(said) == 1
    assert said[0].startswith("wandb cannot be written: no answer after")
    assert said[0].endswith("it goes on offline")
    assert [note["mode"] for note in told(notes, "init")] == ["online", "offline"]
    assert [note["step"] for note in told(notes, "log")] == list(range(20))


@pytest.mark.parametrize("kind", ["wandb", "swanlab"])
def test_a_server_that_cannot_be_reached_leads_offline(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = install(tmp_path, monkeypatch, "no network")
    monkeypatch.setenv(f"{kind.upper()}_API_KEY", "k" * 40)
    logger = logger_for(tmp_path, kind)
    logger.metrics(1, {"loss": 1.0})
    said = caught(logger.close)
    assert said == [f"{kind} cannot be written: the server cannot be reached; it goes on offline"]
    assert [note["step"] for note in told(notes, "log")] == [1]


def test_one_that_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "refuses")
    logger = logger_for(tmp_path)
    logger.metrics(0, {"loss": 1.0})
    until(lambda: relay_of(logger).state == "gone")
    said = caught(lambda: [logger.metrics(i, {"loss": 1.0}) for i in range(1, 50)])
    assert said == ["wandb cannot be written: not today"]
    assert not caught(logger.close)
    assert len(rows(tmp_path)) == 50


def test_one_whose_library_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = install(tmp_path, monkeypatch, "log fails")
    logger = logger_for(tmp_path)
    said = caught(lambda: [*(logger.metrics(i, {"loss": 1.0}) for i in range(50)), logger.close()])
    assert said == ["wandb cannot be written: no such metric"]
    assert told(notes, "finish")


@pytest.mark.parametrize("behave", ["dies", ""])
def test_one_that_dies(behave: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself in the middle of a row, or killed; and the next stretch has a new one."""
    notes = install(tmp_path, monkeypatch, behave)
    logger = logger_for(tmp_path)
    for i in range(5):
        logger.metrics(i, {"loss": 1.0})
    until(lambda: relay_of(logger).state != "new")
    if not behave:
        os.kill(relay_of(logger).process.pid, signal.SIGKILL)  # type: ignore[union-attr]
    until(lambda: relay_of(logger).state == "gone")
    began = time.monotonic()
    said = caught(lambda: [logger.metrics(i, {"loss": 1.0}) for i in range(5, 200)])
    how = "exit code 9" if behave else "signal 9"
    assert said == [f"wandb cannot be written: its process ended early ({how}); what it said is in "
                    f"{tmp_path}/run/wandb/relay.log"]  # fmt: skip
    assert not caught(logger.close)
    assert time.monotonic() - began < 5
    assert [int(row["env_step"]) for row in rows(tmp_path)] == list(range(200))
    monkeypatch.setenv("STANDIN", "")
    assert not caught(lambda: [logger.metrics(200, {"loss": 1.0}), logger.close()])
    assert told(notes, "log")[-1]["step"] == 200


def test_one_that_does_not_finish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "finish hangs")
    logger = logger_for(tmp_path, patience=1)
    logger.metrics(1, {"loss": 1.0})
    until(lambda: relay_of(logger).state == "started")
    process = psutil.Process(relay_of(logger).process.pid)  # type: ignore[union-attr]
    began = time.monotonic()
    said = caught(logger.close)
    assert time.monotonic() - began < 4
    assert said == ["wandb cannot be written: it did not finish within 1 s; what is left can be uploaded with: "
                    "wandb sync /tmp/tracker"]  # fmt: skip
    assert not process.is_running()


def test_one_that_crawls_loses_the_oldest_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = install(tmp_path, monkeypatch, "slow")
    monkeypatch.setattr(Relay, "WAITING", 5)
    logger = Logger(tmp_path / "run", ("wandb",), quiet=True)
    big = {f"m{i}": float(i) for i in range(3_000)}  # a few rows fill the pipe
    said = caught(lambda: [*(logger.metrics(i, big) for i in range(30)), logger.close()])
    assert said == ["wandb cannot be written: it takes rows too slowly; the oldest were dropped"]
    steps = [note["step"] for note in told(notes, "log")]
    assert steps[-1] == 29
    assert len(steps) < 30


def test_the_end_of_the_run_ends_the_tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is killed: its pipe ends, and the tracker finishes what it has."""
    notes = install(tmp_path, monkeypatch)
    logger = logger_for(tmp_path)
    logger.metrics(1, {"loss": 1.0})
    relay = relay_of(logger)
    until(lambda: relay.state == "started")
    assert relay.process is not None
    until(lambda: told(notes, "log"))
    assert relay.process.stdin is not None
    relay.process.stdin.close()
    assert relay.process.wait(10) == 0
    assert told(notes)[-1] == {"what": "finish", "exit_code": 1}
    caught(logger.close)


def test_the_folder_goes_while_wandb_itself_writes_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its service is killed. W&B has opinions about neither; the run goes on."""
    import shutil

    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    logger = logger_for(tmp_path, patience=10, mode="offline")
    logger.metrics(0, {"loss": 1.0})
    relay = relay_of(logger)
    until(lambda: relay.state == "started")
    shutil.rmtree(tmp_path / "run" / "wandb")
    assert relay.process is not None
    for child in psutil.Process(relay.process.pid).children(recursive=True):
        child.kill()
    began = time.monotonic()
    said = caught(lambda: [*(logger.metrics(i, {"loss": 1.0}) for i in range(1, 30)), logger.close()])
    assert time.monotonic() - began < 15
    assert len(said) <= 2
    assert [int(row["env_step"]) for row in rows(tmp_path)] == list(range(30))
