"""`kumite tune`: spaces, the journal, trials that finish, fall behind, fail or are killed, and the block at the end.

Most trials here are made up: a stand-in for the process writes the evaluations that `landscape` gives for its numbers.
One search runs for real, is killed, goes on, and its block trains.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from kumite import config as c
from kumite.algos import ROWS
from kumite.cli import main
from kumite.errors import RunError, UserError
from kumite.lab import space
from kumite.lab.launch import Stopped
from kumite.lab.space import Choices, Range
from kumite.lab.tune import Result, tune

pytest.importorskip("optuna")

# --- spaces ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", list(ROWS))
def test_every_algorithm_has_a_space_of_its_own_parameters(algo: str) -> None:
    base = c.resolve(algo)
    found = space.default(algo, base)
    assert len(found) >= 5
    assert "lr" in found
    for key, value in space.corners(found):
        c.resolve(algo, "", None, {key: value})


def test_rollouts_that_never_end_are_left_out() -> None:
    base = c.resolve("ppo", "", None, {"steps": 10_000, "num_envs": 8})
    assert space.default("ppo", base)["horizon"] == Choices((32, 64))


@pytest.mark.parametrize(
    ("key", "said", "wanted"),
    [
        ("lr", "1e-5..1e-2", Range(1e-5, 1e-2, log=True)),
        ("lr", "1e-3..2e-3", Range(1e-3, 2e-3)),
        ("lr", "1e-3..2e-3 log", Range(1e-3, 2e-3, log=True)),
        ("lr", "1e-5..1e-2 linear", Range(1e-5, 1e-2)),
        ("lr", {"low": 1e-5, "high": 1, "log": False}, Range(1e-5, 1.0)),
        ("lr", "1e-3 1e-4", Choices((1e-3, 1e-4))),
        ("horizon", "16..2k", Range(16, 2000, log=True, whole=True)),
        ("horizon", "16,32|64", Choices((16, 32, 64))),
        ("actor.width", [64, 128], Choices((64, 128))),
        ("normalize_obs", "yes no", Choices((True, False))),
        ("lr_schedule", ["constant", "linear"], Choices(("constant", "linear"))),
        ("stop_at", "1..2", "the search decides"),
        ("lr", "1e-2..1e-5", "the range '1e-2..1e-5' runs backwards; write 1e-05..0.01"),
        ("lr", "1..1", "holds one value; give it as --lr 1"),
        ("lr", "1e-3", "'0.001' is no choice"),
        ("lr", "a..b", "expected LOW..HIGH, got 'a..b'"),
        ("lr", "1..inf", "two finite ends"),
        ("lr", "1..2 sideways", "expected log or linear, got 'sideways'"),
        ("lr", "0..1 log", "a logarithm needs a range above 0"),
        ("lr", "fast slow", "expected a number, got 'fast'"),
        ("horizon", "1.5..4", "horizon is a whole number, and so are the ends"),
        ("lr_schedule", "1..2", "lr_schedule is text; list the choices"),
        ("actor.layers", "64 64", "cannot be searched"),
        ("lrate", "1..2", "unknown key 'lrate'; did you mean"),
        ("learning_rate", "1..2", "unknown key 'learning_rate'; did you mean 'lr'?"),
        ("seed", "1..2", "tune.seed: the search decides 'seed' itself"),
        ("eval.every", "1..2", "the search decides 'eval.every' itself"),
    ],
)
def test_what_is_searched(key: str, said: Any, wanted: Any) -> None:
    if isinstance(wanted, str):
        with pytest.raises(UserError) as error:
            space.read("ppo", {key: said})
        assert wanted in str(error.value)
    else:
        assert space.read("ppo", {key: said}) == {key: wanted}


def test_groups_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text("lr: 1e-5..1e-2\nactor:\n  width: [32, 64]\n  depth: {low: 1, high: 3}\n")
    found = space.read("sac", space.load(path))
    assert found == {
        "lr": Range(1e-5, 1e-2, True),
        "actor.width": Choices((32, 64)),
        "actor.depth": Range(1, 3, whole=True),
    }
    path.write_text("")
    with pytest.raises(UserError, match="holds no parameter to search"):
        space.load(path)


@pytest.mark.parametrize(
    ("value", "dimension", "near"),
    [
        (0.0, Range(1e-6, 0.1, True), 1e-6),
        (5.0, Range(0, 1), 1),
        (300, Choices((64, 256, 512)), 256),
        ("cosine", Choices(("constant", "linear")), "constant"),
        (float("inf"), Choices((0.1, 0.3)), 0.1),
    ],
)
def test_what_runs_without_tuning_is_put_into_the_space(value: Any, dimension: Any, near: Any) -> None:
    assert space.nearest(value, dimension) == near


# --- made-up trials --------------------------------------------------------------------------------------------------

EVALUATIONS = 10
Landscape = Callable[[Mapping[str, Any], int, int], float]
"""(numbers, seed, evaluation) -> mean return"""


def hill(values: Mapping[str, Any], seed: int, k: int) -> float:
    """Best at lr = 1e-3; what is bad is bad from the beginning."""
    import math

    return 100 - 20 * abs(math.log10(float(values["lr"])) + 3) + k + seed


class MadeUp:
    """A process that has one more evaluation whenever it is looked at."""

    landscape: Landscape = staticmethod(hill)
    started: list[list[str]] = []
    codes: dict[str, int] = {}  # the name of a run -> the exit code it fails with after half its evaluations
    at_once = 0
    most = 0

    def __init__(self, words: Sequence[str], log: Path) -> None:
        kind = type(self)
        kind.started.append(list(words))
        kind.at_once += 1
        kind.most = max(kind.most, kind.at_once)
        if words[0] == "train":
            said = dict(word[2:].split("=", 1) for word in words[3:])
            config = c.resolve(words[1], words[2], None, said)
            self.folder = Path(config.dir) / words[2] / words[1] / f"{config.name}-s{config.seed}"
            self.folder.mkdir(parents=True)
            (self.folder / "config.yaml").write_text(c.to_yaml(config, words[1], words[2]))
            (self.folder / "evals.csv").write_text("env_step,time_s,mean\n")
        else:
            self.folder = Path(words[1])
        self.config = c.resolve("ppo", "", c.load_yaml(self.folder / "config.yaml"))
        self.code: int | None = None
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log

    def poll(self) -> int | None:
        if self.code is not None:
            return self.code
        path = self.folder / "evals.csv"
        k = len(path.read_text().splitlines()) - 1
        if self.folder.name in self.codes and k == EVALUATIONS // 2:
            self.log.write_text("kumite: it broke\n")
            return self._end(self.codes[self.folder.name])
        if k < EVALUATIONS:
            mean = type(self).landscape({"lr": self.config.lr, "gamma": self.config.gamma}, self.config.seed, k)
            with path.open("a") as file:
                file.write(f"{(k + 1) * self.config.eval.every},{k},{mean!r}\n")
            return None
        place = self.folder / "checkpoints" / str(self.config.steps)
        place.mkdir(parents=True)
        steps = self.config.steps
        state = {"last_eval": 0, "eval_step": steps, "env_step": steps, "meter": {"sums": {}}}
        (place / "state.json").write_text(json.dumps(state))
        (place / "manifest.json").write_text("{}")
        return self._end(0)

    def _end(self, code: int) -> int:
        self.code = code
        type(self).at_once -= 1
        return code

    def stop(self) -> None:
        self._end(143)

    def kill(self) -> None:
        self._end(137)


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch, runs: Path) -> type[MadeUp]:
    class Process(MadeUp):
        started: list[list[str]] = []
        codes: dict[str, int] = {}

    class Home:
        cores, gpus = 2, ()

        def start(self, words: Sequence[str], env: Mapping[str, str], log: Path, lock: Path) -> Process:
            return Process(words, log)

        def close(self) -> None: ...

    monkeypatch.setattr("kumite.lab.trials.Local", Home)
    monkeypatch.setattr("kumite.lab.launch.POLL", 0.0)
    monkeypatch.setattr("kumite.lab.trials.LIVE", 0.0)
    return Process


def searched(trials: int = 8, jobs: int = 1, **more: Any) -> Result:
    """A search over two numbers, in runs/tuning/ppo-CartPole-v1."""
    given = {"steps": 1000, "eval": {"every": 100}, "search": {"lr": "1e-5..1e-1", "gamma": [0.9, 0.99]}} | more
    return tune("ppo", "CartPole-v1", trials=trials, jobs=jobs, **given)


def begun(process: type[MadeUp]) -> list[tuple[str, str]]:
    """(run, learning rate), in the order of their starts."""
    found = []
    for words in process.started:
        said = dict(word[2:].split("=", 1) for word in words if "=" in word)
        found.append((f"{said.get('name', words[1])}-s{said.get('seed', '')}", said.get("lr", "")))
    return found


def test_a_search_finds_the_top_and_says_where_it_was(made_up: type[MadeUp]) -> None:
    result = searched(25, jobs=2)
    assert made_up.most == 2
    assert len(made_up.started) == 25
    assert sum(result.trials.values()) == 25
    assert result.trials["pruned"] > 3
    assert 3e-4 < result.parameters["lr"] < 3e-3
    assert result.score == pytest.approx(hill(result.parameters, 0, 8))
    assert result.untuned == pytest.approx(hill({"lr": 1e-3}, 0, 8)), "the preset's numbers were tried first"
    (pattern,) = blocks = yaml.safe_load(result.file.read_text())
    block = blocks[pattern]
    assert pattern == "CartPole-v1"
    for part in ("kumite tune ppo CartPole-v1", "the best of 25", "seed 0", time.strftime("%Y-")):
        assert part in block["source"]
    config = c.resolve("ppo", "CartPole-v1", c.load_yaml(result.file))
    assert (config.lr, config.gamma, config.steps) == (block["lr"], block["gamma"], 1000)
    assert config.num_envs == c.resolve("ppo", "CartPole-v1").num_envs, "what was not searched stays the preset's"
    assert c.coerce(block["lr"], float, "lr") == float(f"{block['lr']:.4g}")


def test_the_same_search_twice_and_one_that_goes_on(made_up: type[MadeUp], runs: Path) -> None:
    whole = searched(9, name="whole")
    first = begun(made_up)
    made_up.started.clear()
    searched(4, name="parts")
    again = searched(9, name="parts")
    assert begun(made_up) == first
    assert again.parameters == whole.parameters
    assert len(made_up.started) == 9
    searched(9, name="parts")
    assert len(made_up.started) == 9, "nothing is left to do"
    made_up.started.clear()
    searched(9, name="other", seed=1)
    assert [lr for _, lr in begun(made_up)][1:] != [lr for _, lr in first][1:]


@pytest.mark.parametrize("after", [1, 4, 11, 30])
def test_killed_and_gone_on_is_as_if_nothing_had_happened(
    after: int, made_up: type[MadeUp], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search itself dies at some moment; its runs are then continued, its trials kept."""
    whole = searched(5, name="whole")
    count = 0

    class Killed(BaseException):
        pass

    real = made_up.poll

    def poll(self: MadeUp) -> int | None:
        nonlocal count
        count += 1
        if count == after:
            raise Killed
        return real(self)

    monkeypatch.setattr(made_up, "poll", poll)
    with pytest.raises(Killed):
        searched(5, name="cut")
    again = searched(5, name="cut")
    assert (again.parameters, again.score, again.trials) == (whole.parameters, whole.score, whole.trials)
    assert (again.trial, again.untuned) == (whole.trial, whole.untuned)


def test_a_signal_keeps_everything(made_up: type[MadeUp], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = searched(5, name="whole")
    real, count = made_up.poll, 0

    def poll(self: MadeUp) -> int | None:
        nonlocal count
        count += 1
        if count == 15:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(self)

    monkeypatch.setattr(made_up, "poll", poll)
    with pytest.raises(Stopped) as stopped:
        searched(5, name="cut")
    assert stopped.value.signal == signal.SIGTERM
    assert searched(5, name="cut").parameters == whole.parameters


def test_several_seeds(made_up: type[MadeUp]) -> None:
    result = searched(3, seeds=3, seed=4, pruner="none")
    assert [name for name, _ in begun(made_up)] == [f"t{n:04d}-s{s}" for n in range(3) for s in (4, 5, 6)]
    assert result.score == pytest.approx(hill(result.parameters, 5, 8))
    assert "seeds 4 to 6" in result.file.read_text()


def test_the_area_counts_every_evaluation(made_up: type[MadeUp]) -> None:
    result = searched(2, score="area")
    assert result.score == pytest.approx(hill(result.parameters, 0, 0) + (EVALUATIONS - 1) / 2)


def test_hyperband_and_random_numbers(made_up: type[MadeUp]) -> None:
    result = searched(12, pruner="hyperband", sampler="random")
    assert sum(result.trials.values()) == 12
    assert result.trials["pruned"] > 0


def test_a_failing_trial_does_not_stop_the_rest(made_up: type[MadeUp]) -> None:
    made_up.codes.update({"t0001-s0": 1, "t0002-s0": 137})
    result = searched(5, pruner="none")
    assert result.trials == {"finished": 3, "pruned": 0, "failed": 2}


def test_returns_that_are_no_numbers(made_up: type[MadeUp], monkeypatch: pytest.MonkeyPatch) -> None:
    odd: Landscape = lambda values, seed, k: float("nan") if values["gamma"] == 0.9 else 1.0
    monkeypatch.setattr(made_up, "landscape", staticmethod(odd))
    result = searched(8, pruner="none")
    assert result.trials["failed"] > 0
    assert result.score == 1.0


def test_when_nothing_works(made_up: type[MadeUp]) -> None:
    """Given up after a few, with what the first of them said; and the same call tries again."""
    made_up.codes.update({f"t{n:04d}-s0": 2 for n in range(9)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(made_up, "poll", lambda self: self._end(2))
        with pytest.raises(RunError, match=r"no trial of \S+ finished \(3 failed\); the first to fail said: it ended"):
            searched(20)
    made_up.codes.clear()
    assert searched(20).trials["finished"] > 0


def test_what_is_already_wrong_at_the_start(runs: Path) -> None:
    for given, wanted in (
        ({"lr": 1e-3}, "lr is given and searched at once"),
        ({"eval": {"every": -1}}, "a search lives on evaluations"),
        ({"name": "a/b"}, "name: expected the plain name of a folder"),
        ({"trials": 0}, "trials: expected at least 1, got 0"),
        ({"seeds": 0}, "seeds: expected at least 1, got 0"),
        ({"pruner": "hope"}, "pruner: expected one of median, hyperband, none"),
        ({"quiet_": 1}, "unknown key 'quiet_'"),
        ({"search": {"gamma": "0.5..2"}}, "tune.gamma: expected between 0 and 1, got 2.0"),
        ({"search": {"tau": "0.1..0.2"}}, "unknown key 'tau'"),
    ):
        with pytest.raises(UserError) as error:
            searched(**given)  # type: ignore[arg-type]
        assert wanted in str(error.value)
    assert not list(runs.iterdir())


# --- the journal -----------------------------------------------------------------------------------------------------


def test_a_torn_last_line_and_a_lock_that_nobody_holds(made_up: type[MadeUp], runs: Path) -> None:
    searched(3)
    journal = runs / "tuning" / "ppo-CartPole-v1" / "journal.log"
    with journal.open("ab") as file:
        file.write(b'{"op_code":4,"work')
    (journal.parent / "journal.log.lock").write_text("")
    assert searched(5).trials["finished"] + searched(5).trials["pruned"] == 5


def test_a_damaged_journal(made_up: type[MadeUp], runs: Path) -> None:
    searched(2)
    journal = runs / "tuning" / "ppo-CartPole-v1" / "journal.log"
    lines = journal.read_bytes().splitlines(keepends=True)
    for broken, wanted in (
        ([*lines[:3], b"no json\n", *lines[3:]], "is damaged in line 4"),
        ([*lines[:4], b'{"op_code":99,"worker_id":"x"}\n', *lines[4:]], "is damaged"),
        ([b"\x00\xff\x00\n"], "is damaged in line 1"),
        ([b"[1]\n"], "is damaged"),
        (lines[5:], "is damaged"),
    ):
        journal.write_bytes(b"".join(broken))
        with pytest.raises(UserError) as error:
            searched(3)
        assert wanted in str(error.value)
        assert "remove it, or choose another --name" in str(error.value)
        assert journal.read_bytes() == b"".join(broken), "left as it was"


def test_a_journal_of_somebody_elses(made_up: type[MadeUp], runs: Path) -> None:
    import optuna

    folder = runs / "tuning" / "ppo-CartPole-v1"
    folder.mkdir(parents=True)
    file = optuna.storages.journal.JournalFileBackend(str(folder / "journal.log"))
    optuna.create_study(storage=optuna.storages.JournalStorage(file), study_name="theirs")
    with pytest.raises(UserError, match="belongs to another study \\(theirs\\)"):
        searched(3)


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({"search": {"lr": "1e-5..1", "gamma": [0.9, 0.99]}}, "space: lr = 1e-05..0.1 log, now it is 1e-05..1 log"),
        ({"search": {"lr": "1e-5..1e-1"}}, "space: gamma = 0.9, 0.99, now it is nothing"),
        ({"steps": 2000}, "parameters: steps = 1000, now it is 2000"),
        ({"seeds": 2}, "seeds = 1, now it is 2"),
    ],
)
def test_another_search_under_the_same_name(more: Any, wanted: str, made_up: type[MadeUp]) -> None:
    searched(1)
    with pytest.raises(UserError) as error:
        searched(2, **more)
    assert f"was begun with {wanted}; choose another --name" in str(error.value)


def test_one_search_at_a_time(made_up: type[MadeUp], runs: Path) -> None:
    from kumite.lab.job import lock

    held = lock(runs / "tuning" / "ppo-CartPole-v1" / "lock")
    assert held
    with held, pytest.raises(UserError, match=rf"is at work in another process \({os.getpid()}\)"):
        searched(1)


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("ppo CartPole-v1 --tune.lrr 1..2", "unknown key 'lrr'; did you mean 'lr'?"),
        ("ppo CartPole-v1 --leer 1", "unknown flag '--leer'"),
        ("ppo CartPole-v1 --tune.lr", "--tune.lr: expected LOW..HIGH, or choices"),
        ("ppo CartPole-v1 --trails 3", "unknown flag '--trails'; did you mean '--trials'?"),
        ("pppo CartPole-v1", "unknown algorithm 'pppo'; did you mean 'ppo'?"),
        ("ppo", "which ENV? see kumite tune --help"),
        ("ppo CartPole-v1 --space nowhere.yaml", "cannot read 'nowhere.yaml'"),
    ],
)
def test_mistakes_on_the_command_line(words: str, wanted: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", *words.split()]) == 2
    err = capsys.readouterr().err
    assert wanted in err
    assert err.count("\n") == 1
    assert not list(runs.iterdir())


def test_a_dry_run_shows_the_space(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "tune ppo CartPole-v1 --dry-run --num-envs 4 --tune.lr 1e-5..1e-2 --tune.gamma 0.9 0.99"
    assert main(words.split()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["lr", "1e-05..0.01", "log", "0.001"]
    assert lines[2].split() == ["gamma", "0.9,", "0.99", "0.98"]
    assert lines[3] == "runs/tuning/ppo-CartPole-v1: 50 trials of 50,000 steps, 20 evaluations each"
    assert not list(runs.iterdir())


def test_lines_of_a_search(made_up: type[MadeUp], capsys: pytest.CaptureFixture[str]) -> None:
    made_up.codes["t0001-s0"] = 1
    words = "tune ppo CartPole-v1 --trials 3 --jobs 1 --steps 1000 --eval.every 100 --tune.lr 1e-5..1e-1 --pruner none"
    assert main(words.split()) == 0
    out = capsys.readouterr().out
    assert "trial 0: 108  |  lr 0.001\n" in out
    assert "trial 1: failed: it broke  |  lr " in out
    assert "\n  kumite train ppo CartPole-v1 --file runs/tuning/ppo-CartPole-v1/best.yaml\n" in out
    assert (Path("runs/tuning/ppo-CartPole-v1/best.yaml")).read_text() in out
    assert main([*words.split(), "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_without_optuna(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"'optuna' is not installed; install it with: pip install 'kumite\[tune\]'"):
        searched(1)
    assert not list(runs.iterdir())


@pytest.mark.slow
def test_a_real_search_that_is_killed(runs: Path) -> None:
    """SIGKILL in the middle, go on, train with the block: the best trial comes out once more."""
    words = (
        "tune ppo CartPole-v1 --trials 2 --jobs 2 --steps 400 --eval.every 100 --eval.episodes 1 --tune.lr 1e-4..1e-2"
    )
    command = [sys.executable, "-m", "kumite", *words.split()]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    folder = runs / "tuning" / "ppo-CartPole-v1"
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while not list(folder.glob("runs/*/*/*/evals.csv")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.kill()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    best = yaml.safe_load((folder / "best.yaml").read_text())["CartPole-v1"]
    assert "the best of 2 (2 finished)" in best["source"]
    train = ["train", "ppo", "CartPole-v1", "--quiet", "--name", "again", "--file", str(folder / "best.yaml")]
    assert main(train) == 0

    def means(run: Path) -> list[str]:
        return [line.split(",")[2] for line in (run / "evals.csv").read_text().splitlines()]

    number = int(best["source"].partition(": trial ")[2].partition(",")[0])
    trial = folder / "runs" / "CartPole-v1" / "ppo" / f"t{number:04d}-s0"
    assert means(runs / "CartPole-v1" / "ppo" / "again-s0") == means(trial)
    assert float(means(trial)[-1]) > 0
