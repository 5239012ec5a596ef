"""Run folders as records: what a folder says, half-written files, labels, filters, and words for places."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

import kumite
from kumite.errors import UserError
from kumite.lab import records
from kumite.lab.records import LabWarning, Place
from tests.lab.folders import EVALS, run, study


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained: the same run with CSVs and with event files alone."""
    root = tmp_path_factory.mktemp("real")
    for name, track in (("both", ("csv", "tensorboard")), ("events", ("tensorboard",))):
        settings = {"dir": str(root), "name": name, "track": track, "eval": {"every": 400}, "threads": 1}
        kumite.PPO("CartPole-v1", steps=1200, quiet=True, **settings).learn()
    return root


def test_a_run_that_kumite_wrote(real: Path) -> None:
    """Tables, settings, the three axes, and how far it came."""
    (record,) = (r for r in records.load([real]) if r.name == "both")
    assert (record.env, record.algo, record.seed) == ("CartPole-v1", "ppo", 0)
    assert record.config["eval.every"] == 400
    assert record.facts["packages"]["torch"]
    assert record.planned == 1200 <= record.steps
    steps, time, updates = (record.curve("eval", axis) for axis in records.AXES)
    assert steps and time and updates
    assert len(steps.x) == len(record.evals["mean"]) >= 3
    assert len(updates.x) == len(steps.x), "the last evaluation has its number of updates too"
    assert (updates.x[1:] >= updates.x[:-1]).all() and updates.x[-1] > 0
    assert record.curve("train") and record.curve("train/loss") and record.curve("evals/mean_length")
    assert record.curve("nothing/like/this") is None


def test_without_csv_the_events_are_read(real: Path) -> None:
    both, events = records.load([real])
    assert (both.name, events.name) == ("both", "events")
    wanted, found = both.curve("eval"), events.curve("eval")
    assert wanted and found
    assert found.x.tolist() == wanted.x.tolist()
    assert found.y.tolist() == pytest.approx(wanted.y.tolist())
    assert events.curve("train")


def test_a_line_that_is_half_written_does_not_count(tmp_path: Path) -> None:
    folder = run(tmp_path, evals=[(1000, 10.0), (2000, 20.0)])
    with (folder / "evals.csv").open("a") as file:
        file.write("3000,30.0,3")  # too few cells
    assert records.read(folder).evals["env_step"].tolist() == [1000, 2000]
    whole = (folder / "evals.csv").read_text().rpartition("\n")[0]
    (folder / "evals.csv").write_text(f"{whole}\n3000,30.0,30.0,1.0,29.0,31.0,10,20")  # all cells, the last one cut
    assert records.read(folder).evals["mean"].tolist() == [10, 20]
    (folder / "evals.csv").write_text(f"{whole}\n3000,,words,1,1,1,1,1\n")
    assert records.read(folder).evals["env_step"].tolist() == [1000, 2000, 3000]
    found = records.read(folder).curve("eval")
    assert found and found.x.tolist() == [1000, 2000]


@pytest.mark.parametrize("text", ["", EVALS, EVALS + "\n", "\0\0\0", "\n\n\n", 'a,b\n"1,2\n3,4\n'])
def test_tables_without_rows(tmp_path: Path, text: str) -> None:
    folder = run(tmp_path, evals=[])
    (folder / "evals.csv").write_text(text)
    assert records.read(folder).curve("eval") is None


def test_columns_that_came_later_are_empty_before(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("env_step,x,y\n1,2,\n2,3,4\n")
    found = records.table(tmp_path / "a.csv")
    assert found["x"].tolist() == [2, 3]
    assert str(found["y"].tolist()) == "[nan, 4.0]"


def test_a_run_is_found_once(tmp_path: Path) -> None:
    study(tmp_path)
    every = records.load([tmp_path, tmp_path / "CartPole-v1", f"x={tmp_path / 'CartPole-v1' / 'ppo'}"])
    assert len(every) == 12
    assert sorted({r.label for r in every}) == ["", "x"]


def test_a_study_is_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder and its file both mean its runs, begun or not, and no others."""
    monkeypatch.chdir(tmp_path)
    study(tmp_path / "runs", algos=["ppo", "sac"])
    place = tmp_path / "runs" / "studies" / "study"
    place.mkdir(parents=True)
    (place / "study.yaml").write_text(
        "name: study\nalgos: ppo\nenvs: [CartPole-v1, Pendulum-v1]\nseeds: 2\ndir: runs\n"
    )
    for word in (place, place / "study.yaml"):
        found = records.load([word])
        assert [(r.algo, r.env, r.seed) for r in found] == [("ppo", "CartPole-v1", 0), ("ppo", "CartPole-v1", 1)]


def test_words_for_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert records.place("runs") == Place(Path("runs"))
    assert records.place("sb3=logs/a") == Place(Path("logs/a"), "sb3")
    assert records.place("sb3@dmc:walker-walk=logs") == Place(Path("logs"), "sb3", "dmc:walker-walk")
    assert records.place("logs/lr=3") == Place(Path("logs/lr=3"))
    (tmp_path / "lr=3").mkdir()
    assert records.place("lr=3") == Place(Path("lr=3"))


def test_places_without_runs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no file or folder '.*nowhere'"):
        records.load([tmp_path / "nowhere"])
    with pytest.raises(UserError, match=r"there are no runs in '.*': neither kumite's nor logs"):
        records.load([tmp_path])
    (tmp_path / "config.yaml").write_text("a: 1\n")
    with pytest.raises(UserError, match="names no algorithm and environment"):
        records.load([tmp_path])


def test_one_broken_run_does_not_hide_the_others(tmp_path: Path) -> None:
    run(tmp_path)
    broken = run(tmp_path, seed=1)
    (broken / "config.yaml").write_text("a: [1\n")
    (run(tmp_path, seed=2) / "manifest.json").write_text("{")
    with pytest.warns(LabWarning, match="left out: .*is not a plain YAML file"):
        found = records.load([tmp_path])
    assert [r.seed for r in found] == [0, 2]
    assert found[1].facts == {}


def test_steps_on_another_scale(tmp_path: Path) -> None:
    run(tmp_path / "a", evals=[(1000, 1.0), (2000, 2.0)])
    (found,) = records.load([f"frames={tmp_path / 'a'}"], scale={"frames": 4.0})
    curve = found.curve()
    assert curve and curve.x.tolist() == [4000, 8000]
    with pytest.raises(UserError, match="--scale: there is no 'frame' among the labels; did you mean 'frames'"):
        records.load([f"frames={tmp_path / 'a'}"], scale={"frame": 4.0})


# --- labels --------------------------------------------------------------------------------------------------------


def labels(root: Path, *by: str) -> dict[str, int]:
    groups = records.grouped(records.load([root]), by)
    return {label: sum(map(len, envs.values())) for label, envs in groups.items()}


def test_the_algorithm_is_the_label(tmp_path: Path) -> None:
    assert labels(study(tmp_path)) == {"ppo": 6, "sac": 6}


def test_names_tell_variants_apart(tmp_path: Path) -> None:
    """Where runs of one algorithm share environment and seed; the other algorithm keeps its plain label."""
    run(tmp_path, name="wide")
    run(tmp_path, name="deep")
    run(tmp_path, algo="sac", name="plain")
    assert labels(tmp_path) == {"ppo deep": 1, "ppo wide": 1, "sac": 1}


def test_other_seeds_under_other_names_are_seeds(tmp_path: Path) -> None:
    run(tmp_path, seed=0, name="monday")
    run(tmp_path, seed=1, name="tuesday")
    assert labels(tmp_path) == {"ppo": 2}
    assert labels(tmp_path, "name") == {"ppo monday": 1, "ppo tuesday": 1}


def test_twins_that_no_name_tells_apart_are_told(tmp_path: Path) -> None:
    """Time stamps are no names; the same name a second time has a number behind its seed."""
    run(tmp_path, name="20261118-221652", lr=1e-3)
    run(tmp_path, name="20261119-080000", lr=1e-4)
    with pytest.warns(LabWarning, match=r"'ppo' on CartPole-v1 has 2 runs with seed 0.*; tell them apart with --by lr"):
        assert labels(tmp_path) == {"ppo": 2}
    assert labels(tmp_path, "lr") == {"ppo lr=0.0001": 1, "ppo lr=0.001": 1}
    again = run(tmp_path / "b", name="x")
    again.rename(again.with_name("x-s0-2"))
    run(tmp_path / "b", name="x")
    with pytest.warns(LabWarning, match="2 runs with seed 0"):
        assert labels(tmp_path / "b") == {"ppo": 2}


def test_settings_as_labels(tmp_path: Path) -> None:
    run(tmp_path, seed=0, actor={"width": 64, "layers": [64, 32]})
    run(tmp_path, seed=1, actor={"width": 128, "layers": [128]})
    assert labels(tmp_path, "actor.width") == {"ppo actor.width=128": 1, "ppo actor.width=64": 1}
    assert labels(tmp_path, "actor.layers") == {"ppo actor.layers=128": 1, "ppo actor.layers=64,32": 1}
    assert labels(tmp_path, "algo") == {"ppo": 2}
    with pytest.raises(UserError, match=r"no run has a setting 'actor\.widht'; did you mean 'actor.width'"):
        labels(tmp_path, "actor.widht")


def test_a_label_with_several_algorithms_names_them(tmp_path: Path) -> None:
    study(tmp_path / "theirs", envs=["CartPole-v1"])
    study(tmp_path / "ours", algos=["ppo"], envs=["CartPole-v1"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        groups = records.grouped(records.load([tmp_path / "ours", f"old={tmp_path / 'theirs'}"]))
        assert list(groups) == ["old ppo", "old sac", "ppo"]
        only = records.grouped(records.load([tmp_path / "ours", f"old={tmp_path / 'theirs' / 'CartPole-v1' / 'sac'}"]))
    assert list(only) == ["old", "ppo"]


def test_seeds_stand_in_order(tmp_path: Path) -> None:
    for seed in (10, 2, 1):
        run(tmp_path, seed=seed)
    ((_, envs),) = records.grouped(records.load([tmp_path])).items()
    assert [r.seed for r in envs["CartPole-v1"]] == [1, 2, 10]


# --- filters -------------------------------------------------------------------------------------------------------


def test_filters(tmp_path: Path) -> None:
    study(tmp_path, envs=["CartPole-v1", "Hopper-v5", "dmc:walker-walk"])
    every = records.load([tmp_path])

    def kept(**how: list[str]) -> set[tuple[str, str]]:
        return {(r.algo, r.env) for r in records.chosen(every, **how)}

    assert len(kept()) == 6
    assert kept(algos=["SAC"], envs=["*-v?"]) == {("sac", "CartPole-v1"), ("sac", "Hopper-v5")}
    assert {env for _, env in kept(suites=["dmc", "mujoco"])} == {"dmc:walker-walk", "Hopper-v5"}
    with pytest.raises(UserError, match=r"--algos: there is no 'td3' \(there are: ppo, sac\)"):
        kept(algos=["td3"])
    with pytest.raises(UserError, match="--envs: there is no 'Hoper-v5'; did you mean 'Hopper-v5'"):
        kept(envs=["Hoper-v5"])
    with pytest.raises(UserError, match="no run is left"):
        kept(envs=["Hopper-v5"], suites=["dmc"])


def test_settings_that_differ(tmp_path: Path) -> None:
    a = records.read(run(tmp_path, seed=0, lr=1e-3, gamma=0.9))
    b = records.read(run(tmp_path, seed=1, lr=1e-4, gamma=0.9, device="cuda"))
    assert records.differing([a, b]) == ["lr"]
    assert records.differing([a]) == []
