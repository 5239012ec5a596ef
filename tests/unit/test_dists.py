"""Distributions over actions against torch.distributions, loops and counted samples."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Independent, TransformedDistribution, kl_divergence
from torch.distributions import Normal as TorchNormal
from torch.distributions.transforms import TanhTransform

from kumite.nn.dists import Branches, Normal, Policy, pick
from kumite.nn.models import PolicyHead
from kumite.types import ActionSpec

SIZES = (2, 5, 3)
MASK = torch.tensor([[1, 1, 0, 1, 0, 0, 1, 1, 1, 0], [0, 1, 1, 1, 1, 1, 1, 1, 0, 0]]).bool()


def normal(squashed: bool = False, log_std: float = 0.0) -> Normal:
    spread = 0.3 * torch.randn(6, 4, dtype=torch.float64) + log_std
    return Normal(torch.randn(6, 4, dtype=torch.float64), spread, squashed)


def theirs(dist: Normal) -> Independent:
    return Independent(TorchNormal(dist.mean, dist.log_std.exp()), 1)


def branches(rows: int = 2, mask: Tensor | None = None) -> Branches:
    return Branches.of(2 * torch.randn(rows, sum(SIZES), dtype=torch.float64), SIZES, mask)


def categoricals(b: Branches) -> list[Categorical]:
    return [Categorical(logits=part) for part in b.log_p.split(SIZES, -1)]


# -- continuous -------------------------------------------------------------------------------------------------------


def test_normal_is_torchs() -> None:
    ours, other, u = normal(), normal(), torch.randn(6, 4, dtype=torch.float64)
    torch.testing.assert_close(ours.log_prob(u), theirs(ours).log_prob(u))
    torch.testing.assert_close(ours.entropy(), theirs(ours).entropy())
    torch.testing.assert_close(ours.kl(other), kl_divergence(theirs(ours), theirs(other)))


def test_squashed_density_is_torchs_transformed_one() -> None:
    ours = normal(squashed=True)
    u = ours.sample().clamp(-5, 5)  # theirs inverts tanh, which loses digits further out
    transformed = Independent(TransformedDistribution(TorchNormal(ours.mean, ours.log_std.exp()), TanhTransform()), 1)
    torch.testing.assert_close(ours.log_prob(u), transformed.log_prob(ours.squash(u)), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("u", [-20.0, -3.0, 0.0, 20.0])
def test_squashed_density_is_exact_and_smooth_far_out(u: float) -> None:
    """float32 against 2 (log 2 - |u| - log(1 + exp(-2 |u|))), the log of 1 - tanh(u)^2."""
    x = torch.tensor([[u]], requires_grad=True)
    log_prob = Normal(torch.zeros(1, 1), torch.zeros(1, 1), True).log_prob(x)
    (slope,) = torch.autograd.grad(log_prob.sum(), x)
    jacobian = 2 * (math.log(2) - abs(u) - math.log1p(math.exp(-2 * abs(u))))
    assert log_prob.item() == pytest.approx(-0.5 * u * u - 0.5 * math.log(2 * math.pi) - jacobian, rel=1e-6)
    assert float(slope) == pytest.approx(-u + 2 * math.tanh(u), rel=1e-5, abs=1e-6)


def test_samples_have_the_mean_and_the_deviation() -> None:
    dist = Normal(torch.tensor([1.0, -2.0]).expand(50_000, 2), torch.tensor([0.0, math.log(0.1)]).expand(50_000, 2))
    samples = dist.sample()
    assert samples.mean(0).tolist() == pytest.approx([1.0, -2.0], abs=0.02)
    assert samples.std(0).tolist() == pytest.approx([1.0, 0.1], rel=0.02)
    assert not Normal(*dist[:2], squashed=True).squash(samples).abs().gt(1).any()


# -- discrete ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [None, MASK])
def test_branches_are_torchs_categoricals(mask: Tensor | None) -> None:
    ours, other = branches(2, mask), branches(2, mask)
    d = ours.sample()
    parts, others = categoricals(ours), categoricals(other)
    torch.testing.assert_close(ours.log_prob(d), sum(c.log_prob(d[:, i]) for i, c in enumerate(parts)))
    torch.testing.assert_close(ours.entropies(), torch.stack([c.entropy() for c in parts], -1))
    torch.testing.assert_close(ours.entropy(), sum(c.entropy() for c in parts))
    torch.testing.assert_close(ours.kl(other), sum(kl_divergence(a, b) for a, b in zip(parts, others, strict=True)))
    assert torch.equal(ours.mode(), torch.stack([c.probs.argmax(-1) for c in parts], -1))
    torch.testing.assert_close(ours.p, torch.cat([c.probs for c in parts], -1))


def test_illegal_choices_have_probability_zero_exactly() -> None:
    illegal = ~MASK
    ours = Branches.of(torch.randn(2, 10), SIZES, MASK)
    assert (ours.p[illegal] == 0).all()
    assert ours.legal().tolist() == [[2, 2, 2], [1, 5, 1]]
    draws = Branches.of(100 * illegal.float().expand(500, 2, 10), SIZES, MASK).sample()
    offsets = torch.tensor([0, 2, 7])
    assert MASK.expand(500, 2, 10).gather(-1, draws + offsets).all(), "whatever the logits say"


def test_masks_give_no_nan_gradient() -> None:
    logits = torch.randn(2, 10, requires_grad=True)
    ours = Branches.of(logits, SIZES, MASK)
    q = torch.randn(2, 10)
    total = ours.entropy() + (ours.p * (q - 0.2 * ours.log_p)).sum(-1) + ours.log_prob(ours.sample())
    (gradient,) = torch.autograd.grad(total.sum() + ours.kl(branches(2, MASK)).sum(), logits)
    assert gradient.isfinite().all()
    assert (gradient[~MASK] == 0).all()
    assert gradient[MASK].abs().max() > 0


@pytest.mark.parametrize("masked", [True, False])
def test_frequencies_of_samples_are_the_probabilities(masked: bool) -> None:
    n = 40_000
    ours = Branches.of(torch.randn(1, 10).expand(n, 10), SIZES, MASK[:1].expand(n, 10) if masked else None)
    for d, part in zip(ours.sample().unbind(-1), ours.p[0].split(SIZES), strict=True):
        counts = torch.bincount(d, minlength=len(part))
        possible = part > 0
        assert not counts[~possible].any()
        chi = ((counts - n * part)[possible].square() / (n * part[possible])).sum()
        df = int(possible.sum()) - 1
        assert float(chi) < df + 5 * max(1, 2 * df) ** 0.5


def test_no_branch_is_one_certain_choice() -> None:
    certain = Branches.of(torch.randn(4, 3), (), None)
    assert certain.p.tolist() == [[1.0]] * 4
    assert certain.sample().shape == certain.mode().shape == (4, 0)
    assert certain.sample().dtype == torch.int64
    assert certain.entropies().tolist() == [[0.0]] * 4
    assert certain.legal().tolist() == [[1]] * 4
    assert certain.log_prob(certain.sample()).tolist() == [0.0] * 4
    assert certain.weights(torch.tensor([0.3])).tolist() == pytest.approx([0.3])


def test_weights_give_each_choice_its_branchs_number() -> None:
    expected = [10.0] * 2 + [20.0] * 5 + [30.0] * 3
    assert branches().weights(torch.tensor([10.0, 20.0, 30.0])).tolist() == expected


@pytest.mark.parametrize("lead", [(4,), (3, 4)])
@pytest.mark.parametrize("ensemble", [(), (5,)])
def test_pick_is_a_loop(lead: tuple[int, ...], ensemble: tuple[int, ...]) -> None:
    x = torch.randn(*ensemble, *lead, sum(SIZES))
    d = torch.stack([torch.randint(k, lead) for k in SIZES], -1)
    found = pick(x, d, SIZES)
    assert found.shape == (*ensemble, *lead)
    rows = x.reshape(-1, math.prod(lead), sum(SIZES))
    for e in range(rows.shape[0]):
        for i, choice in enumerate(d.reshape(-1, 3).tolist()):
            expected = rows[e, i, choice[0]] + rows[e, i, 2 + choice[1]] + rows[e, i, 7 + choice[2]]
            torch.testing.assert_close(found.reshape(-1, math.prod(lead))[e, i], expected)


def test_pick_without_branches_is_the_one_number() -> None:
    x = torch.randn(5, 4, 1)
    assert torch.equal(pick(x, torch.zeros(4, 0, dtype=torch.int64), ()), x[..., 0])


# -- both -------------------------------------------------------------------------------------------------------------


def test_a_policy_is_the_product_of_its_parts() -> None:
    ours, other = Policy(normal(), branches(6)), Policy(normal(), branches(6))
    new = ours.sample()
    torch.testing.assert_close(new.log_c, ours.c.log_prob(new.u))
    torch.testing.assert_close(ours.log_prob(new.u, new.d), ours.c.log_prob(new.u) + ours.d.log_prob(new.d))
    torch.testing.assert_close(ours.entropy(), ours.c.entropy() + ours.d.entropy())
    torch.testing.assert_close(ours.kl(other), ours.c.kl(other.c) + ours.d.kl(other.d))


def test_numbers_rebuild_the_policy_that_said_them() -> None:
    ours = Policy(normal(True), branches(6))
    again = Policy.of(ours.numbers(), SIZES, True)
    new = ours.sample()
    torch.testing.assert_close(again.log_prob(new.u, new.d), ours.log_prob(new.u, new.d))
    torch.testing.assert_close(again.kl(ours), torch.zeros(6, dtype=torch.float64))


def test_the_mode_is_the_squashed_mean_and_the_likeliest_choices() -> None:
    ours = Policy(normal(True), branches(6))
    mode = ours.mode()
    torch.testing.assert_close(mode["c"], ours.c.mean.tanh())
    assert torch.equal(mode["d"], ours.d.mode())


# -- the head that says them ------------------------------------------------------------------------------------------


def head(std: str, **more: object) -> PolicyHead:
    return PolicyHead(8, ActionSpec(2, (3,)), False, std=std, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("std", ["tanh", "state_exp", "state_softplus", "exp", "softplus"])
def test_forms_of_the_deviation(std: str) -> None:
    x, free = 30 * torch.randn(64, 8), "state" not in std and std != "tanh"
    policy = head(std, log_std_init=-1.0)(x)
    assert policy.c.log_std.isfinite().all()
    assert (policy.c.log_std[0] == policy.c.log_std[1]).all() == free
    if std == "tanh":
        assert -5 <= policy.c.log_std.min() < -4
        assert 1 < policy.c.log_std.max() <= 2
    if std == "state_softplus":
        assert policy.c.log_std.min() >= math.log(1e-3) - 1e-5, "the floor"
    if free:
        assert policy.c.log_std[0].tolist() == pytest.approx([-1.0] * 2, abs=5e-3)


@pytest.mark.parametrize("std", ["state_exp", "state_softplus"])
def test_a_deviation_that_depends_on_the_state_starts_where_it_should(std: str) -> None:
    policy = head(std, log_std_init=-1.0)(torch.zeros(1, 8))
    assert policy.c.log_std[0].tolist() == pytest.approx([-1.0] * 2, abs=0.3)


def test_a_small_gain_makes_an_even_policy() -> None:
    policy = head("exp", gain=0.01)(torch.randn(16, 8))
    assert policy.c.mean.abs().max() < 0.1
    assert policy.d.p.sub(1 / 3).abs().max() < 0.02


def test_the_head_obeys_the_mask() -> None:
    mask = torch.tensor([[True, False, True]])
    assert head("exp")(torch.randn(1, 8), mask).d.p[0, 1] == 0
