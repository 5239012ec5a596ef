"""Did a run reach a return? `python scripts/solved.py RUN THRESHOLD` reads evals.csv there and exits with 1 if not."""

import csv
import sys
from pathlib import Path


def main(run: str, threshold: str) -> int:
    with (Path(run) / "evals.csv").open(newline="") as file:
        best = max(csv.DictReader(file), key=lambda row: float(row["mean"]))
    mean = float(best["mean"])
    solved = mean >= float(threshold)
    print(
        f"{'Solved' if solved else 'Not solved'}: mean return {mean:g} over {best['episodes']} evaluation episodes "
        f"at step {best['env_step']} (wanted: {threshold})"
    )
    return 0 if solved else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
