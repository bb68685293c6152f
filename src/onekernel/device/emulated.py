"""The emulated device: kernels built by g++ run on fibres of one host thread (kernels/emulated).

Memory is the host's, streams do nothing, launches are synchronous. `Order` orders the threads, so that a kernel which
is right only in one order shows it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import IntEnum
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from onekernel.device import counters, machine, places
from onekernel.device.buffer import Buffer, View, numpy_dtype, view
from onekernel.device.launch import Arguments, Launcher, LaunchShape
from onekernel.device.parts import shared_limit
from onekernel.errors import DoesNotFit, EmulationFault

RESIDENT_THREADS = 16 * 1024  # each has a stack and a guard page, of which Linux gives a process 32,000


class Order(IntEnum):
    """In which order ready threads (and the clusters of a grid) run.

    LAGGING: block `seed` of a cooperative launch runs only when no other can go on.
    """

    ASCENDING = 0
    DESCENDING = 1
    RANDOM = 2
    LAGGING = 3


class EmulatedDevice:
    """A GPU of a named architecture, played by the CPU.

    sanitize: check every access of a kernel for its address, its alignment, and races on shared memory.
    """

    emulated = True
    name = "emulated"

    def __init__(
        self, arch: str = "sm_90", *, order: Order = Order.ASCENDING, seed: int = 0, sanitize: bool = False
    ) -> None:
        self.arch, self.order, self.seed, self.sanitize = arch, order, seed, sanitize

    def empty(self, shape: Sequence[int], dtype: str) -> Buffer:
        """Allocate memory filled with 0xff, which reads as NaN: what a kernel forgets to write shows."""
        kind = np.dtype(numpy_dtype(dtype))
        memory = np.full(prod(shape) * kind.itemsize, 0xFF, np.uint8)
        return Buffer(view(memory.view(kind).reshape(tuple(shape))), read=_share)

    def upload(self, array: npt.NDArray[Any]) -> Buffer:
        """Share a numpy array (copied only when it is not row-major)."""
        return Buffer(view(np.asarray(array, order="C")), read=_share)

    def holds(self, where: View) -> bool:
        """Say whether a kernel of this device may use that memory."""
        return where.device == "host"

    def load(self, binary: bytes, entry: str, shared: int = 0) -> int:
        """Load a kernel; return its handle."""
        del shared
        handle = machine.load(binary, f"emulated_{entry}")
        counters.loaded()
        return handle

    def launcher(self, handle: int, shape: LaunchShape) -> Launcher:
        """Return a function that runs a kernel to its end; it raises EmulationFault with what the kernel did wrong.

        Raises DoesNotFit when a block or the blocks of a cooperative kernel need more than the device has.
        """
        limit = shared_limit(self.arch)
        _check_size(shape, limit)
        asked = machine.Launch(
            kernel=handle, grid=shape.grid, block=shape.block, cluster=shape.cluster, overlap=shape.overlap,
            cooperative=shape.cooperative, shared=shape.shared, shared_limit=limit, sanitize=self.sanitize,
        )  # fmt: skip

        def launch(arguments: Arguments, stream: int) -> None:
            del stream
            now = machine.Launch.from_buffer_copy(asked)  # several threads may launch at a time
            now.arguments, now.order, now.seed = arguments.pointers, int(self.order), self.seed
            ranges = machine.ranges(arguments.operands if self.sanitize else ())
            now.range, now.ranges = ranges, len(ranges)
            if (message := machine.run(now)) is not None:
                raise EmulationFault(places.explain(message, arguments.operands))

        return launch

    def capturing(self, stream: int | None = None) -> bool:
        """Say no: there are no graphs here."""
        del stream
        return False

    def relaxed(self) -> AbstractContextManager[None]:
        """Do nothing: loading disturbs nobody."""
        return nullcontext()

    def synchronize(self) -> None:
        """Do nothing: launches are synchronous."""


def _check_size(shape: LaunchShape, shared: int) -> None:
    """Raise DoesNotFit for a launch that is larger than the device."""
    if shape.shared > shared:
        raise DoesNotFit(
            expected=f"at most {shared} bytes of shared memory a block",
            got=f"{shape.shared} bytes of dynamic shared memory",
            todo="use less, or an architecture that has more",
        )
    if shape.cooperative and (threads := prod(shape.grid) * prod(shape.block)) > RESIDENT_THREADS:
        raise DoesNotFit(
            expected=f"a cooperative launch of at most {RESIDENT_THREADS} threads (the emulated device holds no more)",
            got=f"{prod(shape.grid)} blocks of {prod(shape.block)} threads, {threads} in all",
            todo="launch fewer blocks",
        )


def _share(where: View) -> npt.NDArray[Any]:
    """See the memory as a numpy array, which keeps its owner alive."""
    dtype = np.dtype(numpy_dtype(where.dtype))
    memory: Any = (ctypes.c_char * (where.elements * dtype.itemsize)).from_address(where.address)
    memory.owner = where.owner
    return np.frombuffer(memory, dtype).reshape(where.shape)
