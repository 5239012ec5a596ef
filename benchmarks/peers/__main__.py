"""kumite against its peers, on this machine, in one run.

    python -m benchmarks.peers                                  every work, every entrant, three repeats
    python -m benchmarks.peers --work sac-cheetah ppo-cartpole  these works; the others keep their last results
    python -m benchmarks.peers --only kumite sb3 --repeats 5    these entrants
    python -m benchmarks.peers --list                           the works and who does them
    python -m benchmarks.peers --table                          write the table anew from the results

The peers live in an environment of their own, benchmarks/peers/.venv, which is made by the first run (about 3 GB);
kumite runs with the interpreter of this command. Within a repeat everybody does the work once, in turns and each in a
process of its own, with one thread and with all of them; kumite chooses for itself. Results:
benchmarks/results/peers.md, and peers.json beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.machine import facts
from benchmarks.peers.table import write
from benchmarks.peers.works import WORKS, Work

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RESULTS = HERE.parent / "results"
VENV = HERE / ".venv"
PATIENCE = 900.0  # seconds after which a run counts as failed


# --- the peers' environment ----------------------------------------------------------------------------------------


def ready() -> Path:
    """The interpreter of the peers' environment, installed anew where its list has changed."""
    python, wanted = VENV / "bin" / "python", (HERE / "requirements.txt").read_text(encoding="utf-8")
    stamp = VENV / "installed.txt"
    if python.exists() and stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    print(f"installing the peers into {VENV} ...", flush=True)
    subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", HERE / "requirements.txt"], check=True)
    stamp.write_text(wanted, encoding="utf-8")
    return python


# --- one run -------------------------------------------------------------------------------------------------------


def command(entrant: str, name: str, work: Work, threads: int, seed: int, seconds: float) -> list[str]:
    if name == "cartpole-475" and entrant == "kumite":  # what a user types; its preset holds the work's numbers
        n = work.numbers
        words = f"train ppo {n['env']} --seed {seed} --steps {n['steps']} --stop-at 475 --eval.every {n['eval_every']}"
        words += f" --eval.episodes {n['eval_episodes']} --num-envs {n['envs']} --threads {threads}"
        return [sys.executable, "-m", "kumite.cli", *words.split()]
    if entrant == "floor":
        from benchmarks.peers.floor import built

        return [str(built()), str(threads), str(seconds)]
    order = {
        "work": name,
        "entrant": entrant,
        "threads": threads,
        "seed": seed,
        "warm": work.warm,
        "seconds": seconds,
        "numbers": work.numbers,
        "born": time.time(),
    }
    mine = entrant.startswith("kumite")
    python = sys.executable if mine else str(VENV / "bin" / "python")
    script = HERE / "scripts" / f"with_{'kumite' if mine else entrant}.py"
    return [python, "-W", "ignore", str(script), json.dumps(order)]


def run(entrant: str, name: str, work: Work, threads: int, seed: int, seconds: float) -> dict[str, Any]:
    """What was measured, or {"failed": why}. `others`: the share of the machine that other processes had meanwhile."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if threads:
        environment |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    else:
        environment.pop("OMP_NUM_THREADS", None)
    try:
        words = command(entrant, name, work, threads, seed, seconds)
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        return {"failed": str(error)}
    with tempfile.TemporaryDirectory() as folder:
        start, busy, mine = time.perf_counter(), _busy(), _children()
        try:
            done = subprocess.run(
                words, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
            )
        except subprocess.TimeoutExpired:
            return {"failed": f"not done after {PATIENCE:.0f} s"}
        wall = time.perf_counter() - start
        others = max(0.0, _busy() - busy - (_children() - mine)) / (wall * (os.cpu_count() or 1))
        found: dict[str, Any] = {"others": round(others, 3), "wall": round(wall, 3)}
        if done.returncode:
            lines = [line for line in done.stderr.strip().splitlines() if line.strip()] or ["no word"]
            return found | {"failed": f"exit {done.returncode}: {lines[-1].strip()[:200]}"}
        for line in done.stdout.splitlines():
            if line.startswith("{"):
                found |= json.loads(line)
        if name == "cartpole-475":
            found["figure"] = wall
            if entrant == "kumite":
                found["solved"] = _solved(Path(folder))
            if not found.get("solved"):
                return found | {"failed": f"475 was not reached (seed {seed})"}
    return found if "figure" in found else found | {"failed": "the script measured nothing"}


def _busy() -> float:
    """CPU seconds that all processes of the machine have used."""
    t = psutil.cpu_times()
    return t.user + t.system + getattr(t, "nice", 0.0) + getattr(t, "softirq", 0.0) + getattr(t, "steal", 0.0)


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _solved(folder: Path) -> bool:
    import csv

    for file in folder.glob("runs/*/*/*/evals.csv"):
        with file.open(encoding="utf-8") as rows:
            return any(float(row["mean"]) >= 475 for row in csv.DictReader(rows))
    return False


# --- all of them ---------------------------------------------------------------------------------------------------


def variants(entrant: str, every: list[int]) -> list[int]:
    """Thread counts to try; 0 = the entrant's own choice."""
    if entrant.startswith("kumite"):
        return [0]
    return every


def do(name: str, only: list[str], repeats: int, threads: list[int], seconds: float) -> dict[str, Any]:
    """All repeats of one work, interleaved."""
    work = WORKS[name]
    entrants = [e for e in work.entrants if not only or e in only]
    turns = [(e, t) for e in entrants for t in variants(e, threads)]
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {e: {str(t): [] for t in variants(e, threads)} for e in entrants}
    for repeat in range(repeats):
        shift = repeat % len(turns)  # nobody is always the one after the slowest
        for entrant, t in turns[shift:] + turns[:shift]:
            found = run(entrant, name, work, t, repeat, seconds or work.seconds)
            runs[entrant][str(t)].append(found)
            said = found.get("failed") or f"{found['figure']:,.4g} {work.unit}"
            busy = f"  (others {found['others']:.0%})" if found.get("others", 0) > 0.05 else ""
            print(f"{name}  {repeat + 1}/{repeats}  {entrant}, threads {t or 'auto'}: {said}{busy}", flush=True)
    return {"title": work.title, "unit": work.unit, "note": work.note, "machine": facts(), "runs": runs}


def main() -> int:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", nargs="+", choices=list(WORKS), default=list(WORKS), metavar="NAME")
    parser.add_argument("--only", nargs="+", default=[], metavar="ENTRANT")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, os.cpu_count() or 1}))
    parser.add_argument("--seconds", type=float, default=0.0, help="how long each clock runs; 0 = as the work says")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder of peers.json and peers.md")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if args.list:
        for name, work in WORKS.items():
            print(f"{name:14}{work.title}\n{'':14}{' '.join(work.entrants)}")
        return 0
    file = args.results / "peers.json"
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    for name in [] if args.table else args.work:
        if any(not e.startswith(("kumite", "floor")) for e in WORKS[name].entrants if not args.only or e in args.only):
            ready()
        fresh = do(name, args.only, args.repeats, args.threads, args.seconds)
        if name in known and args.only:  # what was not run again stays
            fresh["runs"] = known[name]["runs"] | fresh["runs"]
        known[name] = fresh
        args.results.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    known = {name: known[name] for name in WORKS if name in known}
    print(write(known, args.results / "peers.md"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
