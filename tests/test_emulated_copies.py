"""Asynchronous copies on the emulated device: what they bring, and what is found when nobody waits for them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from emulation import ORDERS, orders, small_kernel
from onekernel.device.emulated import Order
from onekernel.errors import EmulationFault

X = np.arange(4 * 256, dtype=np.int32)


def run(body: str, *, block: int = 64, shared: int = 4096, sanitize: bool = True, **asked: Any) -> np.ndarray[Any, Any]:
    """Run a kernel of x [1024] and y [1024]; `s` is dynamic shared memory, and the body begins at source:4."""
    y = np.zeros(X.size, np.int32)
    lines = "auto* s = dynamic_storage<int>();\nconst int i = threadIdx.x;\n" + body
    kernel = small_kernel(lines, "int* y, const int* x", shared=shared, sanitize=sanitize, **asked)
    kernel.launch(y, X, grid=1, block=block)
    return y


def fault_of(body: str, **asked: Any) -> str:
    with pytest.raises(EmulationFault) as caught:
        run(body, **asked)
    return str(caught.value)


PIPELINE = """const int stages = 3, rounds = 8;
for (int stage = 0; stage < stages - 1; ++stage) {
  copy_async<8>(s + stage * 128 + 2 * i, x + stage * 128 + 2 * i);
  copy_commit();
}
for (int round = 0; round < rounds; ++round) {
  copy_wait<1>();
  block_barrier();
  if (round + 2 < rounds) copy_async<8>(s + (round + 2) % 3 * 128 + 2 * i, x + (round + 2) * 128 + 2 * i);
  copy_commit();
  y[round * 128 + i] = s[round % 3 * 128 + 127 - i];
  y[round * 128 + 64 + i] = s[round % 3 * 128 + 63 - i];
}"""
REVERSED = X.reshape(8, 128)[:, ::-1].reshape(-1)


@pytest.mark.parametrize("sanitize", [False, True])
@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
def test_a_pipeline_of_three_buffers(arch: str, sanitize: bool) -> None:
    for order, seed in orders(1, 2, 3):
        result = run(PIPELINE, arch=arch, order=order, seed=seed, sanitize=sanitize)
        np.testing.assert_array_equal(result, REVERSED)


BROKEN_PIPELINES = {
    "a wait for too little": (
        "copy_wait<1>();",
        "copy_wait<2>();",
        "is on its way: no wait has ended it, at source:1[34]",
    ),
    "no wait": ("copy_wait<1>();", "", "is on its way: no wait has ended it, at source:1"),
    "no commit": ("  copy_commit();\n}\nfor", "}\nfor", "is on its way: no wait has ended it, at source:1"),
    "no barrier": ("  block_barrier();\n", "", "race on shared memory|what nobody wrote|is on its way"),
    "shifted": (
        "* 128 + 2 * i);",
        "* 128 + 2 * i + 1);",
        r"8 bytes that is not aligned to 8 \(operand 1 .* at source:6",
    ),
    "not shared": ("s + stage * 128 + 2 * i", "y", r"what is not the block's shared memory \(operand 0 at \+0 of 4096"),
    "too far": ("round + 2 < rounds", "round < rounds", r"8-byte read out of bounds \(operand 1 at .* at source:12"),
    "past the end": (
        "async<8>(s + ",
        "async<8>(s + 950 + ",
        "outside of what the block has|not the block's shared memory",
    ),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("fault", BROKEN_PIPELINES)
def test_a_broken_pipeline(fault: str, order: Order) -> None:
    old, new, says = BROKEN_PIPELINES[fault]
    assert old in PIPELINE
    assert re.search(says, message := fault_of(PIPELINE.replace(old, new, 1), order=order)), message


def test_a_missing_wait_shows_without_the_sanitizer() -> None:
    """Late copies leave what was there before: the results are wrong in at least one order."""
    body = PIPELINE.replace("copy_wait<1>();", "")
    results = [run(body, order=order, sanitize=False) for order in Order]
    assert not np.array_equal(results[0], REVERSED)


def test_a_copy_over_a_buffer_that_is_still_read_shows_without_the_sanitizer() -> None:
    body = PIPELINE.replace("  block_barrier();\n", "").replace("copy_wait<1>();", "copy_wait<1>(); warp_barrier();")
    results = [run(body, order=order, seed=seed, sanitize=False) for order, seed in orders()]
    assert any(not np.array_equal(result, REVERSED) for result in results)


BULK = """auto& full = shared_storage<Mbarrier>();
if (i == 0) mbarrier_init(full, 1);
block_barrier();
for (int round = 0; round < 4; ++round) {
  if (i == 0) {
    mbarrier_arrive_expecting(full, 1024);
    copy_bulk(s, x + round * 256, 512, full);
    copy_bulk(s + 128, x + round * 256 + 128, 512, full);
  }
  mbarrier_wait(full, round % 2);
  for (int k = i; k < 256; k += 64) y[round * 256 + k] = s[255 - k];
  block_barrier();
}"""


@pytest.mark.parametrize("sanitize", [False, True])
def test_bulk_copies(sanitize: bool) -> None:
    for order, seed in orders(1, 2, 3):
        result = run(BULK, order=order, seed=seed, sanitize=sanitize)
        np.testing.assert_array_equal(result, X.reshape(4, 256)[:, ::-1].reshape(-1))


BROKEN_BULK_COPIES = {
    "too many bytes": (
        "full, 1024",
        "full, 1040",
        r"mbarrier \(1 of 1 have arrived, 16 bytes are to come\) at source:13",
    ),
    "too many arrivals": ("init(full, 1)", "init(full, 2)", r"mbarrier \(1 of 2 have arrived, 0 bytes are to come\)"),
    "no init": (
        "if (i == 0) mbarrier_init(full, 1);",
        "",
        r"not initialised \(shared memory \+ 0 of block 0\) at source",
    ),
    "no wait": ("  mbarrier_wait(full, round % 2);\n", "", "what nobody wrote|race on|no wait has ended it"),
    "no barrier": ("  block_barrier();\n", "", "no wait has ended it|race on|at an mbarrier|what nobody wrote"),
    "not a multiple": ("512, full", "500, full", "a bulk copy of 500 bytes, not a multiple of 16, at source:10"),
    "shifted": ("* 256, 512", "* 256 + 1, 512", r"512 bytes that is not aligned to 16 \(operand 1 at \+4"),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("fault", BROKEN_BULK_COPIES)
def test_broken_bulk_copies(fault: str, order: Order) -> None:
    old, new, says = BROKEN_BULK_COPIES[fault]
    assert old in BULK
    assert re.search(says, message := fault_of(BULK.replace(old, new, 1), order=order)), message


def test_an_mbarrier_is_ready_only_after_a_barrier() -> None:
    message = fault_of(BULK.replace("block_barrier();", "", 1))
    assert "race on shared memory + 0 of block 0" in message or "not initialised" in message
