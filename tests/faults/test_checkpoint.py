"""Damaged, half-written, foreign and hostile checkpoints; saves that are cut off or find no room."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import kumite
from kumite import checkpoint
from kumite.checkpoint import CheckpointWarning
from kumite.errors import RunError, UserError

FILES = ("state.json", "state.safetensors", "replay.safetensors", "config.yaml", "spaces.json", "manifest.json")
OBS = [0.0, 0.1, 0.0, -0.1]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with three checkpoints of its own and the best one."""
    small = {"num_envs": 2, "horizon": 16, "batch_size": 16, "actor": {"width": 8}, "critic": {"width": 8}}
    every = {"save": {"every": 100}, "eval": {"every": 100, "episodes": 1}}
    agent = kumite.PPO(
        "CartPole-v1", steps=300, dir=str(tmp_path_factory.mktemp("runs")), name="it", quiet=True, **small, **every
    )
    agent.learn()
    assert agent.path is not None
    assert len(checkpoint.numbered(agent.path / "checkpoints")) == 3
    return agent.path


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "it-s0"))


def newest(run: Path) -> tuple[Path, Path]:
    one, two, *_ = checkpoint.numbered(run / "checkpoints")
    return one, two


def sign(folder: Path) -> None:
    """A manifest that agrees with what lies there, as an attacker would write it."""
    files = {
        p.name: {"bytes": p.stat().st_size, "sha256": hashlib.sha256(p.read_bytes()).hexdigest()}
        for p in folder.iterdir()
        if p.name != "manifest.json" and p.is_file()
    }
    (folder / "manifest.json").write_text(json.dumps({"format": 1, "files": files}))


# --- damage --------------------------------------------------------------------------------------------------------


def cut(name: str, share: float) -> Callable[[Path], None]:
    return lambda folder: os.truncate(folder / name, int((folder / name).stat().st_size * share))


def flip(folder: Path) -> None:
    data = bytearray((folder / "state.safetensors").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "state.safetensors").write_bytes(data)


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "a bit": flip,
    "no manifest": lambda folder: (folder / "manifest.json").unlink(),
    "an empty manifest": cut("manifest.json", 0),
    "a manifest of something else": lambda folder: (folder / "manifest.json").write_text("[1, 2]"),
    "no nets": lambda folder: (folder / "state.safetensors").unlink(),
    "a later format": lambda folder: (folder / "manifest.json").write_text(
        (folder / "manifest.json").read_text().replace('"format": 1', '"format": 99')
    ),
} | {f"{name} cut to {share:.0%}": cut(name, share) for name in FILES for share in (0.0, 0.37, 0.99)}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_noticed_and_the_one_before_is_taken(what: str, run: Path) -> None:
    bad, good = newest(run)
    DAMAGE[what](bad)
    left = {p.name: p.read_bytes() for p in bad.iterdir()}
    with pytest.warns(CheckpointWarning, match=f"{bad.name} is skipped") as said:
        agent = kumite.load(run, checkpoint="last")
    assert len(said) == 1
    assert agent.env_step == int(good.name)
    assert {p.name: p.read_bytes() for p in bad.iterdir()} == left, "it is left alone"
    with pytest.raises(UserError, match="not a checkpoint that can be used"):
        kumite.load(run, checkpoint=bad.name)


def test_a_resume_goes_on_from_the_good_one_and_puts_a_whole_one_in_the_damaged_ones_place(run: Path) -> None:
    bad, good = newest(run)
    tensors = {k: v for k, v in checkpoint.read(bad)["algo"].items() if isinstance(v, torch.Tensor)}
    whole = {k: v.clone() for k, v in tensors.items()}  # what was read may still lie in the file
    cut("state.safetensors", 0.5)(bad)
    with pytest.warns(CheckpointWarning, match="is skipped"):
        agent = kumite.resume(run, quiet=True)
    assert agent.env_step == int(good.name)
    agent.learn()
    again = checkpoint.read(bad)["algo"]
    assert all(torch.equal(again[k], v) for k, v in whole.items())


def test_a_damaged_best_gives_way_to_the_newest(run: Path) -> None:
    flip(run / "checkpoints" / "best")
    with pytest.warns(CheckpointWarning, match="best is skipped"):
        assert kumite.load(run).env_step == int(newest(run)[0].name)


def test_a_half_written_one_is_no_checkpoint_and_goes_with_the_next_save(run: Path) -> None:
    torn = run / "checkpoints" / ".400.12345.tmp"
    shutil.copytree(newest(run)[0], torn)
    agent = kumite.resume(run, steps=400, quiet=True)
    assert agent.env_step == int(newest(run)[0].name)
    agent.learn()
    assert not torn.exists()


def test_nothing_good_is_left(run: Path) -> None:
    for folder in (*checkpoint.numbered(run / "checkpoints"), run / "checkpoints" / "best"):
        cut("state.safetensors", 0.5)(folder)
    with pytest.warns(CheckpointWarning), pytest.raises(UserError, match="holds no checkpoint that can be used"):
        kumite.load(run)


def test_what_was_trained_on_a_gpu_acts_and_goes_on_without_one(run: Path) -> None:
    last = newest(run)[0]
    settings = (last / "config.yaml").read_text()
    assert "device: auto" in settings
    (last / "config.yaml").write_text(settings.replace("device: auto", "device: cuda:77"))
    sign(last)
    with pytest.warns(CheckpointWarning, match="was made on 'cuda:77', which cannot be used here; .* --device auto"):
        agent = kumite.resume(run, steps=400, quiet=True)
    assert agent.predict(OBS)[0] in (0, 1)
    agent.learn()
    assert kumite.load(run, checkpoint="last").env_step >= 400


# --- no room -------------------------------------------------------------------------------------------------------

LIMITED = """
import resource, sys, warnings
from kumite.cli import main
size = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
sys.exit(main(sys.argv[2:]))
"""


def test_a_full_disk_costs_the_new_checkpoints_and_nothing_else(tmp_path: Path) -> None:
    """No file may grow beyond 4000 bytes: tables and events still fit, the nets do not."""
    words = "train ppo CartPole-v1 --steps 300 --num-envs 2 --horizon 16 --batch-size 16 --save.every 100 --name it"
    command = [sys.executable, "-c", LIMITED, "4000", *words.split(), "--dir", str(tmp_path), "--eval.every", "-1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert done.returncode == 1, "what was learned is lost"
    run = tmp_path / "CartPole-v1" / "ppo" / "it-s0"
    said = done.stderr.splitlines()
    assert len(said) == 2, "once on the way, and once more at the end"
    assert "a checkpoint could not be written" in said[0]
    assert said[0].endswith("(File too large); training goes on with the older ones kept")
    assert re.fullmatch(
        r"kumite: the last checkpoint, of step 30\d, could not be written \(File too large\); mend that, then resume"
        r" the run; no checkpoint was written yet in \S+/it-s0",
        said[1],
    )
    assert list((run / "checkpoints").iterdir()) == [], "nothing half-written stays"
    assert (run / "metrics.csv").read_text().splitlines()[-1].startswith("30"), "every row was flushed"


def test_older_checkpoints_stay_when_a_save_fails(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {p.name: checkpoint.problem(p) for p in (run / "checkpoints").iterdir()}

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    agent = kumite.resume(run, steps=500, quiet=True)
    monkeypatch.setattr(checkpoint, "_save", full)
    lost = rf"last checkpoint, of step 50\d, could not be written .*; the last good checkpoint is {newest(run)[0]}$"
    with (
        pytest.warns(CheckpointWarning, match=r"could not be written .* \(No space left on device\); training goes on"),
        pytest.raises(RunError, match=lost),
    ):
        agent.learn()
    assert agent.env_step >= 500
    assert {p.name: checkpoint.problem(p) for p in (run / "checkpoints").iterdir()} == before
    monkeypatch.undo()
    agent.learn(50)
    assert checkpoint.problem(newest(run)[0]) is None, "the next one gets in"
    assert int(newest(run)[0].name) >= 550


@pytest.mark.parametrize("place", ["runs", "runs/CartPole-v1", "runs/CartPole-v1/ppo"])
def test_a_folder_that_cannot_be_made_is_told_before_anything_runs(place: str, cli: Any, tmp_path: Path) -> None:
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / place).write_text("in the way")
    done = cli("train", "ppo", "CartPole-v1", "--steps", "100")
    assert done.returncode == 2
    assert "cannot make the run's folder" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_save_says_where_it_cannot_write(run: Path, tmp_path: Path) -> None:
    agent = kumite.load(run)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "diary.txt").write_text("mine")
    with pytest.raises(UserError, match="exists and is no checkpoint"):
        agent.save(tmp_path / "notes")
    assert (tmp_path / "notes" / "diary.txt").read_text() == "mine"
    with pytest.raises(UserError, match="cannot save to"):
        agent.save(tmp_path / "notes" / "diary.txt" / "deeper")


# --- hostile -------------------------------------------------------------------------------------------------------


class Bomb:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.marker,))


@pytest.mark.parametrize("name", FILES)
def test_a_pickle_under_any_name_is_refused_and_does_not_run(name: str, run: Path, tmp_path: Path) -> None:
    bad = newest(run)[0]
    (bad / name).write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    if name != "manifest.json":
        sign(bad)
    with pytest.raises(UserError):
        kumite.load(run, checkpoint=bad.name).learn(64)
    assert not (tmp_path / "ran").exists()


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(2)}, tmp_path / "model.pt")
    (tmp_path / "folder").mkdir()
    shutil.copy(tmp_path / "model.pt", tmp_path / "folder")
    for path in (tmp_path / "model.pt", tmp_path / "folder"):
        with pytest.raises(UserError, match=r"there is no run|not a checkpoint"):
            kumite.load(path)


def test_links_out_of_the_folder_are_refused(run: Path, tmp_path: Path) -> None:
    bad = newest(run)[0]
    (tmp_path / "elsewhere").write_bytes((bad / "state.safetensors").read_bytes())
    (bad / "state.safetensors").unlink()
    (bad / "state.safetensors").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="not a plain file"):
        kumite.load(run, checkpoint=bad.name)


@pytest.mark.parametrize("name", ["../../escape", "/etc/hostname", "extra.py"])
def test_a_manifest_names_no_files_but_a_checkpoints_own(name: str, run: Path) -> None:
    bad = newest(run)[0]
    facts = json.loads((bad / "manifest.json").read_text())
    facts["files"][name] = {"bytes": 1, "sha256": "0" * 64}
    (bad / "manifest.json").write_text(json.dumps(facts))
    with pytest.raises(UserError, match="not a plain file of a checkpoint"):
        kumite.load(run, checkpoint=bad.name)


@pytest.mark.parametrize("length", [2**63 - 1, 2**40, 100_000_001])
def test_an_absurd_header_takes_no_memory(length: int, run: Path) -> None:
    bad = newest(run)[0]
    (bad / "state.safetensors").write_bytes(struct.pack("<Q", length) + b"{}")
    sign(bad)
    with pytest.raises(UserError, match="not a checkpoint that can be used"):
        kumite.load(run, checkpoint=bad.name)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("$tensor", "$tensr"),
        ('"env_step": ', '"env_step": "many", "was": '),
        ('"algo": {', '"algo": {"net.more": 1, '),
        ('"updates": ', '"updated": '),
    ],
)
def test_a_state_that_does_not_fit_is_told_in_a_sentence(old: str, new: str, run: Path) -> None:
    bad = newest(run)[0]
    text = (bad / "state.json").read_text()
    assert old in text
    (bad / "state.json").write_text(text.replace(old, new))
    sign(bad)
    with pytest.raises(UserError, match=r"does not fit|not a checkpoint"):
        kumite.load(run, checkpoint=bad.name)


@pytest.mark.parametrize(
    "line", ["env_id: subprocess:run", "actor.encoder: os:system", "critic.encoder: builtins:exec"]
)
def test_a_checkpoint_names_no_tools(line: str, run: Path) -> None:
    bad = newest(run)[0]
    key, _, value = line.partition(": ")
    settings = (bad / "config.yaml").read_text()
    if key == "env_id":
        settings = settings.replace("env_id: CartPole-v1", line)
    else:
        net = key.partition(".")[0]
        settings = settings.replace(f"{net}:\n  keys: []\n  encoder: auto", f"{net}:\n  keys: []\n  encoder: {value}")
    assert value in settings
    (bad / "config.yaml").write_text(settings)
    sign(bad)
    with pytest.raises(UserError, match="part of Python and no environment or net"):
        kumite.load(run, checkpoint=bad.name)


def test_what_a_checkpoint_names_is_not_called_to_act(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment is made when it is needed, and never before."""
    monkeypatch.setattr("kumite.agent.make_env", lambda *args, **kwargs: pytest.fail("made an environment"))
    agent = kumite.load(run)
    action, state = agent.predict(OBS)
    assert action in (0, 1)
    assert state is None
