"""The probe tasks are what their docstrings say: returns of known policies, known observations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from kumite.envs import suite

suite.register()
suite.register()
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("One", {}),
    ("Delay", {}),
    ("Endless", {}),
    ("Echo", {}),
    ("Recall", {}),
    ("Recall", {"k": 0}),
    ("Hybrid", {}),
    ("Hybrid", {"kind": "tuple"}),
    ("Sensors", {}),
    ("Clock", {"seeded": True}),
    *((name, {"action": "box"}) for name in ("One", "Delay", "Endless", "Echo", "Recall", "Sensors")),
    ("Clock", {"seeded": True, "action": "box"}),
    ("CartPoleNoVel", {}),
    ("PendulumNoVel", {}),
]


def make(name: str, **kwargs: Any) -> Any:
    env = gymnasium.make(f"kumite/{name}-v0", disable_env_checker=True, **kwargs)
    return env if "NoVel" in name else env.unwrapped


def play(env: Any, policy: Callable[[Any], Any], seed: int) -> tuple[float, int, bool, bool]:
    obs, _ = env.reset(seed=seed)
    total, length = 0.0, 0
    while True:
        obs, reward, terminated, truncated, _ = env.step(policy(obs))
        total, length = total + reward, length + 1
        if terminated or truncated:
            return total, length, terminated, truncated


def mean(env: Any, policy: Callable[[Any], Any], episodes: int = 300) -> float:
    return float(np.mean([play(env, policy, seed)[0] for seed in range(episodes)]))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("name", "kwargs"), VARIANTS)
def test_gymnasium_finds_no_fault(name: str, kwargs: dict[str, Any]) -> None:
    check_env(make(name, **kwargs), skip_render_check=True)


def test_scripted_values() -> None:
    assert play(make("One"), lambda o: 0, 0) == (1, 1, True, False)
    assert play(make("Delay"), lambda o: 0, 0) == (1, 2, True, False)
    assert play(make("Endless", limit=7), lambda o: 0, 0) == (7, 7, False, True)
    for seed in range(5):
        env = make("Echo")
        sign = env.reset(seed=seed)[0][0]
        assert play(env, lambda o: 0, seed) == (sign, 1, True, False)
    assert {make("Echo").reset(seed=s)[0][0] for s in range(20)} == {-1, 1}


@pytest.mark.parametrize("k", [0, 1, 4])
@pytest.mark.parametrize("action", ["discrete", "box"])
def test_recall_needs_the_cue(k: int, action: str) -> None:
    env = make("Recall", k=k, action=action)

    def answer(cue: float) -> Any:
        return int(cue > 0) if action == "discrete" else np.array([0.3 * cue], np.float32)

    memory: list[float] = []

    def remember(obs: Any) -> Any:
        if obs[0]:
            memory.append(obs[0])
        return answer(memory[-1])

    assert mean(env, remember) == 1
    assert 0.35 < mean(env, lambda obs: answer(1)) < 0.65
    env.reset(seed=0)
    shown = [env.step(answer(1))[0][1] for _ in range(k + 1)]
    assert shown == [*([0] * (k - 1)), 1, 0][-(k + 1) :]


@pytest.mark.parametrize("kind", ["dict", "tuple"])
def test_hybrid_rewards_the_right_pair(kind: str) -> None:
    env = make("Hybrid", kind=kind)
    rng = np.random.default_rng(0)

    def act(axis: int, amount: float) -> Any:
        amount_ = np.array([amount], np.float32)
        return {"axis": axis, "amount": amount_} if kind == "dict" else (axis, amount_)

    def best(obs: Any) -> Any:
        axis = int(np.argmax(np.abs(obs)))
        return act(axis, obs[axis])

    optimum = mean(env, best)
    assert 0.7 < optimum < 0.8
    assert min(play(env, best, s)[0] for s in range(50)) >= 0.5
    assert mean(env, lambda obs: act(int(rng.integers(3)), rng.uniform(-1, 1))) < 0.1
    # either half alone is not enough
    assert mean(env, lambda obs: act(0, obs[0])) < 0.3
    assert mean(env, lambda obs: act(int(np.argmax(np.abs(obs))), 1.0)) < optimum - 0.2


@pytest.mark.parametrize("where", ["obs", "info", "method"])
def test_illegal_choices_raise(where: str) -> None:
    env = make("Mask", where=where)
    env.reset(seed=0)
    env.legal[:] = [1, 0, 1, 1, 1, 1]
    with pytest.raises(ValueError, match="1 is not legal"):
        env.step(1)
    total = 0.0
    obs, _ = env.reset(seed=0)
    for _ in range(5):
        goal = obs["observation"] if where == "obs" else obs
        obs, reward, _, truncated, _ = env.step(int(np.argmax(goal)))
        total += reward
    assert truncated
    assert total == 5


@pytest.mark.parametrize("sensor", ["joints", "touch", "colour", "grey"])
def test_every_sensor_tells_the_sign(sensor: str) -> None:
    env = make("Sensors", limit=20)

    def look(obs: Any) -> int:
        if sensor == "joints":
            return int(obs["arm"]["joints"].mean() > 0)
        if sensor == "touch":
            return int(obs["arm"]["touch"][0] > 0)
        return int(obs["eyes"][0 if sensor == "colour" else 1].mean() < 100)

    assert play(env, look, 0)[0] == 20
    assert 7 < mean(env, lambda obs: 0, 30) < 13


@pytest.mark.parametrize(
    ("name", "whole", "shown", "limit"),
    [("CartPoleNoVel", "CartPole-v1", [0, 2], 500), ("PendulumNoVel", "Pendulum-v1", [0, 1], 200)],
)
def test_hidden_velocities_are_the_only_difference(name: str, whole: str, shown: list[int], limit: int) -> None:
    part, full = make(name), gymnasium.make(whole)
    assert part.spec.max_episode_steps == limit
    assert part.action_space == full.action_space
    seen, all_ = part.reset(seed=3)[0], full.reset(seed=3)[0]
    over = False
    full.action_space.seed(0)
    while not over:
        assert seen in part.observation_space
        np.testing.assert_array_equal(seen, all_[shown])
        action = full.action_space.sample()
        (seen, *rest), (all_, *same) = part.step(action), full.step(action)
        assert rest[:3] == same[:3]
        over = rest[1] or rest[2]


def test_variants_that_do_not_exist_are_refused() -> None:
    for name, kwargs in (("One", {"action": "hand"}), ("Recall", {"k": -1}), ("Hybrid", {"kind": "list"})):
        with pytest.raises(ValueError, match=r"'|counts"):
            make(name, **kwargs)
    with pytest.raises(ValueError, match="'obs', 'info' or 'method'"):
        make("Mask", where="nowhere")
