"""What the primitives compute on the emulated device, in every order of threads."""

from __future__ import annotations

import numpy as np
import pytest

from emulation import ORDERS, small_kernel
from onekernel.device.emulated import Order

LANES = np.arange(32)

SHUFFLES = """
const int lane = lane_index();
const unsigned half = lane < 16 ? 0x0000ffffu : 0xffff0000u;
y[0 * 32 + lane] = shuffle_xor(lane * 3, 5);
y[1 * 32 + lane] = shuffle_up(lane * 3, 4);
y[2 * 32 + lane] = shuffle_down(lane * 3, 4);
y[3 * 32 + lane] = shuffle_index(lane * 3, 7);
y[4 * 32 + lane] = shuffle_xor(lane, 8, half);
y[5 * 32 + lane] = static_cast<int>(shuffle_xor(lane * 10000000000ll, 1) / 10000000000ll);
y[6 * 32 + lane] = static_cast<int>(shuffle_xor(static_cast<float>(lane) + 0.5f, 2, half) * 2.0f);
if (lane % 2) y[7 * 32 + lane] = shuffle_xor(lane, 2, 0xaaaaaaaau);
else y[7 * 32 + lane] = shuffle_xor(-lane, 4, 0x55555555u);
y[8 * 32 + lane] = static_cast<int>(warp_ballot(lane % 3 == 0));
y[10 * 32 + lane] = static_cast<int>(warp_largest(lane * 7 % 32));
y[11 * 32 + lane] = static_cast<int>(warp_smallest(lane * 7 % 32 + 3));
y[12 * 32 + lane] = static_cast<int>(warp_total(lane));
y[9 * 32 + lane] = warp_any(lane == 9) + 2 * warp_any(lane > 31) + 4 * warp_all(lane < 32) + 8 * warp_all(lane != 9);
"""


@pytest.mark.parametrize("order", ORDERS)
def test_shuffles_and_votes(order: Order) -> None:
    y = np.zeros((13, 32), np.int32)
    small_kernel(SHUFFLES, order=order, seed=3).launch(y, grid=1, block=32)
    odd = LANES % 2 == 1
    expected = [
        (LANES ^ 5) * 3,
        np.where(LANES < 4, LANES, LANES - 4) * 3,
        np.where(LANES > 27, LANES, LANES + 4) * 3,
        np.full(32, 21),
        LANES ^ 8,
        LANES ^ 1,
        2 * (LANES ^ 2) + 1,
        np.where(odd, LANES ^ 2, -(LANES ^ 4)),
        np.full(32, np.int64(sum(1 << lane for lane in range(0, 32, 3))).astype(np.int32)),
        np.full(32, 1 + 4),
        np.full(32, 31),
        np.full(32, 3),
        np.full(32, 496),
    ]
    for row, wanted in zip(y, expected, strict=True):
        np.testing.assert_array_equal(row, wanted)


ATOMICS = """
const int i = static_cast<int>(threadIdx.x);
auto& shared = shared_storage<int>();
if (i == 0) shared = 0;
block_barrier();
atomic_add(&shared, 1);
atomic_add(y, i);
atomic_min(y + 1, -i);
atomic_max(y + 2, i);
if (atomic_exchange(y + 3, 1) == 0) y[4] = 7;
for (int seen = -1, held = 0; held != seen;) {
  seen = held;
  held = atomic_compare_exchange(y + 5, seen, seen + 2);
}
atomic_add(f, 0.5f);
block_barrier();
y[6] = shared;
"""


@pytest.mark.parametrize("order", ORDERS)
def test_atomic_operations(order: Order) -> None:
    y, f = np.zeros(7, np.int32), np.zeros(1, np.float32)
    small_kernel(ATOMICS, "int* y, float* f", order=order).launch(y, f, grid=1, block=96)
    assert y.tolist() == [95 * 48, -95, 95, 1, 7, 192, 96]
    assert f == 48.0


TURNS = """
    const int blocks = gridDim.x, me = blockIdx.x;
    for (int round = 0; round < 2; ++round) {
      const int turn = round * blocks + me;
      if (threadIdx.x == 0) {
        spin_until([&] { return load_acquire(y) == turn; }, "its turn");
        y[1] = y[1] * 3 + me;
        store_release(y, turn + 1);
      }
    }"""


def test_a_grid_of_blocks_takes_turns() -> None:
    """Block 0 hands a number to block 1 and so on, twice around: all of them must be there at once."""
    for order in Order:
        y, expected = np.zeros(2, np.int32), 0
        small_kernel(TURNS, order=order, cooperative=True).launch(y, grid=5, block=64)
        for me in [*range(5)] * 2:
            expected = expected * 3 + me
        assert y.tolist() == [10, expected]


PHASES = """
    const int threads = gridDim.x * blockDim.x, me = blockIdx.x * blockDim.x + threadIdx.x;
    for (int round = 0; round < 3; ++round) {
      x[me] = x[me] + 1;
      grid_barrier(word);
      int sum = 0;
      for (int i = 0; i < threads; ++i) sum += x[i];
      grid_barrier(word);
      if (sum != (round + 1) * threads) atomic_add(y, 1);
    }"""


def test_a_grid_barrier_separates_phases() -> None:
    """Every block reads what all others wrote, several times; one word serves all rounds and all launches."""
    word = np.zeros(1, np.int32)
    for order in Order:
        x, y = np.zeros(4 * 40, np.int32), np.zeros(1, np.int32)
        kernel = small_kernel(PHASES, "int* y, int* x, int* word", order=order, cooperative=True)
        kernel.launch(y, x, word, grid=4, block=40)
        assert y == 0


PAIRS = """
    auto* shared = dynamic_storage<int>();
    const int i = threadIdx.x, pair = i / 64;
    for (int round = 0; round < (pair == 0 ? 3 : 1); ++round) {
      shared[i] = i + round;
      named_barrier(1 + pair, 64);
      y[i] = shared[i ^ 63];
      named_barrier(1 + pair, 64);
    }"""


def test_named_barriers_split_a_block() -> None:
    """Two pairs of warps meet apart, and the first pair meets more often."""
    i = np.arange(128)
    for order in Order:
        y = np.zeros(128, np.int32)
        small_kernel(PAIRS, order=order, shared=512).launch(y, grid=1, block=128)
        np.testing.assert_array_equal(y, (i ^ 63) + np.where(i < 64, 2, 0))


def test_shared_storage_of_two_types_and_dynamic_storage_lie_apart() -> None:
    body = """
    struct One { int at[3]; };
    struct Two { int at[5]; };
    auto& one = shared_storage<One>();
    auto& two = shared_storage<Two>();
    auto* more = dynamic_storage<int>();
    for (int i = 0; i < 3; ++i) one.at[i] = 1;
    for (int i = 0; i < 5; ++i) two.at[i] = 2;
    for (int i = 0; i < 7; ++i) more[i] = 3;
    for (int i = 0; i < 3; ++i) y[i] = one.at[i];
    for (int i = 0; i < 5; ++i) y[3 + i] = two.at[i];
    for (int i = 0; i < 7; ++i) y[8 + i] = more[i];"""
    y = np.zeros(15, np.int32)
    small_kernel(body, shared=28).launch(y, grid=1, block=1)
    assert y.tolist() == [1] * 3 + [2] * 5 + [3] * 7


@pytest.mark.parametrize(("last", "seen"), [(0, [-1, 7]), (1, [7, 7])])
def test_a_block_that_lags_comes_last(last: int, seen: list[int]) -> None:
    """Block 0 writes, block 1 looks: it sees what was written only when it is the one that lags."""
    body = "if (blockIdx.x == 0) y[1] = 7; else y[0] = y[1];"
    kernel = small_kernel(body, cooperative=True, order=Order.LAGGING, seed=last)
    y = np.full(2, -1, np.int32)
    kernel.launch(y, grid=2, block=1)
    assert y.tolist() == seen
