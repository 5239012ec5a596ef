"""The project itself: what is installed, what it is called, and that its files agree with each other."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import kumite

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
CORE = {"torch", "numpy", "gymnasium", "tyro", "rich", "safetensors", "pyyaml", "tensorboard", "psutil"}
PROMISED = {
    *("atari", "mujoco", "box2d", "dmc", "robotics", "envpool", "jax", "unity", "marl", "games", "offline", "pomdp"),
    *("pybullet", "distributed", "wandb", "swanlab", "plots", "video", "export", "tune", "hub", "all", "dev"),
}


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def tracked() -> list[Path]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


def pins() -> dict[str, str]:
    lines = (line.split("#")[0].strip() for line in read("constraints.txt").splitlines())
    return {str(canonicalize_name(name)): pin for name, _, pin in (line.partition("==") for line in lines if line)}


def requirements(extra: str) -> list[Requirement]:
    """An extra's packages, with `kumite[a,b]` followed."""
    found = []
    for requirement in map(Requirement, EXTRAS[extra]):
        if requirement.name == "kumite":
            found += [r for inner in requirement.extras for r in requirements(inner)]
        else:
            found.append(requirement)
    return found


def test_one_version() -> None:
    assert kumite.__version__ == PROJECT["version"] == version("kumite")


def test_the_command() -> None:
    (command,) = entry_points(group="console_scripts", name="kumite")
    assert command.value == "kumite.cli:main"
    assert callable(command.load())


def test_core_and_extras_are_the_promised_ones() -> None:
    assert {Requirement(r).name for r in PROJECT["dependencies"]} == CORE
    assert set(EXTRAS) >= PROMISED


def test_all_leaves_out_what_its_comment_says() -> None:
    (every,) = map(Requirement, EXTRAS["all"])
    assert set(EXTRAS) - every.extras == {"all", "dev", "swanlab", "pybullet"}


@pytest.mark.parametrize("extra", [e for e in EXTRAS if e != "swanlab"])
def test_the_tested_set_lies_within_the_bounds(extra: str) -> None:
    pinned = pins()
    for requirement in [*map(Requirement, PROJECT["dependencies"]), *requirements(extra)]:
        pin = pinned.get(canonicalize_name(requirement.name))
        assert pin, f"{requirement.name} is not in constraints.txt"
        assert requirement.specifier.contains(pin, prereleases=True), f"{requirement} does not allow {pin}"


def test_named_extras_exist() -> None:
    """Every sentence about a missing package names an extra that there is."""
    named = {
        (node.args[1].value, f"{path.relative_to(ROOT)}:{node.lineno}")
        for path in (ROOT / "kumite").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).split(".")[-1] == "missing_extra"
        and len(node.args) == 2
        and isinstance(node.args[1], ast.Constant)
    }
    assert not [f"{place}: no extra '{extra}'" for extra, place in sorted(named) if extra not in EXTRAS]


def test_no_package_index_in_any_file() -> None:
    address = re.compile(r"(index-url|find-links|registry)[ =:]+[\"']?(https?|file):")
    wrong = []
    for path in tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        wrong += [f"{path.relative_to(ROOT)}: {m.group()}" for m in address.finditer(text)]
    assert not wrong


def test_readme_names_the_two_commands() -> None:
    readme = read("README.md")
    assert "make quickstart" in readme
    assert "make test" in readme


@pytest.mark.skipif(not shutil.which("make"), reason="no make")
@pytest.mark.parametrize("target", ["quickstart", "test", "lint", "clean"])
def test_make_knows(target: str) -> None:
    done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_continuous_integration_is_a_sound_script() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "set -euo pipefail" in script.read_text()
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0


def test_the_wheel_is_complete(tmp_path: Path) -> None:
    """Built from a copy, so that leftovers of other builds neither help nor hinder."""
    for name in ["pyproject.toml", "README.md", "LICENSE"]:
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "kumite", tmp_path / "kumite", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "dist"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("kumite-*.whl")
    inside = set(zipfile.ZipFile(wheel).namelist())
    wanted = [p for p in (ROOT / "kumite").rglob("*") if p.suffix in {".py", ".yaml"} or p.name == "py.typed"]
    assert not {p.relative_to(ROOT).as_posix() for p in wanted} - inside
    assert not [name for name in inside if not name.startswith("kumite")]


@pytest.mark.parametrize(("threshold", "code"), [("475", 0), ("490", 1)])
def test_solved_looks_at_the_best_evaluation(tmp_path: Path, threshold: str, code: int) -> None:
    header = "env_step,time_s,mean,std,min,max,episodes,mean_length"
    rows = ["10000,1.0,120.0,5,100,130,10,120", "20000,2.0,480.0,9,470,500,10,480", "30000,3.0,300.0,9,1,500,10,300"]
    (tmp_path / "evals.csv").write_text("\n".join([header, *rows]) + "\n")
    command = [sys.executable, str(ROOT / "scripts" / "solved.py"), str(tmp_path), threshold]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert "480 over 10 evaluation episodes at step 20000" in done.stdout
