"""Whether kernels run is not inferred but tried: a small one is built, loaded, run, and its result compared.

It is built past the cache, since what lies there says nothing about the compiler.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

from onekernel.device.cuda import driver
from onekernel.doctor.health import Check, one_line

_KERNEL = """
#include "primitives.cuh"
extern "C" __global__ void doctor(const int* x, int* y) { y[threadIdx.x] = x[threadIdx.x] + 1; }
"""


def on_a_gpu() -> Iterator[Check]:
    """Try the first GPU."""
    from onekernel.device import get, gpu_count

    if not driver.driver() or not gpu_count():
        yield Check("run on a GPU", "note", "there is no usable GPU", "see the driver above")
    else:
        yield _try("run on a GPU", lambda: get("cuda"))


def emulated() -> Iterator[Check]:
    """Try the emulated device."""
    from onekernel.device.emulated import EmulatedDevice

    if shutil.which("g++") is None:
        yield Check("run emulated", "note", "there is no g++", "see g++ above")
    else:
        yield _try("run emulated", lambda: EmulatedDevice(sanitize=True))


def _try(name: str, place: Callable[[], Any]) -> Check:
    try:
        right = _runs(place())
    except Exception as error:
        return Check(name, "problem", one_line(error), "see the checks above")
    if not right:
        return Check(name, "problem", "a small kernel gave a wrong result", "report it, with this page")
    return Check(name, "ok", "a small kernel was built and gave the right result")


def _runs(place: Any) -> bool:
    import numpy as np

    from onekernel.jit import Kernel, KernelRequest, Parameter
    from onekernel.jit.build import build_request

    parameters = (Parameter("x", "const int*"), Parameter("y", "int*"))
    request = KernelRequest("doctor", place.arch, parameters, source=_KERNEL, threads=32)
    binary = build_request(request, emulate=place.emulated, sanitize=place.sanitize)
    x, y = (place.upload(np.full(32, value, np.int32)) for value in (41, 0))
    Kernel(request, place, binary).launch(x, y, grid=1)
    return bool((y.numpy() == 42).all())
