"""Soft actor-critic (Haarnoja et al. 2018), for continuous, discrete and hybrid actions by one formula.

    V(s) = sum_d p(d|s) (min_e Q_e(s, c, d) - alpha_d log p(d|s)) - alpha_c log p(c|s),   c ~ p(.|s)

A continuous action has one certain branch (p = 1), a discrete one an empty c. Several branches add up:
Q(s, c, d) = sum_i Q_i(s, c, d_i), so the expectation stays linear.

What a critic learns of Q, its mean or a distribution, and what an ensemble makes of it, is its head's (nn/critics.py).
REDQ, DroQ, TQC, CrossQ and SimbaV2 are rows of numbers.
"""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from kumite.algos.offpolicy import OffPolicy, OffPolicyConfig
from kumite.batch import Batch
from kumite.errors import UserError
from kumite.nn.adam import Adam, polyak_
from kumite.nn.critics import CriticConfig, Follows, make_values
from kumite.nn.dists import Branches, Policy, Sample
from kumite.nn.models import ActionValue, Actor, PolicyHead
from kumite.nn.torso import behind, make_torso
from kumite.returns import at_most, corrected, windows
from kumite.tree import Tree
from kumite.types import Act, ActionSpec, Out, Spec


@dataclass(frozen=True)
class SACConfig(CriticConfig, OffPolicyConfig):
    policy_delay: int = 1
    """Move the actor at every k-th update."""
    policy_steps: int = 0
    """How many steps it then makes; 0 = k, so that actor and critic steps stay equal in number."""
    share_encoder: bool = False
    """The actor sees (and remembers) what the critics do; only they train that part."""
    joint: bool = False
    """Critics speak of a row and of what follows it in one pass, and there is no target net (CrossQ)."""
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
    correction: Literal["none", "vtrace", "retrace"] = "none"
    """n-step targets weigh the steps of older policies by how likely today's would take them."""
    trace_lam: float = 1.0
    """Those weights fade by this factor per step."""
    trace_rho: float = 1.0
    """vtrace: largest weight of a step's own error."""
    trace_c: float = 1.0
    """vtrace: largest weight that a step hands on to the later ones."""


class Temperature(nn.Module):
    """log alpha of the continuous part and of each branch: [1 + max(D, 1)]."""

    def __init__(self, branches: int, start: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.full((1 + max(branches, 1),), start).log())

    def forward(self) -> Tensor:
        return self.log


class SAC(OffPolicy):
    Config = SACConfig
    cfg: SACConfig

    def __init__(self, obs_space: dict[str, Spec], action: ActionSpec, slots: int, cfg: SACConfig) -> None:
        super().__init__(obs_space, action, slots, cfg)
        if not action.bounded:
            raise UserError("SAC squashes its actions into finite limits and this action space has none; PPO can do it")
        self.single_steps = cfg.correction != "none"
        if self.single_steps and cfg.n_step == 1:
            raise UserError(f"--correction {cfg.correction} weighs the steps after the first; give --n-step 2 or more")
        torso = make_torso(obs_space, cfg.actor, cfg.chunk)
        log_std = (cfg.log_std_min, cfg.log_std_max)
        head = PolicyHead(torso.size, action, True, log_std=log_std, net=cfg.actor)
        self.values = make_values(cfg, action.branches)
        if self.single_steps and cfg.joint:
            raise UserError(f"--correction {cfg.correction} judges steps by the target net and --joint has none")
        if self.single_steps and not self.values.of_means:
            raise UserError(
                f"--correction {cfg.correction} is about the mean of what follows, --head {cfg.head} about all of it;"
                " take --head scalar, two_hot or hl_gauss"
            )
        self.critic = ActionValue(obs_space, action, cfg.critic, cfg.critics, cfg.chunk, self.values.width)
        if cfg.share_encoder:
            torso = behind(torso, self.critic.torso, cfg.actor, cfg.critic)
        self.actor = Actor(torso, head)
        self.target = None if cfg.joint else deepcopy(self.critic).requires_grad_(False)
        self.learns_alpha = cfg.alpha == "auto"
        self.temperature = Temperature(len(action.branches), cfg.alpha_init if self.learns_alpha else float(cfg.alpha))
        self.adam_actor = self.adam_of(self.actor)
        self.adam_critic = self.adam_of(self.critic, cfg.critic_lr)
        self.adam_alpha = Adam(self.temperature, cfg.alpha_lr or cfg.lr, cfg.adam_eps)
        torsos = {"actor": torso, "critic": self.critic.torso}
        self.begin(torsos, self.adam_actor, self.adam_critic, self.adam_alpha)

    def act(self, obs: dict[str, Tensor], core: Tree, explore: bool = True) -> Act:
        obs = self.norm(obs)
        policy, actor = self.actor.step(obs, core["actor"])
        core = {"actor": actor, "critic": self.critic.torso.advance(obs, core["critic"])}
        if not explore:
            return Act(policy.mode(), core)
        new = policy.sample()
        said = {"u": new.u, "log_prob": policy.log_prob(new.u, new.d)} if self.single_steps else {}
        return Act({"c": new.c, "d": new.d}, core, said)

    def explore(self, obs: dict[str, Tensor], core: Tree, env_step: int, total: int, slot: Tensor | None) -> Act:
        act = super().explore(obs, core, env_step, total, slot)
        if self.single_steps and env_step < self.cfg.warmup:
            return act._replace(extras=self.at_random(act.action, obs.get("mask")))
        return act

    def at_random(self, action: dict[str, Tensor], mask: Tensor | None) -> dict[str, Tensor]:
        """What a uniform action leaves behind: it has density 2^-C, and each legal choice the same probability."""
        even = torch.zeros(action["c"].shape[0], max(1, sum(self.action.branches)), device=action["c"].device)
        log_prob = Branches.of(even, self.action.branches, mask).log_prob(action["d"])
        inside = 1 - 1e-6  # where tanh can still be inverted
        u = action["c"].clamp(-inside, inside).atanh()
        return {"u": u, "log_prob": log_prob - math.log(2) * self.action.continuous}

    def choices(self) -> tuple[int]:
        """How often the actor moves in this update."""
        delay = self.cfg.policy_delay
        return ((self.cfg.policy_steps or delay) if self.updates % delay == 0 else 0,)

    def update(self, b: Batch, actor_steps: int) -> Out:
        b = self.prepared(b)
        for_actor, for_critic = b.of("actor"), b.of("critic")
        alpha = self.temperature().exp()

        ahead = b if b.steps is None else b.steps
        policy = self.actor.next(ahead.of("actor"))
        new = policy.sample(choose=False)
        after = None if self.target is None else self.target.next(ahead.of("critic"), new.c)

        def critic_loss(critic: Any) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            c = b.action["c"]
            z, then = critic(for_critic, c, new.c) if after is None else (critic(for_critic, c), after)
            said = self.values.taken(z, b.action["d"])
            goal = self.goal(b, then.detach(), policy, new, alpha)
            return b.mean(self.values.loss(said, goal)), (self.values.mean(said), self.values.goal_mean(goal))

        loss_q, (q, y) = self.adam_critic.descend(critic_loss)
        metrics = {"train/critic_loss": loss_q, "train/q": b.mean(q) / self.cfg.critics}

        for _ in range(actor_steps):

            def actor_loss(actor: Any) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
                policy = actor(for_actor)
                new = policy.sample(choose=False)
                q = self.values.actor(self.critic(for_critic, new.c), mean=self.cfg.subset > 0)
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
        if self.target is not None:
            polyak_(self.target, self.critic, self.cfg.tau)
        return Out(metrics, (q - y).abs().mean(0))

    def goal(self, b: Batch, z: Tensor, policy: Policy, new: Sample, alpha: Tensor) -> Tensor:
        """What the critics are to say of the rows of b, where they say z of those that follow."""
        values = self.values
        value, weight = values.follow(self.drawn(z), policy.d.p, self.price(policy, alpha))
        value = value - (alpha[0] * new.log_c)[..., None]
        if b.steps is None:
            return self.over_views(values.goal(b.reward[..., None] + b.discount[..., None] * value, weight))
        y = self.corrected(b.steps, Follows(value, weight).mean())[..., None]
        return self.over_views(values.goal(y, torch.ones_like(y)))

    def corrected(self, steps: Batch, value: Tensor) -> Tensor:
        """n-step returns from steps of older policies, by the values of what follows each."""
        cfg, done = self.cfg, steps.action
        log_ratio = self.actor(steps.of("actor")).log_prob(steps.extras["u"], done["d"]) - steps.extras["log_prob"]
        if cfg.correction == "vtrace":
            baseline = torch.cat([value[:1], value[:-1]])
            rho, c = at_most(cfg.trace_rho, log_ratio), cfg.trace_lam * at_most(cfg.trace_c, log_ratio)
        else:
            assert self.target is not None
            said = self.values.taken(self.target(steps.of("critic"), done["c"]), done["d"])
            baseline = self.drawn(self.values.mean(said)).amin(0)
            rho = c = cfg.trace_lam * at_most(1.0, log_ratio)
        rows = (steps.reward, steps.discount, value, baseline, steps.mask, rho, c)
        return corrected(*(windows(x, cfg.n_step) for x in rows) if self.span else rows)

    def price(self, policy: Policy, alpha: Tensor) -> Tensor:
        """What each choice costs for being likely: [*, K]."""
        return policy.d.weights(alpha[1:]) * policy.d.log_p

    def soft_value(self, q: Tensor, policy: Policy, new: Sample, alpha: Tensor) -> Tensor:
        return (policy.d.p * (q - self.price(policy, alpha))).sum(-1) - alpha[0] * new.log_c

    def alpha_loss(self, b: Batch, log: Tensor, entropy_c: Tensor, entropy_d: Tensor, legal: Tensor) -> Tensor:
        """alpha grows while the entropy is below its aim."""
        gap_c = entropy_c - self.cfg.target_entropy * self.action.continuous
        gap_d = entropy_d - self.cfg.target_entropy_discrete * legal.float().log()
        scale = log if self.cfg.alpha_loss == "log" else log.exp()
        return b.mean(scale[0] * gap_c + (scale[1:] * gap_d).sum(-1))
