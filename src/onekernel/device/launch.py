"""The shape of a launch, checked once when it is made."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from onekernel.errors import InvalidInput

_GRID_LIMITS = (2**31 - 1, 65535, 65535)
_BLOCK_LIMITS = (1024, 1024, 64)
_MAX_THREADS = 1024

Three = tuple[int, int, int]


@dataclass(frozen=True)
class LaunchShape:
    """Blocks per grid, threads per block, blocks per cluster (along x).

    An overlapping kernel may start before its predecessor ends; it awaits it before it touches memory.
    """

    grid: Three
    block: Three
    cluster: int = 1
    overlap: bool = False

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
