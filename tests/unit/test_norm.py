"""Normalisers: their statistics are those of all the data, however it arrived."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kumite.batch import Batch
from kumite.nn.norm import ObsNorm, RewardNorm, Running, ValueNorm
from kumite.types import Spec

SPACE = {
    "joints": Spec((3,)),
    "eye": Spec((1, 8, 8), torch.uint8, image=True),
    "gear": Spec((1,), torch.int64, choices=(4,)),
    "history": Spec((4,), stack=2),
    "mask": Spec((5,), torch.bool),
}


def observation(*lead: int) -> dict[str, Tensor]:
    return {
        "joints": 5 + torch.tensor([1.0, 10.0, 0.1]) * torch.randn(*lead, 3),
        "eye": torch.randint(0, 256, (*lead, 1, 8, 8), dtype=torch.uint8),
        "gear": torch.randint(0, 4, (*lead, 1)),
        "history": torch.randn(*lead, 4) - 2,
        "mask": torch.rand(*lead, 5) < 0.5,
    }


# -- running statistics -----------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 20), min_size=1, max_size=8), st.booleans(), st.integers(0, 1000))
def test_statistics_are_those_of_all_rows_that_count(sizes: list[int], masked: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    running, counted = Running(2), []
    for size in sizes:
        x = 1000 + torch.randn(size, 2, generator=generator, dtype=torch.float64)
        mask = torch.rand(size, generator=generator) < 0.6 if masked else None
        running.update(x, mask)
        counted.append(x if mask is None else x[mask])
    data = torch.cat(counted)
    assert float(running.count) == len(data)
    if len(data):
        torch.testing.assert_close(running.mean, data.mean(0))
        torch.testing.assert_close(running.var, data.var(0, unbiased=False), rtol=1e-6, atol=1e-6)
    else:
        assert (running.mean.tolist(), running.var.tolist()) == ([0.0, 0.0], [1.0, 1.0])


def test_many_small_batches_lose_no_digits() -> None:
    running = Running(1)
    data = 1e4 + torch.randn(5000, 1, dtype=torch.float64)
    for x in data.split(1):
        running.update(x)
    torch.testing.assert_close(running.var, data.var(0, unbiased=False), rtol=1e-8, atol=0)


def test_masked_rows_may_hold_anything() -> None:
    running = Running(1)
    running.update(torch.tensor([[1.0], [1e9], [3.0]]), torch.tensor([1.0, 0.0, 1.0]))
    assert (float(running.mean), float(running.var), float(running.count)) == (2, 1, 2)


# -- observations -----------------------------------------------------------------------------------------------------


def test_vectors_come_out_with_mean_zero_and_deviation_one() -> None:
    norm, obs = ObsNorm(SPACE, clip=0), observation(400, 5)
    norm.update({k: v[:100] for k, v in obs.items()})
    norm.update({k: v[100:] for k, v in obs.items()})
    out = norm(obs)
    for key in ("joints", "history"):
        flat = out[key].flatten(0, 1)
        torch.testing.assert_close(flat.mean(0), torch.zeros(flat.shape[1]), rtol=0, atol=1e-4)
        torch.testing.assert_close(flat.std(0), torch.ones(flat.shape[1]), rtol=0, atol=1e-3)
        assert out[key].dtype == torch.float32


def test_images_choices_and_masks_pass() -> None:
    norm, obs = ObsNorm(SPACE), observation(50)
    norm.update(obs)
    out = norm(obs)
    for key in ("eye", "gear", "mask"):
        assert out[key] is obs[key]


def test_statistics_move_in_update_alone() -> None:
    norm, obs = ObsNorm(SPACE), observation(50)
    torch.testing.assert_close(norm(obs)["joints"], obs["joints"].clamp(-10, 10)), "before the first update"
    norm.update(obs)
    before = {k: v.clone() for k, v in norm.state_dict().items()}
    norm(observation(50))
    for key, value in norm.state_dict().items():
        assert torch.equal(value, before[key])


def test_the_clip_is_in_deviations() -> None:
    norm = ObsNorm({"obs": Spec((1,))}, clip=2.0)
    norm.update({"obs": torch.tensor([[0.0], [10.0]])})
    out = norm({"obs": torch.tensor([[-100.0], [5.0], [10.0], [100.0]])})["obs"]
    assert out[:, 0].tolist() == pytest.approx([-2.0, 0.0, 1.0, 2.0])


def test_a_batch_is_normalised_with_its_bootstrap_rows() -> None:
    norm, m = ObsNorm(SPACE), torch.ones(6)
    norm.update(observation(50))
    b = Batch(observation(6), observation(6), {}, m, m, m.long(), m, m, {}, m, {})
    out = norm.batch(b)
    torch.testing.assert_close(out.obs["joints"], norm(b.obs)["joints"])
    torch.testing.assert_close(out.next_obs["joints"], norm(b.next_obs)["joints"])
    assert norm.batch(b._replace(next_obs={})).next_obs == {}


def test_nothing_to_normalise_changes_nothing() -> None:
    norm, obs = ObsNorm({}), observation(3)
    norm.update(obs)
    assert norm(obs) == obs


# -- rewards ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [1, 4])
def test_rewards_are_divided_by_the_deviation_of_the_discounted_return(parts: int) -> None:
    T, slots, gamma = 40, 3, 0.9
    reward, over = 3 * torch.randn(T, slots) + 1, torch.rand(T, slots) < 0.2
    counts = torch.ones(T, slots)
    counts[1:][over[:-1]] = 0  # what arrives with an episode's first observation is no reward
    norm = RewardNorm(slots, gamma, clip=0)
    for r, o, m in zip(reward.chunk(parts), over.chunk(parts), counts.chunk(parts), strict=True):
        norm.update(r, o, m)
    returns = []
    for n in range(slots):
        running = 0.0
        for t in range(T):
            if counts[t, n]:
                running = gamma * running + float(reward[t, n])
                returns.append(running)
            if over[t, n]:
                running = 0.0
    deviation = torch.tensor(returns).var(unbiased=False).sqrt()
    torch.testing.assert_close(norm(reward), reward / deviation, rtol=1e-5, atol=1e-5)


def test_returns_of_slots_that_speak_apart_do_not_mix() -> None:
    norm = RewardNorm(3, 0.5)
    one = torch.ones(1, 2)
    norm.update(one, torch.tensor([[False, True]]), one, torch.tensor([2, 0]))
    norm.update(one, torch.tensor([[False, False]]), one, torch.tensor([0, 2]))
    assert norm.running.tolist() == [1.0, 0.0, 1.5]


def test_normalised_rewards_are_clipped() -> None:
    norm = RewardNorm(1, 0.0, clip=2.0)
    norm.update(torch.tensor([[1.0], [-1.0]]), torch.zeros(2, 1, dtype=torch.bool), torch.ones(2, 1))
    assert norm(torch.tensor([-9.0, 1.0, 9.0])).tolist() == pytest.approx([-2.0, 1.0, 2.0])


@pytest.mark.parametrize("spike", [0.0, 200.0])
def test_a_bound_keeps_the_largest_return_within(spike: float) -> None:
    """Divided by max(sqrt(var G), max |G| / bound): without a spike the deviation decides, with one the largest return.

    A spike on a row that does not count is not seen.
    """
    T, gamma, bound = 300, 0.9, 5.0
    reward, over = torch.randn(T, 2), torch.rand(T, 2) < 0.1
    counts = torch.ones(T, 2)
    counts[1:][over[:-1]] = 0
    reward[7, 1], over[6, 1], counts[7, 1] = -spike, False, 1
    row = int(counts[:, 0].argmin())
    reward[row, 0] = 1e6
    norm, raw, returns = RewardNorm(2, gamma, 0, bound), RewardNorm(2, gamma, 0), []
    for some in (norm, raw):
        for r, o, m in zip(reward, over, counts, strict=True):  # as they arrive
            some.update(r[None], o[None], m[None])
    for n in range(2):
        running = 0.0
        for t in range(T):
            running = gamma * running + float(reward[t, n] * counts[t, n])
            returns += [running] * bool(counts[t, n])
            running *= not over[t, n]
    most = max(map(abs, returns))
    deviation = float(torch.tensor(returns).double().var(unbiased=False).sqrt())
    assert (most / bound > deviation) == bool(spike)
    wanted = reward / max(deviation, most / bound)
    torch.testing.assert_close(norm(reward), wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(raw(reward), reward / deviation, rtol=1e-4, atol=1e-5)


def test_before_anything_was_seen_a_bound_changes_nothing() -> None:
    x = torch.randn(4)
    torch.testing.assert_close(RewardNorm(1, 0.9, 0, 5.0)(x), x)


# -- values -----------------------------------------------------------------------------------------------------------


def test_values_are_learned_in_units_of_the_returns() -> None:
    norm, returns = ValueNorm(), 7 + 3 * torch.randn(20, 4)
    mask = (torch.rand(20, 4) < 0.7).float()
    norm.update(returns, mask)
    counted = norm(returns)[mask.bool()]
    assert counted.mean().item() == pytest.approx(0, abs=1e-5)
    assert counted.std(unbiased=False).item() == pytest.approx(1, abs=1e-4)


def test_inverse_gives_the_raw_values_back() -> None:
    norm, x = ValueNorm(), torch.randn(10)
    torch.testing.assert_close(norm.inverse(norm(x)), x)
    norm.update(7 + 3 * torch.randn(20, 4), torch.ones(20, 4))
    torch.testing.assert_close(norm.inverse(norm(x)), x)
    assert not torch.allclose(norm(x), x)
