"""Where the time of one request goes: seconds of each part that a side shows of itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from onekernel.verify.numbers.values import copied
from onekernel.verify.place import Place
from onekernel.verify.speed.statistics import Array, Change, ratios
from onekernel.verify.subject import Inputs, Subject

REST = "(rest)"  # what ends after the last part that was shown
_ROUNDS = 60


def parts(before: Subject, after: Subject, inputs: Inputs, place: Place, confidence: float) -> list[Change]:
    """Compare the parts of both sides, the longest before first; a part of one side alone takes 0 in the other.

    Each interval is widened so that all together have the confidence (Bonferroni).
    """
    if before.watch is None or after.watch is None:
        return []
    one, two = _sample(before, after, inputs, place)
    names = sorted(one.keys() | two.keys(), key=lambda name: -float(np.median(one.get(name, np.zeros(1)))))
    each = 1 - (1 - confidence) / len(names)
    return [_change(name, one.get(name), two.get(name), each) for name in names]


def _change(name: str, before: Array | None, after: Array | None, confidence: float) -> Change:
    if before is None or after is None:
        ratio = 0.0 if after is None else float("inf")
        one, two = (0.0 if side is None else float(np.median(side)) for side in (before, after))
        return Change(name, "s", one, two, ratio, ratio, _ROUNDS)
    ((low, high),) = ratios(before, after, [0.5], confidence, 0)
    return Change(name, "s", float(np.median(before)), float(np.median(after)), low, high, _ROUNDS)


def _sample(before: Subject, after: Subject, inputs: Inputs, place: Place) -> tuple[dict[str, Array], dict[str, Array]]:
    """Watch both in turn; returns [rounds, 1] by part. Parts that not every round shows are left out."""
    rounds: tuple[list[dict[str, float]], list[dict[str, float]]] = ([], [])
    watch = _on_gpu if place.gpu is not None else _on_host
    for number in range(_ROUNDS + 3):
        for side in (0, 1) if number % 2 else (1, 0):
            subject = (before, after)[side]
            assert subject.watch is not None
            rounds[side].append(watch(subject.watch, copied(inputs), place))
    one, two = (
        {name: np.array([[row[name]] for row in seen[3:]]) for name in seen[-1] if all(name in row for row in seen)}
        for seen in rounds
    )
    return one, two


def _on_host(watch: Callable[..., Any], inputs: Inputs, place: Place) -> dict[str, float]:
    del place
    return _times(watch, inputs, time.perf_counter, lambda first, last: last - first)


def _on_gpu(watch: Callable[..., Any], inputs: Inputs, place: Place) -> dict[str, float]:
    """Read the GPU's clock at the end of each part; the host runs ahead, so that its own time is in none of them."""
    stopwatch = place.stopwatch
    assert stopwatch is not None
    start = time.perf_counter()
    watch(inputs, lambda *_: None)
    enqueueing = time.perf_counter() - start
    stopwatch.hold(2 * enqueueing)
    return _times(watch, inputs, stopwatch.mark, stopwatch.seconds)


def _times(
    watch: Callable[..., Any], inputs: Inputs, mark: Callable[[], Any], between: Callable[[Any, Any], float]
) -> dict[str, float]:
    marks = [("", mark())]
    watch(inputs, lambda name, _: marks.append((name, mark())))
    marks.append((REST, mark()))
    seconds: dict[str, float] = {}
    for (_, first), (name, last) in pairwise(marks):
        seconds[name] = seconds.get(name, 0.0) + between(first, last)
    return seconds
