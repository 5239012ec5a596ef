"""Tianshou 2, by its procedural interface."""

from __future__ import annotations

from typing import Any

import clock
import gymnasium
import torch
from tianshou.algorithm import PPO, SAC
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.algorithm.modelfree.sac import AutoAlpha, SACPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams, OnPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
from torch.distributions import Categorical, Independent, Normal

given, n = clock.given, clock.given.numbers
clock.limit_torch()
watch = clock.Clock()
envs = DummyVectorEnv([lambda: gymnasium.make(n["env"]) for _ in range(n["envs"])])
envs.seed(given.seed)
observation, action = envs.observation_space[0], envs.action_space[0]
discrete = isinstance(action, gymnasium.spaces.Discrete)
O, A = observation.shape, action.n if discrete else action.shape
LONG = {"max_epochs": 10**6, "epoch_num_steps": 10**9, "verbose": False, "show_progress": False}


def net(activation: Any, concat: bool = False) -> Net:
    return Net(
        state_shape=O, action_shape=A if concat else 0, hidden_sizes=n["layers"], activation=activation, concat=concat
    )


def sac() -> None:
    policy = SACPolicy(
        actor=ContinuousActorProbabilistic(
            preprocess_net=net(torch.nn.ReLU), action_shape=A, unbounded=True, conditioned_sigma=True
        ),
        action_space=action,
    )
    adam = AdamOptimizerFactory(lr=n["lr"])
    critics = [ContinuousCritic(preprocess_net=net(torch.nn.ReLU, True)) for _ in range(2)]
    alpha = AutoAlpha(-float(A[0]), 0.0, AdamOptimizerFactory(lr=n["lr"]))
    algorithm: Any = SAC(
        policy=policy,
        policy_optim=adam,
        critic=critics[0],
        critic_optim=adam,
        critic2=critics[1],
        critic2_optim=adam,
        tau=n["tau"],
        gamma=n["gamma"],
        alpha=alpha,
    )
    collector: Any = Collector(algorithm, envs, VectorReplayBuffer(n["buffer"], n["envs"]), exploration_noise=False)
    collector.reset()
    collector.collect(n_step=n["random_steps"], random=True)
    algorithm.run_training(
        OffPolicyTrainerParams(
            training_collector=collector,
            collection_step_num_env_steps=n["envs"],
            batch_size=n["batch"],
            update_step_num_gradient_steps_per_sample=1.0,
            training_fn=lambda epoch, steps: watch.check(steps + n["random_steps"]),
            **LONG,
        )
    )


def ppo() -> None:
    if discrete:
        actor: Any = DiscreteActor(preprocess_net=net(torch.nn.Tanh), action_shape=A, softmax_output=False)
        critic: Any = DiscreteCritic(preprocess_net=net(torch.nn.Tanh))
        distribution: Any = lambda logits: Categorical(logits=logits)
    else:
        actor = ContinuousActorProbabilistic(preprocess_net=net(torch.nn.Tanh), action_shape=A, unbounded=True)
        critic = ContinuousCritic(preprocess_net=net(torch.nn.Tanh))
        distribution = lambda pair: Independent(Normal(*pair), 1)
    policy = ProbabilisticActorPolicy(
        actor=actor,
        dist_fn=distribution,
        action_space=action,
        action_scaling=not discrete,
        action_bound_method=None if discrete else "clip",
    )
    algorithm: Any = PPO(
        policy=policy,
        critic=critic,
        optim=AdamOptimizerFactory(lr=n["lr"], eps=1e-5),
        eps_clip=n["clip"],
        vf_coef=n["value"],
        ent_coef=n["entropy"],
        max_grad_norm=n["grad_norm"],
        gae_lambda=n["lam"],
        gamma=n["gamma"],
    )
    rows = n["horizon"] * n["envs"]
    collector: Any = Collector(algorithm, envs, VectorReplayBuffer(rows, n["envs"]))
    collector.reset()
    algorithm.run_training(
        OnPolicyTrainerParams(
            training_collector=collector,
            collection_step_num_env_steps=rows,
            batch_size=n["batch"],
            update_step_num_repetitions=n["epochs"],
            training_fn=lambda epoch, steps: watch.check(steps),
            **LONG,
        )
    )


try:
    sac() if given.work.startswith("sac") else ppo()
except clock.Done:
    watch.report("tianshou", "torch", "gymnasium")
