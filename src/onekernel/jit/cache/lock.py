"""A lock over processes that can fail to lock but never fail the work: best effort, with a time-out.

The operating system frees the lock of a process that dies, and whoever frees a lock removes its file: no lock is ever
stale. A folder without locks (some network folders), or one that cannot be written, has none, and the work goes on.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

POLL_SECONDS = 0.01

_open: set[int] = set()  # descriptors of lock files in this process


@contextlib.contextmanager
def best_effort_lock(path: Path, *, seconds: float, mode: int = 0o600) -> Iterator[bool]:
    """Hold the lock of a file while inside; yields False where it could not be had within some seconds."""
    handle = None
    with contextlib.suppress(OSError):
        handle = _acquire(path, time.monotonic() + seconds, mode)
    try:
        yield handle is not None
    finally:
        if handle in _open:  # not so in a child that was forked meanwhile: it has no lock
            with contextlib.suppress(OSError):
                path.unlink()
            _close(handle)


def is_held(path: Path) -> bool:
    """Tell whether a process is holding the lock of a file."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    finally:
        os.close(handle)
    return False


def _acquire(path: Path, until: float, mode: int) -> int | None:
    """Return a descriptor that has the lock, or None when the time is over. Raises OSError where there are no locks."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, mode)
        _open.add(handle)
        locked = False
        try:
            with contextlib.suppress(PermissionError):  # it is somebody else's
                os.fchmod(handle, mode)  # whatever the umask: others who share the folder must be able to wait
            locked = _wait(handle, until) and _names(path, handle)
        finally:
            if not locked:
                _close(handle)
        if locked:
            return handle
        if time.monotonic() >= until:
            return None


def _wait(handle: int, until: float) -> bool:
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(POLL_SECONDS)


def _names(path: Path, handle: int) -> bool:
    """Tell whether the path still leads to the open file: its last holder removed it."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except FileNotFoundError:
        return False


def _close(handle: int) -> None:
    _open.discard(handle)
    with contextlib.suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_UN)  # a forked child may have a copy of the descriptor
    os.close(handle)


def _close_in_child() -> None:
    """A child has copies of the descriptors, which would keep the locks of a parent that dies."""
    while _open:
        with contextlib.suppress(OSError):
            os.close(_open.pop())


os.register_at_fork(after_in_child=_close_in_child)
