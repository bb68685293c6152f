"""The emulated machine: the library of kernels/emulated/runtime.cpp, built by g++ or taken from a cache, and its calls.

There is one in a process. Who has a cache gives it with `use`; without that it is built when it is first needed.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import tempfile
import threading
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from onekernel.device import host_compiler, places

KERNELS = Path(str(files("onekernel"))) / "kernels"
INCLUDE = (KERNELS / "emulated", KERNELS)
_lock = threading.Lock()  # the machine runs one kernel at a time, and half a library must not be opened
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
_keep: list[Any] = []


class Range(ctypes.Structure):
    """machine::Range of kernels/emulated/runtime/state.hpp."""

    _fields_ = (("first", ctypes.c_size_t), ("end", ctypes.c_size_t), ("writable", ctypes.c_size_t))


class Launch(ctypes.Structure):
    """machine::Launch of kernels/emulated/runtime/state.hpp."""

    _fields_ = (
        ("kernel", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("cluster", ctypes.c_uint),
        ("overlap", ctypes.c_uint),
        ("cooperative", ctypes.c_uint),
        ("order", ctypes.c_uint),
        ("shared", ctypes.c_uint),
        ("shared_limit", ctypes.c_uint),
        ("sanitize", ctypes.c_uint),
        ("ranges", ctypes.c_uint),
        ("seed", ctypes.c_uint64),
        ("range", ctypes.POINTER(Range)),
    )


def ranges(operands: Sequence[Any]) -> Any:
    """Return the memory of operands as an array of Range."""
    arrays = [item for _, item in places.memory_of(operands)]
    found = [Range(item.address, item.address + item.bytes, item.writable) for item in arrays]
    return (Range * len(found))(*found)


def text() -> str:
    """Return what is built."""
    return (KERNELS / "emulated" / "runtime.cpp").read_text(encoding="utf-8")


def build() -> bytes:
    """Compile the machine. Raises HostCompileError, or InvalidInput where there is no g++."""
    return host_compiler.build(text(), include=INCLUDE, name="runtime")


def is_open() -> bool:
    """Say whether this process has its machine."""
    return bool(_opened)


def use(binary: bytes) -> None:
    """Make a build the machine of this process, unless it has one."""
    with _lock:
        if not _opened:
            _open(binary)


def load(binary: bytes, symbol: str) -> int:
    """Load a kernel; return the address of a function in it."""
    with _lock:
        if not _opened:
            _open(build())
        library = _open_library(binary)
    return ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value or 0


def run(launch: Launch) -> str | None:
    """Run a kernel that was loaded to its end; return the message of what stopped it."""
    with _lock:
        message = _opened[0].onekernel_emulate(ctypes.byref(launch))
    return None if message is None else message.decode()


_opened: list[ctypes.CDLL] = []


def _open(binary: bytes) -> None:
    library = _open_library(binary, ctypes.RTLD_GLOBAL)
    library.onekernel_emulate.restype = ctypes.c_char_p
    library.onekernel_emulate.argtypes = [ctypes.POINTER(Launch)]
    _opened.append(library)


@cache
def _scratch() -> Path:
    folder = tempfile.TemporaryDirectory(prefix="onekernel-emulated-")
    _keep.append(folder)
    return Path(folder.name)


def _open_library(binary: bytes, mode: int = ctypes.DEFAULT_MODE) -> ctypes.CDLL:
    """Load a shared library from memory; equal bytes are loaded once. Kernels keep their symbols to themselves."""
    path = _scratch() / f"{hashlib.sha256(binary).hexdigest()[:32]}.so"
    if not path.exists():
        path.write_bytes(binary)
    return ctypes.CDLL(str(path), mode=mode)
