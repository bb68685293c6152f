"""The driver API behind one call that raises. Without a driver, `driver()` is None and nothing else breaks.

CUDA does not survive a fork: in a child of a process that has used it, every call fails, and says so here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any

from onekernel.device.cuda.advice import ADVICE
from onekernel.errors import DeviceError


@cache
def driver() -> Any:
    """Return cuda.bindings.driver after cuInit, or None when there is no usable driver."""
    cuda = _binding()
    return cuda if cuda and cuda.cuInit(0)[0] == cuda.CUresult.CUDA_SUCCESS else None


@cache
def refusal() -> str | None:
    """Return what is wrong with libcuda.so.1 in the words of who refuses it; None when it can be asked."""
    import ctypes

    try:
        ctypes.CDLL("libcuda.so.1")  # cuda-bindings raises several kinds of errors when it is absent
    except OSError as error:
        return str(error)
    from cuda.bindings import driver as cuda

    try:
        cuda.cuDriverGetVersion()
    except RuntimeError as error:  # a driver from before CUDA 12, or no driver at all
        return str(error)
    return None


@cache
def _binding() -> Any:
    if refusal() is not None:
        return None
    from cuda.bindings import driver as cuda

    return cuda


def init_status() -> int | None:
    """Return what cuInit answers, 0 being well; None without a driver's library; see `refusal`."""
    cuda = _binding()
    return int(cuda.cuInit(0)[0]) if cuda else None


@cache
def version() -> tuple[int, int] | None:
    """Return the newest CUDA version that the driver knows, major and minor; None without a driver."""
    cuda = _binding()
    status, number = cuda.cuDriverGetVersion() if cuda else (1, 0)
    return (int(number) // 1000, int(number) % 1000 // 10) if int(status) == 0 and number else None


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
        advice = _AFTER_FORK if _lost else ADVICE.get(int(status))
        message = f"{function.__name__} failed: {words} ({getattr(status, 'name', status)})"
        raise DeviceError(f"{message}; {advice}" if advice else message, int(status))
    return results[0] if len(results) == 1 else tuple(results) if results else None
