"""An NVIDIA GPU through the driver API (cuda-bindings). Nothing here runs before a device is asked for."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from onekernel.device.buffer import ITEM_BYTES, Buffer, View, numpy_dtype
from onekernel.device.cuda.driver import call, driver
from onekernel.device.launch import LaunchShape


@cache
def count() -> int:
    """Return how many GPUs the driver offers; 0 without a driver."""
    cuda = driver()
    if cuda is None:
        return 0
    status, number = cuda.cuDeviceGetCount()
    return int(number) if status == cuda.CUresult.CUDA_SUCCESS else 0


class GpuDevice:
    """One GPU and its primary context, which torch and ONNX Runtime share."""

    emulated = False

    def __init__(self, ordinal: int = 0) -> None:
        cuda: Any = driver()
        self.ordinal = ordinal
        self._cuda = cuda
        self._device = call(cuda.cuDeviceGet, ordinal)
        self._context = call(cuda.cuDevicePrimaryCtxRetain, self._device)
        self.name: str = call(cuda.cuDeviceGetName, 256, self._device).split(b"\0")[0].decode()
        kinds = cuda.CUdevice_attribute
        major = call(cuda.cuDeviceGetAttribute, kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, self._device)
        minor = call(cuda.cuDeviceGetAttribute, kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, self._device)
        self.arch = f"sm_{major}{minor}"

    def activate(self) -> None:
        """Make this GPU's context current on the calling thread."""
        call(self._cuda.cuCtxSetCurrent, self._context)

    def empty(self, shape: Sequence[int], dtype: str) -> Buffer:
        """Allocate uninitialised memory; it is freed with the Buffer."""
        self.activate()
        size = max(prod(shape) * ITEM_BYTES[dtype], 1)
        address = int(call(self._cuda.cuMemAlloc, size))
        view = View(address, dtype, tuple(shape), True, f"cuda:{self.ordinal}")
        buffer = Buffer(view, read=self._download)
        weakref.finalize(buffer, _free, self._cuda, self._context, address)
        return buffer

    def upload(self, array: npt.NDArray[Any]) -> Buffer:
        """Copy a numpy array to the GPU; returns when it is there."""
        array = np.asarray(array, order="C")
        buffer = self.empty(array.shape, array.dtype.name)
        if array.nbytes:
            call(self._cuda.cuMemcpyHtoD, buffer.view.address, array.ctypes.data, array.nbytes)
        return buffer

    def _download(self, where: View) -> npt.NDArray[Any]:
        self.synchronize()
        array = np.empty(where.shape, numpy_dtype(where.dtype))
        if array.nbytes:
            call(self._cuda.cuMemcpyDtoH, array.ctypes.data, where.address, array.nbytes)
        return array

    def holds(self, where: View) -> bool:
        """Say whether a kernel of this device may use that memory."""
        return where.device in ("cuda", f"cuda:{self.ordinal}")

    def load(self, binary: bytes, entry: str) -> Any:
        """Load a cubin; return its kernel as a function handle of this context."""
        self.activate()
        library = call(self._cuda.cuLibraryLoadData, binary, [], [], 0, [], [], 0)
        kernel = call(self._cuda.cuLibraryGetKernel, library, entry.encode())
        return call(self._cuda.cuKernelGetFunction, kernel)

    def launch(self, handle: Any, slots: Any, shape: LaunchShape, stream: int) -> None:
        """Enqueue a kernel on a stream; `slots` is a ctypes array of pointers to arguments."""
        self.activate()
        cuda = self._cuda
        address = ctypes.addressof(slots)
        attributes = self._attributes(shape)
        if not attributes:
            call(cuda.cuLaunchKernel, handle, *shape.grid, *shape.block, 0, stream, address, 0)
            return
        config = cuda.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = shape.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = shape.block
        config.hStream = cuda.CUstream(stream)
        config.attrs, config.numAttrs = attributes, len(attributes)
        call(cuda.cuLaunchKernelEx, config, handle, address, 0)

    def _attributes(self, shape: LaunchShape) -> list[Any]:
        cuda, attributes = self._cuda, []
        if shape.cluster > 1:
            cluster = cuda.CUlaunchAttribute()
            cluster.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            cluster.value.clusterDim.x = shape.cluster
            cluster.value.clusterDim.y = cluster.value.clusterDim.z = 1
            attributes.append(cluster)
        if shape.overlap:
            early = cuda.CUlaunchAttribute()
            early.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            early.value.programmaticStreamSerializationAllowed = 1
            attributes.append(early)
        return attributes

    def synchronize(self) -> None:
        """Wait until everything enqueued on this GPU has ended."""
        self.activate()
        call(self._cuda.cuCtxSynchronize)


def _free(cuda: Any, context: Any, address: int) -> None:
    # At interpreter exit the driver may already be gone: then there is nothing left to free.
    cuda.cuCtxSetCurrent(context)
    cuda.cuMemFree(address)
