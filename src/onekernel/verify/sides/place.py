"""Where both sides run: the host, or a GPU, whose work has to be waited for."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from onekernel.device import get
from onekernel.device.cuda.gpu import GpuDevice
from onekernel.verify.numbers.values import leaves, place_of
from onekernel.verify.sides.subject import Inputs, Subject

if TYPE_CHECKING:
    from onekernel.device.cuda.stopwatch import Stopwatch

Settle = Callable[[], object]
_WARM_UP = 0.3  # seconds: an idle GPU raises its clocks within that time


class Place:
    """A GPU of this process, or the host where `gpu` is None."""

    def __init__(self, gpu: GpuDevice | None = None) -> None:
        self.gpu = gpu

    @cached_property
    def stopwatch(self) -> Stopwatch | None:
        """The GPU's clock; None on the host."""
        from onekernel.device.cuda.stopwatch import Stopwatch

        return Stopwatch(self.gpu) if self.gpu is not None else None

    @property
    def torch(self) -> Any:
        """Torch, where the process has imported it and it may use the GPU; else None."""
        torch: Any = sys.modules.get("torch")
        return torch if self.gpu is not None and torch is not None and torch.cuda.is_available() else None

    def settle(self) -> None:
        """Wait until everything enqueued has ended."""
        if self.gpu is not None:
            self.gpu.synchronize()

    @contextmanager
    def stream(self) -> Iterator[Settle]:
        """Give a thread a stream of its own where torch is what enqueues; yields what waits for that stream."""
        torch = self.torch
        if self.gpu is None or torch is None:
            yield self.settle
            return
        own = torch.cuda.Stream(self.gpu.ordinal)
        with torch.cuda.stream(own):
            yield own.synchronize

    def warm_up(self, call: Callable[[], object]) -> None:
        """Call three times at least, on a GPU until its clocks are up."""
        end, calls = time.monotonic() + (_WARM_UP if self.gpu is not None else 0), 0
        while calls < 3 or time.monotonic() < end:
            call()
            calls += 1
            self.settle()


def place_of_sides(before: Subject, after: Subject, inputs: Inputs) -> Place:
    """Find the GPU: one that a side names, or the one that holds an input."""
    named = next((side.gpu for side in (before, after) if side.gpu is not None), None)
    if named is None:
        devices = (place.device for _, leaf in leaves(inputs or ["none"]) if (place := place_of(leaf)))
        where = next((device for device in devices if device.startswith("cuda")), "")
        named = int(where.partition(":")[2] or 0) if where else None
    if named is None:
        return Place()
    device = get(f"cuda:{named}")
    assert isinstance(device, GpuDevice)
    return Place(device)
