"""Checkpoints: safetensors and JSON, found by walking, written so that a kill at any moment leaves a good one.

A checkpoint is a folder:

    state.json              counters, generators, schedules; where a tensor stands, its name in the files below
    state.safetensors       nets, targets, optimisers, normalisers, recurrent state, ...
    replay.safetensors      the Stream's rows (absent where it was not asked for)
    manifest.json           sizes and hashes of the files above, written last
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kumite.errors import RunError, UserError

FILES = ("state.json", "state.safetensors", "replay.safetensors", "config.yaml", "spaces.json")
LARGEST_JSON = 64 * 2**20
OLD = ".old.tmp"  # the ending of a checkpoint that is being replaced


class CheckpointWarning(RuntimeWarning):
    """A checkpoint could not be written or read; another one is used."""


# --- walking -------------------------------------------------------------------------------------------------------


def pack(value: Any, tensors: dict[str, Tensor], path: str = "") -> Any:
    """JSON for everything that is not a tensor; tensors by name."""
    if isinstance(value, Tensor):
        tensors[path] = value.detach().to("cpu").contiguous()
        return {"$tensor": path}
    if isinstance(value, nn.Module):
        return pack(value.state_dict(), tensors, path)
    if hasattr(value, "state") and callable(value.state):
        return pack(value.state(), tensors, path)
    if isinstance(value, dict):
        return {str(k): pack(v, tensors, f"{path}.{k}" if path else str(k)) for k, v in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return pack(value._asdict(), tensors, path)
    if isinstance(value, (list, tuple)):
        return [pack(v, tensors, f"{path}.{i}") for i, v in enumerate(value)]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"a checkpoint cannot hold '{path}' of type {type(value).__name__}; give it state() and restore()")


def unpack(node: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(node, dict):
        if "$tensor" in node:
            return tensors[node["$tensor"]]
        return {k: unpack(v, tensors) for k, v in node.items()}
    if isinstance(node, list):
        return [unpack(v, tensors) for v in node]
    return node


def broken(modules: nn.Module) -> str | None:
    """The name of the first tensor that holds something else than finite numbers."""
    for name, value in modules.state_dict().items():
        if isinstance(value, Tensor) and value.is_floating_point() and not bool(torch.isfinite(value).all()):
            return name
    return None


def check_finite(modules: nn.Module) -> None:
    """Nothing that is not a number is ever saved."""
    if name := broken(modules):
        raise RunError(f"'{name}' holds values that are not finite numbers; nothing of it was saved")


# --- writing -------------------------------------------------------------------------------------------------------


def write(folder: Path, state: dict[str, Any], texts: dict[str, str], replay: bool = True) -> None:
    """Write a checkpoint to `folder`, all of it or nothing: temporary folder, flush, rename, flush the parent.

    The part named "stream" goes into its own file, or is left out.
    """
    parent = folder.parent
    parent.mkdir(parents=True, exist_ok=True)
    rescue(folder)
    for stale in _unfinished(folder):
        shutil.rmtree(stale, ignore_errors=True)
    temporary = parent / f".{folder.name}.{os.getpid()}.tmp"
    temporary.mkdir()
    try:
        tensors: dict[str, Tensor] = {}
        tree = pack({k: v for k, v in state.items() if k != "stream"}, tensors)
        if "stream" in state:
            rows: dict[str, Tensor] = {}
            tree["stream"] = pack(state["stream"].state(full=replay), rows, "stream")
            _save(rows, temporary / "replay.safetensors")
        _save(tensors, temporary / "state.safetensors")
        for name, text in ({"state.json": json.dumps(tree)} | texts).items():
            (temporary / name).write_text(text, encoding="utf-8")
        manifest = {p.name: {"bytes": p.stat().st_size, "sha256": _hash(p)} for p in sorted(temporary.iterdir())}
        (temporary / "manifest.json").write_text(json.dumps({"format": 1, "files": manifest}, indent=1))
        for p in temporary.iterdir():
            _sync(p)
        _sync(temporary)
        old = None
        if folder.exists():
            old = parent / f".{folder.name}.{os.getpid()}{OLD}"
            os.rename(folder, old)
        os.rename(temporary, folder)
        _sync(parent)
        if old:
            shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    """safetensors refuses tensors that share memory (nets with common layers, views): each gets its own."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    seen: set[int] = set()
    for name, value in tensors.items():
        memory = value.untyped_storage().data_ptr()
        if memory in seen:
            tensors[name] = value.clone()
        seen.add(memory)
    try:
        save_file(tensors, path)
    except SafetensorError as error:  # what it calls a full disk
        raise OSError(str(error).rpartition("error: ")[2].partition(" (os error")[0] or str(error)) from error


def _hash(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unfinished(folder: Path) -> list[Path]:
    """What earlier writers of this checkpoint left behind."""
    if not folder.parent.is_dir():
        return []
    return [p for p in folder.parent.iterdir() if p.name.startswith(f".{folder.name}.") and p.suffix == ".tmp"]


def rescue(folder: Path) -> None:
    """A kill between the two renames of an overwrite: the newer whole copy takes its place.

    Without an older copy there was no overwrite: what lies there belongs to a life that is over, and the run that was
    resumed from before it has files that know nothing of it.
    """
    left = _unfinished(folder)
    if folder.exists() or folder.is_symlink() or not any(p.name.endswith(OLD) for p in left):
        return
    whole = [p for p in left if problem(p) is None]
    for copy in sorted(whole, key=lambda p: p.name.endswith(OLD))[:1]:
        with suppress(OSError):
            os.rename(copy, folder)


def rescue_all(checkpoints: Path) -> None:
    """Every overwrite in this folder that was broken off; to be called before the newest checkpoint is looked for."""
    for left in sorted(checkpoints.glob(f".*{OLD}")):
        rescue(checkpoints / left.name[1:].split(".")[0])


def replaceable(folder: Path) -> Path:
    """The folder, made absolute, if a checkpoint may be written there: nothing but an older one is ever replaced."""
    folder = Path(os.path.realpath(folder))
    if folder.exists():
        names = {p.name for p in folder.iterdir()} if folder.is_dir() else {folder.name}
        if not names <= {*FILES, "manifest.json"}:
            raise UserError(f"'{folder}' exists and is no checkpoint; save to another path")
    return folder


def prune(checkpoints: Path, keep: int) -> None:
    """The newest `keep` numbered checkpoints stay (and the best, and whatever is damaged)."""
    rescue_all(checkpoints)
    for stale in checkpoints.glob(".*.tmp"):
        shutil.rmtree(stale, ignore_errors=True)
    good = [p for p in numbered(checkpoints) if (p / "manifest.json").is_file()]
    for old in good[keep:] if keep > 0 else []:
        shutil.rmtree(old, ignore_errors=True)


# --- reading -------------------------------------------------------------------------------------------------------


def numbered(checkpoints: Path) -> list[Path]:
    """Checkpoint folders by step, newest first."""
    found = [p for p in checkpoints.iterdir() if p.name.isdecimal()] if checkpoints.is_dir() else []
    return sorted(found, key=lambda p: int(p.name), reverse=True)


def problem(folder: Path) -> str | None:
    """What is wrong with a checkpoint, or None. Hashes are compared before anything is parsed."""
    try:
        manifest = _json(folder / "manifest.json")
        files = manifest["files"]
        if not isinstance(files, dict) or not {"state.json", "state.safetensors"} <= set(files):
            return "its manifest is incomplete"
        if manifest.get("format") != 1:
            return f"its format {manifest.get('format')!r} is not known to this version of kumite"
        for name, fact in files.items():
            path = folder / name
            if name not in FILES or path.is_symlink() or not path.is_file():
                return f"'{name}' is missing or not a plain file of a checkpoint"
            if path.stat().st_size != fact["bytes"] or _hash(path) != fact["sha256"]:
                return f"'{name}' is damaged"
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        return f"its manifest cannot be read ({type(error).__name__})"
    return None


def skipped(folder: Path, trouble: str) -> None:
    warnings.warn(f"checkpoint {folder} is skipped: {trouble}", CheckpointWarning, stacklevel=3)


def newest(checkpoints: Path) -> Iterator[Path]:
    """Good checkpoints, newest first; a warning names those that are not."""
    for folder in numbered(checkpoints):
        trouble = problem(folder)
        if trouble is None:
            yield folder
        else:
            skipped(folder, trouble)


def read(folder: Path, replay: bool = True) -> dict[str, Any]:
    """The state tree of a checkpoint; UserError where it is not a good one."""
    from safetensors.torch import load_file

    trouble = problem(folder)
    if trouble:
        raise UserError(f"'{folder}' is not a checkpoint that can be used: {trouble}")
    try:
        tensors = load_file(folder / "state.safetensors")
        rows = folder / "replay.safetensors"
        if replay and rows.is_file():
            tensors |= load_file(rows)
        tree = _json(folder / "state.json")
        if not replay or not rows.is_file():
            tree.pop("stream", None)
        return unpack(tree, tensors)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"'{folder}' is not a checkpoint that can be used: {error}") from error


def text(folder: Path, name: str) -> str:
    path = folder / name
    if path.is_symlink() or not path.is_file() or path.stat().st_size > LARGEST_JSON:
        raise UserError(f"'{folder}' is not a checkpoint: it has no usable '{name}'")
    return path.read_text(encoding="utf-8")


def _json(path: Path) -> Any:
    if path.is_symlink() or not path.is_file() or path.stat().st_size > LARGEST_JSON:
        raise ValueError(f"{path.name} is not a plain file of reasonable size")
    return json.loads(path.read_text(encoding="utf-8"))
