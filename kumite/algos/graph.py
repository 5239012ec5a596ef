"""A method of an algorithm as one compiled graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map


class Graph:
    """Calls a method as a graph. A compiler that fails costs one warning that says why; then the method itself runs."""

    def __init__(self, method: Callable[..., Any], what: str, thorough: bool = False, replays: bool = False) -> None:
        """`thorough`: what calls the kernels is compiled, too. That takes longer and saves some 30 us per call.
        `replays`: a GPU gets all kernels by one call (a CUDA graph); tensors among the arguments are copied for it.
        """
        self.eager, self.what, self.thorough, self.replays = method, what, thorough, replays
        self.call: Callable[..., Any] | None = None
        self.works = self.failed = False

    def __call__(self, *args: Any) -> Any:
        if self.failed:
            return self.eager(*args)
        try:
            if self.call is None:  # not earlier: this alone fails where the compiler's folder cannot be made
                self.call = compiled(self.eager, self.thorough, self.replays)
            out = self.call(*args)
            if self.replays:  # what it says would be written over by the next call
                out = tree_map(_kept, out)
        except Exception as error:
            if self.works and not _of_the_compiler(error):
                raise
            self.failed = True
            reason = f"{self.what} could not be compiled, so all runs eagerly: {_reason(error)}"
            warnings.warn(reason, RuntimeWarning, stacklevel=3)
            return self.eager(*args)
        self.works = True
        return out


def compiled(method: Callable[..., Any], thorough: bool, replays: bool = False) -> Callable[..., Any]:
    """Static shapes, one graph or an error. Random numbers are torch's own: the same as eagerly, and quicker."""
    options: Any = {"guard_filter_fn": _of_arguments, "fallback_random": True, "size_asserts": False}
    options |= {"triton.cudagraphs": True, "triton.cudagraph_support_input_mutation": True} if replays else {}
    options["cpp_wrapper"] = thorough
    return torch.compile(_apart(method), fullgraph=True, dynamic=False, options=options)


def _kept(x: Any) -> Any:
    return x.clone() if isinstance(x, Tensor) else x


def _apart(method: Any) -> Any:
    """The method with code of its own. Torch keeps graphs by code, and these graphs are right for one object alone."""
    plain = method.__func__
    own = FunctionType(
        plain.__code__.replace(), plain.__globals__, plain.__name__, plain.__defaults__, plain.__closure__
    )
    own.__kwdefaults__ = plain.__kwdefaults__
    return own.__get__(method.__self__)


def _of_arguments(guards: Sequence[Any]) -> list[bool]:
    """Before every call a graph's assumptions are checked, which takes as long as a small update. What an object is
    made of does not change any more, so only those about the arguments and about torch itself are kept.
    """
    names = [guard.orig_guard.name for guard in guards]
    return ["L['self']" not in name and not name.startswith("G[") for name in names]


def _of_the_compiler(error: Exception) -> bool:
    from torch._dynamo.exc import TorchDynamoException

    return isinstance(error, TorchDynamoException)


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
