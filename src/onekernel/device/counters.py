"""What this process has done so far for OneKernel's own part: kernels loaded, time compiling, memory of GPUs."""

from __future__ import annotations

import os
import threading
from collections import deque
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Counts:
    """Modules loaded, seconds spent compiling, and the bytes that Buffers hold on GPUs: now, and at peak."""

    modules: int = 0
    compile_seconds: float = 0.0
    bytes: int = 0
    peak_bytes: int = 0


# Memory is freed when a Buffer is garbage, which is at any moment: also inside `_add`, and while another thread is
# there. So a free takes no lock and touches no count; it is noted, and whoever counts next subtracts it. The lock is
# reentrant because the garbage of others may run anything.
_lock = threading.RLock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
_freed: deque[int] = deque()
_now = Counts()


def counts() -> Counts:
    """Return the counts of this moment."""
    return _add()


def since(start: Counts) -> Counts:
    """Return the modules and the compile time that have come since then; bytes are those of now."""
    now = counts()
    return replace(
        now, modules=now.modules - start.modules, compile_seconds=now.compile_seconds - start.compile_seconds
    )


def reset_peak() -> None:
    """Let the peak be what is allocated now."""
    global _now
    with _lock:
        now = _add()
        _now = replace(now, peak_bytes=now.bytes)


def loaded() -> None:
    """Count a module that was loaded."""
    _add(modules=1)


def compiled(seconds: float) -> None:
    """Count the time that a compiler took."""
    _add(seconds=seconds)


def allocated(size: int) -> None:
    """Count bytes that a GPU gave."""
    _add(size=size)


def freed(size: int) -> None:
    """Count bytes that a GPU got back. May be called at any moment."""
    _freed.append(size)


def _add(modules: int = 0, seconds: float = 0.0, size: int = 0) -> Counts:
    global _now
    with _lock:
        while _freed:
            size -= _freed.popleft()
        held = _now.bytes + size
        _now = Counts(_now.modules + modules, _now.compile_seconds + seconds, held, max(_now.peak_bytes, held))
        return _now
