"""Pictures of many runs: `kumite plot`, and the same functions in Python.

A grid with one panel per environment, aggregates with their intervals, performance profiles; as PNG, SVG or PDF. The
same runs give the same bytes. matplotlib (the extra `plots`) is imported when something is drawn.
"""

from __future__ import annotations

import math
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import tyro

from kumite.errors import UserError, missing_extra
from kumite.flags import parse
from kumite.lab import compare, records
from kumite.lab.compare import Aggregates, Line, count, factors, goals, pairs
from kumite.lab.records import Axis, LabWarning
from kumite.lab.scores import ABOUT
from kumite.lab.stats import AGGREGATES, Band, Centre

FORMATS = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class Plot:
    """Draw learning curves, a panel per environment; or, with --summary and --profile, statistics over environments."""

    places: tyro.conf.Positional[Annotated[tuple[str, ...], tyro.conf.arg(metavar="[PLACE | LABEL=PLACE ...]")]] = (
        "runs",
    )
    """Run folders, folders above them, studies, and logs of other libraries (event files, CSVs). label=place names what
    is there; label@CartPole-v1=place also says the environment."""
    out: str = "curves.png"
    """The picture: .png, .svg or .pdf."""
    x: Literal["steps", "time", "updates"] = "steps"
    """Environment steps, wall clock, or gradient updates."""
    y: str = "eval"
    """eval | train (returns of training episodes) | a metric: train/kl, evals/mean_length, ..."""
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
    centre: Literal["mean", "median", "iqm"] = "mean"
    """What is drawn of several seeds."""
    band: Literal["ci", "std", "range", "none"] = "ci"
    """Around it: 95 % bootstrap interval, standard deviation, lowest to highest, or nothing."""
    seeds: bool = False
    """Every run as a thin line, too."""
    summary: bool = False
    """Instead of curves: IQM, median, mean and optimality gap over environments."""
    profile: bool = False
    """Instead of curves: the share of runs above each score."""
    scores: Literal["auto", "atari", "dmc", "d4rl", "range"] = "auto"
    """What returns are measured by in --summary and --profile; auto = by the suite."""
    at: int = 0
    """Steps at which --summary and --profile measure; 0 = the last that every run reached."""
    last: int = 1
    """Evaluations behind a final score."""
    across: int = 0
    """Panels side by side; 0 = chosen."""
    goals: tuple[str, ...] = ()
    """env=return: a dotted line."""
    title: str = ""
    """Above everything."""
    scale: tuple[str, ...] = ()
    """label=factor: what one step of these logs is in environment steps."""
    columns: tuple[str, ...] = ()
    """role=column for plain CSVs: step=Step return=Value; also time, seed, env, algo."""


def main(words: list[str]) -> int:
    args, _ = parse(Plot, words, "kumite plot")
    out = _target(args.out)
    runs = records.load(args.places, factors(args.scale), pairs(args.columns, "--columns"))
    groups = records.grouped(records.chosen(runs, args.algos, args.envs, args.suite), args.by)
    if args.summary or args.profile:
        found = compare.aggregates(groups, args.scores, args.at, args.last, args.y)
        if not args.at and (said := compare.short(found)):
            warnings.warn(said, LabWarning)
        figure = statistics(found, args.summary, args.profile, args.title)
    else:
        lines = compare.lines(groups, args.y, args.x, args.smooth, args.centre, args.band)
        marks = {env: [Mark(value)] for env, value in goals(args.goals, groups).items()}
        figure = curves(lines, args.x, args.y, args.centre, args.band, args.seeds, args.across, args.title, marks)
    save(figure, out)
    print(out)
    return 0


def _target(path: str | Path) -> Path:
    out = Path(path).expanduser()
    if out.suffix.lower() not in FORMATS:
        raise UserError(f"--out {path}: a picture ends in .png, .svg or .pdf")
    return out


# --- style ---------------------------------------------------------------------------------------------------------


class Style(NamedTuple):
    colour: str
    dashes: Any
    marker: str


COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8F6B00")
"""Okabe and Ito's, which colour-blind eyes tell apart; their yellow, too pale on white, is darkened."""
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.6)), (0, (1.4, 1.2)), (0, (6, 1.4, 1.4, 1.4)))
MARKERS = ("o", "s", "^", "D", "v", "p", "<", "h")
MARKED = 7
"""Markers on a line: they tell lines apart in print without colours."""
SETTINGS = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same everywhere
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.labelsize": 9.0,
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    "legend.fontsize": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#D9D9D9",
    "grid.linewidth": 0.6,
    "axes.edgecolor": "#555555",
    "xtick.color": "#333333",
    "ytick.color": "#333333",
    "text.parse_math": False,  # a $ in a name is a $
    "svg.hashsalt": "kumite",  # names inside the file do not change from time to time
    "pdf.fonttype": 42,
    "path.simplify_threshold": 0.5,
}


def styles(labels: Sequence[str]) -> dict[str, Style]:
    """By the order of labels: eight have colours and markers of their own, 32 those or their dashes."""
    n = len(COLOURS)
    return {
        label: Style(COLOURS[i % n], DASHES[i // n % len(DASHES)], MARKERS[i % n]) for i, label in enumerate(labels)
    }


def _new(width: float, height: float) -> Any:
    """A figure that no window system and no global state knows."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise missing_extra("matplotlib", "plots") from None
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _styled() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise missing_extra("matplotlib", "plots") from None
    return matplotlib.rc_context({**matplotlib.rcParamsDefault, **SETTINGS})


def save(figure: Any, path: str | Path, dpi: int = 150) -> Path:
    """The file's ending says which kind; nothing in it depends on the day or the machine."""
    out = _target(path)
    empty = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with _styled():
            figure.savefig(out, dpi=dpi, metadata=empty[out.suffix.lower()])
    except OSError as e:
        raise UserError(f"cannot write {out}: {e.strerror}; choose another --out") from None
    return out


# --- curves --------------------------------------------------------------------------------------------------------


class Mark(NamedTuple):
    """A horizontal line in one panel: a return that is held against, in a label's colour."""

    value: float
    label: str = ""


def curves(
    lines: Mapping[str, Sequence[Line]],
    axis: Axis = "steps",
    y: str = "eval",
    centre: Centre = "mean",
    band: Band = "ci",
    seeds: bool = False,
    across: int = 0,
    title: str = "",
    marks: Mapping[str, Sequence[Mark]] | None = None,
) -> Any:
    """A matplotlib Figure with a panel per environment; `lines` comes from `compare.lines`."""
    labels = sorted({line.label for row in lines.values() for line in row}, key=lambda s: (s.lower(), s))
    style = styles(labels)
    wide = across or _columns(len(lines))
    tall = math.ceil(len(lines) / wide)
    width, height = (3.0 * wide + 0.4, 2.35 * tall + 0.35) if len(lines) > 1 else (5.4, 3.6)
    entries = [_entry(label, lines) for label in labels]
    beside = len(lines) == 1 and len(labels) > 3  # one panel and a long legend: to its right
    in_row = 1 if beside else _in_row(entries, width)
    width += _breadth(entries) if beside else 0.0
    height += (0.3 if title else 0.0) + (0.0 if beside else 0.2 * math.ceil(len(labels) / in_row))
    with _styled():
        figure = _new(width, height)
        unit, name = _unit(lines, axis)
        grid = figure.subplots(tall, wide, squeeze=False)
        for axes, env in zip(grid.flat, lines, strict=False):
            panel(axes, env, lines[env], style, unit, seeds, (marks or {}).get(env, ()))
        for axes in list(grid.flat)[len(lines) :]:
            axes.set_axis_off()
        for i in range(max(0, len(lines) - wide), len(lines)):  # the lowest panel of each column
            grid.flat[i].set_xlabel(name)
        figure.supylabel(_value(y, centre, band, lines), fontsize=9, multialignment="center")
        if title:
            figure.suptitle(title, fontsize=11)
        figure.legend(
            [_handle(style[label]) for label in labels],
            entries,
            loc="outside right upper" if beside else "outside lower center",
            ncols=in_row,
            frameon=False,
            handlelength=2.6,
            columnspacing=1.6,
        )
    return figure


def _columns(n: int) -> int:
    """1 2 3 2 3 3 4 4 3 4 4 4, then 4 or 5: as few holes as a picture that is wider than tall allows."""
    small = (1, 2, 3, 2, 3, 3, 4, 4, 3, 4, 4, 4)
    return small[n - 1] if n <= len(small) else 5 if n > 20 else 4


def _in_row(entries: Sequence[str], width: float) -> int:
    """Legend entries beside each other: as many as fit, in rows of equal length."""
    fit = max(1, min(len(entries), int(width / _breadth(entries))))
    return math.ceil(len(entries) / math.ceil(len(entries) / fit))


def _breadth(entries: Sequence[str]) -> float:
    """Inches of the longest legend entry: about 14 letters each, and the line in front."""
    return max(map(len, entries)) / 14 + 0.65


def _entry(label: str, lines: Mapping[str, Sequence[Line]]) -> str:
    many = sorted({len(line.runs) for row in lines.values() for line in row if line.label == label})
    runs = f"{many[0]} run" + ("s" if many[0] > 1 else "") if len(many) == 1 else f"{many[0]} to {many[-1]} runs"
    return f"{textwrap.shorten(label, 60, placeholder='...')} ({runs})"


def _handle(style: Style) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=style.colour, linestyle=style.dashes, linewidth=1.8, **_marked(style))


def _marked(style: Style) -> dict[str, Any]:
    return {"marker": style.marker, "markersize": 4.5, "markeredgecolor": "white", "markeredgewidth": 0.5}


def _value(y: str, centre: Centre, band: Band, lines: Mapping[str, Sequence[Line]]) -> str:
    what = {"eval": "return of an evaluation", "train": "return of training episodes"}.get(y, y)
    many = any(len(line.runs) > 1 for row in lines.values() for line in row)
    middle = {"mean": "mean", "median": "median", "iqm": "interquartile mean"}[centre]
    around = {"ci": " and 95 % interval", "std": " and deviation", "range": " and range", "none": ""}[band]
    return f"{what}\n{middle}{around} over runs" if many else what


def _unit(lines: Mapping[str, Sequence[Line]], axis: Axis) -> tuple[float, str]:
    if axis != "time":
        return 1.0, {"steps": "environment steps", "updates": "gradient updates"}[axis]
    scale, name = compare.clock(max(c.x[-1] for row in lines.values() for line in row for c in line.runs))
    return scale, f"wall clock [{name}]"


def panel(
    axes: Any,
    env: str,
    lines: Sequence[Line],
    style: Mapping[str, Style],
    unit: float = 1.0,
    seeds: bool = False,
    marks: Sequence[Mark] = (),
) -> None:
    """One environment. Where a shorter run has ended the longer ones go on as thin lines of their own."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    order = list(style)
    for line in lines:
        s = style[line.label]
        faint: dict[str, Any] = {"color": s.colour, "linewidth": 0.7, "alpha": 0.45, "solid_capstyle": "round"}
        for run in line.runs if seeds and len(line.runs) > 1 else ():
            axes.plot(run.x / unit, run.y, **faint)
        for tail in () if seeds else line.tails:
            axes.plot(tail.x / unit, tail.y, **faint)
        x = line.x / unit
        step = max(1, math.ceil(len(x) / MARKED))
        every = (order.index(line.label) * step // max(1, len(order)) if len(x) > 1 else 0, step)
        drawn = {"color": s.colour, "linestyle": s.dashes, "linewidth": 1.6, "markevery": every, **_marked(s)}
        axes.plot(x, line.centre.value, **drawn)
        if np.isfinite(line.centre.low).any():
            axes.fill_between(x, line.centre.low, line.centre.high, color=s.colour, alpha=0.16, linewidth=0)
    for mark in marks:
        colour = style[mark.label].colour if mark.label in style else "#555555"
        axes.axhline(mark.value, color=colour, linewidth=1, linestyle=":")
    axes.set_title(_wrapped(env), fontsize=10 if len(env) <= 30 else 8)
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: count(round(float(x), 6))))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.10g}" if abs(v) < 1e5 else count(float(v))))
    axes.set_xlim(left=min(0.0, *(c.x[0] / unit for line in lines for c in line.runs)))


def _wrapped(name: str) -> str:
    return "\n".join(textwrap.wrap(name, 36)[:3])


# --- statistics over environments ----------------------------------------------------------------------------------


def statistics(found: Aggregates, summary: bool = True, profile: bool = False, title: str = "") -> Any:
    """A matplotlib Figure: aggregates with their intervals, and performance profiles below them."""
    labels = list(found.scores)
    style = styles(labels)
    heights = [0.34 * len(labels) + 1.0] * summary + [3.1] * profile
    width = 7.4 + min(max(map(len, labels)), 44) / 14 if summary else 5.4
    entries = [textwrap.shorten(label, 60, placeholder="...") for label in labels]
    in_row = _in_row(entries, width)
    below = 0.2 * math.ceil(len(labels) / in_row) if profile else 0.0
    with _styled():
        figure = _new(width, sum(heights) + below + 0.25 + (0.3 if title else 0))
        rows = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
        if summary:
            _summary(rows[0], found, labels, style)
        if profile:
            _profile(rows[-1], found, labels, style, entries, in_row)
        if title:
            figure.suptitle(title, fontsize=11)
    return figure


def _summary(figure: Any, found: Aggregates, labels: Sequence[str], style: Mapping[str, Style]) -> None:
    from matplotlib.ticker import MaxNLocator

    names = list(AGGREGATES)
    for axes, name in zip(figure.subplots(1, len(names), sharey=True), names, strict=True):
        axes.use_sticky_edges = False
        for i, label in enumerate(labels):
            value, low, high = found.intervals[label][name]
            colour = style[label].colour
            if math.isfinite(low):
                axes.barh(i, high - low, left=low, height=0.55, color=colour, alpha=0.35, linewidth=0)
            axes.plot([value, value], [i - 0.28, i + 0.28], color=colour, linewidth=2.2, solid_capstyle="butt")
        axes.set_title(f"{name} {'↓' if name == 'optimality gap' else '↑'}", fontsize=9)
        axes.set_ylim(len(labels) - 0.5, -0.5)
        axes.set_yticks(range(len(labels)), [_wrapped(label) for label in labels])
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.xaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 2.5, 5, 10]))
        axes.margins(x=0.12)
    figure.supxlabel(f"{ABOUT[found.scale]}; {_over(found)}", fontsize=8.5)


def _over(found: Aggregates) -> str:
    runs = sorted({len(s) for x in found.scores.values() for s in x})
    many = f"{runs[0]}" if len(runs) == 1 else f"{runs[0]} to {runs[-1]}"
    envs = f"{len(found.envs)} environments" if len(found.envs) > 1 else found.envs[0]
    return f"{envs}, {many} run{'s' if runs[-1] > 1 else ''} each, 95 % stratified bootstrap"


def _profile(
    figure: Any,
    found: Aggregates,
    labels: Sequence[str],
    style: Mapping[str, Style],
    entries: Sequence[str],
    in_row: int,
) -> None:
    axes = figure.subplots()
    for label in labels:
        s, p = style[label], found.profiles[label]
        every = (4 * labels.index(label), 28)
        drawn = {"color": s.colour, "linestyle": s.dashes, "linewidth": 1.6, "markevery": every, **_marked(s)}
        axes.plot(found.taus, p.value, drawstyle="steps-post", **drawn)
        if np.isfinite(p.low).any():
            axes.fill_between(found.taus, p.low, p.high, step="post", color=s.colour, alpha=0.16, linewidth=0)
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlim(found.taus[0], found.taus[-1])
    axes.set_xlabel(f"score τ: {ABOUT[found.scale]}\n{_over(found)}", fontsize=8.5)
    axes.set_ylabel("share of runs with a score above τ")
    figure.legend(
        [_handle(style[label]) for label in labels],
        entries,
        loc="outside lower center",
        ncols=in_row,
        frameon=False,
        handlelength=2.6,
    )
