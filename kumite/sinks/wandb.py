"""Weights & Biases. The upper half is asked in the run, `Backend` lives in a process of its own (`relay.py`)."""

from __future__ import annotations

import configparser
import contextlib
import netrc
import os
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

LOGIN = "wandb login (or the environment variable WANDB_API_KEY)"


def has_key() -> bool:
    """Does `wandb login`, or the environment, provide one? Reads files, asks nobody."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    settings = configparser.ConfigParser(interpolation=None)
    home = Path(os.environ.get("WANDB_CONFIG_DIR") or Path.home() / ".config" / "wandb")
    with contextlib.suppress(OSError, configparser.Error, UnicodeDecodeError):
        settings.read(home / "settings")
    known = settings["default"] if settings.has_section("default") else {}
    if known.get("api_key"):
        return True
    host = os.environ.get("WANDB_BASE_URL") or known.get("base_url") or "https://api.wandb.ai"
    places = [os.environ.get("NETRC"), Path.home() / ".netrc", Path.home() / "_netrc"]
    for place in places:
        with contextlib.suppress(OSError, netrc.NetrcParseError):
            if place and netrc.netrc(place).authenticators(urlsplit(host).netloc):
                return True
    return False


class Backend:
    """A run of W&B. Its x axis is env_step; a second stretch of the same run continues it by its id."""

    def start(self, folder: str, mode: Any, patience: int, pid: int, resume: bool, **about: Any) -> dict[str, Any]:
        waiting = Path(folder) / "wandb" / "data"  # for copies of checkpoints until they are uploaded
        os.environ.setdefault("WANDB_DATA_DIR", str(waiting))
        if mode == "offline":
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # not a word to anybody
        import wandb

        self.wandb = wandb
        wanted = {
            "silent": True,
            "console": "off",
            "disable_code": True,  # what it should know is in the config: versions, commit, machine
            "disable_git": True,
            "disable_job_creation": True,
            "init_timeout": max(patience, 10),
            "finish_timeout": patience,
            "x_stats_pid": pid,
        }
        known = wandb.Settings.model_fields
        settings = wandb.Settings(**{k: v for k, v in wanted.items() if k in known})
        self.run = wandb.init(dir=folder, mode=mode, resume="allow", settings=settings, job_type="train", **about)
        self.run.define_metric("env_step")
        self.run.define_metric("*", step_metric="env_step")
        place = Path(self.run.dir).parent
        sync = f"wandb sync {shlex.quote(str(place))}"
        news = self.run.url if mode == "online" else f"offline; upload it with: {sync}"
        return {"news": news, "sync": sync}

    def log(self, step: int, row: dict[str, float]) -> None:
        self.run.log(row, step=step)

    def video(self, step: int, path: str) -> None:
        self.run.log({"env_step": step, f"videos/{Path(path).stem}": self.wandb.Video(path, format="mp4")}, step=step)

    def checkpoint(self, step: int, which: str, path: str) -> None:
        artifact = self.wandb.Artifact(f"{self.run.id}-{which}", type="model", metadata={"env_step": step})
        artifact.add_dir(path, skip_cache=True)
        self.run.log_artifact(artifact)

    def finish(self, ok: bool) -> None:
        self.run.finish(exit_code=0 if ok else 1)
