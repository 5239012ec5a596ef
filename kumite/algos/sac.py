"""Soft actor-critic."""

from __future__ import annotations

from dataclasses import dataclass

from kumite.algos.base import Config


@dataclass(frozen=True)
class SACConfig(Config):
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
