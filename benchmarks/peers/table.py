"""The table of results: medians, their spread, and the ratios that are promised."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peers.works import WORKS, Work

HEAD = """# kumite and its peers

Written by `python -m benchmarks.peers`; the single measurements are in [peers.json](peers.json).

Everybody does the same work: the same nets, batch sizes, update ratios and environments, as far as the libraries have
them in common ([works.py](../peers/works.py) holds the numbers, [scripts](../peers/scripts) the words). Each run is a
process of its own; within a repeat everybody runs once, in turns. Rates are environment steps per second after the
warm-up that each work names, so compilation, imports and the filling of buffers are left out, except where the row says
that everything counts. Peers run with each number of threads that the sections name; their better median counts. kumite
runs without flags: it chooses itself. A ratio compares runs of the same repeat; figures are medians, in brackets the
smallest and the largest.
"""
NOISY = 0.05  # others' share of the machine from which on a figure is called provisional
ENOUGH = 3  # repeats below which a verdict is


def write(results: dict[str, Any], file: Path) -> str:
    """Writes the document and gives the ratios as text."""
    ratios = [row for name, result in results.items() for row in compared(name, result)]
    head = ("work", "against", "kumite", "peer", "times faster", "bar", "goal", "")
    text = HEAD + "\n## Ratios\n\n" + markdown(head, ratios) + "\n"
    for name, result in results.items():
        text += "\n" + section(name, result)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return columns(head, ratios)


def figures(runs: list[dict[str, Any]]) -> list[float]:
    return [r["figure"] for r in runs if "failed" not in r]


def best(result: dict[str, Any], entrant: str, larger: bool) -> tuple[str, list[dict[str, Any]]] | None:
    """The thread count with the better median, and its runs."""
    tried = [(t, runs) for t, runs in result["runs"].get(entrant, {}).items() if figures(runs)]
    if not tried:
        return None
    return (max if larger else min)(tried, key=lambda pair: median(figures(pair[1])))


def compared(name: str, result: dict[str, Any]) -> list[tuple[str, ...]]:
    """A row for each peer: how many times faster kumite is."""
    work = WORKS[name]
    mine = best(result, "kumite", work.larger_is_better)
    rows = []
    for entrant in result["runs"]:
        if entrant.startswith("kumite"):
            continue
        bar, goal = work.bars.get(entrant), work.goals.get(entrant)
        wanted = (f"{bar:.2g}" if bar else "", f"{goal:.2g}" if goal else "")
        peer = best(result, entrant, work.larger_is_better)
        if mine is None or peer is None:
            why = failure(result, entrant if mine else "kumite")
            rows.append((name, entrant, "", "", f"no figure: {why}", *wanted, ""))
            continue
        times = ratio(mine[1], peer[1], work)
        rate = median(times) if times else 0.0
        verdict = "" if not bar else "goal" if goal and rate >= goal else "bar" if rate >= bar else "below the bar"
        busy = max(r.get("others", 0) for r in mine[1] + peer[1]) > NOISY
        shown = f"{rate:.2f} ({min(times):.2f} - {max(times):.2f})" if times else "no repeat in common"
        figure = lambda runs: number(median(figures(runs)), work.unit)
        verdict += " (busy)" * busy + f" ({len(times)} of {ENOUGH} repeats)" * (len(times) < ENOUGH)
        rows.append((name, entrant, figure(mine[1]), figure(peer[1]), shown, *wanted, verdict))
    return rows


def ratio(mine: list[dict[str, Any]], peers: list[dict[str, Any]], work: Work) -> list[float]:
    pairs = [(a["figure"], b["figure"]) for a, b in zip(mine, peers) if "failed" not in a and "failed" not in b]
    return [a / b if work.larger_is_better else b / a for a, b in pairs]


def failure(result: dict[str, Any], entrant: str) -> str:
    said = [r["failed"] for runs in result["runs"].get(entrant, {}).values() for r in runs if "failed" in r]
    return said[0] if said else "did not run"


def number(x: float, unit: str) -> str:
    return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"


def section(name: str, result: dict[str, Any]) -> str:
    m = result["machine"]
    head = ("", "threads", result["unit"], "CPU / s", "before the clock", "others had", "notes")
    rows = []
    for entrant, by_threads in result["runs"].items():
        for threads, runs in by_threads.items():
            good = [r for r in runs if "failed" not in r]
            bad = [r["failed"] for r in runs if "failed" in r]
            if not good:
                rows.append((entrant, _threads(threads, []), "failed", "", "", "", bad[0]))
                continue
            x = figures(runs)
            cpu = [r["cpu"] / r["seconds"] for r in good if "cpu" in r]
            before = [r["before"] for r in good if "before" in r]
            rows.append(
                (
                    entrant,
                    _threads(threads, good),
                    f"{number(median(x), result['unit'])} ({number(min(x), '')} - {number(max(x), '')})",
                    f"{median(cpu):.2f}" if cpu else "",
                    f"{median(before):.0f} s" if before else "",
                    f"{max(r.get('others', 0) for r in good):.0%}",
                    "; ".join([*_notes(good[-1]), *(f"{len(bad)} failed: {bad[0]}" for _ in bad[:1])]),
                )
            )
    versions: dict[str, str] = {}
    for by_threads in result["runs"].values():
        for r in (r for runs in by_threads.values() for r in runs):
            versions |= r.get("versions", {})
    packages = ", ".join(f"{k} {v}" for k, v in sorted(versions.items()))
    return (
        f"## {name}\n\n{result['title']}. {result['note']}\n\n{markdown(head, rows)}\n\n"
        f"{m['date']}, {m['processor']}, {m['cores']} cores, Python {m['python']}; "
        f"kumite at {m['commit']}; {packages}.\n"
    )


def _threads(asked: str, runs: list[dict[str, Any]]) -> str:
    if asked != "0":
        return asked
    return f"auto: {runs[-1]['threads_used']}" if runs and "threads_used" in runs[-1] else "auto"


def _notes(run: dict[str, Any]) -> list[str]:
    said = [str(run["note"])] if run.get("note") else []
    if "compiled" in run:
        said.append("compiled" if run["compiled"] else "eager")
    if run.get("precision", "highest") != "highest":
        said.append(f"products: {run['precision']}")
    return said


def markdown(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines)


def columns(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, *rows]
    wide = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, wide)).rstrip() for line in lines)
