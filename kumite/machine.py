"""What the run stands on: device, threads, compilation, and the record of it all."""

from __future__ import annotations

import ctypes
import getpass
import hashlib
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from kumite.errors import UserError
from kumite.openmp import BOUNDED
from kumite.version import __version__

SECRET = re.compile(r"(?i)(key|token|secret|password|passwd|credential)")
WITHIN = re.compile(rf"{SECRET.pattern}([\w-]*['\"]?: +)[^,}}]+")
"""The same inside a value that is YAML: {api_key: abc}."""


def pick_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"unknown device '{name}' (known: auto, cpu, cuda, cuda:1, mps)") from None
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].partition(". ")[0]
        raise UserError(f"--device {name} cannot be used here: {reason}") from None
    return device


def free_memory(device: torch.device) -> int:
    """Bytes that can still be taken there."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    import psutil

    return int(psutil.virtual_memory().available)


SHARE = 8_000_000  # multiplications of one product that occupy a thread


def pick_threads(asked: int, work: int) -> int:
    """Threads for torch on the CPU, for products of this many multiplications.

    Two processes that share cores slow each other manifold where waiting threads spin for long: more than one thread is
    taken only if `import kumite` came early enough to bound that, if nothing bounds threads already (OMP_NUM_THREADS,
    as studies set it), and up to four. Facts decide and no stopwatch: the same command computes the same numbers.
    """
    if asked:
        return asked
    if "OMP_NUM_THREADS" in os.environ:
        return torch.get_num_threads()
    return max(1, min(cores(), torch.get_num_threads(), 4, work // SHARE)) if BOUNDED else 1


def cores() -> int:
    """Those this process may use: by affinity, and by the quota of a container."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        here = min(here, max(int(quota) // int(period), 1))  # "max" is no number: no quota
    return here


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


ROOM = (32 << 20, 256 << 20)
"""Bytes: blocks up to the first size (the C library takes no larger one) are used again; so much may stay unused."""


def keep_memory() -> None:
    """From now on glibc keeps what is freed for the next tensor. Otherwise large ones come from the system at every
    gradient step, page by page and filled with zeros: with a net of Atari's size a third of the step.
    """
    with suppress(OSError, AttributeError, TypeError):  # another system, another C library
        mallopt = ctypes.CDLL(None).mallopt
        for name, size in zip((-3, -1), ROOM):  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
            mallopt(name, size)


def pick_precision(widest: int) -> str:
    """Torch's name for how float32 products are made: `medium` is faster for wide nets on many CPUs.

    It is taken only where it was found to be as accurate as the default (some CPUs round to bfloat16 there).
    """
    if widest < 128 or torch.cuda.is_available():
        return "highest"
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(256, 256, generator=generator), torch.randn(256, 256, generator=generator)
    exact = a.double() @ b.double()
    with products("medium"):
        error = float(((a @ b).double() - exact).abs().max() / exact.abs().max())
    return "medium" if error < 2e-6 else "highest"


@contextmanager
def products(precision: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


COLD, WARM = 20_000, 5_000
"""Gradient steps from which on compiling pays: it takes as long as these gain, or as so many if the graph is known."""


def pays_to_compile(choice: str, updates: int, recurrent: bool, known: bool, looped: bool = False) -> tuple[bool, str]:
    """Whether, and why, in words."""
    if choice != "auto":
        return choice == "on", f"--compile {choice}"
    if recurrent:
        return False, "nets with memory take long to compile"
    if looped:
        return False, "graphs cannot hold the quicker convolutions"
    enough = updates >= (WARM if known else COLD)
    cached = " and the compiler has seen them before" if known else ""
    few = (
        "" if enough else f", too few to win back what compiling costs (--compile on from {WARM if known else COLD:,})"
    )
    return enough, f"{updates:,} are planned{cached}{few}"


def pays_to_be_thorough(updates: int, work: int, device: torch.device) -> bool:
    """Whether many small updates win back what it takes to compile the calls between their kernels, too."""
    return device.type == "cpu" and work < SHARE and updates >= 10 * COLD


class Known:
    """Which graphs torch's compiler has in its folder: an empty file there for each kind of run that it compiled."""

    def __init__(self, *facts: Any) -> None:
        text = repr((__version__, torch.__version__, _processor(), facts))
        self.file: Path | None = None  # nowhere: there may be no user, and no room for temporary files
        with suppress(OSError, KeyError):
            folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
            folder = folder or f"{tempfile.gettempdir()}/torchinductor_{getpass.getuser()}"
            self.file = Path(folder) / "kumite" / hashlib.sha256(text.encode()).hexdigest()[:32]

    def __bool__(self) -> bool:
        with suppress(OSError):
            return self.file is not None and self.file.exists()
        return False

    def keep(self) -> None:
        with suppress(OSError):
            if self.file is not None:
                self.file.parent.mkdir(exist_ok=True)
                self.file.touch()


# --- the record ----------------------------------------------------------------------------------------------------

PACKAGES = ("torch", "numpy", "gymnasium", "mujoco", "dm_control", "ale-py", "envpool", "box2d", "safetensors", "tyro")


def manifest(env_id: str, algo: str, seed: int) -> dict[str, Any]:
    """Versions, machine, commit and command of a run; secrets are redacted."""
    return {
        "kumite": __version__,
        "algo": algo,
        "env_id": env_id,
        "seed": seed,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": redact(sys.argv),
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "machine": {
            "system": platform.platform(),
            "processor": _processor(),
            "cores": os.cpu_count(),
            "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        },
        "git": _commit(),
    }


def redact(arguments: list[str]) -> list[str]:
    """A command line in which the values of secret-looking words are hidden."""
    hidden, hide_next = [], False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if hide_next and not argument.startswith("--"):
            argument = "***"
        elif equals and SECRET.search(name):
            argument = f"{name}=***"
        else:
            argument = redact_within(argument)
        hide_next = argument.startswith("--") and not equals and bool(SECRET.search(argument))
        hidden.append(argument)
    return hidden


def redact_within(text: str) -> str:
    return WITHIN.sub(r"\1\2***", text)


def _version(name: str) -> str | None:
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)
    return None


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _commit() -> str | None:
    """The commit of the working directory, marked where it has changes."""
    try:
        run = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
        out = subprocess.run(run, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return out.stdout.strip() or None
