"""Logs of others: event files written by torch's SummaryWriter under the names of other libraries, files in the formats
of Stable-Baselines3, plain CSVs; whole, half-written and hostile.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.tensorboard import SummaryWriter

from kumite.errors import UserError
from kumite.lab import foreign, records
from kumite.lab.records import LabWarning, Record

STEPS = (100, 200, 300)


def events(
    folder: Path, tags: Mapping[str, Callable[[int], float]], steps: tuple[int, ...] = STEPS, **more: Any
) -> Path:
    with SummaryWriter(str(folder), **more) as writer:
        for step in steps:
            for tag, value in tags.items():
                writer.add_scalar(tag, value(step), step, walltime=1_700_000_000.0 + step / 10)
    return folder


def load(*words: str | Path, **how: Any) -> list[Record]:
    return records.load(words, **how)


def points(record: Record, what: str = "train", axis: records.Axis = "steps") -> list[tuple[float, float]]:
    curve = record.curve(what, axis)
    assert curve is not None
    return [(round(x, 3), round(y, 3)) for x, y in zip(curve.x, curve.y, strict=True)]


# --- event files ---------------------------------------------------------------------------------------------------


def test_cleanrl(tmp_path: Path) -> None:
    """Env__exp__seed__time, an event per episode, and the settings as a table of text."""
    folder = tmp_path / "runs" / "Hopper-v4__sac_continuous_action__7__1700000000"
    with SummaryWriter(str(folder)) as writer:
        table = "|param|value|\n|-|-|\n|env_id|Hopper-v4|\n|seed|7|\n|q_lr|0.001|\n|exp_name|sac_continuous_action|"
        writer.add_text("hyperparameters", table)
        for step, value, length in ((10, 1.0, 10), (10, 3.0, 12), (25, 5.0, 15)):
            writer.add_scalar("charts/episodic_return", value, step)
            writer.add_scalar("charts/episodic_length", length, step)
        writer.add_scalar("losses/qf_loss", 0.5, 20)
        for episode in range(3):  # what CleanRL logs after training, over episodes
            writer.add_scalar("eval/episodic_return", 9.0, episode)
    (found,) = load(f"cleanrl={tmp_path / 'runs'}")
    assert (found.source, found.env, found.seed, found.algo) == ("cleanrl", "Hopper-v4", 7, "sac_continuous_action")
    assert points(found) == [(10, 1), (10, 3), (25, 5)]
    assert found.episodes["length"].tolist() == [10, 12, 15]
    assert points(found, "losses/qf_loss") == [(20, 0.5)]
    assert found.config["q_lr"] == "0.001"
    assert found.curve("eval") is None


def test_cleanrl_of_an_environment_with_a_slash(tmp_path: Path) -> None:
    events(tmp_path / "runs/ALE/Pong-v5__dqn_atari__1__1700000000", {"charts/episodic_return": float})
    (found,) = load(tmp_path / "runs")
    assert (found.env, found.seed, found.algo) == ("ALE/Pong-v5", 1, "dqn_atari")


def test_sb3_events(tmp_path: Path) -> None:
    tags = {"rollout/ep_rew_mean": lambda s: s / 10, "eval/mean_reward": lambda s: s / 5, "train/loss": lambda s: 1.0}
    events(tmp_path / "tb" / "PPO_1", tags)
    events(tmp_path / "tb" / "PPO_2", tags)
    with pytest.raises(UserError, match=r"does not say its environment; say it before the path: sb3@CartPole-v1="):
        load(tmp_path / "tb")
    a, b = load(f"sb3@CartPole-v1={tmp_path / 'tb'}")
    assert (a.algo, a.env, a.seed, a.name, b.name) == ("ppo", "CartPole-v1", None, "PPO_1", "PPO_2")
    assert points(a) == [(100, 10), (200, 20), (300, 30)]
    assert points(a, "eval") == [(100, 20), (200, 40), (300, 60)]
    assert [x for x, _ in points(a, "eval", "time")][2] == pytest.approx(20 + points(a, "eval", "time")[0][0], abs=0.01)
    groups = records.grouped([a, b])
    assert {label: len(envs["CartPole-v1"]) for label, envs in groups.items()} == {"sb3": 2}


@pytest.mark.parametrize(
    ("tag", "source"),
    [
        ("rewards/step", "rl_games"),
        ("Reward / Total reward (mean)", "skrl"),
        ("Train/mean_reward", "rsl_rl"),
    ],
)
def test_others_by_their_tags(tmp_path: Path, tag: str, source: str) -> None:
    events(tmp_path / "Ant-v4_seed3" / "summaries", {tag: lambda s: s / 2, "losses/a_loss": lambda s: 0.0})
    (found,) = load(tmp_path)
    assert (found.source, found.env, found.seed) == (source, "Ant-v4", 3)
    assert points(found) == [(100, 50), (200, 100), (300, 150)]
    (scaled,) = load(tmp_path, scale={source: 64.0})
    assert points(scaled)[0] == (6400, 50)


def test_events_of_nobody_known(tmp_path: Path) -> None:
    """Any number by its tag; as return when it is said to be one."""
    events(tmp_path / "CartPole-v1", {"my/score": lambda s: s / 4})
    (found,) = load(tmp_path)
    assert found.source == "tensorboard"
    assert found.curve("eval") is None and found.curve("train") is None
    assert points(found, "my/score") == [(100, 25), (200, 50), (300, 75)]
    (said,) = load(tmp_path, columns={"return": "my/score"})
    assert points(said, "eval") == points(said, "train") == [(100, 25), (200, 50), (300, 75)]
    with pytest.raises(UserError, match=r"has no tag 'my/scor' \(it has: my/score\)"):
        load(tmp_path, columns={"return": "my/scor"})


def test_numbers_as_tensors(tmp_path: Path) -> None:
    """As TensorFlow 2 and torch's new style write them."""
    with SummaryWriter(str(tmp_path / "CartPole-v1")) as writer:
        writer.add_scalar("rollout/ep_rew_mean", 2.5, 10, new_style=True, double_precision=True)
        writer.add_histogram("weights", np.arange(4.0), 10)
    (found,) = load(tmp_path)
    assert points(found) == [(10, 2.5)]


def test_a_restart_takes_back_what_it_repeats(tmp_path: Path) -> None:
    """The second file begins at step 200: what the first one said from there on is gone, as TensorBoard shows it."""
    folder = tmp_path / "CartPole-v1"
    events(folder, {"rollout/ep_rew_mean": lambda s: 1.0}, filename_suffix=".a")
    events(folder, {"rollout/ep_rew_mean": lambda s: 2.0}, (200, 250), purge_step=200, filename_suffix=".b")
    (found,) = load(tmp_path)
    assert points(found) == [(100, 1), (200, 2), (250, 2)]


def test_parts_of_a_run_are_no_runs(tmp_path: Path) -> None:
    """torch's add_hparams writes a folder of its own below the run's."""
    folder = events(tmp_path / "CartPole-v1_PPO_1", {"rollout/ep_rew_mean": float})
    events(folder / "1700000000.5", {"hparam/metric": lambda s: 1.0}, (0,))
    events(tmp_path / "CartPole-v1_PPO_1" / "again_2", {"rollout/ep_rew_mean": float})
    assert [r.path.name for r in load(tmp_path)] == ["CartPole-v1_PPO_1", "again_2"]


def test_event_files_cut_anywhere(tmp_path: Path) -> None:
    """Every length of a file gives the whole records before it, or a sentence."""
    folder = events(tmp_path / "whole" / "CartPole-v1", {"rollout/ep_rew_mean": float})
    (file,) = folder.glob("events*")
    data = file.read_bytes()
    counts = set()
    for size in [*range(0, len(data), 7), len(data)]:
        here = tmp_path / "cut" / "CartPole-v1"
        here.mkdir(parents=True, exist_ok=True)
        (here / file.name).write_bytes(data[:size])
        try:
            (found,) = load(here)
        except UserError as e:
            if "without any number yet" not in str(e):
                raise
            counts.add(0)
        else:
            assert points(found) == [(float(s), float(s)) for s in STEPS[: len(points(found))]]
            counts.add(len(points(found)))
    assert counts == {0, 1, 2, 3}


@pytest.mark.parametrize("noise", [b"\x00" * 100, b"not an event file, by any means", bytes(range(256))])
def test_event_files_that_are_none(tmp_path: Path, noise: bytes) -> None:
    (tmp_path / "CartPole-v1").mkdir()
    (tmp_path / "CartPole-v1" / "events.out.tfevents.1.host").write_bytes(noise)
    with pytest.raises(UserError, match="is no event file, or a damaged one"):
        load(tmp_path)


def test_damage_inside_an_event_file_ends_it(tmp_path: Path) -> None:
    folder = events(tmp_path / "CartPole-v1", {"rollout/ep_rew_mean": float})
    (file,) = folder.glob("events*")
    data = bytearray(file.read_bytes())
    data[-60:] = b"\xff" * 60
    file.write_bytes(data)
    (found,) = load(tmp_path)
    assert points(found) == [(100, 100), (200, 200)]


def test_one_unreadable_log_does_not_hide_the_others(tmp_path: Path) -> None:
    events(tmp_path / "CartPole-v1_1", {"rollout/ep_rew_mean": float})
    (tmp_path / "CartPole-v1_2").mkdir()
    (tmp_path / "CartPole-v1_2" / "events.out.tfevents.1.host").write_bytes(b"x" * 50)
    with pytest.warns(LabWarning, match="left out: .*is no event file"):
        assert len(load(tmp_path)) == 1


# --- Stable-Baselines3 ---------------------------------------------------------------------------------------------


def sb3(folder: Path) -> Path:
    """What it writes with csv logging, an EvalCallback and a Monitor per copy."""
    folder.mkdir(parents=True)
    rows = ["rollout/ep_rew_mean,time/time_elapsed,time/total_timesteps,train/n_updates,eval/mean_reward"]
    rows += ["10.0,1,100,,", ",2,200,20,50.0", "30.0,3,300,30,"]
    (folder / "progress.csv").write_text("\n".join(rows) + "\n")
    results = np.array([[40.0, 60.0], [70.0, 90.0]])
    np.savez(folder / "evaluations.npz", timesteps=[200, 300], results=results, ep_lengths=np.ones((2, 2)))
    for i, episodes in enumerate(([(5.0, 20, 1.0), (7.0, 30, 3.0)], [(6.0, 10, 1.5)])):
        head = json.dumps({"t_start": 1000.0 + i, "env_id": "CartPole-v1"})
        lines = [f"#{head}", "r,l,t", *(f"{r},{n},{t}" for r, n, t in episodes)]
        (folder / f"{i}.monitor.csv").write_text("\n".join(lines) + "\n")
    return folder


def test_sb3_folder(tmp_path: Path) -> None:
    """Evaluations from the arrays; episodes of both copies in the order of their ends (the second began 1 s later)."""
    sb3(tmp_path / "ppo" / "run_1")
    (found,) = load(tmp_path)
    assert (found.source, found.env, found.algo, found.seed) == ("sb3", "CartPole-v1", "ppo", None)
    assert points(found, "eval") == [(200, 50), (300, 80)]
    assert found.evals["std"].tolist() == [10, 10]
    assert points(found, "eval", "time") == [(2, 50), (3, 80)]
    assert points(found, "eval", "updates") == [(20, 50), (30, 80)]
    assert points(found) == [(20, 5), (30, 6), (60, 7)]
    assert points(found, "rollout/ep_rew_mean") == [(100, 10), (300, 30)]


def test_sb3_progress_alone(tmp_path: Path) -> None:
    folder = sb3(tmp_path / "a2c" / "Pendulum-v1_2")
    for path in folder.iterdir():
        if path.name != "progress.csv":
            path.unlink()
    (found,) = load(folder / "progress.csv")
    assert (found.env, found.algo) == ("Pendulum-v1", "a2c")
    assert points(found) == [(100, 10), (300, 30)]
    assert points(found, "eval") == [(200, 50)]


def test_sb3_half_written(tmp_path: Path) -> None:
    folder = sb3(tmp_path / "run")
    with (folder / "progress.csv").open("a") as file:
        file.write("40.0,4,4")
    with (folder / "0.monitor.csv").open("a") as file:
        file.write("9.0,1")
    (found,) = load(tmp_path)
    assert found.metrics["env_step"].tolist() == [100, 200, 300]
    assert len(points(found)) == 3


def test_arrays_with_objects_are_refused(tmp_path: Path) -> None:
    """Objects would be pickled: reading them could run code."""

    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path(tmp_path / "sprung").touch, ())

    folder = sb3(tmp_path / "run")
    np.savez(folder / "evaluations.npz", timesteps=np.array([Trap()], dtype=object), results=np.zeros((1, 2)))
    with pytest.raises(UserError, match="cannot be read"):
        load(tmp_path)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("noise", [b"", b"PK\x03\x04 cut", b"text"])
def test_broken_arrays(tmp_path: Path, noise: bytes) -> None:
    folder = sb3(tmp_path / "run")
    (folder / "evaluations.npz").write_bytes(noise)
    with pytest.raises(UserError, match="cannot be read"):
        load(tmp_path)


def test_a_monitor_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "monitor.csv").write_text("r,l,t\n1,2,3\n")
    with pytest.raises(UserError, match="does not begin as a monitor file does"):
        load(tmp_path)


# --- plain CSV -----------------------------------------------------------------------------------------------------


def test_plain_csv(tmp_path: Path) -> None:
    """Named columns, one run per environment, algorithm and seed; no end of line after the last row."""
    (tmp_path / "curves.csv").write_text(
        "global_step,episodic_return,seed,env_id,algorithm\n"
        "0,1,0,Hopper-v4,tqc\n100,2,0,Hopper-v4,tqc\n0,3,1,Hopper-v4,tqc\n0,4,0,Ant-v4,tqc"
    )
    found = load(f"paper={tmp_path / 'curves.csv'}")
    assert [(r.env, r.algo, r.seed, r.label) for r in found] == [
        ("Hopper-v4", "tqc", 0, "paper"),
        ("Hopper-v4", "tqc", 1, "paper"),
        ("Ant-v4", "tqc", 0, "paper"),
    ]
    assert points(found[0]) == points(found[0], "eval") == [(0, 1), (100, 2)]
    assert points(found[2]) == [(0, 4)]


def test_csv_exported_from_tensorboard(tmp_path: Path) -> None:
    (tmp_path / "run.csv").write_text("Wall time,Step,Value\n1700000000.5,10,1.5\n1700000002.5,20,2.5\n")
    (found,) = load(f"x@CartPole-v1={tmp_path / 'run.csv'}")
    assert points(found) == [(10, 1.5), (20, 2.5)]
    assert points(found, "eval", "time") == [(0, 1.5), (2, 2.5)]
    assert found.algo == "run"


def test_columns_by_name(tmp_path: Path) -> None:
    (tmp_path / "Hopper-v4.csv").write_text("when,how_good\n10,1.5\n20,oops\n30,3.5\n")
    with pytest.raises(UserError, match=r"no columns that are known for steps and returns \(it has: when, how_good\)"):
        load(tmp_path / "Hopper-v4.csv")
    (found,) = load(tmp_path / "Hopper-v4.csv", columns={"step": "when", "return": "how_good"})
    assert points(found) == [(10, 1.5), (30, 3.5)]
    with pytest.raises(UserError, match="has no column 'whn'"):
        load(tmp_path / "Hopper-v4.csv", columns={"step": "whn", "return": "how_good"})


def test_other_files_are_not_taken_for_logs(tmp_path: Path) -> None:
    (tmp_path / "prices.csv").write_text("day,price\n1,2\n")
    with pytest.raises(UserError, match="there are no runs"):
        load(tmp_path)
    (tmp_path / "notes.txt").write_text("step,return\n1,2\n")
    with pytest.raises(UserError, match="is no log that can be read"):
        load(tmp_path / "notes.txt")


@pytest.mark.parametrize(
    ("path", "env", "algo", "seed"),
    [
        ("logs/ppo/CartPole-v1_1", "CartPole-v1", "ppo", None),
        ("logs/SAC_HalfCheetah-v4_seed_12", "HalfCheetah-v4", "sac", 12),
        ("ALE/Pong-v5/DQN_1", "ALE/Pong-v5", "dqn", None),
        ("dm_control/walker-walk-v0/s3", "dm_control/walker-walk-v0", "", 3),
        ("somewhere/else", "", "", None),
    ],
)
def test_what_a_path_says(path: str, env: str, algo: str, seed: int | None) -> None:
    assert (foreign.env_of(Path(path)), foreign.algo_of(Path(path)), foreign.seed_of(Path(path))) == (env, algo, seed)
