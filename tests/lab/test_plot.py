"""Pictures: what is drawn is what was measured, nothing lies on top of anything, and bad input is a sentence."""

from __future__ import annotations

import sys
import warnings
import xml.etree.ElementTree as xml
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from torch.utils.tensorboard import SummaryWriter

from kumite.cli import main
from kumite.errors import UserError
from kumite.lab import compare, plot, records
from kumite.lab.records import LabWarning
from tests.lab.folders import run, study

HEADS = {".png": b"\x89PNG\r\n\x1a\n", ".svg": b"<?xml", ".pdf": b"%PDF"}


def drawn(
    *places: str | Path, by: Sequence[str] = (), y: str = "eval", axis: records.Axis = "steps", **how: object
) -> Figure:
    lines = compare.lines(records.grouped(records.load(places), by), y, axis)
    return plot.curves(lines, axis, y, **how)  # type: ignore[arg-type]


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def thick(axes) -> list:  # type: ignore[no-untyped-def,type-arg]
    return [line for line in axes.lines if line.get_linewidth() > 1]


# --- what is drawn -------------------------------------------------------------------------------------------------


def test_a_panel_per_environment_and_a_line_per_algorithm(tmp_path: Path) -> None:
    """ppo on CartPole: tops 100, 101, 102 of three seeds, at 500 a sixth of it. Mean 101, from lowest to highest."""
    figure = drawn(study(tmp_path))
    assert [axes.get_title() for axes in figure.axes] == ["CartPole-v1", "Hopper-v5"]
    assert legend(figure) == ["ppo (3 runs)", "sac (3 runs)"]
    ppo, sac = thick(figure.axes[0])
    assert ppo.get_xdata().tolist() == [500, 1000, 1500, 2000, 2500, 3000]
    assert ppo.get_ydata()[[0, -1]].tolist() == pytest.approx([101 / 6, 101])
    assert sac.get_ydata()[-1] == pytest.approx(111)
    band = figure.axes[0].collections[0].get_paths()[0].vertices
    assert band[:, 1].max() == pytest.approx(102) and band[:, 1].min() == pytest.approx(100 / 6)
    assert "95 % interval" in figure.get_supylabel()


def test_the_picture_of_a_peer(tmp_path: Path) -> None:
    """Event files of another library beside kumite's runs."""
    run(tmp_path / "runs", episodes=[(100 * i, 10.0) for i in range(1, 31)])
    for seed in (1, 2):
        with SummaryWriter(str(tmp_path / "logs" / f"CartPole-v1__ppo__{seed}__170000000{seed}")) as writer:
            for step in (100, 1000, 2000):
                writer.add_scalar("charts/episodic_return", 20.0 * seed, step)
    figure = drawn(tmp_path / "runs", f"cleanrl={tmp_path / 'logs'}", y="train")
    assert legend(figure) == ["cleanrl (2 runs)", "ppo (1 run)"]
    theirs, ours = thick(figure.axes[0])
    assert theirs.get_ydata().tolist() == [30, 30, 30]
    assert set(ours.get_ydata()) == {10}


def test_no_mean_where_a_run_has_ended(tmp_path: Path) -> None:
    """Seed 1 ended at 2000: the mean too; what seed 0 did afterwards is a thin line of its own."""
    run(tmp_path, seed=0, evals=[(x, float(x)) for x in range(500, 4001, 500)])
    run(tmp_path, seed=1, evals=[(x, 0.0) for x in range(500, 2001, 500)])
    (axes,) = drawn(tmp_path).axes
    (mean,) = thick(axes)
    assert mean.get_xdata()[-1] == 2000 and mean.get_ydata()[-1] == 1000
    (tail,) = [line for line in axes.lines if line.get_linewidth() < 1]
    assert tail.get_xdata().tolist() == [2000, 2500, 3000, 3500, 4000]
    assert tail.get_ydata()[-1] == 4000


def test_two_studies_on_different_step_axes(tmp_path: Path) -> None:
    """Evaluations at other steps and other lengths: each line has its own points, where it was measured."""
    run(tmp_path, seed=0, name="short", evals=[(100, 1.0), (250, 2.0)])
    run(tmp_path, seed=0, name="long", evals=[(10_000, 3.0), (50_000, 4.0)])
    long, short = thick(drawn(tmp_path).axes[0])
    assert (long.get_xdata().tolist(), short.get_xdata().tolist()) == ([10_000, 50_000], [100, 250])


def test_seeds_that_share_no_step_are_drawn_one_by_one(tmp_path: Path) -> None:
    run(tmp_path, seed=0, evals=[(100, 1.0), (200, 2.0)])
    run(tmp_path, seed=1, evals=[(1000, 3.0), (2000, 4.0)])
    (axes,) = drawn(tmp_path).axes
    assert [line.get_xdata().tolist() for line in axes.lines if line.get_linewidth() < 1] == [[100, 200], [1000, 2000]]


def test_training_episodes_are_smoothed_over_a_hundred(tmp_path: Path) -> None:
    """Returns 1 to 200: at the end the mean of 101 to 200. With --smooth 1 the last return itself."""
    run(tmp_path, episodes=[(i, float(i)) for i in range(1, 201)])
    groups = records.grouped(records.load([tmp_path]))
    for smooth, last in ((0, 150.5), (1, 200.0), (10, 195.5)):
        (line,) = compare.lines(groups, "train", smooth=smooth)["CartPole-v1"]
        assert line.centre.value[-1] == pytest.approx(last)
    (evals,) = compare.lines(groups, "eval")["CartPole-v1"]
    assert evals.centre.value.tolist() == [10, 20, 30]


def test_wall_clock_and_updates(tmp_path: Path) -> None:
    """100 steps a second, a tenth of an update a step; times beyond two minutes are shown in minutes."""
    run(tmp_path)
    seconds, updates = drawn(tmp_path, axis="time"), drawn(tmp_path, axis="updates")
    assert thick(seconds.axes[0])[0].get_xdata().tolist() == [10, 20, 30]
    assert seconds.axes[0].get_xlabel() == "wall clock [s]"
    assert thick(updates.axes[0])[0].get_xdata().tolist() == [100, 200, 300]
    run(tmp_path / "slow", evals=[(60_000, 1.0), (90_000, 2.0)])
    minutes = drawn(tmp_path / "slow", axis="time")
    assert minutes.axes[0].get_xlabel() == "wall clock [min]"
    assert thick(minutes.axes[0])[0].get_xdata().tolist() == [10, 15]


def test_eight_algorithms_have_colours_and_markers_of_their_own() -> None:
    style = plot.styles([f"a{i}" for i in range(32)])
    assert len({s.colour for s in list(style.values())[:8]}) == len({s.marker for s in list(style.values())[:8]}) == 8
    assert len({(s.colour, str(s.dashes)) for s in style.values()}) == 32


@pytest.mark.parametrize(("envs", "algos"), [(1, 1), (1, 8), (2, 3), (5, 2), (12, 8)])
def test_nothing_lies_on_top_of_anything(tmp_path: Path, envs: int, algos: int) -> None:
    """Legend, titles, labels and panels keep apart and inside the picture, long names included."""
    names = [
        f"some_long.module_{i}:make_an_environment_with_a_very_long_name" if i % 4 == 3 else f"Env-v{i}"
        for i in range(envs)
    ]
    labels = [f"algorithm_{i}" + "_with_a_long_name" * (i == 2) for i in range(algos)]
    for env in names:
        for algo in labels:
            run(tmp_path, env=env, algo=algo, evals=[(0, -1e6), (2_000_000, 12345.678)])
    figure = drawn(tmp_path, title="A headline")
    figure.canvas.draw()
    inside = figure.bbox
    used = [axes for axes in figure.axes if axes.axison]
    boxes = {f"panel {i}": axes.get_window_extent() for i, axes in enumerate(used)}
    boxes |= {f"title {i}": axes.title.get_window_extent() for i, axes in enumerate(used)}
    boxes |= {f"x {i}": axes.xaxis.label.get_window_extent() for i, axes in enumerate(used) if axes.get_xlabel()}
    boxes |= {"legend": figure.legends[0].get_window_extent(), "y": figure._supylabel.get_window_extent()}
    boxes |= {"headline": figure._suptitle.get_window_extent()}
    assert len(used) == envs
    for name, box in boxes.items():
        assert box.x0 >= inside.x0 - 1 and box.x1 <= inside.x1 + 1, name
        assert box.y0 >= inside.y0 - 1 and box.y1 <= inside.y1 + 1, name
    pairs = [(a, b) for i, a in enumerate(boxes) for b in list(boxes)[i + 1 :]]
    lapping = [(a, b) for a, b in pairs if _overlap(boxes[a], boxes[b]) > 4]
    assert not lapping


def _overlap(a, b) -> float:  # type: ignore[no-untyped-def]
    """Square pixels."""
    wide, tall = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
    return float(max(wide, 0) * max(tall, 0))


# --- statistics ----------------------------------------------------------------------------------------------------


def test_summary_and_profile(tmp_path: Path) -> None:
    """Finals of CartPole: ppo 100 101 102, sac 110 111 112; as scores from 100 to 112: 0 1/12 2/12, 10/12 11/12 1.

    Hopper is the same 100 higher.
    """
    found = compare.aggregates(records.grouped(records.load([study(tmp_path)])), reps=500)
    assert found.scale == "range"
    assert found.at == {"CartPole-v1": 3000, "Hopper-v5": 3000}
    for label, low in (("ppo", 0), ("sac", 10)):
        assert [s.tolist() for s in found.scores[label]] == [pytest.approx([(low + i) / 12 for i in range(3)])] * 2
    # ppo's runs: 0 0 1 1 2 2 (twelfths); without the lowest and the highest: (0 + 1 + 1 + 2) / 4 = 1
    assert found.intervals["ppo"]["IQM"].value == pytest.approx(1 / 12)
    assert found.intervals["sac"]["optimality gap"].value == pytest.approx(1 / 12)
    assert found.better["sac", "ppo"] == (1, 1, 1)
    assert found.better["ppo", "sac"] == (0, 0, 0)
    figure = plot.statistics(found, summary=True, profile=True, title="Both")
    assert [axes.get_title() for axes in figure.axes][:4] == ["IQM ↑", "median ↑", "mean ↑", "optimality gap ↓"]
    assert figure.axes[0].get_yticklabels()[0].get_text() == "ppo"
    ppo, _ = figure.axes[-1].lines
    assert ppo.get_ydata()[0] == pytest.approx(4 / 6)  # above 0: four of six


def test_dmc_scores_are_thousandths(tmp_path: Path) -> None:
    study(tmp_path, envs=["dmc:walker-walk"])
    found = compare.aggregates(records.grouped(records.load([tmp_path])), reps=100)
    assert found.scale == "dmc"
    assert found.scores["ppo"][0].tolist() == pytest.approx([0.1, 0.101, 0.102])


def test_a_summary_is_over_what_all_have(tmp_path: Path) -> None:
    study(tmp_path)
    run(tmp_path, env="Ant-v5", algo="sac")
    with pytest.warns(LabWarning, match=r"over the 2 environment\(s\) that all 2 have; without Ant-v5"):
        found = compare.aggregates(records.grouped(records.load([tmp_path])), reps=100)
    assert found.envs == ["CartPole-v1", "Hopper-v5"]
    run(tmp_path / "other", env="Ant-v5", algo="ppo")
    run(tmp_path / "other", env="Hopper-v5", algo="sac")
    with pytest.raises(UserError, match="no environment has runs of all of them"):
        compare.aggregates(records.grouped(records.load([tmp_path / "other"])))


def test_everything_is_measured_at_the_same_steps(tmp_path: Path) -> None:
    run(tmp_path, evals=[(1000, 1.0), (2000, 2.0), (3000, 9.0)])
    run(tmp_path, algo="sac", evals=[(1000, 3.0), (2000, 5.0)])
    groups = records.grouped(records.load([tmp_path]))
    found = compare.aggregates(groups, "range", reps=10)
    assert found.at == {"CartPole-v1": 2000}
    assert [found.scores[a][0].tolist() for a in ("ppo", "sac")] == [[0], [1]]
    assert "CartPole-v1 at 2k of 3k (--at STEPS chooses)" in compare.short(found)
    first = compare.aggregates(groups, at=1000, reps=10)
    assert first.at == {"CartPole-v1": 1000}
    with pytest.raises(UserError, match="--at: no run of 'sac' on CartPole-v1 reached 3,000 steps"):
        compare.aggregates(groups, at=3000)


def test_rows_by_hand(tmp_path: Path) -> None:
    """Seed 0: 0 then 10; seed 1: 4 then 2. Final (10 + 2) / 2, best (10 + 4) / 2, height (5 + 3) / 2."""
    run(tmp_path, seed=0, evals=[(1000, 0.0), (2000, 10.0)])
    run(tmp_path, seed=1, evals=[(1000, 4.0), (2000, 2.0)])
    (row,) = compare.rows(records.grouped(records.load([tmp_path])))
    assert (row.final.value, row.best.value, row.area.value) == (6, 7, 4)
    assert (row.final.low, row.final.high) == (2, 10)
    assert (row.steps, row.seconds) == (2000, 20)


# --- files ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "words"), [(".png", []), (".svg", []), (".pdf", []), (".svg", ["--summary", "--profile"])]
)
def test_the_same_runs_give_the_same_bytes(tmp_path: Path, kind: str, words: list[str]) -> None:
    study(tmp_path / "runs")
    files = [tmp_path / f"{i}{kind}" for i in range(2)]
    for file in files:
        assert main(["plot", str(tmp_path / "runs"), "--out", str(file), *words]) == 0
    first, second = (file.read_bytes() for file in files)
    assert first.startswith(HEADS[kind])
    assert first == second
    assert len(first) > 3_000
    if kind == ".svg":
        xml.fromstring(first)


def test_the_command_in_a_process_of_its_own(tmp_path: Path, cli) -> None:  # type: ignore[no-untyped-def]
    """The same bytes again, from where nothing of a test is loaded; and the name of the picture on stdout."""
    study(tmp_path / "runs")
    assert main(["plot", str(tmp_path / "runs"), "--out", str(tmp_path / "here.png")]) == 0
    done = cli("plot", "--out", "sub/there.png", MPLCONFIGDIR=str(tmp_path / "mpl"), PYTHONHASHSEED="7")
    assert (done.returncode, done.stdout, done.stderr) == (0, "sub/there.png\n", "")
    assert (tmp_path / "sub" / "there.png").read_bytes() == (tmp_path / "here.png").read_bytes()


def test_the_styles_of_others_do_not_leak(tmp_path: Path) -> None:
    import matplotlib

    run(tmp_path)
    before = dict(matplotlib.rcParams)
    with matplotlib.rc_context({"font.size": 40, "axes.grid": False}):
        plot.save(drawn(tmp_path), tmp_path / "a.png")
    plot.save(drawn(tmp_path), tmp_path / "b.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert dict(matplotlib.rcParams) == before


def test_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They reach the picture."""
    figures: list[Figure] = []
    monkeypatch.setattr(plot, "save", lambda figure, path: figures.append(figure))
    study(tmp_path, envs=["CartPole-v1", "Hopper-v5", "dmc:walker-walk"])
    words = "--algos sac --suite mujoco dmc --x updates --centre median --band range --seeds --title Hello --across 1"
    assert main(["plot", str(tmp_path), *words.split(), "--goals", "Hopper-v5=150"]) == 0
    (figure,) = figures
    assert [axes.get_title() for axes in figure.axes] == ["dmc:walker-walk", "Hopper-v5"]
    assert legend(figure) == ["sac (3 runs)"]
    assert figure.get_supylabel() == "return of an evaluation\nmedian and range over runs"
    assert figure.get_suptitle() == "Hello"
    assert len([line for line in figure.axes[0].lines if line.get_linewidth() < 1]) == 3
    assert [line.get_ydata()[0] for line in figure.axes[1].lines if line.get_linestyle() == ":"] == [150]
    assert figure.axes[0].get_subplotspec().get_gridspec().ncols == 1


# --- bad input -----------------------------------------------------------------------------------------------------


def refused(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    assert main(["plot", *map(str, words)]) == 2
    out, err = capsys.readouterr()
    assert not out and err.startswith("kumite: ") and err.count("\n") == 1, err
    return err


def test_what_cannot_be_drawn_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    run(tmp_path / "runs", evals=[], episodes=[(100, 1.0)])
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "events.out.tfevents.1.host").write_bytes(b"not events at all")
    runs = tmp_path / "runs"
    assert "there are no runs in" in refused(capsys, tmp_path / "empty")
    assert "no file or folder 'nowhere'" in refused(capsys, "nowhere")
    assert "has no evaluations; --y train shows" in refused(capsys, runs)
    assert "is no event file, or a damaged one" in refused(capsys, tmp_path / "bad")
    assert "a picture ends in .png, .svg or .pdf" in refused(capsys, runs, "--out", "a.jpg")
    assert "has no 'train/los'; did you mean" in refused(capsys, runs, "--y", "train/los")
    assert "--goals: expected name=value, got '475'" in refused(capsys, runs, "--goals", "475", "--y", "train")
    assert "did you mean 'CartPole-v1'" in refused(capsys, runs, "--goals", "Cartpole-v1=3", "--y", "train")
    assert "--scale x: expected a number" in refused(capsys, runs, "--scale", "x=fast")
    assert "did you mean '--smooth'" in refused(capsys, runs, "--smoth", "3")
    assert "cannot write" in refused(capsys, runs, "--y", "train", "--out", "/proc/none/a.png")
    assert main(["plot", str(runs), "--y", "train", "--out", str(tmp_path / "a.png")]) == 0


@pytest.mark.filterwarnings("default")
def test_runs_without_evaluations_are_left_out_aloud(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path / "runs", seed=0)
    run(tmp_path / "runs", seed=1, evals=[], episodes=[(100, 1.0)])
    assert main(["plot", str(tmp_path / "runs"), "--out", str(tmp_path / "a.png")]) == 0
    err = capsys.readouterr().err
    assert "left out for having no evaluations: " in err and "study-s1; --y train shows" in err


def test_a_run_that_is_still_going_or_has_just_begun(tmp_path: Path) -> None:
    """Half a line at its end, one evaluation, or nothing at all yet."""
    going = run(tmp_path, seed=0, evals=[(500, 5.0), (1000, 6.0)])
    with (going / "evals.csv").open("a") as file:
        file.write("1500,15.0,7.")
    run(tmp_path, seed=1, evals=[(500, 3.0)])
    begun = run(tmp_path, seed=2, evals=[])
    (begun / "metrics.csv").unlink()
    (begun / "manifest.json").unlink()
    with pytest.warns(LabWarning, match="left out for having no evaluations"):
        figure = drawn(tmp_path)
    (line,) = thick(figure.axes[0])
    assert (line.get_xdata().tolist(), line.get_ydata().tolist()) == ([500], [4])
    plot.save(figure, tmp_path / "a.png")


@pytest.mark.parametrize("value", ["nan", "inf", "1e300", "-1e300"])
def test_numbers_out_of_this_world(tmp_path: Path, value: str) -> None:
    """What is not finite is not drawn; what is enormous is drawn without a warning."""
    folder = run(tmp_path)
    text = (folder / "evals.csv").read_text().replace("20.0,20.0", f"20.0,{value}")
    (folder / "evals.csv").write_text(text)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = drawn(tmp_path)
        plot.save(figure, tmp_path / "a.png")
    (line,) = thick(figure.axes[0])
    assert len(line.get_xdata()) == (3 if "e" in value else 2)
    assert np.isfinite(line.get_ydata()).all()


def test_names_that_look_like_formulas(tmp_path: Path) -> None:
    """$ begins mathematics in matplotlib: a name must not be read as such."""
    run(tmp_path, env=r"Bad$\nonsense_{$-v0", algo="a$b_^$")
    plot.save(drawn(tmp_path, title=r"$\frac$"), tmp_path / "a.svg")


def test_without_matplotlib_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "pip install 'kumite[plots]'" in refused(capsys, tmp_path)
