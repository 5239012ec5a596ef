"""What every test stands on: one torch thread, fixed generators, an own folder, the command line as a process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

# Before torch is imported, and inherited by every process a test starts.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)

# The same examples in every run: a failure on one machine is a failure on all. Look for new ones with
# pytest --hypothesis-profile=search.
settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
settings.register_profile("search", deadline=None, max_examples=2000)
settings.load_profile("fixed")

Cli = Callable[..., subprocess.CompletedProcess[str]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(autouse=True)
def _same_start() -> Iterator[None]:
    """Tests do not depend on each other's draws, threads or default dtype."""
    torch.manual_seed(0)
    yield
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty `runs` folder inside an empty working directory."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Run the `kumite` command as a process in the test's folder: cli("train", "ppo", "CartPole-v1", timeout=60)."""

    def run(*words: str | Path, timeout: float = 120.0, **env: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", "import sys; from kumite.cli import main; sys.exit(main())", *map(str, words)]
        return subprocess.run(
            command, cwd=tmp_path, env={**os.environ, **env}, capture_output=True, text=True, timeout=timeout
        )

    return run
