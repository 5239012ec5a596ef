"""benchmarks/results: which runs are collected and kept, and that tables say what the runs measured."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.curves.bars import Duel
from benchmarks.results import collect, pages
from kumite.lab import records
from tests.lab import folders

ROOT = Path(__file__).parents[2]
RISING = [(1000, 100.0), (2000, 200.0), (3000, 300.0)]


class Place:
    """An empty benchmarks/curves and a runs/ beside it."""

    def __init__(self, root: Path) -> None:
        self.runs, self.curves = root / "runs", root / "benchmarks" / "curves"
        self.curves.mkdir(parents=True)

    def run(self, day: int = 1, **given: Any) -> Path:
        path = folders.run(self.runs / given.pop("at", ""), **{"name": "curve", "evals": RISING, **given})
        file = path / "manifest.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "started": f"2026-11-{day:02}T00:00:00+0000"}))
        return path

    def collect(self, *words: str) -> list[str]:
        return collect.collect(words, self.runs, self.curves)

    @property
    def kept(self) -> dict[str, float]:
        """<env>/<algo>/<seed> -> last mean."""
        found = sorted(p.parent for p in self.curves.glob("*/*/*/evals.csv"))
        return {p.relative_to(self.curves).as_posix(): float(records.read(p).evals["mean"][-1]) for p in found}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


# --- what is copied ------------------------------------------------------------------------------------------------


def test_small_files_whole_rows_and_no_path_of_the_machine(place: Place) -> None:
    path = place.run(env="kumite/Recall-v0", dir="/home/me/runs", encoder="own:Net")
    with (path / "evals.csv").open("a") as file:
        file.write("4000,40.0,4")  # a run is writing it
    facts = json.loads((path / "manifest.json").read_text())
    facts["command"] = ["/opt/my venv/bin/kumite", "train", "ppo", "kumite/Recall-v0", "--dir=/home/me/runs"]
    (path / "manifest.json").write_text(json.dumps(facts))
    place.collect()
    to = place.curves / "kumite-Recall-v0" / "ppo" / "s0"
    assert sorted(p.name for p in to.iterdir()) == sorted(collect.FILES)
    assert (to / "evals.csv").read_text() == (path / "evals.csv").read_text().removesuffix("4000,40.0,4")
    assert not re.search(r"/(home|opt|me)\b", "".join((to / name).read_text() for name in collect.FILES))
    record = records.read(to)
    assert (record.env, record.config["dir"], record.config["encoder"]) == ("kumite/Recall-v0", "runs", "own:Net")
    assert record.facts["command"] == ["kumite", "train", "ppo", "kumite/Recall-v0", "--dir=runs"]


def test_names_say_which_runs_and_which_variant(place: Place, tmp_path: Path) -> None:
    for i, name in enumerate(("curve", "curve-ff", "readme", "night", "night-ff")):
        place.run(seed=i, name=name)
    place.run(seed=7, name="odd", at="../elsewhere")
    place.collect()
    assert set(place.kept) == {"CartPole-v1/ppo/s0", "CartPole-v1/ppo-ff/s1", "CartPole-v1/ppo/s2"}
    place.collect("night", str(tmp_path / "elsewhere"))
    assert set(place.kept) >= {"CartPole-v1/ppo/s3", "CartPole-v1/ppo-ff/s4", "CartPole-v1/ppo-odd/s7"}
    with pytest.raises(SystemExit, match="nigth is neither a folder nor the name of a run"):
        place.collect("nigth")


# --- what is kept --------------------------------------------------------------------------------------------------


def test_a_seed_made_again_replaces_the_old_one_whatever_comes_first(place: Place) -> None:
    place.run(day=2, seed=0, evals=[(3000, 2.0)])
    place.run(day=1, seed=1)
    place.collect()
    note = place.curves / "CartPole-v1" / "ppo" / "s0" / "note.txt"
    note.write_text("about the first")
    place.run(day=1, seed=0, evals=[(3000, 1.0)], name="readme")
    assert "kept instead" in "".join(place.collect("readme"))  # older: nothing changes
    assert place.kept["CartPole-v1/ppo/s0"] == 2.0
    assert note.exists()
    place.run(day=3, seed=0, evals=[(3000, 3.0)], at="new")
    place.collect(str(place.runs / "new"))
    assert place.kept == {"CartPole-v1/ppo/s0": 3.0, "CartPole-v1/ppo/s1": 300.0}
    assert not note.exists()


def test_an_unfinished_run_waits_for_its_end(place: Place) -> None:
    place.run(day=1, evals=[(3000, 1.0)])
    place.run(day=2, seed=1, evals=[(1000, 5.0)])
    place.run(day=2, evals=[(1000, 2.0)], at="new")
    place.collect()
    place.collect(str(place.runs / "new"))
    assert place.kept == {"CartPole-v1/ppo/s0": 1.0, "CartPole-v1/ppo/s1": 5.0}
    (row,) = rows(pages.table(pages.load(place.curves)))
    assert row["steps"] == "1k to 3k of 3k, unfinished: 1 of 2"
    place.run(day=2, evals=[(1000, 2.0), (2999, 4.0)], at="end")
    place.collect(str(place.runs / "end"))
    assert place.kept["CartPole-v1/ppo/s0"] == 4.0


def test_another_preset_replaces_the_whole_group_aloud(place: Place) -> None:
    for seed in range(3):
        place.run(day=1, seed=seed)
    place.run(day=1, seed=0, env="Hopper-v5")
    place.collect()
    place.run(day=2, seed=4, at="new", lr=2e-3)
    said = place.collect(str(place.runs / "new"))
    assert set(place.kept) == {"CartPole-v1/ppo/s4", "Hopper-v5/ppo/s0"}
    assert sum("lr 0.001 instead of 0.002" in line for line in said) == 3
    place.collect()  # runs/ still has the old ones
    assert set(place.kept) == {"CartPole-v1/ppo/s4", "Hopper-v5/ppo/s0"}


@pytest.mark.parametrize(
    ("algo", "settings", "mixed"),
    [
        ("ppo", {"eval": {"every": 7}, "device": "cuda", "env.mode": "async"}, True),
        ("ppo", {"gamma": 0.99}, True),  # the default, written out
        ("ppo", {"a_setting_that_is_no_more": 1}, True),
        ("ppo", {"num_envs": 4}, False),
        ("ppo", {"env.sticky": 0.0}, False),
        ("sac", {"steps": 9000}, True),
        ("ppo", {"steps": 9000, "lr_schedule": "constant"}, True),
        ("ppo", {"steps": 9000, "lr_schedule": "linear"}, False),
        ("dqn", {"steps": 9000}, False),  # epsilon falls over a share of the run
        ("dqn", {"steps": 9000, "epsilon_steps": 100}, False),  # no longer, but the other run's does
    ],
)
def test_what_counts_as_another_preset(place: Place, algo: str, settings: dict[str, Any], mixed: bool) -> None:
    schedule = {k: v for k, v in settings.items() if k == "lr_schedule"}
    place.run(algo=algo, seed=0, **schedule)
    place.run(day=2, algo=algo, seed=1, **settings)
    place.collect()
    assert len(place.kept) == (2 if mixed else 1)


# --- what is shown -------------------------------------------------------------------------------------------------


def rows(table: str) -> list[dict[str, str]]:
    """The table at the head of a text, as {column: cell}."""
    lines = [line.strip("| ").split(" | ") for line in table.partition("\n\n")[0].splitlines()]
    return [dict(zip(lines[0], line, strict=True)) for line in lines[2:]]


def groups(place: Place, *runs: tuple[str, str, Sequence[tuple[float, float]]], steps: int) -> records.Groups:
    for i, (env, algo, evals) in enumerate(runs):
        place.run(env=env, algo=algo, seed=i, evals=evals, steps=steps)
    place.collect()
    return pages.load(place.curves)


def test_bars_count_what_came_in_time(place: Place) -> None:
    """500 within 50k: one in time, one too late, one never."""
    curves = [[(49_000, 500.0), (60_000, 90.0)], [(49_000, 499.0), (60_000, 500.0)], [(49_000, 1.0), (60_000, 2.0)]]
    found = groups(place, *(("CartPole-v1", "ppo", curve) for curve in curves), steps=60_000)
    (row,) = rows(pages.table(found))
    assert row["bar: seeds that reached it"] == "500 within 50k: 1 of 3"
    assert row["best mean"] == "334 (2 to 500)"
    assert row["last mean"] == "197.3 (2 to 500)"
    assert (row["seeds"], row["steps"], row["machine"]) == ("0, 1, 2", "60k", "A")
    assert rows(pages.headline(found)) == [{"last evaluation": "`ppo`", "CartPole-v1": "197.3 ± 270"}]


def test_published_figures_stand_beside_runs_that_came_as_far(place: Place) -> None:
    found = groups(
        place,
        ("Hopper-v5", "ppo", [(1_000_448, 7.0)]),
        ("Walker2d-v5", "ppo", [(1_000_000, 8.0), (2_000_000, 9.0)]),
        ("HalfCheetah-v5", "ppo", [(800_000, 9.0)]),
        steps=2_000_000,
    )
    said = {row["environment"]: row["published"] for row in rows(pages.table(found))}
    assert said == {
        "Hopper-v5": "3130 on Hopper-v4 at 1M (KataRL2)",
        "Walker2d-v5": "3200 on Walker2d-v4 at 1M (KataRL2); there 8",
        "HalfCheetah-v5": "-",
    }


def test_one_against_another_at_the_same_step(place: Place) -> None:
    found = groups(
        place,
        ("Hopper-v5", "tqc", [(100_000, 30.0)]),
        ("Hopper-v5", "sac", [(100_000, 20.0), (200_000, 90.0)]),
        ("Hopper-v5", "sac", [(100_000, 10.0), (200_000, 90.0)]),
        ("Walker2d-v5", "sac", [(200_000, 90.0)]),
        steps=200_000,
    )
    duels = [Duel(env, "tqc", "sac", 100_000) for env in ("Hopper-v5", "Walker2d-v5")]
    (row,) = rows(pages.duels(found, duels))
    assert [*row.values()] == ["Hopper-v5", "100k", "tqc: 30, 1 run", "sac: 15 (10 to 20), 2 runs"]


def test_every_page_is_written_between_its_marks(place: Place) -> None:
    found = [("CartPole-v1", "ppo", RISING), ("kumite/Recall-v0", "sac", RISING)]
    groups(place, *found, steps=3000)
    root = place.curves.parents[1]
    results = root / "benchmarks" / "results"
    results.mkdir()
    (root / "docs" / "img").mkdir(parents=True)
    for name in ("README.md", "benchmarks/results/README.md"):
        (root / name).write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    pages.write(root)
    assert {p.name for p in (results / "figures").iterdir()} == {"ppo.png", "own.png"}
    text = (results / "README.md").read_text(encoding="utf-8")
    assert "![The PPO family](figures/ppo.png)" in text
    assert "figures/td3.png" not in text
    assert "benchmarks/curves/CartPole-v1/ppo/s0" in (results / "report.html").read_text(encoding="utf-8")
    assert (root / "docs" / "img" / "curves.png").stat().st_size > 1_000
    first = text, (root / "README.md").read_text(encoding="utf-8")
    pages.write(root)
    again = (results / "README.md").read_text(encoding="utf-8"), (root / "README.md").read_text(encoding="utf-8")
    assert again == first


# --- what is committed ---------------------------------------------------------------------------------------------


def test_the_tables_are_those_of_the_runs() -> None:
    """Else: python -m benchmarks.results.pages"""
    found = pages.load()
    text = (ROOT / "benchmarks" / "results" / "README.md").read_text(encoding="utf-8")
    assert pages.table(found) in text
    assert pages.duels(found) in text
    assert pages.headline(found) in (ROOT / "README.md").read_text(encoding="utf-8")


def test_collected_runs_are_seeds_of_one_thing_and_name_no_place() -> None:
    here = collect.stored(pages.CURVES)
    kept, said = collect.chosen(here)
    assert len(kept) == len(here) > 30
    assert not said
    texts = {p: p.read_text(encoding="utf-8") for run in here for p in run.record.path.iterdir()}
    assert not [p for p, text in texts.items() if collect.placeless(text) != text]


def test_what_is_committed_stays_small() -> None:
    files = [p for name in ("curves", "results") for p in (ROOT / "benchmarks" / name).rglob("*") if p.is_file()]
    assert sum(p.stat().st_size for p in files if "__pycache__" not in p.parts) < 8_000_000
