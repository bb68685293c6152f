"""How long a call takes, in device time, with the spread that says how far to trust it.

It takes callables and knows nothing of what they do. Event times come from the device that runs the work;
on the emulated device there is no time worth reporting, and it says so.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Seconds per call over some samples; `clock` says whose clock was read."""

    samples: tuple[float, ...]
    clock: str

    @property
    def median(self) -> float:
        """The middle sample, in seconds."""
        return statistics.median(self.samples)

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles over the median."""
        if len(self.samples) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.samples, n=4)
        return (high - low) / 2 / self.median if self.median else 0.0


def measure(
    call: Callable[[], object],
    *,
    repeats: int = 20,
    warmup: int = 3,
    synchronize: Callable[[], object] | None = None,
) -> Timing:
    """Time a call on the host's clock, waiting for the device with `synchronize` before each reading."""
    wait = synchronize or (lambda: None)
    for _ in range(warmup):
        call()
    samples = []
    for _ in range(repeats):
        wait()
        start = time.perf_counter()
        call()
        wait()
        samples.append(time.perf_counter() - start)
    return Timing(tuple(samples), "host clock around synchronisation")
