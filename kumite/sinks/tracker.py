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

HOME = Path(__file__).parents[2]  # where `kumite` is imported from
Message = dict[str, Any]


class TrackerError(RuntimeError):
    """Something about a tracker. `errno` tells one kind of trouble from another: each is said once."""

    def __init__(self, text: str, kind: str) -> None:
        super().__init__(text)
        self.errno = kind


class Tracker(Sink):
    """`kind`: the name of a file beside this one, and of the package it speaks to."""

    WAITING = 10_000  # rows that wait for the tracker before the oldest are dropped

    def __init__(self, kind: str, folder: Path, config: Mapping[str, Any]) -> None:
        self.kind, self.folder, self.config = kind, folder.absolute(), config
        self.options: Mapping[str, Any] = config.get("log", {})
        self.mode = check(kind, self.options)
        self.id = secrets.token_hex(4)
        self.old = False  # others have written to this id before
        self.ended = False  # the run has reached its end
        self.process: subprocess.Popen[bytes] | None = None
        self.gone = False  # the process died: nothing more is sent
        self.dropped = 0
        self.replies: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.lines: list[str] = []
        self.sync = ""  # the command that uploads what is on the disk

    # -- what the run says --------------------------------------------------------------------------------------------

    def metrics(self, env_step: int, time_s: float, values: Mapping[str, float]) -> None:
        self._send({"do": "log", "step": env_step, "row": {"env_step": env_step, "time_s": time_s, **values}})

    def evaluation(self, env_step: int, time_s: float, row: Mapping[str, float]) -> None:
        self.metrics(env_step, time_s, evaluated(row, style_of(self.config), env_step, time_s))

    def finished(self, env_step: int) -> None:
        self.ended = True
        wanted = self.options.get("upload", ())
        if "videos" in wanted:
            videos = sorted((self.folder / "videos").glob("*.mp4")) or [self._film()]
            for path in videos:
                self._send({"do": "video", "step": env_step, "path": str(path)})
        places = {"best": "best", "last": str(env_step)}
        for which in (w for w in places if w in wanted):
            path = self.folder / "checkpoints" / places[which]
            if path.is_dir():
                self._send({"do": "checkpoint", "step": env_step, "which": which, "path": str(path)})

    def _film(self) -> Path:
        """A video of the trained agent, made in a process of its own: drawing a scene may kill it."""
        words = ["eval", str(self.folder), "--video", "--episodes", "1", "--checkpoint", "last"]
        command = [
            sys.executable,
            "-c",
            "import sys; from kumite.cli import main; sys.exit(main(sys.argv[1:]))",
            *words,
        ]
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(command, env=environment(), capture_output=True, timeout=max(60, self.patience), check=False)
        made = sorted((self.folder / "videos").glob("*.mp4"))
        if not made:
            raise TrackerError("no video of the agent could be made for it", "video")
        return made[-1]

    def flush(self) -> None:
        """Whatever was heard meanwhile: news are kept, trouble is raised."""
        trouble = None
        while not self.replies.empty():
            said = self.replies.get()
            self.sync = said.get("sync", self.sync)
            if "news" in said:
                self.lines.append(f"{self.kind}: {said['news']}")
            if "trouble" in said:
                trouble = trouble or TrackerError(said["trouble"], said.get("kind", "trouble"))
        if self.dropped:
            trouble = trouble or TrackerError("it takes rows too slowly; the oldest were dropped", "slow")
            self.dropped = 0
        if trouble:
            raise trouble

    def news(self) -> list[str]:
        lines, self.lines = self.lines, []
        return lines

    def close(self) -> None:
        """The process ends by itself or is ended; what is logged afterwards starts another one for the same run."""
        process, self.process = self.process, None
        if process is None:
            return
        deadline = time.monotonic() + self.patience
        try:
            if not self.gone:
                self._put(json.dumps({"do": "finish", "ok": self.ended}).encode() + b"\n")
            self._put(None)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(deadline - time.monotonic(), 0))
        finally:
            late = process.poll() is None
            if late:
                end(process)
            for thread in self.threads:
                thread.join(2)
            self.gone, self.old, self.ended = False, True, False
        if late:
            left = f"; what is left can be uploaded with: {self.sync}" if self.sync else ""
            self.replies.put({"trouble": f"it did not finish within {self.patience} s{left}", "kind": "late"})
        self.flush()

    def state(self) -> dict[str, Any]:
        return {"id": self.id}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.id, self.old = str(state["id"]), True

    # -- the process --------------------------------------------------------------------------------------------------

    @property
    def patience(self) -> int:
        return int(self.options.get("patience", 30))

    def _send(self, message: Message) -> None:
        if self.process is None:
            self._open()
        if not self.gone:
            self._put(json.dumps(message).encode() + b"\n")

    def _put(self, line: bytes | None) -> None:
        while True:
            try:
                return self.outbox.put_nowait(line)
            except queue.Full:
                with contextlib.suppress(queue.Empty):
                    self.outbox.get_nowait()
                    self.dropped += 1

    def _open(self) -> None:
        self.outbox: queue.Queue[bytes | None] = queue.Queue(self.WAITING)
        self.gone = False
        said = self.folder / self.kind / "relay.log"
        with contextlib.ExitStack() as stack:
            try:
                said.parent.mkdir(parents=True, exist_ok=True)
                log: Any = stack.enter_context(said.open("ab"))
            except OSError:
                log = subprocess.DEVNULL
            self.process = process = subprocess.Popen(
                [sys.executable, "-m", "kumite.sinks.relay", self.kind, str(self.patience)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                env=environment(),
                start_new_session=True,  # Ctrl-C is the run's, and there is no terminal to ask for a password
            )
        jobs = (lambda: self._write(process, self.outbox), lambda: self._read(process, said))
        self.threads = [threading.Thread(target=job, daemon=True, name=f"{self.kind}-pipe") for job in jobs]
        for thread in self.threads:
            thread.start()
        self._send({"do": "start", **self._about()})

    def _about(self) -> Message:
        """What the tracker is told about the run; nothing that looks like a secret leaves."""
        algo, env = str(self.config.get("algo", "")), str(self.config.get("env_id", ""))
        with contextlib.suppress(OSError, ValueError):
            facts = json.loads((self.folder / "manifest.json").read_text(encoding="utf-8"))
            self.config = {**self.config, "manifest": facts}
        return {
            "id": self.id,
            "resume": self.old,
            "mode": self.mode,
            "folder": str(self.folder),
            "name": "-".join(x.replace("/", "-") for x in (algo, env, self.folder.name) if x),
            "project": self.options.get("project") or "kumite",
            "entity": self.options.get("entity") or None,
            "group": self.options.get("group") or " ".join(x for x in (algo, env) if x) or None,
            "tags": list(dict.fromkeys(x for x in (algo, env, *self.options.get("tags", ())) if x)),
            "config": without_secrets(self.config),
            "pid": os.getpid(),
            "patience": self.patience,
        }

    def _write(self, process: subprocess.Popen[bytes], outbox: queue.Queue[bytes | None]) -> None:
        pipe = process.stdin
        assert pipe is not None
        with contextlib.suppress(OSError, ValueError):
            while (line := outbox.get()) is not None:
                view = memoryview(line)
                while view:
                    view = view[pipe.write(view) :]
        with contextlib.suppress(OSError):
            pipe.close()

    def _read(self, process: subprocess.Popen[bytes], said: Path) -> None:
        assert process.stdout is not None
        done = False
        with io.BufferedReader(process.stdout) as lines:  # type: ignore[type-var]
            for line in lines:
                with contextlib.suppress(ValueError):
                    reply = json.loads(line)
                    done = done or "done" in reply
                    self.replies.put(reply)
        code = process.wait()
        if not done and self.process is process:
            self.gone = True
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            where = f"; what it said is in {said}" if said.exists() else ""
            self.replies.put({"trouble": f"its process ended early ({how}){where}", "kind": "died"})


def check(kind: str, options: Mapping[str, Any]) -> str:
    """online or offline; refused in a sentence where the package or a key is missing."""
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
    return "online" if mode == "auto" else mode


def environment() -> dict[str, str]:
    """The child finds the kumite that runs here."""
    places = [str(HOME), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places)}


def without_secrets(value: Any, name: str = "") -> Any:
    from kumite.machine import SECRET

    if isinstance(value, Mapping):
        return {str(k): without_secrets(v, str(k)) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_secrets(v, name) for v in value]
    return "***" if isinstance(value, str) and value and SECRET.search(name) else value


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
    process.wait()
