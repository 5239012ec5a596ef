"""What the Agent makes of words and shapes that cannot be meant."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import kumite
from kumite.envs import make_env
from kumite.envs.suite.probes import One
from kumite.errors import RunError, UserError

SMALL: dict[str, Any] = {"actor": {"width": 8}, "critic": {"width": 8}, "quiet": True}


def test_predict_refuses_states_and_starts_of_other_observations() -> None:
    agent = kumite.PPO("Pendulum-v1", memory="gru", num_envs=1, **SMALL)
    _, state = agent.predict(np.zeros((3, 3)))
    for start in (True, [True], np.ones(3, bool)):
        agent.predict(np.zeros((3, 3)), state, episode_start=start)
    with pytest.raises(UserError, match="the state is that of 3 observations, but 4 were given"):
        agent.predict(np.zeros((4, 3)), state)
    with pytest.raises(UserError, match="state is what predict returned last"):
        agent.predict(np.zeros(3), np.zeros(3))
    with pytest.raises(UserError, match="episode_start speaks of 2 observations, but 3 were given"):
        agent.predict(np.zeros((3, 3)), state, episode_start=[True, False])


def test_numbers_as_on_the_command_line(runs: Path) -> None:
    agent = kumite.PPO(One, num_envs=2, horizon=8, batch_size=8, name="x", eval={"every": -1}, **SMALL).learn("0.1k")
    assert agent.env_step >= 100
    assert agent.path is not None
    assert kumite.load(agent.path, checkpoint=agent.env_step).env_step == agent.env_step
    with pytest.raises(UserError, match="episodes: expected at least 1, got 0"):
        agent.evaluate(0)
    with pytest.raises(UserError, match="steps: expected at least 0, got -5"):
        agent.learn(-5)


def test_what_cannot_be_made_again_is_refused_before_anything_is_written(runs: Path) -> None:
    class Held(One):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()  # which cannot be copied

    env = Held()
    with pytest.raises(UserError, match=r"cannot be copied for evaluation; .* --eval.every -1"):
        kumite.PPO(env, horizon=8, batch_size=8, name="x", **SMALL).learn(16)
    assert not list(runs.iterdir())
    kumite.PPO(env, horizon=8, batch_size=8, name="x", eval={"every": -1}, **SMALL).learn(16)


def test_an_environment_that_breaks_in_an_evaluation_says_so(runs: Path) -> None:
    class Second(One):
        made = 0

        def __init__(self) -> None:
            super().__init__()
            Second.made += 1
            self.number = Second.made

        def step(self, action: Any) -> Any:
            if self.number > 1:
                raise RuntimeError("licence for one copy only")
            return super().step(action)

    agent = kumite.PPO(
        Second, num_envs=1, horizon=8, batch_size=8, name="x", eval={"every": 20, "episodes": 1}, **SMALL
    )
    with pytest.raises(RunError, match=r"^in the evaluation at step 20: environment 0 failed: .*licence"):
        agent.learn(40)


def test_episodes_of_training_of_its_evaluations_and_of_later_ones_differ(runs: Path) -> None:
    """The best checkpoint was chosen on some episodes: what it is worth is seen on others, with any seed."""
    begun: list[int] = []

    class Noted(One):
        def reset(self, *, seed: int | None = None, **more: Any) -> Any:
            begun.append(seed or 0)
            return super().reset(seed=seed, **more)

    def of(play: Callable[[], Any]) -> set[int]:
        begun.clear()
        play()
        return set(begun)

    plain = {"num_envs": 2, "horizon": 8, "batch_size": 8, **SMALL}
    trained = of(lambda: kumite.PPO(Noted, **plain).learn(32))
    agent = kumite.PPO(Noted, name="x", eval={"every": 16, "episodes": 4}, **plain)
    chose = of(lambda: agent.learn(32)) - trained
    assert len(chose) == 4, "every evaluation plays the same ones"
    asked = [of(lambda seed=seed: agent.evaluate(4, seed=seed)) for seed in (None, 0, 1)]  # type: ignore[misc]
    assert asked[0] == asked[1], "the run's own seed is 0"
    assert len(trained | chose | asked[1] | asked[2]) == len(trained) + 4 + 4 + 4


def test_a_loaded_agent_refuses_environments_it_was_not_made_for(runs: Path) -> None:
    agent = kumite.PPO("CartPole-v1", num_envs=2, horizon=8, batch_size=8, **SMALL).learn(32)
    agent.save("mine")
    for env, sentence in (
        ("Acrobot-v1", "this environment has other observations than CartPole-v1, for which the agent was made"),
        (lambda: Wide(), "this environment has other actions than CartPole-v1"),
    ):
        for use in (lambda a: a.learn(8), lambda a: a.evaluate(1)):
            with pytest.raises(UserError, match=sentence):
                use(kumite.load("mine", env=env))
    more = make_env(lambda: gymnasium.make("CartPole-v1"), 3)
    with pytest.raises(UserError, match="what was saved has 2 copies of the environment, this one has 3; give as many"):
        kumite.load("mine", env=more).learn(8)


class Wide(gymnasium.ActionWrapper[Any, Any, Any]):
    """CartPole with a third action."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.action_space = gymnasium.spaces.Discrete(3)

    def action(self, action: Any) -> Any:
        return min(action, 1)


@pytest.mark.parametrize("name", ["torch.nn:Linear", "os:getcwd"])
def test_an_encoder_that_cannot_be_made_is_a_mistake(name: str) -> None:
    with pytest.raises(UserError, match=rf"making the encoder '{name}' failed: TypeError: .*; it is given one dict"):
        kumite.PPO("CartPole-v1", encoder=name, **SMALL)
