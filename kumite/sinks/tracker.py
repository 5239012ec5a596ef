"""A tracker, seen from the run: rows go down a pipe to a process of its own, where `relay.py` calls its library.

A library that waits for a network, hangs, crashes or is killed does so over there. Here nothing waits for it: rows
queue up while it starts (the oldest are dropped when there are too many), and at the end it has `patience` seconds.
What each of them is told stands in a file of its own: `wandb.py`, `swanlab.py`.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import json
import math
import os
import queue
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kumite.errors import UserError, missing_extra
from kumite.sinks.base import Sink
from kumite.sinks.names import evaluated, style_of

HOME = str(Path(__file__).parents[2])  # where `kumite` is imported from
Message = dict[str, Any]


class TrackerError(RuntimeError):
    """Something about a tracker. `errno` tells one kind of trouble from another: each is said once."""

    def __init__(self, text: str, kind: str) -> None:
        super().__init__(text)
        self.errno = kind


class Tracker(Sink):
    """`kind`: the name of a file beside this one, and of the package it speaks to."""

    def __init__(self, kind: str, folder: Path, config: Mapping[str, Any]) -> None:
        self.kind, self.folder, self.config = kind, folder.absolute(), config
        self.options: Mapping[str, Any] = config.get("log", {})
        self.patience = int(self.options.get("patience", 30))
        self.modes = check(kind, self.options)
        self.id = secrets.token_hex(4)
        self.old = False  # this id has been written to before
        self.ended = False  # the run has reached its end
        self.relay: Relay | None = None
        self.lines: list[str] = []

    def metrics(self, env_step: int, time_s: float, values: Mapping[str, float]) -> None:
        self._send({"do": "log", "step": env_step, "row": {"env_step": env_step, "time_s": time_s, **values}})

    def evaluation(self, env_step: int, time_s: float, row: Mapping[str, float]) -> None:
        self.metrics(env_step, time_s, evaluated(row, style_of(self.config), env_step, time_s))

    def _send(self, message: Message) -> None:
        if self.relay is None:
            self.relay = Relay(self.kind, self.modes, self.patience, self.folder / self.kind / "relay.log")
            self.relay.start(self._about())
        self.relay.put(message)

    def _about(self) -> Message:
        """What the tracker is told about the run; nothing that looks like a secret leaves."""
        config = dict(self.config)
        algo, env = str(config.get("algo", "")), str(config.get("env_id", ""))
        with contextlib.suppress(OSError, ValueError):
            config["manifest"] = json.loads((self.folder / "manifest.json").read_text(encoding="utf-8"))
        return {
            "id": self.id,
            "resume": self.old,
            "folder": str(self.folder),
            "name": "-".join(x.replace("/", "-") for x in (algo, env, self.folder.name) if x),
            "project": self.options.get("project") or "kumite",
            "entity": self.options.get("entity") or None,
            "group": self.options.get("group") or " ".join(x for x in (algo, env) if x) or None,
            "tags": list(dict.fromkeys(x for x in (algo, env, *self.options.get("tags", ())) if x)),
            "config": without_secrets(config),
            "pid": os.getpid(),
            "patience": self.patience,
        }

    def finished(self, env_step: int) -> None:
        self.ended = True
        wanted = self.options.get("upload", ())
        for which, place in (("best", "best"), ("last", str(env_step))):
            path = self.folder / "checkpoints" / place
            if which in wanted and path.is_dir():
                self._send({"do": "checkpoint", "step": env_step, "which": which, "path": str(path)})
        if "videos" in wanted:
            for path in self._videos():
                self._send({"do": "video", "step": env_step, "path": str(path)})

    def _videos(self) -> list[Path]:
        """Those in the run's folder, or one that is made now. Its own process, for drawing may kill it."""
        there = lambda: sorted((self.folder / "videos").glob("*.mp4"))
        if not there():
            words = ["eval", str(self.folder), "--video", "--episodes", "1", "--checkpoint", "last"]
            command = [sys.executable, *script("from kumite.cli import main; sys.exit(main(sys.argv[1:]))"), *words]
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(command, capture_output=True, timeout=max(60, self.patience))
        if not there():
            raise TrackerError("there is no video of the agent, and none could be made", "video")
        return there()

    def flush(self) -> None:
        """Whatever was heard meanwhile: news are kept, trouble is raised."""
        if self.relay is not None:
            self._hear(self.relay)

    def _hear(self, relay: Relay) -> None:
        trouble = None
        while not relay.replies.empty():
            said = relay.replies.get()
            if "news" in said:
                self.lines.append(f"{self.kind}: {said['news']}")
            if "trouble" in said and trouble is None:
                trouble = TrackerError(said["trouble"], said["kind"])
        if trouble:
            raise trouble

    def news(self) -> list[str]:
        lines, self.lines = self.lines, []
        return lines

    def close(self) -> None:
        """The process ends by itself or is ended; what is logged afterwards starts another one for the same run."""
        relay, self.relay = self.relay, None
        if relay is not None:
            ok, self.ended, self.old = self.ended, False, True
            relay.close(ok)
            self._hear(relay)

    def state(self) -> dict[str, Any]:
        return {"id": self.id}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.id, self.old = str(state["id"]), True


class Relay:
    """One stretch of a run: a queue, a process at the end of it, and the thread between them."""

    WAITING = 10_000  # rows that wait for the tracker before the oldest are dropped

    def __init__(self, kind: str, modes: tuple[str, ...], patience: int, log: Path) -> None:
        self.kind, self.modes, self.patience, self.log = kind, modes, patience, log
        self.outbox: queue.Queue[Message | None] = queue.Queue(self.WAITING)
        self.replies: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.process: subprocess.Popen[bytes] | None = None
        self.answered = threading.Event()  # the process has started, has refused to, or is gone
        self.state = "new"  # -> started -> done; refused; gone
        self.mode = modes[0]
        self.sync = ""  # the command that uploads what is on the disk
        self.closed = math.inf  # when the end began
        self.over = False  # nobody listens any more
        self.lock = threading.Lock()

    def start(self, about: Message) -> None:
        self.thread = threading.Thread(target=self._work, args=(about,), daemon=True, name=f"{self.kind}-relay")
        self.thread.start()

    def put(self, message: Message | None) -> None:
        """Never waits."""
        while self.state != "gone":
            try:
                return self.outbox.put_nowait(message)
            except queue.Full:
                with contextlib.suppress(queue.Empty):
                    self.outbox.get_nowait()
                self._trouble("it takes rows too slowly; the oldest were dropped", "slow")

    def close(self, ok: bool) -> None:
        self.closed = time.monotonic()
        try:
            self.put({"do": "finish", "ok": ok})
            self.put(None)
            self.thread.join(self.patience)
        finally:
            with self.lock:
                self.over, late = True, self.thread.is_alive()
                if late and self.process is not None:
                    end(self.process)
            self.thread.join(5)
        if late:
            left = f"; what is left can be uploaded with: {self.sync}" if self.sync else ""
            self._trouble(f"it did not finish within {self.patience} s{left}", "late")

    # -- in the thread ------------------------------------------------------------------------------------------------

    def _work(self, about: Message) -> None:
        try:
            if any(self._begin(mode, about) for mode in self.modes if not self.over):
                return self._deliver()
        except Exception as error:  # no process can be made, or nothing that can be sent
            self._trouble(str(error) or type(error).__name__, "start")
        self.state = "gone"

    def _begin(self, mode: str, about: Message) -> bool:
        """A process whose tracker has started: in `patience` seconds, and early enough to try what comes next."""
        self.state, self.mode = "new", mode
        self.answered.clear()
        process = self._spawn()  # which takes long on a machine that swaps: `close` shall not wait for it
        with self.lock:
            self.process = process
            if self.over:
                process.kill()
        threading.Thread(target=self._listen, args=(process,), daemon=True, name=f"{self.kind}-replies").start()
        self._write({"do": "start", "mode": mode, **about})
        began = time.monotonic()
        share = self.patience if mode == self.modes[-1] else self.patience / 2
        while not self.answered.wait(0.1):
            if time.monotonic() > min(began + self.patience, self.closed + share):
                self._trouble(f"no answer after {time.monotonic() - began:.0f} s{self._instead()}", mode)
                break
        if self.state == "started":
            return True
        with self.lock:
            self.process = None
        end(process)
        shut(process)
        return False

    def _instead(self) -> str:
        return "; it goes on offline" if self.mode != self.modes[-1] else ""

    def _spawn(self) -> subprocess.Popen[bytes]:
        with contextlib.ExitStack() as stack:
            try:
                self.log.parent.mkdir(parents=True, exist_ok=True)
                log: Any = stack.enter_context(self.log.open("ab"))
            except OSError:
                log = subprocess.DEVNULL
            return subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    *script("from kumite.sinks import relay; sys.exit(relay.main(*sys.argv[1:]))"),
                    self.kind,
                    str(self.patience),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                start_new_session=True,  # Ctrl-C is the run's, and there is no terminal to ask for a password
            )

    def _deliver(self) -> None:
        assert self.process is not None
        while (message := self.outbox.get()) is not None and self._write(message):
            pass
        shut(self.process)
        self.process.wait()

    def _write(self, message: Message) -> bool:
        """False if the process is gone."""
        assert self.process is not None
        assert self.process.stdin is not None
        view = memoryview(json.dumps(message).encode() + b"\n")
        try:
            while view:
                view = view[self.process.stdin.write(view) :]
        except OSError:
            return False
        return True

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with io.BufferedReader(process.stdout) as lines:  # type: ignore[type-var]
            for line in lines:
                said = json.loads(line)
                if process is not self.process:
                    continue
                if said.get("state") == "refused":
                    said["trouble"] += self._instead()
                self.state, self.sync = said.get("state", self.state), said.get("sync", self.sync)
                self.replies.put(said)
                self.answered.set()
        code = process.wait()
        with self.lock:
            if process is not self.process:
                return
            if self.state in ("new", "started") and not self.over:
                how = f"signal {-code}" if code < 0 else f"exit code {code}"
                where = f"; what it said is in {self.log}" if self.log.exists() else ""
                started = self.state == "started"
                instead = "" if started else self._instead()
                self._trouble(f"its process ended early ({how}){instead}{where}", f"died {self.state}")
                self.state = "gone" if started else "refused"
                if started:
                    with contextlib.suppress(queue.Full):
                        self.outbox.put_nowait(None)  # nobody shall wait for rows
            self.answered.set()

    def _trouble(self, text: str, kind: str) -> None:
        self.replies.put({"trouble": text, "kind": kind})


def check(kind: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """The modes to try, one after the other; refused in a sentence where the package or a key is missing."""
    spec = importlib.util.find_spec(kind)
    if spec is None or spec.origin is None:  # no origin: a folder of that name in the working directory
        raise missing_extra(kind, kind)
    mode = str(options.get("mode", "auto"))
    words = importlib.import_module(f"kumite.sinks.{kind}")
    asked = os.environ.get(f"{kind.upper()}_MODE", "")
    if mode == "auto" and asked in ("online", "offline"):
        mode = asked
    if mode != "offline" and not words.has_key():
        if mode == "online":
            raise UserError(f"log.mode: there is no key for {kind}; say it with: {words.LOGIN}")
        mode = "offline"
    return ("offline",) if mode == "offline" else ("online", "offline")


def script(text: str) -> tuple[str, str]:
    """Python that finds the kumite that runs here, and shadows nothing with its neighbours."""
    return "-c", f"import sys; sys.path.append({HOME!r}); {text}"


def without_secrets(value: Any, name: str = "") -> Any:
    from kumite.machine import SECRET, redact_within

    if isinstance(value, Mapping):
        return {str(k): without_secrets(v, str(k)) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_secrets(v, name) for v in value]
    if not isinstance(value, str):
        return value
    return "***" if value and SECRET.search(name) else redact_within(value)


def shut(process: subprocess.Popen[bytes]) -> None:
    """Nothing more comes."""
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()


def end(process: subprocess.Popen[bytes]) -> None:
    """At once, with all that it has started."""
    import psutil

    try:
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.Error:
        family = []
    process.kill()
    for child in family:
        with contextlib.suppress(psutil.Error):
            child.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):  # one that waits for a disk cannot be killed either
        process.wait(5)
