"""Small hand-written kernels on the emulated device, for the tests of that device."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from onekernel.device.emulated import EmulatedDevice, Order
from onekernel.jit import Kernel, KernelRequest, Parameter

PRIMITIVES = (
    "primitives",
    "primitives/warp",
    "primitives/atomic",
    "primitives/wait",
    "primitives/copy",
    "grid_barrier",
)
ORDERS = [pytest.param(order, id=order.name.lower()) for order in Order]


def small_kernel(body: str, parameters: str = "int* y", *, arch: str = "sm_90", **asked: Any) -> Kernel:
    """Build `extern "C" __global__ void small(parameters) { body }`.

    The body begins at line 2 of "source". `asked`: fields of the request, and order, seed, sanitize of the emulated
    device or another device.
    """
    machine = {key: asked.pop(key) for key in ("order", "seed", "sanitize") if key in asked}
    device = asked.pop("device", None) or EmulatedDevice(arch, **machine)
    headers = tuple(f"{name}.cuh" for name in (*PRIMITIVES, *asked.pop("headers", ())))
    typed = tuple(
        Parameter(name, kind.strip()) for kind, name in (item.rsplit(" ", 1) for item in parameters.split(", "))
    )
    source = f'extern "C" __global__ void small({parameters}) {{\n{body}\n}}'
    request = KernelRequest("small", arch, typed, asked.pop("threads", 1024), headers, source=source, **asked)
    return Kernel(request, device)


def orders(*seeds: int) -> list[tuple[Order, int]]:
    """Every order of threads, the random one with several seeds."""
    fixed = [(Order.ASCENDING, 0), (Order.DESCENDING, 0)]
    return fixed + list(product([Order.RANDOM], seeds or (1, 2)))
