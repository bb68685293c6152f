"""How one kernel is launched with one shape: everything that can be prepared is, so that a launch is one driver call.

With an explicit stream the driver takes the context from it. The default streams (handles 0, 1 and 2) belong to the
current context of the thread, so for them ours is made current, and the caller's is put back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from onekernel.device.cuda.driver import check, driver
from onekernel.device.launch import Arguments, Launcher, LaunchShape
from onekernel.errors import DoesNotFit

if TYPE_CHECKING:
    from onekernel.device.cuda.gpu import GpuDevice, LoadedKernel

_LAST_DEFAULT_STREAM = 2  # NULL, legacy, per thread
_MOST_STREAMS = 1024  # launch records remembered for each shape; then they start afresh


def launcher(device: GpuDevice, kernel: LoadedKernel, shape: LaunchShape) -> Launcher:
    """Prepare launches of a kernel with a shape.

    Raises DoesNotFit when the blocks of a cooperative kernel do not fit on the GPU all at once.
    """
    if shape.cooperative:
        check_resident(device, kernel, shape)
    if shape.cluster > 1 or shape.overlap or shape.cooperative:
        return _extended(device, kernel, shape)
    return _plain(device, kernel, shape)


def _plain(device: GpuDevice, kernel: LoadedKernel, shape: LaunchShape) -> Launcher:
    cuda: Any = driver()
    enqueue = partial(cuda.cuLaunchKernel, kernel.handle, *shape.grid, *shape.block, shape.shared)
    success, stream_of = cuda.CUresult.CUDA_SUCCESS, _Memo(cuda.CUstream)

    def launch(arguments: Arguments, stream: int) -> None:
        if stream > _LAST_DEFAULT_STREAM:
            result = enqueue(stream_of[stream], arguments.pointers, 0)
        else:
            with device.current():
                result = enqueue(stream_of[stream], arguments.pointers, 0)
        if result[0] is not success:
            check(cuda.cuLaunchKernel, result)

    return launch


def _extended(device: GpuDevice, kernel: LoadedKernel, shape: LaunchShape) -> Launcher:
    cuda: Any = driver()
    enqueue, success, handle = cuda.cuLaunchKernelEx, cuda.CUresult.CUDA_SUCCESS, kernel.handle
    config_of = _Memo(partial(_config, shape))

    def launch(arguments: Arguments, stream: int) -> None:
        if stream > _LAST_DEFAULT_STREAM:
            result = enqueue(config_of[stream], handle, arguments.pointers, 0)
        else:
            with device.current():
                result = enqueue(config_of[stream], handle, arguments.pointers, 0)
        if result[0] is not success:
            check(enqueue, result)

    return launch


class _Memo(dict[int, Any]):
    """Values by stream handle, made when they are first asked for."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, stream: int) -> Any:
        if len(self) >= _MOST_STREAMS:
            self.clear()
        value = self[stream] = self._make(stream)
        return value


def _config(shape: LaunchShape, stream: int) -> Any:
    cuda: Any = driver()
    config = cuda.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = shape.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = shape.block
    config.sharedMemBytes = shape.shared
    config.hStream = cuda.CUstream(stream)
    config.attrs = wanted = attributes(shape, overlap=shape.overlap)
    config.numAttrs = len(wanted)
    return config


def attributes(shape: LaunchShape, *, overlap: bool) -> list[Any]:
    """List the launch attributes of a shape; in a graph, overlap is a matter of its edges."""
    cuda: Any = driver()
    kinds = cuda.CUlaunchAttributeID
    found: list[Any] = []

    def add(kind: Any) -> Any:
        found.append(cuda.CUlaunchAttribute())
        found[-1].id = kind
        return found[-1].value

    if shape.cluster > 1:
        size = add(kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION).clusterDim
        size.x, size.y, size.z = shape.cluster, 1, 1
    if overlap:
        early = kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        add(early).programmaticStreamSerializationAllowed = 1
    if shape.cooperative:
        add(kinds.CU_LAUNCH_ATTRIBUTE_COOPERATIVE).cooperative = 1
    return found


def check_resident(device: GpuDevice, kernel: LoadedKernel, shape: LaunchShape) -> None:
    """Raise DoesNotFit unless all blocks of a launch fit on the GPU at once; else they would wait for ever."""
    cuda: Any = driver()
    with device.current():
        if shape.cluster > 1:
            result = cuda.cuOccupancyMaxActiveClusters(kernel.function, _config(shape, 0))
            most = check(cuda.cuOccupancyMaxActiveClusters, result) * shape.cluster
        else:
            occupancy = cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor
            each = check(occupancy, occupancy(kernel.function, prod(shape.block), shape.shared))
            most = each * device.multiprocessors
    if prod(shape.grid) > most:
        raise DoesNotFit(
            expected=f"at most {most} blocks, which is what fits on {device.name} at once (they wait for each other)",
            got=f"{prod(shape.grid)} blocks of {prod(shape.block)} threads",
            todo="launch fewer or smaller blocks",
        )
