"""skrl."""

from __future__ import annotations

import logging
import tempfile
from typing import Any

import clock
import gymnasium
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from skrl.agents.torch.ppo import PPO, PPO_CFG
from skrl.agents.torch.sac import SAC, SAC_CFG
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import CategoricalMixin, DeterministicMixin, GaussianMixin, Model
from skrl.trainers.torch import SequentialTrainer
from torch import nn

given, n = clock.given, clock.given.numbers
logging.disable(logging.CRITICAL)
clock.limit_torch()
watch = clock.Clock()
if n["envs"] == 1:
    env = wrap_env(gymnasium.make(n["env"]), verbose=False)
else:
    made = SyncVectorEnv([lambda: gymnasium.make(n["env"])] * n["envs"], autoreset_mode=AutoresetMode.SAME_STEP)
    env = wrap_env(made, verbose=False)
SPACES = {"observation_space": env.observation_space, "action_space": env.action_space, "device": "cpu"}
NOTHING = {"directory": tempfile.mkdtemp(), "write_interval": 0, "checkpoint_interval": 0}


def body(size: int, activation: type[nn.Module]) -> tuple[nn.Sequential, int]:
    layers: list[nn.Module] = []
    for out in n["layers"]:
        layers += [nn.Linear(size, out), activation()]
        size = out
    return nn.Sequential(*layers), size


class Gaussian(GaussianMixin, Model):
    """log deviation: of the state (SAC) or free (PPO)."""

    def __init__(self, activation: type[nn.Module], of_state: bool) -> None:
        Model.__init__(self, **SPACES)
        GaussianMixin.__init__(self, clip_actions=of_state, min_log_std=-20, max_log_std=2, role="policy")
        self.body, size = body(self.num_observations, activation)
        self.of_state = of_state
        self.mean = nn.Linear(size, self.num_actions)
        self.log_std = nn.Linear(size, self.num_actions) if of_state else nn.Parameter(torch.zeros(self.num_actions))

    def compute(self, inputs: Any, role: str = "") -> Any:
        x = self.body(inputs["observations"])
        mean = self.mean(x)
        return (mean.tanh(), {"log_std": self.log_std(x)}) if self.of_state else (mean, {"log_std": self.log_std})


class Discrete(CategoricalMixin, Model):
    def __init__(self, activation: type[nn.Module]) -> None:
        Model.__init__(self, **SPACES)
        CategoricalMixin.__init__(self, role="policy")
        self.body, size = body(self.num_observations, activation)
        self.out = nn.Linear(size, self.num_actions)

    def compute(self, inputs: Any, role: str = "") -> Any:
        return self.out(self.body(inputs["observations"])), {}


class Value(DeterministicMixin, Model):
    def __init__(self, activation: type[nn.Module], with_action: bool) -> None:
        Model.__init__(self, **SPACES)
        DeterministicMixin.__init__(self, role="value")
        self.with_action = with_action
        self.body, size = body(self.num_observations + (self.num_actions if with_action else 0), activation)
        self.out = nn.Linear(size, 1)

    def compute(self, inputs: Any, role: str = "") -> Any:
        x = inputs["observations"]
        return self.out(self.body(torch.cat([x, inputs["taken_actions"]], -1) if self.with_action else x)), {}


def sac() -> Any:
    models = {"policy": Gaussian(nn.ReLU, True)}
    for name in ("critic_1", "critic_2", "target_critic_1", "target_critic_2"):
        models[name] = Value(nn.ReLU, True)
    cfg = SAC_CFG(
        batch_size=n["batch"],
        discount_factor=n["gamma"],
        polyak=n["tau"],
        learning_rate=n["lr"],
        random_timesteps=n["random_steps"],
        learning_starts=n["random_steps"],
        initial_entropy_value=1.0,
        experiment=NOTHING,
    )
    memory = RandomMemory(memory_size=n["buffer"] // n["envs"], num_envs=n["envs"], device="cpu")
    return SAC(models=models, memory=memory, cfg=cfg, **SPACES)


def ppo() -> Any:
    discrete = isinstance(env.action_space, gymnasium.spaces.Discrete)
    policy = Discrete(nn.Tanh) if discrete else Gaussian(nn.Tanh, False)
    cfg = PPO_CFG(
        rollouts=n["horizon"],
        learning_epochs=n["epochs"],
        mini_batches=n["horizon"] * n["envs"] // n["batch"],
        discount_factor=n["gamma"],
        gae_lambda=n["lam"],
        learning_rate=n["lr"],
        grad_norm_clip=n["grad_norm"],
        ratio_clip=n["clip"],
        value_clip=0,
        entropy_loss_scale=n["entropy"],
        value_loss_scale=n["value"],
        experiment=NOTHING,
    )
    memory = RandomMemory(memory_size=n["horizon"], num_envs=n["envs"], device="cpu")
    return PPO(models={"policy": policy, "value": Value(nn.Tanh, False)}, memory=memory, cfg=cfg, **SPACES)


off_policy = given.work.startswith("sac")
agent = sac() if off_policy else ppo()
inner = agent.post_interaction


def post_interaction(*, timestep: int, timesteps: int) -> None:
    inner(timestep=timestep, timesteps=timesteps)
    if off_policy or (timestep + 1) % n["horizon"] == 0:
        watch.check((timestep + 1) * n["envs"])


agent.post_interaction = post_interaction
LONG = {"timesteps": 10**9, "headless": True, "disable_progressbar": True}
trainer = SequentialTrainer(env=env, agents=agent, cfg=LONG)
try:
    trainer.train()
except clock.Done:
    watch.report("skrl", "torch", "gymnasium")
