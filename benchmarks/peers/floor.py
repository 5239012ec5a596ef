"""Builds floor.cpp, where there is a compiler and a CPU with AVX-512."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).parent


def built() -> Path:
    """The program, compiled anew where its source is newer; a missing compiler is an error that says so."""
    source, program = HERE / "floor.cpp", HERE / ".venv" / "floor"
    if program.exists() and program.stat().st_mtime > source.stat().st_mtime:
        return program
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise RuntimeError("there is no C++ compiler to build floor.cpp with")
    if "avx512f" not in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
        raise RuntimeError("this CPU has no AVX-512, which floor.cpp is written in")
    program.parent.mkdir(exist_ok=True)
    flags = ["-O3", "-march=native", "-ffast-math", "-fopenmp", "-std=c++17"]
    subprocess.run([compiler, *flags, str(source), "-o", str(program)], check=True)
    return program
