"""The third dimension: what does it cost in memory, launches, compilation and energy?"""

from __future__ import annotations

from onekernel.verify.footprint.measure import Footprint, measure
from onekernel.verify.footprint.tally import Tally

__all__ = ["Footprint", "Tally", "measure"]
