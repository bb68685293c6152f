// The emulated twin of cuda/primitives/warp.cuh.
#pragma once
#include "primitives.cuh"

constexpr unsigned kAllLanes = 0xffffffffu;

namespace machine {

template <class T>
ONEKERNEL_PRIMITIVE T from_lane(T value, int source, unsigned lanes) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "32 or 64 bits");
  shuffle(lanes, &value, sizeof(T), source);
  return value;
}

}  // namespace machine

ONEKERNEL_PRIMITIVE int lane_index() { return machine::lane_index(); }

template <class T>
ONEKERNEL_PRIMITIVE T shuffle_xor(T value, int lane_mask, unsigned lanes = kAllLanes) {
  return machine::from_lane(value, lane_index() ^ lane_mask, lanes);
}

template <class T>
ONEKERNEL_PRIMITIVE T shuffle_up(T value, int distance, unsigned lanes = kAllLanes) {
  const int source = lane_index() - distance;
  return machine::from_lane(value, source < 0 ? lane_index() : source, lanes);
}

template <class T>
ONEKERNEL_PRIMITIVE T shuffle_down(T value, int distance, unsigned lanes = kAllLanes) {
  const int source = lane_index() + distance;
  return machine::from_lane(value, source >= kWarpLanes ? lane_index() : source, lanes);
}

template <class T>
ONEKERNEL_PRIMITIVE T shuffle_index(T value, int lane, unsigned lanes = kAllLanes) {
  return machine::from_lane(value, lane, lanes);
}

namespace machine {

template <class Function>
unsigned reduce_lanes(unsigned value, Function function) {
  for (int distance = kWarpLanes / 2; distance > 0; distance /= 2)
    value = function(value, from_lane(value, lane_index() ^ distance, kAllLanes));
  return value;
}

}  // namespace machine

ONEKERNEL_PRIMITIVE unsigned warp_largest(unsigned value) {
  return machine::reduce_lanes(value, [](unsigned one, unsigned other) { return one > other ? one : other; });
}
ONEKERNEL_PRIMITIVE unsigned warp_smallest(unsigned value) {
  return machine::reduce_lanes(value, [](unsigned one, unsigned other) { return one < other ? one : other; });
}
ONEKERNEL_PRIMITIVE unsigned warp_total(unsigned value) {
  return machine::reduce_lanes(value, [](unsigned one, unsigned other) { return one + other; });
}

ONEKERNEL_PRIMITIVE unsigned warp_ballot(bool predicate, unsigned lanes = kAllLanes) {
  return machine::ballot("ballot", lanes, predicate);
}
ONEKERNEL_PRIMITIVE bool warp_any(bool predicate, unsigned lanes = kAllLanes) {
  return machine::ballot("any", lanes, predicate) != 0;
}
ONEKERNEL_PRIMITIVE bool warp_all(bool predicate, unsigned lanes = kAllLanes) {
  return machine::ballot("all", lanes, !predicate) == 0;
}

ONEKERNEL_PRIMITIVE void warp_barrier(unsigned lanes = kAllLanes) { machine::warp_barrier(lanes); }
