// Lanes of a warp: shuffles, votes, barriers. Each takes a mask of lanes; every lane that it names must call it with
// the same mask, and a lane whose value is read must be named. The mask is all 32 lanes unless it is given.
//
// None but warp_barrier orders accesses to memory.
#pragma once
#include "primitives.cuh"

constexpr unsigned kAllLanes = 0xffffffffu;

namespace detail {

// Apply a function of 32-bit words to a value of one or two words.
template <class T, class Function>
ONEKERNEL_DEVICE T by_words(T value, Function function) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "32 or 64 bits");
  unsigned words[sizeof(T) / 4];
  memcpy(words, &value, sizeof(T));
#pragma unroll
  for (unsigned& word : words) word = function(word);
  memcpy(&value, words, sizeof(T));
  return value;
}

}  // namespace detail

ONEKERNEL_DEVICE int lane_index() {
  int lane;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  return below<kWarpLanes>(lane);
}

// The value of lane (own lane ^ lane_mask).
template <class T>
ONEKERNEL_DEVICE T shuffle_xor(T value, int lane_mask, unsigned lanes = kAllLanes) {
  return detail::by_words(value, [&](unsigned word) { return __shfl_xor_sync(lanes, word, lane_mask); });
}

// The value of lane (own lane - distance); its own where there is no such lane.
template <class T>
ONEKERNEL_DEVICE T shuffle_up(T value, int distance, unsigned lanes = kAllLanes) {
  return detail::by_words(value, [&](unsigned word) { return __shfl_up_sync(lanes, word, distance); });
}

// The value of lane (own lane + distance); its own where there is no such lane.
template <class T>
ONEKERNEL_DEVICE T shuffle_down(T value, int distance, unsigned lanes = kAllLanes) {
  return detail::by_words(value, [&](unsigned word) { return __shfl_down_sync(lanes, word, distance); });
}

// The value of a lane, 0 to 31.
template <class T>
ONEKERNEL_DEVICE T shuffle_index(T value, int lane, unsigned lanes = kAllLanes) {
  return detail::by_words(value, [&](unsigned word) { return __shfl_sync(lanes, word, lane); });
}

namespace detail {

template <class Function>
ONEKERNEL_DEVICE unsigned reduce_lanes(unsigned value, Function function) {
#pragma unroll
  for (int distance = kWarpLanes / 2; distance > 0; distance /= 2)
    value = function(value, shuffle_xor(value, distance));
  return value;
}

}  // namespace detail

// The largest, the smallest and the sum of the words of all 32 lanes.
ONEKERNEL_DEVICE unsigned warp_largest(unsigned value) {
#if __CUDA_ARCH__ >= 800
  return __reduce_max_sync(kAllLanes, value);
#else
  return detail::reduce_lanes(value, [](unsigned one, unsigned other) { return one > other ? one : other; });
#endif
}
ONEKERNEL_DEVICE unsigned warp_smallest(unsigned value) {
#if __CUDA_ARCH__ >= 800
  return __reduce_min_sync(kAllLanes, value);
#else
  return detail::reduce_lanes(value, [](unsigned one, unsigned other) { return one < other ? one : other; });
#endif
}
ONEKERNEL_DEVICE unsigned warp_total(unsigned value) {
#if __CUDA_ARCH__ >= 800
  return __reduce_add_sync(kAllLanes, value);
#else
  return detail::reduce_lanes(value, [](unsigned one, unsigned other) { return one + other; });
#endif
}

// A bit for each lane whose predicate holds.
ONEKERNEL_DEVICE unsigned warp_ballot(bool predicate, unsigned lanes = kAllLanes) {
  return __ballot_sync(lanes, predicate);
}
ONEKERNEL_DEVICE bool warp_any(bool predicate, unsigned lanes = kAllLanes) { return __any_sync(lanes, predicate) != 0; }
ONEKERNEL_DEVICE bool warp_all(bool predicate, unsigned lanes = kAllLanes) { return __all_sync(lanes, predicate) != 0; }

ONEKERNEL_DEVICE void warp_barrier(unsigned lanes = kAllLanes) { __syncwarp(lanes); }
