"""What a run leaves behind, without the clock: tables, events, and everything in its newest checkpoint."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import kumite
from kumite import checkpoint
from kumite.agent import Agent
from kumite.train import Interrupted

TABLES = ("metrics.csv", "episodes.csv", "evals.csv")
SMALL: dict[str, dict[str, Any]] = {
    "ppo": {"steps": 512, "horizon": 16, "batch_size": 16, "epochs": 2, "chunk": 8},
    "a2c": {"steps": 512, "horizon": 8, "chunk": 4},
    "sac": {"steps": 288, "batch_size": 32, "warmup": 50, "buffer_size": 1000, "chunk": 8, "update_ratio": 0.25},
}
SMALL |= dict.fromkeys(("td3", "ddpg"), SMALL["sac"])
SMALL |= dict.fromkeys(("dqn", "iqn", "rainbow"), SMALL["sac"] | {"target_every": 30})
COMMON: dict[str, Any] = {
    "actor": {"width": 8, "memory_width": 6},
    "critic": {"width": 8, "memory_width": 6},
    "log": {"every": 40},
    "eval": {"every": 96, "episodes": 2},
    "save": {"every": 70},
    "device": "cpu",
    "quiet": True,
}


def settings(algo: str, folder: Path, /, **more: Any) -> dict[str, Any]:
    return SMALL[algo] | COMMON | {"dir": str(folder), "name": "it"} | more


def tables(run: Path) -> dict[str, list[dict[str, str]]]:
    """Every row of the CSV files, apart from the columns that show a clock."""
    found = {}
    for name in TABLES:
        with (run / name).open(newline="") as file:
            rows = list(csv.DictReader(file))
        found[name] = [{k: v for k, v in row.items() if k != "time_s" and not k.startswith("time/")} for row in rows]
    return found


def events(run: Path) -> list[tuple[str, int, float]]:
    """(tag, step, value) of every TensorBoard event, in the order a reader meets them."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    found = []
    for path in sorted(run.glob("events.out.tfevents.*")):
        for event in LegacyEventFileLoader(str(path)).Load():
            found += [(v.tag, event.step, v.simple_value) for v in event.summary.value if "time/" not in v.tag]
    return found


def saved(run: Path) -> dict[str, Any]:
    """All of the newest checkpoint, apart from clocks and the lengths of files that hold them."""
    state = checkpoint.read(checkpoint.numbered(run / "checkpoints")[0])
    for name in ("time_s", "mark", "sinks"):
        state["logger"].pop(name)
    return state


def differences(a: Any, b: Any, path: str = "") -> list[str]:
    """Where two trees differ, bit for bit."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        same = a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num())
        return [] if same else [path]
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return [d for k in a for d in differences(a[k], b[k], f"{path}.{k}")]
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return [d for i in range(len(a)) for d in differences(a[i], b[i], f"{path}.{i}")]
    return [] if a == b and type(a) is type(b) else [path]


def check_same(one: Path, two: Path) -> None:
    """Two runs left the same behind."""
    assert tables(one) == tables(two)
    assert all(tables(one).values()), "there is something to compare"
    different = differences(saved(one), saved(two))
    assert not different, different
    seen = events(two)
    steps = [(tag, step) for tag, step, _ in seen]
    assert len(steps) == len(set(steps)), "every step is shown once"
    assert seen == events(one)


def whole(env: Any, algo: str, folder: Path, /, **more: Any) -> Path:
    """An uninterrupted run."""
    agent = Agent(env, algo=algo, **settings(algo, folder, **more))
    agent.learn()
    assert agent.path is not None
    return agent.path


def broken(env: Any, algo: str, folder: Path, stops: list[int], /, **more: Any) -> Path:
    """The same run, interrupted by a signal at these steps and resumed from its folder each time."""
    agent = Agent(env, algo=algo, **settings(algo, folder, **more))
    for stop in stops:
        interrupt(agent, stop)
        assert agent.path is not None
        agent = kumite.resume(agent.path, env=env)
    agent.learn()
    assert agent.path is not None
    return agent.path


def interrupt(agent: Agent, at: int) -> None:
    def callback(run: Any) -> None:
        if run.env_step >= at:
            agent.stop.signal = 15

    with pytest.raises(Interrupted) as end:
        agent.learn(callback=callback)
    assert end.value.signal == 15


class Nested(gymnasium.Env[Any, Any]):
    """Nested observations with an image, both kinds of action, and episodes of 3 to 9 steps."""

    observation_space = spaces.Dict(
        {
            "arm": spaces.Dict({"joints": spaces.Box(-1.0, 1.0, (3,), np.float32), "gear": spaces.Discrete(3)}),
            "eye": spaces.Box(0, 255, (8, 8, 3), np.uint8),
        }
    )
    action_space = spaces.Dict({"push": spaces.Box(-1.0, 1.0, (2,), np.float32), "gear": spaces.Discrete(3)})

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left, self.moved = int(self.np_random.integers(3, 10)), np.zeros(3, np.float32)
        return self._see(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        self.moved = np.clip(self.moved + 0.1 * float(action["push"].sum()) + 0.05 * int(action["gear"]), -1, 1)
        return self._see(), float(self.moved.sum()), self.left == 0, False, {}

    def _see(self) -> Any:
        eye = self.np_random.integers(0, 256, (8, 8, 3), np.uint8)
        return {"arm": {"joints": self.moved.astype(np.float32), "gear": self.left % 3}, "eye": eye}
