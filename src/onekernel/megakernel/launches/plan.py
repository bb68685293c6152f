"""Program -> the launches of one step: which phases go together, and where residual streams lie between them.

A step is unrolled: every phase is a launch, but for `Begin`, which goes with the product behind it. All that the blocks
of one kernel would keep to themselves is in global memory. A residual stream has two copies there: all blocks of a
launch read one and add what is owed, one block writes the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from onekernel.errors import InvalidInput
from onekernel.megakernel.layout import Layout, divide_up
from onekernel.megakernel.program import (
    Attend,
    Begin,
    Item,
    Merge,
    Normed,
    Phase,
    Program,
    Project,
    Repeat,
    Sample,
    When,
)
from onekernel.megakernel.unroll import At, condition_holds, counted, unrolled


@dataclass(frozen=True)
class Held:
    """A residual stream in a launch: the copy that is `taken` (None: it begins here), and the one that is `put`.

    `owed`: an exchange is still to be added to what is taken. `put` is None where nothing changes. `vectors`: how many.
    """

    stream: str
    vectors: int
    taken: int | None
    owed: bool
    put: int | None


@dataclass(frozen=True)
class Piece:
    """What a kernel does. `settles`: its successor finds everything made that launches before this one make."""

    phases: tuple[Phase, ...]
    held: tuple[Held, ...] = ()
    settles: bool = False

    @property
    def phase(self) -> Phase:
        """What it is about; what comes before only begins a stream."""
        return self.phases[-1]


@dataclass(frozen=True)
class Launch:
    """A kernel in a step: its blocks, the numbers of the loops around it, and whether it is the last of the step."""

    piece: Piece
    blocks: int
    loops: tuple[tuple[str, int], ...]
    last: bool = False


def launches(layout: Layout, position: int, *, speaks: bool) -> tuple[Launch, ...]:
    """List the launches of a step at a position; `speaks`: behind the prompt. Raises InvalidInput."""
    groups = list(_groups(step_body(layout.program), {"position": position}, speaks))
    copies, found = _Copies(), list[Launch]()
    for number, (phases, at) in enumerate(groups):
        following = groups[number + 1][0] if number + 1 < len(groups) else ()
        piece = Piece(phases, copies.held(phases), any(map(_reads_early, following)))
        loops = tuple((name, count) for name, count in at.items() if name != "position")
        found.append(Launch(piece, blocks_of(layout, piece.phase), loops, number + 1 == len(groups)))
    if any(isinstance(phase, Begin) or _reads_position(phase) for phase in found[-1].piece.phases):
        expected, todo = "a step that ends with what reads nothing of the step", "correct the program"
        raise InvalidInput(expected=expected, got=type(found[-1].piece.phase).__name__, todo=todo)
    return tuple(found)


def conditions(program: Program) -> list[str]:
    """List the conditions on the position of a step: steps for which all are the same have the same launches."""

    def found(body: tuple[Item, ...]) -> Iterator[str]:
        for item in body:
            if isinstance(item, When) and item.condition.startswith("position "):
                yield item.condition
            if isinstance(item, Repeat | When):
                yield from found(item.body)

    return sorted(set(found(program.body)))


def step_body(program: Program) -> tuple[Item, ...]:
    """Return the body of the loop over steps."""
    (steps,) = program.body
    assert isinstance(steps, Repeat)
    return steps.body


def blocks_of(layout: Layout, phase: Phase) -> int:
    """Return how many blocks have work in a phase; what is chosen or drawn, one block chooses for all."""
    if isinstance(phase, Project):
        return min(layout.schedule.blocks, divide_up(phase.matrix.rows, layout.tiling(phase.matrix).rows))
    if isinstance(phase, Attend | Merge):
        return phase.heads.kv_heads * layout.members(phase.heads)
    return 1


def _reads_early(phase: Phase) -> bool:
    """Say whether a phase reads, before its predecessor has ended, what other launches made: a cache, or a frame."""
    return _reads_position(phase) or isinstance(phase, Sample)


def _reads_position(phase: Phase) -> bool:
    return isinstance(phase, Attend) and not phase.position


def _groups(body: tuple[Item, ...], at: At, speaks: bool) -> Iterator[tuple[tuple[Phase, ...], At]]:
    """Put each `Begin`, or those of both vectors, together with the product of their stream."""
    begun: tuple[Begin, ...] = ()
    for phase, its in unrolled(body, counted, partial(condition_holds, speaks=speaks), at):
        source = phase.source if isinstance(phase, Project) else None
        stream = phase.stream if isinstance(phase, Begin) else source.stream if isinstance(source, Normed) else ""
        again = isinstance(phase, Begin) and phase.vector in {one.vector for one in begun}
        if begun and (again or stream != begun[0].stream):
            expected, todo = "a product of a residual stream behind its beginning", "correct the program"
            raise InvalidInput(expected=expected, got=type(phase).__name__, todo=todo)
        if isinstance(phase, Begin):
            begun += (phase,)
        else:
            yield (*begun, phase), its
            begun = ()


@dataclass
class _Copies:
    """Which copy of each residual stream is the newest, and what it is owed."""

    newest: dict[str, int] = field(default_factory=dict)
    owed: set[str] = field(default_factory=set)

    def held(self, phases: tuple[Phase, ...]) -> tuple[Held, ...]:
        """Return the streams in a launch of these phases, and follow what it does to them."""
        found = dict[str, Held]()
        for phase in phases:
            source = phase.source if isinstance(phase, Begin | Project) else None
            vectors = phase.vectors if isinstance(phase, Project) else 1
            if isinstance(source, Normed) and source.stream not in found:
                found[source.stream] = self._take(source.stream, vectors)
            elif isinstance(source, Normed):
                found[source.stream] = replace(found[source.stream], vectors=vectors)
            if isinstance(phase, Begin):
                self.newest[phase.stream] = 0
                self.owed.discard(phase.stream)
                found[phase.stream] = Held(phase.stream, 1, None, owed=False, put=0)
            elif isinstance(phase, Project) and phase.owe:
                self.owed.add(phase.owe)
        return tuple(found.values())

    def _take(self, stream: str, vectors: int) -> Held:
        taken, owed = self.newest[stream], stream in self.owed
        self.owed.discard(stream)
        if not owed:
            return Held(stream, vectors, taken, owed=False, put=None)
        self.newest[stream] = 1 - taken
        return Held(stream, vectors, taken, owed=True, put=1 - taken)
