"""Words into values: a frozen dataclass filled from a command line by tyro, with one line per mistake; tables as text.

Numbers, lists and optional values are read as everywhere else in kumite: 1e6, 100_000, 100k, 512,256.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tyro

from kumite.errors import UserError

HELP_FLAGS = ("--help", "-h")
TRUTH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def parse(
    kind: Any, words: list[str], prog: str, default: Any = None, description: str | None = None
) -> tuple[Any, list[str]]:
    """An instance of the dataclass, and the dotted names of the fields that were given."""
    flags = flags_of(kind)
    words, given = normal(words, flags)
    said = io.StringIO()
    more = {} if default is None else {"default": default}
    try:
        with contextlib.redirect_stderr(said):
            made = tyro.cli(kind, args=words, prog=prog, description=description, registry=registry(), **more)
    except SystemExit as e:
        if not e.code:
            raise
        raise UserError(condense(said.getvalue())) from None
    return made, given


def flags_of(kind: Any, prefix: str = "") -> dict[str, tuple[str, bool]]:
    """--flag -> (dotted name of the field, the value that a bare flag means)."""
    hints = typing.get_type_hints(kind, include_extras=True)
    found: dict[str, tuple[str, bool]] = {}
    for f in dataclasses.fields(kind):
        name, dashed = prefix + f.name, f"{prefix}{f.name}".replace("_", "-")
        if dataclasses.is_dataclass(hints[f.name]):
            found |= flags_of(hints[f.name], f"{name}.")
        elif not hasattr(hints[f.name], "__metadata__"):  # positional words are annotated, flags are not
            found[f"--{dashed}"] = (name, True)
            if hints[f.name] is bool:
                group, _, last = dashed.rpartition(".")
                found[f"--{group + '.' if group else ''}no-{last}"] = (name, False)
    return found


def normal(words: list[str], flags: Mapping[str, tuple[str, bool]]) -> tuple[list[str], list[str]]:
    """Known flags only, spelt with dashes; `--quiet true` becomes `--quiet`. And which fields are given."""
    from kumite.config import ALIASES, SWITCHES

    out: list[str] = []
    given: dict[str, None] = {}
    rest = list(words)
    while rest:
        text = rest.pop(0)
        if not text.startswith("--") or text in HELP_FLAGS:
            out.append(text)
            continue
        flag, equals, value = text.partition("=")
        flag = "--" + flag[2:].replace("_", "-")
        flag = f"--{ALIASES.get(flag[2:], flag[2:])}" if f"--{ALIASES.get(flag[2:], '')}" in flags else flag
        if flag not in flags:
            raise UserError(f"unknown flag '{flag}'{closest_flag(flag, flags)}")
        name, bare = flags[flag]
        given[name] = None
        if name in SWITCHES:  # a number that may be left out, or said as true or false
            if not equals:
                value = rest.pop(0) if rest and not rest[0].startswith("--") else "true"
            if value.lower() in TRUTH and not value.isdecimal():
                value = str(SWITCHES[name] * TRUTH[value.lower()])
            out.append(f"{flag}={value}")
            continue
        if not _is_switch(name, flags):
            out.append(flag + equals + value)
            continue
        if not equals and rest and rest[0].lower() in TRUTH:
            equals, value = "=", rest.pop(0)
        if equals and value.lower() not in TRUTH:
            raise UserError(f"{flag}: expected true or false, got '{value}'")
        wanted = bare if not equals else bare == TRUTH[value.lower()]
        out.append(next(f for f, meaning in flags.items() if meaning == (name, wanted)))
    return out, list(given)


def _is_switch(name: str, flags: Mapping[str, tuple[str, bool]]) -> bool:
    return (name, False) in flags.values()


def closest_flag(flag: str, flags: Mapping[str, tuple[str, bool]]) -> str:
    from kumite.config import closest, owners

    name = flag[2:].replace("-", "_")
    if "--num-envs" in flags and (others := owners(name)):
        return f": it is a setting of {', '.join(others)}"
    near = closest(name, [f[2:].replace("-", "_") for f in flags])
    return f"; did you mean '--{near.replace('_', '-')}'?" if near else ""


METAVARS: dict[Any, str] = {int: "INT", float: "FLOAT", str: "STR"}


def registry() -> Any:
    """Numbers, lists and optional values are read as everywhere else in kumite: 1e6, 100_000, 100k, 512,256."""
    rules = tyro.constructors.ConstructorRegistry()

    @rules.primitive_rule
    def rule(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec[Any] | None:
        kind: Any = info.type
        origin = typing.get_origin(kind)
        many = origin is tuple
        if kind not in (int, float) and origin not in (tuple, typing.Union, types.UnionType, typing.Literal):
            return None

        def read(words: list[str]) -> Any:
            from kumite.config import read

            return read(list(words) if many and len(words) != 1 else words[0], kind)

        return tyro.constructors.PrimitiveConstructorSpec(
            nargs="*" if many else 1,
            metavar=metavar(kind),
            instance_from_str=read,
            is_instance=lambda value: True,
            str_from_instance=lambda value: [say(v) for v in value] if many else [say(value)],
        )

    return rules


def metavar(kind: Any) -> str:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        return f"[{METAVARS.get(args[0], 'X') if args else 'X'} ...]"
    names = [METAVARS.get(a, "none" if a is type(None) else str(a)) for a in args]  # a union, or choices
    return METAVARS.get(kind) or "|".join(names)


def say(value: Any) -> str:
    """A value as one would type it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return " ".join(map(say, value)) or "-"
    return str(value) if value != "" else "''"


def condense(box: str) -> str:
    """tyro's framed message in one line: what is wrong, without the title, the frame and the advice below."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", box)
    lines = [line.strip("│ ") for line in plain.splitlines() if line[:1] not in "╭╰"]
    sections = "\n".join(lines).replace("─", "-").split("---")
    body = next((x for x in sections[0 if "╭" in plain else 1 :] if x.strip("-\n ")), plain)
    said = " ".join(body.strip("-\n").split()).removeprefix("Error parsing ")
    for pattern, ours in PHRASES:
        said = re.sub(pattern, ours, said)
    return said or "this command line cannot be read"


PHRASES = (
    (r"^Unrecognized options: (.*)$", r"what is '\1' meant to be?"),
    (r"^Missing value for argument '(.*)'\..*$", r"\1: expected a value"),
    (r"^Missing from (kumite \w+): (\w+) .*$", r"which \2? see \1 --help"),
)


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Columns as wide as they need; the last one runs on."""
    lines = [tuple(head), *(tuple(row) for row in rows)]
    wide = [max(len(line[i]) for line in lines) for i in range(len(head))]
    for line in lines:
        print("  ".join(cell.ljust(w) for cell, w in zip(line, wide, strict=True)).rstrip())
