"""Time that passes only when it is told to: what is measured is exact, whatever the machine is doing."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np

READERS = (
    "speed.timing", "speed.requests", "speed.parts", "speed.measure", "speed.load", "numbers.judge", "sides.place",
    "footprint.energy",
)  # fmt: skip


class Clock:
    """Stands in for the module `time`. Reading it takes a nanosecond, so that a loop which waits for a time ends."""

    def __init__(self) -> None:
        self.now, self.random = 1.0, np.random.default_rng(0)

    def perf_counter(self) -> float:
        self.now += 1e-9
        return self.now

    monotonic = perf_counter

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 1e-6)

    def spend(self, seconds: float, noise: float = 0.002) -> None:
        """Let about that much time pass; the noise is relative."""
        self.now += seconds * (1 + noise * abs(self.random.standard_normal()))


@contextmanager
def simulated() -> Iterator[Clock]:
    """Give `verify` a simulated clock."""
    clock = Clock()
    modules = [importlib.import_module(f"onekernel.verify.{name}") for name in READERS]
    patches = [mock.patch.object(module, "time", clock) for module in modules]
    for patch in patches:
        patch.start()
    try:
        yield clock
    finally:
        for patch in patches:
            patch.stop()
