"""GPU time of anything that enqueues on a stream, by events around it; the work needs no capture.

A host that enqueues more slowly than the GPU works leaves gaps between launches, and events count them. So the GPU is
held by memsets, of which there is a known number, until everything that is timed has been enqueued.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import cached_property
from math import ceil
from time import perf_counter
from typing import TYPE_CHECKING, Any

from onekernel.device.cuda.driver import call, check, driver

if TYPE_CHECKING:
    from onekernel.device.cuda.gpu import GpuDevice

_LEAST_SCRATCH = 16 << 20  # bytes
_TRIALS = 8  # memsets that are timed to know how long one takes
_SHORTEST = 1e-6  # seconds: no memset of the scratch memory is faster, so a hold has a largest number of them
_LONGEST = 0.5  # seconds of a hold
_SLACK = 1e-4  # seconds that the GPU is held longer
_MARGINS = (2, 8)  # how many times as long as the host needs the GPU is held; the second when the first fails


class Mark:
    """A point of a stream. Its event is destroyed with it."""

    __slots__ = ("__weakref__", "event")

    def __init__(self, cuda: Any) -> None:
        self.event = call(cuda.cuEventCreate, 0)
        weakref.finalize(self, cuda.cuEventDestroy, self.event)


class Stopwatch:
    """Times what is enqueued on one stream. Its scratch memory is made by the first hold and freed with it."""

    def __init__(self, device: GpuDevice, stream: int = 0) -> None:
        """`stream` is a handle; 0, the legacy default stream, waits for all blocking streams, and they for it."""
        cuda: Any = driver()
        self._cuda, self._device, self._stream = cuda, device, cuda.CUstream(stream)

    def mark(self) -> Mark:
        """Enqueue a point to measure from or to."""
        with self._device.current():
            mark = Mark(self._cuda)
            call(self._cuda.cuEventRecord, mark.event, self._stream)
        return mark

    def reached(self, mark: Mark) -> bool:
        """Say whether the GPU has come to a mark. Raises DeviceError when it never will."""
        result = self._cuda.cuEventQuery(mark.event)
        if result[0] == self._cuda.CUresult.CUDA_ERROR_NOT_READY:
            return False
        check(self._cuda.cuEventQuery, result)
        return True

    def seconds(self, first: Mark, last: Mark) -> float:
        """Wait until the GPU comes to `last`, and return the time since it was at `first`."""
        call(self._cuda.cuEventSynchronize, last.event)
        return float(call(self._cuda.cuEventElapsedTime, first.event, last.event)) * 1e-3

    def flush(self) -> None:
        """Fill the L2 cache with memory that nobody reads."""
        self._memset(1)

    def hold(self, seconds: float) -> None:
        """Keep the GPU busy for about so long, at least for one memset and at most for half a second.

        What is enqueued next starts afterwards and with a cold L2 cache. The driver's queue is finite: when about a
        thousand memsets and launches wait in it, the host waits too.
        """
        self._memset(max(ceil(min(seconds, _LONGEST) / self._memset_seconds), 1))

    def lap(self, work: Callable[[], object], *, calls: int = 1, warm: bool = True) -> float | None:
        """Return the GPU seconds of one call of `work`, the mean of `calls` in a row; the host's time is not in it.

        `work` only enqueues, on this stream or on streams that wait for it, and has run before, so that it builds,
        loads and allocates nothing any more. It is called once more to learn how long the host needs, and, when
        `warm`, once before the clock starts; else it starts with a cold L2 cache.

        None means that the GPU came to the first call before the host had enqueued the last one, although it was held
        for longer than the host had needed: the work waits for the GPU itself (a copy to the host, an allocation), or
        its launches do not fit into the driver's queue. Gaps would be in the time, so there is none to tell.
        """
        start = perf_counter()
        work()
        host = (calls + warm) * (perf_counter() - start)

        def enqueue() -> Sequence[Mark]:
            if warm:
                work()
            first = self.mark()
            for _ in range(calls):
                work()
            return first, self.mark()

        marks = self.ahead(enqueue, host)
        return None if marks is None else self.seconds(marks[0], marks[-1]) / calls

    def ahead(self, enqueue: Callable[[], Sequence[Mark]], host: float) -> Sequence[Mark] | None:
        """Hold the GPU while `enqueue` puts work and marks behind each other; return the marks when they were reached.

        `host` is how long the host needs for that, in seconds. None means that the GPU came to the first mark before
        the last one was enqueued, also when it was held for longer; see `lap`.
        """
        for margin in _MARGINS:
            self.hold(margin * host + _SLACK)
            marks = enqueue()
            ahead = not self.reached(marks[0])
            self.seconds(marks[0], marks[-1])
            if ahead:
                return marks
        return None

    @cached_property
    def _scratch(self) -> Any:
        size = max(2 * self._device.attribute("L2_CACHE_SIZE"), _LEAST_SCRATCH)
        return self._device.empty((size // 4,), "int32")

    @cached_property
    def _memset_seconds(self) -> float:
        self._memset(2)  # the first ones may find memory that is not mapped and a GPU that sleeps
        first = self.mark()
        self._memset(_TRIALS)
        return max(self.seconds(first, self.mark()) / _TRIALS, _SHORTEST)

    def _memset(self, times: int) -> None:
        scratch = self._scratch
        with self._device.current():
            for _ in range(times):
                call(self._cuda.cuMemsetD32Async, scratch.address, 0, scratch.elements, self._stream)
