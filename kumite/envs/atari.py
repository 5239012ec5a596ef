"""Atari games `atari:Pong`, by ALE's own vector environment with every option named.

84 x 84 grey frames, each the maximum of the last two of four; up to 30 no-ops and fire at a reset; sticky actions;
games of at most 108,000 frames. Rewards come raw: the learner's are signs by default (`--env.reward-transform`), the
returns are the game's. Four frames are stacked by default (`--env.frame-stack`).
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from kumite.envs import ids
from kumite.envs.base import EnvConfig, VecEnv
from kumite.envs.episode import refuse_foreign
from kumite.envs.pool import AtariVec, Said
from kumite.envs.spaces import Array, Native
from kumite.envs.vector import refuse_inner
from kumite.errors import UserError, missing_extra, nearest

SKIP = 4
FRAMES = 108_000


class Ale:
    """An AtariVectorEnv."""

    def __init__(self, env: Any, seeds: list[int]) -> None:
        self.env = env
        self.seeds = np.array(seeds)

    def start(self) -> tuple[Any, dict[str, Any]]:
        return self.env.reset(seed=self.seeds)

    def send(self, actions: Any, who: Array) -> None:
        self.env.send(actions)

    def recv(self) -> Said:
        obs, reward, terminated, truncated, info = self.env.recv()
        return Said(obs, reward, terminated, truncated, info, None)

    def close(self) -> None:
        self.env.close()


def make(name: str, num_envs: int, seed: int, config: EnvConfig, render: bool) -> VecEnv:
    """`atari:MsPacman`, also written `atari:ms_pacman` or `atari:ALE/MsPacman-v5`."""
    refuse_inner(config, "Atari, whose frame skip is 4 already")
    refuse_foreign(config, "batch")
    if config.hide or config.mask_velocity:
        raise UserError("--env.hide and --env.mask-velocity drop entries of a vector, and Atari shows pictures")
    if config.mode == "workers":
        raise UserError("Atari games run in threads of their own: use --env.mode sync, or the gymnasium id ALE/...-v5")
    try:
        import ale_py
        import gymnasium
        from ale_py import roms
        from ale_py.vector_env import AtariVectorEnv
    except ImportError:
        raise missing_extra("ale_py", "atari") from None
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    gymnasium.register_envs(ale_py)
    titles = [k[4:-3] for k in gymnasium.registry if k.startswith("ALE/")]
    title = plain(name)
    if title not in map(plain, titles):
        raise UserError(f"there is no Atari game '{name}'{nearest(name, titles)}")
    game = next(k for k in roms.get_all_rom_ids() if plain(k) == title)
    steps = config.max_steps or FRAMES // SKIP
    options = {
        "num_envs": num_envs,
        "max_num_frames_per_episode": steps * SKIP,
        "repeat_action_probability": config.sticky,
        "full_action_space": False,
        "img_height": 84,
        "img_width": 84,
        "grayscale": True,
        "stack_num": 1,
        "frameskip": SKIP,
        "maxpool": True,
        "noop_max": 30,
        "episodic_life": False,
        "life_loss_info": False,
        "reward_clipping": False,
        "use_fire_reset": True,
        "autoreset_mode": "NextStep",
        **ids.keywords(config.kwargs),
    }
    try:
        env = AtariVectorEnv(game, **options)
    except (TypeError, ValueError, RuntimeError) as err:
        raise UserError(f"making the Atari game '{name}' failed: {err}") from err
    meanings = [getattr(a, "name", str(a)) for a in env.ale.get_action_set()]
    wake = 1 if len(meanings) > 1 and meanings[1] == "FIRE" and options["use_fire_reset"] else 0
    native = Native(env.single_observation_space, env.single_action_space)
    first = [env]

    def build(seeds: list[int]) -> Ale:
        return Ale(first.pop() if first else AtariVectorEnv(game, **options), seeds)

    return AtariVec(build, native, num_envs, steps, config.episodic_life, wake)


def plain(name: str) -> str:
    """MsPacman, ALE/MsPacman-v5, MsPacmanNoFrameskip-v4 and ms_pacman are the same game."""
    name = re.sub(r"-v\d+$", "", name.split("/")[-1]).removesuffix("NoFrameskip")
    return name.replace("_", "").lower()
