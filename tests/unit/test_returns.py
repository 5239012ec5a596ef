"""Returns against their definitions, written as slow loops over single episodes."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kumite.returns import at_most, corrected, discounted, gae, lambda_return, squash, unsquash, vtrace, windows


class Case(NamedTuple):
    reward: Tensor
    value: Tensor
    terminated: Tensor
    over: Tensor
    log_ratio: Tensor
    gamma: float
    lam: float


@st.composite
def cases(draw: st.DrawFn) -> Case:
    T, N = draw(st.integers(1, 8)), draw(st.integers(1, 3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    numbers = torch.randn(3, T + 1, N, generator=generator, dtype=torch.float64)
    ends = st.lists(st.sampled_from([0, 0, 0, 1, 2]), min_size=T * N, max_size=T * N)
    end = torch.tensor(draw(ends)).view(T, N)
    # discounts that float32 holds exactly, so that the comparison can be strict
    gamma, lam = draw(st.sampled_from([0.0, 0.5, 0.875, 1.0])), draw(st.sampled_from([0.0, 0.25, 0.9375, 1.0]))
    return Case(numbers[0, :T], numbers[1], end == 1, end > 0, numbers[2, :T], gamma, lam)


def last_of_episode(over: Tensor, t: int, n: int) -> int:
    """The last step of the episode that step t belongs to, as far as it was seen."""
    while t < over.shape[0] - 1 and not over[t, n]:
        t += 1
    return t


def k_step_return(x: Case, t: int, n: int, last: int) -> float:
    """Rewards from t to `last` and the value after it, unless the episode terminated there."""
    total = sum(x.gamma ** (i - t) * float(x.reward[i, n]) for i in range(t, last + 1))
    return total + x.gamma ** (last + 1 - t) * float(x.value[last + 1, n]) * (not x.terminated[last, n])


def places(x: Case) -> list[tuple[int, int]]:
    return [(t, n) for t in range(x.reward.shape[0]) for n in range(x.reward.shape[1])]


@given(cases())
def test_lambda_return_is_the_weighted_mean_of_k_step_returns(x: Case) -> None:
    target = lambda_return(x.reward, x.value, x.terminated, x.over, x.gamma, x.lam)
    for t, n in places(x):
        last = last_of_episode(x.over, t, n)
        parts = [k_step_return(x, t, n, i) for i in range(t, last + 1)]
        mean = sum((1 - x.lam) * x.lam**k * g for k, g in enumerate(parts[:-1])) + x.lam ** (last - t) * parts[-1]
        assert float(target[t, n]) == pytest.approx(mean, abs=1e-9)


@given(cases())
def test_gae_is_the_discounted_sum_of_errors(x: Case) -> None:
    advantage, returns = gae(x.reward, x.value, x.terminated, x.over, x.gamma, x.lam)
    for t, n in places(x):
        total = 0.0
        for i in range(t, last_of_episode(x.over, t, n) + 1):
            follows = 0.0 if x.terminated[i, n] else float(x.value[i + 1, n])
            total += (x.gamma * x.lam) ** (i - t) * (float(x.reward[i, n]) + x.gamma * follows - float(x.value[i, n]))
        assert float(advantage[t, n]) == pytest.approx(total, abs=1e-9)
    torch.testing.assert_close(returns, advantage + x.value[:-1])


def test_a_time_limit_bootstraps_and_a_termination_does_not() -> None:
    reward, value = torch.ones(1, 2), torch.tensor([[0.0, 0.0], [10.0, 10.0]])
    terminated, over = torch.tensor([[True, False]]), torch.tensor([[True, True]])
    _, returns = gae(reward, value, terminated, over, 0.9, 1.0)
    assert returns.tolist() == [[1.0, 10.0]]


@given(cases(), st.sampled_from([0.5, 1.0, 3.0]), st.sampled_from([0.5, 1.0, 2.0]))
def test_vtrace_is_its_definition(x: Case, rho_max: float, c_max: float) -> None:
    """v_t = V_t + sum_i gamma^(i-t) (prod_{t<=j<i} lam min(c, ratio_j)) min(rho, ratio_i) delta_i."""
    target = vtrace(x.reward, x.value, x.terminated, x.over, x.log_ratio, x.gamma, x.lam, rho_max, c_max)
    for t, n in places(x):
        total, trace = float(x.value[t, n]), 1.0
        for i in range(t, last_of_episode(x.over, t, n) + 1):
            ratio = math.exp(x.log_ratio[i, n])
            follows = 0.0 if x.terminated[i, n] else float(x.value[i + 1, n])
            delta = float(x.reward[i, n]) + x.gamma * follows - float(x.value[i, n])
            total += x.gamma ** (i - t) * trace * min(rho_max, ratio) * delta
            trace *= x.lam * min(c_max, ratio)
        assert float(target[t, n]) == pytest.approx(total, abs=1e-9)


@given(cases())
def test_vtrace_on_policy_is_the_lambda_return(x: Case) -> None:
    same = torch.zeros_like(x.log_ratio)
    torch.testing.assert_close(
        vtrace(x.reward, x.value, x.terminated, x.over, same, x.gamma, x.lam),
        lambda_return(x.reward, x.value, x.terminated, x.over, x.gamma, x.lam),
    )


def first_window(x: Case) -> dict[str, Tensor]:
    """A case as `corrected` takes it: the last row of each window is the last one seen."""
    mask = torch.cat([torch.ones_like(x.reward[:1]), (~x.over[:-1]).double()])
    return {"reward": x.reward, "discount": x.gamma * ~x.terminated, "value": x.value[1:], "mask": mask}


@given(cases(), st.sampled_from([0.5, 1.0, 3.0]), st.sampled_from([0.0, 0.5, 2.0]))
def test_vtrace_corrects_what_follows_the_first_action(x: Case, rho_max: float, c_max: float) -> None:
    """y = r_0 + gamma v_1, v_1 by the definition of V-trace from the second row on."""
    w = first_window(x)
    baseline = x.value[:-1].clone()
    baseline[0] = math.nan  # of no importance, as the first ratio
    rho, c = at_most(rho_max, x.log_ratio), x.lam * at_most(c_max, x.log_ratio)
    rho[0] = c[0] = math.nan
    target = corrected(**w, baseline=baseline, rho=rho, c=c)
    v = x.value if x.reward.shape[0] == 1 else x.value.clone()
    if x.reward.shape[0] > 1:
        rest = (x.reward[1:], x.value[1:], x.terminated[1:], x.over[1:], x.log_ratio[1:])
        v[1] = vtrace(*rest, x.gamma, x.lam, rho_max, c_max)[0]
    follows = torch.where(x.over[0], x.value[1], v[1])  # beyond a time limit there is nothing to correct
    torch.testing.assert_close(target, x.reward[0] + x.gamma * ~x.terminated[0] * follows)


@given(cases())
def test_vtrace_on_policy_is_the_n_step_return(x: Case) -> None:
    w, one = first_window(x), torch.ones_like(x.reward)
    target = corrected(**w, baseline=x.value[:-1], rho=one, c=one)
    for n in range(x.reward.shape[1]):
        assert float(target[n]) == pytest.approx(k_step_return(x, 0, n, last_of_episode(x.over, 0, n)), abs=1e-9)


@given(cases(), st.integers(0, 1000))
def test_retrace_is_its_definition(x: Case, seed: int) -> None:
    """Q_0 + sum_t gamma^t (prod_{1..t} c) (r_t + gamma V_{t+1} - Q_t)."""
    q = torch.randn(x.reward.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    c = x.lam * at_most(1.0, x.log_ratio)
    target = corrected(**first_window(x), baseline=q, rho=c, c=c)
    for n in range(x.reward.shape[1]):
        total, trace = float(q[0, n]), 1.0
        for t in range(last_of_episode(x.over, 0, n) + 1):
            trace *= x.lam * min(1.0, math.exp(x.log_ratio[t, n])) if t else 1.0
            follows = 0.0 if x.terminated[t, n] else float(x.value[t + 1, n])
            total += x.gamma**t * trace * (float(x.reward[t, n]) + x.gamma * follows - float(q[t, n]))
        assert float(target[n]) == pytest.approx(total, abs=1e-9)


def test_ratios_without_end_stay_finite() -> None:
    huge = torch.tensor([[0.0], [1e6], [-1e6]])
    assert at_most(2.0, huge)[:, 0].tolist() == [1.0, 2.0, 0.0]
    assert at_most(0.0, huge).tolist() == [[0.0]] * 3


def test_windows_are_neighbouring_rows() -> None:
    x = torch.arange(10).view(5, 2)
    assert torch.equal(windows(x, 3), torch.stack([x[0:3], x[1:4], x[2:5]]).transpose(0, 1))


@given(cases())
def test_discounted_returns_begin_anew_with_each_episode(x: Case) -> None:
    start = x.value[0]
    found = discounted(x.reward, x.over, start, x.gamma)
    for n in range(x.reward.shape[1]):
        running = float(start[n])
        for t in range(x.reward.shape[0]):
            running = x.gamma * running + float(x.reward[t, n])
            assert float(found[t, n]) == pytest.approx(running, abs=1e-9)
            if x.over[t, n]:
                running = 0.0


@given(st.floats(-1e4, 1e4), st.sampled_from([1e-3, 1e-2]))
def test_unsquash_undoes_squash(x: float, eps: float) -> None:
    y = torch.tensor(x, dtype=torch.float64)
    assert float(unsquash(squash(y, eps), eps)) == pytest.approx(x, rel=1e-6, abs=1e-6)


def test_squash_is_its_formula() -> None:
    x = torch.tensor([-8.0, -0.5, 0.0, 3.0, 99.0], dtype=torch.float64)
    expected = [math.copysign(math.sqrt(abs(v) + 1) - 1, v) + 1e-3 * v for v in x.tolist()]
    torch.testing.assert_close(squash(x), torch.tensor(expected, dtype=torch.float64))
