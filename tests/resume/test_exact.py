"""Interrupted and resumed = uninterrupted: nets, optimisers, generators, replay, tables and events, bit for bit."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import kumite
from kumite import agent as agents
from kumite import checkpoint
from kumite.agent import Agent
from kumite.config import load_yaml, parse_yaml
from kumite.errors import UserError
from kumite.train import Interrupted
from tests.resume.records import (
    Nested,
    broken,
    check_same,
    differences,
    interrupt,
    saved,
    settings,
    tables,
    whole,
)

SHORT = {"env": {"max_steps": 30}}  # Pendulum's episodes


def stops_of(name: str, steps: int, n: int = 3) -> list[int]:
    """Moments that look random and stay the same."""
    return sorted(random.Random(name).sample(range(1, steps), n))


def check_exact(env: Any, algo: str, tmp_path: Path, /, stops: list[int] | None = None, **more: Any) -> None:
    steps = settings(algo, tmp_path, **more)["steps"]
    one = whole(env, algo, tmp_path / "whole", **more)
    two = broken(env, algo, tmp_path / "broken", stops or stops_of(f"{env}{algo}{more}", steps), **more)
    check_same(one, two)


@pytest.mark.parametrize("memory", ["none", "lstm"])
@pytest.mark.parametrize("copies", [1, 4])
@pytest.mark.parametrize(("algo", "env"), [("ppo", "CartPole-v1"), ("sac", "Pendulum-v1")])
def test_plain_and_recurrent(algo: str, env: str, copies: int, memory: str, tmp_path: Path) -> None:
    more = SHORT if env == "Pendulum-v1" else {}
    check_exact(env, algo, tmp_path, num_envs=copies, memory=memory, **more)


CASES: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "a2c": ("CartPole-v1", "a2c", {"num_envs": 4}),
    "ppo, continuous, every normaliser": (
        "Pendulum-v1",
        "ppo",
        {"num_envs": 3, "normalize_obs": True, "normalize_reward": True, "normalize_value": True, **SHORT},
    ),
    "ppo, linear schedules": (
        "CartPole-v1",
        "ppo",
        {"num_envs": 2, "lr_schedule": "linear", "clip_schedule": "linear", "target_kl": 0.01},
    ),
    "ppo, learning rate by divergence": ("Pendulum-v1", "ppo", {"num_envs": 2, "lr_schedule": "kl", **SHORT}),
    "sac, discrete, three steps, a ring that wraps": (
        "CartPole-v1",
        "sac",
        {"num_envs": 2, "n_step": 3, "buffer_size": 100, "lr_schedule": "cosine", "policy_delay": 2},
    ),
    "sac, normalisers": (
        "Pendulum-v1",
        "sac",
        {"num_envs": 2, "normalize_obs": True, "normalize_reward": True, **SHORT},
    ),
    "sac, memory with burn-in, fractions of updates": (
        "Pendulum-v1",
        "sac",
        {"num_envs": 2, "memory": "gru", "burn_in": 4, "update_ratio": 0.13, **SHORT},
    ),
    "sac, corrected targets, priorities": (
        "Pendulum-v1",
        "sac",
        {"num_envs": 2, "n_step": 3, "correction": "retrace", "priority": 0.6, **SHORT},
    ),
    "td3, a walk that fades, three steps, priorities": (
        "Pendulum-v1",
        "td3",
        {"num_envs": 2, "n_step": 3, "priority": 0.6, "noise": {"kind": "ou", "std_end": 0.01}, **SHORT},
    ),
    "ddpg, memory, noise drawn per episode": (
        "Pendulum-v1",
        "ddpg",
        {"num_envs": 3, "memory": "gru", "noise": {"copies": "random", "uniform": 0.1}, **SHORT},
    ),
    "dqn, memory, priorities of sequences, a ladder": (
        "CartPole-v1",
        "dqn",
        {"num_envs": 2, "memory": "lstm", "n_step": 3, "priority": 0.9, "double": True, "epsilon_ladder": 7.0},
    ),
    "rainbow, a ring that wraps": ("CartPole-v1", "rainbow", {"num_envs": 2, "buffer_size": 100}),
    "iqn, a target that always moves": ("CartPole-v1", "iqn", {"quantiles": 8, "target_every": 0, "tau": 0.01}),
    "frame stack": ("CartPole-v1", "ppo", {"num_envs": 2, "env": {"frame_stack": 3}}),
    "frame stack, replay": ("CartPole-v1", "sac", {"num_envs": 2, "env": {"frame_stack": 3}}),
    "action repeat": ("CartPole-v1", "ppo", {"num_envs": 2, "env": {"action_repeat": 3}}),
    "workers": ("CartPole-v1", "ppo", {"num_envs": 2, "env": {"mode": "workers"}}),
    "nested observations, hybrid actions": (Nested, "ppo", {"num_envs": 2, "memory": "gru"}),
    "nested observations, hybrid actions, replay": (Nested, "sac", {"num_envs": 2, "steps": 200}),
    "masks": ("kumite/Mask-v0", "ppo", {"num_envs": 2}),
    "batch norms, dropout, bounded rewards": (
        "Pendulum-v1",
        "sac",
        {"joint": True, "critic.norm": "renorm", "critic.dropout": 0.1, "normalize_reward": True, "reward_bound": 5.0}
        | SHORT,
    ),
    "moved images, what the critics see, quantiles": (
        Nested,
        "sac",
        {"num_envs": 2, "steps": 200, "augment": "shift", "share_encoder": True, "head": "quantile"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_every_part(case: str, tmp_path: Path) -> None:
    env, algo, more = CASES[case]
    check_exact(env, algo, tmp_path, **more)


def test_stopped_at_awkward_moments(tmp_path: Path) -> None:
    """Before the first step, twice at one step, at the step of a checkpoint, after the last step."""
    one = whole("CartPole-v1", "ppo", tmp_path / "whole", num_envs=2)
    agent = Agent("CartPole-v1", algo="ppo", **settings("ppo", tmp_path / "broken", num_envs=2))

    def ends(agent: Agent, steps: int) -> Agent:
        agent.stop.signal = None
        original = agent._check
        calls = iter(range(10_000))

        def check(run: Any, callback: Any) -> None:
            if next(calls) == steps:
                agent.stop.signal = 2
            original(run, callback)

        agent._check = check  # type: ignore[method-assign]
        with pytest.raises(Interrupted):
            agent.learn()
        assert agent.path is not None
        return kumite.resume(agent.path)

    for steps in (0, 0, 3, 0, 0, 32, 35):
        agent = ends(agent, steps)
    left = (512 - agent.env_step) // 2
    interrupt(agent, agent.env_step + 2 * left - 10)
    assert agent.path is not None
    kumite.resume(agent.path).learn()
    check_same(one, agent.path)
    again = tables(agent.path)
    kumite.resume(agent.path).learn()
    assert tables(agent.path) == again, "a run that is complete gains nothing"


@pytest.mark.parametrize("which", [0, 1, 5])
def test_stopped_inside_an_evaluation(which: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken evaluation leaves no row and is made again; the last one, at the end of the run, as well."""
    one = whole("CartPole-v1", "ppo", tmp_path / "whole", num_envs=2, steps=520)
    agent = Agent("CartPole-v1", algo="ppo", **settings("ppo", tmp_path / "broken", num_envs=2, steps=520))
    original, calls = agents.evaluate, iter(range(100))

    def evaluate(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == which:
            agent.stop.signal = 15
        return original(*args, **kwargs)

    monkeypatch.setattr(agents, "evaluate", evaluate)
    with pytest.raises(Interrupted):
        agent.learn()
    monkeypatch.setattr(agents, "evaluate", original)
    assert agent.path is not None
    evals = agent.path / "evals.csv"
    assert (len(evals.read_text().splitlines()) - 1 if evals.exists() else 0) == which
    kumite.resume(agent.path).learn()
    check_same(one, agent.path)


def test_the_same_process_goes_on(tmp_path: Path) -> None:
    """After Ctrl-C in a notebook the agent acts, evaluates and learns on."""
    one = whole("CartPole-v1", "ppo", tmp_path / "whole", num_envs=2)
    agent = Agent("CartPole-v1", algo="ppo", **settings("ppo", tmp_path / "broken", num_envs=2))
    interrupt(agent, 100)
    assert len(agent.evaluate(3).returns) == 3
    agent.predict(agent.native.obs_native.sample() if hasattr(agent.native.obs_native, "sample") else [0.0] * 4)
    agent.learn()
    assert agent.path is not None
    check_same(one, agent.path)


def test_to_more_steps(tmp_path: Path) -> None:
    """A longer run in two pieces is the long run where nothing depends on the length."""
    plain = {"num_envs": 2, "lr_schedule": "constant", "clip_schedule": "constant"}
    one = whole("CartPole-v1", "ppo", tmp_path / "whole", steps=560, **plain)
    two = whole("CartPole-v1", "ppo", tmp_path / "pieces", steps=280, **plain)
    kumite.resume(two, steps=560).learn()
    names = [p.name for p in checkpoint.numbered(one / "checkpoints")]
    assert [p.name for p in checkpoint.numbered(two / "checkpoints")] == names
    assert differences(saved(one)["algo"], saved(two)["algo"]) == []
    assert differences(saved(one)["env"], saved(two)["env"]) == []
    assert tables(one)["episodes.csv"] == tables(two)["episodes.csv"]


def test_a_run_that_became_longer_says_so_in_its_config(tmp_path: Path) -> None:
    """Even where it ends before its next checkpoint, which holds the settings as well."""
    run = whole("CartPole-v1", "ppo", tmp_path, steps=64, num_envs=2)

    def killed(_: Any) -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        kumite.resume(run, steps=128).learn(callback=killed)
    assert load_yaml(run / "config.yaml")["steps"] == 128
    again = kumite.resume(run).learn()
    assert again.env_step >= 128
    assert parse_yaml(checkpoint.text(checkpoint.numbered(run / "checkpoints")[0], "config.yaml"), "")["steps"] == 128
    with pytest.raises(UserError, match=r"has reached step \d+; steps is the length of the whole run, not 100$"):
        kumite.resume(run, steps=100)
    (run / "config.yaml").write_text("{{{")
    again.learn("1k")
    assert load_yaml(run / "config.yaml")["steps"] == again.config.steps > 1128


@pytest.mark.parametrize("saved", [False, True])
def test_two_never_write_to_one_run(saved: bool, tmp_path: Path) -> None:
    """A resume while the run still goes, or twice at once, would mix two lives in every file."""
    first = Agent("CartPole-v1", algo="ppo", **settings("ppo", tmp_path, steps=140, num_envs=2))
    looks: list[bool] = []

    def second(state: Any) -> None:
        assert first.path is not None
        if state.env_step > 100 or not saved:
            before = {p: p.read_bytes() for p in first.path.rglob("*") if p.is_file()}
            with pytest.raises(UserError, match=f"^{first.path} is being written by another process"):
                kumite.resume(first.path, steps=256).learn()
            looks.append(before == {p: p.read_bytes() for p in first.path.rglob("*") if p.is_file()})

    first.learn(60, callback=second if not saved else None)
    assert first.path is not None
    first = kumite.resume(first.path, steps=140)
    first.learn(callback=second if saved else None)
    assert looks
    assert all(looks)


def test_the_seed_says_everything(tmp_path: Path) -> None:
    check_same(*(whole("CartPole-v1", "ppo", tmp_path / name, num_envs=2, seed=7) for name in "ab"))
    other = whole("CartPole-v1", "ppo", tmp_path / "c", num_envs=2, seed=8)
    assert tables(other) != tables(tmp_path / "a" / "CartPole-v1" / "ppo" / "it-s7")


# --- what cannot be exact --------------------------------------------------------------------------------------------


def test_a_backend_that_cannot_go_back_says_so_once(tmp_path: Path) -> None:
    """Fresh episodes, everything else as it was, and the same each time."""
    more = {"num_envs": 2, "env": {"mode": "native"}, "save": {"every": 64, "keep": 20}}
    runs = []
    for name in "ab":
        agent = Agent("CartPole-v1", algo="ppo", **settings("ppo", tmp_path / name, **more))
        interrupt(agent, 200)
        assert agent.path is not None
        before = tables(agent.path)
        agent = kumite.resume(agent.path)
        with pytest.warns(RuntimeWarning, match="cannot be put back where they were") as said:
            agent.learn()
        assert len(said) == 1
        assert agent.path is not None
        for file, rows in before.items():
            assert tables(agent.path)[file][: len(rows)] == rows
        runs.append(agent.path)
    check_same(*runs)


class Restless(Nested):
    """Draws from a generator that no seed reaches."""

    def _see(self) -> Any:
        seen = super()._see()
        seen["eye"][:] = Restless.noise.randrange(256)
        return seen

    noise = random.Random(1)


def test_an_environment_that_ignores_its_seed(tmp_path: Path) -> None:
    agent = Agent(Restless, algo="ppo", **settings("ppo", tmp_path, num_envs=2))
    interrupt(agent, 100)
    assert agent.path is not None
    again = kumite.resume(agent.path, env=Restless)
    with pytest.warns(RuntimeWarning, match="cannot be put back"):
        again.learn()
    assert again.env_step >= 512


@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_without_the_replay_buffer(algo: str, tmp_path: Path) -> None:
    """Small checkpoints: the rows are gone, the rest goes on, the same each time."""
    env = "CartPole-v1"
    more = {"num_envs": 2, "save": {"every": 70, "replay": False}}
    one, two = (broken(env, algo, tmp_path / name, [150], **more) for name in "ab")
    check_same(one, two)
    with_rows = broken(env, algo, tmp_path / "c", [150], num_envs=2)
    size = {run: sum(p.stat().st_size for p in run.rglob("replay.safetensors")) for run in (one, with_rows)}
    assert size[one] < size[with_rows] / 2
