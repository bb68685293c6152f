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

ONEKERNEL_PRIMITIVE float to_float(float value) { return value; }
ONEKERNEL_PRIMITIVE float to_float(float16 value) { return static_cast<float>(machine::bits_as<_Float16>(value.bits)); }
ONEKERNEL_PRIMITIVE float to_float(bfloat16 value) {
  return machine::bits_as<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

ONEKERNEL_PRIMITIVE unsigned float_bits(float value) { return machine::bits_as<std::uint32_t>(value); }
ONEKERNEL_PRIMITIVE float bits_float(unsigned bits) {
  return machine::bits_as<float>(static_cast<std::uint32_t>(bits));
}

ONEKERNEL_PRIMITIVE void from_float(float value, float& result) { result = value; }
ONEKERNEL_PRIMITIVE void from_float(float value, float16& result) {
  result.bits = machine::bits_as<unsigned short>(static_cast<_Float16>(value));
}
ONEKERNEL_PRIMITIVE void from_float(float value, bfloat16& result) {
  const auto bits = machine::bits_as<std::uint32_t>(value);
  result.bits = std::isnan(value) ? 0x7fff : static_cast<unsigned short>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

ONEKERNEL_PRIMITIVE unsigned round_pair(float first, float second) {
  bfloat16 one, other;
  from_float(first, one);
  from_float(second, other);
  return one.bits | static_cast<unsigned>(other.bits) << 16;
}

ONEKERNEL_PRIMITIVE void forget([[maybe_unused]] int& value) {}
template <class T>
ONEKERNEL_PRIMITIVE void forget([[maybe_unused]] T*& pointer) {}

template <class T, int N>
struct alignas(sizeof(T) * N) Vector {
  T at[N];
};

namespace machine {

template <class T>
inline constexpr char kStandsFor = 0;  // its address tells types apart

template <class T, int N>
ONEKERNEL_PRIMITIVE void check_access(const T* address) {
  if (!current->may_access && !is_shared(address)) fault("memory access before await_predecessor");
  if (reinterpret_cast<std::uintptr_t>(address) % (sizeof(T) * N) != 0) misaligned(address, sizeof(T) * N);
}

}  // namespace machine

template <int N, class T>
ONEKERNEL_PRIMITIVE Vector<T, N> load_vector(const T* address) {
  machine::check_access<T, N>(address);
  return *reinterpret_cast<const Vector<T, N>*>(address);
}

template <int N, class T>
ONEKERNEL_PRIMITIVE void store_vector(T* address, const Vector<T, N>& value) {
  machine::check_access<T, N>(address);
  *reinterpret_cast<Vector<T, N>*>(address) = value;
}

template <class T>
ONEKERNEL_PRIMITIVE T& shared_storage() {
  return *static_cast<T*>(machine::shared_memory(&machine::kStandsFor<T>, sizeof(T)));
}

template <class T>
ONEKERNEL_PRIMITIVE T* dynamic_storage() {
  return static_cast<T*>(machine::dynamic_memory());
}

ONEKERNEL_PRIMITIVE float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
template <int kBound>
ONEKERNEL_PRIMITIVE int below(int value) {
  return value;
}
ONEKERNEL_PRIMITIVE void include_both(unsigned& any, unsigned& all, unsigned one, unsigned other) {
  any |= one | other;
  all &= one & other;
}
ONEKERNEL_PRIMITIVE float fast_exp2(float x) { return std::exp2(x); }
ONEKERNEL_PRIMITIVE float fast_log2(float x) { return std::log2(x); }
ONEKERNEL_PRIMITIVE float fast_reciprocal(float x) { return 1.0f / x; }
ONEKERNEL_PRIMITIVE float rounded_product(float a, float b) { return a * b; }

ONEKERNEL_PRIMITIVE float shuffle_xor(float value, int lane_mask) {
  machine::shuffle(~0u, &value, sizeof(value), machine::lane_index() ^ lane_mask);
  return value;
}
ONEKERNEL_PRIMITIVE void block_barrier() { machine::block_barrier(); }
ONEKERNEL_PRIMITIVE void start_successor() {}
ONEKERNEL_PRIMITIVE void await_predecessor() { machine::await_predecessor(); }
template <int N, class T>
ONEKERNEL_PRIMITIVE Vector<T, N> load_early(const T* address) {
  if (machine::current->may_access) return load_vector<N>(address);
  machine::allow_access(true);
  const auto value = load_vector<N>(address);
  machine::allow_access(false);
  return value;
}
ONEKERNEL_PRIMITIVE int cluster_rank() { return machine::cluster_rank(); }
ONEKERNEL_PRIMITIVE void cluster_barrier() { machine::cluster_barrier(); }
ONEKERNEL_PRIMITIVE float load_remote(const float* address, int rank) {
  return *static_cast<const float*>(machine::remote_shared(address, rank));
}

namespace machine {

// Call a kernel with an array of pointers to its arguments, as cuLaunchKernel does.
template <class... Parameters, std::size_t... kIndex>
__attribute__((no_sanitize("thread", "alignment"))) void call(void (*kernel)(Parameters...), void** arguments,
                                                              std::index_sequence<kIndex...>) {
  kernel(*static_cast<Parameters*>(arguments[kIndex])...);
}
template <class... Parameters>
void call(void (*kernel)(Parameters...), void** arguments) {
  call(kernel, arguments, std::index_sequence_for<Parameters...>{});
}

// The sizes of a kernel's parameters in bytes, ended by 0: who keeps a launch for later must copy its arguments.
template <class Kernel>
struct Sizes;
template <class... Parameters>
struct Sizes<void(Parameters...)> {
  static constexpr unsigned at[] = {sizeof(Parameters)..., 0};
};

}  // namespace machine
