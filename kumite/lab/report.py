"""One HTML page about many runs: `kumite report`.

The page works from a disk without any network: tables that sort, statistics, curves, filters, what each run did
differently, and its videos. Its code is a few hundred lines of plain JavaScript in `report.html` instead of a plotting
library of megabytes. Numbers and texts travel as JSON and become text nodes, and a content policy allows the page's own
script alone, so that no name of a run, environment or setting can become markup or code.
"""

from __future__ import annotations

import base64
import hashlib
import html
import importlib.resources
import json
import math
import mimetypes
import os
import re
import shlex
import urllib.parse
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro

from kumite import config as c
from kumite.errors import UserError
from kumite.flags import parse
from kumite.lab import compare, records, stats
from kumite.lab.compare import Line, count, factors, goals, pairs
from kumite.lab.records import AXES, IDENTITY, Curve, Groups, LabWarning, Record
from kumite.lab.scores import ABOUT, Scale, suite


@dataclass(frozen=True)
class Report:
    """Write one HTML page with the tables, statistics, curves, settings and videos of many runs."""

    places: tyro.conf.Positional[Annotated[tuple[str, ...], tyro.conf.arg(metavar="[PLACE | LABEL=PLACE ...]")]] = (
        "runs",
    )
    """Run folders, folders above them, studies, and logs of other libraries, as for kumite plot."""
    out: str = "report.html"
    """The page."""
    title: str = "Runs"
    """Its headline."""
    y: tuple[str, ...] = ("eval", "train")
    """Curves: eval, train, and any metrics; the first is what tables and statistics are about."""
    by: tuple[str, ...] = ()
    """What is told apart besides the algorithm: name, source, or settings (lr, actor.width); algo = nothing else."""
    algos: tuple[str, ...] = ()
    """Only these algorithms or labels; patterns with *."""
    envs: tuple[str, ...] = ()
    """Only these environments; patterns with *."""
    suite: tuple[str, ...] = ()
    """Only these suites: atari, dmc, mujoco, classic, box2d, d4rl, ..."""
    smooth: int = 0
    """Points behind each mean; 0 = 100 training episodes, and nothing else smoothed."""
    scores: Literal["auto", "atari", "dmc", "d4rl", "range"] = "auto"
    """What returns are measured by in statistics over environments; auto = by the suite."""
    at: int = 0
    """Steps at which statistics over environments measure; 0 = the last that every run reached."""
    last: int = 1
    """Evaluations behind a final score."""
    goals: tuple[str, ...] = ()
    """env=return: steps and time to this return, and a line in the picture."""
    videos: Literal["auto", "embed", "link", "none"] = "auto"
    """In the page, linked from it, or left out; auto = in the page while small (4 MB each, 24 MB in all)."""
    scale: tuple[str, ...] = ()
    """label=factor: what one step of these logs is in environment steps."""
    columns: tuple[str, ...] = ()
    """role=column for plain CSVs: step=Step return=Value; also time, seed, env, algo."""


def main(words: list[str]) -> int:
    args, _ = parse(Report, words, "kumite report")
    out = Path(args.out).expanduser()
    if out.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--out {args.out}: a page ends in .html")
    runs = records.load(args.places, factors(args.scale), pairs(args.columns, "--columns"))
    groups = records.grouped(records.chosen(runs, args.algos, args.envs, args.suite), args.by)
    data = contents(
        groups,
        args.title,
        args.y,
        args.smooth,
        args.scores,
        args.at,
        args.last,
        goals(args.goals, groups),
        out,
        args.videos,
    )
    write(data, out)
    print(out)
    return 0


def write(data: Mapping[str, Any], path: str | Path) -> Path:
    """The page with these contents."""
    out = Path(path)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(page(data), encoding="utf-8")
    except OSError as e:
        raise UserError(f"cannot write {out}: {e.strerror}; choose another --out") from None
    return out


def page(data: Mapping[str, Any]) -> str:
    """HTML. Whatever is in `data` stays data."""
    template = (importlib.resources.files("kumite") / "lab" / "report.html").read_text(encoding="utf-8")
    script, style = (_hash(re.findall(rf"<{tag}>(.*?)</{tag}>", template, re.DOTALL)[0]) for tag in ("script", "style"))
    policy = (
        f"default-src 'none'; script-src {script}; style-src {style}; img-src data: file: 'self';"
        " media-src data: file: 'self'; base-uri 'none'; form-action 'none'"
    )
    fill = {"POLICY": policy, "TITLE": html.escape(_text(data["title"])), "DATA": _json(data)}
    return re.sub(r"%(POLICY|TITLE|DATA)%", lambda m: fill[m.group(1)], template)


def _hash(code: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}'"


def _json(data: Any) -> str:
    """JSON that cannot end the element it stands in; numbers that are none are null."""
    text = json.dumps(_finite(data), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {_text(k): _finite(v) for k, v in value.items()}
    return [_finite(v) for v in value] if isinstance(value, (list, tuple)) else value


def _text(value: Any) -> str:
    """Names of files need not be Unicode."""
    return str(value).encode("utf-8", "replace").decode()


# --- what the page shows -------------------------------------------------------------------------------------------


def contents(
    groups: Groups,
    title: str = "Runs",
    ys: Sequence[str] = ("eval", "train"),
    smooth: int = 0,
    scale: Scale = "auto",
    at: float = 0,
    last: int = 1,
    goal: Mapping[str, float] | None = None,
    out: Path = Path("report.html"),
    videos: Literal["auto", "embed", "link", "none"] = "auto",
) -> dict[str, Any]:
    """Everything the page shows, as plain data. `groups` comes from `records.grouped`."""
    everything = [r for by_env in groups.values() for runs in by_env.values() for r in runs]
    drawn = {y: _all_axes(groups, y, smooth, loud=i == 0) for i, y in enumerate(ys)}
    drawn = {y: axes for y, axes in drawn.items() if axes["steps"]}
    if not drawn:
        compare.lines(groups, ys[0], "steps", smooth)  # raises, and says what there is
    y = next(iter(drawn))
    if y != ys[0]:
        warnings.warn(f"no run has '{ys[0]}': tables are about '{y}'", LabWarning)
    envs = sorted({r.env for r in everything}, key=lambda e: (e.lower(), e))
    rows = sorted(compare.rows(groups, y, smooth, last), key=lambda r: envs.index(r.env))
    library = _Videos(out, videos)
    what = {"eval": "mean returns of evaluations", "train": "returns of training episodes"}.get(y, y)
    behind = "" if last == 1 else f" (mean of the last {last})"
    return {
        "title": title,
        "about": _about(everything, groups, envs),
        "note": f"Scores are {what}; final{behind}, best and mean height of the curve up to the step where the shortest"
        " run of the row ended. In brackets: 95 % bootstrap interval over runs; bold: the highest final score of its"
        " environment.",
        "drawn": "Mean over runs up to the end of the shortest, with its 95 % bootstrap interval; beyond that, longer"
        " runs go on as thin lines of their own.",
        "labels": [_text(label) for label in groups],
        "envs": [{"name": _text(env), "suite": suite(env)} for env in envs],
        "ys": list(drawn),
        "goals": {_text(env): g for env, g in (goal or {}).items()},
        "rows": [_row(r, y, smooth, (goal or {}).get(r.env)) for r in rows],
        "lines": {y: {axis: [_line(x) for x in found] for axis, found in axes.items()} for y, axes in drawn.items()},
        "aggregates": _aggregates(groups, envs, scale, at, last, y),
        "runs": [
            _run(r, label, same, y, smooth, last, library)
            for label, by_env in groups.items()
            for same in by_env.values()
            for r in same
        ],
    }


def _about(everything: Sequence[Record], groups: Groups, envs: Sequence[str]) -> str:
    dates = sorted({str(r.facts.get("started", ""))[:10] for r in everything} - {""})
    when = f", {dates[0]}" + (f" to {dates[-1]}" if len(dates) > 1 else "") if dates else ""

    def many(n: int, what: str) -> str:
        return f"{n} {what}" + ("s" if n != 1 else "")

    return (
        f"{many(len(everything), 'run')} of {many(len(groups), 'algorithm')} in {many(len(envs), 'environment')}{when}"
    )


def _all_axes(groups: Groups, y: str, smooth: int, loud: bool) -> dict[str, list[Line]]:
    """Axis -> lines of all environments; [] where nobody has this curve."""
    found: dict[str, list[Line]] = {}
    for axis in AXES:
        with warnings.catch_warnings():
            if not (loud and axis == "steps"):
                warnings.simplefilter("ignore", LabWarning)
            try:
                found[axis] = [x for row in compare.lines(groups, y, axis, smooth).values() for x in row]
            except UserError:
                found[axis] = []
    return found


POINTS = 160
"""Points of a line in the page; more cannot be seen."""


def _line(line: Line) -> dict[str, Any]:
    keep = _kept(len(line.x))
    low, high = line.centre.low[keep], line.centre.high[keep]
    return {
        "label": _text(line.label),
        "env": _text(line.env),
        "x": _short(line.x[keep]),
        "v": _short(line.centre.value[keep]),
        "lo": _short(low),
        "hi": _short(high),
        "tails": [_pair(t) for t in line.tails],
        "runs": [_pair(r) for r in line.runs] if len(line.runs) > 1 else [],
    }


def _pair(curve: Curve) -> list[list[float]]:
    keep = _kept(len(curve.x))
    return [_short(curve.x[keep]), _short(curve.y[keep])]


def _kept(n: int) -> Any:
    return np.unique(np.linspace(0, n - 1, min(n, POINTS)).round().astype(int))


def _short(values: Iterable[float]) -> list[float]:
    """Six digits are more than a screen shows."""
    return [float(f"{v:.6g}") for v in values]


def _row(row: compare.Row, y: str, smooth: int, goal: float | None) -> dict[str, Any]:
    reach = None
    if goal is not None:
        curves = [x for r in row.runs if (x := compare.curve(r, y, "steps", smooth))]
        clocks = [x for r in row.runs if (x := compare.curve(r, y, "time", smooth))]
        steps = stats.reaches(curves, goal)
        seconds = stats.reaches(clocks, goal).median if len(clocks) == len(curves) else float("nan")
        reach = {"goal": goal, "reached": steps.reached, "runs": steps.runs, "steps": steps.median, "seconds": seconds}
    seeds = ", ".join("?" if r.seed is None else str(r.seed) for r in row.runs)
    return {
        "label": _text(row.label),
        "env": _text(row.env),
        "runs": len(row.runs),
        "seeds": f"seeds {seeds}",
        "steps": row.steps,
        "final": list(row.final),
        "best": list(row.best),
        "area": list(row.area),
        "seconds": row.seconds,
        "reach": reach,
    }


def _aggregates(
    groups: Groups, envs: Sequence[str], scale: Scale, at: float, last: int, y: str
) -> list[dict[str, Any]]:
    """Over all environments, and over each suite by itself."""
    suites = sorted({suite(env) for env in envs})
    blocks = []
    for name in ["", *(suites if len(suites) > 1 else [])]:
        chosen = {
            label: here
            for label, by_env in groups.items()
            if (here := {env: runs for env, runs in by_env.items() if not name or suite(env) == name})
        }
        try:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always", LabWarning)
                found = compare.aggregates(chosen, scale, at, last, y)
        except UserError as e:
            blocks.append({"suite": name, "why": _sentence(str(e))})
            continue
        blocks.append(_block(name, found, [_sentence(str(w.message)) for w in said]))
    return blocks


def _sentence(text: str) -> str:
    return _text(text[:1].upper() + text[1:])


def _block(name: str, found: compare.Aggregates, said: Sequence[str]) -> dict[str, Any]:
    def steps(env: str) -> str:
        cut = found.at[env] < compare.HALF * found.longest[env]
        return f"{count(found.at[env])}{f' of {count(found.longest[env])}' if cut else ''} steps"

    at = ", ".join(f"{env} at {steps(env)}" for env in found.envs[:8])
    more = f" and {len(found.envs) - 8} more" if found.envs[8:] else ""
    about = f"Scores: {ABOUT[found.scale]}. 95 % stratified bootstrap intervals over runs. {at}{more}"
    return {
        "suite": name,
        "about": _text(". ".join([about, *said])),
        "scale": ABOUT[found.scale],
        "names": list(stats.AGGREGATES),
        "taus": _short(found.taus),
        "labels": [
            {
                "label": _text(label),
                "values": [list(values[n]) for n in stats.AGGREGATES],
                "profile": [_short(x) for x in found.profiles[label]],
            }
            for label, values in found.intervals.items()
        ],
        "better": [{"a": _text(a), "b": _text(b), "p": list(p)} for (a, b), p in found.better.items()],
    }


# --- one run -------------------------------------------------------------------------------------------------------


def _run(
    record: Record, label: str, same: Sequence[Record], y: str, smooth: int, last: int, library: _Videos
) -> dict[str, Any]:
    curve = compare.curve(record, y, "steps", smooth)
    clock = record.curve(y, "time") or record.curve("train", "time")
    machine = record.facts.get("machine")
    command = record.facts.get("command")
    return {
        "label": _text(label),
        "env": _text(record.env),
        "seed": record.seed,
        "name": _text(record.name),
        "path": _text(record.path),
        "steps": record.steps,
        "planned": record.planned,
        "final": stats.final(curve, None, last) if curve else None,
        "best": stats.best(curve) if curve else None,
        "seconds": float(clock.x[-1]) if clock else None,
        "started": _text(record.facts.get("started", ""))[:16].replace("T", " ") or None,
        "machine": _text(machine.get("processor", "")) if isinstance(machine, Mapping) else "",
        "command": _text(shlex.join(map(str, command))) if isinstance(command, list) else None,
        "against": _against(record, same),
        "defaults": _defaults(record),
        "facts": _facts(record),
        "videos": library.of(record.path) if record.source == "kumite" else [],
    }


def _against(record: Record, same: Sequence[Record]) -> list[list[str]]:
    """[setting, this run's, the others'] where the runs of one label and environment differ."""
    others = [r for r in same if r is not record]
    lines = []
    for key in records.differing(same):
        theirs = list(dict.fromkeys(_said(r.config, key) for r in others))
        mine = _said(record.config, key)
        if theirs != [mine]:
            lines.append([_text(key), mine, "; ".join(theirs[:6])])
    return lines


def _defaults(record: Record) -> list[list[str]]:
    """[setting, this run's, what would run by itself] against today's defaults and presets."""
    if record.source != "kumite" or not record.config:
        return []
    try:
        usual = dict(records.flat(c.dump(c.resolve(record.algo, record.env))))
    except (UserError, ImportError):  # an algorithm of the user's own, or one that is no more
        return []
    keys = [k for k in {**record.config, **usual} if k not in IDENTITY]
    return [[_text(k), _said(record.config, k), _said(usual, k)] for k in keys if record.config.get(k) != usual.get(k)]


def _said(config: Mapping[str, Any], key: str) -> str:
    from kumite.flags import say

    return _text(say(config[key])) if key in config else "not there"


def _facts(record: Record) -> list[list[str]]:
    """The manifest, and for strangers' logs their settings, as lines."""
    facts = {k: v for k, v in record.facts.items() if k not in ("command", "algo", "env_id", "seed")}
    lines = [[_text(k), _one(v)] for k, v in records.flat({"written by": record.source, **facts})]
    if record.source != "kumite":
        lines += [[_text(k), _one(v)] for k, v in record.config.items()]
    return lines


def _one(value: Any) -> str:
    return _text(", ".join(map(str, value)) if isinstance(value, (list, tuple)) else value)


class _Videos:
    """Where the page finds the videos of run folders: inside itself while they are small, else beside it."""

    EACH, ALL = 4_000_000, 24_000_000  # bytes
    KINDS = (".mp4", ".webm", ".gif")

    def __init__(self, out: Path, how: str) -> None:
        self.folder, self.how, self.left = out.resolve().parent, how, self.ALL

    def of(self, run: Path) -> list[dict[str, str]]:
        found = sorted((run / "videos").glob("*")) if self.how != "none" else []
        return [v for path in found if path.suffix.lower() in self.KINDS and (v := self._one(path))]

    def _one(self, path: Path) -> dict[str, str] | None:
        try:
            size = path.stat().st_size
            small = size <= min(self.EACH, self.left)
            if self.how == "embed" or (self.how == "auto" and small):
                self.left -= size
                kind = mimetypes.guess_type(path.name)[0] or "video/mp4"
                src = f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
            else:
                src = urllib.parse.quote(Path(os.path.relpath(path.resolve(), self.folder)).as_posix())
        except (OSError, ValueError):  # gone meanwhile, or on another drive
            return None
        return {"name": _text(path.name), "src": src}
