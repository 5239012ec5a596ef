"""Run as a script: writes the checkpoints in `golden/`, which every later version must read.

    python -m tests.resume.golden

They are made once per format and per release, and never again: a change that makes test_golden.py fail is one that
takes checkpoints away from users. Until the first release a deliberate change may write them anew.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import kumite

HOME = Path(__file__).parent / "golden"
OBS = [0.6, -0.8, 0.5]
NET = {"layers": (8,), "memory_width": 4}
TINY = {"actor": NET, "critic": NET, "quiet": True}
OFF = {"warmup": 20, "batch_size": 8, "buffer_size": 60, "chunk": 4}
MAKE: dict[str, dict[str, Any]] = {
    "ppo": {"num_envs": 2, "horizon": 16, "batch_size": 16, "chunk": 8, "memory": "gru"}
    | {"normalize_obs": True, "normalize_reward": True},
    "sac": {"num_envs": 2, "n_step": 3, "priority": 0.6, "normalize_obs": True} | OFF,
    "td3": {"memory": "lstm", "noise": {"kind": "ou"}} | OFF,
}


def main() -> None:
    shutil.rmtree(HOME, ignore_errors=True)
    for name, numbers in MAKE.items():
        agent = getattr(kumite, name.upper())("Pendulum-v1", steps=64, device="cpu", **numbers, **TINY).learn()
        agent.save(HOME / name / "checkpoints" / str(agent.env_step))
        acted = agent.predict(OBS)[0].tolist()
        (HOME / name / "acted.json").write_text(json.dumps({"step": agent.env_step, "action": acted}) + "\n")


if __name__ == "__main__":
    main()
