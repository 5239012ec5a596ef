"""SAC and PPO as one would write them by hand in plain PyTorch, on one page, the way CleanRL does.

Gymnasium's own SyncVectorEnv, a numpy replay buffer, modules, torch.optim.Adam, nothing compiled.
"""

from __future__ import annotations

from copy import deepcopy
from itertools import pairwise

import clock
import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import nn
from torch.distributions import Categorical, Normal

given, n = clock.given, clock.given.numbers
watch = clock.Clock()
envs = SyncVectorEnv([lambda: gymnasium.make(n["env"])] * n["envs"], autoreset_mode=AutoresetMode.SAME_STEP)
space = envs.single_action_space
O = envs.single_observation_space.shape[0]
N = n["envs"]


def mlp(sizes: list[int], activation: type[nn.Module]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes[:-1]):
        layers += [nn.Linear(a, b), activation()]
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]))


# --- SAC -----------------------------------------------------------------------------------------------------------


def sample(actor: nn.Module, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mean, raw = actor(obs).chunk(2, -1)
    normal = Normal(mean, raw.clamp(-20, 2).exp())
    u = normal.rsample()
    a = u.tanh()
    return a, (normal.log_prob(u) - torch.log(1 - a.square() + 1e-6)).sum(-1)


def sac() -> None:
    A = space.shape[0]
    actor = mlp([O, *n["layers"], 2 * A], nn.ReLU)
    critics = nn.ModuleList(mlp([O + A, *n["layers"], 1], nn.ReLU) for _ in range(2))
    targets = deepcopy(critics)
    log_alpha = torch.zeros(1, requires_grad=True)
    adam_pi, adam_q = (torch.optim.Adam(net.parameters(), lr=n["lr"]) for net in (actor, critics))
    adam_a = torch.optim.Adam([log_alpha], lr=n["lr"])
    size = n["buffer"]
    ring = {k: np.zeros((size, *s), np.float32) for k, s in {"o": (O,), "p": (O,), "a": (A,), "r": (), "d": ()}.items()}
    obs, _ = envs.reset(seed=given.seed)
    step = 0
    while True:
        watch.check(step)
        if step < n["random_steps"]:
            action = envs.action_space.sample()
        else:
            with torch.no_grad():
                action = sample(actor, torch.as_tensor(obs, dtype=torch.float32))[0].numpy() * space.high
        after, reward, end, cut, info = envs.step(action)
        true = after
        if cut.any() or end.any():
            true = after.copy()
            for i in np.flatnonzero(end | cut):
                true[i] = info["final_obs"][i]
        at = step % size
        for key, value in zip("opard", (obs, true, action, reward, end)):
            ring[key][at] = value[0]
        obs, step = after, step + 1
        if step <= n["random_steps"]:
            continue
        rows = np.random.randint(0, min(step, size), n["batch"])
        o, p, a, r, d = (torch.from_numpy(ring[k][rows]) for k in "opard")
        alpha = log_alpha.exp().detach()
        with torch.no_grad():
            b, logp = sample(actor, p)
            x = torch.cat([p, b], -1)
            y = r + n["gamma"] * (1 - d) * (torch.min(*(q(x)[:, 0] for q in targets)) - alpha * logp)
        x = torch.cat([o, a], -1)
        loss = sum(nn.functional.mse_loss(q(x)[:, 0], y) for q in critics)
        adam_q.zero_grad()
        loss.backward()
        adam_q.step()
        b, logp = sample(actor, o)
        x = torch.cat([o, b], -1)
        loss = (alpha * logp - torch.min(*(q(x)[:, 0] for q in critics))).mean()
        adam_pi.zero_grad()
        loss.backward()
        adam_pi.step()
        loss = -(log_alpha.exp() * (logp.detach() - A)).mean()
        adam_a.zero_grad()
        loss.backward()
        adam_a.step()
        with torch.no_grad():
            for t, q in zip(targets.parameters(), critics.parameters()):
                t.lerp_(q, n["tau"])


# --- PPO -----------------------------------------------------------------------------------------------------------


def ppo() -> None:
    discrete = hasattr(space, "n")
    A = int(space.n) if discrete else space.shape[0]
    actor, critic = mlp([O, *n["layers"], A], nn.Tanh), mlp([O, *n["layers"], 1], nn.Tanh)
    log_std = nn.Parameter(torch.zeros(A))
    parameters = [*actor.parameters(), *critic.parameters(), *([] if discrete else [log_std])]
    adam = torch.optim.Adam(parameters, lr=n["lr"], eps=1e-5)

    def policy(o: torch.Tensor) -> Categorical | Normal:
        return Categorical(logits=actor(o)) if discrete else Normal(actor(o), log_std.exp())

    def density(pi: Categorical | Normal, a: torch.Tensor) -> torch.Tensor:
        return pi.log_prob(a) if discrete else pi.log_prob(a).sum(-1)

    T = n["horizon"]
    obs, _ = envs.reset(seed=given.seed)
    obs = torch.as_tensor(obs, dtype=torch.float32)
    rows = torch.zeros(T, N, O)
    actions = torch.zeros(T, N, dtype=torch.int64) if discrete else torch.zeros(T, N, A)
    logps, rewards, values, ends = (torch.zeros(T, N) for _ in range(4))
    step = 0
    while True:
        watch.check(step)
        for t in range(T):
            with torch.no_grad():
                pi = policy(obs)
                action = pi.sample()
                rows[t], actions[t], logps[t], values[t] = obs, action, density(pi, action), critic(obs)[:, 0]
            a = action.numpy() if discrete else action.clamp(-1, 1).numpy()
            after, reward, end, cut, _ = envs.step(a)
            rewards[t] = torch.from_numpy(np.asarray(reward, np.float32))
            ends[t] = torch.from_numpy((end | cut).astype(np.float32))
            obs = torch.as_tensor(after, dtype=torch.float32)
        step += T * N
        with torch.no_grad():
            last = critic(obs)[:, 0]
            advantage, running = torch.zeros(T, N), torch.zeros(N)
            for t in reversed(range(T)):
                following = last if t == T - 1 else values[t + 1]
                delta = rewards[t] + n["gamma"] * following * (1 - ends[t]) - values[t]
                advantage[t] = running = delta + n["gamma"] * n["lam"] * (1 - ends[t]) * running
        returns = (advantage + values).flatten()
        o, a, old, adv = rows.flatten(0, 1), actions.flatten(0, 1), logps.flatten(), advantage.flatten()
        for _ in range(n["epochs"]):
            for i in torch.randperm(T * N).split(n["batch"]):
                pi = policy(o[i])
                ratio = (density(pi, a[i]) - old[i]).exp()
                g = adv[i]
                g = (g - g.mean()) / (g.std() + 1e-8)
                loss = -torch.min(ratio * g, ratio.clamp(1 - n["clip"], 1 + n["clip"]) * g).mean()
                loss = loss + n["value"] * nn.functional.mse_loss(critic(o[i])[:, 0], returns[i])
                adam.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, n["grad_norm"])
                adam.step()


clock.limit_torch()
try:
    sac() if given.work.startswith("sac") else ppo()
except clock.Done:
    watch.report("torch", "gymnasium")
