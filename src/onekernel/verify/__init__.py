"""Proof: numbers, speed and footprint become one verdict. Takes callables, arrays and metrics, opens no files."""

from __future__ import annotations

from onekernel.verify.compare import Comparison, compare
from onekernel.verify.limits import LIMITS, Limit
from onekernel.verify.numbers import Metric
from onekernel.verify.plan import Plan
from onekernel.verify.sides.subject import Subject
from onekernel.verify.speed import Speed
from onekernel.verify.story import verify
from onekernel.verify.verdict import Verdict

__all__ = ["LIMITS", "Comparison", "Limit", "Metric", "Plan", "Speed", "Subject", "Verdict", "compare", "verify"]
