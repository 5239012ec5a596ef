"""Small, quick agents for probes, and the values that their nets say."""

from __future__ import annotations

from typing import Any

import torch

import kumite
from kumite.agent import Agent
from kumite.algos.sac import SAC as SAC_

PPO = {"num_envs": 4, "horizon": 32, "batch_size": 32, "epochs": 4, "lr": 1e-2}
SAC = {"num_envs": 4, "batch_size": 32, "warmup": 100, "update_ratio": 0.25, "lr": 3e-3, "tau": 0.1, "alpha": "1e-4"}
BOTH = {"gamma": 0.8, "actor": {"width": 16}, "critic": {"width": 16}, "quiet": True}


def ppo(name: str, **numbers: Any) -> Agent:
    return kumite.PPO(name, **(BOTH | PPO | numbers))


def sac(name: str, **numbers: Any) -> Agent:
    return kumite.SAC(name, **(BOTH | SAC | numbers))


def values(agent: Agent, *observations: list[float]) -> list[float]:
    """V of first observations of an episode: PPO's own, or Q of SAC's worst critic and choice at c = 0.

    The probes that are asked for values pay alike for every action.
    """
    obs = {"obs": torch.tensor(observations)}
    n = len(observations)
    with torch.no_grad():
        if isinstance(agent.algo, SAC_):
            critic = agent.algo.critic
            core, c = critic.torso.initial(n), torch.zeros(n, agent.action.continuous)
            if core:
                features = critic.torso.combine(critic.torso.look(obs, core)[0], c)
            else:
                features = critic.torso.features(obs, c)
            return agent.algo.values.actor(critic.out(features), mean=False).amin(-1).tolist()
        net = agent.algo.net
        return net.value(net.critic.step(obs, net.critic.initial(n))[0])[:, 0].tolist()
