"""Imported in a process on the stub driver: what is compiled "for the GPU" there is an emulated kernel.

Also a pytest plugin: `pytest -p stub_driver.emulate`.
"""

from __future__ import annotations

import ctypes
from typing import Any

from onekernel.device import machine
from onekernel.jit import warmup
from onekernel.jit.compile import emulated, nvrtc


def _compile(name: str, text: str, target: Any) -> Any:
    arch = target if isinstance(target, str) else target.arch
    return emulated.compile_emulated(name, text, arch)


nvrtc.compile_cubin = _compile
nvrtc.compiler_id = emulated.compiler_id
# Workers are processes of their own: they would compile for a GPU.
warmup._shared = lambda requests, emulate, sanitize, _, tell: warmup._one_by_one(requests, emulate, sanitize, tell)
machine.use(machine.build())  # the stub finds it in the process


def calls(name: str | None = None) -> int:
    """Return how often a driver function was called; None counts all of them."""
    function = ctypes.CDLL("libcuda.so.1").stub_calls
    function.restype = ctypes.c_uint64
    return int(function(name.encode() if name else None))
