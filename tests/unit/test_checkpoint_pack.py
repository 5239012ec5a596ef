"""Checkpoints by walking: whatever a state is made of comes back as it was; what cannot come back is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from kumite import checkpoint
from kumite.checkpoint import check_finite, pack, unpack
from kumite.errors import RunError, UserError

DTYPES = [torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool, torch.bfloat16]
tensors = st.builds(
    lambda shape, dtype, seed: torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(seed)).to(dtype),
    st.sampled_from([(), (0,), (3,), (2, 0, 3), (2, 3)]),
    st.sampled_from(DTYPES),
    st.integers(0, 99),
)
plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | tensors
keys = st.text(st.characters(blacklist_characters="$.", blacklist_categories=("Cs",)), min_size=1, max_size=5)
trees = st.recursive(plain, lambda x: st.lists(x, max_size=3) | st.dictionaries(keys, x, max_size=3), max_leaves=12)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


class Rows:
    """As a Stream: its rows go into a file of their own."""

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def state(self, full: bool = True) -> dict[str, Any]:
        return {"x": self.x if full else self.x[:0]}


class Counter:
    def __init__(self, n: int) -> None:
        self.n = n

    def state(self) -> dict[str, Any]:
        return {"n": self.n, "t": torch.tensor(self.n)}


class Pair(NamedTuple):
    first: Tensor
    second: int


def through(tree: Any) -> Any:
    """There and back, with the JSON in between."""
    found: dict[str, Tensor] = {}
    return unpack(json.loads(json.dumps(pack(tree, found))), found)


@given(st.dictionaries(keys, trees, max_size=4))
def test_every_tree_comes_back(tree: dict[str, Any]) -> None:
    assert same(through(tree), tree)


@given(st.dictionaries(keys, trees, max_size=4))
@settings(max_examples=20)
def test_every_tree_comes_back_from_the_files(tmp_path_factory: pytest.TempPathFactory, tree: dict[str, Any]) -> None:
    folder = tmp_path_factory.mktemp("run") / "5"
    checkpoint.write(folder, tree, {})
    assert checkpoint.problem(folder) is None
    assert same(checkpoint.read(folder), tree)


def test_objects_are_walked_through_what_they_say() -> None:
    net = nn.Linear(2, 3)
    tree = {"counter": Counter(4), "net": net, "pair": Pair(torch.ones(2), 7), "tuple": (1, torch.zeros(1))}
    back = through(tree)
    assert back["counter"] == {"n": 4, "t": torch.tensor(4)}
    assert same(back["net"], dict(net.state_dict()))
    assert same(back["pair"], {"first": torch.ones(2), "second": 7})
    assert same(back["tuple"], [1, torch.zeros(1)])


def test_numbers_that_are_no_numbers_come_back() -> None:
    back = through({"best": -math.inf, "lost": math.nan, "huge": 2**80})
    assert back["best"] == -math.inf
    assert math.isnan(back["lost"])
    assert back["huge"] == 2**80


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", lambda: 0])
def test_what_cannot_come_back_is_refused_by_its_place(value: object) -> None:
    with pytest.raises(TypeError, match=r"cannot hold 'run\.deep\.1' of type"):
        pack({"run": {"deep": [0, value]}}, {})


def test_tensors_that_share_memory_come_back(tmp_path: Path) -> None:
    """Nets with common layers do, and parts of one tensor; so may the rows of a stream."""
    x = torch.randn(4)
    tied = nn.ModuleDict({"actor": nn.Linear(2, 2)})
    tied["critic"] = tied["actor"]
    checkpoint.write(tmp_path / "1", {"whole": x, "part": x[1:3], "net": tied, "stream": Rows(x[2:])}, {})
    back = checkpoint.read(tmp_path / "1")
    assert same([back["whole"], back["part"], back["stream"]["x"]], [x, x[1:3], x[2:]])
    assert torch.equal(back["net"]["critic.weight"], tied["actor"].weight)


def test_a_tensor_that_is_not_contiguous_comes_back(tmp_path: Path) -> None:
    x = torch.randn(3, 4)
    checkpoint.write(tmp_path / "1", {"a": x.T, "b": x[0].expand(5, 4)}, {})
    back = checkpoint.read(tmp_path / "1")
    assert torch.equal(back["a"], x.T)
    assert torch.equal(back["b"], x[0].expand(5, 4))


def test_rows_are_a_file_of_their_own_and_can_be_left_out(tmp_path: Path) -> None:
    x = torch.randn(4)
    with_rows, without = tmp_path / "1", tmp_path / "2"
    checkpoint.write(with_rows, {"stream": Rows(x), "n": 1}, {})
    checkpoint.write(without, {"stream": Rows(x), "n": 1}, {}, replay=False)
    assert torch.equal(checkpoint.read(with_rows)["stream"]["x"], x)
    assert "stream" not in checkpoint.read(with_rows, replay=False)
    assert checkpoint.read(without)["stream"]["x"].numel() == 0
    assert checkpoint.read(without)["n"] == 1


def test_a_second_write_replaces_the_first(tmp_path: Path) -> None:
    folder = tmp_path / "best"
    for n in (1, 2):
        checkpoint.write(folder, {"n": n}, {"config.yaml": f"n: {n}"})
    assert checkpoint.read(folder)["n"] == 2
    assert checkpoint.text(folder, "config.yaml") == "n: 2"
    assert [p.name for p in tmp_path.iterdir()] == ["best"], "nothing is left over"


def test_a_write_that_fails_leaves_the_old_one(tmp_path: Path) -> None:
    folder = tmp_path / "best"
    checkpoint.write(folder, {"n": 1}, {})
    with pytest.raises(TypeError):
        checkpoint.write(folder, {"n": object()}, {})
    assert checkpoint.read(folder)["n"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["best"]


@pytest.mark.parametrize("name", ["state.json", "state.safetensors", "manifest.json"])
def test_a_changed_byte_is_noticed(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "1"
    checkpoint.write(folder, {"n": 1, "x": torch.ones(3)}, {})
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    assert checkpoint.problem(folder) is not None
    with pytest.raises(UserError, match="not a checkpoint that can be used"):
        checkpoint.read(folder)


def test_what_is_not_finite_is_not_saved() -> None:
    net = nn.Linear(2, 2)
    check_finite(net)
    net.bias.data[1] = math.nan
    with pytest.raises(RunError, match="'bias' holds values that are not finite"):
        check_finite(net)


def test_the_newest_stay_and_the_best_and_the_damaged(tmp_path: Path) -> None:
    for step in (5, 40, 300, 2000):
        checkpoint.write(tmp_path / str(step), {"n": step}, {})
    checkpoint.write(tmp_path / "best", {"n": 1}, {})
    (tmp_path / "40" / "manifest.json").unlink()
    checkpoint.prune(tmp_path, keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["2000", "300", "40", "best"]
    assert [p.name for p in checkpoint.numbered(tmp_path)] == ["2000", "300", "40"], "by number, not by name"
