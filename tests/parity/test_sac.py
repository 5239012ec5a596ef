"""SAC's update against plain code that knows nothing of kumite, fed with the same random draws."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal

from kumite.algos.sac import SAC, SACConfig
from kumite.batch import Batch
from kumite.nn.config import Net
from kumite.nn.dists import Branches, Policy, Sample
from kumite.nn.dists import Normal as OurNormal
from kumite.types import ActionSpec, Spec

OBS = {"obs": Spec((3,)), "mask": Spec((4,), torch.bool)}
CONTINUOUS, DISCRETE = ActionSpec(2), ActionSpec(0, (4,))
NET = Net(width=8)
ROWS = 24


def make(action: ActionSpec, **numbers: Any) -> SAC:
    obs = OBS if sum(action.branches) == 4 else {"obs": OBS["obs"]}
    algo = SAC(obs, action, 4, replace(SACConfig(actor=NET, critic=NET, alpha_init=0.3), **numbers))
    for p in algo.target.parameters():
        p.add_(0.1 * torch.randn_like(p))
    return algo


def batch(action: ActionSpec) -> Batch:
    def obs() -> dict[str, Tensor]:
        legal = torch.rand(ROWS, 4) < 0.6
        legal[:, 0] |= ~legal.any(-1)
        return {"obs": torch.randn(ROWS, 3)} | ({"mask": legal} if sum(action.branches) == 4 else {})

    now = obs()
    mask, discount = (torch.arange(ROWS) % 5 > 0).float(), 0.97 * (torch.rand(ROWS) < 0.8)
    weight = now.get("mask", torch.ones(ROWS, 1)).float()
    taken = {
        "c": torch.rand(ROWS, action.continuous) * 2 - 1,
        "d": torch.cat([torch.multinomial(weight, 1) for _ in action.branches], -1)
        if action.branches
        else torch.zeros(ROWS, 0, dtype=torch.int64),
    }
    return Batch(now, obs(), taken, torch.randn(ROWS), discount, mask.long(), mask, torch.ones(ROWS), {}, mask, {})


class Plain:
    """Soft actor-critic as CleanRL writes it: a net per critic, an optimiser per kind, .backward() everywhere."""

    def __init__(self, algo: SAC) -> None:
        self.actor = self.mlp([*(layer[0] for layer in algo.actor.torso.hidden.layers), algo.actor.head.out])
        self.critics, self.targets = self.ensemble(algo.critic), self.ensemble(algo.target)
        self.log_alpha = nn.Parameter(algo.temperature.log.detach().clone())
        c = algo.cfg
        self.optimize_q = torch.optim.Adam(self.critics.parameters(), c.critic_lr or c.lr)
        self.optimize_pi = torch.optim.Adam(self.actor.parameters(), c.lr)
        self.optimize_alpha = torch.optim.Adam([self.log_alpha], c.alpha_lr or c.lr)

    @staticmethod
    def mlp(layers: list[Any], member: int | None = None) -> nn.Sequential:
        out: list[nn.Module] = []
        for theirs in layers:
            w, b = (theirs.weight, theirs.bias) if member is None else (theirs.weight[member].T, theirs.bias[member, 0])
            mine = nn.Linear(w.shape[1], w.shape[0])
            mine.load_state_dict({"weight": w.clone(), "bias": b.clone()})
            out += [mine, nn.ReLU()]
        return nn.Sequential(*out[:-1])

    def ensemble(self, critic: Any) -> nn.ModuleList:
        layers = [*(layer[0] for layer in critic.torso.hidden.layers), critic.out]
        return nn.ModuleList(self.mlp(layers, e) for e in range(critic.out.weight.shape[0]))

    def squashed(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """CleanRL's sac_continuous_action: an action and its log-probability."""
        mean, log_std = self.actor(obs).chunk(2, -1)
        log_std = -5 + 0.5 * (2 - -5) * (torch.tanh(log_std) + 1)
        u = mean + log_std.exp() * noise
        a = torch.tanh(u)
        log_prob = Normal(mean, log_std.exp()).log_prob(u) - torch.log((1 - a.pow(2)).clamp(1e-12))
        return a, log_prob.sum(-1)

    def choices(self, obs: dict[str, Tensor]) -> Categorical:
        return Categorical(logits=self.actor(obs["obs"]).masked_fill(~obs["mask"], -1e9))

    def all_q(self, nets: nn.ModuleList, *inputs: Tensor) -> Tensor:
        return torch.stack([net(torch.cat(inputs, -1)) for net in nets])

    def step(self, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def follow(self, tau: float) -> None:
        with torch.no_grad():
            for p, target in zip(self.critics.parameters(), self.targets.parameters(), strict=True):
                target.copy_(tau * p + (1 - tau) * target)

    def check(self, algo: SAC) -> None:
        other = Plain(algo)
        for name in ("actor", "critics", "targets"):
            for mine, theirs in zip(getattr(self, name).parameters(), getattr(other, name).parameters(), strict=True):
                torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
        torch.testing.assert_close(self.log_alpha, other.log_alpha, rtol=1e-4, atol=1e-5)


def continuous_update(plain: Plain, algo: SAC, b: Batch, noise: Tensor, subset: list[int] | None) -> dict[str, Tensor]:
    """One update; `noise` [2, B, A]: the normal draws for the target and for the actor."""
    cfg, keep, alpha = algo.cfg, b.mask.bool(), plain.log_alpha.detach().exp()[0]
    with torch.no_grad():
        a, log_prob = plain.squashed(b.next_obs["obs"], noise[0])
        q = plain.all_q(plain.targets, b.next_obs["obs"], a)[..., 0]
        y = b.reward + b.discount * ((q if subset is None else q[subset]).min(0).values - alpha * log_prob)
    loss_q = sum(
        nn.functional.mse_loss(q[keep], y[keep])
        for q in plain.all_q(plain.critics, b.obs["obs"], b.action["c"])[..., 0]
    )
    assert isinstance(loss_q, Tensor)
    plain.step(plain.optimize_q, loss_q)
    a, log_prob = plain.squashed(b.obs["obs"], noise[1])
    q = plain.all_q(plain.critics, b.obs["obs"], a)[..., 0]
    q = q.min(0).values if subset is None else q.mean(0)
    loss_pi = (alpha * log_prob - q)[keep].mean()
    plain.step(plain.optimize_pi, loss_pi)
    scale = plain.log_alpha[0] if cfg.alpha_loss == "log" else plain.log_alpha[0].exp()
    plain.step(plain.optimize_alpha, (-scale * (log_prob.detach() + cfg.target_entropy * 2))[keep].mean())
    plain.follow(cfg.tau)
    return {"train/critic_loss": loss_q, "train/actor_loss": loss_pi, "train/entropy": -log_prob[keep].mean()}


@pytest.mark.parametrize("alpha_loss", ["log", "exp"])
@pytest.mark.parametrize("critics", [1, 2])
def test_continuous_updates_are_the_papers(alpha_loss: str, critics: int) -> None:
    algo = make(CONTINUOUS, alpha_loss=alpha_loss, critics=critics, critic_lr=1e-3, alpha_lr=5e-3, tau=0.05)
    plain = Plain(algo)
    for seed in range(4):
        b = batch(CONTINUOUS)
        torch.manual_seed(seed)
        out = algo.update(b, 1)
        torch.manual_seed(seed)
        noise = torch.stack([torch.randn(ROWS, 2) for _ in range(2)])
        for name, value in continuous_update(plain, algo, b, noise, None).items():
            torch.testing.assert_close(out.metrics[name], value.detach(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(out.metrics["train/ent_coef"], plain.log_alpha.detach().exp().mean())
    plain.check(algo)
    assert plain.log_alpha[0] != plain.log_alpha[1], "the temperature has moved"


def test_a_subset_gives_the_target_its_minimum_and_the_actor_the_mean() -> None:
    algo = make(CONTINUOUS, critics=5, subset=2)
    plain = Plain(algo)
    for seed in range(3):
        b = batch(CONTINUOUS)
        torch.manual_seed(seed)
        algo.update(b, 1)
        torch.manual_seed(seed)
        first = torch.randn(ROWS, 2)
        members = torch.rand(5).topk(2).indices.tolist()
        continuous_update(plain, algo, b, torch.stack([first, torch.randn(ROWS, 2)]), members)
    plain.check(algo)


def test_subsets_are_drawn_anew_and_evenly() -> None:
    algo = make(CONTINUOUS, critics=4, subset=2)
    q = torch.tensor([[0.0, 9.0], [1.0, 8.0], [2.0, 7.0], [3.0, 6.0]])
    pairs = {(min(i, j), 9.0 - max(i, j)): (i, j) for i, j in itertools.combinations(range(4), 2)}
    counts = Counter(pairs[tuple(algo.drawn(q).amin(0).tolist())] for _ in range(1200))  # type: ignore[index]
    assert len(counts) == 6
    assert all(140 < n < 260 for n in counts.values())


@pytest.mark.parametrize("alpha_loss", ["log", "exp"])
def test_discrete_updates_are_exact_expectations(alpha_loss: str) -> None:
    """CleanRL's sac_atari with masks: no draw enters a loss."""
    algo = make(DISCRETE, alpha_loss=alpha_loss, alpha_lr=5e-3, tau=0.05, target_entropy_discrete=0.5)
    plain, cfg = Plain(algo), algo.cfg
    for _ in range(4):
        b = batch(DISCRETE)
        out = algo.update(b, 1)
        keep, alpha = b.mask.bool(), plain.log_alpha.detach().exp()[1]
        with torch.no_grad():
            pi = plain.choices(b.next_obs)
            q = plain.all_q(plain.targets, b.next_obs["obs"]).min(0).values
            v = (pi.probs * (q - alpha * pi.logits)).sum(-1)
            y = b.reward + b.discount * v
        taken = [q.gather(1, b.action["d"])[:, 0] for q in plain.all_q(plain.critics, b.obs["obs"])]
        loss_q = nn.functional.mse_loss(taken[0][keep], y[keep]) + nn.functional.mse_loss(taken[1][keep], y[keep])
        plain.step(plain.optimize_q, loss_q)
        with torch.no_grad():
            q = plain.all_q(plain.critics, b.obs["obs"]).min(0).values
        pi = plain.choices(b.obs)
        loss_pi = (pi.probs * (alpha * pi.logits - q)).sum(-1)[keep].mean()
        plain.step(plain.optimize_pi, loss_pi)
        entropy, aim = pi.entropy().detach(), 0.5 * b.obs["mask"].sum(-1).float().log()
        scale = plain.log_alpha[1] if alpha_loss == "log" else plain.log_alpha[1].exp()
        plain.step(plain.optimize_alpha, (scale * (entropy - aim))[keep].mean())
        plain.follow(cfg.tau)
        expected = {"train/critic_loss": loss_q, "train/actor_loss": loss_pi, "train/entropy": entropy[keep].mean()}
        for name, value in expected.items():
            torch.testing.assert_close(out.metrics[name], value.detach(), rtol=1e-4, atol=1e-5)
    plain.check(algo)


# -- several kinds of actions at once ---------------------------------------------------------------------------------


def hybrid_policy(rows: int, sizes: tuple[int, ...]) -> tuple[Policy, Sample]:
    policy = Policy(
        OurNormal(torch.randn(rows, 2), torch.randn(rows, 2), True), Branches.of(torch.randn(rows, 5), sizes)
    )
    return policy, policy.sample()


def test_a_hybrid_value_is_the_expectation_over_all_joint_choices() -> None:
    """sum_d1 sum_d2 p(d1) p(d2) (Q1(d1) + Q2(d2) - alpha_1 log p(d1) - alpha_2 log p(d2)) - alpha_c log p(c)."""
    algo = make(ActionSpec(2, (2, 3)))
    policy, new = hybrid_policy(6, (2, 3))
    q, alpha = torch.randn(6, 5), torch.tensor([0.1, 0.3, 0.7])
    value = algo.soft_value(q, policy, new, alpha)
    for i in range(6):
        total = -0.1 * float(new.log_c[i])
        for d1, d2 in itertools.product(range(2), range(3)):
            log_1, log_2 = float(policy.d.log_p[i, d1]), float(policy.d.log_p[i, 2 + d2])
            joint = math.exp(log_1 + log_2)
            total += joint * (float(q[i, d1] + q[i, 2 + d2]) - 0.3 * log_1 - 0.7 * log_2)
        assert float(value[i]) == pytest.approx(total, rel=1e-4, abs=1e-5)


def test_every_kind_of_action_has_its_own_temperature_and_aim() -> None:
    algo = make(ActionSpec(2, (2, 3)), target_entropy=-0.5, target_entropy_discrete=0.9)
    policy, new = hybrid_policy(ROWS, (2, 3))
    b = batch(ActionSpec(2, (2, 3)))
    log = torch.tensor([0.2, -0.4, 1.5], requires_grad=True)
    loss = algo.alpha_loss(b, log, -new.log_c, policy.d.entropies(), policy.d.legal())
    (slopes,) = torch.autograd.grad(loss, log)
    keep = b.mask.bool()
    entropies = policy.d.entropies()[keep].mean(0)
    expected = [
        float(-new.log_c[keep].mean()) + 0.5 * 2,
        float(entropies[0]) - 0.9 * math.log(2),
        float(entropies[1]) - 0.9 * math.log(3),
    ]
    assert slopes.tolist() == pytest.approx(expected, abs=1e-5), "alpha falls where the entropy is above its aim"


def test_one_legal_choice_asks_for_no_entropy() -> None:
    algo, b = make(DISCRETE), batch(DISCRETE)
    one = torch.zeros(ROWS, 4, dtype=torch.bool)
    one[:, 2] = True
    d = Branches.of(torch.randn(ROWS, 4), (4,), one)
    log = torch.zeros(2, requires_grad=True)
    loss = algo.alpha_loss(b, log, torch.zeros(ROWS), d.entropies(), d.legal())
    (slopes,) = torch.autograd.grad(loss, log)
    assert slopes.tolist() == pytest.approx([0, 0], abs=1e-6)


def test_a_fixed_temperature_stays() -> None:
    algo = make(CONTINUOUS, alpha="0.25")
    algo.update(batch(CONTINUOUS), 1)
    assert algo.temperature.log.exp().tolist() == pytest.approx([0.25, 0.25])


# -- the order of events ----------------------------------------------------------------------------------------------


def test_a_delayed_actor_takes_as_many_steps_as_the_critic() -> None:
    algo = make(CONTINUOUS, policy_delay=3)
    moves = []
    for _ in range(6):
        algo.updates += 1
        steps = 3 if algo.updates % 3 == 0 else 0
        algo.update(batch(CONTINUOUS), steps)
        moves.append((float(algo.adam_critic.t), float(algo.adam_actor.t), float(algo.adam_alpha.t)))
    assert moves == [(1, 0, 0), (2, 0, 0), (3, 3, 3), (4, 3, 3), (5, 3, 3), (6, 6, 6)]


def test_priorities_are_the_mean_errors_of_the_critics() -> None:
    algo, b = make(DISCRETE, critics=3), batch(DISCRETE)
    with torch.no_grad():
        q = torch.stack([algo.critic(b, b.action["c"])[e].gather(1, b.action["d"])[:, 0] for e in range(3)])
        policy = algo.actor.next(b)
        v = algo.soft_value(algo.target.next(b, b.action["c"]).amin(0), policy, policy.sample(), torch.full((2,), 0.3))
    out = algo.update(b, 1)
    assert out.priority is not None
    torch.testing.assert_close(out.priority, (q - (b.reward + b.discount * v)).abs().mean(0))


@pytest.mark.slow
def test_compiled_updates_are_the_eager_ones() -> None:
    """With the same draws. Sums in another order: 1e-4 of each number, and parameters after five steps to 1e-4 of 1.

    Actions are compiled, too, and both numbers of actor steps, each of which is a graph of its own.
    """
    action = ActionSpec(2, (4,))
    eager = make(action)
    compiled = deepcopy(eager)
    with torch.no_grad():
        compiled.compile_update()
        compiled.compile_pieces()
        for seed in range(5):
            b = batch(action)
            steps, few = 0 if seed == 3 else 1, {k: v[:4] for k, v in b.obs.items()}
            torch.manual_seed(seed)
            ours, acted = compiled.step_update(b, steps), compiled.answer(few, eager.initial(4))
            torch.manual_seed(seed)
            theirs, act = eager.update(b, steps), eager.act(few, eager.initial(4))
            for key, value in act.action.items():
                torch.testing.assert_close(acted.action[key], value, rtol=1e-4, atol=1e-4)
            assert ours.metrics.keys() == theirs.metrics.keys(), "plain arguments choose the graph"
            for name, value in theirs.metrics.items():
                torch.testing.assert_close(ours.metrics[name], value, rtol=1e-4, atol=1e-4, msg=lambda m, n=name: n + m)
    assert compiled.graph is not None, "it was the compiled one"
    assert compiled.graphs["act"].works
    for (name, p), q in zip(eager.state_dict().items(), compiled.state_dict().values(), strict=True):
        if isinstance(p, Tensor):
            torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")
