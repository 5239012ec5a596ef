"""A profile counts every second once, sees every algorithm, and leaves no trace in what is learned."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import kumite
from kumite.agent import agent_class
from kumite.algos import ROWS, algorithm
from kumite.config import keys, run_type
from kumite.profile import PARTS, Profile

PLACES = [place.split(".") for places in PARTS.values() for place in places]


class Ticking:
    """A clock that moves when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Part:
    """Methods that take a known time; `learn` calls `step_update` twice, the hook calls `_write`."""

    def __init__(self, clock: Ticking) -> None:
        self.clock = clock

    def explore(self) -> str:
        self.clock.now += 3
        return "done"

    def step_update(self) -> None:
        self.clock.now += 10

    def learn(self) -> None:
        self.clock.now += 1
        self.step_update()
        self.step_update()
        self.clock.now += 0.5

    def _write(self) -> None:
        self.clock.now += 100
        raise OSError("full")

    def _evaluate_hook(self) -> None:
        self.clock.now += 7
        self._write()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda: None


def fake(clock: Ticking) -> Any:
    parts = {home: Part(clock) for home in ("algo", "env", "stream", "logger", "meter")}
    return SimpleNamespace(env_step=40, **parts)


def test_seconds_count_once() -> None:
    clock = Ticking()
    run, agent, profile = fake(clock), Part(clock), Profile(clock=clock)
    with profile.watching(run, agent):
        assert run.algo.explore() == "done"
        run.algo.learn()
        with pytest.raises(OSError, match="full"):
            agent._evaluate_hook()
        clock.now += 2
        run.env_step += 4
    want = {"act": 3, "sample": 1.5, "update": 20, "eval": 7, "save": 100, "other": 2, "env": 0, "store": 0, "log": 0}
    assert profile.seconds == want | {"compile": 0}
    assert profile.wall == 133.5 == sum(profile.seconds.values())
    assert (profile.calls["update"], profile.calls["sample"], profile.steps) == (2, 1, 4)
    update = next(row for row in profile.rows() if row["part"] == "update")
    assert update == {
        "part": "update",
        "seconds": 20,
        "share": 20 / 133.5,
        "us_per_step": 5e6,
        "calls": 2,
        "us_per_call": 1e7,
    }
    assert "act" in str(profile)
    assert "4 steps in 133.50 s" in str(profile)


def test_methods_are_put_back() -> None:
    clock = Ticking()
    run, agent = fake(clock), Part(clock)
    mine = run.env.send = lambda: "mine"
    with pytest.raises(ZeroDivisionError), Profile(clock=clock).watching(run, agent):
        assert all(name in vars(agent if home == "agent" else getattr(run, home)) for home, name in PLACES)
        assert run.env.send() == "mine"
        raise ZeroDivisionError
    left = [(h, n) for h, n in PLACES if n in vars(agent if h == "agent" else getattr(run, h))]
    assert left == [("env", "send")]
    assert run.env.send is mine


SMALL = {"num_envs": 2, "horizon": 16, "epochs": 2, "warmup": 32, "batch_size": 16}


@pytest.mark.parametrize("name", list(ROWS))
def test_every_algorithm_is_seen_and_learns_the_same(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = {k: v for k, v in SMALL.items() if k in keys(run_type(name))}
    env = "CartPole-v1" if "discrete" in algorithm(name).actions else "Pendulum-v1"

    def trained(profile: bool) -> Any:
        agent = agent_class(name)(env, seed=3, profile=profile, dir=tmp_path / str(profile), **numbers)
        return agent.learn(96)

    watched, plain = trained(True), trained(False)
    spent = watched.profile
    assert {"act", "env", "store", "sample", "update", "log", "eval", "save"} <= {r["part"] for r in spent.rows()}
    assert spent.steps == watched.env_step >= 96
    assert spent.calls["update"] == watched.algo.updates
    assert spent.calls["act"] == spent.calls["env"] / 2
    assert sum(spent.seconds.values()) == pytest.approx(spent.wall)
    assert "where the time went" in capsys.readouterr().out
    assert plain.profile is None
    assert "explore" not in vars(watched.algo)
    mine, other = watched.algo.state_dict(), plain.algo.state_dict()
    assert all(torch.equal(x, other[k]) for k, x in mine.items() if isinstance(x, torch.Tensor))


def test_quiet_keeps_the_numbers_to_itself(capsys: pytest.CaptureFixture[str]) -> None:
    agent = kumite.PPO("CartPole-v1", num_envs=2, horizon=16, profile=True, quiet=True).learn(32)
    assert agent.profile.seconds["update"] > 0
    assert capsys.readouterr().out == ""
