"""Returns as pure functions along dim 0 (time). No algorithm spells gamma or an episode's end again."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def carried(x: Tensor, keep: Tensor) -> Tensor:
    """y_t = x_t + keep_t y_{t+1}, nothing after the last row.

    In log T steps: after each, y_t holds twice as many terms, and keep_t what lies beyond them is worth.
    """
    reach = 1
    while reach < x.shape[0]:
        x = torch.cat([x[:-reach] + keep[:-reach] * x[reach:], x[-reach:]])
        keep = torch.cat([keep[:-reach] * keep[reach:], keep[-reach:]])
        reach *= 2
    return x


def gae(
    reward: Tensor, value: Tensor, terminated: Tensor, over: Tensor, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Generalised advantages and the returns they imply. reward, terminated, over: [T, N]; value: [T + 1, N].

    value[t + 1] is V of the true observation after step t: a time limit bootstraps from it, a termination does not.
    """
    delta = reward + gamma * ~terminated * value[1:] - value[:-1]
    advantage = carried(delta, gamma * lam * (~over).to(delta.dtype))
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
    return carried(delta, gamma * c * (~over).to(delta.dtype)) + value[:-1]


def corrected(
    reward: Tensor, discount: Tensor, value: Tensor, baseline: Tensor, mask: Tensor, rho: Tensor, c: Tensor
) -> Tensor:
    """n-step targets of Q(s_0, a_0) from steps of another policy. All [n, ...]; row i is the step from s_i to s_{i+1}.

        y = r_0 + g_0 (V_1 + A_1),     A_i = rho_i (r_i + g_i V_{i+1} - B_i) + g_i c_i A_{i+1},     A_n = 0

    discount: g, 0 after a termination; value: V_{i+1}; mask: 0 at void rows, which end the window; ratio: pi / mu.

        V-trace   B_i = V_i,          rho = min(rho_max, ratio), c = lam min(c_max, ratio); on policy the n-step return
        Retrace   B_i = Q(s_i, a_i),  rho = c = lam min(1, ratio)          (Munos et al. 2016)

    The first action is given, so its ratio and baseline do not matter.
    """
    ahead = torch.zeros_like(value[0])
    for i in range(reward.shape[0] - 1, 0, -1):
        ahead = rho[i] * (reward[i] + discount[i] * value[i] - baseline[i]) + discount[i] * c[i] * ahead
        ahead = torch.where(mask[i] > 0, ahead, 0.0)
    return reward[0] + discount[0] * (value[0] + ahead)


def at_most(limit: float, log_ratio: Tensor) -> Tensor:
    """min(limit, ratio), which cannot overflow."""
    return log_ratio.clamp(max=math.log(limit)).exp() if limit > 0 else torch.zeros_like(log_ratio)


def windows(x: Tensor, n: int) -> Tensor:
    """The n rows from each row on: [T + n - 1, ...] -> [n, T, ...]."""
    return x.unfold(0, n, 1).movedim(-1, 0)


def discounted(reward: Tensor, over: Tensor, start: Tensor, gamma: float) -> Tensor:
    """The running discounted return G_t = gamma G_{t-1} + r_t, forgotten after an end. [T, N], from `start` [N]."""
    keep = gamma * (~over).to(reward.dtype)
    x = torch.cat([reward[:1] + gamma * start, reward[1:]])
    before = torch.cat([torch.zeros_like(keep[:1]), keep[:-1]])  # how much of the row before is carried
    return carried(x.flip(0), before.flip(0)).flip(0)


def squash(x: Tensor, eps: float = 1e-3) -> Tensor:
    """Value rescaling h of R2D2."""
    return x.sign() * ((x.abs() + 1).sqrt() - 1) + eps * x


def unsquash(y: Tensor, eps: float = 1e-3) -> Tensor:
    """h's inverse."""
    return y.sign() * ((((1 + 4 * eps * (y.abs() + 1 + eps)).sqrt() - 1) / (2 * eps)).square() - 1)
