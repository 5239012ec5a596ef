"""Batch: what is cut out of a Stream equals what the log says; gamma and n against single episodes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kumite import tree
from kumite.batch import Batch, fold, minibatches, rollout, sequences, transitions
from tests.unit.recorded import IS_CUT, TERMINATES, Case, Event, Recorded, cases

# -- n steps ----------------------------------------------------------------------------------------------------------


@st.composite
def streaks(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, int, float]:
    """reward, terminated, over: [T + n - 1, B]; n; gamma."""
    n, T, B = draw(st.integers(1, 5)), draw(st.integers(1, 6)), draw(st.integers(1, 3))
    rows = T + n - 1
    reward = torch.randn(rows, B, generator=torch.Generator().manual_seed(draw(st.integers(0, 1000))))
    end = torch.tensor(draw(st.lists(st.sampled_from([0, 0, 0, 1, 2]), min_size=rows * B, max_size=rows * B)))
    end = end.view(rows, B)
    return reward, end == 1, end > 0, n, draw(st.sampled_from([0.0, 0.5, 0.9, 1.0]))


@given(streaks())
def test_fold_sums_up_to_n_rewards_of_one_episode(streak: tuple[Tensor, Tensor, Tensor, int, float]) -> None:
    reward, terminated, over, n, gamma = streak
    total, discount, hop = fold(reward, terminated, over, n, gamma)
    for t in range(reward.shape[0] - n + 1):
        for b in range(reward.shape[1]):
            k, expected = 0, 0.0
            while k < n:
                expected += gamma**k * float(reward[t + k, b])
                k += 1
                if over[t + k - 1, b]:
                    break
            assert float(total[t, b]) == pytest.approx(expected, abs=1e-5)
            assert int(hop[t, b]) == k
            assert float(discount[t, b]) == pytest.approx(0.0 if terminated[t + k - 1, b] else gamma**k)


@given(streaks())
def test_one_step_is_the_identity(streak: tuple[Tensor, Tensor, Tensor, int, float]) -> None:
    reward, terminated, over, _, gamma = streak
    total, discount, hop = fold(reward, terminated, over, 1, gamma)
    assert torch.equal(total, reward)
    assert torch.equal(discount, gamma * (~terminated).float())
    assert torch.equal(hop, torch.ones_like(hop))


# -- cut out of a stream ----------------------------------------------------------------------------------------------


def expected_step(recorded: Recorded, slot: int, row: int, n: int, gamma: float) -> tuple[float, float, int]:
    """Reward, discount and hop of the n-step transition from a row of the log."""
    total, log = 0.0, recorded.log[slot]
    for k in range(1, n + 1):
        total += gamma ** (k - 1) * log[row + k].reward
        if log[row + k].over:
            break
    return total, (0.0 if log[row + k].end == TERMINATES else gamma**k), k


def check_steps(recorded: Recorded, b: Batch, where: list[tuple[int, int]], n: int, gamma: float) -> None:
    """The flattened rows of a batch against the log. Void rows are out of it, whatever they hold."""
    mask, reward, discount, hop = (x.flatten().tolist() for x in (b.mask, b.reward, b.discount, b.hop))
    for i, (r, s) in enumerate(where):
        assert mask[i] == (not recorded.log[s][r].over)
        if mask[i]:
            step = expected_step(recorded, s, r, n, gamma)
            assert (reward[i], discount[i], hop[i]) == (pytest.approx(step[0]), pytest.approx(step[1]), step[2])
    assert b.action["c"].flatten().tolist() == [recorded.log[s][r].mark + 0.125 for r, s in where]
    assert b.action["d"].flatten().tolist() == [recorded.log[s][r].mark + 1 for r, s in where]
    assert b.extras["log_prob"].flatten().tolist() == [-recorded.log[s][r].mark for r, s in where]
    assert torch.equal(b.weight, torch.ones_like(b.mask))


@given(cases(), st.integers(1, 4))
def test_transitions_are_the_log(case: Case, n: int) -> None:
    recorded = Recorded(case).play(case.events)
    row, slot = recorded.every_readable(n)
    if not len(row):
        return
    where = list(zip(row.tolist(), slot.tolist(), strict=True))
    b = transitions(recorded.stream, row, slot, n, 0.5)
    check_steps(recorded, b, where, n, 0.5)
    assert b.obs["obs"].tolist() == [recorded.stacked(s, r) for r, s in where]
    for i, (r, s) in enumerate(where):
        if b.mask[i]:
            hop = expected_step(recorded, s, r, n, 0.5)[2]
            assert b.next_obs["obs"][i].tolist() == recorded.stacked(s, r + hop), "the true last one included"


def test_the_last_starts_of_an_episode_are_kept() -> None:
    """The last row is 4: with n = 3, rows 2 and 3 sum fewer rewards and bootstrap from it as well."""
    events = [Event(None, (end,)) for end in (0, 0, 0, 0, IS_CUT, 0, 0, 0)]
    recorded = Recorded(Case(20, 1, 1, 1, events)).play(events)
    b = transitions(recorded.stream, torch.arange(5), torch.zeros(5, dtype=torch.int64), 3, 0.5)
    assert b.mask.tolist() == [1, 1, 1, 1, 0]
    assert b.hop[:4].tolist() == [3, 3, 2, 1]
    assert b.next_obs["id"][:4, 0].tolist() == [4, 5, 5, 5]
    assert b.discount[:4].tolist() == [0.125, 0.125, 0.25, 0.5]


@given(cases(events=40), st.integers(1, 3), st.integers(0, 3), st.integers(1, 3))
def test_sequences_are_the_log(case: Case, length: int, burn_in: int, n: int) -> None:
    recorded = Recorded(case).play(case.events)
    span = burn_in + length
    row, slot = recorded.every_readable(span + n - 1)
    keeps = row % case.core_every == 0
    row, slot = row[keeps], slot[keeps]
    if not len(row):
        return
    b = sequences(recorded.stream, row, slot, length, burn_in, n, 0.5)
    where = list(zip(row.tolist(), slot.tolist(), strict=True))
    check_steps(recorded, b, [(r + t, s) for t in range(burn_in, span) for r, s in where], n, 0.5)
    rows = [(r + t, s) for t in range(span + n) for r, s in where]
    assert b.obs["obs"].flatten(0, 1).tolist() == [recorded.stacked(s, r) for r, s in rows]
    assert b.first.flatten().tolist() == [recorded.first(s, r) for r, s in rows]
    assert b.core["actor"]["h"].flatten().tolist() == [recorded.log[s][r].mark + 0.25 for r, s in where]
    assert b.of("critic").core["h"].flatten().tolist() == [recorded.log[s][r].mark + 0.75 for r, s in where]
    assert (b.next_obs, b.burn_in) == ({}, burn_in)


@given(cases(events=40), st.integers(1, 3))
def test_every_step_of_a_window_by_itself(case: Case, n: int) -> None:
    recorded = Recorded(case).play(case.events)
    row, slot = recorded.every_readable(n)
    if not len(row):
        return
    whole = transitions(recorded.stream, row, slot, n, 0.5, steps=True)
    where = [(r + t, s) for t in range(n) for r, s in zip(row.tolist(), slot.tolist(), strict=True)]
    check_steps(recorded, whole.steps, where, 1, 0.5)
    assert whole.steps.mask.shape == (n, len(row))
    assert whole.steps.obs["obs"].flatten(0, 1).tolist() == [recorded.stacked(s, r) for r, s in where]
    assert whole.steps.next_obs["obs"].flatten(0, 1).tolist() == [recorded.stacked(s, r + 1) for r, s in where]
    plain = transitions(recorded.stream, row, slot, n, 0.5)
    assert plain.steps is None
    assert torch.equal(plain.reward, whole.reward)


@given(cases(events=40), st.integers(1, 3), st.integers(0, 2), st.integers(1, 3))
def test_every_step_of_a_sequence_by_itself(case: Case, length: int, burn_in: int, n: int) -> None:
    recorded = Recorded(case).play(case.events)
    row, slot = recorded.every_readable(burn_in + length + n - 1)
    keeps = row % case.core_every == 0
    row, slot = row[keeps], slot[keeps]
    if not len(row):
        return
    b = sequences(recorded.stream, row, slot, length, burn_in, n, 0.5, steps=True)
    where = list(zip(row.tolist(), slot.tolist(), strict=True))
    check_steps(
        recorded, b.steps, [(r + t, s) for t in range(burn_in, burn_in + length + n - 1) for r, s in where], 1, 0.5
    )
    assert (b.steps.burn_in, b.steps.steps) == (burn_in, None)
    assert b.steps.obs is b.obs
    assert b.steps.first is b.first


@given(cases(events=40), st.integers(1, 3))
def test_rollouts_are_the_log(case: Case, chunks: int) -> None:
    length = case.core_every
    count = chunks * length
    case.rows = 60
    recorded, start = Recorded(case), 0
    for event in case.events:
        recorded.play([event])
        if recorded.stream.ready(count):
            b = rollout(recorded.stream, count, length)
            where = [(start + t, s) for t in range(count) for s in range(case.slots)]
            check_steps(recorded, b, where, 1, 1.0)
            rows = [(start + t, s) for t in range(count + 1) for s in range(case.slots)]
            assert b.obs["obs"].flatten(0, 1).tolist() == [recorded.stacked(s, r) for r, s in rows]
            assert b.first.flatten().tolist() == [recorded.first(s, r) for r, s in rows]
            assert b.extras["over"].flatten().tolist() == [recorded.log[s][r + 1].over for r, s in where]
            states = [
                recorded.log[s][start + t].mark + 0.25 for t in range(0, count, length) for s in range(case.slots)
            ]
            assert b.core["actor"]["h"].flatten().tolist() == states
            start += count


# -- minibatches ------------------------------------------------------------------------------------------------------


def numbered(T: int, N: int, chunks: int = 0) -> Batch:
    """A rollout in which row t of slot n says 100 t + n everywhere."""
    name = (100 * torch.arange(T + 1)[:, None] + torch.arange(N)).float()
    now = name[:T]
    states = now[:: T // chunks, :, None, None] if chunks else now
    return Batch(
        obs={"obs": name[..., None]},
        next_obs={},
        action={"c": now[..., None]},
        reward=now,
        discount=now,
        hop=now,
        mask=(now % 3 > 0).float(),
        weight=now,
        core={"actor": {"h": states}} if chunks else {},
        first=name % 2 == 0,
        extras={"advantage": now},
    )


@pytest.mark.parametrize(("size", "sizes"), [(4, [4, 4, 4]), (5, [6, 6]), (7, [12]), (100, [12]), (0, [12])])
def test_minibatches_give_every_row_once(size: int, sizes: list[int]) -> None:
    b = numbered(4, 3)
    parts = list(next(minibatches(b, size, None)))
    assert [len(p.mask) for p in parts] == sizes
    names = torch.cat([p.obs["obs"][:, 0] for p in parts])
    assert names.sort().values.tolist() == b.extras["advantage"].flatten().sort().values.tolist()
    assert len(parts) == 1 or names.tolist() != b.extras["advantage"].flatten().tolist(), "shuffled"
    for p in parts:
        name = p.obs["obs"][:, 0]
        assert torch.equal(p.action["c"][:, 0], name)
        assert torch.equal(p.extras["advantage"], name)
        assert torch.equal(p.mask, (name % 3 > 0).float())


@pytest.mark.parametrize(("size", "columns"), [(4, [2, 2, 2]), (8, [6]), (0, [6])])
def test_minibatches_of_sequences_keep_them_whole(size: int, columns: list[int]) -> None:
    parts = list(next(minibatches(numbered(4, 3, chunks=2), size, 2)))
    assert [p.mask.shape[1] for p in parts] == columns
    starts = torch.cat([p.obs["obs"][0, :, 0] for p in parts])
    assert starts.sort().values.tolist() == [0, 1, 2, 200, 201, 202]
    for p in parts:
        name = p.obs["obs"][..., 0]
        assert torch.equal(name[1], name[0] + 100)
        assert torch.equal(p.extras["advantage"], name)
        assert torch.equal(p.first, name % 2 == 0)
        assert torch.equal(p.core["actor"]["h"][:, 0, 0], name[0]), "the state of a sequence is that of its first row"


def test_rows_that_are_left_over_join_the_last_minibatch() -> None:
    assert [len(p.mask) for p in next(minibatches(numbered(13, 1), 4, None))] == [4, 4, 5]


def test_another_pass_has_another_order() -> None:
    first, second = map(list, minibatches(numbered(6, 3), 9, None, epochs=2))
    assert not torch.equal(first[0].obs["obs"], second[0].obs["obs"])


# -- reductions -------------------------------------------------------------------------------------------------------


def batch(mask: list[float], weight: list[float]) -> Batch:
    m, w = torch.tensor(mask), torch.tensor(weight)
    return Batch({}, {}, {}, m, m, m, m, w, {}, m, {})


def test_mean_counts_masked_rows_out_and_weighs_the_others() -> None:
    b = batch([1, 0, 1, 1], [1, 5, 0.5, 2])
    assert float(b.mean(torch.tensor([3.0, 1e6, 4.0, 5.0]))) == pytest.approx((3 + 2 + 10) / 3)


def test_mean_adds_up_an_ensemble() -> None:
    b = batch([1, 0, 1], [1, 1, 1])
    x = torch.tensor([[1.0, 9.0, 3.0], [10.0, 9.0, 30.0]])
    assert float(b.mean(x)) == pytest.approx((1 + 3) / 2 + (10 + 30) / 2)


def test_mean_of_nothing_is_zero() -> None:
    assert float(batch([0, 0], [1, 1]).mean(torch.ones(2))) == 0


def test_standardize_looks_at_the_rows_that_count() -> None:
    b = batch([1, 0, 1, 1], [1, 1, 1, 1])
    x = torch.tensor([1.0, 1e3, 2.0, 6.0])
    counted = b.standardize(x)[b.mask.bool()]
    torch.testing.assert_close(counted, (x[[0, 2, 3]] - 3) / x[[0, 2, 3]].std())


def test_standardize_keeps_one_row_finite() -> None:
    assert batch([1, 0], [1, 1]).standardize(torch.tensor([2.0, 5.0])).isfinite().all()


def test_one_net_sees_its_own_state() -> None:
    b = batch([1], [1])._replace(core={"actor": {"h": torch.ones(1)}})
    assert next(tree.leaves(b.of("actor").core)).item() == 1
    assert b.of("critic").core == {}
