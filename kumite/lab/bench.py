"""The command `kumite bench`: which study the words mean."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro

from kumite import config as c
from kumite.errors import UserError
from kumite.flags import HELP_FLAGS, closest_flag, flags_of, parse, print_table
from kumite.lab import launch, progress
from kumite.lab import study as studies
from kumite.lab.study import Study


@dataclass(frozen=True)
class Bench:
    """Many runs: algorithms x environments x seeds, each in a process of its own. What is finished is skipped, what was
    interrupted goes on where it stopped. Every other flag is a parameter of the runs (--lr 1e-3), or of the runs of one
    algorithm (--sac.lr 1e-3)."""

    study: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="[STUDY]")]] = ""
    """A YAML file, the folder of a study that was begun, or one that comes with kumite (--list)."""
    algos: tuple[str, ...] = ()
    """Names from `kumite algos`."""
    envs: tuple[str, ...] = ()
    """Ids of environments."""
    seeds: str = ""
    """How many (5 = 0 to 4), or which: 3 4 5; a single one as `7,`."""
    steps: int | None = None
    """Environment steps of every run; none = what the study or the presets say."""
    name: str = ""
    """The name of the study and of its runs."""
    dir: str = ""
    """Where run folders are made."""
    jobs: int = 0
    """Runs at once; 0 = as many as there are cores for their threads."""
    retries: int = 0
    """How often a run that failed is resumed."""
    backend: Literal["local", "ray"] = "local"
    """local, or ray: the nodes of a Ray cluster."""
    dry_run: bool = False
    """Only list the runs and what would be done with each."""
    list: bool = False
    """List the studies that come with kumite."""
    quiet: bool = False
    """Say nothing but errors."""


def bench(words: list[str]) -> int:
    ours, parameters = split(words)
    args, _ = parse(Bench, ours, "kumite bench")
    if args.list:
        found = [(name, studies.load(name)) for name in studies.shipped()]
        print_table(("study", "runs", ""), [(name, str(len(s.jobs())), s.about) for name, s in found])
        return 0
    study = chosen(args, parameters)
    if args.dry_run:
        rows = [(str(j.folder), f"{j.config.steps:,}", str(progress.state(j))) for j in study.jobs()]
        print_table(("run", "steps", "would be"), rows)
        return 0
    try:
        tasks = launch.run(study, args.jobs, args.retries, args.quiet, args.backend)
    except launch.Stopped as e:
        told(e.tasks)
        again = f"go on with: kumite bench {shlex.quote(str(study.folder))}"
        print(f"kumite: {e}, the runs are saved; {again}", file=sys.stderr)
        return 128 + e.signal
    return told(tasks)


def told(tasks: Sequence[launch.Task]) -> int:
    """What failed, and the exit code."""
    failed = [t for t in tasks if t.state == "failed"]
    for task in failed:
        print(f"kumite: {task.job.label} failed: {task.error} (log: {task.log})", file=sys.stderr)
    return 1 if failed else 0


def split(words: list[str]) -> tuple[list[str], dict[str, Any]]:
    """The words of the command itself, and the parameters of the runs with their values as text."""
    known = flags_of(Bench)
    ours: list[str] = []
    parameters: dict[str, Any] = {}
    rest = list(words)
    while rest:
        text = rest.pop(0)
        flag, equals, value = text.partition("=")
        values = [value] if equals else []
        while text.startswith("--") and not equals and rest and not rest[0].startswith("--"):
            values.append(rest.pop(0))
        if not text.startswith("--") or f"--{dashed(flag[2:])}" in known or text in HELP_FLAGS:
            if flag == "--seeds" and values:  # one word, so that `7,` stays what it is
                text, values = f"--seeds={' '.join(values)}", []
            ours += [text, *([] if equals else values)]
            continue
        name = flag[2:].replace("-", "_")
        head, _, last = name.rpartition(".")
        if not values and last.startswith("no_"):
            name, values = f"{head}.{last[3:]}".strip("."), ["false"]
        parameters[name] = values[0] if len(values) == 1 else values or "true"
    return ours, parameters


def dashed(name: str) -> str:
    return name.replace("_", "-")


def chosen(args: Bench, parameters: Mapping[str, Any]) -> Study:
    """The study of these words: a file's or a shipped one, with what the flags say instead."""
    study = studies.load(args.study) if args.study else Study((), ())
    study = studies.changed(
        study,
        algos=studies.unique(a.lower() for a in args.algos),
        envs=studies.unique(args.envs),
        seeds=studies.read_seeds(args.seeds) if args.seeds else (),
        name=args.name,
        dir=args.dir,
    )
    known_to_some(study, parameters)
    if not study.algos and not study.envs:
        raise UserError(
            f"which study? kumite bench STUDY (a YAML file, or one of: {', '.join(studies.shipped())}), or with flags:"
            " kumite bench --algos ppo sac --envs CartPole-v1 --seeds 3"
        )
    return studies.flags(study, dict(parameters) | ({} if args.steps is None else {"steps": args.steps}))


def known_to_some(study: Study, parameters: Mapping[str, Any]) -> None:
    """A flag that is neither the command's nor any algorithm's is a slip of the pen."""
    known: dict[str, Any] = {}
    for algo in study.algos:
        keys = c.keys(c.run_type(algo))
        known |= dict.fromkeys(keys) | {f"{algo}.{key}": None for key in keys}
    flags = {f"--{dashed(key)}": (key, True) for key in known if key not in studies.OWN} | flags_of(Bench)
    for name in parameters:
        if name in studies.OWN:
            raise UserError(f"unknown flag '--{name}'; did you mean '--{studies.OWN[name]}'?")
        if name not in known:
            raise UserError(f"unknown flag '--{dashed(name)}'{closest_flag(f'--{dashed(name)}', flags)}")
