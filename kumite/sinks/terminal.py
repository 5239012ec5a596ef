"""Progress for whoever is watching."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kumite.sinks.base import Sink

if TYPE_CHECKING:
    from kumite.types import Episodes


class Terminal(Sink):
    """One live line on a terminal; elsewhere a plain line now and then."""

    LIVE, PLAIN = 0.2, 10.0  # seconds between two looks

    def __init__(self, total_steps: int) -> None:
        self.total = total_steps
        self.live: Any = None
        self.tty = sys.stdout is not None and sys.stdout.isatty()  # None: a service whose output is closed
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

    def say(self, text: str) -> None:
        """A line of its own, above the live one."""
        if self.live is None:
            print(text, flush=True)
        else:
            self.live.console.print(text, markup=False, highlight=False, soft_wrap=True)

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
