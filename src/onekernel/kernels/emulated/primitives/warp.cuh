// The emulated twin of cuda/primitives/warp.cuh.
#pragma once
#include "primitives.cuh"

constexpr unsigned kAllLanes = 0xffffffffu;

namespace machine {

template <class T>
ONEKERNEL_PRIMITIVE T from_lane(T value, int source, unsigned lanes) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "32 or 64 bits");
  T result;
  std::memcpy(&result, shuffle(lanes, &value, sizeof(T), source), sizeof(T));
  return result;
}

ONEKERNEL_PRIMITIVE unsigned ballot(const char* operation, bool predicate, unsigned lanes) {
  const Lane* given = meet(operation, lanes, &predicate, sizeof(predicate));
  unsigned votes = 0;
  for (unsigned lane = 0; lane < 32; ++lane) votes |= (lanes >> lane & given[lane].bytes[0] & 1u) << lane;
  return votes;
}

}  // namespace machine

ONEKERNEL_PRIMITIVE int lane_index() { return static_cast<int>(machine::lane_index()); }

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

ONEKERNEL_PRIMITIVE unsigned warp_ballot(bool predicate, unsigned lanes = kAllLanes) {
  return machine::ballot("ballot", predicate, lanes);
}
ONEKERNEL_PRIMITIVE bool warp_any(bool predicate, unsigned lanes = kAllLanes) {
  return machine::ballot("any", predicate, lanes) != 0;
}
ONEKERNEL_PRIMITIVE bool warp_all(bool predicate, unsigned lanes = kAllLanes) {
  return machine::ballot("all", !predicate, lanes) == 0;
}

ONEKERNEL_PRIMITIVE void warp_barrier(unsigned lanes = kAllLanes) { machine::warp_barrier(lanes); }
