"""The driver API behind one call that raises. Without a driver, `driver()` is None and nothing else breaks.

CUDA does not survive a fork: in a child of a process that has used it, every call fails, and says so here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any

from onekernel.errors import DeviceError


@cache
def driver() -> Any:
    """Return cuda.bindings.driver after cuInit, or None when there is no usable driver."""
    import ctypes

    try:
        ctypes.CDLL("libcuda.so.1")  # cuda-bindings raises several kinds of errors when it is absent
    except OSError:
        return None
    from cuda.bindings import driver as cuda

    return cuda if cuda.cuInit(0)[0] == cuda.CUresult.CUDA_SUCCESS else None


_AFTER_FORK = "this process was forked after CUDA was used: start workers by multiprocessing's spawn, or fork earlier"
_lost = False  # this process was forked from one that had used CUDA


def _note_fork() -> None:
    global _lost
    _lost = _lost or driver.cache_info().currsize > 0


os.register_at_fork(after_in_child=_note_fork)


def call(function: Callable[..., tuple[Any, ...]], *arguments: Any) -> Any:
    """Call a driver function; return its result without the status. Raises DeviceError as `check` does."""
    return check(function, function(*arguments))


def check(function: Callable[..., tuple[Any, ...]], result: tuple[Any, ...]) -> Any:
    """Return what a driver function gave, without the status.

    Raises DeviceError with the function's name and the driver's words.
    """
    status, *results = result
    if int(status) != 0:
        cuda = driver()
        text = cuda.cuGetErrorString(status)[1]
        words = text.decode() if text else str(status)
        message = f"{function.__name__} failed: {words} ({getattr(status, 'name', status)})"
        raise DeviceError(f"{message}; {_AFTER_FORK}" if _lost else message)
    return results[0] if len(results) == 1 else tuple(results) if results else None
