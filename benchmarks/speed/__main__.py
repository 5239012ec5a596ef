"""How long the pieces of kumite take on this machine, and whether a change made them faster.

    python -m benchmarks.speed                              the pieces and the whole loops
    python -m benchmarks.speed --only update act/sac        names that contain one of these words
    python -m benchmarks.speed --loops sac-cheetah          whole loops alone
    python -m benchmarks.speed --against HEAD~3             this working tree and that revision, in turns, as ratios
    python -m benchmarks.speed --json speed.json            where the figures go (default: runs/speed.json)

Each round is a process that measures every case once. With --against two processes take turns, one for each side, with
the same interpreter; a ratio is taken within a round, so that what the machine does beside matters little. `least` is
the fastest block of a round, `cpu` is by the process's own clock, which other processes do not move much.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.machine import ROOT, commit, facts
from benchmarks.speed.cases import LOOPS, all_cases

WORKER = Path(__file__).parent / "worker.py"
Figures = dict[str, list[dict[str, Any]]]  # "case/..." or "loop/..." -> one measurement per round


@contextmanager
def checkout(revision: str) -> Iterator[Path]:
    """The files of a revision in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        made = subprocess.run([*git, "add", "--detach", path, revision], capture_output=True, text=True, check=False)
        if made.returncode:
            sys.exit(f"there is no revision '{revision}': {made.stderr.strip().splitlines()[-1]}")
        try:
            yield path
        finally:
            subprocess.run([*git, "remove", "--force", path], capture_output=True, check=False)


def round_of(home: Path, order: dict[str, Any], into: Figures) -> None:
    """One process of one side."""
    environment = {**os.environ, "PYTHONPATH": str(home)}
    environment.setdefault("OMP_NUM_THREADS", "1")
    words = [sys.executable, "-W", "ignore", str(WORKER), json.dumps(order | {"home": str(home)})]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(words, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"the measuring process ended with {done.returncode}")
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            found = json.loads(line)
            name = found.pop("case", None) or "loop/" + found.pop("loop")
            into.setdefault(name, []).append(found)


# --- tables --------------------------------------------------------------------------------------------------------


def summary(figures: Figures) -> list[tuple[str, ...]]:
    rows = []
    for name, found in figures.items():
        good = [f for f in found if "failed" not in f]
        if not good:
            rows.append((name, "failed", "", "", found[0]["failed"]))
        elif name.startswith("loop/"):
            rate = median(f["steps_per_s"] for f in good)
            parts = good[-1]["parts_us_per_step"]
            where = ", ".join(f"{k} {v:,.0f}" for k, v in sorted(parts.items(), key=lambda kv: -kv[1]) if v >= 1)
            about = f"{rate:,.0f} steps/s; us/step: {where}; {good[-1]['us_per_update']:,.0f} us/update"
            cpu = median(f["cpu_us_per_step"] for f in good)
            rows.append((name, us(median(f["us_per_step"] for f in good)), "", us(cpu), about))
        else:
            least, cpu = min(f["least_us"] for f in good), min(f["cpu_us"] for f in good)
            units = good[0]["units"]
            about = f"{1e6 * units / least:,.0f} steps/s" if name.startswith("env/") else ""
            first = median(f["first_s"] for f in good)
            about = f"first call {first:.1f} s" if first > 0.5 and not about else about
            rows.append((name, us(least), us(median(f["median_us"] for f in good)), us(cpu), about))
    return rows


def us(x: float) -> str:
    return f"{x:,.0f}" if x >= 100 else f"{x:.1f}"


def ratios(here: Figures, there: Figures) -> dict[str, dict[str, float]]:
    """How many times faster this tree is: medians and ends over the rounds, by the wall clock and by the process's."""
    found = {}
    for name in here:
        pairs = [(a, b) for a, b in zip(here[name], there.get(name, [])) if "failed" not in a and "failed" not in b]
        wall, cpu = ("us_per_step", "cpu_us_per_step") if name.startswith("loop/") else ("least_us", "cpu_us")
        if pairs:
            by_wall = [b[wall] / a[wall] for a, b in pairs]
            by_cpu = [b[cpu] / a[cpu] for a, b in pairs]
            found[name] = {
                "wall": median(by_wall),
                "wall_least": min(by_wall),
                "wall_most": max(by_wall),
                "cpu": median(by_cpu),
                "cpu_least": min(by_cpu),
                "cpu_most": max(by_cpu),
            }
    return found


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, *rows]
    wide = [max(len(line[i]) for line in lines) for i in range(len(head))]
    last = len(head) - 1
    return "\n".join(
        "  ".join(c.ljust(w) if i in (0, last) else c.rjust(w) for i, (c, w) in enumerate(zip(line, wide))).rstrip()
        for line in lines
    )


# --- the command ---------------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.speed", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="cases whose name contains one of these")
    parser.add_argument("--loops", nargs="*", default=None, metavar="NAME", help=f"whole loops: {' '.join(LOOPS)}")
    parser.add_argument("--against", metavar="REV", help="compare with this revision")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.4, help="per case and round")
    parser.add_argument("--loop-seconds", type=float, default=6.0, help="per loop and round")
    parser.add_argument("--threads", type=int, default=0, help="of the loops; 0 = kumite's choice")
    parser.add_argument("--compile", choices=("auto", "on", "off"), default="auto", help="of the loops")
    parser.add_argument("--json", type=Path, default=ROOT / "runs" / "speed.json")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    names = [case.name for case in all_cases()]
    loops = LOOPS if args.loops is None or args.loops == [] else args.loops
    if unknown := [name for name in loops if name not in LOOPS]:
        parser.error(f"there is no loop '{unknown[0]}' (there are: {', '.join(LOOPS)})")
    if args.only:
        names = [name for name in names if any(word in name for word in args.only)]
        loops = args.loops if args.loops else [name for name in loops if any(w in f"loop/{name}" for w in args.only)]
    elif args.loops is not None:
        names = []
    if args.list:
        print("\n".join([*names, *(f"loop/{name}" for name in loops)]))
        return 0
    if not names and not loops:
        parser.error(f"no case is named like {' or '.join(args.only)}; --list shows them all")
    order = {"cases": names, "loops": loops, "seconds": args.seconds, "loop_seconds": args.loop_seconds}
    order |= {"threads": args.threads, "compile": args.compile}
    here: Figures = {}
    there: Figures = {}
    result: dict[str, Any] = {"machine": facts(), "order": order, "here": here}
    if args.against:
        with checkout(args.against) as tree:
            result |= {"against": args.against, "against_commit": commit(tree), "there": there}
            for i in range(args.rounds):
                sides = [(ROOT, here), (tree, there)]
                for home, into in sides if i % 2 == 0 else sides[::-1]:
                    round_of(home, order, into)
        result["ratios"] = ratios(here, there)
    else:
        for _ in range(args.rounds):
            round_of(ROOT, order, here)
    print(table(("", "least us", "median us", "cpu us", ""), summary(here)))
    if args.against:
        print(f"\ntimes faster than {args.against} ({args.rounds} rounds: median, in brackets the ends)")
        rows = [
            (
                name,
                f"{r['wall']:.2f} ({r['wall_least']:.2f} - {r['wall_most']:.2f})",
                f"{r['cpu']:.2f} ({r['cpu_least']:.2f} - {r['cpu_most']:.2f})",
                next((f["failed"] for f in there.get(name, []) if "failed" in f), ""),
            )
            for name, r in result["ratios"].items()
        ]
        print(table(("", "by the clock", "by CPU time", ""), rows))
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"\n{args.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
