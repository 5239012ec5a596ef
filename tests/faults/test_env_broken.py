"""Environments that break their word, stepped in this process: the sentence says where, and a restart goes on."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import kumite
from kumite.envs import make_env
from kumite.envs.base import EnvConfig, VecEnv, derive
from kumite.envs.gymnasium import DroppedWarning, GymVec
from kumite.errors import RunError, UserError
from kumite.types import Step

RESTART, DROP = EnvConfig(on_error="restart"), EnvConfig(on_error="drop")


class Frail(gymnasium.Env[Any, Any]):
    """Episodes of 6 steps that count the time; `harm` spoils the result of step `at` where `when(seed)`."""

    def __init__(self, harm: Callable[[Any], Any], at: int = 3, when: Callable[[int], bool] = lambda _: True) -> None:
        self.observation_space = spaces.Box(-100, 100, (2,), np.float32)
        self.action_space = spaces.Box(-2.0, 2.0, (1,))
        self.harm, self.at, self.when = harm, at, when

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.time, self.seed = 0, seed or 0
        obs = np.zeros(2, np.float32)
        return self.harm((obs, {})) if self.at == 0 and self.when(self.seed) else (obs, {})

    def step(self, action: Any) -> Any:
        self.time += 1
        result = (np.full(2, self.time, np.float32), 1.0, False, self.time == 6, {})
        return self.harm(result) if self.time == self.at and self.when(self.seed) else result


def put(index: int, value: Any) -> Callable[[Any], Any]:
    return lambda result: (*result[:index], value, *result[index + 1 :])


def explode(result: Any) -> Any:
    raise RuntimeError("the gripper is stuck")


def leave(result: Any) -> Any:
    sys.exit(3)


HARMS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "shape": (put(0, np.zeros(3)), r"shape \(3,\) where the space says \(2,\)"),
    "scalar": (put(0, 1.0), r"shape \(\)"),
    "type": (put(0, np.array(["a", "b"])), "type <U1"),
    "none": (put(0, None), "observation"),
    "nan": (put(0, np.array([0, np.nan])), "NaN in the observation 'obs'"),
    "infinite": (put(0, np.array([np.inf, 0])), "infinity in the observation 'obs'"),
    "reward-nan": (put(1, np.nan), "the reward is nan"),
    "reward-infinite": (put(1, -np.inf), "the reward is -inf"),
    "reward-word": (put(1, "much"), "the reward is much, which is not a number"),
    "reward-none": (put(1, None), "the reward is None"),
    "reward-vector": (put(1, np.ones(2)), "not a number"),
    "four-values": (lambda result: result[:4], "observation, reward, terminated, truncated, info"),
    "leaves": (leave, r"SystemExit: 3 at test_env_broken\.py:\d+"),
    "raises": (explode, r"RuntimeError: the gripper is stuck at test_env_broken\.py:\d+"),
}


def push(env: VecEnv, value: float = 0.25) -> Step:
    env.send({"c": torch.full((env.slots, 1), value), "d": torch.zeros(env.slots, 0, dtype=torch.int64)})
    return env.recv()


@pytest.mark.parametrize("harm", HARMS)
def test_the_sentence_names_copy_seed_step_and_action(harm: str) -> None:
    spoil, words = HARMS[harm]
    victim = derive(4, 1, 0)
    env = make_env(lambda: Frail(spoil, when=lambda seed: seed == victim), 3)
    env.reset(4)
    push(env)
    push(env)
    with pytest.raises(RunError, match=words) as caught:
        push(env)
    text = str(caught.value)
    assert "environment 1 " in text
    assert f"episode seed {victim}" in text
    assert "step 3 of the episode" in text
    assert "action [0.5]" in text
    assert "--env.on-error restart" in text
    assert "\n" not in text


@pytest.mark.parametrize("harm", ["shape", "nan", "leaves", "raises"])
def test_a_broken_reset_too(harm: str) -> None:
    env = make_env(lambda: Frail(HARMS[harm][0], at=0), 2)
    with pytest.raises(RunError, match=r"environment 0 .*step 0 of the episode"):
        env.reset(0)


@pytest.mark.parametrize("harm", HARMS)
def test_restart_drops_the_episode_and_goes_on(harm: str) -> None:
    spoil, _ = HARMS[harm]
    victim = derive(4, 1, 0)
    env = make_env(lambda: Frail(spoil, when=lambda seed: seed == victim), 2, config=RESTART)
    env.reset(4)
    push(env)
    before = push(env)
    step = push(env)
    assert step.truncated.tolist() == [False, True]
    assert step.terminated.tolist() == [False, False]
    assert torch.equal(step.obs["obs"][1], before.obs["obs"][1])
    assert step.reward.tolist() == [1, 0]
    assert step.episodes is None
    assert step.ticks == 1
    fresh = push(env)
    assert fresh.obs["obs"].tolist() == [[4, 4], [0, 0]]
    assert fresh.reward[1] == 0
    assert not fresh.over.any()
    assert env.restarts == 1
    ended = []
    for _ in range(20):
        step = push(env)
        ended += list(zip(step.episodes.slot, step.episodes.lengths, step.episodes.returns)) if step.episodes else []
    assert set(ended) == {(0, 6, 6.0), (1, 6, 6.0)}


def test_a_state_taken_after_a_restart_is_restored() -> None:
    victim = derive(4, 1, 0)

    def make() -> VecEnv:
        return make_env(lambda: Frail(explode, when=lambda seed: seed == victim), 2, config=RESTART)

    for count in (3, 4, 5, 8):
        env, other = make(), make()
        env.reset(4)
        for _ in range(count):
            push(env)
        assert other.restore(env.state())
        assert other.restarts == 1
        for _ in range(12):
            a, b = push(env), push(other)
            assert torch.equal(a.obs["obs"], b.obs["obs"])
            assert torch.equal(a.over, b.over)
            assert a.episodes == b.episodes


@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_crash_loop_stops(at: int) -> None:
    env = make_env(lambda: Frail(explode, at=at), 1, config=RESTART)
    with pytest.raises(RunError, match=r"gripper is stuck.*5 restarts in a row did not help"):
        env.reset(0)
        for _ in range(100):
            push(env)
    assert env.restarts == 5


def test_crashes_with_whole_episodes_between_go_on() -> None:
    env = make_env(lambda: Frail(explode, when=lambda seed: seed % 3 == 0), 1, config=RESTART)
    env.reset(0)
    for _ in range(400):
        push(env)
    assert env.restarts > 5


def test_restarts_are_counted_in_the_metrics(tmp_path: Path) -> None:
    make = lambda: Frail(explode, when=lambda seed: seed % 3 == 0)
    net = {"actor": {"width": 8}, "critic": {"width": 8}, "env": {"on_error": "restart"}, "log": {"every": 40}}
    agent = kumite.PPO(make, num_envs=2, horizon=8, batch_size=8, quiet=True, dir=str(tmp_path), **net).learn(120)
    with (agent.path / "metrics.csv").open(newline="") as file:
        last = list(csv.DictReader(file))[-1]
    assert float(last["rollout/restarts"]) == agent.run.env.restarts > 0


def losing(victim: int, at: int = 3, harm: str = "nan", copies: int = 3) -> VecEnv:
    seed = derive(4, victim, 0)
    return make_env(lambda: Frail(HARMS[harm][0], at=at, when=lambda s: s == seed), copies, config=DROP)


@pytest.mark.parametrize("harm", ["shape", "nan", "raises"])
@pytest.mark.parametrize("at", [0, 3])
def test_a_dropped_copy_is_void_and_the_others_go_on(at: int, harm: str) -> None:
    env = losing(1, at, harm)
    with pytest.warns(DroppedWarning, match=r"environment 1 .*step \d of the episode.*; it is dropped") as said:
        steps = [env.reset(4), *(push(env) for _ in range(14))]
    assert len(said) == 1
    assert [step.over[1].item() for step in steps] == [i >= at for i in range(15)]
    assert not any(step.terminated[1] or step.reward[1] for step in steps[at:])
    assert [step.ticks for step in steps[1:]] == [2 + (i < at) for i in range(1, 7)] + [0] + [2] * 6 + [0]
    assert [(e.slot, e.lengths) for step in steps if (e := step.episodes)] == [([0, 2], [6, 6])] * 2
    if at:
        assert torch.equal(steps[at].obs["obs"][1], steps[at - 1].obs["obs"][1]), "what the cut is bootstrapped from"
    for before, step in zip(steps[at:], steps[at + 1 :], strict=False):
        assert torch.equal(step.obs["obs"][1], before.obs["obs"][0]), "after it, nothing that could spoil a mean"


def test_the_actions_of_a_dropped_copy_are_not_kept_for_ever() -> None:
    env = losing(0)
    assert isinstance(env, GymVec)
    env.reset(4)
    with pytest.warns(DroppedWarning):
        longest = max(len(env.log.rows) for _ in range(2_100) if push(env))
    assert longest <= 1_100


def test_the_last_copy_cannot_be_dropped() -> None:
    env = make_env(lambda: Frail(explode), 2, config=DROP)
    env.reset(4)
    push(env)
    push(env)
    with pytest.warns(DroppedWarning), pytest.raises(RunError, match=r"environment 1 failed.*; it was the last copy$"):
        push(env)


def test_a_dropped_copy_stays_dropped_after_a_restore() -> None:
    env, other = losing(0), losing(0)
    with pytest.warns(DroppedWarning):
        steps = [env.reset(4), *(push(env) for _ in range(4))]
    assert other.restore(env.state())
    for _ in range(12):
        a, b = push(env), push(other)
        assert torch.equal(a.obs["obs"], b.obs["obs"])
        assert torch.equal(a.over, b.over)
        assert a.over[0]
    assert len(steps) == 5


@pytest.mark.parametrize(
    ("algo", "more"),
    [
        ("ppo", {"horizon": 8, "batch_size": 8, "memory": "gru", "chunk": 4, "normalize_obs": True}),
        ("sac", {"warmup": 10, "batch_size": 8, "n_step": 3, "priority": 0.6, "buffer_size": 60}),
        ("sac", {"warmup": 10, "batch_size": 8, "memory": "gru", "chunk": 4, "buffer_size": 60}),
    ],
)
def test_learning_goes_on_without_a_dropped_copy(algo: str, more: dict[str, Any], tmp_path: Path) -> None:
    """To the end, through a checkpoint, with evaluations that play all their episodes."""
    net = {"actor": {"width": 8, "memory_width": 4}, "critic": {"width": 8, "memory_width": 4}}
    plain = {"num_envs": 3, "env": {"on_error": "drop"}, "steps": 120, "quiet": True, "dir": str(tmp_path)}
    victim = derive(0, 1, 0)
    make = lambda: Frail(explode, when=lambda seed: seed == victim)
    agent = getattr(kumite, algo.upper())(make, eval={"every": 50, "episodes": 2}, **plain, **net, **more)
    with pytest.warns(DroppedWarning):
        agent.learn()
    again = kumite.resume(agent.path, steps=200, env=make).learn()
    assert again.env_step >= 200
    assert {row.split(",")[2] for row in (agent.path / "episodes.csv").read_text().splitlines()[1:]} == {"0", "2"}


def test_a_new_copy_that_cannot_be_made_counts_as_a_crash() -> None:
    made = []

    def make() -> Frail:
        made.append(1)
        if len(made) > 2:
            raise OSError("no licence left")
        return Frail(explode)

    env = make_env(make, 2, config=RESTART)
    env.reset(0)
    with pytest.raises(RunError, match=r"no licence left.*5 restarts"):
        for _ in range(10):
            push(env)


def test_failures_while_it_is_made_are_the_users_mistake() -> None:
    def make() -> Any:
        raise OSError("no such robot")

    with pytest.raises(UserError, match=r"failed: OSError: no such robot at test_env_broken\.py"):
        make_env(make)
    with pytest.raises(UserError, match=r"failed: SystemExit: 3 at test_env_broken\.py"):
        make_env(lambda: leave(None))
    with pytest.raises(UserError, match="int is no gymnasium environment: it has no 'reset'"):
        make_env(lambda: 3)
    with pytest.raises(UserError, match="cannot be made anew"):
        make_env(Frail(explode), config=RESTART)


def test_old_gyms_reset_is_explained() -> None:
    class Old(Frail):
        def reset(self, **_: Any) -> Any:
            return np.zeros(2, np.float32)

    env = make_env(lambda: Old(explode))
    with pytest.raises(RunError, match=r"reset\(\) must return \(observation, info\)"):
        env.reset(0)


def test_copies_must_agree() -> None:
    made = []

    def make() -> Any:
        made.append(1)
        return gymnasium.make("CartPole-v1" if len(made) == 1 else "Acrobot-v1")

    with pytest.raises(UserError, match="environment 1 has other spaces than environment 0"):
        make_env(make, 2)


def test_a_buffer_that_the_environment_keeps_changing_does_no_harm() -> None:
    class Shared(Frail):
        def reset(self, **kwargs: Any) -> Any:
            self.buffer, info = super().reset(**kwargs)
            return self.buffer, info

        def step(self, action: Any) -> Any:
            self.buffer += 1
            action[:] = 99
            return self.buffer, *super().step(action)[1:]

    env = make_env(lambda: Shared(explode, at=-1))
    first = env.reset(0)
    action = {"c": torch.full((1, 1), 0.5), "d": torch.zeros(1, 0, dtype=torch.int64)}
    env.send(action)
    second = env.recv()
    env.send(action)
    env.recv()
    assert first.obs["obs"].tolist() == [[0, 0]]
    assert second.obs["obs"].tolist() == [[1, 1]]
    assert action["c"].item() == 0.5


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_action_that_is_no_number_never_reaches_the_simulator(value: float) -> None:
    def refuse(result: Any) -> Any:
        raise AssertionError("stepped")

    env = make_env(lambda: Frail(refuse, at=1), 2)
    env.reset(0)
    with pytest.raises(RunError, match=r"the action for environment 0 is not valid.*diverged"):
        push(env, value)


def test_misuse_is_told() -> None:
    env = make_env("CartPole-v1")
    with pytest.raises(RunError, match="reset the environment"):
        env.send(env.action.random(1))
    env.reset(0)
    with pytest.raises(RunError, match="after sending"):
        env.recv()
    env.send(env.action.random(1))
    with pytest.raises(RunError, match="sent twice"):
        env.send(env.action.random(1))


def test_no_legal_action_in_mid_episode() -> None:
    class Stuck(Frail):
        def __init__(self) -> None:
            super().__init__(explode, at=-1)
            self.action_space = spaces.Discrete(3)

        def action_masks(self) -> Any:
            return np.array([self.time < 2] * 3) if self.time < 6 else np.zeros(3)

    env = make_env(Stuck)
    step = env.reset(0)
    env.send(env.action.random(1, mask=step.obs["mask"]))
    env.recv()
    env.send(env.action.random(1))
    with pytest.raises(RunError, match="no action is legal"):
        env.recv()


def test_broken_vector_environments_name_the_copy() -> None:
    from gymnasium.vector import SyncVectorEnv

    for harm, words in (("nan", "NaN"), ("infinite", "infinity"), ("reward-nan", "reward nan")):
        made = []

        def make(harm: str = harm, made: list[int] = made) -> Frail:
            made.append(1)
            return Frail(HARMS[harm][0], at=3 if len(made) == 2 else -1)

        env = make_env(SyncVectorEnv([make, make, make]))
        env.reset(0)
        push(env)
        push(env)
        with pytest.raises(RunError, match=f"environment 1 gave .*{words}.*step 3 of the episode, action \\[0.5\\]"):
            push(env)


def test_a_vector_environment_that_raises_is_named() -> None:
    from gymnasium.vector import SyncVectorEnv

    env = make_env(SyncVectorEnv([lambda: Frail(explode)] * 2))
    env.reset(0)
    push(env)
    push(env)
    with pytest.raises(
        RunError, match=r"SyncVectorEnv failed: RuntimeError: the gripper is stuck at .*--env\.mode workers"
    ):
        push(env)
