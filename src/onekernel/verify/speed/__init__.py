"""The second dimension: is it faster, beyond what the machine does by itself?"""

from __future__ import annotations

from onekernel.verify.speed.measure import Speed, Timing, measure
from onekernel.verify.speed.statistics import Change

__all__ = ["Change", "Speed", "Timing", "measure"]
