"""Where numbers go: means that stay on the device, and the places that show them.

`Meter` collects what updates report. `Logger` hands rows to its sinks: csv, tensorboard, and the terminal's line. A
sink that fails costs a warning, never the run. The files of a resumed run equal those of an uninterrupted one, apart
from the columns that show a clock: `state` records how long every file was, `restore` cuts it back to that.
"""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import math
import os
import platform
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kumite.errors import UserError, missing_extra, nearest
from kumite.types import Episodes

Value = float | int


class LogWarning(RuntimeWarning):
    """Something could not be written; training went on."""


# --- means ---------------------------------------------------------------------------------------------------------


class Meter:
    """Running sums per name; nothing leaves the device before `flush`."""

    def __init__(self) -> None:
        self.sums: dict[str, Any] = {}
        self.counts: dict[str, int] = {}

    @torch.no_grad()
    def add(self, metrics: Mapping[str, Tensor | float]) -> None:
        old: list[Tensor] = []
        new: list[Tensor] = []
        for name, value in metrics.items():
            self.counts[name] = self.counts.get(name, 0) + 1
            total = self.sums.get(name)
            if not isinstance(value, Tensor):
                self.sums[name] = value + 0.0 if total is None else total + value
            elif isinstance(total, Tensor):
                old.append(total)
                new.append(value if value.dim() == 0 else value.reshape(()))
            else:  # a copy: a compiled update may reuse the memory of what it returned
                first = value.to(torch.float32, copy=True).reshape(())
                self.sums[name] = first if total is None else first + total
        if old:
            torch._foreach_add_(old, new)

    def flush(self) -> dict[str, float]:
        """The means, in one copy from the device; then forget."""
        totals, counts = self._totals(), self.counts
        self.sums, self.counts = {}, {}
        return {name: total / counts[name] for name, total in totals.items()}

    def _totals(self) -> dict[str, float]:
        tensors = {name: x for name, x in self.sums.items() if isinstance(x, Tensor)}
        numbers = torch.stack([x.reshape(()) for x in tensors.values()]).tolist() if tensors else []
        read = dict(zip(tensors, numbers, strict=True))
        return {name: read.get(name, x) for name, x in self.sums.items()}

    def state(self) -> dict[str, Any]:
        return {"sums": self._totals(), "counts": dict(self.counts)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.sums = dict(state["sums"])
        self.counts = {name: int(n) for name, n in state["counts"].items()}


# --- files that only grow ------------------------------------------------------------------------------------------


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


def line(cells: list[Any]) -> bytes:
    """One CSV line; numbers in full precision, nothing for a missing value."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow([_cell(x) for x in cells])
    return out.getvalue().encode("utf-8", "backslashreplace")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return " ".join(value.splitlines())
    return str(int(value)) if isinstance(value, int) else repr(float(value))


class Table:
    """A CSV file: a header, whole rows, and columns that may be added on the right. Rows wait until `flush`."""

    WAITING = 100_000  # rows that wait for a full disk before the oldest are dropped

    def __init__(self, path: Path, columns: tuple[str, ...]) -> None:
        self.columns = list(columns)
        self.rows = 0
        self.waiting: deque[Mapping[str, Any]] = deque(maxlen=self.WAITING)
        self.file = Growing(path)
        self.known = False

    def put(self, row: Mapping[str, Any]) -> None:
        self.waiting.append(row)

    def flush(self) -> None:
        if not self.waiting:
            return
        if not self.known or self.file.shrunk():
            self._adopt()
        fresh = [name for name in dict.fromkeys(itertools.chain(*self.waiting)) if name not in self.columns]
        if fresh:
            self._widen(self.columns + fresh)
        head = b"" if self.file.size else line(self.columns)
        self.file.append(head + b"".join(line([row.get(name) for name in self.columns]) for row in self.waiting))
        self.rows += len(self.waiting)
        self.waiting.clear()

    def _lines(self) -> list[bytes]:
        """The whole lines of the file."""
        data = self.file.path.read_bytes() if self.file.path.exists() else b""
        return data[: data.rfind(b"\n") + 1].splitlines(keepends=True)

    def _adopt(self) -> None:
        """Continue with what the file holds; a torn last line goes."""
        lines = self._lines()
        self.file.cut(sum(map(len, lines)))
        self.columns = _header(lines[0]) if lines else self.columns
        self.rows = max(len(lines) - 1, 0)
        self.known = True

    def _widen(self, columns: list[str]) -> None:
        """Old rows have nothing in the new columns."""
        if self.file.size:
            more = b"," * (len(columns) - len(self.columns))
            self._rewrite(columns, [row[:-1] + more + b"\n" for row in self._lines()[1:]])
        self.columns = columns

    def _rewrite(self, columns: list[str], rows: list[bytes]) -> None:
        data = line(columns) + b"".join(rows)
        replace_file(self.file.path, data)
        self.file.size = len(data)

    def state(self) -> dict[str, Any]:
        return {"columns": list(self.columns), "rows": self.rows}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Exactly the rows and columns of then."""
        self.waiting.clear()
        columns, rows = list(state["columns"]), int(state["rows"])
        self._adopt()
        found = self.rows
        if rows and found and self.columns != columns:
            # Columns that came later are the rightmost, and empty in the rows that stay.
            extra = len(self.columns) - len(columns)
            self._rewrite(columns, [row[: -1 - extra] + b"\n" for row in self._lines()[1 : rows + 1]])
        elif found > rows:
            self.file.cut(sum(map(len, self._lines()[: rows + 1])))
        if not rows:  # the file begins with its first row
            self.file.path.unlink(missing_ok=True)
            self.file.size = 0
        self.columns, self.rows = columns, min(rows, found)
        if found < rows:
            raise OSError(f"{rows - found} rows from before the checkpoint are missing in {self.file.path.name}")


def _header(raw: bytes) -> list[str]:
    return next(csv.reader([raw.decode("utf-8", "replace")]))


# --- sinks ---------------------------------------------------------------------------------------------------------


class Sink:
    """A place for numbers. Every method may fail: the Logger warns once per kind of failure and goes on."""

    def metrics(self, env_step: int, time_s: float, values: Mapping[str, float]) -> None: ...

    def episodes(self, env_step: int, time_s: float, episodes: Episodes) -> None: ...

    def evaluation(self, env_step: int, time_s: float, row: Mapping[str, float]) -> None: ...

    def due(self, time_s: float) -> bool:
        """Is it time to show progress?"""
        return False

    def progress(self, env_step: int, time_s: float) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None: ...


EVALUATION = ("mean", "std", "min", "max", "episodes", "mean_length")


class Csv(Sink):
    """metrics.csv, episodes.csv, evals.csv."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self.tables = {
            "metrics": Table(folder / "metrics.csv", ("env_step", "time_s")),
            "episodes": Table(folder / "episodes.csv", ("env_step", "time_s", "slot", "return", "length")),
            "evals": Table(folder / "evals.csv", ("env_step", "time_s", *EVALUATION)),
        }

    def metrics(self, env_step: int, time_s: float, values: Mapping[str, float]) -> None:
        self.tables["metrics"].put({"env_step": env_step, "time_s": time_s, **values})

    def episodes(self, env_step: int, time_s: float, episodes: Episodes) -> None:
        for i, slot in enumerate(episodes.slot):
            row = {"slot": slot, "return": episodes.returns[i], "length": episodes.lengths[i]}
            self.tables["episodes"].put({"env_step": env_step, "time_s": time_s, **row})

    def evaluation(self, env_step: int, time_s: float, row: Mapping[str, float]) -> None:
        self.tables["evals"].put({"env_step": env_step, "time_s": time_s, **row})

    def flush(self) -> None:
        _each(table.flush for table in self.tables.values())

    def state(self) -> dict[str, Any]:
        return {name: table.state() for name, table in self.tables.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        def back(name: str, table: Table) -> Callable[[], None]:
            return lambda: table.restore(state[name])

        _each(back(name, table) for name, table in self.tables.items())


def _each(calls: Iterable[Callable[[], None]]) -> None:
    """All of them, then the first failure."""
    failed: Exception | None = None
    for call in calls:
        try:
            call()
        except Exception as e:
            failed = failed or e
    if failed:
        raise failed


class TensorBoard(Sink):
    """Event files, written here and now: no thread, no queue, and their length is always known."""

    WAITING = 10_000  # events that wait for a full disk before the oldest are dropped

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError:
            raise missing_extra("tensorboard", "all") from None
        self.event, self.summary, self.writer = event_pb2, summary_pb2, RecordWriter
        self.folder = folder
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
        self.metrics(env_step, time_s, {EVAL_NAMES.get(k, f"eval/{k}"): v for k, v in row.items() if k != "episodes"})

    def _record(self, **event: Any) -> bytes:
        out = io.BytesIO()
        self.writer(out).write(self.event.Event(wall_time=time.time(), **event).SerializeToString())
        return out.getvalue()

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


EVENTS = "events.out.tfevents."
EVAL_NAMES = {"mean": "eval/mean_reward", "std": "eval/std_reward", "mean_length": "eval/mean_ep_length"}
EVAL_NAMES |= {"min": "eval/min_reward", "max": "eval/max_reward"}


def _stamp(name: str) -> int:
    digits = name.removeprefix(EVENTS).partition(".")[0]
    return int(digits) if digits.isdecimal() else 0


def _single(x: float) -> float:
    """What fits in 32 bits."""
    return x if math.isnan(x) or abs(x) < 3.4e38 else math.copysign(math.inf, x)


class Terminal(Sink):
    """One live line on a terminal; elsewhere a plain line now and then."""

    LIVE, PLAIN = 0.2, 10.0  # seconds between two looks

    def __init__(self, total_steps: int) -> None:
        self.total = total_steps
        self.live: Any = None
        self.tty = sys.stdout.isatty()
        self.shown = 0.0
        self.marks: deque[tuple[float, int]] = deque(maxlen=64)
        self.step = 0
        self.last: float | None = None
        self.recent: deque[float] = deque(maxlen=100)
        self.evaluated: tuple[float, float] | None = None

    def episodes(self, env_step: int, time_s: float, episodes: Episodes) -> None:
        self.recent.extend(episodes.returns)
        self.last = episodes.returns[-1] if episodes.returns else self.last

    def evaluation(self, env_step: int, time_s: float, row: Mapping[str, float]) -> None:
        self.evaluated = (row["mean"], row["std"])
        self._show(env_step, time_s)

    def due(self, time_s: float) -> bool:
        return time_s - self.shown >= (self.LIVE if self.tty else self.PLAIN)

    def progress(self, env_step: int, time_s: float) -> None:
        self._show(env_step, time_s)

    def _show(self, env_step: int, time_s: float) -> None:
        self.step, self.shown = env_step, time_s
        self.marks.append((time_s, env_step))
        text = self.text()
        if not self.tty:
            print(text, flush=True)
            return
        from rich.live import Live
        from rich.text import Text

        if self.live is None:
            self.live = Live(auto_refresh=False)
            self.live.start()
        self.live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)

    def text(self) -> str:
        """Fits in 80 columns."""
        parts = [f"{self.step:,}/{self.total:,} {self.step / max(self.total, 1):.0%}"]
        speed = self.speed()
        if speed > 0:
            parts += [f"{speed:,.0f}/s", f"{duration((self.total - self.step) / speed)} left"]
        if self.last is not None:
            parts.append(f"return {brief(self.last)}, mean {brief(sum(self.recent) / len(self.recent))}")
        if self.evaluated is not None:
            parts.append(f"eval {brief(self.evaluated[0])}±{self.evaluated[1]:.3g}")
        return "  ".join(parts)

    def speed(self) -> float:
        """Steps per second, lately."""
        if len(self.marks) < 2:
            return 0.0
        (t0, s0), (t1, s1) = self.marks[0], self.marks[-1]
        return (s1 - s0) / (t1 - t0) if t1 > t0 else 0.0

    def close(self) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None


def brief(x: float) -> str:
    return f"{x:.0f}" if 1000 <= abs(x) < 1e9 else f"{x:.4g}"


def duration(seconds: float) -> str:
    """1h 02m, 3m 20s, 12s."""
    whole = max(int(seconds), 0)
    minutes, s = divmod(whole, 60)
    hours, m = divmod(minutes, 60)
    if hours:
        return f"{hours}h {m:02d}m"
    return f"{m}m {s:02d}s" if m else f"{s}s"


SINKS: dict[str, Callable[[Path, Mapping[str, Any]], Sink]] = {"csv": Csv, "tensorboard": TensorBoard}
"""What `--track` knows: name -> how to make it for a run's folder and its config."""


def check_sinks(names: Iterable[str]) -> None:
    for name in names:
        if name not in SINKS:
            raise UserError(f"track: '{name}' is not known{nearest(name, list(SINKS))} (known: {', '.join(SINKS)})")


# --- the logger ----------------------------------------------------------------------------------------------------


class Logger:
    """The one voice of a run: rows in, every sink fed, failures swallowed after one warning of their kind."""

    WINDOW = 100  # episodes behind rollout/ep_rew_mean

    def __init__(
        self,
        folder: Path | None,
        sinks: Iterable[str] = ("csv", "tensorboard"),
        total_steps: int = 0,
        quiet: bool = False,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        names = tuple(dict.fromkeys(sinks))
        check_sinks(names)
        self.sinks: dict[str, Sink] = {}
        if folder is not None:
            self.sinks |= {name: SINKS[name](Path(folder), config or {}) for name in names}
        if not quiet:
            self.sinks["terminal"] = Terminal(total_steps)
        self.began = time.monotonic()
        self.carried = 0.0
        self.returns: deque[float] = deque(maxlen=self.WINDOW)
        self.lengths: deque[int] = deque(maxlen=self.WINDOW)
        self.success: deque[float] = deque(maxlen=self.WINDOW)
        self.mark = (0.0, 0)
        self.warned: set[tuple[str, ...]] = set()

    @property
    def time_s(self) -> float:
        """Seconds of training, those before a resume included."""
        return round(self.carried + time.monotonic() - self.began, 3)

    def metrics(self, env_step: int, values: Mapping[str, Value | Tensor]) -> None:
        """A row of means; a name without a group belongs to train/."""
        now = self.time_s
        row = self._rollout() | {"time/fps": self._fps(env_step, now)}
        row |= {name if "/" in name else f"train/{name}": _number(x) for name, x in values.items()}
        bad = sorted(name for name, x in row.items() if not math.isfinite(x))
        if bad:
            self._warn(("not finite", *bad), f"{', '.join(bad)} at step {env_step:,}: not a finite number")
        self._all(lambda sink: sink.metrics(env_step, now, row))
        self.flush()

    def episodes(self, env_step: int, episodes: Episodes) -> None:
        if not episodes.returns:
            return
        self.returns.extend(episodes.returns)
        self.lengths.extend(episodes.lengths)
        self.success.extend(episodes.success)
        now = self.time_s
        self._all(lambda sink: sink.episodes(env_step, now, episodes))

    def evaluation(self, env_step: int, row: Mapping[str, Value]) -> None:
        """mean, std, min, max, episodes, mean_length; more columns are welcome."""
        now = self.time_s
        self._all(lambda sink: sink.evaluation(env_step, now, row))
        self.flush()

    def progress(self, env_step: int) -> None:
        """Called at every step, so it must cost nothing when nobody looks."""
        if (terminal := self.sinks.get("terminal")) and terminal.due(now := self.time_s):
            self._try("terminal", lambda: terminal.progress(env_step, now))

    def total(self, steps: int) -> None:
        """The run is now this long."""
        if isinstance(terminal := self.sinks.get("terminal"), Terminal):
            terminal.total = steps

    def flush(self) -> None:
        self._all(lambda sink: sink.flush())

    def close(self) -> None:
        """Nothing stays open; whatever is logged afterwards opens it again."""
        self.flush()
        self._all(lambda sink: sink.close())

    def state(self) -> dict[str, Any]:
        """JSON: what `restore` needs to continue these very files."""
        self.flush()
        states: dict[str, Any] = {}
        for name, sink in self.sinks.items():
            self._try(name, lambda name=name, sink=sink: states.update({name: sink.state()}))  # type: ignore[misc]
        return {
            "time_s": self.time_s,
            "mark": list(self.mark),
            "returns": list(self.returns),
            "lengths": list(self.lengths),
            "success": list(self.success),
            "sinks": states,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.carried, self.began = float(state["time_s"]), time.monotonic()
        self.mark = (float(state["mark"][0]), int(state["mark"][1]))
        for name in ("returns", "lengths", "success"):
            window = getattr(self, name)
            window.clear()
            window.extend(state[name])
        for name, sink in self.sinks.items():
            if name in state["sinks"]:
                self._try(name, lambda sink=sink, name=name: sink.restore(state["sinks"][name]))  # type: ignore[misc]

    def _rollout(self) -> dict[str, float]:
        row: dict[str, float] = {}
        if self.returns:
            row["rollout/ep_rew_mean"] = math.fsum(self.returns) / len(self.returns)
            row["rollout/ep_len_mean"] = sum(self.lengths) / len(self.lengths)
        if self.success:
            row["rollout/success_rate"] = math.fsum(self.success) / len(self.success)
        return row

    def _fps(self, env_step: int, now: float) -> float:
        """Environment steps per second since the row before."""
        (then, before), self.mark = self.mark, (now, env_step)
        return round((env_step - before) / max(now - then, 1e-3), 1)

    def _all(self, call: Callable[[Sink], None]) -> None:
        for name, sink in self.sinks.items():
            self._try(name, lambda sink=sink: call(sink))  # type: ignore[misc]

    def _try(self, name: str, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as e:
            what = getattr(e, "strerror", None) or str(e) or type(e).__name__
            self._warn((name, type(e).__name__, str(getattr(e, "errno", ""))), f"{name} cannot be written: {what}")

    def _warn(self, kind: tuple[str, ...], message: str) -> None:
        if kind not in self.warned:
            self.warned.add(kind)
            warnings.warn(f"{message} (training goes on; this is said once)", LogWarning, stacklevel=3)


def _number(value: Any) -> float:
    return float(value.item() if isinstance(value, Tensor) else value)
