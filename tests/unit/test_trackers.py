"""What W&B and SwanLab are told about a run: to stand-ins, and W&B's own files read back with its own reader."""

from __future__ import annotations

import csv
import importlib.util
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kumite.errors import UserError
from kumite.log import Logger
from kumite.sinks import TRACKERS, ready
from kumite.sinks.tracker import check, without_secrets
from tests.unit.standin import install, told

EVAL = {"mean": 1.5, "std": 0.5, "min": 1.0, "max": 2.0, "episodes": 2, "mean_length": 7.0}


def config(**log: Any) -> dict[str, Any]:
    return {"algo": "ppo", "env_id": "a/b-v1", "lr": 1e-3, "env": {"kwargs": {"api_key": "s3cret"}}, "log": log}


def drive(logger: Logger, steps: range) -> None:
    for i in steps:
        logger.metrics(i * 10, {"loss": i / 3})
        if i % 2 == 0:
            logger.evaluation(i * 10, EVAL | {"mean": float(i)})


@pytest.mark.parametrize("kind", TRACKERS)
def test_what_a_tracker_is_told(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = install(tmp_path, monkeypatch)
    folder = tmp_path / "a run-s0"
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps({"git": "abc", "seed": 0}))
    facts = config(project="p", entity="team", group="g", tags=["x"])
    logger = Logger(folder, ("csv", kind), quiet=True, config=facts)
    drive(logger, range(3))
    logger.finished(20)
    logger.close()

    (init,) = told(notes, "init")
    assert init["mode"] == "offline"
    assert (init["project"], init["group"], init["tags"]) == ("p", "g", ["ppo", "a/b-v1", "x"])
    assert init[{"wandb": "entity", "swanlab": "workspace"}[kind]] == "team"
    assert init["name"] == "ppo-a-b-v1-a run-s0"
    assert init["config"]["lr"] == 1e-3
    assert init["config"]["manifest"] == {"git": "abc", "seed": 0}
    assert "s3cret" not in notes.read_text()
    rows = told(notes, "log")
    assert [r["step"] for r in rows] == [0, 0, 10, 20, 20]
    assert all(r["row"]["env_step"] == r["step"] for r in rows)
    assert [r["row"]["train/loss"] for r in rows if "train/loss" in r["row"]] == [0, 1 / 3, 2 / 3]
    shown = [
        (r["row"]["eval/mean_reward"], r["row"]["eval/mean_ep_length"]) for r in rows if "time/fps" not in r["row"]
    ]
    assert shown == [(0.0, 7.0), (2.0, 7.0)]
    assert told(notes)[-1] == {"what": "finish"} | ({"exit_code": 0} if kind == "wandb" else {})
    if kind == "wandb":
        assert {"what": "define_metric", "words": ["*"], "step_metric": "env_step"} in told(notes)
    with (folder / "metrics.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 3


@pytest.mark.parametrize("kind", TRACKERS)
def test_a_resumed_run_is_the_same_run(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = install(tmp_path, monkeypatch)
    first = Logger(tmp_path / "run", (kind,), quiet=True, config=config())
    drive(first, range(2))
    state = json.loads(json.dumps(first.state()))
    first.close()
    again = Logger(tmp_path / "run", (kind,), quiet=True, config=config())
    again.restore(state)
    drive(again, range(2, 4))
    again.close()
    drive(again, range(4, 5))  # after a close: agent.learn() once more
    again.close()
    other = Logger(tmp_path / "run", (kind,), quiet=True, config=config())
    drive(other, range(1))
    other.close()
    ids = [note["id"] for note in told(notes, "init")]
    assert ids[0] == ids[1] == ids[2] != ids[3]
    assert {note["resume"] for note in told(notes, "init")} == {"allow"}
    how = {"wandb": {"exit_code": 1}, "swanlab": {"state": "aborted"}}[kind]
    assert told(notes, "finish")[0] == {"what": "finish", **how}, "no end was reached"


def test_videos_and_checkpoints_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = install(tmp_path, monkeypatch)
    for place in ("checkpoints/best", "checkpoints/30", "checkpoints/20", "videos"):
        (tmp_path / "run" / place).mkdir(parents=True)
    (tmp_path / "run" / "videos" / "20.mp4").write_bytes(b"")
    for kind in TRACKERS:
        logger = Logger(tmp_path / "run", (kind,), quiet=True, config=config(upload=["videos", "last", "best"]))
        logger.metrics(30, {"loss": 1.0})
        logger.close()  # interrupted: nothing is uploaded
        assert not told(notes, {"wandb": "artifact", "swanlab": "save"}[kind])
        logger.finished(30)
        logger.close()
    kept = tmp_path / "run" / "checkpoints"
    assert [note["path"] for note in told(notes, "artifact")] == [str(kept / "best"), str(kept / "30")]
    assert told(notes, "log")[1]["row"] == {"env_step": 30, "videos/20": str(tmp_path / "run" / "videos" / "20.mp4")}
    saved = [note["path"] for note in told(notes, "save")]
    assert saved == [f"{kept}/best/*", f"{kept}/30/*", str(tmp_path / "run" / "videos" / "20.mp4")]


@pytest.mark.parametrize(
    ("kind", "variable"), [("wandb", "WANDB_API_KEY"), ("swanlab", "SWANLAB_API_KEY"), ("wandb", ""), ("swanlab", "")]
)
def test_online_where_a_key_is(kind: str, variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch)
    assert check(kind, {}) == ("offline",)
    with pytest.raises(UserError, match=f"there is no key for {kind}; say it with: {kind} login"):
        ready([kind], {"mode": "online"})
    if variable:
        monkeypatch.setenv(variable, "k" * 40)
    else:  # what their logins write
        place = {"wandb": tmp_path / ".netrc", "swanlab": tmp_path / ".swanlab" / ".netrc"}[kind]
        place.parent.mkdir(exist_ok=True)
        host = {"wandb": "api.wandb.ai", "swanlab": "https://api.swanlab.cn"}[kind]
        place.write_text(f"machine {host}\n  login user\n  password {'k' * 40}\n")
        place.chmod(0o600)
    assert check(kind, {}) == ("online", "offline")
    assert check(kind, {"mode": "offline"}) == ("offline",)
    monkeypatch.setenv(f"{kind.upper()}_MODE", "offline")
    assert check(kind, {}) == ("offline",)
    assert check(kind, {"mode": "online"}) == ("online", "offline")


def test_another_server_needs_its_own_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch)
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password k\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example")
    assert check("wandb", {}) == ("offline",)


@pytest.mark.parametrize("kind", TRACKERS)
def test_a_missing_package_is_named_before_anything_is_written(
    kind: str, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import kumite

    (runs.parent / kind).mkdir()  # such a folder is no package
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    agent = kumite.PPO("CartPole-v1", track=("csv", kind), quiet=True)
    with pytest.raises(UserError, match=rf"'{kind}' is not installed; install it with: pip install 'kumite\[{kind}\]'"):
        agent.learn(10)
    assert not list(runs.iterdir())


def test_secrets_are_hidden_at_any_depth() -> None:
    given = {
        "a": [{"my_token": "x", "lr": 1.0}],
        "password": "y",
        "key": ["z"],
        "keys": 3,
        "secret": "",
        "kwargs": "{api_key: abc, n: 3}",
    }
    assert without_secrets(given) == {
        "a": [{"my_token": "***", "lr": 1.0}],
        "password": "***",
        "key": ["***"],
        "keys": 3,
        "secret": "",
        "kwargs": "{api_key: ***, n: 3}",
    }


def test_secrets_are_hidden_in_a_command() -> None:
    from kumite.machine import redact

    words = ["--my-token", "x", "--password=y", "--env.kwargs", "{api_key: abc, n: 3}", "monkey:make"]
    assert redact(words) == [
        "--my-token",
        "***",
        "--password=***",
        "--env.kwargs",
        "{api_key: ***, n: 3}",
        "monkey:make",
    ]


# --- W&B itself ----------------------------------------------------------------------------------------------------


def inspect(folder: Path) -> list[dict[str, Any]]:
    """The records of a run's transaction log, by W&B's own reader (`wandb leet inspect`, without the detour)."""
    found = importlib.util.find_spec("wandb")
    assert found
    assert found.origin
    (log,) = folder.glob("*.wandb")
    core = Path(found.origin).parent / "bin" / "wandb-core"
    command = [core, "leet", "inspect", "--json", "--no-observability", "--run-file", log, folder.parent]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode:
        pytest.skip(f"this version of wandb has no such reader: {done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_wandbs_reader_opens_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run and its continuation: one id, every row under its step, the config, the end."""
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    folder = tmp_path / "run"
    logger = Logger(folder, ("wandb",), quiet=True, config=config(mode="offline"))
    drive(logger, range(3))
    state = json.loads(json.dumps(logger.state()))
    logger.close()
    logger = Logger(folder, ("wandb",), quiet=True, config=config(mode="offline"))
    logger.restore(state)
    drive(logger, range(3, 5))
    logger.finished(40)
    logger.close()
    stretches = sorted((folder / "wandb").glob("offline-run-*"))
    assert len(stretches) == 2
    records = [inspect(place) for place in stretches]
    text = json.dumps(records)
    assert "s3cret" not in text
    for found, steps in zip(records, ([0, 10, 20], [30, 40]), strict=True):
        rows = [r["history"]["item"] for r in found if r["type"] == "history"]
        assert [row["env_step"] for row in rows] == [row["_step"] for row in rows] == steps
        assert [row["train/loss"] for row in rows] == pytest.approx([s / 30 for s in steps])
        evaluated = {row["env_step"]: row["eval/mean_reward"] for row in rows if "eval/mean_reward" in row}
        assert evaluated == {s: s / 10 for s in steps if s % 20 == 0}
    assert len({place.name.rpartition("-")[2] for place in stretches}) == 1
