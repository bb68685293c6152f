"""Device time of a GPU's work, read by events around replays of a CUDA graph: no host cost is in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onekernel.device.cuda.driver import call, driver

if TYPE_CHECKING:
    from onekernel.device.cuda.gpu import GpuDevice

Work = Callable[[int], object]  # enqueues something on the stream with this handle


class CudaGraph:
    """Work captured on a stream of its own. The work stays alive with it, and so do the operands that it holds."""

    def __init__(self, device: GpuDevice, work: Work, *, calls: int = 1) -> None:
        """Capture `calls` runs of the work. Everything it needs must be built, loaded and allocated before."""
        cuda: Any = driver()
        self._cuda, self._device, self._work = cuda, device, work
        with device.current():
            self._stream = call(cuda.cuStreamCreate, cuda.CUstream_flags.CU_STREAM_NON_BLOCKING.value)
        mode = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        call(cuda.cuStreamBeginCapture, self._stream, mode)
        try:
            for _ in range(calls):
                work(int(self._stream))
        except BaseException:
            cuda.cuStreamEndCapture(self._stream)  # the work's own error is the one to see
            cuda.cuStreamDestroy(self._stream)
            raise
        graph = call(cuda.cuStreamEndCapture, self._stream)
        with device.current():
            self._exec = call(cuda.cuGraphInstantiate, graph, 0)
        call(cuda.cuGraphDestroy, graph)

    def replay(self) -> None:
        """Enqueue the captured work."""
        call(self._cuda.cuGraphLaunch, self._exec, self._stream)

    def seconds(self) -> float:
        """Replay once and return the time between events before and after."""
        cuda = self._cuda
        with self._device.current():
            first, last = (call(cuda.cuEventCreate, 0) for _ in range(2))
        try:
            call(cuda.cuEventRecord, first, self._stream)
            self.replay()
            call(cuda.cuEventRecord, last, self._stream)
            call(cuda.cuEventSynchronize, last)
            return float(call(cuda.cuEventElapsedTime, first, last)) * 1e-3
        finally:
            call(cuda.cuEventDestroy, first)
            call(cuda.cuEventDestroy, last)

    def close(self) -> None:
        """Free the graph and its stream."""
        call(self._cuda.cuGraphExecDestroy, self._exec)
        call(self._cuda.cuStreamDestroy, self._stream)


def seconds_in_graph(device: GpuDevice, work: Work, *, calls: int = 20, rounds: int = 20) -> tuple[float, ...]:
    """Time one run of the work, `rounds` times, each the mean of `calls` runs in a row inside a graph."""
    graph = CudaGraph(device, work, calls=calls)
    try:
        for _ in range(3):
            graph.seconds()
        return tuple(graph.seconds() / calls for _ in range(rounds))
    finally:
        graph.close()
