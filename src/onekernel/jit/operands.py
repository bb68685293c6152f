"""A kernel's parameters as a caller fills them: every operand is checked, then packed as the driver wants it.

A launch costs a microsecond or two, so there is a short way for what was accepted before: it reads only what can
differ from call to call. Anything unexpected takes the long way, which explains what is wrong. A function call for
each operand would cost more than the checks, so the short ways of all parameters are generated as one function.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from math import isinf
from typing import Any

import numpy as np

from onekernel.device import Device
from onekernel.device.buffer import ITEM_BYTES, Buffer, View, view
from onekernel.device.launch import Arguments
from onekernel.errors import InvalidOperand
from onekernel.jit.request import Parameter

_FORMATS = {"int": "i", "long long": "q", "float": "f"}
_INTEGERS = (int, np.integer)
_NUMBERS = (int, float, np.integer, np.floating)

Reader = Callable[[Any], Any]  # an operand -> the number to pack; raises InvalidOperand


class Signature:
    """The parameters of a kernel on a device."""

    def __init__(self, parameters: Sequence[Parameter], device: Device) -> None:
        self.parameters = tuple(parameters)
        self.pack: Callable[..., None] = _packer(self.parameters, device)  # (fill, *operands)
        self._layout, self._offsets = _layout(self.parameters)

    def arguments(self) -> Arguments:
        """Make memory for the arguments of a launch."""
        return Arguments(self._layout, self._offsets)

    def check_count(self, operands: Sequence[Any]) -> None:
        """Raise InvalidOperand unless there is one operand for each parameter."""
        if len(operands) != len(self.parameters):
            names = ", ".join(parameter.name for parameter in self.parameters)
            raise InvalidOperand(
                expected=f"{len(self.parameters)} operands ({names})",
                got=str(len(operands)),
                todo="give one for each parameter",
            )


def _layout(parameters: Sequence[Parameter]) -> tuple[struct.Struct, tuple[int, ...]]:
    """Lay parameters out by the host's alignment rules, which `struct` knows."""
    formats = ["P" if parameter.pointer else _FORMATS[parameter.type] for parameter in parameters]
    ends = [struct.calcsize("@" + "".join(formats[: index + 1])) for index in range(len(formats))]
    offsets = tuple(end - struct.calcsize(kind) for end, kind in zip(ends, formats, strict=True))
    return struct.Struct("@" + "".join(formats)), offsets


_BUFFER = "{0}.address if type({0}) is Buffer and {0}.traits in {0}_traits"
_TENSOR = (  # of torch; a negated view, whose memory holds the opposite, is not contiguous
    "{0}_address if type({0}) in {0}_types and {0}.dtype is {0}_dtype and {0}.device == {0}_device"
    " and {0}.is_contiguous() and ({0}_address := {0}.data_ptr()) and not {0}_address % {0}_unit"
)
_SHORT = {
    "pointer": f"{_BUFFER} else {_TENSOR} else {{0}}_read({{0}})",
    "float": "{0} if type({0}) is float and -1e38 < {0} < 1e38 else {0}_read({0})",
    "int": f"{{0}} if type({{0}}) is int and {-(2**31)} <= {{0}} < {2**31} else {{0}}_read({{0}})",
    "long long": f"{{0}} if type({{0}}) is int and {-(2**63)} <= {{0}} < {2**63} else {{0}}_read({{0}})",
}


def _packer(parameters: Sequence[Parameter], device: Device) -> Callable[..., None]:
    """Write the function that checks operands and fills them in; `pN_read` is the long way of parameter N."""
    names, known = [f"p{number}" for number in range(len(parameters))], dict[str, Any](Buffer=Buffer)
    values = []
    for name, parameter in zip(names, parameters, strict=True):
        kind = "pointer" if parameter.pointer else parameter.type
        values.append(_SHORT[kind].format(name))
        read = _pointer(name, parameter, device, known) if parameter.pointer else partial(_number, parameter)
        known[f"{name}_read"] = read
    exec(f"def pack({', '.join(['fill', *names])}):\n fill({', '.join(values)})", known)
    pack: Callable[..., None] = known["pack"]
    return pack


def _pointer(name: str, parameter: Parameter, device: Device, known: dict[str, Any]) -> Reader:
    """Read an address the long way, and let the short way know what passed: traits of Buffers, types of tensors."""
    traits, types = set[int](), set[type]()
    known |= {f"{name}_traits": traits, f"{name}_types": types, f"{name}_unit": ITEM_BYTES[parameter.dtype]}

    def read(operand: Any) -> int:
        where = check(parameter, view(operand), device)
        if where.elements and type(operand) is Buffer:
            traits.add(operand.traits)
        elif where.elements and hasattr(operand, "data_ptr"):
            known[f"{name}_dtype"], known[f"{name}_device"] = operand.dtype, operand.device
            types.add(type(operand))
        return where.address

    return read


def check(parameter: Parameter, where: View, device: Device) -> View:
    """Return the memory that an operand is, or raise InvalidOperand when a kernel must not use it."""
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


def _number(parameter: Parameter, value: Any) -> int | float:
    real = parameter.type == "float"
    if not isinstance(value, _NUMBERS if real else _INTEGERS) or isinstance(value, bool):
        raise _refuse(parameter, f"a number of type {parameter.type}", repr(value))
    number = _fitting(value, _FORMATS[parameter.type], real)
    if number is None:
        raise _refuse(parameter, f"a number that fits {parameter.type}", repr(value))
    return number


def _fitting(value: Any, kind: str, real: bool) -> int | float | None:
    """Return the number to pack, or None when it does not fit: an infinite float fits, one that overflows does not."""
    try:
        number = float(value) if real else int(value)
        struct.pack(f"<{kind}", number)  # the native format would let a float overflow
    except (OverflowError, struct.error):
        return None
    return None if isinf(number) and not isinf(value) else number


def _refuse(parameter: Parameter, expected: str, got: str) -> InvalidOperand:
    return InvalidOperand(
        expected=f"{expected} for parameter {parameter.name!r}",
        got=got,
        todo="convert or copy it before the launch",
    )
