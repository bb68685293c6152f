"""Samples of several contenders, taken in turn: what happens to the machine happens to all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from onekernel.verify.progress import Progress
from onekernel.verify.speed.statistics import Array

Sample = Callable[[], float]  # answers one request and returns its seconds
MOST = 6000  # samples of a contender: enough for P99
_TURN = 2e-3  # seconds of a turn: long enough to be warm, short enough that both sides see the same machine
_FEWEST_BLOCKS = 8


@dataclass(frozen=True)
class Timing:
    """Seconds per call over some samples; `clock` says whose clock was read."""

    samples: tuple[float, ...]
    clock: str

    @property
    def median(self) -> float:
        """The middle sample, in seconds."""
        return statistics.median(self.samples)

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles over the median."""
        if len(self.samples) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.samples, n=4)
        return (high - low) / 2 / self.median if self.median else 0.0


def interleave(
    contenders: Mapping[str, Sample],
    seconds: float,
    *,
    seed: int = 0,
    most: int = MOST,
    what: str = "timing both in turn",
) -> dict[str, Array]:
    """Sample contenders block by block, in a new random order each, for about `seconds`.

    Returns [blocks, samples of a block] for each. In a block of several samples a contender's first is not counted: it
    finds the caches as another one left them. At least eight blocks are taken, however long that lasts. `what` is told
    to the log.
    """
    random, names = np.random.default_rng(seed), list(contenders)
    slowest = max(min(_elapsed(contenders[name]) for _ in range(2)) for name in names)
    turn = max(1, min(50, round(_TURN / max(slowest, 1e-9))))
    taken: dict[str, list[list[float]]] = {name: [] for name in names}
    start, blocks, progress = time.monotonic(), -(-most // turn), Progress(what)
    while (done := len(taken[names[0]])) < blocks:
        spent = time.monotonic() - start
        if spent >= seconds and done >= _FEWEST_BLOCKS:
            break
        progress.tell(max(spent / seconds if seconds else 0, done / blocks), 1)
        for place in random.permutation(len(names)):
            sample = contenders[names[place]]
            if turn > 1:
                sample()
            taken[names[place]].append([sample() for _ in range(turn)])
    return {name: np.array(rows) for name, rows in taken.items()}


def _elapsed(sample: Sample) -> float:
    """Return what a sample costs with all that is done around it."""
    start = time.perf_counter()
    sample()
    return time.perf_counter() - start
