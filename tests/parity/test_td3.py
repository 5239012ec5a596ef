"""TD3's and DDPG's updates against plain code that knows nothing of kumite, fed with the same random draws."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kumite.algos import ROWS
from kumite.algos.td3 import TD3, TD3Config
from kumite.batch import Batch
from kumite.nn.config import Net
from kumite.nn.models import ActionValue
from kumite.types import ActionSpec, Spec
from tests.parity.test_sac import CONTINUOUS, NET, batch
from tests.parity.test_sac import ROWS as SIZE
from tests.parity.test_sac import Plain as PlainSAC


def make(**numbers: Any) -> TD3:
    config = replace(TD3Config(actor=NET, critic=NET, tau=0.05, critic_lr=1e-3), **numbers)
    algo = TD3({"obs": Spec((3,))}, CONTINUOUS, 4, config)
    for p in [*algo.target.parameters(), *algo.target_actor.parameters()]:
        p.add_(0.1 * torch.randn_like(p))
    return algo


class Plain:
    """The authors' code, but for names: nets one by one, .backward(), targets by a loop."""

    def __init__(self, algo: TD3) -> None:
        self.actor, self.target_actor = self.policy(algo.actor), self.policy(algo.target_actor)
        self.critics, self.targets = PlainSAC.ensemble(self, algo.critic), PlainSAC.ensemble(self, algo.target)  # type: ignore[arg-type]
        self.optimize_q = torch.optim.Adam(self.critics.parameters(), algo.cfg.critic_lr or algo.cfg.lr)
        self.optimize_pi = torch.optim.Adam(self.actor.parameters(), algo.cfg.lr)
        self.cfg = algo.cfg

    mlp = staticmethod(PlainSAC.mlp)

    def policy(self, actor: Any) -> nn.Sequential:
        return nn.Sequential(self.mlp([*(layer[0] for layer in actor.torso.hidden.layers), actor.head.out]), nn.Tanh())

    def q(self, nets: nn.ModuleList, obs: Tensor, action: Tensor) -> list[Tensor]:
        return [net(torch.cat([obs, action], 1))[:, 0] for net in nets]

    def update(self, b: Batch, noise: Tensor | None, move: bool) -> dict[str, Tensor]:
        keep, s, s2 = b.mask.bool(), b.obs["obs"], b.next_obs["obs"]
        with torch.no_grad():
            a2 = self.target_actor(s2)
            if noise is not None:
                a2 = (a2 + (noise * self.cfg.target_noise).clamp(-self.cfg.target_clip, self.cfg.target_clip)).clamp(
                    -1, 1
                )
            q2 = self.q(self.targets, s2, a2)
            y = b.reward + b.discount * torch.stack(q2).min(0).values
        said = self.q(self.critics, s, b.action["c"])
        loss_q = sum((b.weight * (q - y).pow(2))[keep].mean() for q in said)
        assert isinstance(loss_q, Tensor)
        self.optimize_q.zero_grad()
        loss_q.backward()
        self.optimize_q.step()
        found = {"train/critic_loss": loss_q.detach(), "priority": torch.stack([(q - y).abs() for q in said]).mean(0)}
        if move:
            loss_pi = -(b.weight * self.q(self.critics, s, self.actor(s))[0])[keep].mean()
            self.optimize_pi.zero_grad()
            loss_pi.backward()
            self.optimize_pi.step()
            found["train/actor_loss"] = loss_pi.detach()
            pairs = [(self.actor, self.target_actor), (self.critics, self.targets)]
            with torch.no_grad():
                for source, target in pairs:
                    for p, q in zip(source.parameters(), target.parameters(), strict=True):
                        q.copy_(self.cfg.tau * p + (1 - self.cfg.tau) * q)
        return found

    def check(self, algo: TD3) -> None:
        other = Plain(algo)
        for name in ("actor", "critics", "target_actor", "targets"):
            for mine, theirs in zip(getattr(self, name).parameters(), getattr(other, name).parameters(), strict=True):
                torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


def follow(algo: TD3, plain: Plain, updates: int, noisy: bool) -> None:
    for seed in range(updates):
        b = batch(CONTINUOUS)
        b = b._replace(weight=0.2 + torch.rand(SIZE))
        algo.updates += 1
        (moves,) = algo.choices()
        torch.manual_seed(seed)
        out = algo.update(b, moves)
        torch.manual_seed(seed)
        found = plain.update(b, torch.randn(SIZE, 2) if noisy else None, moves)
        assert out.priority is not None
        torch.testing.assert_close(out.priority, found.pop("priority").detach(), rtol=1e-4, atol=1e-5)
        assert set(out.metrics) == {"train/q", *found}
        for name, value in found.items():
            torch.testing.assert_close(out.metrics[name], value, rtol=1e-4, atol=1e-5)
        plain.check(algo)


@pytest.mark.parametrize(("critics", "delay", "noise"), [(2, 2, 0.2), (2, 1, 2.0), (3, 3, 0.5)])
def test_td3_is_its_authors(critics: int, delay: int, noise: float) -> None:
    algo = make(critics=critics, policy_delay=delay, target_noise=noise)
    follow(algo, Plain(algo), 7, noisy=True)


def test_ddpg_is_the_row() -> None:
    """One critic, the target's own action, actor and targets at every update: no draw enters a loss."""
    algo = make(**ROWS["ddpg"].numbers)
    assert ROWS["ddpg"].home == ROWS["td3"].home
    before = torch.get_rng_state()
    follow(algo, Plain(algo), 5, noisy=False)
    torch.set_rng_state(before)
    assert algo.critic.out.weight.shape[0] == 1
    algo.update(batch(CONTINUOUS), True)


@pytest.mark.parametrize(
    "net",
    [
        Net(width=8, encoder="d2rl", norm="layer"),
        Net(width=8, norm="renorm"),
        Net(width=8, encoder="simba"),
        Net(width=8, encoder="simbav2"),
    ],
)
def test_the_first_critic_alone_says_what_it_says_among_all(net: Net) -> None:
    obs = {"obs": Spec((3,)), "side": Spec((1,))}
    critic = ActionValue(obs, CONTINUOUS, net, members=3, span=1, width=2)
    for p in critic.parameters():
        p.data += 0.1 * torch.randn_like(p)
    b = batch(CONTINUOUS)
    b = b._replace(obs=b.obs | {"side": torch.randn(SIZE, 1)})
    torch.testing.assert_close(critic.alone(b, b.action["c"]), critic(b, b.action["c"])[:1])


def test_between_two_moves_actor_and_targets_stand_still() -> None:
    algo = make(policy_delay=3)
    still = {
        k: v.clone()
        for k, v in algo.state_dict().items()
        if isinstance(v, Tensor) and k.startswith(("actor", "target"))
    }
    moved = []
    for _ in range(6):
        algo.updates += 1
        algo.update(batch(CONTINUOUS), *algo.choices())
        now = algo.state_dict()
        moved.append(any(not torch.equal(now[k], v) for k, v in still.items()))
        still = {k: now[k].clone() for k in still}
    assert moved == [False, False, True, False, False, True]
    assert (float(algo.adam_critic.t), float(algo.adam_actor.t)) == (6, 2)


def test_a_random_part_of_the_critics_and_the_mean_of_all() -> None:
    """REDQ's choices: the actor climbs the mean; the target takes the minimum over two of five."""
    algo = make(critics=5, subset=2, target_noise=0.0, policy_delay=1)
    plain, b = Plain(algo), batch(CONTINUOUS)
    torch.manual_seed(5)
    out = algo.update(b, True)
    torch.manual_seed(5)
    members = torch.rand(5).topk(2).indices.tolist()
    keep, s, s2 = b.mask.bool(), b.obs["obs"], b.next_obs["obs"]
    with torch.no_grad():
        y = (
            b.reward
            + b.discount * torch.stack(plain.q(plain.targets, s2, plain.target_actor(s2)))[members].min(0).values
        )
        loss = sum((q - y).pow(2)[keep].mean() for q in plain.q(plain.critics, s, b.action["c"]))
        critics = Plain(algo).critics  # the actor looks through the critics that have just learned
        climbs = -torch.stack(plain.q(critics, s, plain.actor(s))).mean(0)[keep].mean()
    torch.testing.assert_close(out.metrics["train/critic_loss"], loss)
    torch.testing.assert_close(out.metrics["train/actor_loss"], climbs, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("moves", [True, False])
def test_compiled_updates_are_the_eager_ones(moves: bool) -> None:
    """With the same draws; sums in another order: 1e-4."""
    eager = make()
    compiled = deepcopy(eager)
    with torch.no_grad():
        compiled.compile_update()
        for seed in range(4):
            b = batch(CONTINUOUS)
            torch.manual_seed(seed)
            ours = compiled.step_update(b, moves)
            torch.manual_seed(seed)
            theirs = eager.update(b, moves)
            for name, value in theirs.metrics.items():
                torch.testing.assert_close(ours.metrics[name], value, rtol=1e-4, atol=1e-4, msg=lambda m, n=name: n + m)
    assert compiled.graph is not None, "it was the compiled one"
    for (name, p), q in zip(eager.state_dict().items(), compiled.state_dict().values(), strict=True):
        if isinstance(p, Tensor):
            torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


def test_actions_without_limits_are_refused() -> None:
    from kumite.errors import UserError

    with pytest.raises(UserError, match="PPO can do it"):
        TD3({"obs": Spec((3,))}, ActionSpec(2, bounded=False), 1, TD3Config())
