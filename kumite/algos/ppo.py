"""Proximal policy optimisation (Schulman et al. 2017), for any action space, with or without memory.

    L = max(-A r, -A clip(r, 1 - eps, 1 + eps)) + value_coef (V - R)^2 / 2 - entropy_coef H,   r = pi(a|s) / mu(a|s)

mu is the policy that acted; statistics of normalisers stand still between acting and updating, so r starts at 1.
Instead of the first term, simple policy optimisation (SPO, Xie et al. 2024) has -(A r - |A| (r - 1)^2 / (2 eps)), which
pulls back what the clip merely lets go; ASPO takes the clip for good actions (A >= 0) and SPO's term for bad ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from kumite import tree
from kumite.algos.base import AlgoConfig, Algorithm
from kumite.batch import Batch, minibatches, rollout
from kumite.errors import UserError
from kumite.nn.config import Net
from kumite.nn.dists import Policy
from kumite.nn.models import ActorCritic
from kumite.nn.norm import RewardNorm, ValueNorm
from kumite.returns import gae
from kumite.stream import Stream
from kumite.tree import Tree
from kumite.types import Act, ActionSpec, Out, Spec


@dataclass(frozen=True)
class PPOConfig(AlgoConfig):
    num_envs: int = 8
    """Copies of the environment."""
    horizon: int = 256
    """Steps per copy between updates."""
    batch_size: int = 64
    """Rows per minibatch; 0 = all."""
    minibatches: int = 0
    """Minibatches per epoch; replaces batch_size when given."""
    epochs: int = 10
    """Passes over each rollout."""
    adam_eps: float = 1e-5
    """Adam's epsilon."""
    grad_clip: float = 0.5
    """Largest gradient norm; 0 = no limit."""
    actor: Net = field(default_factory=lambda: Net(width=64, activation="tanh", init="orthogonal"))
    """The policy's net."""
    critic: Net = field(default_factory=lambda: Net(width=64, activation="tanh", init="orthogonal"))
    """The value's net."""
    share: bool = False
    """Actor and critic share one net (the actor's) up to their heads."""
    lam: float = 0.95
    """GAE's lambda."""
    objective: Literal["clip", "spo", "aspo"] = "clip"
    """What keeps the ratio near 1: clip (PPO), spo (a quadratic penalty), aspo (clip for good actions, spo for bad)."""
    clip: float = 0.2
    """The ratio stays within 1 +- clip."""
    clip_schedule: str = "constant"
    """constant | linear (to 0 over the planned steps)."""
    clip_value: float = 0.0
    """Values move at most this far from the rollout's; 0 = no limit."""
    smooth_clamp: bool = False
    """A sigmoid of slope 1 in place of the ratio's hard clamp."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    entropy_schedule: str = "constant"
    """constant | linear (to 0 over the planned steps)."""
    value_coef: float = 0.5
    """Weight of the value loss (half a squared error)."""
    bounds_coef: float = 0.0
    """Weight of the loss that keeps action means within their limits."""
    bounds_loss: str = "bound"
    """bound: squared distance outside +-1.1; regularisation: squared mean."""
    norm_adv: str = "minibatch"
    """Advantages are normalised per minibatch, per batch (the whole rollout), or none."""
    normalize_value: bool = False
    """Learn values in units of the running return deviation."""
    target_kl: float = 0.0
    """Stop the epochs when the policy has moved this far; 0 = never."""
    kl_aim: float = 0.008
    """lr_schedule kl: the divergence the learning rate steers for."""
    kl_every: str = "minibatch"
    """lr_schedule kl: adapt after each minibatch, epoch or rollout."""
    lr_min: float = 1e-6
    """lr_schedule kl: smallest learning rate."""
    lr_max: float = 1e-2
    """lr_schedule kl: largest learning rate."""
    squash: bool = False
    """Squash continuous actions by tanh instead of clipping them in the environment."""
    std: str = "exp"
    """The deviation's form: exp, or softplus with a floor (robust)."""
    log_std_init: float = 0.0
    """Where the log deviation starts."""
    state_std: bool = False
    """The deviation depends on the observation."""


class PPO(Algorithm):
    Config = PPOConfig
    cfg: PPOConfig

    def __init__(self, obs_space: dict[str, Spec], action: ActionSpec, slots: int, cfg: PPOConfig) -> None:
        super().__init__(obs_space, action, slots, cfg)
        self.net = ActorCritic(
            obs_space,
            action,
            cfg.actor,
            cfg.critic,
            cfg.share,
            cfg.chunk,
            squash=cfg.squash,
            std=f"state_{cfg.std}" if cfg.state_std else cfg.std,
            log_std_init=cfg.log_std_init,
        )
        self.adam = self.adam_of(self.net)
        self.reward_norm = RewardNorm(slots, cfg.gamma, cfg.reward_clip)
        self.value_norm = ValueNorm()
        self.span = self.net.actor.torso.span or self.net.critic.span
        if self.span and cfg.horizon % self.span:
            raise UserError(f"--horizon {cfg.horizon} must be a multiple of --chunk {self.span}")

    def make_stream(self, device: Any = "cpu") -> Stream:
        # twice the horizon: asynchronous copies run ahead of each other
        return Stream(2 * self.cfg.horizon + 8, self.slots, self.obs_space, device, self.span or 1)

    def initial(self, n: int) -> Tree:
        return self.net.initial(n, self.adam.lr.device)

    def act(self, obs: dict[str, Tensor], core: Tree, explore: bool = True) -> Act:
        policy, core = self.net.step(self.norm(obs), core)
        if not explore:
            return Act(policy.mode(), core)
        new = policy.sample()
        return Act({"c": new.c, "d": new.d}, core, {"u": new.u} | policy.numbers())

    def learn(self, stream: Stream, env_step: int, total: int) -> list[dict[str, Tensor]]:
        cfg = self.cfg
        if not stream.ready(cfg.horizon):
            return []
        self.schedule(env_step, total, self.adam)
        left = max(0.0, 1 - env_step / total)
        device = self.adam.lr.device
        clip = torch.full((), cfg.clip * (left if cfg.clip_schedule == "linear" else 1.0), device=device)
        entropy = torch.full((), cfg.entropy_coef * (left if cfg.entropy_schedule == "linear" else 1.0), device=device)

        raw = rollout(stream, cfg.horizon, self.span).to(device)
        b = self.prepare(raw)
        size = b.mask.numel() // cfg.minibatches if cfg.minibatches else cfg.batch_size
        metrics: list[dict[str, Tensor]] = []
        for parts in minibatches(b, size, self.span, cfg.epochs):
            epoch = []
            for part in parts:
                epoch.append(self.step_update(part, clip, entropy).metrics)
                self.updates += 1
                self.steer_lr("minibatch", epoch[-1:])
            self.steer_lr("epoch", epoch)
            metrics.append(means(epoch))
            if cfg.target_kl and metrics[-1]["train/kl"] > cfg.target_kl:
                break
        self.steer_lr("rollout", metrics)
        if cfg.normalize_obs:
            self.norm.update(tree.map(lambda x: x[:-1], raw.obs))
        return metrics

    @property
    def rows(self) -> int:
        whole = self.cfg.horizon * self.slots
        size = whole // self.cfg.minibatches if self.cfg.minibatches else self.cfg.batch_size or whole
        return max(1, size // (self.span or 1))

    def planned_updates(self, steps: int) -> int:
        rows = self.cfg.horizon * self.slots
        per_epoch = self.cfg.minibatches or (rows // self.cfg.batch_size if self.cfg.batch_size else 1)
        return steps // rows * self.cfg.epochs * per_epoch

    @torch.no_grad()
    def prepare(self, raw: Batch) -> Batch:
        """Advantages and returns of a rollout, and the log-probability of what was done."""
        cfg = self.cfg
        b = self.norm.batch(raw)
        over = b.extras.pop("over")
        value = self.net.values(b._replace(core=tree.map(lambda x: x[0], b.core)))
        reward = b.reward
        if cfg.normalize_reward:
            self.reward_norm.update(reward, over, b.mask.bool())
            reward = self.reward_norm(reward)
        if cfg.normalize_value:
            value = self.value_norm.inverse(value)
        advantage, returns = gae(reward, value, b.discount == 0, over, cfg.gamma, cfg.lam)
        if cfg.normalize_value:
            self.value_norm.update(returns, b.mask)
            value, returns = self.value_norm(value), self.value_norm(returns)
        if cfg.norm_adv == "batch":
            advantage = b.standardize(advantage)
        log_prob = self.behaviour(b).log_prob(b.extras["u"], b.action["d"])
        new = {"advantage": advantage, "return": returns, "value": value[:-1], "log_prob": log_prob}
        return b._replace(extras=b.extras | new)

    def behaviour(self, b: Batch) -> Policy:
        """The policy that acted."""
        return Policy.of(b.extras, self.action.branches, self.cfg.squash)

    def update(self, b: Batch, clip: Tensor, entropy_coef: Tensor) -> Out:
        cfg, x = self.cfg, b.extras
        advantage = b.standardize(x["advantage"]) if cfg.norm_adv == "minibatch" else x["advantage"]
        share = b.share()

        def loss_fn(net: Any) -> tuple[Tensor, tuple[Any, ...]]:
            policy, value = net(b)
            ratio = (policy.log_prob(x["u"], b.action["d"]) - x["log_prob"]).exp()
            loss_pi = -(self.surrogate(ratio, advantage, clip) * share).sum()
            error = (value - x["return"]).square()
            if cfg.clip_value:
                near = x["value"] + (value - x["value"]).clamp(-cfg.clip_value, cfg.clip_value)
                error = torch.max(error, (near - x["return"]).square())
            loss_v = 0.5 * (error * share).sum()
            entropy = (policy.entropy() * share).sum()
            loss = loss_pi + cfg.value_coef * loss_v - entropy_coef * entropy
            if cfg.bounds_coef:
                mean = policy.c.mean
                beyond = (mean.abs() - 1.1).clamp(min=0) if cfg.bounds_loss == "bound" else mean
                loss = loss + cfg.bounds_coef * (beyond.square().sum(-1) * share).sum()
            return loss, (loss_pi, loss_v, entropy, ratio, policy.numbers())

        loss, (loss_pi, loss_v, entropy, ratio, said) = self.adam.descend(loss_fn)
        kl = self.behaviour(b).kl(Policy.of(said, self.action.branches, cfg.squash))
        metrics = {
            "train/loss": loss,
            "train/policy_gradient_loss": loss_pi,
            "train/value_loss": loss_v,
            "train/entropy": entropy,
            "train/kl": (kl * share).sum(),
            "train/clip_fraction": (((ratio - 1).abs() > clip) * share).sum(),
            "train/learning_rate": self.adam.lr.clone(),
        }
        return Out(metrics)

    def surrogate(self, ratio: Tensor, advantage: Tensor, clip: Tensor) -> Tensor:
        """What a row's policy is worth, as long as the ratio is near 1."""
        low, high = 1 - clip, 1 + clip
        if self.cfg.smooth_clamp:
            clipped = (4 * ((ratio - low) / (high - low) - 0.5)).sigmoid() * (high - low) + low
        else:
            clipped = ratio.clamp(low, high)
        clipping = torch.min(advantage * ratio, advantage * clipped)
        if self.cfg.objective == "clip":
            return clipping
        penalty = advantage.abs() * (ratio - 1).square() / (2 * clip.clamp(min=1e-6))
        spo = advantage * ratio - penalty
        return spo if self.cfg.objective == "spo" else torch.where(advantage >= 0, clipping, spo)

    def steer_lr(self, moment: str, metrics: list[dict[str, Tensor]]) -> None:
        """Keep the divergence per update near its aim (on the device, no synchronisation)."""
        cfg, lr = self.cfg, self.adam.lr
        if cfg.lr_schedule != "kl" or cfg.kl_every != moment:
            return
        kl = torch.stack([m["train/kl"] for m in metrics]).mean()
        slower, faster = (lr / 1.5).clamp(min=cfg.lr_min), (lr * 1.5).clamp(max=cfg.lr_max)
        lr.copy_(torch.where(kl > 2 * cfg.kl_aim, slower, torch.where(kl < 0.5 * cfg.kl_aim, faster, lr)))


def means(metrics: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    if len(metrics) == 1:
        return metrics[0]
    return {name: torch.stack([m[name] for m in metrics]).mean() for name in metrics[0]}
