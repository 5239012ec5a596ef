"""Images moved at random before they are learned from, so that a net cannot learn where things stand by heart."""

from __future__ import annotations

import torch
from torch import Tensor

from kumite.types import Spec


def shift(x: Tensor, pad: int, rows: torch.Size) -> Tensor:
    """Each image moved by up to `pad` pixels along both axes, its edge repeated (DrQ, Kostrikov et al. 2021).

    x: [*, C, H, W]. `rows`: the last of the dimensions *; each of them has a move of its own, for all channels (the
    frames of a stack among them) and for whatever stands before those dimensions.
    """
    H, W = x.shape[-2:]
    dy, dx = torch.randint(-pad, pad + 1, (2, *rows), device=x.device)
    y = (torch.arange(H, device=x.device) + dy[..., None]).clamp(0, H - 1)
    z = (torch.arange(W, device=x.device) + dx[..., None]).clamp(0, W - 1)
    at = (y[..., :, None] * W + z[..., None, :]).flatten(-2)  # [rows, H W]
    return x.flatten(-2).gather(-1, at[..., None, :].expand(*x.shape[:-2], H * W)).view(x.shape)


class Shift:
    """The images of an observation, each entry moved by itself; everything else passes."""

    def __init__(self, obs_space: dict[str, Spec], pad: int) -> None:
        self.keys, self.pad = [k for k, spec in obs_space.items() if spec.image], pad

    def __call__(self, obs: dict[str, Tensor], apart: int = 0) -> dict[str, Tensor]:
        """`apart`: the first dimension whose rows move each on its own; those before (time) move alike."""
        moved = {k: shift(obs[k], self.pad, obs[k].shape[apart:-3]) for k in self.keys if k in obs}
        return obs | moved
