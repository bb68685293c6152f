"""Planted faults: each rule of the machine that a kernel can break, and the message that names the line."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from emulation import small_kernel
from onekernel.device.emulated import EmulatedDevice
from onekernel.errors import EmulationFault, InvalidInput
from onekernel.jit import Kernel, KernelRequest, Line, Parameter


def fault_of(body: str, *, grid: Any = 1, block: int = 64, **asked: Any) -> str:
    """Return what the emulated device says about a kernel; the body begins at source:2."""
    with pytest.raises(EmulationFault) as caught:
        small_kernel(body, **asked).launch(np.zeros(64, np.int32), grid=grid, block=block)
    return str(caught.value)


def has(message: str, *pieces: str) -> bool:
    assert [piece for piece in pieces if piece not in message] == [], message
    return True


def test_a_barrier_that_some_threads_miss() -> None:
    message = fault_of("if (threadIdx.x < 7)\n  block_barrier();")
    assert has(message, "deadlock: 7 threads wait, 57 have ended", "block 0, threads 0-6 wait")
    assert has(message, "at a block barrier (7 of 64 have arrived) at source:3", "source:3: block_barrier();")


def test_a_shuffle_in_a_divergent_branch() -> None:
    message = fault_of("if (lane_index() % 2 == 1)\n  y[0] = shuffle_xor(1, 2);")
    assert has(message, "deadlock", "lanes 0xffffffff are named, 0xaaaaaaaa have come", "at source:3")


def test_a_shuffle_with_a_lane_that_its_mask_does_not_name() -> None:
    message = fault_of("if (lane_index() < 8)\n  y[0] = shuffle_index(1, 9, 0xffu);")
    assert has(message, "shuffle with lane 9, which the mask 0x000000ff does not name, at source:3")


def test_a_shuffle_by_a_lane_that_its_mask_does_not_name() -> None:
    message = fault_of("y[0] = shuffle_index(1, 3, 0xffu);")
    assert has(message, "shuffle by lane 8, which its mask 0x000000ff does not name, at source:2 (block 0, thread 8)")


def test_different_operations_of_one_warp() -> None:
    message = fault_of("if (lane_index() < 8)\n  y[0] = shuffle_index(1, 3);\nelse\n  warp_ballot(true);")
    assert has(message, "ballot here, but shuffle by other lanes of the warp at source:3, at source:5")


def test_a_misaligned_vector() -> None:
    message = fault_of("y[threadIdx.x] = load_vector<4>(y + threadIdx.x).at[0];")
    assert has(message, "misaligned 16-byte access (operand 0 at +4 of 256 bytes) at source:2 (block 0, thread 1)")
    assert has(message, "source:2: y[threadIdx.x] = load_vector<4>(y + threadIdx.x).at[0];")


def test_a_named_barrier_with_too_high_a_count() -> None:
    message = fault_of("if (threadIdx.x < 64)\n  named_barrier(3, 96);", block=128)
    assert has(message, "threads 0-63 wait at a named barrier 3 (64 of 96 have arrived) at source:3")


def test_a_named_barrier_with_two_counts() -> None:
    message = fault_of("if (threadIdx.x < 32)\n  named_barrier(3, 64);\nelse\n  named_barrier(3, 96);", block=128)
    assert has(message, "named barrier 3 for 96 threads, but for 64 threads at source:3, at source:5")


@pytest.mark.parametrize("count", [0, 48, 96])
def test_a_named_barrier_that_the_block_cannot_fill(count: int) -> None:
    message = fault_of(f"named_barrier(1, {count});")
    assert has(message, f"named barrier 1 for {count} threads: whole warps of a block of 64", "at source:2")


def test_a_block_that_misses_the_grid_barrier() -> None:
    message = fault_of("if (blockIdx.x == 2) return;\ngrid_barrier(y);", grid=4, cooperative=True)
    assert has(message, "deadlock: 192 threads wait, 64 have ended", "block 3, thread 0 waits")
    assert has(message, "for all blocks at the grid barrier (operand 0 at +0 of 256 bytes holds 0x7fffffff)")
    assert re.search(r"at grid_barrier.cuh:\d+, called from source:3", message)
    assert has(message, "block_barrier();")


def test_a_grid_barrier_in_a_launch_that_is_not_cooperative() -> None:
    assert has(fault_of("grid_barrier(y);", grid=4), "3 blocks start only when these end: the launch is not cooper")


def test_a_spin_that_nobody_ends() -> None:
    message = fault_of('y[1] = 5;\nspin_until([&] { return load_acquire(y + 1) == 7; }, "the seven");', block=1)
    assert has(message, "block 0, thread 0 waits for the seven (operand 0 at +4 of 256 bytes holds 0x5) at source:3")


def test_threads_that_wait_for_each_other() -> None:
    """Two locks taken in two orders; a barrier makes sure that both have their first."""
    body = """const int me = threadIdx.x;
    auto take = [&](int lock, const char* what) {
      spin_until([&] { return atomic_compare_exchange(y + lock, 0, 1) == 0; }, what);
    };
    take(me, "its first lock");
    block_barrier();
    take(1 - me, "its second lock");"""
    message = fault_of(body, block=2)
    assert has(message, "deadlock: 2 threads wait", "thread 0 waits for its second lock (operand 0 at +4")
    assert has(message, "thread 1 waits for its second lock (operand 0 at +0", "holds 0x1")


def test_too_much_shared_memory() -> None:
    message = fault_of("struct Big { char at[50000]; };\ny[0] = shared_storage<Big>().at[0];")
    assert has(message, "more shared memory than a block has (50000 bytes and 0 dynamic ones", "at source:3")
    message = fault_of(
        "struct Big { char at[40000]; };\ny[0] = shared_storage<Big>().at[0];", arch="sm_75", shared=60000
    )
    assert has(message, "together 65536", "at source:3")


def test_dynamic_storage_that_the_launch_did_not_ask_for() -> None:
    assert has(fault_of("y[0] = *dynamic_storage<int>();"), "of which the launch asked none", "at source:2")


def test_a_launch_larger_than_the_device() -> None:
    y = np.zeros(1, np.int32)
    with pytest.raises(InvalidInput, match=r"at most 65536 bytes of shared memory a block, got 65537"):
        small_kernel("y[0] = 1;", arch="sm_75", shared=65537).launch(y, grid=1)
    with pytest.raises(InvalidInput, match=r"at most 16384 threads .*got 17 blocks of 1024 threads, 17408 in all"):
        small_kernel("y[0] = 1;", cooperative=True).launch(y, grid=17)


def test_a_fault_in_a_chain_names_its_node() -> None:
    lines = (Line("y[0] = 1.0f;"), Line("y[1] = load_vector<4>(y + 1).at[0];", "chain:/encoder/Add_3"))
    parameters, headers = (Parameter("y", "float*"),), ("primitives.cuh",)
    kernel = Kernel(KernelRequest("chained", "sm_90", parameters, 32, headers, body=lines), EmulatedDevice())
    with pytest.raises(EmulationFault, match=r"access \(operand 0 .* at chain:/encoder/Add_3 \(block 0, thread 0\)"):
        kernel.launch(np.zeros(8, np.float32), grid=1)


def test_a_function_that_is_not_inlined_leads_to_its_caller() -> None:
    body = """struct Deep {
      __attribute__((noinline)) static void one(int* y) { *y += load_vector<2>(y + 1).at[0]; }
      __attribute__((noinline)) static void two(int* y) { one(y + 2); *y = 3; }
    };
    Deep::two(y);"""
    assert has(fault_of(body), "misaligned 8-byte access", "at source:3 (block 0, thread 0)")


def test_without_addr2line_there_is_a_message_still(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = small_kernel("y[0] = 2;\ny[1] = load_vector<4>(y + 1).at[0];")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EmulationFault, match=r"misaligned .* at an unknown place \(block 0, thread 0\)"):
        kernel.launch(np.zeros(8, np.int32), grid=1, block=1)
