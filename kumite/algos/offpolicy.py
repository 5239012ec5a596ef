"""What every algorithm shares that learns from replay: numbers, which rows are drawn, the random start, when to learn.

A file of arithmetic on top of it has nets and two verbs:

    class Mine(OffPolicy):
        def __init__(...):  super().__init__(...), nets, optimisers, then self.begin({"actor": torso, ...}, adam, ...)
        def act(self, obs, core, explore=True) -> Act
        def update(self, b, *choices) -> Out       # Out.priority: the size of each row's error
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from kumite.algos.base import AlgoConfig, Algorithm
from kumite.algos.graph import Graph
from kumite.batch import Batch, sequences, transitions
from kumite.errors import UserError
from kumite.nn.adam import Adam
from kumite.nn.augment import Shift
from kumite.nn.norm import RewardNorm
from kumite.nn.torso import Torso
from kumite.samplers import Draw, Prioritized, Uniform, over_time
from kumite.schedules import Ratio
from kumite.stream import Stream
from kumite.tree import Tree
from kumite.types import Act, ActionSpec, Spec, Step


@dataclass(frozen=True)
class OffPolicyConfig(AlgoConfig):
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
    """Share of a net that enters its target at each update."""
    critics: int = 2
    """Size of the critic ensemble."""
    subset: int = 0
    """Targets take the minimum over this many randomly drawn critics; 0 = all."""
    reward_bound: float = 0.0
    """Normalised rewards also keep the largest discounted return so far within +- this; 0 = they need not."""
    augment: Literal["none", "shift"] = "none"
    """shift: images are moved at random whenever they are learned from (DrQ)."""
    augment_pixels: int = 4
    """shift: by up to so many pixels each way."""
    augment_views: int = 1
    """shift: so many moved copies of a row are learned from at once, with the mean of their goals."""
    burn_in: int = 0
    """With memory: rows before each sequence that only refresh its state."""
    priority: float = 0.0
    """Prioritized replay: rows are drawn in proportion to error^priority; 0 = all alike."""
    priority_beta: float = 0.4
    """Share of the bias that importance weights take back at the start of the run."""
    priority_beta_end: float = 1.0
    """The same at its end; in between a straight line."""
    priority_eps: float = 1e-6
    """Added to every error, so that no row is forgotten."""
    priority_clip: float = math.inf
    """Errors count up to this size."""
    priority_mix: float = 0.9
    """With memory: a sequence's error is this share of its largest, the rest of its mean."""


SMALL = 1 << 20
"""Bytes of observations that one thread cuts out of replay sooner than two."""


class OffPolicy(Algorithm):
    Config = OffPolicyConfig
    cfg: OffPolicyConfig
    single_steps = False
    """Batches bring every step of their windows (Batch.steps)."""

    def __init__(self, obs_space: dict[str, Spec], action: ActionSpec, slots: int, cfg: OffPolicyConfig) -> None:
        super().__init__(obs_space, action, slots, cfg)
        if cfg.subset > cfg.critics:
            raise UserError(f"--subset {cfg.subset} is more than there are (--critics {cfg.critics})")
        if cfg.batch_size < 1:
            raise UserError("--batch-size 0 is for rollouts (all their rows); with replay give at least 1")
        self.reward_norm = RewardNorm(slots, cfg.gamma, cfg.reward_clip, cfg.reward_bound)
        self.shift = Shift(obs_space, cfg.augment_pixels) if cfg.augment == "shift" else None
        self.views = cfg.augment_views if self.shift else 1
        self.ratio = Ratio(cfg.update_ratio, cfg.warmup)
        self.torsos: dict[str, Torso] = {}
        self.optimizers: tuple[Adam, ...] = ()

    def begin(self, torsos: dict[str, Torso], *optimizers: Adam) -> None:
        """After the nets: whose memory is carried along while acting, and whose learning rates follow the schedule."""
        cfg, self.torsos, self.optimizers = self.cfg, torsos, optimizers
        self.span = next((torso.span for torso in torsos.values() if torso.span), None)
        if cfg.burn_in and not self.span:
            raise UserError(f"--burn-in {cfg.burn_in} refreshes a memory and there is none; add --memory gru")
        reach = (self.span or 1) + cfg.burn_in + cfg.n_step - 1
        stream = self.make_stream()
        rows = stream.rows - stream.spare - max(2, self.stride)  # of two neighbours one is not void
        if reach > rows:
            what = f"--n-step {cfg.n_step}" + f" with --chunk {self.span} and --burn-in {cfg.burn_in}" * bool(self.span)
            raise UserError(
                f"{what} needs {reach} rows in a line, and of --buffer-size {cfg.buffer_size} over {self.slots} copies"
                f" no more than {max(rows, 0)} can be read; ask for fewer steps or a larger buffer"
            )
        self.sampler = Uniform(reach, self.stride)
        if cfg.priority:
            beta, acts = (cfg.priority_beta, cfg.priority_beta_end), cfg.burn_in if (self.span or 1) == 1 else None
            self.sampler = Prioritized(
                reach, self.stride, cfg.priority, beta, cfg.priority_eps, cfg.priority_clip, acts
            )

    # -- acting -------------------------------------------------------------------------------------------------------

    def initial(self, n: int) -> Tree:
        device = next(self.parameters()).device
        return {name: torso.initial(n, device) for name, torso in self.torsos.items()}

    def explore(self, obs: dict[str, Tensor], core: Tree, env_step: int, total: int, slot: Tensor | None) -> Act:
        if env_step >= self.cfg.warmup:
            return self.answer(obs, core)
        if self.span:  # random actions, too, are remembered
            core = self.act(obs, core).core
        seen = next(iter(obs.values()))
        return Act(self.action.random(seen.shape[0], seen.device, obs.get("mask")), core)

    # -- replay -------------------------------------------------------------------------------------------------------

    @property
    def stride(self) -> int:
        """Rows between the starts of sequences: they overlap by half."""
        return max(1, self.span // 2) if self.span else 1

    def make_stream(self, device: Any = "cpu") -> Stream:
        return Stream(-(-self.cfg.buffer_size // self.slots), self.slots, self.obs_space, device, self.stride)

    def observe(self, step: Step, first: Tensor) -> None:
        if self.cfg.normalize_obs:
            self.norm.update(step.obs)
        if self.cfg.normalize_reward:
            self.reward_norm.update(step.reward[None], step.over[None], (~first)[None], step.slot)

    def sample(self, stream: Stream, share: float = 0.0) -> tuple[Draw, Batch]:
        """Rows to learn from, at this share of the run."""
        cfg = self.cfg
        drawn = self.sampler.draw(stream, max(1, cfg.batch_size // (self.span or 1)), share)
        if self.span:
            b = sequences(stream, *drawn[:2], self.span, cfg.burn_in, cfg.n_step, cfg.gamma, self.single_steps)
        else:
            b = self.compiled("cut", self.cut, stream, *drawn[:2])
        if drawn.weight is not None:
            b = b._replace(weight=drawn.weight.expand_as(b.mask))
        b = b.to(next(self.parameters()).device)
        return drawn, b if self.views == 1 else b.repeated(self.views)

    def cut(self, stream: Stream, row: Tensor, slot: Tensor) -> Batch:
        return transitions(stream, row, slot, self.cfg.n_step, self.cfg.gamma, self.single_steps)

    def compile_pieces(self) -> None:
        super().compile_pieces()
        if not self.span and "cut" not in self.graphs:
            frames = sum(math.prod(spec.shape) * spec.dtype.itemsize for spec in self.obs_space.values())
            self.graphs["cut"] = Graph(self.cut, "cutting batches", one_thread=frames * self.rows < SMALL)

    # -- learning -----------------------------------------------------------------------------------------------------

    def learn(self, stream: Stream, env_step: int, total: int) -> list[dict[str, Tensor]]:
        if not self.sampler.ready(stream):
            self.ratio.skip(env_step)
            return []
        self.schedule(env_step, total, *self.optimizers)
        metrics = []
        for _ in range(self.ratio.due(env_step)):
            self.updates += 1
            drawn, b = self.sample(stream, env_step / total)
            out = self.step_update(b, *self.choices())
            if drawn.leaf is not None and out.priority is not None:
                error = over_time(out.priority, b.mask, self.cfg.priority_mix) if self.span else out.priority
                self.sampler.tell(drawn, error.unflatten(0, (self.views, -1)).mean(0))
            metrics.append(out.metrics)
        return metrics

    def choices(self) -> tuple[Any, ...]:
        """What `update` gets besides the batch: plain values, each set of which is a graph of its own."""
        return ()

    @property
    def rows(self) -> int:
        return max(1, self.cfg.batch_size // (self.span or 1))

    def planned_updates(self, steps: int) -> int:
        return int(steps * self.cfg.update_ratio)

    def prepared(self, b: Batch) -> Batch:
        """Replay holds what the environment said; normalised by the statistics of this moment, its images moved.

        Without memory a row and what follows it move apart; the images of a sequence, which a memory compares, alike.
        """
        b = self.norm.batch(b)
        if self.shift:
            apart = 1 if self.span else 0
            b = b._replace(obs=self.shift(b.obs, apart), next_obs=self.shift(b.next_obs, apart))
        if self.cfg.normalize_reward:
            b = b._replace(reward=self.reward_norm(b.reward))
        return b if b.steps is None else b._replace(steps=self.prepared(b.steps))

    def over_views(self, goal: Tensor) -> Tensor:
        """What the moved copies of a row are to learn: the mean of what each would. [*, ...] -> [*, ...]."""
        if self.views == 1:
            return goal
        rows = 1 if self.span else 0
        each = goal.unflatten(rows, (self.views, -1))
        return each.mean(rows, keepdim=True).expand_as(each).flatten(rows, rows + 1)

    def drawn(self, z: Tensor) -> Tensor:
        """What the ensemble says, or a random part of it: [E, ...] -> [subset, ...]."""
        if 0 < self.cfg.subset < self.cfg.critics:
            return z[torch.rand(self.cfg.critics, device=z.device).topk(self.cfg.subset).indices]
        return z

    def get_extra_state(self) -> dict[str, Any]:
        return super().get_extra_state() | {"ratio": self.ratio.state(), "sampler": self.sampler.state()}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        super().set_extra_state(state)
        self.ratio.restore(state["ratio"])
        self.sampler.restore(state.get("sampler", {}))
