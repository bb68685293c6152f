"""A kernel's parameters as a caller fills them: every operand is checked, then packed as the driver wants it.

A launch costs a microsecond or two, so there is a short way for what was accepted before: it reads only what can
differ from call to call. Anything unexpected takes the long way, which explains what is wrong. A function call for
each operand would cost more than the checks, so a kernel's launch is generated as one function with all short ways.
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
from onekernel.jit.request import KernelRequest, Parameter

_FORMATS = {"int": "i", "long long": "q", "float": "f"}
_INTEGERS = (int, np.integer)
_NUMBERS = (int, float, np.integer, np.floating)


class Signature:
    """The parameters of a kernel on a device.

    `short` has one expression for each parameter: the number to pack, from an operand called p0, p1 ...; `known` is
    what the expressions refer to, and `read_first` are statements that must come before them. `function` makes a
    kernel's launch of these.
    """

    def __init__(self, request: KernelRequest, device: Device) -> None:
        self.parameters = request.parameters
        self.names = tuple(f"p{number}" for number in range(len(self.parameters)))
        self.known: dict[str, Any] = {"Buffer": Buffer}
        self.short: list[str] = []
        self.read_first: list[str] = []
        sizes = dict(request.constants) | {p.name: name for p, name in zip(self.parameters, self.names, strict=True)}
        for name, parameter in zip(self.names, self.parameters, strict=True):
            if parameter.pointer:
                self._add_pointer(name, parameter, device, sizes)
            else:
                self.known[f"{name}_read"] = partial(_number, parameter)
                self.read_first.append(f"{name} = {_SHORT[parameter.type].format(name)}")
                self.short.append(name)
        self._layout, self._offsets = _layout(self.parameters)
        self.pack = self.function("pack", "fill, {operands}", ["fill({values})"])

    def arguments(self) -> Arguments:
        """Make memory for the arguments of a launch."""
        return Arguments(self._layout, self._offsets)

    def function(self, name: str, parameters: str, lines: Sequence[str], **known: Any) -> Callable[..., None]:
        """Generate a function; {operands} stands for p0, p1 ... and {values} for the checked numbers to pack.

        Every operand has a default, which no check accepts, so that a missing one is refused like a wrong one.
        """
        self.known |= {"absent": _ABSENT, "refuse_count": self._refuse_count, **known}
        operands, given = ", ".join(f"{p}=absent" for p in self.names), ", ".join(self.names)
        missing = f" or {self.names[-1]} is absent" if self.names else ""
        count = f"if more{missing}: refuse_count({given and given + ','} *more)"
        body = [count, *self.read_first, *lines]
        text = "\n    ".join([f"def {name}({parameters}):", *body])
        text = text.replace("{operands}", ", ".join(filter(None, (operands, "*more"))))
        exec(text.replace("{values}", ", ".join(self.short)), self.known)
        made: Callable[..., None] = self.known[name]
        return made

    def _add_pointer(self, name: str, parameter: Parameter, device: Device, sizes: dict[str, Any]) -> None:
        """Write the short way of a tensor, and let it know what passed the long way: traits and types."""
        need = parameter.count(sizes)
        traits, types, known = set[int](), set[type](), self.known

        def read(operand: Any, least: int) -> int:
            where = check(parameter, view(operand), device)
            if where.elements < least:
                expected = f"at least {least} elements ({parameter.elements})"
                raise _refuse(parameter, expected, f"{where.elements} in shape {where.shape}")
            if where.elements and type(operand) is Buffer:
                traits.add(operand.traits)
            elif where.elements and hasattr(operand, "data_ptr"):
                known[f"{name}_dtype"], known[f"{name}_device"] = operand.dtype, operand.device
                types.add(type(operand))
            return where.address

        known |= {f"{name}_traits": traits, f"{name}_types": types, f"{name}_unit": alignment_of(parameter)}
        known[f"{name}_read"] = read
        enough = [f" and {name}.{size} >= {need}" for size in ("elements", "numel()")] if need else ["", ""]
        buffer, tensor = _BUFFER.format(name) + enough[0], _TENSOR.format(name) + enough[1]
        self.short.append(f"{buffer} else {tensor} else {name}_read({name}, {need or 0})")

    def _refuse_count(self, *operands: Any) -> None:
        names = ", ".join(parameter.name for parameter in self.parameters)
        given = sum(operand is not _ABSENT for operand in operands)
        raise InvalidOperand(
            expected=f"{len(self.parameters)} operands ({names})",
            got=str(given),
            todo="give one for each parameter",
        )


_ABSENT = object()


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
    "float": "{0} if type({0}) is float and -1e38 < {0} < 1e38 else {0}_read({0})",
    "int": f"{{0}} if type({{0}}) is int and {-(2**31)} <= {{0}} < {2**31} else {{0}}_read({{0}})",
    "long long": f"{{0}} if type({{0}}) is int and {-(2**63)} <= {{0}} < {2**63} else {{0}}_read({{0}})",
}


def alignment_of(parameter: Parameter) -> int:
    """Return what an address must be a multiple of, in bytes."""
    return parameter.alignment or ITEM_BYTES[parameter.dtype]


def check(parameter: Parameter, where: View, device: Device) -> View:
    """Return the memory that an operand is, or raise InvalidOperand when a kernel must not use it."""
    if where.dtype != parameter.dtype:
        raise _refuse(parameter, f"dtype {parameter.dtype}", where.dtype)
    if not where.contiguous:
        raise _refuse(parameter, "a row-major contiguous tensor", f"a strided view of shape {where.shape}")
    if where.address % (unit := alignment_of(parameter)):
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
