"""Draw the learning curves collected in this folder: python benchmarks/curves/plot.py [picture.png]

One small picture per environment, evaluation mean against environment steps. With several seeds the line is their mean
and the band reaches from the lowest to the highest; with one seed it is the deviation over its evaluation episodes.
Needs matplotlib: pip install 'kumite[plots]'.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from bars import BARS, count
from collect import HERE, groups, read
from matplotlib.ticker import FuncFormatter, MaxNLocator

# Okabe and Ito's colours, told apart by colour-blind eyes too; line styles differ as well.
STYLES = {"ppo": ("#0072B2", "-"), "sac": ("#D55E00", "-"), "a2c": ("#009E73", "-")}
SPARE = [("#CC79A7", "--"), ("#56B4E9", "--"), ("#E69F00", "--"), ("#000000", "--")]


def curve(seeds: list[Path]) -> tuple[list[float], list[float], list[float], list[float]]:
    """Steps, mean, lower and upper edge. Evaluations of different seeds are matched by their order."""
    evals = [read(s / "evals.csv") for s in seeds]
    rows = list(zip(*(e[: min(map(len, evals))] for e in evals)))
    steps = [sum(r["env_step"] for r in row) / len(row) for row in rows]
    mean = [sum(r["mean"] for r in row) / len(row) for row in rows]
    if len(evals) == 1:
        return steps, mean, [r[0]["mean"] - r[0]["std"] for r in rows], [r[0]["mean"] + r[0]["std"] for r in rows]
    return steps, mean, [min(r["mean"] for r in row) for row in rows], [max(r["mean"] for r in row) for row in rows]


def panel(axes: Any, env: str, entries: list[tuple[str, list[Path]]]) -> None:
    spare = iter(SPARE)
    for algo, seeds in entries:
        colour, style = STYLES.get(algo) or next(spare)
        steps, mean, low, high = curve(seeds)
        many = f", {len(seeds)} seeds" if len(seeds) > 1 else ""
        axes.plot(steps, mean, style, color=colour, linewidth=1.8, label=f"{algo.upper()}{many}")
        axes.fill_between(steps, low, high, color=colour, alpha=0.18, linewidth=0)
        if (env, algo) in BARS:
            axes.axhline(BARS[env, algo].mean, color=colour, linewidth=1, linestyle=":")
    axes.set_title(env.replace("atari-", "Atari "), fontsize=11)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: count(x)))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.set_xlim(left=0)
    axes.tick_params(labelsize=9)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8.5, frameon=False, loc="lower right")


def draw(path: Path) -> None:
    by_env: dict[str, list[tuple[str, list[Path]]]] = {}
    for env, algo, seeds in groups():
        by_env.setdefault(env, []).append((algo, seeds))
    columns = min(4, math.ceil(math.sqrt(len(by_env))) + (len(by_env) > 4))
    rows = math.ceil(len(by_env) / columns)
    figure, grid = plt.subplots(rows, columns, figsize=(3.2 * columns, 2.6 * rows), squeeze=False)
    panels = list(grid.flat)
    for axes, (env, entries) in zip(panels, by_env.items()):
        panel(axes, env, entries)
    for axes in panels[len(by_env) :]:
        axes.set_axis_off()
    figure.supxlabel("environment steps", fontsize=10)
    figure.supylabel("mean return of an evaluation", fontsize=10)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parents[1] / "docs" / "img" / "curves.png")
