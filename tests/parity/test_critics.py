"""Modern critics against plain code: TQC, a categorical SAC, CrossQ, and what every head makes of mixed choices."""

from __future__ import annotations

import itertools
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kumite.algos import ROWS
from kumite.algos.dqn import DQN, DQNConfig
from kumite.algos.sac import SAC, SACConfig
from kumite.algos.td3 import TD3, TD3Config
from kumite.batch import Batch
from kumite.errors import UserError
from kumite.nn.config import Net
from kumite.nn.critics import CriticConfig, Scalar, make_values
from kumite.nn.dists import Branches
from kumite.nn.layers import BatchRenorm, dropouts
from kumite.types import ActionSpec, Spec
from tests.parity.test_sac import CONTINUOUS, DISCRETE, NET, Plain, batch, make
from tests.parity.test_sac import ROWS as SIZE

HEADS = ("scalar", "quantile", "c51", "two_hot", "hl_gauss")
heads = pytest.mark.parametrize("head", HEADS)


def values_of(head: str, branches: tuple[int, ...]) -> Scalar:
    return make_values(CriticConfig(head=head, quantiles=5, drop=1, atoms=9, v_min=-4.0, v_max=4.0), branches)  # type: ignore[arg-type]


def said(values: Scalar, members: int, rows: int) -> Tensor:
    return torch.randn(members, rows, max(1, sum(values.branches)) * values.width)


# -- the whole update -------------------------------------------------------------------------------------------------


def noise_of(seed: int, again: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    return torch.randn(SIZE, 2), torch.randn(SIZE, again)


def test_tqc_is_its_authors() -> None:
    """Targets from the heap of all quantiles without the largest, Huber's loss over all pairs, the actor's mean."""
    E, N, drop = 3, 5, 2
    algo = make(CONTINUOUS, head="quantile", critics=E, quantiles=N, drop=drop, critic_lr=1e-3, tau=0.05)
    plain, tau = Plain(algo), (torch.arange(N) + 0.5) / N
    for seed in range(4):
        b = batch(CONTINUOUS)
        torch.manual_seed(seed)
        out = algo.update(b, 1)
        ahead, now = noise_of(seed, 2)
        keep, alpha = b.mask.bool(), plain.log_alpha.detach().exp()[0]
        with torch.no_grad():
            a, log_prob = plain.squashed(b.next_obs["obs"], ahead)
            z = plain.all_q(plain.targets, b.next_obs["obs"], a).transpose(0, 1).reshape(SIZE, -1)
            z = z.sort().values[:, : E * (N - drop)]
            y = b.reward[:, None] + b.discount[:, None] * (z - alpha * log_prob[:, None])
        current = plain.all_q(plain.critics, b.obs["obs"], b.action["c"])
        delta = y[None, :, None, :] - current[..., None]
        huber = torch.where(delta.abs() > 1, delta.abs() - 0.5, delta**2 / 2)
        pairs = (tau[:, None] - (delta < 0).float()).abs() * huber
        loss_q = N * E * pairs[:, keep].mean()  # summed over critics and quantiles, where the authors take the mean
        plain.step(plain.optimize_q, loss_q)
        a, log_prob = plain.squashed(b.obs["obs"], now)
        q = plain.all_q(plain.critics, b.obs["obs"], a).mean((0, 2))
        loss_pi = (alpha * log_prob - q)[keep].mean()
        plain.step(plain.optimize_pi, loss_pi)
        plain.step(plain.optimize_alpha, (-plain.log_alpha[0] * (log_prob.detach() - 2))[keep].mean())
        plain.follow(0.05)
        for name, value in {"train/critic_loss": loss_q, "train/actor_loss": loss_pi}.items():
            torch.testing.assert_close(out.metrics[name], value.detach(), rtol=1e-4, atol=1e-5)
    plain.check(algo)


@pytest.mark.parametrize("members", [1, 2])
def test_a_categorical_critic_learns_the_moved_distribution(members: int) -> None:
    """SimbaV2's: that of the critic with the smaller mean, per row; the entropy moves its atoms."""
    algo = make(CONTINUOUS, head="c51", critics=members, atoms=21, v_min=-5.0, v_max=5.0, tau=0.05)
    plain, at = Plain(algo), torch.linspace(-5, 5, 21)
    for seed in range(3):
        b = batch(CONTINUOUS)
        torch.manual_seed(seed)
        out = algo.update(b, 1)
        ahead, now = noise_of(seed, 2)
        keep, alpha = b.mask.bool(), plain.log_alpha.detach().exp()[0]
        with torch.no_grad():
            a, log_prob = plain.squashed(b.next_obs["obs"], ahead)
            p = plain.all_q(plain.targets, b.next_obs["obs"], a).softmax(-1)
            least = (p * at).sum(-1).argmin(0)
            goal = torch.zeros(SIZE, 21)
            for i, j in itertools.product(range(SIZE), range(21)):
                y = float(b.reward[i] + b.discount[i] * (at[j] - alpha * log_prob[i]))
                place = (min(max(y, -5.0), 5.0) + 5) / 0.5
                low = min(int(place), 19)
                goal[i, low] += p[least[i], i, j] * (1 - (place - low))
                goal[i, low + 1] += p[least[i], i, j] * (place - low)
        logits = plain.all_q(plain.critics, b.obs["obs"], b.action["c"])
        loss_q = -(goal * logits.log_softmax(-1)).sum(-1)[:, keep].mean(-1).sum()
        torch.testing.assert_close(out.metrics["train/critic_loss"], loss_q.detach(), rtol=1e-4, atol=1e-5)
        plain.step(plain.optimize_q, loss_q)
        a, log_prob = plain.squashed(b.obs["obs"], now)
        q = (plain.all_q(plain.critics, b.obs["obs"], a).softmax(-1) * at).sum(-1).amin(0)
        loss_pi = (alpha * log_prob - q)[keep].mean()
        torch.testing.assert_close(out.metrics["train/actor_loss"], loss_pi.detach(), rtol=1e-4, atol=1e-5)
        plain.step(plain.optimize_pi, loss_pi)
        plain.step(plain.optimize_alpha, (-plain.log_alpha[0] * (log_prob.detach() - 2))[keep].mean())
        plain.follow(0.05)
    plain.check(algo)


def test_td3_takes_the_same_heads() -> None:
    """A target policy's action has no entropy; the first critic alone tells the actor."""
    config = TD3Config(actor=NET, critic=NET, head="quantile", quantiles=5, drop=1, critics=2, target_noise=0.0)
    algo, b = TD3({"obs": Spec((3,))}, CONTINUOUS, 4, config), batch(CONTINUOUS)
    nets = Plain.ensemble(Plain, algo.critic)  # type: ignore[arg-type]
    with torch.no_grad():
        c = algo.target_actor.next(b)
        z = torch.cat([net(torch.cat([b.next_obs["obs"], c], 1)) for net in nets], 1).sort().values[:, :8]
        y = b.reward[:, None] + b.discount[:, None] * z
        losses = torch.zeros(())
        for net in nets:
            delta = y[:, None] - net(torch.cat([b.obs["obs"], b.action["c"]], 1))[..., None]
            tau = ((torch.arange(5) + 0.5) / 5)[:, None]
            pairs = (tau - (delta < 0).float()).abs() * nn.functional.huber_loss(delta, 0 * delta, reduction="none")
            losses += pairs.mean(-1).sum(-1)[b.mask.bool()].mean()
    out = algo.update(b, True)
    torch.testing.assert_close(out.metrics["train/critic_loss"], losses, rtol=1e-4, atol=1e-5)


# -- what follows a row -----------------------------------------------------------------------------------------------


@heads
@pytest.mark.parametrize("branches", [(), (4,), (2, 3)])
def test_the_mean_of_what_follows_is_the_soft_value(head: str, branches: tuple[int, ...]) -> None:
    """V = sum over choices of p (Q - cost), Q by one critic: the only one. Sums over branches, but means for atoms."""
    values = values_of(head, branches)
    z = said(values, 1, 6)
    d = Branches.of(torch.randn(6, max(1, sum(branches))), branches)
    cost = torch.randn(6, max(1, sum(branches)))
    follows = values.follow(z, d.p, cost)
    assert follows.weight.sum(-1).tolist() == pytest.approx([1] * 6, abs=1e-5)
    q = torch.zeros(6)
    joint = list(itertools.product(*map(range, branches)))
    for choice in joint:
        taken = torch.tensor(choice, dtype=torch.int64).expand(6, -1)
        p = d.log_prob(taken).exp() if branches else torch.ones(6)
        q += p * values.mean(values.taken(z, taken))[0]
    expected = q - (d.p * cost).sum(-1)
    if head == "quantile":  # without the largest fifth: only below
        assert bool((follows.mean() < expected).all())
        values.drop = 0  # type: ignore[assignment]
        follows = values.follow(z, d.p, cost)
    torch.testing.assert_close(follows.mean(), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close((d.p * values.actor(z, mean=True)).sum(-1), q, rtol=1e-4, atol=1e-4)


@heads
def test_a_goal_that_is_known_is_learned(head: str) -> None:
    """Descending the loss towards the value x: the mean becomes x."""
    values = values_of(head, (2, 3))
    z, d = said(values, 2, 5).requires_grad_(), torch.stack([torch.randint(2, (5,)), torch.randint(3, (5,))], -1)
    x = torch.linspace(-2.5, 2.0, 5)
    optimizer = torch.optim.Adam([z], 0.1)
    goal = values.goal(x[:, None], torch.ones(5, 1))
    torch.testing.assert_close(values.goal_mean(goal), x, rtol=0, atol=0.01)
    for _ in range(400):
        optimizer.zero_grad()
        values.loss(values.taken(z, d), goal).sum().backward()
        optimizer.step()
    found = values.mean(values.taken(z, d))
    torch.testing.assert_close(found, x.expand(2, 5), rtol=0, atol=0.06)


@heads
def test_the_ensembles_pessimism(head: str) -> None:
    """The smallest mean, or TQC's heap; the actor sees the minimum, or the mean where a subset is drawn."""
    values = values_of(head, ())
    z = said(values, 3, 200)
    q = values.mean(values.taken(z, torch.zeros(200, 0, dtype=torch.int64)))
    one = torch.ones(200, 1)
    mean = values.follow(z, one, 0 * one).mean()
    if head == "quantile":
        heap = values.split(z).movedim(0, -1).flatten(1).sort(-1).values
        torch.testing.assert_close(mean, heap[:, :12].mean(-1), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(values.actor(z, mean=False)[:, 0], q.mean(0), rtol=1e-4, atol=1e-5)
    else:
        torch.testing.assert_close(mean, q.amin(0), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(values.actor(z, mean=False)[:, 0], q.amin(0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(values.actor(z, mean=True)[:, 0], q.mean(0), rtol=1e-4, atol=1e-5)


def test_what_makes_no_sense_is_refused() -> None:
    for numbers, words in (
        ({"head": "quantile", "correction": "vtrace", "n_step": 3}, "take --head scalar, two_hot or hl_gauss"),
        ({"head": "c51", "correction": "retrace", "n_step": 3}, "take --head scalar, two_hot or hl_gauss"),
        ({"joint": True, "correction": "retrace", "n_step": 3}, "--joint has none"),
        ({"head": "quantile", "quantiles": 5, "drop": 5}, "--drop 5 leaves nothing of --quantiles 5"),
        ({"head": "c51", "v_min": 3.0, "v_max": 3.0}, "--v-min 3 and --v-max 3 leave no room"),
    ):
        with pytest.raises(UserError, match=words):
            make(CONTINUOUS, **numbers)
    make(CONTINUOUS, head="hl_gauss", correction="retrace", n_step=3)


# -- CrossQ -----------------------------------------------------------------------------------------------------------


def renormed(x: Tensor, net: BatchRenorm, rows: Tensor) -> Tensor:
    """Ioffe 2017, algorithm 1, feature by feature; `rows`: those that count."""
    y = torch.empty_like(x)
    for f in range(x.shape[1]):
        mean, var = x[rows, f].mean(), x[rows, f].var(unbiased=False)
        deviation, running = (var + 1e-3).sqrt(), (net.running_var[f] + 1e-3).sqrt()
        r, d = 1.0, 0.0
        if float(net.times) >= 100_000:
            r = float((deviation / running).clamp(1 / 3, 3).detach())
            d = float(((mean - net.running_mean[f]) / running).clamp(-5, 5).detach())
        y[:, f] = net.weight[f] * ((x[:, f] - mean) / deviation * r + d) + net.bias[f]
    return y


@pytest.mark.parametrize("warm", [False, True])
def test_batch_renorm_is_the_papers(warm: bool) -> None:
    net, x = BatchRenorm(4), 2 * torch.randn(30, 4) + torch.tensor([0.0, 9.0, -1.0, 0.5])
    net.times.fill_(100_000.0 if warm else 0.0)
    net.running_mean.copy_(torch.tensor([0.3, 0.0, -0.5, 0.5]))
    net.running_var.copy_(torch.tensor([1.0, 0.1, 4.0, 100.0]))
    net.weight.data, net.bias.data = torch.randn(4), torch.randn(4)
    mask = torch.rand(30) < 0.7
    x.requires_grad_()
    net.learning = True
    y, wanted = net(x, mask.float()), renormed(x, net, mask)
    torch.testing.assert_close(y, wanted, rtol=1e-4, atol=1e-4)
    w = torch.randn_like(y)
    mine, theirs = (torch.autograd.grad((w * z).sum(), [x, net.weight]) for z in (y, wanted))
    torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)
    assert net.seen is not None
    net.settle_(*net.seen)
    torch.testing.assert_close(net.running_mean[1], 0.01 * x[mask, 1].mean().detach())
    net.learning = False
    still = net.weight * (x - net.running_mean) / (net.running_var + 1e-3).sqrt() + net.bias
    torch.testing.assert_close(net(x), still, rtol=1e-4, atol=1e-4)


def test_an_ensemble_of_batch_norms_is_separate_ones() -> None:
    net, x = BatchRenorm(4, members=3), torch.randn(3, 20, 4) * torch.tensor([1.0, 2.0, 3.0])[:, None, None]
    net.learning = True
    y = net(x)
    for e in range(3):
        alone = BatchRenorm(4)
        alone.learning = True
        torch.testing.assert_close(y[e], alone(x[e]), rtol=1e-4, atol=1e-5)


BATCHY = Net(width=8, norm="renorm")


def test_crossq_is_one_pass_without_a_target() -> None:
    """Statistics are those of both halves, the second half gives the goal without a gradient, and then they settle."""
    algo = make_joint()
    critic, b = deepcopy(algo.critic), batch(CONTINUOUS)
    torch.manual_seed(0)
    out = algo.update(b, 0)
    torch.manual_seed(0)
    with torch.no_grad():
        new = algo.actor.next(b).sample()
    norms = [m for m in critic.modules() if isinstance(m, BatchRenorm)]
    for m in norms:
        m.learning = True
    x = torch.cat([torch.cat([b.obs["obs"], b.action["c"]], -1), torch.cat([b.next_obs["obs"], new.c], -1)])
    critic.requires_grad_(True)
    q, ahead = critic.out(critic.torso.hidden(x, torch.cat([b.mask, b.mask])))[..., 0].chunk(2, -1)
    alpha = 0.3
    y = (b.reward + b.discount * (ahead.amin(0) - alpha * new.log_c)).detach()
    loss = b.mean((q - y).square())
    torch.testing.assert_close(out.metrics["train/critic_loss"], loss.detach(), rtol=1e-4, atol=1e-5)
    grads = torch.autograd.grad(loss, list(critic.parameters()))
    for i, g in enumerate(grads):
        torch.testing.assert_close(getattr(algo.adam_critic, f"m{i}"), 0.5 * g, rtol=1e-3, atol=1e-6)
    mine = [m for m in algo.critic.modules() if isinstance(m, BatchRenorm)]
    assert len(mine) == 3, "before the first layer and behind each"
    for m, n in zip(mine, norms, strict=True):
        assert n.seen is not None
        torch.testing.assert_close(m.running_mean, 0.01 * n.seen[0], rtol=1e-4, atol=1e-6)
        assert float(m.times) == 1


def make_joint(**numbers: Any) -> SAC:
    config = SACConfig(actor=BATCHY, critic=BATCHY, alpha_init=0.3, joint=True, adam_beta=0.5)
    algo = SAC({"obs": Spec((3,))}, CONTINUOUS, 4, replace(config, **numbers))
    assert algo.target is None
    return algo


def test_only_the_net_that_learns_takes_the_batchs_statistics() -> None:
    """While the actor learns the critics say what they say when nobody learns; acting changes nothing."""
    algo = make_joint()
    for _ in range(3):
        algo.update(batch(CONTINUOUS), 1)
    times = [float(m.times) for net in (algo.actor, algo.critic) for m in net.modules() if isinstance(m, BatchRenorm)]
    assert times == [3.0] * 6
    before = {k: v.clone() for k, v in algo.state_dict().items() if isinstance(v, Tensor)}
    obs = {"obs": torch.randn(5, 3)}
    alone = torch.cat([algo.act({"obs": x[None]}, algo.initial(1), False).action["c"] for x in obs["obs"]])
    torch.testing.assert_close(algo.act(obs, algo.initial(5), False).action["c"], alone, rtol=1e-4, atol=1e-5)
    assert all(torch.equal(v, before[k]) for k, v in algo.state_dict().items() if isinstance(v, Tensor))


# -- REDQ and DroQ ----------------------------------------------------------------------------------------------------


def test_the_actor_moves_once_per_twenty_updates() -> None:
    for name in ("redq", "droq"):
        numbers = {k: v for k, v in ROWS[name].numbers.items() if "." not in k}
        algo, moves = make(CONTINUOUS, **numbers), []
        for algo.updates in range(1, 41):
            moves += algo.choices()
        assert moves == ([0] * 19 + [1]) * 2
        assert algo.ratio.ratio == 20


DROPPING = Net(width=32, dropout=0.5, norm="layer")


def test_dropout_learns_and_does_not_act() -> None:
    """It works in the critics that learn, in their targets and in those the actor is told by: all of DroQ's."""
    config = SACConfig(actor=replace(NET, dropout=0.5), critic=DROPPING, critics=2, subset=2)
    algo, b = SAC({"obs": Spec((3,))}, CONTINUOUS, 4, config), batch(CONTINUOUS)
    assert len(dropouts(algo.critic)) == 2
    assert algo.target is not None
    for net in (algo.critic, algo.target):
        first, again = net(b, b.action["c"]), net(b, b.action["c"])
        assert not torch.equal(first, again)
        assert not torch.equal(first[0] - again[0], first[1] - again[1]), "members leave out units of their own"
    obs, core = b.obs, algo.initial(SIZE)
    assert torch.equal(algo.act(obs, core, False).action["c"], algo.act(obs, core, False).action["c"])
    assert not torch.equal(algo.actor(b).c.mean, algo.actor(b).c.mean), "while the actor learns it drops"


@pytest.mark.parametrize("place", ["before", "after"])
def test_dropout_rests_while_a_memory_acts(place: str) -> None:
    net = replace(DROPPING, memory="gru", memory_width=6, memory_place=place)
    algo = SAC({"obs": Spec((3,))}, CONTINUOUS, 4, SACConfig(actor=net, critic=net))
    obs, core = {"obs": torch.randn(4, 3)}, algo.initial(4)
    first, again = (algo.act(obs, core, False) for _ in range(2))
    assert torch.equal(first.action["c"], again.action["c"])
    assert torch.equal(first.core["critic"]["h"], again.core["critic"]["h"])


def test_dropout_rests_while_values_of_choices_act() -> None:
    net = replace(DROPPING, depth=3)
    algo, b = DQN({"obs": Spec((3,))}, ActionSpec(0, (4,)), 4, DQNConfig(critic=net)), batch(ActionSpec(0, (4,)))
    assert len(dropouts(algo.online.torso)) == 2
    assert len(dropouts(algo.online.head)) == 1
    obs = {"obs": b.obs["obs"]}
    assert torch.equal(algo.online.step(obs, {})[0], algo.online.step(obs, {})[0])
    assert not torch.equal(algo.online(b).z, algo.online(b).z)
    x = torch.randn(5, algo.online.torso.size)
    assert not torch.equal(algo.online.head(x).z, algo.online.head(x).z)


# -- compiled ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_compiled_updates_are_the_eager_ones() -> None:
    """CrossQ with dropout and quantiles, of mixed actions: statistics and draws inside the gradient."""
    import torch._inductor.config as inductor

    net, action = replace(BATCHY, dropout=0.3), ActionSpec(2, (3,))
    numbers = {"joint": True, "head": "quantile", "quantiles": 5, "critics": 3, "subset": 2, "adam_beta": 0.5}
    eager = SAC({"obs": Spec((3,))}, action, 4, SACConfig(actor=net, critic=net, **numbers))
    compiled = deepcopy(eager)
    with inductor.patch(fallback_random=True), torch.no_grad():
        compiled.compile_update()
        for seed in range(4):
            b: Batch = batch(action)
            torch.manual_seed(seed)
            ours = compiled.step_update(b, 1)
            torch.manual_seed(seed)
            theirs = eager.update(b, 1)
            torch.testing.assert_close(ours.metrics, theirs.metrics, rtol=1e-4, atol=1e-4)
    assert compiled.graph is not None, "it was the compiled one"
    for (key, p), q in zip(eager.state_dict().items(), compiled.state_dict().values(), strict=True):
        if isinstance(p, Tensor):
            torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-4, msg=lambda m, n=key: f"{n}: {m}")


def test_discrete_critics_of_every_head_run() -> None:
    for head in HEADS:
        algo = make(DISCRETE, head=head, quantiles=5, drop=1, atoms=9)
        out = algo.update(batch(DISCRETE), 1)
        assert all(bool(v.isfinite()) for v in out.metrics.values())
        assert out.priority is not None
        assert out.priority.shape == (SIZE,)
