"""Proof: numbers, speed and footprint become one verdict. Takes arrays and callables, opens no files."""

from __future__ import annotations

from onekernel.verify.compare import Comparison, compare, relative_error
from onekernel.verify.limits import LIMITS, Limit, find
from onekernel.verify.measure import Timing, measure
from onekernel.verify.verdict import Speed, Verdict

__all__ = [
    "LIMITS",
    "Comparison",
    "Limit",
    "Speed",
    "Timing",
    "Verdict",
    "compare",
    "find",
    "measure",
    "relative_error",
]
