"""Returns as pure functions along dim 0 (time). No algorithm spells gamma or an episode's end again."""

from __future__ import annotations

import torch
from torch import Tensor


def gae(
    reward: Tensor, value: Tensor, terminated: Tensor, over: Tensor, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Generalised advantages and the returns they imply. reward, terminated, over: [T, N]; value: [T + 1, N].

    value[t + 1] is V of the true observation after step t: a time limit bootstraps from it, a termination does not.
    """
    delta = reward + gamma * ~terminated * value[1:] - value[:-1]
    keep = gamma * lam * ~over
    advantage = torch.empty_like(delta)
    running = torch.zeros_like(delta[0])
    for t in range(delta.shape[0] - 1, -1, -1):
        running = delta[t] + keep[t] * running
        advantage[t] = running
    return advantage, advantage + value[:-1]


def lambda_return(reward: Tensor, value: Tensor, terminated: Tensor, over: Tensor, gamma: float, lam: float) -> Tensor:
    """TD(lambda) targets; arguments as in gae."""
    return gae(reward, value, terminated, over, gamma, lam)[1]


def vtrace(
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    over: Tensor,
    log_ratio: Tensor,
    gamma: float,
    lam: float = 1.0,
    rho_max: float = 1.0,
    c_max: float = 1.0,
) -> Tensor:
    """V-trace targets v_t (Espeholt et al. 2018). log_ratio [T, N] = log pi - log mu of the actions taken.

    With pi = mu and all limits 1 these are the lambda returns.
    """
    ratio = log_ratio.exp()
    rho, c = ratio.clamp(max=rho_max), lam * ratio.clamp(max=c_max)
    delta = rho * (reward + gamma * ~terminated * value[1:] - value[:-1])
    keep = gamma * c * ~over
    target = torch.empty_like(delta)
    running = torch.zeros_like(delta[0])
    for t in range(delta.shape[0] - 1, -1, -1):
        running = delta[t] + keep[t] * running
        target[t] = running
    return target + value[:-1]


def discounted(reward: Tensor, over: Tensor, start: Tensor, gamma: float) -> Tensor:
    """The running discounted return G_t = gamma G_{t-1} + r_t, forgotten after an end. [T, N], from `start` [N]."""
    out = torch.empty_like(reward)
    running = start
    for t in range(reward.shape[0]):
        running = running * gamma + reward[t]
        out[t] = running
        running = running * ~over[t]
    return out


def squash(x: Tensor, eps: float = 1e-3) -> Tensor:
    """Value rescaling h of R2D2."""
    return x.sign() * ((x.abs() + 1).sqrt() - 1) + eps * x


def unsquash(y: Tensor, eps: float = 1e-3) -> Tensor:
    """h's inverse."""
    return y.sign() * ((((1 + 4 * eps * (y.abs() + 1 + eps)).sqrt() - 1) / (2 * eps)).square() - 1)
