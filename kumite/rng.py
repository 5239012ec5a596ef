"""Generators that belong to one agent: inside `active` torch draws from them, outside the caller's are as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


class Randomness:
    def __init__(self, seed: int, device: torch.device) -> None:
        self.device = device
        self.inside = False
        before = self._get()
        torch.manual_seed(seed)
        self.states = self._get()
        self._set(before)

    def _get(self) -> dict[str, Tensor]:
        states = {"cpu": torch.get_rng_state()}
        return states | {"cuda": torch.cuda.get_rng_state(self.device)} if self.device.type == "cuda" else states

    def _set(self, states: dict[str, Tensor]) -> None:
        torch.set_rng_state(states["cpu"].cpu())
        if "cuda" in states and self.device.type == "cuda":
            torch.cuda.set_rng_state(states["cuda"].cpu(), self.device)

    @contextmanager
    def active(self) -> Iterator[None]:
        if self.inside:
            yield
            return
        outside = self._get()
        self._set(self.states)
        self.inside = True
        try:
            yield
        finally:
            self.inside = False
            self.states = self._get()
            self._set(outside)

    @contextmanager
    def apart(self, seed: int) -> Iterator[None]:
        """Draws from a seed of their own, leaving no trace (evaluation)."""
        before = self._get()
        torch.manual_seed(seed)
        try:
            yield
        finally:
            self._set(before)

    def state(self) -> dict[str, Any]:
        return dict(self._get() if self.inside else self.states)

    def restore(self, state: dict[str, Any]) -> None:
        self.states = self.states | state
