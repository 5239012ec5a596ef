"""kumite: deep reinforcement learning in files you can read.

    agent = kumite.SAC("Pendulum-v1", seed=0)
    agent.learn(10_000)
    agent.evaluate()

One class per algorithm name (`kumite.algorithms()` lists them); `load` and `make_env` beside them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kumite.openmp import BOUNDED as _BOUNDED  # noqa: F401  comes before torch
from kumite.version import __version__

if TYPE_CHECKING:
    from kumite.agent import Agent, algorithms, load, resume
    from kumite.algos import register
    from kumite.envs import EnvConfig, make_env
    from kumite.envs import register as register_env

_HOMES = {
    "Agent": "kumite.agent",
    "algorithms": "kumite.agent",
    "load": "kumite.agent",
    "resume": "kumite.agent",
    "register": "kumite.algos",
    "make_env": "kumite.envs",
    "EnvConfig": "kumite.envs",
}


def __getattr__(name: str) -> Any:
    """Names are loaded when they are first used, so that importing kumite costs next to nothing."""
    import importlib

    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name == "register_env":
        return importlib.import_module("kumite.envs").register
    from kumite.algos import ROWS

    for key, row in ROWS.items():
        if row.title == name:
            return importlib.import_module("kumite.agent").agent_class(key)
    raise AttributeError(f"kumite has no '{name}' (algorithms: {', '.join(r.title for r in ROWS.values())})")


def __dir__() -> list[str]:
    from kumite.algos import ROWS

    return sorted([*_HOMES, "register_env", "__version__", *(r.title for r in ROWS.values())])


__all__ = ["Agent", "EnvConfig", "__version__", "algorithms", "load", "make_env", "register", "register_env", "resume"]
