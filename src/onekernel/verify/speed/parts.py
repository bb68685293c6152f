"""Where the time of one request goes: seconds of each part that a side shows of itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from onekernel.verify.numbers.values import copied
from onekernel.verify.sides.place import Place
from onekernel.verify.sides.subject import Inputs, See, Subject
from onekernel.verify.speed.statistics import Array, Change, median_change

REST = "(rest)"  # what ends after the last part that was shown
_ROUNDS, _WARM = 60, 3

Watch = Callable[[Inputs, See], Any]


def parts(before: Subject, after: Subject, inputs: Inputs, place: Place, confidence: float) -> list[Change]:
    """Compare the parts of both sides, the longest before first; a part of one side alone takes 0 in the other.

    Each interval is widened so that all together have the confidence (Bonferroni).
    """
    if before.watch is None or after.watch is None:
        return []
    one, two = _sample(before, after, inputs, place)
    if not one or not two:
        return []
    names = sorted(one.keys() | two.keys(), key=lambda name: -float(np.median(one.get(name, np.zeros(1)))))
    each = 1 - (1 - confidence) / len(names)
    return [_change(name, one.get(name), two.get(name), each) for name in names]


def _change(name: str, before: Array | None, after: Array | None, confidence: float) -> Change:
    if before is None or after is None:
        ratio = 0.0 if after is None else float("inf")
        one, two = (0.0 if side is None else float(np.median(side)) for side in (before, after))
        return Change(name, "s", one, two, ratio, ratio, _ROUNDS)
    return median_change(name, before, after, confidence)


def _sample(before: Subject, after: Subject, inputs: Inputs, place: Place) -> tuple[dict[str, Array], dict[str, Array]]:
    """Watch both in turn; returns [rounds, 1] by part. Parts that not every round shows are left out."""
    rounds: tuple[list[dict[str, float]], list[dict[str, float]]] = ([], [])
    for number in range(_ROUNDS + _WARM):
        for side in (0, 1) if number % 2 else (1, 0):
            watch = (before, after)[side].watch
            assert watch is not None
            given = copied(inputs)
            rounds[side].append(_on_host(watch, given) if place.stopwatch is None else _on_gpu(watch, given, place))
    one, two = (
        {name: np.array([[row[name]] for row in seen[_WARM:]]) for name in seen[-1] if all(name in row for row in seen)}
        for seen in rounds
    )
    return one, two


def _on_host(watch: Watch, inputs: Inputs) -> dict[str, float]:
    return _between(_marks(watch, inputs, time.perf_counter), lambda first, last: last - first)


def _on_gpu(watch: Watch, inputs: Inputs, place: Place) -> dict[str, float]:
    """Read the GPU's clock at the end of each part, the host being ahead: its own time is in none of them.

    Empty where the side waits for the GPU itself; see `Stopwatch.ahead`.
    """
    stopwatch = place.stopwatch
    assert stopwatch is not None
    start = time.perf_counter()
    watch(inputs, lambda *_: None)
    host = time.perf_counter() - start
    shown: list[tuple[str, Any]] = []

    def enqueue() -> list[Any]:
        shown[:] = _marks(watch, inputs, stopwatch.mark)
        return [mark for _, mark in shown]

    return {} if stopwatch.ahead(enqueue, host) is None else _between(shown, stopwatch.seconds)


def _marks(watch: Watch, inputs: Inputs, mark: Callable[[], Any]) -> list[tuple[str, Any]]:
    marks = [("", mark())]
    watch(inputs, lambda name, _: marks.append((name, mark())))
    return [*marks, (REST, mark())]


def _between(marks: Sequence[tuple[str, Any]], seconds: Callable[[Any, Any], float]) -> dict[str, float]:
    """Return the time of each part; what is shown several times is added up."""
    found: dict[str, float] = {}
    for (_, first), (name, last) in pairwise(marks):
        found[name] = found.get(name, 0.0) + seconds(first, last)
    return found
