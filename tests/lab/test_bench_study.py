"""What a study means: which runs, with which numbers, in which words; and how a run's folder is read."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from kumite import config as c
from kumite.algos import ROWS, algorithm
from kumite.cli import main
from kumite.errors import UserError
from kumite.lab import progress, study
from kumite.lab.bench import split
from kumite.lab.study import Block, Job, Study, make, read_seeds

ROOT = Path(__file__).parents[2]
SMALL = Study(("ppo", "sac"), ("CartPole-v1", "dmc:walker-walk"), (0, 1))


def names(of: Study) -> list[tuple[str, str, int, str]]:
    return [(j.algo, j.env, j.seed, j.name) for j in of.jobs()]


def only(of: Study) -> Job:
    (job,) = of.jobs()
    return job


# --- which runs ----------------------------------------------------------------------------------------------------


def test_every_combination_once_and_the_first_seed_first() -> None:
    found = names(SMALL)
    assert len(found) == len(set(found)) == 8
    assert [seed for _, _, seed, _ in found] == [0] * 4 + [1] * 4
    assert {(a, e) for a, e, _, _ in found} == {(a, e) for a in SMALL.algos for e in SMALL.envs}


def test_runs_lie_where_train_puts_them(runs: Path) -> None:
    job = only(Study(("ppo",), ("kumite/Recall-v0",), (3,), name="mine", dir="there"))
    assert job.folder == Path("there/kumite-Recall-v0/ppo/mine-s3")


def test_variants_are_named_and_may_be_for_some_only() -> None:
    said = replace(SMALL, seeds=(0,), variants={"plain": Block(), "tight": Block({"clip": 0.1}, algos=("ppo",))})
    found = [(algo, name) for algo, env, _, name in names(said) if env == "CartPole-v1"]
    assert found == [("ppo", "bench-plain"), ("ppo", "bench-tight"), ("sac", "bench-plain")]
    clips = {j.name: j.config.clip for j in said.jobs() if j.algo == "ppo"}
    assert clips["bench-tight"] == 0.1 != clips["bench-plain"]


def test_what_is_skipped_is_not_run_and_a_file_keeps_it() -> None:
    said = make({**SMALL.dump(), "skip": [{"algos": "ppo", "envs": "dmc:*"}]})
    found = {(algo, env) for algo, env, _, _ in names(said)}
    assert found == {("ppo", "CartPole-v1"), ("sac", "CartPole-v1"), ("sac", "dmc:walker-walk")}
    assert make(said.dump()).jobs() == said.jobs()


def test_the_family_runs_each_algorithm_where_its_actions_are() -> None:
    """No run of it would be refused, and no algorithm is forgotten."""
    of: dict[str, set[str]] = {}
    for job in study.load("family").jobs():
        of.setdefault(job.algo, set()).add(job.env)
    discrete = {"CartPole-v1", "LunarLander-v3"}
    everywhere = set(study.load("readme").envs)
    assert set(of) == set(ROWS)
    for algo, envs in of.items():
        kinds = algorithm(algo).actions
        able = {env for env in everywhere if ("discrete" if env in discrete else "continuous") in kinds}
        assert envs == able, algo


@pytest.mark.filterwarnings("ignore::kumite.lab.study.StudyWarning")
def test_what_decides_a_number() -> None:
    """presets < parameters < variant < where, the last first < flags"""
    env = "CartPole-v1"
    layers: list[dict[str, Any]] = [
        {},
        {"parameters": {"lr": 0.01}},
        {"variants": {"v": {"lr": 0.02}}},
        {"where": [{"lr": 0.03}]},
        {"where": [{"lr": 0.03}, {"lr": 0.04, "envs": "Cart* | !dmc:*"}, {"lr": 9, "envs": "dmc:*"}]},
    ]
    said: dict[str, Any] = {"algos": "ppo", "envs": env, "seeds": 1}
    found = []
    for layer in layers:
        said |= layer
        found.append(only(make(said)).config.lr)
    assert found == [c.resolve("ppo", env).lr, 0.01, 0.02, 0.03, 0.04]
    flagged = study.flags(make(said), {"lr": "5e-2", "ppo.gamma": "0.9"})
    assert (only(flagged).config.lr, only(flagged).config.gamma) == (0.05, 0.9)


def test_nested_and_dotted_are_the_same() -> None:
    nested = make({"algos": "sac", "envs": "CartPole-v1", "seeds": 1, "parameters": {"actor": {"width": 8}}})
    dotted = make({"algos": "sac", "envs": "CartPole-v1", "seeds": 1, "parameters": {"actor.width": 8}})
    assert only(nested).config == only(dotted).config
    assert only(nested).config.actor.width == 8


@pytest.mark.parametrize(
    ("said", "seeds"),
    [
        (3, (0, 1, 2)),
        ("3", (0, 1, 2)),
        ([7], (7,)),
        ("7,", (7,)),
        ("3 4", (3, 4)),
        ("[5, 2, 5]", (5, 2)),
        ([4, 1], (4, 1)),
    ],
)
def test_seeds(said: Any, seeds: tuple[int, ...]) -> None:
    assert read_seeds(said) == seeds


# --- files ---------------------------------------------------------------------------------------------------------


def test_what_is_written_is_read_back_as_the_same(tmp_path: Path) -> None:
    said = make(
        {
            "name": "all",
            "about": "everything at once",
            "algos": ["ppo", "SAC"],
            "envs": ["CartPole-v1", "Pendulum-v1"],
            "seeds": [2, 5],
            "steps": "30k",
            "dir": "elsewhere",
            "parameters": {"actor": {"width": 16}, "track": ["csv"]},
            "variants": {"a": {}, "b": {"lr": 1e-3, "algos": "sac"}},
            "where": [{"envs": ["Cart*", "Pend*"], "variants": "b", "gamma": 0.9}],
        }
    )
    said = study.flags(said, {"eval.episodes": "2", "sac.batch_size": "64"})
    (tmp_path / "study.yaml").write_text(said.to_yaml(), encoding="utf-8")
    again = study.load(tmp_path)
    assert again.dump() == said.dump()
    assert again.jobs() == said.jobs()
    assert {j.config.steps for j in again.jobs()} == {30_000}


@pytest.mark.parametrize("name", study.shipped())
def test_shipped_studies_name_known_algorithms(name: str) -> None:
    said = study.load(name)
    assert said.about
    assert set(said.algos) <= set(ROWS)
    assert all(job.config.steps >= 1_000 for job in said.jobs())


def test_the_studies_are_those_of_the_document() -> None:
    text = (ROOT / "docs" / "bench.md").read_text(encoding="utf-8")
    table = text.partition("called by name:")[2].partition("\n## ")[0]
    listed: dict[str, int] = {}
    for line in re.findall(r"^\| (`.*`) \| (.*?) \|", table, re.MULTILINE):
        found = re.findall(r"`(.*?)`", line[0])
        counts = [int(n) for n in re.findall(r"\d+", line[1])]
        listed |= dict(zip(found, counts * len(found) if len(counts) == 1 else counts, strict=False))
    assert listed == {name: len(study.load(name).jobs()) for name in study.shipped()}


def test_the_document_s_study_can_be_run() -> None:
    text = (ROOT / "docs" / "bench.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```yaml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    jobs = make(yaml.safe_load(block)).jobs()
    assert len(jobs) == 3 * 5 * 3 - 5  # ppo in two variants, sac in one; ppo on dm_control in the tight one alone
    steps = {(j.algo, j.env): j.config.steps for j in jobs}
    assert steps["sac", "Pendulum-v1"] == 20_000
    assert steps["ppo", "dmc:walker-walk"] == 1_000_000
    assert steps["ppo", "CartPole-v1"] == 200_000


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown key": ({"algorithms": ["ppo"]}, "unknown key 'algorithms'; did you mean 'algos'?"),
    "a parameter at the top": (
        {"eval.every": 500},
        "'eval.every' is a setting of the runs; write it below parameters:",
    ),
    "an unknown parameter": ({"parameters": {"learning_rate": 1}}, "unknown key 'learning_rate'; did you mean 'lr'?"),
    "an unknown algorithm": ({"algos": ["ppq"]}, "unknown algorithm 'ppq'; did you mean 'ppo'?"),
    "an unknown algorithm in a block": ({"where": [{"algos": "sax"}]}, "unknown algorithm 'sax'"),
    "a value out of range": ({"where": [{"gamma": 2}]}, "gamma: expected between 0 and 1, got 2.0"),
    "a value of the wrong kind": ({"parameters": {"lr": "fast"}}, "ppo on CartPole-v1: lr: expected a number"),
    "the study's own": ({"parameters": {"seed": 1}}, "the study itself says 'seeds'"),
    "no seeds": ({"seeds": 0}, "seeds: expected at least 1"),
    "negative seeds": ({"seeds": [-1]}, "seeds: expected numbers of at least 0"),
    "no environments": ({"envs": []}, "names no envs"),
    "no list": ({"envs": {"a": 1}}, "expected a list of names"),
    "no blocks": ({"where": {"lr": 1}}, "where: expected a list of blocks"),
    "a name with a path": ({"name": "../up"}, "'../up' cannot be the name"),
    "an unknown variant": ({"variants": {"one": {}}, "where": [{"variants": "on"}]}, "no variant 'on'; did you mean"),
    "skips everything": ({"skip": [{"algos": ["ppo", "sac"]}]}, "holds no run"),
    "skips with numbers": ({"skip": [{"algos": "ppo", "lr": 1}]}, "'lr' says nothing about which runs are left out"),
    "skips nothing named": ({"skip": [{}]}, "else nothing would be left"),
    "variants for nobody": ({"variants": {"one": {"algos": "a2c"}}}, "holds no run"),
    "runs that share a folder": ({"envs": ["a/b", "a-b"]}, "would share runs/a-b/ppo/bench-s0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    said, sentence = REFUSED[case]
    with pytest.raises(UserError) as error:
        make({"algos": ["ppo"], "envs": ["CartPole-v1"], "seeds": 1} | said).jobs()
    assert sentence in str(error.value)


def test_a_parameter_of_one_algorithm_only_says_how() -> None:
    with pytest.raises(UserError, match=r"sac: unknown key 'horizon'.*; for ppo alone say --ppo.horizon"):
        study.flags(SMALL, {"horizon": "8"}).jobs()
    horizons = {getattr(j.config, "horizon", None) for j in study.flags(SMALL, {"ppo.horizon": "8"}).jobs()}
    assert horizons == {8, None}


def test_a_block_for_nobody_is_told() -> None:
    with pytest.warns(study.StudyWarning, match=r"block for 'Hoper-\*' speaks of none of its runs"):
        make({"algos": "ppo", "envs": "Hopper-v5", "where": [{"envs": "Hoper-*", "lr": 1}, {"envs": "Hop*", "lr": 1}]})


# --- words ---------------------------------------------------------------------------------------------------------


def test_words_are_split() -> None:
    words = "mine.yaml --algos ppo sac --lr 1e-3 --quiet --actor.layers 64 32 --eval.every=-1 --save.no-replay"
    ours, parameters = split([*words.split(), "--normalize-obs", "--dry_run", "--seeds", "3", "4"])
    assert ours == ["mine.yaml", "--algos", "ppo", "sac", "--quiet", "--dry_run", "--seeds=3 4"]
    assert parameters == {
        "lr": "1e-3",
        "actor.layers": ["64", "32"],
        "eval.every": "-1",
        "save.replay": "false",
        "normalize_obs": "true",
    }


def test_the_words_of_a_run_mean_its_numbers(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """`kumite train` with the words of a job makes exactly the config that the study checked."""
    from kumite import agent

    made: list[Any] = []

    def take(env: str, *, algo: str, config: Any) -> Any:
        made.append((env, algo, config))
        return SimpleNamespace(learn=lambda: None, path=Path("x"), config=config)

    monkeypatch.setattr(agent, "Agent", take)
    said = make(
        {
            "algos": ["ppo", "sac"],
            "envs": ["Pendulum-v1", "atari:Pong"],
            "seeds": [4],
            "steps": "1e4",
            "name": "words",
            "parameters": {
                "actor": {"layers": [32, 16], "encoder": "nature"},
                "lr": "1e-3",
                "eval.every": -1,
                "stop_at": None,
                "normalize_obs": True,
                "save.replay": False,
                "track": [],
                "env.hide": (1, 2),
                "env.kwargs": {"g": 9.5},
                "gamma": 0.1 + 0.2,
            },
            "variants": {"plain": {}, "recurrent": {"memory": "gru"}},
        }
    )
    for job in said.jobs():
        assert main(job.train()) == 0, capsys.readouterr().err
        assert made.pop() == (job.env, job.algo, job.config)


# --- what a run's folder says --------------------------------------------------------------------------------------


@pytest.fixture
def job(runs: Path) -> Job:
    return only(Study(("ppo",), ("CartPole-v1",), (0,), parameters={"steps": 1000, "eval.every": 500}))


SAVED: dict[str, Any] = {"env_step": 1000, "eval_step": 1000, "last_eval": 12.0, "meter": {"sums": {}, "counts": {}}}


def begin(job: Job, saved: dict[str, Any] | None = None, **other: Any) -> None:
    """A run's folder, with a checkpoint that says this."""
    job.folder.mkdir(parents=True, exist_ok=True)
    config = replace(job.config, **other)
    (job.folder / "config.yaml").write_text(c.to_yaml(config, job.algo, job.env), encoding="utf-8")
    if saved is not None:
        folder = job.folder / "checkpoints" / str(saved["env_step"])
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text("{}")
        (folder / "state.json").write_text(json.dumps(saved))
        (folder / "config.yaml").write_text(c.to_yaml(config, job.algo, job.env), encoding="utf-8")


def test_new_begun_resumed_done(job: Job) -> None:
    assert str(progress.state(job)) == "new"
    begin(job)
    assert str(progress.state(job)) == "resume from step 0"
    begin(job, SAVED | {"env_step": 400, "eval_step": 0})
    assert str(progress.state(job)) == "resume from step 400"
    begin(job, SAVED)
    assert str(progress.state(job)) == "done"


@pytest.mark.parametrize(
    "missing",
    [{"eval_step": 500}, {"meter": {"sums": {"train/loss": 1.0}, "counts": {"train/loss": 1}}}, {"meter": None}],
    ids=["its last evaluation", "its last row", "its state"],
)
def test_the_last_step_is_not_the_end(job: Job, missing: dict[str, Any]) -> None:
    """A checkpoint at the last step that was written before the end of the run leaves something to do."""
    begin(job, SAVED | missing)
    assert str(progress.state(job)) == "resume from step 1,000"


def test_a_run_that_reached_its_score_is_done(runs: Path) -> None:
    job = only(Study(("ppo",), ("CartPole-v1",), (0,), parameters={"steps": 1000, "stop_at": 10}))
    begin(job, SAVED | {"env_step": 400, "last_eval": 9.0})
    assert progress.state(job).kind == "resume"
    (job.folder / "checkpoints/400/state.json").write_text(json.dumps(SAVED | {"env_step": 400}))
    assert progress.state(job).kind == "done"


def test_an_unfinished_checkpoint_does_not_count(job: Job) -> None:
    begin(job, SAVED | {"env_step": 400})
    begin(job, SAVED)
    (job.folder / "checkpoints/1000/manifest.json").unlink()
    assert str(progress.state(job)) == "resume from step 400"


@pytest.mark.parametrize("left", [None, 0, 1, 200])
def test_a_run_that_was_ended_while_its_folder_was_made_is_new(job: Job, left: int | None) -> None:
    job.folder.mkdir(parents=True)
    (job.folder / "manifest.json").write_text("{")
    if left is not None:
        (job.folder / "config.yaml").write_text(c.to_yaml(job.config, job.algo, job.env)[:left], encoding="utf-8")
    assert progress.state(job).kind == "new"


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"lr": 0.5}, "was begun with lr = 0.5, the study now says"),
        ({"steps": 2000}, "was begun for 2,000 steps, the study now says 1,000"),
        ({"seed": 3}, "was begun with seed = 3"),
    ],
)
def test_another_run_under_this_name_is_refused(job: Job, other: dict[str, Any], sentence: str) -> None:
    begin(job, SAVED, **other)
    with pytest.raises(UserError) as error:
        progress.state(job)
    assert str(error.value).startswith(f"{job.folder} {sentence}")
    assert "choose another --name" in str(error.value)


def test_a_run_may_become_longer_or_quieter(job: Job) -> None:
    begin(job, SAVED | {"env_step": 500, "eval_step": 500}, steps=500, quiet=True, dir="elsewhere", track=("csv",))
    assert str(progress.state(job)) == "resume from step 500"


def test_a_folder_of_something_else_is_refused(job: Job) -> None:
    job.folder.mkdir(parents=True)
    (job.folder / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="is no run of ppo on CartPole-v1"):
        progress.state(job)
    begin(job)
    text = (job.folder / "config.yaml").read_text(encoding="utf-8")
    (job.folder / "config.yaml").write_text(text + "wings: 2\n", encoding="utf-8")
    with pytest.raises(UserError, match="another version of kumite"):
        progress.state(job)


def test_progress_is_read_from_the_tables(tmp_path: Path) -> None:
    assert progress.progress(tmp_path) == progress.Progress()
    (tmp_path / "metrics.csv").write_text("env_step,time_s,train/loss\n100,1,0.5\n200,2,\n300,4,0.1\n400,5")
    (tmp_path / "evals.csv").write_text("env_step,time_s,mean,std\n250,3,7.5,1\n350,4.5,9,1\n37")
    now = progress.progress(tmp_path)
    assert (now.step, now.time_s, now.mean) == (350, 4.5, 9.0)
    assert now.speed == pytest.approx((300 - 100) / (4 - 1))
    assert now.left(350) == 0
    assert now.left(1350) == pytest.approx(1000 / now.speed, abs=5)


def test_progress_of_a_long_table_reads_its_end(tmp_path: Path) -> None:
    rows = "".join(f"{i},{i / 2},{'9' * 100}\n" for i in range(5_000))
    (tmp_path / "metrics.csv").write_text("env_step,time_s,x\n" + rows)
    assert len(progress.tail(tmp_path / "metrics.csv")) < 1_000
    now = progress.progress(tmp_path)
    assert (now.step, now.speed) == (4999, pytest.approx(2.0))


def test_last_words(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert progress.last_words(log) == ""
    log.write_text("$ kumite train\nkumite: an older story\n$ kumite resume\n10/20 50%\nTraceback\nValueError: no\n")
    assert progress.last_words(log) == "ValueError: no"
    with log.open("a") as file:
        file.write("kumite: 'loss' is not finite\nafterword\n")
    assert progress.last_words(log) == "'loss' is not finite"
