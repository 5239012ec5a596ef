"""What a study is: algorithms x environments x seeds (x variants), and the numbers each run gets.

A study comes from a YAML file, from flags, or from Python; `Study.jobs` spells it out as one Job per run. What decides
a number: the presets < `parameters` < the variant < the `where` blocks, the last one first < flags.
"""

from __future__ import annotations

import dataclasses
import importlib.resources
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from kumite import config as c
from kumite.errors import UserError, nearest

KEYS = ("about", "name", "algos", "envs", "seeds", "steps", "parameters", "variants", "where", "skip", "dir")
"""What a study's file may say."""
OWN = {"seed": "seeds", "name": "name", "dir": "dir"}
"""Settings of a run that the study decides."""
SELECTORS = ("algos", "envs", "variants")


class StudyWarning(UserWarning):
    """A study says something that has no effect."""


@dataclass(frozen=True)
class Block:
    """Parameters for some of the runs; nothing said = all of them."""

    values: Mapping[str, Any] = field(default_factory=dict)
    algos: tuple[str, ...] = ()
    envs: str = ""
    """Patterns on environment names, as in presets: joined by |, a leading ! takes names out again."""
    variants: tuple[str, ...] = ()

    def matches(self, algo: str, env: str, variant: str) -> bool:
        named = not self.envs or c.Block(self.envs, "", {}).matches(env)
        return named and (not self.algos or algo in self.algos) and (not self.variants or variant in self.variants)

    def dump(self) -> dict[str, Any]:
        chosen = {"algos": list(self.algos), "envs": self.envs, "variants": list(self.variants)}
        return {key: value for key, value in chosen.items() if value} | _plain(self.values)


@dataclass(frozen=True)
class Job:
    """One run of a study."""

    algo: str
    env: str
    seed: int
    name: str
    """The run's name, without its seed."""
    values: Mapping[str, Any]
    """What the study says about this run: {dotted name: value}."""
    config: Any
    """The numbers it will run with."""

    @property
    def folder(self) -> Path:
        """Where `kumite train` puts it."""
        return Path(self.config.dir) / self.env.replace("/", "-") / self.algo / f"{self.name}-s{self.seed}"

    @property
    def label(self) -> str:
        return f"{self.env} {self.algo} {self.name}-s{self.seed}"

    def train(self) -> list[str]:
        """The words after `kumite` that begin it."""
        given = {**self.values, "seed": self.seed, "name": self.name, "dir": self.config.dir}
        return ["train", self.algo, self.env, *(f"--{key.replace('_', '-')}={word(x)}" for key, x in given.items())]

    def resume(self) -> list[str]:
        """The words that continue it."""
        return ["resume", str(self.folder), f"--steps={self.config.steps}"]


def word(value: Any) -> str:
    """A value as one word of a command line."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ",".join(map(word, value))
    return str(c.read_text(value)) if isinstance(value, Mapping) else str(value)


@dataclass(frozen=True)
class Study:
    """Algorithms x environments x seeds x variants."""

    algos: tuple[str, ...]
    envs: tuple[str, ...]
    seeds: tuple[int, ...] = (0, 1, 2)
    name: str = "bench"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """For every run; dotted or nested, as in a run's file."""
    variants: Mapping[str, Block] = field(default_factory=dict)
    """Name -> what is different; every run is made once per variant. None = one nameless variant."""
    where: tuple[Block, ...] = ()
    """Parameters for some of the runs; the last block that names a number decides it."""
    skip: tuple[Block, ...] = ()
    """Combinations that are not run: an algorithm that cannot do an environment's actions."""
    dir: str = "runs"
    """Where run folders are made."""
    about: str = ""

    @property
    def folder(self) -> Path:
        """Where the study keeps its resolved file, its lock and the output of its runs."""
        return Path(self.dir) / "studies" / self.name

    def jobs(self) -> list[Job]:
        """Every run, all with the first seed first. Whatever is wrong with any of them is said here."""
        self._check()
        jobs = [self._job(*which) for which in self._expand()]
        if not jobs:
            raise UserError(
                f"study '{self.name}' holds no run: its variants fit none of its algorithms and environments, or `skip`"
                " leaves out all of them"
            )
        seen: dict[Path, Job] = {}
        for job in jobs:
            other = seen.setdefault(job.folder, job)
            if other is not job:
                raise UserError(f"study '{self.name}': '{other.label}' and '{job.label}' would share {job.folder}")
        return jobs

    def _expand(self) -> Iterator[tuple[str, str, int, str]]:
        for seed in self.seeds:
            for env in self.envs:
                for algo in self.algos:
                    for name, block in (self.variants or {"": Block()}).items():
                        left_out = any(skip.matches(algo, env, name) for skip in self.skip)
                        if block.matches(algo, env, name) and not left_out:
                            yield algo, env, seed, name

    def _job(self, algo: str, env: str, seed: int, variant: str) -> Job:
        values = self._values(algo, env, variant)
        config = self._resolved(algo, env, variant)
        name = f"{self.name}-{variant}" if variant else self.name
        return Job(algo, env, seed, name, values, replace(config, seed=seed, name=name, dir=self.dir))

    def _values(self, algo: str, env: str, variant: str) -> dict[str, Any]:
        table = c.keys(c.run_type(algo))
        blocks = [Block(self.parameters), self.variants.get(variant, Block()), *self.where]
        values: dict[str, Any] = {}
        for block in blocks:
            if block.matches(algo, env, variant):
                values |= self._flat(block.values, table, algo)
        return values

    def _flat(self, values: Mapping[str, Any], table: Mapping[str, Any], algo: str) -> dict[str, Any]:
        try:
            flat = c.flatten(values, table)
        except UserError as e:
            raise UserError(f"{algo}: {e}{self._elsewhere(values, algo)}") from None
        for key in flat.keys() & OWN.keys():
            raise UserError(
                f"study '{self.name}': '{key}' is no parameter of its runs; the study itself says '{OWN[key]}'"
            )
        return flat

    def _elsewhere(self, values: Mapping[str, Any], algo: str) -> str:
        """A hint where a parameter exists for another algorithm of this study."""
        mine = c.keys(c.run_type(algo))
        for other in self.algos:
            for key in _names(values):
                if key not in mine and key in c.keys(c.run_type(other)):
                    flag = f"--{other}.{key.replace('_', '-')}"
                    return f"; for {other} alone say {flag}, or `algos: {other}` in a `where` block"
        return ""

    def _resolved(self, algo: str, env: str, variant: str) -> Any:
        values = self._values(algo, env, variant)
        try:
            return c.resolve(algo, env, None, {**values, "name": self.name, "dir": self.dir})
        except UserError as e:
            raise UserError(f"{algo} on {env}: {e}") from None

    def _check(self) -> None:
        for what in ("algos", "envs", "seeds"):
            if not getattr(self, what):
                raise UserError(f"study '{self.name}' names no {what}; for example: {EXAMPLE[what]}")
        for name in (self.name, *self.variants):
            if not re.fullmatch(r"\w[\w.+=-]*", name):
                raise UserError(f"'{name}' cannot be the name of a study or variant: use letters, digits and . _ + = -")
        for algo in self.algos:
            c.run_type(algo)
        for block in (*self.where, *self.skip, *self.variants.values()):
            for algo in block.algos:
                if algo not in self.algos:
                    c.run_type(algo)  # a known algorithm that this study leaves out is no mistake
            for variant in block.variants:
                if variant not in self.variants:
                    raise UserError(
                        f"study '{self.name}': there is no variant '{variant}'{nearest(variant, [*self.variants])}"
                    )

    def dump(self) -> dict[str, Any]:
        """What `kumite bench FILE` reads back as this very study."""
        whole = {
            "about": self.about,
            "name": self.name,
            "algos": list(self.algos),
            "envs": list(self.envs),
            "seeds": list(self.seeds),
            "parameters": _plain(self.parameters),
            "variants": {name: block.dump() for name, block in self.variants.items()},
            "where": [block.dump() for block in self.where],
            "skip": [block.dump() for block in self.skip],
            "dir": self.dir,
        }
        return {key: value for key, value in whole.items() if value}

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.dump(), sort_keys=False, allow_unicode=True)


EXAMPLE = {"algos": "--algos ppo sac", "envs": "--envs CartPole-v1 dmc:walker-walk", "seeds": "--seeds 3"}


def _names(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        name = prefix + str(key).replace("-", "_")
        yield name
        if isinstance(value, Mapping):
            yield from _names(value, f"{name}.")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, (list, tuple)) else value


# --- from a file, from flags ---------------------------------------------------------------------------------------


def shipped() -> dict[str, Any]:
    """The studies that come with kumite: name -> its file."""
    home = importlib.resources.files("kumite") / "lab" / "studies"
    found = {f.name.removesuffix(".yaml"): f for f in home.iterdir() if f.name.endswith(".yaml")}
    return dict(sorted(found.items()))


def load(place: str | Path) -> Study:
    """A study from a YAML file, from the folder of a study that was begun, or by the name of a shipped one."""
    path = Path(place)
    if (path / "study.yaml").is_file():
        path = path / "study.yaml"
    if str(place) in shipped() and not path.is_file():
        return make(c.parse_yaml(shipped()[str(place)].read_text(encoding="utf-8"), str(place)), str(place))
    if not path.is_file():
        raise UserError(
            f"there is no study '{place}'{nearest(str(place), [*shipped()])} (a YAML file, the folder of a study, or"
            f" one of {', '.join(shipped())})"
        )
    return make(c.load_yaml(path), path.stem)


def make(said: Mapping[str, Any], name: str = "bench") -> Study:
    """A study from plain values, as a file holds them."""
    where = f"study '{said.get('name') or name}'"
    for key in said:
        if key not in KEYS:
            if not nearest(str(key), list(KEYS)) and c.owners(str(key).replace("-", "_")):
                raise UserError(f"{where}: '{key}' is a setting of the runs; write it below parameters:")
            raise UserError(f"{where}: unknown key '{key}'{nearest(str(key), list(KEYS))} (known: {', '.join(KEYS)})")
    parameters = dict(_mapping(said.get("parameters"), f"{where}, parameters"))
    if "steps" in said:
        parameters = {"steps": c.coerce(said["steps"], int, "steps"), **parameters}
    variants = _mapping(said.get("variants"), f"{where}, variants")
    made = Study(
        algos=unique(a.lower() for a in words(said.get("algos"), f"{where}, algos")),
        envs=unique(words(said.get("envs"), f"{where}, envs")),
        seeds=read_seeds(said.get("seeds", 3)),
        name=str(said.get("name") or name),
        parameters=parameters,
        variants={str(k): _block(v, f"{where}, variant '{k}'") for k, v in variants.items()},
        where=_blocks(said.get("where"), f"{where}, where", "algos, envs or variants, and parameters"),
        skip=_blocks(said.get("skip"), f"{where}, skip", "algos, envs or variants"),
        dir=str(said.get("dir") or "runs"),
        about=" ".join(str(said.get("about") or "").split()),
    )
    if extra := next((key for block in made.skip for key in block.values), None):
        raise UserError(
            f"{where}, skip: '{extra}' says nothing about which runs are left out (known: {', '.join(SELECTORS)})"
        )
    if not all(block.dump() for block in made.skip):
        raise UserError(f"{where}, skip: a block names algos, envs or variants, else nothing would be left")
    for block in (*made.where, *made.skip):
        if made.envs and block.envs and not any(c.Block(block.envs, "", {}).matches(env) for env in made.envs):
            warnings.warn(f"{where}: the block for '{block.envs}' speaks of none of its runs", StudyWarning)
    return made


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise UserError(f"{where}: expected keys and values, got {c.SHORT.repr(value)}")
    return value


def _blocks(said: Any, where: str, holds: str) -> tuple[Block, ...]:
    if not isinstance(said or [], list):
        raise UserError(f"{where}: expected a list of blocks with {holds}")
    return tuple(_block(v, where) for v in said or [])


def _block(said: Any, where: str) -> Block:
    values = dict(_mapping(said, where))
    chosen = {key: values.pop(key, None) for key in SELECTORS}
    return Block(
        values,
        unique(a.lower() for a in words(chosen["algos"], f"{where}, algos")),
        " | ".join(words(chosen["envs"], f"{where}, envs")),
        unique(words(chosen["variants"], f"{where}, variants")),
    )


def words(value: Any, where: str) -> tuple[str, ...]:
    """One name or a list of names."""
    found = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(found, (list, tuple)) or not all(isinstance(x, str) for x in found):
        raise UserError(f"{where}: expected a list of names, got {c.SHORT.repr(value)}")
    return tuple(found)


def unique(values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(values))


def read_seeds(value: Any) -> tuple[int, ...]:
    """5 = 0 to 4; a list (also of one: `[7]`, on the command line `7,`) = these."""
    listed = isinstance(value, (list, tuple)) or (isinstance(value, str) and bool(set(value.strip()) & set("[],( ")))
    if not listed:
        count = c.coerce(value, int, "seeds")
        if count < 1:
            raise UserError(f"seeds: expected at least 1, got {count}")
        return tuple(range(count))
    seeds = unique(c.coerce(value, tuple[int, ...], "seeds"))
    if any(seed < 0 for seed in seeds):
        raise UserError(f"seeds: expected numbers of at least 0, got {', '.join(map(str, seeds))}")
    return seeds


def changed(study: Study, **said: Any) -> Study:
    """The study with what the command line says instead; nothing said = nothing changed."""
    return dataclasses.replace(study, **{key: value for key, value in said.items() if value})


def flags(study: Study, given: Mapping[str, Any]) -> Study:
    """The study with parameters from flags, which come last; `sac.lr` speaks to one algorithm."""
    rest: dict[str, Any] = {}
    blocks: dict[str, dict[str, Any]] = {}
    for key, value in given.items():
        head, dot, tail = key.partition(".")
        if dot and head in study.algos:
            blocks.setdefault(head, {})[tail] = value
        else:
            rest[key] = value
    more = [Block(rest)] if rest else []
    more += [Block(values, algos=(algo,)) for algo, values in blocks.items()]
    return replace(study, where=(*study.where, *more))
