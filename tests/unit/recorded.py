"""A Stream beside a plain Python list of everything that was put into it, and the scripts that fill both."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

from kumite.stream import Stream
from kumite.types import Act, Spec, Step

GOES_ON, TERMINATES, IS_CUT = range(3)


class Row(NamedTuple):
    """One row of one slot as it was put in: `mark` is what every stored number was made of."""

    mark: int
    end: int

    @property
    def over(self) -> bool:
        return self.end != GOES_ON

    @property
    def reward(self) -> float:
        return self.mark / 4

    def frame(self) -> list[float]:
        return [self.mark, self.mark + 0.5]


class Event(NamedTuple):
    who: tuple[int, ...] | None
    """The slots that answered; None = all, in order."""
    ends: tuple[int, ...]
    """What each slot's Step says, where the slot answers and does not begin an episode."""


@dataclass
class Case:
    rows: int
    slots: int
    stack: int
    core_every: int
    events: list[Event]


@dataclass
class Recorded:
    """Every number of a row follows from its mark, so whatever a reader returns can be told from any other row."""

    case: Case
    stream: Stream = field(init=False)
    log: list[list[Row]] = field(init=False)
    marks: int = 0

    def __post_init__(self) -> None:
        c = self.case
        self.stream = Stream(c.rows, c.slots, self.space(), core_every=c.core_every)
        self.log = [[] for _ in range(c.slots)]

    def space(self) -> dict[str, Spec]:
        return {"obs": Spec((2 * self.case.stack,), stack=self.case.stack), "id": Spec((1,), torch.int64)}

    def play(self, events: list[Event]) -> Recorded:
        for event in events:
            self.observe(event)
            self.record(event)
        return self

    def observe(self, event: Event) -> None:
        who = range(self.case.slots) if event.who is None else event.who
        for i in who:
            fresh = not self.log[i] or self.log[i][-1].over
            self.marks += 1
            self.log[i].append(Row(self.marks, GOES_ON if fresh else event.ends[i]))
        newest = [self.log[i][-1] for i in who]
        # what older frames a Step shows is never stored: the newest one alone counts
        shown = [[-7.0] * 2 * (self.case.stack - 1) + row.frame() for row in newest]
        self.stream.observe(
            Step(
                obs={"obs": torch.tensor(shown), "id": torch.tensor([[r.mark] for r in newest])},
                reward=torch.tensor([r.reward for r in newest]),
                terminated=torch.tensor([r.end == TERMINATES for r in newest]),
                truncated=torch.tensor([r.end == IS_CUT for r in newest]),
                slot=None if event.who is None else torch.tensor(event.who),
            )
        )

    def record(self, event: Event) -> None:
        who = range(self.case.slots) if event.who is None else event.who
        mark = torch.tensor([float(self.log[i][-1].mark) for i in who])
        act = Act(
            action={"c": mark[:, None] + 0.125, "d": mark[:, None].long() + 1},
            core={},
            extras={"log_prob": -mark},
        )
        core = {"actor": {"h": mark[:, None, None] + 0.25}, "critic": {"h": mark[:, None, None] + 0.75}}
        self.stream.record(act, core, None if event.who is None else torch.tensor(event.who))

    # -- what the log says --------------------------------------------------------------------------------------------

    def held(self, slot: int) -> range:
        """Rows still in the ring."""
        count = len(self.log[slot])
        return range(max(0, count - self.stream.rows), count)

    def readable(self, slot: int, span: int) -> list[int]:
        """Rows from which `span` transitions, the flags of the row before and all frames of a stack are there."""
        held, back = self.held(slot), max(1, self.case.stack - 1)
        last = len(self.log[slot]) - 1
        return [r for r in range(last - span + 1) if max(0, r - back) in held and r in held]

    def first(self, slot: int, row: int) -> bool:
        return row == 0 or self.log[slot][row - 1].over

    def stacked(self, slot: int, row: int) -> list[float]:
        """The newest frames of the episode up to this row, zeros before its first."""
        frames = [self.log[slot][row].frame()]
        while len(frames) < self.case.stack:
            fresh = self.first(slot, row)
            row -= not fresh
            frames.insert(0, [0.0, 0.0] if fresh else self.log[slot][row].frame())
            if fresh:
                frames[:0] = [[0.0, 0.0]] * (self.case.stack - len(frames))
        return [x for frame in frames for x in frame]

    def every_readable(self, span: int) -> tuple[Tensor, Tensor]:
        """(row, slot) of all of them."""
        pairs = [(r, s) for s in range(self.case.slots) for r in self.readable(s, span)]
        return torch.tensor([r for r, _ in pairs]).long(), torch.tensor([s for _, s in pairs]).long()


@st.composite
def cases(draw: st.DrawFn, together: bool | None = None, stacks: int = 4, events: int = 30) -> Case:
    """Scripts: slots that answer all together or in parts, episodes that end anywhere, rings that wrap many times."""
    slots = draw(st.integers(1, 3))
    end = st.sampled_from([GOES_ON] * 3 + [TERMINATES, IS_CUT])
    ends = st.tuples(*[end] * slots)
    part = st.lists(st.integers(0, slots - 1), min_size=1, max_size=slots, unique=True).map(tuple)
    if together is None:
        together = draw(st.booleans())
    who = st.none() if together else st.one_of(st.none(), part)
    return Case(
        rows=draw(st.integers(4, 12)),
        slots=slots,
        stack=draw(st.integers(1, stacks)),
        core_every=draw(st.integers(1, 3)),
        events=[draw(st.builds(Event, who, ends)) for _ in range(draw(st.integers(1, events)))],
    )
