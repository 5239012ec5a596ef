"""SwanLab. The upper half is asked in the run, `Backend` lives in a process of its own (`relay.py`)."""

from __future__ import annotations

import contextlib
import netrc
import os
import shlex
from pathlib import Path
from typing import Any

LOGIN = "swanlab login (or the environment variable SWANLAB_API_KEY)"


def has_key() -> bool:
    """Does `swanlab login`, or the environment, provide one? Reads files, asks nobody."""
    if os.environ.get("SWANLAB_API_KEY"):
        return True
    home = os.environ.get("SWANLAB_ROOT") or os.environ.get("SWANLAB_SAVE_DIR") or Path.home() / ".swanlab"
    for folder in (Path.cwd() / ".swanlab", Path(home)):
        with contextlib.suppress(OSError, netrc.NetrcParseError):
            if netrc.netrc(folder / ".netrc").hosts:
                return True
    return False


class Backend:
    """An experiment of SwanLab. Its step is env_step; a second stretch of the same run continues it by its id."""

    def start(
        self, folder: str, mode: Any, patience: int, pid: int, resume: bool, entity: str | None, **about: Any
    ) -> dict[str, Any]:
        import swanlab

        place = Path(folder) / "swanlab"
        swanlab.merge_settings(
            {
                "interactive": False,
                "terminal": {"proxy_type": "none"},
                "probe": {"git": False},  # an address may hold a password; the commit is in the config
            }
        )
        where = {"log_dir": str(place), "mode": mode, "workspace": entity}
        self.run = swanlab.init(**where, resume="allow", job_type="train", **about)
        sync = f"swanlab sync --id {about['id']} {shlex.quote(str(self.run.dir))}"
        news = self.run.url if mode == "online" else f"offline; upload it with: {sync}"
        return {"news": news, "sync": sync}

    def log(self, step: int, row: dict[str, float]) -> None:
        self.run.log(row, step=step)

    def video(self, step: int, path: str) -> None:
        """As a file: its player shows GIFs only."""
        self.run.save(path, base_path=str(Path(path).parents[1]), policy="now")

    def checkpoint(self, step: int, which: str, path: str) -> None:
        self.run.save(f"{path}/*", base_path=str(Path(path).parents[1]), policy="now")

    def finish(self, ok: bool) -> None:
        self.run.finish() if ok else self.run.finish(state="aborted")
