"""Keeps a cache folder below a limit: after a write over it, the least recently used entries go, never the new one.

Looking at a large folder takes a while, so it is looked at when this process has written what there was room for, or a
sixteenth of the limit: by then other processes may have written too. Several that evict at once do no harm.
"""

from __future__ import annotations

from pathlib import Path

from onekernel.jit.cache.files import discard, slots

KEPT = 7 / 8  # of the limit, so that not every write evicts
SHARE = 1 / 16  # of the limit, written before the folder is looked at again


class Eviction:
    """The room in a folder as this process knows it; `limit` in bytes, None for no limit."""

    def __init__(self, folder: Path, limit: int | None) -> None:
        self.folder, self.limit = folder, limit
        self._unwatched = 0.0  # bytes that may be written before the folder is looked at

    def wrote(self, path: Path, size: int) -> None:
        """Take note of an entry just written, and make room where there is too little."""
        if self.limit is None:
            return
        self._unwatched -= size
        if self._unwatched < 0:
            self._unwatched = min(self.limit - self._make_room(self.limit, path), SHARE * self.limit)

    def _make_room(self, limit: int, newest: Path) -> int:
        """Return the bytes that are there in the end."""
        oldest_first = slots(self.folder)
        total = sum(slot.bytes for slot in oldest_first)
        if total <= limit:
            return total
        for slot in oldest_first:
            if total > KEPT * limit and slot.path != newest:
                discard(slot.path)
                total -= slot.bytes
        return total
