"""All that was found, and one decision: keep, reject or inconclusive.

A verdict is not a boolean: "not enough evidence" is neither yes nor no, so asking for its truth is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from onekernel.verify.compare import Comparison
from onekernel.verify.footprint import Footprint
from onekernel.verify.limits import LIMITS, Limit
from onekernel.verify.rules import Decision, Evidence, Ruling, closeness, decide
from onekernel.verify.speed import Speed


@dataclass(frozen=True)
class Verdict:
    """What the evidence says. `doubts` are reasons why the numbers are none; `divergence` is the first part off."""

    numbers: tuple[Comparison, ...]
    speed: Speed | None = None  # None = not measured
    footprint: Footprint | None = None
    doubts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    divergence: Comparison | None = None
    expect: str = ""
    limits: Sequence[Limit] = LIMITS

    @cached_property
    def ruling(self) -> Ruling:
        """The decision with the rule that made it; see `verify.rules`."""
        return decide(Evidence(self.numbers, self.speed, self.footprint, self.doubts, self.limits, self.expect))

    @property
    def decision(self) -> Decision:
        """Keep, reject or inconclusive."""
        return self.ruling.decision

    @property
    def rule(self) -> str:
        """The name of the rule that decided."""
        return self.ruling.rule

    @property
    def reason(self) -> str:
        """Say why in one line."""
        where = f"; the first part that is off is {self.divergence}" if self.divergence else ""
        return self.ruling.reason + where

    @property
    def worst(self) -> Comparison | None:
        """The comparison that is closest to its limit, or furthest beyond it."""
        return max(self.numbers, key=closeness, default=None)

    def record(self) -> dict[str, Any]:
        """Write everything as JSON values."""
        from onekernel.verify.record import record

        return record(self)

    def save_picture(self, path: str | Path) -> Path:
        """Draw both sides' times and where they went. Raises MissingExtra without matplotlib."""
        from onekernel.verify.picture import save

        return save(self, Path(path))

    def __bool__(self) -> NoReturn:
        """Refuse: three values do not fit in two."""
        raise TypeError('a Verdict has three values; compare verdict.decision with "keep", "reject" or "inconclusive"')
