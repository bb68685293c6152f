"""Weights -> the stream of each block: fragments of 8 rows and 32 columns in the order in which its warps use them.

Lane 4 g + q of a fragment has row g, in register r and half h column 16 (r % 2) + 4 q + 2 (r / 2) + h: the two halves
of the columns stand in the two halves of the rows that the tensor cores multiply, and a lane's four neighbours of a
vector are those it was given (kernels/phases/columns.cuh).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import TYPE_CHECKING

from onekernel.megakernel.layout import CHUNK, STEP, WARPS, Layout
from onekernel.megakernel.program import Matrix, Vector

if TYPE_CHECKING:
    import torch

Weights = Callable[[str, tuple[int, ...]], "torch.Tensor"]  # a matrix or vector by its name and iteration


# What a weight of a layer is made of, by the names in a checkpoint of Hugging Face.
_PARTS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "output": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
    "query_norm": ("self_attn.q_norm",),
    "key_norm": ("self_attn.k_norm",),
    "input_norm": ("input_layernorm",),
    "post_norm": ("post_attention_layernorm",),
}


def layer_weight(name: str, tensor: Callable[[str], torch.Tensor]) -> torch.Tensor:
    """Join the parts that `tensor` finds of a matrix or norm of a decoder's layer; rows of gate and up take turns."""
    import torch

    parts = [tensor(part) for part in _PARTS[name]]
    return torch.stack(parts, 1).flatten(0, 1) if name == "gate_up" else torch.cat(parts)


def pack(layout: Layout, weights: Weights) -> tuple[torch.Tensor, torch.Tensor]:
    """Pack all matrices and all vectors, on the device where they are."""
    return pack_stream(layout, weights), pack_vectors(layout, weights)


def pack_stream(layout: Layout, weights: Weights) -> torch.Tensor:
    """Pack all matrices: uint8 [blocks, bytes of a block's stream], on the device of the weights."""
    import torch

    stream: torch.Tensor | None = None
    for section in layout.sections:
        for number, index in enumerate(product(*(range(count) for count in section.counts))):
            place = section.start + number * section.bytes
            for matrix in section.matrices:
                packed = layout.pack(matrix, weights(matrix.name, index))
                if stream is None:
                    shape = layout.schedule.blocks, layout.stream_bytes
                    stream = torch.empty(shape, dtype=torch.uint8, device=packed.device)
                stream[:, place : place + packed.shape[1]] = packed
                place += packed.shape[1]
    assert stream is not None
    return stream


def pack_matrix(layout: Layout, matrix: Matrix, weight: torch.Tensor) -> torch.Tensor:
    """Pack one matrix [rows, columns], rounded to its kind: uint8 [blocks, bytes]; what pads it is zero."""
    import torch

    tiling, blocks = layout.tiling(matrix), layout.schedule.blocks
    tiles = fragments_of(layout, matrix, weight)[:, :, chained(tiling.steps)]
    lanes = tiles.reshape(-1, tiling.fragments, WARPS, 32 * 8)
    chunks = [lanes[:, first : first + CHUNK] for first in range(0, tiling.fragments, CHUNK)]
    parts = [chunk.transpose(1, 2).reshape(len(lanes), -1) for chunk in chunks]
    packed = torch.cat(parts, 1).contiguous().view(torch.uint8).view(blocks, -1)
    assert packed.shape[1] == tiling.bytes
    return packed


def fragments_of(layout: Layout, matrix: Matrix, weight: torch.Tensor) -> torch.Tensor:
    """Cut a matrix into fragments: [groups of all blocks, tile, step, warp, 32 lanes * 8]."""
    import torch

    tiling, blocks = layout.tiling(matrix), layout.schedule.blocks
    rows = blocks * tiling.groups * tiling.tiles * 8
    padded = weight.new_zeros(rows, WARPS * tiling.steps * STEP, dtype=getattr(torch, matrix.kind))
    padded[: matrix.rows, : matrix.columns] = weight
    #      0 group                 1 tile       2 row 3 warp  4 step     5 range, 6 q, 7 r / 2, 8 h
    axes = blocks * tiling.groups, tiling.tiles, 8, WARPS, tiling.steps, 2, 4, 2, 2
    return padded.view(axes).permute(0, 1, 4, 3, 2, 6, 7, 5, 8).flatten(4)


def chains_of(steps: int) -> int:
    """Return in how many chains the products of a warp's steps are added (kernels/phases/columns.cuh)."""
    return min(steps, 2 if steps < 8 else 4)


def chained(steps: int) -> list[int]:
    """Return the order of a warp's steps of a tile: chains of them, whose products are added, take turns."""
    chains = chains_of(steps)
    if steps % chains:
        return list(range(steps))
    return [step for first in range(steps // chains) for step in range(first, steps, steps // chains)]


def pack_vectors(layout: Layout, weights: Weights) -> torch.Tensor:
    """Pack the weights of all norms: float32 [floats]."""
    import torch

    parts = [weights(vector.name, index).float() for vector in layout.vectors for index in _iterations(layout, vector)]
    return torch.cat([part.flatten() for part in parts])


def _iterations(layout: Layout, vector: Vector) -> product[tuple[int, ...]]:
    return product(*(range(layout.counts[name]) for name in vector.per))
