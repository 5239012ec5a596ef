"""What is measured: small pieces of a run, each on the objects of a real run, and whole loops.

A case gives a function to be called over and over. Pieces are caught while an agent learns for a moment: the arguments
of its last gradient step, of its last action, and so on. So a case fits every algorithm, and also older revisions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Call = Callable[[], Any]
MLP64 = {"layers": [64, 64], "activation": "tanh", "init": "orthogonal"}
MLP256 = {"layers": [256, 256]}
PLAIN = {"lr_schedule": "constant", "normalize_obs": False, "normalize_reward": False}
PPO = PLAIN | {"num_envs": 8, "horizon": 256, "batch_size": 64, "epochs": 10, "clip_value": 0.0, "lr": 3e-4}
PPO |= {"clip_schedule": "constant", "gamma": 0.99, "lam": 0.95, "actor": MLP64, "critic": MLP64}
POOL = PLAIN | {"num_envs": 64, "horizon": 64, "batch_size": 2048, "epochs": 5, "norm_adv": "batch", "share": True}
POOL |= {"normalize_obs": True, "normalize_value": True, "smooth_clamp": True, "lr_schedule": "kl"}
POOL |= {"actor": {"layers": [128, 64, 32], "activation": "elu", "init": "uniform"}}
CNN = {"encoder": "nature", "layers": [512], "activation": "relu", "init": "orthogonal"}
SAC = PLAIN | {"num_envs": 1, "warmup": 300, "batch_size": 256, "lr": 3e-4, "policy_delay": 1}
SAC |= {"actor": MLP256, "critic": MLP256}


@dataclass(frozen=True)
class Setup:
    """An agent and how far it has to learn until every piece has been seen."""

    algo: str
    env: str
    numbers: dict[str, Any]
    steps: int
    parts: tuple[str, ...] = ("update", "act", "store", "sample")
    loop: int = 0
    """Environment steps of the warm-up of the whole loop; 0 = no loop is measured."""


def _lstm(**more: Any) -> dict[str, Any]:
    return MLP64 | {"memory": "lstm", "memory_width": 256, "memory_place": "before"} | more


SETUPS: dict[str, Setup] = {
    "sac-cheetah": Setup("sac", "HalfCheetah-v5", SAC, 310, loop=600),
    "sac-cartpole": Setup("sac", "CartPole-v1", SAC | {"n_step": 3, "num_envs": 4}, 310),
    "sac-gru": Setup(
        "sac",
        "Pendulum-v1",
        SAC
        | {"memory": "gru", "chunk": 16, "actor": {"width": 128, "memory_width": 128}}
        | {"critic": {"width": 128, "memory_width": 128}},
        310,
    ),
    "ppo-cartpole": Setup("ppo", "CartPole-v1", PPO, 2_100, loop=4_200),
    "ppo-cheetah": Setup("ppo", "HalfCheetah-v5", PPO, 2_100, loop=4_200),
    "ppo-pool": Setup("ppo", "envpool:HalfCheetah-v4", POOL, 4_200, loop=12_500),
    "ppo-pong": Setup(
        "ppo",
        "atari:Pong",
        PPO | {"horizon": 32, "batch_size": 256, "epochs": 1, "actor": CNN, "critic": CNN, "share": True},
        270,
        loop=600,
    ),
    "ppo-lstm": Setup(
        "ppo",
        "CartPole-v1",
        PPO | {"horizon": 128, "batch_size": 128, "epochs": 1, "chunk": 16, "actor": _lstm(), "critic": _lstm()},
        1_100,
        loop=1_100,
    ),
}
ENVS = {
    "gym-cheetah-1": ("HalfCheetah-v5", 1, {}),
    "gym-cheetah-8": ("HalfCheetah-v5", 8, {}),
    "gym-cartpole-1": ("CartPole-v1", 1, {}),
    "gym-cartpole-8": ("CartPole-v1", 8, {}),
    "workers-cheetah-8": ("HalfCheetah-v5", 8, {"mode": "workers"}),
    "native-cartpole-64": ("CartPole-v1", 64, {"mode": "native"}),
    "envpool-cheetah-64": ("envpool:HalfCheetah-v4", 64, {}),
    "envpool-cartpole-64": ("envpool:CartPole-v1", 64, {}),
    "atari-pong-8": ("atari:Pong", 8, {}),
    "dmc-walker-1": ("dmc:walker-walk", 1, {}),
}
COMPILED = ("sac-cheetah", "ppo-cartpole", "ppo-cheetah", "ppo-pool")
"""Setups whose update is also measured as a compiled graph."""


@dataclass
class Case:
    name: str
    make: Callable[[], tuple[Call, float]]
    """Gives the call and how many units (environment steps, rows, ...) one call stands for."""
    unit: str = "call"
    about: dict[str, Any] = field(default_factory=dict)


def all_cases() -> list[Case]:
    cases = []
    for name, setup in SETUPS.items():
        for part in setup.parts:
            cases.append(Case(f"{part}/{name}", lambda s=setup, p=part: piece(s, p, compile="off")))
        if name in COMPILED:
            cases.append(Case(f"update/{name}/compiled", lambda s=setup: piece(s, "update", compile="on")))
    cases.append(Case("replay/prioritized", prioritized))
    for name, (env, copies, config) in ENVS.items():
        cases.append(Case(f"env/{name}", lambda e=env, k=copies, c=config: stepping(e, k, c), unit="step"))
    return cases


LOOPS = [name for name, setup in SETUPS.items() if setup.loop]


# --- pieces --------------------------------------------------------------------------------------------------------

CAUGHT = {  # part -> (home, method)
    "update": ("algo", "step_update"),
    "act": ("algo", "explore"),
    "store": ("stream", "observe record"),
    "sample": ("algo", "learn"),
}


def agent(setup: Setup, **more: Any) -> Any:
    import kumite

    kind = getattr(kumite, setup.algo.upper())
    return kind(setup.env, **(setup.numbers | {"seed": 0, "quiet": True, "threads": 1} | more))


def piece(setup: Setup, part: str, **more: Any) -> tuple[Call, float]:
    """The last call of this part, ready to be made again."""
    import torch

    made = agent(setup, **more)
    last: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    def catch(home: Any, name: str) -> None:
        inner = getattr(home, name)

        def caught(*args: Any, **kwargs: Any) -> Any:
            last[name] = args, kwargs
            return inner(*args, **kwargs)

        setattr(home, name, caught)

    run = made._start()
    home_name, methods = CAUGHT[part]
    home = getattr(run, home_name)
    for method in methods.split():
        catch(home, method)
    made.learn(setup.steps)
    for method in methods.split():
        delattr(home, method)
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision(run.precision)
    torch.set_grad_enabled(False)
    if part == "store":
        (step,), _ = last["observe"]
        args, kwargs = last["record"]
        return lambda: (home.observe(step), home.record(*args, **kwargs)), 1
    if part == "sample":
        return sampling(made, run), 1
    args, kwargs = last[methods]
    call = getattr(home, methods)
    return lambda: call(*args, **kwargs), 1


def sampling(made: Any, run: Any) -> Call:
    """What learning does besides gradient steps: off-policy a draw, on-policy all that a rollout needs once."""
    algo, stream = run.algo, run.stream
    if hasattr(algo, "sample"):
        return lambda: algo.sample(stream)
    from kumite.types import Out

    nothing = Out(dict.fromkeys(("train/kl", "train/loss"), algo.adam.lr * 0))
    algo.step_update = lambda *args, **kwargs: nothing
    drained, taken = stream.drained.clone(), stream.taken

    def again() -> None:
        stream.drained, stream.taken = drained - made.config.horizon, taken - made.config.horizon
        algo.learn(stream, run.env_step, 10**9)

    return again


def prioritized(rows: int = 2**20, batch: int = 256) -> tuple[Call, float]:
    """Rows of a full replay drawn by their priorities, and their new priorities written."""
    import torch

    from kumite.samplers import Prioritized
    from kumite.stream import Stream
    from kumite.types import Step

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    stream, flag = Stream(rows, 1), torch.zeros(1, dtype=torch.bool)
    stream.observe(Step({}, torch.zeros(1), flag, flag))
    stream.clock = rows + 1_000_000  # it has wrapped
    stream.count.fill_(stream.clock)
    sampler = Prioritized(1)
    sampler.follow(stream).fill(0, torch.rand(rows))
    error = torch.rand(batch)
    return lambda: sampler.tell(sampler.draw(stream, batch), error), 1


def stepping(env: str, copies: int, config: dict[str, Any]) -> tuple[Call, float]:
    """An environment step with random actions, drawn beforehand."""
    import torch

    from kumite.envs import EnvConfig, make_env

    torch.set_num_threads(1)
    made = make_env(env, copies, 0, EnvConfig(**config))
    made.reset(0)
    actions = [made.action.random(copies) for _ in range(64)]
    state = {"at": 0}

    def step() -> None:
        state["at"] = (state["at"] + 1) % 64
        made.send(actions[state["at"]])
        made.recv()

    return step, copies


# --- whole loops ---------------------------------------------------------------------------------------------------


def loop(name: str, seconds: float, threads: int = 0, compile: str = "auto") -> dict[str, Any]:
    """Steps per second behind the warm-up, and where they went; the run believes that it is a long one."""
    setup = SETUPS[name]
    made = agent(setup, steps=100_000_000, threads=threads, compile=compile, profile=True, **_silent())
    begin: dict[str, Any] = {}
    end: dict[str, Any] = {}
    seen = {"updates": 0}
    began = time.perf_counter()

    def state(run: Any) -> dict[str, Any]:
        p = made.profile
        now = {
            "step": run.env_step,
            "wall": time.perf_counter(),
            "cpu": time.process_time(),
            "updates": run.algo.updates,
        }
        return now | {"seconds": dict(p.seconds), "calls": dict(p.calls)}

    def watch(run: Any) -> bool:
        if run.algo.updates == seen["updates"]:
            return True
        seen["updates"] = run.algo.updates
        if run.env_step < setup.loop:
            return True
        if not begin:
            begin.update(state(run))
            return True
        if time.perf_counter() - begin["wall"] < seconds:
            return True
        end.update(state(run))
        return False

    made.learn(callback=watch)
    steps, wall = end["step"] - begin["step"], end["wall"] - begin["wall"]
    parts = {k: end["seconds"][k] - begin["seconds"][k] for k in end["seconds"] if k != "other"}
    parts["other"] = wall - sum(parts.values())
    return {
        "steps_per_s": steps / wall,
        "us_per_step": 1e6 * wall / steps,
        "cpu_us_per_step": 1e6 * (end["cpu"] - begin["cpu"]) / steps,
        "updates": end["updates"] - begin["updates"],
        "before_s": begin["wall"] - began,
        "threads": made.run.threads,
        "precision": made.run.precision,
        "compiled": bool(made.run.compiled and made.algo.graph is not None),
        "parts_us_per_step": {k: 1e6 * v / steps for k, v in parts.items() if v > 0},
        "us_per_update": 1e6 * parts["update"] / max(1, end["updates"] - begin["updates"]),
    }


def _silent() -> dict[str, Any]:
    return {"eval": {"every": -1}, "save": {"every": -1}}
