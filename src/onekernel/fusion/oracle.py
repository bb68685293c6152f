"""Knows what a chain computes, in float64 and plain numpy: the oracle that every kernel is compared with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from onekernel.fusion.chain import Chain, Kind, Step
from onekernel.ops import ELEMENTWISE, standardize

Array = npt.NDArray[Any]


def run_chain(chain: Chain, operands: Sequence[Array]) -> tuple[Array, ...]:
    """Compute the results of a chain in float64, in the shape of its full operands.

    Operands are in the order of `chain.operands`; those that are not full may have any shape of their size.
    """
    shape = next(array.shape for item, array in zip(chain.operands, operands, strict=True) if item.kind == "full")
    values = {
        item.name: np.asarray(array).astype(np.float64).reshape(_shape(chain, item.kind, shape))
        for item, array in zip(chain.operands, operands, strict=True)
    }
    _run(chain.prologue, values)
    x = np.broadcast_to(values[chain.normal_input], shape)
    values[chain.normal_output] = standardize(x, axis=chain.axis, epsilon=chain.epsilon)
    _run(chain.epilogue, values)
    return tuple(np.broadcast_to(values[item.value], shape) for item in chain.results)


def _shape(chain: Chain, kind: Kind, shape: tuple[int, ...]) -> tuple[int, ...]:
    across = tuple(1 if axis == chain.axis else size for axis, size in enumerate(shape))
    channel = tuple(size if axis == chain.axis else 1 for axis, size in enumerate(shape))
    return {"full": shape, "channel": channel, "row": across, "scalar": ()}[kind]


def _run(steps: Iterable[Step], values: dict[str, Array]) -> None:
    for step in steps:
        inputs = [values[item] if isinstance(item, str) else np.float64(item) for item in step.inputs]
        values[step.output] = np.asarray(ELEMENTWISE[step.op].meaning(*inputs))
