"""A conversation with a driver, the stub or a real one, that notes every status."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from onekernel.jit.compile.nvrtc import compile_cubin

TEXT = 'extern "C" __global__ void NAME(float* x, int n) { if (n > 0) x[threadIdx.x] = 1.0f; }'
STREAMS = ("blocking", "non-blocking")


class Talk:
    """A driver with the first GPU's context current; `say` calls a function and notes its status."""

    def __init__(self) -> None:
        from cuda.bindings import driver

        self.cuda: Any = driver
        self.statuses: list[int] = []
        self.expect("cuInit", 0)
        self.context = self.expect("cuDevicePrimaryCtxRetain", 0)
        self.expect("cuCtxPushCurrent", self.context)
        kinds = driver.CUdevice_attribute
        self.arch = 10 * self.expect("cuDeviceGetAttribute", kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0)
        self.arch += self.expect("cuDeviceGetAttribute", kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0)
        self.fill, self.other = (self.function(name) for name in ("fill", "other"))
        self.memory = self.expect("cuMemAlloc", 4096)
        self.host = ctypes.create_string_buffer(4096)

    def say(self, name: str, *arguments: Any) -> Any:
        """Call and note the status; return the first result."""
        status, *results = getattr(self.cuda, name)(*arguments)
        self.statuses.append(int(status))
        return results[0] if results else None

    def expect(self, name: str, *arguments: Any) -> Any:
        """Call what a conversation only needs; it must succeed."""
        status, *results = getattr(self.cuda, name)(*arguments)
        if int(status) != 0:
            raise RuntimeError(f"{name}: {status!r}")
        return results[0] if results else None

    @cached_property
    def cubin(self) -> bytes:
        return self.build("fill")

    def build(self, name: str, arch: int | None = None) -> bytes:
        return compile_cubin(name, TEXT.replace("NAME", name), f"sm_{arch or self.arch}").data

    def kernel(self, name: str) -> Any:
        """Load a kernel as a lazy driver leaves it: its code is not on the GPU yet."""
        return self.expect("cuLibraryGetKernel", self.library(self.build(name)), name.encode())

    def load(self, binary: bytes) -> Any:
        return self.say("cuLibraryLoadData", binary, [], [], 0, [], [], 0)

    def library(self, binary: bytes) -> Any:
        return self.expect("cuLibraryLoadData", binary, [], [], 0, [], [], 0)

    def function(self, name: str) -> Any:
        function = self.expect("cuKernelGetFunction", self.kernel(name))
        self.expect("cuFuncLoad", function)
        return function

    def stream(self, kind: str = "non-blocking") -> Any:
        return self.expect("cuStreamCreate", STREAMS.index(kind))

    def mode(self, name: str) -> Any:
        return getattr(self.cuda.CUstreamCaptureMode, f"CU_STREAM_CAPTURE_MODE_{name}")

    def launch(self, stream: Any = 0, *, function: Any = None, **shape: Any) -> None:
        """Launch a kernel that does nothing."""
        grid, block = shape.get("grid", (1, 1, 1)), shape.get("block", (1, 1, 1))
        values = ((int(self.memory), 0), (ctypes.c_void_p, ctypes.c_int))
        function = self.fill if function is None else function
        self.say("cuLaunchKernel", function, *grid, *block, shape.get("shared", 0), stream, values, 0)

    def extended(self, grid: int, cluster: int = 1, *, cooperative: bool = False) -> None:
        """Launch with attributes."""
        config = self.cuda.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = 32, 1, 1
        item, kinds = self.cuda.CUlaunchAttribute(), self.cuda.CUlaunchAttributeID
        if cooperative:
            item.id, item.value.cooperative = kinds.CU_LAUNCH_ATTRIBUTE_COOPERATIVE, 1
        else:
            item.id, size = kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, item.value.clusterDim
            size.x, size.y, size.z = cluster, 1, 1
        config.attrs, config.numAttrs = [item], 1
        values = ((int(self.memory), 0), (ctypes.c_void_p, ctypes.c_int))
        self.say("cuLaunchKernelEx", config, self.fill, values, 0)

    @contextmanager
    def capture(self, kind: str, mode: str) -> Iterator[Any]:
        """Capture a stream, and note how that ends."""
        stream = self.stream(kind)
        self.expect("cuStreamBeginCapture", stream, self.mode(mode))
        yield stream
        self.say("cuStreamEndCapture", stream)
