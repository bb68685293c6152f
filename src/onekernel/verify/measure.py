"""How long a call takes, with the spread that says how far to trust it.

`measure` reads the host's clock around calls that end when their work has ended. Device time comes from
`device.graph`; a Timing holds either and says whose clock was read. It knows nothing of what is timed.
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


def measure(call: Callable[[], object], *, repeats: int = 20, warmup: int = 3) -> Timing:
    """Time a call that returns when its work has ended, on the host's clock."""
    for _ in range(warmup):
        call()
    samples = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        samples.append(time.perf_counter() - start)
    return Timing(tuple(samples), "host clock")
