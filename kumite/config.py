"""What a run is made of, and how its numbers are decided.

A layer is a plain dict; its keys are nested or dotted, with dashes or underscores. The last layer that names a number
decides it: the paper's defaults < what the algorithm's name means < the preset of this environment < the file < the
flags. The result is one frozen dataclass: the algorithm's Config and Run in one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import fnmatch
import functools
import importlib.resources
import math
import numbers
import os
import reprlib
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

from kumite.algos import ROWS, algorithm, row
from kumite.envs.base import EnvConfig
from kumite.errors import UserError


@dataclass(frozen=True)
class Eval:
    """When and how the agent is measured."""

    every: int = 0
    """Environment steps between evaluations; 0 = a twentieth of the run, -1 = never."""
    episodes: int = 10
    """Episodes per evaluation."""
    deterministic: bool = True
    """Act without exploration."""


@dataclass(frozen=True)
class Log:
    """When metrics are written, under whose names, and what trackers are told."""

    every: int = 0
    """Environment steps between rows of metrics; 0 = about 200 rows per run, -1 = never."""
    style: Literal["kumite", "sb3", "cleanrl", "rl_games"] = "kumite"
    """Whose names the metrics get (docs/logging.md)."""
    mode: Literal["auto", "online", "offline"] = "auto"
    """Trackers: upload, or only write to the run's folder; auto = upload where a key is."""
    project: str = "kumite"
    """Trackers: the project."""
    entity: str = ""
    """Trackers: the team or workspace; empty = the account's own."""
    group: str = ""
    """Trackers: the group of runs; empty = algorithm and environment."""
    tags: tuple[str, ...] = ()
    """Trackers: tags besides algorithm and environment."""
    upload: tuple[Literal["videos", "best", "last"], ...] = ()
    """Trackers: what they get at the end: videos, the best checkpoint, the last one."""
    patience: int = 30
    """Trackers: seconds they may take to finish at the end."""


@dataclass(frozen=True)
class Save:
    """When and what is saved."""

    every: int = 0
    """Environment steps between checkpoints; 0 = a tenth of the run, -1 = only at the end."""
    keep: int = 3
    """Newest checkpoints that stay; the best one always stays."""
    replay: bool = True
    """Checkpoints hold the replay buffer, so that a resumed run continues exactly."""


@dataclass(frozen=True)
class Run:
    """What every run has, whatever the algorithm."""

    steps: int = 100_000
    """Environment steps of the whole run, over all copies, action repeats included."""
    seed: int = 0
    """Decides everything random: nets, actions, environments."""
    num_envs: int = 1
    """Copies of the environment."""
    device: str = "auto"
    """auto | cpu | cuda | cuda:1 | mps."""
    name: str = ""
    """The run's name in its folder; empty = a time stamp."""
    dir: str = "runs"
    """Where run folders are made."""
    track: tuple[str, ...] = ("csv", "tensorboard")
    """Where metrics go: csv, tensorboard, wandb, swanlab."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Compile the updates; auto = where it pays."""
    threads: int = 0
    """Torch's CPU threads; 0 = chosen for the nets and the machine."""
    quiet: bool = False
    """Say nothing but errors."""
    profile: bool = False
    """Say at the end where the time went."""
    stop_at: float | None = None
    """Stop when an evaluation's mean return reaches this."""
    env: EnvConfig = field(default_factory=EnvConfig)
    """How the environment is built."""
    eval: Eval = field(default_factory=Eval)
    """Evaluation."""
    log: Log = field(default_factory=Log)
    """Metrics."""
    save: Save = field(default_factory=Save)
    """Checkpoints."""


class Intervals(NamedTuple):
    """Environment steps between events; 0 = never."""

    eval: int
    log: int
    save: int


def intervals(run: Run, steps: int | None = None) -> Intervals:
    """The intervals of a run of this many steps, with the automatic ones filled in."""
    total = run.steps if steps is None else steps
    return Intervals(
        _interval(run.eval.every, total // 20, 1_000),
        _interval(run.log.every, min(total // 200, 10_000), 200),
        _interval(run.save.every, total // 10, 5_000),
    )


def _interval(every: int, auto: int, least: int) -> int:
    return max(every, 0) if every else max(auto, least)


# --- the type of a run ---------------------------------------------------------------------------------------------


def config_class(algo: str) -> type:
    """The dataclass of an algorithm's own numbers."""
    return typing.cast(type, algorithm(algo).Config)


def run_type(algo: str) -> type:
    """The algorithm's Config and Run in one frozen dataclass; the algorithm's default wins where both name a field."""
    return _joined(config_class(algo))


@functools.cache
def _joined(own: type) -> type:
    joined = type(f"{own.__name__}Run", (own, Run), {"__doc__": own.__doc__, "__module__": own.__module__})
    return dataclass(frozen=True)(joined)


@functools.cache
def keys(kind: type, prefix: str = "") -> Mapping[str, Any]:
    """Dotted name -> type of every field, groups included."""
    hints = typing.get_type_hints(kind)
    found: dict[str, Any] = {}
    for f in dataclasses.fields(kind):
        found[prefix + f.name] = hints[f.name]
        if is_dataclass(hints[f.name]):
            found |= keys(typing.cast(type, hints[f.name]), f"{prefix}{f.name}.")
    return types.MappingProxyType(found)


# --- layers --------------------------------------------------------------------------------------------------------


class Layer(NamedTuple):
    """One voice in the decision."""

    source: str
    values: Mapping[str, Any]


def resolve(
    algo: str, env_name: str = "", file: Mapping[str, Any] | None = None, overrides: Mapping[str, Any] | None = None
) -> Any:
    """The numbers this algorithm runs with on this environment: an instance of run_type(algo)."""
    stack = layers(algo, env_name) + from_file(algo, env_name, file or {})
    if overrides:
        stack.append(Layer("flags", overrides))
    config = run_type(algo)()
    for layer in stack:
        config = merge(config, layer.values)
    check(config)
    return config


def from_file(algo: str, env_name: str, values: Mapping[str, Any]) -> list[Layer]:
    """What a file says: keys and values, or blocks for environments as in presets (`kumite tune` writes such ones)."""
    if not values or not all(isinstance(v, Mapping) and "source" in v for v in values.values()):
        return [Layer("file", {k: v for k, v in values.items() if k not in ("algo", "env_id")})]
    blocks = [_block(algo, str(pattern), block) for pattern, block in values.items()]
    found = [Layer(b.source, b.values) for b in blocks if b.matches(env_name)]
    if not found:
        raise UserError(f"the file has blocks for {', '.join(b.pattern for b in blocks)}, none of them for {env_name}")
    return found


def layers(algo: str, env_name: str = "") -> list[Layer]:
    """What is decided before the user speaks: the class's shared words, the name's numbers, the preset's blocks."""
    defaults = run_type(algo)()
    shared = {key: value for key in SHARED if (value := getattr(defaults, key, ""))}
    named = row(algo)
    own = [Layer("the class", shared), Layer(f"'{algo}' ({named.paper})", named.numbers)]
    return own + [Layer(b.source, b.values) for b in presets(algo) if env_name and b.matches(env_name)]


def origins(algo: str, env_name: str = "") -> dict[str, str]:
    """Dotted name -> the source of its value, for what is not the class's own default."""
    table = keys(run_type(algo))
    return {
        key: layer.source for layer in layers(algo, env_name) for key in _spread(flatten(layer.values, table), table)
    }


def merge(config: Any, values: Mapping[str, Any]) -> Any:
    """A copy of the config with these values; strict about names and types."""
    kind: type = type(config)
    table = keys(kind)
    given = _spread(flatten(values, table), table)
    for key, value in given.items():
        config = _put(config, key, coerce(value, table[key], key))
    return config


SHARED = ("encoder", "memory", "bf16")
"""Top-level words that speak for both nets."""
NETS = ("actor", "critic")
ALIASES = {"keep": "save.keep"}


def flatten(values: Mapping[str, Any], table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested, dotted, dashed -> {known dotted name: value}."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = prefix + str(key).replace("-", "_")
        name = ALIASES.get(name, name)
        if name not in table:
            others, near = owners(name), closest(name, table)
            hint = f": it is a setting of {', '.join(others)}" if others else f"; did you mean '{near}'?" * bool(near)
            raise UserError(f"unknown key {SHORT.repr(name)}{hint}")
        if is_dataclass(table[name]) and isinstance(value, Mapping):
            flat |= flatten(value, table, f"{name}.")
        else:
            flat[name] = value
    return flat


def _spread(flat: dict[str, Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """`memory` and `encoder` become what each net says, unless this layer gives the net its own."""
    spread = dict(flat)
    for word in SHARED:
        here = [net for net in NETS if f"{net}.{word}" in table]
        for net in here if flat.get(word) else ():
            if f"{net}.{word}" not in flat and not _says(flat.get(net), word):
                spread[f"{net}.{word}"] = flat[word]
        if here and word in flat:
            spread[word] = table[word]()
    return spread


def _says(net: Any, word: str) -> bool:
    """A net given as an object says something of its own where it differs from a plain one."""
    return is_dataclass(net) and getattr(net, word) != getattr(type(net), word)


def _put(config: Any, key: str, value: Any) -> Any:
    head, _, rest = key.partition(".")
    return replace(config, **{head: _put(getattr(config, head), rest, value) if rest else value})


SYNONYMS = {
    "learning_rate": "lr",
    "total_timesteps": "steps",
    "timesteps": "steps",
    "n_envs": "num_envs",
    "n_steps": "horizon",
    "num_steps": "horizon",
    "horizon_length": "horizon",
    "n_epochs": "epochs",
    "mini_epochs": "epochs",
    "update_epochs": "epochs",
    "minibatch_size": "batch_size",
    "gae_lambda": "lam",
    "clip_range": "clip",
    "clip_coef": "clip",
    "e_clip": "clip",
    "ent_coef": "entropy_coef",
    "vf_coef": "value_coef",
    "max_grad_norm": "grad_clip",
    "grad_norm": "grad_clip",
    "learning_starts": "warmup",
    "utd_ratio": "update_ratio",
    "polyak": "tau",
    "policy_frequency": "policy_delay",
}
"""What neighbouring libraries call things; only for hints."""


def owners(name: str) -> list[str]:
    """The algorithms that know this key."""
    found = []
    for algo in ROWS:
        with contextlib.suppress(ImportError):  # one that was registered from outside and is gone
            if name in keys(run_type(algo)):
                found.append(algo)
    return found


def closest(name: str, known: Iterable[str]) -> str:
    """The key that was probably meant, or nothing: by meaning, by full name, or by the last part of a dotted name."""
    names = list(known)
    if SYNONYMS.get(name) in names:
        return SYNONYMS[name]
    last = {key.rpartition(".")[2]: key for key in reversed(names)}
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    near += [last[tail] for tail in difflib.get_close_matches(name.rpartition(".")[2], list(last), n=1, cutoff=0.6)]
    return near[0] if near else ""


# --- values --------------------------------------------------------------------------------------------------------

SUFFIXES = {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9}
WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
SWITCHES: dict[str, float] = {"priority": 0.6}
"""Numbers that may also be switched on, and what true means then; false is 0."""
SHORT = reprlib.Repr()
SHORT.maxlevel, SHORT.maxdict, SHORT.maxlist, SHORT.maxtuple, SHORT.maxstring, SHORT.maxother = 2, 4, 4, 4, 60, 60


def coerce(value: Any, kind: Any, key: str) -> Any:
    """The value as this type; a value that cannot be read is refused in a sentence that names the key."""
    if isinstance(value, bool) and key in SWITCHES:
        value = SWITCHES[key] if value else 0
    try:
        return read(value, kind)
    except ValueError as e:
        raise UserError(f"{key}: {e}") from None


def read(value: Any, kind: Any) -> Any:
    """The value as this type, or a ValueError that says what was expected."""
    try:
        return _read(value, kind)
    except (ValueError, TypeError, OverflowError):
        raise ValueError(f"expected {describe(kind)}, got {SHORT.repr(value)}") from None


def _read(value: Any, kind: Any) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _read(value, args[0])
    if origin in (typing.Union, types.UnionType):
        return _read_union(value, args)
    if origin is Literal:
        return _read_choice(value, args)
    if origin is tuple or kind is tuple:
        return _read_tuple(value, args)
    if kind in READERS:
        return READERS[kind](value)
    if is_dataclass(kind) and not isinstance(value, typing.cast(type, kind)):
        raise ValueError
    return value


def read_number(value: Any) -> float:
    """12, '1e6', '100_000', '100k', '2.5M'."""
    if isinstance(value, bool) or not isinstance(value, str | numbers.Real):
        raise ValueError
    if not isinstance(value, str):
        number = float(value)
    else:
        text = value.strip()
        scale = SUFFIXES.get(text[-1:].lower(), 1.0)
        number = float(text[:-1]) * scale if scale != 1.0 else float(text)
    if math.isnan(number):
        raise ValueError
    return number


def read_int(value: Any) -> int:
    if isinstance(value, int | numbers.Integral) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, str) and value.strip().lstrip("+-").replace("_", "").isdecimal():
        return int(value)
    number = read_number(value)
    if round(number, 6) != round(number):
        raise ValueError
    return round(number)


def read_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word not in WORDS:
        raise ValueError
    return WORDS[word]


def read_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return yaml.safe_dump(dict(value), default_flow_style=True, sort_keys=False, width=10_000).strip()
    if isinstance(value, type):
        return _address(value)
    if isinstance(value, bool) or value is None or isinstance(value, (list, tuple, set)):
        raise ValueError
    return str(value)


def _address(value: type) -> str:
    """module:Class, which a checkpoint can name."""
    if "<locals>" in value.__qualname__:
        raise UserError(
            f"the class '{value.__name__}' must stand at the top level of a module, so that it can be found again"
        )
    return f"{value.__module__}:{value.__qualname__}"


READERS: dict[Any, Any] = {int: read_int, float: read_number, bool: read_bool, str: read_text}


def _read_union(value: Any, kinds: tuple[Any, ...]) -> Any:
    if type(None) in kinds and (value is None or str(value).strip().lower() in ("none", "null")):
        return None
    for kind in kinds:
        if kind is not type(None):
            try:
                return _read(value, kind)
            except (ValueError, TypeError):
                continue
    raise ValueError


def _read_choice(value: Any, choices: tuple[Any, ...]) -> Any:
    if isinstance(value, bool):  # YAML reads a bare on or off as a boolean
        value = next((c for c in choices if isinstance(c, str) and WORDS.get(c) is value), value)
    for choice in choices:
        if value == choice or str(value) == str(choice):
            return choice
    raise ValueError


def _read_tuple(value: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    if isinstance(value, str):
        value = value.strip("[]() ").replace(",", " ").split()
    elif not isinstance(value, (list, tuple)):
        value = [value]
    if not args:
        return tuple(value)
    if args[-1] is Ellipsis:
        return tuple(_read(v, args[0]) for v in value)
    if len(value) != len(args):
        raise ValueError
    return tuple(_read(v, kind) for v, kind in zip(value, args, strict=True))


def describe(kind: Any) -> str:
    """The type in words."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return describe(args[0])
    if origin is Literal:
        return "one of " + ", ".join(map(str, args))
    if origin in (typing.Union, types.UnionType):
        return " or ".join("none" if a is type(None) else describe(a) for a in args)
    if origin is tuple and args:
        return f"a list (each {describe(args[0])})"
    if is_dataclass(kind):
        names = [f.name for f in dataclasses.fields(kind)][:3]
        return f"a group of settings ({', '.join(names)}, ...)"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}.get(kind, str(kind))


LIMITS: dict[str, tuple[float, float]] = {
    "steps": (0, math.inf),
    "seed": (0, 2**63 - 1),
    "num_envs": (1, 100_000),
    "threads": (0, 4096),
    "every": (-1, math.inf),
    "patience": (1, math.inf),
    "episodes": (1, math.inf),
    "keep": (1, math.inf),
    "action_repeat": (0, math.inf),
    "frame_stack": (0, math.inf),
    "max_steps": (0, math.inf),
    "sticky": (0, 1),
    "gamma": (0, 1),  # or -1
    "adam_beta": (0, 0.9999),
    "augment_pixels": (1, math.inf),
    "augment_views": (1, math.inf),
    "reward_bound": (0, math.inf),
    "dropout": (0, 1),
    "quantiles": (1, math.inf),
    "cosines": (1, math.inf),
    "drop": (0, math.inf),
    "atoms": (2, math.inf),
    "policy_steps": (0, math.inf),
    "lam": (0, 1),
    "tau": (0, 1),
    "lr": (0, math.inf),
    "clip": (0, math.inf),
    "grad_clip": (0, math.inf),
    "weight_decay": (0, math.inf),
    "batch_size": (0, math.inf),
    "minibatches": (0, math.inf),
    "buffer_size": (1, math.inf),
    "warmup": (0, math.inf),
    "update_ratio": (0, math.inf),
    "horizon": (1, math.inf),
    "epochs": (1, math.inf),
    "n_step": (1, math.inf),
    "critics": (1, math.inf),
    "subset": (0, math.inf),
    "priority": (0, math.inf),
    "priority_beta": (0, 1),
    "priority_beta_end": (0, 1),
    "priority_eps": (0, math.inf),
    "priority_clip": (0, math.inf),
    "priority_mix": (0, 1),
    "policy_delay": (1, math.inf),
    "trace_lam": (0, 1),
    "trace_rho": (0, math.inf),
    "trace_c": (0, math.inf),
    "target_every": (0, math.inf),
    "epsilon_start": (0, 1),
    "epsilon_end": (0, 1),
    "epsilon_share": (0, 1),
    "epsilon_steps": (0, math.inf),
    "epsilon_ladder": (0, math.inf),
    "noisy_sigma": (0, math.inf),
    "kappa": (0, math.inf),
    "target_noise": (0, math.inf),
    "target_clip": (0, math.inf),
    "std": (0, math.inf),
    "std_end": (0, math.inf),
    "share": (0, 1),
    "floor": (0, math.inf),
    "theta": (0, 1),
    "uniform": (0, 1),
    "chunk": (1, math.inf),
    "burn_in": (0, math.inf),
    "width": (1, math.inf),
    "layers": (1, math.inf),
    "depth": (0, math.inf),
    "memory_width": (1, math.inf),
    "memory_layers": (1, math.inf),
}
"""What a number may be, whatever group it stands in."""
AUTOMATIC = {"gamma": -1.0}
"""What stands for a number that only the environment decides."""


def check(config: Any) -> None:
    """Numbers within their limits, a name that is one, and only known places for metrics."""
    for key, value in flat(config).items():
        last = key.rpartition(".")[2]
        low, high = LIMITS.get(last, (-math.inf, math.inf))
        for x in value if isinstance(value, tuple) else (value,):
            if isinstance(x, (int, float)) and not low <= x <= high and x != AUTOMATIC.get(last):
                wanted = f"at least {low:g}" if high == math.inf else f"between {low:g} and {high:g}"
                raise UserError(f"{key}: expected {wanted}, got {x}")
    if config.name in (".", "..") or any(mark in config.name for mark in "/\\\0"):
        raise UserError(f"name: expected the plain name of a folder, got {config.name!r}")
    from kumite.sinks import check_sinks

    check_sinks(config.track)


def fitted(config: Any, slots: int, limit: int) -> Any:
    """The config with what only the environment decides: its number of copies, and gamma -1 by its time limit.

    The discount looks ahead a fifth of an episode of L decisions, 1 - 5 / L, within 0.95 and 0.995 (Simba's rule).
    """
    if config.gamma < 0:
        decisions = limit / max(1, config.env.action_repeat)
        gamma = min(max(1 - 5 / decisions, 0.95), 0.995) if decisions else 0.99
        config = replace(config, gamma=gamma)
    return config if config.num_envs == slots else replace(config, num_envs=slots)


# --- out and in ----------------------------------------------------------------------------------------------------


def flat(config: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted name -> value."""
    found: dict[str, Any] = {}
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        found |= flat(value, f"{prefix}{f.name}.") if is_dataclass(value) else {prefix + f.name: value}
    return found


def diff(config: Any, base: Any) -> dict[str, tuple[Any, Any]]:
    """Dotted name -> (base's value, config's value) where they differ."""
    mine, theirs = flat(config), flat(base)
    return {k: (theirs.get(k), v) for k, v in mine.items() if k not in theirs or theirs[k] != v}


def dump(config: Any) -> dict[str, Any]:
    """Nested dicts, lists, numbers and text: ready for YAML or JSON."""
    return {f.name: _plain(getattr(config, f.name)) for f in dataclasses.fields(config)}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return dump(value)
    return [_plain(v) for v in value] if isinstance(value, (list, tuple)) else value


def to_yaml(config: Any, algo: str, env_id: str) -> str:
    """The text from which `kumite train --file` repeats the run."""
    return yaml.safe_dump({"algo": algo, "env_id": env_id, **dump(config)}, sort_keys=False, allow_unicode=True)


def save_yaml(path: str | os.PathLike[str], config: Any, algo: str, env_id: str) -> None:
    Path(path).write_text(to_yaml(config, algo, env_id), encoding="utf-8")


class _Loader(yaml.SafeLoader):
    """The safe loader, and a key may be given only once."""


def _mapping(loader: _Loader, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
    seen = [k.value for k, _ in node.value if isinstance(k, yaml.ScalarNode)]
    twice = next((k for k in seen if k != "<<" and seen.count(k) > 1), None)
    if twice is not None:
        raise yaml.constructor.ConstructorError(None, None, f"the key '{twice}' is given twice", node.start_mark)
    loader.flatten_mapping(node)
    return yaml.SafeLoader.construct_mapping(loader, node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
LARGEST = 1_000_000  # bytes of a configuration


def load_yaml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """A mapping from a YAML file; the safe loader only."""
    try:
        size = os.path.getsize(path)
        text = Path(path).read_text(encoding="utf-8") if size <= LARGEST else ""
    except (OSError, UnicodeDecodeError) as e:
        raise UserError(
            f"cannot read '{os.fspath(path)}': {getattr(e, 'strerror', None) or 'not a text file'}"
        ) from None
    if size > LARGEST:
        raise UserError(f"'{os.fspath(path)}' is too large for a configuration ({size:,} bytes)")
    return parse_yaml(text, os.fspath(path))


def parse_yaml(text: str, origin: str) -> dict[str, Any]:
    try:
        found = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as e:
        raise UserError(f"'{origin}' is not a plain YAML file: {_reason(e)}") from None
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise UserError(f"'{origin}' must hold keys and values, not {SHORT.repr(found)}")
    return found


def _reason(error: Exception) -> str:
    """A YAML error in one line."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return " ".join(str(error).split())[:200] or type(error).__name__
    mark = error.problem_mark or error.context_mark
    where = f" (line {mark.line + 1})" if mark else ""
    return " ".join((error.problem or str(error)).split())[:200] + where


# --- presets -------------------------------------------------------------------------------------------------------


class Block(NamedTuple):
    """Numbers for the environments that a pattern names."""

    pattern: str
    source: str
    values: Mapping[str, Any]

    def matches(self, env_name: str) -> bool:
        """Patterns are joined by |; a leading ! takes names out again."""
        parts = [p.strip() for p in self.pattern.split("|")]
        wanted, unwanted = [p for p in parts if p[:1] != "!"], [p[1:] for p in parts if p[:1] == "!"]

        def named(patterns: list[str]) -> bool:
            return any(fnmatch.fnmatchcase(name, p) for p in patterns for name in _names(env_name))

        return named(wanted) and not named(unwanted)


def _names(env_name: str) -> Iterator[str]:
    """gymnasium's ids are known with and without their backend."""
    yield env_name
    for prefix in ("gymnasium:", "gym:"):
        if env_name.startswith(prefix):
            yield env_name.removeprefix(prefix)


@functools.cache
def presets(algo: str) -> tuple[Block, ...]:
    """The blocks of kumite/presets/<algo>.yaml, in file order: general first, specific later."""
    home = importlib.resources.files("kumite") / "presets" / f"{algo.lower()}.yaml"
    if not home.is_file():
        return ()
    blocks = parse_yaml(home.read_text(encoding="utf-8"), str(home))
    return tuple(_block(algo, pattern, values) for pattern, values in blocks.items())


def _block(algo: str, pattern: str, values: Any) -> Block:
    if not isinstance(values, dict) or not str(values.get("source", "")).strip():
        raise UserError(f"presets/{algo}.yaml: the block '{pattern}' must name its source")
    source = " ".join(str(values["source"]).split())
    return Block(pattern, source, types.MappingProxyType({k: v for k, v in values.items() if k != "source"}))
