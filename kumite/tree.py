"""Nested dicts of tensors: the one container that data travels in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

Tree = Any  # a Tensor, or a dict of Trees; recursive aliases are beyond the type checkers we use


def map(fn: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """fn over the leaves; the other trees have at least the same keys."""
    if isinstance(tree, dict):
        return {k: map(fn, v, *(o[k] for o in others)) for k, v in tree.items()}
    return fn(tree, *others)


def leaves(tree: Tree) -> Iterator[Tensor]:
    if isinstance(tree, dict):
        for v in tree.values():
            yield from leaves(v)
    else:
        yield tree


def items(tree: Tree, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """(dotted name, leaf) pairs."""
    if isinstance(tree, dict):
        for k, v in tree.items():
            yield from items(v, f"{path}.{k}" if path else k)
    else:
        yield path, tree


def take(tree: Tree, index: Any) -> Tree:
    """tree[index], leaf by leaf."""
    return map(lambda x: x[index], tree)


def to(tree: Tree, device: Any) -> Tree:
    ahead = str(device) != "cpu"  # towards the CPU a copy has to arrive before anybody reads it
    return map(lambda x: x.to(device, non_blocking=ahead), tree)


def put(tree: Tree, slot: Tensor | None, part: Tree) -> Tree:
    """The tree with `part` at these slots; None = everywhere."""
    return part if slot is None else map(lambda full, new: full.index_copy(0, slot, new), tree, part)


def at(tree: Tree, slot: Tensor | None) -> Tree:
    """These slots of the tree; None = all."""
    return tree if slot is None else take(tree, slot)
