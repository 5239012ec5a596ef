"""Proximal policy optimisation."""

from __future__ import annotations

from dataclasses import dataclass, field

from kumite.algos.base import Config
from kumite.nn.config import Net


@dataclass(frozen=True)
class PPOConfig(Config):
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
    actor: Net = field(default_factory=lambda: Net(width=64, activation="tanh"))
    """The policy's net."""
    critic: Net = field(default_factory=lambda: Net(width=64, activation="tanh"))
    """The value's net."""
    share: bool = False
    """Actor and critic share one net (the actor's) up to their heads."""
    lam: float = 0.95
    """GAE's lambda."""
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
