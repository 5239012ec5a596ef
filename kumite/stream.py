"""THE storage: replay buffer, rollout buffer and dataset are one class.

One ring per slot. Row t of a slot holds one Step and the Act that answered it:

    obs_t reward_t terminated_t truncated_t core_t | action_t extras_t

so a transition is row t and what arrived with row t + 1. A row whose flags say `over` is void: its observation is the
true last one of the episode, its action was ignored, and nothing is learned from it; it is there to be bootstrapped
from. The first row of an episode is the one after a void row.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from kumite import tree
from kumite.errors import UserError
from kumite.tree import Tree
from kumite.types import Act, ActionSpec, Spec, Step


class Stream:
    def __init__(
        self,
        rows: int,
        slots: int,
        obs_space: dict[str, Spec] | None = None,
        device: Any = "cpu",
        core_every: int = 1,
    ) -> None:
        """`rows` per slot. Recurrent states are kept at every `core_every`-th row only."""
        self.rows = -(-rows // core_every) * core_every
        self.slots, self.device, self.core_every = slots, torch.device(device), core_every
        self.stack = {k: s.stack for k, s in (obs_space or {}).items() if s.stack > 1}
        self.data: dict[str, Tensor] = {}  # dotted name -> [rows, N, ...]
        self.cores: dict[str, Tensor] = {}  # dotted name -> [rows / core_every, N, ...]
        self.count = torch.zeros(slots, dtype=torch.int64, device=self.device)  # Steps seen, per slot
        self.drained = torch.zeros(slots, dtype=torch.int64, device=self.device)
        self.clock, self.taken = 0, 0  # = count and drained of every slot while all slots speak together
        self.level = True

    def row_bytes(self, obs_space: dict[str, Spec], action: ActionSpec) -> int:
        """Memory of one row, but for what an algorithm stores besides (recurrent states, log-probabilities)."""
        frames = sum(math.prod(s.frame) * s.dtype.itemsize for s in obs_space.values())
        return frames + 4 * action.continuous + 8 * len(action.branches) + 4 + 1 + 1  # reward, terminated, truncated

    # -- writing ------------------------------------------------------------------------------------------------------

    def observe(self, step: Step) -> None:
        """Open the next row of the slots that spoke: it closes the one before."""
        if step.slot is None and self.level:
            self.clock += 1
            self.count += 1
        else:
            self.level = False
            slot = slice(None) if step.slot is None else step.slot
            self.count[slot] += 1
        at = self._at(step.slot)
        for key, value in step.obs.items():
            self._write(
                "obs." + key, value[:, -value.shape[1] // self.stack[key] :] if key in self.stack else value, at
            )
        self._write("reward", step.reward, at)
        self._write("terminated", step.terminated, at)
        self._write("truncated", step.truncated, at)

    def record(self, act: Act, core: Tree, slot: Tensor | None = None) -> None:
        """Complete the open rows: what was answered, and the recurrent state it was answered from."""
        slot = slot if slot is None else slot.to(self.device)
        at = self._at(slot)
        for key, value in act.action.items():
            self._write("action." + key, value, at)
        for key, value in act.extras.items():
            self._write("extras." + key, value, at)
        if core:
            self._write_core(core, slot)

    def _at(self, slot: Tensor | None) -> Any:
        if self.level:
            return (self.clock - 1) % self.rows
        slot = torch.arange(self.slots, device=self.device) if slot is None else slot
        return (self.count[slot] - 1) % self.rows, slot

    def _write(self, key: str, value: Tensor, at: Any) -> None:
        if key not in self.data:
            self.data[key] = self._zeros(self.rows, value)
        elif self.data[key].shape[2:] != value.shape[1:] or self.data[key].dtype != value.dtype:
            was, now = tuple(self.data[key].shape[2:]), tuple(value.shape[1:])
            raise UserError(f"'{key}' changed from {was} {self.data[key].dtype} to {now} {value.dtype} during the run")
        if value.numel():  # of a discrete action the continuous part, and the reverse
            self.data[key][at] = value if value.device == self.device else value.to(self.device)

    def _zeros(self, rows: int, like: Tensor) -> Tensor:
        shape = (rows, self.slots, *like.shape[1:])
        try:
            return torch.zeros(shape, dtype=like.dtype, device=self.device)
        except RuntimeError:
            size = math.prod(shape) * like.element_size() / 1e9
            raise UserError(
                f"there is no memory on {self.device} for {rows:,} rows of {self.slots} copies ({size:.1f} GB); give a"
                " smaller --buffer-size or --horizon"
            ) from None

    def _write_core(self, core: Tree, slot: Tensor | None) -> None:
        for key, value in tree.items(core):
            value = value.to(self.device)
            if key not in self.cores:
                self.cores[key] = self._zeros(self.rows // self.core_every, value)
            if self.level:
                if (self.clock - 1) % self.core_every == 0:
                    self.cores[key][(self.clock - 1) % self.rows // self.core_every] = value
            else:
                slot = torch.arange(self.slots, device=self.device) if slot is None else slot
                row = self.count[slot] - 1
                keep = row % self.core_every == 0
                self.cores[key][(row % self.rows // self.core_every)[keep], slot[keep]] = value[keep]

    # -- reading ------------------------------------------------------------------------------------------------------

    def bounds(self, span: int = 1) -> tuple[Tensor, Tensor]:
        """Per slot the range [first, last) of rows from which `span` transitions can be read without gaps.

        Rows are numbered by `count` from the beginning of the run; the ring holds the newest of them. A frame stack
        needs its older frames, a recurrent reader the flags of the row before; so both stay clear of the write head.
        """
        oldest = (self.count - self.rows).clamp(min=0)
        first = torch.where(oldest > 0, oldest + self.spare, oldest)
        return first, (self.count - span).clamp(min=0)

    def level_bounds(self, span: int = 1) -> tuple[int, int]:
        """`bounds` of every slot while all speak together: plain numbers, no synchronisation."""
        oldest = max(0, self.clock - self.rows)
        return oldest + self.spare * (oldest > 0), max(0, self.clock - span)

    @property
    def spare(self) -> int:
        return max([1, *(k - 1 for k in self.stack.values())])

    def flat(self, row: Tensor, slot: Tensor) -> Tensor:
        return (row % self.rows) * self.slots + slot

    def read(self, key: str, row: Tensor, slot: Tensor) -> Tensor:
        """Rows of one key; `row` and `slot` have the same shape, which leads the result's."""
        name, _, entry = key.partition(".")
        if name == "obs" and entry in self.stack:
            return self._stacked(key, self.stack[entry], row, slot)
        return self._gather(self.data[key], row, slot)

    def _gather(self, data: Tensor, row: Tensor, slot: Tensor) -> Tensor:
        index = self.flat(row, slot)
        return data.flatten(0, 1).index_select(0, index.reshape(-1)).unflatten(0, index.shape)

    def _stacked(self, key: str, k: int, row: Tensor, slot: Tensor) -> Tensor:
        rows = row[..., None] - torch.arange(k - 1, -1, -1, device=self.device)  # [..., k], oldest first
        slots = slot[..., None].expand_as(rows)
        over = self.over(rows[..., :-1], slots[..., :-1]) | (rows[..., :-1] < 0)
        dead = over.flip(-1).cumsum(-1).flip(-1) > 0  # an end between that frame and the newest
        dead = torch.cat([dead, torch.zeros_like(dead[..., :1])], -1)
        frames = self._gather(self.data[key], rows, slots)  # [..., k, C, ...]
        if self.device.type != "cpu" or torch.compiler.is_compiling():
            frames = frames * (~dead).view(*dead.shape, *[1] * (frames.dim() - dead.dim())).to(frames.dtype)
        elif dead.any():  # they are few, and it costs nothing to ask
            frames[dead] = 0
        return frames.flatten(row.dim(), row.dim() + 1)

    def over(self, row: Tensor, slot: Tensor) -> Tensor:
        return self._gather(self.data["terminated"], row, slot) | self._gather(self.data["truncated"], row, slot)

    def first(self, row: Tensor, slot: Tensor) -> Tensor:
        """Rows that begin an episode."""
        return (row == 0) | self.over(row - 1, slot)

    def group(self, prefix: str, row: Tensor, slot: Tensor) -> dict[str, Tensor]:
        """All keys under a prefix: group("obs", ...) -> {"obs": ..., "mask": ...}."""
        start = prefix + "."
        return {k[len(start) :]: self.read(k, row, slot) for k in self.data if k.startswith(start)}

    def core(self, row: Tensor, slot: Tensor) -> Tree:
        """Recurrent states at rows that are multiples of core_every; {} without memory."""
        out: Tree = {}
        index = (row % self.rows // self.core_every) * self.slots + slot
        for key, data in self.cores.items():
            node = out
            *path, last = key.split(".")
            for part in path:
                node = node.setdefault(part, {})
            node[last] = data.flatten(0, 1)[index]
        return out

    # -- on-policy ----------------------------------------------------------------------------------------------------

    def ready(self, count: int) -> bool:
        """Every slot has `count` transitions that were not drained yet."""
        if self.level:
            return self.clock - 1 - self.taken >= count
        return bool(((self.count - 1 - self.drained) >= count).all())

    def drain(self, count: int) -> tuple[Tensor, Tensor]:
        """(row, slot) of the next `count` transitions of every slot and the row that follows them: [count + 1, N].

        A slot that ran ahead of the others further than the ring is long loses its oldest rows: it begins at the first
        kept recurrent state that can be read in full.
        """
        first, _ = self.bounds()
        start = torch.maximum(self.drained, -(-first // self.core_every) * self.core_every)
        row = start + torch.arange(count + 1, device=self.device)[:, None]
        slot = torch.arange(self.slots, device=self.device).expand(count + 1, -1)
        self.drained = start + count
        self.taken = max(self.taken, -(-self.level_bounds()[0] // self.core_every) * self.core_every) + count
        return row, slot

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def state(self, full: bool = True) -> dict[str, Any]:
        """`full=False` keeps the counters' order but forgets the rows (a checkpoint without replay)."""
        used = min(int(self.count.max()), self.rows) if full else 0
        return {
            "data": {k: v[:used] for k, v in self.data.items()},
            "cores": {k: v[: -(-used // self.core_every)] for k, v in self.cores.items()},
            "count": self.count if full else torch.zeros_like(self.count),
            "drained": self.drained if full else torch.zeros_like(self.drained),
            "clock": self.clock if full else 0,
            "taken": self.taken if full else 0,
            "level": self.level if full else True,
            "rows": self.rows,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.count, self.drained = state["count"].to(self.device).clone(), state["drained"].to(self.device).clone()
        self.clock, self.taken, self.level = state["clock"], state["taken"], state["level"]
        if state["rows"] != self.rows and int(self.count.max()) > min(state["rows"], self.rows):
            raise UserError(
                f"the saved ring of {state['rows']} rows per copy has wrapped and cannot become {self.rows} rows"
            )
        self.data, self.cores = {}, {}
        for saved, mine, rows in (
            (state.get("data", {}), self.data, self.rows),
            (state.get("cores", {}), self.cores, self.rows // self.core_every),
        ):
            for key, value in saved.items():
                if value.shape[0] > rows or value.shape[1] != self.slots:
                    raise UserError(
                        f"the saved rows of '{key}' {tuple(value.shape[:2])} do not fit {(rows, self.slots)}"
                    )
                mine[key] = torch.zeros(rows, *value.shape[1:], dtype=value.dtype, device=self.device)
                mine[key][: value.shape[0]] = value

    def cut(self) -> None:
        """Forget what is in flight and end every episode here: the newest row of each slot becomes a truncated one."""
        for slot in range(self.slots):
            if int(self.count[slot]) > 0:
                row = (int(self.count[slot]) - 1) % self.rows
                self.data["truncated"][row, slot] |= ~self.data["terminated"][row, slot]
