"""The second dimension: is it faster, beyond what the machine does by itself?"""

from __future__ import annotations

from onekernel.verify.speed.measure import Speed, measure
from onekernel.verify.speed.statistics import Change
from onekernel.verify.speed.timing import Timing

__all__ = ["Change", "Speed", "Timing", "measure"]
