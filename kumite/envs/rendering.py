"""Pictures on machines without a display: MuJoCo's renderer is chosen, and tried, before it can end the process."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from importlib.util import find_spec

from kumite.errors import UserError

_PROBE = """
import mujoco
model = mujoco.MjModel.from_xml_string("<mujoco><worldbody><geom size='1'/></worldbody></mujoco>")
renderer = mujoco.Renderer(model, 16, 16)
renderer.update_scene(mujoco.MjData(model))
renderer.render()
renderer.close()
"""


@cache
def works(backend: str) -> bool:
    """Whether MuJoCo renders with this backend; tried in a child, because a failure may take the process with it."""
    env = {**os.environ, "MUJOCO_GL": backend}
    if backend != "glfw":
        env["PYOPENGL_PLATFORM"] = backend
    try:
        done = subprocess.run([sys.executable, "-c", _PROBE], env=env, capture_output=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def prepare_mujoco() -> None:
    """Choose a renderer that works, where nobody chose one and there is no display."""
    if os.environ.get("MUJOCO_GL") or find_spec("mujoco") is None:
        return
    if sys.platform != "linux" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        return
    for backend in ("egl", "osmesa"):
        if works(backend):
            os.environ["MUJOCO_GL"] = backend
            os.environ.setdefault("PYOPENGL_PLATFORM", backend)
            return
    raise UserError(
        "this machine has no display and no off-screen renderer that MuJoCo can use; "
        "install one (on Debian or Ubuntu: apt-get install libegl1), or go on without --video"
    )


def prepare(env_id: str) -> None:
    """Whatever this gymnasium id needs before it is made with render_mode='rgb_array'."""
    import gymnasium

    entry = str(gymnasium.spec(env_id).entry_point)
    if "mujoco" in entry or "robotics" in entry:
        prepare_mujoco()
    elif not os.environ.get("DISPLAY"):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
