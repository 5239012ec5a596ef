"""Twin delayed DDPG (Fujimoto et al. 2018), for continuous actions; DDPG (Lillicrap et al. 2016) is a row of numbers.

    y    = reward + discount * min_e Q'_e(s', clip(pi'(s') + clip(eps, -c, c), -1, 1)),   eps ~ N(0, sigma^2)
    L_Q  = sum_e [(Q_e(s, a) - y)^2]
    L_pi = -[Q_1(s, pi(s))]              at every `policy_delay`-th update, and only then pi' and Q' move

DDPG: one critic, sigma = 0, no delay. Other heads than the mean: nn/critics.py.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from kumite.algos.offpolicy import OffPolicy, OffPolicyConfig
from kumite.batch import Batch
from kumite.errors import UserError
from kumite.nn.adam import polyak_
from kumite.nn.config import Net
from kumite.nn.critics import CriticConfig, make_values
from kumite.nn.encoders import make_out
from kumite.nn.models import ActionValue, Actor
from kumite.nn.noise import Noise, NoiseConfig
from kumite.nn.torso import behind, make_torso
from kumite.tree import Tree
from kumite.types import Act, ActionSpec, Out, Spec, Step


@dataclass(frozen=True)
class TD3Config(CriticConfig, OffPolicyConfig):
    warmup: int = 25_000
    """Uniform random steps before learning starts."""
    policy_delay: int = 2
    """Move the actor and the targets at every k-th update."""
    share_encoder: bool = False
    """The actor sees (and remembers) what the critics do, its target what theirs do; only they train that part."""
    critic_lr: float = 0.0
    """The critics' learning rate; 0 = lr."""
    target_noise: float = 0.2
    """Deviation of the noise on the target's actions."""
    target_clip: float = 0.5
    """That noise is clipped to this size."""
    noise: NoiseConfig = field(default_factory=NoiseConfig)
    """Noise on actions while training."""


class Deterministic(nn.Module):
    """Features -> c."""

    def __init__(self, size: int, dims: int, net: Net) -> None:
        super().__init__()
        self.out = make_out(size, (dims,), net)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        c: Tensor = self.out(x).tanh()
        return c


class TD3(OffPolicy):
    Config = TD3Config
    cfg: TD3Config
    actions = ("continuous",)

    def __init__(self, obs_space: dict[str, Spec], action: ActionSpec, slots: int, cfg: TD3Config) -> None:
        super().__init__(obs_space, action, slots, cfg)
        if not action.bounded:
            raise UserError("TD3 squashes its actions into finite limits and this action space has none; PPO can do it")
        torso = make_torso(obs_space, cfg.actor, cfg.chunk)
        head = Deterministic(torso.size, action.continuous, cfg.actor)
        self.values = make_values(cfg, ())
        self.critic = ActionValue(obs_space, action, cfg.critic, cfg.critics, cfg.chunk, self.values.width)
        self.target = deepcopy(self.critic).requires_grad_(False)
        mine = deepcopy(torso)
        if cfg.share_encoder:
            torso = behind(torso, self.critic.torso, cfg.actor, cfg.critic)
            mine = behind(mine, self.target.torso, cfg.actor, cfg.critic)
        self.actor = Actor(torso, head)
        self.target_actor = Actor(mine, deepcopy(head)).requires_grad_(False)
        self.adam_actor = self.adam_of(self.actor)
        self.adam_critic = self.adam_of(self.critic, cfg.critic_lr)
        self.noise = Noise(cfg.noise, slots, action.continuous)
        self.begin({"actor": torso, "critic": self.critic.torso}, self.adam_actor, self.adam_critic)

    def act(self, obs: dict[str, Tensor], core: Tree, explore: bool = True) -> Act:
        obs = self.norm(obs)
        c, actor = self.actor.step(obs, core["actor"])
        core = {"actor": actor, "critic": self.critic.torso.advance(obs, core["critic"])}
        none = torch.zeros(c.shape[0], 0, dtype=torch.int64, device=c.device)
        return Act({"c": self.noise.once(c) if explore else c, "d": none}, core)

    def explore(self, obs: dict[str, Tensor], core: Tree, env_step: int, total: int, slot: Tensor | None) -> Act:
        if env_step < self.cfg.warmup:
            return super().explore(obs, core, env_step, total, slot)
        self.noise.schedule(env_step, total)
        act = self.answer(obs, core, explore=False)
        return act._replace(action=act.action | {"c": self.noise.follow(act.action["c"], slot)})

    def observe(self, step: Step, first: Tensor) -> None:
        super().observe(step, first)
        self.noise.begin(first, step.slot)

    def choices(self) -> tuple[bool]:
        """Whether the actor and the targets move in this update."""
        return (self.updates % self.cfg.policy_delay == 0,)

    def update(self, b: Batch, moves: bool) -> Out:
        cfg, values, b = self.cfg, self.values, self.prepared(b)
        for_actor, for_critic = b.of("actor"), b.of("critic")

        c = self.target_actor.next(for_actor)
        if cfg.target_noise:
            c = c + (cfg.target_noise * torch.randn_like(c)).clamp(-cfg.target_clip, cfg.target_clip)
        one = torch.ones_like(c[..., :1])
        after = values.follow(self.drawn(self.target.next(for_critic, c.clamp(-1, 1))), one, one - 1)
        goal = values.goal(b.reward[..., None] + b.discount[..., None] * after.value, after.weight)
        goal = self.over_views(goal)

        def critic_loss(critic: Any) -> tuple[Tensor, Tensor]:
            said = critic(for_critic, b.action["c"])  # [E, *, W]
            said = values.taken(said, b.action["d"])
            return b.mean(values.loss(said, goal)), values.mean(said)

        loss_q, q = self.adam_critic.descend(critic_loss)
        metrics = {"train/critic_loss": loss_q, "train/q": b.mean(q) / cfg.critics}

        if moves:

            def actor_loss(actor: Any) -> tuple[Tensor, tuple[()]]:
                judge = self.critic if cfg.subset or cfg.critics == 1 else self.critic.alone
                q = values.actor(judge(for_critic, actor(for_actor)), mean=True)[..., 0]
                return -b.mean(q), ()

            metrics["train/actor_loss"], _ = self.adam_actor.descend(actor_loss)
            polyak_(self.target_actor, self.actor, cfg.tau)
            polyak_(self.target, self.critic, cfg.tau)
        return Out(metrics, (q - values.goal_mean(goal)).abs().mean(0))
