"""CUDA text -> cubin for a named architecture, in this process, by NVRTC. Needs no GPU, toolkit or host compiler."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path
from typing import Any

from onekernel.errors import DeviceError, InvalidInput
from onekernel.jit.compile.binary import Binary, parse_resources
from onekernel.jit.compile.errors import explain
from onekernel.jit.headers import closure

OPTIONS = (
    "--std=c++17",
    "--device-as-default-execution-space",
    "--ptxas-options=-v",
    "-lineinfo",
    "--no-source-include",
)


@cache
def _nvrtc() -> Any:
    from cuda.bindings import nvrtc

    return nvrtc


@cache
def compiler_id() -> str:
    """Name the NVRTC build and our options for cache keys; the version is only major.minor, hence the file's size."""
    _, major, minor = _nvrtc().nvrtcVersion()
    from cuda.pathfinder import load_nvidia_dynamic_lib

    path = load_nvidia_dynamic_lib("nvrtc").abs_path
    size = Path(path).stat().st_size if path else 0
    return f"nvrtc {major}.{minor} ({size} bytes) {' '.join(OPTIONS)}"


@cache
def supported_archs() -> tuple[str, ...]:
    """Return the architectures this NVRTC builds cubins for, as sm_NN."""
    _, numbers = _nvrtc().nvrtcGetSupportedArchs()
    return tuple(f"sm_{number}" for number in numbers)


def check_arch(arch: str) -> None:
    """Raise InvalidInput when NVRTC cannot build for an architecture."""
    if arch.rstrip("af") not in supported_archs():
        raise InvalidInput(
            expected=f"an architecture that NVRTC builds for ({', '.join(supported_archs())})",
            got=repr(arch),
            todo="name one of them, or install a matching nvidia-cuda-nvrtc",
        )


def compile_cubin(name: str, text: str, arch: str) -> Binary:
    """Compile a text that defines one kernel.

    Raises CompileError (the text is wrong) or InvalidInput (the architecture is unknown to NVRTC).
    """
    check_arch(arch)
    nvrtc, start = _nvrtc(), time.perf_counter()
    headers = closure(text)
    created, program = nvrtc.nvrtcCreateProgram(
        text.encode(),
        b"kernel.cu",
        len(headers),
        [content.encode() for content in headers.values()],
        [include.encode() for include in headers],
    )
    _expect(created, "nvrtcCreateProgram")
    try:
        options = [f"--gpu-architecture={arch}".encode(), *(option.encode() for option in OPTIONS)]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        log = _read(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise explain(name, text, log)
        cubin = _read(program, "CUBIN")
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return Binary(cubin, parse_resources(log), time.perf_counter() - start, log)


def _read(program: Any, what: str) -> bytes:
    nvrtc = _nvrtc()
    status, size = getattr(nvrtc, f"nvrtcGet{what}Size")(program)
    _expect(status, f"nvrtcGet{what}Size")
    content = bytearray(size)
    (status,) = getattr(nvrtc, f"nvrtcGet{what}")(program, content)
    _expect(status, f"nvrtcGet{what}")
    return bytes(content)


def _expect(status: Any, function: str) -> None:
    if status != _nvrtc().nvrtcResult.NVRTC_SUCCESS:
        raise DeviceError(f"{function} failed: {status.name}")
