"""One run per key over the threads of a process: whoever comes while it runs waits for its result or its error."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

Result = TypeVar("Result")


class _AbandonedError(Exception):
    """The thread that ran was interrupted, which says nothing about the work: someone else should try."""


class SingleFlight(Generic[Result]):
    """Runs in progress by key. Nothing is remembered once a run has ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[str, Future[Result]] = {}

    def run(self, key: str, work: Callable[[], Result]) -> Result:
        """Return what `work` returns, or raise what it raises, in this thread or in the one that is at it already."""
        while True:
            own: Future[Result] = Future()
            with self._lock:
                flight = self._flights.setdefault(key, own)
            if flight is own:
                return self._lead(key, own, work)
            try:
                return flight.result()
            except _AbandonedError:
                continue

    def _lead(self, key: str, flight: Future[Result], work: Callable[[], Result]) -> Result:
        try:
            result = work()
        except BaseException as error:
            self._land(key)
            flight.set_exception(error if isinstance(error, Exception) else _AbandonedError())
            raise
        self._land(key)
        flight.set_result(result)
        return result

    def _land(self, key: str) -> None:
        with self._lock:
            del self._flights[key]
