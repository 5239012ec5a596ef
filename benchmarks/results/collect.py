"""Copy what runs have measured into benchmarks/curves, and make the pages of this folder anew.

    python -m benchmarks.results.collect                     runs named `curve`, and those of kumite's studies
    python -m benchmarks.results.collect NAME|FOLDER ...     runs of these names below runs/; all runs in these folders
    python -m benchmarks.results.pages                       the pages alone

Finished or not, of each run evals.csv, config.yaml and manifest.json are kept: benchmarks/curves/<env>/<algo>/s<seed>/.
What a run's name says beyond its study's goes behind the algorithm: curve-ff-s0 lies in <algo>-ff.

Runs of one environment and algorithm are seeds of one thing, so all of them have the settings of the one that was
started last: what has others is left out, or taken away if it lay here. Of two runs of one seed the longer stays, of
two as long the later. Whatever is not kept is said.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.results import pages
from benchmarks.results.pages import CURVES, ROOT
from kumite import config as c
from kumite.errors import UserError
from kumite.lab import records, study
from kumite.lab.compare import count
from kumite.lab.records import IDENTITY, Record
from kumite.runs import is_run

FILES = ("evals.csv", "config.yaml", "manifest.json")


@dataclass(frozen=True)
class Found:
    """A run that has been measured at least once."""

    record: Record
    group: tuple[str, str]
    """Folders: environment, algorithm with its variant."""
    stored: bool
    """It lies in benchmarks/curves already."""

    @property
    def started(self) -> str:
        return str(self.record.facts["started"])

    @property
    def length(self) -> float:
        """Steps: those it has, and of a finished run those it was to have."""
        reached = float(self.record.evals["env_step"][-1])
        return float(self.record.planned) if pages.finished(self.record) else reached

    def __str__(self) -> str:
        made = f"{self.started[:10]}, {count(self.length)} steps"
        return f"{'/'.join(self.group)}/s{self.record.seed} ({made}{', here so far' if self.stored else ''})"


# --- which runs ----------------------------------------------------------------------------------------------------


def names() -> tuple[str, ...]:
    return ("curve", *study.shipped())


def variant(run: str, known: Iterable[str]) -> str | None:
    """What a run's name says beyond a known one: curve-ff -> ff; None where no known name is in front."""
    fit = [name for name in known if run == name or run.startswith(f"{name}-")]
    return run.removeprefix(max(fit, key=len)).lstrip("-") if fit else None


def find(words: Sequence[str], runs: Path) -> Iterator[Found]:
    """The runs that are meant, measured ones only."""
    folders = [Path(word) for word in words if Path(word).is_dir()]
    named = [word for word in words if not Path(word).is_dir()]
    known = (*names(), *named)
    for folder in folders:
        yield from (run for path in records.find(folder) if (run := read(path, known)))
    wanted = named or ([] if folders else list(names()))
    here = [p.parent for p in sorted(runs.glob("*/*/*/config.yaml")) if is_run(p.parent)]
    of = {path: re.sub(r"-s\d+(-\d+)?$", "", path.name) for path in here}
    if unknown := [name for name in named if all(variant(run, [name]) is None for run in of.values())]:
        raise SystemExit(f"{unknown[0]} is neither a folder nor the name of a run below {runs}\n\n{__doc__}")
    for path in here:
        if variant(of[path], wanted) is not None and (run := read(path, known)):
            yield run


def read(path: Path, known: Iterable[str]) -> Found | None:
    try:
        record = records.read(path)
    except UserError as e:
        print(f"left out: {e}")
        return None
    missing = [name for name in FILES if not (path / name).is_file()]
    if missing or not len(record.evals.get("env_step", ())) or "started" not in record.facts:
        print(f"left out: {path} ({f'no {missing[0]}' if missing else 'nothing evaluated yet, or no date'})")
        return None
    extra = variant(record.name, known)
    extra = record.name if extra is None else extra
    return Found(record, (tidy(record.env), "-".join(filter(None, (record.algo, extra)))), False)


def tidy(env: str) -> str:
    return re.sub(r"[:/]", "-", env)


def stored(curves: Path) -> list[Found]:
    paths = sorted(p.parent for p in curves.glob("*/*/s*/evals.csv"))
    return [Found(records.read(p), (p.parent.parent.name, p.parent.name), True) for p in paths]


# --- which of them are kept ----------------------------------------------------------------------------------------


def chosen(runs: Sequence[Found]) -> tuple[list[Found], list[str]]:
    """One run per seed, all of a group with the same settings; and a line for each other run."""
    groups: dict[tuple[str, str], list[Found]] = {}
    for run in runs:
        groups.setdefault(run.group, []).append(run)
    kept, said = [], []
    for group in groups.values():
        newest = max(group, key=lambda run: run.started)
        seeds: dict[int | None, Found] = {}
        for run in sorted(group, key=lambda run: (run.length, run.started, not run.stored)):
            if apart := differing(run.record, newest.record):
                said.append(
                    f"dropped: {run}: other settings than s{newest.record.seed} of {newest.started[:10]}: {apart}"
                )
                continue
            before = seeds.get(run.record.seed)
            if before and before.started != run.started:
                said.append(f"dropped: {before}: kept instead: {run}")
            seeds[run.record.seed] = run
        kept += seeds.values()
    return kept, said


ELSEWHERE = IDENTITY | {"profile", "stop_at", "env.mode", "env.timeout", "env.on_error"}
"""Settings that change nothing about what is learned, like all of eval, log and save."""


def differing(run: Record, other: Record) -> str:
    """The settings that make these two not two seeds of one thing; '' where they are that."""
    a, b = settings(run), settings(other)
    return ", ".join(f"{k} {a.get(k)} instead of {b.get(k)}" for k in sorted({*a, *b}) if a.get(k) != b.get(k))


def settings(run: Record) -> dict[str, Any]:
    """What decides how a run learns. What is younger than the run has its default; what is no more does not count."""
    config: Mapping[str, Any] = run.config
    try:
        usual = dict(records.flat(c.dump(c.resolve(run.algo))))
    except UserError:  # an algorithm from outside
        usual = dict(config)
    whole = {key: config.get(key, value) for key, value in usual.items()}
    deciding = {k: v for k, v in whole.items() if k not in ELSEWHERE and not k.startswith(("eval.", "log.", "save."))}
    if not by_length(whole):
        del deciding["steps"]
    return deciding


def by_length(config: Mapping[str, Any]) -> bool:
    """Whether something falls over the length of the run, so that a shorter run is no beginning of a longer one."""
    return (
        any(config.get(f"{what}_schedule") in ("linear", "cosine") for what in ("lr", "clip", "entropy"))
        or (config.get("epsilon_share", 0) > 0 and not config.get("noisy") and not config.get("epsilon_steps"))
        or (config.get("noise.std_end") is not None and not config.get("noise.steps"))
        or bool(config.get("priority"))
    )


# --- their files ---------------------------------------------------------------------------------------------------


def store(run: Found, curves: Path) -> None:
    """The run's small files; whatever else lay there (a note about the run before it) goes."""
    to = curves.joinpath(*run.group) / f"s{run.record.seed}"
    started = records.read(to).facts.get("started") if is_run(to) else None
    if started != run.started:
        shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True, exist_ok=True)
    facts = dict(run.record.facts)
    facts["command"] = ["kumite", *facts.get("command", ())[1:]]  # where it was installed says nothing
    evals, config = ((run.record.path / name).read_text(encoding="utf-8") for name in ("evals.csv", "config.yaml"))
    texts = {
        "evals.csv": evals[: evals.rfind("\n") + 1],  # the run may be writing its last row
        "config.yaml": placeless(config),
        "manifest.json": placeless(json.dumps(facts, indent=1) + "\n"),
    }
    for name, text in texts.items():
        (to / name).write_text(text, encoding="utf-8")


def placeless(text: str) -> str:
    """Nor where other things lay on that machine: of an absolute path its last part is left."""
    return re.sub(r"(?<=[\s\"'=,])/(?:[^/\s\"',]+/)*([^/\s\"',]+)", r"\1", text)


def collect(words: Sequence[str], runs: Path = ROOT / "runs", curves: Path = CURVES) -> list[str]:
    """Lines about what was copied and what was not kept."""
    here = stored(curves)
    kept, said = chosen([*here, *find(words, runs)])
    for gone in here:
        if not any(k.group == gone.group and k.record.seed == gone.record.seed for k in kept):
            shutil.rmtree(gone.record.path)
    for run in kept:
        if not run.stored:
            store(run, curves)
            said.append(f"kept: {run}")
    return said


if __name__ == "__main__":
    print("\n".join(collect(sys.argv[1:])))
    pages.write()
