"""One thread of the process for builds that nobody waits for: NVRTC does hardly more with two.

When the process ends, the build that is running is let to its end, because a compiler must not be torn down under
itself; those in the queue are dropped.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any


class _Background:
    """Runs work in a daemon thread, which starts with the first work, one after the other."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Start afresh, as a forked child must: it has no thread, and perhaps a lock that somebody held."""
        self._lock = threading.Lock()
        self._queue = SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]()
        self._thread: threading.Thread | None = None
        self._ends = False

    def submit(self, future: Future[Any], work: Callable[[], Any]) -> None:
        """Put what `work` returns or raises into a future, later."""
        self._queue.put((future, work))
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="onekernel-builder", daemon=True)
                self._thread.start()

    def end(self) -> None:
        """Wait for the work that is running and leave the rest."""
        self._ends = True
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while (job := self._queue.get()) is not None and not self._ends:
            future, work = job
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)


_background = _Background()
submit = _background.submit
atexit.register(_background.end)
os.register_at_fork(after_in_child=_background.begin)
