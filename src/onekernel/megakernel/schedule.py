"""Which schedule a program gets on a GPU: measured rows where there are some, and a model where there are none."""

from __future__ import annotations

from dataclasses import replace

from onekernel.errors import InvalidInput
from onekernel.megakernel.check import faults
from onekernel.megakernel.layout import Layout, Schedule
from onekernel.megakernel.program import Program


def schedule_for(program: Program, multiprocessors: int, *, ring: bool = True) -> Schedule:
    """Choose the number of blocks: the fewest bytes a block, of the counts that `check` accepts; more blocks if equal.

    `ring`: weights come through shared memory, which needs sm_90. Raises InvalidInput where no count will do.
    """
    base = Schedule(multiprocessors) if ring else Schedule(multiprocessors, slots=0)
    counts = range(multiprocessors, multiprocessors // 2, -1)
    layouts = sorted((Layout(program, replace(base, blocks=count)) for count in counts), key=lambda it: it.stream_bytes)
    for layout in layouts:
        if next(faults(layout), None) is None:
            return layout.schedule
    todo = "use a GPU with more multiprocessors, or a program with larger matrices"
    raise InvalidInput(expected=f"a program for {multiprocessors} blocks", got=program.name, todo=todo)
