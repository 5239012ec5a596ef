"""A method as a graph: right for its own object alone, and eager where there is no compiler to make it."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kumite.algos.graph import Graph


class Scales:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def of(self, x: Tensor, times: int = 1) -> Tensor:
        return x.sin() * self.factor * times


@pytest.mark.slow
def test_objects_of_a_class_have_graphs_of_their_own() -> None:
    """What a graph assumes about its object is not checked at each call, so nobody else may be served by it."""
    x = torch.randn(5)
    two, three = Scales(2.0), Scales(3.0)
    graphs = Graph(two.of, "it"), Graph(three.of, "it")
    for size in (5, 7):  # another shape and another plain argument are seen
        x = torch.randn(size)
        for times in (1, 2):
            torch.testing.assert_close(graphs[0](x, times), two.of(x, times))
            torch.testing.assert_close(graphs[1](x, times), three.of(x, times))
    assert not any(graph.failed for graph in graphs)


@pytest.mark.parametrize("trouble", ["compiler", "folder"])
def test_without_a_compiler_or_a_folder_for_it_the_method_itself_runs(
    trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch._inductor.config as inductor

    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "below" if trouble == "folder" else tmp_path / "cache"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
    graph, x = Graph(Scales(1.5).of, "the update"), torch.randn(11)
    missing = ("/nowhere/c++",) if trouble == "compiler" else inductor.cpp.cxx
    with inductor.patch({"cpp.cxx": missing}):
        with pytest.warns(RuntimeWarning, match="the update could not be compiled, so all runs eagerly: .+"):
            assert torch.equal(graph(x), Scales(1.5).of(x))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert torch.equal(graph(x), Scales(1.5).of(x)), "it is said once"
    assert graph.failed


def test_an_error_of_the_method_is_nobody_elses() -> None:
    """A graph that worked has no excuse."""
    graph = Graph(Scales(1.0).of, "it")
    graph.works, graph.call = True, lambda x: 1 / 0
    with pytest.raises(ZeroDivisionError):
        graph(torch.zeros(1))
