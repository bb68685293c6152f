"""Which schedule a program gets on a GPU: measured rows where there are some, and a model where there are none."""

from __future__ import annotations

from dataclasses import replace

from onekernel.device.parts import arch_number, shared_limit
from onekernel.errors import DoesNotFit
from onekernel.megakernel.check import faults
from onekernel.megakernel.launches.text import shared_bytes
from onekernel.megakernel.layout import SLOT_SHARED_BYTES, Layout, Schedule
from onekernel.megakernel.program import Attend, Program

FEWEST_SLOTS = 4  # with fewer, copies would wait for the warps that compute
WIDE, WIDE_PACE = 2048, 250  # from this width on, weights wait for memory more than for other blocks (docs/log.md)


def schedule_for(program: Program, multiprocessors: int, arch: str, *, launches: bool = False) -> Schedule:
    """Choose the ring, as large as shared memory allows up to the usual one, its pace, and the number of blocks.

    The number is the one of the fewest bytes a block, of the counts that `check` accepts; more blocks if equal. Raises
    DoesNotFit where no count will do, or shared memory does not. `launches` need but a part of the shared memory of one
    kernel, and may have more blocks than there are multiprocessors, for none waits for another.
    """
    most = max(multiprocessors, _heads(program)) if launches else multiprocessors
    base = replace(Schedule(most), slots=0 if launches else _slots(program, most, arch))
    if max(width for _, width in program.streams) >= WIDE:
        base = replace(base, pace=WIDE_PACE)
    layouts = [_layout(program, replace(base, blocks=count)) for count in range(most, 0, -1)]
    for layout in sorted(layouts, key=lambda it: it.stream_bytes):
        if _fault(layout, arch, launches) is None:
            return layout.schedule
    todo = "use another GPU, or another decoder"
    got = f"{program.name}: {_fault(_layout(program, base), arch, launches)}"
    raise DoesNotFit(expected=f"a program for {most} blocks of {arch}", got=got, todo=todo)


def _heads(program: Program) -> int:
    """Return the heads of keys of an attention, at most: each is for a block, or for several."""
    return max(phase.heads.kv_heads for phase, _ in program.phases() if isinstance(phase, Attend))


def _layout(program: Program, schedule: Schedule) -> Layout:
    """Lay out, with a ring that holds no more than a step."""
    layout = Layout(program, schedule)
    slots = min(schedule.slots, layout.step_chunks)
    return Layout(program, replace(schedule, slots=slots if slots >= FEWEST_SLOTS else 0))


def _fault(layout: Layout, arch: str, launches: bool) -> str | None:
    """Return why a layout cannot run, None if it can."""
    used, most = layout.shared_bytes, shared_limit(arch)
    if launches:
        used = max(shared_bytes(layout, phase) for phase, _ in layout.program.phases())
    if used > most:
        return f"{used} bytes of shared memory, there are {most}"
    return next(faults(layout), None)


def _slots(program: Program, multiprocessors: int, arch: str) -> int:
    """Return the slots of a ring; before sm_90, and where few would fit, warps load their weights themselves."""
    usual = Schedule(multiprocessors)
    free = shared_limit(arch) - Layout(program, replace(usual, slots=0)).shared_bytes
    slots = min(usual.slots, free // SLOT_SHARED_BYTES)
    return slots if arch_number(arch) >= 90 and slots >= FEWEST_SLOTS else 0
