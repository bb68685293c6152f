"""What is reported of many measurements of one thing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onekernel.verify.speed import Timing


@dataclass(frozen=True)
class Sample:
    """The median and half the distance between the quartiles, in the unit of the values."""

    median: float
    spread: float


def summary(values: Sequence[float]) -> Sample:
    """Summarise at least two values."""
    timing = Timing(tuple(values), "")
    return Sample(timing.median, timing.spread * timing.median)
