"""Evidence made by hand, for tests of what follows from it."""

from __future__ import annotations

from typing import Any

import numpy as np

from onekernel.verify import Comparison, Speed, Verdict, compare
from onekernel.verify.footprint import Footprint
from onekernel.verify.limits import LIMITS, find
from onekernel.verify.speed import Change, Timing


def change(what: str, before: float, after: float, half: float = 0.001, **more: Any) -> Change:
    """Make a Change whose ratio is known to within `half` on either side."""
    ratio = after / before
    return Change(what, "s", before, after, ratio - half, ratio + half, more.pop("samples", 6000), **more)


def speed(before: float, after: float, half: float = 0.001, **more: Any) -> Speed:
    """Make a Speed of two median times in seconds; `more` overrides fields."""
    fields: dict[str, Any] = {
        "whole": tuple(change(name, before, after, half) for name in ("P50", "P95", "P99")),
        "noise": tuple(change(name, before, before, half) for name in ("P50", "P95", "P99")),
        "floor": 0.02,
    }
    return Speed(Timing((before,) * 3, "made up"), Timing((after,) * 3, "made up"), **{**fields, **more})


def comparison(error: float = 0.0) -> Comparison:
    """Compare two float32 arrays that are off by about that much."""
    wanted = np.ones(3)
    return compare("y", (wanted * (1 + error)).astype(np.float32), wanted, find(LIMITS, "kernel", "float32"))


def verdict(measured: Speed | None, *costs: Change, **more: Any) -> Verdict:
    """Judge equal numbers with that speed and those costs."""
    return Verdict((comparison(),), measured, Footprint(costs), **more)
