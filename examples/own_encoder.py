"""Your own net: any nn.Module as the encoder, by class or as `module:Class`.

python examples/own_encoder.py
PYTHONPATH=examples kumite train ppo Pendulum-v1 --encoder own_encoder:Waves --steps 20k
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

import kumite
from kumite.types import Spec


class Waves(nn.Module):
    """Sines of learned combinations of all observation entries (random Fourier features that are trained)."""

    def __init__(self, obs_space: dict[str, Spec]) -> None:
        """Gets what the net may see, {name: Spec(shape, dtype, ...)}; says in `size` how many features it returns."""
        super().__init__()
        self.dims = {k: len(s.shape) for k, s in obs_space.items() if k != "mask"}  # legal actions are no input
        inputs = sum(math.prod(obs_space[k].shape) for k in self.dims)
        self.size = 64
        self.project = nn.Linear(inputs, self.size)

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        """[*, ...] per entry -> [*, size]; there may be one leading dimension (rows) or two (time, rows)."""
        flat = [obs[k].flatten(obs[k].dim() - n).float() if n else obs[k][..., None] for k, n in self.dims.items()]
        return self.project(torch.cat(flat, -1)).sin()


if __name__ == "__main__":
    agent = kumite.PPO("Pendulum-v1", encoder="own_encoder:Waves", num_envs=2, horizon=64, batch_size=64, quiet=True)
    agent.learn(256)
    print(agent.algo.net.actor.torso.sensors)
    agent.save("waves")  # the checkpoint names own_encoder:Waves; loading imports it again
    print(kumite.load("waves").predict([1.0, 0.0, 0.0])[0])
