// Waiting: for a condition that other threads make true, or at a barrier for some warps of the block.
#pragma once
#include "primitives.cuh"

// Longer than any kernel runs: who waits this long waits for ever, and an error is better than a hung GPU.
constexpr unsigned long long kSpinNanoseconds = 10'000'000'000ull;
constexpr unsigned kFreeLooks = 1024;      // before the clock is read for the first time
constexpr unsigned kSpinLooks = 1u << 25;  // each takes some twenty cycles at least, one at global memory 600

namespace detail {

ONEKERNEL_DEVICE unsigned long long nanoseconds() {
  unsigned long long time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

}  // namespace detail

// Look at a condition until it holds. It must depend on memory alone, by load_acquire or an atomic operation. `what`
// tells a reader of the emulated device's report what the thread waits for.
template <class Condition>
ONEKERNEL_DEVICE void spin_until(Condition condition, const char* what) {
  (void)what;
  unsigned long long start = 0;
  for (unsigned looks = 0; !condition(); ++looks) {
    if (looks < kFreeLooks) continue;
    if (looks == kFreeLooks) start = detail::nanoseconds();
    if (detail::nanoseconds() - start > kSpinNanoseconds) asm volatile("trap;");
  }
}

// The same for a whole warp, which goes on together when the condition of every lane holds at the same look. It counts
// looks, for which one register is enough: the clock would need more than a wait in the middle of a phase has.
template <class Condition>
ONEKERNEL_DEVICE void spin_together(Condition condition, const char* what) {
  (void)what;
  for (unsigned looks = 0; !__all_sync(0xffffffffu, condition()); ++looks)
    if (looks > kSpinLooks) asm volatile("trap;");
}

// The same, which after `most` vain looks calls `give_up` and goes on. The emulated device finds at once who waits for
// ever, and stops.
template <class Condition, class GiveUp>
ONEKERNEL_DEVICE void spin_together(Condition condition, const char* what, unsigned most, GiveUp give_up) {
  (void)what;
  for (unsigned looks = 0; !__all_sync(0xffffffffu, condition()); ++looks)
    if (looks >= most) return give_up();
}

// A barrier for the first `threads` threads to come, whole warps; `id` is 1 to 15. Orders memory between them.
ONEKERNEL_DEVICE void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Come to a barrier without waiting there: those who wait see what this thread wrote before.
ONEKERNEL_DEVICE void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Clock cycles of this multiprocessor; they wrap.
ONEKERNEL_DEVICE unsigned clock_ticks() {
  unsigned ticks;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(ticks)::"memory");
  return ticks;
}

// Let cycles pass after a time that was taken before. For pace alone: nothing may depend on it.
ONEKERNEL_DEVICE void let_pass(unsigned since, unsigned ticks) {
  while (clock_ticks() - since < ticks) {
  }
}
