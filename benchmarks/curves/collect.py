"""Copy what a finished run measured into this folder, and write the table of README.md anew.

    python -m benchmarks.curves.collect              every run below runs/ named curve-s<seed>
    python -m benchmarks.curves.collect RUN ...      these run folders

Only evals.csv, config.yaml and manifest.json are kept: <env>/<algo>/s<seed>/, with ':' and '/' in names as '-'. A run
named otherwise than `curve` (curve-lstm-s0) gets its name into the folder: <algo>-lstm.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from pathlib import Path
from typing import Any

import yaml

from benchmarks.curves.bars import BARS, count

HERE = Path(__file__).parent
BEGIN, END = "<!-- table: written by collect.py -->", "<!-- end of table -->"


def copy(run: Path, into: Path = HERE, study: str = "curve") -> Path | None:
    """The run's folder here (or elsewhere, for a study of another name), or None where it has no evaluation yet."""
    if not (run / "evals.csv").is_file() or len(read(run / "evals.csv")) == 0:
        return None
    facts = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
    variant = re.sub(rf"^{study}-?|-?s\d+$", "", run.name)
    env = re.sub(r"[:/]", "-", facts["env_id"])
    algo = facts["algo"] + (f"-{variant}" if variant else "")
    to = into / env / algo / f"s{facts['seed']}"
    to.mkdir(parents=True, exist_ok=True)
    facts["command"] = ["kumite", *facts["command"][1:]]  # where it was installed says nothing
    texts = {name: (run / name).read_text(encoding="utf-8") for name in ("evals.csv", "config.yaml")}
    texts["manifest.json"] = json.dumps(facts, indent=1) + "\n"
    for name, text in texts.items():  # nor does the folder that runs/ was in
        (to / name).write_text(text.replace(str(run.resolve().parents[2]), "runs"), encoding="utf-8")
    return to


def read(path: Path) -> list[dict[str, float]]:
    with path.open(newline="", encoding="utf-8") as file:
        return [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]


def groups(into: Path = HERE) -> list[tuple[str, str, list[Path]]]:
    """(env, algo, the folders of its seeds), for everything collected here."""
    found = sorted(
        {p.parent.parent for p in into.glob("*/*/s*/evals.csv")}, key=lambda p: (p.parent.name.lower(), p.name)
    )
    return [(p.parent.name, p.name, sorted(p.glob("s*"), key=lambda s: int(s.name[1:]))) for p in found]


def machine(facts: dict[str, Any]) -> str:
    box = facts["machine"]
    gpu = f", {box['devices'][0]}" if box["devices"] else ""
    return f"{box['processor']}, {box['cores']} cores{gpu}; torch {facts['packages']['torch'].partition('+')[0]}"


def line(env: str, algo: str, seeds: list[Path]) -> str:
    evals = [read(s / "evals.csv") for s in seeds]
    facts = json.loads((seeds[0] / "manifest.json").read_text(encoding="utf-8"))
    planned = yaml.safe_load((seeds[0] / "config.yaml").read_text(encoding="utf-8"))["steps"]
    done = min(e[-1]["env_step"] for e in evals)
    short = f" of {count(planned)}" if done < 0.9 * planned else ""
    best, last = [max(r["mean"] for r in e) for e in evals], [e[-1]["mean"] for e in evals]
    bar, verdict = BARS.get((env, algo.partition("-")[0])) if "-" not in algo else None, "-"
    if bar:
        inside = [[r for r in e if not bar.steps or r["env_step"] <= 1.001 * bar.steps] for e in evals]
        good = sum(any(r["mean"] >= bar.mean for r in e) for e in inside)
        verdict = f"{bar.text}: {good} of {len(seeds)}"
    names = ", ".join(s.name[1:] for s in seeds)
    cells = (env, algo, names, count(done) + short, spread(best), spread(last), verdict, facts["started"][:10])
    return f"| {' | '.join(cells)} | {machine(facts)} |"


def spread(values: list[float]) -> str:
    low, high = f"{min(values):.5g}", f"{max(values):.5g}"
    return low if low == high else f"{low} to {high}"


def table() -> str:
    names = ["environment", "algorithm", "seeds", "last evaluation at", "best mean", "last mean"]
    names += ["bar: seeds that reached it", "date", "machine"]
    head = f"| {' | '.join(names)} |"
    return "\n".join([head, "|---" * 9 + "|", *(line(*group) for group in groups())])


def main(runs: list[Path]) -> None:
    for run in runs:
        to = copy(run)
        print(f"{run} -> {to.relative_to(HERE) if to else 'nothing evaluated yet'}")
    readme = HERE / "README.md"
    text = readme.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    readme.write_text(f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    given = [Path(word) for word in sys.argv[1:]]
    main(given or sorted(HERE.parents[1].glob("runs/*/*/curve*-s*")))
