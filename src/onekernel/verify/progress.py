"""How far long work is, told now and then to the log, from which the command line draws a bar."""

from __future__ import annotations

import logging
import time

log = logging.getLogger("onekernel")
_EVERY = 0.2  # seconds


class Progress:
    """Work that is told as a part of 100."""

    def __init__(self, what: str) -> None:
        self._what, self._next = what, 0.0

    def tell(self, done: float, total: float) -> None:
        """Say how much is done, unless it was said a moment ago."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _EVERY
            log.info(self._what, extra={"done": min(round(100 * done / total), 100), "total": 100})
