"""KernelRequest -> Kernel: build through the cache, load on a device, launch with checked operands."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from math import isinf, prod
from operator import index
from pathlib import Path
from typing import Any

import numpy as np

from onekernel import settings
from onekernel._version import __version__
from onekernel.device import Device, LaunchShape, get
from onekernel.device.buffer import ITEM_BYTES, View, view
from onekernel.errors import InvalidInput, InvalidOperand
from onekernel.jit.cache import KernelCache, digest
from onekernel.jit.compile import emulated, nvrtc
from onekernel.jit.compile.binary import Binary
from onekernel.jit.generate import kernel_text
from onekernel.jit.headers import closure
from onekernel.jit.request import KernelRequest, Parameter

_SLOTS: dict[str, Any] = {"int": ctypes.c_int32, "long long": ctypes.c_int64, "float": ctypes.c_float}

_INTEGERS = (int, np.integer)
_NUMBERS = (int, float, np.integer, np.floating)

Grid = int | Sequence[int]


@cache
def _cache(folder: Path | None) -> KernelCache:
    return KernelCache(folder)


def compile_request(request: KernelRequest, *, emulate: bool = False) -> Binary:
    """Build a request for its architecture, or for the emulated device.

    Raises CompileError or InvalidInput.
    """
    text = kernel_text(request)
    compiler, builder = (
        (emulated.compiler_id(), lambda: emulated.compile_emulated(request.name, text, request.arch))
        if emulate
        else (nvrtc.compiler_id(), lambda: nvrtc.compile_cubin(request.name, text, request.arch))
    )
    return _cache(settings.load().cache).get(request.name, request_key(request, compiler), text, builder)


def request_key(request: KernelRequest, compiler: str) -> str:
    """Hash everything that the binary depends on: texts, headers, architecture, compiler and options, version."""
    text = kernel_text(request)
    headers = [part for name, content in closure(text).items() for part in (name, content)]
    return digest(__version__, compiler, request.arch, text, *headers)


def key_of(request: KernelRequest) -> str:
    """Return the key under which a request's cubin is kept."""
    return request_key(request, nvrtc.compiler_id())


def adopt(key: str, binary: Binary) -> None:
    """Use a cubin from elsewhere (a saved model) for the request of this key instead of compiling."""
    _cache(settings.load().cache).adopt(key, binary)


class Kernel:
    """A built kernel on one device."""

    def __init__(self, request: KernelRequest, device: Device | None = None) -> None:
        self.request = request
        self.device = get() if device is None else device
        self.binary = compile_request(request, emulate=self.device.emulated)
        self._handle = self.device.load(self.binary.data, request.name)

    def launch(self, *operands: Any, grid: Grid, block: Grid | None = None, stream: Any = None) -> None:
        """Enqueue the kernel; operands in the order of the parameters, tensors for pointers, numbers for scalars.

        `block` defaults to the request's threads; `stream` is a handle, a torch stream or None (the default stream).
        Raises InvalidOperand naming the parameter that does not fit, DeviceError, or EmulationFault.
        """
        request = self.request
        threads = _three(request.threads if block is None else block)
        shape = LaunchShape(_three(grid), threads, request.cluster, request.overlap)
        self._check_block(shape)
        slots = _pack(request.parameters, operands, self.device)
        pointers = (ctypes.c_void_p * len(slots))(*map(ctypes.addressof, slots))
        self.device.launch(self._handle, pointers, shape, _stream_handle(stream))

    def _check_block(self, shape: LaunchShape) -> None:
        if prod(shape.block) > self.request.threads:
            raise InvalidOperand(
                expected=f"a block of at most {self.request.threads} threads (the kernel's launch bound)",
                got=str(shape.block),
                todo="build the kernel with more threads",
            )


def kernel(
    source: str,
    *,
    entry: str,
    parameters: Sequence[Parameter | tuple[str, str]],
    constants: dict[str, int | float] | None = None,
    threads: int = 1024,
    device: Device | None = None,
) -> Kernel:
    """Build hand-written CUDA text: it defines `extern "C" __global__ void entry(...)` with these parameters.

    parameters: (name, type) pairs such as ("x", "const float*"). constants become constexpr numbers. The text may
    include the headers of `kernels/`, and runs on a GPU or, unchanged, on the emulated device when it uses
    "primitives.cuh" for everything beyond threadIdx and blockIdx. Raises CompileError.
    """
    place = get() if device is None else device
    typed = tuple(item if isinstance(item, Parameter) else Parameter(*item) for item in parameters)
    folded = tuple((constants or {}).items())
    return Kernel(KernelRequest(entry, place.arch, typed, threads, constants=folded, source=source), place)


def _pack(parameters: tuple[Parameter, ...], operands: tuple[Any, ...], device: Device) -> list[Any]:
    if len(operands) != len(parameters):
        names = ", ".join(parameter.name for parameter in parameters)
        raise InvalidOperand(
            expected=f"{len(parameters)} operands ({names})",
            got=str(len(operands)),
            todo="give one for each parameter",
        )
    return [_slot(*pair, device) for pair in zip(parameters, operands, strict=True)]


def _slot(parameter: Parameter, operand: Any, device: Device) -> Any:
    if parameter.pointer:
        return ctypes.c_void_p(_checked(parameter, view(operand), device).address)
    real = parameter.type == "float"
    if not isinstance(operand, _NUMBERS if real else _INTEGERS) or isinstance(operand, bool):
        raise _refuse(parameter, f"a number of type {parameter.type}", repr(operand))
    try:
        slot = _SLOTS[parameter.type](float(operand) if real else int(operand))
        fits = isinf(slot.value) == isinf(operand) if real else slot.value == operand  # ctypes wraps silently
    except OverflowError:  # an int that no float holds
        fits = False
    if not fits:
        raise _refuse(parameter, f"a number that fits {parameter.type}", repr(operand))
    return slot


def _checked(parameter: Parameter, where: View, device: Device) -> View:
    if where.dtype != parameter.dtype:
        raise _refuse(parameter, f"dtype {parameter.dtype}", where.dtype)
    if not where.contiguous:
        raise _refuse(parameter, "a row-major contiguous tensor", f"a strided view of shape {where.shape}")
    if where.address % (unit := ITEM_BYTES[where.dtype]):
        raise _refuse(parameter, f"an address that is a multiple of {unit} bytes", hex(where.address))
    if parameter.writable and not where.writable:
        raise _refuse(parameter, "writable memory", "read-only memory")
    if where.elements and not device.holds(where):
        raise _refuse(parameter, f"memory of the device {device.name!r}", where.device)
    return where


def _refuse(parameter: Parameter, expected: str, got: str) -> InvalidOperand:
    return InvalidOperand(
        expected=f"{expected} for parameter {parameter.name!r}",
        got=got,
        todo="convert or copy it before the launch",
    )


def _three(size: Grid) -> tuple[int, int, int]:
    try:
        sizes = [index(item) for item in (size if isinstance(size, Sequence) else (size,))]
        x, y, z = sizes + [1] * (3 - len(sizes)) if sizes else []
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            expected="a grid and a block of one to three whole numbers", got=repr(size), todo="correct the launch"
        ) from error
    return x, y, z


def _stream_handle(stream: Any) -> int:
    if stream is None:
        return 0
    try:
        return int(getattr(stream, "cuda_stream", stream))
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            expected="a stream handle, a torch stream or None", got=repr(stream), todo="give the handle as a number"
        ) from error
