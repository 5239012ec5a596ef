"""Environments: `make_env` turns an id, an object or a callable into a VecEnv.

Importing this package imports no simulator and no gymnasium.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kumite.envs.base import EnvConfig, Maker, VecEnv, derive
from kumite.envs.copies import source
from kumite.errors import UserError, nearest

__all__ = ["EnvConfig", "VecEnv", "derive", "listing", "make_env", "name_of", "register", "source"]

BACKENDS: dict[str, str | Maker] = {
    "gym": "kumite.envs.gymnasium:make",
    "atari": "kumite.envs.atari:make",
    "dmc": "kumite.envs.dmc:make",
    "envpool": "kumite.envs.envpool:make",
}
MODES = ("sync", "workers", "native")


def register(prefix: str, maker: Maker) -> None:
    """Teach `prefix:name` ids: maker(name, num_envs, seed, config, render) gives a VecEnv."""
    if not prefix.isidentifier():
        raise UserError(f"a backend's prefix is one word, not '{prefix}'")
    BACKENDS[prefix] = maker


def make_env(
    env: Any, num_envs: int = 1, seed: int = 0, config: EnvConfig | None = None, render: bool = False
) -> VecEnv:
    """The vector environment behind an id string, a gymnasium Env or VectorEnv, or a callable that makes one."""
    config = config or EnvConfig()
    if config.mode not in MODES:
        raise UserError(f"--env.mode is one of {', '.join(MODES)}{nearest(config.mode, list(MODES))}")
    if num_envs < 1:
        raise UserError("--num-envs must be at least 1")
    if isinstance(env, VecEnv):
        return env
    from kumite.envs.wrappers import wrap

    return wrap(_make(env, num_envs, seed, config, render), config)


def _make(env: Any, num_envs: int, seed: int, config: EnvConfig, render: bool) -> VecEnv:
    if isinstance(env, str):
        return _make_named(env, num_envs, seed, config, render)
    if hasattr(env, "reset") and hasattr(env, "step") and not isinstance(env, type):
        return _make_object(env, num_envs, seed, config)
    if callable(env):
        return _make_called(env, num_envs, seed, config, render)
    raise UserError(
        f"{type(env).__name__} is no environment: give an id, a gymnasium Env, or a callable that makes one"
    )


def _make_named(name: str, num_envs: int, seed: int, config: EnvConfig, render: bool) -> VecEnv:
    from kumite.envs import ids

    prefix, colon, rest = name.partition(":")
    if not colon:
        prefix, rest = "gym", name
    backend = BACKENDS.get(prefix)
    if isinstance(backend, str):
        backend = ids.load(backend)
    if backend is not None:
        return backend(rest, num_envs, seed, config, render)
    factory = ids.load(name)
    if callable(factory):
        return _make_called(factory, num_envs, seed, config, render, name)
    try:
        ids.find_id(name)  # gymnasium's own `module:id`
    except (UserError, ImportError):
        raise UserError(
            f"'{name}' is neither a backend's environment nor a callable in a module{nearest(prefix, list(BACKENDS))}; "
            f"backends are {', '.join(BACKENDS)}"
        ) from None
    from kumite.envs.gymnasium import make

    return make(name, num_envs, seed, config, render)


def _make_object(env: Any, num_envs: int, seed: int, config: EnvConfig) -> VecEnv:
    if hasattr(env, "single_action_space"):
        from kumite.envs.vector import BatchVec

        return BatchVec(env, seed, config, owned=False)  # it brings its own number of copies
    if hasattr(env, "step_async"):
        raise UserError(
            f"{type(env).__name__} is no vector environment of gymnasium (it has no 'single_action_space');"
            " give an id, or a callable that makes one copy"
        )
    if num_envs != 1:
        raise UserError(f"one Env object is one copy; give a callable that makes copies to have {num_envs} of them")
    if config.mode == "workers" or config.on_error != "raise":
        raise UserError("an Env object cannot be made anew in a worker or after a crash; give a callable that makes it")
    from kumite.envs.gymnasium import GymVec

    return GymVec([lambda: env], seed, config, owned=False)


def _make_called(
    factory: Callable[..., Any], num_envs: int, seed: int, config: EnvConfig, render: bool, name: str = ""
) -> VecEnv:
    from kumite.envs import ids
    from kumite.envs.episode import accepts
    from kumite.envs.gymnasium import from_makers

    kwargs = ids.keywords(config.kwargs)
    if accepts(factory, "num_envs") and not _takes_anything(factory):
        made = factory(num_envs=num_envs, **kwargs)
        if isinstance(made, VecEnv):
            return made
        if hasattr(made, "single_action_space"):
            from kumite.envs.vector import BatchVec

            return BatchVec(made, seed, config)
        raise UserError(f"a callable that takes num_envs must give a vector environment, not {type(made).__name__}")
    if name:
        return from_makers(ids.makers(ids.call_named, num_envs, render, name, kwargs), seed, config)
    return from_makers(ids.makers(ids.call_factory, num_envs, render, factory, kwargs), seed, config)


def _takes_anything(factory: Callable[..., Any]) -> bool:
    import inspect

    return "num_envs" not in inspect.signature(factory).parameters


def name_of(env: Any) -> str:
    """The name for run folders and presets: the id where there is one, else the name of the class or function."""
    if isinstance(env, str):
        return env.removeprefix("gym:")
    name = getattr(getattr(env, "spec", None), "id", None)
    if name:
        return str(name)
    if isinstance(env, partial):
        return name_of(env.func)
    if isinstance(env, type) or (callable(env) and not hasattr(env, "step")):
        called = getattr(env, "__name__", type(env).__name__)
        return "env" if called == "<lambda>" else str(called)
    return type(getattr(env, "unwrapped", env)).__name__


def listing() -> list[tuple[str, bool, str, list[str]]]:
    """(family, installed, how to install, example ids), for `kumite envs`."""
    from importlib.util import find_spec

    def family(name: str, module: str, extra: str, examples: str) -> tuple[str, bool, str, list[str]]:
        how = f"pip install 'kumite[{extra}]'" if extra else "part of kumite"
        return name, find_spec(module) is not None, how, examples.split()

    rows = [
        family("gymnasium classic", "gymnasium", "", "CartPole-v1 Pendulum-v1 Acrobot-v1 MountainCarContinuous-v0"),
        family("gymnasium Box2D", "Box2D", "box2d", "LunarLander-v3 BipedalWalker-v3 CarRacing-v3"),
        family("gymnasium MuJoCo", "mujoco", "mujoco", "HalfCheetah-v5 Hopper-v5 Walker2d-v5 Ant-v5 Humanoid-v5"),
        family("dm_control", "dm_control", "dmc", "dmc:walker-walk dmc:cheetah-run dmc:humanoid-run dmc:dog-run"),
        family("Atari", "ale_py", "atari", "atari:Pong atari:Breakout atari:MsPacman"),
        family("EnvPool", "envpool", "envpool", "envpool:HalfCheetah-v4 envpool:Pong-v5 envpool:CartPole-v1"),
        family(
            "gymnasium robotics", "gymnasium_robotics", "robotics", "FetchReach-v4 AdroitHandDoor-v1 PointMaze_UMaze-v3"
        ),
        family("MiniGrid", "minigrid", "pomdp", "MiniGrid-Empty-8x8-v0 BabyAI-GoToRedBall-v0"),
        family("POPGym", "popgym", "pomdp", "popgym-RepeatPreviousEasy-v0"),
        family("kumite's own", "gymnasium", "", " ".join(_own_ids())),
        family("your own", "gymnasium", "", "module.path:make_env"),
    ]
    return rows + [(prefix, True, "registered", [f"{prefix}:..."]) for prefix, m in BACKENDS.items() if callable(m)]


def _own_ids() -> list[str]:
    from kumite.envs.suite import IDS

    return list(IDS)
