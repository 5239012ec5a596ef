"""The DQN family's update against plain code that knows nothing of kumite, fed with the same random draws."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from kumite.algos.dqn import DQN, DQNConfig
from kumite.batch import Batch
from kumite.errors import UserError
from kumite.nn.config import Net
from kumite.nn.heads import NoisyLinear
from kumite.stream import Stream
from kumite.types import ActionSpec, Spec

CHOICES = 4
ONE, SEVERAL = ActionSpec(0, (CHOICES,)), ActionSpec(0, (2, 3))
ROWS = 24
SMALL: dict[str, Any] = {"lr": 3e-3, "atoms": 11, "v_min": -3.0, "v_max": 3.0, "quantiles": 5, "target_every": 0}
SMALL |= {"tau": 0.05, "grad_clip": 0.5}
KINDS = ["scalar", "c51", "quantile", "iqn"]


def make(action: ActionSpec = ONE, slots: int = 4, **numbers: Any) -> DQN:
    obs = {"obs": Spec((3,)), "mask": Spec((sum(action.branches),), torch.bool)}
    algo = DQN(obs, action, slots, replace(DQNConfig(critic=Net(layers=(8, 7))), **(SMALL | numbers)))
    for p in algo.target.parameters():
        p.add_(0.1 * torch.randn_like(p))
    return algo


def legal(branches: tuple[int, ...]) -> Tensor:
    """About half of the choices, at least one per branch."""
    parts = []
    for k in branches:
        part = torch.rand(ROWS, k) < 0.6
        part[:, 0] |= ~part.any(-1)
        parts.append(part)
    return torch.cat(parts, -1)


def batch(action: ActionSpec = ONE) -> Batch:
    now, then = ({"obs": torch.randn(ROWS, 3), "mask": legal(action.branches)} for _ in range(2))
    mask, discount = (torch.arange(ROWS) % 5 > 0).float(), 0.97 * (torch.rand(ROWS) < 0.8)
    d = torch.stack([torch.multinomial(m.float(), 1)[:, 0] for m in now["mask"].split(action.branches, -1)], -1)
    action_ = {"c": torch.zeros(ROWS, 0), "d": d}
    weight = torch.rand(ROWS) + 0.1
    return Batch(now, then, action_, torch.randn(ROWS), discount, mask.long(), mask, weight, {}, mask, {})


class Plain:
    """Q-learning as a textbook writes it: a module, an optimiser, .backward(), and loops where they are clear."""

    def __init__(self, algo: DQN) -> None:
        self.cfg, self.branches = algo.cfg, algo.action.branches
        self.N = {"scalar": 1, "c51": self.cfg.atoms, "quantile": self.cfg.quantiles, "iqn": 1}[self.cfg.head]
        self.net, self.target = self.copy(algo.online), self.copy(algo.target)
        self.optimizer = torch.optim.Adam(self.net.parameters(), self.cfg.lr)

    @staticmethod
    def copy(net: Any) -> nn.ModuleDict:
        def layer(theirs: Any) -> nn.Module:
            mine = nn.Linear(theirs.weight.shape[1], theirs.weight.shape[0])
            mine.load_state_dict({"weight": theirs.weight.clone(), "bias": theirs.bias.clone()})
            if isinstance(theirs, NoisyLinear):
                mine.register_parameter("ws", nn.Parameter(theirs.weight_sigma.clone()))
                mine.register_parameter("bs", nn.Parameter(theirs.bias_sigma.clone()))
            return mine

        parts = {"first": layer(net.torso.hidden.layers[0][0])}
        parts |= {"hidden": layer(net.head.choices[0].layers[0][0]), "out": layer(net.head.choices[1])}
        if net.head.state is not None:
            parts |= {"v_hidden": layer(net.head.state[0].layers[0][0]), "v_out": layer(net.head.state[1])}
        if hasattr(net.head, "embed"):
            parts |= {"embed": layer(net.head.embed)}
        return nn.ModuleDict(parts)

    def linear(self, layer: Any, x: Tensor) -> Tensor:
        if not self.cfg.noisy:
            return layer(x)
        f = lambda n: (e := torch.randn(n)).sign() * e.abs().sqrt()
        out, enter = f(layer.weight.shape[0]), f(layer.weight.shape[1])
        return nn.functional.linear(x, layer.weight + layer.ws * torch.outer(out, enter), layer.bias + layer.bs * out)

    def stream(self, net: Any, x: Tensor, prefix: str = "") -> Tensor:
        return self.linear(net[f"{prefix}out"], torch.relu(self.linear(net[f"{prefix}hidden"], x)))

    def say(self, net: Any, obs: Tensor) -> tuple[Tensor, Tensor | None]:
        """What the net says of each choice, [B, K, N], and of which fractions."""
        x = torch.relu(self.linear(net["first"], obs))
        tau = None
        if self.cfg.head == "quantile":
            tau = torch.tensor([(2 * i + 1) / (2 * self.N) for i in range(self.N)]).expand(ROWS, -1)
        if self.cfg.head == "iqn":
            tau = torch.rand(ROWS, self.cfg.quantiles)
            waves = torch.stack([torch.cos(math.pi * i * tau) for i in range(self.cfg.cosines)], -1)
            x = x[:, None] * torch.relu(self.linear(net["embed"], waves))  # [B, n, F]
        z = self.stream(net, x)
        if self.cfg.dueling:
            v = self.stream(net, x, "v_")
            parts = [p.unflatten(-1, (-1, self.N)) for p in z.split([k * self.N for k in self.branches], -1)]
            share = 1 if self.cfg.head == "c51" else 1 / len(self.branches)
            z = torch.cat([p - p.mean(-2, keepdim=True) + share * v.unsqueeze(-2) for p in parts], -2)
        else:
            z = z.unflatten(-1, (-1, self.N))
        return (z[..., 0].transpose(-1, -2), tau) if self.cfg.head == "iqn" else (z, tau)

    def atoms(self) -> Tensor:
        return torch.linspace(self.cfg.v_min, self.cfg.v_max, self.cfg.atoms)

    def best(self, z: Tensor, mask: Tensor) -> list[list[int]]:
        """Row by row, branch by branch, the legal choice with the largest mean."""
        q = (z.softmax(-1) * self.atoms()).sum(-1) if self.cfg.head == "c51" else z.mean(-1)
        found = []
        for row in range(ROWS):
            first, choice = 0, []
            for k in self.branches:
                options = [i for i in range(k) if mask[row, first + i]]
                choice.append(max(options, key=lambda i, f=first: float(q[row, f + i])))  # type: ignore[misc]
                first += k
            found.append(choice)
        return found

    def of(self, z: Tensor, d: list[list[int]]) -> list[Tensor]:
        """Per row: what stands for the choices taken, [N]: a sum, or the log of the branches' mixture."""
        found = []
        for row, choice in enumerate(d):
            first, parts = 0, []
            for k, i in zip(self.branches, choice, strict=True):
                parts.append(z[row, first + i])
                first += k
            if self.cfg.head == "c51":
                p = sum(part.softmax(-1) for part in parts) / len(parts)
                assert isinstance(p, Tensor)
                found.append(p.log())
            else:
                total = sum(parts)
                assert isinstance(total, Tensor)
                found.append(total)
        return found

    def h(self, x: float) -> float:
        return math.copysign(math.sqrt(abs(x) + 1) - 1, x) + 1e-3 * x if self.cfg.rescale else x

    def h_inverse(self, y: float) -> float:
        """By bisection: no formula to get wrong."""
        if not self.cfg.rescale:
            return y
        low, high = -1e4, 1e4
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if self.h(middle) < y else (low, middle)
        return low

    def back(self, b: Batch, row: int, v: Tensor) -> float:
        return self.h(float(b.reward[row]) + float(b.discount[row]) * self.h_inverse(float(v)))

    def pair(self, u: Tensor) -> Tensor:
        kappa = self.cfg.kappa
        return u.square() / 2 if abs(float(u.detach())) <= kappa else kappa * (u.abs() - kappa / 2)

    def update(self, b: Batch) -> tuple[Tensor, list[float]]:
        """The loss and each row's error."""
        cfg = self.cfg
        with torch.no_grad():
            after, _ = self.say(self.target, b.next_obs["obs"])
            guide = self.say(self.net, b.next_obs["obs"])[0] if cfg.double else after
            follows = self.of(after, self.best(guide, b.next_obs["mask"]))
        z, tau = self.say(self.net, b.obs["obs"])
        said = self.of(z, b.action["d"].tolist())
        losses, errors = [], []
        for row in range(ROWS):
            if cfg.head == "scalar":
                u = self.back(b, row, follows[row][0]) - said[row][0]
                losses.append(self.pair(u))
                errors.append(abs(float(u.detach())))
            elif cfg.head == "c51":
                losses.append(-(self.projected(b, row, follows[row].exp()) * said[row]).sum())
                errors.append(float(losses[-1].detach()))
            else:
                assert tau is not None
                total = torch.zeros(())
                for i in range(said[row].shape[0]):
                    for v in follows[row]:
                        u = self.back(b, row, v) - said[row][i]
                        weight = abs(float(tau[row, i]) - (float(u.detach()) < 0))
                        total = total + weight * self.pair(u) / cfg.kappa / follows[row].shape[0]
                losses.append(total)
                errors.append(float(total.detach()))
        keep = b.mask * b.weight
        loss = sum(float(keep[i]) * x for i, x in enumerate(losses)) / b.mask.sum()
        assert isinstance(loss, Tensor)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), cfg.grad_clip)
        self.optimizer.step()
        with torch.no_grad():
            for p, q in zip(self.net.parameters(), self.target.parameters(), strict=True):
                q.copy_(cfg.tau * p + (1 - cfg.tau) * q)
        return loss.detach(), errors

    def projected(self, b: Batch, row: int, p: Tensor) -> Tensor:
        cfg = self.cfg
        out, step = torch.zeros(cfg.atoms), (cfg.v_max - cfg.v_min) / (cfg.atoms - 1)
        for j, z in enumerate(self.atoms()):
            at = (min(max(self.back(b, row, z), cfg.v_min), cfg.v_max) - cfg.v_min) / step
            low, high = math.floor(at), math.ceil(at)
            out[low] += p[j] * (1 if low == high else high - at)
            if low != high:
                out[high] += p[j] * (at - low)
        return out

    def check(self, algo: DQN) -> None:
        other = Plain(algo)
        for name in ("net", "target"):
            mine, theirs = (dict(getattr(plain, name).named_parameters()) for plain in (self, other))
            for key in mine:
                torch.testing.assert_close(
                    mine[key], theirs[key], rtol=1e-3, atol=2e-5, msg=lambda m, k=key: f"{k}: {m}"
                )


def compare(algo: DQN, updates: int = 3) -> None:
    plain = Plain(algo)
    for seed in range(updates):
        b = batch(algo.action)
        torch.manual_seed(seed)
        out = algo.update(b)
        torch.manual_seed(seed)
        loss, errors = plain.update(b)
        torch.testing.assert_close(out.metrics["train/loss"], loss, rtol=1e-4, atol=1e-5)
        assert out.priority is not None
        assert out.priority.tolist() == pytest.approx(errors, rel=1e-3, abs=1e-4)
    plain.check(algo)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("head", KINDS)
def test_updates_are_the_papers(head: str, dueling: bool, double: bool) -> None:
    """With legal choices only, importance weights, void rows and clipped gradients."""
    compare(make(head=head, dueling=dueling, double=double, kappa=0.7))


@pytest.mark.parametrize("head", KINDS)
def test_several_branches(head: str) -> None:
    compare(make(SEVERAL, head=head, dueling=True, double=True), 2)


@pytest.mark.parametrize("head", KINDS)
def test_rescaled_values(head: str) -> None:
    compare(make(head=head, rescale=True), 2)


def test_as_many_waves_of_a_fraction_as_asked_for() -> None:
    compare(make(head="iqn", cosines=3), 2)


def test_squared_errors() -> None:
    compare(make(kappa=math.inf))


@pytest.mark.parametrize("head", ["scalar", "c51"])
def test_noise_enters_each_pass_anew(head: str) -> None:
    """The target, the choice of the next action and the prediction: three passes with noise of their own."""
    compare(make(head=head, noisy=True, double=True, dueling=True))


def test_double_choices_differ_from_the_targets() -> None:
    """The net says 1 is best, its target 0; what 1 is worth comes from the target."""
    algo = make(double=True)
    for net, q in ((algo.online, [0.0, 9.0, 0.0, 0.0]), (algo.target, [5.0, 3.0, 0.0, 0.0])):
        for p in net.parameters():
            p.zero_()
        net.head.choices[1].bias.copy_(torch.tensor(q))
    b = batch()
    b.next_obs["mask"][:] = True
    taken = torch.tensor([0.0, 9.0, 0.0, 0.0])[b.action["d"][:, 0]]
    for double, worth in ((True, 3.0), (False, 5.0)):
        other = deepcopy(algo)
        other.cfg = replace(algo.cfg, double=double)
        out = other.update(b)
        assert out.priority is not None
        torch.testing.assert_close(out.priority, (b.reward + b.discount * worth - taken).abs())


# -- when the target moves --------------------------------------------------------------------------------------------


def nets_apart(algo: DQN) -> float:
    pairs = zip(algo.online.parameters(), algo.target.parameters(), strict=True)
    return max(float((p - q).abs().max()) for p, q in pairs)


def test_a_target_that_moves_now_and_then() -> None:
    """Counted in environment steps, whatever the number of copies or updates; by tau, 1 = a copy."""
    algo = make(target_every=50, tau=1.0, warmup=0)
    stream = Stream(10, 4)
    moved = []
    for env_step in range(0, 204, 4):
        algo.online.head.choices[1].bias.add_(0.01)  # as an update does
        algo.learn(stream, env_step, 1000)
        moved += [env_step] if nets_apart(algo) == 0 else []
    assert moved == [52, 100, 152, 200]
    half = make(target_every=50, tau=0.5)
    before = nets_apart(half)
    half.learn(stream, 50, 1000)
    assert nets_apart(half) == pytest.approx(before / 2, rel=1e-4)
    copied = deepcopy(algo.target.state_dict())
    algo.update(batch())
    assert all(torch.equal(x, algo.target.state_dict()[k]) for k, x in copied.items() if isinstance(x, Tensor))


# -- exploring --------------------------------------------------------------------------------------------------------


def seen(n: int, mask: Tensor | None = None) -> dict[str, Tensor]:
    return {"obs": torch.zeros(n, 3), "mask": torch.ones(n, CHOICES, dtype=torch.bool) if mask is None else mask}


def share_of_best(algo: DQN, env_step: int, total: int = 10_000, n: int = 4000, explored: bool = True) -> float:
    core = algo.initial(n)
    best = algo.act(seen(n), core, explore=False).action["d"]
    act = algo.explore(seen(n), core, env_step, total, None) if explored else algo.act(seen(n), core)
    return float((act.action["d"] == best).float().mean())


def expected(epsilon: float) -> float:
    return 1 - epsilon * (CHOICES - 1) / CHOICES


@pytest.mark.parametrize(
    ("numbers", "levels"),
    [
        ({"epsilon_share": 0.5}, {0: 1.0, 2500: 0.525, 5000: 0.05, 9000: 0.05}),
        ({"epsilon_steps": 1000, "epsilon_end": 0.2}, {500: 0.6, 1000: 0.2}),
        ({"epsilon_start": 0.3, "epsilon_end": 0.3}, {0: 0.3, 5000: 0.3}),
        ({"epsilon_start": 0.0, "epsilon_end": 0.0}, {0: 0.0}),
    ],
)
def test_epsilon_goes_down_in_a_straight_line(numbers: dict[str, Any], levels: dict[int, float]) -> None:
    algo = make(slots=4000, warmup=0, **numbers)
    for env_step, epsilon in levels.items():
        assert share_of_best(algo, env_step) == pytest.approx(expected(epsilon), abs=0.03)
        assert float(algo.epsilon) == pytest.approx(epsilon, abs=1e-6)
        assert share_of_best(algo, env_step, explored=False) == pytest.approx(expected(epsilon), abs=0.03)


def test_copies_on_a_ladder() -> None:
    """Ape-X: epsilon^(1 + 7 i / (N - 1)); also where only some of the copies answer."""
    numbers = {"epsilon_start": 0.4, "epsilon_end": 0.4, "epsilon_ladder": 7.0}
    algo = make(slots=3, warmup=0, **numbers)
    levels = [0.4, 0.4**4.5, 0.4**8]
    assert (algo.epsilon**algo.rungs).tolist() == pytest.approx(levels)
    best = algo.act(seen(1), algo.initial(1), explore=False).action["d"]
    for slot in range(3):
        n = 3000
        slots = torch.full((n,), slot)
        act = algo.explore(seen(n), algo.initial(n), 10, 100, slots)
        found = float((act.action["d"] == best).float().mean())
        assert found == pytest.approx(expected(levels[slot]), abs=0.03)
    assert make(slots=1, **numbers).rungs.tolist() == [1.0]


def test_random_choices_are_legal_and_spread_over_all_of_them() -> None:
    algo = make(slots=2000, warmup=100, epsilon_start=1.0, epsilon_end=1.0)
    mask = torch.tensor([True, False, True, False]).expand(2000, -1)
    for env_step in (0, 200):  # before and after the random start
        act = algo.explore(seen(2000, mask), algo.initial(2000), env_step, 1000, None)
        counts = act.action["d"][:, 0].bincount(minlength=CHOICES).tolist()
        assert counts[1] == counts[3] == 0
        assert 880 < counts[0] < 1120
    assert bool(mask.gather(1, algo.act(seen(2000, mask), algo.initial(2000)).action["d"]).all())


def test_noise_explores_while_acting_and_rests_in_evaluation() -> None:
    algo = make(noisy=True, noisy_sigma=3.0, epsilon_start=0.0, epsilon_end=0.0, warmup=0)
    core = algo.initial(1)
    made = {int(algo.explore(seen(1), core, 10, 100, None).action["d"]) for _ in range(100)}
    assert len(made) > 1, "each step has noise of its own"
    assert len({int(algo.act(seen(1), core, explore=False).action["d"]) for _ in range(20)}) == 1
    assert algo.online.training
    together = algo.explore(seen(50), algo.initial(50), 10, 100, None).action["d"]
    assert together.unique().numel() == 1, "one draw for all copies of a step"


# -- the form of the update -------------------------------------------------------------------------------------------


class Watch(TorchDispatchMode):
    """Everything that makes the host wait for a device ends here."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert "_local_scalar_dense" not in str(func), "an update reads a number off the device"
        assert "nonzero" not in str(func), "an update waits for a shape"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("head", KINDS)
def test_an_update_never_waits_for_the_device(head: str) -> None:
    algo, b = make(head=head, double=True, dueling=True, noisy=True, rescale=True, target_every=0), batch()
    with pytest.raises(AssertionError, match="reads a number"), Watch():
        float(b.reward.sum())
    with torch.no_grad(), Watch():
        algo.update(b)


def test_two_rows_with_a_mask_and_one_without_it_are_alike() -> None:
    """A void row adds nothing: not to the loss, not to a gradient."""
    full, part = make(), None
    part = deepcopy(full)
    b = batch()
    cut = torch.arange(ROWS)[b.mask.bool()]
    take = lambda x: {k: v[cut] for k, v in x.items()}
    shorter = b._replace(
        obs=take(b.obs),
        next_obs=take(b.next_obs),
        action=take(b.action),
        **{k: getattr(b, k)[cut] for k in ("reward", "discount", "hop", "mask", "weight", "first")},
    )
    one, two = full.update(b), part.update(shorter)
    torch.testing.assert_close(one.metrics, two.metrics)
    for p, q in zip(full.online.parameters(), part.online.parameters(), strict=True):
        torch.testing.assert_close(p, q)


def wandering(algo: DQN, b: Batch, seed: int) -> Tensor:
    """What four copies do while the share of random choices is about a half."""
    torch.manual_seed(seed)
    few = {k: v[:4] for k, v in b.obs.items()}
    return algo.explore(few, algo.initial(4), algo.cfg.warmup, 20 * algo.cfg.warmup, None).action["d"]


def test_there_is_one_net_of_values() -> None:
    with pytest.raises(UserError, match=r"--critics 2.*DQN"):
        make(critics=2)


@pytest.mark.slow
def test_compiled_updates_are_the_eager_ones() -> None:
    """With the same draws. Sums in another order: 1e-4 of each number."""
    for numbers in ({"double": True}, {"head": "c51", "double": True, "dueling": True, "noisy": True, "rescale": True}):
        eager = make(**numbers)
        compiled = deepcopy(eager)
        with torch.no_grad():
            compiled.compile_update()
            compiled.compile_pieces()
            for seed in range(4):
                b = batch()
                torch.manual_seed(seed)
                ours, acted = compiled.step_update(b), wandering(compiled, b, seed)
                torch.manual_seed(seed)
                theirs, did = eager.update(b), wandering(eager, b, seed)
                assert torch.equal(acted, did)
                for name, value in theirs.metrics.items():
                    torch.testing.assert_close(ours.metrics[name], value, rtol=1e-4, atol=1e-4, msg=name)
        assert compiled.graph is not None, "it was the compiled one"
        assert compiled.graphs["wander"].works
        for (name, p), q in zip(eager.state_dict().items(), compiled.state_dict().values(), strict=True):
            if isinstance(p, Tensor):
                torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")
