"""Soft actor-critic (Haarnoja et al. 2018), for continuous, discrete and hybrid actions by one formula.

    V(s) = sum_d p(d|s) (min_e Q_e(s, c, d) - alpha_d log p(d|s)) - alpha_c log p(c|s),   c ~ p(.|s)

A continuous action has one certain branch (p = 1), a discrete one an empty c. Several branches add up:
Q(s, c, d) = sum_i Q_i(s, c, d_i), so the expectation stays linear.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kumite.algos.base import AlgoConfig, Algorithm
from kumite.batch import Batch, sequences, transitions
from kumite.errors import UserError
from kumite.nn.adam import Adam, polyak_
from kumite.nn.dists import Policy, Sample, pick
from kumite.nn.models import ActionValue, Actor, PolicyHead
from kumite.nn.norm import RewardNorm
from kumite.nn.torso import make_torso
from kumite.samplers import Uniform
from kumite.schedules import Ratio
from kumite.stream import Stream
from kumite.tree import Tree
from kumite.types import Act, ActionSpec, Out, Spec, Step


@dataclass(frozen=True)
class SACConfig(AlgoConfig):
    batch_size: int = 256
    """Rows per update (with memory: sequences are counted so that rows stay about equal)."""
    buffer_size: int = 1_000_000
    """Rows kept for replay."""
    warmup: int = 5_000
    """Uniform random steps before learning starts."""
    update_ratio: float = 1.0
    """Updates per environment step."""
    n_step: int = 1
    """Rewards summed before the bootstrap."""
    tau: float = 0.005
    """Share of the critic that enters the target critic at each update."""
    critics: int = 2
    """Size of the critic ensemble."""
    subset: int = 0
    """Targets take the minimum over this many randomly drawn critics; 0 = all."""
    policy_delay: int = 1
    """Move the actor at every k-th update, k steps at once, so that actor and critic steps stay equal in number."""
    critic_lr: float = 0.0
    """The critics' learning rate; 0 = lr."""
    alpha: str = "auto"
    """The temperature: auto, or a number that stays fixed."""
    alpha_init: float = 1.0
    """Where the automatic temperature starts."""
    alpha_lr: float = 0.0
    """The temperature's learning rate; 0 = lr."""
    alpha_loss: str = "log"
    """log: -log(alpha) (log pi + H); exp: -alpha (log pi + H)."""
    target_entropy: float = -1.0
    """Aim per continuous dimension."""
    target_entropy_discrete: float = 0.98
    """Aim per discrete branch, as a share of the log of its legal choices."""
    log_std_min: float = -5.0
    """Lower end of the policy's log deviation."""
    log_std_max: float = 2.0
    """Upper end of the policy's log deviation."""
    burn_in: int = 0
    """With memory: rows before each sequence that only refresh its state."""


class Temperature(nn.Module):
    """log alpha of the continuous part and of each branch: [1 + max(D, 1)]."""

    def __init__(self, branches: int, start: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.full((1 + max(branches, 1),), start).log())

    def forward(self) -> Tensor:
        return self.log


class SAC(Algorithm):
    Config = SACConfig
    cfg: SACConfig

    def __init__(self, obs_space: dict[str, Spec], action: ActionSpec, slots: int, cfg: SACConfig) -> None:
        super().__init__(obs_space, action, slots, cfg)
        if not action.bounded:
            raise UserError("SAC squashes its actions into finite limits and this action space has none; PPO can do it")
        torso = make_torso(obs_space, cfg.actor, cfg.chunk)
        self.actor = Actor(torso, PolicyHead(torso.size, action, True, log_std=(cfg.log_std_min, cfg.log_std_max)))
        self.critic = ActionValue(obs_space, action, cfg.critic, cfg.critics, cfg.chunk)
        self.target = deepcopy(self.critic).requires_grad_(False)
        self.learns_alpha = cfg.alpha == "auto"
        self.temperature = Temperature(len(action.branches), cfg.alpha_init if self.learns_alpha else float(cfg.alpha))
        decay = cfg.weight_decay if cfg.optimizer == "adamw" else 0.0
        self.adam_actor = Adam(self.actor, cfg.lr, cfg.adam_eps, decay, cfg.grad_clip)
        self.adam_critic = Adam(self.critic, cfg.critic_lr or cfg.lr, cfg.adam_eps, decay, cfg.grad_clip)
        self.adam_alpha = Adam(self.temperature, cfg.alpha_lr or cfg.lr, cfg.adam_eps)
        self.reward_norm = RewardNorm(slots, cfg.gamma, cfg.reward_clip)
        self.span = torso.span or self.critic.torso.span
        self.sampler = Uniform((self.span or 1) + cfg.burn_in * bool(self.span) + cfg.n_step - 1, self.stride)

        self.ratio = Ratio(cfg.update_ratio, cfg.warmup)

    def get_extra_state(self) -> dict[str, Any]:
        return super().get_extra_state() | {"ratio": self.ratio.state()}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        super().set_extra_state(state)
        self.ratio.restore(state["ratio"])

    @property
    def stride(self) -> int:
        """Rows between the starts of sequences: they overlap by half."""
        return max(1, self.span // 2) if self.span else 1

    def make_stream(self, device: Any = "cpu") -> Stream:
        return Stream(-(-self.cfg.buffer_size // self.slots), self.slots, self.obs_space, device, self.stride)

    def initial(self, n: int) -> Tree:
        device = self.temperature.log.device
        return {"actor": self.actor.torso.initial(n, device), "critic": self.critic.torso.initial(n, device)}

    def act(self, obs: dict[str, Tensor], core: Tree, explore: bool = True) -> Act:
        obs = self.norm(obs)
        policy, actor = self.actor.step(obs, core["actor"])
        core = {"actor": actor, "critic": self.critic.torso.advance(obs, core["critic"])}
        if not explore:
            return Act(policy.mode(), core)
        new = policy.sample()
        return Act({"c": new.c, "d": new.d}, core)

    def explore(self, obs: dict[str, Tensor], core: Tree, env_step: int) -> Act:
        act = self.act(obs, core)
        if env_step >= self.cfg.warmup:
            return act
        mask = obs.get("mask")
        return act._replace(action=self.action.random(act.action["c"].shape[0], act.action["c"].device, mask))

    def observe(self, step: Step, first: Tensor) -> None:
        if self.cfg.normalize_obs:
            self.norm.update(step.obs)
        if self.cfg.normalize_reward:
            self.reward_norm.update(step.reward[None], step.over[None], (~first)[None], step.slot)

    def learn(self, stream: Stream, env_step: int, total: int) -> list[dict[str, Tensor]]:
        if not self.sampler.ready(stream):
            self.ratio.skip(env_step)
            return []
        self.schedule(env_step, total, self.adam_actor, self.adam_critic)
        metrics = []
        for _ in range(self.ratio.due(env_step)):
            self.updates += 1
            moves = self.cfg.policy_delay if self.updates % self.cfg.policy_delay == 0 else 0
            metrics.append(self.step_update(self.sample(stream), moves).metrics)
        return metrics

    def planned_updates(self, steps: int) -> int:
        return int(steps * self.cfg.update_ratio)

    def sample(self, stream: Stream) -> Batch:
        cfg = self.cfg
        if self.span:
            row, slot = self.sampler.draw(stream, max(1, cfg.batch_size // self.span))
            return sequences(stream, row, slot, self.span, cfg.burn_in, cfg.n_step, cfg.gamma)
        return transitions(stream, *self.sampler.draw(stream, cfg.batch_size), cfg.n_step, cfg.gamma)

    def update(self, b: Batch, actor_steps: int) -> Out:
        b = self.norm.batch(b)
        if self.cfg.normalize_reward:
            b = b._replace(reward=self.reward_norm(b.reward))
        for_actor, for_critic = b.of("actor"), b.of("critic")
        alpha = self.temperature().exp()

        policy = self.actor.next(for_actor)
        new = policy.sample()
        y = b.reward + b.discount * self.soft_value(
            self.lowest(self.target.next(for_critic, new.c)), policy, new, alpha
        )

        def critic_loss(critic: Any) -> tuple[Tensor, Tensor]:
            q = pick(critic(for_critic, b.action["c"]), b.action["d"], self.action.branches)  # [E, *]
            return b.mean((q - y).square()), q

        loss_q, q = self.adam_critic.descend(critic_loss)
        metrics = {"train/critic_loss": loss_q, "train/q": b.mean(q) / self.cfg.critics}

        for _ in range(actor_steps):

            def actor_loss(actor: Any) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
                policy = actor(for_actor)
                new = policy.sample()
                q = self.critic(for_critic, new.c)
                q = q.mean(0) if self.cfg.subset else q.amin(0)
                loss = -b.mean(self.soft_value(q, policy, new, alpha))
                return loss, (-new.log_c, policy.d.entropies(), policy.d.legal())

            loss_pi, (entropy_c, entropy_d, legal) = self.adam_actor.descend(actor_loss)
            if self.learns_alpha:
                self.adam_alpha.descend(lambda t: (self.alpha_loss(b, t(), entropy_c, entropy_d, legal), ()))
            metrics |= {
                "train/actor_loss": loss_pi,
                "train/entropy": b.mean(entropy_c + entropy_d.sum(-1)),
                "train/ent_coef": self.temperature.log.exp().mean(),
            }
        polyak_(self.target, self.critic, self.cfg.tau)
        return Out(metrics, (q - y).abs().mean(0))

    def lowest(self, q: Tensor) -> Tensor:
        """Minimum over the ensemble, or over a random part of it."""
        if self.cfg.subset:
            q = q[torch.rand(self.cfg.critics, device=q.device).topk(self.cfg.subset).indices]
        return q.amin(0)

    def soft_value(self, q: Tensor, policy: Policy, new: Sample, alpha: Tensor) -> Tensor:
        entropy_bonus = policy.d.weights(alpha[1:]) * policy.d.log_p
        return (policy.d.p * (q - entropy_bonus)).sum(-1) - alpha[0] * new.log_c

    def alpha_loss(self, b: Batch, log: Tensor, entropy_c: Tensor, entropy_d: Tensor, legal: Tensor) -> Tensor:
        """alpha grows while the entropy is below its aim."""
        gap_c = entropy_c - self.cfg.target_entropy * self.action.continuous
        gap_d = entropy_d - self.cfg.target_entropy_discrete * legal.float().log()
        scale = log if self.cfg.alpha_loss == "log" else log.exp()
        return b.mean(scale[0] * gap_c + (scale[1:] * gap_d).sum(-1))
