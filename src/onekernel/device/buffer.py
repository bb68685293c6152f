"""Tensors as the launcher sees them: an address, a dtype, a shape, and where they live.

It knows numpy, torch, DLPack and `__cuda_array_interface__` by their protocols and imports none but numpy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from onekernel.device import dlpack
from onekernel.errors import InvalidInput

ITEM_BYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}


@dataclass(frozen=True)
class View:
    """A tensor's memory. `device` is "host" or "cuda:N"; `owner` keeps the memory alive."""

    address: int
    dtype: str
    shape: tuple[int, ...]
    contiguous: bool
    device: str
    owner: Any = None

    @property
    def elements(self) -> int:
        return prod(self.shape)


class Buffer:
    """Memory of one device, row-major. `numpy()` copies it to the host (or shares it when emulated)."""

    def __init__(self, view: View, *, read: Callable[[View], npt.NDArray[Any]]) -> None:
        self.view = view
        self._read = read

    @property
    def shape(self) -> tuple[int, ...]:
        return self.view.shape

    @property
    def dtype(self) -> str:
        return self.view.dtype

    def numpy(self) -> npt.NDArray[Any]:
        """Return the content as a numpy array; bfloat16 needs the ml_dtypes package."""
        return self._read(self.view)

    def slice(self, first: int, shape: tuple[int, ...]) -> Buffer:
        """Return the part that starts at element `first`; it shares the memory and keeps it alive."""
        if first < 0 or first + prod(shape) > self.view.elements:
            raise InvalidInput(
                expected=f"a part of {self.view.elements} elements",
                got=f"{prod(shape)} elements from {first}",
                todo="take a smaller part",
            )
        address = self.view.address + first * ITEM_BYTES[self.dtype]
        return Buffer(replace(self.view, address=address, shape=shape, owner=self), read=self._read)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.view.device == "host" or self.dtype == "bfloat16":
            raise AttributeError("__cuda_array_interface__")
        return {
            "shape": self.shape,
            "typestr": np.dtype(self.dtype).str,
            "data": (self.view.address, False),
            "strides": None,
            "version": 3,
        }


def numpy_dtype(name: str) -> npt.DTypeLike:
    """Return the numpy dtype of a name; bfloat16 comes from ml_dtypes."""
    if name != "bfloat16":
        return np.dtype(name)
    import ml_dtypes

    dtype: npt.DTypeLike = np.dtype(ml_dtypes.bfloat16)
    return dtype


def view(operand: Any) -> View:
    """See any supported tensor as a View.

    Raises InvalidInput for an object that follows none of the protocols.
    """
    if isinstance(operand, Buffer):
        return operand.view
    if isinstance(operand, np.ndarray):
        return _numpy_view(operand)
    if hasattr(operand, "data_ptr"):
        return _torch_view(operand)
    if hasattr(operand, "__cuda_array_interface__"):
        return _interface_view(operand)
    if hasattr(operand, "__dlpack__"):
        return View(*dlpack.read(operand), owner=operand)
    raise InvalidInput(
        expected="a torch tensor, a numpy array or a DLPack / __cuda_array_interface__ object",
        got=type(operand).__name__,
        todo="convert it first",
    )


def _numpy_view(array: npt.NDArray[Any]) -> View:
    contiguous = bool(array.flags.c_contiguous)
    return View(array.ctypes.data, array.dtype.name, array.shape, contiguous, "host", array)


def _torch_view(tensor: Any) -> View:
    device = "host" if tensor.device.type == "cpu" else f"cuda:{tensor.device.index}"
    dtype = str(tensor.dtype).removeprefix("torch.")
    return View(tensor.data_ptr(), dtype, tuple(tensor.shape), tensor.is_contiguous(), device, tensor)


def _interface_view(operand: Any) -> View:
    interface = operand.__cuda_array_interface__
    dtype = np.dtype(interface["typestr"])
    shape, strides = tuple(interface["shape"]), interface.get("strides")
    contiguous = strides is None or tuple(strides) == _row_major(shape, dtype.itemsize)
    # The protocol does not say which GPU; the driver knows it from the address.
    return View(interface["data"][0], dtype.name, shape, contiguous, "cuda", operand)


def _row_major(shape: tuple[int, ...], unit: int) -> tuple[int, ...]:
    return tuple(unit * prod(shape[axis + 1 :]) for axis in range(len(shape)))
