"""PPO's update against plain code that knows nothing of kumite: textbook A2C, CleanRL's formulas, rl_games' pieces."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal, kl_divergence

from kumite.algos.ppo import PPO, PPOConfig
from kumite.batch import Batch, rollout
from kumite.config import resolve
from kumite.nn.config import Net
from kumite.stream import Stream
from kumite.types import ActionSpec, Spec, Step

OBS = {"obs": Spec((3,))}
CONTINUOUS, DISCRETE = ActionSpec(2), ActionSpec(0, (4,))
NET = Net(width=8, activation="tanh", init="orthogonal")
kinds = pytest.mark.parametrize("action", [CONTINUOUS, DISCRETE], ids=lambda a: a.kind)


def make(action: ActionSpec, slots: int = 4, **numbers: Any) -> PPO:
    """Nets moved off their even start, so that no gradient is small by accident."""
    algo = PPO(OBS, action, slots, replace(PPOConfig(actor=NET, critic=NET), **numbers))
    for p in algo.net.parameters():
        p.add_(0.3 * torch.randn_like(p))
    return algo


class Plain(nn.Module):
    """Two small nets as CleanRL writes them, with the weights of a PPO."""

    def __init__(self, algo: PPO) -> None:
        super().__init__()
        self.continuous = algo.action.continuous
        self.actor = self.mlp(algo.net.actor.torso.hidden.layers, algo.net.actor.head.out)
        self.critic = self.mlp(algo.net.critic.hidden.layers, algo.net.value)
        if self.continuous:
            self.log_std = nn.Parameter(algo.net.actor.head.free.clone())

    @staticmethod
    def mlp(hidden: Any, out: nn.Linear) -> nn.Sequential:
        layers: list[nn.Module] = []
        for theirs in [*(layer[0] for layer in hidden), out]:
            mine = nn.Linear(theirs.in_features, theirs.out_features)
            mine.load_state_dict(theirs.state_dict())
            layers += [mine, nn.Tanh()]
        return nn.Sequential(*layers[:-1])

    def say(self, obs: Tensor, taken: Tensor) -> tuple[Tensor, Tensor, Tensor, Any]:
        """log-probability, entropy, value, distribution."""
        if self.continuous:
            mean = self.actor(obs)
            dist: Any = Normal(mean, self.log_std.expand_as(mean).exp())
            return dist.log_prob(taken).sum(-1), dist.entropy().sum(-1), self.critic(obs)[:, 0], dist
        dist = Categorical(logits=self.actor(obs))
        return dist.log_prob(taken), dist.entropy(), self.critic(obs)[:, 0], dist


def check_nets(algo: PPO, plain: Plain, rtol: float = 1e-4) -> None:
    again = Plain(algo)
    for (name, mine), theirs in zip(again.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=rtol, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")


def minibatch(algo: PPO, size: int = 32, moved: float = 0.1) -> Batch:
    """Rows as a roll-out leaves them, acted by a policy that has moved a little since; some of them void."""
    obs = torch.randn(size, 3)
    before = [p.clone() for p in algo.net.parameters()]
    for p in algo.net.parameters():
        p.add_(moved * torch.randn_like(p))
    policy, _ = algo.net.step({"obs": obs}, {"actor": {}, "critic": {}})
    new = policy.sample()
    for p, old in zip(algo.net.parameters(), before, strict=True):
        p.copy_(old)
    mask, value = (torch.arange(size) % 5 > 0).float(), torch.randn(size)
    extras = policy.numbers() | {
        "u": new.u,
        "log_prob": policy.log_prob(new.u, new.d),
        "advantage": 2 * torch.randn(size) + 1,
        "value": value,
        "return": value + torch.randn(size),
    }
    action = {"c": new.c, "d": new.d}
    return Batch({"obs": obs}, {}, action, mask, mask, mask, mask, torch.ones(size), {}, mask, extras)


def counted(b: Batch) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Observations, actions and extras of the rows that count."""
    keep = b.mask.bool()
    taken = b.action["d"][:, 0] if b.action["d"].shape[1] else b.extras["u"]
    return b.obs["obs"][keep], taken[keep], {k: v[keep] for k, v in b.extras.items()}


# -- A2C --------------------------------------------------------------------------------------------------------------


def roll_out(algo: PPO, steps: int) -> tuple[Stream, list[Step], list[dict[str, Tensor]]]:
    """A made-up environment with ends of both kinds, acted in by the algorithm."""
    stream, slots = algo.make_stream(), algo.slots
    over = torch.ones(slots, dtype=torch.bool)
    said, done = [], []
    for _ in range(steps + 1):
        end = torch.randint(0, 6, (slots,)) * ~over
        step = Step({"obs": torch.randn(slots, 3)}, torch.randn(slots) * ~over, end == 1, end == 2)
        over = step.over
        stream.observe(step)
        act = algo.act(step.obs, algo.initial(slots))
        stream.record(act, {})
        said.append(step)
        done.append({"d": act.action["d"], "u": act.extras["u"]})
    return stream, said, done


@kinds
def test_the_a2c_row_takes_the_textbook_gradient(action: ActionSpec) -> None:
    """-A grad log pi + value and entropy terms, A = returns to the end or to the bootstrap value, minus V."""
    cfg = resolve("a2c", overrides={"actor": NET, "critic": NET, "entropy_coef": 0.01, "grad_clip": 0, "horizon": 12})
    algo = PPO(OBS, action, 4, cfg)
    for p in algo.net.parameters():
        p.add_(0.3 * torch.randn_like(p))
    plain = Plain(algo)
    stream, said, done = roll_out(algo, cfg.horizon)
    assert len(algo.learn(stream, 0, 1000)) == 1, "one step on all rows"

    loss, rows = torch.zeros(()), 0
    for n in range(4):
        for t in range(cfg.horizon):
            if said[t].over[n]:
                continue
            total, k = 0.0, t
            while True:
                k += 1
                total += cfg.gamma ** (k - t - 1) * float(said[k].reward[n])
                if said[k].over[n] or k == cfg.horizon:
                    break
            last = said[k].obs["obs"][n : n + 1]
            if not said[k].terminated[n]:
                total += cfg.gamma ** (k - t) * plain.critic(last).item()
            taken = done[t]["d"][n] if action.branches else done[t]["u"][n : n + 1]
            log_prob, entropy, value, _ = plain.say(said[t].obs["obs"][n : n + 1], taken)
            advantage = total - value.item()
            term = -advantage * log_prob + cfg.value_coef * 0.5 * (value - total) ** 2 - 0.01 * entropy
            loss, rows = loss + term.sum(), rows + 1
    (loss / rows).backward()

    ours = [getattr(algo.adam, f"m{i}") / (1 - 0.9) for i in range(len(algo.adam.names))]  # the first moment of step 1
    for p, g in zip(algo.net.parameters(), ours, strict=True):
        p.copy_(g)
    gradients = Plain(algo)  # the same numbers under the plain names
    for mine, theirs in zip(gradients.parameters(), plain.parameters(), strict=True):
        assert theirs.grad is not None
        torch.testing.assert_close(mine.detach(), theirs.grad, rtol=1e-3, atol=1e-5)


# -- CleanRL ----------------------------------------------------------------------------------------------------------


@kinds
@pytest.mark.parametrize("clip_value", [0.0, 0.2])
def test_updates_are_cleanrls(action: ActionSpec, clip_value: float) -> None:
    """Three minibatches through ppo_continuous_action.py's and ppo.py's loss, clip_grad_norm_ and torch's Adam."""
    algo = make(action, lr=3e-3, clip_value=clip_value, entropy_coef=0.02, grad_clip=0.5)
    plain = Plain(algo)
    optimizer = torch.optim.Adam(plain.parameters(), lr=3e-3, eps=1e-5)
    for _ in range(3):
        b = minibatch(algo)
        out = algo.update(b, torch.tensor(0.2), torch.tensor(0.02))
        obs, taken, x = counted(b)

        new_log_prob, entropy, value, dist = plain.say(obs, taken)
        log_ratio = new_log_prob - x["log_prob"]
        ratio = log_ratio.exp()
        advantage = (x["advantage"] - x["advantage"].mean()) / (x["advantage"].std() + 1e-8)
        loss_pi = torch.max(-advantage * ratio, -advantage * torch.clamp(ratio, 1 - 0.2, 1 + 0.2)).mean()
        if clip_value:
            unclipped = (value - x["return"]) ** 2
            near = x["value"] + torch.clamp(value - x["value"], -clip_value, clip_value)
            loss_v = 0.5 * torch.max(unclipped, (near - x["return"]) ** 2).mean()
        else:
            loss_v = 0.5 * ((value - x["return"]) ** 2).mean()
        loss = loss_pi - 0.02 * entropy.mean() + 0.5 * loss_v
        old = Normal(x["mean"], x["log_std"].exp()) if action.continuous else Categorical(logits=x["log_p"])
        kl = kl_divergence(old, dist)
        expected = {
            "train/loss": loss,
            "train/policy_gradient_loss": loss_pi,
            "train/value_loss": loss_v,
            "train/entropy": entropy.mean(),
            "train/clip_fraction": ((ratio - 1.0).abs() > 0.2).float().mean(),
            "train/kl": kl.sum(-1).mean() if action.continuous else kl.mean(),
        }
        for name, number in expected.items():
            torch.testing.assert_close(out.metrics[name], number.detach(), rtol=1e-4, atol=1e-5)
        assert out.metrics["train/clip_fraction"] > 0, "or the clip is not tested"
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        optimizer.step()
    check_nets(algo, plain)


def test_the_first_ratio_of_a_roll_out_is_one() -> None:
    """Also with normalised observations: their statistics stand still between acting and updating."""
    algo = make(CONTINUOUS, horizon=16, batch_size=0, epochs=1, normalize_obs=True, normalize_reward=True)
    algo.norm.update({"obs": 3 + 2 * torch.randn(50, 3)})
    stream, _, _ = roll_out(algo, 16)
    (metrics,) = algo.learn(stream, 0, 1000)
    assert float(algo.norm.stats.count) == 50 + 16 * 4, "they take in the roll-out behind its update"
    assert float(metrics["train/kl"]) == pytest.approx(0, abs=1e-6)
    assert float(metrics["train/clip_fraction"]) == 0


@pytest.mark.parametrize("lam", [0.95, 0.0])
def test_roll_outs_get_cleanrls_advantages(lam: float) -> None:
    """ppo.py's loop, where V of the row that follows is V of the true last observation and void rows are left out."""
    algo = make(DISCRETE, horizon=20, lam=lam, norm_adv="batch")
    stream, said, _ = roll_out(algo, 20)
    plain = Plain(algo)
    b = algo.prepare(rollout(stream, 20, None))
    value = torch.stack([plain.critic(s.obs["obs"])[:, 0] for s in said]).detach()
    advantages, running = torch.zeros(20, 4), torch.zeros(4)
    for t in reversed(range(20)):
        going_on, bootstraps = 1 - said[t + 1].over.float(), 1 - said[t + 1].terminated.float()
        delta = said[t + 1].reward + algo.cfg.gamma * value[t + 1] * bootstraps - value[t]
        running = delta + algo.cfg.gamma * lam * going_on * running
        advantages[t] = running
    keep = b.mask.bool()
    assert keep.tolist() == [(~said[t].over).tolist() for t in range(20)]
    torch.testing.assert_close(b.extras["return"][keep], (advantages + value[:-1])[keep])
    whole = (advantages[keep] - advantages[keep].mean()) / (advantages[keep].std() + 1e-8)
    torch.testing.assert_close(b.extras["advantage"][keep], whole, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(b.extras["value"], value[:-1])


# -- SPO and ASPO -----------------------------------------------------------------------------------------------------


def row_by_row(objective: str, ratio: float, advantage: float, eps: float) -> float:
    """Xie et al. 2024: A r - |A| (r - 1)^2 / (2 eps); ASPO keeps PPO's clip where A >= 0."""
    if objective == "clip" or (objective == "aspo" and advantage >= 0):
        return min(ratio * advantage, min(max(ratio, 1 - eps), 1 + eps) * advantage)
    return ratio * advantage - abs(advantage) * (ratio - 1) ** 2 / (2 * eps)


@kinds
@pytest.mark.parametrize("objective", ["clip", "spo", "aspo"])
def test_what_keeps_the_ratio_near_one(objective: str, action: ActionSpec) -> None:
    algo = make(action, objective=objective, norm_adv="none")
    plain, b = Plain(algo), minibatch(algo)
    obs, taken, x = counted(b)
    ratio = (plain.say(obs, taken)[0] - x["log_prob"]).exp().tolist()
    values = [row_by_row(objective, r, a, 0.2) for r, a in zip(ratio, x["advantage"].tolist(), strict=True)]
    out = algo.update(b, torch.tensor(0.2), torch.tensor(0.0))
    expected = -sum(values) / len(values)
    assert float(out.metrics["train/policy_gradient_loss"]) == pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(
    ("objective", "advantage", "slope"),
    [("clip", 2.0, 0), ("spo", 2.0, 2 - 2 * 0.5 / 0.2), ("aspo", 2.0, 0), ("aspo", -2.0, -2 - 2 * 0.5 / 0.2)],
)
def test_spo_pulls_back_what_the_clip_lets_go(objective: str, advantage: float, slope: float) -> None:
    """At r = 1.5: the derivative of the objective by r, A - |A| (r - 1) / eps, is 0 at r = 1 + eps for good actions."""
    algo, ratio = make(CONTINUOUS, objective=objective), torch.tensor([1.5], requires_grad=True)
    value = algo.surrogate(ratio, torch.tensor([advantage]), torch.tensor(0.2))
    (found,) = torch.autograd.grad(value.sum(), ratio)
    assert float(found) == pytest.approx(slope)


def test_the_penalty_is_finite_when_the_clip_has_faded() -> None:
    algo, ratio = make(CONTINUOUS, objective="spo"), torch.tensor([1.0, 1.01])
    assert algo.surrogate(ratio, torch.tensor([1.0, -1.0]), torch.tensor(0.0)).isfinite().all()
    assert algo.surrogate(ratio, torch.ones(2), torch.tensor(math.inf)).tolist() == pytest.approx([1, 1.01])


# -- rl_games ---------------------------------------------------------------------------------------------------------


def smooth(x: Tensor, low: float, high: float) -> Tensor:
    return 1 / (1 + torch.exp((-(x - low) / (high - low) + 0.5) * 4)) * (high - low) + low


def test_the_smooth_clamp_replaces_the_hard_one() -> None:
    algo = make(CONTINUOUS, smooth_clamp=True, norm_adv="none")
    b = minibatch(algo)
    obs, taken, x = counted(b)
    ratio = (Plain(algo).say(obs, taken)[0] - x["log_prob"]).exp().detach()
    expected = torch.max(-x["advantage"] * ratio, -x["advantage"] * smooth(ratio, 0.8, 1.2)).mean()
    out = algo.update(b, torch.tensor(0.2), torch.tensor(0.0))
    torch.testing.assert_close(out.metrics["train/policy_gradient_loss"], expected)
    one = torch.ones((), requires_grad=True)
    (slope,) = torch.autograd.grad(smooth(one, 0.8, 1.2), one)
    assert (smooth(one, 0.8, 1.2).item(), float(slope)) == pytest.approx((1, 1))


@pytest.mark.parametrize("kind", ["bound", "regularisation"])
def test_the_loss_of_means_beyond_their_limits(kind: str) -> None:
    with_loss, without = (make(CONTINUOUS, bounds_coef=c, bounds_loss=kind, norm_adv="none") for c in (0.1, 0.0))
    with_loss.net.actor.head.out.bias.add_(torch.tensor([2.0, -2.0]))
    without.load_state_dict(with_loss.state_dict())
    b = minibatch(with_loss)
    mean = Plain(with_loss).actor(counted(b)[0]).detach()
    if kind == "bound":
        each = torch.clamp_min(mean - 1.1, 0.0) ** 2 + torch.clamp_max(mean + 1.1, 0.0) ** 2
    else:
        each = mean**2
    numbers = torch.tensor(0.2), torch.tensor(0.0)
    more = with_loss.update(b, *numbers).metrics["train/loss"] - without.update(b, *numbers).metrics["train/loss"]
    torch.testing.assert_close(more, 0.1 * each.sum(-1).mean(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("kl", "lr", "becomes"),
    [
        (0.021, 3e-3, 2e-3),  # too far: slower
        (0.019, 3e-3, 3e-3),
        (0.006, 3e-3, 3e-3),
        (0.004, 3e-3, 4.5e-3),  # hardly moved: faster
        (9.0, 2e-6, 2e-6),  # floor
        (0.0, 9e-3, 1e-2),  # ceiling
    ],
)
def test_the_learning_rate_follows_the_divergence(kl: float, lr: float, becomes: float) -> None:
    algo = make(CONTINUOUS, lr_schedule="kl", kl_aim=0.01, lr_min=2e-6, lr=lr)
    algo.steer_lr("minibatch", [{"train/kl": torch.tensor(kl)}])
    assert float(algo.adam.lr) == pytest.approx(becomes)


@pytest.mark.parametrize(("every", "times"), [("minibatch", 6), ("epoch", 2), ("rollout", 1)])
def test_how_often_the_learning_rate_is_steered(every: str, times: int) -> None:
    """Two epochs of three minibatches whose divergence is always small enough to go faster."""
    algo = make(CONTINUOUS, lr_schedule="kl", kl_every=every, lr=1e-6, kl_aim=10.0, horizon=12, minibatches=3, epochs=2)
    stream, _, _ = roll_out(algo, 12)
    algo.learn(stream, 0, 1000)
    assert float(algo.adam.lr) == pytest.approx(1e-6 * 1.5**times)


def test_values_are_learned_in_normalised_units() -> None:
    """Advantages in raw units; the statistics take the returns; values and returns are then told in them."""
    algo = make(DISCRETE, horizon=20, normalize_value=True, norm_adv="none")
    algo.value_norm.update(5 + 3 * torch.randn(100), torch.ones(100))
    stream, said, _ = roll_out(algo, 20)
    raw_mean, raw_std = float(algo.value_norm.stats.mean), math.sqrt(float(algo.value_norm.stats.var) + 1e-5)
    value = torch.stack([Plain(algo).critic(s.obs["obs"])[:, 0] for s in said]).detach() * raw_std + raw_mean
    b = algo.prepare(rollout(stream, 20, None))
    keep = b.mask.bool()
    returns = algo.value_norm.inverse(b.extras["return"])
    torch.testing.assert_close((returns - value[:-1])[keep], b.extras["advantage"][keep], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(algo.value_norm.inverse(b.extras["value"]), value[:-1], rtol=1e-4, atol=1e-4)
    assert float(algo.value_norm.stats.count) == 100 + int(keep.sum())


@pytest.mark.parametrize("share", [True, False])
def test_every_parameter_has_one_name(share: bool) -> None:
    """torch compiles no update of a net that knows a parameter by two."""
    algo = make(CONTINUOUS, share=share)
    names = [name for name, _ in algo.net.named_parameters(remove_duplicate=False)]
    assert len(names) == len(list(algo.net.parameters()))
    assert any(name.startswith("critic.") for name in names) is not share


def test_epochs_stop_when_the_policy_has_moved_far_enough() -> None:
    for target, epochs in ((1e-9, 1), (1e9, 4)):
        algo = make(CONTINUOUS, target_kl=target, horizon=12, batch_size=16, epochs=4)
        stream, _, _ = roll_out(algo, 12)
        assert len(algo.learn(stream, 0, 1000)) == epochs
        assert algo.updates == 3 * epochs


@pytest.mark.parametrize(("field", "place"), [("clip_schedule", 0), ("entropy_schedule", 1)])
def test_clip_and_entropy_fade_with_the_run(field: str, place: int) -> None:
    algo = make(CONTINUOUS, clip=0.2, entropy_coef=0.04, horizon=12, batch_size=0, epochs=1, **{field: "linear"})
    seen: list[tuple[Tensor, Tensor]] = []
    whole = algo.update
    algo.update = lambda b, *numbers: seen.append(numbers) or whole(b, *numbers)  # type: ignore[method-assign]
    stream, _, _ = roll_out(algo, 12)
    algo.learn(stream, 750, 1000)
    expected = [0.2, 0.04]
    expected[place] *= 0.25
    assert [float(x) for x in seen[0]] == pytest.approx(expected)


@pytest.mark.slow
def test_compiled_updates_are_the_eager_ones() -> None:
    """Sums in another order: 1e-4 of each number, and parameters after five steps to 1e-4 of 1."""
    eager = make(ActionSpec(2, (4,)), grad_clip=0.5, entropy_coef=0.01)
    compiled = deepcopy(eager)
    compiled.compile_update()
    with torch.no_grad():
        for _ in range(5):
            b, numbers = minibatch(eager), (torch.tensor(0.2), torch.tensor(0.01))
            ours, theirs = compiled.step_update(b, *numbers), eager.update(b, *numbers)
            for name, value in theirs.metrics.items():
                torch.testing.assert_close(ours.metrics[name], value, rtol=1e-4, atol=1e-4, msg=lambda m, n=name: n + m)
    assert compiled.graph is not None, "it was the compiled one"
    for (name, p), q in zip(eager.state_dict().items(), compiled.state_dict().values(), strict=True):
        if isinstance(p, Tensor):
            torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")
