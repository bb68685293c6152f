"""Requests as they come in service: at random moments, or from many callers at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from onekernel.verify.progress import Progress
from onekernel.verify.sides.place import Place
from onekernel.verify.sides.subject import Subject
from onekernel.verify.speed.requests import Requests, timed
from onekernel.verify.speed.statistics import Array

_BLOCKS = 10  # the sides take turns this often


def open_loop(sides: dict[str, Callable[[], float]], rate: float, seconds: float, seed: int) -> dict[str, Array]:
    """Answer requests that arrive as a Poisson process; return latencies [blocks, requests] for each side.

    A latency counts from the arrival, so that a request pays for those before it (no coordinated omission). Both sides
    get the same arrivals.
    """
    random = np.random.default_rng(seed)
    count = max(2, round(rate * seconds / _BLOCKS / len(sides)))
    latencies: dict[str, list[list[float]]] = {name: [] for name in sides}
    progress = Progress("requests at random")
    for number in range(_BLOCKS):
        progress.tell(number, _BLOCKS)
        arrivals = np.cumsum(random.exponential(1 / rate, count))
        for name in random.permutation(list(sides)):
            latencies[name].append(list(_answer(sides[name], arrivals)))
    return {name: np.array(rows) for name, rows in latencies.items()}


def _answer(sample: Callable[[], float], arrivals: Array) -> Iterator[float]:
    start = time.perf_counter()
    for arrival in arrivals:
        while (wait := start + arrival - time.perf_counter()) > 0:
            time.sleep(wait if wait > 1e-3 else 0)  # a sleep ends late by tens of microseconds: the last bit is spun
        sample()
        yield time.perf_counter() - start - arrival


@dataclass(frozen=True)
class Callers:
    """Threads that ask as fast as they are answered, each on a CUDA stream of its own where there is a GPU."""

    place: Place
    requests: Callable[[], Requests]
    count: int

    def throughput(self, sides: dict[str, Subject], seconds: float) -> dict[str, Array]:
        """Return seconds per request [blocks, 1] for each side. Raises what a call raises."""
        rates: dict[str, list[list[float]]] = {name: [] for name in sides}
        progress = Progress(f"{self.count} callers at a time")
        for block in range(_BLOCKS):
            progress.tell(block, _BLOCKS)
            for name in list(sides) if block % 2 else list(sides)[::-1]:
                rates[name].append([self._together(sides[name], seconds / _BLOCKS / len(sides))])
        return {name: np.array(rows) for name, rows in rates.items()}

    def _together(self, subject: Subject, seconds: float) -> float:
        """Let all ask for a time; requests under way at its end count with the time that they take."""
        done, failures, gate = [0] * self.count, list[BaseException](), threading.Barrier(self.count + 1)

        def work(number: int) -> None:
            try:
                with self.place.stream() as settle:
                    sample = timed(subject.call, self.requests(), settle)
                    sample()
                    gate.wait()
                    end = time.perf_counter() + seconds
                    while time.perf_counter() < end:
                        sample()
                        done[number] += 1
            except BaseException as error:
                failures.append(error)
                gate.abort()

        threads = [threading.Thread(target=work, args=(number,)) for number in range(self.count)]
        for thread in threads:
            thread.start()
        with suppress(threading.BrokenBarrierError):
            gate.wait()
        start = time.perf_counter()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        return (time.perf_counter() - start) / max(sum(done), 1)
