"""What a study measured, next to what others have published: its files, a page, a picture and a table.

    python -m benchmarks.results.collect [STUDY]     runs of `kumite bench STUDY` below runs/ (readme)

Of each run evals.csv, config.yaml and manifest.json are kept, below STUDY/ in this folder, as in benchmarks/curves.
The page is `kumite report`, the picture `kumite plot`; the table goes into README.md. Needs the extra `plots`.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

from benchmarks.curves.bars import count
from benchmarks.curves.collect import copy, groups, machine, read
from kumite.lab import compare, plot, records, report

HERE = Path(__file__).parent


class Published(NamedTuple):
    mean: float
    source: str
    env: str
    """The environment there."""
    steps: int


KATA = "KataRL2, 3 seeds, read off its plots"
PUBLISHED: dict[tuple[str, str], Published] = {
    ("HalfCheetah-v5", "ppo"): Published(2470, KATA, "HalfCheetah-v4", 1_000_000),
    ("Hopper-v5", "ppo"): Published(3130, KATA, "Hopper-v4", 1_000_000),
}


def line(env: str, algo: str, seeds: list[Path]) -> str:
    """Everything at the last step that all seeds were measured at."""
    evals = [read(s / "evals.csv") for s in seeds]
    end = min(e[-1]["env_step"] for e in evals)
    last = [[r for r in e if r["env_step"] <= 1.001 * end][-1]["mean"] for e in evals]
    deviation = f" ± {statistics.stdev(last):.4g}" if len(last) > 1 else ""
    facts = json.loads((seeds[0] / "manifest.json").read_text(encoding="utf-8"))
    known = PUBLISHED.get((env, algo))
    theirs = f"{known.mean:g} on {known.env} at {count(known.steps)} ({known.source})" if known else "-"
    each = ", ".join(f"{x:.4g}" for x in last)
    cells = (env, algo, count(end), f"{statistics.mean(last):.4g}{deviation}", each, theirs, facts["started"][:10])
    return f"| {' | '.join(cells)} | {machine(facts)} |"


def main(study: str) -> None:
    into = HERE / study
    for run in sorted(HERE.parents[1].glob(f"runs/*/*/{study}*-s*")):
        copy(run, into, study)
    names = ("environment", "algorithm", "steps", "return", "of each seed", "published", "date", "machine")
    rows = [f"| {' | '.join(names)} |", "|---" * len(names) + "|", *(line(*group) for group in groups(into))]
    readme, begin, end = HERE / "README.md", f"<!-- {study}: written by collect.py -->", f"<!-- end of {study} -->"
    before, _, rest = readme.read_text(encoding="utf-8").partition(begin)
    table = "\n".join(rows)
    readme.write_text(f"{before}{begin}\n\n{table}\n\n{end}{rest.partition(end)[2]}", encoding="utf-8")
    found = records.grouped(records.load([into]))
    plot.save(plot.curves(compare.lines(found, band="range"), band="range"), into / "curves.png")
    report.write(report.contents(found, title=f"kumite: {study}"), into / "report.html")
    page = into / "report.html"  # it names the folders of runs: as they are in this repository
    page.write_text(page.read_text(encoding="utf-8").replace(f"{HERE.parents[1]}/", ""), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "readme")
