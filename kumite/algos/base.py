"""What every algorithm shares: its numbers' common names and the shape of its three verbs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from torch import Tensor, nn

from kumite.algos.graph import Graph
from kumite.batch import Batch
from kumite.errors import UserError
from kumite.nn.adam import Adam
from kumite.nn.config import Net
from kumite.nn.encoders import Pixels
from kumite.nn.norm import ObsNorm
from kumite.schedules import SCHEDULES
from kumite.stream import Stream
from kumite.tree import Tree
from kumite.types import Act, ActionSpec, Out, Spec, Step


@dataclass(frozen=True)
class AlgoConfig:
    """The numbers that mean the same in every algorithm."""

    lr: float = 3e-4
    """Learning rate."""
    lr_schedule: str = "constant"
    """constant | linear | cosine, over the planned steps (PPO also: kl)."""
    lr_end: float = 0.0
    """Where the schedule ends, as a share of the learning rate."""
    optimizer: str = "adam"
    """adam | adamw."""
    adam_eps: float = 1e-8
    """Adam's epsilon."""
    adam_beta: float = 0.9
    """Adam's first beta: how much of the gradients' running mean a step keeps."""
    weight_decay: float = 0.0
    """Decoupled weight decay (adamw)."""
    grad_clip: float = 0.0
    """Largest gradient norm of a net; 0 = no limit."""
    gamma: float = 0.99
    """Discount per decision; -1 = by the time limit: 1 - 5 / decisions per episode, within 0.95 and 0.995."""
    normalize_obs: bool = False
    """Normalise vector observations by running mean and deviation."""
    obs_clip: float = 10.0
    """Normalised observations are clipped to this many deviations; 0 = never."""
    normalize_reward: bool = False
    """Divide rewards by the running deviation of the discounted return."""
    reward_clip: float = 10.0
    """Normalised rewards are clipped to this size; 0 = never."""
    actor: Net = field(default_factory=Net)
    """The policy's net."""
    critic: Net = field(default_factory=Net)
    """The value's net."""
    encoder: str = ""
    """The encoder of both nets (see --actor.encoder); empty = as each net says."""
    memory: str = ""
    """The memory of both nets: none | lstm | gru | rnn; empty = as each net says."""
    bf16: bool = False
    """Encoders and hidden layers of both nets compute in bfloat16 (weights stay float32)."""
    chunk: int = 16
    """With memory: rows per training sequence."""


class Algorithm(nn.Module):
    """Nets and losses. Knows no simulator, no loop and no logger."""

    Config: ClassVar[type[AlgoConfig]] = AlgoConfig
    actions: ClassVar[tuple[str, ...]] = ("continuous", "discrete", "multi-discrete", "hybrid")
    """Kinds of actions it can do."""
    memory: ClassVar[bool] = True
    """Works with --memory."""
    nets: ClassVar[tuple[str, ...]] = ("actor", "critic")
    """The nets it has; settings of another one are refused."""

    cfg: AlgoConfig
    span: int | None = None
    """Rows per training sequence; None = rows are independent."""

    def __init__(self, obs_space: dict[str, Spec], action: ActionSpec, slots: int, cfg: AlgoConfig) -> None:
        super().__init__()
        self.obs_space, self.action, self.slots, self.cfg = obs_space, action, slots, cfg
        self._refuse_others()
        self.updates = 0
        self.graphs: dict[str, Graph] = {}
        self.norm = ObsNorm(obs_space if cfg.normalize_obs else {}, cfg.obs_clip)

    def _refuse_others(self) -> None:
        """Settings of a net that is not there; what both nets say alike (--memory, --encoder) may stay."""
        here = getattr(self.cfg, self.nets[0])
        for net in {"actor", "critic"} - set(self.nets):
            for f in fields(Net):
                value = getattr(getattr(self.cfg, net), f.name)
                if value not in (getattr(Net(), f.name), getattr(here, f.name)):
                    name, flag = type(self).__name__, f.name.replace("_", "-")
                    raise UserError(f"{name} has no {net}: say --{self.nets[0]}.{flag} in place of --{net}.{flag}")

    def make_stream(self, device: Any = "cpu") -> Stream:
        """The storage this algorithm learns from."""
        raise TypeError("an algorithm says how many rows it keeps")

    def initial(self, n: int) -> Tree:
        """The recurrent state of n slots at an episode's start; {} without memory."""
        return {}

    def act(self, obs: dict[str, Tensor], core: Tree, explore: bool = True) -> Act:
        raise TypeError("an algorithm acts")

    def explore(self, obs: dict[str, Tensor], core: Tree, env_step: int, total: int, slot: Tensor | None) -> Act:
        """Acting while training, after `env_step` of `total` steps; `slot`: whose observations these are, None = all.

        Algorithms with a random start, or with noise that depends on time or copy, have their own.
        """
        return self.answer(obs, core)

    def observe(self, step: Step, first: Tensor) -> None:
        """Sees every Step once, when it arrives; `first`: slots whose observation begins an episode."""

    def learn(self, stream: Stream, env_step: int, total: int) -> list[dict[str, Tensor]]:
        """Whatever is due after `env_step` of `total` steps; metrics of the gradient steps made, or their means."""
        raise TypeError("an algorithm learns")

    def update(self, b: Batch, *args: Any) -> Out:
        """One gradient step: a pure function of tensors, compiled whole."""
        raise TypeError("an algorithm updates")

    def step_update(self, b: Batch, *args: Any) -> Out:
        """`update`, compiled where that was asked for."""
        out: Out = self.compiled("update", self.update, b, *args)
        return out

    def answer(self, obs: dict[str, Tensor], core: Tree, explore: bool = True) -> Act:
        """`act` as `explore` calls it: compiled where the updates are, as long as all slots speak together."""
        if next(iter(obs.values())).shape[0] != self.slots:
            return self.act(obs, core, explore)
        act: Act = self.compiled("act", self.act, obs, core, explore)
        return act

    def compiled(self, name: str, method: Callable[..., Any], *args: Any) -> Any:
        """The method by its graph, if there is one. If one fails, none is used."""
        graph = self.graphs.get(name)
        if graph is None:
            return method(*args)
        out = graph(*args)
        if graph.failed:
            self.graphs = {}
        return out

    @property
    def graph(self) -> Graph | None:
        """That of the updates."""
        return self.graphs.get("update")

    def compile_update(self, thorough: bool = False) -> None:
        """From now on `update` runs as one compiled graph."""
        for module in self.modules():
            if isinstance(module, Adam):
                module.ready_()
        if "update" not in self.graphs:
            self.graphs["update"] = Graph(self.update, "the update", thorough, self.on_gpu)

    def compile_pieces(self) -> None:
        """And what happens at every step beside it as graphs of their own."""
        if "act" not in self.graphs:
            self.graphs["act"] = Graph(self.act, "acting", replays=self.on_gpu)

    @property
    def looped(self) -> bool:
        """Images go through loops in C."""
        return any(isinstance(m, Pixels) and m.quick for m in self.modules())

    @property
    def on_gpu(self) -> bool:
        return any(p.is_cuda for p in self.parameters())

    def planned_updates(self, steps: int) -> int:
        """About how many gradient steps so many environment steps mean."""
        return steps

    @property
    def rows(self) -> int:
        """How many go through a net at once in a gradient step."""
        return 1

    def work(self) -> int:
        """About how many multiplications the largest product of a gradient step has."""
        places = 64  # where a kernel is applied
        return self.rows * max((p.numel() * (places if p.dim() == 4 else 1) for p in self.parameters()), default=0)

    def adam_of(self, net: nn.Module, lr: float = 0.0) -> Adam:
        """The optimiser of a net by the common numbers; another learning rate where one is given."""
        cfg = self.cfg
        decay = cfg.weight_decay if cfg.optimizer == "adamw" else 0.0
        return Adam(net, lr or cfg.lr, cfg.adam_eps, decay, cfg.grad_clip, (cfg.adam_beta, 0.999))

    def schedule(self, env_step: int, total: int, *optimizers: Adam) -> None:
        """The learning rates of this moment."""
        if self.cfg.lr_schedule in ("linear", "cosine"):
            for adam in optimizers:
                end = adam.start_lr * self.cfg.lr_end
                adam.lr.fill_(SCHEDULES[self.cfg.lr_schedule](adam.start_lr, end, env_step / total))

    def get_extra_state(self) -> dict[str, Any]:
        return {"updates": self.updates}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.updates = state["updates"]
