// The emulated twin of cuda/primitives/wait.cuh. A spin that nobody can end is found at once, without a clock.
#pragma once
#include "primitives.cuh"

template <class Condition>
ONEKERNEL_PRIMITIVE void spin_until(Condition condition, const char* what) {
  while (!condition()) machine::poll(what);
  machine::end_spin();
}

ONEKERNEL_PRIMITIVE void named_barrier(int id, int threads) { machine::named_barrier(id, threads); }
