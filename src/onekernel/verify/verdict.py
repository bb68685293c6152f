"""Comparisons and timings in, one decision out: keep, reject or inconclusive.

A verdict is not a boolean: "not enough evidence" is neither yes nor no, so asking for its truth is an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NoReturn

from onekernel.verify.compare import Comparison
from onekernel.verify.measure import Timing

Decision = Literal["keep", "reject", "inconclusive"]


@dataclass(frozen=True)
class Speed:
    """The same work before and after, timed in the same way."""

    before: Timing
    after: Timing

    @property
    def gain(self) -> float:
        """How many times faster the work became."""
        return self.before.median / self.after.median

    @property
    def noise(self) -> float:
        """The relative difference below which the two cannot be told apart."""
        return self.before.spread + self.after.spread


@dataclass(frozen=True)
class Verdict:
    """What the evidence says; `doubts` are reasons why it is not enough."""

    numbers: tuple[Comparison, ...]
    speed: Speed | None = None  # None = not measured
    doubts: tuple[str, ...] = ()

    @property
    def decision(self) -> Decision:
        """Wrong or slower is rejected; no comparison, or a doubt, is inconclusive."""
        if self.doubts or not self.numbers:
            return "inconclusive"
        if not all(item.passed for item in self.numbers):
            return "reject"
        if self.speed is not None and self.speed.gain < 1.0 - self.speed.noise:
            return "reject"
        return "keep"

    @property
    def worst(self) -> Comparison | None:
        """The comparison that is closest to its limit, or furthest beyond it."""
        return max(self.numbers, key=_closeness, default=None)

    @property
    def reason(self) -> str:
        """Say why in one line."""
        if self.doubts:
            return "; ".join(self.doubts)
        if self.worst is None:
            return "nothing was compared"
        if self.decision == "reject" and self.worst.passed and self.speed is not None:
            return f"slower: {self.speed.gain:.2f}x with {self.speed.noise:.0%} noise"
        return str(self.worst)

    def __bool__(self) -> NoReturn:
        """Refuse: three values do not fit in two."""
        raise TypeError('a Verdict has three values; compare verdict.decision with "keep", "reject" or "inconclusive"')


def _closeness(item: Comparison) -> tuple[bool, float]:
    return (not item.passed, item.error / item.limit.limit if item.limit.limit else item.error)
