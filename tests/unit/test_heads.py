"""Value heads against loops, and noisy layers against the statistics they promise."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value

from kumite.errors import UserError
from kumite.nn.adam import Adam
from kumite.nn.config import Net
from kumite.nn.heads import (
    HEADS,
    Bins,
    Head,
    ImplicitQuantiles,
    NoisyLinear,
    ValueConfig,
    ValueNet,
    Values,
    chosen,
    greedy,
    huber,
    noisy_,
    quantile_loss,
    still,
)
from kumite.types import Spec

NET = Net(layers=(6,))
BRANCHES = (2, 3)
ONE = torch.zeros(32, 1, dtype=torch.long)


def make(kind: str, branches: tuple[int, ...] = BRANCHES, **numbers: Any) -> Head:
    return HEADS[kind](5, NET, branches, ValueConfig(head=kind, **({"atoms": 7, "quantiles": 4} | numbers)))  # type: ignore[arg-type]


# -- distributions over bins ------------------------------------------------------------------------------------------


@given(st.floats(-12, 12), st.integers(2, 101))
def test_two_hot_gives_back_what_it_was_given(x: float, n: int) -> None:
    bins = Bins(-10.0, 10.0, n)
    p = bins.two_hot(torch.tensor(x))
    assert float(bins.decode(p)) == pytest.approx(min(max(x, -10), 10), abs=1e-4)
    assert float(p.sum()) == pytest.approx(1, abs=1e-5)
    assert int((p > 1e-5).sum()) <= 2
    assert bool((p >= 0).all())


def test_a_value_on_a_bin_is_that_bin() -> None:
    bins = Bins(-3.0, 5.0, 17)
    torch.testing.assert_close(bins.two_hot(bins.at), torch.eye(17), rtol=0, atol=1e-6)


def test_gauss_spreads_over_neighbours_and_keeps_the_mean() -> None:
    """Every bin gets the mass of a normal distribution between its edges; at the ends what is cut off is missing."""
    bins = Bins(-5.0, 5.0, 101)
    x = torch.linspace(-4.5, 4.5, 50)
    p = bins.gauss(x)
    torch.testing.assert_close(bins.decode(p), x, rtol=0, atol=1e-4)
    torch.testing.assert_close(p.sum(-1), torch.ones(50))
    normal = torch.distributions.Normal(x[7], 0.75 * 0.1)
    edges = torch.linspace(-5.05, 5.05, 102)
    torch.testing.assert_close(p[7], normal.cdf(edges).diff(), rtol=1e-4, atol=1e-5)
    wide = bins.gauss(x, width=2.0)
    assert bool((wide.amax(-1) < p.amax(-1)).all())
    torch.testing.assert_close(bins.gauss(torch.tensor([9.0, -9.0])), bins.gauss(torch.tensor([5.0, -5.0])))


def test_projection_is_the_papers_loop() -> None:
    """Bellemare et al. 2017, algorithm 1, atom by atom; what falls on an atom goes there whole."""
    low, high, n = -2.0, 3.0, 11
    bins, step = Bins(low, high, n), 0.5
    p, x = torch.rand(8, n).softmax(-1), 4 * torch.randn(8, n)
    x[0], x[1] = bins.at, bins.at + step  # on the atoms, the last beyond the end
    wanted = torch.zeros(8, n)
    for i in range(8):
        for j in range(n):
            b = (min(max(float(x[i, j]), low), high) - low) / step
            lower, upper = math.floor(b), math.ceil(b)
            if lower == upper:
                wanted[i, lower] += p[i, j]
            else:
                wanted[i, lower] += p[i, j] * (upper - b)
                wanted[i, upper] += p[i, j] * (b - lower)
    torch.testing.assert_close(bins.project(p, x), wanted, rtol=1e-4, atol=1e-5)


# -- losses -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kappa", [0.3, 1.0, 2.5])
def test_huber_is_torchs(kappa: float) -> None:
    u = 3 * torch.randn(100)
    torch.testing.assert_close(huber(u, kappa), nn.functional.huber_loss(u, 0 * u, reduction="none", delta=kappa))


def test_huber_without_a_threshold_is_half_a_square() -> None:
    u = 3 * torch.randn(100, requires_grad=True)
    torch.testing.assert_close(huber(u, math.inf), u.square() / 2)
    (slope,) = torch.autograd.grad(huber(u, math.inf).sum(), u)
    torch.testing.assert_close(slope, u.detach())


@pytest.mark.parametrize("kappa", [0.5, 1.0])
def test_quantile_loss_is_a_loop_over_pairs(kappa: float) -> None:
    z, y = torch.randn(3, 4, 5), torch.randn(3, 4, 6)
    for tau in (torch.rand(5), torch.rand(3, 4, 5)):
        found = quantile_loss(z, tau, y, kappa)
        every = tau.expand(3, 4, 5)
        for a in range(3):
            for b in range(4):
                total = 0.0
                for i in range(5):
                    for j in range(6):
                        u = float(y[a, b, j] - z[a, b, i])
                        h = u * u / 2 if abs(u) <= kappa else kappa * (abs(u) - kappa / 2)
                        total += abs(float(every[a, b, i]) - (u < 0)) * h / kappa / 6
                assert float(found[a, b]) == pytest.approx(total, rel=1e-4)


def test_the_quantile_loss_is_least_at_the_quantiles() -> None:
    """Of 0, 1, ..., 99 the quantile at 0.1 lies near 10 and at 0.9 near 90 (kappa small: nearly the pinball loss)."""
    y = torch.arange(100.0)
    for tau, place in ((0.1, 10), (0.5, 50), (0.9, 90)):
        z = torch.arange(100.0)[:, None] + 0.5  # [100, 1]
        losses = quantile_loss(z, torch.tensor([tau]), y.expand(100, -1), 1e-3)
        assert abs(int(losses.argmin()) - place) <= 1


# -- choices and branches ---------------------------------------------------------------------------------------------


def test_the_best_legal_choice_of_every_branch() -> None:
    q = torch.tensor([[1.0, 2.0, -5.0, -4.0, -6.0], [1.0, 2.0, 9.0, -4.0, 9.5]])
    assert greedy(q, BRANCHES).tolist() == [[1, 1], [1, 2]]
    mask = torch.tensor([[True, False, False, False, True], [True, True, True, True, False]])
    assert greedy(q, BRANCHES, mask).tolist() == [[0, 2], [1, 0]]


def test_chosen_parts() -> None:
    z, d = torch.randn(3, 4, 5, 7), torch.stack([torch.randint(2, (3, 4)), torch.randint(3, (3, 4))], -1)
    found = chosen(z, d, BRANCHES)
    for a in range(3):
        for b in range(4):
            assert torch.equal(found[a, b, 0], z[a, b, d[a, b, 0]])
            assert torch.equal(found[a, b, 1], z[a, b, 2 + d[a, b, 1]])


@pytest.mark.parametrize("kind", ["scalar", "quantile", "iqn"])
def test_branches_add_up(kind: str) -> None:
    head, d = make(kind), torch.tensor([[0, 2], [1, 1]])
    said = head(torch.randn(2, 5))
    q, taken = head.mean(said.z), head.taken(said, d)
    torch.testing.assert_close(head.mean(taken.z), q[[0, 1], [0, 1]] + q[[0, 1], [4, 3]])


def test_branches_of_atoms_are_mixed() -> None:
    """p(z) = mean_i p_i(z | d_i): its mean is the mean of theirs, so each branch's best choice is part of the best."""
    head, d = make("c51"), torch.tensor([[0, 2], [1, 1]])
    said = head(torch.randn(2, 5))
    log_p = head.taken(said, d).z
    p = said.z.softmax(-1)
    torch.testing.assert_close(log_p.exp(), (p[[0, 1], [0, 1]] + p[[0, 1], [4, 3]]) / 2)
    q = head.mean(said.z)
    torch.testing.assert_close(head.mean(log_p), (q[[0, 1], [0, 1]] + q[[0, 1], [4, 3]]) / 2)


# -- heads ------------------------------------------------------------------------------------------------------------


def plain(stream: Any, x: Tensor) -> Tensor:
    (hidden,), out = stream[0].layers, stream[1]
    return out(torch.relu(hidden[0](x)))


@pytest.mark.parametrize("branches", [(4,), BRANCHES])
@pytest.mark.parametrize("kind", ["scalar", "c51", "quantile"])
def test_dueling_is_value_plus_centred_advantage(kind: str, branches: tuple[int, ...]) -> None:
    head, x = make(kind, branches, dueling=True), torch.randn(3, 5)
    N = head.outputs
    a, v = plain(head.choices, x).view(3, sum(branches), N), plain(head.state, x)  # [3, K, N], [3, N]
    share = 1 if kind == "c51" else 1 / len(branches)
    first = 0
    for k in branches:
        part = a[:, first : first + k]
        for i in range(k):
            wanted = share * v + part[:, i] - sum(part[:, j] for j in range(k)) / k
            torch.testing.assert_close(head(x).z[:, first + i], wanted)
        first += k
    means = [part.mean(1) for part in head(x).z.split(branches, 1)]
    whole = sum(means) if kind != "c51" else means[0]
    torch.testing.assert_close(whole, v, msg="the mean over all choices is V")


@pytest.mark.parametrize("dueling", [False, True])
def test_implicit_quantiles_by_a_loop(dueling: bool) -> None:
    head, x, tau = make("iqn", dueling=dueling), torch.randn(3, 5), torch.rand(3, 2)
    assert isinstance(head, ImplicitQuantiles)
    said = head.at(x, tau)
    assert said.z.shape == (3, 5, 2)
    assert said.tau is tau
    for row in range(3):
        for n in range(2):
            waves = torch.tensor([math.cos(math.pi * i * float(tau[row, n])) for i in range(64)])
            features = x[row] * torch.relu(head.embed(waves))
            q = plain(head.choices, features)
            if dueling:
                q = q - torch.cat([part.mean().expand_as(part) for part in q.split(BRANCHES)])
                q = q + plain(head.state, features) / 2
            torch.testing.assert_close(said.z[row, :, n], q, rtol=1e-4, atol=1e-5)


def test_implicit_quantiles_draw_for_learning_and_not_for_acting() -> None:
    head, x = make("iqn"), torch.randn(3, 2, 5)
    first, second = head(x), head(x)
    assert first.tau is not None
    assert second.tau is not None
    assert first.tau.shape == (3, 2, 4)
    assert not torch.equal(first.tau, second.tau)
    assert first.tau.unique().numel() == 24, "each row has fractions of its own"
    looks = [head.look(x) for _ in range(2)]
    assert torch.equal(looks[0].z, looks[1].z)
    assert looks[0].tau is not None
    assert looks[0].tau.tolist() == [0.125, 0.375, 0.625, 0.875]


def lag(cosines: int, seed: int) -> float:
    """How far the lowest of 99 fractions stays behind the middle one after a value that rose from 0 to 5."""
    torch.manual_seed(seed)
    head = make("iqn", (1,), quantiles=8, cosines=cosines)
    adam, x = Adam(head, lr=3e-3), torch.ones(32, 5)
    for y in torch.linspace(0, 5, 200):
        adam.descend(lambda net, y=y: (net.loss(net.taken(net(x), ONE), y.expand(32, 8))[0].mean(), ()))
    assert isinstance(head, ImplicitQuantiles)
    z = head.at(x[0], torch.linspace(0.01, 0.99, 99)).z[0]
    return float(z.median() - z.min())


def test_with_few_waves_low_fractions_keep_up_with_a_rising_value() -> None:
    """It is why short runs take few: the targets would hand on what the low ones lack."""
    few, many = (sum(lag(cosines, seed) for seed in range(4)) / 4 for cosines in (4, 64))
    assert few < 0.5
    assert many > 2 * few


def test_quantile_fractions_are_the_middles() -> None:
    said = make("quantile")(torch.randn(2, 5))
    assert said.tau is not None
    assert said.tau.tolist() == [0.125, 0.375, 0.625, 0.875]


def test_targets_and_losses_of_a_scalar() -> None:
    head = make("scalar", kappa=1.0)
    said, y = Values(torch.tensor([[1.0], [5.0]])), torch.tensor([[1.5], [2.0]])
    loss, error = head.loss(said, y)
    assert loss.tolist() == [0.125, 2.5]
    assert error.tolist() == [0.5, 3.0]
    assert head.target(said, lambda v: 2 * v).tolist() == [[2.0], [10.0]]


def test_atoms_in_the_wrong_order_and_thresholds_that_make_no_sense() -> None:
    with pytest.raises(UserError, match="--v-min 3 must lie below --v-max 3"):
        make("c51", v_min=3.0, v_max=3.0)
    for kind in ("quantile", "iqn"):
        for kappa in (0.0, math.inf):
            with pytest.raises(UserError, match=r"--kappa .* quantiles need a finite number above 0"):
                make(kind, kappa=kappa)


# -- noisy layers -----------------------------------------------------------------------------------------------------


def noisy(size_in: int = 40, size_out: int = 30, sigma: float = 0.5) -> NoisyLinear:
    return NoisyLinear(nn.Linear(size_in, size_out), sigma).requires_grad_(False)


def noise_of(layer: NoisyLinear) -> tuple[Tensor, Tensor]:
    """One draw: what stands in for f(e_out) f(e_in)^T and f(e_out), from what the layer says."""
    size_in = layer.weight.shape[1]
    said = layer(torch.cat([torch.eye(size_in), torch.zeros(1, size_in)]))  # one pass: one draw
    bias = said[-1]
    weight = (said[:-1] - bias).T
    return (weight - layer.weight) / layer.weight_sigma, (bias - layer.bias) / layer.bias_sigma


def test_noise_is_the_product_of_two_vectors() -> None:
    layer = noisy()
    outer, out = noise_of(layer)
    assert int(torch.linalg.matrix_rank(outer, rtol=1e-3)) == 1
    enter = outer[0] / out[0]
    torch.testing.assert_close(outer, out[:, None] * enter, rtol=1e-3, atol=1e-3)


def test_noise_has_the_promised_distribution() -> None:
    """f(e) = sgn(e) sqrt|e|: mean 0, variance E|e| = sqrt(2 / pi), and f(e)^2 is distributed as |e|."""
    layer = noisy(4, 3)
    outs = torch.cat([noise_of(layer)[1] for _ in range(4000)])
    n = outs.numel()
    assert float(outs.mean()) == pytest.approx(0, abs=4 * 0.9 / math.sqrt(n))
    assert float(outs.square().mean()) == pytest.approx(math.sqrt(2 / math.pi), abs=4 * 0.61 / math.sqrt(n))
    assert float(outs.pow(4).mean()) == pytest.approx(1, abs=4 * 1.42 / math.sqrt(n))  # E e^2


def test_every_pass_has_its_own_noise_and_the_means_have_none() -> None:
    layer, x = noisy(), torch.randn(5, 40)
    assert not torch.equal(layer(x), layer(x))
    torch.manual_seed(3)
    first = layer(x)
    torch.manual_seed(3)
    assert torch.equal(layer(x), first)
    same = layer(x[:1].expand(5, -1))
    assert torch.equal(same[0], same[4]), "all rows of a pass see the same weights"
    with still(layer):
        assert torch.equal(layer(x), nn.functional.linear(x, layer.weight, layer.bias))
    assert layer.training


def test_noise_starts_with_sigma_over_the_root_of_the_inputs() -> None:
    layer = noisy(16, 3, 0.4)
    assert layer.weight_sigma.unique().tolist() == pytest.approx([0.1])
    assert layer.bias_sigma.unique().tolist() == pytest.approx([0.1])
    assert float(layer.weight.abs().max()) <= 0.25
    assert float(layer.weight.abs().max()) > 0.15


def test_noise_is_learned_alike_by_both_ways_to_a_gradient() -> None:
    """Through autograd, and through torch.func, which the compiled update takes."""
    layer, x = noisy(4, 3), torch.randn(5, 4)
    params = dict(layer.named_parameters())
    torch.manual_seed(1)
    grads, loss = grad_and_value(lambda p: functional_call(layer, p, (x,)).square().mean())(params)
    layer.requires_grad_(True)
    torch.manual_seed(1)
    again = layer(x).square().mean()
    found = torch.autograd.grad(again, list(params.values()))
    torch.testing.assert_close(loss, again.detach())
    for (name, mine), theirs in zip(grads.items(), found, strict=True):
        torch.testing.assert_close(mine, theirs, msg=name)
        assert bool((mine != 0).any()), name


def test_all_linear_layers_become_noisy_and_keep_their_weights() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Sequential(nn.Linear(4, 2), nn.Conv2d(1, 1, 3)))
    weight = net[0].weight
    assert noisy_(net, 0.5) == 2
    assert [type(m).__name__ for m in net.modules()].count("NoisyLinear") == 2
    assert net[0].weight is weight


# -- the whole net ----------------------------------------------------------------------------------------------------

OBS = {"obs": Spec((3,))}


def value_net(net: Net = NET, branches: tuple[int, ...] = BRANCHES, **numbers: Any) -> ValueNet:
    return ValueNet(OBS, branches, net, 4, ValueConfig(**numbers))


def linears(module: nn.Module) -> list[tuple[int, int]]:
    return [(m.in_features, m.out_features) for m in module.modules() if isinstance(m, nn.Linear)]


def test_the_last_hidden_layer_belongs_to_the_streams() -> None:
    net = Net(layers=(8, 7))
    assert linears(value_net(net)) == [(3, 8), (8, 7), (7, 5)]
    assert linears(value_net(net, dueling=True)) == [(3, 8), (8, 7), (7, 5), (8, 7), (7, 1)]
    assert linears(value_net(Net(width=9, depth=1), dueling=True)) == [(3, 9), (9, 5), (3, 9), (9, 1)]
    assert linears(value_net(Net(depth=0))) == [(3, 5)]
    assert linears(value_net(net, head="c51", atoms=11))[-1] == (7, 55)
    embedded = linears(value_net(net, head="iqn", quantiles=2))
    assert embedded == [(3, 8), (8, 7), (7, 5), (64, 8)], "the embedding meets features before the last layer"
    assert linears(value_net(net, head="iqn", quantiles=2, cosines=9))[-1] == (9, 8)


def test_encoders_of_blocks_stay_whole() -> None:
    net = Net(encoder="simba", width=8, depth=1)
    found = linears(value_net(net, dueling=True))
    assert found == [(3, 8), (8, 32), (32, 8), (8, 5), (8, 1)]


def test_an_encoder_without_linear_layers_cannot_be_noisy() -> None:
    with pytest.raises(UserError, match=r"--noisy has no linear layer .* --critic\.encoder simbav2"):
        value_net(Net(encoder="simbav2", width=8, depth=1), noisy=True)


def test_orthogonal_weights_reach_the_head() -> None:
    net = value_net(replace(NET, init="orthogonal"))
    out = net.head.choices[1].weight  # [5, 6]
    torch.testing.assert_close(out @ out.T, torch.eye(5), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", HEADS)
def test_acting_is_without_draws_except_for_noise(kind: str) -> None:
    quiet, loud = value_net(head=kind, quantiles=4), value_net(head=kind, quantiles=4, noisy=True)
    obs = {"obs": torch.randn(6, 3)}
    assert quiet.step(obs, {})[0].shape == (6, 5)
    assert torch.equal(quiet.step(obs, {})[0], quiet.step(obs, {})[0])
    assert not torch.equal(loud.step(obs, {})[0], loud.step(obs, {})[0])
    with still(loud):
        assert torch.equal(loud.step(obs, {})[0], loud.step(obs, {})[0])
