"""The commands. Each is a frozen dataclass that tyro fills from the words after it, and a function that runs it.

Nothing heavy is imported before a command needs it. Whatever goes wrong leaves one line on stderr and an exit code:
2 the user's mistake, 1 a failure in the run, 128 + its number after a signal (130, 143), having saved.
"""

from __future__ import annotations

import contextlib
import csv
import difflib
import gc
import importlib
import os
import shlex
import signal
import sys
import textwrap
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from kumite.errors import RunError, UserError
from kumite.flags import HELP_FLAGS, parse, print_table, say

HELP = """\
usage: kumite COMMAND ...

{commands}

kumite COMMAND --help explains one;  kumite train ALGO ENV --help shows every parameter and the value that would run.
"""

TRAIN_HELP = """\
usage: kumite train ALGO ENV [--steps 1e6] [--seed 0] [--num-envs 8] [--any-parameter value ...]
       kumite train --file config.yaml

Train an agent. ALGO is a name from `kumite algos`, ENV an id from `kumite envs`: CartPole-v1, atari:Pong,
dmc:walker-walk, envpool:HalfCheetah-v4, module.path:make_env.

    kumite train ALGO ENV --help      every parameter, with the value that would run

  --steps INT          environment steps of the whole run
  --seed INT           decides everything random
  --num-envs INT       copies of the environment
  --device STR         auto | cpu | cuda | cuda:1 | mps
  --name STR           the run's name in its folder runs/<env>/<algo>/<name>-s<seed>
  --dir STR            where run folders are made
  --file PATH          a YAML file of parameters; the config.yaml of a run repeats it
  --track STR ...      where metrics go: csv tensorboard wandb swanlab
  --quiet              say nothing but errors
  --profile            say at the end where the time went

Numbers may be written 1e6, 100_000, 100k. What decides: the paper's defaults < what the algorithm's name means
< the preset of this environment < --file < flags.
"""


# --- the commands' words -------------------------------------------------------------------------------------------

RUN = tyro.conf.arg(metavar="RUN")


@dataclass(frozen=True)
class Resume:
    """Continue a run from its newest checkpoint, as if it had never stopped."""

    run: tyro.conf.Positional[Annotated[str, RUN]]
    """The run's folder, or a part of its name that only one run under --dir has."""
    steps: int | None = None
    """Environment steps of the whole run, if it shall become longer."""
    quiet: bool = False
    """Say nothing but errors."""
    dir: str = "runs"
    """Where runs are looked for."""


@dataclass(frozen=True)
class Eval:
    """Play episodes with a trained agent and print what they return."""

    run: tyro.conf.Positional[Annotated[str, RUN]]
    """The run's folder, or a part of its name that only one run under --dir has."""
    episodes: int = 10
    """Episodes to play."""
    checkpoint: str = "best"
    """best | last | the step of a checkpoint."""
    seed: int = 0
    """Decides the episodes, which are none of those that chose the best checkpoint."""
    video: bool = False
    """Save a video in the run's folder."""
    dir: str = "runs"
    """Where runs are looked for."""


@dataclass(frozen=True)
class Play:
    """Watch a trained agent: in a window, or as a video file where there is no display."""

    run: tyro.conf.Positional[Annotated[str, RUN]]
    """The run's folder, or a part of its name that only one run under --dir has."""
    episodes: int = 1
    """Episodes to play."""
    checkpoint: str = "best"
    """best | last | the step of a checkpoint."""
    seed: int = 0
    """Decides the episodes."""
    dir: str = "runs"
    """Where runs are looked for."""


@dataclass(frozen=True)
class Algos:
    """The algorithms: actions they can do, memory, and the paper."""


@dataclass(frozen=True)
class Envs:
    """The families of environments, and what installs them."""


@dataclass(frozen=True)
class Presets:
    """The presets; `presets show ALGO ENV [--diff]` gives the values that would run, with their sources."""

    words: tyro.conf.Positional[Annotated[tuple[str, ...], tyro.conf.arg(metavar="[show ALGO ENV]")]] = ()
    """Nothing, or: show ALGO ENV."""
    diff: bool = False
    """Only what differs from the paper's defaults."""


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """For imports: they make half a million objects that stay to the end. Python would look for garbage among them
    meanwhile, later on and once more before it exits, which takes longer than all imports but torch's.
    """
    if "torch" in sys.modules:  # a command among others of its process
        yield
        return
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


# --- running them --------------------------------------------------------------------------------------------------


def train(words: list[str]) -> int:
    algo, env, file, flags = split_train(words)
    if not algo and not file and any(word in HELP_FLAGS for word in words):
        print(TRAIN_HELP, end="")
        return 0
    with undisturbed():
        import kumite.agent  # noqa: F401  and with it torch
        from kumite import config as c

    layer = c.load_yaml(file) if file else {}
    algo, env = named(algo, env, layer, file)
    try:
        kind, default = c.run_type(algo), c.resolve(algo, env, layer)
    except UserError as error:
        raise UserError(f"{error} (in {file})" if file else str(error)) from None
    about = f"{algo} on {env}. The values shown are those that would run; they come from {_voices(algo, env, file)}."
    parsed, given = parse(kind, flags, f"kumite train {algo} {env}", default=default, description=about)
    config = c.resolve(algo, env, layer, {key: _at(parsed, key) for key in given})
    from kumite.agent import Agent

    return learn(Agent(env, algo=algo, config=config))


def _voices(algo: str, env: str, file: str) -> str:
    from kumite.config import presets

    found = ["the paper's defaults", *(f"a preset ({b.source})" for b in presets(algo) if b.matches(env))]
    return " < ".join(found + ([file] if file else []))


def resume(words: list[str]) -> int:
    args, _ = parse(Resume, words, "kumite resume")
    from kumite.agent import resume as again
    from kumite.runs import find

    agent = again(find(args.run, args.dir), steps=args.steps, quiet=args.quiet or None)
    if agent.env_step >= agent.config.steps and not agent.config.quiet:
        print(f"step {agent.env_step:,} of {agent.config.steps:,} is reached; --steps makes a run longer")
    return learn(agent)


def evaluate(words: list[str]) -> int:
    args, _ = parse(Eval, words, "kumite eval")
    agent, path = load(args)
    step = agent.env_step
    video = path / "videos" / f"eval-{step}-s{args.seed}.mp4" if args.video else None
    result = agent.evaluate(episodes=args.episodes, seed=args.seed, video_path=video)
    print(f"{path}, {args.checkpoint} checkpoint (step {step:,})")
    print(f"  return    {pair(result.mean, result.std)}  {ends(result.returns)}  {len(result.returns)} episodes")
    print(f"  length    {result.mean_length:.5g}  {ends(result.lengths)}")
    if then := trained(path, step):
        low, high = float(then["min"]), float(then["max"])
        mean = pair(float(then["mean"]), float(then["std"]))
        print(f"  training  {mean}  {ends([low, high])}  {then['episodes']} episodes, measured at this step")
    if video:
        print(f"  video     {video}")
    return 0


def pair(mean: float, std: float) -> str:
    return f"{mean:.5g} ± {std:.4g}"


def ends(values: Sequence[float]) -> str:
    return f"[{min(values):.5g} to {max(values):.5g}]"


def play(words: list[str]) -> int:
    args, _ = parse(Play, words, "kumite play")
    agent, _ = load(args)
    if file := agent.play(episodes=args.episodes, seed=args.seed):
        print(file)
    return 0


def algos(words: list[str]) -> int:
    parse(Algos, words, "kumite algos")
    from kumite.algos import ROWS, algorithm

    def line(name: str) -> tuple[str, ...]:
        try:
            home = algorithm(name)
        except ImportError as e:
            return (name, "-", "-", f"cannot be loaded: {e}")
        actions = ", ".join(getattr(home, "actions", ()))
        return (name, actions, "yes" if getattr(home, "memory", False) else "no", ROWS[name].paper)

    print_table(("name", "actions", "memory", "paper"), map(line, ROWS))
    return 0


def envs(words: list[str]) -> int:
    parse(Envs, words, "kumite envs")
    from kumite.envs import listing

    rows = ((name, "installed" if here else how, " ".join(ids[:6])) for name, here, how, ids in listing())
    print_table(("family", "", "for example"), rows)
    return 0


def presets(words: list[str]) -> int:
    args, _ = parse(Presets, words, "kumite presets")
    if not args.words and not args.diff:
        return list_presets()
    if len(args.words) != 3 or args.words[0] != "show":
        raise UserError("say: kumite presets, or: kumite presets show ALGO ENV [--diff]")
    return show_preset(args.words[1], args.words[2], args.diff)


def list_presets() -> int:
    from kumite.algos import ROWS
    from kumite.config import presets as blocks

    rows = ((a, textwrap.shorten(b.pattern, 60, placeholder=" ..."), b.source) for a in ROWS for b in blocks(a))
    print_table(("algo", "environments", "source"), rows)
    return 0


def show_preset(algo: str, env: str, only: bool) -> int:
    from kumite import config as c

    config, base, sources = c.resolve(algo, env), c.run_type(algo)(), c.origins(algo, env)
    values = {key: now for key, (_, now) in c.diff(config, base).items()} if only else c.flat(config)
    defaults = c.flat(base)
    rows = ((key, say(now), say(defaults[key]), sources.get(key, "")) for key, now in values.items())
    print_table(("parameter", "value", "default", "source"), rows)
    if not any(block.matches(env) for block in c.presets(algo)):
        print(f"kumite: no preset of {algo} is for '{env}'; these are the algorithm's own numbers", file=sys.stderr)
    return 0


@dataclass(frozen=True)
class Command:
    home: Callable[[list[str]], int] | str
    """The function, or module:function that is loaded when the command is given."""
    about: str

    def run(self, words: list[str]) -> int:
        if callable(self.home):
            return self.home(words)
        module, _, name = self.home.partition(":")
        return int(getattr(importlib.import_module(module), name)(words))


COMMANDS: dict[str, Command] = {
    "train": Command(train, "train an agent: kumite train ppo CartPole-v1"),
    "resume": Command(resume, "continue a run exactly where it stopped"),
    "eval": Command(evaluate, "play episodes with a trained agent, print what they return"),
    "play": Command(play, "watch a trained agent"),
    "bench": Command("kumite.lab.bench:bench", "many algorithms x environments x seeds: kumite bench readme --jobs 2"),
    "plot": Command("kumite.lab.plot:main", "draw many runs: curves, or statistics over environments"),
    "report": Command("kumite.lab.report:main", "one HTML page about many runs: tables, curves, settings, videos"),
    "tune": Command("kumite.lab.tune:main", "search good numbers for an algorithm on an environment"),
    "algos": Command(algos, "list the algorithms"),
    "envs": Command(envs, "list the families of environments"),
    "presets": Command(presets, "list the presets, or show the values for one environment"),
}


# --- training and what can happen to it ----------------------------------------------------------------------------


def learn(agent: Any) -> int:
    """Run it to its end; whatever ends it early says where the last good checkpoint is."""
    try:
        agent.learn()
    except KeyboardInterrupt as e:
        print(f"kumite: interrupted{agent._kept()}", file=sys.stderr)
        return 128 + int(getattr(e, "signal", None) or signal.SIGINT)
    except (UserError, RunError):
        raise
    except Exception as e:
        traceback.print_exc()
        return complain(f"{type(e).__name__}: {e}{agent._kept()}", 1)
    if not agent.config.quiet:
        print(f"{agent.path}\n  kumite eval {shlex.quote(os.fspath(agent.path))}")
    return 0


# --- finished and unfinished runs ----------------------------------------------------------------------------------


def load(args: Eval | Play) -> tuple[Any, Path]:
    from kumite.agent import load as open_run
    from kumite.config import coerce
    from kumite.runs import find

    if args.episodes < 1:
        raise UserError(f"--episodes: expected at least 1, got {args.episodes}")
    which = args.checkpoint
    if which not in ("best", "last"):
        which = str(coerce(which, int, "--checkpoint (best, last, or a step)"))
    path = find(args.run, args.dir)
    return open_run(path, checkpoint=which), path


def trained(path: Path, step: int) -> Mapping[str, str]:
    """What training itself measured at this step, if it did."""
    if not (path / "evals.csv").is_file():
        return {}
    with (path / "evals.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["env_step"] == str(step) and row.get("mean_length")]
    return rows[-1] if rows else {}


# --- names among the words ---------------------------------------------------------------------------------------


SWITCHES = ("--quiet", "--no-quiet", "--profile", "--no-profile")
"""Flags that may stand without a value before the names."""


def split_train(words: list[str]) -> tuple[str, str, str, list[str]]:
    """ALGO, ENV, the file of --file, and the flags. The names come first, or between flags where it is clear."""
    rest, file = take_file(words)
    names = [word for word, _ in zip(rest, range(2), strict=False)]
    names = names[: next((i for i, word in enumerate(names) if word.startswith("-")), len(names))]
    if names:
        return names[0], names[1] if len(names) > 1 else "", file, rest[len(names) :]
    from kumite.algos import ROWS

    for i, word in enumerate(rest):
        before = rest[i - 1] if i else ""
        free = not before.startswith("-") or "=" in before or before in SWITCHES
        if word.lower() in ROWS and free:
            pair = 2 if len(rest) > i + 1 and not rest[i + 1].startswith("-") else 1
            return word, rest[i + 1] if pair == 2 else "", file, rest[:i] + rest[i + pair :]
    return "", "", file, rest


def take_file(words: list[str]) -> tuple[list[str], str]:
    rest, file, i = [], "", 0
    while i < len(words):
        if words[i] == "--file":
            if i + 1 == len(words):
                raise UserError("--file: expected the path of a YAML file")
            file, i = words[i + 1], i + 2
            continue
        if words[i].startswith("--file="):
            file = words[i].partition("=")[2]
        else:
            rest.append(words[i])
        i += 1
    return rest, file


def named(algo: str, env: str, layer: Mapping[str, Any], file: str) -> tuple[str, str]:
    """Which algorithm on which environment, from the command line and the file."""
    from kumite.algos import ROWS, row

    if env.lower() in ROWS and algo.lower() not in ROWS:
        raise UserError(f"the algorithm comes first: kumite train {env} {algo}")
    if algo:
        row(algo)
    in_file = str(layer.get("algo", "") or "")
    if algo and in_file and algo.lower() != in_file.lower():
        raise UserError(f"'{file}' holds the numbers of '{in_file}', not of '{algo}'")
    algo, env = algo or in_file, env or str(layer.get("env_id", "") or "")
    if not algo:
        raise UserError("which algorithm? kumite train ALGO ENV, for example: kumite train ppo CartPole-v1")
    row(algo)
    if not env:
        raise UserError(f"which environment? for example: kumite train {algo} CartPole-v1")
    return algo.lower(), env


def _at(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = getattr(config, part)
    return config


# --- talking -------------------------------------------------------------------------------------------------------


def _line(text: str) -> str:
    return " ".join(text.split())


def complain(text: str, code: int) -> int:
    print(f"kumite: {_line(text)}", file=sys.stderr)
    return code


@contextlib.contextmanager
def talking(quiet: bool) -> Iterator[None]:
    """kumite's warnings take one line each; quiet: none."""
    with warnings.catch_warnings():
        if quiet:
            warnings.simplefilter("ignore")
        usual = warnings.showwarning

        def show(message: Any, category: Any, *where: Any, **more: Any) -> None:
            if category.__module__.startswith("kumite"):
                print(f"kumite: {_line(str(message))}", file=sys.stderr)
            else:
                usual(message, category, *where, **more)

        warnings.showwarning = show
        yield


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        with talking("--quiet" in words):
            return dispatch(words)
    except UserError as e:
        return complain(str(e), 2)
    except RunError as e:
        return complain(str(e), 1)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output left: kumite algos | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as e:  # nowhere to write to: a log on a full disk
        return complain(str(e), 1)
    except SystemExit as e:
        return e.code if isinstance(e.code, int) else 0 if e.code is None else complain(str(e.code), 2)


def dispatch(words: list[str]) -> int:
    if not words or words[0] in (*HELP_FLAGS, "help"):
        commands = "\n".join(f"  {name:<9} {command.about}" for name, command in COMMANDS.items())
        print(HELP.format(commands=commands), end="")
        return 0 if words else 2
    if words[0] in ("--version", "version"):
        from kumite import __version__

        print(f"kumite {__version__}")
        return 0
    if words[0] not in COMMANDS:
        near = difflib.get_close_matches(words[0], COMMANDS, n=1, cutoff=0.5)
        hint = f"; did you mean '{near[0]}'?" if near else f" (commands: {', '.join(COMMANDS)})"
        raise UserError(f"unknown command '{words[0]}'{hint}")
    return COMMANDS[words[0]].run(words[1:])


if __name__ == "__main__":
    sys.exit(main())
