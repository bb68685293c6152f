// The emulated twin of cuda/primitives/wait.cuh. A spin that nobody can end is found at once, without a clock.
#pragma once
#include "primitives.cuh"

template <class Condition>
ONEKERNEL_PRIMITIVE void spin_until(Condition condition, const char* what) {
  while (!condition()) machine::poll(what);
  machine::end_spin();
}

template <class Condition>
ONEKERNEL_PRIMITIVE void spin_together(Condition condition, const char* what) {
  while (machine::ballot("spin", ~0u, condition()) != ~0u) machine::poll(what);
  machine::end_spin();
}
template <class Condition, class GiveUp>
ONEKERNEL_PRIMITIVE void spin_together(Condition condition, const char* what, unsigned most, GiveUp give_up) {
  (void)most, (void)give_up;
  spin_together(condition, what);
}

ONEKERNEL_PRIMITIVE void named_barrier(int id, int threads) { machine::named_barrier(id, threads); }

ONEKERNEL_PRIMITIVE void named_barrier_arrive(int id, int threads) { machine::named_barrier_arrive(id, threads); }

// Time does not pass here; whoever lets it pass may be later than others in any case.
ONEKERNEL_PRIMITIVE unsigned clock_ticks() { return 0; }

ONEKERNEL_PRIMITIVE void let_pass([[maybe_unused]] unsigned since, [[maybe_unused]] unsigned ticks) {}
