"""Tensors as the launcher sees them: an address, a dtype, a shape, and where they live.

It knows numpy, torch, DLPack and `__cuda_array_interface__` by their protocols and imports none but numpy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import gcd, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from onekernel.device import dlpack
from onekernel.errors import InvalidInput, MissingExtra

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
    """A tensor's memory. `device` is "host" or "cuda:N"; `owner` keeps the memory alive.

    `dtype` is a name of ITEM_BYTES, or something else that no kernel parameter accepts.
    """

    address: int
    dtype: str
    shape: tuple[int, ...]
    contiguous: bool
    device: str
    owner: Any = None
    writable: bool = True

    @property
    def elements(self) -> int:
        return prod(self.shape)

    def overlaps(self, other: View) -> bool:
        """Say whether two contiguous views have a byte in common."""
        return self.address < other._end and other.address < self._end

    @property
    def bytes(self) -> int:
        return self.elements * ITEM_BYTES.get(self.dtype, 1)

    @property
    def _end(self) -> int:
        return self.address + self.bytes


class Buffer:
    """Memory of one device, row-major. `numpy()` copies it to the host (or shares it when emulated).

    Two buffers with equal `traits` are equal in all that a launch checks.
    """

    __slots__ = ("__weakref__", "_read", "_view", "address", "elements", "traits")

    def __init__(self, view: View, *, read: Callable[[View], npt.NDArray[Any]]) -> None:
        self._view = view
        self._read = read
        self.address, self.elements = view.address, view.elements
        self.traits = _number_of(view)

    @property
    def view(self) -> View:
        return self._view

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


_MOST_ALIGNED = 1024  # bytes; no instruction asks for more
_traits: dict[tuple[Any, ...], int] = {}


def _number_of(view: View) -> int:
    traits = (view.dtype, view.device, view.contiguous, view.writable, gcd(view.address, _MOST_ALIGNED))
    return _traits.setdefault(traits, len(_traits))


def numpy_dtype(name: str) -> npt.DTypeLike:
    """Return the numpy dtype of a name; bfloat16 comes from ml_dtypes. Raises MissingExtra without it."""
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ModuleNotFoundError as error:
        raise MissingExtra("ml_dtypes", "onnx") from error

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
    return View(
        array.ctypes.data, _name(array.dtype), array.shape, contiguous, "host", array, bool(array.flags.writeable)
    )


def _torch_view(tensor: Any) -> View:
    device = "host" if tensor.device.type == "cpu" else str(tensor.device)
    dtype = str(tensor.dtype).removeprefix("torch.")
    plain = tensor.is_contiguous() and not tensor.is_neg()  # a negated view's memory holds the opposite
    return View(tensor.data_ptr(), dtype, tuple(tensor.shape), plain, device, tensor)


def _interface_view(operand: Any) -> View:
    interface = operand.__cuda_array_interface__
    dtype = np.dtype(interface["typestr"])
    shape, strides = tuple(interface["shape"]), interface.get("strides")
    contiguous = strides is None or dlpack.row_major(shape, tuple(strides), dtype.itemsize)
    address, read_only = interface["data"]
    # The protocol does not say which GPU; the driver knows it from the address.
    return View(address, _name(dtype), shape, contiguous, "cuda", operand, not read_only)


def _name(dtype: np.dtype[Any]) -> str:
    """Name a dtype; a foreign byte order keeps its mark (">f4"), so that it equals no parameter's dtype."""
    return dtype.name if dtype.isnative else dtype.str
