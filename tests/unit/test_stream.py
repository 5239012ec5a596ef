"""Stream: whatever is read equals a plain log of what was put in, and nothing else can be read."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kumite.errors import UserError
from kumite.stream import Stream
from kumite.types import Act, Spec, Step
from tests.unit.recorded import IS_CUT, TERMINATES, Case, Event, Recorded, cases


def check_rows(recorded: Recorded, row: Tensor, slot: Tensor) -> None:
    """All keys of these rows against the log; rows that are open have no answer yet."""
    stream, where = recorded.stream, list(zip(row.tolist(), slot.tolist(), strict=True))
    rows = [recorded.log[s][r] for r, s in where]
    obs = stream.group("obs", row, slot)
    assert obs["obs"].tolist() == [recorded.stacked(s, r) for r, s in where]
    assert obs["id"][:, 0].tolist() == [r.mark for r in rows]
    assert stream.read("reward", row, slot).tolist() == [r.reward for r in rows]
    assert stream.read("terminated", row, slot).tolist() == [r.end == TERMINATES for r in rows]
    assert stream.read("truncated", row, slot).tolist() == [r.end == IS_CUT for r in rows]
    assert stream.over(row, slot).tolist() == [r.over for r in rows]
    assert stream.first(row, slot).tolist() == [recorded.first(s, r) for r, s in where]


def check_answers(recorded: Recorded, row: Tensor, slot: Tensor) -> None:
    stream, where = recorded.stream, list(zip(row.tolist(), slot.tolist(), strict=True))
    marks = [recorded.log[s][r].mark for r, s in where]
    action = stream.group("action", row, slot)
    assert action["c"][:, 0].tolist() == [m + 0.125 for m in marks]
    assert action["d"][:, 0].tolist() == [m + 1 for m in marks]
    assert stream.group("extras", row, slot)["log_prob"].tolist() == [-m for m in marks]
    kept = row % recorded.case.core_every == 0
    core = stream.core(row[kept], slot[kept])
    marks = [m for m, k in zip(marks, kept.tolist(), strict=True) if k]
    assert core["actor"]["h"].flatten().tolist() == [m + 0.25 for m in marks]
    assert core["critic"]["h"].flatten().tolist() == [m + 0.75 for m in marks]


def check_all(recorded: Recorded, span: int) -> None:
    row, slot = recorded.every_readable(span)
    if not len(row):
        return
    check_answers(recorded, row, slot)
    for ahead in range(span + 1):
        check_rows(recorded, row + ahead, slot)


@given(cases(), st.integers(1, 4))
def test_every_readable_row_is_what_was_put_in(case: Case, span: int) -> None:
    check_all(Recorded(case).play(case.events), span)


@given(cases(), st.integers(1, 4))
def test_bounds_offer_exactly_the_readable_rows(case: Case, span: int) -> None:
    recorded = Recorded(case).play(case.events)
    first, last = recorded.stream.bounds(span)
    for slot in range(case.slots):
        assert list(range(int(first[slot]), int(last[slot]))) == recorded.readable(slot, span)


@given(cases())
def test_an_open_row_offers_no_transition_of_its_own(case: Case) -> None:
    *before, newest = case.events
    recorded = Recorded(case).play(before)
    recorded.observe(newest)  # the ring's oldest row is gone, its newest one is not answered
    check_all(recorded, 1)
    _, last = recorded.stream.bounds()
    assert last.tolist() == [max(0, len(rows) - 1) for rows in recorded.log]


def test_a_ring_of_wrapped_rows_never_reads_across_its_write_head() -> None:
    case = Case(5, 1, 1, 1, [Event(None, (0,))] * 13)
    recorded = Recorded(case).play(case.events)
    first, last = recorded.stream.bounds(2)
    assert (int(first), int(last)) == (9, 11), "row 8 is the oldest: the row before it is overwritten"


def test_the_first_frames_of_an_episode_are_zeros_whatever_lies_before() -> None:
    events = [Event(None, (end,)) for end in (0, 0, 0, 0, TERMINATES, 0, 0)]
    recorded = Recorded(Case(20, 1, 3, 1, events)).play(events)
    stacks = recorded.stream.read("obs.obs", torch.tensor([0, 4, 5, 6]), torch.zeros(4, dtype=torch.int64))
    marks = stacks[:, ::2].tolist()
    assert marks == [[0, 0, 1], [3, 4, 5], [0, 0, 6], [0, 6, 7]]


def test_images_are_stored_once_and_read_as_stacks() -> None:
    stream = Stream(8, 1, {"obs": Spec((3, 4, 4), torch.uint8, image=True, stack=3)})
    for t in range(1, 5):
        shown = torch.full((1, 3, 4, 4), t, dtype=torch.uint8)
        stream.observe(Step({"obs": shown}, torch.zeros(1), torch.tensor([False]), torch.tensor([False])))
    assert stream.data["obs.obs"].shape == (8, 1, 1, 4, 4)
    stack = stream.read("obs.obs", torch.tensor([[1, 3]]), torch.tensor([[0, 0]]))
    assert stack.shape == (1, 2, 3, 4, 4)
    assert stack.dtype == torch.uint8
    assert stack[0, :, :, 0, 0].tolist() == [[0, 1, 2], [2, 3, 4]]


# -- on-policy --------------------------------------------------------------------------------------------------------


@given(cases(), st.integers(1, 3))
@settings(max_examples=150)
def test_drain_gives_each_transition_once_and_in_order(case: Case, count: int) -> None:
    count *= case.core_every  # as PPO: whole sequences
    case.rows = 2 * count + 8 + case.core_every
    recorded = Recorded(case)
    drained: list[list[int]] = [[] for _ in range(case.slots)]
    overtaken = False
    for event in case.events:
        recorded.play([event])
        overtaken |= any(len(recorded.log[s]) - len(drained[s]) > case.rows - 4 for s in range(case.slots))
        ready = all(len(recorded.log[s]) - 1 - len(drained[s]) >= count for s in range(case.slots))
        if overtaken:  # a slot that runs far ahead loses rows; that is the next test
            return
        assert recorded.stream.ready(count) == ready
        if ready:
            row, slot = recorded.stream.drain(count)
            assert row.shape == (count + 1, case.slots)
            for s in range(case.slots):
                assert slot[:, s].tolist() == [s] * (count + 1)
                assert row[:, s].tolist() == list(range(len(drained[s]), len(drained[s]) + count + 1))
                drained[s] += row[:-1, s].tolist()
            check_rows(recorded, row.flatten(), slot.flatten())
            check_answers(recorded, row[:-1].flatten(), slot[:-1].flatten())


@pytest.mark.parametrize("stack", [1, 4])
def test_a_slot_that_ran_ahead_loses_its_oldest_rows_and_nothing_else(stack: int) -> None:
    """What is drained of it are rows that can be read in full, beginning where a recurrent state was kept."""
    case = Case(20, 2, stack, 4, [])
    recorded = Recorded(case)
    fast, both = Event((0,), (0, 0)), Event(None, (0, 0))
    recorded.play([fast] * 30 + [both] * 9)
    assert recorded.stream.ready(8)
    row, slot = recorded.stream.drain(8)
    check_rows(recorded, row.flatten(), slot.flatten())
    check_answers(recorded, row[:-1].flatten(), slot[:-1].flatten())
    assert int(row[0, 0]) % 4 == 0
    assert row[:, 1].tolist() == list(range(9))


@pytest.mark.parametrize("together", [True, False])
def test_what_was_lost_or_drained_counts_no_more(together: bool) -> None:
    case = Case(20, 1, 1, 4, [])
    recorded = Recorded(case).play([Event(None if together else (0,), (0,))] * 31)
    row, _ = recorded.stream.drain(8)
    assert row[:, 0].tolist() == list(range(12, 21)), "row 11 is the oldest one, 12 the next that keeps a state"
    assert recorded.stream.ready(10)
    assert not recorded.stream.ready(11)


# -- checkpoints ------------------------------------------------------------------------------------------------------


@given(cases(), st.floats(0, 1))
@settings(max_examples=150)
def test_a_restored_stream_goes_on_as_if_nothing_had_happened(case: Case, share: float) -> None:
    cut = int(share * len(case.events))
    recorded = Recorded(case).play(case.events[:cut])
    saved = recorded.stream.state()
    saved = saved | {part: {k: v.clone() for k, v in saved[part].items()} for part in ("data", "cores")}
    used = min(max(map(len, recorded.log)), recorded.stream.rows)
    assert all(v.shape[0] == used for v in saved["data"].values()), "rows never written are not saved"
    recorded.stream = Stream(case.rows, case.slots, recorded.space(), core_every=case.core_every)
    recorded.stream.restore(saved)
    recorded.play(case.events[cut:])
    check_all(recorded, 2)


def test_a_state_without_rows_starts_empty_and_keeps_no_order() -> None:
    case = Case(5, 2, 1, 1, [Event((1,), (0, 0)), Event(None, (0, 0))])
    recorded = Recorded(case).play(case.events)
    saved = recorded.stream.state(full=False)
    assert sum(v.numel() for part in ("data", "cores") for v in saved[part].values()) == 0
    fresh = Stream(5, 2)
    fresh.restore(saved)
    assert fresh.count.tolist() == [0, 0]
    assert fresh.level
    assert not fresh.ready(1)


def test_a_longer_ring_takes_rows_that_have_not_wrapped() -> None:
    case = Case(6, 1, 1, 1, [Event(None, (0,))] * 4)
    recorded = Recorded(case).play(case.events)
    saved = recorded.stream.state()
    recorded.stream = Stream(9, 1, recorded.space())
    recorded.stream.restore(saved)
    recorded.play([Event(None, (0,))] * 12)
    check_all(recorded, 2)


def test_wrapped_rows_do_not_become_a_ring_of_another_length() -> None:
    case = Case(6, 1, 1, 1, [Event(None, (0,))] * 8)
    recorded = Recorded(case).play(case.events)
    for rows in (5, 9):
        with pytest.raises(UserError, match="wrapped"):
            Stream(rows, 1).restore(recorded.stream.state())


def test_rows_of_another_number_of_slots_are_refused() -> None:
    case = Case(6, 2, 1, 1, [Event(None, (0, 0))])
    with pytest.raises(UserError, match="do not fit"):
        Stream(6, 3).restore(Recorded(case).play(case.events).stream.state())


def test_rows_of_another_shape_are_refused_at_the_next_step() -> None:
    case = Case(6, 2, 1, 1, [Event(None, (0, 0))])
    stream = Recorded(case).play(case.events).stream
    wide = {"obs": torch.zeros(2, 3), "id": torch.zeros(2, 1, dtype=torch.int64)}
    with pytest.raises(UserError, match=r"'obs\.obs' changed from \(2,\)"):
        stream.observe(Step(wide, torch.zeros(2), torch.zeros(2, dtype=torch.bool), torch.zeros(2, dtype=torch.bool)))


def test_a_cut_ends_every_episode_where_it_stands() -> None:
    events = [Event(None, (0, 0)), Event(None, (0, TERMINATES))]
    stream = Recorded(Case(6, 2, 1, 1, events)).play(events).stream
    stream.cut()
    row, slot = torch.tensor([1, 1]), torch.tensor([0, 1])
    assert stream.read("truncated", row, slot).tolist() == [True, False]
    assert stream.read("terminated", row, slot).tolist() == [False, True]


# -- memory -----------------------------------------------------------------------------------------------------------


def bytes_per_row(stream: Stream) -> float:
    return sum(math.prod(x.shape) * x.element_size() for x in stream.data.values()) / (stream.rows * stream.slots)


def test_a_row_of_halfcheetah_takes_at_most_110_bytes() -> None:
    stream = Stream(100, 2, {"obs": Spec((17,))})
    flags = torch.zeros(2, dtype=torch.bool)
    stream.observe(Step({"obs": torch.zeros(2, 17)}, torch.zeros(2), flags, flags))
    stream.record(Act({"c": torch.zeros(2, 6), "d": torch.zeros(2, 0, dtype=torch.int64)}, {}), {})
    assert 17 * 4 + 6 * 4 < bytes_per_row(stream) <= 110


def test_a_row_of_atari_takes_at_most_7200_bytes() -> None:
    stream = Stream(10, 2, {"obs": Spec((4, 84, 84), torch.uint8, image=True, stack=4)})
    flags = torch.zeros(2, dtype=torch.bool)
    stream.observe(Step({"obs": torch.zeros(2, 4, 84, 84, dtype=torch.uint8)}, torch.zeros(2), flags, flags))
    stream.record(Act({"c": torch.zeros(2, 0), "d": torch.zeros(2, 1, dtype=torch.int64)}, {}), {})
    assert 84 * 84 < bytes_per_row(stream) <= 7200
