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
    draws = any(isinstance(phase, Sample) for phase, _ in layout.program.phases())
    if draws and layout.sessions > layout.schedule.blocks:
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

    `far`: as `SessionsLayout.attended` has it.
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
        heard = _heard(layout, phase, far)
        blocks = sorted(heard)
        yield Event("await", phase.queries, blocks, tuple(heard[block] for block in blocks))
        yield Event("publish", phase.into, blocks)
    elif isinstance(phase, Sample):
        drawing = range(layout.sessions)
        yield Event("await", phase.exchange, drawing, (everybody,) * len(drawing))
        yield Event("publish", CHOSEN, drawing)
        yield Event("await", CHOSEN, every, (everybody,) * len(every))


def _makers(layout: SessionsLayout, matrix: Matrix) -> range:
    """Return the blocks that have rows of a matrix."""
    return range(min(layout.schedule.blocks, divide_up(matrix.rows, layout.tiling(matrix).rows)))


def _heard(layout: SessionsLayout, attend: Attend, far: bool) -> dict[int, int]:
    """Return for each block that attends those that make what it awaits, a bit for each."""
    h, found = attend.heads, dict[int, int]()
    for block, head, queries in layout.attended(attend, far=far):
        key = h.heads + head
        rows = (queries[0], len(queries)), (key, 1), (key + h.kv_heads, 1)
        numbers = tuple((first * h.head_dim, count * h.head_dim) for first, count in rows)
        found[block] = found.get(block, 0) | blocks_of_rows(layout, attend, numbers)
    return found
