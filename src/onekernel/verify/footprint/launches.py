"""How many kernels the GPU runs for one request, as torch's profiler sees them: whoever launched them."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from onekernel.verify.sides.place import Place

_NOT_KERNELS = ("Memcpy", "Memset")


def launches(call: Callable[[], object], place: Place) -> int | None:
    """Count the kernels of one call; None without torch or where its profiler sees nothing of the GPU."""
    if place.torch is None:
        return None
    from torch.profiler import ProfilerActivity, profile

    with warnings.catch_warnings(action="ignore"), profile(activities=[ProfilerActivity.CUDA]) as record:
        call()
        place.settle()
    seen = [event for event in record.events() if "CUDA" in str(event.device_type)]
    return sum(not event.name.startswith(_NOT_KERNELS) for event in seen) if seen else None
