"""Launches through the driver: on a GPU, and in CI on the stub driver (test_stub_driver.py runs this file there)."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from onekernel.device import get, gpu_count
from onekernel.device.cuda.driver import call, driver
from onekernel.device.cuda.graph import CudaGraph
from onekernel.device.cuda.kernel_graph import KernelGraph
from onekernel.errors import InvalidInput, InvalidOperand, NotReady
from onekernel.jit import Kernel, KernelRequest, Parameter, Supply, kernel

pytestmark = pytest.mark.gpu

ADD = """
#include "primitives.cuh"
extern "C" __global__ void add(const float* x, float* y, float step, int count) {
  await_predecessor();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) y[i] = x[i] + step;
  start_successor();
}
"""
PARAMETERS = (("x", "const float*"), ("y", "float*"), ("step", "float"), ("count", "int"))
COUNT, BLOCK, GRID = 1000, 128, 8

# Every block adds 1 to a word, waits for all others, and writes what it sees then.
MEET = """
#include "primitives.cuh"
#include "grid_barrier.cuh"
extern "C" __global__ void meet(int* word, int* arrived, int* seen) {
  if (threadIdx.x == 0) add_release(reinterpret_cast<unsigned*>(arrived), 1u);
  grid_barrier(word);
  if (threadIdx.x == 0) seen[blockIdx.x] = static_cast<int>(load_acquire(reinterpret_cast<unsigned*>(arrived)));
}
"""

# Turns a row that is larger than the 48 kB which a block gets without asking.
TURN = """
#include "primitives.cuh"
extern "C" __global__ void turn(float* y, int count) {
  float* row = dynamic_storage<float>();
  for (int i = threadIdx.x; i < count; i += blockDim.x) row[i] = y[i];
  block_barrier();
  for (int i = threadIdx.x; i < count; i += blockDim.x) y[i] = row[count - 1 - i];
}
"""


def request(**changes: Any) -> KernelRequest:
    typed = tuple(Parameter(*item) for item in PARAMETERS)
    return KernelRequest("add", get("cuda").arch, typed, BLOCK, source=ADD, **changes)


@pytest.fixture
def add() -> Kernel:
    return Kernel(request(overlap=get("cuda").arch >= "sm_90"), get("cuda"))


@contextmanager
def new_stream(flags: str = "CU_STREAM_NON_BLOCKING") -> Iterator[int]:
    cuda: Any = driver()
    with get("cuda").current():  # type: ignore[attr-defined]
        stream = call(cuda.cuStreamCreate, getattr(cuda.CUstream_flags, flags).value)
    yield int(stream)
    call(cuda.cuStreamDestroy, stream)


@pytest.fixture
def stream() -> Iterator[int]:
    with new_stream() as handle:
        yield handle


def numbers(*values: float) -> list[Any]:
    return [get("cuda").upload(np.full(COUNT, value, np.float32)) for value in values]


def assert_all(buffer: Any, value: float) -> None:
    assert np.array_equal(buffer.numpy(), np.full(COUNT, value, np.float32))


def test_a_launch_computes(add: Kernel, stream: int) -> None:
    x, y = numbers(1.5, 0.0)
    add.launch(x, y, 2.0, COUNT, grid=GRID, stream=stream)
    assert_all(y, 3.5)


def test_a_bound_launch_reads_what_its_operands_hold_then(add: Kernel, stream: int) -> None:
    x, y = numbers(1.0, 0.0)
    bound = add.bind(x, x, 1.0, COUNT, grid=GRID)
    for _ in range(5):
        bound.launch(stream)
    add.launch(x, y, 0.0, COUNT, grid=GRID, stream=stream)
    assert_all(y, 6.0)


def test_a_thread_without_a_context_may_launch(add: Kernel, stream: int) -> None:
    """On an explicit stream and on the default stream, whatever is current on the thread, and it stays so."""
    cuda: Any = driver()
    x, y = numbers(1.0, 0.0)
    seen: list[Any] = []

    def work() -> None:
        before = int(call(cuda.cuCtxGetCurrent))
        for where in (stream, None, 0, 1, 2):
            add.launch(x, y, 1.0, COUNT, grid=GRID, stream=where)
        seen.append((before, int(call(cuda.cuCtxGetCurrent))))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(0, 0)]
    assert_all(y, 2.0)


def test_threads_do_not_mix_up_arguments(add: Kernel) -> None:
    """Every thread keeps adding to memory of its own, 200 times, all through one kernel object."""
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with new_stream() as own:
                x, y = numbers(float(number), 0.0)
                for _ in range(100):
                    add.launch(x, y, 1.0, COUNT, grid=GRID, stream=own)
                    add.launch(y, x, 1.0, COUNT, grid=GRID, stream=own)
                get("cuda").synchronize()
                assert_all(x, number + 200.0)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_wrong_operands_never_reach_the_driver(add: Kernel, stream: int) -> None:
    x, y = numbers(1.0, 7.0)
    add.launch(x, y, 0.0, COUNT, grid=GRID, stream=stream)
    half = get("cuda").upload(np.zeros(COUNT, np.float16))
    for operands in ((x, half, 1.0, COUNT), (x, np.zeros(COUNT, np.float32), 1.0, COUNT), (x, y, "1", COUNT)):
        with pytest.raises(InvalidOperand):
            add.launch(*operands, grid=GRID, stream=stream)
    with pytest.raises(InvalidOperand, match="4 operands"):
        add.launch(x, y, 1.0, grid=GRID, stream=stream)
    assert_all(y, 1.0)


# ---- graphs


def test_a_captured_graph_replays_with_the_values_of_its_capture(add: Kernel) -> None:
    x, y = numbers(1.0, 0.0)
    add.launch(x, y, 0.0, COUNT, grid=GRID)

    def work(where: int) -> None:
        add.launch(x, y, 1.0, COUNT, grid=GRID, stream=where)
        add.launch(y, x, 1.0, COUNT, grid=GRID, stream=where)

    graph = CudaGraph(get("cuda"), work)  # type: ignore[arg-type]
    add.launch(x, y, 100.0, COUNT, grid=GRID)  # fills the same argument memory again
    for _ in range(3):
        graph.replay()
    get("cuda").synchronize()
    assert_all(x, 7.0)
    graph.close()


def test_a_device_knows_what_is_being_captured(stream: int) -> None:
    place: Any = get("cuda")
    assert not place.capturing(stream)
    assert not place.capturing()
    seen = []
    CudaGraph(place, lambda where: seen.append(place.capturing(where))).close()
    assert seen == [True]


def test_a_kernel_that_is_missing_in_a_capture_is_named(add: Kernel) -> None:
    """It is refused before the driver is asked, so that the capture goes on."""
    x, y = numbers(1.0, 0.0)
    add.launch(x, y, 0.0, COUNT, grid=GRID)
    supply, missing = Supply(get("cuda"), "block"), request(constants=(("only_here", 1),))
    refusals = []

    def work(where: int) -> None:
        try:
            supply.get(missing, where)
        except NotReady as refusal:
            refusals.append(refusal)
        add.launch(x, y, 2.0, COUNT, grid=GRID, stream=where)

    graph = CudaGraph(get("cuda"), work)  # type: ignore[arg-type]
    graph.replay()
    get("cuda").synchronize()
    assert_all(y, 3.0)
    graph.close()
    assert refusals[0].key[:16] in str(refusals[0])
    assert "call warm_up" in str(refusals[0])
    assert supply.get(missing).request == missing


def test_a_background_build_and_a_free_do_not_spoil_a_capture(add: Kernel) -> None:
    """Another thread loads a kernel, and memory is freed, while this one captures in the mode that sees all threads."""
    cuda: Any = driver()
    x, y, garbage = numbers(1.0, 0.0, 0.0)
    unbuilt = (("only_there", time.time_ns() % 2**31),)  # a binary on disk could load before the answer is NotReady
    supply, wanted = Supply(get("cuda"), "background"), request(constants=unbuilt)
    with new_stream() as where:
        call(cuda.cuStreamBeginCapture, where, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
        with pytest.raises(NotReady):
            supply.get(wanted)
        supply.wait()
        del garbage  # its memory is freed now
        add.launch(x, y, 1.0, COUNT, grid=GRID, stream=where)
        call(cuda.cuGraphDestroy, call(cuda.cuStreamEndCapture, where))
    assert supply.get(wanted).request == wanted


def test_nodes_run_in_order_and_can_be_updated(add: Kernel, stream: int) -> None:
    x, y, z = numbers(1.0, 0.0, 0.0)
    graph = KernelGraph(get("cuda"))  # type: ignore[arg-type]
    first = graph.add(add.bind(x, y, 1.0, COUNT, grid=GRID))
    graph.add(add.bind(y, z, 1.0, COUNT, grid=GRID))
    graph.launch(stream)
    assert_all(z, 3.0)
    graph.update(first, add.bind(x, y, 10.0, COUNT, grid=GRID))
    graph.launch(stream)
    assert_all(z, 12.0)
    graph.close()


def test_a_graph_joins_branches(add: Kernel, stream: int) -> None:
    x, a, b, c = numbers(1.0, 0.0, 0.0, 0.0)
    graph = KernelGraph(get("cuda"))  # type: ignore[arg-type]
    left = graph.add(add.bind(x, a, 1.0, COUNT, grid=GRID), after=())
    right = graph.add(add.bind(x, b, 2.0, COUNT, grid=GRID), after=())
    graph.add(add.bind(b, c, 1.0, COUNT, grid=GRID), after=(left, right))
    graph.launch(stream)
    assert_all(c, 4.0)
    graph.close()


def test_a_graph_owns_its_operands(add: Kernel, stream: int) -> None:
    x, y = numbers(1.0, 0.0)
    watched = weakref.ref(x)
    graph = KernelGraph(get("cuda"))  # type: ignore[arg-type]
    node = graph.add(add.bind(x, y, 1.0, COUNT, grid=GRID))
    del x
    gc.collect()
    assert watched() is not None
    graph.launch(stream)
    assert_all(y, 2.0)
    (other,) = numbers(5.0)
    graph.update(node, add.bind(other, y, 1.0, COUNT, grid=GRID))
    gc.collect()
    assert watched() is None
    graph.launch(stream)
    assert_all(y, 6.0)
    graph.close()


def test_a_graph_refuses_what_it_cannot_do(add: Kernel, stream: int) -> None:
    x, y = numbers(1.0, 0.0)
    bound = add.bind(x, y, 1.0, COUNT, grid=GRID)
    graph = KernelGraph(get("cuda"))  # type: ignore[arg-type]
    node = graph.add(bound)
    other = Kernel(request(constants=(("unused", 1),)), get("cuda")).bind(x, y, 1.0, COUNT, grid=GRID)
    with pytest.raises(InvalidInput, match="kernel that the node was added with"):
        graph.update(node, other)
    with pytest.raises(InvalidInput, match="a node from 0 to 0"):
        graph.add(bound, after=(3,))
    graph.launch(stream)
    with pytest.raises(InvalidInput, match="one that has run"):
        graph.add(bound)
    graph.close()
    with pytest.raises(InvalidInput, match="a closed one"):
        graph.launch(stream)


# ---- cooperative launches, shared memory


def meeting() -> Kernel:
    typed = tuple(Parameter(name, "int*") for name in ("word", "arrived", "seen"))
    return Kernel(KernelRequest("meet", get("cuda").arch, typed, 64, source=MEET, cooperative=True), get("cuda"))


def test_all_blocks_of_a_cooperative_launch_meet(stream: int) -> None:
    blocks, device, meet = 32, get("cuda"), meeting()
    word, arrived = (device.upload(np.zeros(1, np.int32)) for _ in range(2))
    for round_ in (1, 2, 3):
        seen = device.upload(np.zeros(blocks, np.int32))
        meet.launch(word, arrived, seen, grid=blocks, stream=stream)
        assert np.array_equal(seen.numpy(), np.full(blocks, blocks * round_))


def test_a_cooperative_launch_that_cannot_be_resident_is_refused() -> None:
    device, meet = get("cuda"), meeting()
    operands = [device.upload(np.zeros(1, np.int32)) for _ in range(3)]
    with pytest.raises(InvalidInput, match="fits on"):
        meet.launch(*operands, grid=1_000_000)


def test_more_shared_memory_than_the_default(stream: int) -> None:
    count, device = 16 * 1024, get("cuda")  # 64 kB
    typed = (Parameter("y", "float*"), Parameter("count", "int"))
    turn = Kernel(KernelRequest("turn", device.arch, typed, 256, source=TURN, shared=4 * count), device)
    y = device.upload(np.arange(count, dtype=np.float32))
    turn.launch(y, count, grid=1, stream=stream)
    assert np.array_equal(y.numpy(), np.arange(count, dtype=np.float32)[::-1])


# ---- fork

FORKED = """
import multiprocessing, os, sys
if "STUB_GPUS" in os.environ:
    import stub_driver.emulate
from test_launch import COUNT, GRID, Kernel, get, numbers, request
add = Kernel(request(), get("cuda"))
x, y = numbers(1.0, 0.0)
with multiprocessing.get_context("fork").Pool(1) as pool:
    try:
        pool.apply(numbers, (1.0,))
    except Exception as error:
        print(type(error).__name__, error)
add.launch(x, y, 1.0, COUNT, grid=GRID)
print(float(y.numpy().sum()) / COUNT)
"""


def test_a_forked_child_is_told_and_its_parent_goes_on() -> None:
    path = os.pathsep.join([*map(str, sys.path), os.path.dirname(__file__)])
    command = [sys.executable, "-W", "ignore", "-c", FORKED]
    result = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=120
    )
    told, summed = result.stdout.splitlines()
    assert told.startswith("DeviceError")
    assert "spawn" in told
    assert summed == "2.0"


# ---- several GPUs


@pytest.mark.skipif("gpu_count() < 2")
def test_each_gpu_runs_its_own_launches_and_refuses_the_others_memory() -> None:
    kernels = [
        kernel(ADD, entry="add", parameters=PARAMETERS, threads=BLOCK, device=get(f"cuda:{ordinal}"))
        for ordinal in range(2)
    ]
    buffers = [[built.device.upload(np.full(COUNT, value, np.float32)) for value in (1.0, 0.0)] for built in kernels]
    for ordinal, built in enumerate(kernels):
        built.launch(*buffers[ordinal], float(ordinal + 1), COUNT, grid=GRID)  # the default stream of either
    for ordinal in range(2):
        assert_all(buffers[ordinal][1], ordinal + 2.0)
    with pytest.raises(InvalidOperand, match="'x'"):
        kernels[0].launch(buffers[1][0], buffers[0][1], 1.0, COUNT, grid=GRID)
    assert gpu_count() >= 2
