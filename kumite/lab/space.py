"""What a search chooses from: a range or a list of choices for each of some parameters of one algorithm."""

from __future__ import annotations

import importlib.resources
import math
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kumite import config as c
from kumite.errors import UserError

WIDE = 50  # a range whose ends are this many times apart is searched in the logarithm
OWN = ("steps", "seed", "name", "dir", "track", "quiet", "profile", "stop_at", "eval", "log", "save")
"""Settings and groups that the search itself decides, or that change nothing about what is learned."""


class Range(NamedTuple):
    """Every number between two."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g} {'log' if self.log else 'linear'}"


class Choices(NamedTuple):
    values: tuple[Any, ...]

    def __str__(self) -> str:
        return ", ".join(
            "none" if v is None else str(v).lower() if isinstance(v, bool) else str(v) for v in self.values
        )


Space = Mapping[str, Range | Choices]


def default(algo: str, base: Any, without: Iterable[str] = ()) -> Space:
    """What spaces.yaml has for this algorithm, apart from parameters that are given.

    Rollouts that leave fewer than ten of them in a run teach nothing and are left out.
    """
    text = (importlib.resources.files("kumite.lab") / "spaces.yaml").read_text(encoding="utf-8")
    blocks = c.parse_yaml(text, "spaces.yaml")
    known, own = c.keys(c.run_type(algo)), c.config_class(algo)
    alike = (block for name, block in blocks.items() if name != "*" and _has_all_of(own, name))
    block = blocks.get(algo.lower()) or next(alike, blocks["*"])
    block = {key: said for key, said in block.items() if key in known}
    if "horizon" in block:
        most = max(base.steps // base.num_envs // 10, 2 * min(block["horizon"]))
        block["horizon"] = [x for x in block["horizon"] if x <= most]
    return read(algo, {key: said for key, said in block.items() if key not in set(without)})


def _has_all_of(own: type, name: str) -> bool:
    """Are these settings those of the algorithm of that name, and perhaps more?"""
    try:
        return issubclass(own, c.config_class(name))
    except (UserError, ImportError):  # it is not there
        return False


def load(path: str | Path) -> dict[str, Any]:
    """A file with a line per parameter, as in spaces.yaml."""
    said = c.load_yaml(path)
    if not said:
        raise UserError(f"'{path}' holds no parameter to search")
    return said


def read(algo: str, said: Mapping[str, Any]) -> Space:
    """Parameters of this algorithm with what may be chosen; a name it does not have is refused with the nearest."""
    table = c.keys(c.run_type(algo))
    space: dict[str, Range | Choices] = {}
    for key, text in _flat(said, table).items():
        if key.partition(".")[0] in OWN:
            raise UserError(f"tune.{key}: the search decides '{key}' itself")
        space[key] = _dimension(key, text, table[key])
    if not space:
        raise UserError(f"there is nothing to search for {algo}: every parameter is given")
    return space


RANGE_KEYS = {"low", "high", "log"}


def _flat(said: Mapping[str, Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """Nested groups become dotted names; a range may be written as a mapping too."""
    flat: dict[str, Any] = {}
    for key, value in said.items():
        if isinstance(value, Mapping) and not value.keys() <= RANGE_KEYS:
            flat |= {f"{key}.{inner}": x for inner, x in value.items()}
        else:
            flat[str(key)] = value
    return {name: value for key, value in flat.items() for name in c.flatten({key: None}, table)}


def _dimension(key: str, said: Any, kind: Any) -> Range | Choices:
    numbers = [k for k in (int, float) if k in (kind, *typing.get_args(kind))]
    if isinstance(said, Mapping):
        how = {None: "", True: " log", False: " linear"}[said.get("log")]
        said = f"{said.get('low')}..{said.get('high')}{how}"
    if isinstance(said, str) and ".." in said:
        if not numbers:
            raise UserError(f"tune.{key}: '{said}' is a range, and {key} is {c.describe(kind)}; list the choices")
        return _range(key, said, whole=float not in numbers)
    values = said if isinstance(said, (list, tuple)) else str(said).replace("|", " ").replace(",", " ").split()
    read = tuple(c.coerce(value, kind, f"tune.{key}") for value in values)
    if not all(v is None or isinstance(v, (bool, int, float, str)) for v in read):
        raise UserError(f"tune.{key}: {key} is {c.describe(kind)}, which cannot be searched; give it as --{key}")
    if len(set(read)) < 2:
        one = f"'{read[0]}' is" if read else "nothing is"
        raise UserError(f"tune.{key}: {one} no choice; write LOW..HIGH, or two values and more")
    return Choices(tuple(dict.fromkeys(read)))


def _range(key: str, said: str, whole: bool) -> Range:
    ends, _, how = said.strip().partition(" ")
    try:
        low, high = (c.read_number(x) for x in ends.split("..", 1))
    except ValueError:
        raise UserError(f"tune.{key}: expected LOW..HIGH, got '{said}'") from None
    if how not in ("", "log", "linear"):
        raise UserError(f"tune.{key}: after the range expected log or linear, got '{how}'")
    if not (math.isfinite(low) and math.isfinite(high)):
        raise UserError(f"tune.{key}: a range needs two finite ends, got '{said}'")
    if low > high:
        raise UserError(f"tune.{key}: the range '{ends}' runs backwards; write {high:g}..{low:g}")
    if low == high:
        raise UserError(f"tune.{key}: the range '{ends}' holds one value; give it as --{key.replace('_', '-')} {low:g}")
    if whole and (low != round(low) or high != round(high)):
        raise UserError(f"tune.{key}: {key} is a whole number, and so are the ends of its range; got '{ends}'")
    if how == "log" and low <= 0:
        raise UserError(f"tune.{key}: a logarithm needs a range above 0, got '{ends}'")
    return Range(low, high, how == "log" or (how == "" and low > 0 and high / low >= WIDE), whole)


def corners(space: Space) -> Iterable[tuple[str, Any]]:
    """Values that must be allowed if all are: the ends of ranges, and every choice."""
    for key, dimension in space.items():
        found = (dimension.low, dimension.high) if isinstance(dimension, Range) else dimension.values
        yield from ((key, value) for value in found)


def tidy(value: Any, dimension: Range | Choices) -> Any:
    """A number as one would write it: four digits are enough."""
    if not isinstance(dimension, Range) or not isinstance(value, float):
        return value
    return min(max(float(f"{value:.4g}"), dimension.low), dimension.high)


def nearest(value: Any, dimension: Range | Choices) -> Any:
    """What can be chosen and comes next to this value."""
    if isinstance(dimension, Range):
        near = min(max(value or 0.0, dimension.low), dimension.high)
        return round(near) if dimension.whole else near
    if value in dimension.values:
        return value
    numbers = [x for x in dimension.values if isinstance(x, (int, float))]
    is_number = isinstance(value, (int, float)) and numbers
    return min(numbers, key=lambda x: abs(x - value)) if is_number else dimension.values[0]
