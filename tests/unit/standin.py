"""Stand-ins for wandb and swanlab: modules that write down what they are told, and misbehave when asked to.

`install` puts them first in the search path of this process and of its children; `told` reads what they noted.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

COMMON = """
import json, os, time
from pathlib import Path

BEHAVE = os.environ.get("STANDIN", "")


def note(what, **about):
    with open(os.environ["STANDIN_NOTES"], "a") as file:
        file.write(json.dumps({"what": what, **about}, default=str) + "\\n")


class Run:
    url = "https://tracker.example/run"
    dir = "/tmp/tracker/files"
    rows = 0

    def log(self, row, step):
        self.rows += 1
        if BEHAVE == "log fails":
            raise ValueError("no such\\nmetric")
        if BEHAVE == "dies" and self.rows == 3:
            os._exit(9)
        if BEHAVE == "slow":
            time.sleep(0.1)
        note("log", row=row, step=step)

    def define_metric(self, *words, **more):
        note("define_metric", words=words, **more)

    def log_artifact(self, artifact):
        note("artifact", **vars(artifact))

    def save(self, path, base_path, policy):
        note("save", path=path, base_path=base_path)

    def finish(self, **how):
        if BEHAVE == "finish hangs":
            time.sleep(1000)
        note("finish", **how)


def init(**about):
    about.pop("settings", None)
    note("init", **about)
    if BEHAVE == "hangs" or BEHAVE == "hangs online" and about["mode"] == "online":
        time.sleep(1000)
    if BEHAVE == "no network" and about["mode"] == "online":
        raise ConnectionError("the server\\ncannot be reached")
    if BEHAVE == "refuses":
        raise ValueError("not today")
    run = Run()
    run.id = about["id"]
    return run
"""

WANDB = (
    COMMON
    + """
class Settings:
    model_fields = {"silent": 0, "x_stats_pid": 0}

    def __init__(self, **values):
        note("settings", **values)


class Video(str):
    def __new__(cls, path, format):
        return str.__new__(cls, path)


class Artifact:
    def __init__(self, name, type, metadata):
        self.name, self.type, self.metadata = name, type, metadata

    def add_dir(self, path, skip_cache):
        self.path = path
"""
)

SWANLAB = (
    COMMON
    + """
def merge_settings(settings):
    note("settings", **settings)
"""
)


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, behave: str = "") -> Path:
    """The stand-ins in a folder of their own; returns the file of their notes."""
    home = folder / "standins"
    home.mkdir()
    (home / "wandb.py").write_text(WANDB)
    (home / "swanlab.py").write_text(SWANLAB)
    monkeypatch.syspath_prepend(str(home))
    monkeypatch.setenv("PYTHONPATH", str(home))
    monkeypatch.setenv("STANDIN", behave)
    monkeypatch.setenv("STANDIN_NOTES", str(folder / "notes.jsonl"))
    monkeypatch.setenv("HOME", str(folder))  # no key of whoever runs the tests
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_MODE", "WANDB_BASE_URL", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    for name in ("SWANLAB_API_KEY", "SWANLAB_MODE", "SWANLAB_ROOT", "SWANLAB_SAVE_DIR", "WANDB_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(folder)
    return folder / "notes.jsonl"


def told(notes: Path, what: str = "") -> list[dict[str, Any]]:
    if not notes.exists():
        return []
    found = [json.loads(line) for line in notes.read_text().splitlines()]
    return [note for note in found if what in ("", note["what"])]
