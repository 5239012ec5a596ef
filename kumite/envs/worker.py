"""The process behind one copy: it makes the environment, obeys orders and writes observations to shared memory.

Orders and answers are one byte of kind, then numbers, JSON or plain bytes. Nothing here needs torch, so a worker starts
quickly and stays small.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from kumite.envs.base import EnvConfig
from kumite.envs.episode import Copy, open_copy
from kumite.envs.spaces import Array
from kumite.errors import UserError

LENGTH = struct.Struct("<I")
SEED = struct.Struct("<q")
ANSWER = struct.Struct("<d??qdqd")
ALIGN = 64


class Answer(NamedTuple):
    """What a step did; the observation is in the shared memory."""

    reward: float
    terminated: bool
    truncated: bool
    ticks: int
    total: float
    length: int
    success: float
    """NaN = the environment did not say."""


def put(sock: socket.socket, kind: bytes, payload: bytes = b"") -> None:
    sock.sendall(LENGTH.pack(1 + len(payload)) + kind + payload)


def get(sock: socket.socket) -> tuple[bytes, bytes]:
    """The next message; EOFError where the other side is gone."""
    (length,) = LENGTH.unpack(_exactly(sock, LENGTH.size))
    message = _exactly(sock, length)
    return message[:1], message[1:]


def join(header: dict[str, Any], blob: bytes = b"") -> bytes:
    """JSON and bytes in one message; `split` takes them apart."""
    text = json.dumps(header).encode()
    return LENGTH.pack(len(text)) + text + blob


def split(payload: bytes) -> tuple[dict[str, Any], bytes]:
    end = LENGTH.size + LENGTH.unpack_from(payload)[0]
    return json.loads(payload[LENGTH.size : end]), payload[end:]


def parcel(make: Callable[[], Any]) -> bytes:
    """The maker of an environment, lambdas and local classes included, for a process that has not seen its module.

    It goes from this process to its own child, in memory, and is never read from a file.
    """
    import cloudpickle  # type: ignore[import-untyped]

    return cloudpickle.dumps(make)


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = sock.recv(count)
    while len(data) < count:
        more = sock.recv(count - len(data))
        if not more and not data:
            break
        if not more:
            raise EOFError
        data += more
    if not data:
        raise EOFError
    return data


class Memory:
    """The observations of all copies in one block, [slots, ...] per entry. Its file has no name: nothing can leak."""

    def __init__(self, fd: int, fields: dict[str, tuple[tuple[int, ...], str]], slots: int, grow: bool = False) -> None:
        places, size = {}, 0
        for name, (shape, dtype) in fields.items():
            places[name] = size
            size += slots * math.prod(shape) * np.dtype(dtype).itemsize
            size += -size % ALIGN
        if grow:
            os.ftruncate(fd, max(size, 1))
        block = mmap.mmap(fd, max(size, 1))
        self.arrays: dict[str, Array] = {
            name: np.frombuffer(block, dtype, slots * math.prod(shape), places[name]).reshape(slots, *shape)
            for name, (shape, dtype) in fields.items()
        }


def main(sock_fd: int, memory_fd: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()
    sock = socket.socket(fileno=sock_fd)
    copy: Copy | None = None
    try:
        copy = _open(sock)
        if copy is not None:
            _serve(sock, memory_fd, copy)
    except (EOFError, ConnectionError):
        pass  # the parent is gone, and so are we
    finally:
        if copy is not None:
            copy.close()


def _watch(parent: int) -> None:
    """End with the parent, even where the environment hangs."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _open(sock: socket.socket) -> Copy | None:
    import cloudpickle

    said, blob = split(get(sock)[1])
    config = EnvConfig(**said["config"])
    try:
        copy = open_copy(lambda: cloudpickle.loads(blob)(), said["index"], config, said["seed"])
    except UserError as err:
        put(sock, b"U", str(err).encode())
        return None
    except Exception as err:
        put(sock, b"E", str(err).encode())
        return None
    fields = {k: (v.shape[1:], str(v.dtype)) for k, v in copy.blank(1).items()}
    hello = {"native": copy.native.to_json(), "legal": copy.legal, "horizon": copy.horizon, "fields": fields}
    put(sock, b"P", join(hello))
    return copy


def _serve(sock: socket.socket, memory_fd: int, copy: Copy) -> None:
    i = copy.index
    native = copy.native
    wide = 4 * native.continuous
    out: dict[str, Array] = {}
    row: dict[str, Array] = {}
    while True:
        kind, payload = get(sock)
        try:
            ticks, reward, terminated, truncated = 0, 0.0, False, False
            if kind == b"S":
                c, d = np.frombuffer(payload[:wide], np.float32), np.frombuffer(payload[wide:], np.int64)
                action = native.decode(c[None].copy(), d[None])[0]
                reward, terminated, truncated = copy.step(action, out, i)
                ticks = copy.spent
                if native.check(row) >= 0:
                    raise copy.broken(native.describe(out, i), action)
            elif kind == b"R":
                copy.begin(SEED.unpack(payload)[0], out, i)
                if native.check(row) >= 0:
                    raise copy.broken(native.describe(out, i))
            elif kind == b"M":
                said, _ = split(payload)
                out = Memory(memory_fd, said["fields"], said["slots"]).arrays
                row = {k: v[i : i + 1] for k, v in out.items()}
            elif kind == b"B":
                said, blob = split(payload)
                steps, end = said["steps"], wide * said["steps"]
                c = np.frombuffer(blob[:end], np.float32).reshape(steps, native.continuous).copy()
                d = np.frombuffer(blob[end:], np.int64).reshape(steps, len(native.branches))
                arrived = said["seed"] is None or copy.replay(said["seed"], native.decode(c, d), out, i)
                copy.total, copy.length = said["total"], said["length"]
                put(sock, b"P", join({"arrived": arrived}))
                continue
            elif kind == b"V":
                picture = copy.render()
                put(sock, b"P", join({"shape": picture.shape}, picture.tobytes()))
                continue
            else:
                return
        except Exception as err:
            put(sock, b"E", str(err).encode())
            continue
        success = math.nan if copy.success is None else copy.success
        put(sock, b"A", ANSWER.pack(reward, terminated, truncated, ticks, copy.total, copy.length, success))


def unpack(payload: bytes) -> Answer:
    return Answer(*ANSWER.unpack(payload))
