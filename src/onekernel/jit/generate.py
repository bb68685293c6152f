"""KernelRequest -> CUDA text: a banner, the constants, and a kernel of about a dozen calls to kernels/*.cuh."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np

from onekernel.jit.request import KernelRequest, Line


def kernel_text(request: KernelRequest) -> str:
    """Write the text that is compiled, for any architecture and for the emulated device alike."""
    lines = [f"// {request.name} for {request.arch}, {request.threads} threads a block"]
    lines += [f'#include "{header}"' for header in request.headers]
    lines += ["", *(_constant(name, value) for name, value in request.constants)]
    if request.source:
        return "\n".join([*lines, '#line 1 "source"', request.source.rstrip(), *_declaration(request), ""])
    lines += ["", *_signature(request)]
    lines += _numbered(request.body, first=len(lines) + 1)
    return "\n".join([*lines, "}", ""])


def float_literal(value: float) -> str:
    """Round to float32 and spell that; non-finite values have no CUDA literal and are written as quotients."""
    value = ctypes.c_float(value).value  # infinite beyond the range, as a cast is
    if value != value:
        return "(0.0f / 0.0f)"
    if value in (float("inf"), float("-inf")):
        return "(1.0f / 0.0f)" if value > 0 else "(-1.0f / 0.0f)"
    return f"{np.float32(value)!s}f"  # the shortest text that reads back as this float


def _constant(name: str, value: float) -> str:
    if isinstance(value, float):
        return f"constexpr float {name} = {float_literal(value)};"
    return f"constexpr {'int' if -(2**31) <= value < 2**31 else 'long long'} {name} = {value};"


def _declaration(request: KernelRequest) -> list[str]:
    """Declare a hand-written kernel again: the compiler refuses one that is absent or has other parameters."""
    types = ", ".join(parameter.type for parameter in request.parameters)
    return [
        '#line 1 "parameters"',
        f"static_assert(sizeof(&{request.name}) != 0);",
        f'extern "C" __global__ void {request.name}({types});',
    ]


def _signature(request: KernelRequest) -> list[str]:
    bounds = f"{request.threads}, {request.min_blocks}" if request.min_blocks else f"{request.threads}"
    parameters = ", ".join(f"{parameter.type} {parameter.name}" for parameter in request.parameters)
    return [f'extern "C" __global__ void __launch_bounds__({bounds})', f"{request.name}({parameters}) {{"]


def _numbered(body: tuple[Line, ...], *, first: int) -> Iterator[str]:
    """Put `#line` around lines with an origin, so that the compiler itself reports the chain node."""
    number, foreign = first, False
    for line in body:
        if line.origin:
            name = line.origin.replace("\\", "\\\\").replace('"', '\\"')
            yield f'#line 1 "{name}"'
            number += 1
        elif foreign:
            number += 1
            yield f'#line {number} "kernel.cu"'
        yield line.text
        number += 1
        foreign = bool(line.origin)
    if foreign:
        yield f'#line {number + 1} "kernel.cu"'
