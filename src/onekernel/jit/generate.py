"""KernelRequest -> CUDA text: a banner, the constants, and a kernel of about a dozen calls to kernels/*.cuh."""

from __future__ import annotations

from collections.abc import Iterator

from onekernel.jit.request import KernelRequest, Line, Parameter


def kernel_text(request: KernelRequest) -> str:
    """Write the text that is compiled, for any architecture and for the emulated device alike."""
    lines = [f"// {request.name} for {request.arch}, {request.threads} threads a block"]
    lines += [f'#include "{header}"' for header in request.headers]
    lines += ["", *(_constant(name, value) for name, value in request.constants)]
    if request.source:
        return "\n".join([*lines, '#line 1 "source"', request.source.rstrip(), ""])
    lines += ["", *_signature(request)]
    lines += _numbered(request.body, first=len(lines) + 1)
    return "\n".join([*lines, "}", ""])


def float_literal(value: float) -> str:
    """Spell a float32 exactly; non-finite values have no CUDA literal and are written as quotients."""
    if value != value:
        return "(0.0f / 0.0f)"
    if value in (float("inf"), float("-inf")):
        return "(1.0f / 0.0f)" if value > 0 else "(-1.0f / 0.0f)"
    text = f"{value:.9g}"
    return f"{text}f" if any(mark in text for mark in ".e") else f"{text}.0f"


def _constant(name: str, value: float) -> str:
    kind = "int" if isinstance(value, int) else "float"
    return f"constexpr {kind} {name} = {value if kind == 'int' else float_literal(value)};"


def _signature(request: KernelRequest) -> list[str]:
    bounds = f"{request.threads}, {request.min_blocks}" if request.min_blocks else f"{request.threads}"
    parameters = ", ".join(_declare(parameter) for parameter in request.parameters)
    return [f'extern "C" __global__ void __launch_bounds__({bounds})', f"{request.name}({parameters}) {{"]


def _declare(parameter: Parameter) -> str:
    return f"{parameter.type} {'__restrict__ ' if parameter.pointer else ''}{parameter.name}"


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
