"""GPU time by events and holds: on a GPU, and without one on the stub driver, where this file runs itself."""

from __future__ import annotations

import gc
import json
import re
import textwrap
import weakref
from itertools import pairwise
from time import sleep
from typing import Any

import numpy as np
import pytest

import stub_driver
from onekernel.device import counters, get
from onekernel.device.cuda import stopwatch
from onekernel.device.cuda.driver import call, driver
from onekernel.device.cuda.stopwatch import Mark, Stopwatch

gpu = pytest.mark.gpu
WORDS = 4 << 20


def test_these_tests_pass_on_the_stub() -> None:
    """None may be skipped or missing."""
    arguments = ["-m", "pytest", "-m", "gpu", "-p", "stub_driver.emulate", "-p", "no:cacheprovider", __file__]
    result = stub_driver.python(*arguments)
    assert re.search(r"^\d+ passed, 2 deselected", result.stdout, re.MULTILINE), result.stdout + result.stderr


@pytest.fixture(scope="module")
def device() -> Any:
    return get("cuda")


@pytest.fixture(scope="module")
def watch(device: Any) -> Stopwatch:
    return Stopwatch(device)


@pytest.fixture
def piece(device: Any) -> Any:
    return device.upload(np.zeros(WORDS, np.int32))


def write(piece: Any, value: int, stream: int = 0) -> None:
    """Enqueue a memset, which is work like any other."""
    cuda: Any = driver()
    with get("cuda").current():  # type: ignore[attr-defined]
        call(cuda.cuMemsetD32Async, piece.address, value, piece.elements, cuda.CUstream(stream))


@gpu
def test_marks_measure_what_is_between_them(watch: Stopwatch, piece: Any) -> None:
    first = watch.mark()
    write(piece, 7)
    last = watch.mark()
    assert watch.seconds(first, last) > 0
    assert watch.reached(last)
    assert np.array_equal(piece.numpy(), np.full(WORDS, 7))


@gpu
def test_every_mark_is_a_point_of_its_own(watch: Stopwatch, piece: Any) -> None:
    marks = [watch.mark()]
    for value in range(3):
        write(piece, value)
        marks.append(watch.mark())
    parts = [watch.seconds(*pair) for pair in pairwise(marks)]
    assert min(parts) > 0
    assert sum(parts) == pytest.approx(watch.seconds(marks[0], marks[-1]), rel=0.1, abs=5e-6)


@gpu
def test_the_host_runs_ahead_of_a_hold(watch: Stopwatch) -> None:
    watch.hold(1e-3)  # finds out how long one memset takes
    watch.hold(0.2)
    mark = watch.mark()
    assert not watch.reached(mark)
    watch.seconds(mark, mark)
    assert watch.reached(mark)


@gpu
def test_a_hold_has_a_largest_size(watch: Stopwatch, monkeypatch: pytest.MonkeyPatch) -> None:
    watch.hold(0.0)
    sizes: list[int] = []
    monkeypatch.setattr(watch, "_memset", sizes.append)
    for seconds in (0.0, 1e-2, 0.5, 1e6):
        watch.hold(seconds)
    watch.flush()
    assert sizes[0] == sizes[4] == 1
    assert sizes[0] <= sizes[1] < sizes[2] == sizes[3] <= stopwatch._LONGEST / stopwatch._SHORTEST


@gpu
@pytest.mark.parametrize(("warm", "before"), [(True, 2), (False, 1)])
def test_a_lap_calls_the_work_and_times_it(watch: Stopwatch, piece: Any, warm: bool, before: int) -> None:
    """The work counts in memory; between the marks it is called three times. An empty one takes next to no time."""
    calls, marks = [0], []
    real = watch.mark

    def mark() -> Mark:
        marks.append(calls[0])
        return real()

    def work() -> None:
        calls[0] += 1
        write(piece, calls[0])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch, "mark", mark)
        seconds = watch.lap(work, calls=3, warm=warm)
    assert marks[-2:] == [calls[0] - 3, calls[0]]
    assert calls[0] in (before + 3, before + 3 + before + 2)  # the second: one hold was too short
    assert piece.numpy()[0] == calls[0]
    empty = watch.lap(lambda: None, calls=3, warm=warm)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch, "seconds", lambda *_: 6.0)
        assert watch.lap(work, calls=3, warm=warm) == 2.0
    assert seconds is not None
    assert empty is not None
    assert seconds > empty >= 0


@gpu
def test_a_lap_of_work_that_waits_is_refused(watch: Stopwatch, device: Any, piece: Any) -> None:
    """Whether it waits in every call or in the last one only."""
    calls = [0]

    def last() -> None:
        calls[0] += 1
        write(piece, 1)
        if calls[0] % 3 == 1:  # the call to learn from, and the last of every three
            device.synchronize()

    assert watch.lap(device.synchronize) is None
    assert watch.lap(lambda: piece.numpy(), warm=False) is None
    assert watch.lap(last, calls=3, warm=False) is None


@gpu
def test_the_gpu_is_held_for_longer_than_the_host_takes(watch: Stopwatch, device: Any) -> None:
    holds: list[float] = []
    real = watch.hold

    def hold(seconds: float) -> None:
        holds.append(seconds)
        real(seconds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch, "hold", hold)
        assert watch.lap(lambda: sleep(2e-3), calls=2) is not None
        assert holds[0] > 2 * 3 * 2e-3
        holds.clear()
        assert watch.lap(device.synchronize) is None
    assert len(holds) == 2
    assert holds[0] < holds[1]


@gpu
def test_a_lap_outlives_work_that_fails(watch: Stopwatch) -> None:
    with pytest.raises(ZeroDivisionError):
        watch.lap(lambda: 1 / 0)
    assert watch.lap(lambda: None) is not None


@gpu
def test_a_stream_of_its_own(device: Any, piece: Any) -> None:
    cuda: Any = driver()
    with device.current():
        stream = int(call(cuda.cuStreamCreate, cuda.CUstream_flags.CU_STREAM_NON_BLOCKING.value))
    watch = Stopwatch(device, stream)
    seconds = watch.lap(lambda: write(piece, 3, stream), calls=2)
    assert seconds is not None
    assert seconds > 0
    assert piece.numpy()[-1] == 3
    call(cuda.cuStreamDestroy, stream)


@gpu
def test_nothing_is_left_behind(device: Any) -> None:
    """The scratch memory is at least twice the L2 cache, and cold caches need no less."""
    gc.collect()
    before = counters.counts().bytes
    watch = Stopwatch(device)
    assert counters.counts().bytes == before
    watch.flush()
    assert counters.counts().bytes - before >= max(2 * device.attribute("L2_CACHE_SIZE"), 16 << 20)
    assert np.count_nonzero(watch._scratch.numpy()) == 0
    mark, cuda = watch.mark(), driver()
    event, watched = mark.event, [weakref.ref(mark), weakref.ref(watch)]
    del mark, watch
    gc.collect()
    assert counters.counts().bytes == before
    assert [item() for item in watched] == [None, None]
    if cuda.cuDeviceGetName(64, 0)[1].startswith(b"Stub"):  # a driver may crash on a handle that is none
        assert int(cuda.cuEventQuery(event)[0]) == 400


@gpu
def test_a_gpu_says_who_it_is_and_what_is_used(device: Any) -> None:
    assert re.fullmatch(r"(GPU|MIG)(-[0-9a-f]{4,12}){5}", device.uuid)
    assert len(device.uuid) == 40
    before, total = device.memory()
    kept = device.empty((64 << 20,), "int8")
    used, still = device.memory()
    assert used - before >= 64 << 20
    assert total == still > used
    assert kept.elements == 64 << 20


RULES = """
import json
from onekernel.device import get
from onekernel.device.cuda.driver import call, driver
cuda, place = driver(), get("cuda")
there = get("cuda:1").empty((4,), "int32")
with place.current():
    stream, event, other = call(cuda.cuStreamCreate, 1), call(cuda.cuEventCreate, 0), call(cuda.cuEventCreate, 0)
    untimed = call(cuda.cuEventCreate, cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING.value)
    at = int(call(cuda.cuMemAlloc, 64 << 20))
    answers = {
        "fine": cuda.cuMemsetD32Async(at, 1, 16 << 20, 0),
        "nothing": cuda.cuMemsetD32Async(at, 1, 0, stream),
        "unaligned": cuda.cuMemsetD32Async(at + 2, 1, 1, 0),
        "beyond the end": cuda.cuMemsetD32Async(at + 4, 1, 16 << 20, 0),
        "memory of the host": cuda.cuMemsetD32Async(12344, 1, 1, 0),
        "memory of another GPU": cuda.cuMemsetD32Async(there.address, 1, 1, 0),
        "never recorded": cuda.cuEventQuery(event),
        "time of that": cuda.cuEventElapsedTime(event, event),
        "record": cuda.cuEventRecord(event, 0),
        "busy": cuda.cuEventQuery(event),
        "time when busy": cuda.cuEventElapsedTime(event, event),
        "wait": cuda.cuEventSynchronize(event),
        "idle": cuda.cuEventQuery(event),
        "again": cuda.cuMemsetD32Async(at, 1, 16 << 20, stream),
        "record again": cuda.cuEventRecord(other, stream),
        "copy": cuda.cuMemcpyHtoD(at, bytes(4), 4),
        "a copy waits": cuda.cuEventQuery(other),
        "time": cuda.cuEventElapsedTime(event, other),
        "record untimed": cuda.cuEventRecord(untimed, 0),
        "time of an untimed one": cuda.cuEventElapsedTime(untimed, untimed),
        "destroy the stream": cuda.cuStreamDestroy(stream),
        "no stream": cuda.cuMemsetD32Async(at, 1, 1, stream),
        "destroy": cuda.cuEventDestroy(event),
        "no event": cuda.cuEventQuery(event),
    }
answers["no context"] = cuda.cuMemsetD32Async(at, 1, 1, 0)
print(json.dumps({name: int(answer[0]) for name, answer in answers.items()}))
"""
WRONG = {
    "unaligned": 1, "beyond the end": 1, "memory of the host": 1, "memory of another GPU": 1, "time of that": 400,
    "time of an untimed one": 400, "busy": 600, "time when busy": 600, "no stream": 400, "no event": 400,
    "no context": 201,
}  # fmt: skip


def test_the_stub_takes_its_time_and_refuses_what_is_wrong() -> None:
    """By the words of the driver's manual: a memset is over when its time is, and not what is no memory of the GPU."""
    result = stub_driver.python("-c", textwrap.dedent(RULES), gpus=2)
    assert result.returncode == 0, result.stderr
    answers = json.loads(result.stdout)
    assert {name: status for name, status in answers.items() if status} == WRONG
