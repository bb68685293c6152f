"""What a launch is given: its shape, checked once when it is made, and its packed arguments."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from onekernel.errors import InvalidInput

_GRID_LIMITS = (2**31 - 1, 65535, 65535)
_BLOCK_LIMITS = (1024, 1024, 64)
_MAX_THREADS = 1024

Three = tuple[int, int, int]


@dataclass(frozen=True)
class LaunchShape:
    """Blocks per grid, threads per block, blocks per cluster (along x), bytes of dynamic shared memory.

    An overlapping kernel may start before its predecessor ends; it awaits it before it touches memory. The blocks of a
    cooperative kernel are all on the GPU at once, so that they may wait for each other.
    """

    grid: Three
    block: Three
    cluster: int = 1
    overlap: bool = False
    cooperative: bool = False
    shared: int = 0

    def __post_init__(self) -> None:
        if any(not 1 <= size <= limit for size, limit in zip(self.grid, _GRID_LIMITS, strict=True)):
            raise InvalidInput(
                expected=f"a grid of 1 to {_GRID_LIMITS} blocks", got=str(self.grid), todo="split the launch"
            )
        inside = all(1 <= size <= limit for size, limit in zip(self.block, _BLOCK_LIMITS, strict=True))
        if not inside or prod(self.block) > _MAX_THREADS:
            raise InvalidInput(
                expected=f"1 to {_MAX_THREADS} threads a block, at most {_BLOCK_LIMITS}",
                got=str(self.block),
                todo="use a smaller block",
            )
        if self.grid[0] % self.cluster != 0:
            raise InvalidInput(
                expected=f"a grid that is a multiple of the cluster size {self.cluster}",
                got=str(self.grid),
                todo="round the grid up",
            )


class Arguments:
    """Memory for the arguments of one launch at a time: `pointers` is the address of an array of their addresses.

    The driver copies the values during the call, so that the memory can be filled again when the call returns.
    `operands` are what the caller gave; they stay alive while the launch is made.
    """

    __slots__ = ("_array", "_values", "fill", "operands", "pointers")

    def __init__(self, layout: struct.Struct, offsets: tuple[int, ...]) -> None:
        """Lay the arguments out as `layout` packs them; `offsets` says where each begins (bytes)."""
        self._values = ctypes.create_string_buffer(max(layout.size, 1))
        start = ctypes.addressof(self._values)
        self._array = (ctypes.c_void_p * max(len(offsets), 1))(*(start + offset for offset in offsets))
        self.pointers = ctypes.addressof(self._array)
        self.fill: Callable[..., None] = _filler(layout, self._values)
        self.operands: tuple[Any, ...] = ()


def _filler(layout: struct.Struct, memory: Any) -> Callable[..., None]:
    from functools import partial

    return partial(layout.pack_into, memory, 0)


Launcher = Callable[[Arguments, int], None]  # enqueues the kernel with these arguments on the stream of this handle
