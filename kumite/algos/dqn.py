"""Deep Q-learning (Mnih et al. 2015) and what grew out of it, each part a switch.

    y    = reward + discount * Q_target(s', a*),   a* = argmax_a Q_target(s', a), or by Q itself where `double`
    loss = [distance of Q(s, a) to y]

What Q says of a value, and the distance, is the head's (nn/heads.py): its mean, a distribution over atoms, quantiles.
The other names are rows of numbers: C51, QR-DQN and IQN are heads; Rainbow is c51 with double, dueling, noisy, three
steps and priorities. Several discrete branches add up, Q(s, d) = sum_i Q_i(s, d_i): each has a best choice of its own.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kumite.algos.graph import Graph
from kumite.algos.offpolicy import OffPolicy, OffPolicyConfig
from kumite.batch import Batch
from kumite.errors import UserError
from kumite.nn.adam import polyak_
from kumite.nn.heads import ValueConfig, ValueNet, greedy, still
from kumite.returns import squash, unsquash
from kumite.schedules import Every, linear
from kumite.stream import Stream
from kumite.tree import Tree
from kumite.types import Act, ActionSpec, Out, Spec


@dataclass(frozen=True)
class DQNConfig(ValueConfig, OffPolicyConfig):
    lr: float = 1e-4
    """Learning rate."""
    batch_size: int = 32
    """Rows per update (with memory: sequences are counted so that rows stay about equal)."""
    update_ratio: float = 0.25
    """Updates per environment step."""
    grad_clip: float = 10.0
    """Largest gradient norm; 0 = no limit."""
    critics: int = 1
    """There is one net of values."""
    target_every: int = 10_000
    """Environment steps between two moves of the target net; 0 = it moves at every update."""
    tau: float = 1.0
    """Share of the net that enters its target when it moves; 1 = a copy."""
    double: bool = False
    """The net chooses the next action, its target says what it is worth."""
    rescale: bool = False
    """Learn h(Q), h(x) = sgn(x) (sqrt(|x| + 1) - 1) + 0.001 x, in place of clipping rewards."""
    epsilon_start: float = 1.0
    """Share of random choices at the start."""
    epsilon_end: float = 0.05
    """The same at the end of its way down, and from then on."""
    epsilon_share: float = 0.1
    """How long it goes down: this share of the run."""
    epsilon_steps: int = 0
    """How long it goes down in environment steps; replaces the share when given."""
    epsilon_ladder: float = 0.0
    """Copy i of N explores with epsilon^(1 + ladder i / (N - 1)): Ape-X has 7, with epsilon 0.4; 0 = all alike."""


class DQN(OffPolicy):
    Config = DQNConfig
    cfg: DQNConfig
    actions = ("discrete", "multi-discrete")
    nets = ("critic",)

    def __init__(self, obs_space: dict[str, Spec], action: ActionSpec, slots: int, cfg: DQNConfig) -> None:
        super().__init__(obs_space, action, slots, cfg)
        if cfg.critics != 1:
            raise UserError(f"--critics {cfg.critics}: DQN has one net of values; SAC and TD3 have ensembles")
        self.online = ValueNet(obs_space, action.branches, cfg.critic, cfg.chunk, cfg)
        self.target = deepcopy(self.online).requires_grad_(False)
        self.adam = self.adam_of(self.online)
        self.moves = Every(cfg.target_every)
        self.wanders = max(cfg.epsilon_start, cfg.epsilon_end) > 0
        self.register_buffer("epsilon", torch.tensor(cfg.epsilon_start))
        rungs = 1 + cfg.epsilon_ladder * torch.linspace(0, 1, slots)
        self.register_buffer("rungs", rungs, persistent=False)
        self.epsilon: Tensor
        self.rungs: Tensor
        self.begin({"critic": self.online.torso}, self.adam)

    # -- acting -------------------------------------------------------------------------------------------------------

    def act(self, obs: dict[str, Tensor], core: Tree, explore: bool = True) -> Act:
        if explore:
            return self.choose(obs, core, self.epsilon)
        with still(self.online):
            return self.choose(obs, core, None)

    def explore(self, obs: dict[str, Tensor], core: Tree, env_step: int, total: int, slot: Tensor | None) -> Act:
        cfg = self.cfg
        way = cfg.epsilon_steps or max(1.0, cfg.epsilon_share * total)
        self.epsilon.fill_(linear(cfg.epsilon_start, cfg.epsilon_end, env_step / way))
        if env_step < cfg.warmup:
            return super().explore(obs, core, env_step, total, slot)
        if slot is not None:
            return self.choose(obs, core, self.epsilon ** self.rungs[slot])
        act: Act = self.compiled("wander", self.wander, obs, core)
        return act

    def wander(self, obs: dict[str, Tensor], core: Tree) -> Act:
        """The choices of all slots, each with the exploration of its own."""
        return self.choose(obs, core, self.epsilon**self.rungs)

    def compile_pieces(self) -> None:
        super().compile_pieces()
        if "wander" not in self.graphs:
            self.graphs["wander"] = Graph(self.wander, "acting", replays=self.on_gpu)

    def choose(self, obs: dict[str, Tensor], core: Tree, epsilon: Tensor | None) -> Act:
        """The best choices; with this probability, per row, random ones."""
        mask = obs.get("mask")
        q, memory = self.online.step(self.norm(obs), core["critic"])
        d = greedy(q, self.action.branches, mask)
        if epsilon is not None and self.wanders:
            random = self.action.random(d.shape[0], d.device, mask)["d"]
            d = torch.where((torch.rand(d.shape[0], device=d.device) < epsilon)[:, None], random, d)
        return Act({"c": q.new_zeros(d.shape[0], 0), "d": d}, {"critic": memory})

    # -- learning -----------------------------------------------------------------------------------------------------

    def learn(self, stream: Stream, env_step: int, total: int) -> list[dict[str, Tensor]]:
        metrics = super().learn(stream, env_step, total)
        if self.moves.due(env_step):
            polyak_(self.target, self.online, self.cfg.tau)
        return metrics

    def update(self, b: Batch) -> Out:
        cfg, head = self.cfg, self.online.head
        b = self.prepared(b).of("critic")

        def move(v: Tensor) -> Tensor:
            """The return if v follows: [*, N] or [N] -> [*, N]."""
            v = b.discount[..., None] * (unsquash(v) if cfg.rescale else v) + b.reward[..., None]
            return squash(v) if cfg.rescale else v

        after = self.target.next(b)
        guide = self.online.next(b) if cfg.double else after
        best = greedy(head.mean(guide.z), self.action.branches, self.online.torso.next_entry(b, "mask"))
        y = self.over_views(head.target(head.taken(after, best), move))

        def loss_fn(net: Any) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            said = head.taken(net(b), b.action["d"])
            loss, error = head.loss(said, y)
            return b.mean(loss), (head.mean(said.z), error)

        loss, (q, error) = self.adam.descend(loss_fn)
        if not cfg.target_every:
            polyak_(self.target, self.online, cfg.tau)
        return Out({"train/loss": loss, "train/q": b.mean(q), "rollout/exploration_rate": self.epsilon.clone()}, error)

    def get_extra_state(self) -> dict[str, Any]:
        return super().get_extra_state() | {"moves": self.moves.state()}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        super().set_extra_state(state)
        self.moves.restore(state["moves"])
