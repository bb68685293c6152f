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

    `enough` is False where the samples are too few for this quantile: then it is told, and decides nothing. `paired` is
    the ratio as found block by block, where it was.
    """

    what: str
    unit: str
    before: float
    after: float
    low: float
    high: float
    samples: int = 0
    enough: bool = True
    paired: float | None = None

    @property
    def ratio(self) -> float:
        """After over before."""
        if self.paired is not None:
            return self.paired
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


def paired(before: Array, after: Array, confidence: float, seed: int = 0) -> tuple[float, float, float]:
    """Return the ratio of the medians, after / before, and its interval; both are [blocks, samples of a block].

    It is the median of the ratios of single blocks: a machine that is now fast and now slow, which it is to both sides
    of a block, does not widen it.
    """
    one, two = (np.median(side, axis=1) for side in (before, after))
    each = np.divide(two, one, out=np.full_like(two, np.inf), where=one > 0)
    drawn = np.median(each[_blocks(len(each), RESAMPLES, np.random.default_rng(seed))], axis=1)
    low, high = np.quantile(drawn, _ends(confidence), method="nearest")
    return float(np.median(each)), float(low), float(high)


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
    low, high = np.quantile(np.concatenate(drawn, axis=1), _ends(confidence), axis=1, method="nearest")
    return [(float(a), float(b)) for a, b in zip(low, high, strict=True)]


def _ends(confidence: float) -> list[float]:
    return [(1 - confidence) / 2, (1 + confidence) / 2]


def _blocks(count: int, times: int, random: np.random.Generator) -> Array:
    """Draw block numbers [times, count], in runs of about the square root of the count that wrap around."""
    run = max(1, round(count**0.5))
    starts = random.integers(0, count, (times, -(-count // run)))
    return ((starts[:, :, None] + np.arange(run)).reshape(times, -1)[:, :count]) % count


def median_change(what: str, before: Array, after: Array, confidence: float, seed: int = 0) -> Change:
    """Compare the medians of seconds [blocks, samples of a block]."""
    ratio, low, high = paired(before, after, confidence, seed)
    return Change(what, "s", quantile(before, 0.5), quantile(after, 0.5), low, high, after.size, paired=ratio)


def tail_changes(
    what: str, before: Array, after: Array, needs: dict[str, tuple[float, int]], confidence: float
) -> list[Change]:
    """Compare quantiles of seconds [blocks, samples of a block]; `needs` names them, with the samples for each."""
    intervals = ratios(before, after, [q for q, _ in needs.values()], confidence, 0)
    return [
        Change(
            f"{what} {name}".strip(), "s", quantile(before, q), quantile(after, q), low, high, after.size,
            min(before.size, after.size) >= need,
        )
        for (name, (q, need)), (low, high) in zip(needs.items(), intervals, strict=True)
    ]  # fmt: skip
