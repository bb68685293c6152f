"""Proves of a program for many sessions what megakernel/check.py proves of one for a single session."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial

from onekernel.megakernel.check import ITERATIONS, Event, blocks_of_rows, prove, refuse, shape_faults
from onekernel.megakernel.layout import divide_up
from onekernel.megakernel.program import Attend, Begin, Given, Matrix, Normed, Phase, Program, Project, Repeat, Sample
from onekernel.megakernel.sessions.layout import CHOSEN, SessionsLayout
from onekernel.megakernel.unroll import At, condition_holds, counted, unrolled


def check(layout: SessionsLayout) -> None:
    """Raise InvalidInput with the first fault of a program under a schedule."""
    refuse(faults(layout))


def faults(layout: SessionsLayout) -> Iterator[str]:
    """Yield every fault that is found."""
    yield from shape_faults(layout)
    if layout.sessions > layout.schedule.blocks:
        yield f"{layout.sessions} sessions draw in as many blocks, there are {layout.schedule.blocks}"
    for far in (False, True):
        events_of = cache(lambda phase, owed, far=far: tuple(_events(layout, phase, owed, far)))
        yield from prove((tuple(_run(layout.program)),), events_of, begins_owe=True)


def _run(program: Program) -> Iterator[Phase]:
    """Yield the phases of a program; of a loop the first iterations, and the last one."""

    def turns(loop: Repeat) -> list[At]:
        every = list(counted(loop, ITERATIONS))
        return every if len(every) <= ITERATIONS else [*every[: ITERATIONS - 1], every[-1]]

    holds = partial(condition_holds, speaks=True)
    for phase, at in unrolled(program.body, turns, holds):
        silent = isinstance(phase, Project) and phase.silent and all(holds(one, at) for one in phase.silent)
        yield replace(phase, into="", owe="") if isinstance(phase, Project) and silent else phase


def _events(layout: SessionsLayout, phase: Phase, owed: str | None, far: bool) -> Iterator[Event]:
    """List what a phase awaits and publishes; a stream that is read twice counts as read the second time.

    `far`: the first part of each head of keys attends alone.
    """
    every = range(layout.schedule.blocks)
    everybody = (1 << len(every)) - 1
    if isinstance(phase, Begin):
        owners = _makers(layout, layout.owner(phase.stream))
        if isinstance(phase.source, Given):
            yield Event("await", phase.source.exchange, owners, (everybody,) * len(owners))
        yield Event("publish", phase.owed, owners)
    elif isinstance(phase, Project):
        having_rows = _makers(layout, phase.matrix)
        source = phase.source
        if not isinstance(source, Normed):
            yield Event("await", source.exchange, having_rows, (everybody,) * len(having_rows))
        elif layout.reread.get(phase.matrix, owed is not None):
            readers = every if phase.matrix in layout.everywhere else having_rows
            yield Event("await", source.owed, readers, (everybody,) * len(readers))
        if phase.into:
            yield Event("publish", phase.into, having_rows)
    elif isinstance(phase, Attend):
        parts = layout.parts(phase.heads)
        units = range(0, layout.sessions * phase.heads.kv_heads * parts, parts if far and not phase.position else 1)
        blocks = range(0, min(units.stop, len(every)), units.step)
        yield Event("await", phase.queries, blocks, tuple(_heard(layout, phase, block, units) for block in blocks))
        yield Event("publish", phase.into, blocks)
    elif isinstance(phase, Sample):
        drawing = range(layout.sessions)
        yield Event("await", phase.exchange, drawing, (everybody,) * len(drawing))
        yield Event("publish", CHOSEN, drawing)
        yield Event("await", CHOSEN, every, (everybody,) * len(every))


def _makers(layout: SessionsLayout, matrix: Matrix) -> range:
    """Return the blocks that have rows of a matrix."""
    return range(min(layout.schedule.blocks, divide_up(matrix.rows, layout.tiling(matrix).rows)))


def _heard(layout: SessionsLayout, attend: Attend, block: int, units: range) -> int:
    """Return the blocks that make what a block awaits for its units, a bit for each."""
    h, share = attend.heads, attend.heads.heads // attend.heads.kv_heads
    found = 0
    parts = layout.parts(h) if units.step == 1 else 1  # a far attention is for one block
    its = max(1, share // parts)  # heads
    for unit in range(block, units.stop, layout.schedule.blocks):
        if unit not in units:
            continue
        head = unit // layout.parts(h) % h.kv_heads
        query = head * share + unit % layout.parts(h) * share // parts
        key = (h.heads + head) * h.head_dim
        parts_of = (
            (query * h.head_dim, its * h.head_dim), (key, h.head_dim),
            (key + h.kv_heads * h.head_dim, h.head_dim),
        )  # fmt: skip
        found |= blocks_of_rows(layout, attend, parts_of)
    return found
