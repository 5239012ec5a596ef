"""What names an environment, and what is said where nothing does."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv

from kumite.envs import BACKENDS, listing, make_env, name_of, register
from kumite.envs.base import EnvConfig, VecEnv, derive
from kumite.envs.gymnasium import GymVec
from kumite.envs.suite import IDS
from kumite.envs.suite.probes import Clock, One
from kumite.errors import UserError


class Bare(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, size: int = 1) -> None:
        self.size = size


def make_clock(first: int = 0, render_mode: str | None = None) -> Clock:
    return Clock(first=first)


@pytest.mark.parametrize("env", ["CartPole-v1", "gym:CartPole-v1", "gymnasium.envs.classic_control:CartPoleEnv"])
def test_ids(env: str) -> None:
    made = make_env(env, 2)
    assert made.reset(0).obs["obs"].shape == (2, 4)
    assert made.native.action_native == gymnasium.spaces.Discrete(2)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("CartPole-v9", "no environment 'CartPole-v9'; did you mean 'CartPole-v1'"),
        ("cartpole-v1", "did you mean 'CartPole-v1'"),
        ("envpol:Pong-v5", "did you mean 'envpool'"),
        ("nosuchmodule:make_env", "neither a backend's environment nor a callable in a module"),
        ("json:dump_", "neither a backend"),
        ("kumite/Nothing-v0", "no environment"),
    ],
)
def test_unknown_names_offer_the_nearest(name: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        make_env(name)


def test_modules_that_fail_to_import_say_what_they_miss(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_robot_env.py").write_text("import a_package_nobody_has\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="'my_robot_env' cannot be imported: No module named 'a_package_nobody_has'"):
        make_env("my_robot_env:make")


@pytest.mark.parametrize(
    ("text", "said"), [("x = 1\n1 / 0", "division by zero at bad.py:2"), ("def", "bad.py, line 1")]
)
def test_modules_that_fail_while_they_are_imported_take_one_line(
    text: str, said: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Environments and nets alike: the user's module, and the line in it."""
    from kumite.nn.encoders import load_class

    (tmp_path / "bad.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for use in (make_env, load_class):
        with pytest.raises(UserError, match=rf"importing 'bad' failed: .*{said}"):
            use("bad:Thing")


def test_a_vector_environment_of_another_library_is_refused_by_name() -> None:
    class DummyVecEnv(One):
        num_envs = 2

        def step_async(self, actions: Any) -> None: ...

    with pytest.raises(UserError, match="DummyVecEnv is no vector environment of gymnasium"):
        make_env(DummyVecEnv())


def test_keywords_of_the_environment() -> None:
    env = make_env("LunarLander-v3", config=EnvConfig(kwargs="{continuous: true}"))
    assert env.action.continuous == 2
    assert make_env(Clock, config=EnvConfig(kwargs="first: 4")).reset(0).obs["obs"][0, 1] == 4
    for text, words in (("[1, 2]", "must be keyword arguments"), ("{a: ", "not YAML"), ("5", "must be keyword")):
        with pytest.raises(UserError, match=words):
            make_env("CartPole-v1", config=EnvConfig(kwargs=text))
    with pytest.raises(UserError, match="does not take these keywords"):
        make_env("CartPole-v1", config=EnvConfig(kwargs="{speed: 3}"))
    with pytest.raises(UserError, match="not YAML"):
        make_env("CartPole-v1", config=EnvConfig(kwargs="!!python/object/apply:os.getcwd []"))


def test_objects_are_one_copy_and_stay_the_users() -> None:
    class Closing(Clock):
        closed = False

        def close(self) -> None:
            self.closed = True

    env = Closing()
    made = make_env(env)
    made.reset(0)
    made.close()
    assert not env.closed
    for wrong, words in ((2, "one copy"), (0, "at least 1")):
        with pytest.raises(UserError, match=words):
            make_env(env, wrong)
    with pytest.raises(UserError, match="in a worker"):
        make_env(env, config=EnvConfig(mode="workers"))
    vector = SyncVectorEnv([Clock, Clock])
    assert make_env(vector).slots == 2
    assert make_env(vector, 8).slots == 2  # its own number holds
    with pytest.raises(UserError, match="int is no environment"):
        make_env(3)
    with pytest.raises(UserError, match=r"one of sync, workers, native; did you mean 'workers'"):
        make_env("CartPole-v1", config=EnvConfig(mode="worker"))


def test_callables_that_make_vector_environments() -> None:
    def vector(num_envs: int) -> SyncVectorEnv:
        return SyncVectorEnv([Clock] * num_envs)

    assert make_env(vector, 3).slots == 3
    assert make_env(lambda num_envs: GymVec([Clock] * num_envs), 2).slots == 2
    with pytest.raises(UserError, match="must give a vector environment"):
        make_env(lambda num_envs: Clock(), 2)
    ready = GymVec([Clock])
    assert make_env(ready) is ready


def test_backends_register_from_outside() -> None:
    def maker(name: str, num_envs: int, seed: int, config: EnvConfig, render: bool) -> VecEnv:
        return GymVec([partial(Clock, first=int(name))] * num_envs, seed, config)

    register("clocks", maker)
    try:
        assert make_env("clocks:7", 2).reset(0).obs["obs"].tolist() == [[0, 7], [0, 7]]
        assert "clocks" in [row[0] for row in listing()]
        with pytest.raises(UserError, match="one word"):
            register("a:b", maker)
    finally:
        del BACKENDS["clocks"]


def test_display_names() -> None:
    assert name_of("gym:CartPole-v1") == "CartPole-v1"
    assert name_of("dmc:walker-walk") == "dmc:walker-walk"
    assert name_of(gymnasium.make("CartPole-v1")) == "CartPole-v1"
    assert name_of(gymnasium.make_vec("CartPole-v1", 2)) == "CartPole-v1"
    assert name_of(Bare()) == "Bare"
    assert name_of(gymnasium.wrappers.TimeLimit(Bare(), 3)) == "Bare"
    assert name_of(Bare) == "Bare"
    assert name_of(partial(Bare, size=3)) == "Bare"
    assert name_of(make_clock) == "make_clock"
    assert name_of(lambda: Bare()) == "env"


def test_the_listing_is_complete() -> None:
    rows = listing()
    assert all(len(row) == 4 and row[3] for row in rows)
    known = {row[0]: row for row in rows}
    assert known["gymnasium classic"][1]
    assert "kumite[dmc]" in known["dm_control"][2]
    assert set(IDS) <= set(known["kumite's own"][3])


def test_importing_the_package_imports_no_simulator() -> None:
    script = (
        "import sys, kumite.envs, kumite.envs.base\n"
        "heavy = {'gymnasium', 'numpy', 'torch', 'envpool', 'ale_py', 'dm_control', 'mujoco'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(
    ("module", "name", "extra"),
    [
        ("envpool", "envpool:Pong-v5", "envpool"),
        ("ale_py", "atari:Pong", "atari"),
        ("dm_control", "dmc:walker-walk", "dmc"),
        ("gymnasium_robotics", "FetchReach-v4", "robotics"),
        ("minigrid", "MiniGrid-Empty-8x8-v0", "pomdp"),
    ],
)
def test_a_missing_extra_is_one_line(module: str, name: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for loaded in [m for m in sys.modules if m.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        UserError, match=rf"'{module}' is not installed; install it with: pip install 'kumite\[{extra}\]'"
    ):
        make_env(name)


def test_velocities_are_hidden_by_name() -> None:
    assert make_env("CartPole-v1", config=EnvConfig(mask_velocity=True)).obs_space["obs"].shape == (2,)
    assert make_env("CartPole-v1", config=EnvConfig(hide=(1, 3))).obs_space["obs"].shape == (2,)
    native = make_env("CartPole-v1", 2, config=EnvConfig(mask_velocity=True, mode="native"))
    assert native.obs_space["obs"].shape == (2,)
    with pytest.raises(UserError, match=r"does not know the velocities of Clock; use --env\.hide"):
        make_env(Clock, config=EnvConfig(mask_velocity=True))


def test_hidden_velocities_are_the_velocities() -> None:
    pytest.importorskip("mujoco")
    # The observation begins with positions and goes on with qvel; Humanoid's bodies have more of them at the end.
    for name, exact in (("Hopper-v5", True), ("HalfCheetah-v5", True), ("Swimmer-v5", True), ("Ant-v5", True)):
        env = make_env(name, config=EnvConfig(mask_velocity=True))
        whole = gymnasium.make(name, disable_env_checker=True)
        inner: Any = whole.unwrapped
        lost = whole.observation_space.shape[0] - env.obs_space["obs"].shape[0]
        assert lost == inner.data.qvel.size, name
        assert exact
        whole.reset(seed=0)
        full = inner._get_obs()
        kept = env.native.encode(full, batched=False)["obs"]
        speeds = np.clip(inner.data.qvel, -10, 10)
        assert not set(np.float32(speeds[np.abs(speeds) > 1e-6])) & set(kept)


def test_rendering() -> None:
    env = make_env("CartPole-v1", 2, render=True)
    env.reset(0)
    picture = env.render()
    assert picture.dtype == np.uint8
    assert picture.ndim == 3
    assert picture.shape[2] == 3
    env.close()
    plain = make_env("CartPole-v1")
    plain.reset(0)
    with pytest.raises(Exception, match="picture"):
        plain.render()
    assert make_env(make_clock, render=True).slots == 1


def test_no_renderer_is_said_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    from kumite.envs import rendering

    pytest.importorskip("mujoco")
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setattr(rendering, "works", lambda backend: False)
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(UserError, match="no off-screen renderer that MuJoCo can use; install one"):
        make_env("HalfCheetah-v5", render=True)
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    rendering.prepare_mujoco()  # somebody chose: no questions
    monkeypatch.delenv("MUJOCO_GL")
    monkeypatch.setattr(rendering, "works", lambda backend: backend == "osmesa")
    rendering.prepare_mujoco()
    assert rendering.os.environ["MUJOCO_GL"] == "osmesa"


def test_drawing_without_pygame_names_our_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    env = make_env("CartPole-v1", render=True)
    env.reset(0)
    monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.raises(UserError, match=r"'pygame' is not installed; install it with: pip install 'kumite\[classic\]'"):
        env.render()
    env.close()


def test_seeds_are_spread() -> None:
    seeds = {derive(s, i, k) for s in range(4) for i in range(16) for k in range(64)}
    assert len(seeds) == 4 * 16 * 64
    assert all(0 <= s < 2**31 for s in seeds)
    assert derive(0) == 0
    assert derive(3, 1) != derive(1, 3)


def test_observations_of_a_late_failing_reset_and_many_slots() -> None:
    env = make_env(One, 1000)
    step = env.reset(0)
    env.send(env.action.random(1000))
    step = env.recv()
    assert step.terminated.all()
    assert step.episodes is not None
    assert len(step.episodes.slot) == 1000
    env.send(env.action.random(1000))
    assert not env.recv().over.any()
    with pytest.raises(Exception, match="all slots, in order"):
        env.send(env.action.random(2), torch.tensor([1, 0]))


def test_vector_environments_remember_what_made_them() -> None:
    """Evaluation plays in copies of its own; a vector environment of which none can be made says so."""
    from kumite.envs import source

    assert source(SyncVectorEnv([One, One]))().observation_space == One().observation_space
    bare = SyncVectorEnv([One])
    del bare.env_fns
    with pytest.raises(UserError, match=r"cannot be made again for evaluation; give its id .* --eval.every -1"):
        source(bare)
