"""The contract of every simulator, and the id that names one.

An adapter turns a simulator into Steps. numpy, jax and the simulators' own habits end here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # worker processes import this file and need no torch
    from torch import Tensor

    from kumite.types import ActionSpec, Spec, Step


@dataclass(frozen=True)
class EnvConfig:
    """How the environment is built: `--env.*`."""

    mode: str = "sync"
    """sync (copies in this process), workers (a process per copy), or native (the simulator's own vector code)."""
    action_repeat: int = 1
    """Apply each action this many times and sum the rewards; the x axis counts the inner steps."""
    max_steps: int = 0
    """Truncate an episode after this many simulator steps; 0 = the environment's own limit."""
    frame_stack: int = 0
    """Show the newest frames joined; each is stored once. 0 = 4 for Atari, 1 elsewhere."""
    reward_scale: float = 1.0
    """The learner's reward = scale x reward + shift, then the transform. Logged returns stay the environment's own."""
    reward_shift: float = 0.0
    """Added to the learner's reward."""
    reward_transform: str = "auto"
    """auto (sign for Atari, none elsewhere) | none | sign | clip (to -1..1) | log (sign(r) log(1 + |r|))."""
    flatten: bool = False
    """Join all vector entries of a nested observation into one."""
    hide: tuple[int, ...] = ()
    """Indices dropped from the vector observation (CartPole's velocities are 1 3)."""
    mask_velocity: bool = False
    """Hide the velocities of the classic-control and MuJoCo tasks: a memory task from a plain one."""
    episodic_life: bool = False
    """Atari: a lost life ends the episode for the learner; statistics go on."""
    sticky: float = 0.25
    """Atari: probability that the previous action is repeated."""
    batch: int = 0
    """EnvPool: answer when this many copies are ready (rounded down to a divisor of their number); 0 = all."""
    timeout: float = 60.0
    """Seconds a worker may take for one step before it counts as hanging."""
    on_error: str = "raise"
    """A broken copy: raise, restart it (its partial episode is dropped), or drop it and go on with the others."""
    kwargs: str = ""
    """Keyword arguments of the environment itself, as YAML: '{continuous: true}'."""


class VecEnv(ABC):
    """A batch of environment copies. Tensors live on the CPU unless the simulator has a device."""

    slots: int
    obs_space: dict[str, Spec]
    action: ActionSpec
    groups: dict[str, Tensor] = {}
    """Slots by agent group; empty = all slots are alike."""
    restorable: bool = False
    """`state` and `restore` put every copy back exactly where it was."""
    horizon: int = 0
    """The time limit in simulator steps; 0 = unknown."""
    native: Any = None
    """The simulator's own (single) spaces as envs.spaces.Native: what `predict` speaks."""
    restarts: int = 0
    """Broken copies that were replaced so far."""

    @abstractmethod
    def reset(self, seed: int = 0) -> Step:
        """First observations of fresh episodes in every slot. Episode k of slot i has the seed derive(seed, i, k)."""

    @abstractmethod
    def send(self, action: dict[str, Tensor], slot: Tensor | None = None) -> None:
        """Start the step of the slots that spoke last. Refuses non-finite actions before they reach the simulator."""

    @abstractmethod
    def recv(self) -> Step: ...

    @abstractmethod
    def close(self) -> None: ...

    def state(self) -> dict[str, Any]:
        """What `restore` needs: JSON values and tensors. Only for restorable environments."""
        return {}

    def restore(self, state: dict[str, Any]) -> bool:
        """Put every copy back where it was; False if the simulator did not arrive there (then reset)."""
        return False

    def render(self) -> Any:
        """The picture of slot 0 as a uint8 array [height, width, 3]."""
        raise RuntimeError("this environment cannot be rendered")


MEASURED, ASKED, RESTARTED = 1, 2, 3
"""derive(seed, path): evaluations while training, which choose the best checkpoint; evaluations that somebody asks for,
on episodes that chose nothing; fresh episodes of a resumed run, derive(seed, RESTARTED, env_step)."""


def derive(seed: int, *keys: int) -> int:
    """A seed in [0, 2^31) for each path of integers, well mixed (splitmix64)."""
    x = seed & 0xFFFFFFFFFFFFFFFF
    for key in keys:
        x = (x ^ (key * 0x9E3779B97F4A7C15)) + 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        x ^= x >> 31
    return x & 0x7FFFFFFF


Maker = Callable[..., VecEnv]
