"""Run folders as kumite writes them, made up: for the tests of the lab."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

EVALS = "env_step,time_s,mean,std,min,max,episodes,mean_length"


def run(
    root: Path,
    env: str = "CartPole-v1",
    algo: str = "ppo",
    seed: int = 0,
    evals: Sequence[tuple[float, float]] = ((1000, 10.0), (2000, 20.0), (3000, 30.0)),
    episodes: Sequence[tuple[float, float]] = (),
    name: str = "study",
    **config: Any,
) -> Path:
    """A folder with (step, mean return) evaluations and (step, return) episodes; 100 steps take a second."""
    folder = root / env.replace("/", "-") / algo / f"{name}-s{seed}"
    folder.mkdir(parents=True)
    settings = {"algo": algo, "env_id": env, "steps": 3000, "seed": seed, "name": name, "lr": 1e-3, **config}
    (folder / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    facts = {"kumite": "0.1.0", "started": "2026-11-18T22:16:52+0000", "command": ["kumite", "train", algo, env]}
    facts |= {"machine": {"processor": "A <b>CPU</b>", "cores": 2, "devices": []}, "packages": {"torch": "2.13.0"}}
    (folder / "manifest.json").write_text(json.dumps(facts))
    if evals:
        rows = [f"{x},{x / 100},{y!r},1.0,{y - 1!r},{y + 1!r},10,200.0" for x, y in evals]
        (folder / "evals.csv").write_text("\n".join([EVALS, *rows]) + "\n")
    if episodes:
        rows = [f"{x},{x / 100},0,{y!r},20" for x, y in episodes]
        (folder / "episodes.csv").write_text("\n".join(["env_step,time_s,slot,return,length", *rows]) + "\n")
    rows = [f"{x},{x / 100},{x // 10}.0" for x in range(500, 3001, 500)]
    (folder / "metrics.csv").write_text("\n".join(["env_step,time_s,train/n_updates", *rows]) + "\n")
    return folder


def study(
    root: Path, algos: Sequence[str] = ("ppo", "sac"), envs: Sequence[str] = ("CartPole-v1", "Hopper-v5")
) -> Path:
    """3 seeds each; returns grow with the seed, the algorithm and the environment."""
    for e, env in enumerate(envs):
        for a, algo in enumerate(algos):
            for seed in range(3):
                top = 100.0 * (e + 1) + 10 * a + seed
                run(root, env, algo, seed, [(x, top * x / 3000) for x in range(500, 3001, 500)])
    return root
