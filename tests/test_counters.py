"""What a process counts of its own: exactly, from every thread, and from garbage that is freed at a bad moment."""

from __future__ import annotations

import gc
import json
import os
import signal
import textwrap
import threading
import time
import weakref
from collections import deque
from pathlib import Path
from typing import Any

import pytest

import stub_driver
from onekernel.device import counters
from onekernel.device.counters import Counts, allocated, compiled, counts, freed, loaded, reset_peak
from onekernel.device.emulated import EmulatedDevice
from onekernel.errors import CompileError
from onekernel.jit import Kernel, KernelRequest, Parameter, build, compile_request, warm_up, warmup


@pytest.fixture(autouse=True)
def _afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    monkeypatch.setattr(counters, "_now", Counts())
    monkeypatch.setattr(counters, "_freed", deque())


def test_everything_is_added_up() -> None:
    loaded()
    loaded()
    compiled(0.25)
    compiled(0.5)
    allocated(10)
    assert counts() == Counts(2, 0.75, 10, 10)


def test_the_peak_is_of_what_was_there_at_the_same_time() -> None:
    for size in (10, 20):
        allocated(size)
        freed(size)
    assert counts() == Counts(bytes=0, peak_bytes=20)
    allocated(5)
    freed(2)
    reset_peak()
    freed(1)
    assert counts() == Counts(bytes=2, peak_bytes=3)
    allocated(5)
    freed(7)
    assert counts() == Counts(bytes=0, peak_bytes=7)


class _Garbage:
    """An object in a cycle, so that only the collector ends it, which then frees 8 bytes."""

    def __init__(self) -> None:
        self.me = self
        weakref.finalize(self, freed, 8)


class _Size(int):
    """A number that runs the collector while it is added to another one."""

    def __add__(self, other: int) -> int:
        gc.collect()
        return int(self) + other

    __radd__ = __add__


def test_garbage_that_is_freed_in_the_middle_of_an_addition_is_not_lost() -> None:
    allocated(8)
    _Garbage()
    allocated(_Size(100))
    assert counts().bytes == 100


@pytest.mark.parametrize("where", ["in the thread that counts", "in another thread"])
def test_a_free_never_waits(where: str) -> None:
    allocated(8)
    with counters._lock:
        if where == "in another thread":
            thread = threading.Thread(target=freed, args=(8,), daemon=True)
            thread.start()
            thread.join(10)
            assert not thread.is_alive()
        else:
            freed(8)
    assert counts().bytes == 0


def test_threads_lose_nothing() -> None:
    start = threading.Barrier(8)

    def work() -> None:
        start.wait()
        for _ in range(500):
            allocated(3)
            _Garbage()
            loaded()
            freed(2)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert (counts().modules, counts().bytes) == (4000, 4000 * (3 - 2 - 8))


def test_a_child_that_was_forked_in_the_middle_counts_on() -> None:
    """Another thread held the lock then, and there is no such thread in the child."""
    inside = threading.Event()

    def hold() -> None:
        with counters._lock:
            inside.set()
            time.sleep(0.2)

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait()
    if (child := os.fork()) == 0:
        signal.alarm(10)
        loaded()
        os._exit(counts().modules)
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert counts().modules == 0


# ---- who counts

SOURCE = 'extern "C" __global__ void add(float* y) { y[threadIdx.x] += value; }'


def request(value: float, source: str = SOURCE) -> KernelRequest:
    typed = (Parameter("y", "float*"),)
    return KernelRequest("add", "sm_90", typed, 32, constants=(("value", value),), source=source)


@pytest.fixture
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEKERNEL_CACHE", str(tmp_path / "cache"))


@pytest.mark.usefixtures("_own_cache")
def test_a_build_counts_and_what_is_found_does_not() -> None:
    binary = compile_request(request(1.0))
    assert counts() == Counts(compile_seconds=binary.seconds)
    assert binary.seconds > 0
    compile_request(request(1.0))
    build.find_built(request(1.0))
    with pytest.raises(CompileError):
        compile_request(request(1.0, "no such text"))
    assert counts() == Counts(compile_seconds=binary.seconds)


@pytest.mark.usefixtures("_own_cache")
@pytest.mark.parametrize("dying", [False, True])
def test_what_workers_build_counts_once(monkeypatch: pytest.MonkeyPatch, dying: bool) -> None:
    wanted, real = [request(10.0 + number) for number in range(4)], warmup._Worker.build

    def die(self: Any, *given: Any) -> Any:
        self._process.kill()
        self._process.wait()
        return real(self, *given)

    if dying:
        monkeypatch.setattr(warmup._Worker, "build", die)
    warm_up(wanted, workers=2)
    warm_up(wanted, workers=2)
    spent = sum(compile_request(item).seconds for item in wanted)
    assert counts().compile_seconds == pytest.approx(spent)


@pytest.mark.usefixtures("_own_cache")
def test_a_load_counts_on_the_emulated_device() -> None:
    device = EmulatedDevice()
    binary = compile_request(request(2.0), emulate=True)
    assert counts() == Counts(compile_seconds=binary.seconds)
    Kernel(request(2.0), device)
    Kernel(request(2.0), device)
    assert counts() == Counts(2, binary.seconds)


ON_A_GPU = """
import json
import numpy as np
import stub_driver.emulate
from dataclasses import astuple
from onekernel.device import get
from onekernel.device.counters import counts
from test_launch import Kernel, request
seen, place = [], get("cuda")
def look():
    now = counts()
    seen.append([now.modules, now.bytes, now.peak_bytes])
first, second = place.empty((3, 5), "float16"), place.upload(np.zeros(7, np.float64))
look()
part = second.slice(2, (2,))
del first, second
look()
del part
look()
try:
    place.empty((1 << 50,), "float32")
except Exception:
    look()
Kernel(request(), place)
look()
print(json.dumps(seen))
"""


def test_loads_and_memory_count_on_a_gpu() -> None:
    """A part keeps the memory of the whole; an allocation that is refused is none."""
    result = stub_driver.python("-c", textwrap.dedent(ON_A_GPU))
    assert result.returncode == 0, result.stderr
    *memory, (modules, held, peak) = json.loads(result.stdout)
    assert memory == [[0, 86, 86], [0, 56, 86], [0, 0, 86], [0, 0, 86]]
    assert (modules, held >= 0, peak >= 86) == (1, True, True)
