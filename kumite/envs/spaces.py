"""The home of numpy <-> tensor conversion: a gymnasium space on one side, flat named arrays on the other.

An observation becomes {"obs": array} or {"camera": ..., "arm.joints": ...}, an action the pair (c, d). `Native` holds
both directions for one environment and can be written to JSON, so that a checkpoint acts without an environment. Only
numpy and gymnasium are needed here: worker processes start without torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from kumite.errors import RunError, UserError

if TYPE_CHECKING:
    from kumite.types import ActionSpec, Spec

Array = np.ndarray[Any, Any]
Space = spaces.Space[Any]
SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of these"
HUGE = 1e30  # a bound beyond this is a way of writing "none"
SMALLEST_IMAGE = 7  # MiniGrid's view; arrays with fewer rows or columns are plain numbers


class BadObservation(ValueError):
    """What is wrong with an observation; whoever knows the environment's index and seed says the rest."""


@dataclass(frozen=True)
class Leaf:
    """One leaf of the observation space and where it goes."""

    path: tuple[Any, ...]
    shape: tuple[int, ...]
    """As the environment gives it."""
    kind: str
    """vector | image | choice | mask"""
    target: str
    dtype: str = "float32"
    """As it is handed out."""
    axes: tuple[int, ...] = ()
    """image: the order that puts the channels first."""
    start: Array | None = None
    """choice: the smallest value of each entry."""
    count: Array | None = None
    """choice: how many values each entry may take."""
    keep: Array | None = None
    """vector: the indices that are not hidden."""
    span: tuple[int, int] | None = None
    """vector: its part of a joined entry."""


@dataclass(frozen=True)
class Field:
    """One entry of the flat observation, for one slot."""

    shape: tuple[int, ...]
    dtype: str
    image: bool = False
    choices: tuple[int, ...] = ()


class Native:
    """The single spaces of an environment and the conversions between them and tensors' arrays."""

    def __init__(
        self, obs_space: Space, action_space: Space, hide: tuple[int, ...] = (), flatten: bool = False
    ) -> None:
        self.obs_native = obs_space
        self.action_native = action_space
        self.hide = tuple(hide)
        self.flatten = flatten
        self.bounded = True
        self.continuous = 0
        self.branches: tuple[int, ...] = ()
        self._decode = self._plan_action(action_space, "the action space")
        self._choices = np.array(self.branches, dtype=np.uint64)
        # The rows of such a batch are native actions as they are.
        self._flat_action = isinstance(action_space, spaces.Discrete) or bool(action_space.shape)
        leaves: list[Leaf] = []
        self._plan_obs(obs_space, (), leaves)
        self.leaves, self.fields = _arrange(leaves, self.hide, flatten)
        self.masked = "mask" in self.fields
        """The observation itself carries the legal choices."""
        # One unhidden vector is by far the most common observation: it is copied without any walk.
        only = self.leaves[0] if len(self.leaves) == 1 else None
        self._plain = only.shape if only and only.kind == "vector" and not only.path and only.keep is None else None
        if self._plain is not None and len(self._plain) != 1:
            self._plain = None

    # What the rest of the library sees of the spaces.

    @cached_property
    def obs_space(self) -> dict[str, Spec]:
        import torch

        from kumite.types import Spec

        return {
            k: Spec(shape=f.shape, dtype=getattr(torch, f.dtype), image=f.image, choices=f.choices)
            for k, f in self.fields.items()
        }

    @cached_property
    def action(self) -> ActionSpec:
        from kumite.types import ActionSpec

        return ActionSpec(self.continuous, self.branches, self.bounded)

    # Observations.

    def blank(self, *lead: int) -> dict[str, Array]:
        """Uninitialised arrays for that many observations."""
        return {k: np.empty((*lead, *f.shape), dtype=f.dtype) for k, f in self.fields.items()}

    def encode(self, obs: Any, batched: bool) -> dict[str, Array]:
        """One native observation, or a batch of them as gymnasium nests them, to the flat dict."""
        lead = (self._batch_size(obs),) if batched else ()
        out = self.blank(*lead)
        for leaf in self.leaves:
            _put(leaf, _pick(obs, leaf.path), lead, out[leaf.target])
        return out

    def write(self, obs: Any, out: dict[str, Array], row: int) -> None:
        """Encode one observation into row `row` of the arrays."""
        if obs.__class__ is np.ndarray and obs.shape == self._plain and obs.dtype.kind in "fiub":
            out["obs"][row] = obs
            return
        for leaf in self.leaves:
            _put(leaf, _pick(obs, leaf.path), (), out[leaf.target][row])

    def is_batched(self, obs: Any) -> bool:
        """Whether this is a batch of observations or a single one; refuses what is neither."""
        leaf = self.leaves[0]
        try:
            shape = np.shape(_pick(obs, leaf.path))
        except (BadObservation, ValueError) as err:
            raise UserError(f"the observation does not fit the space {self.obs_native}: {err}") from None
        if shape == leaf.shape:
            return False
        if shape[1:] == leaf.shape and len(shape) == len(leaf.shape) + 1:
            return True
        raise UserError(
            f"the observation{_named(leaf.path)} has shape {shape}; expected {leaf.shape} for one observation "
            f"or (n, {', '.join(map(str, leaf.shape)) or '...'}) for a batch"
        )

    def check(self, out: dict[str, Array]) -> int:
        """The first row that holds a value no observation may have, or -1."""
        for name, field in self.fields.items():
            x = out[name]
            if field.dtype == "float32" and not all_finite(x):
                finite = np.isfinite(x).reshape(len(x), -1).all(axis=1)
                if not finite.all():
                    return int(np.argmin(finite))
        return -1

    def describe(self, out: dict[str, Array], row: int) -> str:
        """What is wrong with that row."""
        for name, field in self.fields.items():
            if field.dtype == "float32" and not np.isfinite(out[name][row]).all():
                word = "NaN" if np.isnan(out[name][row]).any() else "infinity"
                return f"{word} in the observation '{name}'"
        return "an observation outside its space"

    def allow(self, mask: Array, over: Array) -> int:
        """The first row [N, sum K] in which a branch has no legal choice though its episode goes on, or -1.

        After a last observation everything is legal: the agent still answers, and nobody obeys.
        """
        at = 0
        for n in self.branches:
            stuck = ~mask[:, at : at + n].any(axis=1)
            if stuck.any():
                if (stuck & ~over).any():
                    return int(np.argmax(stuck & ~over))
                mask[stuck, at : at + n] = True
            at += n
        return -1

    # Actions.

    def decode_batch(self, c: Array, d: Array) -> Any:
        """The batch of native actions: one array, or dicts and tuples of arrays for a nested space."""
        return self._decode(c, d)

    def decode(self, c: Array, d: Array) -> list[Any]:
        """A native action per row."""
        batch = self._decode(c, d)
        if self._flat_action:
            return list(batch)
        return [_row(self.action_native, batch, i) for i in range(len(c))]

    def refuse(self, c: Array, d: Array, rows: int, alive: Array | None = None) -> None:
        """Stop an action that no simulator should see; some of them would go on in silence."""
        if c.shape != (rows, self.continuous) or d.shape != (rows, len(self.branches)):
            raise RunError(
                f"the actions have shapes c {c.shape} and d {d.shape}; "
                f"expected {(rows, self.continuous)} and {(rows, len(self.branches))}"
            )
        bad = None
        if self.continuous and not all_finite(c):
            bad = ~np.isfinite(c).all(axis=1)
        if self.branches and (d.view(np.uint64) >= self._choices).any():
            outside = (d.view(np.uint64) >= self._choices).any(axis=1)
            bad = outside if bad is None else bad | outside
        if bad is not None and alive is not None:
            bad &= alive
        if bad is not None and bad.any():
            i = int(np.argmax(bad))
            raise RunError(
                f"the action for environment {i} is not valid (c {c[i].tolist()}, d {d[i].tolist()}, "
                f"branches {list(self.branches)}): the policy has diverged; a lower --lr is the usual remedy"
            )

    # JSON.

    def to_json(self) -> dict[str, Any]:
        return {
            "observation": space_to_json(self.obs_native),
            "action": space_to_json(self.action_native),
            "hide": list(self.hide),
            "flatten": self.flatten,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Native:
        observation, action = space_from_json(data["observation"]), space_from_json(data["action"])
        return cls(observation, action, tuple(data.get("hide", ())), bool(data.get("flatten", False)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Native) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]

    # Planning.

    def _batch_size(self, obs: Any) -> int:
        shape = np.shape(_pick(obs, self.leaves[0].path))
        if not shape:
            raise BadObservation("a batch of observations was expected, this is a single number")
        return int(shape[0])

    def _plan_obs(self, space: Space, path: tuple[Any, ...], leaves: list[Leaf]) -> None:
        if isinstance(space, spaces.Dict):
            for key, sub in space.spaces.items():
                mask = not path and key in ("action_mask", "mask") and self._fits_mask(sub)
                if mask and not any(leaf.kind == "mask" for leaf in leaves):
                    leaves.append(Leaf((key,), sub.shape or (), "mask", "mask"))
                else:
                    self._plan_obs(sub, (*path, key), leaves)
        elif isinstance(space, spaces.Tuple):
            for i, sub in enumerate(space.spaces):
                self._plan_obs(sub, (*path, i), leaves)
        else:
            leaves.append(_leaf(space, path))

    def _fits_mask(self, space: Space) -> bool:
        flags = (
            isinstance(space, spaces.MultiBinary)
            or (isinstance(space, spaces.Box) and bool((space.low >= 0).all() and (space.high <= 1).all()))
            or (isinstance(space, spaces.MultiDiscrete) and bool((space.nvec == 2).all()))
        )
        return flags and bool(self.branches) and math.prod(space.shape or ()) == sum(self.branches)

    def _plan_action(self, space: Space, where: str) -> Callable[[Array, Array], Any]:
        """Takes the next columns of c or d for every leaf, in the order of the space."""
        if isinstance(space, spaces.Box):
            return self._plan_box(space, where)
        if isinstance(space, spaces.Discrete):
            j, start, dtype = len(self.branches), space.start, space.dtype
            self.branches += (int(space.n),)
            return lambda c, d: (d[:, j] + start).astype(dtype, copy=False)
        if isinstance(space, (spaces.MultiDiscrete, spaces.MultiBinary)):
            counts = np.full(space.shape, 2) if isinstance(space, spaces.MultiBinary) else space.nvec
            first = space.start.ravel() if isinstance(space, spaces.MultiDiscrete) else 0
            lo, shape, kind = len(self.branches), space.shape, space.dtype
            self.branches += tuple(int(n) for n in counts.ravel())
            hi = len(self.branches)
            return lambda c, d: (d[:, lo:hi] + first).astype(kind, copy=False).reshape(len(d), *shape)
        if isinstance(space, spaces.Dict):
            parts = {k: self._plan_action(s, f"{where}['{k}']") for k, s in space.spaces.items()}
            return lambda c, d: {k: f(c, d) for k, f in parts.items()}
        if isinstance(space, spaces.Tuple):
            row = [self._plan_action(s, f"{where}[{i}]") for i, s in enumerate(space.spaces)]
            return lambda c, d: tuple(f(c, d) for f in row)
        raise UserError(f"{where} is {space}, which is not supported; supported are {SUPPORTED}")

    def _plan_box(self, space: spaces.Box, where: str) -> Callable[[Array, Array], Any]:
        low, high = _bounds(space, where)
        lo, shape, dtype = self.continuous, space.shape, space.dtype
        self.continuous += low.size
        hi = self.continuous
        finite = np.isfinite(low) & np.isfinite(high)
        self.bounded = self.bounded and bool(finite.all())
        work = np.dtype(np.float64 if dtype == np.float64 or dtype.kind in "iu" else np.float32)
        with np.errstate(invalid="ignore", over="ignore"):
            middle = np.where(finite, low + (high - low) / 2, 0.0).astype(work)
            half = np.where(finite, (high - low) / 2, 1.0).astype(work)
            low, high = low.astype(work), high.astype(work)
        unit_low, unit_high = np.where(finite, -1.0, -np.inf).astype(work), np.where(finite, 1.0, np.inf).astype(work)
        integer = dtype.kind in "iu"

        if bool(((low == -1) & (high == 1)).all()) and not integer:

            def unit(c: Array, d: Array) -> Array:
                return c[:, lo:hi].clip(-1.0, 1.0).astype(dtype, copy=False).reshape(len(c), *shape)

            return unit

        def scale(c: Array, d: Array) -> Array:
            x = np.clip(c[:, lo:hi].astype(work, copy=False), unit_low, unit_high)
            x = np.clip(x * half + middle, low, high)
            return (np.rint(x) if integer else x).astype(dtype, copy=False).reshape(len(c), *shape)

        return scale


# Leaves of an observation.


def _leaf(space: Space, path: tuple[Any, ...]) -> Leaf:
    name = ".".join(map(str, path)) or "obs"
    if name == "mask":
        name = "mask_"  # "mask" is the legal choices' name
    if isinstance(space, spaces.Box):
        axes = _image_axes(space)
        dtype = "uint8" if axes and space.dtype == np.uint8 else "float32"
        return Leaf(path, space.shape, "image" if axes else "vector", name, dtype, axes)
    if isinstance(space, spaces.Discrete):
        return Leaf(path, (), "choice", name, start=np.array([space.start]), count=np.array([int(space.n)]))
    if isinstance(space, spaces.MultiDiscrete):
        return Leaf(path, space.shape, "choice", name, start=space.start.ravel(), count=space.nvec.ravel())
    if isinstance(space, spaces.MultiBinary):
        n = math.prod(space.shape)
        return Leaf(path, space.shape, "choice", name, start=np.zeros(n, int), count=np.full(n, 2))
    what = f"the observation '{name}'" if path else "the observation space"
    raise UserError(f"{what} is {space}, which is not supported; supported are {SUPPORTED}")


def _image_axes(space: spaces.Box) -> tuple[int, ...]:
    """The axes that bring an image to [channels, height, width]; () for plain numbers.

    Two axes are a grey image where they hold bytes, four are a stack of images. With three, the channels are the
    shorter of the first and last axis, the last one in doubt.
    """
    shape = space.shape
    if len(shape) == 2 and space.dtype == np.uint8:
        axes: tuple[int, ...] = (0, 1)
        height, width = shape
    elif len(shape) == 3:
        axes = (0, 1, 2) if shape[0] < shape[2] else (2, 0, 1)
        height, width = (shape[i] for i in axes[1:])
    elif len(shape) == 4 and space.dtype == np.uint8:
        axes = (0, 1, 2, 3) if shape[1] < shape[3] else (0, 3, 1, 2)
        height, width = (shape[i] for i in axes[2:])
    else:
        return ()
    return axes if min(height, width) >= SMALLEST_IMAGE else ()


def _arrange(leaves: list[Leaf], hide: tuple[int, ...], flatten: bool) -> tuple[tuple[Leaf, ...], dict[str, Field]]:
    """Joins and hides, and says which entries result."""
    if not [leaf for leaf in leaves if leaf.kind != "mask"]:
        raise UserError("the observation space holds nothing to observe")
    vectors = [leaf for leaf in leaves if leaf.kind == "vector"]
    joined = flatten and bool(vectors)
    if hide and len(vectors) > 1 and not joined:
        raise UserError(
            "--env.hide drops indices of one vector, and this observation has several: "
            f"{', '.join(v.target for v in vectors)}; join them with --env.flatten"
        )
    if hide and not vectors:
        raise UserError("--env.hide drops indices of a vector, and this observation has none")
    total = sum(math.prod(v.shape) for v in vectors)
    wrong = [i for i in hide if not -total <= i < total]
    if wrong:
        raise UserError(f"--env.hide names the index {wrong[0]}, but the vector observation has {total} entries")
    hidden = {i % total for i in hide} if hide else set()
    if hidden and len(hidden) == total:
        raise UserError("--env.hide leaves nothing to observe")

    placed: list[Leaf] = []
    fields: dict[str, Field] = {}
    seen, width = 0, total - len(hidden)
    at = 0
    for leaf in leaves:
        if leaf.kind == "vector":
            size = math.prod(leaf.shape)
            kept = [i for i in range(size) if seen + i not in hidden]
            seen += size
            if len(kept) < size:
                leaf = replace(leaf, keep=np.array(kept, dtype=np.int64))
            if joined:
                leaf = replace(leaf, target="obs", span=(at, at + len(kept)))
                at += len(kept)
        if leaf.target not in fields:
            fields[leaf.target] = _field(leaf, width if joined else None)
        elif not (joined and leaf.kind == "vector"):
            raise UserError(f"two entries of the observation space are both called '{leaf.target}'; rename one")
        placed.append(leaf)
    return tuple(placed), fields


def _field(leaf: Leaf, width: int | None) -> Field:
    if leaf.kind == "image":
        shape = tuple(leaf.shape[i] for i in leaf.axes)
        if len(shape) == 2:
            shape = (1, *shape)
        elif len(shape) == 4:
            shape = (shape[0] * shape[1], *shape[2:])
        return Field(shape, leaf.dtype, image=True)
    if leaf.kind == "choice":
        assert leaf.count is not None
        return Field((len(leaf.count),), "int64", choices=tuple(int(n) for n in leaf.count))
    if leaf.kind == "mask":
        return Field((math.prod(leaf.shape),), "bool")
    size = math.prod(leaf.shape) if leaf.keep is None else len(leaf.keep)
    return Field((size if width is None else width,), "float32")


def _put(leaf: Leaf, raw: Any, lead: tuple[int, ...], out: Array) -> None:
    """Checks one leaf's value and writes it where it belongs."""
    x = np.asarray(raw)
    if x.shape != lead + leaf.shape:
        raise BadObservation(
            f"the observation{_named(leaf.path)} has shape {x.shape} where the space says {lead + leaf.shape}"
        )
    if x.dtype.kind not in ("fiub" if leaf.kind == "vector" or out.dtype.kind == "f" else "iub"):
        raise BadObservation(f"the observation{_named(leaf.path)} is of type {x.dtype}, which does not fit the space")
    if leaf.kind == "vector":
        x = x.reshape(*lead, -1)
        if leaf.keep is not None:
            x = x[..., leaf.keep]
        if leaf.span is None:
            out[...] = x
        else:
            out[..., leaf.span[0] : leaf.span[1]] = x
    elif leaf.kind == "image":
        if out.dtype == np.uint8 and x.dtype not in (np.uint8, np.bool_) and ((x < 0) | (x > 255)).any():
            raise BadObservation(f"the image{_named(leaf.path)} has values outside 0..255")
        if leaf.axes != tuple(range(len(leaf.shape))):
            x = x.transpose(*range(len(lead)), *(len(lead) + i for i in leaf.axes))
        out[...] = x.reshape(out.shape)
    elif leaf.kind == "choice":
        assert leaf.start is not None and leaf.count is not None
        x = x.reshape(*lead, -1).astype(np.int64) - leaf.start
        if ((x < 0) | (x >= leaf.count)).any():
            raise BadObservation(f"the observation{_named(leaf.path)} is outside its space: {np.asarray(raw).tolist()}")
        out[...] = x
    else:
        out[...] = x.reshape(*lead, -1) != 0


def _pick(obs: Any, path: tuple[Any, ...]) -> Any:
    try:
        for key in path:
            obs = obs[key]
    except (KeyError, IndexError, TypeError):
        raise BadObservation(f"the observation has no entry{_named(path)}") from None
    return obs


def _named(path: tuple[Any, ...]) -> str:
    return f" '{'.'.join(map(str, path))}'" if path else ""


def all_finite(x: Array) -> bool:
    """Whether all are numbers. The square norm answers in half a microsecond, unless it overflows or is large work."""
    return (x.size < 4096 and math.isfinite(np.vdot(x, x))) or bool(np.isfinite(x).all())


def _row(space: Space, batch: Any, i: int) -> Any:
    if isinstance(space, spaces.Dict):
        return {k: _row(sub, batch[k], i) for k, sub in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_row(sub, part, i) for sub, part in zip(space.spaces, batch))
    return batch[i] if isinstance(space, spaces.Discrete) else batch[i, ...]  # an array even where it has no axes


def _bounds(space: spaces.Box, where: str) -> tuple[Array, Array]:
    """Flat float64 bounds, with every way of writing "none" made an infinity."""
    low, high = space.low.astype(np.float64).ravel(), space.high.astype(np.float64).ravel()
    if np.isnan(low).any() or np.isnan(high).any():
        raise UserError(f"{where} has a NaN bound; give the Box finite or infinite limits")
    if (low > high).any():
        raise UserError(f"{where} has a lower bound above its upper bound")
    # Some simulators write the smallest positive double where they mean the lowest.
    tiny = (low > 0) & (low < 1e-300)
    return np.where((low < -HUGE) | tiny, -np.inf, low), np.where(high > HUGE, np.inf, high)


# Spaces as JSON. Strict JSON has no infinities, so they are written as words.


def space_to_json(space: Space) -> dict[str, Any]:
    if isinstance(space, spaces.Box):
        return {
            "type": "Box",
            "low": _numbers(space.low),
            "high": _numbers(space.high),
            "shape": list(space.shape),
            "dtype": str(space.dtype),
        }
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return {
            "type": "MultiDiscrete",
            "nvec": space.nvec.tolist(),
            "start": space.start.tolist(),
            "dtype": str(space.dtype),
        }
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "n": space.n if isinstance(space.n, int) else list(space.shape)}
    if isinstance(space, spaces.Dict):
        return {"type": "Dict", "spaces": [[k, space_to_json(s)] for k, s in space.spaces.items()]}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "spaces": [space_to_json(s) for s in space.spaces]}
    raise UserError(f"the space {space} is not supported; supported are {SUPPORTED}")


def space_from_json(data: dict[str, Any]) -> Space:
    kind = data.get("type")
    if kind == "Box":
        shape, dtype = tuple(data["shape"]), np.dtype(data["dtype"])
        low, high = (_unnumbers(data[k], dtype) for k in ("low", "high"))
        low, high = (x.reshape(shape) if x.ndim else np.full(shape, x) for x in (low, high))
        return spaces.Box(low, high, shape, dtype.type)
    if kind == "Discrete":
        return spaces.Discrete(data["n"], start=data["start"])
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(np.array(data["nvec"]), dtype=data["dtype"], start=np.array(data["start"]))
    if kind == "MultiBinary":
        return spaces.MultiBinary(data["n"])
    if kind == "Dict":
        return _ordered({k: space_from_json(s) for k, s in data["spaces"]})
    if kind == "Tuple":
        return spaces.Tuple([space_from_json(s) for s in data["spaces"]])
    raise UserError(f"the saved space has the unknown type {kind!r}")


def _ordered(parts: dict[str, Space]) -> spaces.Dict:
    """A Dict space with its keys in this very order: gymnasium sorts those of a plain dict."""
    from collections import OrderedDict

    return spaces.Dict(OrderedDict(parts))


def _numbers(x: Array) -> Any:
    """A scalar where all entries agree (an image would fill a page), else nested lists."""
    if x.size and (x == x.flat[0]).all():
        return _number(x.flat[0])
    return [_number(v) for v in x.ravel()]


def _number(v: Any) -> float | int | str:
    v = v.item()
    if isinstance(v, float) and not math.isfinite(v):
        return "nan" if math.isnan(v) else ("inf" if v > 0 else "-inf")
    return v


def _unnumbers(data: Any, dtype: np.dtype[Any]) -> Array:
    values = [float(v) if isinstance(v, str) else v for v in (data if isinstance(data, list) else [data])]
    return np.array(values if isinstance(data, list) else values[0], dtype=dtype)
