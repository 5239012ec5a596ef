"""On a GPU: updates never wait for it, graphs compute what methods say, and rows that do not fit lie on the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import kumite.agent
from kumite.agent import Agent
from kumite.algos.graph import Replayed
from kumite.nn.encoders import Half
from tests.contract.test_algorithms import check_resuming, learn, make
from tests.waiting import no_waiting

NAMES = ["ppo", "sac", "simbav2_sac", "tqc", "crossq", "td3", "dqn", "c51", "iqn", "rainbow"]
KINDS = [("vector", ""), ("frames", ""), ("nested", ""), ("vector", "lstm")]


def action_of(name: str) -> str:
    return "discrete" if name in ("dqn", "c51", "iqn", "rainbow") else "continuous"


def never_waiting(agent: Agent, *names: str) -> None:
    """From now on these methods of the algorithm may not wait for the device."""
    for name in names:
        method = getattr(agent.algo, name)

        def watched(*args: Any, method: Any = method) -> Any:
            with no_waiting():
                return method(*args)

        setattr(agent.algo, name, watched)


@pytest.mark.gpu
@pytest.mark.parametrize(("observation", "memory"), KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_acting_and_learning_never_wait_for_the_device(name: str, observation: str, memory: str) -> None:
    if memory and name in ("crossq", "simbav2_sac"):
        pytest.skip("no such row")
    agent = make(name, observation, action_of(name), memory or "none", device="cuda")
    learn(agent, 2)
    never_waiting(agent, "learn", "explore", "observe")
    learn(agent, 8)
    assert all(p.isfinite().all() and p.is_cuda for p in agent.algo.parameters())


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_a_replayed_graph_is_the_method(name: str) -> None:
    agents = [make(name, action=action_of(name), device="cuda", compile=how) for how in ("off", "on")]
    for agent in agents:
        learn(agent, 24)
    graph = agents[1].algo.graph
    assert graph is not None and graph.works and isinstance(graph.call, Replayed) and graph.call.records
    for eager, compiled in zip(*(agent.algo.parameters() for agent in agents), strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-2, atol=2e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["ppo", "sac", "dqn"])
def test_resumed_on_the_device_bit_for_bit(name: str, tmp_path: Path) -> None:
    agent = make(name, action=action_of(name), device="cuda")
    learn(agent, 4)
    check_resuming(agent, tmp_path)


@pytest.mark.gpu
@pytest.mark.parametrize("numbers", [{}, {"priority": 0.6}, {"memory": "lstm"}])
def test_rows_that_do_not_fit_beside_the_nets_lie_on_the_host(
    numbers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    free = kumite.agent.free_memory
    monkeypatch.setattr(kumite.agent, "free_memory", lambda device: 1 if device.type == "cuda" else free(device))
    memory = numbers.pop("memory", "none")
    agent = make("sac", memory=memory, device="cuda", **numbers)
    learn(agent, 8)
    assert agent.run is not None and agent.run.stream.device.type == "cpu"
    assert all(x.device.type == "cpu" for x in agent.run.stream.data.values())
    assert all(p.isfinite().all() and p.is_cuda for p in agent.algo.parameters())


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", ["ppo", "sac", "rainbow"])
def test_bfloat16_is_inside_the_nets_only(name: str, device: str, tmp_path: Path) -> None:
    agent = make(name, "nested", action_of(name), device=device, bf16=True)
    low = [m for m in agent.algo.modules() if isinstance(m, Half)]
    assert low
    learn(agent, 4)
    assert all(p.dtype == torch.float32 and p.isfinite().all() for p in agent.algo.parameters())
    assert agent.run is not None and all(x.dtype != torch.bfloat16 for x in agent.run.stream.data.values())
    check_resuming(agent, tmp_path)
