"""The logs of other libraries as Records: TensorBoard event files of anybody, Stable-Baselines3's files, plain CSVs.

Everything read here is a stranger's file: nothing in it can run (arrays without pickle, events as protobuf, text as
numbers), what is half-written counts up to its last whole row, and what cannot be read becomes one sentence.
"""

from __future__ import annotations

import json
import os
import re
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kumite.errors import UserError
from kumite.lab.records import MEAN_RETURN, Column, Record, cells, numbers, table

Tables = tuple[dict[str, Column], dict[str, Column], dict[str, Column], dict[str, Any]]
"""evals, metrics, episodes, settings."""


@dataclass(frozen=True)
class Hints:
    """What the user says about logs that do not say it themselves, and what went wrong on the way."""

    env: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Role (step, return, time, seed, env, algo) -> the column's or tag's name."""
    problems: list[str] = field(default_factory=list)


# --- finding them --------------------------------------------------------------------------------------------------


def find(place: Path, hints: Hints, skip: frozenset[Path] = frozenset()) -> Iterator[Record]:
    """Every foreign run at or below this place; one folder is one run, but for CSVs that name several."""
    if place.is_file():
        yield from _file(place, hints)
        return
    known: list[Path] = []  # runs that were found: their sub-folders hold parts of them
    for folder, names, files in os.walk(place):
        here = Path(folder)
        names[:] = sorted(n for n in names if not n.startswith(".") and here / n not in skip)
        if here in skip:
            names.clear()
            continue
        for record in _folder(here, sorted(files), hints):
            part = any(k in here.parents for k in known)
            if not part or record.evals or record.episodes or MEAN_RETURN in record.metrics:
                known.append(here)
                yield record


def _file(path: Path, hints: Hints) -> Iterator[Record]:
    if path.suffix == ".npz" or path.name.endswith("monitor.csv") or path.name == "progress.csv":
        yield from _folder(path.parent, [path.name], hints)
    elif EVENTS in path.name:
        yield from _guard(path, hints, lambda: _events(path.parent, [path], hints))
    elif path.suffix == ".csv":
        yield from _guard(path, hints, lambda: plain(path, hints))
    else:
        hints.problems.append(f"'{path}' is no log that can be read (event files, .csv, evaluations.npz)")


def _folder(folder: Path, files: Sequence[str], hints: Hints) -> Iterator[Record]:
    events = [folder / f for f in files if EVENTS in f]
    if any(f in ("progress.csv", "evaluations.npz") or f.endswith("monitor.csv") for f in files):
        yield from _guard(folder, hints, lambda: _sb3(folder, files, events, hints))
    elif events:
        yield from _guard(folder, hints, lambda: _events(folder, events, hints))
    else:
        for name in files:
            if name.endswith(".csv") and _roles(cells(folder / name, ended=False)[0], hints.columns):
                yield from _guard(folder / name, hints, lambda name=name: plain(folder / name, hints))


def _guard(path: Path, hints: Hints, make: Any) -> Iterator[Record]:
    """A log that cannot be read is a sentence, the others are still read."""
    try:
        yield from make()
    except UserError as e:
        hints.problems.append(str(e))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as e:
        hints.problems.append(f"'{path}' cannot be read: {getattr(e, 'strerror', None) or e}")


# --- what a path says ----------------------------------------------------------------------------------------------

ALGOS = ("ppo", "a2c", "sac", "td3", "ddpg", "dqn", "qrdqn", "tqc", "trpo", "ars", "crossq", "c51", "rainbow", "impala")
ENV_NAME = re.compile(r"[A-Za-z][\w.\-]*?-v\d+")
SEED = re.compile(r"(?:^|[_\-. ])(?:seed|s)[_\-=]?(\d+)(?=$|[_\-. ])", re.IGNORECASE)
CLEANRL = re.compile(r"^(?P<env>.+?)__(?P<exp>.+)__(?P<seed>\d+)__(?P<time>\d+)$")


def env_of(path: Path) -> str:
    """The environment named in a path, from its end: CartPole-v1_1, ALE/Pong-v5, ppo_Hopper-v4; '' where none is."""
    parts = path.parts
    for i in range(len(parts) - 1, -1, -1):
        part = parts[i].split("__")[0]
        part = re.sub(rf"^(?:{'|'.join(ALGOS)})[_\-]", "", part, flags=re.IGNORECASE)
        if found := ENV_NAME.search(part):
            space = parts[i - 1] if i and parts[i - 1] in ("ALE", "dm_control") else ""
            return f"{space}/{found.group()}" if space else found.group()
    return ""


def algo_of(path: Path) -> str:
    for part in reversed(path.parts):
        words = re.split(r"[_\-. ]", part.lower())
        if found := next((a for a in ALGOS if a in words), ""):
            return found
    return ""


def seed_of(path: Path) -> int | None:
    for part in reversed(path.parts):
        if found := SEED.search(part):
            return int(found.group(1))
    return None


def _make(path: Path, source: str, tables: Tables, hints: Hints, env: str = "") -> Record:
    """A Record with what its settings, its path and the user say about it."""
    evals, metrics, episodes, config = tables
    cleanrl = next((m for part in reversed(path.parts) if (m := CLEANRL.match(part))), None)
    said = next((str(config[k]) for k in ("env_id", "env", "env_name", "task", "task_name") if config.get(k)), "")
    env = hints.env or env or said or env_of(path) or (cleanrl["env"] if cleanrl else "")
    if not env:
        raise UserError(f"'{path}' does not say its environment; say it before the path: {source}@CartPole-v1={path}")
    algo = str(config.get("exp_name") or "") or (cleanrl["exp"] if cleanrl else "") or algo_of(path)
    algo = algo or (path.stem if path.is_file() else source)
    seed = _whole(config.get("seed"))
    if seed is None:
        seed = int(cleanrl["seed"]) if cleanrl else seed_of(path)
    return Record(
        path, env, algo, seed, path.name, "", source, config=config, evals=evals, metrics=metrics, episodes=episodes
    )


def _whole(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


# --- TensorBoard ---------------------------------------------------------------------------------------------------

EVENTS = "events.out.tfevents."


class Dialect(NamedTuple):
    """Where a library logs its returns."""

    source: str
    mean: str = ""
    """The mean return of recent training episodes."""
    episode: str = ""
    """The return of each training episode."""
    length: str = ""
    evals: str = ""
    """The mean return of an evaluation."""
    deviation: str = ""


DIALECTS = (
    Dialect("cleanrl", episode="charts/episodic_return", length="charts/episodic_length"),
    Dialect("sb3", mean=MEAN_RETURN, evals="eval/mean_reward", deviation="eval/std_reward"),
    Dialect("sb3", evals="eval/mean_reward", deviation="eval/std_reward"),
    Dialect("rl_games", mean="rewards/step"),
    Dialect("rl_games", mean="rewards0/step"),
    Dialect("skrl", mean="Reward / Total reward (mean)"),
    Dialect("rsl_rl", mean="Train/mean_reward"),
)


class Scalar(NamedTuple):
    step: int
    wall: float
    value: float


def records_of(path: Path) -> Iterator[bytes]:
    """The records of an event file, up to the first that is half-written or damaged."""
    from tensorboard.summary.writer.record_writer import masked_crc32c

    data = path.read_bytes()
    at = 0
    while at + 12 <= len(data):
        length, check = struct.unpack_from("<QI", data, at)
        if masked_crc32c(data[at : at + 8]) != check:
            if at == 0:
                raise UserError(f"'{path}' is no event file, or a damaged one")
            return
        if at + 16 + length > len(data):
            return
        yield data[at + 12 : at + 12 + length]
        at += 16 + length


def scalars(paths: Iterable[Path]) -> tuple[dict[str, list[Scalar]], dict[str, str], float]:
    """Every scalar of these event files by its tag; every text; and the time of the first event.

    A file that begins a session at some step takes back what earlier files said from there on, as TensorBoard does.
    """
    from google.protobuf.message import DecodeError
    from tensorboard.compat.proto import event_pb2

    found: dict[str, list[Scalar]] = {}
    texts: dict[str, str] = {}
    began = float("inf")
    for path in sorted(paths, key=_natural):
        for raw in records_of(path):
            try:
                event = event_pb2.Event.FromString(raw)
            except DecodeError:
                break  # damaged from here on
            began = min(began, event.wall_time)
            if event.session_log.status == event.session_log.START:
                found = {tag: [s for s in rows if s.step < event.step] for tag, rows in found.items()}
            for value in event.summary.value:
                number = _scalar(value)
                if number is not None:
                    found.setdefault(value.tag, []).append(Scalar(event.step, event.wall_time, number))
                elif value.tag.endswith("text_summary") and value.tensor.string_val:
                    texts[value.tag] = value.tensor.string_val[0].decode("utf-8", "replace")
    return {tag: rows for tag, rows in found.items() if rows}, texts, began


def _natural(path: Path) -> list[tuple[int, str]]:
    """By the time in the name, and by what follows it: 9 before 10."""
    return [(int(x), "") if x.isdecimal() else (0, x) for x in re.split(r"(\d+)", path.name)]


def _scalar(value: Any) -> float | None:
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return float(value.simple_value)
    if kind != "tensor":
        return None
    from tensorboard.util.tensor_util import make_ndarray

    try:
        array = make_ndarray(value.tensor)
    except (TypeError, ValueError):
        return None
    return float(array.reshape(())) if array.size == 1 and array.dtype.kind in "fiu" else None


def _events(folder: Path, paths: Sequence[Path], hints: Hints) -> Iterator[Record]:
    tags, texts, began = scalars(paths)
    if not tags:
        raise UserError(f"'{folder}' holds event files without any number yet")
    dialect = next(
        (d for d in DIALECTS if any(t in tags for t in (d.mean, d.episode, d.evals))), Dialect("tensorboard")
    )
    if tag := hints.columns.get("return"):
        if tag not in tags:
            raise UserError(f"'{folder}' has no tag '{tag}' (it has: {_few(sorted(tags))})")
        dialect = Dialect(dialect.source, mean=tag, evals=tag)
    tables = _tables(tags, dialect, began)
    yield _make(folder, dialect.source, (*tables, _settings(texts)), hints)


def event_tables(folder: Path) -> tuple[dict[str, Column], dict[str, Column], dict[str, Column]]:
    """kumite's own event files, for a run that kept no CSV."""
    try:
        tags, _, began = scalars(folder.glob(f"{EVENTS}*"))
    except (OSError, UserError):
        tags, began = {}, 0.0
    return _tables(tags, Dialect("kumite", mean=MEAN_RETURN, evals="eval/mean_reward"), began)


def _tables(
    tags: Mapping[str, list[Scalar]], dialect: Dialect, began: float
) -> tuple[dict[str, Column], dict[str, Column], dict[str, Column]]:
    metrics = _joined(tags, began)
    if dialect.mean in tags:
        metrics[MEAN_RETURN] = metrics[dialect.mean]
    episodes = _rows(tags, {"return": dialect.episode}, began)
    if episodes and len(tags.get(dialect.length, ())) == len(episodes["return"]):
        episodes |= {"length": _rows(tags, {"length": dialect.length}, began)["length"]}
    evals = _rows(tags, {"mean": dialect.evals}, began)
    if evals and len(tags.get(dialect.deviation, ())) == len(evals["mean"]):
        evals |= {"std": _rows(tags, {"std": dialect.deviation}, began)["std"]}
    return evals, metrics, episodes


def _rows(tags: Mapping[str, list[Scalar]], columns: Mapping[str, str], began: float) -> dict[str, Column]:
    """One tag as a table of its own, a row per event."""
    ((name, tag),) = columns.items()
    if tag not in tags:
        return {}
    step, wall, value = np.array(tags[tag], np.float64).T
    return {"env_step": step, "time_s": wall - began, name: value}


def _joined(tags: Mapping[str, list[Scalar]], began: float) -> dict[str, Column]:
    """All tags in one table, a row per step; the last of a step counts."""
    if not tags:
        return {}
    steps = sorted({s.step for rows in tags.values() for s in rows})
    row = {step: i for i, step in enumerate(steps)}
    time = np.full(len(steps), np.nan)
    out: dict[str, Column] = {"env_step": np.array(steps, np.float64), "time_s": time}
    for tag, rows in tags.items():
        out[tag] = np.full(len(steps), np.nan)
        for step, wall, value in rows:
            out[tag][row[step]] = value
            time[row[step]] = wall - began
    return out


def _settings(texts: Mapping[str, str]) -> dict[str, Any]:
    """The settings that CleanRL writes as a table: |param|value| and a line per setting."""
    text = next((t for tag, t in texts.items() if tag.split("/")[0] in ("hyperparameters", "config")), "")
    rows = [line.strip().strip("|").split("|", 1) for line in text.splitlines() if line.strip().startswith("|")]
    return {key.strip(): value.strip() for key, value in (r for r in rows[2:] if len(r) == 2)}


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")


# --- Stable-Baselines3 ---------------------------------------------------------------------------------------------


def _sb3(folder: Path, files: Sequence[str], events: Sequence[Path], hints: Hints) -> Iterator[Record]:
    """progress.csv, evaluations.npz and monitor files; event files beside them say the same once more."""
    metrics: dict[str, Column] = {}
    evals: dict[str, Column] = {}
    env = ""
    if "progress.csv" in files:
        metrics = table(folder / "progress.csv")
        for theirs, ours in (("time/total_timesteps", "env_step"), ("time/time_elapsed", "time_s")):
            if theirs in metrics:
                metrics[ours] = metrics[theirs]
        if "env_step" not in metrics:
            raise UserError(f"'{folder / 'progress.csv'}' has no column time/total_timesteps")
        evals = _some(metrics, {"mean": "eval/mean_reward", "mean_length": "eval/mean_ep_length"})
    elif events:
        tags, _, began = scalars(events)
        _, metrics, _ = _tables(tags, Dialect("sb3", mean=MEAN_RETURN), began)
    if "evaluations.npz" in files:
        evals = _evaluations(folder / "evaluations.npz", metrics) or evals
    monitors = [folder / f for f in files if f.endswith("monitor.csv")]
    episodes, env = _monitors(monitors)
    if not (metrics or evals or episodes):
        raise UserError(f"'{folder}' holds no finished row yet")
    yield _make(folder, "sb3", (evals, metrics, episodes, {}), hints, env)


def _some(metrics: Mapping[str, Column], columns: Mapping[str, str]) -> dict[str, Column]:
    """The rows of a table in which the first of these columns stands."""
    names = {ours: theirs for ours, theirs in columns.items() if theirs in metrics}
    if "mean" not in names:
        return {}
    here = np.isfinite(metrics[names["mean"]])
    beside = {"env_step": "env_step", "time_s": "time_s"} | names
    return {ours: metrics[theirs][here] for ours, theirs in beside.items() if theirs in metrics}


def _evaluations(path: Path, metrics: Mapping[str, Column]) -> dict[str, Column]:
    """Arrays only: numpy refuses objects, which could run code."""
    with path.open("rb") as file, np.load(file) as arrays:
        steps, results = np.asarray(arrays["timesteps"], np.float64), np.asarray(arrays["results"], np.float64)
        lengths = np.asarray(arrays["ep_lengths"], np.float64) if "ep_lengths" in arrays else None
    if results.ndim != 2 or len(results) != len(steps):
        raise UserError(f"'{path}': expected results [evaluations, episodes], found {list(results.shape)}")
    out = {
        "env_step": steps,
        "mean": results.mean(1),
        "std": results.std(1),
        "min": results.min(1, initial=np.inf),
        "max": results.max(1, initial=-np.inf),
        "episodes": np.full(len(steps), float(results.shape[1])),
    }
    return out if lengths is None or lengths.shape != results.shape else out | {"mean_length": lengths.mean(1)}


def _monitors(paths: Sequence[Path]) -> tuple[dict[str, Column], str]:
    """Episodes of all copies in the order of their ends; their steps are those of the episodes that have ended."""
    rows: list[tuple[float, float, float]] = []
    env, started = "", []
    for path in paths:
        first, _, rest = path.read_text(encoding="utf-8", errors="replace").partition("\n")
        try:
            head = json.loads(first.removeprefix("#"))
        except ValueError:
            raise UserError(f"'{path}' does not begin as a monitor file does") from None
        env = env or str(head.get("env_id") or "").replace("None", "")
        started.append(float(head.get("t_start") or 0.0))
        lines = rest.split("\n")[:-1]
        names = lines[0].strip().split(",") if lines else []
        if not {"r", "l", "t"} <= set(names):
            continue
        whole = [line.strip().split(",") for line in lines[1:]]
        r, l, t = (numbers(w[names.index(c)] for w in whole if len(w) == len(names)) for c in "rlt")
        rows += zip((t + started[-1] - started[0]).tolist(), r.tolist(), l.tolist())
    if not rows:
        return {}, env
    time, returns, lengths = np.array(sorted(rows)).T
    good = np.isfinite(lengths) & np.isfinite(returns)
    steps = np.cumsum(lengths[good])
    return {"env_step": steps, "time_s": time[good], "return": returns[good], "length": lengths[good]}, env


# --- plain CSV -----------------------------------------------------------------------------------------------------

ROLES: dict[str, tuple[str, ...]] = {
    "step": (
        *("env_step", "env_steps", "global_step", "total_timesteps", "time/total_timesteps", "num_timesteps"),
        *("timesteps", "timestep", "total_steps", "num_env_steps", "frames", "frame", "steps", "step"),
    ),
    "return": (
        *("mean", "return", "mean_return", "average_return", "episodic_return", "episode_return", "eval_return"),
        *("eval/mean_reward", "eval/return", "charts/episodic_return", MEAN_RETURN, "mean_reward", "episode_reward"),
        *("reward", "score", "value"),
    ),
    "time": ("time_s", "wall_time", "wall time", "time/time_elapsed", "elapsed", "seconds", "time"),
    "seed": ("seed", "run_seed"),
    "env": ("env", "env_id", "environment", "task"),
    "algo": ("algo", "algorithm", "method", "agent"),
}
"""What columns are usually called; the first that is there counts, case aside."""


def _roles(head: Sequence[str], said: Mapping[str, str]) -> dict[str, str]:
    """Role -> column; {} where the steps or the returns cannot be found."""
    lower = {name.strip().lower(): name for name in reversed(head)}
    roles = {role: lower[name] for role, names in ROLES.items() if (name := next((n for n in names if n in lower), ""))}
    roles |= {role: name for role, name in said.items() if name in head}
    return roles if {"step", "return"} <= roles.keys() else {}


def plain(path: Path, hints: Hints) -> Iterator[Record]:
    """A CSV with named columns: steps and returns, and perhaps time, seed, env, algo; each of their values is a run.

    Nobody knows whether its returns are of evaluations or of training: they are both.
    """
    head, rows = cells(path, ended=False)
    unknown = [name for name in hints.columns.values() if name not in head]
    roles = _roles(head, hints.columns)
    if not roles or unknown:
        lacking = f"no column '{unknown[0]}'" if unknown else "no columns that are known for steps and returns"
        raise UserError(f"'{path}' has {lacking} (it has: {_few(head)}); say which: --columns step=NAME return=NAME")
    at = {role: head.index(name) for role, name in roles.items()}
    runs: dict[tuple[str, ...], list[list[str]]] = {}
    for row in rows:
        runs.setdefault(tuple(row[at[k]] if k in at else "" for k in ("env", "algo", "seed")), []).append(row)
    if not runs:
        raise UserError(f"'{path}' holds no whole row")
    for (env, algo, seed), own in runs.items():
        columns = {name: numbers(column) for name, column in zip(head, zip(*own))}
        metrics = {"env_step": columns[roles["step"]], MEAN_RETURN: columns[roles["return"]], **columns}
        evals = {"env_step": metrics["env_step"], "mean": metrics[MEAN_RETURN]}
        if "time" in roles:
            evals["time_s"] = metrics["time_s"] = _seconds(columns[roles["time"]])
        config = {"env": env, "exp_name": algo, "seed": seed}
        yield _make(path, "csv", (evals, metrics, {}, {k: v for k, v in config.items() if v}), hints)


def _seconds(time: Column) -> Column:
    """A clock's time counts from the first row."""
    return time - np.nanmin(time) if np.isfinite(time).any() and np.nanmin(time) > 1e8 else time
