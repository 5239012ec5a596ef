"""Your own algorithm in one file: REINFORCE with a learned baseline, complete and training.

    python examples/own_algorithm.py                                          trains on CartPole in Python
    python examples/own_algorithm.py train reinforce Pendulum-v1 --steps 20k  every command of kumite, with the new name

It gets continuous, discrete and hybrid actions, nested observations, vector environments, checkpoints, resuming and the
command line without a line about any of them.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import kumite
from kumite.algos.base import AlgoConfig, Algorithm
from kumite.batch import Batch, rollout
from kumite.cli import main
from kumite.nn.adam import Adam
from kumite.nn.config import Net
from kumite.nn.models import ActorCritic
from kumite.returns import gae
from kumite.stream import Stream
from kumite.types import Act, ActionSpec, Out, Spec


@dataclass(frozen=True)
class ReinforceConfig(AlgoConfig):
    """The settings, first. Each becomes a flag and its docstring the flag's help."""

    num_envs: int = 8
    """Copies of the environment."""
    horizon: int = 64
    """Steps per copy between updates."""
    lr: float = 3e-3
    """Learning rate."""
    entropy_coef: float = 0.01
    """Weight of the entropy bonus."""
    actor: Net = field(default_factory=lambda: Net(width=64, activation="tanh"))
    """The policy's net."""
    critic: Net = field(default_factory=lambda: Net(width=64, activation="tanh"))
    """The baseline's net."""


class Reinforce(Algorithm):
    """L = -[A log pi(a|s)] + [(V - R)^2] / 2 - entropy_coef [H],  A = R - V,  R the return, bootstrapped at the cut."""

    Config = ReinforceConfig
    cfg: ReinforceConfig
    memory = False

    def __init__(self, obs_space: dict[str, Spec], action: ActionSpec, slots: int, cfg: ReinforceConfig) -> None:
        super().__init__(obs_space, action, slots, cfg)
        self.net = ActorCritic(obs_space, action, cfg.actor, cfg.critic, share=False, span=cfg.chunk, squash=False)
        self.adam = Adam(self.net, cfg.lr, clip=cfg.grad_clip)

    def make_stream(self, device: Any = "cpu") -> Stream:
        """Room for one rollout and the row that closes it."""
        return Stream(self.cfg.horizon + 2, self.slots, self.obs_space, device)

    def initial(self, n: int) -> Any:
        return self.net.initial(n)

    def act(self, obs: dict[str, Tensor], core: Any, explore: bool = True) -> Act:
        policy, core = self.net.step(obs, core)
        if not explore:
            return Act(policy.mode(), core)
        new = policy.sample()
        return Act({"c": new.c, "d": new.d}, core, {"u": new.u})  # u is stored with the row: losses ask for its density

    def learn(self, stream: Stream, env_step: int, total: int) -> list[dict[str, Tensor]]:
        if not stream.ready(self.cfg.horizon):
            return []
        b = rollout(stream, self.cfg.horizon, None)  # [T, N], obs has one row more
        over = b.extras.pop("over")
        advantage, returns = gae(b.reward, self.net.values(b), b.discount == 0, over, self.cfg.gamma, lam=1.0)
        b = b._replace(extras=b.extras | {"advantage": b.standardize(advantage), "return": returns})
        self.updates += 1
        return [self.step_update(b).metrics]

    def update(self, b: Batch) -> Out:
        x = b.extras

        def loss_fn(net: Any) -> tuple[Tensor, dict[str, Tensor]]:
            policy, value = net(b)
            loss_pi = -b.mean(x["advantage"] * policy.log_prob(x["u"], b.action["d"]))  # b.mean leaves void rows out
            loss_v = 0.5 * b.mean((value - x["return"]).square())
            entropy = b.mean(policy.entropy())
            loss = loss_pi + loss_v - self.cfg.entropy_coef * entropy
            return loss, {"train/policy_gradient_loss": loss_pi, "train/value_loss": loss_v, "train/entropy": entropy}

        loss, metrics = self.adam.descend(loss_fn)  # the one place where gradients exist
        return Out({"train/loss": loss, **metrics})


kumite.register("reinforce", f"{__name__}:Reinforce", "Williams 1992, with a baseline", title="REINFORCE")


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(main())
    torch.set_num_threads(1)
    agent = kumite.REINFORCE("CartPole-v1", seed=0, quiet=True)
    before = agent.evaluate(5).mean
    agent.learn(12_000)
    print(f"mean return before {before:.0f}, after 12k steps {agent.evaluate(5).mean:.0f}")
