"""What the documents show works: their Python runs, their commands parse, their links lead somewhere; examples run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kumite import cli
from kumite.cli import main
from kumite.flags import parse
from kumite.lab.plot import Plot
from kumite.lab.report import Report

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BENCHMARKS = sorted((ROOT / "benchmarks").glob("*/*.md"))
PAGES = [*DOCUMENTS, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *BENCHMARKS]
ADDRESS = {"PYTHONPATH": str(ROOT / "examples"), "OMP_NUM_THREADS": "1"}


def blocks(path: Path, language: str) -> list[tuple[int, str]]:
    """(line, text) of the fenced blocks in this language."""
    text = path.read_text(encoding="utf-8")
    found = re.finditer(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [(text.count("\n", 0, m.start(1)) + 1, m.group(1)) for m in found]


def commands() -> Iterator[tuple[str, str]]:
    """(place, words after `kumite`) of every command line in the documents and at the head of the examples."""
    for path in [*DOCUMENTS, *EXAMPLES]:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            found = re.match(r"(?:    |\$ )(?:PYTHONPATH=\S+ )?kumite ((?!:).+)$", line)
            if found:
                yield f"{path.relative_to(ROOT)}:{number}", re.split(r"\s+#\s", found.group(1))[0]


COMMANDS = list(commands())


@pytest.fixture
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory; the modules of examples/ and of that directory can be imported."""
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("own_"):
            del sys.modules[name]


@pytest.mark.parametrize("path", [p for p in DOCUMENTS if blocks(p, "python")], ids=lambda p: p.name)
def test_python_blocks_run(path: Path, tmp_path: Path) -> None:
    """One after the other in one namespace, as a reader would paste them, in a process of their own."""
    script = tmp_path / "pasted.py"
    lines = [""] * 2_000
    for start, code in blocks(path, "python"):
        for offset, line in enumerate(code.splitlines()):
            lines[start - 1 + offset] = line  # so that a traceback names the document's line
    script.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    done = execute(["-W", "error::UserWarning:kumite", str(script)], tmp_path)
    assert done.returncode == 0, f"{path.name}: {done.stderr}"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_examples_run(path: Path, tmp_path: Path) -> None:
    done = execute([str(path)], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert not done.stderr


def execute(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **ADDRESS}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )


def test_there_are_commands() -> None:
    assert len(COMMANDS) > 20
    assert {words.split()[0] for _, words in COMMANDS} == set(cli.COMMANDS)


@pytest.mark.parametrize(("place", "words"), COMMANDS, ids=[place for place, _ in COMMANDS])
def test_commands_parse(place: str, words: str, importable: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names, flags and values are accepted. Training only shows its help: that resolves the same settings."""
    given = shlex.split(words)
    wrong = "--learning-rate" in given  # shown as a mistake
    if given[0] in ("resume", "eval", "play"):
        kind = {"resume": cli.Resume, "eval": cli.Eval, "play": cli.Play}[given[0]]
        made, _ = parse(kind, given[1:], f"kumite {given[0]}")
        assert made.run.startswith("runs/")
        return
    if given[0] in ("plot", "report"):
        kind = {"plot": Plot, "report": Report}[given[0]]
        assert parse(kind, given[1:], f"kumite {given[0]}")[0].places
        return
    more = ["--help"] if given[0] == "train" and "--help" not in given else []
    more += ["--dry-run"] if given[0] in ("bench", "tune") and "--dry-run" not in given else []
    code = main([*given, *more])
    out, err = capsys.readouterr()
    assert code == (2 if wrong else 0), err
    assert wrong or out


def test_the_shown_mistake_says_what_is_shown(importable: Path, capsys: pytest.CaptureFixture[str]) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"^\$ kumite (.*)\n(kumite: .*)$", readme, re.MULTILINE)
    assert found
    assert main(shlex.split(found.group(1))) == 2
    assert capsys.readouterr().err.strip() == found.group(2)


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text(encoding="utf-8"))
    assert not [t for t in targets if not t.startswith("https://") and not (path.parent / t).exists()]
