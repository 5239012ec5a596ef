"""What an environment's name means: `[backend:]name`, and the maker of one gymnasium environment behind it.

Makers are plain functions of plain values, so that they travel to worker processes. No torch here.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from kumite.envs.episode import accepts
from kumite.errors import FOREIGN, UserError, failed_import, missing_extra, nearest

# Packages that register gymnasium ids when imported: (start of the id, module, extra).
PLUGINS = (
    ("ALE/", "ale_py", "atari"),
    ("Fetch", "gymnasium_robotics", "robotics"),
    ("Hand", "gymnasium_robotics", "robotics"),
    ("Adroit", "gymnasium_robotics", "robotics"),
    ("FrankaKitchen", "gymnasium_robotics", "robotics"),
    ("PointMaze", "gymnasium_robotics", "robotics"),
    ("AntMaze", "gymnasium_robotics", "robotics"),
    ("MiniGrid-", "minigrid", "pomdp"),
    ("BabyAI-", "minigrid", "pomdp"),
    ("popgym-", "popgym", "pomdp"),
)
# Modules whose absence gymnasium reports in words of its own.
EXTRAS = {"Box2D": "box2d", "pygame": "classic", "mujoco": "mujoco", "ale_py": "atari", "cv2": "atari"}


def keywords(text: str) -> dict[str, Any]:
    """`--env.kwargs` as keyword arguments."""
    if not text.strip():
        return {}
    import yaml

    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as err:
        raise UserError(f"--env.kwargs is not YAML: {' '.join(str(err).split())}") from None
    if not isinstance(found, dict) or not all(isinstance(k, str) for k in found):
        raise UserError(f"--env.kwargs must be keyword arguments such as '{{continuous: true}}', not {text!r}")
    return found


def load(name: str) -> Any | None:
    """The object `module.path:attribute` names, or None where there is no such module or attribute."""
    module, _, attribute = name.partition(":")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as err:
        if err.name and (module == err.name or module.startswith(err.name + ".")):
            return None
        raise UserError(f"'{module}' cannot be imported: {err}") from err
    except UserError:
        raise
    except FOREIGN as err:
        raise failed_import(module, err) from err
    for part in attribute.split("."):
        if not hasattr(found, part):
            return None
        found = getattr(found, part)
    return found


def find_id(name: str) -> str:
    """A registered gymnasium id; registers what is registered on demand."""
    import gymnasium

    module, colon, plain = name.rpartition(":")
    if colon:  # gymnasium's own `module:id`
        importlib.import_module(module)
    if plain.startswith("kumite/"):
        from kumite.envs import suite

        suite.register()
    if plain not in gymnasium.registry:
        for start, package, extra in PLUGINS:
            if plain.startswith(start) or (package == "ale_py" and "NoFrameskip" in plain):
                _register(package, extra)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return gymnasium.spec(plain).id
    except gymnasium.error.Error:
        known = list(gymnasium.registry)
        near = nearest(plain, known)
        raise UserError(f"there is no environment '{name}'{near} (`kumite envs` lists the families)") from None


def _register(package: str, extra: str) -> None:
    import gymnasium

    try:
        module = importlib.import_module(package)
    except ModuleNotFoundError as err:
        if err.name != package:
            raise
        raise missing_extra(package, extra) from None
    if package == "ale_py":
        module.ALEInterface.setLoggerMode(module.LoggerMode.Error)  # no banner
    gymnasium.register_envs(module)


def make_id(name: str, kwargs: dict[str, Any], render: bool = False) -> Any:
    """One environment of a registered id, without gymnasium's checker: our own checks are cheaper and say more."""
    import gymnasium

    name = find_id(name)
    if render:
        from kumite.envs.rendering import prepare

        prepare(name)
        kwargs = {"render_mode": "rgb_array", **kwargs}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return gymnasium.make(name, disable_env_checker=True, **kwargs)
    except gymnasium.error.DependencyNotInstalled as err:
        cause = err.__cause__
        module = getattr(cause, "name", None) or next((m for m in EXTRAS if m.lower() in str(err).lower()), None)
        if module in EXTRAS:
            raise missing_extra(module, EXTRAS[module]) from None
        raise UserError(f"the environment '{name}' needs more: {err}") from err
    except ModuleNotFoundError as err:
        if err.name in EXTRAS:
            raise missing_extra(err.name, EXTRAS[err.name]) from None
        raise UserError(f"the environment '{name}' needs the package '{err.name}', which is not installed") from err
    except TypeError as err:
        raise UserError(f"the environment '{name}' does not take these keywords {kwargs}: {err}") from err


def call_factory(factory: Callable[..., Any], kwargs: dict[str, Any], render: bool = False) -> Any:
    """One environment of a user's callable."""
    if render and "render_mode" not in kwargs and accepts(factory, "render_mode"):
        kwargs = {"render_mode": "rgb_array", **kwargs}
    return factory(**kwargs)


def call_named(name: str, kwargs: dict[str, Any], render: bool = False) -> Any:
    """The same for `module.path:make_env`, imported where it runs."""
    return call_factory(load(name), kwargs, render)  # type: ignore[arg-type]


def makers(make: Callable[..., Any], num_envs: int, render: bool, *args: Any) -> list[Callable[[], Any]]:
    """One maker per copy; only the first can be rendered."""
    return [partial(make, *args, render=render and i == 0) for i in range(num_envs)]
