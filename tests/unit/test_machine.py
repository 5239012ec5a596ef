"""How a run computes is decided by facts: cores, nets, planned updates, what was compiled before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kumite import machine
from kumite.errors import UserError
from kumite.machine import COLD, SHARE, WARM, Known, pays_to_be_thorough, pays_to_compile, pick_threads


@pytest.mark.parametrize(
    ("asked", "work", "cores", "bounded", "expected"),
    [
        (3, 0, 1, False, 3),
        (0, SHARE, 8, True, 1),
        (0, 2 * SHARE, 8, True, 2),
        (0, 2 * SHARE, 1, True, 1),
        (0, 100 * SHARE, 8, True, 4),
        (0, 100 * SHARE, 8, False, 1),  # torch came first, and its threads spin for long
    ],
)
def test_threads_by_the_size_of_the_work(
    asked: int, work: int, cores: int, bounded: bool, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(machine, "cores", lambda: cores)
    monkeypatch.setattr(machine, "BOUNDED", bounded)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    assert pick_threads(asked, work) == expected


def test_threads_that_are_bounded_already_stay_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(machine, "cores", lambda: 8)
    assert pick_threads(0, 100 * SHARE) == torch.get_num_threads() == 1


def test_waiting_threads_sleep_soon_unless_the_user_says_otherwise() -> None:
    """It has to be said before torch is loaded."""
    code = "import kumite, os, sys; print(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)"
    plain = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    for more, said in (({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "PASSIVE"}, "None")):
        out = subprocess.run([sys.executable, "-c", code], env=plain | more, capture_output=True, text=True, check=True)
        assert out.stdout.split() == [said, "False"]


@pytest.mark.parametrize(
    ("choice", "updates", "recurrent", "known", "looped", "expected"),
    [
        ("on", 1, True, False, False, True),
        ("off", 10**9, False, True, False, False),
        ("auto", COLD, False, False, False, True),
        ("auto", COLD - 1, False, False, False, False),
        ("auto", WARM, False, True, False, True),
        ("auto", WARM - 1, False, True, False, False),
        ("auto", 10**9, True, True, False, False),
        ("auto", 10**9, False, True, True, False),
        ("on", 10**9, False, True, True, True),
    ],
)
def test_what_auto_decides(
    choice: str, updates: int, recurrent: bool, known: bool, looped: bool, expected: bool
) -> None:
    decided, why = pays_to_compile(choice, updates, recurrent, known, looped)
    assert decided is expected
    assert why


def test_only_many_small_updates_are_compiled_thoroughly() -> None:
    cpu = torch.device("cpu")
    assert pays_to_be_thorough(10 * COLD, SHARE - 1, cpu)
    assert not pays_to_be_thorough(10 * COLD - 1, SHARE - 1, cpu)
    assert not pays_to_be_thorough(10 * COLD, SHARE, cpu)
    assert not pays_to_be_thorough(10 * COLD, SHARE - 1, torch.device("cuda"))


def test_graphs_are_known_by_the_folder_they_are_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "one"))
    (tmp_path / "one").mkdir()
    assert not Known("sac", 256)
    Known("sac", 256).keep()
    assert Known("sac", 256)
    assert not Known("sac", 128), "other numbers, other graphs"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "two"))
    assert not Known("sac", 256)
    Known("sac", 256).keep()  # there is no such folder: nothing is kept, nothing fails
    assert not Known("sac", 256)


def test_without_room_for_temporary_files_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> str:
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setattr("tempfile.gettempdir", nowhere)
    known = Known("sac")
    known.keep()
    assert not known


@pytest.mark.parametrize(
    ("name", "said"), [("gpu", "unknown device 'gpu'"), ("xla", "--device xla cannot be used here")]
)
def test_a_device_that_is_not_there_takes_one_short_line(name: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        machine.pick_device(name)
    assert len(str(caught.value)) < 160
