"""Where Stable-Baselines3 and what is built on it look at the clock."""

from __future__ import annotations

import clock
from stable_baselines3.common.callbacks import BaseCallback


class Marks(BaseCallback):
    """Off-policy: a mark per step. On-policy: a mark when a rollout begins, so with all updates before it done."""

    def __init__(self, watch: clock.Clock, each_step: bool) -> None:
        super().__init__()
        self.watch, self.each_step = watch, each_step
        self.over = False

    def _on_rollout_start(self) -> None:
        self.over = self.over or (not self.each_step and self.watch.mark(self.num_timesteps))

    def _on_step(self) -> bool:
        return not (self.watch.mark(self.num_timesteps) if self.each_step else self.over)
