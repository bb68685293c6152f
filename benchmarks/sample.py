"""What is reported of many measurements of one thing."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """The median and half the distance between the quartiles, in the unit of the values."""

    median: float
    spread: float


def summary(values: Sequence[float]) -> Sample:
    """Summarise at least two values."""
    low, median, high = statistics.quantiles(values, n=4)
    return Sample(median, (high - low) / 2)
