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
        self, folder: str, mode: str, patience: int, pid: int, resume: bool, entity: str | None, **about: Any
    ) -> dict[str, Any]:
        import swanlab

        self.swanlab = swanlab
        place = Path(folder) / "swanlab"
        swanlab.merge_settings(
            {
                "interactive": False,
                "terminal": {"proxy_type": "none"},
                "probe": {"git": False},  # an address may hold a password; the commit is in the config
            }
        )

        def begin(mode: str) -> Any:
            where = {"log_dir": str(place), "mode": mode, "workspace": entity}
            return swanlab.init(**where, resume="allow", job_type="train", **about)

        trouble = {}
        try:
            self.run = begin(mode)
        except Exception as error:
            if mode == "offline":
                raise
            text = " ".join(str(error).split())[:200]
            trouble = {"trouble": f"{text}; it goes on offline", "kind": "offline"}
            mode, self.run = "offline", begin("offline")
        sync = f"swanlab sync --id {about['id']} {shlex.quote(str(self.run.dir))}"
        news = self.run.url if mode == "online" else f"offline; upload it with: {sync}"
        return {"news": news, "sync": sync, **trouble}

    def log(self, step: int, row: dict[str, float]) -> None:
        self.run.log(row, step=step)

    def video(self, step: int, path: str) -> None:
        self.run.log({f"videos/{Path(path).stem}": self.swanlab.Video(path)}, step=step)

    def checkpoint(self, step: int, which: str, path: str) -> None:
        folder = Path(path)
        self.run.save(str(folder / "*"), base_path=str(folder.parent), policy="now")

    def finish(self, ok: bool) -> None:
        self.run.finish() if ok else self.run.finish(state="aborted")
