"""One compile per key over threads and processes, whatever happens to the one that compiles."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from cache_entries import BINARY, TEXT, label
from onekernel.errors import CompileError
from onekernel.jit.cache import KernelCache
from onekernel.jit.cache.flight import SingleFlight
from onekernel.jit.compile.binary import Binary

# Ask for one key in some threads; every build leaves a byte in the file `builds`, then takes a while.
WORKER = """
import os, sys, threading, time
from pathlib import Path
from onekernel.jit.compile.binary import Binary, Resources
from onekernel.jit.cache import KernelCache, Label

folder, builds, seconds, threads = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), int(sys.argv[4])

def build():
    file = os.open(builds, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, b"b")
    time.sleep(seconds)
    return Binary(b"bytes", Resources(registers=7), 0.5, "log")

cache, got = KernelCache(folder), []

def ask():
    got.append(cache.get(Label("0" * 32, "k", "sm_90", ""), "text", build).data)

workers = [threading.Thread(target=ask) for _ in range(threads)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
assert got == [b"bytes"] * threads
"""


def ask(folder: Path, *, seconds: float, threads: int = 1) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", WORKER, str(folder / "cache"), str(folder / "builds"), str(seconds), str(threads)]
    return subprocess.Popen(command)


def builds(folder: Path) -> int:
    path = folder / "builds"
    return path.stat().st_size if path.exists() else 0


def wait_for(condition: Any) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until, "nothing happened"
        time.sleep(0.01)


@pytest.mark.parametrize("round_", range(3))
def test_sixteen_threads_in_each_of_four_processes_build_once(tmp_path: Path, round_: int) -> None:
    del round_
    processes = [ask(tmp_path, seconds=0.1, threads=16) for _ in range(4)]
    assert [process.wait(120) for process in processes] == [0] * 4
    assert builds(tmp_path) == 1


def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    doomed = ask(tmp_path, seconds=600)
    wait_for(lambda: builds(tmp_path) == 1)
    others = [ask(tmp_path, seconds=0.1, threads=4) for _ in range(2)]
    doomed.kill()
    assert doomed.wait(60) != 0
    assert [process.wait(120) for process in others] == [0, 0]
    assert builds(tmp_path) == 2, "one build died, one counts"


def test_no_folder_can_stop_a_build(tmp_path: Path) -> None:
    (tmp_path / ".locks").write_text("a file where locks should be")
    assert KernelCache(tmp_path).get(label(), TEXT, lambda: BINARY) == BINARY


def test_a_failed_build_is_remembered(tmp_path: Path) -> None:
    calls = []

    def fail() -> Binary:
        calls.append(1)
        raise CompileError("k", error="no such operator", origin="chain:n", line="l", log="")

    cache = KernelCache(tmp_path)
    for _ in range(3):
        with pytest.raises(CompileError, match="no such operator"):
            cache.get(label(), TEXT, fail)
    assert calls == [1]
    assert cache.get(label("other"), TEXT, lambda: BINARY) == BINARY


def test_different_keys_are_built_at_the_same_time() -> None:
    """Two builds that wait for each other: with one lock around everything neither would end."""
    meet = threading.Barrier(2, timeout=60)

    def build() -> Binary:
        meet.wait()
        return BINARY

    cache = KernelCache(None)
    threads = [threading.Thread(target=cache.get, args=(label(word), TEXT, build)) for word in ("one", "other")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not meet.broken


def together(flight: SingleFlight[int], first: Any, second: Any) -> list[Any]:
    """Run `first` and, once it is at work, `second` under one key; return what each gave or raised."""
    started, go_on, results = threading.Event(), threading.Event(), [None, None]

    def lead() -> int:
        started.set()
        go_on.wait(60)
        return int(first())

    def record(place: int, work: Any) -> None:
        try:
            results[place] = flight.run("key", work)
        except BaseException as error:
            results[place] = error  # type: ignore[call-overload]

    threads = [threading.Thread(target=record, args=(0, lead)), threading.Thread(target=record, args=(1, second))]
    threads[0].start()
    started.wait(60)
    threads[1].start()
    time.sleep(0.05)  # the second is waiting now, or will find the run ended: both must be right
    go_on.set()
    for thread in threads:
        thread.join(60)
    return results


def test_an_interrupted_thread_hands_over_to_one_that_waits() -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    first, second = together(SingleFlight[int](), interrupted, lambda: 2)
    assert isinstance(first, KeyboardInterrupt)
    assert second == 2


def test_an_error_is_shared_and_not_kept() -> None:
    def failing() -> int:
        raise ValueError("first")

    flight = SingleFlight[int]()
    first, second = together(flight, failing, lambda: 2)
    assert isinstance(first, ValueError)
    assert second is first or second == 2
    assert flight.run("key", lambda: 3) == 3
