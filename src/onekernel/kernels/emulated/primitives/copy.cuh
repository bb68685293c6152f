// The emulated twin of cuda/primitives/copy.cuh. A copy lands when the machine likes: at once, at the wait, or between.
#pragma once
#include "primitives/wait.cuh"

constexpr int kArchitecture = ONEKERNEL_ARCH;

template <int kBytes>
ONEKERNEL_PRIMITIVE void copy_async(void* shared, const void* global) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16, "4, 8 or 16 bytes");
  machine::copy_async(shared, global, kBytes, kArchitecture < 80);
}

ONEKERNEL_PRIMITIVE void copy_commit() { machine::copy_commit(); }

template <int kGroups = 0>
ONEKERNEL_PRIMITIVE void copy_wait() {
  machine::copy_wait(kGroups);
}

struct alignas(8) Mbarrier {
  unsigned long long state;
};

template <int kArch = kArchitecture>
ONEKERNEL_PRIMITIVE void mbarrier_init(Mbarrier& barrier, int arrivals) {
  static_assert(kArch >= 90, "bulk copies need sm_90; use copy_async");
  machine::mbarrier_init(&barrier, arrivals);
}

template <int kArch = kArchitecture>
ONEKERNEL_PRIMITIVE void mbarrier_arrive(Mbarrier& barrier) {
  static_assert(kArch >= 90, "bulk copies need sm_90; use copy_async");
  machine::mbarrier_arrive(&barrier, 0);
}

template <int kArch = kArchitecture>
ONEKERNEL_PRIMITIVE void mbarrier_arrive_expecting(Mbarrier& barrier, int bytes) {
  static_assert(kArch >= 90, "bulk copies need sm_90; use copy_async");
  machine::mbarrier_arrive(&barrier, bytes);
}

template <int kArch = kArchitecture>
ONEKERNEL_PRIMITIVE void mbarrier_wait(Mbarrier& barrier, int parity) {
  static_assert(kArch >= 90, "bulk copies need sm_90; use copy_async");
  machine::mbarrier_wait(&barrier, parity);
}

template <int kArch = kArchitecture>
ONEKERNEL_PRIMITIVE void mbarrier_wait_together(Mbarrier& barrier, int parity) {
  static_assert(kArch >= 90, "bulk copies need sm_90; use copy_async");
  machine::mbarrier_wait(&barrier, parity);
}

template <int kArch = kArchitecture>
ONEKERNEL_PRIMITIVE void copy_bulk(void* shared, const void* global, int bytes, Mbarrier& barrier) {
  static_assert(kArch >= 90, "bulk copies need sm_90; use copy_async");
  machine::copy_bulk(shared, global, bytes, &barrier);
}

template <int kArch = kArchitecture>
ONEKERNEL_PRIMITIVE unsigned long long evict_first() {
  static_assert(kArch >= 90, "hints of bulk copies need sm_90; use copy_async");
  return 0;
}

template <int kArch = kArchitecture>
ONEKERNEL_PRIMITIVE void fence_copies() {
  static_assert(kArch >= 90, "bulk copies need sm_90; use copy_async");
}

template <int kArch = kArchitecture>
ONEKERNEL_PRIMITIVE void prefetch_bulk([[maybe_unused]] const void* global, [[maybe_unused]] int bytes) {
  static_assert(kArch >= 90, "bulk copies need sm_90; use copy_async");
}

template <int kArch = kArchitecture>
ONEKERNEL_PRIMITIVE void copy_bulk_hinted(void* shared, const void* global, int bytes, Mbarrier& barrier,
                                          [[maybe_unused]] unsigned long long hint) {
  static_assert(kArch >= 90, "bulk copies need sm_90; use copy_async");
  machine::copy_bulk(shared, global, bytes, &barrier);
}
