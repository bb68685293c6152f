"""Read the header of a DLPack capsule (github.com/dmlc/dlpack, DLManagedTensor) without consuming it."""

from __future__ import annotations

import ctypes
from typing import Any

from onekernel.errors import InvalidInput

_DEVICES = {1: "host", 2: "cuda", 3: "host", 13: "cuda"}  # kDLCPU, kDLCUDA, kDLCUDAHost, kDLCUDAManaged
_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 6: "bool"}


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


def read(operand: Any) -> tuple[int, str, tuple[int, ...], bool, str]:
    """Return (address, dtype, shape, contiguous, device) of an object with `__dlpack__`.

    The capsule is dropped unconsumed, so its producer frees it; the operand itself must stay alive.
    Raises InvalidInput for what its producer will not show (read-only memory, say) or a kernel cannot use.
    """
    try:
        capsule = operand.__dlpack__()
    except BufferError as refusal:
        raise InvalidInput(
            expected="a tensor that its library exports by DLPack", got=f"{refusal}", todo="give a copy"
        ) from refusal
    tensor = _Tensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    kind, device = _KINDS.get(tensor.code), _DEVICES.get(tensor.device_type)
    if kind is None or device is None or tensor.lanes != 1:
        raise InvalidInput(
            expected="a DLPack tensor of plain numbers on a CPU or an NVIDIA GPU",
            got=f"type code {tensor.code}, {tensor.lanes} lanes, device type {tensor.device_type}",
            todo="convert it first",
        )
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else None
    address = (tensor.data or 0) + tensor.byte_offset
    place = f"cuda:{tensor.device_id}" if device == "cuda" else device
    dtype = kind if (kind, tensor.bits) == ("bool", 8) else f"{kind}{tensor.bits}"
    return address, dtype, shape, strides is None or row_major(shape, strides, 1), place


def row_major(shape: tuple[int, ...], strides: tuple[int, ...], unit: int) -> bool:
    """Say whether strides are dense; an axis of length 1 is never stepped over, so its stride means nothing."""
    expected = unit
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size > 1 and stride != expected:
            return 0 in shape
        expected *= size
    return True
