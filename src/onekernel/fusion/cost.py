"""Knows what a chain saves before anything is built: launches and bytes, priced for a GPU.

saving = (launches - 1) x launch cost + removed bytes / bandwidth. Caches are not modelled: a tensor that is
written and read again is counted twice. It refuses to know schedules and measured times.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Protocol

from onekernel.device.buffer import ITEM_BYTES
from onekernel.fusion.chain import Chain, Kind


class Prices(Protocol):
    """What a GPU charges; `device.parts.Part` is one."""

    @property
    def launch_seconds(self) -> float:
        """Seconds of one more kernel in a CUDA graph."""

    @property
    def bandwidth(self) -> float:
        """Bytes per second of a large copy, reads and writes together."""


@dataclass(frozen=True)
class Saving:
    """What one chain saves per run: launches, bytes moved, and the seconds that both cost."""

    launches_before: int
    launches_after: int
    bytes_before: int
    bytes_after: int
    seconds: float


def predict(chain: Chain, part: Prices) -> Saving:
    """Price a chain at its sample shape on a GPU."""
    before, after = bytes_before(chain), bytes_after(chain)
    launches = chain.launches_before
    seconds = (launches - 1) * part.launch_seconds + (before - after) / part.bandwidth
    return Saving(launches, 1, before, after, seconds)


def bytes_after(chain: Chain) -> int:
    """Bytes that the fused kernel moves: each operand once for each half that reads it, each result once."""
    first = _read_for(chain, {chain.normal_input})
    second = _read_for(chain, {name for step in chain.epilogue for name in step.inputs})
    read = sum(
        _size(chain, item.kind, item.dtype) * ((item.name in first) + (item.name in second)) for item in chain.operands
    )
    return read + sum(_size(chain, "full", item.dtype) for item in chain.results)


def bytes_before(chain: Chain) -> int:
    """Bytes that the nodes of the model move, each reading its inputs and writing its output.

    Intermediates count in the widest type of the chain's tensors; an original node that stands for several
    steps counts once.
    """
    tensors = [item.dtype for item in chain.operands if item.kind == "full"]
    tensors += [item.dtype for item in chain.results]
    width = max(tensors, key=ITEM_BYTES.__getitem__)
    full = _size(chain, "full", width)
    counted = set(chain.normal_source)
    total = _normal_bytes(chain, width)
    for step in (*chain.prologue, *chain.epilogue):
        # Between the steps of one original node nothing is written; it still reads its small operands.
        between = 0 if counted.issuperset(step.source) else full
        total += between + sum(_input_bytes(chain, item, between) for item in step.inputs)
        counted.update(step.source)
    transposes = sum(name not in counted for name in chain.source)
    return total + 2 * full * transposes


def _normal_bytes(chain: Chain, width: str) -> int:
    """Bytes of the nodes that `standardize` stands for.

    One node reads and writes the tensor. A decomposed one has five that touch it (mean 1, centre 2, square 2,
    mean 1, scale 2 times) and some that work on one number for each row.
    """
    nodes = len(chain.normal_source)
    if nodes < 5:
        return 2 * _size(chain, "full", width)
    return 8 * _size(chain, "full", width) + (4 + 2 * (nodes - 5)) * _size(chain, "row", width)


def _read_for(chain: Chain, names: set[str | float]) -> set[str | float]:
    """What must be known for some values, through the steps of the prologue."""
    wanted = set(names)
    for step in reversed(chain.prologue):
        if step.output in wanted:
            wanted.update(step.inputs)
    return wanted


def _input_bytes(chain: Chain, item: str | float, full: int) -> int:
    if not isinstance(item, str):
        return 0
    operand = next((operand for operand in chain.operands if operand.name == item), None)
    return full if operand is None or operand.kind == "full" else _size(chain, operand.kind, operand.dtype)


def _size(chain: Chain, kind: Kind, dtype: str) -> int:
    elements = prod(chain.sample_shape)
    count = {"full": elements, "channel": chain.hidden, "row": elements // chain.hidden, "scalar": 1}[kind]
    return count * ITEM_BYTES[dtype]
