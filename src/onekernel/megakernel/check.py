"""Proves of a program that it cannot hang, race or lose a value, whatever the blocks' speeds.

All blocks run one list of events: an exchange is published, an exchange is awaited. Of that list it is proved that

- nobody waits for ever: an await stands behind its publish (the block that is furthest behind can then always go on);
- nothing is overwritten too early: who writes an exchange knows that its last values were read. Knowledge goes with
  values: who awaits what a block published knows what that block knew then;
- every value is read once, and fits: widths agree, what is owed to the residual stream is added before more is owed.

Loops are unrolled to at most four iterations: what two neighbouring ones do to each other behind the first two, which
may be others, all do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from itertools import islice, product
from operator import or_

from onekernel.errors import InvalidInput
from onekernel.megakernel.layout import Layout, divide_up
from onekernel.megakernel.program import (
    Attend,
    Begin,
    Choose,
    Given,
    Merge,
    Normed,
    Phase,
    Plain,
    Program,
    Project,
    Repeat,
    Sample,
)
from onekernel.megakernel.unroll import At, condition_holds, counted, unrolled

ITERATIONS = 4
HEAD_DIMS = (32, 64, 128)  # of kernels/phases/heads.cuh
_FAR = 1 << 30  # a position
PARITIES = 32  # bits of the word that says how often each exchange was used
Blocks = int  # a set of blocks, a bit for each
EventsOf = Callable[[Phase, str | None], tuple["Event", ...]]  # of a phase and what is owed to its stream


@dataclass(frozen=True)
class Event:
    """One exchange is published or awaited. `hears`: by block that awaits it, those whose values it reads."""

    kind: str  # "publish" or "await"
    exchange: str
    blocks: Sequence[int]
    hears: tuple[Blocks, ...] = ()


def check(layout: Layout) -> None:
    """Raise InvalidInput with the first fault of a program under a schedule."""
    refuse(faults(layout))


def refuse(found: Iterator[str]) -> None:
    """Raise InvalidInput with the first fault, if there is one."""
    for fault in found:
        todo = "correct the program, or give each phase as many tiles of 8 rows as there are blocks"
        raise InvalidInput(expected="a program that cannot hang, race or lose a value", got=fault, todo=todo)


def faults(layout: Layout) -> Iterator[str]:
    """Yield every fault that is found."""
    yield from shape_faults(layout)
    turns = product(range(ITERATIONS), range(ITERATIONS + 1))  # the last step always speaks
    events_of = cache(lambda phase, owed: tuple(_events(layout, phase, owed)))
    yield from prove({tuple(_walk(layout.program, *turn)) for turn in turns}, events_of)


def prove(runs: Iterable[tuple[Phase, ...]], events_of: EventsOf, *, begins_owe: bool = False) -> Iterator[str]:
    """Yield the faults of lists of phases whose events are these; `begins_owe`: a stream begins in an exchange."""
    proved: dict[tuple[int, ...], bool] = {}
    for phases in runs:
        events = list[Event]()
        yield from _residual(phases, events_of, events, begins_owe)
        yield from _order(events)
        yield from _reuse(events, proved)


def _walk(program: Program, first: int, far: int) -> Iterator[Phase]:
    """Yield the phases of a program in which speech begins with step `first`, and large positions with step `far`."""

    def turns(loop: Repeat) -> Iterator[At]:
        for turn in islice(counted(loop, ITERATIONS), ITERATIONS):
            yield turn | {"position": _FAR * (turn["position"] >= far)} if "position" in turn else turn

    def holds(condition: str, at: At) -> bool:
        return condition_holds(condition, at, speaks=at["step"] >= first)

    yield from (phase for phase, _ in unrolled(program.body, turns, holds))


def _events(layout: Layout, phase: Phase, owed: str | None) -> Iterator[Event]:
    """List what a phase awaits and publishes; `owed` is what is added to its residual stream, or dropped, before."""
    every, all_of_all = range(layout.schedule.blocks), (_set(range(layout.schedule.blocks)),) * layout.schedule.blocks
    if isinstance(phase, Begin):
        if owed is not None:
            yield Event("await", owed, every, all_of_all)
        if isinstance(phase.source, Given):
            yield Event("await", phase.source.exchange, every, all_of_all)
    elif isinstance(phase, Project):
        having_rows = range(min(len(every), divide_up(phase.matrix.rows, layout.tiling(phase.matrix).rows)))
        if not isinstance(phase.source, Normed):
            yield Event("await", phase.source.exchange, having_rows, all_of_all[: len(having_rows)])
        elif owed is not None:
            yield Event("await", owed, every, all_of_all)
        if phase.into:
            yield Event("publish", phase.into, having_rows)
    elif isinstance(phase, Attend):
        members = range(phase.heads.kv_heads * layout.members(phase.heads))
        yield Event("await", phase.queries, members, tuple(_heard(layout, phase, member) for member in members))
        yield Event("publish", phase.into, members)
    elif isinstance(phase, Merge):
        count = layout.members(phase.heads)
        sharing = [_set(range(head * count, (head + 1) * count)) for head in range(phase.heads.kv_heads)]
        members = range(phase.heads.kv_heads * count)
        yield Event("await", phase.parts, members, tuple(sharing[member // count] for member in members))
        yield Event("publish", phase.into, members)
    elif isinstance(phase, Choose | Sample):
        if isinstance(phase, Choose):
            yield Event("publish", phase.exchange, every)
        yield Event("await", phase.exchange, every, all_of_all)


def _heard(layout: Layout, attend: Attend, member: int) -> Blocks:
    """Return the blocks that make what a member awaits: queries, a key, a value; of its slice, if it is alone."""
    h, members, share = attend.heads, layout.members(attend.heads), attend.heads.heads // attend.heads.kv_heads
    head, place = divmod(member, members)
    slices = max(1, members // share)  # of a head
    queries, values = max(1, share // members), h.head_dim // slices
    first, value = place // slices * queries, place % slices * values
    if attend.parted:
        first, queries, value, values = 0, share, 0, h.head_dim
    key = (h.heads + head) * h.head_dim
    parts = (
        ((head * share + first) * h.head_dim, queries * h.head_dim), (key, h.head_dim),
        (key + h.kv_heads * h.head_dim + value, values),
    )  # fmt: skip
    return blocks_of_rows(layout, attend, parts)


def blocks_of_rows(layout: Layout, attend: Attend, parts: Iterable[tuple[int, int]]) -> Blocks:
    """Return the blocks that make parts of an attention's queries, keys and values: (first, count) of rows."""
    project = next(phase for phase, _ in layout.program.phases() if getattr(phase, "into", "") == attend.queries)
    assert isinstance(project, Project)
    rows = layout.tiling(project.matrix).rows
    return _set(block for start, count in parts for block in range(start // rows, (start + count - 1) // rows + 1))


def _set(blocks: Iterable[int]) -> Blocks:
    return sum(1 << block for block in set(blocks))


def _order(events: list[Event]) -> Iterator[str]:
    """Find awaits without a publish, and publishes that nobody awaits."""
    full: dict[str, Event] = {}
    for event in events:
        if event.kind == "publish":
            if event.exchange in full:
                yield f"{event.exchange} published twice before it is awaited"
            full[event.exchange] = event
        elif full.pop(event.exchange, None) is None:
            yield f"{event.exchange} awaited before it is published: all blocks wait for ever"
    yield from (f"{exchange} published and not awaited" for exchange in full)


def _reuse(events: list[Event], proved: dict[tuple[int, ...], bool]) -> Iterator[str]:
    """Find exchanges that a fast block may overwrite while a slow one still reads; the same events are judged once."""
    for number, event in enumerate(events):
        if event.kind != "await":
            continue
        later = range(number + 1, len(events))
        again = next(
            (at for at in later if (events[at].kind, events[at].exchange) == ("publish", event.exchange)), None
        )
        if again is None:
            continue
        same = tuple(map(id, events[number : again + 1]))
        if same not in proved:
            proved[same] = _known(event, events[number + 1 : again], events[again].blocks)
        if not proved[same]:
            yield f"{event.exchange} overwritten while a block may still read it"


def _known(read: Event, between: list[Event], writers: Sequence[int]) -> bool:
    """Say whether each writer knows at the end of all readers of its values that they have read."""
    knows = {block: 1 << block for block in read.blocks}
    told: dict[str, dict[int, Blocks]] = {}
    for event in between:
        if event.kind == "publish":
            told[event.exchange] = {block: knows.get(block, 0) for block in event.blocks}
            continue
        said = told.get(event.exchange, {})
        heard = {hears: _union(said, hears) for hears in set(event.hears)}
        for block, hears in zip(event.blocks, event.hears, strict=True):
            knows[block] = knows.get(block, 0) | heard[hears]
    by_hears: dict[Blocks, Blocks] = {}
    for block, hears in zip(read.blocks, read.hears, strict=True):
        by_hears[hears] = by_hears.get(hears, 0) | 1 << block
    readers = {writer: sum(its for hears, its in by_hears.items() if hears >> writer & 1) for writer in writers}
    return all(readers[writer] & ~knows.get(writer, 0) == 0 for writer in writers)


def _union(said: dict[int, Blocks], hears: Blocks) -> Blocks:
    """Return all that the blocks of a set have said."""
    return reduce(or_, (known for block, known in said.items() if hears >> block & 1), 0)


def _residual(phases: Iterable[Phase], events_of: EventsOf, events: list[Event], begins_owe: bool) -> Iterator[str]:
    """Append all events; find what is owed to a residual stream at the wrong time, and tokens of no candidates."""
    debts: dict[str, str] = {}  # by stream
    considered = False
    for phase in phases:
        stream, named = _settles(phase)
        owed = debts.pop(stream, None)
        events += events_of(phase, owed)
        if owed not in (None, named):
            yield f"{owed} owed to the residual stream, {named} added"
        if isinstance(phase, Project):
            if phase.owe and (before := debts.get(phase.owe)) is not None:
                yield f"{before} owed to the residual stream and never added"
            debts |= {phase.owe: phase.into} if phase.owe else {}
            considered |= phase.finish == "consider"
        elif isinstance(phase, Begin) and begins_owe:
            debts[phase.stream] = phase.owed
        elif isinstance(phase, Choose):
            if not considered:
                yield "a token chosen of no candidates"
            considered = False
    if considered:
        yield "candidates that nobody chooses from"


def _settles(phase: Phase) -> tuple[str, str]:
    """Name the stream whose debt a phase takes in, and the exchange that it takes it from."""
    source = phase.source if isinstance(phase, Project | Begin) else None
    if isinstance(source, Normed):
        return source.stream, source.owed
    return (phase.stream, phase.owed) if isinstance(phase, Begin) else ("", "")


def shape_faults(layout: Layout) -> Iterator[str]:
    """Find widths that do not agree, and weights of loops that are not around their phase."""
    program, widths = layout.program, {exchange.name: exchange.width for exchange in layout.program.exchanges}
    if len(program.exchanges) > PARITIES:
        yield f"{len(program.exchanges)} exchanges, their parities fit in a word of {PARITIES}"
    parted = any(isinstance(phase, Attend) and phase.parted for phase, _ in program.phases())
    if parted and layout.step_chunks < layout.schedule.slots:
        slots, chunks = layout.schedule.slots, layout.step_chunks
        yield f"a ring of {slots} slots for {chunks} chunks a step: keys would be copied before they are kept"
    for phase, loops in program.phases():
        around = {loop.index for loop in loops}
        if isinstance(phase, Project):
            rows = phase.matrix.rows // 2 if phase.finish == "gate" else phase.matrix.rows
            if phase.into and widths.get(phase.into) != rows:
                yield f"{phase.matrix.name} makes {rows} values, {phase.into} has {widths.get(phase.into)}"
            width = _source_width(layout, phase.source)
            if width != phase.matrix.columns:
                yield f"{phase.matrix.name} takes {phase.matrix.columns} values, its source has {width}"
            if program.vectors(_source_name(phase.source)) < phase.vectors:
                yield f"{phase.matrix.name} takes {phase.vectors} vectors, {_source_name(phase.source)} has fewer"
            if phase.matrix.columns % 4:
                yield f"{phase.matrix.columns} columns of {phase.matrix.name}, not in groups of four"
            if not set(phase.matrix.per) <= around:
                yield f"{phase.matrix.name} chosen by a loop that is not around it"
        elif isinstance(phase, Attend):
            expected = (phase.heads.heads + 2 * phase.heads.kv_heads) * phase.heads.head_dim
            if widths.get(phase.queries) != expected:
                yield f"heads of {expected} values, {phase.queries} has {widths.get(phase.queries)}"
            if widths.get(phase.into) != (0 if phase.parted else phase.heads.heads * phase.heads.head_dim):
                yield f"the result of heads does not fit {phase.into}, which has {widths.get(phase.into)}"
            if phase.vectors > (program.vectors(phase.queries) if phase.position else 1):
                yield f"{phase.vectors} positions at once, {phase.queries} has fewer"
            if phase.heads.head_dim not in HEAD_DIMS:
                yield f"heads of {phase.heads.head_dim} dimensions, there are kernels for {HEAD_DIMS}"
            if not layout.members(phase.heads):
                yield f"{phase.heads.kv_heads} heads of keys for {layout.schedule.blocks} blocks"
        elif isinstance(phase, Merge) and widths.get(phase.into) != (made := phase.heads.heads * phase.heads.head_dim):
            yield f"heads make {made} values, {phase.into} has {widths.get(phase.into)}"
        elif isinstance(phase, Sample) and widths.get(phase.exchange) != phase.vocab:
            yield f"{phase.vocab} entries to draw from, {phase.exchange} has {widths.get(phase.exchange)}"


def _source_name(source: Plain | Normed) -> str:
    return source.stream if isinstance(source, Normed) else source.exchange


def _source_width(layout: Layout, source: Plain | Normed) -> int:
    if isinstance(source, Normed):
        owed, width = layout.program.exchange(source.owed).width, layout.program.width(source.stream)
        return width if owed == source.weight.width == width else 0
    return layout.program.exchange(source.exchange).width
