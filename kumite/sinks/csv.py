"""metrics.csv, episodes.csv and evals.csv: whole rows, cut back to where a resumed run goes on."""

from __future__ import annotations

import csv
import io
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kumite.sinks.base import EVALUATION, Sink
from kumite.sinks.files import Growing, replace_file

if TYPE_CHECKING:
    from kumite.types import Episodes


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
