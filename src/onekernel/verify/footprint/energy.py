"""Joules per request, from the GPU's own counter over windows of back-to-back work.

The counter (NVML, since boot) is read where it changes: it is updated every 10 to 100 ms, and a window that began or
ended between two updates would be off by one. Power is joules over seconds; NVML's own power reading is an average
over a time that differs between GPUs (Yang et al., Part-time power measurements, 2023).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from onekernel.verify.progress import Progress
from onekernel.verify.speed.statistics import Change

if TYPE_CHECKING:
    from onekernel.device.cuda.nvml import Meter

_UPDATE = 0.5  # seconds by which the counter must have changed
_ORDER = ("before", "after", "after", "before")


def energy(
    meter: Meter, calls: Mapping[str, Callable[[], object]], seconds: float
) -> tuple[list[Change], dict[str, Any]]:
    """Return energy per request (J) and mean power (W), and the GPU's clocks and heat at the end of each side's work.

    The intervals are those of all pairs of windows.
    """
    states: dict[str, Any] = {}
    joules: dict[str, list[float]] = {name: [] for name in calls}
    watts: dict[str, list[float]] = {name: [] for name in calls}
    progress = Progress("reading energy")
    for number, name in enumerate(_ORDER):
        progress.tell(number, len(_ORDER))
        spent, lasted, requests = _window(meter, calls[name], seconds)
        joules[name].append(spent / requests)
        watts[name].append(spent / lasted)
        states[name] = meter.state()
    return [_change("energy per request", "J", joules), _change("mean power", "W", watts)], states


def _window(meter: Meter, call: Callable[[], object], seconds: float) -> tuple[float, float, int]:
    _until_update(meter, call)
    start, begin = meter.joules(), time.perf_counter()
    requests, end = 0, begin + seconds
    while time.perf_counter() < end:
        call()
        requests += 1
    requests += _until_update(meter, call)
    return meter.joules() - start, time.perf_counter() - begin, requests


def _until_update(meter: Meter, call: Callable[[], object]) -> int:
    """Work on until the counter changes; return how many requests that were."""
    known, end, requests = meter.joules(), time.perf_counter() + _UPDATE, 0
    while meter.joules() == known and time.perf_counter() < end:
        call()
        requests += 1
    return requests


def _change(what: str, unit: str, windows: dict[str, list[float]]) -> Change:
    before, after = windows["before"], windows["after"]
    pairs = [two / one for two in after for one in before if one]
    low, high = (min(pairs), max(pairs)) if pairs else (1.0, 1.0)
    return Change(what, unit, sum(before) / len(before), sum(after) / len(after), low, high, len(before))
