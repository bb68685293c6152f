"""An NVIDIA GPU through the driver API (cuda-bindings). Nothing here runs before a device is asked for."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt

from onekernel.device import counters
from onekernel.device.buffer import ITEM_BYTES, Buffer, View, numpy_dtype
from onekernel.device.cuda.driver import call, check, driver
from onekernel.device.cuda.facts import facts
from onekernel.device.launch import Launcher, LaunchShape


@cache
def count() -> int:
    """Return how many GPUs the driver offers; 0 without a driver."""
    cuda = driver()
    if cuda is None:
        return 0
    return int(call(cuda.cuDeviceGetCount))  # in a forked child it raises: the answer is not "none"


@dataclass(frozen=True)
class LoadedKernel:
    """A kernel on a GPU: `handle` launches in the context of the stream, `function` belongs to the GPU's context."""

    handle: Any
    function: Any


class _Current:
    """Makes a context current, unless it is already, and puts back what was."""

    __slots__ = ("_context", "_cuda", "_pushed")

    def __init__(self, cuda: Any, context: Any) -> None:
        self._cuda, self._context = cuda, context

    def __enter__(self) -> None:
        now = call(self._cuda.cuCtxGetCurrent)
        self._pushed = int(now) != int(self._context)
        if self._pushed:
            call(self._cuda.cuCtxPushCurrent, self._context)

    def __exit__(self, *error: object) -> None:
        if self._pushed:
            call(self._cuda.cuCtxPopCurrent)


class GpuDevice:
    """One GPU and its primary context, which torch and ONNX Runtime share."""

    emulated = False
    sanitize = False  # compute-sanitizer does that from outside

    def __init__(self, ordinal: int = 0) -> None:
        cuda: Any = driver()
        self.ordinal = ordinal
        self._cuda = cuda
        self._device = call(cuda.cuDeviceGet, ordinal)
        self._context = call(cuda.cuDevicePrimaryCtxRetain, self._device)
        known = facts(ordinal)
        self.name, self.arch = known.name, known.arch
        self.multiprocessors = self._multiprocessors()

    def attribute(self, name: str) -> int:
        """Ask the driver for an attribute; its name is what follows CU_DEVICE_ATTRIBUTE_."""
        kind = getattr(self._cuda.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(call(self._cuda.cuDeviceGetAttribute, kind, self._device))

    def _multiprocessors(self) -> int:
        """Count those that our context may use: MPS can give a process a share of them, MIG has fewer anyway."""
        every = self.attribute("MULTIPROCESSOR_COUNT")
        with self.current():
            asked = self._cuda.CUexecAffinityType.CU_EXEC_AFFINITY_TYPE_SM_COUNT
            status, share = self._cuda.cuCtxGetExecAffinity(asked)
        if int(status) != 0:  # a GPU or a driver that gives no shares
            return every
        return min(int(share.param.smCount.val) or every, every)

    @property
    def uuid(self) -> str:
        """The GPU's name everywhere, as nvidia-smi and NVML spell it: GPU-..., or MIG-... for a slice of one."""
        found = call(self._cuda.cuDeviceGetUuid, self._device)
        return f"{'MIG' if facts(self.ordinal).mig else 'GPU'}-{UUID(bytes=bytes(found.bytes))}"

    def memory(self) -> tuple[int, int]:
        """Return the bytes of the GPU's memory that are used, by whomever, and all of them."""
        with self.current():
            free, total = call(self._cuda.cuMemGetInfo)
        return int(total) - int(free), int(total)

    def current(self) -> _Current:
        """Return a guard: inside `with`, this GPU's context is current on the thread; after it, what was before."""
        return _Current(self._cuda, self._context)

    def empty(self, shape: Sequence[int], dtype: str) -> Buffer:
        """Allocate uninitialised memory; it is freed with the Buffer."""
        size = max(prod(shape) * ITEM_BYTES[dtype], 1)
        with self.current():
            address = int(call(self._cuda.cuMemAlloc, size))
        counters.allocated(size)
        view = View(address, dtype, tuple(shape), True, f"cuda:{self.ordinal}")
        buffer = Buffer(view, read=self._download)
        weakref.finalize(buffer, _free, self._cuda, self._context, address, size)
        return buffer

    def upload(self, array: npt.NDArray[Any]) -> Buffer:
        """Copy a numpy array to the GPU; returns when it is there."""
        array = np.asarray(array, order="C")
        buffer = self.empty(array.shape, array.dtype.name)
        if array.nbytes:
            with self.current():
                call(self._cuda.cuMemcpyHtoD, buffer.address, array.ctypes.data, array.nbytes)
        return buffer

    def _download(self, where: View) -> npt.NDArray[Any]:
        self.synchronize()
        array = np.empty(where.shape, numpy_dtype(where.dtype))
        if array.nbytes:
            with self.current():
                call(self._cuda.cuMemcpyDtoH, array.ctypes.data, where.address, array.nbytes)
        return array

    def holds(self, where: View) -> bool:
        """Say whether a kernel of this device may use that memory."""
        return where.device in ("cuda", f"cuda:{self.ordinal}")

    def load(self, binary: bytes, entry: str, shared: int = 0) -> LoadedKernel:
        """Load a cubin, to this GPU and at once; `shared` is the dynamic shared memory that launches will ask for.

        A lazy load would come with the first launch: in the middle of serving, or of a capture.
        """
        cuda = self._cuda
        with self.current():
            library = call(cuda.cuLibraryLoadData, binary, [], [], 0, [], [], 0)
            kernel = call(cuda.cuLibraryGetKernel, library, entry.encode())
            function = call(cuda.cuKernelGetFunction, kernel)
            call(cuda.cuFuncLoad, function)
            if shared:
                most = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                call(cuda.cuFuncSetAttribute, function, most, shared)
        counters.loaded()
        return LoadedKernel(cuda.CUfunction(int(kernel)), function)

    def launcher(self, kernel: LoadedKernel, shape: LaunchShape) -> Launcher:
        """Return a function that enqueues a kernel with a shape; see `cuda.launcher`."""
        from onekernel.device.cuda.launcher import launcher

        return launcher(self, kernel, shape)

    def capturing(self, stream: int | None = None) -> bool:
        """Say whether a stream is being captured; without one, whether any blocking stream of this GPU is."""
        cuda = self._cuda
        with self.current():
            status, state = cuda.cuStreamIsCapturing(cuda.CUstream(stream or 0))
        if status == cuda.CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
            return True
        check(cuda.cuStreamIsCapturing, (status,))
        return bool(state != cuda.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)

    @contextmanager
    def relaxed(self) -> Iterator[None]:
        """Let this thread load and allocate although another thread captures a stream in global mode."""
        cuda = self._cuda
        mode = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        before = call(cuda.cuThreadExchangeStreamCaptureMode, mode)
        try:
            yield
        finally:
            call(cuda.cuThreadExchangeStreamCaptureMode, before)

    def synchronize(self) -> None:
        """Wait until everything enqueued on this GPU has ended."""
        with self.current():
            call(self._cuda.cuCtxSynchronize)


def _free(cuda: Any, context: Any, address: int, size: int) -> None:
    # At interpreter exit the driver may already be gone: then there is nothing left to free. Garbage is collected at
    # any moment, also while a stream is being captured, which a free would spoil in any but the relaxed mode.
    if cuda.cuCtxPushCurrent(context)[0] == cuda.CUresult.CUDA_SUCCESS:
        mode = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        _, before = cuda.cuThreadExchangeStreamCaptureMode(mode)
        cuda.cuMemFree(address)
        cuda.cuThreadExchangeStreamCaptureMode(before)
        cuda.cuCtxPopCurrent()
    counters.freed(size)
