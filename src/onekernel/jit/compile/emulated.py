"""CUDA text -> shared library for the emulated device. The text is the same; only the include root differs."""

from __future__ import annotations

import time

from onekernel.device import host_compiler, machine
from onekernel.device.machine import INCLUDE
from onekernel.device.parts import arch_number
from onekernel.jit.cache import digest
from onekernel.jit.compile.binary import Binary, Resources
from onekernel.jit.compile.errors import explain


def compiler_id(*, sanitize: bool = False) -> str:
    """Name the compiler, its options and the emulated machine for cache keys."""
    twin = [path.read_text(encoding="utf-8") for path in sorted(INCLUDE[0].rglob("*.*"))]
    flags = host_compiler.FLAGS + (host_compiler.SANITIZE if sanitize else ())
    return f"{host_compiler.version()} {' '.join(flags)} {digest(*twin)}"


def compile_emulated(name: str, text: str, arch: str, *, sanitize: bool = False) -> Binary:
    """Compile a text that defines one kernel, and add the entry that takes an array of argument pointers.

    Raises CompileError.
    """
    start = time.perf_counter()
    quoted = f'extern "C" const char emulated_text[] = R"onekernel({text})onekernel";'  # faults quote its lines
    entry = (
        f'extern "C" void emulated_{name}(void** arguments) {{ machine::call({name}, arguments); }}\n'
        f'extern "C" const unsigned* emulated_{name}_sizes() {{ return machine::Sizes<decltype({name})>::at; }}\n'
    )
    prelude = f'#define ONEKERNEL_ARCH {arch_number(arch)}\n#include "primitives.cuh"\n#line 1 "kernel.cu"\n'
    try:
        data = host_compiler.build(f"{prelude}{text}\n{entry}{quoted}\n", include=INCLUDE, name=name, sanitize=sanitize)
    except host_compiler.HostCompileError as failure:
        raise explain(name, text, str(failure)) from None
    return Binary(data, Resources(), time.perf_counter() - start)


def compile_machine() -> Binary:
    """Compile what runs the kernels. Raises CompileError."""
    start = time.perf_counter()
    try:
        data = machine.build()
    except host_compiler.HostCompileError as failure:
        raise explain("machine", machine.text(), str(failure)) from None
    return Binary(data, Resources(), time.perf_counter() - start)
