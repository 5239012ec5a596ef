"""The process in which a tracker's library lives.

Lines of JSON come in from the run (`tracker.py`), each naming a method of the file's `Backend`; what it returns, and
what goes wrong, goes back as lines of JSON. When the run is gone the tracker has `patience` seconds to finish.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import threading
from typing import Any

CALLS = ("start", "log", "video", "checkpoint", "finish")


def main(kind: str, seconds: str) -> int:
    patience = float(seconds)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    source, out = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "w", buffering=1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)  # nobody inherits the pipe, and nobody is asked anything
    os.dup2(2, 1)  # whatever libraries print goes to the log

    def say(**reply: Any) -> None:
        with contextlib.suppress(OSError):  # the run is gone
            out.write(json.dumps(reply) + "\n")

    backend = importlib.import_module(f"kumite.sinks.{kind}").Backend()
    for line in source:
        message = json.loads(line)
        call = message.pop("do")
        assert call in CALLS
        try:
            answer = getattr(backend, call)(**message)
        except Exception as error:
            text = " ".join(str(error).split())[:300] or type(error).__name__
            say(trouble=text, kind=call, **({"state": "refused"} if call == "start" else {}))
            if call == "start":
                os._exit(1)
            answer = None
        if call == "start":
            say(state="started", **answer)
        if call == "finish":
            say(state="done")
            leave(patience)
            return 0
    leave(patience)
    backend.finish(ok=False)
    return 0


def leave(patience: float) -> None:
    """Libraries tidy up when Python ends; they shall not take for ever."""
    timer = threading.Timer(patience, os._exit, (0,))
    timer.daemon = True
    timer.start()
