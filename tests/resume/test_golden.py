"""Checkpoints of earlier versions (`golden/`, made by golden.py): they load, act as they did, and go on learning."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path

import pytest

import kumite
from kumite import checkpoint
from kumite.train import RestartWarning
from tests.resume.golden import HOME, MAKE, OBS


@pytest.mark.parametrize("name", MAKE)
def test_a_checkpoint_of_an_earlier_version(name: str, tmp_path: Path) -> None:
    run = Path(shutil.copytree(HOME / name, tmp_path / name))
    then = json.loads((run / "acted.json").read_text())
    agent = kumite.load(run, checkpoint="last")
    assert agent.env_step == then["step"]
    assert agent.predict(OBS)[0].tolist() == pytest.approx(then["action"], abs=1e-4)
    longer = kumite.resume(run, steps=then["step"] + 32)
    updates = int(longer.algo.updates)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RestartWarning)  # Pendulum may differ in its last bit on another machine
        longer.learn()
    assert longer.env_step == then["step"] + 32
    assert longer.algo.updates > updates > 0
    assert checkpoint.problem(run / "checkpoints" / str(longer.env_step)) is None


def test_they_stay_small() -> None:
    assert sum(p.stat().st_size for p in HOME.rglob("*") if p.is_file()) < 100_000
