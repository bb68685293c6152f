"""Weights of a program for many sessions: fragments of a step stand together, of all tiles of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onekernel.megakernel.layout import WARPS
from onekernel.megakernel.pack import fragments_of
from onekernel.megakernel.program import Matrix

if TYPE_CHECKING:
    import torch

    from onekernel.megakernel.sessions.layout import SessionsLayout


def pack_for_sessions(layout: SessionsLayout, matrix: Matrix, weight: torch.Tensor) -> torch.Tensor:
    """Pack one matrix [rows, columns], rounded to its kind: uint8 [blocks, bytes].

    The order is [block, group, round / together, part, round % together, step, set, tile]: see operand.cuh.
    """
    import torch

    tiling, cut = layout.tiling(matrix), layout.chunks(matrix)
    rounds = WARPS // cut.sets
    by_span = fragments_of(layout, matrix, weight).reshape(
        -1, tiling.tiles, cut.steps // cut.part, cut.part, cut.sets, rounds // cut.together, cut.together, 32 * 8
    )
    #                         group, round, part, round, step, set, tile
    ordered = by_span.permute(0, 5, 2, 6, 3, 4, 1, 7).contiguous()
    packed = ordered.view(torch.uint8).view(layout.schedule.blocks, -1)
    assert packed.shape[1] == tiling.bytes
    return packed
