"""One process per copy, for environments that are slow, leak, crash or hang.

The rows are those of `GymVec`, bit for bit: the workers run the same code on the same seeds. The parent sends actions
over a socket and finds the observations in shared memory.
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import numpy as np

from kumite.envs import worker
from kumite.envs.base import EnvConfig, derive
from kumite.envs.episode import REMEDY, Broken, short
from kumite.envs.gymnasium import GymVec, Maker
from kumite.envs.spaces import Array, Native
from kumite.errors import RunError, UserError

BOOT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
    "from kumite.envs.worker import main; main(int(sys.argv[2]), int(sys.argv[3]))"
)
START = 120.0  # seconds to import and make an environment, whatever a step may take
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class Worker:
    """A child process and the socket to it."""

    def __init__(self, index: int, memory_fd: int) -> None:
        self.index = index
        self.sock, theirs = socket.socketpair()
        self.sock.settimeout(START)
        self.pending = 0
        """Orders that were not answered yet."""
        with theirs:
            command = [sys.executable, "-P", "-c", BOOT, json.dumps(sys.path), str(theirs.fileno()), str(memory_fd)]
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), memory_fd),
                env={**os.environ, **dict.fromkeys(THREADS, "1")},
            )

    def put(self, kind: bytes, payload: bytes = b"") -> None:
        self.pending += 1
        try:
            worker.put(self.sock, kind, payload)
        except OSError as err:
            raise Broken(self.obituary()) from err

    def get(self, deadline: float) -> tuple[bytes, bytes]:
        try:
            self.sock.settimeout(max(deadline - time.monotonic(), 0.001))
            kind, payload = worker.get(self.sock)
        except TimeoutError as err:
            self.kill()
            raise Broken("did not answer in time and was stopped") from err
        except (EOFError, OSError) as err:
            raise Broken(self.obituary()) from err
        self.pending -= 1
        if kind in b"EU":
            raise (UserError if kind == b"U" else Broken)(payload.decode())
        return kind, payload

    def settle(self, patience: float) -> None:
        """Read the answers that nobody waits for any more; a dead worker shows itself at the next order."""
        deadline = time.monotonic() + patience
        while self.pending > 0 and self.process.poll() is None:
            with suppress(Broken):
                self.get(deadline)

    def obituary(self) -> str:
        """How the process ended."""
        try:
            code = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.kill()
            return "closed its connection"
        if code >= 0:
            return f"died: its worker process ended with exit code {code}"
        name = signal.Signals(-code).name
        hint = " (the usual end of a process that takes too much memory)" if name == "SIGKILL" else ""
        return f"died: its worker process was killed by {name}{hint}"

    def kill(self) -> None:
        self.sock.close()
        self.process.kill()
        self.process.wait()


class WorkerVec(GymVec):
    """The copies of GymVec, each in a process of its own."""

    def __init__(self, makers: Sequence[Maker], seed: int = 0, config: EnvConfig | None = None) -> None:
        if os.name != "posix":
            raise UserError("--env.mode workers needs Linux or macOS; use --env.mode sync")
        self.workers: list[Worker] = []
        try:
            super().__init__(makers, seed, config)
        except BaseException:
            self.close()
            raise

    # Starting.

    def _open(self) -> None:
        if self.config.timeout <= 0:
            raise UserError("--env.timeout must be positive")
        self.parcels = [worker.parcel(make) for make in self.makers]
        self.memory_fd = _nameless_file()
        self._finalizer = weakref.finalize(self, _stop, self.workers, self.memory_fd)
        self.workers += [Worker(i, self.memory_fd) for i in range(self.slots)]
        for i in range(self.slots):
            self._introduce(i)
        hellos = [self._hello(i) for i in range(self.slots)]
        spec, self.fields = hellos[0]["native"], hellos[0]["fields"]
        self.legal, self.horizon = hellos[0]["legal"], hellos[0]["horizon"]
        for i, hello in enumerate(hellos):
            if any(hello["native"][side] != spec[side] for side in ("observation", "action")):
                raise UserError(f"environment {i} has other spaces than environment 0; all copies must agree")
        self.native = Native.from_json(spec)
        self.layout = [(k, (self.slots, *shape), np.dtype(dtype)) for k, (shape, dtype) in self.fields.items()]
        self.shared: dict[str, Array] = worker.Memory(self.memory_fd, self.fields, self.slots, grow=True).arrays
        for i in range(self.slots):
            self._share(i)
        self.totals = [0.0] * self.slots
        self.lengths = [0] * self.slots
        self.fresh: set[int] = set()

    def _introduce(self, i: int) -> None:
        seed = derive(self.seed, i, self.episode[i])
        header = {"index": i, "seed": seed, "config": asdict(self.config)}
        self.workers[i].put(b"O", worker.join(header, self.parcels[i]))

    def _hello(self, i: int) -> Any:
        try:
            return worker.split(self.workers[i].get(time.monotonic() + max(START, self.config.timeout))[1])[0]
        except Broken as err:
            text = str(err) if str(err).startswith("environment ") else f"environment {i} {err} while it was made"
            raise Broken(text) from err

    def _share(self, i: int) -> None:
        self.workers[i].put(b"M", worker.join({"fields": self.fields, "slots": self.slots}))
        self.workers[i].get(time.monotonic() + self.config.timeout)

    # The four things GymVec does with its copies.

    def _begin_all(self, out: dict[str, Array]) -> None:
        for w in self.workers:
            w.settle(self.config.timeout)
        self.fresh = set(range(self.slots))
        self._post_resets()
        for i in range(self.slots):
            self._await_reset(i)
        self._read(out)

    def _post(self, c: Array, d: Array) -> None:
        self.deadline = time.monotonic() + self.config.timeout
        self.fresh = {i for i in range(self.slots) if self.over[i] and not self.gone[i]}
        for i in self.fresh:
            self.over[i] = False
            self.episode[i] += 1
        self._post_resets()
        for i in range(self.slots):
            if i not in self.fresh and not self.gone[i]:
                self._order(i, b"S", c[i].tobytes() + d[i].tobytes())

    def _advance(
        self, c: Array, d: Array, out: dict[str, Array], reward: list[float], terminated: Array, truncated: Array
    ) -> tuple[int, list[tuple[int, float, int, float | None]]]:
        ticks = 0
        ended: list[tuple[int, float, int, float | None]] = []
        lost: list[tuple[int, Broken]] = []
        for i in range(self.slots):
            if self.gone[i]:
                continue
            if i in self.fresh:
                self._await_reset(i)
                continue
            try:
                said = worker.unpack(self.workers[i].get(self.deadline)[1])
            except Broken as err:
                lost.append((i, self._located(i, err, c, d)))
                continue
            reward[i], terminated[i], truncated[i] = said.reward, said.terminated, said.truncated
            self.totals[i], self.lengths[i] = said.total, said.length
            ticks += said.ticks
            if said.terminated or said.truncated:
                self.over[i] = True
                success = None if math.isnan(said.success) else said.success
                ended.append((i, said.total, said.length, success))
        self._read(out)
        for i, end in lost:
            self._drop(i, end, out, reward, terminated, truncated)
        return ticks, ended

    def _running(self) -> tuple[list[float], list[int]]:
        return list(self.totals), list(self.lengths)

    def _replay_all(
        self, actions: list[tuple[Array, Array]], totals: list[float], lengths: list[int], out: dict[str, Array]
    ) -> bool:
        for i, (c, d) in enumerate(actions):
            seed = None if self.over[i] else derive(self.seed, i, self.episode[i])
            header = {"seed": seed, "steps": len(c), "total": float(totals[i]), "length": int(lengths[i])}
            self._order(i, b"B", worker.join(header, c.tobytes() + d.tobytes()))
        for i, (c, _) in enumerate(actions):
            patience = self.config.timeout * (1 + len(c) / 10)
            if not worker.split(self.workers[i].get(time.monotonic() + patience)[1])[0]["arrived"]:
                return False
        for k, v in out.items():
            running = [i for i in range(self.slots) if not self.over[i]]
            v[running] = self.shared[k][running]
        self.totals, self.lengths = [float(x) for x in totals], [int(x) for x in lengths]
        return True

    def render(self) -> Any:
        self._order(0, b"V")
        try:
            said, blob = worker.split(self.workers[0].get(time.monotonic() + self.config.timeout)[1])
        except Broken as err:
            raise RunError(str(err)) from err
        return np.frombuffer(blob, np.uint8).reshape(said["shape"])

    def close(self) -> None:
        self.shared = {}  # the last hold on the shared memory
        if hasattr(self, "_finalizer"):
            self._finalizer()

    # Parts.

    def _order(self, i: int, kind: bytes, payload: bytes = b"") -> None:
        with suppress(Broken):  # waiting for the answer finds the same end, where it can be dealt with
            self.workers[i].put(kind, payload)

    def _post_resets(self) -> None:
        self.deadline = time.monotonic() + self.config.timeout
        for i in self.fresh:
            self._order_reset(i)

    def _order_reset(self, i: int) -> None:
        self.log.begin(i)
        self.totals[i], self.lengths[i] = 0.0, 0
        self._order(i, b"R", worker.SEED.pack(derive(self.seed, i, self.episode[i])))

    def _await_reset(self, i: int) -> None:
        deadline = self.deadline
        while not self.gone[i]:
            try:
                self.workers[i].get(deadline)
                return
            except Broken as err:
                self._replace(i, self._located(i, err))
            self._order_reset(i)
            deadline = time.monotonic() + self.config.timeout

    def _length(self, i: int) -> int:
        return self.lengths[i]

    def _renew(self, i: int) -> None:
        self.workers[i].kill()
        self.workers[i] = Worker(i, self.memory_fd)
        self._introduce(i)
        self._hello(i)
        self._share(i)

    def _read(self, out: dict[str, Array]) -> None:
        for k, v in out.items():
            v[...] = self.shared[k]
        for i in self._dropped():
            self._stand_in(i, out)

    def _located(self, i: int, err: Broken, c: Array | None = None, d: Array | None = None) -> Broken:
        """What the environment said itself is complete; of a dead one the parent knows the rest."""
        if str(err).startswith("environment "):
            return err
        did = ""
        if c is not None and d is not None:
            did = f", action {short(self.native.decode(c[i : i + 1], d[i : i + 1])[0])}"
        seed, step = derive(self.seed, i, self.episode[i]), self.lengths[i] + (c is not None)
        text = str(err).replace("in time", f"within {self.config.timeout:g} s (--env.timeout)")
        located = Broken(f"environment {i} {text} (episode seed {seed}, step {step} of the episode{did}); {REMEDY}")
        located.__cause__ = err
        return located


def _nameless_file() -> int:
    """A file that lives as long as somebody holds it."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("kumite")
    fd, path = tempfile.mkstemp(prefix="kumite-")
    os.unlink(path)
    return fd


def _stop(workers: list[Worker], memory_fd: int) -> None:
    """Ask every worker to close its environment, then insist."""
    for w in workers:
        try:
            w.put(b"Q")
        except Broken:
            continue
    deadline = time.monotonic() + 5
    for w in workers:
        try:
            w.process.wait(timeout=max(deadline - time.monotonic(), 0.01))
        except subprocess.TimeoutExpired:
            w.process.kill()
            w.process.wait()
        w.sock.close()
    os.close(memory_fd)
