"""Killed without warning, again and again, between steps and while saving: the run ends as if nothing had happened."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.resume import lives
from tests.resume.records import check_same, settings, whole

CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ppo": ("CartPole-v1", "ppo", {"num_envs": 4}),
    "ppo, recurrent": ("CartPole-v1", "ppo", {"num_envs": 1, "memory": "lstm", "steps": 256}),
    "sac": ("Pendulum-v1", "sac", {"num_envs": 1, "env": {"max_steps": 30}}),
    "sac, recurrent": ("Pendulum-v1", "sac", {"num_envs": 4, "memory": "gru", "env": {"max_steps": 30}}),
}


@pytest.mark.parametrize("where", ["step", "save"])
@pytest.mark.parametrize("case", CASES)
def test_killed_until_done(case: str, where: str, tmp_path: Path) -> None:
    env, algo, more = CASES[case]
    more = more | {"save": {"every": 40}}
    one = whole(env, algo, tmp_path / "whole", **more)
    path = tmp_path / "killed" / env / algo / "it-s0"
    spec = {"env": env, "algo": algo, "settings": settings(algo, tmp_path / "killed", **more), "path": str(path)}
    command = [sys.executable, lives.__file__, json.dumps(spec | {"where": where})]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    *killed, last = done.stdout.split()
    assert last == "done"
    assert len(killed) > 1
    check_same(one, path)
    assert [p.name for p in (path / "checkpoints").iterdir() if p.name.startswith(".")] == []
