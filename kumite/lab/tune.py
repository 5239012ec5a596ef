"""`kumite tune`: good numbers for an algorithm on an environment, found by Optuna.

A trial is one set of numbers, tried as runs of its own (one per seed, one after the other) that are processes of the
command line, like those of `kumite bench`. Its score after each evaluation goes to the pruner, which ends trials that
fall behind. A search's folder, <dir>/tuning/<name>/, holds

    journal.log     what Optuna knows: every trial, its numbers, its scores; the same command goes on from there
    runs/, logs/    the trials' run folders (t0007-s0: trial 7, seed 0), and what each run said
    best.yaml       the best numbers as a preset block, for `kumite train ALGO ENV --file`
    lock            held by the search at work
"""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
import yaml

from kumite import config as c
from kumite.errors import RunError, UserError
from kumite.flags import HELP_FLAGS, closest_flag, flags_of, parse, print_table
from kumite.lab import job as guard
from kumite.lab import space
from kumite.lab.journal import Journal, calm, library, words
from kumite.lab.launch import Stopped, Task, orphans
from kumite.lab.study import Job
from kumite.lab.trials import Board, Trial, Tuning
from kumite.runs import Stop

RUN = {"track": ("csv",), "save.every": -1, "save.keep": 1}
"""What a trial's runs are told unless the user says otherwise."""
NEWEST = 3  # evaluations behind the score `last`


@dataclass(frozen=True)
class Search:
    """What makes one search the same as another; the journal remembers it."""

    algo: str
    env: str
    space: Mapping[str, str]
    """Parameter -> what may be chosen, as text."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Parameters that are the same in every trial."""
    seeds: int = 1
    seed: int = 0
    score: str = "last"
    pruner: str = "median"
    sampler: str = "tpe"


@dataclass(frozen=True)
class Result:
    """What a search has found so far."""

    score: float
    """The best trial's: its mean return over its last evaluations (or all of them), and over its seeds."""
    parameters: dict[str, Any]
    """Its numbers, and those that were given."""
    trial: int
    """Its number."""
    untuned: float | None
    """The score of the numbers that run without tuning, where they are in the space and got to their end."""
    trials: dict[str, int]
    """How many finished, were pruned, failed."""
    file: Path
    """The preset block, for `kumite train ALGO ENV --file`."""


def tune(
    algo: str,
    env: str,
    trials: int = 50,
    jobs: int = 0,
    steps: int | None = None,
    seeds: int = 1,
    seed: int = 0,
    search: Mapping[str, Any] | str | Path | None = None,
    score: str = "last",
    pruner: str = "median",
    sampler: str = "tpe",
    name: str = "",
    dir: str | Path = "runs",
    quiet: bool = True,
    **parameters: Any,
) -> Result:
    """Try numbers until there are `trials` of them in the search's folder, `jobs` at once (0 = as many as there are
    cores for), and write the best as a preset block.

    `search`: what may be chosen, {"lr": "1e-5..1e-2", "gamma": [0.9, 0.99]} or a file of it; None = the default space
    of the algorithm. `parameters` are the same in every trial. After Ctrl-C or SIGTERM everything is kept and
    `Stopped` (a KeyboardInterrupt) is raised; the same call goes on from there.
    """
    said = space.load(search) if isinstance(search, (str, Path)) else search
    given = parameters | ({} if steps is None else {"steps": steps})
    hunt = Hunt.of(algo, env, said, given, seeds, seed, score, pruner, sampler, name, Path(dir))
    return hunt.run(trials, jobs, quiet)


# --- what is searched ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hunt:
    """A search that has been checked: its space, its folder, and how its trials run."""

    search: Search
    space: space.Space
    base: Any
    """The config that runs without tuning."""
    folder: Path

    @classmethod
    def of(
        cls,
        algo: str,
        env: str,
        said: Mapping[str, Any] | None,
        parameters: Mapping[str, Any],
        seeds: int,
        seed: int,
        score: str,
        pruner: str,
        sampler: str,
        name: str,
        dir: Path,
    ) -> Hunt:
        """Whatever is wrong is said here, before anything is written."""
        for word, value, allowed in (
            ("score", score, ("last", "area")),
            ("pruner", pruner, ("median", "hyperband", "none")),
            ("sampler", sampler, ("tpe", "random")),
        ):
            c.coerce(value, Literal[allowed], word)
        if seeds < 1:
            raise UserError(f"seeds: expected at least 1, got {seeds}")
        algo = algo.lower()
        table = c.keys(c.run_type(algo))
        given = {key: c.coerce(value, table[key], key) for key, value in c.flatten(parameters, table).items()}
        for key in given:
            if key in ("seed", "name", "dir", "quiet"):
                raise UserError(f"{key}: the search decides it for each of its runs")
        base = c.resolve(algo, env, None, RUN | given)
        chosen = space.default(algo, base, without=given) if said is None else space.read(algo, said)
        for key in given:
            if key in chosen:
                raise UserError(f"{key} is given and searched at once; leave out one of them")
        for key, value in space.corners(chosen):
            try:
                c.resolve(algo, env, None, RUN | given | {key: value})
            except UserError as e:
                raise UserError(f"tune.{e}" if str(e).startswith(f"{key}:") else f"tune.{key}: {e}") from None
        if c.intervals(base).eval == 0:
            raise UserError("eval.every: a search lives on evaluations; leave it at 0, or say how many steps")
        name = name or f"{algo}-{env}".replace("/", "-").replace(":", "-")
        if name in (".", "..") or any(mark in name for mark in "/\\\0"):
            raise UserError(f"name: expected the plain name of a folder, got {name!r}")
        words = {key: str(dimension) for key, dimension in chosen.items()}
        plain = {key: list(v) if isinstance(v, tuple) else v for key, v in given.items()}
        search = Search(algo, env, words, plain, seeds, seed, score, pruner, sampler)
        return cls(search, chosen, base, dir / "tuning" / name)

    @property
    def evaluations(self) -> int:
        """How many a run makes."""
        return math.ceil(self.base.steps / c.intervals(self.base).eval)

    def job(self, number: int, values: Mapping[str, Any], seed: int) -> Job:
        s = self.search
        said = {**RUN, **s.parameters, **values}
        config = c.resolve(s.algo, s.env, None, said)
        name = f"t{number:04d}"
        place = str(self.folder / "runs")
        return Job(s.algo, s.env, seed, name, said, replace(config, seed=seed, name=name, dir=place))

    def task(self, job: Job) -> Task:
        return Task(job, self.folder / "logs" / f"{job.folder.name}.log")

    def usual(self) -> dict[str, Any]:
        """The numbers that run without tuning."""
        flat = c.flat(self.base)
        return {key: flat[key] for key in self.space}

    def score(self, means: Sequence[float]) -> float:
        counted = means[-NEWEST:] if self.search.score == "last" else means
        return sum(counted) / len(counted)

    def run(self, trials: int, jobs: int, quiet: bool) -> Result:
        for name, number, least in (("trials", trials, 1), ("jobs", jobs, 0)):
            if number < least:
                raise UserError(f"{name}: expected at least {least}, got {number}")
        optuna = library()
        with contextlib.ExitStack() as stack:
            stack.enter_context(calm(optuna))
            stack.enter_context(self._locked())
            journal = Journal(self, optuna)
            board = Board(self, journal, trials, quiet)
            stack.callback(board.close)
            stop = stack.enter_context(Stop().listening())
            under_way = [Trial(self, t) for t in journal.under_way()]
            orphans([trial.task for trial in under_way if trial.task], board, stop)
            Tuning(self, journal, under_way, trials, jobs, board, stop).go()
        if stop.signal is not None:
            raise Stopped(stop.signal)
        return self._result(journal)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            held = guard.lock(self.folder / "lock")
        except OSError as error:
            raise UserError(f"cannot write to {self.folder}: {error.strerror}; choose another --dir") from None
        if held is None:
            owner = guard.holder(self.folder / "lock")
            raise UserError(f"{self.folder} is at work in another process ({owner}); wait, or choose another --name")
        with held:
            yield

    def _result(self, journal: Journal) -> Result:
        counts = journal.counts()
        best = journal.best()
        if best is None:
            said = next(iter(journal.errors()), "")
            why = f"; the first to fail said: {said}" if said else ""
            raise RunError(f"no trial of {self.folder} finished ({words(counts)}){why}")
        first = journal.trials()[0]
        complete = first.state.name == "COMPLETE" and first.user_attrs.get("untuned")
        untuned = float(first.value) if complete else None
        numbers = Trial(self, best).values
        values = {"steps": self.base.steps, **self.search.parameters, **numbers}
        result = Result(best.value, values, best.number, untuned, counts, self.folder / "best.yaml")
        self._write(result)
        return result

    def _write(self, result: Result) -> None:
        """The whole block, or what stood there before."""
        temporary = result.file.with_name(".best.yaml")
        temporary.write_text(self.block(result), encoding="utf-8")
        os.replace(temporary, result.file)

    def block(self, result: Result) -> str:
        """A preset block: what was found, and where it comes from."""
        s, total = self.search, sum(result.trials.values())
        seeds = f"seed {s.seed}" if s.seeds == 1 else f"seeds {s.seed} to {s.seed + s.seeds - 1}"
        over = f"its last {NEWEST} evaluations" if s.score == "last" else "all its evaluations"
        source = (
            f"tuned by kumite tune {s.algo} {s.env} ({self.folder}), {time.strftime('%Y-%m-%d')}: trial {result.trial},"
            f" the best of {total} ({words(result.trials)}) of {self.base.steps:,} steps, {seeds}; mean return"
            f" {result.score:.5g} over {over}"
        )
        if result.untuned is not None:
            source += f" ({result.untuned:.5g} with the numbers that run without tuning)"
        indent = "    "
        said = textwrap.fill(source, 110, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
        values = yaml.safe_dump(result.parameters, sort_keys=False, allow_unicode=True)
        head = yaml.safe_dump({s.env: 0}).rpartition(" ")[0]
        return f"{head}\n  source: >-\n{said}\n{textwrap.indent(values, '  ')}"


# --- the command -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tune:
    """Search good numbers for an algorithm on an environment. The same command again goes on where it stopped.

    --tune.PARAMETER LOW..HIGH (or: A B C) says what is searched; without it the algorithm's default space is. Every
    other flag is a parameter that all trials share (--num-envs 16)."""

    algo: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="ALGO")]]
    """A name from `kumite algos`."""
    env: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="ENV")]]
    """The environment's id."""
    trials: int = 50
    """Sets of numbers to try, those of earlier calls included."""
    jobs: int = 0
    """Runs at once; 0 = as many as there are cores for their threads."""
    steps: int | None = None
    """Environment steps of every run; none = what the preset says."""
    seeds: int = 1
    """Runs per trial, one after the other; their mean counts."""
    seed: int = 0
    """Decides the search, and is the first seed of its runs."""
    space: str = ""
    """A YAML file of what is searched: a line per parameter, as in `--tune.`."""
    score: Literal["last", "area"] = "last"
    """last: mean return of the last 3 evaluations; area: of all evaluations."""
    pruner: Literal["median", "hyperband", "none"] = "median"
    """Which trials are ended early."""
    sampler: Literal["tpe", "random"] = "tpe"
    """Which numbers come next."""
    name: str = ""
    """The search's name; empty = algorithm and environment."""
    dir: str = "runs"
    """Where its folder tuning/<name> is made."""
    dry_run: bool = False
    """Only show what would be searched."""
    quiet: bool = False
    """Say nothing but errors."""


def main(given_words: list[str]) -> int:
    ours, searched, parameters = split(given_words)
    args, _ = parse(Tune, ours, "kumite tune")
    check_flags(args.algo, parameters)
    said: dict[str, Any] | None = space.load(args.space) if args.space else None
    if searched:
        said = {**(said or {}), **searched}
    given = parameters | ({} if args.steps is None else {"steps": args.steps})
    more = (args.seeds, args.seed, args.score, args.pruner, args.sampler, args.name, Path(args.dir))
    hunt = Hunt.of(args.algo, args.env, said, given, *more)
    if args.dry_run:
        usual = c.flat(hunt.base)
        print_table(
            ("parameter", "searched", "without tuning"), [(k, str(d), str(usual[k])) for k, d in hunt.space.items()]
        )
        print(f"{hunt.folder}: {args.trials} trials of {hunt.base.steps:,} steps, {hunt.evaluations} evaluations each")
        return 0
    try:
        result = hunt.run(args.trials, args.jobs, args.quiet)
    except Stopped as e:
        print(f"kumite: {e}, everything is kept; the same command goes on", file=sys.stderr)
        return 128 + e.signal
    if not args.quiet:
        file = shlex.quote(str(result.file))
        print(f"\n{result.file}\n\n{hunt.block(result)}\n  kumite train {args.algo} {args.env} --file {file}")
    return 0


def split(words: list[str]) -> tuple[list[str], dict[str, Any], dict[str, Any]]:
    """The command's own words; what is searched; parameters of the runs, with their values as text."""
    known = flags_of(Tune)
    ours: list[str] = []
    searched: dict[str, Any] = {}
    parameters: dict[str, Any] = {}
    rest = list(words)
    while rest:
        text = rest.pop(0)
        flag, equals, value = text.partition("=")
        flag = flag.replace("_", "-")
        if not flag.startswith("--") or flag in known or flag in HELP_FLAGS:
            ours.append(text)
            continue
        values = [value] if equals else []
        while not equals and rest and not rest[0].startswith("--"):
            values.append(rest.pop(0))
        name = flag[2:].replace("-", "_")
        if name.startswith("tune."):
            if not values:
                raise UserError(f"{flag}: expected LOW..HIGH, or choices")
            searched[name.removeprefix("tune.")] = " ".join(values)
            continue
        head, _, last = name.rpartition(".")
        if not values and last.startswith("no_"):
            name, values = f"{head}.{last[3:]}".strip("."), ["false"]
        parameters[name] = values[0] if len(values) == 1 else values or "true"
    return ours, searched, parameters


def check_flags(algo: str, parameters: Mapping[str, Any]) -> None:
    """A flag that is neither the command's nor the algorithm's is a slip of the pen."""
    keys = c.keys(c.run_type(algo))
    known = {f"--{key.replace('_', '-')}": (key, True) for key in keys} | flags_of(Tune)
    for name in parameters:
        if c.ALIASES.get(name, name) not in keys:
            flag = f"--{name.replace('_', '-')}"
            raise UserError(f"unknown flag '{flag}'{closest_flag(flag, known)}")
