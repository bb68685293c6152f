"""What two sets of samples say about each other: quantiles, their ratio, and how far the ratio may be off.

The bootstrap is over blocks (Kuensch 1989): samples of one moment resemble each other, so moments are drawn again,
several in a row, and not samples. Both sides were sampled in every block: what slows the machine slows both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
RESAMPLES = 4000
_AT_A_TIME = 250  # resamples held in memory together


@dataclass(frozen=True)
class Change:
    """One quantity before and after, less being better; the ratio after / before lies in low .. high.

    `enough` is False where the samples are too few for this quantile: then it is told, and decides nothing.
    """

    what: str
    unit: str
    before: float
    after: float
    low: float
    high: float
    samples: int = 0
    enough: bool = True

    @property
    def ratio(self) -> float:
        """After over before."""
        return self.after / self.before if self.before else float("inf") if self.after else 1.0

    def fell(self, floor: float) -> bool:
        """Say whether it is less than before by more than the floor, for certain."""
        return self.high < 1 - floor

    def rose(self, floor: float) -> bool:
        """Say whether it is more than before by more than the floor, for certain."""
        return self.low > 1 + floor

    def stayed(self, floor: float) -> bool:
        """Say whether it is within the floor of what it was, for certain."""
        return 1 - floor <= self.low and self.high <= 1 + floor

    def __str__(self) -> str:
        """Say it in one line."""
        return f"{self.what} {self.ratio:.3f}x of before ({self.low:.3f} to {self.high:.3f})"


def quantile(blocks: Array, q: float) -> float:
    """Return a quantile of samples [blocks, samples of a block]."""
    return float(np.quantile(blocks, q))


def ratios(before: Array, after: Array, qs: Sequence[float], confidence: float, seed: int) -> list[tuple[float, float]]:
    """Return for each quantile the interval of after / before; both are [blocks, samples of a block].

    Raises ValueError for another number of blocks.
    """
    if len(before) != len(after):
        raise ValueError(f"{len(before)} blocks before, {len(after)} after")
    random, drawn = np.random.default_rng(seed), []
    for start in range(0, RESAMPLES, _AT_A_TIME):
        chosen = _blocks(len(before), min(_AT_A_TIME, RESAMPLES - start), random)
        one, two = (np.quantile(side[chosen].reshape(len(chosen), -1), qs, axis=1) for side in (before, after))
        drawn.append(np.divide(two, one, out=np.full_like(two, np.inf), where=one > 0))
    beyond = (1 - confidence) / 2
    low, high = np.quantile(np.concatenate(drawn, axis=1), [beyond, 1 - beyond], axis=1, method="nearest")
    return [(float(a), float(b)) for a, b in zip(low, high, strict=True)]


def _blocks(count: int, times: int, random: np.random.Generator) -> Array:
    """Draw block numbers [times, count], in runs of about the square root of the count that wrap around."""
    run = max(1, round(count**0.5))
    starts = random.integers(0, count, (times, -(-count // run)))
    return ((starts[:, :, None] + np.arange(run)).reshape(times, -1)[:, :count]) % count


def changes(
    what: str, before: Array, after: Array, qs: dict[str, tuple[float, int]], confidence: float, seed: int = 0
) -> list[Change]:
    """Compare seconds [blocks, samples]; `qs` names quantiles and the samples that each needs."""
    intervals = ratios(before, after, [q for q, _ in qs.values()], confidence, seed)
    return [
        Change(
            f"{what} {name}".strip(), "s", quantile(before, q), quantile(after, q), low, high, after.size,
            min(before.size, after.size) >= need,
        )
        for (name, (q, need)), (low, high) in zip(qs.items(), intervals, strict=True)
    ]  # fmt: skip
