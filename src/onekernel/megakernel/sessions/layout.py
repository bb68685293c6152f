"""Where everything of a program lies when many sessions share its weights.

The order of pieces (sessions/pack.py) is spelled in kernels/phases/sessions/operand.cuh too: weights that are packed
otherwise than they are read would make other values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

from onekernel.device.parts import arch_number, shared_limit
from onekernel.errors import DoesNotFit, InvalidInput
from onekernel.megakernel.layout import (
    CHUNK,
    KEPT_BYTES,
    SLOT_SHARED_BYTES,
    STEP,
    WARPS,
    Layout,
    Schedule,
    Tiling,
    divide_up,
)  # fmt: skip
from onekernel.megakernel.program import (
    Attend,
    Begin,
    Exchange,
    Heads,
    Item,
    Matrix,
    Merge,
    Normed,
    Program,
    Project,
    Repeat,
    Sample,
    When,
)  # fmt: skip
from onekernel.megakernel.sessions.pack import pack_for_sessions, piece_of

_AnyLayout = TypeVar("_AnyLayout", bound="SessionsLayout")

SESSIONS = (2, 4, 8, 16, 32)  # of a launch
CHOSEN = "chosen"  # the exchange of the codes that were drawn
OCTET = 8  # sessions that go through the tensor cores together
_MOST_TILES = 6  # of a group: their sums are in registers
_MOST_HELD = 8  # slots of the ring with the weights of a group, which wait there for the last octet
_LANDING = 12  # groups of four numbers of a lane that are on their way while others are multiplied
_PATIENCE = 300  # cycles before the first look: half of what a single session does best with
_SMALL = 1024  # bytes of shared memory for what is small


def for_sessions(program: Program) -> Program:
    """Rewrite a program of speech: sessions speak in every step, and each block looks how far its sessions are."""
    parts = {phase.parts for phase, _ in program.phases() if isinstance(phase, Merge)}
    exchanges = tuple(exchange for exchange in program.exchanges if exchange.name not in parts)
    body = without_positions(program.body)
    return replace(program, name=f"{program.name}_sessions", exchanges=(*exchanges, Exchange(CHOSEN, 4)), body=body)


def without_positions(body: tuple[Item, ...]) -> tuple[Item, ...]:
    """Take out the conditions that differ between vectors: of far and near ones, the near attention stands for both."""
    found = list[Item]()
    for item in body:
        if isinstance(item, Repeat):
            found.append(replace(item, body=without_positions(item.body)))
        elif not isinstance(item, When):
            found.append(item)
        elif item.condition == "speaks" or item.condition.startswith("position <"):
            found.extend(without_positions(item.body))
        elif not item.condition.startswith("position"):
            found.append(replace(item, body=without_positions(item.body)))
    return tuple(found)


class SessionsLayout(Layout):
    """The addresses of a program for many sessions; raises InvalidInput for one that they cannot have."""

    counts_of_vectors: tuple[int, ...] = SESSIONS

    def __init__(self, program: Program, schedule: Schedule, sessions: int) -> None:
        super().__init__(program, schedule)
        self.sessions = sessions
        if sessions not in self.counts_of_vectors:
            expected = f"{self.counts_of_vectors} sessions"
            raise InvalidInput(expected=expected, got=str(sessions), todo="leave places empty")
        columns = {matrix.columns for matrix in self.matrices} | {width for _, width in program.streams}
        if odd := sorted(width for width in columns if width % (WARPS * STEP)):
            raise InvalidInput(expected="widths in whole spans, of 256", got=f"{odd}", todo="use single sessions")

    def tiling(self, matrix: Matrix) -> Tiling:
        """Share out a matrix: a warp keeps the sums of a group in registers."""
        tiles = divide_up(divide_up(matrix.rows, 8), self.schedule.blocks)
        steps = divide_up(divide_up(matrix.columns, STEP), WARPS)
        most = _MOST_TILES if self.sessions <= OCTET else max(1, min(_MOST_TILES, _MOST_HELD * CHUNK // steps))
        groups = divide_up(tiles, most)
        return Tiling(groups, divide_up(tiles, groups), steps)

    @cached_property
    def owed(self) -> dict[str, str]:
        """The streams that exchanges carry, under the norm that comes next."""
        sources = [phase.source for phase, _ in self.program.phases() if isinstance(phase, Project)]
        return {source.owed: source.stream for source in sources if isinstance(source, Normed)}

    def width(self, exchange: Exchange) -> int:
        """Return the floats of an exchange: a vector for each session, and sums of squares of a stream."""
        width = exchange.width + (exchange.width // 8 if exchange.name in self.owed else 0)
        return self.sessions * width

    @cached_property
    def reread(self) -> dict[Matrix, bool]:
        """Matrices that multiply a stream as the one before them did, or (False) whose successor does."""
        found: dict[Matrix, bool] = {}
        last: Project | None = None
        for phase, _ in self.program.phases():
            if not isinstance(phase, Project):
                continue
            if last is not None and isinstance(phase.source, Normed) and phase.source == last.source:
                found |= {last.matrix: False, phase.matrix: True}
            last = phase if isinstance(phase.source, Normed) else last if not phase.owe else None
        return found

    @cached_property
    def everywhere(self) -> set[Matrix]:
        """Matrices whose norm every block needs: another stream begins with what they multiply."""
        found, last = set[Matrix](), dict[Normed, Matrix]()
        for phase, _ in self.program.phases():
            if isinstance(phase, Project) and isinstance(phase.source, Normed):
                last[phase.source] = phase.matrix
            elif isinstance(phase, Begin) and isinstance(phase.source, Normed):
                found.add(last[phase.source])
        return found

    def owner(self, stream: str) -> Matrix:
        """Return a matrix that makes the rows of a stream, by whose blocks they are kept."""
        return next(it.matrix for it, _ in self.program.phases() if isinstance(it, Project) and it.owe == stream)

    @property
    def result_floats(self) -> int:
        """Of the sums of a group, of all warps for an octet."""
        rows = max(8 * self.tiling(matrix).tiles for matrix in self.matrices)
        return WARPS * min(self.sessions, OCTET) * (rows + 4)

    @property
    def landing_quads(self) -> int:
        """Return how much of several octets lands in shared memory; a single octet goes into registers."""
        return _LANDING if self.sessions > OCTET else 0

    @property
    def few_of_all(self) -> int:
        """The bytes of the keys and values of few positions, of all heads of all sessions, in global memory."""
        (attend,) = (attend for attend in self.program.attends if attend.position)
        h, rows = attend.heads, self.counts[attend.layer] * self.counts[attend.position]
        return self.sessions * h.kv_heads * self.parts(h) * 2 * rows * h.head_dim * KEPT_BYTES[h.kept]

    def parts(self, heads: Heads) -> int:
        """Return how many blocks share a head of keys of a session: as many as there are, a power of two."""
        fits = self.schedule.blocks // (self.sessions * heads.kv_heads)
        return next(many for many in (32, 16, 8, 4, 2, 1) if many <= max(1, fits) and self.members(heads) % many == 0)

    def attended(self, attend: Attend, *, far: bool) -> Iterator[tuple[int, int, range]]:
        """Yield what blocks attend to: (block, head of keys, heads). `far`: the first part attends to all, alone."""
        h, parts = attend.heads, self.parts(attend.heads)
        share, alone = h.heads // h.kv_heads, far and not attend.position
        for unit in range(0, self.sessions * h.kv_heads * parts, parts if alone else 1):
            head, part = unit // parts % h.kv_heads, unit % parts
            first, its = head * share + part * share // parts, share if alone else max(1, share // parts)
            yield unit % self.schedule.blocks, head, range(first, first + its)

    def expect_heads_of(self, alone: Layout) -> None:
        """Raise InvalidInput unless heads have as many members as there: else sums have another order."""
        if any(self.members(it.heads) != alone.members(it.heads) for it in self.program.attends):
            got = f"{self.schedule.blocks} blocks, {alone.schedule.blocks} for single requests"
            raise InvalidInput(expected="heads shared out as for single requests", got=got, todo="use as many blocks")

    def pack(self, matrix: Matrix, weight: Any) -> Any:
        """Pack one matrix, a torch tensor [rows, columns]: uint8 [blocks, bytes]."""
        return pack_for_sessions(self, matrix, weight)

    def _unit_bytes(self, attend: Attend) -> int:
        h, share = attend.heads, attend.heads.heads // attend.heads.kv_heads
        positions = self.counts.get(attend.position, attend.near)
        near = share * 4 * (h.head_dim + positions) + KEPT_BYTES[h.kept] * h.head_dim * (1 + positions)
        if attend.position:
            return near + 64
        return max(near, super().attend_bytes(replace(attend, near=0)) + self._parts_bytes(h)) + 64

    def _parts_bytes(self, heads: Heads) -> int:
        members, share = self.members(heads), heads.heads // heads.kv_heads
        slices = max(1, share // members)
        quads = heads.head_dim // 4 // max(1, members // share)
        return members * members * 16 * slices * (1 + quads)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block: an upper bound, which the text asserts."""
        kept = sum(4 * self.sessions * self.tiling(self.owner(stream)).rows for stream, _ in self.program.streams)
        vocabularies = (phase.vocab for phase, _ in self.program.phases() if isinstance(phase, Sample))
        seen = max(vocabularies, default=0) // 8
        units = sum(self._unit_bytes(attend) for attend in self.program.attends)
        units = max(units, self.landing_quads * 16 * 32 * WARPS)
        small = self.sessions * (4 * (16 + 3) + 64) + seen + _SMALL
        ring = self.schedule.slots * SLOT_SHARED_BYTES
        return ring + 8 * self.result_floats + kept + units + small

    @property
    def fewest_slots(self) -> int:
        """Of a ring: the weights of a piece lie in it together; those of a group, if octets take turns."""

        def held(matrix: Matrix) -> int:
            tiling = self.tiling(matrix)
            return divide_up(tiling.tiles * (piece_of(tiling.steps) if self.sessions <= OCTET else tiling.steps), CHUNK)

        return max(map(held, self.matrices)) + 1


def sessions_layout(program: Program, alone: Schedule, sessions: int, arch: str) -> SessionsLayout:
    """Lay out a program for many sessions, in as many blocks as a single one has: so it has the same bits.

    Raises DoesNotFit where shared memory does not suffice.
    """
    return fitted(lambda schedule: SessionsLayout(for_sessions(program), schedule, sessions), alone, arch)


def fitted(laid_out: Callable[[Schedule], _AnyLayout], alone: Schedule, arch: str) -> _AnyLayout:
    """Lay out with as many slots of a ring as fit. Raises DoesNotFit where too few do."""
    alone = replace(alone, patience=_PATIENCE)
    bare = laid_out(replace(alone, slots=0))
    free = shared_limit(arch) - bare.shared_bytes
    if arch_number(arch) < 90:
        return bare
    slots = min(alone.slots, free // SLOT_SHARED_BYTES)
    if slots < bare.fewest_slots:
        got = f"{bare.shared_bytes} bytes of shared memory, and {bare.fewest_slots} slots of {SLOT_SHARED_BYTES}"
        raise DoesNotFit(expected=f"at most {shared_limit(arch)} bytes", got=got, todo="ask for fewer sessions")
    return laid_out(replace(alone, slots=slots, ahead=min(alone.ahead, slots)))
