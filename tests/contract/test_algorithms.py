"""Every algorithm with every kind of action it claims, memory, n steps, priorities and observation: it learns, saves,
comes back bit for bit, acts and is evaluated. What it does not claim is refused at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from functools import partial
from itertools import combinations, cycle, product
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

import kumite
from kumite import checkpoint
from kumite.agent import Agent
from kumite.algos import ROWS, algorithm
from kumite.config import keys, run_type
from kumite.errors import UserError
from tests.resume.records import differences

ACTIONS: dict[str, spaces.Space[Any]] = {
    "continuous": spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32)),
    "discrete": spaces.Discrete(3, start=5),
    "multi-discrete": spaces.MultiDiscrete([2, 3]),
    "hybrid": spaces.Dict({"push": spaces.Box(-1.0, 1.0, (2,), np.float32), "gear": spaces.Discrete(3)}),
}
OBSERVATIONS: dict[str, spaces.Space[Any]] = {
    "vector": spaces.Box(-1.0, 1.0, (3,), np.float32),
    "nested": spaces.Dict(
        {
            "arm": spaces.Dict({"joints": spaces.Box(-1.0, 1.0, (2,), np.float32), "gear": spaces.Discrete(3)}),
            "eyes": spaces.Tuple(
                (spaces.Box(0, 255, (8, 10, 3), np.uint8), spaces.Box(0, 255, (9, 7), np.uint8)),
            ),
        }
    ),
    "frames": spaces.Box(0, 255, (8, 8), np.uint8),
}
MEMORIES = ["none", *(f"{kind}-{place}" for kind in ("lstm", "gru", "rnn") for place in ("before", "after"))]
HOMES = list({row.home: name for name, row in reversed(ROWS.items())}.values())[::-1]
"""One name per file of arithmetic: what does not depend on a name's numbers is tested with these."""
SMALL: dict[str, Any] = {
    "num_envs": 2,
    "horizon": 4,
    "minibatches": 2,
    "batch_size": 8,
    "epochs": 2,
    "chunk": 4,
    "quiet": True,
    "warmup": 12,
    "buffer_size": 60,
    "update_ratio": 1.0,
    "target_every": 8,
    "normalize_obs": True,
    "normalize_reward": True,
}
NET = {"width": 8, "memory_width": 6}


class Toy(gymnasium.Env[Any, Any]):
    """Random observations and rewards; episodes of 2 to 5 steps with ends of both kinds."""

    def __init__(self, observation: str = "vector", action: str = "continuous") -> None:
        self.observation_space = deepcopy(OBSERVATIONS[observation])  # copies must not draw from each other's
        self.action_space = ACTIONS[action]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(2, 6))
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.left -= 1
        over, cut = self.left == 0, bool(self.np_random.integers(2))
        return self.observation_space.sample(), float(self.np_random.normal()), over and not cut, over and cut, {}


def make(
    name: str, observation: str = "vector", action: str = "continuous", memory: str = "none", **more: Any
) -> Agent:
    kind, _, place = memory.partition("-")
    net = NET | {"memory": kind, "memory_place": place or "before"}
    own = set(ROWS[name].numbers) - {"horizon", "update_ratio"}  # what the name means stays
    numbers = {k: v for k, v in SMALL.items() if k in keys(run_type(name)) and k not in own}
    numbers |= {"actor": net, "critic": net}
    if observation == "frames":
        numbers["env.frame_stack"] = 3
    return Agent(partial(Toy, observation, action), algo=name, **(numbers | more))


def batch_of(space: spaces.Space[Any], n: int) -> Any:
    return concatenate(space, [space.sample() for _ in range(n)], create_empty_array(space, n))


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    return bool(np.array_equal(a, b))


def learn(agent: Agent, updates: int) -> None:
    until = agent.algo.updates + updates
    agent.learn(1000, callback=lambda run: run.algo.updates < until)
    assert agent.algo.updates >= until


def check_learning(agent: Agent, updates: int = 12) -> None:
    before = [p.clone() for p in agent.algo.parameters()]
    learn(agent, updates)  # a loss that is not a number would end it
    assert all(p.isfinite().all() for p in agent.algo.parameters())
    changed = [not torch.equal(p, q) for p, q in zip(agent.algo.parameters(), before, strict=True)]
    assert sum(changed) > len(changed) / 2


def everything(agent: Agent, folder: Path) -> dict[str, Any]:
    """What a checkpoint holds, apart from clocks."""
    agent.save(folder)
    return {k: v for k, v in checkpoint.read(folder).items() if k not in ("logger", "timers")}


def check_resuming(agent: Agent, folder: Path) -> Agent:
    """Saved, loaded and learned on = learned on, bit for bit."""
    agent.save(folder / "saved")
    again = kumite.load(folder / "saved", env=agent.source)
    assert again.env_step == agent.env_step
    for each in (agent, again):
        learn(each, 3)
    assert again.algo.updates == agent.algo.updates
    assert not differences(everything(agent, folder / "one"), everything(again, folder / "two"))
    return again


def check_acting(agent: Agent, other: Agent | None = None) -> None:
    """Single and batch, three steps with the state handed back; `other` says the same as agent."""
    toy = agent.source()
    toy.observation_space.seed(0)
    for n in (None, 4):
        state = twin = None
        for step in range(3):
            obs = toy.observation_space.sample() if n is None else batch_of(toy.observation_space, n)
            start = step == 2
            action, state = agent.predict(obs, state, episode_start=start)
            if n is None:
                assert toy.action_space.contains(action)
            else:
                rows = list(iterate(batch_space(toy.action_space, n), action))
                assert len(rows) == n
                assert all(toy.action_space.contains(row) for row in rows)
            if other is not None:
                same, twin = other.predict(obs, twin, episode_start=start)
                assert equal(action, same)


def check_all(agent: Agent, folder: Path, updates: int = 12) -> None:
    check_learning(agent, updates)
    again = check_resuming(agent, folder)
    check_acting(agent, again)
    assert len(agent.evaluate(3).returns) == 3


def knows(name: str, *fields: str) -> bool:
    return all(field in keys(run_type(name)) for field in fields)


def names_with(*fields: str, among: Sequence[str] = tuple(ROWS)) -> list[str]:
    return [name for name in among if knows(name, *fields)]


def kinds(name: str) -> list[str]:
    """The kinds of action it claims."""
    return [kind for kind in ACTIONS if kind in algorithm(name).actions]


# -- everything with everything ---------------------------------------------------------------------------------------

Row = dict[str, Any]


def pairwise(factors: dict[str, Sequence[Any]]) -> list[Row]:
    """Few rows in which any two values of any two factors meet."""

    def met(row: Row) -> set[tuple[tuple[str, Any], ...]]:
        return set(combinations(row.items(), 2))

    rows: list[Row] = [dict(zip(factors, values, strict=True)) for values in product(*factors.values())]
    open_pairs, chosen = set().union(*map(met, rows)), []
    while open_pairs:
        chosen.append(max(rows, key=lambda row: len(met(row) & open_pairs)))
        open_pairs -= met(chosen[-1])
    return chosen


def cases() -> Iterator[tuple[str, Row]]:
    """Every name; and the other memories with every file, whatever its name's numbers."""
    for name in ROWS:
        factors: dict[str, Sequence[Any]] = {"action": kinds(name), "observation": list(OBSERVATIONS)}
        if algorithm(name).memory:
            factors["memory"] = ["none", "gru-before"]
        if knows(name, "n_step", "priority"):
            factors |= {"n_step": [1, 3], "priority": [0.0, 0.6]}
        yield from ((name, row) for row in pairwise(factors))
    rest = [memory for memory in MEMORIES if memory not in ("none", "gru-before")]
    for name in HOMES:
        views, actions = cycle(OBSERVATIONS), cycle(kinds(name))
        for memory in rest if algorithm(name).memory else ():
            yield name, {"action": next(actions), "observation": next(views), "memory": memory}


CASES = [pytest.param(name, row, id=f"{name}-" + "-".join(map(str, row.values()))) for name, row in cases()]


@pytest.mark.parametrize(("name", "row"), CASES)
def test_every_name_with_all_it_claims(name: str, row: Row, tmp_path: Path) -> None:
    check_all(make(name, **row), tmp_path, updates=50)


@pytest.mark.parametrize("name", ROWS)
def test_actions_that_it_cannot_do_are_refused(name: str) -> None:
    """With the names of those that can."""
    for kind in set(ACTIONS) - set(kinds(name)):
        with pytest.raises(UserError, match=f"^{name} cannot do the {kind} actions of .*; .*PPO.* can$"):
            make(name, action=kind)


# -- single features --------------------------------------------------------------------------------------------------


ACTORS = [name for name in HOMES if "actor" in algorithm(name).nets]
"""Those with two nets: a policy beside its values."""


@pytest.mark.parametrize("memory", ["none", "gru-before"])
@pytest.mark.parametrize("name", ACTORS)
def test_an_actor_that_sees_less_than_its_critic(name: str, memory: str, tmp_path: Path) -> None:
    kind = memory.partition("-")[0]
    actor = NET | {"keys": ["arm.joints"], "memory": kind}
    agent = make(name, "nested", kinds(name)[0], memory, actor=actor)
    check_all(agent, tmp_path)
    obs = agent.source().observation_space.sample()
    blind = obs | {"eyes": tuple(255 - eye for eye in obs["eyes"])}
    assert equal(agent.predict(obs)[0], agent.predict(blind)[0])
    moved = obs | {"arm": obs["arm"] | {"joints": -obs["arm"]["joints"]}}
    assert not equal(agent.predict(obs)[0], agent.predict(moved)[0])


@pytest.mark.parametrize("name", sorted(set(HOMES) - set(ACTORS)))
def test_settings_of_a_net_that_is_not_there_are_refused(name: str) -> None:
    """What both nets say alike, by --memory or --encoder, may stay."""
    with pytest.raises(UserError, match=r"has no actor: say --critic\.width in place of --actor\.width"):
        make(name, action=kinds(name)[0], actor=NET | {"width": 9})
    make(name, action=kinds(name)[0], memory="gru", encoder="d2rl")


@pytest.mark.parametrize("memories", [("gru", "none"), ("none", "lstm"), ("rnn", "gru")], ids="-".join)
@pytest.mark.parametrize("name", ACTORS)
def test_each_net_has_a_memory_of_its_own(name: str, memories: tuple[str, str], tmp_path: Path) -> None:
    actor, critic = (NET | {"memory": memory} for memory in memories)
    check_all(make(name, "vector", kinds(name)[-1], actor=actor, critic=critic), tmp_path)


@pytest.mark.parametrize("memory", ["none", "lstm-before"])
@pytest.mark.parametrize("observation", ["vector", "frames"])
@pytest.mark.parametrize("name", names_with("share", among=HOMES))
def test_actor_and_critic_on_one_net(name: str, observation: str, memory: str, tmp_path: Path) -> None:
    agent = make(name, observation, "hybrid", memory, share=True)
    apart = make(name, observation, "hybrid", memory)
    assert sum(p.numel() for p in agent.algo.parameters()) < sum(p.numel() for p in apart.algo.parameters())
    check_all(agent, tmp_path)


@pytest.mark.parametrize(
    ("name", "action"),
    [(name, kind) for name in names_with("critics", "subset", "policy_delay", among=HOMES) for kind in kinds(name)],
)
def test_many_critics_and_a_late_policy(name: str, action: str, tmp_path: Path) -> None:
    check_all(make(name, action=action, critics=5, subset=2, policy_delay=2), tmp_path)


@pytest.mark.parametrize("name", names_with("burn_in", "n_step", among=HOMES))
def test_rows_that_refresh_the_memory(name: str, tmp_path: Path) -> None:
    check_all(make(name, "vector", kinds(name)[-1], "lstm-before", n_step=3, burn_in=2, priority=0.6), tmp_path)


@pytest.mark.parametrize("name", names_with("n_step", "buffer_size", among=HOMES))
def test_more_steps_than_replay_holds_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"--n-step 40 needs 40 rows in a line.*ask for fewer steps or a larger buffer"):
        make(name, action=kinds(name)[0], n_step=40)


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("name", names_with("correction", among=HOMES))
def test_corrected_targets(name: str, action: str, tmp_path: Path) -> None:
    memory = "gru-before" if action in ("discrete", "hybrid") else "none"
    check_all(make(name, "vector", action, memory, n_step=3, correction="retrace", priority=0.6), tmp_path)


@pytest.mark.parametrize("numbers", [{"squash": True}, {"state_std": True}, {"std": "softplus", "log_std_init": -1.0}])
@pytest.mark.parametrize("action", ["continuous", "hybrid"])
@pytest.mark.parametrize("name", names_with("squash", "state_std", "std", among=HOMES))
def test_forms_of_the_policy(name: str, action: str, numbers: dict[str, Any], tmp_path: Path) -> None:
    check_all(make(name, "vector", action, **numbers), tmp_path)


@pytest.mark.parametrize("memory", ["none", "lstm-before"])
@pytest.mark.parametrize("name", [name for name in HOMES if "discrete" in kinds(name)])
def test_masks(name: str, memory: str) -> None:
    """The environment raises at an illegal choice: warm-up, training, evaluation and predictions make none."""
    numbers = {k: v for k, v in SMALL.items() if knows(name, k)}
    agent = Agent("kumite/Mask-v0", algo=name, memory=memory.partition("-")[0], **numbers)
    check_learning(agent)
    agent.evaluate(5, deterministic=False)
    for chosen in range(6):
        obs = {"observation": np.ones(6, np.float32), "action_mask": np.eye(6, dtype=np.int8)[chosen]}
        assert agent.predict(obs, deterministic=False)[0] == chosen


@pytest.mark.parametrize("encoder", ["mlp", "d2rl", "impala", "simba", "simbav2"])
@pytest.mark.parametrize("name", HOMES)
def test_encoders(name: str, encoder: str, tmp_path: Path) -> None:
    check_all(make(name, "nested", kinds(name)[0], encoder=encoder), tmp_path)


@pytest.mark.parametrize("memory", ["none", "gru-before"])
@pytest.mark.parametrize("name", names_with("batch_size", "horizon", among=HOMES))
def test_a_whole_roll_out_as_one_batch(name: str, memory: str) -> None:
    agent = make(name, memory=memory, batch_size=0, minibatches=0, epochs=3)
    agent.learn(2 * SMALL["horizon"] + 2)  # one roll-out of two copies; every episode's first Step is none
    assert agent.algo.updates == 3


@pytest.mark.parametrize("name", ROWS)
def test_two_runs_of_one_seed_are_one_run(name: str) -> None:
    first, second, other = (make(name, action=kinds(name)[0], seed=seed) for seed in (0, 0, 1))
    for agent in (first, second, other):
        agent.learn(48)
        torch.rand(3)  # what others draw does not matter
    parameters = [torch.cat([p.flatten() for p in agent.algo.parameters()]) for agent in (first, second, other)]
    assert torch.equal(parameters[0], parameters[1])
    assert not torch.equal(parameters[0], parameters[2])
