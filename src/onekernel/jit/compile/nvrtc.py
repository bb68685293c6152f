"""CUDA text -> cubin for a named architecture, in this process, by NVRTC. Needs no GPU, toolkit or host compiler.

For an architecture newer than this NVRTC the result is PTX instead; see target.py.
"""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path
from typing import Any

from onekernel.device.cuda import driver
from onekernel.errors import DeviceError, InvalidInput
from onekernel.jit.compile.binary import Binary, parse_resources
from onekernel.jit.compile.build_id import build_id
from onekernel.jit.compile.errors import explain
from onekernel.jit.compile.target import Target, Version, target_for
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
    """Return the binding with its library loaded. Raises InvalidInput when there is none."""
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError, OSError) as error:  # what the library's finder raises differs by version
        raise InvalidInput(
            expected="the library NVRTC, which compiles kernels",
            got=" ".join(str(error).split()) or type(error).__name__,
            todo="install it with: pip install 'nvidia-cuda-nvrtc>=13,<14'",
        ) from error
    return nvrtc


@cache
def library() -> Path | None:
    """Return the file that NVRTC was loaded from; None when the system does not tell."""
    from cuda.pathfinder import load_nvidia_dynamic_lib

    _nvrtc()
    path = load_nvidia_dynamic_lib("nvrtc").abs_path
    return Path(path) if path else None


@cache
def version() -> Version:
    """Return NVRTC's version, major and minor. Raises InvalidInput when there is no NVRTC."""
    _, major, minor = _nvrtc().nvrtcVersion()
    return major, minor


@cache
def build() -> str:
    """Identify the build, of which there are several to a version: by its linker's identifier, else size and time."""
    path = library()
    if path is None:
        return "unknown"
    info = path.stat()
    return (build_id(path) or f"{info.st_size:x}-{info.st_mtime_ns:x}")[:32]


@cache
def compiler_id() -> str:
    """Name the NVRTC build and our options for cache keys."""
    return f"nvrtc {'.'.join(map(str, version()))} build {build()} {' '.join(OPTIONS)}"


@cache
def supported_archs() -> tuple[str, ...]:
    """Return the architectures this NVRTC builds cubins for, as sm_NN."""
    _, numbers = _nvrtc().nvrtcGetSupportedArchs()
    return tuple(f"sm_{number}" for number in numbers)


def check_arch(arch: str) -> Target:
    """Return what is built for an architecture here. Raises InvalidInput when nothing can be."""
    return target_for(arch, known=supported_archs(), nvrtc=version(), driver=driver.version())


def compile_cubin(name: str, text: str, arch: str) -> Binary:
    """Compile a text that defines one kernel.

    Raises CompileError (the text is wrong) or InvalidInput (nothing can be built for the architecture here).
    """
    target = check_arch(arch)
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
        options = [f"--gpu-architecture={target.option}".encode(), *(option.encode() for option in OPTIONS)]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        log = _read(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise explain(name, text, log)
        code = _read(program, "CUBIN" if target.kind == "cubin" else "PTX")
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return Binary(code, parse_resources(log), time.perf_counter() - start, log)


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
