"""How a chain is laid over a GPU: which place, how many threads, how wide the packs.

A Schedule is chosen here from the row length, the alignment and the GPU; every value a field can take is chosen for
some row. Numbers come from benchmarks/results (see docs/log.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal

from onekernel.device.parts import Part

WARP = 32
MAX_THREADS = 1024
MAX_VALUES = 32
MAX_EARLY = 16
LONG_ROW = 16384


def fits(items: int, pack: int, threads: int) -> bool:
    """Say whether a thread can hold that much of its row: more would spill (64 registers at 1024 threads)."""
    return items * (pack + 1) <= (20 if threads == MAX_THREADS else 40)  # a pack needs a register for itself


def fits_tile(items: int, pack: int, threads: int) -> bool:
    """Say the same for a ColumnTile, which spills earlier because its statistics are packs too."""
    return items * pack <= {MAX_THREADS: 8, MAX_THREADS // 2: 16}.get(threads, 24)


@dataclass(frozen=True)
class Schedule:
    """Units: pack = elements, items = packs per thread, lanes = threads per row (per tile column), blocks per row."""

    place: Literal["LaneRow", "BlockRow", "ClusterRow", "ColumnTile"]
    pack: int
    items: int
    lanes: int
    threads: int
    blocks: int = 1
    columns: int = 1
    held: bool = True  # the row is kept in registers; otherwise it is read in each pass

    @property
    def early(self) -> bool:
        """Load the epilogue's operands before the reductions, which hide the wait, where registers allow it."""
        return self.held and self.items * self.pack <= MAX_EARLY

    @property
    def min_blocks(self) -> int:
        """1 lets the compiler use every register; for small blocks it trades them better for residency itself."""
        return 1 if self.place in ("ClusterRow", "ColumnTile") or self.threads == MAX_THREADS else 0

    @property
    def overlap(self) -> bool:
        """Start before the predecessor ends, where the part can (sm_90+); two large blocks in one SM only crowd it."""
        return self.threads <= 256

    @property
    def type(self) -> str:
        """The C++ type of the place."""
        last = {
            "LaneRow": (self.lanes,),
            "BlockRow": (self.threads,),
            "ClusterRow": (self.threads, self.blocks),
            "ColumnTile": (self.columns, self.lanes),
        }[self.place]
        return f"{self.place}<{', '.join(map(str, (self.items, self.pack, *last)))}>"

    def grid(self, outer: int, inner: int) -> int:
        """Blocks of a launch over [outer, hidden, inner]."""
        if self.place == "ColumnTile":
            return outer * ceil(inner / (self.columns * self.pack))
        rows = outer * inner
        return rows * self.blocks if self.place != "LaneRow" else ceil(rows * self.lanes / self.threads)


@dataclass(frozen=True)
class Rows:
    """The tensor to place: [outer, hidden, inner] with the widest legal pack in elements."""

    outer: int
    hidden: int
    inner: int
    pack: int


def choose(rows: Rows, *, columns: bool, part: Part) -> Schedule:
    """Choose the schedule for a tensor on a GPU."""
    return _columns(rows, part) if columns else _rows(rows, part)


def _power_of_two(number: int) -> int:
    """The smallest power of two that is not below a number."""
    return 1 << max(number - 1, 0).bit_length()


def _rows(rows: Rows, part: Part) -> Schedule:
    packs = rows.hidden // rows.pack
    lanes = min(_power_of_two(packs), WARP)
    items = ceil(packs / lanes)
    busy = rows.outer >= 16 * part.multiprocessors  # one warp a row is enough to fill the GPU
    if items <= (4 if busy else 2):
        return Schedule("LaneRow", rows.pack, items, lanes, threads=128 if items == 1 else 256)
    wanted = min(4 if busy and rows.pack >= 8 else 2, MAX_VALUES // rows.pack)  # items: bytes in flight
    for blocks in _blocks_per_row(rows, part):
        threads = _power_of_two(ceil(packs / blocks / wanted))
        threads = min(max(threads, 64), MAX_THREADS if blocks == 1 else 512)
        items = ceil(packs / blocks / threads)
        if fits(items, rows.pack, threads):
            return Schedule("BlockRow" if blocks == 1 else "ClusterRow", rows.pack, items, threads, threads, blocks)
    return Schedule("BlockRow", rows.pack, 1, MAX_THREADS, MAX_THREADS, held=False)


def _blocks_per_row(rows: Rows, part: Part) -> tuple[int, ...]:
    """Try clusters (sm_90+) when a row is too long for one block, at once when few long rows leave the GPU idle."""
    if part.arch_number < 90:
        return (1,)
    few = rows.outer * 4 <= part.multiprocessors and rows.hidden >= LONG_ROW
    return (8,) if few else (1, 2, 4, 8)


def _columns(rows: Rows, part: Part) -> Schedule:
    """Few columns: small tiles, so that every SM has one. Many: tiles as wide as a line of memory, in wide packs."""
    total = rows.outer * rows.inner
    for pack in (pack for pack in (4, 2, 1) if rows.pack % pack == 0):
        if pack > 1 and total < 4 * pack * part.multiprocessors:
            continue
        wide = max(8, 16 // pack)
        columns = wide if total >= 2 * wide * pack * part.multiprocessors else 4
        threads = min(max(_power_of_two(ceil(rows.hidden * columns / (4 if columns == 4 else 6))), 64), MAX_THREADS)
        items = ceil(rows.hidden * columns / threads)
        if fits_tile(items, pack, threads):
            return Schedule("ColumnTile", pack, items, threads // columns, threads, columns=columns)
    return Schedule("ColumnTile", min(rows.pack, 4), 1, 512 // 8, 512, columns=8, held=False)
