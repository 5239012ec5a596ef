"""The names of others: one table, what `--log.style` does with it, and the document that shows it."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import pytest

import kumite
from kumite.log import Logger
from kumite.sinks.names import BESIDE, STYLES, TABLE, Theirs, styled
from kumite.types import Episodes
from tests.unit.test_log import EVAL, scalars

DOCUMENT = Path(__file__).parents[2] / "docs" / "logging.md"


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write(folder: Path, style: str) -> None:
    logger = Logger(folder, ("csv", "tensorboard"), quiet=True, config={"log": {"style": style}})
    logger.carried = 50.0
    logger.episodes(10, Episodes([0], [4.0], [5]))
    logger.metrics(10, {"value_loss": 3.0, "train/entropy": 0.5, "train/critic_loss": 8.0, "own": 7.0})
    logger.evaluation(10, EVAL)
    logger.close()


@pytest.mark.parametrize(
    ("style", "wanted"),
    [
        (
            "kumite",
            {
                "rollout/ep_rew_mean": 4.0,
                "rollout/ep_len_mean": 5.0,
                "train/value_loss": 3.0,
                "train/entropy": 0.5,
                "train/critic_loss": 8.0,
            },
        ),
        (
            "sb3",
            {
                "rollout/ep_rew_mean": 4.0,
                "rollout/ep_len_mean": 5.0,
                "train/value_loss": 6.0,
                "train/entropy_loss": -0.5,
                "train/critic_loss": 4.0,
                "time/total_timesteps": 10.0,
            },
        ),
        (
            "cleanrl",
            {
                "charts/episodic_return": 4.0,
                "charts/episodic_length": 5.0,
                "losses/value_loss": 3.0,
                "losses/entropy": 0.5,
                "losses/qf_loss": 4.0,
                "global_step": 10.0,
            },
        ),
        (
            "rl_games",
            {
                "rewards/step": 4.0,
                "episode_lengths/step": 5.0,
                "losses/c_loss": 6.0,
                "losses/entropy": 0.5,
                "losses/c1_loss": 4.0,
            },
        ),
    ],
)
def test_a_style_is_the_same_everywhere(style: str, wanted: dict[str, float], tmp_path: Path) -> None:
    write(tmp_path, style)
    (row,) = table(tmp_path / "metrics.csv")
    shown = scalars(tmp_path)
    clocks = {"time/fps", "charts/SPS", "performance/step_inference_rl_update_fps", "time/time_elapsed"}
    assert {name for name in row if name not in clocks} == {"env_step", "time_s", "train/own", *wanted}
    for name, value in wanted.items():
        assert float(row[name]) == value
        assert shown[name][0] == (10, value)
    assert shown["eval/episodic_return" if style == "cleanrl" else "eval/mean_reward"] == [(10, 1.5)]
    assert len(clocks & set(row)) == (2 if style == "sb3" else 1)
    (evaluation,) = table(tmp_path / "evals.csv")
    assert list(evaluation) == ["env_step", "time_s", "mean", "std", "min", "max", "episodes", "mean_length"]
    (episode,) = table(tmp_path / "episodes.csv")
    assert list(episode) == ["env_step", "time_s", "slot", "return", "length"]


@pytest.mark.parametrize("style", STYLES)
def test_no_number_is_lost(style: str) -> None:
    """What a run of one algorithm logs stays apart: two of our names never become one of theirs."""
    ours = [row.ours for row in TABLE if row.ours not in BESIDE]
    of_ppo = [
        name for name in ours if name not in ("train/actor_loss", "train/critic_loss", "train/q", "train/ent_coef")
    ]
    of_sac = [name for name in ours if name not in ("train/policy_gradient_loss", "train/value_loss")]
    for names in (of_ppo, of_sac):
        shown = styled(dict.fromkeys(names, 1.0), style, 5, 1.0)
        again = [row for row in TABLE if row.ours in BESIDE and style != "kumite" and getattr(row, style)]
        assert len(shown) == len(names) + len(again)


@pytest.mark.parametrize("algo", ["ppo", "a2c", "sac", "td3", "dqn", "rainbow"])
def test_the_table_knows_what_is_logged(algo: str, runs: Path) -> None:
    rolls, chooses = algo in ("ppo", "a2c"), algo in ("dqn", "rainbow")
    more: dict[str, Any] = {"horizon": 16, "num_envs": 2} if rolls else {"warmup": 20, "batch_size": 8}
    agent = kumite.Agent(
        "CartPole-v1" if chooses else "Pendulum-v1", algo=algo, track=("csv",), quiet=True, log={"every": 10}, **more
    )
    agent.learn(64)
    assert agent.path
    names = set(table(agent.path / "metrics.csv")[-1])
    assert names > {"time/fps", "train/n_updates"}
    assert names <= {row.ours for row in TABLE}


def test_a_resumed_run_keeps_its_style(runs: Path) -> None:
    make = {"horizon": 16, "num_envs": 2, "quiet": True, "name": "x", "log": {"style": "cleanrl", "every": 32}}
    kumite.PPO("CartPole-v1", **make).learn(64)
    folder = runs / "CartPole-v1" / "ppo" / "x-s0"
    kumite.resume(folder, steps=128).learn()
    rows = table(folder / "metrics.csv")
    assert [row["env_step"] for row in rows] == [row["global_step"].removesuffix(".0") for row in rows]
    assert {"losses/policy_loss", "charts/SPS"} < set(rows[0])
    assert not [name for name in rows[0] if name.startswith(("train/loss_", "train/policy"))]
    assert len(rows) >= 3


def test_the_document_shows_the_table() -> None:
    def cell(theirs: Theirs | None) -> str:
        if theirs is None:
            return ""
        return f"`{theirs.name}`" + (f" = {theirs.factor:g} ×" if theirs.factor != 1 else "")

    wanted = [
        f"| `{row.ours}` | {' | '.join(cell(x) for x in (row.sb3, row.cleanrl, row.rl_games))} | {row.about} |"
        for row in TABLE
    ]
    shown = re.findall(r"^\| `.*$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    assert [line for line in shown if line.count("|") == 6] == wanted
