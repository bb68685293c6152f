"""How a chain is laid over a GPU: which place, how many threads, how wide the packs.

A Schedule is chosen here from the row length, the alignment and the GPU; every value a field can take is chosen for
some row. Numbers come from benchmarks/results (see docs/log.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal

from onekernel.device.parts import Part

MAX_VALUES = 32  # floats a thread keeps in registers; more would spill at 1024 threads a block
WARP = 32


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
    if items * rows.pack <= MAX_VALUES:
        return Schedule("LaneRow", rows.pack, items, lanes, threads=128)
    threads = min(max(_power_of_two(ceil(packs / 2)), 128), 1024)
    items = ceil(packs / threads)
    blocks = _blocks_per_row(rows, items * threads, part)
    if blocks > 1:
        threads = 512
        return Schedule("ClusterRow", rows.pack, ceil(packs / (threads * blocks)), threads, threads, blocks)
    held = items * rows.pack <= MAX_VALUES
    return Schedule("BlockRow", rows.pack, items if held else 1, threads, threads, held=held)


def _blocks_per_row(rows: Rows, packs: int, part: Part) -> int:
    """Use clusters (sm_90+) when a row is too long for one block, or when few long rows leave the GPU idle."""
    if part.arch_number < 90:
        return 1
    too_long = packs * rows.pack > MAX_VALUES * 1024
    few = rows.outer * 4 <= part.multiprocessors and rows.hidden >= 16384
    return 8 if too_long or few else 1


def _columns(rows: Rows, part: Part) -> Schedule:
    wide = rows.outer * rows.inner >= 2 * part.multiprocessors * WARP * rows.pack
    columns = WARP if wide and rows.hidden <= 1024 else 8
    threads = 256 if ceil(rows.hidden * columns / 256) * rows.pack <= MAX_VALUES else 1024
    groups = threads // columns
    items = ceil(rows.hidden / groups)
    held = items * rows.pack <= MAX_VALUES
    return Schedule("ColumnTile", rows.pack, items if held else 1, groups, threads, columns=columns, held=held)
