"""What is shown of benchmarks/curves: in this folder tables, pictures and report.html, and the head of kumite's README.

The pictures are those of `kumite plot`, the page is that of `kumite report`. Needs the extra `plots`.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.curves.bars import BARS, DUELS, PUBLISHED, Duel
from kumite.algos import ROWS
from kumite.lab import compare, plot, records, report, study
from kumite.lab.compare import HALF, count
from kumite.lab.records import Groups, LabWarning, Record

ROOT = Path(__file__).parents[2]
CURVES, RESULTS = ROOT / "benchmarks" / "curves", ROOT / "benchmarks" / "results"

HEAD = ("ppo", "ppo-ff", "sac", "sac-ff", "td3", "dqn")
"""The algorithms of the README's picture, one per file of arithmetic; -ff: without memory."""
OWN = "kumite/"
"""Tasks of kumite's own."""
UNSHOWN = "earlier"
"""The variant of runs that were made again with later code: they stay in the table, and out of pictures and page."""


# --- what there is -------------------------------------------------------------------------------------------------


def load(curves: Path = CURVES) -> Groups:
    """Label -> environment -> its seeds; a label is the algorithm with its variant, as its folder is called."""
    groups: Groups = {}
    order = {name: i for i, name in enumerate(ROWS)}
    paths = {p.parent for p in curves.glob("*/*/s*/evals.csv")}
    for path in sorted(paths, key=lambda p: (order.get(base(p.parent.name), len(order)), p.parent.name, p)):
        record = records.read(path)
        facts = {**record.facts, "note": note(path)}
        named = replace(record, path=path.relative_to(curves.parents[1]), label=path.parent.name, facts=facts)
        groups.setdefault(named.label, {}).setdefault(named.env, []).append(named)
    for envs in groups.values():
        for runs in envs.values():
            runs.sort(key=lambda r: r.seed or 0)
    return groups


def note(run: Path) -> str:
    """What has to be known about one run: note.txt beside its files, which goes when the run is replaced."""
    path = run / "note.txt"
    return " ".join(path.read_text(encoding="utf-8").split()) if path.is_file() else ""


def base(label: str) -> str:
    """The algorithm of a label."""
    return label.partition("-")[0]


def shown(groups: Groups) -> Groups:
    """What pictures and the page are made of."""
    return {label: by_env for label, by_env in groups.items() if not label.endswith(f"-{UNSHOWN}")}


def only(groups: Groups, labels: Iterable[str], envs: Iterable[str]) -> Groups:
    envs, labels = set(envs), set(labels)
    found = {a: {e: runs for e, runs in by_env.items() if e in envs} for a, by_env in groups.items() if a in labels}
    return {a: by_env for a, by_env in found.items() if by_env}


def environments(groups: Groups) -> list[str]:
    """The tasks of the study `readme` first, kumite's own last."""
    first = study.load("readme").envs
    found = {env for by_env in groups.values() for env in by_env}
    return sorted(found, key=lambda e: (first.index(e) if e in first else len(first), e.startswith(OWN), e.lower()))


def finished(run: Record) -> bool:
    """It came to its end, or to the return at which it was to stop."""
    aim = run.config.get("stop_at")
    stopped = aim is not None and run.evals["mean"][-1] >= aim
    return bool(stopped or run.evals["env_step"][-1] >= HALF * run.planned)


def at(run: Record, steps: float) -> float | None:
    """Its return at that many steps: the last evaluation until then, None where it did not come as far."""
    x, y = run.evals["env_step"], run.evals["mean"]
    within = y[x <= 1.001 * steps]
    return float(within[-1]) if len(within) and x[-1] >= HALF * steps else None


# --- tables --------------------------------------------------------------------------------------------------------


def grid(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (names, ["---"] * len(names), *rows))


def table(groups: Groups) -> str:
    """Everything, a row per environment and algorithm; below it the machines and the notes on single runs."""
    names = ["environment", "algorithm", "seeds", "steps", "best mean", "last mean", "bar: seeds that reached it"]
    names += ["published", "date", "machine"]
    boxes: dict[str, str] = {}
    rows, notes = [], []
    for env in environments(groups):
        for label, by_env in groups.items():
            if runs := by_env.get(env):
                rows.append(row(env, label, runs, boxes))
                notes += [f"- {env}, {label}, seed {r.seed}: {text}" for r in runs if (text := r.facts["note"])]
    letters = "; ".join(f"{letter}: {box}" for box, letter in boxes.items())
    return "\n\n".join(filter(None, (grid(names, rows), f"Machines: {letters}.", "\n".join(notes))))


def row(env: str, label: str, runs: Sequence[Record], boxes: dict[str, str]) -> list[str]:
    seeds = ", ".join(str(r.seed) for r in runs)
    best, last = [float(r.evals["mean"].max()) for r in runs], [float(r.evals["mean"][-1]) for r in runs]
    dates = sorted({str(r.facts["started"])[:10] for r in runs})
    letters = [boxes.setdefault(machine(r.facts), chr(ord("A") + len(boxes))) for r in runs]
    cells = [
        env,
        label,
        seeds,
        steps(runs),
        spread(best),
        spread(last),
        bar(env, label, runs),
        published(env, label, runs),
    ]
    return [*cells, " to ".join(dict.fromkeys((dates[0], dates[-1]))), ", ".join(sorted(set(letters)))]


def steps(runs: Sequence[Record]) -> str:
    """How far they came; of how many, where they have not come to their end."""
    ends = [float(r.evals["env_step"][-1]) for r in runs]
    text = " to ".join(dict.fromkeys((count(min(ends)), count(max(ends)))))
    open_ended = [r for r in runs if not finished(r)]
    if not open_ended:
        return text
    return f"{text} of {count(max(r.planned for r in open_ended))}, unfinished: {len(open_ended)} of {len(runs)}"


def spread(values: Sequence[float]) -> str:
    """The mean; behind it the lowest and the highest."""
    mean, low, high = map(short, (statistics.mean(values), min(values), max(values)))
    return mean if low == high else f"{mean} ({low} to {high})"


def short(value: float) -> str:
    """Four digits, and every digit before the point."""
    return f"{value:.4g}" if abs(value) < 1e3 else f"{value:.0f}"


def bar(env: str, label: str, runs: Sequence[Record]) -> str:
    aim = BARS.get((env, label))
    if aim is None:
        return "-"
    inside = [r.evals["mean"][r.evals["env_step"] <= 1.001 * aim.steps] if aim.steps else r.evals["mean"] for r in runs]
    return f"{aim.text}: {sum(bool((means >= aim.mean).any()) for means in inside)} of {len(runs)}"


def published(env: str, label: str, runs: Sequence[Record]) -> str:
    """Others' figure, where all of these came as far; and what these had there, where they went on."""
    known = PUBLISHED.get((env, label))
    here = [value for r in runs if known and (value := at(r, known.steps)) is not None]
    if not known or len(here) < len(runs):
        return "-"
    longer = any(r.evals["env_step"][-1] > known.steps / HALF for r in runs)
    where = f" on {known.env}" if known.env != env else ""
    mine = f"; there {spread(here)}" if longer else ""
    return f"{known.mean:g}{where} at {count(known.steps)} ({known.source}){mine}"


def machine(facts: Mapping[str, Any]) -> str:
    box = facts["machine"]
    gpu = f", {box['devices'][0]}" if box["devices"] else ""
    return f"{box['processor']}, {box['cores']} cores{gpu}, torch {facts['packages']['torch'].partition('+')[0]}"


def duels(groups: Groups, which: Sequence[Duel] = DUELS) -> str:
    """Algorithms at the same steps, where both have come as far."""
    rows = []
    for duel in which:
        sides = [
            [value for r in groups.get(label, {}).get(duel.env, ()) if (value := at(r, duel.steps)) is not None]
            for label in (duel.algo, duel.against)
        ]
        if all(sides):
            mine, theirs = (f"{spread(side)}, {len(side)} run{'s' if len(side) > 1 else ''}" for side in sides)
            rows.append([duel.env, count(duel.steps), f"{duel.algo}: {mine}", f"{duel.against}: {theirs}"])
    return grid(["environment", "at steps", "", "held against"], rows) if rows else "No runs yet."


def headline(groups: Groups) -> str:
    """The README's: algorithms down, the tasks of the study `readme` across."""
    envs = [env for env in study.load("readme").envs if any(env in by_env for by_env in groups.values())]
    rows = [
        [f"`{label}`", *(cell(by_env.get(env, ())) for env in envs)]
        for label, by_env in groups.items()
        if label in ROWS and any(env in by_env for env in envs)
    ]
    return grid(["last evaluation", *envs], rows)


def cell(runs: Sequence[Record]) -> str:
    """Mean and deviation over seeds, with their number where it is not three; * where a run is unfinished."""
    if not runs:
        return ""
    last = [float(r.evals["mean"][-1]) for r in runs]
    text = short(statistics.mean(last)) + (f" ± {float(f'{statistics.stdev(last):.2g}'):g}" if len(last) > 1 else "")
    return text + ("" if all(map(finished, runs)) else "\\*") + (f" ({len(runs)})" if len(runs) != 3 else "")


# --- pictures ------------------------------------------------------------------------------------------------------


def pictures(groups: Groups) -> dict[str, tuple[Groups, str]]:
    """File -> what it shows and its title: a picture for each file of arithmetic, one for kumite's own tasks."""
    labels = list(groups)
    envs = environments(groups)
    own, others = [e for e in envs if e.startswith(OWN)], [e for e in envs if not e.startswith(OWN)]
    found = {}
    for home in dict.fromkeys(row.home for row in ROWS.values()):
        mine = [label for label in labels if base(label) in ROWS and ROWS[base(label)].home == home]
        name = home.rpartition(":")[2]
        found[name.lower()] = only(groups, mine, others), f"The {name} family"
    found["own"] = only(groups, labels, own), "Tasks of kumite's own; -ff: without memory"
    return {name: (some, title) for name, (some, title) in found.items() if some}


def draw(groups: Groups, path: Path, title: str = "") -> None:
    lines = compare.lines(groups, band="range")
    ordered = {env: lines[env] for env in environments(groups) if env in lines}
    marks = {env: aims(env, [line.label for line in row]) for env, row in ordered.items()}
    plot.save(plot.curves(ordered, band="range", title=title, marks=marks), path, dpi=110)


def aims(env: str, labels: Sequence[str]) -> list[plot.Mark]:
    """Dotted lines: in an algorithm's colour, grey where it is the aim of several."""
    means: dict[float, list[str]] = {}
    for label in labels:
        if found := BARS.get((env, label)):
            means.setdefault(found.mean, []).append(label)
    return [plot.Mark(mean, who[0] if len(who) == 1 else "") for mean, who in means.items()]


# --- files ---------------------------------------------------------------------------------------------------------


def between(path: Path, name: str, text: str) -> None:
    """Put the text between a page's two marks of this name."""
    begin, end = f"<!-- {name}: written by benchmarks.results.collect -->", f"<!-- end of {name} -->"
    before, found, rest = path.read_text(encoding="utf-8").partition(begin)
    if not found or end not in rest:
        raise SystemExit(f"{path}: there is no '{begin}' with '{end}' behind it")
    path.write_text(f"{before}{begin}\n\n{text}\n\n{end}{rest.partition(end)[2]}", encoding="utf-8")


def write(root: Path = ROOT) -> None:
    """Every page and picture anew."""
    groups = load(root / "benchmarks" / "curves")
    results = root / "benchmarks" / "results"
    figures = pictures(shown(groups))
    for old in (results / "figures").glob("*.png"):
        if old.stem not in figures:
            old.unlink()
    for name, (some, title) in figures.items():
        draw(some, results / "figures" / f"{name}.png", title)
    between(results / "README.md", "table", table(groups))
    between(results / "README.md", "duels", duels(groups))
    links = [f"![{title}](figures/{name}.png)" for name, (_, title) in figures.items()]
    between(results / "README.md", "figures", "\n\n".join(links))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LabWarning)  # that no algorithm runs everywhere is known
        page = report.contents(shown(groups), "kumite: learning results", ys=("eval",), videos="none")
    report.write(page, results / "report.html")
    draw(only(groups, HEAD, environments(groups)), root / "docs" / "img" / "curves.png")
    between(root / "README.md", "results", headline(groups))


if __name__ == "__main__":
    write()
