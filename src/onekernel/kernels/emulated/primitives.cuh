// The emulated twin of cuda/primitives.cuh: the same names, for g++.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "machine.hpp"

#define __global__
#define __device__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define threadIdx (machine::current->thread)
#define blockIdx (machine::current->block)
#define blockDim (machine::block_size)
#define gridDim (machine::grid_size)

#define ONEKERNEL_DEVICE inline

constexpr int kWarpLanes = 32;
constexpr int kAccessBytes = ONEKERNEL_ARCH >= 100 ? 32 : 16;  // the emulated architecture is given to g++

struct float16 {
  unsigned short bits;
};
struct bfloat16 {
  unsigned short bits;
};

template <class To, class From>
inline To bits_as(From value) {
  static_assert(sizeof(To) == sizeof(From), "same size");
  To result;
  std::memcpy(&result, &value, sizeof(To));
  return result;
}

inline float to_float(float value) { return value; }
inline float to_float(float16 value) { return static_cast<float>(bits_as<_Float16>(value.bits)); }
inline float to_float(bfloat16 value) { return bits_as<float>(static_cast<std::uint32_t>(value.bits) << 16); }

inline void from_float(float value, float& result) { result = value; }
inline void from_float(float value, float16& result) {
  result.bits = bits_as<unsigned short>(static_cast<_Float16>(value));
}
inline void from_float(float value, bfloat16& result) {
  const auto bits = bits_as<std::uint32_t>(value);
  result.bits = std::isnan(value) ? 0x7fff : static_cast<unsigned short>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

template <class T, int N>
struct alignas(sizeof(T) * N) Vector {
  T at[N];
};

template <class T, int N>
inline void check_access(const T* address) {
  if (!machine::current->may_access) machine::fault("memory access before await_predecessor");
  if (reinterpret_cast<std::uintptr_t>(address) % (sizeof(T) * N) != 0) machine::fault("misaligned vector access");
}

template <int N, class T>
inline Vector<T, N> load_vector(const T* address) {
  check_access<T, N>(address);
  Vector<T, N> result;
  std::memcpy(&result, address, sizeof(result));
  return result;
}

template <int N, class T>
inline void store_vector(T* address, const Vector<T, N>& value) {
  check_access<T, N>(address);
  std::memcpy(address, &value, sizeof(value));
}

template <class T>
inline T& shared_storage() {
  return *static_cast<T*>(machine::shared_memory(sizeof(T)));
}

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }

inline float shuffle_xor(float value, int lane_mask) { return machine::shuffle_xor(value, lane_mask); }
inline void block_barrier() { machine::block_barrier(); }
inline void start_successor() {}
inline void await_predecessor() { machine::current->may_access = true; }  // it has ended: launches are synchronous
inline int cluster_rank() { return machine::cluster_rank(); }
inline void cluster_barrier() { machine::cluster_barrier(); }
inline float load_remote(const float* address, int rank) {
  return *static_cast<const float*>(machine::remote_shared(address, rank));
}

namespace machine {

// Call a kernel with an array of pointers to its arguments, as cuLaunchKernel does.
template <class... Parameters, std::size_t... kIndex>
void call(void (*kernel)(Parameters...), void** arguments, std::index_sequence<kIndex...>) {
  kernel(*static_cast<Parameters*>(arguments[kIndex])...);
}
template <class... Parameters>
void call(void (*kernel)(Parameters...), void** arguments) {
  call(kernel, arguments, std::index_sequence_for<Parameters...>{});
}

}  // namespace machine
