"""Weights of a program for many sessions: fragments of a piece stand together, of all tiles of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onekernel.megakernel.layout import WARPS
from onekernel.megakernel.pack import chains_of, fragments_of
from onekernel.megakernel.program import Matrix

if TYPE_CHECKING:
    import torch

    from onekernel.megakernel.sessions.layout import SessionsLayout


def pack_for_sessions(layout: SessionsLayout, matrix: Matrix, weight: torch.Tensor) -> torch.Tensor:
    """Pack one matrix [rows, columns], rounded to its kind: uint8 [blocks, bytes].

    The order is [block, group, piece, tile, step of the piece, warp]. Two tiles share two fragments: one has both for
    the first halves of the columns, the other for the second ones (kernels/phases/sessions/multiply.cuh).
    """
    import torch

    tiling = layout.tiling(matrix)
    size, pairs = piece_of(tiling.steps), tiling.tiles // 2
    fragments = fragments_of(layout, matrix, weight)[:, :, in_chains(tiling.steps)]
    rest = tiling.steps // size, size, WARPS, 32, 2, 2, 2  # piece, step, warp, lane, r / 2, half, h
    paired = (
        fragments[:, : 2 * pairs]
        .reshape(len(fragments), pairs, 2, *rest)
        .permute(0, 3, 1, 8, 4, 5, 6, 7, 2, 9)
        .flatten(2, 3)
    )
    alone = fragments[:, 2 * pairs :].reshape(len(fragments), tiling.tiles % 2, *rest).transpose(1, 2)
    ordered = torch.cat((paired.flatten(3), alone.flatten(3)), 2).contiguous()
    packed = ordered.view(torch.uint8).view(layout.schedule.blocks, -1)
    assert packed.shape[1] == tiling.bytes
    return packed


def piece_of(steps: int) -> int:
    """Return how many steps of a span are a piece, whose vectors are in registers together: all of one chain."""
    chains = chains_of(steps)
    chain = steps // chains if steps % chains == 0 else 1
    return next(size for size in (3, 2, 1) if chain % size == 0)


def in_chains(steps: int) -> list[int]:
    """Return the steps of a span, one chain behind the other."""
    chains = chains_of(steps)
    if steps % chains == 0:
        return list(range(steps))
    return [step for chain in range(chains) for step in range(chain, steps, chains)]
