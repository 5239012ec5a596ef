"""Draw the learning curves collected in this folder: python -m benchmarks.curves.plot [picture.png|svg|pdf]

`kumite plot benchmarks/curves` draws the same; here the bars of bars.py come on top. With several seeds the line is
their mean and the band reaches from the lowest to the highest. Needs matplotlib: pip install 'kumite[plots]'.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from benchmarks.curves.bars import BARS
from benchmarks.curves.collect import HERE
from kumite.lab import compare, plot, records


def draw(path: Path) -> None:
    groups = records.grouped(records.load([HERE]))
    lines = compare.lines(groups, band="range")
    marks = {
        env: [
            plot.Mark(bar.mean, x.label)
            for x in found
            if (bar := BARS.get((re.sub("[:/]", "-", env), x.label.removesuffix(" curve"))))
        ]
        for env, found in lines.items()
    }
    plot.save(plot.curves(lines, band="range", marks=marks), path)


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parents[1] / "docs" / "img" / "curves.png")
