"""What a launch costs on the host, beside a raw call of the driver with everything packed before.

The kernel is a fused LayerNorm with four tensors and two sizes. On a machine without a GPU the driver is a stub that
does nothing: what is left is our own cost, and the binding's.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from benchmarks.host import Work, time_calls
from kernel_cases import layer_norm
from onekernel import device
from onekernel.device.cuda.driver import call, driver
from onekernel.device.parts import part_of
from onekernel.fusion.kernel import compile_for
from onekernel.jit import Kernel

ROWS, HIDDEN = 64, 256  # small: the GPU must be faster than the host, or its queue fills


def run(report: Callable[[str], None]) -> dict[str, Any]:
    """Time every way to launch; microseconds of the calling thread."""
    place: Any = device.get("cuda")
    chain = replace(layer_norm(HIDDEN, axis=1, rank=2), sample_shape=(ROWS, HIDDEN))
    build = compile_for(chain, part_of(place.name, place.arch))
    plain, early = (Kernel(replace(build.request, overlap=overlap), place) for overlap in (False, True))
    grid = build.schedule.grid(ROWS, 1)
    with place.current():
        stream = int(call(driver().cuStreamCreate, driver().CUstream_flags.CU_STREAM_NON_BLOCKING.value))
    tensors = [place.upload(np.ones(shape, np.float32)) for shape in ((ROWS, HIDDEN), HIDDEN, HIDDEN, (ROWS, HIDDEN))]
    operands = (*tensors, ROWS, 1)
    contenders = {
        "raw cuLaunchKernel, packed before": _raw(plain, operands, grid, stream),
        "ours, bound": _bound(plain, operands, grid, stream),
        "ours, operands checked": lambda: plain.launch(*operands, grid=grid, stream=stream),
        "raw cuLaunchKernelEx, packed before": _raw_extended(early, operands, grid, stream),
        "ours, bound, overlapping": _bound(early, operands, grid, stream),
        "ours, operands checked, overlapping": lambda: early.launch(*operands, grid=grid, stream=stream),
    }
    if importlib.util.find_spec("torch"):
        contenders |= _with_torch(plain, grid, stream)
    report(f"{len(contenders)} ways to launch")
    samples = time_calls(contenders, settle=place.synchronize)
    return {name: asdict(sample) for name, sample in samples.items()}


def _bound(kernel: Kernel, operands: tuple[Any, ...], grid: int, stream: int) -> Work:
    bound = kernel.bind(*operands, grid=grid)
    return lambda: bound.launch(stream)


def _raw(kernel: Kernel, operands: tuple[Any, ...], grid: int, stream: int) -> Work:
    """Do what no library can undercut from Python: handles and parameter block made, one call of the binding."""
    bound, cuda = kernel.bind(*operands, grid=grid), driver()
    handle, where, pointers = bound.kernel.handle, cuda.CUstream(stream), bound.arguments.pointers
    (x, _, _), (threads, _, _), launch = bound.shape.grid, bound.shape.block, cuda.cuLaunchKernel
    return lambda: (launch(handle, x, 1, 1, threads, 1, 1, 0, where, pointers, 0), bound)


def _raw_extended(kernel: Kernel, operands: tuple[Any, ...], grid: int, stream: int) -> Work:
    bound, cuda = kernel.bind(*operands, grid=grid), driver()
    config, early = cuda.CUlaunchConfig(), cuda.CUlaunchAttribute()
    early.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    early.value.programmaticStreamSerializationAllowed = 1
    config.gridDimX, config.gridDimY, config.gridDimZ = bound.shape.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = bound.shape.block
    config.hStream, config.attrs, config.numAttrs = cuda.CUstream(stream), [early], 1
    handle, pointers, launch = bound.kernel.handle, bound.arguments.pointers, cuda.cuLaunchKernelEx
    return lambda: (launch(config, handle, pointers, 0), bound)


def _with_torch(kernel: Kernel, grid: int, stream: int) -> dict[str, Work]:
    """Add torch tensors as operands, and torch's own ways to launch something small."""
    import torch

    if not torch.cuda.is_available():
        return {}
    x, y = (torch.ones(ROWS, HIDDEN, device="cuda") for _ in range(2))
    weight, bias = (torch.ones(HIDDEN, device="cuda") for _ in range(2))
    scale = torch.cuda._compile_kernel(
        'extern "C" __global__ void scale(const float* x, float* y, int n)'
        "{ int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = 2.0f * x[i]; }",
        "scale",
    )
    own = torch.cuda.ExternalStream(stream)
    return {
        "ours, torch tensors checked": lambda: kernel.launch(x, weight, bias, y, ROWS, 1, grid=grid, stream=stream),
        "torch.add(out=)": lambda: torch.add(x, x, out=y),
        "F.layer_norm": lambda: torch.nn.functional.layer_norm(x, (HIDDEN,), weight, bias),
        "torch.cuda._compile_kernel, 3 arguments": lambda: scale((64, 1, 1), (256, 1, 1), (x, y, x.numel())),
        **_cuda_core(kernel, (x, weight, bias, y), grid, own),
    }


def _cuda_core(kernel: Kernel, tensors: tuple[Any, ...], grid: int, stream: Any) -> dict[str, Work]:
    """Launch the same cubin by cuda.core, its stream and configuration made before."""
    try:
        from cuda.core import Device, LaunchConfig, ObjectCode, launch
    except ImportError:
        from cuda.core.experimental import Device, LaunchConfig, ObjectCode, launch
    Device().set_current()
    code = ObjectCode.from_cubin(kernel.binary.data).get_kernel(kernel.request.name)
    where = Device().create_stream(stream)
    config = LaunchConfig(grid=grid, block=kernel.request.threads)
    pointers = [tensor.data_ptr() for tensor in tensors]
    sizes = np.int32(ROWS), np.int32(1)
    return {"cuda.core launch": lambda: (launch(where, config, code, *pointers, *sizes), tensors)}
