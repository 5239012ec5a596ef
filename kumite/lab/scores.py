"""Scores that can be compared across environments, and which suite an environment belongs to.

A scale says for each environment which return counts as 0 and which as 1. D4RL: random and expert; Atari: random play
and a professional human tester; dm_control: 0 and its highest possible return; `range`: the lowest and the highest of
the runs that are compared, which says nothing beyond this comparison.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping
from typing import Literal

import numpy as np

from kumite.errors import UserError
from kumite.lab.records import Column

Scale = Literal["auto", "atari", "dmc", "d4rl", "range"]
Ends = tuple[float, float]
"""The returns that count as 0 and as 1."""

ATARI: dict[str, Ends] = {
    "Alien": (227.8, 7127.7), "Amidar": (5.8, 1719.5), "Assault": (222.4, 742.0), "Asterix": (210.0, 8503.3),
    "Asteroids": (719.1, 47388.7), "Atlantis": (12850.0, 29028.1), "BankHeist": (14.2, 753.1),
    "BattleZone": (2360.0, 37187.5), "BeamRider": (363.9, 16926.5), "Berzerk": (123.7, 2630.4),
    "Bowling": (23.1, 160.7), "Boxing": (0.1, 12.1), "Breakout": (1.7, 30.5), "Centipede": (2090.9, 12017.0),
    "ChopperCommand": (811.0, 7387.8), "CrazyClimber": (10780.5, 35829.4), "Defender": (2874.5, 18688.9),
    "DemonAttack": (152.1, 1971.0), "DoubleDunk": (-18.6, -16.4), "Enduro": (0.0, 860.5),
    "FishingDerby": (-91.7, -38.7), "Freeway": (0.0, 29.6), "Frostbite": (65.2, 4334.7), "Gopher": (257.6, 2412.5),
    "Gravitar": (173.0, 3351.4), "Hero": (1027.0, 30826.4), "IceHockey": (-11.2, 0.9), "Jamesbond": (29.0, 302.8),
    "Kangaroo": (52.0, 3035.0), "Krull": (1598.0, 2665.5), "KungFuMaster": (258.5, 22736.3),
    "MontezumaRevenge": (0.0, 4753.3), "MsPacman": (307.3, 6951.6), "NameThisGame": (2292.3, 8049.0),
    "Phoenix": (761.4, 7242.6), "Pitfall": (-229.4, 6463.7), "Pong": (-20.7, 14.6), "PrivateEye": (24.9, 69571.3),
    "Qbert": (163.9, 13455.0), "Riverraid": (1338.5, 17118.0), "RoadRunner": (11.5, 7845.0), "Robotank": (2.2, 11.9),
    "Seaquest": (68.4, 42054.7), "Skiing": (-17098.1, -4336.9), "Solaris": (1236.3, 12326.7),
    "SpaceInvaders": (148.0, 1668.7), "StarGunner": (664.0, 10250.0), "Surround": (-10.0, 6.5),
    "Tennis": (-23.8, -8.3), "TimePilot": (3568.0, 5229.2), "Tutankham": (11.4, 167.6), "UpNDown": (533.4, 11693.2),
    "Venture": (0.0, 1187.5), "VideoPinball": (16256.9, 17667.9), "WizardOfWor": (563.5, 4756.5),
    "YarsRevenge": (3092.9, 54576.9), "Zaxxon": (32.5, 9173.3),
}  # fmt: skip
"""Random play and human tester, episodes begun with up to 30 no-ops: Wang et al. 2016, "Dueling Network Architectures
for Deep Reinforcement Learning", appendix (Hessel et al. 2018 and the Atari-57 literature since use the same)."""

D4RL: tuple[tuple[str, Ends], ...] = (
    ("bullet-halfcheetah-*", (-1275.766996, 2381.6725)),
    ("bullet-hopper-*", (20.058972, 1441.8059623430963)),
    ("bullet-ant-*", (373.705955, 2650.495)),
    ("bullet-walker2d-*", (16.523877, 1623.6476303317536)),
    ("bullet-maze2d-open-*", (8.75, 64.15)),
    ("bullet-maze2d-umaze-*", (32.46, 153.99)),
    ("bullet-maze2d-medium-*", (14.87, 238.05)),
    ("bullet-maze2d-large-*", (1.82, 285.92)),
    ("halfcheetah*", (-280.178953, 12135.0)),
    ("hopper*", (-20.272305, 3234.3)),
    ("walker2d*", (1.629008, 4592.3)),
    ("antmaze*", (0.0, 1.0)),
    ("ant-*", (-325.6, 3879.7)),
    ("maze2d-open-dense-v0", (11.17817, 27.166538620695782)),
    ("maze2d-open-v0", (0.01, 20.66)),
    ("maze2d-umaze-dense-v1", (68.537689, 193.66285642381482)),
    ("maze2d-umaze-v1", (23.85, 161.86)),
    ("maze2d-medium-dense-v1", (44.264742, 297.4552547777125)),
    ("maze2d-medium-v1", (13.13, 277.39)),
    ("maze2d-large-dense-v1", (30.569041, 303.4857382709002)),
    ("maze2d-large-v1", (6.7, 273.99)),
    ("maze2d-umaze-dense-v0", (23.249793, 81.78995240126592)),
    ("maze2d-umaze-v0", (0.94, 62.6)),
    ("maze2d-medium-dense-v0", (19.477620, 96.03474232952358)),
    ("maze2d-medium-v0", (5.77, 85.14)),
    ("maze2d-large-dense-v0", (27.388310, 215.09965671563742)),
    ("maze2d-large-v0", (4.83, 191.99)),
    ("maze2d-eval-umaze-dense-v1", (56.95455, 178.21373133248397)),
    ("maze2d-eval-umaze-v1", (36.63, 141.4)),
    ("maze2d-eval-medium-dense-v1", (42.28578, 235.5658957482388)),
    ("maze2d-eval-medium-v1", (13.07, 204.93)),
    ("maze2d-eval-large-dense-v1", (56.95455, 326.09647655082637)),
    ("maze2d-eval-large-v1", (16.4, 302.22)),
    ("pen-*", (96.262799, 3076.8331017826877)),
    ("hammer-*", (-274.856578, 12794.134825156867)),
    ("relocate-*", (-6.425911, 4233.877797728884)),
    ("door-*", (-56.512833, 2880.5693087298737)),
    ("kitchen-*", (0.0, 4.0)),
    ("flow-ring-*", (-165.22, 24.42)),
    ("flow-merge-*", (118.67993, 330.03179)),
    ("carla-lane-*", (-0.8503839912088142, 1023.5784385429523)),
    ("carla-town-*", (-114.81579500772153, 2440.1772022247314)),
    ("minigrid-fourrooms-*", (0.01442, 2.89685)),
)
"""Reference scores of Fu et al. 2020, "D4RL: Datasets for Deep Data-Driven Reinforcement Learning"; the first pattern
that fits the name in lower case, without its backend, counts. They belong to D4RL's own versions of the tasks."""
D4RL_SPLIT = re.compile(
    r"-(random|medium|expert|replay|human|cloned|play|diverse|complete|partial|mixed|umaze|large)\b"
)

DMC = (
    *("acrobot", "ball_in_cup", "cartpole", "cheetah", "dog", "finger", "fish", "hopper", "humanoid", "humanoid_CMU"),
    *("lqr", "manipulator", "pendulum", "point_mass", "quadruped", "reacher", "stacker", "swimmer", "walker"),
)
"""dm_control's domains; EnvPool calls a task DomainTask-v1."""
DMC_IN_ENVPOOL = re.compile(rf"(?:{'|'.join(d.replace('_', '') for d in DMC)})[A-Z]\w*-v\d+", re.IGNORECASE)

CLASSIC = ("CartPole", "Pendulum", "Acrobot", "MountainCar", "MountainCarContinuous")
BOX2D = ("LunarLander", "LunarLanderContinuous", "BipedalWalker", "BipedalWalkerHardcore", "CarRacing")
MUJOCO = (
    *("Ant", "HalfCheetah", "Hopper", "Humanoid", "HumanoidStandup", "InvertedDoublePendulum", "InvertedPendulum"),
    *("Pusher", "Reacher", "Swimmer", "Walker2d"),
)
FAMILIES = {
    name: suite for suite, names in (("classic", CLASSIC), ("box2d", BOX2D), ("mujoco", MUJOCO)) for name in names
}


def bare(env: str) -> str:
    """Without backend and version: envpool:HalfCheetah-v4 -> HalfCheetah."""
    return re.sub(r"(NoFrameskip|Deterministic|-ram)*-v\d+$", "", env.rpartition(":")[2]).removeprefix("ALE/")


def suite(env: str) -> str:
    """atari, dmc, mujoco, classic, box2d, d4rl, kumite, the backend's name, or other."""
    backend, _, name = env.rpartition(":")
    if backend in ("atari", "dmc"):
        return backend
    if env.startswith("ALE/") or bare(env) in ATARI:
        return "atari"
    if bare(env) in FAMILIES:
        return FAMILIES[bare(env)]
    if env.startswith("dm_control/") or (backend == "envpool" and DMC_IN_ENVPOOL.fullmatch(name)):
        return "dmc"
    if env.startswith("D4RL/") or (D4RL_SPLIT.search(name) and _d4rl(env)):
        return "d4rl"
    home = name.split("/")[0] if "/" in name else backend
    return home if home and "." not in home else "other"  # module.path:make is somebody's own


def _d4rl(env: str) -> Ends | None:
    name = env.rpartition(":")[2].lower()
    return next((ends for pattern, ends in D4RL if fnmatch.fnmatchcase(name, pattern)), None)


def ends(env: str, scale: Scale) -> Ends | None:
    """Which returns count as 0 and 1 here; None where this scale does not know the environment."""
    if scale == "atari":
        return ATARI.get(bare(env))
    if scale == "dmc":
        return (0.0, 1000.0) if suite(env) == "dmc" else None
    return _d4rl(env) if scale == "d4rl" else None


def pick(envs: Iterable[str], scale: Scale = "auto") -> Scale:
    """The scale for these environments: one for all of them. auto: their suite's, and `range` for anything else."""
    envs = list(envs)
    if scale == "auto":
        suites = {suite(env) for env in envs}
        (only,) = suites if len(suites) == 1 else ("",)
        known = {"atari": "atari", "dmc": "dmc", "d4rl": "d4rl"}.get(only, "range")
        return known if all(ends(env, known) for env in envs) else "range"  # type: ignore[arg-type,return-value]
    if scale != "range" and (lacking := [env for env in envs if ends(env, scale) is None]):
        raise UserError(f"--scores {scale} knows no scores of '{lacking[0]}'; leave it out with --envs, or use range")
    return scale


ABOUT: dict[str, str] = {
    "atari": "human-normalised score",
    "dmc": "return / 1000",
    "d4rl": "D4RL score / 100",
    "range": "score between the lowest and the highest run compared",
}


def normalised(returns: Column, env: str, scale: Scale, seen: Mapping[str, Ends] | None = None) -> Column:
    """Returns as scores; `seen`: for `range`, the lowest and the highest return of each environment (equal: all 1)."""
    low, high = (seen or {}).get(env, (0.0, 1.0)) if scale == "range" else ends(env, scale) or (np.nan, np.nan)
    return (np.asarray(returns, np.float64) - low) / (high - low) if high != low else np.ones_like(returns)
