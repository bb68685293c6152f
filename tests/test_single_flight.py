"""One compile per key over threads and processes, whatever happens to the one that compiles."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cache_worker
from cache_entries import BINARY, TEXT, label, must_not_build
from onekernel.errors import CompileError
from onekernel.jit.cache import KernelCache, read
from onekernel.jit.cache.flight import SingleFlight
from onekernel.jit.cache.lock import is_held
from onekernel.jit.compile.binary import Binary

PROCESSES, SPARE, ROUNDS = 4, 2, 20


class Worker:
    """A process of cache_worker; started ahead, because its start takes longer than a round."""

    def __init__(self, how: str) -> None:
        command = [sys.executable, cache_worker.__file__, how]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ready = False

    def until_ready(self) -> None:
        if not self.ready:
            assert self.answer() == "ready"
            self.ready = True

    def ask(self, folder: Path) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{folder}\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        return json.loads(line) if line.startswith("[") else line

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def lines(path: Path) -> list[int]:
    """Read which processes left a line in a file."""
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def wait_for(condition: Callable[[], object]) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until, "nothing happened"
        time.sleep(0.001)


def play(folder: Path, workers: list[Worker], chance: random.Random, *, kill_the_builder: bool) -> bool:
    """Ask everyone for one new key, kill one, and check the rest; tell whether the one killed was compiling."""
    folder.mkdir()
    for worker in workers:
        worker.until_ready()
        worker.ask(folder)
    doomed = chance.choice(workers)
    if kill_the_builder:
        wait_for(lambda: lines(folder / "begun"))
        (doomed,) = (worker for worker in workers if worker.process.pid == lines(folder / "begun")[0])
    time.sleep(chance.uniform(0, 0.08))
    doomed.end()
    results = [worker.answer() for worker in workers if worker is not doomed]

    kept = read(folder / "cache" / cache_worker.LABEL.folder).binary
    right = [cache_worker.digest(kept.data.hex()), kept.log]
    assert results == [[right] * cache_worker.THREADS] * (PROCESSES - 1), "everyone has the one binary that is kept"
    survivors = [pid for pid in lines(folder / "begun") if pid != doomed.process.pid]
    counted = survivors or [doomed.process.pid]
    assert counted == [int(kept.log)], "one compile counts: the dead process's, or a single one after it"
    locks = list((folder / "cache" / ".locks").iterdir())
    assert not any(map(is_held, locks)), "no lock is stale"
    assert not (survivors and locks), "whoever takes over a dead process's lock removes it"
    assert KernelCache(folder / "cache").get(cache_worker.LABEL, cache_worker.TEXT, must_not_build) == kept
    return lines(folder / "begun")[0] == doomed.process.pid and int(kept.log) != doomed.process.pid


@pytest.mark.parametrize("how", ["sleep", "nvrtc"])
def test_sixteen_threads_in_each_of_four_processes_compile_once_though_one_is_killed(tmp_path: Path, how: str) -> None:
    chance, workers = random.Random(7), [Worker(how) for _ in range(PROCESSES + SPARE)]
    try:
        interrupted = 0
        for number in range(ROUNDS):
            playing = workers[:PROCESSES]
            interrupted += play(tmp_path / str(number), playing, chance, kill_the_builder=number % 2 == 0)
            alive = [worker for worker in workers if worker.process.returncode is None]
            workers = [*alive[-1:], *alive[:-1], Worker(how)]
        assert interrupted, "in some rounds the one that compiled was killed, and the compile was done again"
    finally:
        for worker in workers:
            worker.end()


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
