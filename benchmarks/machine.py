"""What a figure stands on: the machine, the day, the versions, the commit."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def facts(packages: tuple[str, ...] = ("torch", "numpy", "gymnasium", "mujoco", "envpool", "ale-py")) -> dict[str, Any]:
    return {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "processor": processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: found for name in packages if (found := installed(name))},
        "commit": commit(ROOT),
        "load": [round(x, 2) for x in os.getloadavg()],
    }


def processor() -> str:
    """The CPU's name and the vector instructions that matter here; virtual machines hide the name."""
    name, wide = platform.processor() or "unknown", ""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
            if line.startswith("flags"):
                flags = line.split()
                wide = ", ".join(x for x in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if x in flags)
    except OSError:
        pass
    return f"{name} ({wide})" if wide else name


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def commit(folder: Path) -> str:
    run = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=10"]
    try:
        return subprocess.run(run, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
