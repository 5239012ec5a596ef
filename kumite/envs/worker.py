"""The process behind one copy: it makes the environment, obeys orders and writes observations to shared memory.

Orders and answers are one byte of kind, then the rest. Nothing here needs torch, so a worker starts quickly and stays
small.
"""

from __future__ import annotations

import math
import mmap
import os
import pickle
import signal
import socket
import struct
import threading
import time
from typing import Any, NamedTuple

import numpy as np

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
    import cloudpickle  # type: ignore[import-untyped]

    _, payload = get(sock)
    try:
        parcel, index, config, seed = pickle.loads(payload)
        copy = open_copy(lambda: cloudpickle.loads(parcel)(), index, config, seed)
    except UserError as err:
        put(sock, b"U", str(err).encode())
        return None
    except Exception as err:
        put(sock, b"E", str(err).encode())
        return None
    fields = {k: (v.shape[1:], str(v.dtype)) for k, v in copy.blank(1).items()}
    hello = (copy.native.to_json(), copy.legal, copy.horizon, fields)
    put(sock, b"P", pickle.dumps(hello))
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
                fields, slots = pickle.loads(payload)
                out = Memory(memory_fd, fields, slots).arrays
                row = {k: v[i : i + 1] for k, v in out.items()}
            elif kind == b"B":
                seed, c, d, total, length = pickle.loads(payload)
                arrived = seed is None or copy.replay(seed, native.decode(c, d), out, i)
                copy.total, copy.length = total, length
                put(sock, b"P", pickle.dumps(arrived))
                continue
            elif kind == b"V":
                put(sock, b"P", pickle.dumps(copy.render()))
                continue
            else:
                return
        except Exception as err:
            put(sock, b"E", str(err).encode())
            continue
        said = math.nan if copy.success is None else copy.success
        put(sock, b"A", ANSWER.pack(reward, terminated, truncated, ticks, copy.total, copy.length, said))


def unpack(payload: bytes) -> Answer:
    return Answer(*ANSWER.unpack(payload))


def load(payload: bytes) -> Any:
    """A value from our own worker, over our own socket."""
    return pickle.loads(payload)
