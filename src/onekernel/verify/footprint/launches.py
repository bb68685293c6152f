"""How many kernels the GPU runs for one request, as torch's profiler sees them: whoever launched them."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

_NOT_KERNELS = ("Memcpy", "Memset")


def launches(call: Callable[[], object], settle: Callable[[], object]) -> int | None:
    """Count the kernels of one call; None without torch or where its profiler sees nothing of the GPU."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    from torch.profiler import ProfilerActivity, profile

    with warnings.catch_warnings(action="ignore"), profile(activities=[ProfilerActivity.CUDA]) as record:
        call()
        settle()
    seen = [event for event in record.events() if "CUDA" in str(event.device_type)]
    return sum(not event.name.startswith(_NOT_KERNELS) for event in seen) if seen else None
