"""Host time of calls that return before the GPU is done: what a launch costs the program that makes it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from benchmarks.sample import Sample, summary

Work = Callable[[], object]


def time_calls(
    contenders: Mapping[str, Work], *, settle: Work, calls: int = 200, rounds: int = 101
) -> dict[str, Sample]:
    """Time contenders in turn, round after round; `settle` empties the queue between rounds, untimed.

    Few enough calls a round that the driver's queue never fills: a full one would show the GPU's time.
    """
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for work in contenders.values():
        _microseconds(work, calls)
    for _ in range(rounds):
        for name, work in contenders.items():
            settle()
            samples[name].append(_microseconds(work, calls))
    settle()
    return {name: summary(values) for name, values in samples.items()}


def _microseconds(work: Work, calls: int) -> float:
    start = time.perf_counter_ns()
    for _ in range(calls):
        work()
    return (time.perf_counter_ns() - start) / calls / 1e3


def time_once(work: Callable[[int], object], *, rounds: int) -> Sample:
    """Time a work that differs from round to round, in milliseconds."""
    values = []
    for number in range(rounds):
        start = time.perf_counter_ns()
        work(number)
        values.append((time.perf_counter_ns() - start) / 1e6)
    return summary(values)
