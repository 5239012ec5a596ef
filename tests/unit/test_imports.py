"""The shape of the house: which part may import which, what `import kumite` costs, and what may not appear anywhere."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "kumite"
FILES = sorted(PACKAGE.rglob("*.py"))

# From the ground up: a part imports from its own floor and from those below it.
FLOORS = [
    {"types", "tree", "errors", "version", "openmp"},
    {"returns", "stream", "samplers", "native", "batch", "schedules"},
    {"nn"},
    {"algos"},
    {
        "config",
        "flags",
        "train",
        "evaluate",
        "checkpoint",
        "log",
        "sinks",
        "machine",
        "profile",
        "rng",
        "runs",
        "video",
    },
    {"agent"},
    {"cli", "__init__", "__main__"},
]
# Wings beside the staircase: (what a wing may import of kumite, the lowest floor that may import the wing).
GROUND = FLOORS[0]
WINGS = {
    "envs": (GROUND, 4),
    "data": (GROUND, 4),
    "lab": ({"errors", "config", "flags", "runs"}, 6),
}
FLOOR = {part: height for height, parts in enumerate(FLOORS) for part in parts}

# numpy and gymnasium end in the adapters. Elsewhere they need a reason that fits in one line.
ARRAYS = {"numpy", "gymnasium"}
ARRAYS_ALLOWED: dict[str, str] = {"lab": "statistics of many runs are arithmetic on arrays, far from any training"}
ARRAY_WINGS = {"envs"}

IMPORT_BUDGET = 0.2  # seconds beyond torch's own import

# What only an extra brings, and what only a command needs: none of it comes with `import kumite`.
LATE = {
    *("gymnasium", "tensorboard", "tyro"),
    *("ale_py", "Box2D", "brax", "cv2", "dm_control", "dm_env", "envpool", "gymnasium_robotics", "jax", "jaxlib"),
    *("minigrid", "mlagents_envs", "mpe2", "mujoco", "mujoco_playground", "pettingzoo", "popgym", "pybullet", "pygame"),
    *("pyspiel", "shimmy", "supersuit", "grpc", "h5py", "minari", "matplotlib", "plotly", "imageio", "imageio_ffmpeg"),
    *("wandb", "swanlab", "onnx", "onnxruntime", "onnxscript", "optuna", "huggingface_hub", "ray", "pandas", "scipy"),
}

UNSAFE_MODULES = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
UNSAFE_NAMES = {
    *("torch.load", "torch.save", "torch.jit.load", "torch.export.load"),
    *("yaml.full_load", "yaml.full_load_all", "yaml.unsafe_load", "yaml.unsafe_load_all", "yaml.load_all"),
    "os.system",
}
# Not out of a file: (file, module) and the reason.
UNSAFE_ALLOWED = {
    ("kumite/envs/worker.py", "cloudpickle"): "the user's own maker, from this process to its own worker, in memory",
}


def name_of(path: Path) -> str:
    """kumite/nn/torso.py -> kumite.nn.torso"""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(module: str) -> str:
    """kumite.nn.torso -> nn; kumite -> __init__"""
    return module.split(".")[1] if "." in module else "__init__"


MODULES = {name_of(path): path for path in FILES}


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every module that the file names in an import, at any depth: (dotted name, line)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in line {node.lineno}"
            for alias in node.names:
                # `from kumite.nn import torso` names the module kumite.nn.torso, `from kumite import tree` kumite.tree
                inner = f"{node.module}.{alias.name}"
                yield (inner if inner in MODULES else str(node.module)), node.lineno


def where(path: Path, line: int) -> str:
    return f"{path.relative_to(PACKAGE.parent)}:{line}"


def test_every_part_has_a_floor() -> None:
    parts = {part_of(module) for module in MODULES}
    assert not parts - set(FLOOR) - set(WINGS), "give the new part a floor in FLOORS, or make it a wing"


def may_import(part: str, other: str) -> bool:
    if part == other:
        return True
    if part in WINGS:
        return other in WINGS[part][0]
    if other in WINGS:
        return FLOOR[part] >= WINGS[other][1]
    return FLOOR[other] <= FLOOR[part]


def test_import_arrows_point_one_way() -> None:
    wrong = [
        f"{where(path, line)} imports {target}"
        for module, path in MODULES.items()
        for target, line in imports(parse(path))
        if target.split(".")[0] == "kumite" and not may_import(part_of(module), part_of(target))
    ]
    assert not wrong, "\n".join(wrong)


def test_adapters_are_found_by_name_only() -> None:
    """Outside kumite/envs nobody imports one simulator's adapter."""
    public = {"kumite.envs", "kumite.envs.base", "kumite.envs.spaces"}
    wrong = [
        f"{where(path, line)} imports {target}"
        for module, path in MODULES.items()
        if part_of(module) != "envs"
        for target, line in imports(parse(path))
        if target.startswith("kumite.envs") and target not in public
    ]
    assert not wrong, "\n".join(wrong)


def test_arrays_end_in_the_adapters() -> None:
    found = {
        (part_of(module), where(path, line))
        for module, path in MODULES.items()
        for target, line in imports(parse(path))
        if target.split(".")[0] in ARRAYS
    }
    wrong = sorted(place for part, place in found if part not in ARRAY_WINGS and part not in ARRAYS_ALLOWED)
    assert not wrong, "\n".join(wrong)
    assert set(ARRAYS_ALLOWED) <= {part for part, _ in found}, "an exception that nobody needs any more"


def safe_loaders(tree: ast.AST) -> set[str]:
    """Names of the classes in this file that derive from YAML's safe loader."""
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and any(ast.unparse(b).endswith("SafeLoader") for b in node.bases)
    }


def unsafe(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """What could run code out of a file: (what, line)."""
    for target, line in imports(tree):
        if target.split(".")[0] in UNSAFE_MODULES:
            yield target, line
    loaders = safe_loaders(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node) in UNSAFE_NAMES:
            yield ast.unparse(node), node.lineno
        if isinstance(node, ast.ImportFrom):
            named = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from ((name, node.lineno) for name in sorted(named & UNSAFE_NAMES))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"eval", "exec"}:
            yield ast.unparse(node.func), node.lineno
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "yaml.load":
            given = [k.value for k in node.keywords if k.arg == "Loader"] or node.args[1:2]
            if not given or not (ast.unparse(given[0]) in loaders or ast.unparse(given[0]).endswith("SafeLoader")):
                yield "yaml.load", node.lineno
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            yield "allow_pickle", node.value.lineno
        if isinstance(node, ast.keyword) and node.arg == "shell" and ast.unparse(node.value) != "False":
            yield "a shell", node.value.lineno


def test_nothing_read_from_a_file_can_run() -> None:
    found = [(str(p.relative_to(PACKAGE.parent)), what, line) for p in FILES for what, line in unsafe(parse(p))]
    wrong = [f"{file}:{line}: {what}" for file, what, line in found if (file, what) not in UNSAFE_ALLOWED]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("import pickle", "pickle"),
        ("def f():\n    from cloudpickle import dumps", "cloudpickle"),
        ("import torch\nx = torch.load('a')", "torch.load"),
        ("from torch import load", "torch.load"),
        ("import yaml\nyaml.load(text)", "yaml.load"),
        ("import yaml\nyaml.load(text, Loader=yaml.FullLoader)", "yaml.load"),
        ("import yaml\nyaml.unsafe_load(text)", "yaml.unsafe_load"),
        ("np.load(f, allow_pickle=True)", "allow_pickle"),
        ("f(eval('1'))", "eval"),
    ],
)
def test_the_search_finds(text: str, what: str) -> None:
    assert what in {found for found, _ in unsafe(ast.parse(text))}


@pytest.mark.parametrize(
    "text",
    [
        "import yaml\nyaml.safe_load(text)",
        "import yaml\nclass Numbers(yaml.SafeLoader): ...\nyaml.load(text, Loader=Numbers)",
        "net.eval()",
        "class Config:\n    eval: Eval = Eval()",
        "safetensors.torch.load(data)",
    ],
)
def test_the_search_lets_pass(text: str) -> None:
    assert not list(unsafe(ast.parse(text)))


PROBE = """
import json, sys, time
import torch
before, start = set(sys.modules), time.perf_counter()
import kumite
cost = time.perf_counter() - start
print(json.dumps({"cost": cost, "new": sorted({m.split(".")[0] for m in set(sys.modules) - before})}))
"""


def test_import_is_cheap() -> None:
    """The least of a few tries, for the machine does other things too."""
    costs = []
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
        report = json.loads(done.stdout)
        assert not LATE & set(report["new"]), f"import kumite brings {sorted(LATE & set(report['new']))}"
        costs.append(report["cost"])
        if costs[-1] <= IMPORT_BUDGET:
            return
    pytest.fail(f"import kumite costs {min(costs):.2f} s beyond torch (budget {IMPORT_BUDGET} s)")
