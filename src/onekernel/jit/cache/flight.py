"""One run per key over the threads of a process: whoever comes while it runs waits for its result or its error."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar
from weakref import WeakSet

Result = TypeVar("Result")

_all: WeakSet[SingleFlight[Any]] = WeakSet()


class _AbandonedError(Exception):
    """The thread that ran was interrupted, which says nothing about the work: someone else should try."""


class SingleFlight(Generic[Result]):
    """Runs in progress by key. Nothing is remembered once a run has ended."""

    def __init__(self) -> None:
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
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
            if self._land(key, flight):
                flight.set_exception(error if isinstance(error, Exception) else _AbandonedError())
            raise
        if self._land(key, flight):
            flight.set_result(result)
        return result

    def _land(self, key: str, flight: Future[Result]) -> bool:
        """End a run; False in a child that was forked by the work: nobody waits there."""
        with self._lock:
            return self._flights.get(key) is flight and self._flights.pop(key) is flight


def _begin_in_child() -> None:
    """A forked child has none of the threads that it would wait for, and perhaps a lock that one of them held."""
    for flight in list(_all):
        flight._begin()


os.register_at_fork(after_in_child=_begin_in_child)
