"""How much memory a request needs at its peak, beyond what is held between requests."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from onekernel.device.counters import counts, reset_peak
from onekernel.device.cuda.gpu import GpuDevice
from onekernel.verify.sides.place import Place

_STATUS = Path("/proc/self/status")
_RESET_PEAK = "5"  # man 5 proc, clear_refs: make the peak resident set size the current one
_CALLS = 2
_EVERY = 1e-3  # seconds between two looks at the GPU's memory

Peaks = dict[str, float]  # bytes by kind of memory


def peaks(call: Callable[[], object], place: Place) -> Peaks:
    """Run a few requests; return bytes that each kind of memory grew by at its peak: host, device, torch, onekernel."""
    found: Peaks = {}
    _release(place)
    with _watching_gpu(place.gpu, found), _watching_torch(place, found):
        own = counts().bytes
        reset_peak()
        start = _start_host()
        for _ in range(_CALLS):
            call()
            place.settle()
        if start is not None:
            found["host memory"] = max(0, _status("VmHWM") - start)
        if place.gpu is not None:
            found["onekernel's device memory"] = counts().peak_bytes - own
    return found


def resident(open_and_call: Callable[[], object], place: Place) -> Peaks:
    """Open a side and let it answer once; return bytes that stay in use for it."""
    _release(place)
    before = _in_use(place)
    kept = open_and_call()
    place.settle()
    _release(place)
    after = _in_use(place)
    del kept
    return {name: max(0, after[name] - before[name]) for name in before}


def _in_use(place: Place) -> Peaks:
    found: Peaks = {"host memory held": _status("VmRSS")} if _STATUS.exists() else {}
    if place.gpu is not None:
        found["device memory held"] = place.gpu.memory()[0]
    return found


def _release(place: Place) -> None:
    """Give back what is free, so that the next peak starts from what is in use."""
    place.settle()
    gc.collect()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)
    if torch := place.torch:
        torch.cuda.empty_cache()


def _start_host() -> float | None:
    try:
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK, encoding="ascii")
        return _status("VmRSS")
    except OSError:  # not Linux, or a container that forbids it
        return None


def _status(field: str) -> float:
    line = next(line for line in _STATUS.read_text(encoding="ascii").splitlines() if line.startswith(f"{field}:"))
    return float(line.split()[1]) * 1024


@contextmanager
def _watching_torch(place: Place, found: Peaks) -> Iterator[None]:
    if not (torch := place.torch):
        yield
        return
    start = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    yield
    found["torch's device memory"] = torch.cuda.max_memory_allocated() - start


@contextmanager
def _watching_gpu(gpu: GpuDevice | None, found: Peaks) -> Iterator[None]:
    """Look at the memory of the whole GPU again and again; another process that uses it spoils the number."""
    if gpu is None:
        yield
        return
    start, done = gpu.memory()[0], threading.Event()
    highest = [start]

    def watch() -> None:
        while not done.wait(_EVERY):
            highest[0] = max(highest[0], gpu.memory()[0])

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    found["device memory"] = max(highest[0], gpu.memory()[0]) - start
