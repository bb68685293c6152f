"""The first dimension: do both sides compute the same?"""

from __future__ import annotations

from onekernel.verify.numbers.judge import Metric, Numbers, Sides, judge

__all__ = ["Metric", "Numbers", "Sides", "judge"]
