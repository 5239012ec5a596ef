"""Run as a script: one run that is killed again and again until it is done. Each life is a process of its own.

The parent never trains, so that its forks are as clean as fresh processes and start in no time.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import torch

import kumite
from kumite.agent import Agent

KILLS = 8


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(dice: random.Random, where: str, last: bool) -> Any:
    """Death at a random step, or at a random moment of a random save."""
    if last:
        return None
    at = dice.randint(1, 120)
    if where == "step":
        begun: list[int] = []

        def callback(run: Any) -> None:
            begun.append(run.env_step)
            if run.env_step - begun[0] >= at:
                die()

        return callback
    countdown = dice.randint(1, 40)  # flushes and renames: a save has about nine

    def counting(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal countdown
            countdown -= 1
            if countdown == 0:
                die()
            return original(*args, **kwargs)

        return call

    os.fsync, os.rename = counting(os.fsync), counting(os.rename)
    return None


def live(env: str, algo: str, settings: dict[str, Any], path: Path, callback: Any) -> None:
    torch.set_num_threads(1)
    agent = kumite.resume(path) if path.is_dir() else Agent(env, algo=algo, **settings)
    agent.learn(callback=callback)


def main(env: str, algo: str, settings: dict[str, Any], path: str, where: str) -> None:
    dice = random.Random(f"{env}{algo}{settings}{where}")
    for life in range(KILLS + 1):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                callback = arm(random.Random(dice.random()), where, life == KILLS)
                live(env, algo, settings, Path(path), callback)
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        dice.random()
        if os.WIFSIGNALED(status):
            print("killed", flush=True)
        elif os.WEXITSTATUS(status) == 0:
            print("done", flush=True)
            return
        else:
            sys.exit(f"life {life} failed")


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
