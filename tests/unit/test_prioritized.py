"""Prioritized replay against a plain list of priorities: who can be drawn, how often, how weighted; also resumed."""

from __future__ import annotations

import math
from collections import Counter
from copy import deepcopy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kumite import native
from kumite.samplers import Draw, Prioritized, Sums, over_time
from kumite.stream import Stream
from tests.unit.recorded import GOES_ON, IS_CUT, TERMINATES, Case, Event, Recorded, cases
from tests.waiting import no_waiting

# -- drawing in proportion --------------------------------------------------------------------------------------------


def plain(p: Tensor) -> Sums:
    sums = Sums(p.shape[0])
    sums.fill(0, p)
    return sums


def check_frequencies(counts: Counter[Any], p: dict[Any, float], draws: int) -> None:
    """Chi-square: strata make draws more even than independent ones, so only the upper side can show a mistake."""
    total = sum(p.values())
    expected = {k: draws * v / total for k, v in p.items() if v > 0}
    assert set(counts) <= set(expected)
    assert min(expected.values()) > 5, "the statistic needs a few of each"
    chi = sum((counts[k] - e) ** 2 / e for k, e in expected.items())
    df = len(expected) - 1
    assert chi <= df + 5 * (2 * df) ** 0.5


@pytest.mark.parametrize(("size", "batch"), [(1, 1), (7, 1), (64, 10), (65, 1), (65, 256), (1000, 256)])
def test_leaves_are_drawn_in_proportion_to_their_size(size: int, batch: int) -> None:
    p = (0.2 + torch.rand(size)) * (torch.arange(size) % 3 != 1)
    sums, draws = plain(p), max(60 * size // batch, 200)
    counts = Counter(torch.cat([sums.draw(batch) for _ in range(draws)]).tolist())
    check_frequencies(counts, dict(enumerate(p.tolist())), draws * batch)


@pytest.mark.parametrize("batch", [1, 3, 100, 256])
@pytest.mark.parametrize("size", [Sums.LARGE, 70_000])
def test_the_native_search_is_torchs_bit_for_bit(size: int, batch: int) -> None:
    if native.draw() is None:
        pytest.skip("no C compiler")
    for p in (
        torch.rand(size),
        torch.rand(size) ** 20,
        (torch.rand(size) < 0.001).float(),
        1e8 * torch.rand(size) ** 9,
    ):
        sums = plain(p)
        assert sums.native
        for _ in range(20):
            chance = torch.rand(2, batch)
            chance[:, -1] = 0.0  # the far end
            leaf = sums.search_natively(chance, batch)
            assert torch.equal(leaf, sums.search(chance, batch))
            sums.put(leaf, torch.rand(batch))


def test_a_copy_draws_from_its_own_leaves() -> None:
    sums = plain(torch.rand(Sums.LARGE))
    other = deepcopy(sums)
    other.fill(0, torch.zeros(Sums.LARGE))
    other.put(torch.tensor([77]), torch.ones(1))
    assert set(other.draw(8).tolist()) == {77}
    assert len(set(sums.draw(64).tolist())) > 32


def test_without_a_compiler_torch_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("", "/tmp"):
        monkeypatch.setattr(native.shutil, "which", lambda _, path=path: path or None)
        native.draw.cache_clear()
        sums = plain(torch.ones(Sums.LARGE))
        assert not sums.native
        assert sums.draw(8).shape == (8,)
    native.draw.cache_clear()


def test_sizes_of_every_order_are_told_apart() -> None:
    """Eight orders of magnitude in one block and over blocks: small leaves are as rare as they should be."""
    p = torch.zeros(640)
    p[5], p[6], p[639] = 1e4, 1.0, 1e2
    drawn = torch.cat([plain(p).draw(100) for _ in range(2000)])
    counts = Counter(drawn.tolist())
    assert counts[639] == pytest.approx(2e5 * 1e2 / 10101, rel=0.1)
    assert counts[6] == pytest.approx(2e5 / 10101, abs=25)
    p[5], p[6] = 1e-8, 1e-4
    p[639] = 0
    assert set(plain(p).draw(1000).tolist()) <= {5, 6}


@pytest.mark.parametrize("edge", ["low", "high"])
def test_the_ends_of_the_unit_interval_find_a_leaf(edge: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros at both ends, in the first and the last block, are stepped over whatever rounding does."""
    least, most = 0.0, float(torch.nextafter(torch.tensor(1.0), torch.tensor(0.0)))
    monkeypatch.setattr(torch, "rand", lambda *size, **_: torch.full(size, most if edge == "low" else least))
    for seed in range(50):
        generator = torch.Generator().manual_seed(seed)
        p = torch.zeros(300).index_copy_(0, torch.arange(70, 200), torch.empty(130).exponential_(generator=generator))
        p[100:110] = 0
        for size in (1, 3, 100, 256):
            assert bool((p[plain(p).draw(size)] > 0).all())


@given(st.lists(st.tuples(st.integers(0, 199), st.sampled_from([0.0, 0.5, 1.0, 3.0])), min_size=1, max_size=80))
def test_sums_are_those_of_their_leaves(changes: list[tuple[int, float]]) -> None:
    sums, p = Sums(200), [0.0] * 200
    sums.fill(50, torch.full((100,), 2.0))
    p[50:150] = [2.0] * 100
    for i in range(0, len(changes), 16):
        part = changes[i : i + 16]
        sums.put(torch.tensor([k for k, _ in part]), torch.tensor([v for _, v in part]))
        for k in {k for k, _ in part}:
            p[k] = max(v for j, v in part if j == k)
    assert sums.leaf[:200].tolist() == p
    assert sums.block[:4].tolist() == [sum(p[i : i + 64]) for i in range(0, 200, 64)]


# -- what the ring holds ----------------------------------------------------------------------------------------------


class Plain:
    """Priorities as a dict of (row, slot); told by hand."""

    def __init__(self, span: int, stride: int, acts: int | None) -> None:
        self.span, self.stride, self.acts = span, stride, acts
        self.told: dict[tuple[int, int], float] = {}
        self.fresh: dict[tuple[int, int], float] = {}
        self.most = 1.0

    def look(self, recorded: Recorded) -> dict[tuple[int, int], float]:
        now = {}
        for slot in range(recorded.case.slots):
            for row in recorded.readable(slot, self.span):
                acts = self.acts is None or not recorded.log[slot][row + self.acts].over
                if row % self.stride == 0 and acts:
                    self.fresh.setdefault((row, slot), self.most)
                    now[row, slot] = self.told.get((row, slot), self.fresh[row, slot])
        return now


def priorities(sampler: Prioritized, recorded: Recorded) -> dict[tuple[int, int], float]:
    """What the sampler holds, by row and slot."""
    sums = sampler.follow(recorded.stream)
    found = {}
    for leaf in sums.leaf.nonzero()[:, 0].tolist():
        at, slot = divmod(leaf, recorded.case.slots)
        first = int(sampler.first if recorded.stream.level else sampler.first[slot])
        found[(first + (at - first) % sampler.ring) * sampler.stride, slot] = float(sums.leaf[leaf])
    return found


@given(cases(events=50), st.integers(1, 4), st.integers(1, 3), st.sampled_from([0, 1, None]), st.integers(1, 7))
def test_what_can_be_learned_from_has_a_priority(
    case: Case, span: int, stride: int, acts: int | None, pause: int
) -> None:
    """Rings that wrap, slots that answer on their own, voids, looks after any number of steps."""
    span += (acts or 0) + (acts is None)
    recorded = Recorded(case)
    sampler, brute = Prioritized(span, stride, alpha=1.0, eps=0.0, acts=acts), Plain(span, stride, acts)
    for i in range(0, len(case.events), pause):
        recorded.play(case.events[i : i + pause])
        held = brute.look(recorded)
        assert priorities(sampler, recorded) == held
        ready = sampler.ready(recorded.stream)
        if acts == 0 and stride == 1 and not held:
            assert not ready or case.rows < span + 4, "of two neighbours one is not void"
        if held:
            drawn = sampler.draw(recorded.stream, 9)
            where = list(zip(drawn.row.tolist(), drawn.slot.tolist(), strict=True))
            assert set(where) <= set(held)
            error = torch.tensor([(7 * r + 3 * s) % 11 / 4 + 0.25 for r, s in where])
            sampler.tell(drawn, error)
            brute.told |= dict(zip(where, error.tolist(), strict=True))
            brute.most = max(brute.most, float(error.max()))


EVENTS = [Event(None if i % 4 else (i // 4 % 3,), (GOES_ON, IS_CUT, TERMINATES)) for i in range(40)]


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(("span", "stride"), [(1, 1), (3, 1), (5, 4)])
def test_draws_and_weights_are_those_of_a_plain_list(together: bool, span: int, stride: int) -> None:
    events = [e._replace(who=None) for e in EVENTS] if together else EVENTS
    acts = 0 if stride == 1 else None
    recorded = Recorded(Case(20, 3, 1, 1, events)).play(events)
    sampler = Prioritized(span, stride, 0.6, (0.4, 0.8), 0.01, 2.0, acts)
    error = torch.empty(9).exponential_()
    for _ in range(20):
        sampler.tell(sampler.draw(recorded.stream, 9), error)
    held = priorities(sampler, recorded)
    assert set(held) == set(Plain(span, stride, acts).look(recorded))
    assert set(held.values()) <= {1.0, *((error + 0.01).clamp(max=2).pow(0.6)).tolist()}
    total, counts, size = sum(held.values()), Counter[Any](), 60
    for _ in range(10 * len(held)):
        row, slot, weight, _ = sampler.draw(recorded.stream, size, share=0.5)
        where = list(zip(row.tolist(), slot.tolist(), strict=True))
        counts.update(where)
        assert weight is not None
        plainly = [(len(held) * held[w] / total) ** -0.6 for w in where]
        assert weight.tolist() == pytest.approx([w / max(plainly) for w in plainly], rel=1e-5)
    check_frequencies(counts, held, size * 10 * len(held))


def test_fresh_rows_come_at_the_largest_priority_so_far() -> None:
    events = [Event(None, (GOES_ON,))] * 9
    recorded = Recorded(Case(40, 1, 1, 1, events)).play(events)
    sampler = Prioritized(1, alpha=0.5, eps=0.0)
    drawn = sampler.draw(recorded.stream, 4)
    sampler.tell(drawn, torch.tensor([4.0, 0.25, 0.25, 0.25]))
    recorded.play(events)
    held = priorities(sampler, recorded)
    assert held[12, 0] == 2.0
    sampler.tell(sampler.draw(recorded.stream, 50), torch.full((50,), 0.01))
    recorded.play(events)
    assert priorities(sampler, recorded)[20, 0] == 2.0, "it does not fall again"


def test_errors_count_up_to_a_limit() -> None:
    sampler, events = Prioritized(1, alpha=1.0, eps=0.0, clip=3.0), [Event(None, (GOES_ON,))] * 5
    recorded = Recorded(Case(10, 1, 1, 1, events)).play(events)
    drawn = sampler.draw(recorded.stream, 1)
    sampler.tell(drawn, torch.tensor([1e9]))
    assert max(priorities(sampler, recorded).values()) == 3.0


def test_a_sequence_counts_by_its_largest_and_its_mean_error() -> None:
    error, mask = torch.tensor([[1.0, 2.0], [3.0, 100.0]]), torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    assert over_time(error, mask, 0.75).tolist() == [0.75 * 3 + 0.25 * 2, 2.0]


# -- checkpoints ------------------------------------------------------------------------------------------------------


def life(recorded: Recorded, sampler: Prioritized, events: list[Event]) -> list[Draw]:
    drawn = []
    for event in events:
        recorded.play([event])
        if sampler.ready(recorded.stream):
            drawn.append(sampler.draw(recorded.stream, 6))
            sampler.tell(drawn[-1], torch.empty(6).exponential_())
    return drawn


@pytest.mark.parametrize("at", [0, 1, 5, 25, 39])
@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("acts", [0, None])
def test_resumed_is_uninterrupted_bit_for_bit(at: int, together: bool, acts: int | None) -> None:
    events = [e._replace(who=None) for e in EVENTS] if together else EVENTS
    case, span = Case(12, 3, 1, 1, events), 1 if acts == 0 else 3
    whole, half = Recorded(case), Recorded(case)
    torch.manual_seed(3)
    one = life(whole, sampler := Prioritized(span, acts=acts), events)
    torch.manual_seed(3)
    two = life(half, first := Prioritized(span, acts=acts), events[:at])
    second, third = Prioritized(span, acts=acts), Prioritized(span, acts=acts)
    second.restore(copied(first.state()))
    third.restore(copied(second.state()))  # saved again before anything happened
    rows, half.stream = half.stream.state(), Recorded(case).stream
    half.stream.restore(copied(rows))
    two += life(half, third, events[at:])
    assert len(one) == len(two)
    for a, b in zip(one, two, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None)
    assert sampler.sums is not None
    assert third.sums is not None
    assert torch.equal(sampler.sums.leaf, third.sums.leaf)
    assert torch.equal(sampler.sums.block, third.sums.block)


def copied(tree: Any) -> Any:
    """As a checkpoint would give it back."""
    if isinstance(tree, dict):
        return {k: copied(v) for k, v in tree.items()}
    return tree.clone() if isinstance(tree, Tensor) else tree


@pytest.mark.parametrize("together", [True, False])
def test_without_its_rows_it_begins_anew(together: bool) -> None:
    """A checkpoint may leave the replay out: what had a priority is gone, the largest one is remembered."""
    events = [e._replace(who=None) for e in EVENTS] if together else EVENTS
    recorded = Recorded(Case(12, 3, 1, 1, events))
    life(recorded, first := Prioritized(1), events)
    again, sampler = Recorded(Case(12, 3, 1, 1, events)), Prioritized(1)
    sampler.restore(copied(first.state()))
    again.stream.restore(copied(recorded.stream.state(full=False)))
    for event in events[:6]:
        again.play([event])
        sampler.ready(again.stream)
        held = priorities(sampler, again)
        assert set(held) == set(Plain(1, 1, 0).look(again))
    assert set(held.values()) == {float(first.most)}


def test_a_restored_ring_may_grow() -> None:
    events = [Event(None, (GOES_ON, IS_CUT, GOES_ON))] * 9
    recorded = Recorded(Case(12, 3, 1, 1, events))
    life(recorded, first := Prioritized(1), events)
    larger, sampler = Recorded(Case(50, 3, 1, 1, events)), Prioritized(1)
    larger.log = recorded.log
    larger.stream.restore(copied(recorded.stream.state()))
    sampler.restore(copied(first.state()))
    assert priorities(sampler, larger) == priorities(first, recorded)


# -- on a device ------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_on_a_device_nothing_waits_for_it() -> None:
    events = [Event(None, (GOES_ON, IS_CUT, GOES_ON))] * 30
    recorded = Recorded(Case(20, 3, 1, 1, events))
    recorded.stream = stream = Stream(20, 3, recorded.space(), "cuda")
    recorded.play(events)
    sampler = Prioritized(1)
    error = torch.rand(64, device="cuda")
    sampler.tell(sampler.draw(stream, 64), error)
    with no_waiting():
        for _ in range(3):
            drawn = sampler.draw(stream, 64, 0.5)
            sampler.tell(drawn, error)
    allowed = set(Plain(1, 1, 0).look(recorded))
    assert {*zip(drawn.row.tolist(), drawn.slot.tolist(), strict=True)} <= allowed
    assert math.isfinite(float(sampler.most))
