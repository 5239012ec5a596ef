"""Environments that break their word, stepped in this process: the sentence says where, and a restart goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from kumite.envs import make_env
from kumite.envs.base import EnvConfig, VecEnv, derive
from kumite.errors import RunError, UserError
from kumite.types import Step

RESTART = EnvConfig(on_error="restart")


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
