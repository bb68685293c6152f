// Asynchronous copies from global to shared memory.
//
// A thread's own copies (sm_80; plain copies on older GPUs): copy_async, then copy_commit closes a group, and
// copy_wait<N> waits until at most the N latest groups are on their way. Only the thread that waited may read; others
// need a barrier after that.
//
// Bulk copies (sm_90): one thread announces bytes at an Mbarrier and starts them; all wait for the Mbarrier's phase.
#pragma once
#include "primitives/wait.cuh"

constexpr int kArchitecture = __CUDA_ARCH__ / 10;

namespace detail {

ONEKERNEL_DEVICE unsigned shared_address(const void* address) {
  return static_cast<unsigned>(__cvta_generic_to_shared(address));
}

}  // namespace detail

// Copy 4, 8 or 16 bytes; both addresses must be aligned to that.
template <int kBytes>
ONEKERNEL_DEVICE void copy_async(void* shared, const void* global) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16, "4, 8 or 16 bytes");
#if __CUDA_ARCH__ >= 800
  if constexpr (kBytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(detail::shared_address(shared)), "l"(global)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(detail::shared_address(shared)), "l"(global),
                 "n"(kBytes)
                 : "memory");
#else
  *static_cast<Vector<unsigned, kBytes / 4>*>(shared) = *static_cast<const Vector<unsigned, kBytes / 4>*>(global);
#endif
}

ONEKERNEL_DEVICE void copy_commit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <int kGroups = 0>
ONEKERNEL_DEVICE void copy_wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
#endif
}

// ---- bulk copies
// Lies in shared memory. A phase ends when all arrivals and all announced bytes have come; phases count 0, 1, 0, 1, ...
struct alignas(8) Mbarrier {
  unsigned long long state;
};

// By one thread; the others may use it after a block barrier.
template <int kArch = kArchitecture>
ONEKERNEL_DEVICE void mbarrier_init(Mbarrier& barrier, int arrivals) {
  static_assert(kArch >= 90, "bulk copies need sm_90; use copy_async");
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(detail::shared_address(&barrier)), "r"(arrivals)
               : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");  // the copy engine sees it too
}

template <int kArch = kArchitecture>
ONEKERNEL_DEVICE void mbarrier_arrive(Mbarrier& barrier) {
  static_assert(kArch >= 90, "bulk copies need sm_90; use copy_async");
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(detail::shared_address(&barrier)) : "memory");
}

// Arrive, and announce bytes that bulk copies will bring in this phase.
template <int kArch = kArchitecture>
ONEKERNEL_DEVICE void mbarrier_arrive_expecting(Mbarrier& barrier, int bytes) {
  static_assert(kArch >= 90, "bulk copies need sm_90; use copy_async");
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(detail::shared_address(&barrier)),
               "r"(bytes)
               : "memory");
}

namespace detail {

ONEKERNEL_DEVICE bool phase_ended(Mbarrier& barrier, int parity) {
  int done;
  asm volatile(
      "{\n\t.reg .pred done;\n\t"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n\t"
      "selp.b32 %0, 1, 0, done;\n\t}"
      : "=r"(done)
      : "r"(shared_address(&barrier)), "r"(parity)
      : "memory");
  return done != 0;
}

}  // namespace detail

// Wait until the phase of this parity (0 for the first, 1 for the second, ...) has ended.
template <int kArch = kArchitecture>
ONEKERNEL_DEVICE void mbarrier_wait(Mbarrier& barrier, int parity) {
  static_assert(kArch >= 90, "bulk copies need sm_90; use copy_async");
  spin_until([&] { return detail::phase_ended(barrier, parity); }, "the phase of an mbarrier");
}

// The same by all lanes of a warp, which go on together.
template <int kArch = kArchitecture>
ONEKERNEL_DEVICE void mbarrier_wait_together(Mbarrier& barrier, int parity) {
  static_assert(kArch >= 90, "bulk copies need sm_90; use copy_async");
  spin_together([&] { return detail::phase_ended(barrier, parity); }, "the phase of an mbarrier");
}

// By one thread: start a copy that reports its bytes to the barrier. Addresses and bytes are multiples of 16.
template <int kArch = kArchitecture>
ONEKERNEL_DEVICE void copy_bulk(void* shared, const void* global, int bytes, Mbarrier& barrier) {
  static_assert(kArch >= 90, "bulk copies need sm_90; use copy_async");
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   detail::shared_address(shared)),
               "l"(global), "r"(bytes), "r"(detail::shared_address(&barrier))
               : "memory");
}

// How L2 treats what is read once: it gives way to everything else. For copy_bulk_hinted.
template <int kArch = kArchitecture>
ONEKERNEL_DEVICE unsigned long long evict_first() {
  static_assert(kArch >= 90, "hints of bulk copies need sm_90; use copy_async");
  unsigned long long hint;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(hint));
  return hint;
}

// Bulk copies behind this read what this thread knows to be written by ordinary stores.
template <int kArch = kArchitecture>
ONEKERNEL_DEVICE void fence_copies() {
  static_assert(kArch >= 90, "bulk copies need sm_90; use copy_async");
  asm volatile("fence.proxy.async;" ::: "memory");
}

// Bring `bytes`, a multiple of 16, into L2.
template <int kArch = kArchitecture>
ONEKERNEL_DEVICE void prefetch_bulk(const void* global, int bytes) {
  static_assert(kArch >= 90, "bulk copies need sm_90; use copy_async");
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes));
}

template <int kArch = kArchitecture>
ONEKERNEL_DEVICE void copy_bulk_hinted(void* shared, const void* global, int bytes, Mbarrier& barrier,
                                       unsigned long long hint) {
  static_assert(kArch >= 90, "bulk copies need sm_90; use copy_async");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(detail::shared_address(shared)),
      "l"(global), "r"(bytes), "r"(detail::shared_address(&barrier)), "l"(hint)
      : "memory");
}
