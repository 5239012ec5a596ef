"""A method of an algorithm as one compiled graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten


class Graph:
    """Calls a method as a graph. A compiler that fails costs one warning that says why; then the method itself runs."""

    def __init__(
        self,
        method: Callable[..., Any],
        what: str,
        thorough: bool = False,
        replays: bool = False,
        one_thread: bool = False,
    ) -> None:
        """`thorough`: what calls the kernels is compiled, too. That takes longer and saves some 30 us per call.
        `replays`: a GPU gets all kernels by one call (a CUDA graph); tensors among the arguments are copied for it.
        `one_thread`: so little to do that waking another thread would take longer.
        """
        self.eager, self.what, self.replays = method, what, replays
        self.options = {"cpp_wrapper": thorough} | ({"cpp.threads": 1} if one_thread else {})
        self.call: Callable[..., Any] | None = None
        self.works = self.failed = False

    def __call__(self, *args: Any) -> Any:
        if self.failed:
            return self.eager(*args)
        try:
            if self.call is None:  # not earlier: this alone fails where the compiler's folder cannot be made
                graph = compiled(self.eager, self.options)
                self.call = Replayed(graph) if self.replays else graph
            with no_hints() if not self.works else nullcontext():
                out = self.call(*args)
        except Exception as error:
            if self.works and not _of_the_compiler(error):
                raise
            self.failed = True
            reason = f"{self.what} could not be compiled, so all runs eagerly: {_reason(error)}"
            warnings.warn(reason, RuntimeWarning, stacklevel=3)
            return self.eager(*args)
        self.works = bool(self.call.records) if isinstance(self.call, Replayed) else True
        return out


@contextmanager
def no_hints() -> Iterator[None]:
    """The compiler's advice to round products on GPUs."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "TensorFloat32 tensor cores", UserWarning)
        yield


def compiled(method: Callable[..., Any], more: dict[str, Any]) -> Callable[..., Any]:
    """Static shapes, one graph or an error. Random numbers are torch's own: the same as eagerly, and quicker."""
    options: Any = {"guard_filter_fn": _of_arguments, "fallback_random": True, "size_asserts": False}
    # sums of few numbers stay loops: written out they cannot be vectorised, and an action's log-density is such a sum
    options["unroll_reductions_threshold"] = 3
    return torch.compile(_apart(method), fullgraph=True, dynamic=False, options=options | more)


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


# --- on a GPU ------------------------------------------------------------------------------------------------------


class Replayed:
    """A function of GPU tensors whose kernels are recorded once and then started all together (a CUDA graph).

    It must not wait for the device, and what it changes (weights, moments) must stay where it is. Recorded at the third
    call with the same shapes and plain arguments; the first two let libraries choose their kernels.
    """

    WARM = 2

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call
        self.seen: dict[Any, int] = {}
        self.records: dict[Any, tuple[torch.cuda.CUDAGraph, list[Tensor], Any]] = {}

    def __call__(self, *args: Any) -> Any:
        leaves, shape = tree_flatten(args)
        tensors = [x for x in leaves if isinstance(x, Tensor)]
        key = (shape, *((x.shape, x.dtype) if isinstance(x, Tensor) else x for x in leaves))
        if key not in self.records:
            self.seen[key] = self.seen.get(key, 0) + 1
            if self.seen[key] <= self.WARM:
                return self.call(*args)
            self.records[key] = self.record(leaves, shape)
        graph, inputs, out = self.records[key]
        torch._foreach_copy_(inputs, tensors)
        graph.replay()
        return tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, out)

    def record(self, leaves: list[Any], shape: Any) -> tuple[torch.cuda.CUDAGraph, list[Tensor], Any]:
        """Nothing runs meanwhile: the first replay is this call's."""
        places = [x.clone() if isinstance(x, Tensor) else x for x in leaves]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = self.call(*tree_unflatten(places, shape))
        return graph, [x for x in places if isinstance(x, Tensor)], out
