// Who works in a block of a program: eight warps that compute, and behind them one that streams weights.
#pragma once
#include "primitives/warp.cuh"
#include "primitives/wait.cuh"

constexpr int kWarps = 8;
constexpr int kWorkers = kWarps * kWarpLanes;
constexpr float kLog2E = 1.4426950408889634f;  // the hardware has exponentials of 2

ONEKERNEL_DEVICE int warp_index() { return threadIdx.x / kWarpLanes; }

// The number of a thread as if nothing were known of it: else all places of all phases are computed before all loops,
// and kept in registers.
ONEKERNEL_DEVICE int fresh_thread_index() {
  int thread = threadIdx.x;
  forget(thread);
  return below<kWorkers + kWarpLanes>(thread);
}

// A barrier of the warps that compute.
ONEKERNEL_DEVICE void workers_barrier() { named_barrier(1, kWorkers); }

// The sum of a warp; or, if neighbours have the same value, of its even lanes.
template <int kLeast = 1>
ONEKERNEL_DEVICE float warp_sum(float value) {
#pragma unroll
  for (int distance = kWarpLanes / 2; distance >= kLeast; distance /= 2) value += shuffle_xor(value, distance);
  return value;
}
ONEKERNEL_DEVICE float warp_maximum(float value) {
#pragma unroll
  for (int distance = kWarpLanes / 2; distance > 0; distance /= 2) value = fmaxf(value, shuffle_xor(value, distance));
  return value;
}

constexpr int divide_up(int value, int by) { return (value + by - 1) / by; }

// How a block waits for others: `wait` stands where what they made is first read, with the ticks after `since` before
// which it is no use to ask for it. `lap` does nothing here.
struct Patience {
  unsigned since = 0;

  ONEKERNEL_DEVICE void wait() {}
  ONEKERNEL_DEVICE void wait(unsigned ticks) { let_pass(since, ticks); }
  ONEKERNEL_DEVICE void lap(int) {}
};

// The same, and where the time of one warp goes: cycles by the number of a lap, in shared memory.
struct TracedPatience {
  unsigned* laps;
  int base = 0;
  unsigned since = 0, last = 0;

  ONEKERNEL_DEVICE void wait() {}
  ONEKERNEL_DEVICE void wait(unsigned ticks) { let_pass(since, ticks); }
  ONEKERNEL_DEVICE void lap(int number) {
    if (threadIdx.x != kTracedThread) return;
    const unsigned now = clock_ticks();
    laps[base + number] += now - last;
    last = now;
  }
  static constexpr int kTracedThread = 1 * kWarpLanes;
};
