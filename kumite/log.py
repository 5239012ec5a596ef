"""Where numbers go: `Meter` collects means that stay on the device, `Logger` hands rows to its sinks.

The sinks are csv, TensorBoard, trackers and the terminal's line (`kumite/sinks`). A sink that fails costs a warning,
never the run. The files of a resumed run equal those of an uninterrupted one, apart from the columns that show a clock:
`state` records how long every file was, `restore` cuts it back to that.
"""

from __future__ import annotations

import math
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kumite.sinks import SINKS, check_sinks
from kumite.sinks.base import Sink
from kumite.sinks.names import style_of, styled
from kumite.sinks.terminal import Terminal
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
        self.style = style_of(config or {})
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
        shown = styled(row, self.style, env_step, now)
        self._all(lambda sink: sink.metrics(env_step, now, shown))
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

    def say(self, text: str) -> None:
        """A line for whoever is watching."""
        if isinstance(terminal := self.sinks.get("terminal"), Terminal):
            self._try("terminal", lambda: terminal.say(text))

    def total(self, steps: int) -> None:
        """The run is now this long."""
        if isinstance(terminal := self.sinks.get("terminal"), Terminal):
            terminal.total = steps

    def finished(self, env_step: int) -> None:
        """The run has reached its end, and its last checkpoint is written."""
        self._all(lambda sink: sink.finished(env_step))

    def flush(self) -> None:
        self._all(lambda sink: sink.flush())
        self._all(self._pass_on)

    def _pass_on(self, sink: Sink) -> None:
        terminal = self.sinks.get("terminal")
        for text in sink.news():
            if isinstance(terminal, Terminal):
                terminal.say(text)

    def close(self) -> None:
        """Nothing stays open; whatever is logged afterwards opens it again."""
        self.flush()
        self._all(lambda sink: sink.close())
        self._all(self._pass_on)

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
