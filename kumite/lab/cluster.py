"""The same runs on the nodes of a Ray cluster: the one place that imports ray.

With RAY_ADDRESS that cluster is used (`auto`: the one that was started on this machine); its nodes must share the
folder that the launcher works in, and have kumite installed. Without, one is made of this machine for the launch: no
dashboard, and nothing listens beyond 127.0.0.1.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kumite.errors import UserError, missing_extra
from kumite.lab.local import Handle, Process, cores

PATIENCE = 5.0  # seconds for a node to answer
LOST = 137  # the exit code of a run whose node, or worker, is gone


class Node:
    """An actor: one run on the node that Ray chose, its process under the same guard as anywhere."""

    def __init__(self) -> None:
        self.process: Process | None = None
        self.ended = threading.Event()

    def run(self, words: Sequence[str], env: Mapping[str, str], log: str, lock: str, cwd: str) -> int:
        if self.ended.is_set():
            return 143
        os.chdir(cwd)
        self.process = Process(words, env, Path(log), Path(lock))
        if self.ended.is_set():
            self.process.stop()
        return self.process.wait()

    def stop(self) -> bool:
        self.ended.set()
        if self.process is not None:
            self.process.stop()
        return True


class Remote:
    """A run on a node, or waiting for one."""

    def __init__(self, ray: Any, actor: Any, result: Any) -> None:
        self.ray, self.actor, self.result = ray, actor, result
        self.code: int | None = None

    def poll(self) -> int | None:
        if self.code is None and self.ray.wait([self.result], timeout=0)[0]:
            try:
                self.code = int(self.ray.get(self.result))
            except self.ray.exceptions.RayError:
                self.code = LOST
            self.ray.kill(self.actor)  # what it held is free for the next
        return self.code

    def stop(self) -> None:
        heard = self.actor.stop.remote()
        if not self.ray.wait([heard], timeout=PATIENCE)[0]:  # it still waits for a node
            self.kill()

    def kill(self) -> None:
        self.ray.kill(self.actor)  # the guard sees that its parent is gone


class Cluster:
    gpus: list[str] = []
    """None for the launcher to deal out: Ray does that."""

    def __init__(self) -> None:
        self.ray, self.begun = connect()
        have = self.ray.cluster_resources()
        self.cores, self.cards = int(have.get("CPU", 1)), float(have.get("GPU", 0))

    def start(self, words: Sequence[str], env: Mapping[str, str], log: Path, lock: Path) -> Handle:
        threads = int(env["OMP_NUM_THREADS"])
        card = min(1.0, self.cards * threads / self.cores)
        place = self.ray.remote(num_cpus=threads, num_gpus=card, max_concurrency=2, max_restarts=0)(Node)
        actor = place.remote()
        where = (str(log.absolute()), str(lock.absolute()), os.getcwd())
        return Remote(self.ray, actor, actor.run.remote(list(words), dict(env), *where))

    def close(self) -> None:
        if self.begun:
            self.ray.shutdown()


def connect() -> tuple[Any, bool]:
    """ray, and whether this launch has to shut it down again."""
    address = os.environ.get("RAY_ADDRESS")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # runs without a GPU share keep what they see
    if not address:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anyone
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # Ray's word for: this machine only, 127.0.0.1
    try:
        import ray
    except ImportError:
        raise missing_extra("ray", "distributed") from None
    if ray.is_initialized():
        return ray, False
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    try:
        if address:
            ray.init(address=address, **quiet)
        else:
            ray.init(address="local", num_cpus=cores(), include_dashboard=False, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"Ray does not start{f' (RAY_ADDRESS={address})' if address else ''}: {reason}") from None
    return ray, True
