"""Means, CSV files, TensorBoard and the terminal; and that interrupted + resumed files equal uninterrupted ones."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kumite.errors import UserError
from kumite.log import Logger, Meter
from kumite.sinks import SINKS, tensorboard
from kumite.sinks.base import Sink
from kumite.sinks.csv import Table
from kumite.sinks.terminal import Terminal, duration
from kumite.types import Episodes

EVAL = {"mean": 1.5, "std": 0.5, "min": 1.0, "max": 2.0, "episodes": 2, "mean_length": 7.0}


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows: tag -> (step, value)."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder))
    reader.Reload()
    return {tag: [(e.step, e.value) for e in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


# --- Meter ---------------------------------------------------------------------------------------------------------


def test_meter_means_and_forgets() -> None:
    meter = Meter()
    meter.add({"loss": torch.tensor(1.0), "x": 2})
    meter.add({"loss": torch.tensor([3.0]), "late": torch.tensor(5, dtype=torch.int64)})
    assert meter.flush() == {"loss": 2.0, "x": 2.0, "late": 5.0}
    assert meter.flush() == {}


def test_meter_keeps_no_tensor_that_others_may_change() -> None:
    meter, value = Meter(), torch.tensor(1.0, requires_grad=True)
    meter.add({"loss": value})
    with torch.no_grad():
        value.fill_(100.0)
    meter.add({"loss": value})
    assert not meter.sums["loss"].requires_grad
    assert meter.flush() == {"loss": 50.5}


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=40), st.integers(0, 40))
def test_meter_goes_on_bit_for_bit(values: list[float], cut: int) -> None:
    whole, half = Meter(), Meter()
    for i, x in enumerate(values):
        if i == cut:
            resumed = Meter()
            resumed.restore(json.loads(json.dumps(half.state())))
            half = resumed
        for meter in (whole, half):
            meter.add({"tensor": torch.tensor(x), "number": x})
    assert whole.flush() == half.flush()


# --- CSV -----------------------------------------------------------------------------------------------------------


def test_files_of_a_run(tmp_path: Path) -> None:
    logger = Logger(tmp_path, ("csv",), quiet=True)
    logger.episodes(10, Episodes([1, 0], [0.1, 2.0], [3, 4]))
    logger.episodes(11, Episodes())
    logger.metrics(20, {"critic_loss": torch.tensor(0.5), "time/env": 1.0})
    logger.episodes(30, Episodes([1], [4.0], [5], [1.0]))
    logger.metrics(40, {"critic_loss": 1 / 3, "new, odd": 2})
    logger.evaluation(40, EVAL)
    logger.evaluation(50, EVAL | {"success_rate": 0.5})
    logger.close()

    episodes = rows(tmp_path / "episodes.csv")
    assert list(episodes[0]) == ["env_step", "time_s", "slot", "return", "length"]
    assert [(r["env_step"], r["slot"], r["return"], r["length"]) for r in episodes] == [
        ("10", "1", "0.1", "3"),
        ("10", "0", "2.0", "4"),
        ("30", "1", "4.0", "5"),
    ]
    metrics = rows(tmp_path / "metrics.csv")
    assert list(metrics[0])[:2] == ["env_step", "time_s"]
    assert metrics[0]["rollout/ep_rew_mean"] == "1.05"
    assert metrics[1]["rollout/ep_len_mean"] == "4.0"
    assert (metrics[0]["rollout/success_rate"], metrics[1]["rollout/success_rate"]) == ("", "1.0")
    assert (metrics[0]["train/critic_loss"], metrics[1]["train/critic_loss"]) == ("0.5", repr(1 / 3))
    assert (metrics[0]["time/env"], metrics[1]["time/env"]) == ("1.0", "")
    assert (metrics[0]["train/new, odd"], metrics[1]["train/new, odd"]) == ("", "2.0")
    assert float(metrics[1]["time/fps"]) > 0
    evals = rows(tmp_path / "evals.csv")
    assert list(evals[0])[:8] == ["env_step", "time_s", "mean", "std", "min", "max", "episodes", "mean_length"]
    assert (evals[0]["episodes"], evals[0]["success_rate"], evals[1]["success_rate"]) == ("2", "", "0.5")


def test_the_rollout_is_the_last_hundred_episodes(tmp_path: Path) -> None:
    logger = Logger(tmp_path, ("csv",), quiet=True)
    logger.episodes(1, Episodes([0] * 150, [float(i) for i in range(150)], [1] * 150))
    logger.metrics(1, {})
    logger.close()
    assert float(rows(tmp_path / "metrics.csv")[0]["rollout/ep_rew_mean"]) == sum(range(50, 150)) / 100


def test_time_goes_on_over_a_resume(tmp_path: Path) -> None:
    first = Logger(tmp_path, ("csv",), quiet=True)
    first.carried = 100.0
    first.metrics(1, {})
    state = first.state()
    second = Logger(tmp_path, ("csv",), quiet=True)
    second.restore(state)
    second.metrics(2, {})
    times = [float(r["time_s"]) for r in rows(tmp_path / "metrics.csv")]
    assert 100 <= times[0] <= times[1] < 160


def test_no_folder_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    logger = Logger(None, quiet=True)
    logger.metrics(1, {"x": 1})
    logger.close()
    assert list(tmp_path.iterdir()) == []


columns = st.lists(st.sampled_from(["a", "b", "c", 'd,"e"', "f\ng", "ü"]), unique=True, max_size=5)
table_rows = st.lists(
    columns.flatmap(lambda names: st.fixed_dictionaries({n: st.floats(allow_nan=False) for n in names})), max_size=12
)


@given(table_rows, table_rows, table_rows, st.booleans())
def test_a_table_cut_back_and_continued_equals_one_that_never_stopped(
    tmp_path_factory: pytest.TempPathFactory, before: Any, lost: Any, after: Any, torn: bool
) -> None:
    folder = tmp_path_factory.mktemp("table")

    def write(table: Table, some: Any) -> None:
        for row in some:
            table.put(row)
            table.flush()

    whole = Table(folder / "whole.csv", ("step",))
    write(whole, before + after)
    stopped = Table(folder / "stopped.csv", ("step",))
    write(stopped, before)
    state = json.loads(json.dumps(stopped.state()))
    write(stopped, lost)
    if torn and (folder / "stopped.csv").exists():
        with (folder / "stopped.csv").open("ab") as file:
            file.write(b"1,2")
    resumed = Table(folder / "stopped.csv", ("step",))
    resumed.restore(state)
    write(resumed, after)
    assert resumed.state() == whole.state()
    files = [folder / "whole.csv", folder / "stopped.csv"]
    assert len({f.read_bytes() if f.exists() else b"" for f in files}) == 1


def drive(logger: Logger, steps: range) -> None:
    """A deterministic run: new columns, evaluations and episodes come and go."""
    for i in steps:
        logger.episodes(i, Episodes([i % 3], [i / 7], [i]))
        logger.metrics(i, {"loss": i / 3} | ({"late": i * 1.1} if i > 5 else {}))
        if i % 4 == 0:
            logger.evaluation(i, EVAL | {"mean": float(i)})


def without_clocks(path: Path) -> list[dict[str, str]]:
    return [{k: v for k, v in r.items() if not k.startswith("time")} for r in rows(path)]


@pytest.mark.parametrize("cut", [1, 4, 5, 8])
def test_interrupted_and_resumed_equals_uninterrupted(tmp_path: Path, cut: int) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    logger = Logger(whole, quiet=True)
    drive(logger, range(12))
    logger.close()

    logger = Logger(parts, quiet=True)
    drive(logger, range(cut))
    state = json.loads(json.dumps(logger.state()))
    drive(logger, range(cut, 10))
    logger.close()
    logger = Logger(parts, quiet=True)
    logger.restore(state)
    drive(logger, range(cut, 12))
    logger.close()

    for name in ("metrics.csv", "episodes.csv", "evals.csv"):
        assert without_clocks(parts / name) == without_clocks(whole / name)
        header = [(folder / name).read_text().splitlines()[0] for folder in (whole, parts)]
        assert header[0] == header[1]
    seen, wanted = scalars(parts), scalars(whole)
    seen.pop("time/fps"), wanted.pop("time/fps")
    assert seen == wanted


# --- TensorBoard ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"a", bytes(range(256)) * 3])
def test_records_are_framed_as_tensorboard_frames_them(data: bytes) -> None:
    from tensorboard.summary.writer.record_writer import RecordWriter

    out = io.BytesIO()
    RecordWriter(out).write(data)
    assert tensorboard.framed(data) == out.getvalue()


def test_tensorboard_shows_sb3s_names(tmp_path: Path) -> None:
    logger = Logger(tmp_path, ("tensorboard",), quiet=True)
    logger.episodes(1, Episodes([0], [2.0], [3]))
    logger.metrics(10, {"loss": 0.25})
    logger.evaluation(10, EVAL)
    logger.close()
    assert [p.name.startswith("events.out.tfevents.") for p in tmp_path.iterdir()] == [True]
    shown = scalars(tmp_path)
    assert shown["rollout/ep_rew_mean"] == [(10, 2.0)]
    assert shown["rollout/ep_len_mean"] == [(10, 3.0)]
    assert shown["train/loss"] == [(10, 0.25)]
    assert shown["eval/mean_reward"] == [(10, 1.5)]
    assert shown["eval/mean_ep_length"] == [(10, 7.0)]
    assert "time/fps" in shown


def test_a_reader_that_saw_too_much_forgets_it(tmp_path: Path) -> None:
    """TensorBoard was open while the run went past its checkpoint, was killed, and was resumed."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = Logger(tmp_path, ("tensorboard",), quiet=True)
    logger.metrics(1, {"loss": 1.0})
    state = logger.state()
    logger.metrics(2, {"loss": 2.0})
    logger.close()
    reader = EventAccumulator(str(tmp_path))
    reader.Reload()
    assert [e.value for e in reader.Scalars("train/loss")] == [1.0, 2.0]
    resumed = Logger(tmp_path, ("tensorboard",), quiet=True)
    resumed.restore(state)
    resumed.metrics(2, {"loss": 20.0})
    resumed.metrics(3, {"loss": 30.0})
    reader.Reload()
    assert [(e.step, e.value) for e in reader.Scalars("train/loss")] == [(1, 1.0), (2, 20.0), (3, 30.0)]


def test_event_files_stay_in_order_when_the_clock_steps_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states: Any = {}
    for i, now in enumerate([1000.0, 400.0, 400.0]):
        monkeypatch.setattr(tensorboard.time, "time", lambda now=now: now)
        logger = Logger(tmp_path, ("tensorboard",), quiet=True)
        if states:
            logger.restore(states)
        logger.metrics(i, {"loss": float(i)})
        states = logger.state()
    assert scalars(tmp_path)["train/loss"] == [(0, 0.0), (1, 1.0), (2, 2.0)]


# --- the terminal --------------------------------------------------------------------------------------------------


def test_plain_lines_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(1000)
    assert not terminal.due(1.0)
    assert terminal.due(11.0)
    terminal.episodes(90, 10.0, Episodes([0, 0], [1.0, 2.0], [5, 5]))
    terminal.progress(100, 11.0)
    assert not terminal.due(12.0)
    terminal.evaluation(300, 13.0, EVAL)
    first, second = capsys.readouterr().out.splitlines()
    assert first == "100/1,000 10%  return 2, mean 1.5"
    assert second == "300/1,000 30%  100/s  7s left  return 2, mean 1.5  eval 1.5±0.5"


def test_the_line_fits_in_eighty_columns() -> None:
    terminal = Terminal(1_000_000)
    terminal.episodes(0, 0.0, Episodes([0], [9423.123], [1]))
    terminal.marks.extend([(0.0, 0), (100.0, 123_456)])
    terminal.step, terminal.evaluated = 999_000, (-5012.3, 230.456)
    assert len(terminal.text()) <= 80
    assert terminal.text().endswith("return 9423, mean 9423  eval -5012±230")


def test_quiet_says_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logger = Logger(tmp_path, total_steps=100, quiet=True)
    drive(logger, range(5))
    logger.progress(5)
    logger.close()
    assert capsys.readouterr() == ("", "")


def test_one_live_line_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import sys

    monkeypatch.setattr(type(sys.stdout), "isatty", lambda self: True, raising=False)
    logger = Logger(None, total_steps=1000)
    logger.carried = 50.0
    logger.progress(10)
    logger.evaluation(20, EVAL)
    logger.total(500)
    logger.evaluation(30, EVAL)
    logger.close()
    logger.close()
    out = capsys.readouterr().out
    assert "30/500 6%" in out
    assert out.endswith("\n") or "\x1b[?25h" in out, "the cursor is back"


@pytest.mark.parametrize(("seconds", "text"), [(0, "0s"), (59.9, "59s"), (61, "1m 01s"), (3600 * 25 + 60, "25h 01m")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


# --- sinks from a table --------------------------------------------------------------------------------------------


def test_an_unknown_sink_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'tensorbord' is not known; did you mean 'tensorboard'\? \(known: csv"):
        Logger(tmp_path, ("csv", "tensorbord"))
    assert list(tmp_path.iterdir()) == []


def test_a_sink_is_a_class_and_an_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = []

    class Mine(Sink):
        def __init__(self, folder: Path, config: Any) -> None:
            heard.append((folder, dict(config)))

        def metrics(self, env_step: int, time_s: float, values: Any) -> None:
            heard.append((env_step, values["train/loss"]))

        def close(self) -> None:
            heard.append("closed")

    monkeypatch.setitem(SINKS, "mine", Mine)
    logger = Logger(tmp_path, ("mine",), quiet=True, config={"lr": 1})
    logger.metrics(5, {"loss": 2.0})
    logger.close()
    assert heard == [(tmp_path, {"lr": 1}), (5, 2.0), "closed"]


def test_tensorboard_is_imported_only_when_it_is_used(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys; from kumite.log import Logger; from pathlib import Path;"
        f"Logger(Path({str(tmp_path)!r}), ('csv',)).metrics(1, {{'x': 1}});"
        "assert not {'tensorboard', 'tensorflow', 'rich'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
