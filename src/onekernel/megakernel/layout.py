"""Where everything of a program lies: weights in the stream of a block, norms, exchanges, shared memory.

The same geometry is spelled in kernels/phases (`Matrix`, `Columns`, `Heads`); tests compare the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

from onekernel.megakernel.program import (
    Attend,
    Begin,
    Exchange,
    Heads,
    Item,
    Matrix,
    Merge,
    Normed,
    Phase,
    Program,
    Project,
    Repeat,
    Sample,
    Vector,
    When,
    has_weights,
)
from onekernel.megakernel.unroll import counted, unrolled

if TYPE_CHECKING:
    from onekernel.megakernel.mailbox import Mailbox

WARPS, STEP, CHUNK = 8, 32, 4  # warps that compute; columns and, in a chunk, fragments
FRAGMENT_BYTES = 16 * 32  # of a warp
SLOT_BYTES = CHUNK * FRAGMENT_BYTES * WARPS
SLOT_SHARED_BYTES = SLOT_BYTES + 16  # with its two barriers
SUM_STRIDE = WARPS + 4
MOST_TILES = 16  # of a group
MOST_MEMBERS = 32  # blocks that share a head of keys: a lane for the part of each
KEPT_BYTES = {"bfloat16": 2, "float32": 4}  # of a number of keys and values
REQUEST_HEAD, MOST_PLACES = 16, 16  # ints of a request before its codes, and of its codes (kernels/phases/sample.cuh)
_ALIGN = 32  # floats between exchanges: no two share a cache line


@dataclass(frozen=True)
class Schedule:
    """How a program runs on a GPU: its blocks, one for each multiprocessor, and the ring that weights come through."""

    blocks: int
    slots: int = 10  # of the ring, SLOT_BYTES each; 0: warps load their weights themselves
    ahead: int = 4  # slots on their way at most: more would slow down what blocks give to each other
    piece: int = 8192  # bytes of a copy
    pace: int = 300  # cycles between copies: less than the memory takes for one, to catch up after a wait
    patience: int = 600  # cycles before a block looks for what others make: a hop never takes less


@dataclass(frozen=True)
class Tiling:
    """How a matrix is shared out: groups of tiles of 8 rows over blocks, steps of 32 columns over warps."""

    groups: int
    tiles: int  # of a group, whose rows are finished together
    steps: int

    @property
    def fragments(self) -> int:
        """How many of a group a warp has."""
        return self.tiles * self.steps

    @property
    def rows(self) -> int:
        """Of a block."""
        return 8 * self.groups * self.tiles

    @property
    def bytes(self) -> int:
        """Of a block."""
        return self.groups * self.fragments * FRAGMENT_BYTES * WARPS


def divide_up(value: int, by: int) -> int:
    """Divide and round up."""
    return -(-value // by)


@dataclass(frozen=True)
class Section:
    """Matrices that follow each other in the stream, once for each iteration of the loops in `per`."""

    matrices: tuple[Matrix, ...]
    per: tuple[str, ...]
    counts: tuple[int, ...]
    start: int  # bytes
    bytes: int  # of an iteration


class Layout:
    """The addresses of a program under a schedule."""

    def __init__(self, program: Program, schedule: Schedule) -> None:
        self.program, self.schedule = program, schedule

    def tiling(self, matrix: Matrix) -> Tiling:
        """Share out a matrix."""
        tiles = divide_up(divide_up(matrix.rows, 8), self.schedule.blocks)
        groups = divide_up(tiles, MOST_TILES)
        return Tiling(groups, divide_up(tiles, groups), divide_up(divide_up(matrix.columns, STEP), WARPS))

    @cached_property
    def counts(self) -> dict[str, int]:
        """How often each loop of a known count runs."""
        loops = {loop for _, around in self.program.phases() for loop in around}
        return {loop.index: loop.count for loop in loops if isinstance(loop.count, int)}

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """The stream of a block, section by section."""
        found: list[Section] = []
        start = 0
        for matrices in dict.fromkeys(_runs(self.program.body)):
            per = matrices[0].per
            counts = tuple(self.counts[name] for name in per)
            size = sum(self.tiling(matrix).bytes for matrix in matrices)
            found.append(Section(matrices, per, counts, start, size))
            start += size * prod(counts)
        return tuple(found)

    @property
    def stream_bytes(self) -> int:
        """Of a block."""
        last = self.sections[-1]
        return last.start + last.bytes * prod(last.counts)

    def section_of(self, matrix: Matrix) -> Section:
        """Return the section that begins with a matrix or holds it."""
        return next(section for section in self.sections if matrix in section.matrices)

    @cached_property
    def vectors(self) -> dict[Vector, int]:
        """Where each vector's iterations begin in their buffer, in floats."""
        found: dict[Vector, int] = {}
        start = 0
        for phase, _ in self.program.phases():
            for vector in _vectors(phase):
                if vector not in found:
                    found[vector] = start
                    start += vector.width * prod(self.counts[name] for name in vector.per)
        return found

    @property
    def vector_floats(self) -> int:
        """Of that buffer."""
        return sum(vector.width * prod(self.counts[name] for name in vector.per) for vector in self.vectors)

    @cached_property
    def step_chunks(self) -> int:
        """How many chunks of weights every block streams in every step, at least."""
        always = unrolled(self.program.body, counted, lambda _condition, _at: False)
        return sum(self._chunks(phase.matrix) for phase, _ in always if isinstance(phase, Project))

    def _chunks(self, matrix: Matrix) -> int:
        tiling = self.tiling(matrix)
        everywhere = tiling.rows * (self.schedule.blocks - 1) < matrix.rows
        return tiling.groups * divide_up(tiling.fragments, CHUNK) if everywhere else 0

    def members(self, heads: Heads) -> int:
        """Return how many blocks share a head of keys: as many as make equal slices of its results, 0 if none can."""
        share, quads = heads.heads // heads.kv_heads, heads.head_dim // 4
        most = min(self.schedule.blocks // heads.kv_heads, MOST_MEMBERS)
        fits = (m for m in range(most, 0, -1) if share % m == 0 or (m % share == 0 and quads % (m // share) == 0))
        return next(fits, 0)

    def cached(self, capacity: int) -> int:
        """Return the elements of the cache of `capacity` positions: each member has as many of them."""
        attends = {phase.layer: phase for phase, _ in self.program.phases() if isinstance(phase, Attend)}
        return sum(
            self.counts[layer] * h.kv_heads * divide_up(capacity, members) * members * 2 * h.head_dim
            for layer, attend in attends.items()
            if not attend.position
            for h in [attend.heads]
            for members in [self.members(h)]
        )

    def width(self, exchange: Exchange) -> int:
        """Return the floats of an exchange; those of parts and of candidates depend on the number of blocks."""
        for phase, _ in self.program.phases():
            if isinstance(phase, Merge) and phase.parts == exchange.name:
                members, heads = self.members(phase.heads), phase.heads
                states = max(members, heads.heads // heads.kv_heads)  # of a part for each member
                return heads.kv_heads * members * (heads.heads // heads.kv_heads * heads.head_dim + 4 * states)
        return self.program.vectors(exchange.name) * exchange.width or 4 * self.schedule.blocks

    @cached_property
    def exchanges(self) -> dict[str, int]:
        """Where each exchange begins in its buffer, in floats."""
        found: dict[str, int] = {}
        start = _ALIGN  # in front, in one word: what parity each has reached
        for exchange in self.program.exchanges:
            found[exchange.name] = start
            start += divide_up(self.width(exchange), _ALIGN) * _ALIGN
        return found

    def mailbox(self, device: Any) -> Mailbox:
        """Make the memory of a request's exchanges, on a torch device."""
        from onekernel.megakernel.mailbox import Mailbox

        return Mailbox(self, device)

    def pack(self, matrix: Matrix, weight: Any) -> Any:
        """Pack one matrix, a torch tensor [rows, columns]: uint8 [blocks, bytes]."""
        from onekernel.megakernel.pack import pack_matrix

        return pack_matrix(self, matrix, weight)

    @property
    def exchange_floats(self) -> int:
        """Of that buffer."""
        last = self.program.exchanges[-1]
        return self.exchanges[last.name] + divide_up(self.width(last), _ALIGN) * _ALIGN

    @property
    def request_ints(self) -> int:
        """The ints of what a request to speak remembers: its head, its last codes, a bit for each code it said."""
        most = max(phase.vocab for phase, _ in self.program.phases() if isinstance(phase, Sample))
        return REQUEST_HEAD + MOST_PLACES + divide_up(most, 32)

    @property
    def matrices(self) -> list[Matrix]:
        """All of them, in the order of the stream."""
        return [matrix for section in self.sections for matrix in section.matrices]

    def attend_bytes(self, attend: Attend) -> int:
        """Of an attention's shared memory, without what it keeps of few positions."""
        h, share = attend.heads, attend.heads.heads // attend.heads.kv_heads
        slices = max(1, self.members(h) // share)  # of a head
        if not attend.parted:
            positions = self.counts.get(attend.position, attend.near)
            values = positions * h.head_dim // slices
            kept = 0 if attend.position else values
            scores = attend.vectors * divide_up(share, max(1, self.members(h))) * (h.head_dim + positions)
            return KEPT_BYTES[h.kept] * (kept + h.head_dim) + 4 * scores + 64
        return 4 * (h.head_dim + 4) * (share + 2 + WARPS * share)

    def few_bytes(self, attend: Attend) -> int:
        """Of the keys and values of few positions that a block keeps."""
        h, slices = attend.heads, max(1, self.members(attend.heads) // (attend.heads.heads // attend.heads.kv_heads))
        rows = self.counts[attend.layer] * self.counts[attend.position]
        return divide_up(KEPT_BYTES[h.kept] * rows * (h.head_dim + h.head_dim // slices), 16) * 16

    def _most(self, of: Callable[[Tiling], int]) -> int:
        """Return the largest number of all products, for all vectors of each."""
        projects = [phase for phase, _ in self.program.phases() if isinstance(phase, Project)]
        return max(phase.vectors * of(self.tiling(phase.matrix)) for phase in projects)

    @property
    def finished(self) -> int:
        """How many rows are finished together, at most."""
        return self._most(lambda tiling: 8 * tiling.tiles)

    @property
    def parts_bytes(self) -> int:
        """The bytes of the parts of a warp's columns, at most."""
        return self._most(lambda tiling: 4 * STEP * tiling.steps)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block: an upper bound, which the text asserts."""
        products = 2 * self.finished * SUM_STRIDE * 4 + WARPS * self.parts_bytes
        states = sum(self.attend_bytes(it) + (self.few_bytes(it) if it.position else 0) for it in self.program.attends)
        ring = self.schedule.slots * SLOT_SHARED_BYTES
        seen = max((phase.vocab for phase, _ in self.program.phases() if isinstance(phase, Sample)), default=0) // 8
        return ring + products + states + seen + 3072


def _runs(body: tuple[Item, ...]) -> Iterator[tuple[Matrix, ...]]:
    """Yield matrices of one body that follow each other and are chosen by the same loops."""
    run: list[Matrix] = []
    for item in body:
        matrix = item.matrix if isinstance(item, Project) else None
        if run and (has_weights(item) if matrix is None else matrix.per != run[0].per):
            yield tuple(run)
            run = []
        if isinstance(item, Repeat | When):
            yield from _runs(item.body)
        elif matrix is not None:
            run.append(matrix)
    if run:
        yield tuple(run)


def _vectors(phase: Phase) -> tuple[Vector, ...]:
    if isinstance(phase, Attend):
        return phase.norms or ()
    source = phase.source if isinstance(phase, Project | Begin) else None
    found = (source.weight,) if isinstance(source, Normed) else ()
    return (*found, phase.bias) if isinstance(phase, Project) and phase.bias is not None else found
